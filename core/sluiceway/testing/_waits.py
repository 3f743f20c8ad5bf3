"""Blocking on the waits of readers and writers."""

from __future__ import annotations

import math
import selectors
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sluiceway.clock import Clock, VirtualClock
from sluiceway.connector import Wait

__all__ = ["Waker", "wait_for"]

PATIENCE_S: Final = 60.0
# A time computed in floats may lie this far behind the whole millisecond it means.
_ROUNDING_MS: Final = 1e-3


class Waker:
    """End of a wait, on request from any thread."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)
        self._lock = threading.Lock()
        self._woken: set[int] = set()
        self._closed = False

    def wake(self, who: int) -> None:
        with self._lock:
            if not self._closed:
                self._woken.add(who)
                with suppress(BlockingIOError):  # it is awake
                    self._sender.send(b"!")

    def taken(self) -> set[int]:
        with self._lock:
            with suppress(BlockingIOError):
                while self.receiver.recv(4096):
                    pass
            woken, self._woken = self._woken, set()
            return woken

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.receiver.close()
            self._sender.close()


def wait_for(waits: Sequence[Wait], waker: Waker, clock: Clock, also_until: float | None = None) -> list[bool]:
    """Wait until one of them is over; which ones are."""
    virtual = isinstance(clock, VirtualClock)
    untils = [w.until for w in waits if w.until is not None] + ([] if also_until is None else [also_until])
    until = min(untils, default=None)
    timeout = PATIENCE_S if until is None else max(until - clock.monotonic(), 0.0)
    with selectors.DefaultSelector() as selector:
        selector.register(waker.receiver, selectors.EVENT_READ)
        for wait in waits:
            if wait.fileno is not None:
                event = selectors.EVENT_WRITE if wait.write else selectors.EVENT_READ
                # Several may wait for one file: it is registered once, for all that they wait for.
                if wait.fileno in selector.get_map():
                    event |= selector.get_key(wait.fileno).events
                    selector.unregister(wait.fileno)
                selector.register(wait.fileno, event)
        # Virtual time does not pass in a wait: what is there now counts, then the clock goes on.
        ready = selector.select(0 if virtual and until is not None else min(timeout, PATIENCE_S))
    if not ready and isinstance(clock, VirtualClock) and until is not None:
        clock.advance(max(math.ceil((until - clock.monotonic()) * 1000 - _ROUNDING_MS), 0))
    elif not ready and (until is None or timeout > PATIENCE_S):
        raise AssertionError(f"nothing has happened for {PATIENCE_S:g} s of what is waited for: {list(waits)}")
    events = {key.fd: mask for key, mask in ready}
    now = clock.monotonic()

    def is_over(wait: Wait) -> bool:
        if wait.until is not None and now + _ROUNDING_MS / 1000 >= wait.until:
            return True
        wanted = selectors.EVENT_WRITE if wait.write else selectors.EVENT_READ
        return wait.fileno is not None and bool(events.get(wait.fileno, 0) & wanted)

    return [is_over(wait) for wait in waits]
