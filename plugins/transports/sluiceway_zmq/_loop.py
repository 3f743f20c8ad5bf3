"""ZeroMQ's sockets in a loop that is not ZeroMQ's."""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from sluiceway.carrier import CarrierContext

__all__ = ["Bell", "can_be_read", "configure", "read_event", "watch_life"]

# A peer that answers nothing for so long is lost: its machine is gone. A worker that hangs is the job manager's
# business, which notices it sooner.
_SILENCE_MS: Final = 60_000
_HEARTBEAT_MS: Final = 10_000
_NEVER_MS: Final = 2**31 - 1
_LINGER_MS: Final = 500

_EVENT: Final = struct.Struct("=Hi")


class Bell:
    """Has something called by the loop, soon: what must not be called from where it is found out."""

    def __init__(self, context: CarrierContext) -> None:
        self._context = context
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._calls: deque[Callable[[], None]] = deque()
        context.watch(self._out, False, self._rung)

    def ring(self, call: Callable[[], None]) -> None:
        """Have it called."""
        if call not in self._calls:
            self._calls.append(call)
            with suppress(BlockingIOError):
                os.write(self._in, b"\0")

    def close(self) -> None:
        """Call nothing any more."""
        self._calls.clear()
        self._context.unwatch(self._out, False)
        os.close(self._out)
        os.close(self._in)

    def _rung(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._out, 4096)
        calls, self._calls = self._calls, deque()
        while calls:
            calls.popleft()()


def configure(socket: zmq.Socket[bytes], largest: int) -> None:
    """What holds for listening and for connecting sockets."""
    # Credit says how much may be under way. ZeroMQ's own limits would drop messages, or block.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, largest)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    # A link that is lost is lost: what was under way is, too. Without any attempt at all, ZeroMQ would throw
    # away what had come in.
    socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENCE_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, _SILENCE_MS)


def can_be_read(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message waits. A look that finds none also sees to it that the next one is signalled."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def watch_life(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """A socket on which is told what becomes of the other's connections."""
    life: zmq.Socket[bytes] = socket.get_monitor_socket(events)
    life.linger = 0
    return life


def read_event(life: zmq.Socket[bytes]) -> tuple[int, int] | None:
    """The next event, and the descriptor that it is about; None where there is none."""
    try:
        head, _ = life.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return None
    kind, value = _EVENT.unpack(head)
    return kind, value
