"""Jobs of every shape, that crash, are stopped, lost, cancelled, rescaled: their results are those of a calm run.

The sinks commit in two phases, and some commits fail; messages about checkpoints are lost, doubled and late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connectors import GeneratorSource
from sluiceway.testing import KeySequence
from sluiceway.testing.pytest_plugin import SimulationRunner
from sluiceway.testing.simulation import Outside, SimulationResult, simulate, simulate_lives
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

Make = Callable[[sw.Pipeline, sw.Sink[Any]], object]
OPTIONS: dict[str, Any] = {
    "batch_size": 3,
    "checkpoint_timeout": "500ms",
    "checkpoint_tolerated_failures": 1000,
    "restart": "fixed-delay:200:50ms",
}


# ---- shapes --------------------------------------------------------------------------------------------------


def sequence(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    numbers = flow.from_collection(range(120)).set_parallelism(1).uid("numbers")
    checked = numbers.key_by(lambda n: n % 6).map(KeySequence(6)).uid("checked")
    checked.rebalance().map(lambda n: n).sink(sink).uid("out")


def words(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    lines = flow.from_collection(["to be or not to be", "be that as it may", "it may be so"] * 8).uid("lines")
    lines.flat_map(str.split).key_by(lambda word: word).count().uid("counts").sink(sink).uid("out")


def generated(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    numbers = flow.source(GeneratorSource(lambda n: n * n, 150)).uid("numbers")
    numbers.key_by(lambda n: n % 7).count().uid("counts").sink(sink).uid("out")


class Sorted(sw.KeyedProcessFunction[int, tuple[int, int], tuple[int, list[int]]]):
    """What has come for a key within 100 ms of event time, in order, by a timer."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.held = context.get_map_state(sw.MapStateDescriptor("held", list, key_type=int))

    def process_element(self, value: tuple[int, int], ctx: sw.KeyedProcessFunction.Context) -> None:
        until = value[1] // 100 * 100 + 100
        self.held.put(until, [*(self.held.get(until) or []), value[1]])
        ctx.timer_service().register_event_time_timer(until)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
        yield ctx.get_current_key(), tuple(sorted(self.held.get(timestamp) or []))
        self.held.remove(timestamp)


def timed(flow: sw.Pipeline, name: str, count: int = 120) -> sw.DataStream[tuple[int, int]]:
    """Pairs of a key and a time that is out of order by up to 70 ms."""
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(80).with_timestamp_assigner(lambda r: r[1])
    records = [(n % 5, n * 10 + n * 37 % 70) for n in range(count)]
    return flow.from_collection(records, watermark_strategy=strategy).uid(name)


def timers(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    timed(flow, "events").key_by(lambda r: r[0]).process(Sorted()).uid("sorted").sink(sink).uid("out")


def later(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0], left[1] + right[1]


def tumbling(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    windows = timed(flow, "events").key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(100))
    windows.reduce(later).uid("sums").sink(sink).uid("out")


def sliding(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    windows = timed(flow, "events").key_by(lambda r: r[0]).window(SlidingEventTimeWindows.of(200, 100))
    windows.reduce(later).uid("sums").sink(sink).uid("out")


def sessions(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    gaps = timed(flow, "events").map(lambda r: (r[0], r[1] + r[1] // 300 * 200))
    stamped = gaps.assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_bounded_out_of_orderness(400).with_timestamp_assigner(lambda r: r[1])
    )
    windows = stamped.key_by(lambda r: r[0]).window(EventTimeSessionWindows.with_gap(100))
    windows.reduce(later).uid("sums").sink(sink).uid("out")


def union(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    """One source is empty, and one ends long before the other."""
    long = flow.from_collection(range(90)).uid("long")
    short = flow.from_collection(range(90, 100)).uid("short")
    nothing = flow.from_collection([]).uid("nothing")
    counted = long.union(short, nothing).rebalance().key_by(lambda n: n % 7).count().uid("counts")
    counted.sink(sink).uid("out")


class Both(sw.KeyedCoProcessFunction[int, int, int, tuple[int, int]]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(sw.ValueStateDescriptor("seen", int))

    def process_element1(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield ctx.get_current_key(), seen

    process_element2 = process_element1


def connected(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    left = flow.from_collection(range(90)).uid("left").key_by(lambda n: n % 5)
    right = flow.from_collection(range(20)).uid("right").key_by(lambda n: n % 5)
    left.connect(right).process(Both()).uid("both").sink(sink).uid("out")


RULES = sw.MapStateDescriptor("rules", int, key_type=int)


class Judged(sw.KeyedBroadcastProcessFunction[int, tuple[int, int], tuple[int, int], tuple[int, int, int]]):
    """How many rules were there at the time of a record: known when both streams have come so far."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.held = context.get_map_state(sw.MapStateDescriptor("held", int, key_type=int))

    def process_element(self, value: tuple[int, int], ctx: Any) -> None:
        self.held.put(value[1], (self.held.get(value[1]) or 0) + 1)
        ctx.timer_service().register_event_time_timer(value[1])

    def process_broadcast_element(self, value: tuple[int, int], ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value[1], value[0])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int, int]]:
        known = sum(at <= timestamp for at in ctx.get_broadcast_state(RULES))
        yield timestamp, self.held.get(timestamp) or 0, known
        self.held.remove(timestamp)


def broadcast(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    rules = timed(flow, "rules", 12).broadcast(RULES)
    timed(flow, "events").key_by(lambda r: r[0]).connect(rules).process(Judged()).uid("judged").sink(sink).uid(
        "out"
    )


ODD = sw.OutputTag("odd", int)


class Split(sw.ProcessFunction[int, int]):
    def process_element(self, value: int, ctx: sw.ProcessFunction.Context) -> Iterator[int]:
        if value % 2:
            ctx.output(ODD, -value)
        else:
            yield value


def side_outputs(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    even = flow.from_collection(range(100)).uid("numbers").process(Split()).uid("split")
    even.rebalance().map(lambda n: n).sink(sink).uid("even")
    even.get_side_output(ODD).key_by(lambda n: n % 3).count().uid("counts").sink(sink).uid("odd")


def joined(flow: sw.Pipeline, sink: sw.Sink[Any]) -> None:
    left = timed(flow, "left", 80).key_by(lambda r: r[0])
    right = timed(flow, "right", 60).key_by(lambda r: r[0])
    pairs = left.interval_join(right).between(-60, 40).apply(lambda a, b: (a[0], a[1], b[1]))
    pairs.uid("joined").sink(sink).uid("out")


SHAPES: list[Make] = [sequence, words, generated, timers, tumbling, sliding, sessions, union, connected, broadcast]
SHAPES += [side_outputs, joined]


@cache
def calm(shape: Make) -> Counter[Any]:
    """What comes of it where nothing goes wrong."""
    outside = Outside()
    simulate(lambda: made(shape, outside), seed=0, workers=1, parallelism=1)
    assert len(outside.records) > 20
    return outside.counts()


def made(shape: Make, outside: Outside) -> sw.Pipeline:
    flow = sw.Pipeline(shape.__name__)
    shape(flow, outside.sink())
    return flow


def live(shape: Make, place: Path, seed: int, **arguments: Any) -> tuple[SimulationResult, ...]:
    outside = Outside(seed, fails=0.03)
    given = {"unreliable": 0.05, **OPTIONS, **arguments}
    results = simulate_lives(lambda: made(shape, outside), str(place / str(seed)), seed=seed, **given)
    found, expected = outside.counts(), calm(shape)
    assert found == expected, f"lost {expected - found}, and too often there are {found - expected}"
    return results


# ---- exactly-once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_results_are_those_of_a_calm_run(shape: Make, tmp_path: Path, simulation: SimulationRunner) -> None:
    simulation(lambda seed: live(shape, tmp_path, seed), 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_results_are_those_of_a_calm_run_for_long(
    shape: Make, tmp_path: Path, simulation: SimulationRunner
) -> None:
    simulation(lambda seed: live(shape, tmp_path, seed), 300)
