"""Access control of the web server: over real sockets, with a monitor of fixed answers behind it."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENT_S

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.monitoring.infos import CheckpointInfo, ClusterInfo, JobDescription, JobInfo, RescaleInfo
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.monitoring.web_server import WebOptions
from sluiceway_web._security import LONGEST_BODY
from sluiceway_web._server import UvicornServer

TOKEN = "a-token"
JOB = JobInfo("words-1", "words", "running", 1, 0, 1, 0, 0, "", 0, [])


class Fixed(Monitor):
    """Monitor of a cluster with one job; records what it is asked to change."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.gone = False

    def cluster(self, *, figures: bool = False) -> ClusterInfo:
        if self.gone:
            raise ConnectorError("its process is gone")
        return ClusterInfo(1, 1, 1, 2, 1, 2, "shm", [JOB], [])

    def describe(self, job: str) -> JobDescription:
        return JobDescription()

    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        return []

    def sample_stacks(self, job: str, seconds: float, rate: float) -> list[StackSamples]:
        return []

    def sample_keys(self, job: str, vertices: list[int], seconds: float) -> list[KeySample]:
        return []

    def cancel(self, job: str) -> None:
        self.changes.append(f"cancel {job}")

    def stop(self, job: str) -> None:
        self.changes.append(f"stop {job}")

    def checkpoint(self, job: str) -> int:
        return 1

    def savepoint(self, job: str, place: str = "", *, stop: bool = False) -> str:
        self.changes.append(f"savepoint {job}")
        return "place"

    def rescale(
        self, job: str, parallelism: int | None, steps: Mapping[str, int], *, wait: bool = True
    ) -> RescaleInfo:
        self.changes.append(f"rescale {job}")
        return RescaleInfo(1, 0, "in_progress", "", {}, {})


OPTIONS = WebOptions(port=0, token=TOKEN)


class Served:
    def __init__(self, monitor: Fixed, port: int, context: ssl.SSLContext | None) -> None:
        self.monitor, self.port, self.context = monitor, port, context

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        if self.context is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENT_S)
        else:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=PATIENT_S, context=self.context
            )
        try:
            connection.request(method, path, body, {n.replace("_", "-"): v for n, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def trusted(self, path: str, method: str = "GET", **headers: str) -> int:
        return self.ask(path, method, Authorization=f"Bearer {TOKEN}", **headers)[0]


@contextmanager
def serving(options: WebOptions = OPTIONS, context: ssl.SSLContext | None = None) -> Iterator[Served]:
    monitor, server = Fixed(), UvicornServer()
    url = server.open(monitor, options)
    port = int(url.rpartition(":")[2].partition("/")[0])
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield Served(monitor, port, context)
    finally:
        server.stop()
        thread.join()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


def test_without_the_token_nothing_is_answered(served: Served) -> None:
    for path in ("/overview", "/jobs", "/static/app.mjs", "/openapi.json", "/live/jobs", "/nothing"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}, {"Cookie": "a=b"}):
            status, _, body = served.ask(path, **headers)
            assert (status, list(json.loads(body))) == (401, ["errors"])
    status, _, body = served.ask("/")
    assert (status, b"Open the link" in body) == (401, True)
    assert TOKEN not in body.decode()


def test_the_link_sets_a_cookie_that_scripts_cannot_read(served: Served) -> None:
    assert served.ask("/?token=wrong")[0] == 401
    status, headers, _ = served.ask(f"/?token={TOKEN}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert served.ask("/overview", Cookie=cookie.partition(";")[0])[0] == 200
    assert served.ask("/", Cookie=cookie.partition(";")[0])[0] == 200
    # Nowhere else: a token in the address of a script would be in its logs.
    assert served.ask(f"/overview?token={TOKEN}")[0] == 401


def test_a_browser_without_the_right_token_gets_a_page_in_words(served: Served) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    wrong, none = "each start of a server makes a new one", "No token was sent."
    asked = [
        served.ask("/?token=expired", **browser),
        served.ask("/", Cookie=f"sluiceway-{served.port}=expired", **browser),
        served.ask("/", **browser),
        served.ask("/jobs/words-1", **browser),
    ]
    for (status, headers, body), reason in zip(asked, (wrong, wrong, none, none), strict=True):
        assert status == 401
        assert headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in headers["content-security-policy"]
        assert reason.lower() in body.decode().lower()
        assert "Open the link" in body.decode()
        assert "sluiceway web" in body.decode()
        assert TOKEN not in body.decode()
    # Programs get JSON, whatever they ask for.
    assert json.loads(served.ask("/?token=expired")[2])["errors"]
    assert json.loads(served.ask("/jobs", Accept="application/json")[2])["errors"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "[::"])
def test_other_names_of_this_address_are_refused(served: Served, host: str) -> None:
    """As a name that an attacker's page has, which resolves to 127.0.0.1 a moment later."""
    assert served.trusted("/overview", Host=host) == 400


@pytest.mark.parametrize("host", ["localhost:8081", "127.0.0.1", "[::1]:8081"])
def test_names_of_this_machine_are_accepted(served: Served, host: str) -> None:
    assert served.trusted("/overview", Host=host) == 200


def test_operations_that_wait_do_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where savepoints wait for a job that cannot take one now; asyncio sizes its threads by the cores."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with serving() as served:
        waiting = threading.Event()
        served.monitor.checkpoint = lambda job: int(waiting.wait(PATIENT_S))  # type: ignore[method-assign]
        try:
            for _ in range(8):
                assert served.trusted("/jobs/words-1/checkpoints", "POST") == 202
            assert served.trusted("/jobs/words-1/checkpoints", "POST") == 503
            assert served.trusted("/overview") == 200
            assert served.trusted("/jobs/words-1", "PATCH") == 202
        finally:
            waiting.set()
    assert served.monitor.changes == ["cancel words-1"]


def test_other_sites_change_nothing(served: Served) -> None:
    own = {"Cookie": f"sluiceway-{served.port}={TOKEN}"}
    here = f"http://127.0.0.1:{served.port}"
    changes = (
        ("PATCH", "/jobs/words-1"),
        ("POST", "/jobs/words-1/savepoints"),
        ("GET", "/jobs/words-1/yarn-cancel"),
    )
    for method, path in changes:
        for headers in (
            {},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": here, "Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ):
            assert served.ask(path, method, **own, **headers)[0] == 403
    assert served.monitor.changes == []
    for method, path in changes:
        for headers in ({"Origin": here}, {"Sec_Fetch_Site": "same-origin"}):
            assert served.ask(path, method, **own, **headers)[0] == 202
        assert served.trusted(path, method) == 202
    assert served.monitor.changes.count("cancel words-1") == 6


def test_read_only() -> None:
    with serving(replace(OPTIONS, read_only=True)) as served:
        assert served.trusted("/jobs/words-1", "PATCH") == 403
        assert served.trusted("/jobs/words-1/yarn-cancel") == 403
        assert served.trusted("/overview") == 200
        _, _, body = served.ask("/config", Authorization=f"Bearer {TOKEN}")
        assert json.loads(body)["features"]["web-cancel"] is False
        assert served.monitor.changes == []


def test_bodies_are_bounded(served: Served) -> None:
    path = "/jobs/words-1/savepoints"
    status, _, body = served.ask(path, "POST", b"x" * (LONGEST_BODY + 1), Authorization=f"Bearer {TOKEN}")
    assert (status, b"at most" in body) == (413, True)
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENT_S) as sock:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        sock.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        sock.sendall(b"11000\r\n" + b"x" * 0x11000 + b"\r\n")
        assert sock.makefile("rb").readline().startswith(b"HTTP/1.1 413 ")
    assert served.monitor.changes == []
    assert served.trusted("/overview") == 200


def test_a_client_that_sends_a_body_that_is_too_long_sees_why(served: Served) -> None:
    """As urllib sends it: a connection that is closed with data unread is reset, and sockets hold less."""
    path, token = "/jobs/words-1/savepoints", {"Authorization": f"Bearer {TOKEN}", "Connection": "close"}
    body = b"x" * (40 * 1024 * 1024)
    assert served.ask(path, "POST", body, **token)[0] == 413
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENT_S)
    with closing(connection):
        parts = iter([body[i : i + 65_536] for i in range(0, len(body), 65_536)])
        connection.request("POST", path, parts, token, encode_chunked=True)
        assert connection.getresponse().status == 413


def test_the_rest_of_a_body_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import sluiceway_web._security as security

    monkeypatch.setattr(security, "_DISCARD_ALL_S", 0.05)

    async def one_byte() -> dict[str, object]:
        await asyncio.sleep(0)  # polls
        return {"type": "http.request", "body": b"x", "more_body": True}

    asyncio.run(security._Body(one_byte).discard())


def test_a_body_that_does_not_come_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import sluiceway_web._operations as operations

    monkeypatch.setattr(operations, "_BODY_S", 0.05)
    with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENT_S) as sock:
        head = f"POST /jobs/words-1/savepoints HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        sock.sendall(head.encode() + b"Connection: close\r\nContent-Length: 10\r\n\r\n{")
        answer = sock.makefile("rb").read()  # ends with the connection
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"has not come within" in answer
    assert served.monitor.changes == []


def test_too_many_requests_are_refused_for_a_while(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import sluiceway_web._security as security

    monkeypatch.setattr(security, "_MOST_PER_S", 0.0)
    monkeypatch.setattr(security, "_BURST", 3.0)
    assert [served.trusted("/config") for _ in range(5)] == [200, 200, 200, 429, 429]
    monkeypatch.setattr(security, "_MOST_PER_S", 1e9)
    assert served.trusted("/config") == 200


def test_whoever_has_no_token_takes_nothing_from_those_who_have(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sluiceway_web._security as security

    monkeypatch.setattr(security, "_MOST_PER_S", 0.0)
    monkeypatch.setattr(security, "_BURST", 3.0)
    assert [served.ask("/config")[0] for _ in range(5)] == [401, 401, 401, 429, 429]
    assert [served.trusted("/config") for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /config HTTP/1.1\r\nHost: localhost\r\n\r\nGET /con"])
def test_connections_without_a_request_end(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    import sluiceway_web._server as server

    monkeypatch.setattr(server, "_SILENT_S", 0.1)
    with serving(OPTIONS) as served:
        connections = [
            socket.create_connection(("127.0.0.1", served.port), timeout=PATIENT_S)
            for _ in range(server._MOST_CONNECTIONS)
        ]
        stream = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENT_S)
        try:
            # The server may close a connection before or while something comes from here.
            for sock in connections:
                with suppress(ConnectionError):
                    sock.sendall(sent)
            for sock in connections:
                with suppress(ConnectionError):
                    while sock.recv(4096):
                        pass
            assert served.trusted("/config") == 200
            stream.request("GET", "/live/jobs", headers={"Authorization": f"Bearer {TOKEN}"})
            answer = stream.getresponse()
            for _ in range(4):  # what is sent without an end goes on
                assert answer.fp.readline()
        finally:
            stream.close()
            for sock in connections:
                sock.close()


def test_nothing_from_outside_ends_it(served: Served) -> None:
    dice = random.Random(7)
    words = [
        b"GET",
        b"/",
        b" HTTP/1.1\r\n",
        b"Host: ",
        b"\r\n",
        b"\0",
        b"\xff" * 9,
        b"Content-Length: -1",
        b"%",
        b"a" * 99,
    ]
    for _ in range(60):
        with socket.create_connection(("127.0.0.1", served.port), timeout=PATIENT_S) as sock:
            sock.sendall(b"".join(dice.choices(words, k=dice.randrange(30))) + dice.randbytes(dice.randrange(200)))
            with suppress(OSError):  # it may be closed already, with a reset
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
    for path in ("/jobs/%00", "/jobs/%ff", "/jobs/..%2f..", "/jobs/" + "x" * 5000, "/jobs/words-1/vertices/%00"):
        assert served.trusted(path) in (400, 404)
    assert served.trusted("/jobs/words-1/metrics?get=" + "," * 1000) == 200
    assert served.trusted("/overview") == 200


def test_a_job_manager_that_is_gone_is_told(served: Served) -> None:
    served.monitor.gone = True
    status, _, body = served.ask("/jobs/overview", Authorization=f"Bearer {TOKEN}")
    assert (status, json.loads(body)["errors"]) == (503, ["The job manager does not answer: its process is gone"])
    assert served.trusted("/config") == 200
    served.monitor.gone = False
    assert served.trusted("/jobs/overview") == 200


def test_pages_may_load_nothing_from_elsewhere(served: Served) -> None:
    for path in ("/", "/overview", "/static/app.mjs"):
        _, headers, _ = served.ask(path, Authorization=f"Bearer {TOKEN}")
        assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_modules_are_asked_for_again_and_answers_are_not_kept(served: Served) -> None:
    own = {"Authorization": f"Bearer {TOKEN}"}
    for path, wanted in (("/", "no-cache"), ("/static/app.mjs", "no-cache"), ("/overview", "no-store")):
        assert served.ask(path, **own)[1]["cache-control"] == wanted
    known = served.ask("/static/app.mjs", **own)[1]["etag"]
    assert served.ask("/static/app.mjs", If_None_Match=known, **own)[0] == 304


# ---- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_addresses_need_tls(host: str) -> None:
    with pytest.raises(ConfigurationError, match="give --web-certificate and --web-key"):
        UvicornServer().open(Fixed(), replace(OPTIONS, host=host))


def test_a_token_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="needs a token"):
        UvicornServer().open(Fixed(), replace(OPTIONS, token=""))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1, with its key, signed by itself."""
    place = tmp_path_factory.mktemp("certificate") / "both.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout {place}.key -out {place}"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return place


def test_tls(certificate: Path) -> None:
    options = replace(OPTIONS, host="0.0.0.0", certificate=str(certificate), key=f"{certificate}.key")
    with serving(options, ssl.create_default_context(cafile=str(certificate))) as served:
        assert served.trusted("/overview") == 200
        _, headers, _ = served.ask(f"/?token={TOKEN}")
        assert "Secure" in headers["set-cookie"]


def test_wrong_certificates_are_refused_at_once(certificate: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.pem").write_text("no certificate")
    for path, text in ((tmp_path / "none.pem", "there is no file"), (tmp_path / "wrong.pem", "cannot be used")):
        with pytest.raises(ConfigurationError, match=text):
            UvicornServer().open(Fixed(), replace(OPTIONS, certificate=str(path)))


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(certificate: Path, tmp_path: Path) -> None:
    key = tmp_path / "locked.key"
    lock = f"openssl pkey -in {certificate}.key -aes256 -passout pass:secret -out {key}"
    subprocess.run(lock.split(), check=True, capture_output=True)
    program = (
        "from sluiceway.monitoring.web_server import WebOptions\n"
        "from sluiceway_web._server import UvicornServer\n"
        f"options = WebOptions('127.0.0.1', 0, True, 'token', {str(certificate)!r}, {str(key)!r})\n"
        "UvicornServer().open(None, options)"
    )
    # In a session of its own it has no terminal, and a prompt would read what it is given here.
    told = subprocess.run(
        [sys.executable, "-c", program],
        input=b"secret\n",
        capture_output=True,
        start_new_session=True,
        check=False,
    )
    assert told.returncode == 1, told
    error = told.stderr.decode()
    assert "PEM pass phrase" not in error
    assert f"the TLS key in '{key}' has a passphrase" in error
    assert f"openssl pkey -in {key}" in error


def test_a_key_without_a_certificate() -> None:
    with pytest.raises(ConfigurationError, match="--web-key goes with --web-certificate"):
        UvicornServer().open(Fixed(), replace(OPTIONS, key=__file__))


@pytest.mark.parametrize("host", ["a..b", "..", "x" * 80])
def test_a_host_that_is_no_name(host: str) -> None:
    options = replace(OPTIONS, host=host, behind_proxy=True, any_port=False)
    with pytest.raises(ConfigurationError, match=f"cannot listen on {host}:.* is not a host name"):
        UvicornServer().open(Fixed(), options)


def test_a_port_that_is_taken() -> None:
    with serving() as first:
        taken = replace(OPTIONS, port=first.port, any_port=False)
        with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1"):
            UvicornServer().open(Fixed(), taken)
        with serving(replace(taken, any_port=True)) as second:
            assert second.port != first.port


@pytest.mark.parametrize("failing", ["make_app", "uvicorn.Server.startup"])
def test_a_server_that_fails_leaves_its_port(
    failing: str, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]
) -> None:
    async def fail_later(*args: object, **named: object) -> None:
        fail()

    def fail(*args: object) -> None:
        raise RuntimeError("no more threads")

    options = replace(OPTIONS, port=free_port(), any_port=False)
    monkeypatch.setattr(f"sluiceway_web._server.{failing}", fail if failing == "make_app" else fail_later)
    server = UvicornServer()
    with pytest.raises(RuntimeError, match="no more threads"):  # noqa: PT012 - either of the two
        server.open(Fixed(), options)
        server.serve()
    monkeypatch.undo()
    with serving(options) as served:
        assert served.port == options.port


def test_behind_a_proxy_with_a_path() -> None:
    with serving(replace(OPTIONS, root_path="/proxy/1", behind_proxy=True)) as served:
        status, headers, _ = served.ask(f"/?token={TOKEN}", Host="jobs.example")
        assert (status, headers["location"]) == (303, "/proxy/1/")
        assert "Path=/proxy/1/" in headers["set-cookie"]
        assert served.trusted("/overview", Host="jobs.example") == 200
        assert served.trusted("/proxy/1/overview", Host="jobs.example") == 200
