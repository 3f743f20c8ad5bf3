"""Link over shared memory: frames over a Unix socket, with payloads in the memory of their sender."""

from __future__ import annotations

import array
import errno
import hmac
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from sluiceway.transport.buffers import Buffer
from sluiceway.transport.carrier import CarrierContext, Link, LinkLostError, Payload
from sluiceway_shm._memory import Memory

__all__ = ["CHUNK_BYTES", "ShmLink", "greeting"]

_FRAME: Final = 1
_WITH_PAYLOAD: Final = 2
_RELEASE: Final = 3
_HELLO: Final = 4
_GOODBYE: Final = 5

# Length of what follows, kind.
_HEAD: Final = struct.Struct("<IB")
# Segment, bytes in it.
_PLACE: Final = struct.Struct("<II")
_HEAD_AND_PLACE: Final = struct.Struct("<IBII")
# Segments, size of each, length of the name.
_GREETING: Final = struct.Struct("<IIH")

CHUNK_BYTES: Final = 1 << 16
"""Bytes that are read at a time: hundreds of frames, whose payloads are elsewhere."""

_LONGEST: Final = 1 << 24
_LONGEST_BEFORE_PROOF: Final = 1024
_ENOUGH_BYTES: Final = 1 << 17
"""So much payload has the peer told at once, so that both are at work; less waits for the end of the turn."""
_SHORT_OF_MEMORY: Final = (errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S: Final = 0.01
"""Delay before a send is tried again for which the kernel had no memory."""


def greeting(context: CarrierContext, count: int, size: int) -> bytes:
    """Return the first message: number and size of the segments, and the sender's name."""
    name = context.worker.encode()
    return _GREETING.pack(count, size, len(name)) + name + _proof(context.secret, name)


def _proof(secret: bytes, name: bytes) -> bytes:
    return hmac.digest(secret, b"shm " + name, "sha256")


class _ShmPayload:
    __slots__ = ("_link", "_memory", "_segment", "data")

    def __init__(self, link: ShmLink, memory: Memory, segment: int, size: int) -> None:
        self._link = link
        self._memory = memory
        self._segment = segment
        self.data = memory.lend(segment, size)

    def release(self) -> None:
        # First: once the sender knows, it writes into the segment again.
        self._memory.give_back(self.data)
        self._link.done_with(self._segment)


class ShmLink(Link):
    """Link of one socket, and the peer's segments.

    What is sent in one turn of the loop goes out together at its end, with the numbers of the peer's segments that
    have been read by then: one system call, and one wake-up of the peer.

    A link ends in two steps. It parts when its user closes it, when the peer parts, or when the peer sends an
    invalid frame; from then on it carries only the numbers of segments that have been read. It ends, and closes
    its socket, when neither side reads segments of the other any more, or when the peer's socket is closed. A
    socket is thus closed by a worker that reads nothing of its peer, or by the kernel when a process dies, and a
    segment is written again only after that, or after the peer gave it back. A peer that hangs keeps the segments
    it was lent, and one descriptor, until it dies; nothing waits for it.

    Args:
        sock: connected, or to be connected by :meth:`connect`.
        context: the carrier's context.
        hello: the first message, and the descriptor that goes with it; -1: none.
        chunk: buffer for reads; nothing is left in it afterwards.
        forget: called when the link has ended.
        refused: called with the reason when a peer that has made the link is not authenticated.
        accepted: True if the peer has made the link.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: CarrierContext,
        hello: tuple[bytes, int],
        chunk: memoryview,
        forget: Callable[[ShmLink], None],
        *,
        accepted: bool = False,
        refused: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.peer = ""
        self.on_frame = _no_frame
        self.on_lost = _no_loss
        self._socket = sock
        self._context = context
        self._hello_text = hello
        self._chunk = chunk
        self._forget = forget
        self._accepted = accepted
        self._refused = refused
        self._out = bytearray()
        self._in = bytearray()
        self._fds: deque[int] = deque()
        self._released: list[int] = []
        # Sent buffers by segment, until the peer gives them back. A segment can be sent again before that, hence
        # the list.
        self._lent: dict[int, list[Buffer]] = {}
        self._unannounced = 0
        self._peers_memory: Memory | None = None
        self._connected = accepted
        self._greeted = False
        self._flush_comes = False
        self._writing = False
        self._pausing = False
        self._deaf = False
        self._closed = False
        self._ended = False

    # ---- the contract ---------------------------------------------------------------------------------------

    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        """Note the frame; it goes out at the end of the turn, or earlier if there is much."""
        if self._closed:
            if payload is not None:
                payload.release()
            return
        if payload is None:
            self._out += _HEAD.pack(len(header), _FRAME)
            self._out += header
        else:
            size = payload.size
            # The reference keeps the segment from being overwritten while the peer reads it in place.
            self._lent.setdefault(payload.segment, []).append(payload)
            self._out += _HEAD_AND_PLACE.pack(_PLACE.size + len(header), _WITH_PAYLOAD, payload.segment, size)
            self._out += header
            self._unannounced += size
            # A socket that is full is left alone: _flush() is called when it can be written.
            if self._unannounced >= _ENOUGH_BYTES and not self._writing:
                self._flush()
                return
        if not self._flush_comes:
            self._flush_comes = True
            self._context.soon(self._flush_now)

    def close(self) -> None:
        """Send what is waiting, and part."""
        if not self._closed:
            self._part()

    def abandon(self) -> None:
        """End at once, when the worker ends: its own segments are not written any more."""
        self._closed = True
        self._flush()
        self._end()

    def turn_away(self, why: str) -> None:
        """Close at once, unless the peer has proved itself: what it has sent until now is read first."""
        if not self._closed and not self._greeted:
            self._readable()
        if not self._closed and not self._greeted:
            self._lose(f"a peer was turned away: {why}")

    # ---- coming up ------------------------------------------------------------------------------------------

    def connect(self, address: str) -> None:
        """Connect; on a Unix socket that succeeds or fails at once, or finds the peer's queue full."""
        try:
            self._socket.connect(address)
        except BlockingIOError:
            # The peer has many waiting already. Its listener never blocks, so it is a matter of moments.
            self._socket.setblocking(True)
            try:
                self._socket.connect(address)
            except OSError as error:
                self._cannot_be_reached(address, error)
                return
            self._socket.setblocking(False)
        except OSError as error:
            self._cannot_be_reached(address, error)
            return
        self._connected = True
        self.watch()

    def _cannot_be_reached(self, address: str, error: OSError) -> None:
        # Whoever connects can be told only after this.
        self._context.soon(lambda: self._lose(f"worker {self.peer!r} cannot be reached at {address}: {error}"))

    def watch(self) -> None:
        """Send the first message, and watch the socket."""
        text, memfd = self._hello_text
        files = [] if memfd < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memfd]))]
        try:
            # The socket is empty: so little always fits.
            self._socket.sendmsg([_HEAD.pack(len(text), _HELLO) + text], files)
        except OSError as error:
            self._connected = False
            why = f"worker {self.peer!r} has gone: {error}"
            self._context.soon(lambda: self._lose(why))
            return
        self._context.watch(self._socket.fileno(), False, self._readable)

    # ---- bytes ----------------------------------------------------------------------------------------------

    def done_with(self, segment: int) -> None:
        """Note that a payload has been read, which the peer is told at the end of the turn."""
        if self._ended:
            return
        self._released.append(segment)
        if not self._flush_comes:
            self._flush_comes = True
            self._context.soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_comes = False
        if not self._writing:
            self._flush()
        self._end_when_unused()

    def _flush(self) -> None:
        if not self._connected or self._ended:
            return
        self._unannounced = 0
        if self._released:
            body = array.array("I", self._released).tobytes()
            self._released.clear()
            self._out += _HEAD.pack(len(body), _RELEASE) + body
        try:
            while self._out:
                sent = self._socket.send(self._out)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _SHORT_OF_MEMORY:
                # The socket stays writable, so that watching it would spin.
                self._watch_write(False)
                if not self._pausing:
                    self._pausing = True
                    self._context.later(self._try_again, _PAUSE_S)
                return
            # The peer has ended. Who reads will find that out, behind what it had still sent.
            self._out.clear()
            self._connected = False
        self._watch_write(bool(self._out))

    def _try_again(self) -> None:
        self._pausing = False
        self._flush_now()

    def _watch_write(self, wanted: bool) -> None:
        if wanted != self._writing:
            self._writing = wanted
            if wanted:
                self._context.watch(self._socket.fileno(), True, self._flush)
            else:
                self._context.unwatch(self._socket.fileno(), True)

    def _readable(self) -> None:
        try:
            # Only the greeting brings a descriptor. With recv_into() the kernel discards all that are sent later.
            if self._greeted:
                size = self._socket.recv_into(self._chunk)
            else:
                size = self._receive_with_files()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._peer_ended(f"worker {self.peer!r} has gone: {error}")
            return
        if not size:
            self._peer_ended(f"worker {self.peer!r} has closed the connection")
            return
        if self._deaf:
            return
        try:
            if self._in:
                self._in += self._chunk[:size]
                del self._in[: self._take_frames(self._in)]
            else:
                came = self._chunk[:size]
                self._in += came[self._take_frames(came) :]
        except Exception as error:  # whatever it sent ends this link, and not the worker
            self._deaf = True
            self._in.clear()
            self._lose(f"worker {self.peer!r} sent what is no frame: {type(error).__name__}: {error}")
        self._end_when_unused()

    def _receive_with_files(self) -> int:
        # Room for more than the one descriptor that is allowed, so that a second one is seen and refused.
        size, ancillary, _, _ = self._socket.recvmsg_into([self._chunk], socket.CMSG_SPACE(4 * 4))
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(body[: len(body) - len(body) % files.itemsize])
                self._fds.extend(files)
        if len(self._fds) > 1:  # they are closed with the link
            raise OSError(f"{len(self._fds)} files came with the greeting")
        return size

    def _take_frames(self, data: bytearray | memoryview) -> int:
        """Take all frames that are whole; returns how many bytes that were."""
        at = 0
        until = len(data) - _HEAD.size
        while at <= until and not self._ended:
            size, kind = _HEAD.unpack_from(data, at)
            begin = at + _HEAD.size
            end = begin + size
            if end > len(data) or not self._greeted:
                # A frame that is complete is in memory already; the limit stops the growth of one that is not.
                longest = _LONGEST if self._greeted else _LONGEST_BEFORE_PROOF
                if size > longest:
                    raise ValueError(f"a header of {size} bytes, where {longest} is the limit")
                if end > len(data):
                    break
            at = end
            if kind == _WITH_PAYLOAD and self._greeted:
                if size < _PLACE.size:
                    raise ValueError(f"a place of {size} bytes")
                segment, length = _PLACE.unpack_from(data, begin)
                payload = self._payload(segment, length)
                if self._closed:
                    payload.release()
                else:
                    # Copied: the chunk is shared by all links, and overwritten by the next read.
                    self.on_frame(bytes(data[begin + _PLACE.size : end]), payload)
            else:
                self._take(kind, bytes(data[begin:end]))
        return at

    def _take(self, kind: int, body: bytes) -> None:
        if kind == _HELLO and not self._greeted:
            self._hello(body)
        elif not self._greeted:
            raise ValueError(f"kind {kind} before the greeting")
        elif kind == _FRAME:
            if not self._closed:
                self.on_frame(body, None)
        elif kind == _RELEASE:
            segments = array.array("I")
            segments.frombytes(body)
            for segment in segments:
                self._given_back(segment)
        elif kind == _GOODBYE:
            self._lose(f"worker {self.peer!r} has closed the connection")
        else:
            raise ValueError(f"kind {kind}")

    def _hello(self, body: bytes) -> None:
        count, size, length = _GREETING.unpack_from(body)
        name = body[_GREETING.size : _GREETING.size + length]
        proof = body[_GREETING.size + length :]
        if not hmac.compare_digest(proof, _proof(self._context.secret, name)):
            raise ValueError("it does not know this cluster's secret")
        if count:
            if not self._fds:
                raise ValueError("a greeting without its memory")
            fd = self._fds.popleft()
            try:
                # The mapping keeps the file; its descriptor is no longer needed. One that is shorter than the
                # greeting says is refused by mmap().
                self._peers_memory = Memory(fd, count, size, writable=False)
            finally:
                os.close(fd)
        self._greeted = True
        self.peer = name.decode()
        if self._accepted:
            self._context.accepted(self)

    def _payload(self, segment: int, size: int) -> _ShmPayload:
        if self._peers_memory is None:
            raise ValueError("a payload without memory")
        return _ShmPayload(self, self._peers_memory, segment, size)

    def _given_back(self, segment: int) -> None:
        lent = self._lent.get(segment)
        if not lent:
            raise ValueError(f"segment {segment} was given back and was not lent")
        lent.pop().release()
        if not lent:
            self._lent.pop(segment, None)

    # ---- the end --------------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        if not self._closed:
            self._part()
            if self._accepted and not self._greeted:
                self._refused(why)
            self.on_lost(LinkLostError(why))

    def _part(self) -> None:
        self._closed = True
        if self._used():
            # Without it the peer would learn of the end only when nothing is in use.
            self._out += _HEAD.pack(0, _GOODBYE)
        self._flush()
        self._end_when_unused()

    def _used(self) -> bool:
        """Return whether one side may still read segments of the other."""
        if not self._connected:
            return False
        return bool(self._lent) or (self._peers_memory is not None and self._peers_memory.lent > 0)

    def _end_when_unused(self) -> None:
        if self._closed and not self._used():
            self._end()

    def _peer_ended(self, why: str) -> None:
        # It has given everything back, or its process is dead.
        self._connected = False
        self._lose(why)
        self._end_when_unused()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._watch_write(False)
        self._context.unwatch(self._socket.fileno(), False)
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if self._peers_memory is None:
            self._socket.close()
        else:
            # A closed socket says that nothing is read any more.
            self._peers_memory.close(self._socket.close)
        lent, self._lent = self._lent, {}
        for buffers in lent.values():
            for buffer in buffers:
                buffer.release()
        self._forget(self)


def _no_frame(header: bytes, payload: Payload | None) -> None:
    if payload is not None:
        payload.release()


def _no_loss(error: LinkLostError) -> None:
    pass
