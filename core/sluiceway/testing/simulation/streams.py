"""Connections between simulated processes: ordered, delayed, and cut by a crash."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Generic, TypeVar

from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.protocol import MalformedMessageError, decode
from sluiceway.testing.simulation.loop import Node
from sluiceway.testing.simulation.world import World

__all__ = ["Pipe", "SimulatedListener", "SimulatedStream", "connect"]

T = TypeVar("T")

_HEADER: Final = 4
_FIRST_NUMBER: Final = 1_000_000_000  # no file has such a number


class Pipe(Generic[T]):
    """One direction of a connection. Chunks arrive at the other end later, in order.

    Args:
        world: knows how much later.
        take: called with each thing that comes out.
    """

    def __init__(self, world: World, take: Callable[[T], None]) -> None:
        self._world = world
        self._take = take
        self._under_way: deque[T] = deque()
        self._last_us = 0

    def put(self, thing: T) -> None:
        """Send a chunk."""
        world = self._world
        # One microsecond apart at least: the world shuffles events of the same time.
        self._last_us = max(self._last_us + 1, world.clock.us + world.delay_us())
        self._under_way.append(thing)
        world.at_us(self._last_us, self._arrive)

    def cut(self) -> list[T]:
        """Crash the sender: some of the chunks in flight still arrive; return the lost rest."""
        kept = self._world.chance.randint(0, len(self._under_way))
        lost = []
        while len(self._under_way) > kept:
            lost.append(self._under_way.pop())
        return lost

    @property
    def under_way(self) -> deque[T]:
        """Chunks in flight, oldest first."""
        return self._under_way

    def _arrive(self) -> None:
        # After a cut there are more of these calls than things.
        if self._under_way:
            self._take(self._under_way.popleft())


class SimulatedStream:
    """End of a byte connection between two processes, with the interface of a socket."""

    _numbers = count(_FIRST_NUMBER)

    def __init__(self, node: Node) -> None:
        self.node = node
        self.peer: SimulatedStream
        self._number = next(self._numbers)
        self._in: deque[bytes] = deque()
        self._ended: str = ""
        self._closed = False
        self._pipe: Pipe[bytes | None] = Pipe(node.world, lambda data: self.peer._came(data))
        self._said = bytearray()
        self._heard: deque[list[str]] = deque()
        node.poller.open(self._number, lambda: bool(self._in or self._ended))
        node.on_end.append(self._process_ended)

    def fileno(self) -> int:
        """Return the number by which pollers identify it."""
        return -1 if self._closed else self._number

    def setblocking(self, flag: bool, /) -> None:
        """Ignored: the end never blocks."""

    def send(self, data: memoryview, /) -> int:
        """Send all of the data; it is dropped if the other end is closed."""
        if self._closed:
            raise OSError(errno.EBADF, "closed")
        if self._ended:
            raise BrokenPipeError(errno.EPIPE, "the other end is closed")
        if self.node.alive:
            chunk = bytes(data)
            # Readers must not rely on getting at once what was sent at once.
            if self.node.world.chance.random() < 0.1:
                at = int(len(chunk) * self.node.world.chance.random())
                self._put(chunk[:at])
                chunk = chunk[at:]
            self._put(chunk)
        return len(data)

    def recv(self, size: int, /) -> bytes:
        """Return arrived data."""
        if self._in:
            data = self._in.popleft()
            if len(data) > size:
                self._in.appendleft(data[size:])
                data = data[:size]
            return data
        if self._ended == "reset":
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        if self._ended:
            return b""
        raise BlockingIOError(errno.EAGAIN, "nothing has come")

    def close(self) -> None:
        """Close the end; sent data still arrives."""
        if not self._closed:
            self._closed = True
            self.node.poller.shut(self._number)
            if self.node.alive:
                self._pipe.put(None)

    # ---- the other side -------------------------------------------------------------------------------------

    def _came(self, data: bytes | None) -> None:
        if self._closed or self._ended or not self.node.alive:
            return
        if data is None:
            self._ended = "closed"
        else:
            for name in self._heard.popleft():
                self.node.world.note(self.node.name, f"is told by {self.peer.node.name}: {name}")
            # To whoever reads, an empty chunk would be the end.
            if not data:
                return
            self._in.append(data)
        self.node.poller.came(self._number)

    def _process_ended(self, cleanly: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if not cleanly:
            # The names of messages go with the chunks that are lost.
            for _ in self._pipe.cut():
                self.peer._heard.pop()
            # Sockets show the end of a process as a reset if it has left data unread, and else as an end.
            if self.node.world.chance.random() < 0.5:
                self.node.world.after(self.node.world.delay_us(), self.peer._reset)
        self._pipe.put(None)

    def _reset(self) -> None:
        if not self._closed and self.node.alive and not self._ended:
            self._ended = "reset"
            self.node.poller.came(self._number)

    def _put(self, chunk: bytes) -> None:
        self.peer._heard.append(self._names_of(chunk))
        self._pipe.put(chunk)

    def _names_of(self, chunk: bytes) -> list[str]:
        """Return the messages that end in this chunk, for the trace."""
        said = self._said
        said += chunk
        names = []
        while len(said) >= _HEADER:
            end = _HEADER + int.from_bytes(said[:_HEADER], "big")
            if len(said) < end:
                break
            try:
                names.append(_describe(decode(bytes(said[_HEADER:end]))))
            except MalformedMessageError:
                names.append("a part of a large message")
            del said[:end]
        return names


class SimulatedListener:
    """Listener of the job manager."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._number = next(SimulatedStream._numbers)
        self._waiting: deque[SimulatedStream] = deque()
        self._closed = False

    def fileno(self) -> int:
        """Return the number by which pollers identify it."""
        return -1 if self._closed else self._number

    def accept(self) -> tuple[SimulatedStream, Any]:
        """Accept the next connection."""
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "nobody has connected")
        return self._waiting.popleft(), None

    def close(self) -> None:
        """Accept no further connections."""
        self._closed = True

    def came(self, stream: SimulatedStream) -> None:
        """Queue a new connection."""
        self._waiting.append(stream)
        self.node.poller.came(self._number)


def connect(node: Node, listener: SimulatedListener) -> SimulatedStream:
    """Connect a process to a listener.

    Raises:
        ConnectionRefusedError: whose listener it was has ended.
    """
    if not listener.node.alive or listener.fileno() < 0:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
    ours, theirs = SimulatedStream(node), SimulatedStream(listener.node)
    ours.peer, theirs.peer = theirs, ours
    listener.came(theirs)
    return ours


def _describe(message: Message) -> str:
    words = [type(message).__name__]
    for field in ("worker", "attempt", "state", "vertex", "subtask", "mark"):
        value = getattr(message, field, None)
        if value is not None:
            words.append(f"{field}={value}")
    return " ".join(words)
