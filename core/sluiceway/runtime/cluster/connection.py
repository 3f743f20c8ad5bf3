"""Connection for control messages: framed, mutually authenticated, never blocking."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from typing import Final

from sluiceway.connector import Wait
from sluiceway.errors import SerializationError, SluicewayError
from sluiceway.runtime.cluster.os_platform import Stream
from sluiceway.runtime.loop.tasklet import Progress, Tasklet, TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.protocol import (
    LARGE,
    PROTOCOL_VERSION,
    Hello,
    LargeMessage,
    MalformedMessageError,
    Proof,
    decode,
    encode,
)
from sluiceway.util.overriding import override

__all__ = ["BrokenProtocolError", "Connection", "ConnectionLostError"]

# Sizes in bytes. A frame is its length, big-endian, and that many bytes.
_HEADER: Final = 4
_LONGEST_BEFORE_PROOF: Final = 1024
_LONGEST: Final = 16 << 20
_LARGEST: Final = 1 << 30
"""Limit in bytes of a message that may be sent in several frames; see :attr:`Message.large`."""
_PART: Final = 1 << 20
_CHUNK: Final = 1 << 18
_CHUNK_BEFORE_PROOF: Final = 4096
# A peer that sends without a pause leaves other tasklets their turns.
_READS_PER_STEP: Final = 8


class ConnectionLostError(SluicewayError):
    """The peer closed, failed authentication, or speaks another protocol version."""


class BrokenProtocolError(ConnectionLostError):
    """The peer failed authentication, or violated the protocol."""


class Connection(Tasklet):
    """End of a control connection.

    Each side signs the nonce of the other with the cluster's secret (HMAC-SHA-256, with its own role and both
    nonces, so that a signature cannot be replayed to its sender). Until the peer has proved that it
    knows the secret, frames of more than 1 KiB and messages other than the two of the handshake end the
    connection, and messages are queued. After that, too, a frame that is no message, and a message that
    cannot be processed, end this connection only.

    From the loop's thread only, in which callbacks are called as well.

    Args:
        sock: connected; the connection owns it from now on.
        loop: runs the connection.
        secret: secret of the cluster.
        role: role of this side: ``worker`` or ``manager`` or ``client``.
        peer_role: required role of the other side; None: any other than ``role``.
        on_open: called once, when the peer has proved itself.
        on_message: called with each message after that.
        on_closed: called once, with the reason; None: closed on this side.
    """

    def __init__(
        self,
        sock: Stream,
        loop: TaskletLoop,
        secret: bytes,
        role: str,
        *,
        peer_role: str | None = None,
        on_open: Callable[[Connection], None],
        on_message: Callable[[Connection, Message], None],
        on_closed: Callable[[Connection, ConnectionLostError | None], None],
    ) -> None:
        super().__init__()
        sock.setblocking(False)
        self.peer = ""
        self._socket = sock
        self._loop = loop
        self._secret = secret
        self._role = role
        self._peer_role = peer_role
        self._on_open = on_open
        self._on_message = on_message
        self._on_closed = on_closed
        self._nonce = secrets.token_bytes(32)
        self._peer_nonce = b""
        self._proved = False
        self._held: list[Message] = []
        # A large message that is announced, and the parts of it that have come.
        self._announced: LargeMessage | None = None
        self._parts = bytearray()
        self._in = bytearray()
        self._out = bytearray()
        self._closing = False
        self._closed = False
        # Both sides begin with a Hello, answer the other's with a Proof, and send nothing else before they have
        # checked the other's Proof.
        self._write(Hello(role, self._nonce))
        loop.add(self)

    @property
    def proved(self) -> bool:
        """True once the peer is authenticated, even if the connection is closed by now."""
        return self._proved

    @property
    def open(self) -> bool:
        """True while the peer is authenticated and the connection open."""
        return self._proved and not self._closing and not self._closed

    @property
    def backlog(self) -> int:
        """Bytes queued for sending. From any thread."""
        return len(self._out)

    def send(self, message: Message) -> None:
        """Send a message, in order. It is lost, like all later ones, if the connection is lost.

        Raises:
            SerializationError: an object in it cannot be pickled, or it is longer than its type may be.
        """
        if self._closing or self._closed:
            return
        if not self._proved:
            self._held.append(message)
            return
        self._write(message)
        self._loop.wake(self)

    def close(self) -> None:
        """Close once everything queued is sent."""
        if not self._closing and not self._closed:
            self._closing = True
            self._loop.wake(self)

    def abandon(self) -> None:
        """Close at once, without callbacks; the loop has ended. Harmless twice."""
        self._closed = True
        self._socket.close()

    def turn_away(self, why: str) -> None:
        """Close at once unless the peer is authenticated; data received so far is read first."""
        if not self._closed and not self._proved:
            self.step()
        if not self._closed and not self._proved:
            self._end(BrokenProtocolError(f"{self._peer_name()} was turned away: {why}"))
        self._loop.wake(self)

    @override
    def step(self) -> Progress:
        if self._closed:
            return Progress.DONE
        try:
            more = False if self._closing else self._read()
            self._flush()
        except ConnectionLostError as error:
            return self._end(error)
        except OSError as error:
            return self._end(ConnectionLostError(f"connection to {self._peer_name()} lost: {error}"))
        except Exception as error:
            self._loop.defect(f"in the connection to {self._peer_name()}, which is closed", error)
            return self._end(ConnectionLostError(f"{type(error).__name__}: {error}"))
        if self._closing and not self._out:
            return self._end(None)
        if more:
            return Progress.AGAIN
        # Registered anew in each step, as the wait for room to write comes and goes.
        self._loop.forget(self)
        if not self._closing:
            self._loop.wait(self, Wait(self._socket.fileno()))
        if self._out:
            self._loop.wait(self, Wait(self._socket.fileno(), write=True))
        return Progress.IDLE

    # ---- bytes ----------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Read received data; return whether more may be available."""
        for _ in range(_READS_PER_STEP):
            try:
                data = self._socket.recv(_CHUNK if self._proved else _CHUNK_BEFORE_PROOF)
            except BlockingIOError:
                return False
            if not data:
                raise ConnectionLostError(f"{self._peer_name()} has closed the connection")
            self._in += data
            self._take_frames()
            if self._closing or self._closed:
                return False
        return True

    def _take_frames(self) -> None:
        at = 0
        data = self._in
        while len(data) - at >= _HEADER:
            size = int.from_bytes(data[at : at + _HEADER], "big")
            longest = _LONGEST if self._proved else _LONGEST_BEFORE_PROOF
            if size > longest:
                when = "" if self._proved else " before authentication"
                raise BrokenProtocolError(
                    f"{self._peer_name()} sent a frame of {size} bytes, which exceeds the limit{when}, {longest}"
                )
            end = at + _HEADER + size
            if len(data) < end:
                break
            frame = bytes(data[at + _HEADER : end])
            at = end
            if self._announced is not None:
                self._take_part(self._announced, frame)
            else:
                self._take(self._decoded(frame))
            if self._closing or self._closed:
                break
        del data[:at]

    def _decoded(self, data: bytes) -> Message:
        try:
            return decode(data, handshake=not self._proved)
        except MalformedMessageError as error:
            what = "frame" if self._announced is None else "message"
            kind = "message" if self._proved else "message of the handshake"
            raise BrokenProtocolError(
                f"{self._peer_name()} sent a {what} of {len(data)} bytes that is no {kind} of protocol "
                f"{PROTOCOL_VERSION}: {error}"
            ) from error

    def _announce(self, message: LargeMessage) -> None:
        """Expect the following frames as the parts of one message."""
        if message.kind not in LARGE or not 0 < message.size <= _LARGEST:
            raise BrokenProtocolError(
                f"{self._peer_name()} announced {message.kind!r:.40} of {message.size} bytes, which may not be "
                f"sent in several frames, or exceeds the limit, {_LARGEST}"
            )
        self._announced = message

    def _take_part(self, announced: LargeMessage, part: bytes) -> None:
        # Checked with each part: at most one frame more than announced is buffered.
        self._parts += part
        if not part or len(self._parts) > announced.size:
            raise BrokenProtocolError(f"{self._peer_name()} sent parts of a message that are not as it announced")
        if len(self._parts) < announced.size:
            return
        message = self._decoded(bytes(self._parts))
        if type(message).__name__ != announced.kind:
            raise BrokenProtocolError(f"{self._peer_name()} sent another message than {announced.kind}")
        self._announced = None
        self._parts = bytearray()
        self._take(message)

    def _write(self, message: Message) -> None:
        data = encode(message)
        if len(data) <= _LONGEST:
            self._write_frame(data)
            return
        kind, limit = type(message), _LARGEST if message.large else _LONGEST
        if len(data) > limit:
            raise SerializationError(f"{kind.__name__} of {len(data):,} bytes exceeds the limit, {limit:,} bytes")
        self._write_frame(encode(LargeMessage(kind.__name__, len(data))))
        for at in range(0, len(data), _PART):
            self._write_frame(data[at : at + _PART])

    def _write_frame(self, data: bytes) -> None:
        self._out += len(data).to_bytes(_HEADER, "big")
        self._out += data

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(memoryview(self._out)[:_CHUNK])
            except BlockingIOError:
                return
            del self._out[:sent]

    # ---- who is there ---------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        if self._proved:
            if isinstance(message, Hello | Proof):
                raise BrokenProtocolError(f"{self._peer_name()} repeated its greeting")
            if isinstance(message, LargeMessage):
                self._announce(message)
                return
            try:
                self._on_message(self, message)
            except ConnectionLostError:
                raise
            except Exception as error:
                kind = type(message).__name__
                self._loop.defect(f"{kind} of {self._peer_name()} failed; the connection is closed", error)
                raise ConnectionLostError(
                    f"{self._peer_name()} sent {kind}, which failed with {type(error).__name__}: {error}"
                ) from error
        elif isinstance(message, Hello) and not self._peer_nonce:
            self._greeted(message)
        elif isinstance(message, Proof) and self._peer_nonce:
            self._check(message)
        else:
            raise BrokenProtocolError(f"{self._peer_name()} sent a message before authentication")

    def _greeted(self, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            raise BrokenProtocolError(
                f"a {hello.role} speaks protocol {hello.version}, this {self._role} {PROTOCOL_VERSION}: run the"
                " same version of Sluiceway on both sides"
            )
        if hello.role == self._role or (self._peer_role is not None and hello.role != self._peer_role):
            raise BrokenProtocolError(f"a {hello.role!r:.40} may not connect to this {self._role}")
        if len(hello.nonce) < 16 or hello.nonce == self._nonce:
            raise BrokenProtocolError(f"{self._peer_name()} sent an invalid nonce")
        self.peer = hello.role
        self._peer_nonce = hello.nonce
        self._write(Proof(_sign(self._secret, self._role, hello.nonce, self._nonce)))

    def _check(self, proof: Proof) -> None:
        expected = _sign(self._secret, self.peer, self._nonce, self._peer_nonce)
        if not hmac.compare_digest(proof.signature, expected):
            raise BrokenProtocolError(f"a {self.peer} does not know this cluster's secret")
        # Messages sent before are held until here: they may be secret.
        self._proved = True
        for held in self._held:
            self._write(held)
        self._held.clear()
        self._on_open(self)

    def _end(self, why: ConnectionLostError | None) -> Progress:
        self._closed = True
        # Before the descriptor is closed, as another file may get its number.
        self._loop.forget(self)
        self._socket.close()
        self._on_closed(self, why)
        return Progress.DONE

    def _peer_name(self) -> str:
        return f"the {self.peer}" if self.peer else "the peer"


def _sign(secret: bytes, role: str, challenge: bytes, own: bytes) -> bytes:
    return hmac.digest(secret, role.encode() + b"\0" + challenge + own, "sha256")
