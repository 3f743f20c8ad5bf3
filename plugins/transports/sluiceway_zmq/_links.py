"""The two ends of a link: the one that was dialed, with a socket of its own, and the one that was accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zmq

from sluiceway.buffers import Buffer
from sluiceway.carrier import CarrierContext, Link, LinkLostError, Payload
from sluiceway_zmq._greeting import Greeting, hello
from sluiceway_zmq._loop import Bell, can_be_read, read_event, watch_life

__all__ = ["BYE", "CHALLENGE", "HELLO", "PROOF", "AcceptedLink", "DialedLink"]

HELLO: Final = b"H"
CHALLENGE: Final = b"C"
PROOF: Final = b"P"
BYE: Final = b"B"
_FRAME: Final = b"F"

_REFUSED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_LOST: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED


class _ZmqPayload:
    """A part of a message, in ZeroMQ's memory; freed with the last one who knows it."""

    __slots__ = ("data",)

    def __init__(self, frame: zmq.Frame) -> None:
        self.data = memoryview(frame.buffer)

    def release(self) -> None:
        self.data.release()


class _ZmqLink(Link):
    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.on_frame = _no_frame
        self.on_lost = _no_loss
        self._closed = False

    def received(self, parts: list[zmq.Frame]) -> None:
        """A message from the peer, who has proved who it is."""
        said = parts[0].bytes
        kind = said[:1]
        if kind == _FRAME and len(parts) <= 2:
            self.on_frame(said[1:], _ZmqPayload(parts[1]) if len(parts) == 2 else None)
        elif kind == BYE:
            self.lose("has closed the connection")
        else:
            self.lose(f"sent what is no frame: {said[:40]!r} in {len(parts)} parts")

    def lose(self, why: str) -> None:
        """It is over, and not by this end."""
        if not self._closed:
            self._end()
            self.on_lost(LinkLostError(f"worker {self.peer!r} {why}"))

    def _end(self) -> None:
        raise NotImplementedError


class AcceptedLink(_ZmqLink):
    """A link that the peer has made.

    Args:
        router: the socket that the worker listens on.
        identity: by which ZeroMQ knows the peer there.
        peer: its name.
        sent: to be called whenever something was sent.
        forget: to be called when the link is over.
    """

    def __init__(
        self,
        router: zmq.Socket[bytes],
        identity: bytes,
        peer: str,
        sent: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(peer)
        self._router = router
        self._identity = identity
        self._sent = sent
        self._forget = forget

    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        """Send at once."""
        if not self._closed:
            self._send(_FRAME + header, payload)
        if payload is not None:
            payload.release()

    def close(self) -> None:
        """Say goodbye."""
        if not self._closed:
            self._send(BYE, None)
            self._end()

    def _send(self, said: bytes, payload: Buffer | None) -> None:
        router = self._router
        try:
            router.send(self._identity, zmq.NOBLOCK | zmq.SNDMORE)
            if payload is None:
                router.send(said, zmq.NOBLOCK)
            else:
                router.send(said, zmq.NOBLOCK | zmq.SNDMORE)
                router.send(payload.data, zmq.NOBLOCK)
        except zmq.ZMQError:
            # The peer has gone, which is about to be told.
            pass
        self._sent()

    def _end(self) -> None:
        self._closed = True
        self._forget()


class DialedLink(_ZmqLink):
    """A link that this worker makes.

    Args:
        socket: for this link alone, ready to connect.
        peer: the worker at the other end.
        context: the carrier's.
        bell: the carrier's.
        forget: to be called when the link is over.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        peer: str,
        context: CarrierContext,
        bell: Bell,
        forget: Callable[[DialedLink], None],
    ) -> None:
        super().__init__(peer)
        self._socket = socket
        self._context = context
        self._bell = bell
        self._forget = forget
        self._endpoint = ""
        self._connected = False
        self._proved = False
        self._reading = False
        self._waiting: list[tuple[bytes, bytes | None]] = []
        said, drawn = hello(context.worker)
        self._hello = HELLO + said
        self._greeting = Greeting(context.secret, context.worker, peer, drawn)

    def connect(self, endpoint: str) -> None:
        """Connect, and say hello."""
        self._endpoint = endpoint
        self._life = watch_life(self._socket, zmq.EVENT_CONNECTED | _LOST | _REFUSED)
        self._filenos = int(self._socket.getsockopt(zmq.FD)), int(self._life.getsockopt(zmq.FD))
        for fileno in self._filenos:
            self._context.watch(fileno, False, self._ready)
        # ZeroMQ signals only what comes after a look that has found nothing.
        self._bell.ring(self._ready)
        try:
            self._socket.connect(endpoint)
            self._socket.send(self._hello, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            why = f"cannot be reached at {endpoint}: {error}"
            # Whoever connects can be told only after this.
            self._bell.ring(lambda: self.lose(why))

    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        """Send at once, or when the peer has proved who it is."""
        if not self._closed:
            if self._proved:
                self._send(_FRAME + header, None if payload is None else payload.data)
            else:
                self._waiting.append((_FRAME + header, None if payload is None else bytes(payload.data)))
        if payload is not None:
            payload.release()

    def close(self) -> None:
        """Say goodbye."""
        if not self._closed:
            if self._what_became_of_it() is not None:
                self._proved = False  # there is nobody to send anything to
            if self._proved:
                self._send(BYE, None)
            self._end()

    # ---- inside ---------------------------------------------------------------------------------------------

    def _send(self, said: bytes, payload: memoryview | bytes | None) -> None:
        socket = self._socket
        if payload is None:
            socket.send(said, zmq.NOBLOCK)
        else:
            socket.send(said, zmq.NOBLOCK | zmq.SNDMORE)
            socket.send(payload, zmq.NOBLOCK)
        # Sending may have used up the signal that there is something to read.
        if not self._reading and can_be_read(socket):
            self._bell.ring(self._ready)

    def _ready(self) -> None:
        """Read everything: ZeroMQ tells once that there is something, not how much."""
        if self._reading or self._closed:
            return
        self._reading = True
        try:
            lost = self._what_became_of_it()
            # First what the peer had still sent.
            self._read()
            if lost is not None:
                self.lose(lost)
        finally:
            self._reading = False

    def _what_became_of_it(self) -> str | None:
        while (event := read_event(self._life)) is not None:
            kind = event[0]
            if kind == zmq.EVENT_CONNECTED:
                self._connected = True
            elif kind & _REFUSED:
                return "has turned this worker away: it does not belong to the same cluster"
            elif self._connected:
                return "has gone"
            else:
                return f"cannot be reached at {self._endpoint}"
        return None

    def _read(self) -> None:
        while not self._closed:
            try:
                parts = [self._socket.recv(zmq.NOBLOCK, copy=False)]
            except zmq.Again:
                return
            while parts[-1].more:
                parts.append(self._socket.recv(zmq.NOBLOCK, copy=False))
            if self._proved:
                self.received(parts)
            else:
                self._challenged(parts[0].bytes)

    def _challenged(self, said: bytes) -> None:
        answer = self._greeting.answer(said[1:]) if said[:1] == CHALLENGE else None
        if answer is None:
            self.lose("does not know this cluster's secret")
            return
        self._proved = True
        self._send(PROOF + answer, None)
        waiting, self._waiting = self._waiting, []
        for header, payload in waiting:
            self._send(header, payload)

    def _end(self) -> None:
        self._closed = True
        for fileno in self._filenos:
            self._context.unwatch(fileno, False)
        self._socket.disable_monitor()  # before its events have no reader
        self._life.close(0)
        if self._proved:
            self._socket.close()
        else:
            self._socket.close(0)
        self._waiting.clear()
        self._forget(self)


def _no_frame(header: bytes, payload: Payload | None) -> None:
    if payload is not None:
        payload.release()


def _no_loss(error: LinkLostError) -> None:
    pass
