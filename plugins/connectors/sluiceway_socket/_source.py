"""Lines from a TCP server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    EndOfInput,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Wait,
)
from sluiceway.connector.line_splitter import DEFAULT_MAX_LINE_LENGTH, DecodeErrors, LineBuffer, LineDecoder
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override
from sluiceway_socket._endpoint import Endpoint
from sluiceway_socket._link import GaveUpError, Link, cannot_connect

__all__ = ["SocketSource"]

_RECEIVE: Final = 128 * 1024
# Pieces of a line that never ends are not all there is to do.
_MOST_READS_A_POLL: Final = 32


@dataclass(frozen=True, slots=True)
class _Stream:
    """Whatever the server sends from now on."""

    address: str

    @property
    def split_id(self) -> str:
        return self.address


class SocketSource(Source[str]):
    """The lines that a TCP server sends, as strings without their delimiter.

    One reader, which connects as a client. It ends when the server closes the connection (or it breaks) and no
    retry is left; a server that could never be reached fails the job. What comes after the last delimiter of a
    connection is a record of its own when that connection ends, and is never joined with what the next one
    sends. A carriage return before a line feed is removed with it.

    A socket cannot be read again: there is no position to restore, and records that are under way when a job
    fails are lost.

    Args:
        host: name or address of the server, IPv4 or IPv6.
        port: its TCP port.
        delimiter: what ends a line; one character or several.
        encoding: how the text is encoded; one in which the delimiter can be found in the bytes.
        errors: what becomes of a line that cannot be decoded: ``strict`` fails the job, ``replace`` puts
            U+FFFD for what is wrong, ``ignore`` leaves that out, ``skip`` leaves the line out (and counts it
            in the metric ``lines_skipped``).
        max_retries: how often, over the whole run, to connect again after the connection ended or could not be
            made; None or -1: for ever.
        retry_delay: time before each of these: a timedelta, a text (``"500ms"``, ``"2s"``), or a number of
            seconds, not of ms as with other durations.
        connect_timeout: time that one attempt may take, as ``retry_delay``.
        max_line_length: bytes in a line above which the job fails: a sign of a wrong delimiter.

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
        errors: DecodeErrors = "strict",
        max_retries: int | None = 0,
        retry_delay: timedelta | float | str = 0.5,
        connect_timeout: timedelta | float | str = 10.0,
        max_line_length: int = DEFAULT_MAX_LINE_LENGTH,
    ) -> None:
        self._endpoint = Endpoint.of(host, port, max_retries, retry_delay, connect_timeout)
        if not isinstance(max_line_length, int) or max_line_length < 1:
            raise ConfigurationError(f"max_line_length={max_line_length!r} must be a number of bytes, at least 1")
        self._delimiter = delimiter
        self._encoding = encoding
        self._errors: DecodeErrors = errors
        self._max_line_length = max_line_length
        self._make_decoder()

    def __repr__(self) -> str:
        return f"SocketSource({self._endpoint})"

    @property
    def boundedness(self) -> Boundedness:
        """Unbounded, although it ends with its connection."""
        return Boundedness.UNBOUNDED

    @property
    @override
    def output_type(self) -> Any:
        return str

    @property
    @override
    def max_readers(self) -> int | None:
        return 1

    @property
    @override
    def seekable(self) -> bool:
        return False

    @property
    @override
    def gives_timestamps(self) -> bool:
        return False

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Return an enumerator of one split, the stream."""
        return SimpleEnumerator(context, [_Stream(str(self._endpoint))] if restored is None else restored)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[str]:
        decoder = self._make_decoder()
        buffer = LineBuffer(decoder.delimiter, self._max_line_length, str(self._endpoint))
        return _SocketReader(context, self._endpoint, buffer, decoder)

    def _make_decoder(self) -> LineDecoder:
        return LineDecoder(self._delimiter, self._encoding, self._errors, str(self._endpoint))


class _SocketReader(SimpleReader[str]):
    def __init__(
        self, context: ReaderContext, endpoint: Endpoint, buffer: LineBuffer, decoder: LineDecoder
    ) -> None:
        super().__init__(context)
        self._endpoint = endpoint
        self._buffer = buffer
        self._decoder = decoder
        self._stream = _Stream(str(endpoint))
        self._link: Link | None = None
        self._lines: list[str] = []
        self._ended = False
        self._reconnects = context.metrics.counter("reconnects")
        self._skipped = context.metrics.counter("lines_skipped")

    def open_split(self, split: _Stream) -> None:
        self._link = Link(self._endpoint, self.context.clock, self.context.wake)

    def read(self, limit: int) -> Poll[str]:
        assert self._link is not None
        lines = self._lines
        reads = 0
        while len(lines) < limit:
            if reads == _MOST_READS_A_POLL:
                if lines:
                    break
                return Wait(until=self.context.clock.monotonic())
            reads += 1
            outcome = END_OF_INPUT if self._ended else self._receive(self._link)
            if isinstance(outcome, (Wait, EndOfInput)):
                if lines:
                    break
                return outcome
            if lines and outcome < _RECEIVE:  # the socket is dry, by all appearances
                break
        if len(lines) <= limit:
            self._lines = []
            return lines
        self._lines = lines[limit:]
        return lines[:limit]

    def position(self) -> _Stream | None:
        return None if self._ended and not self._lines else self._stream

    def close_split(self) -> None:
        if self._link is not None:
            self._link.close()

    def _receive(self, link: Link) -> int | Wait | EndOfInput:
        """Take one piece into ``_lines``; its size, or a wait, or the end."""
        try:
            connection = link.poll()
        except GaveUpError as error:
            if not link.connections:
                raise ConnectorError(cannot_connect("SocketSource", self._endpoint, link, str(error))) from None
            self._ended = True
            return END_OF_INPUT
        finally:
            self._reconnects.value = max(link.connections - 1, 0)
        if isinstance(connection, Wait):
            return connection
        try:
            data = connection.recv(_RECEIVE)
        except BlockingIOError:
            return Wait(fileno=connection.fileno())
        except OSError as error:
            return self._connection_ended(link, error.strerror or str(error))
        if not data:
            return self._connection_ended(link, "the server closed the connection")
        self._take(self._decoder.decode(self._buffer.feed(data)))
        return len(data)

    def _connection_ended(self, link: Link, reason: str) -> int:
        # The unfinished line is a record of its own, and is not joined with what the next connection sends.
        self._take(self._decoder.decode_tail(self._buffer.finish()))
        link.lost(reason)
        # As large as a full read, so that read() goes on with the next connection.
        return _RECEIVE

    def _take(self, lines: list[str]) -> None:
        self._lines += lines  # in place: read() holds the list
        self._skipped.value = self._decoder.skipped
