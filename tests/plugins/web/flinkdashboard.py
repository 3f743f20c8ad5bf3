"""Flink's own dashboard, as Maven Central has it, on a server that passes its requests on to another one."""

from __future__ import annotations

import hashlib
import http.client
import mimetypes
import os
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from patience import PATIENT_S
from plugins.web.conftest import Page

__all__ = ["dashboard"]

_VERSION = "2.3.0"
_SHA256 = "c5476003a9357e6ce876a19d1daa7e37b573ad9fada6448fe665de8bad7162e8"


def _fetched() -> Path:
    """Return the directory of the dashboard. Skips the test where it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluiceway"
    place = cache / f"flink-runtime-web-{_VERSION}"
    if place.is_dir():
        return place / "web"
    if shutil.which("mvn") is None:
        pytest.skip("Maven, which fetches Flink's dashboard, is not installed (Debian: apt-get install maven)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        artifact = f"org.apache.flink:flink-runtime-web:{_VERSION}"
        done = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={temporary}"],
            cwd=temporary,
            timeout=600,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"Maven cannot fetch Flink's dashboard {_VERSION}: {done.stdout[-1000:]}")
        [jar] = Path(temporary).glob("*.jar")
        assert hashlib.sha256(jar.read_bytes()).hexdigest() == _SHA256
        unpacked = Path(temporary) / "unpacked"
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if name.startswith("web/")])
        try:
            unpacked.rename(place)
        except OSError:  # another process was faster
            assert place.is_dir()
    return place / "web"


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
