"""Schema registries for tests: one of the tests' own that can fail in every way, and Apicurio's."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from maven import MavenUnavailableError, unpacked
from patience import until

__all__ = ["ApicurioUnavailableError", "Registry", "apicurio"]

APICURIO_VERSION = "3.0.9"


class Registry:
    """A schema registry on 127.0.0.1 with the parts of Confluent's API that formats use.

    Attributes:
        url: its address.
        requests: method and path of the requests that were answered.
        failure: status and text with which everything is answered; None: with what is asked for.
        user: ``user:password`` that requests must have.
        gate: answers wait until it is set.
        asked: set when a request has come.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.failure: tuple[int, str] | None = None
        self.user = ""
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                registry._answer(self, None)

            def do_POST(self) -> None:
                registry._answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that has gone
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.gate.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def subjects(self) -> dict[str, list[Any]]:
        """The schemas of each subject."""
        return {
            name: [self._schemas[number - 1]["schema"] for number in numbers]
            for name, numbers in self._subjects.items()
        }

    def _answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        self.asked.set()
        self.gate.wait()
        self.requests.append(f"{handler.command} {handler.path}")
        wanted = f"Basic {b64encode(self.user.encode()).decode()}" if self.user else None
        if wanted is not None and handler.headers["Authorization"] != wanted:
            status, text = 401, json.dumps({"error_code": 401, "message": "Unauthorized"})
        elif self.failure is not None:
            status, text = self.failure
        else:
            status, found = self._find(urlsplit(handler.path).path, body)
            text = json.dumps(found)
        data = text.encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _find(self, path: str, body: Any) -> tuple[int, Any]:
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(match[1])
            if not 0 < number <= len(self._schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._schemas[number - 1]
        match = re.fullmatch(r"/subjects/([^/]+)(?:/versions(?:/(\w+))?)?", path)
        if match is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        subject, version = unquote(match[1]), match[2]
        if body is None:
            numbers = self._subjects.get(subject)
            if not numbers:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            index = len(numbers) if version == "latest" else int(version)
            return 200, self._version(subject, index)
        schema = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
        known = self._subjects.get(subject, [])
        same = [number for number in known if self._schemas[number - 1] == schema]
        if path.endswith("/versions"):
            if not same:
                if known and "incompatible" in body["schema"]:
                    return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
                if schema not in self._schemas:
                    self._schemas.append(schema)
                number = self._schemas.index(schema) + 1
                self._subjects.setdefault(subject, []).append(number)
                same = [number]
            return 200, {"id": same[0]}
        if not same:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, self._version(subject, known.index(same[0]) + 1)

    def _version(self, subject: str, index: int) -> dict[str, Any]:
        number = self._subjects[subject][index - 1]
        return {"subject": subject, "version": index, "id": number, **self._schemas[number - 1]}


class ApicurioUnavailableError(Exception):
    """Apicurio's registry cannot be started on this machine; the message says why."""


@contextmanager
def apicurio(directory: Path) -> Iterator[str]:
    """Run a registry of Apicurio, in memory; gives the address of its API in Confluent's form.

    Raises:
        ApicurioUnavailableError: it cannot be fetched, or Java is missing.
    """
    jar = _fetched()
    port = _free_port()
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    options = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-Xmx256m", "-XX:+UseSerialGC"]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with open(directory / "apicurio.log", "wb") as log:
        process = subprocess.Popen(
            [*guard, "java", *options, "-XX:TieredStopAtLevel=1", "-jar", str(jar)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, (directory / "apicurio.log").read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(answers)
        yield url
    finally:
        process.kill()
        process.wait(30)


def _fetched() -> Path:
    if shutil.which("java") is None:
        raise ApicurioUnavailableError("Java is not installed (Debian: apt-get install openjdk-17-jre-headless)")
    version = APICURIO_VERSION
    artifact = f"io.apicurio:apicurio-registry-app:{version}:tar.gz:all"
    try:
        place = unpacked(
            artifact,
            f"apicurio-{version}",
            f"Apicurio {version}",
            lambda archive, into: shutil.unpack_archive(archive, into, filter="data"),
        )
    except MavenUnavailableError as missing:
        raise ApicurioUnavailableError(str(missing)) from None
    return place / f"apicurio-registry-app-{version}-runner.jar"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
