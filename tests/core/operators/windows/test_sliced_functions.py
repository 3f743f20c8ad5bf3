"""Window functions after a running reduction or aggregate: the same in slices as with windows one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
from effort import first

import sluiceway as sw
from sluiceway.operators.windows.sliced_window_operator import SlicedWindowOperator
from sluiceway.operators.windows.window_operator import WindowOperator
from sluiceway.testing import OperatorHarness, every_way
from sluiceway.windows import (
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Window,
)


class Total(sw.AggregateFunction[tuple[str, int], int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: tuple[str, int], accumulator: int) -> int:
        return accumulator + value[1]

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


def larger(a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
    return max(a, b)


def tell(key: str, window: Any, elements: list[Any]) -> Iterator[Any]:
    (result,) = elements
    if result != 3:  # nothing at all for some
        yield key, window.start, window.end, result
    if result == 5:  # several for others
        yield key, "five"


class Tell(sw.WindowFunction[str, Any, Any]):
    """With state of the key, a word from ``open`` and an end."""

    closed = 0

    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(sw.ValueStateDescriptor("seen", int, default=0))

    def apply(self, key: str, window: Window, elements: list[Any]) -> list[Any]:
        self.seen.update(self.seen.value() + 1)
        return [(key, window, self.seen.value(), elements)]

    def close(self) -> None:
        Tell.closed += 1


class Talk(sw.ProcessWindowFunction[str, Any, Any]):
    """With state of the key and of the window, side outputs, and an end of each window."""

    times = sw.ValueStateDescriptor("times", int, default=0)

    def process(self, key: str, ctx: sw.ProcessWindowFunction.Context, elements: list[Any]) -> Iterator[Any]:
        counted = []
        for state in (ctx.window_state(), ctx.global_state()):
            times = state.get_state(self.times)
            times.update(times.value() + 1)
            counted.append(times.value())
        ctx.output(SAID, (key, ctx.window(), elements))
        yield key, ctx.window(), counted, elements, ctx.current_watermark() >= ctx.window().max_timestamp

    def clear(self, ctx: sw.ProcessWindowFunction.Context) -> None:
        times = ctx.window_state().get_state(self.times)
        ctx.output(SAID, ("over", ctx.window(), times.value()))
        times.clear()


class OneByOne(TumblingEventTimeWindows):
    """A subclass might assign in a way of its own, so it is not put into slices."""


class SlidingOneByOne(SlidingEventTimeWindows):
    """So here."""


SAID = sw.OutputTag[Any]("said")
TUMBLING = TumblingEventTimeWindows.of(10), OneByOne.of(10)
SLIDING = SlidingEventTimeWindows.of(10, 4), SlidingOneByOne.of(10, 4)

Finish = Callable[[sw.WindowedStream[Any, Any]], sw.DataStream[Any]]


def run(assigner: Any, finish: Finish, kind: type, seed: int, *, restores: bool = False) -> list[Any]:
    """What comes out, to the side output too."""
    random = Random(seed)
    watermark = 0
    seen: list[Any] = []

    def program(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return finish(stream.key_by(lambda record: record[0]).window(assigner))

    harness = OperatorHarness(program)
    with ExitStack() as stack:
        stack.callback(lambda: harness.close())
        assert isinstance(harness._subtasks[0].operators[0], kind)
        for step in range(30):
            if restores and step % 7 == 6:
                seen += [*harness.records, *harness.side_records(SAID)]
                taken = harness.snapshot()
                harness.close()
                harness = OperatorHarness(program, restored=taken)
                harness.process_watermark(watermark)
            records = [(random.choice("abc"), random.randrange(6)) for _ in range(random.randrange(1, 5))]
            harness.process_batch(records, [watermark + random.randrange(-12, 15) for _ in records])
            watermark += random.randrange(4)
            harness.process_watermark(watermark)
        harness.process_watermark(watermark + 100)
        assert [name for name, namespace in window_state(harness) if namespace] == []
        return [*seen, *harness.records, *harness.side_records(SAID)]


def window_state(harness: OperatorHarness) -> list[tuple[str, Any]]:
    tables = harness._subtasks[0].operators[0].backend._backend._tables  # type: ignore[attr-defined]
    return [(name, namespace) for name, table in tables.items() for namespace in table._namespaces]


@pytest.mark.parametrize("seed", first(2, range(5)))
@pytest.mark.parametrize(
    "finish",
    [
        lambda w: w.aggregate(Total(), tell),
        lambda w: w.reduce(larger, tell),
        lambda w: w.aggregate(Total(), Tell()),
        lambda w: w.aggregate(Total(), Talk()),
    ],
    ids=["aggregate", "reduce", "function object", "with a context"],
)
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("pair", [TUMBLING, SLIDING], ids=["tumbling", "sliding"])
def test_slices_call_it_as_windows_one_by_one_do(
    pair: tuple[Any, Any], finish: Finish, restores: bool, seed: int
) -> None:
    sliced, one_by_one = (
        run(assigner, finish, kind, seed, restores=restores)
        for assigner, kind in zip(pair, (SlicedWindowOperator, WindowOperator), strict=True)
    )
    assert sorted(map(repr, sliced)) == sorted(map(repr, one_by_one))
    assert len(sliced) > 10


@pytest.mark.parametrize("seed", first(2, range(5)))
@pytest.mark.parametrize("function", [tell, Talk()], ids=["callable", "with a context"])
@pytest.mark.parametrize("restores", [False, True])
def test_late_records_have_it_called_again(function: Any, restores: bool, seed: int) -> None:
    def finish(windowed: sw.WindowedStream[Any, Any]) -> sw.DataStream[Any]:
        return windowed.allowed_lateness(8).aggregate(Total(), function)

    sliced, one_by_one = (
        run(assigner, finish, kind, seed, restores=restores)
        for assigner, kind in zip(TUMBLING, (SlicedWindowOperator, WindowOperator), strict=True)
    )
    assert sorted(map(repr, sliced)) == sorted(map(repr, one_by_one))


def test_it_is_closed_once() -> None:
    Tell.closed = 0
    run(TUMBLING[0], lambda w: w.aggregate(Total(), Tell()), SlicedWindowOperator, 0)
    assert Tell.closed == 1


def test_streams_without_keys() -> None:
    def program(stream: sw.DataStream[int]) -> sw.DataStream[Any]:
        windowed = stream.window_all(TumblingEventTimeWindows.of(10))
        return windowed.reduce(lambda a, b: a + b, lambda window, elements: [(window.end, elements)])

    with OperatorHarness(program) as harness:
        harness.process_batch([1, 2, 4], [1, 9, 10])
        assert harness.process_watermark(30) == [(10, [3]), (20, [4])]
        assert [timestamp for _, timestamp in harness.records] == [9, 19]


def test_windows_of_the_wall_clock() -> None:
    def program(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        keyed = stream.key_by(lambda record: record[0])
        return keyed.window(TumblingProcessingTimeWindows.of(10)).aggregate(Total(), tell)

    with OperatorHarness(program) as harness:
        harness.process_batch([("a", 1), ("b", 5)])
        assert harness.advance(10) == [("a", 0, 10, 1), ("b", 0, 10, 5), ("b", "five")]


@pytest.mark.parametrize("assigner", [TUMBLING[0], SLIDING[0]], ids=["tumbling", "sliding"])
def test_the_same_in_every_way_that_records_may_come(assigner: Any) -> None:
    random = Random(1)
    records = [(random.choice("abc"), random.randrange(6)) for _ in range(40)]

    def program(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        in_order = stream.assign_timestamps_and_watermarks(sw.WatermarkStrategy.for_monotonous_timestamps())
        return in_order.key_by(lambda record: record[0]).window(assigner).aggregate(Total(), tell).uid("windows")

    assert every_way(program, records, timestamps=range(40), ordered=False)


def test_what_is_no_iterable_is_refused() -> None:
    def program(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = stream.key_by(lambda record: record[0]).window(TUMBLING[0])
        return windowed.aggregate(Total(), lambda key, window, elements: 42)  # type: ignore[arg-type, return-value]

    with OperatorHarness(program) as harness:
        harness.process(("a", 1), 1)
        with pytest.raises(sw.FunctionContractError, match=r"the window function of step .* returned 42 \(int\)"):
            harness.process_watermark(10)


def test_an_error_in_it_names_step_and_key() -> None:
    def fail(key: str, window: Any, elements: list[int]) -> list[int]:
        raise ZeroDivisionError("no")

    def program(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return stream.key_by(lambda record: record[0]).window(SLIDING[0]).aggregate(Total(), fail)

    with OperatorHarness(program) as harness:
        harness.process(("apple", 1), 1)
        with pytest.raises(ZeroDivisionError) as caught:
            harness.process_watermark(30)
    notes = "\n".join(caught.value.__notes__)
    assert "SlidingEventTimeWindows" in notes
    assert "'apple'" in notes


class Gathered(sw.AggregateFunction[tuple[str, int], list[int], list[int]]):
    """Changes accumulators wherever it may."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: tuple[str, int], accumulator: list[int]) -> list[int]:
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return sorted(accumulator)

    def merge(self, accumulator1: list[int], accumulator2: list[int]) -> list[int]:
        accumulator1.extend(accumulator2)
        accumulator2.clear()
        return accumulator1


@pytest.mark.parametrize("object_reuse", [False, True])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_merge_may_change_accumulators_that_windows_share(object_reuse: bool, parallelism: int) -> None:
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value[1])
    flow = sw.Pipeline("shared")
    values = flow.from_collection([("ab"[n % 2], n) for n in range(60)], watermark_strategy=strategy)
    windows = values.key_by(lambda value: value[0]).window(SlidingEventTimeWindows.of(30, 10))
    found = windows.aggregate(Gathered(), lambda key, window, gathered: [(window.start, key, *gathered)]).collect()
    flow.run(object_reuse=object_reuse, parallelism=parallelism, batch_size=7, auto_watermark_interval=0)
    expected = [
        (start, key, [n for n in range(max(start, 0), min(start + 30, 60)) if "ab"[n % 2] == key])
        for start in range(-20, 60, 10)
        for key in "ab"
    ]
    assert sorted(found) == expected


CLEARED = sw.ListStateDescriptor("cleared", int)


class Cleared(sw.ProcessWindowFunction[Any, Any, str]):
    """Emits the starts of the key's windows that have been cleared so far."""

    def process(self, key: str, ctx: sw.ProcessWindowFunction.Context, elements: Any) -> list[Any]:
        return [(ctx.window().start, list(ctx.global_state().get_list_state(CLEARED).get()))]

    def clear(self, ctx: sw.ProcessWindowFunction.Context) -> None:
        ctx.global_state().get_list_state(CLEARED).add(ctx.window().start)


def test_windows_are_evaluated_and_cleared_in_the_order_of_time() -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = stream.key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(10)).allowed_lateness(5)
        cleared: sw.DataStream[Any] = windowed.process(Cleared())
        return cleared

    with OperatorHarness(add) as h:
        h.process_batch([("a", n) for n in range(4)], [-9, 1, 11, 31])
        assert h.process_watermark(100) == [(-10, []), (0, [-10]), (10, [-10, 0]), (30, [-10, 0, 10])]
        h.process(("a", 4), 101)
        assert h.process_watermark(200) == [(100, [-10, 0, 10, 30])]
