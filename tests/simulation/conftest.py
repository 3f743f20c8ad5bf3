"""Small jobs of every shape, and what must come of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
)
from sluiceway.connector.lib import GeneratorSource
from sluiceway.testing import InjectedError, KeySequence, run_pipeline
from sluiceway.testing.simulation import Outside, SimulationResult, simulate, simulate_lives
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows


@dataclass(frozen=True)
class Shape:
    """A job.

    ``build`` makes the pipeline, and what its results come to. ``essence`` is what every run must agree on.
    """

    name: str
    build: Callable[[], tuple[sw.Pipeline, Sequence[Any]]]
    essence: Callable[[Sequence[Any]], Any] = Counter

    def expected(self) -> Counter[Any]:
        """What comes of it without any simulation."""
        flow, results = self.build()
        run_pipeline(flow)
        assert len(results) > 20
        return self.essence(results)


LINES = ["to be or not to be", "be that as it may", "it may be so"] * 12


def word_count() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("words")
    words = flow.from_collection(LINES).flat_map(str.split)
    return flow, words.key_by(lambda word: word).count().collect()


def windows() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("windows")
    readings = [(f"sensor-{i % 5}", i * 100 + i * 37 % 500, i) for i in range(150)]
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(500)
    timed = flow.from_collection(readings).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda reading: reading[1])
    )
    sums = (
        timed.key_by(lambda reading: reading[0])
        .window(TumblingEventTimeWindows.of(1000))
        .reduce(lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2]))
    )
    return flow, sums.collect()


def union() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("union")
    one = flow.from_collection(range(80)).map(lambda n: (n % 7, n))
    other = flow.from_collection(range(80, 120)).map(lambda n: (n % 7, n))
    sums = one.union(other).rebalance().key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    return flow, sums.collect()


def last_of_each(results: Sequence[tuple[int, int]]) -> Counter[Any]:
    """Of running sums of positive numbers the order is open, but not how many there are, nor the last."""
    last: dict[int, int] = {}
    for key, total in results:
        last[key] = max(last.get(key, 0), total)
    return Counter({**last, "results": len(results)})


def iteration() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("loop")
    loop = flow.from_collection(range(1, 40)).iterate()
    less = loop.rebalance().map(lambda n: n - 7)
    loop.close_with(less.filter(lambda n: n > 0))
    return flow, less.filter(lambda n: n <= 0).collect()


SHAPES = [Shape("words", word_count), Shape("windows", windows), Shape("union", union, last_of_each)]
SHAPES.append(Shape("iteration", iteration))


@pytest.fixture(params=[shape.name for shape in SHAPES])
def shape(request: pytest.FixtureRequest) -> Shape:
    return next(shape for shape in SHAPES if shape.name == request.param)


Out = Callable[[sw.DataStream[Any], str], object]
Make = Callable[[sw.Pipeline, Out], object]
OPTIONS: dict[str, Any] = {
    "batch_size": 3,
    "checkpoint_timeout": "500ms",
    "checkpoint_tolerated_failures": 1000,
    "restart": "fixed-delay:200:50ms",
}


# ---- jobs that live through everything ---------------------------------------------------------------------


def sequence(flow: sw.Pipeline, out: Out) -> None:
    numbers = flow.from_collection(range(120)).set_parallelism(1).uid("numbers")
    checked = numbers.key_by(lambda n: n % 6).map(KeySequence(6)).uid("checked")
    out(checked.rebalance().map(lambda n: n), "out")


def words(flow: sw.Pipeline, out: Out) -> None:
    lines = flow.from_collection(["to be or not to be", "be that as it may", "it may be so"] * 8).uid("lines")
    out(lines.flat_map(str.split).key_by(lambda word: word).count().uid("counts"), "out")


def generated(flow: sw.Pipeline, out: Out) -> None:
    numbers = flow.source(GeneratorSource(lambda n: n * n, 150)).uid("numbers")
    out(numbers.key_by(lambda n: n % 7).count().uid("counts"), "out")


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


def timed(
    flow: sw.Pipeline, name: str, count: int = 120, gap: Callable[[int], int] = lambda n: 0
) -> sw.DataStream[tuple[int, int]]:
    """Pairs of a key and a time that is out of order by up to 70 ms."""
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(80).with_timestamp_assigner(lambda r: r[1])
    records = [(n % 5, n * 10 + n * 37 % 70 + gap(n)) for n in range(count)]
    return flow.from_collection(records, watermark_strategy=strategy).uid(name)


def timers(flow: sw.Pipeline, out: Out) -> None:
    out(timed(flow, "events").key_by(lambda r: r[0]).process(Sorted()).uid("sorted"), "out")


def later(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0], left[1] + right[1]


def tumbling(flow: sw.Pipeline, out: Out) -> None:
    windows = timed(flow, "events").key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(100))
    out(windows.reduce(later).uid("sums"), "out")


def sliding(flow: sw.Pipeline, out: Out) -> None:
    windows = timed(flow, "events").key_by(lambda r: r[0]).window(SlidingEventTimeWindows.of(200, 100))
    out(windows.reduce(later).uid("sums"), "out")


def sessions(flow: sw.Pipeline, out: Out) -> None:
    bursts = timed(flow, "events", gap=lambda n: n // 20 * 200)
    windows = bursts.key_by(lambda r: r[0]).window(EventTimeSessionWindows.with_gap(100))
    out(windows.reduce(later).uid("sums"), "out")


def union_of_three(flow: sw.Pipeline, out: Out) -> None:
    """One source is empty, and one ends long before the other."""
    long = flow.from_collection(range(90)).uid("long")
    short = flow.from_collection(range(90, 100)).uid("short")
    nothing = flow.from_collection([]).uid("nothing")
    counted = long.union(short, nothing).rebalance().key_by(lambda n: n % 7).count().uid("counts")
    out(counted, "out")


class Both(sw.KeyedCoProcessFunction[int, int, int, tuple[int, int]]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(sw.ValueStateDescriptor("seen", int))

    def process_element1(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield ctx.get_current_key(), seen

    process_element2 = process_element1


def connected(flow: sw.Pipeline, out: Out) -> None:
    left = flow.from_collection(range(90)).uid("left").key_by(lambda n: n % 5)
    right = flow.from_collection(range(20)).uid("right").key_by(lambda n: n % 5)
    out(left.connect(right).process(Both()).uid("both"), "out")


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


def broadcast(flow: sw.Pipeline, out: Out) -> None:
    rules = timed(flow, "rules", 12).broadcast(RULES)
    out(timed(flow, "events").key_by(lambda r: r[0]).connect(rules).process(Judged()).uid("judged"), "out")


ODD = sw.OutputTag("odd", int)


class Split(sw.ProcessFunction[int, int]):
    def process_element(self, value: int, ctx: sw.ProcessFunction.Context) -> Iterator[int]:
        if value % 2:
            ctx.output(ODD, -value)
        else:
            yield value


def side_outputs(flow: sw.Pipeline, out: Out) -> None:
    even = flow.from_collection(range(100)).uid("numbers").process(Split()).uid("split")
    out(even.rebalance().map(lambda n: n), "even")
    out(even.get_side_output(ODD).key_by(lambda n: n % 3).count().uid("counts"), "odd")


def joined(flow: sw.Pipeline, out: Out) -> None:
    left = timed(flow, "left", 80).key_by(lambda r: r[0])
    right = timed(flow, "right", 60).key_by(lambda r: r[0])
    pairs = left.interval_join(right).between(-60, 40).apply(lambda a, b: (a[0], a[1], b[1]))
    out(pairs.uid("joined"), "out")


@dataclass(frozen=True)
class Range:
    split_id: str
    start: int
    stop: int


class Ranges(Source[int]):
    """Many small splits, handed out one at a time to whoever asks for one."""

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        every = [Range(f"{n}-", n, n + 7) for n in range(0, 140, 7)]
        return SimpleEnumerator(context, every if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return RangeReader(context)


class RangeReader(SimpleReader[int]):
    def open_split(self, split: Range) -> None:
        self.split = split

    def read(self, limit: int) -> Poll[int]:
        at = self.split.start
        if at == self.split.stop:
            return END_OF_INPUT
        self.split = replace(self.split, start=at + 1)
        return [at]

    def position(self) -> Range:
        return self.split

    def close_split(self) -> None: ...


def ranges(flow: sw.Pipeline, out: Out) -> None:
    out(flow.source(Ranges()).uid("ranges").key_by(lambda n: n % 9).count().uid("counts"), "out")


JOBS: list[Make] = [sequence, words, generated, ranges, timers, tumbling, sliding, sessions, union_of_three]
JOBS += [connected, broadcast, side_outputs, joined]


TROUBLES: dict[str, Random] = {}


class Trouble(sw.MapFunction[Any, Any], sw.CheckpointedFunction, sw.CheckpointListener):
    """Raises now and then, whatever it is asked to do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sometimes(self, chance: float) -> None:
        if TROUBLES[self.name].random() < chance:
            raise InjectedError("trouble")

    def map(self, value: Any) -> Any:
        self.sometimes(0.002)
        return value

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        self.sometimes(0.02)

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        self.sometimes(0.02)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.sometimes(0.02)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.sometimes(0.02)

    def close(self) -> None:
        self.sometimes(0.05)


@cache
def calm(make: Make) -> Counter[Any]:
    """What comes of it where nothing goes wrong."""
    outside = Outside()
    simulate(lambda: made_of(make, outside), seed=0, workers=1, parallelism=1)
    assert len(outside.records) > 20
    return outside.counts()


def made_of(make: Make, outside: Outside, trouble: str = "") -> sw.Pipeline:
    def out(stream: sw.DataStream[Any], name: str) -> None:
        if trouble:
            stream = stream.map(Trouble(trouble)).uid(f"trouble before {name}")
        stream.sink(outside.sink()).uid(name)

    flow = sw.Pipeline(make.__name__)
    make(flow, out)
    return flow


Live = Callable[..., tuple[SimulationResult, ...]]


@pytest.fixture(params=JOBS, ids=lambda make: make.__name__)
def job(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
def live(tmp_path: Path) -> Live:
    """Lives through everything that a seed has in store for a job, and compares with a calm run."""

    def live(job: Make | str, seed: int, fails: float = 0.03, **arguments: Any) -> tuple[SimulationResult, ...]:
        make = next(made for made in JOBS if job in (made, made.__name__))
        outside = Outside(seed, fails)
        given = {"unreliable": 0.05, **OPTIONS, **arguments}
        name = f"{tmp_path} {seed}"
        TROUBLES[name] = Random(seed)
        trouble = name if seed % 2 else ""
        results = simulate_lives(
            lambda: made_of(make, outside, trouble), str(tmp_path / str(seed)), seed=seed, **given
        )
        found, expected = outside.counts(), calm(make)
        assert found == expected, f"lost {expected - found}, and too often there are {found - expected}"
        return results

    return live
