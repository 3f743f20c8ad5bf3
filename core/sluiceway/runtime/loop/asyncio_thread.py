"""Event loop of a worker: the coroutines of all its tasks, in a separate thread.

Between the two threads there are two queues for each operator. One wake-up hands over all that has gathered in
a queue, so that a thread is not woken for each record.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import Any, Final

from sluiceway.operators import Call, CallCancelledError, Calls, Ended
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.util.overriding import override

__all__ = ["LoopCalls", "ThreadedEventLoop", "tidy"]

GRACE_S: Final = 5.0
"""Seconds that cancelled coroutines and closing functions may take before they are abandoned."""


class LoopCalls(Calls):
    """Calls of an operator in an asyncio loop.

    Args:
        loop: the loop.
        into_loop: calls an action in the loop's thread.
        run: runs a coroutine in the loop and waits until it has ended.
        wake: called in the loop's thread when calls have ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        into_loop: Callable[[Callable[[], None]], object],
        run: Callable[[Coroutine[Any, Any, None]], None],
        wake: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._into_loop = into_loop
        self._run = run
        self._wake = wake
        # Each queue is filled by one thread and emptied by the other, with the atomic operations of a deque.
        self._coming: deque[Call | Any] = deque()
        self._over: deque[Ended] = deque()
        self._told = False
        self._running: dict[Any, asyncio.Future[Any]] = {}

    # ---- in the task's thread --------------------------------------------------------------------------------

    def start(self, calls: Iterable[Call]) -> None:
        """Pass all calls to the loop at once."""
        self._coming.extend(calls)
        self._into_loop(self._begin)

    def cancel(self, tokens: Iterable[Any]) -> None:
        """Pass the cancellations to the loop, behind the calls."""
        self._coming.extend(_Cancel(token) for token in tokens)
        self._into_loop(self._begin)

    @property
    @override
    def ready(self) -> bool:
        return bool(self._over)

    def take(self) -> list[Ended]:
        """Return the ended calls, and empty the queue."""
        # Cleared first: calls that end from now on wake the task again.
        self._told = False
        # Only as many as it has now: the loop's thread goes on to append.
        over = self._over
        return [over.popleft() for _ in range(len(over))]

    @property
    def running(self) -> bool:
        """Return whether calls are in flight."""
        return bool(self._running or self._coming)

    def close(self, last: Callable[[], Awaitable[None]] | None = None) -> None:
        """Cancel all calls, and wait for their end."""
        self._run(self._end(last))

    # ---- in the loop's thread --------------------------------------------------------------------------------

    def _begin(self) -> None:
        coming = self._coming
        while coming:
            item = coming.popleft()
            if type(item) is _Cancel:
                running = self._running.get(item.token)
                if running is not None:
                    running.cancel()
                continue
            token, function, argument, keep = item
            try:
                made = function(argument)
                if type(made) is not CoroutineType and not isinstance(made, Awaitable):
                    self._note(Ended(token, made if keep is None else keep(made), None))
                    continue
                call = made if keep is None else _kept(made, keep)
                future: asyncio.Future[Any] = asyncio.ensure_future(call, loop=self._loop)
            except BaseException as error:  # asyncio would log it, and the call would never end
                self._note(Ended(token, None, error))
            else:
                self._running[token] = future
                future.add_done_callback(partial(self._ended, token, made))

    def _ended(self, token: Any, made: Awaitable[Any], future: asyncio.Future[Any]) -> None:
        del self._running[token]
        if future.cancelled():
            # Before its first step: _kept() has not begun to await it, of which Python would warn the user.
            if type(made) is CoroutineType:
                made.close()
            self._note(Ended(token, None, CallCancelledError()))
            return
        error = future.exception()
        self._note(Ended(token, None if error is not None else future.result(), error))

    def _note(self, ended: Ended) -> None:
        self._over.append(ended)
        if not self._told:
            self._told = True
            # Not at once: other calls that end in this round of the loop are reported together.
            self._loop.call_soon(self._wake)

    async def _end(self, last: Callable[[], Awaitable[None]] | None) -> None:
        # Calls that have not begun never begin.
        self._coming.clear()
        running = list(self._running.values())
        for future in running:
            future.cancel()
        stubborn: set[asyncio.Future[Any]] = set()
        if running:
            _, stubborn = await asyncio.wait(running, timeout=GRACE_S)
        if last is not None:
            await last()
        if stubborn:
            raise TimeoutError(
                f"{len(stubborn)} coroutines have not ended within {GRACE_S:g} s of being cancelled: they must "
                "not swallow asyncio.CancelledError"
            )


async def _kept(made: Awaitable[Any], keep: Callable[[Any], Any]) -> Any:
    return keep(await made)


class _Cancel:
    __slots__ = ("token",)

    def __init__(self, token: Any) -> None:
        self.token = token


class ThreadedEventLoop(EventLoop):
    """Event loop in a separate thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        # A daemon: a coroutine that blocks must not keep the program from ending.
        self._thread = threading.Thread(target=self._serve, name="sluiceway-event-loop", daemon=True)
        self._thread.start()

    @override
    def calls(self, wake: Callable[[], None]) -> Calls:
        return LoopCalls(self._loop, self._loop.call_soon_threadsafe, self._run, wake)

    def close(self) -> None:
        """End the thread; one that does not answer was reported when its step closed, and is abandoned."""
        if not self._stopping:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2 * GRACE_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            # A coroutine that raises one of these ends the loop's run; its task has the error, and the job fails
            # with it.
            with suppress(KeyboardInterrupt, SystemExit):
                self._loop.run_forever()
        self._loop.run_until_complete(tidy(self._loop))
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        ended: Future[None] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            # Twice: once for those cancelled, once for what closes after them.
            ended.result(2 * GRACE_S)
        except TimeoutError:
            if ended.done():
                raise
            ended.cancel()
            raise TimeoutError(
                f"the event loop has not answered within {2 * GRACE_S:g} s: a coroutine blocks it, or takes too "
                "long to close. Coroutines must await; what blocks belongs into asyncio.to_thread()"
            ) from None


async def tidy(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel tasks that the users' coroutines have started and left."""
    left = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task(loop)]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=GRACE_S)
    await loop.shutdown_asyncgens()
    with suppress(TimeoutError):
        await asyncio.wait_for(loop.shutdown_default_executor(), GRACE_S)
