"""The socket sink against a real server."""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway.clock import VirtualClock
from sluiceway.connector import DeliveryGuarantee, Sink, Wait, WriterContext
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.metrics import MetricGroup
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.drivers import SinkDriver, drive_sink
from sluiceway_socket import SocketSink

HOST = "127.0.0.1"


class Receiver:
    """Accepts any number of connections and keeps what each of them sends, each by a thread of its own.

    Args:
        scripts: what to do with the first connections; those after them are read to their end.
    """

    def __init__(self, *scripts: Callable[[socket.socket], bytes]) -> None:
        self.listener = socket.create_server((HOST, 0))
        self.port: int = self.listener.getsockname()[1]
        self.received: list[bytes] = []
        self.errors: list[BaseException] = []
        self._scripts = list(scripts)
        self._threads: list[threading.Thread] = []
        self._last_port: int | None = None
        self._acceptor = threading.Thread(target=self._accept, name="test-receiver")
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            connection, (_, port) = self.listener.accept()
            if port == self._last_port:
                connection.close()
                return
            script = self._scripts.pop(0) if self._scripts else read_all
            number = len(self.received)
            self.received.append(b"")
            thread = threading.Thread(target=self._run, args=(script, connection, number), name="test-connection")
            self._threads.append(thread)
            thread.start()

    def _run(self, script: Callable[[socket.socket], bytes], connection: socket.socket, number: int) -> None:
        try:
            with connection:
                self.received[number] = script(connection)
        except BaseException as error:
            self.errors.append(error)

    def wait(self) -> list[bytes]:
        """What came, once all connections have ended; accepts no more."""
        if self._last_port is None:
            with socket.socket() as last:  # behind all that wait to be accepted
                last.bind((HOST, 0))
                self._last_port = last.getsockname()[1]
                last.connect((HOST, self.port))
            self._acceptor.join(PATIENT_S)
            self.listener.close()
            for thread in self._threads:
                thread.join(PATIENT_S)
                assert not thread.is_alive()
            assert self.errors == []
        return self.received

    def lines(self) -> list[str]:
        return [line for data in self.wait() for line in data.decode().splitlines()]


def read_all(connection: socket.socket) -> bytes:
    parts = []
    try:
        while data := connection.recv(1 << 16):
            parts.append(data)
    except ConnectionResetError:  # a job that failed
        pass
    return b"".join(parts)


def break_after(size: int) -> Callable[[socket.socket], bytes]:
    """Reads some bytes and resets the connection."""

    def script(connection: socket.socket) -> bytes:
        got = b""
        while len(got) < size:
            got += connection.recv(size - len(got))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return got

    return script


@pytest.fixture
def receive() -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def make(*scripts: Callable[[socket.socket], bytes]) -> Receiver:
        made.append(Receiver(*scripts))
        return made[-1]

    yield make
    for receiver in made:
        receiver.wait()


class TestConformance(SinkConformance):
    @pytest.fixture(autouse=True)
    def _receivers(self, receive: Callable[..., Receiver]) -> None:
        self.receive = receive

    def make_sink(self) -> Sink[Any]:
        self.receiver = self.receive()
        return SocketSink(HOST, self.receiver.port)

    def written(self) -> list[Any]:
        return self.receiver.lines()


def test_records_arrive_as_lines(receive: Callable[..., Receiver]) -> None:
    receiver = receive()
    drive_sink(SocketSink(HOST, receiver.port), ["a\u20ac", 1, None, (2, 3)], batch_size=3)
    assert receiver.wait() == ["a\u20ac\n1\nNone\n(2, 3)\n".encode()]


def test_text_encoding_and_delimiter_can_be_chosen(receive: Callable[..., Receiver]) -> None:
    receiver = receive()
    sink: Sink[Any] = SocketSink(
        HOST, receiver.port, "|", encoding="latin-1", to_text=lambda r: r if isinstance(r, bytes) else f"<{r}>"
    )
    drive_sink(sink, ["\u00e9", b"\xff", 2])
    assert receiver.wait() == [b"<\xe9>|\xff|<2>|"]


def test_every_writer_has_a_connection(receive: Callable[..., Receiver]) -> None:
    receiver = receive()
    drive_sink(SocketSink(HOST, receiver.port), [0, 1, 2, 3, 4, 5], 3, batch_size=1)
    assert sorted(receiver.wait()) == [b"0\n3\n", b"1\n4\n", b"2\n5\n"]


def test_a_server_that_does_not_read_holds_the_writer_back(receive: Callable[..., Receiver]) -> None:
    go_on = threading.Event()

    def script(connection: socket.socket) -> bytes:
        assert go_on.wait(PATIENT_S)
        return read_all(connection)

    receiver = receive(script)
    line = "x" * 999
    with SinkDriver(SocketSink(HOST, receiver.port, buffer_size=50_000)) as driver:
        writer = driver.writer()
        driver.wait()
        written = 0
        while (wait := writer.blocked()) is None:
            writer.write([line] * 10, None)
            written += 10
        assert isinstance(wait, Wait)
        assert wait.write
        assert wait.fileno is not None
        assert writer._size < 60_000  # type: ignore[attr-defined]
        go_on.set()
        driver.wait()
        driver.write([line])
        driver.finish()
        assert writer._size == 0  # type: ignore[attr-defined]
    assert receiver.lines() == [line] * (written + 1)


def test_a_server_that_answers_everything_is_no_deadlock(receive: Callable[..., Receiver]) -> None:
    def echo(connection: socket.socket) -> bytes:
        parts = []
        while data := connection.recv(1 << 16):
            connection.sendall(data)
            parts.append(data)
        return b"".join(parts)

    receiver = receive(echo)
    records = [f"{i} {'x' * 1000}" for i in range(12_000)]  # more than the system takes on both ways
    drive_sink(SocketSink(HOST, receiver.port), records, batch_size=500)
    assert receiver.lines() == records


def test_the_time_for_last_answers_begins_when_all_is_sent(receive: Callable[..., Receiver]) -> None:
    """A slow server that answers is not cut off while lines for it are still buffered."""
    reads, ends = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> bytes:
        got = connection.recv(1)
        connection.sendall(b"yes")
        assert reads.wait(PATIENT_S)
        got += read_all(connection)
        assert ends.wait(PATIENT_S)
        return got

    receiver, clock = receive(answer), VirtualClock()
    lines = ["x" * 1000] * 12_000  # more than the system takes
    context = WriterContext(0, 1, clock, lambda: None, MetricGroup())
    writer: Any = SocketSink(HOST, receiver.port, buffer_size=1 << 30).create_writer(context)
    end = time.monotonic() + PATIENT_S
    try:
        writer.write(lines[:1], None)
        while not writer._has_answered:
            writer.blocked()
            assert time.monotonic() < end
            time.sleep(0.001)  # polls
        writer.write(lines, None)
        writer.finish()
        assert isinstance(writer.blocked(), Wait)
        clock.advance(60_000)
        reads.set()
        while writer._size:
            writer.blocked()
            assert time.monotonic() < end
        assert isinstance(writer.blocked(), Wait), "the time begins now"
        clock.advance(1_000)
        assert isinstance(writer.blocked(), Wait)
        ends.set()
        while isinstance(wait := writer.blocked(), Wait):
            select.select([wait.fileno], [], [], PATIENT_S)
            assert time.monotonic() < end
    finally:
        reads.set()
        ends.set()
        writer.close()
    assert receiver.lines() == [lines[0]] * (1 + len(lines))


def test_nobody_there_is_an_error_that_says_what_to_do(refusing_port: int) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(SocketSink(HOST, refusing_port), ["a"])
    assert str(caught.value) == (
        f"SocketSink cannot connect to 127.0.0.1:{refusing_port}: Connection refused. Start the server first, or "
        "have SocketSink wait for it: max_retries=N tries N times more, max_retries=None for ever"
    )


def test_it_waits_for_a_server_that_is_not_there_yet() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        clock = VirtualClock()
        sink: Sink[Any] = SocketSink(HOST, listener.getsockname()[1], max_retries=None, retry_delay=60)
        with SinkDriver(sink, clock=clock) as driver:
            writer = driver.writer()
            for _ in range(10):
                wait = writer.blocked()
                assert isinstance(wait, Wait)
                clock.advance(60_000)
            listener.listen()
            driver.write(["at last"])
            driver.finish()
        with listener.accept()[0] as connection:
            assert connection.recv(100) == b"at last\n"


def test_a_lost_connection_without_retries_fails_the_job(receive: Callable[..., Receiver]) -> None:
    receiver = receive(break_after(10))

    def write_for_ever(driver: SinkDriver) -> None:
        while True:
            driver.write(["x" * 999] * 100)

    with SinkDriver(SocketSink(HOST, receiver.port)) as driver, pytest.raises(ConnectorError) as caught:
        write_for_ever(driver)
    message = str(caught.value)
    assert message.startswith(f"SocketSink lost its connection to 127.0.0.1:{receiver.port}: ")
    assert message.endswith(
        "bytes were not sent, and what was sent last may not have arrived. max_retries=N would connect again up "
        "to N times"
    )


def test_after_a_lost_connection_it_goes_on_at_the_beginning_of_a_line(receive: Callable[..., Receiver]) -> None:
    receiver = receive(break_after(123_456), break_after(77))
    records = [f"{i:06} {'x' * 1000}" for i in range(20_000)]
    sink: Sink[Any] = SocketSink(HOST, receiver.port, max_retries=2, retry_delay=0.001)
    with SinkDriver(sink) as driver:
        for start in range(0, len(records), 100):
            driver.write(records[start : start + 100])
        driver.finish()
        assert driver.metrics[0].counter("reconnects").value == 2
    first, second, third = receiver.wait()
    assert (len(first), len(second)) == (123_456, 77)
    assert second == f"{second[:6].decode()} {'x' * 70}".encode()  # from the beginning of a line
    whole = third.decode().splitlines()
    assert whole == records[-len(whole) :]


@pytest.mark.parametrize("max_retries", [0, None])
def test_a_connection_lost_when_all_is_sent_ends_the_sink(
    receive: Callable[..., Receiver], max_retries: int | None
) -> None:
    receiver = receive(break_after(2))
    with SinkDriver(SocketSink(HOST, receiver.port, max_retries=max_retries)) as driver:
        writer: Any = driver.writer()
        driver.wait()
        driver.write(["a"])
        writer.finish()
        assert receiver.wait() == [b"a\n"]
        if writer._link.is_connected:  # finish() has not heard of the end yet
            assert select.select([writer._connection()], [], [], PATIENT_S)[0]
        assert writer.blocked() is None


def test_a_connection_that_is_being_made_again_is_not_waited_for_when_all_is_sent(
    receive: Callable[..., Receiver],
) -> None:
    receiver = receive(break_after(2))
    with SinkDriver(SocketSink(HOST, receiver.port, max_retries=None, retry_delay=60)) as driver:
        writer: Any = driver.writer()
        driver.wait()
        driver.write(["a"])
        assert receiver.wait() == [b"a\n"]
        assert select.select([writer._connection()], [], [], PATIENT_S)[0]
        assert isinstance(writer.blocked(), Wait)
        writer.finish()
        assert writer.blocked() is None


def test_what_cannot_be_encoded_is_an_error_that_names_the_record(receive: Callable[..., Receiver]) -> None:
    receiver = receive()
    with pytest.raises(ConnectorError) as caught:
        drive_sink(SocketSink(HOST, receiver.port, encoding="ascii"), ["a", "\u20ac2"])
    assert str(caught.value) == (
        "SocketSink cannot send '\u20ac2': ascii has no '\u20ac'. Set encoding=, or let to_text= give bytes"
    )
    with pytest.raises(ConnectorError, match=r"SocketSink cannot send 'a\\udc80': utf-8 has no '\\udc80'"):
        drive_sink(SocketSink(HOST, receiver.port), ["ok", "a\udc80"])


def test_a_function_that_gives_no_text_is_an_error(receive: Callable[..., Receiver]) -> None:
    sink: Sink[Any] = SocketSink(HOST, receive().port, to_text=lambda r: r)
    with pytest.raises(ConnectorError, match="needs str or bytes from to_text; for 5 it returned int"):
        drive_sink(sink, ["a", 5])


def test_what_the_users_function_raises_comes_as_it_is(receive: Callable[..., Receiver]) -> None:
    sink: Sink[Any] = SocketSink(HOST, receive().port, to_text=lambda r: r["name"])
    with pytest.raises(KeyError) as caught:
        drive_sink(sink, [{"name": "a"}, {"nome": "b"}])
    assert caught.value.__notes__ == ["record: {'nome': 'b'}"]


def test_it_promises_nothing_across_failures() -> None:
    assert SocketSink(HOST, 9999).guarantee is DeliveryGuarantee.NONE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70000}, "port=70000 must be a number from 1 to 65535"),
        ({"to_text": "json"}, "to_text='json' must be a function from a record to str or bytes"),
        ({"buffer_size": 0}, "buffer_size=0 must be a number of bytes, at least 1"),
        ({"encoding": "utf-16"}, "lines that end with '\\n' cannot be told apart in bytes of encoding='utf-16'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SocketSink(**{"host": HOST, "port": 9999, **options})
    assert str(caught.value).startswith(message)


def test_importing_the_plugin_imports_none_of_its_code() -> None:
    code = (
        "import sys, sluiceway_socket as s\n"
        "(offer,) = s.sluiceway_connectors()\n"
        "assert offer.name == 'socket'\n"
        "assert 'sluiceway_socket._source' not in sys.modules and 'sluiceway.connector' not in sys.modules\n"
        "assert 'SocketSource' in dir(s)\n"
        "connector = offer.load()\n"
        "assert connector.source is s.SocketSource and connector.sink is s.SocketSink\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=PATIENT_S)
