"""The socket source against a real server."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.connector import END_OF_INPUT, Boundedness, Source, Wait
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver, drive_source
from sluiceway_socket import SocketSource
from sluiceway_socket._dialer import Dialer

HOST = "127.0.0.1"


class Server:
    """Serves the connections of a test one after the other, each by a function, then stops listening."""

    def __init__(self, host: str = HOST, listener: socket.socket | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.listener = listener or socket.create_server((host, 0), family=family)
        self.port: int = self.listener.getsockname()[1]
        self.errors: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def serve(self, *scripts: Callable[[socket.socket], None]) -> Server:
        def run() -> None:
            try:
                for script in scripts:
                    connection, _ = self.listener.accept()
                    with connection:
                        script(connection)
            except BaseException as error:
                self.errors.append(error)
            finally:
                self.listener.close()

        self._thread = threading.Thread(target=run, name="test-server")
        self._thread.start()
        return self

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(PATIENT_S)
            assert not self._thread.is_alive()
        self.listener.close()
        assert self.errors == []


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def sends(*pieces: bytes) -> Callable[[socket.socket], None]:
    def script(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)

    return script


def one_by_one(data: bytes) -> Callable[[socket.socket], None]:
    return sends(*(bytes([byte]) for byte in data))


def resets(*pieces: bytes) -> Callable[[socket.socket], None]:
    """Sends, waits until the other side has something to say about it, and breaks the connection."""

    def script(connection: socket.socket) -> None:
        sends(*pieces)(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return script


class TestConformance(SourceConformance):
    boundedness = Boundedness.UNBOUNDED
    restorable = False

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        self.servers: list[Server] = []
        yield
        for server in self.servers:
            if server._thread is None:
                server.listener.close()
            else:  # a source that never connected leaves it waiting
                with socket.socket() as knock:
                    knock.connect_ex((HOST, server.port))
                server.close()

    def make_source(self) -> Source[Any]:
        def script(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):  # a test that went away early
                connection.sendall("\n".join(self.expected()).encode())

        server = Server().serve(script)
        self.servers.append(server)
        return SocketSource(HOST, server.port)

    def expected(self) -> list[Any]:
        return [f"line {i} \u20ac" for i in range(100)]


def test_pieces_that_break_anywhere(server: Server) -> None:
    text = "to be\r\n\r\nor n\u00f6t \u20ac \U0001f600\n\nto\rbe"
    server.serve(one_by_one(text.encode()))
    assert drive_source(SocketSource(HOST, server.port)) == [
        "to be",
        "",
        "or n\u00f6t \u20ac \U0001f600",
        "",
        "to\rbe",
    ]


def test_a_delimiter_of_several_characters(server: Server) -> None:
    server.serve(one_by_one(b"one<end>two<en<end>d><end>three<end"))
    assert drive_source(SocketSource(HOST, server.port, "<end>")) == ["one", "two<en", "d>", "three<end"]


def test_a_long_stream_comes_whole_and_in_order(server: Server) -> None:
    lines = [f"line {i} {'x' * (i % 50)}" for i in range(50_000)]
    server.serve(sends("\n".join(lines).encode()))
    with SourceDriver(SocketSource(HOST, server.port), limit=1000) as driver:
        assert driver.run() == lines
        assert driver.largest > 100  # together, where much comes at once


def test_nothing_to_read_is_a_wait_for_the_connection(server: Server) -> None:
    go_on = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(b"first\nsec")
        assert go_on.wait(PATIENT_S)
        connection.sendall(b"ond\n")

    server.serve(script)
    with SourceDriver(SocketSource(HOST, server.port)) as driver:
        assert driver.poll()
        reader = driver._reader(0)
        wait = reader.poll(100)
        while isinstance(wait, Wait) and not (wait.fileno is not None and not wait.write):
            wait = reader.poll(100)  # until the piece of the second line has been read, too
        assert isinstance(wait, Wait)
        go_on.set()
        assert driver.run() == ["first", "second"]


def test_it_ends_with_the_connection(server: Server) -> None:
    server.serve(sends(b"one\n"))
    with SourceDriver(SocketSource(HOST, server.port)) as driver:
        driver.run()
        assert driver._reader(0).poll(10) is END_OF_INPUT
        assert driver._reader(0).snapshot() == []


def test_a_broken_connection_ends_it_like_a_closed_one(server: Server) -> None:
    received = threading.Event()

    def script(connection: socket.socket) -> None:
        connection.sendall(b"one\ntwo\nhal")
        assert received.wait(PATIENT_S)  # what is not read yet goes down with a reset
        resets(b"f")(connection)

    server.serve(script)
    with SourceDriver(SocketSource(HOST, server.port)) as driver:
        while driver.all_records() != ["one", "two"]:
            driver.poll()
        received.set()
        records = driver.run()
        assert records[:2] == ["one", "two"]
        assert records[2:] in ([], ["hal"], ["half"])


def test_it_connects_again_as_often_as_it_may(server: Server) -> None:
    server.serve(sends(b"one\ntwo"), sends(b"three\n"), sends(), sends(b"four\n"))
    source = SocketSource(HOST, server.port, max_retries=5, retry_delay=0.001)
    with SourceDriver(source) as driver:
        # What the first connection left unended is not joined with what the second one begins with.
        assert driver.run() == ["one", "two", "three", "four"]
        assert driver.metrics[0].counter("reconnects").value == 3


def test_retries_are_counted_over_the_whole_run(server: Server) -> None:
    server.serve(sends(b"one\n"), sends(b"two\n"), sends(b"never read\n"))
    assert drive_source(SocketSource(HOST, server.port, max_retries=1, retry_delay=0.0)) == ["one", "two"]
    with socket.create_connection((HOST, server.port)) as third:
        assert third.recv(100) == b"never read\n"


@pytest.mark.parametrize("delay", [timedelta(seconds=7), 7, 7.0, "7s", " 7000 ms "])
def test_the_delay_between_attempts_is_kept(delay: Any) -> None:
    clock = VirtualClock()
    source = SocketSource(HOST, 1, max_retries=3, retry_delay=delay)
    with SourceDriver(source, clock=clock) as driver, pytest.raises(ConnectorError):
        driver.run()
    assert clock.now_ms() == 21_000


def test_without_a_delay_others_run_between_two_attempts(refusing_port: int) -> None:
    source = SocketSource(HOST, refusing_port, max_retries=None, retry_delay=0)
    with SourceDriver(source) as driver:
        driver._deliver()
        for _ in range(20):
            assert isinstance(driver._reader(0).poll(10), Wait)


@pytest.mark.parametrize("retries", [None, -1, 100_000])
def test_it_waits_for_a_server_that_is_not_there_yet(retries: int | None) -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        clock = VirtualClock()
        port = listener.getsockname()[1]
        source = SocketSource(HOST, port, max_retries=retries, retry_delay=1.0)
        with SourceDriver(source, clock=clock) as driver:
            driver._deliver()
            reader = driver._reader(0)
            for _ in range(20):
                wait = reader.poll(10)
                assert isinstance(wait, Wait)
                clock.advance(1000)
            listener.listen()
            server = Server(listener=listener).serve(sends(b"at last\n"))
            assert driver.run(most=1) == ["at last"]
        server.close()


def test_nobody_there_is_an_error_that_says_what_to_do(refusing_port: int) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_source(SocketSource(HOST, refusing_port))
    assert str(caught.value) == (
        f"SocketSource cannot connect to 127.0.0.1:{refusing_port}: Connection refused. Start the server first, "
        "or have SocketSource wait for it: max_retries=N tries N times more, max_retries=None for ever"
    )


def test_the_error_counts_the_attempts(refusing_port: int) -> None:
    with pytest.raises(
        ConnectorError, match=r"Connection refused \(3 attempts, 0.001 s apart\)\. Start the server"
    ):
        drive_source(SocketSource(HOST, refusing_port, max_retries=2, retry_delay=0.001))


def test_an_error_in_a_line_names_server_and_line(server: Server) -> None:
    server.serve(sends(b"good\nb\xffd\n"))
    with pytest.raises(
        ConnectorError, match=rf"^127.0.0.1:{server.port}, line 2: byte 0xff at position 1 is not utf"
    ):
        drive_source(SocketSource(HOST, server.port))


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ("replace", ["good", "b\ufffdd", "t\ufffd"]),
        ("ignore", ["good", "bd", "t"]),
        ("skip", ["good"]),
    ],
)
def test_undecodable_bytes_are_handled_by_policy(server: Server, errors: Any, expected: list[str]) -> None:
    server.serve(sends(b"good\nb\xffd\nt\xff"))
    with SourceDriver(SocketSource(HOST, server.port, errors=errors)) as driver:
        assert driver.run() == expected
        assert driver.metrics[0].counter("lines_skipped").value == (2 if errors == "skip" else 0)


def test_another_encoding(server: Server) -> None:
    server.serve(one_by_one("\u4f60\u597d\r\n\u4e16\u754c\n".encode("gbk")))
    assert drive_source(SocketSource(HOST, server.port, encoding="gbk")) == ["\u4f60\u597d", "\u4e16\u754c"]


def test_a_line_without_end_is_an_error(server: Server) -> None:
    def script(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is hung up on
            while True:
                connection.sendall(b"x" * 10_000)

    server.serve(script)
    with pytest.raises(ConnectorError, match=r"longer than max_line_length=100000 bytes"):
        drive_source(SocketSource(HOST, server.port, max_line_length=100_000))


def test_ipv6() -> None:
    try:
        server = Server("::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    server.serve(sends(b"one\n"), sends(b"two\n"))
    for host, line in (("::1", "one"), ("[::1]", "two")):
        source = SocketSource(host, server.port)
        assert repr(source) == f"SocketSource([::1]:{server.port})"
        assert drive_source(source) == [line]
    server.close()


# ---- connecting ------------------------------------------------------------------------------------------------


def address(port: int, host: str = HOST) -> tuple[Any, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the name service says: a list of addresses, an exception, or an event to wait for."""
    answers: dict[str, Any] = {}

    def getaddrinfo(host: str, port: int, *, flags: int, **options: int) -> Any:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answer = answers[host]
        if isinstance(answer, threading.Event):
            assert answer.wait(PATIENT_S)
            answer = []
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


def test_a_name_is_looked_up_without_blocking(server: Server, names: dict[str, Any]) -> None:
    server.serve(sends(b"found\n"))
    names["somewhere"] = [address(server.port)]
    assert drive_source(SocketSource("somewhere", server.port)) == ["found"]


def test_every_address_of_a_name_is_tried(server: Server, refusing_port: int, names: dict[str, Any]) -> None:
    server.serve(sends(b"found\n"))
    names["localhost"] = [address(refusing_port), address(server.port)]
    assert drive_source(SocketSource("localhost", server.port)) == ["found"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (UnicodeError("label too long"), r"not a host name \(label too long\)"),
        ([], "the name has no address"),
    ],
)
def test_an_unknown_name_is_an_error(names: dict[str, Any], answer: Any, reason: str) -> None:
    names["nowhere"] = answer
    with pytest.raises(ConnectorError, match=rf"cannot connect to nowhere:9999: {reason}\. Start the server"):
        drive_source(SocketSource("nowhere", 9999))


def test_a_name_service_that_does_not_answer_is_given_up(names: dict[str, Any]) -> None:
    names["nowhere"] = silence = threading.Event()
    clock = VirtualClock()
    source = SocketSource("nowhere", 9999, connect_timeout=3, max_retries=1, retry_delay=0)
    try:
        with (
            SourceDriver(source, clock=clock) as driver,
            pytest.raises(ConnectorError, match=r"no answer from the name service within 3 s \(2 attempts"),
        ):
            driver.run()
        assert clock.now_ms() == 6000
    finally:
        silence.set()


def test_an_attempt_that_takes_too_long_is_given_up() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting: list[socket.socket] = []
        try:
            while True:  # fill the queue that nobody accepts from
                knock = socket.socket()
                knock.setblocking(False)
                waiting.append(knock)
                knock.connect_ex((HOST, port))
                if len(waiting) > 3:
                    break
            clock = VirtualClock()
            source = SocketSource(HOST, port, connect_timeout=5)
            with (
                SourceDriver(source, clock=clock) as driver,
                pytest.raises(ConnectorError, match=r"no answer within connect_timeout=5 s\. Start"),
            ):
                driver.run()
            assert clock.now_ms() == 5000
        finally:
            for knock in waiting:
                knock.close()


def test_a_connection_with_itself_is_none() -> None:
    """Connecting to a port that nobody listens on can meet the very socket that connects."""
    dialer = Dialer(HOST, 1, 1.0, SystemClock(), lambda: None)
    own = socket.socket()
    own.bind((HOST, 0))
    own.connect(own.getsockname())
    dialer._socket = own
    assert dialer._check(own) is None
    assert own.fileno() == -1
    assert dialer._error is not None
    assert dialer._error.errno == errno.ECONNREFUSED


# ---- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": ""}, "host='' must be a host name or an IP address"),
        ({"port": 0}, "port=0 must be a number from 1 to 65535"),
        ({"port": "9999"}, "port='9999' must be a number from 1 to 65535"),
        ({"max_retries": -2}, "max_retries=-2 must be 0 or more, or None for no limit"),
        (
            {"retry_delay": -1},
            "retry_delay=-1 must be a timedelta, a text such as '500ms', or a number of seconds",
        ),
        (
            {"connect_timeout": 0},
            "connect_timeout=0 must be a timedelta, a text such as '500ms', or a number of seconds",
        ),
        ({"retry_delay": "soon"}, "retry_delay='soon' must be a timedelta, a text"),
        ({"retry_delay": "5.0"}, "retry_delay='5.0' must be a timedelta, a text"),
        ({"delimiter": ""}, "delimiter= is empty; lines end with at least one character"),
        ({"encoding": "utf-16"}, "lines that end with '\\n' cannot be told apart in bytes of encoding='utf-16'"),
        ({"errors": "panic"}, "errors='panic' must be one of 'strict', 'replace', 'ignore', 'skip'"),
        ({"max_line_length": 0}, "max_line_length=0 must be a number of bytes, at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SocketSource(**{"host": HOST, "port": 9999, **options})
    assert str(caught.value).startswith(message)
