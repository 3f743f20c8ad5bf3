"""Flink's own dashboard, as Maven Central has it, on a server that passes its requests on to another one."""

from __future__ import annotations

import hashlib
import http.client
import mimetypes
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from maven import MavenUnavailableError, unpacked
from patience import PATIENT_S
from plugins.web.conftest import Page

__all__ = ["dashboard"]

_VERSION = "2.3.0"
_SHA256 = "c5476003a9357e6ce876a19d1daa7e37b573ad9fada6448fe665de8bad7162e8"


def _fetched() -> Path:
    """Return the directory of the dashboard. Skips the test where it cannot be had."""
    artifact = f"org.apache.flink:flink-runtime-web:{_VERSION}"
    try:
        return (
            unpacked(artifact, f"flink-runtime-web-{_VERSION}", f"Flink's dashboard {_VERSION}", _unpack) / "web"
        )
    except MavenUnavailableError as missing:
        pytest.skip(str(missing))


def _unpack(jar: Path, into: Path) -> None:
    assert hashlib.sha256(jar.read_bytes()).hexdigest() == _SHA256
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(into, [name for name in archive.namelist() if name.startswith("web/")])


@contextmanager
def dashboard(page: Page) -> Iterator[str]:
    """Serve the dashboard over the REST API of a page. Gives its address."""
    files = _fetched()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None:
            """Print nothing."""

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            file = files / (self.path.partition("?")[0].lstrip("/") or "index.html")
            if self.command == "GET" and file.is_file():
                self._send(200, mimetypes.guess_type(file.name)[0] or "text/plain", file.read_bytes())
                return
            headers = {"Authorization": f"Bearer {page.token}"}
            if "Content-Type" in self.headers:
                headers["Content-Type"] = self.headers["Content-Type"]
            connection = http.client.HTTPConnection(page.host, page.port, timeout=PATIENT_S)
            try:
                connection.request(self.command, self.path, body or None, headers)
                answer = connection.getresponse()
                self._send(answer.status, answer.getheader("content-type") or "", answer.read())
            finally:
                connection.close()

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
