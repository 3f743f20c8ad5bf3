"""Reduce and aggregate functions that have state of their own per key: everywhere, or nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from effort import diagonal

import sluiceway as sw
from sluiceway.errors import StateError
from sluiceway.state import ValueStateDescriptor
from sluiceway.testing import every_way
from sluiceway.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

Pair = tuple[str, int]
PAIRS: list[Pair] = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 12), ("b", 13), ("a", 14), ("a", 15)]


class Numbered(sw.ReduceFunction[Pair]):
    """The sum of all, the n-th call for a key counting n times."""

    def __init__(self, name: str = "calls") -> None:
        self.name = name

    def open(self, ctx: sw.RuntimeContext) -> None:
        self.calls = ctx.get_state(ValueStateDescriptor(self.name))

    def reduce(self, value1: Pair, value2: Pair) -> Pair:
        calls = (self.calls.value() or 0) + 1
        self.calls.update(calls)
        return value1[0], value1[1] + calls * value2[1]


class NumberedSum(sw.AggregateFunction[Pair, int, int]):
    """The same, as an aggregate."""

    def __init__(self, name: str = "calls") -> None:
        self.name = name

    def open(self, ctx: sw.RuntimeContext) -> None:
        self.calls = ctx.get_state(ValueStateDescriptor(self.name))

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Pair, accumulator: int) -> int:
        calls = (self.calls.value() or 0) + 1
        self.calls.update(calls)
        return accumulator + calls * value[1]

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


class AsksEarly(sw.CheckpointedFunction):
    """Mixin that asks for the state before ``open()``."""

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        self.calls = context.keyed_state_store.get_state(ValueStateDescriptor("calls"))

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        pass


class NumberedEarly(sw.ReduceFunction[Pair], AsksEarly):
    reduce = Numbered.reduce


class NumberedSumEarly(sw.AggregateFunction[Pair, int, int], AsksEarly):
    create_accumulator = NumberedSum.create_accumulator
    add = NumberedSum.add
    get_result = NumberedSum.get_result
    merge = NumberedSum.merge


ASSIGNERS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.window(TumblingEventTimeWindows.of(10)),
    "sliding": lambda s: s.window(SlidingEventTimeWindows.of(10, 5)),
    "session": lambda s: s.window(EventTimeSessionWindows.with_gap(5)),
    "count": lambda s: s.count_window(2),
    "with trigger": lambda s: s.window(TumblingEventTimeWindows.of(10)).trigger(CountTrigger(2)),
    "with evictor": lambda s: s.window(TumblingEventTimeWindows.of(10)).evictor(CountEvictor(9)),
    "late": lambda s: s.window(TumblingEventTimeWindows.of(10)).allowed_lateness(5),
    "all": lambda s: s.window_all(TumblingEventTimeWindows.of(10)),
}
SUMS = {
    "reduce": lambda s: s.reduce(Numbered()),
    "aggregate": lambda s: s.aggregate(NumberedSum()),
    "reduce, early": lambda s: s.reduce(NumberedEarly()),
    "aggregate, early": lambda s: s.aggregate(NumberedSumEarly()),
}


def by_name(pair: Pair) -> str:
    return pair[0]


@pytest.mark.parametrize("how", SUMS)
def test_running_results(how: str) -> None:
    results = every_way(lambda s: SUMS[how](s.key_by(by_name)), PAIRS)
    sums = [r[1] if how.startswith("reduce") else r for r in results]
    # The first record of a key is not given to a reduce function.
    expected = [1, 2, 4, 6, 28, 32, 70, 130] if how.startswith("reduce") else [1, 2, 7, 10, 43, 49, 99, 174]
    assert sums == expected


@pytest.mark.parametrize(("windows", "how"), diagonal(list(ASSIGNERS), list(SUMS)))
def test_windows(windows: str, how: str) -> None:
    def program(stream: Any) -> Any:
        return SUMS[how](ASSIGNERS[windows](stream.key_by(by_name)))

    # Windows of different keys may fire in another order.
    assert every_way(program, PAIRS, timestamps=[pair[1] for pair in PAIRS], parallelism=(2,), ordered=False)


@pytest.mark.parametrize("windows", ["tumbling", "sliding", "session", "with trigger"])
@pytest.mark.parametrize("function", [NumberedSum(), NumberedSumEarly()], ids=type)
def test_windows_of_each_kind_call_the_function_alike(windows: str, function: Any) -> None:
    """Records come to one window each, so that the number of calls does not depend on the kind of window."""
    pairs = [("a", 11), ("a", 12), ("b", 13)]
    kinds = dict(ASSIGNERS, sliding=lambda s: s.window(SlidingEventTimeWindows.of(10, 10)))
    kinds["with trigger"] = lambda s: s.window(TumblingEventTimeWindows.of(10)).trigger(
        sw.windows.EventTimeTrigger()
    )
    stamps = [pair[1] for pair in pairs]
    results = every_way(lambda s: kinds[windows](s.key_by(by_name)).aggregate(function), pairs, timestamps=stamps)
    assert sorted(results) == [13, 35]


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
@pytest.mark.parametrize("how", SUMS)
def test_on_every_backend(how: str, backend: str) -> None:
    flow = sw.Pipeline()
    keyed = flow.from_collection(PAIRS * 50).key_by(by_name)
    results = SUMS[how](keyed).collect()
    flow.run(state_backend=backend, batch_size=7)
    last = [r[1] if how.startswith("reduce") else r for r in results][-1]
    expected = accumulated = 0
    for number, (_, value) in enumerate(
        [p for p in PAIRS * 50 if p[0] == "a"], 0 if how.startswith("reduce") else 1
    ):
        accumulated += value if how.startswith("reduce") and number == 0 else number * value
        expected = accumulated
    assert last == expected


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (lambda s: s.reduce(Numbered("reduce")), "reduce"),
        (lambda s: s.aggregate(NumberedSum("aggregate")), "aggregate"),
    ],
)
def test_the_name_of_the_step_s_own_state_is_taken(step: Callable[[Any], Any], name: str) -> None:
    flow = sw.Pipeline()
    step(flow.from_collection(PAIRS).key_by(by_name)).collect()
    with pytest.raises(StateError, match=f"the name of state '{name}' is taken.*Give .* another name"):
        flow.run()
