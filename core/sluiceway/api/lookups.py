"""Answers of external systems that are remembered for a while."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from datetime import timedelta
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from sluiceway.config.options import duration_ms

__all__ = ["CachedLookup"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class CachedLookup(Generic[K, V]):
    """Async function of one argument that remembers the answers of another one, for functions of ``async_map``.

    ``users = CachedLookup(fetch_user, ttl="1min")`` is called as ``await users(order.user)``. Calls for a key that
    is being asked for wait for the answer. An exception is not remembered: who has waited for it asks again.

    Each worker process has a cache of its own, which is in no checkpoint. Records share answers: a function
    must not change them.

    Args:
        fn: coroutine function that is called with a key, which must be hashable.
        ttl: time for which an answer is remembered: a timedelta, ms, or a text (``"1min"``); None: for good.
        max_size: number of answers that are remembered; beyond it, those not used for longest are forgotten.

    Raises:
        TypeError: ``fn`` is no coroutine function, or something else is of the wrong type.
        ValueError: ``ttl`` is no duration, or a number is too small.
    """

    def __init__(
        self, fn: Callable[[K], Awaitable[V]], *, ttl: timedelta | int | str | None, max_size: int = 10_000
    ) -> None:
        if not any(map(inspect.iscoroutinefunction, (fn, getattr(fn, "__call__", fn)))):  # noqa: B004
            raise TypeError(f"CachedLookup takes an async function (async def), not {fn!r:.60}")
        if isinstance(max_size, bool) or not isinstance(max_size, int):
            raise TypeError(f"max_size takes an int, not {max_size!r:.60}")
        ms = None if ttl is None else duration_ms(ttl)
        for name, given in ("max_size", max_size), ("ttl", ms):
            if given is not None and given < 1:
                raise ValueError(f"{name} must be at least 1{' ms' * (name == 'ttl')}, not {given}")
        self._fn = fn
        self._ttl_s = None if ms is None else ms / 1000
        self._max_size = max_size
        self._caches: WeakKeyDictionary[asyncio.AbstractEventLoop, _Cache] = WeakKeyDictionary()

    async def __call__(self, key: K) -> V:
        """Return the answer for a key, remembered or asked for."""
        # By loop: jobs of one process may have loops, and clocks, of their own.
        loop = asyncio.get_running_loop()
        if (cache := self._caches.get(loop)) is None:
            cache = self._caches[loop] = _Cache()
        if (known := cache.get(key)) is not None:
            return known[0]  # type: ignore[no-any-return]
        if (asked := cache.asked.get(key)) is not None:
            await asked.wait()
            if (known := cache.get(key)) is not None:
                return known[0]  # type: ignore[no-any-return]
            # Whoever asked has failed or was cancelled. All who have waited ask at once, as without a cache.
            return await self._ask(cache, key)
        asked = cache.asked[key] = asyncio.Event()
        try:
            return await self._ask(cache, key)
        finally:
            del cache.asked[key]
            asked.set()

    async def _ask(self, cache: _Cache, key: K) -> V:
        answer = await self._fn(key)
        until = None if self._ttl_s is None else asyncio.get_running_loop().time() + self._ttl_s
        cache.answers[key] = (answer, until)
        cache.answers.move_to_end(key)
        if len(cache.answers) > self._max_size:
            cache.answers.popitem(last=False)
        return answer

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_caches": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _caches=WeakKeyDictionary())


class _Cache:
    """Answers in one event loop.

    Attributes:
        answers: each answer, with the time of the loop at which it expires, or None; the latest used last.
        asked: events of the keys that are being asked for, set when there is an answer or none will come.
    """

    def __init__(self) -> None:
        self.answers: OrderedDict[Any, tuple[Any, float | None]] = OrderedDict()
        self.asked: dict[Any, asyncio.Event] = {}

    def get(self, key: Any) -> tuple[Any, float | None] | None:
        found = self.answers.get(key)
        if found is None:
            return None
        if found[1] is not None and asyncio.get_running_loop().time() >= found[1]:
            del self.answers[key]
            return None
        self.answers.move_to_end(key)
        return found
