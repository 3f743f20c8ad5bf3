"""Both ends of a link: the dialed one, with a socket of its own, and the accepted one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import zmq

from sluiceway.transport.buffers import Buffer
from sluiceway.transport.carrier import CarrierContext, Link, LinkLostError, Payload
from sluiceway_zmq._greeting import Greeting, hello
from sluiceway_zmq._loop import can_be_read, read_event, rest_of_message, watch_life

__all__ = ["BYE", "CHALLENGE", "HELLO", "PROOF", "AcceptedLink", "DialedLink"]

HELLO: Final = b"H"
CHALLENGE: Final = b"C"
PROOF: Final = b"P"
BYE: Final = b"B"
_FRAMES: Final = b"F"

_LENGTH: Final = struct.Struct("<I")
_MORE: Final = zmq.NOBLOCK | zmq.SNDMORE

_REFUSED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
# ZeroMQ reports a first attempt that failed as closed or retried; the interval of configure() prevents a second.
_LOST: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED


class _ZmqPayload:
    """Part of a message, in ZeroMQ's memory; freed with the last reference to it."""

    __slots__ = ("data",)

    def __init__(self, frame: zmq.Frame) -> None:
        self.data: memoryview = frame.buffer

    def release(self) -> None:
        self.data.release()


class _ZmqLink(Link):
    """Base of links. Headers without a payload go with the next message, or at the end of the turn."""

    def __init__(self, peer: str, context: CarrierContext) -> None:
        self.peer = peer
        self.on_frame = _no_frame
        self.on_lost = _no_loss
        self._context = context
        self._closed = False
        # Frames may be sent. False in a dialed link until the peer has answered the hello with a valid challenge.
        self._standing = True
        self._headers: list[bytes] = []
        self._flush_comes = False

    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        """Send with what else there is to send."""
        if self._closed:
            if payload is not None:
                payload.release()
            return
        headers = self._headers
        headers.append(_LENGTH.pack(len(header)))
        headers.append(header)
        if payload is None:
            if not self._flush_comes:
                self._flush_comes = True
                self._context.soon(self._flush_now)
        else:
            # The payload ends its message, with all earlier headers before it, so that frames stay in order.
            # ZeroMQ copies it, and the segment is free at once.
            self._flush(payload.data)
            payload.release()

    def received(self, said: bytes, payload: zmq.Frame | None, parts: int) -> None:
        """Handle a message from the peer, which is authenticated."""
        kind = said[:1]
        if kind == _FRAMES and parts <= 2:
            try:
                self._frames(said, payload)
            except Exception as error:  # whatever it sent ends this link, and not the worker
                self.lose(f"sent what cannot be processed: {type(error).__name__}: {error}")
        elif kind == BYE:
            self.lose("has closed the connection")
        else:
            self._breaks_rules(said, parts)

    def lose(self, why: str) -> None:
        """End the link because of the peer or the network."""
        if not self._closed:
            self._end()
            self.on_lost(LinkLostError(f"worker {self.peer!r} {why}"))

    def close(self) -> None:
        """Send the goodbye and end the link."""
        if not self._closed:
            self._flush(None)
            if self._standing:
                self._send(BYE, None)
            self._end()

    def _frames(self, said: bytes, payload: zmq.Frame | None) -> None:
        """Return frames, of which all but the last have no payload."""
        at, until = 1, len(said)
        # on_frame() may close the link between two frames.
        while at < until and not self._closed:
            if at + _LENGTH.size > until:
                self._breaks_rules(said, 1)
                return
            (size,) = _LENGTH.unpack_from(said, at)
            begin = at + _LENGTH.size
            at = begin + size
            if at > until:
                self._breaks_rules(said, 1)
                return
            last = at == until and payload is not None
            self.on_frame(said[begin:at], _ZmqPayload(payload) if last and payload is not None else None)

    def _breaks_rules(self, said: bytes, parts: int) -> None:
        self.lose(f"sent what is no frame: {said[:40]!r} in {parts} parts")

    def _flush_now(self) -> None:
        self._flush_comes = False
        if not self._closed:
            self._flush(None)

    def _flush(self, payload: memoryview | bytes | None) -> None:
        if self._headers and self._standing:
            said = b"".join((_FRAMES, *self._headers))
            self._headers.clear()
            self._send(said, payload)

    def _send(self, said: bytes, payload: memoryview | bytes | None) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class AcceptedLink(_ZmqLink):
    """Link that the peer has made.

    Args:
        router: the socket on which the worker listens.
        identity: ZeroMQ's name for the peer there.
        peer: its name.
        context: the carrier's context.
        sent: called whenever something was sent.
        forget: called when the link is closed.
    """

    def __init__(
        self,
        router: zmq.Socket[bytes],
        identity: bytes,
        peer: str,
        context: CarrierContext,
        sent: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(peer, context)
        self._router = router
        self._identity = identity
        self._sent = sent
        self._forget = forget

    def _send(self, said: bytes, payload: memoryview | bytes | None) -> None:
        send = self._router.send
        try:
            send(self._identity, _MORE)
            if payload is None:
                send(said, zmq.NOBLOCK)
            else:
                send(said, _MORE)
                send(payload, zmq.NOBLOCK)
        except zmq.ZMQError:
            # The peer has gone, which is about to be told.
            pass
        self._sent()

    def _end(self) -> None:
        self._closed = True
        self._headers.clear()
        self._forget()


class DialedLink(_ZmqLink):
    """Link that this worker makes.

    Args:
        socket: for this link alone, ready to connect.
        peer: the worker at the other end.
        context: the carrier's context.
        forget: called when the link is closed.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        peer: str,
        context: CarrierContext,
        forget: Callable[[DialedLink], None],
    ) -> None:
        super().__init__(peer, context)
        self._socket = socket
        self._forget = forget
        self._endpoint = ""
        self._connected = False
        self._standing = False
        self._reading = False
        self._look_comes = False
        self._waiting: list[tuple[bytes, bytes]] = []
        # Both proofs cover the name that was dialed, so a worker that answers at another's address is not
        # accepted.
        said, drawn = hello(context.worker)
        self._hello = HELLO + said
        self._greeting = Greeting(context.secret, context.worker, peer, drawn)

    def connect(self, endpoint: str) -> None:
        """Connect, and send the hello."""
        self._endpoint = endpoint
        self._life = watch_life(self._socket, zmq.EVENT_CONNECTED | _LOST | _REFUSED)
        self._filenos = int(self._socket.getsockopt(zmq.FD)), int(self._life.getsockopt(zmq.FD))
        for fileno, ready in zip(self._filenos, (self._look, self._ready), strict=True):
            self._context.watch(fileno, False, ready)
        # ZeroMQ signals only what comes after a look that has found nothing.
        self._context.soon(self._ready)
        try:
            self._socket.connect(endpoint)
            # ZeroMQ keeps the hello until the connection is up.
            self._socket.send(self._hello, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            why = f"cannot be reached at {endpoint}: {error}"
            # Whoever connects can be told only after this.
            self._context.soon(lambda: self.lose(why))

    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        """Send when the peer has proved who it is."""
        if self._standing or self._closed or payload is None:
            super().send(header, payload)
        else:
            # A copy, so that the buffer is not kept for as long as that takes.
            self._headers += (_LENGTH.pack(len(header)), header)
            self._waiting.append((b"".join((_FRAMES, *self._headers)), bytes(payload.data)))
            self._headers.clear()
            payload.release()

    def close(self) -> None:
        """Send the goodbye, if the peer is still connected."""
        if not self._closed:
            # A goodbye to a lost peer would never leave, and hold up the context for the linger time.
            if self._what_became_of_it() is not None:
                self._standing = False
            super().close()

    # ---- inside ---------------------------------------------------------------------------------------------

    def _send(self, said: bytes, payload: memoryview | bytes | None) -> None:
        send = self._socket.send
        if payload is None:
            send(said, zmq.NOBLOCK)
        else:
            send(said, _MORE)
            send(payload, zmq.NOBLOCK)
        # Sending may have used up the signal that there is something to read.
        if not self._reading and not self._look_comes:
            self._look_comes = True
            self._context.soon(self._look)

    def _look(self) -> None:
        """Read what there is."""
        self._look_comes = False
        if not self._reading:
            self._reading = True
            try:
                self._read()
            finally:
                self._reading = False

    def _ready(self) -> None:
        """Check the connection and read all messages: ZeroMQ signals once for any number of them."""
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
        socket = self._socket
        while not self._closed and can_be_read(socket):
            said = socket.recv(zmq.NOBLOCK)
            payload, parts = rest_of_message(socket)
            if self._standing:
                self.received(said, payload, parts)
            else:
                self._challenged(said)

    def _challenged(self, said: bytes) -> None:
        answer = self._greeting.answer(said[1:]) if said[:1] == CHALLENGE else None
        if answer is None:
            self.lose("does not know this cluster's secret")
            return
        self._standing = True
        # The peer drops frames of strangers: the proof precedes everything that has waited.
        self._send(PROOF + answer, None)
        waiting, self._waiting = self._waiting, []
        for header, payload in waiting:
            self._send(header, payload)
        self._flush(None)

    def _end(self) -> None:
        self._closed = True
        for fileno in self._filenos:
            self._context.unwatch(fileno, False)
        self._socket.disable_monitor()  # before its events have no reader
        self._life.close(0)
        # Linger only where the goodbye can still go out.
        if self._standing:
            self._socket.close()
        else:
            self._socket.close(0)
        self._waiting.clear()
        self._headers.clear()
        self._forget(self)


def _no_frame(header: bytes, payload: Payload | None) -> None:
    if payload is not None:
        payload.release()


def _no_loss(error: LinkLostError) -> None:
    pass
