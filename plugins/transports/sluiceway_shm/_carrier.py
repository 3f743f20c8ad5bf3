"""Shared memory between workers of one machine: segments are written once and read in place."""

from __future__ import annotations

import array
import hmac
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sluiceway.buffers import Buffer
from sluiceway.carrier import Carrier, CarrierContext, Link, LinkLostError, Payload

__all__ = ["ShmCarrier"]

_FRAME: Final = 1
_WITH_PAYLOAD: Final = 2
_RELEASE: Final = 3
_HELLO: Final = 4

# Length of what follows, kind.
_HEAD: Final = struct.Struct("<IB")
# Segment, bytes in it.
_PLACE: Final = struct.Struct("<II")
# Segments, size of each, length of the name.
_GREETING: Final = struct.Struct("<IIH")

_CHUNK: Final = 1 << 18
_LONGEST: Final = 1 << 24
_RELEASES_AT_ONCE: Final = 16
_BACKLOG: Final = 128
_PROOF_BYTES: Final = 32


class ShmCarrier(Carrier):
    """Frames over Unix sockets, their payloads in memory that both ends have mapped.

    Each worker has one anonymous file in memory (``memfd``) with all its segments. It has no name: it is handed
    to the peer over the socket, and is gone when the last process that has it is gone, however that ended. The
    peer maps it for reading only. What goes through the socket is small: headers, the places of payloads, and
    the numbers of the segments that have been read.

    A peer must run as the same user and must know the cluster's secret.
    """

    def __init__(self) -> None:
        self._context: CarrierContext | None = None
        self._listener: socket.socket | None = None
        self._path = ""
        self._memfd = -1
        self._memory: _Memory | None = None
        self._count = 0
        self._size = 0
        self._links: set[_ShmLink] = set()

    def start(self, context: CarrierContext) -> str:
        """Listen on a socket in the cluster's directory."""
        self._context = context
        self._path = os.path.join(context.directory, f"{context.worker}.shm")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener = listener
        listener.setblocking(False)
        listener.bind(self._path)
        os.chmod(self._path, 0o600)
        listener.listen(_BACKLOG)
        context.watch(listener.fileno(), False, self._accept)
        return self._path

    def segments(self, count: int, size: int) -> list[memoryview]:
        """Make the anonymous file and map it."""
        self._memfd = os.memfd_create("sluiceway", os.MFD_CLOEXEC)
        os.fchmod(self._memfd, 0o600)
        os.ftruncate(self._memfd, count * size)
        self._count, self._size = count, size
        self._memory = _Memory(self._memfd, count, size, writable=True)
        return [self._memory.segment(i, size) for i in range(count)]

    def connect(self, peer: str, address: str) -> Link:
        """Connect to the peer's socket."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        link = _ShmLink(sock, self._started(), self._greeting(), self._links.discard)
        link.peer = peer
        self._links.add(link)
        link.connect(address)
        return link

    def close(self) -> None:
        """Close links and listener, remove the socket's name, let go of the memory."""
        for link in list(self._links):
            link.close()
        self._links.clear()
        if self._listener is not None:
            self._started().unwatch(self._listener.fileno(), False)
            self._listener.close()
            self._listener = None
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        if self._memfd >= 0:
            os.close(self._memfd)
            self._memfd = -1
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # the peer has gone again
                continue
            sock.setblocking(False)
            if _uid_of_peer(sock) != os.getuid():
                sock.close()
                continue
            link = _ShmLink(sock, self._started(), self._greeting(), self._links.discard, accepted=True)
            self._links.add(link)
            link.watch()

    def _greeting(self) -> tuple[bytes, int]:
        """What is said first, and the file that goes with it."""
        context = self._started()
        name = context.worker.encode()
        proof = hmac.digest(context.secret, b"shm " + name, "sha256")
        return _GREETING.pack(self._count, self._size, len(name)) + name + proof, self._memfd

    def _started(self) -> CarrierContext:
        if self._context is None:
            raise RuntimeError("start() comes first")
        return self._context


class _Memory:
    """A mapped file of segments. It can be unmapped only when nobody looks at any of them any more."""

    def __init__(self, fd: int, count: int, size: int, *, writable: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, count * size, prot=access)
        self._whole = memoryview(self._map)
        self._segments: list[memoryview] = []
        self._lent = 0
        self._closed = False
        self._count = count
        self._size = size

    def segment(self, index: int, size: int) -> memoryview:
        """A segment for as long as the memory is there."""
        view = self._whole[index * self._size : index * self._size + size]
        self._segments.append(view)
        return view

    def lend(self, index: int, size: int) -> memoryview:
        """The beginning of a segment, to be given back."""
        if index >= self._count or size > self._size:
            raise ValueError(f"a payload of {size} bytes in segment {index}")
        self._lent += 1
        return self._whole[index * self._size : index * self._size + size]

    def give_back(self, view: memoryview) -> None:
        """One view less."""
        view.release()
        self._lent -= 1
        if self._closed and not self._lent:
            self._unmap()

    def close(self) -> None:
        """Unmap it, at once or with the last view."""
        self._closed = True
        for view in self._segments:
            view.release()
        self._segments.clear()
        if not self._lent:
            self._unmap()

    def _unmap(self) -> None:
        self._whole.release()
        self._map.close()


class _ShmPayload:
    __slots__ = ("_link", "_memory", "_segment", "data")

    def __init__(self, link: _ShmLink, memory: _Memory, segment: int, size: int) -> None:
        self._link = link
        self._memory = memory
        self._segment = segment
        self.data = memory.lend(segment, size)

    def release(self) -> None:
        self._memory.give_back(self.data)
        self._link.done_with(self._segment)


class _ShmLink(Link):
    """One socket, and the peer's segments."""

    def __init__(
        self,
        sock: socket.socket,
        context: CarrierContext,
        greeting: tuple[bytes, int],
        forget: Callable[[_ShmLink], None],
        *,
        accepted: bool = False,
    ) -> None:
        self.peer = ""
        self.on_frame = _no_frame
        self.on_lost = _no_loss
        self._socket = sock
        self._context = context
        self._greeting = greeting
        self._forget = forget
        self._accepted = accepted
        self._out = bytearray()
        self._in = bytearray()
        self._fds: deque[int] = deque()
        self._released: list[int] = []
        self._lent: dict[int, list[Buffer]] = {}
        self._peers_memory: _Memory | None = None
        self._connected = accepted
        self._greeted = False
        self._writing = False
        self._closed = False
        self._unreachable: LinkLostError | None = None

    # ---- the contract ---------------------------------------------------------------------------------------

    def send(self, header: bytes, payload: Buffer | None = None) -> None:
        if self._closed:
            if payload is not None:
                payload.release()
            if self._unreachable is not None:
                # Found out before anybody could be told.
                lost, self._unreachable = self._unreachable, None
                self.on_lost(lost)
            return
        if payload is None:
            self._out += _HEAD.pack(len(header), _FRAME)
        else:
            self._lent.setdefault(payload.segment, []).append(payload)
            self._out += _HEAD.pack(_PLACE.size + len(header), _WITH_PAYLOAD)
            self._out += _PLACE.pack(payload.segment, payload.size)
        self._out += header
        self._flush()

    def close(self) -> None:
        if not self._closed:
            self._flush()
            self._end()

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
        self._end()
        self._unreachable = LinkLostError(f"worker {self.peer!r} cannot be reached at {address}: {error}")

    def watch(self) -> None:
        """Say hello, and listen."""
        text, memfd = self._greeting
        files = [] if memfd < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memfd]))]
        try:
            # The socket is empty: so little always fits.
            self._socket.sendmsg([_HEAD.pack(len(text), _HELLO) + text], files)
        except OSError as error:
            self._lose(f"worker {self.peer!r} has gone: {error}")
            return
        self._context.watch(self._socket.fileno(), False, self._readable)
        self._flush()

    # ---- bytes ----------------------------------------------------------------------------------------------

    def done_with(self, segment: int) -> None:
        """A payload has been read; tell the peer, with others."""
        if self._closed:
            return
        self._released.append(segment)
        if len(self._released) >= _RELEASES_AT_ONCE:
            self._flush()
        else:
            self._watch_write(True)

    def _flush(self) -> None:
        if not self._connected or self._closed:
            return
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
            self._lose(f"worker {self.peer!r} has gone: {error}")
            return
        self._watch_write(bool(self._out))

    def _watch_write(self, wanted: bool) -> None:
        if wanted != self._writing:
            self._writing = wanted
            if wanted:
                self._context.watch(self._socket.fileno(), True, self._flush)
            else:
                self._context.unwatch(self._socket.fileno(), True)

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_CHUNK, socket.CMSG_SPACE(4 * 4))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(f"worker {self.peer!r} has gone: {error}")
            return
        for level, kind, body in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                files = array.array("i")
                files.frombytes(body[: len(body) - len(body) % files.itemsize])
                self._fds.extend(files)
        if not data:
            self._lose(f"worker {self.peer!r} has closed the connection")
            return
        self._in += data
        try:
            self._take_frames()
        except (struct.error, ValueError, OSError) as error:
            self._lose(f"worker {self.peer!r} sent what is no frame: {error}")

    def _take_frames(self) -> None:
        at = 0
        data = self._in
        while not self._closed and len(data) - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(data, at)
            if size > _LONGEST:
                raise ValueError(f"a header of {size} bytes")
            end = at + _HEAD.size + size
            if len(data) < end:
                break
            body = bytes(data[at + _HEAD.size : end])
            at = end
            self._take(kind, body)
        del data[:at]

    def _take(self, kind: int, body: bytes) -> None:
        if kind == _HELLO and not self._greeted:
            self._hello(body)
        elif not self._greeted:
            raise ValueError(f"kind {kind} before the greeting")
        elif kind == _FRAME:
            self.on_frame(body, None)
        elif kind == _WITH_PAYLOAD:
            segment, size = _PLACE.unpack_from(body)
            self.on_frame(body[_PLACE.size :], self._payload(segment, size))
        elif kind == _RELEASE:
            segments = array.array("I")
            segments.frombytes(body)
            for segment in segments:
                self._given_back(segment)
        else:
            raise ValueError(f"kind {kind}")

    def _hello(self, body: bytes) -> None:
        count, size, length = _GREETING.unpack_from(body)
        name = body[_GREETING.size : _GREETING.size + length]
        proof = body[_GREETING.size + length :]
        if not hmac.compare_digest(proof, hmac.digest(self._context.secret, b"shm " + name, "sha256")):
            raise ValueError("it does not know this cluster's secret")
        if count:
            if not self._fds:
                raise ValueError("a greeting without its memory")
            fd = self._fds.popleft()
            try:
                self._peers_memory = _Memory(fd, count, size, writable=False)
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
            del self._lent[segment]

    # ---- the end --------------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        if not self._closed:
            self._end()
            self.on_lost(LinkLostError(why))

    def _end(self) -> None:
        self._closed = True
        self._watch_write(False)
        self._context.unwatch(self._socket.fileno(), False)
        self._socket.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        if self._peers_memory is not None:
            self._peers_memory.close()
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


def _uid_of_peer(sock: socket.socket) -> int:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid
