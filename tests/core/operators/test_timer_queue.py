"""Timers against the obvious model: a list that is sorted anew each time."""

from __future__ import annotations

import tracemalloc
from typing import Any
from unittest import mock
from weakref import WeakSet

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from sluiceway.operators import timer_queue
from sluiceway.operators.timer_queue import TimerQueue

TIMES = st.one_of(st.integers(-3000, 6000), st.sampled_from([0, 1, 1023, 1024, 1025, 2**40, -(2**40)]))
# Deleted timers and empty buckets that are kept at most where there is hardly another.
SPARE = 200

KEYS = st.sampled_from(["a", "b", "c"])


class TimerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # What is deleted is dropped among these few timers, too.
        self.spare = mock.patch.object(timer_queue, "_SPARE", 1)
        self.spare.start()
        self.queue = TimerQueue()
        self.model: list[tuple[int, str, int]] = []

    @rule(at=TIMES, key=KEYS, namespace=st.integers(0, 1))
    def register(self, at: int, key: str, namespace: int) -> None:
        self.queue.register(at, key, namespace)
        if (at, key, namespace) not in self.model:
            self.model.append((at, key, namespace))

    @rule(at=TIMES, key=KEYS, namespace=st.integers(0, 1))
    def delete(self, at: int, key: str, namespace: int) -> None:
        self.queue.delete(at, key, namespace)
        if (at, key, namespace) in self.model:
            self.model.remove((at, key, namespace))

    @rule(until=TIMES)
    def ask(self, until: int) -> None:
        assert self.queue.is_due(until) is any(t[0] <= until for t in self.model)

    @rule(until=TIMES, stop_after=st.integers(0, 5))
    def fire(self, until: int, stop_after: int) -> None:
        expected = sorted((t for t in self.model if t[0] <= until), key=lambda t: t[0])[:stop_after]
        fired: list[Any] = []
        if stop_after:
            for timer in self.queue.due(until):
                fired.append(timer)
                if len(fired) == stop_after:
                    break
        assert [t[0] for t in fired] == [t[0] for t in expected]
        for timer in fired:
            self.model.remove(timer)

    @rule(until=st.integers(0, 6000), step=st.integers(1, 700))
    def fire_while_timers_set_others(self, until: int, step: int) -> None:
        last = None
        for at, key, namespace in self.queue.due(until):
            self.model.remove((at, key, namespace))
            assert all(at <= other[0] for other in self.model)
            assert last is None or at >= last
            last = at
            if -3000 <= at < until:
                self.register(at + step, key, namespace)
        assert all(t[0] > until for t in self.model)

    def teardown(self) -> None:
        self.spare.stop()
        assert len(self.queue) == len(self.model)
        assert sorted(self.queue.timers()) == sorted(self.model)
        assert self.queue.next_timestamp() == min((t[0] for t in self.model), default=None)


TestTimers = TimerMachine.TestCase
TestTimers.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def test_timers_of_one_moment_fire_in_the_order_of_their_registration() -> None:
    queue = TimerQueue()
    for key in "cab":
        queue.register(5, key, ())
    assert [key for _, key, _ in queue.due(5)] == ["c", "a", "b"]


def test_many_timers_that_are_taken_back_leave_nothing() -> None:
    queue = TimerQueue()
    for n in range(1000):
        queue.register(n, "k", ())
        queue.delete(n, "k", ())
    assert len(queue) == 0
    assert queue.next_timestamp() is None


class Key:
    """Key whose references are counted."""


def test_a_timer_that_is_put_off_again_and_again_leaves_nothing() -> None:
    queue = TimerQueue()
    queue.register(600_000, "soon", ())
    queue.register(24 * 3_600_000, "daily", ())
    # The near part reaches to the first timer, however far it is.
    assert queue.next_timestamp() == 600_000
    queue.delete(600_000, "soon", ())
    assert queue.next_timestamp() == 24 * 3_600_000
    queue.register(600_000, "soon", ())
    keys: WeakSet[Key] = WeakSet()
    for now in range(3000):
        key = Key()
        keys.add(key)
        queue.register(now + 1_800_000, key, ())
        assert queue.next_timestamp() == 600_000
        assert queue.delete(now + 1_800_000, key, ())
    del key
    assert len(keys) < SPARE
    assert sorted(queue.timers()) == [(600_000, "soon", ()), (24 * 3_600_000, "daily", ())]


def test_the_same_timer_may_be_deleted_and_registered_many_times() -> None:
    queue = TimerQueue()
    queue.register(5000, "first", ())
    assert queue.next_timestamp() == 5000
    for _ in range(10 * SPARE):
        queue.register(4000, "again", ())
        queue.delete(4000, "again", ())
        queue.register(4500, "kept", ())
    assert [(at, key) for at, key, _ in queue.due(6000)] == [(4500, "kept"), (5000, "first")]


def test_timers_of_one_bucket_that_are_deleted_while_it_fires_leave_nothing() -> None:
    queue = TimerQueue()
    keys: WeakSet[Key] = WeakSet()
    timers = [(n, Key(), ()) for n in range(1000)]
    keys.update(key for _, key, _ in timers)
    for timer in timers:
        queue.register(*timer)
    fired = queue.due(1000)
    assert next(fired) == timers[0]
    for timer in timers[1:-1]:
        queue.delete(*timer)
    last = timers[-1]
    del timer, timers
    assert len(keys) < SPARE
    assert list(fired) == [last]


def test_far_timers_that_are_deleted_leave_no_buckets() -> None:
    tracemalloc.start()
    try:
        queue = TimerQueue()
        queue.register(0, "first", ())
        for at in range(0, 20_000 * 2**11, 2**11):
            queue.register(at, "k", ())
            queue.delete(at, "k", ())
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 100_000
    assert list(queue.due(2**40)) == [(0, "first", ())]
