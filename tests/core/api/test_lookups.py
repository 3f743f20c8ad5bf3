"""Answers that are remembered."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.testing import run_pipeline

asked: list[Any] = []


async def fetch(key: int) -> list[int]:
    asked.append(key)
    await asyncio.sleep(0.01)
    return [key * 10]


class Loop(asyncio.SelectorEventLoop):
    """Event loop whose time is that of the test."""

    now = 1_000.0

    def time(self) -> float:
        return self.now


def run(loop: asyncio.AbstractEventLoop, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    return loop.run_until_complete(all_of_them())


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


@pytest.fixture
def loop() -> Any:
    made = Loop()
    yield made
    made.close()


async def answer(key: Any) -> Any:
    asked.append(key)
    return key


def test_an_answer_is_asked_for_once(loop: Loop) -> None:
    users = sw.CachedLookup(answer, ttl=None)
    assert run(loop, users(1), users(2)) == [1, 2]
    assert run(loop, users(2), users(1), users(1)) == [2, 1, 1]
    assert asked == [1, 2]


def test_none_is_an_answer(loop: Loop) -> None:
    users = sw.CachedLookup(answer, ttl=None)
    assert run(loop, users(None)) + run(loop, users(None)) == [None, None]
    assert asked == [None]


def test_an_answer_expires(loop: Loop) -> None:
    users = sw.CachedLookup(answer, ttl="2s")
    run(loop, users(1))
    loop.now += 1.9
    run(loop, users(1))
    assert asked == [1]
    loop.now += 0.1  # since the answer, not since it was used
    run(loop, users(1))
    assert asked == [1, 1]


def test_those_not_used_for_longest_are_forgotten(loop: Loop) -> None:
    users = sw.CachedLookup(answer, ttl=None, max_size=2)
    for key in (1, 2, 1, 3, 1, 2):
        run(loop, users(key))
    assert asked == [1, 2, 3, 2]


def test_calls_for_a_key_that_is_being_asked_for_wait(loop: Loop) -> None:
    done = asyncio.Event()

    async def slow(key: int) -> int:
        asked.append(key)
        await done.wait()
        return key

    async def let_go() -> None:
        done.set()

    users = sw.CachedLookup(slow, ttl=None)
    assert run(loop, users(1), users(1), users(1), let_go()) == [1, 1, 1, None]
    assert asked == [1]


def test_an_exception_is_not_remembered_and_is_of_one_call(loop: Loop) -> None:
    async def failing(key: int) -> int:
        asked.append(key)
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise ConnectionError("not now")
        return key

    users = sw.CachedLookup(failing, ttl=None)
    first, *others = run(loop, users(1), users(1), users(1))
    assert isinstance(first, ConnectionError)
    assert others == [1, 1]
    assert asked == [1, 1, 1]  # at once: no call waits for more than one other
    assert run(loop, users(1)) == [1]
    assert len(asked) == 3


def test_who_waits_for_a_call_that_is_cancelled_asks_again(loop: Loop) -> None:
    async def hanging(key: int) -> int:
        asked.append(key)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return key

    users = sw.CachedLookup(hanging, ttl=None)

    async def both() -> list[Any]:
        first, second = asyncio.ensure_future(users(1)), asyncio.ensure_future(users(1))
        while not asked:
            await asyncio.sleep(0)
        first.cancel()
        return await asyncio.gather(first, second, return_exceptions=True)

    cancelled, other = loop.run_until_complete(both())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert other == 1


def test_a_call_that_waits_may_be_cancelled_alone(loop: Loop) -> None:
    async def several() -> list[Any]:
        calls = [asyncio.ensure_future(users(1)) for _ in range(3)]
        while not asked:
            await asyncio.sleep(0)
        calls[1].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    users = sw.CachedLookup(fetch, ttl=None)
    real = asyncio.SelectorEventLoop()
    try:
        first, cancelled, third = real.run_until_complete(several())
    finally:
        real.close()
    assert (first, third) == ([10], [10])
    assert isinstance(cancelled, asyncio.CancelledError)
    assert asked == [1]


def test_each_loop_has_answers_of_its_own_which_end_with_it(loop: Loop) -> None:
    users = sw.CachedLookup(answer, ttl="1h")
    other = Loop()
    other.now = 5.0
    assert run(loop, users(1)) + run(other, users(1)) == [1, 1]
    assert asked == [1, 1]
    gone = weakref.ref(other)
    other.close()
    del other
    gc.collect()
    assert gone() is None
    assert len(users._caches) == 1


def test_copies_are_empty(loop: Loop) -> None:
    users = sw.CachedLookup(answer, ttl="1h", max_size=7)
    run(loop, users(1))
    for other in (pickle.loads(pickle.dumps(users)), copy.deepcopy(users)):
        assert run(loop, other(1)) == [1]
        assert other._max_size == 7
    assert asked == [1, 1, 1]


def test_records_ask_for_a_key_once_and_cannot_change_the_answer() -> None:
    users = sw.CachedLookup(fetch, ttl="1min")

    async def enriched(order: tuple[str, int]) -> tuple[str, list[int]]:
        return order[0], await users(order[1])

    def extended(record: tuple[str, list[int]]) -> tuple[str, list[int]]:
        record[1].append(0)
        return record

    flow = sw.Pipeline("orders")
    orders = flow.from_collection([("a", 1), ("b", 1), ("c", 2), ("d", 1)])
    found = orders.async_map(enriched, timeout="5s", capacity=2).map(extended).collect()
    run_pipeline(flow)
    assert found == [("a", [10, 0]), ("b", [10, 0]), ("c", [20, 0]), ("d", [10, 0])]
    assert asked == [1, 2]


def test_it_may_be_the_function_of_a_step() -> None:
    flow = sw.Pipeline("step")
    found = flow.from_collection([1, 1]).async_map(sw.CachedLookup(fetch, ttl=None), timeout="5s").collect()
    run_pipeline(flow)
    assert found == [[10], [10]]
    assert asked == [1]


def test_a_key_that_cannot_be_remembered_is_named(loop: Loop) -> None:
    users = sw.CachedLookup(answer, ttl=None)
    [error] = run(loop, users([1]))
    assert isinstance(error, TypeError)
    assert "unhashable" in str(error)


def test_wrong_arguments_are_refused() -> None:
    for wrong, error, said in [
        ({"fn": len, "ttl": None}, TypeError, "takes an async function"),
        ({"fn": answer, "ttl": "soon"}, ValueError, "soon"),
        ({"fn": answer, "ttl": 0}, ValueError, "ttl must be at least 1 ms, not 0"),
        ({"fn": answer, "ttl": None, "max_size": 0}, ValueError, "max_size must be at least 1, not 0"),
        ({"fn": answer, "ttl": None, "max_size": "many"}, TypeError, "max_size takes an int"),
    ]:
        with pytest.raises(error, match=said):
            sw.CachedLookup(**wrong)  # type: ignore[arg-type]
