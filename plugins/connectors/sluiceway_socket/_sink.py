"""Lines to a TCP server."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, Wait, WriterContext
from sluiceway.connector.line_splitter import check_encoding
from sluiceway.errors import ConfigurationError, ConnectorError, RejectedRecordError
from sluiceway_socket._endpoint import Endpoint
from sluiceway_socket._link import GaveUpError, Link, cannot_connect

__all__ = ["SocketSink"]

T = TypeVar("T")

_RECEIVE: Final = 64 * 1024
# A server that answers must be listened to, or both sides end up waiting for each other.
_LISTEN_EVERY_S: Final = 0.1
# How long a server that has answered may go on doing so at the end.
_LAST_ANSWERS_S: Final = 5.0


class SocketSink(Sink[T]):
    """Sink that sends each record as a line to a TCP server, to which every subtask connects as a client.

    A server that takes no more holds the pipeline back; what it sends is read and thrown away. TCP says
    nothing about what has arrived: when a connection breaks, lines that were already handed to the system are
    lost. With retries the line in which it broke off is sent again from its beginning over the next
    connection; without any left the job fails. A connection that breaks at the end of the input, when every line
    was handed to the system, ends the sink. So there is no guarantee across failures.

    Args:
        host: name or address of the server, IPv4 or IPv6.
        port: its TCP port.
        delimiter: sent after each line.
        encoding: how the text is encoded.
        to_text: makes the line of a record, as str or bytes.
        max_retries: how often, over the whole run, each subtask connects again after its connection broke or
            could not be made; None or -1: for ever.
        retry_delay: time before each of these: a timedelta, a text (``"500ms"``, ``"2s"``), or a number of
            seconds, not of ms as with other durations.
        connect_timeout: time that one attempt may take, as ``retry_delay``.
        buffer_size: bytes that may wait to be sent before the pipeline is held back.

    Raises:
        ConfigurationError: one of them cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        delimiter: str = "\n",
        *,
        encoding: str = "utf-8",
        to_text: Callable[[T], str | bytes] = str,
        max_retries: int | None = 0,
        retry_delay: timedelta | float | str = 0.5,
        connect_timeout: timedelta | float | str = 10.0,
        buffer_size: int = 1024 * 1024,
    ) -> None:
        self._endpoint = Endpoint.of(host, port, max_retries, retry_delay, connect_timeout)
        check_encoding(encoding, delimiter)
        if not callable(to_text):
            raise ConfigurationError(f"to_text={to_text!r:.60} must be a function from a record to str or bytes")
        if not isinstance(buffer_size, int) or buffer_size < 1:
            raise ConfigurationError(f"buffer_size={buffer_size!r} must be a number of bytes, at least 1")
        self._delimiter = delimiter
        self._encoding = encoding
        self._to_text = to_text
        self._buffer_size = buffer_size

    def __repr__(self) -> str:
        return f"SocketSink({self._endpoint})"

    @property
    def guarantee(self) -> DeliveryGuarantee:
        """None: see the class."""
        return DeliveryGuarantee.NONE

    def create_writer(self, context: WriterContext) -> SinkWriter[T]:
        """Make a writer with a connection of its own."""
        lines = _LineEncoder(self._delimiter, self._encoding, self._to_text)
        return _SocketWriter(context, self._endpoint, lines, self._buffer_size)


class _LineEncoder:
    """Records into bytes."""

    def __init__(self, delimiter: str, encoding: str, to_text: Callable[[Any], str | bytes]) -> None:
        self.delimiter = delimiter.encode(encoding)
        self._encoding = encoding
        self._to_text = to_text

    def encode(self, values: Sequence[Any]) -> bytes:
        if self._encoding == "utf-8" and self._to_text is str:
            with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate: below it is told which record
                delimiter = self.delimiter.decode()
                return (delimiter.join(map(str, values)) + delimiter).encode()
        return b"".join(self._line(value) for value in values)

    def _line(self, value: Any) -> bytes:
        try:
            line = self._to_text(value)
        except Exception as error:
            error.add_note(f"record: {value!r:.200}")
            raise
        if isinstance(line, str):
            try:
                line = line.encode(self._encoding)
            except UnicodeEncodeError as error:
                raise RejectedRecordError(
                    f"SocketSink cannot send {value!r:.200}: {self._encoding} has no "
                    f"{error.object[error.start : error.end]!r}. Set encoding=, or let to_text= "
                    f"give bytes"
                ) from error
        elif not isinstance(line, bytes):
            raise RejectedRecordError(
                f"SocketSink needs str or bytes from to_text; for {value!r:.200} it returned {type(line).__name__}"
            )
        return line + self.delimiter


class _SocketWriter(SinkWriter[Any]):
    def __init__(self, context: WriterContext, endpoint: Endpoint, lines: _LineEncoder, buffer_size: int) -> None:
        self._context = context
        self._endpoint = endpoint
        self._encoder = lines
        self._most = buffer_size
        self._link = Link(endpoint, context.clock, context.wake)
        self._chunks: deque[bytes] = deque()  # each of whole lines
        self._sent = 0  # of the first chunk
        self._size = 0
        self._draining = False
        self._listening = True
        self._has_answered = False
        self._finishing = False
        self._hang_up_at: float | None = None
        self._reconnects = context.metrics.counter("reconnects")

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        chunk = self._encoder.encode(values)
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._pump()

    def blocked(self) -> Wait | None:
        wait = self._pump()
        if wait is not None:
            return wait
        if not self._size:
            self._draining = False
        if self._draining or self._size >= self._most:
            # One descriptor can be waited for in one direction: answers are looked for at this interval.
            until = self._context.clock.monotonic() + _LISTEN_EVERY_S
            return Wait(fileno=self._connection().fileno(), write=True, until=until)
        return self._last_answers()

    def flush(self) -> None:
        self._draining = True
        self._pump()

    def finish(self) -> None:
        self._finishing = True
        self.flush()

    def close(self) -> None:
        self._link.close()

    def _connection(self) -> socket.socket:
        connection = self._link.poll()
        assert isinstance(connection, socket.socket)
        return connection

    def _last_answers(self) -> Wait | None:
        """At the end, wait until a server that answers has heard everything.

        Closing with answers unread, or under way, would become a reset, which can take sent lines with it.
        """
        if not self._finishing or not (self._has_answered and self._listening):
            return None
        if self._hang_up_at is None:  # only now everything is sent
            self._hang_up_at = self._context.clock.monotonic() + _LAST_ANSWERS_S
        with contextlib.suppress(OSError):
            # The server reads the end of the lines, and closes when it has answered.
            self._connection().shutdown(socket.SHUT_WR)
        if self._context.clock.monotonic() >= self._hang_up_at:
            return None
        return Wait(fileno=self._connection().fileno(), until=self._hang_up_at)

    def _pump(self) -> Wait | None:
        """Send what goes without blocking; a wait where there is no connection."""
        while True:
            # At the end, a lost connection is not made again for nothing: the server may be gone, too.
            if self._finishing and not self._size and self._link.connections and not self._link.is_connected:
                return None
            try:
                connection = self._link.poll()
            except GaveUpError as error:
                raise self._failure(str(error)) from None
            self._reconnects.value = max(self._link.connections - 1, 0)
            if isinstance(connection, Wait):
                return connection
            try:
                self._listen(connection)
                self._send(connection)
            except OSError as error:
                self._rewind()
                self._listening, self._has_answered = True, False
                self._link.lost(error.strerror or str(error))
                continue
            return None

    def _send(self, connection: socket.socket) -> None:
        while self._chunks:
            chunk = self._chunks[0]
            try:
                sent = connection.send(memoryview(chunk)[self._sent :])
            except BlockingIOError:
                return
            self._sent += sent
            self._size -= sent
            if self._sent == len(chunk):
                self._chunks.popleft()
                self._sent = 0

    def _listen(self, connection: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._listening:
                # A server that only stops talking may still be listening.
                self._listening = bool(connection.recv(_RECEIVE))
                self._has_answered |= self._listening

    def _rewind(self) -> None:
        """Go back to the beginning of the line that was being sent."""
        if self._sent:
            delimiter = self._encoder.delimiter
            found = self._chunks[0].rfind(delimiter, 0, self._sent)
            start = 0 if found < 0 else found + len(delimiter)
            self._size += self._sent - start
            self._sent = start

    def _failure(self, reason: str) -> ConnectorError:
        if not self._link.connections:
            return ConnectorError(cannot_connect("SocketSink", self._endpoint, self._link, reason))
        return ConnectorError(
            f"SocketSink lost its connection to {self._endpoint}: {reason}. {self._size} bytes were not sent, and "
            f"what was sent last may not have arrived. max_retries=N would connect again up to N times"
        )
