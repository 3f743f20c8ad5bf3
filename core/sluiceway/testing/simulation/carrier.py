"""Carrier of frames between simulated workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sluiceway.network import frames
from sluiceway.testing.simulation.loop import Node
from sluiceway.testing.simulation.streams import Pipe
from sluiceway.transport.buffers import Buffer
from sluiceway.transport.carrier import Carrier, CarrierContext, Link, LinkLostError, Payload
from sluiceway.util.overriding import override

__all__ = ["SimulatedCarrier"]

_KINDS: Final = {
    getattr(frames, name): name
    for name in ("OPEN", "DATA", "SMALL", "ELEMENT", "URGENT", "CREDIT", "WAITING", "FAIL", "GONE")
}


class SimulatedCarrier(Carrier):
    """Carrier over pipes between processes of one world.

    Some links pass payloads like shared memory: the receiver reads them in the sender's segment, which
    is returned when it has read them. The others copy them, as sockets do. The seed decides.

    Args:
        node: the worker.
        carriers: all carriers of the world, by the name of the worker.
    """

    def __init__(self, node: Node, carriers: dict[str, SimulatedCarrier]) -> None:
        self.node = node
        self.links: list[SimulatedLink] = []
        self._carriers = carriers
        self.accepted: Callable[[Link], None] = lambda link: None

    @override
    def start(self, context: CarrierContext) -> str:
        self.accepted = context.accepted
        self._carriers[context.worker] = self
        self.node.on_end.append(self._process_ended)
        return f"simulated:{context.worker}"

    def segments(self, count: int, size: int) -> list[memoryview]:
        """Allocate segments in this process."""
        return [memoryview(bytearray(size)) for _ in range(count)]

    def connect(self, peer: str, address: str) -> Link:
        """Make a link; an absent peer is detected later."""
        link = SimulatedLink(self, peer, self.node.world.chance.random() < 0.5)
        other = self._carriers.get(address.removeprefix("simulated:"))
        if other is None or not other.node.alive:
            link.to_end_soon(f"worker {peer!r} cannot be reached")
            return link
        theirs = SimulatedLink(other, self.node.name, link.copies)
        link.other, theirs.other = theirs, link
        link.out.put(_Open())
        return link

    @override
    def close(self) -> None:
        for link in self.links:
            link.close()
        self._carriers.pop(self.node.name, None)

    def _process_ended(self, cleanly: bool) -> None:
        for link in self.links:
            link.process_ended(cleanly)
        self._carriers.pop(self.node.name, None)


class _Open(NamedTuple):
    """First frame of a link."""


class _Frame(NamedTuple):
    header: bytes
    payload: Payload | None


class _Read(NamedTuple):
    """Acknowledgement of a payload that was read."""

    buffer: Buffer


class _Lost(NamedTuple):
    why: str


class SimulatedLink(Link):
    """End of a link.

    Args:
        carrier: whose end.
        peer: the worker at the other end.
        copies: whether payloads are copied.
    """

    def __init__(self, carrier: SimulatedCarrier, peer: str, copies: bool) -> None:
        self.peer = peer
        self.copies = copies
        self.other: SimulatedLink | None = None
        self._carrier = carrier
        self._node = carrier.node
        self._closed = False
        self._lent: list[Buffer] = []
        self.out: Pipe[_Open | _Frame | _Read | _Lost] = Pipe(self._node.world, self._comes_out)
        self.on_frame = lambda header, payload: None
        self.on_lost = lambda error: None
        carrier.links.append(self)

    @override
    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        if self._closed or self.other is None:
            if payload is not None:
                payload.release()
            return
        if payload is None:
            self.out.put(_Frame(header, None))
        elif self.copies:
            self.out.put(_Frame(header, _Copy(bytes(payload.data))))
            self._lent.append(payload)
            # A socket gives the buffer back when it has taken the bytes, which may be later.
            self._node.world.after(self._node.world.delay_us(), partial(self._soon, _Read(payload)))
        else:
            # The buffer is free only when the peer has read it in place.
            self._lent.append(payload)
            self.out.put(_Frame(header, _InPlace(self.other, payload)))

    def close(self) -> None:
        """Close the link; frames that were sent still arrive."""
        if self._closed:
            return
        self._let_go()
        self.out.put(_Lost(f"worker {self._node.name!r} has closed the connection"))

    def process_ended(self, cleanly: bool) -> None:
        """Handle the end of this end's process."""
        if self._closed:
            return
        self._closed = True  # its buffers are gone with it
        if not cleanly:
            self.out.cut()
        self.out.put(_Lost(f"worker {self._node.name!r} has gone"))

    def to_end_soon(self, why: str) -> None:
        """Schedule the loss of the link: the peer does not exist."""
        self._node.world.after(self._node.world.delay_us(), partial(self._soon, _Lost(why)))

    def has_read(self, buffer: Buffer) -> None:
        """Return the buffer of a payload that the peer has read."""
        if not self._closed and self._node.alive:
            self.out.put(_Read(buffer))

    # ---- what comes -----------------------------------------------------------------------------------------

    def _comes_out(self, thing: _Open | _Frame | _Read | _Lost) -> None:
        if self.other is not None:
            self.other._soon(thing)

    def _soon(self, thing: _Open | _Frame | _Read | _Lost) -> None:
        """Call in the loop's turn."""
        if self._node.alive:
            self._node.loop.soon(partial(self._take, thing))

    def _take(self, thing: _Open | _Frame | _Read | _Lost) -> None:
        if self._closed:
            return
        match thing:
            case _Open():
                self._carrier.accepted(self)
            case _Frame():
                kind, channel = frames.HEAD.unpack_from(thing.header)
                self._node.world.note(
                    self._node.name, f"gets from {self.peer}: {_KINDS.get(kind, kind)} of channel {channel}"
                )
                self.on_frame(thing.header, thing.payload)
            case _Read():
                # Given back already if the link was closed meanwhile.
                if thing.buffer in self._lent:
                    self._lent.remove(thing.buffer)
                    thing.buffer.release()
            case _Lost():
                self._let_go()
                self._node.world.note(self._node.name, f"loses its link to {self.peer}")
                self.on_lost(LinkLostError(thing.why))

    def _let_go(self) -> None:
        """Release the buffers; payloads that the peer has not read must stay unchanged."""
        self._closed = True
        under_way = self.out.under_way
        for index, thing in enumerate(under_way):
            if isinstance(thing, _Frame) and isinstance(thing.payload, _InPlace):
                under_way[index] = _Frame(thing.header, _Copy(bytes(thing.payload.data)))
        for buffer in self._lent:
            buffer.release()
        self._lent.clear()


class _Copy:
    """Copied payload."""

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)

    def release(self) -> None:
        """Release it; later reads raise an error."""
        self.data.release()


class _InPlace:
    """Payload in the sender's memory."""

    def __init__(self, link: SimulatedLink, buffer: Buffer) -> None:
        self.data = buffer.data
        self._link = link
        self._buffer = buffer

    def release(self) -> None:
        """Acknowledge the payload to the sender."""
        self.data.release()
        self._link.has_read(self._buffer)
