"""Event loop in the test's thread, whose time advances only with the test's clock."""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from sluiceway.clock import VirtualClock
from sluiceway.operators import Calls
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.asyncio_thread import LoopCalls, tidy
from sluiceway.util.overriding import override

__all__ = ["VirtualEventLoop"]

# A time computed in floats may lie this far behind the whole millisecond it means.
_ROUNDING_MS = 1e-6


class VirtualEventLoop(EventLoop):
    """Event loop that runs coroutines on request, until all of them wait.

    Args:
        clock: the time of the loop: what ``asyncio.sleep`` and timeouts go by.
        patience_s: real seconds to wait for what comes from outside (a socket, a thread).
    """

    def __init__(self, clock: VirtualClock, patience_s: float = 2.0) -> None:
        self._clock = clock
        self._patience_s = patience_s
        self._loop: _Loop | None = None
        self._calls: list[LoopCalls] = []

    def calls(self, wake: Callable[[], None]) -> Calls:
        """Return the calls of the loop, which is created on first use."""
        if self._loop is None:
            self._loop = _Loop(self._clock)
        calls = LoopCalls(self._loop, self._loop.call_soon, self._complete, wake)
        self._calls.append(calls)
        return calls

    def run(self) -> bool:
        """Run every coroutine as far as possible without advancing time; return whether any ran."""
        loop = self._loop
        ran = False
        while loop is not None and loop.run_once():
            ran = True
        return ran

    def next_due(self) -> int | None:
        """Return the earliest time that a coroutine waits for, in ms since the epoch; None if there is none."""
        at = None if self._loop is None else self._loop.next_timer()
        if at is None:
            return None
        ms = (at - self._clock.monotonic()) * 1000
        return self._clock.now_ms() + max(math.ceil(ms - _ROUNDING_MS), 0)

    @property
    def waits_outside(self) -> bool:
        """True while coroutines are running and none of them waits for time."""
        return any(calls.running for calls in self._calls) and self.next_due() is None

    def wait_outside(self) -> bool:
        """Wait, in real time, for an outside event of a coroutine; return False if none occurs."""
        return self._loop is not None and self._loop.run_once(self._patience_s)

    @override
    def close(self) -> None:
        if self._loop is not None:
            self._complete(tidy(self._loop))
            loop, self._loop = self._loop, None
            loop.close()

    def _complete(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, advancing time as needed."""
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        while not task.done():
            if self.run():
                continue
            due = self.next_due()
            if due is not None:
                self._clock.advance(max(due - self._clock.now_ms(), 0))
            elif not self.wait_outside():
                task.cancel()
                raise TimeoutError(
                    f"a coroutine has not ended within {self._patience_s:g} s, and waits for no time"
                )
        task.result()


@contextmanager
def _outside_running_loop() -> Iterator[None]:
    """Let another loop run in this thread: cells of a notebook and tests of pytest-asyncio run in one."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


class _Selector(selectors.DefaultSelector):
    """Selector that waits no longer than it may in real time, whatever the loop's time says, and ends its run."""

    patience_s = 0.0

    def __init__(self, woken: Callable[[], None]) -> None:
        super().__init__()
        self._woken = woken

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            return super().select(self.patience_s if timeout is None or timeout > 0 else 0)
        finally:
            self._woken()


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._virtual_clock = clock
        self._own_selector = _Selector(self.stop)
        self._stirred = False
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        super().__init__(self._own_selector)

    def time(self) -> float:
        return self._virtual_clock.monotonic()

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        self._stirred = True
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        heapq.heappush(self._timers, (when, id(handle), handle))
        return handle

    def next_timer(self) -> float | None:
        """Return the time of the next timer that was not cancelled, in the loop's seconds."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def run_once(self, patience_s: float = 0.0) -> bool:
        """Run one round of ready callbacks; return whether any ran, or are ready for the next round."""
        self._own_selector.patience_s = patience_s
        while (at := self.next_timer()) is not None and at < self.time() + _ROUNDING_MS / 1000:
            heapq.heappop(self._timers)
            self._stirred = True
        stirred, self._stirred = self._stirred, False
        try:
            with _outside_running_loop():
                self.run_forever()
        except SystemExit:
            # Of a coroutine, whose task has it, too: the job fails with it, and not the test that runs this loop.
            self._stirred = True
        return stirred or self._stirred
