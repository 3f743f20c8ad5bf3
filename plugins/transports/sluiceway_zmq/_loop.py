"""ZeroMQ's sockets in another event loop than ZeroMQ's."""

from __future__ import annotations

import struct
from typing import Final

import zmq

__all__ = ["can_be_read", "configure", "read_event", "rest_of_message", "watch_life"]

# A peer that answers nothing for so long is lost: its machine is gone. A worker that hangs is the job manager's
# business, which notices it sooner.
_SILENCE_MS: Final = 60_000
_HEARTBEAT_MS: Final = 10_000
_NEVER_MS: Final = 2**31 - 1
_LINGER_MS: Final = 500

# First frame of a monitor's event: its kind, and a value, which is the descriptor for the kinds that are watched.
# The second frame is the endpoint.
_EVENT: Final = struct.Struct("=Hi")


def configure(socket: zmq.Socket[bytes], largest: int) -> None:
    """Set the options of listening and connecting sockets."""
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
    """Return whether a message waits. Finding none also makes ZeroMQ signal the next one."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def rest_of_message(socket: zmq.Socket[bytes]) -> tuple[zmq.Frame | None, int]:
    """Return the second part of a message whose first one was read, in place, and the number of parts."""
    if not socket.getsockopt(zmq.RCVMORE):
        return None, 1
    second = socket.recv(zmq.NOBLOCK, copy=False)
    parts = 2
    more = second.more
    while more:
        more = socket.recv(zmq.NOBLOCK, copy=False).more
        parts += 1
    return second, parts


def watch_life(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """Return a socket with the events of another socket's connections."""
    life: zmq.Socket[bytes] = socket.get_monitor_socket(events)
    life.linger = 0
    return life


def read_event(life: zmq.Socket[bytes]) -> tuple[int, int] | None:
    """Return the next event, and its descriptor; None without an event."""
    if not can_be_read(life):
        return None
    head, _ = life.recv_multipart(zmq.NOBLOCK)
    kind, value = _EVENT.unpack(head)
    return kind, value
