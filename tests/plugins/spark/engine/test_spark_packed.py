"""Subtasks that live on between micro-batches, brought back from what Spark would keep: without Spark."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluiceway import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Pipeline,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import DiscardSink
from sluiceway.elements import Batch
from sluiceway.errors import CorruptStreamError
from sluiceway.operators import OperatorSnapshot
from sluiceway.plugins import default_manager
from sluiceway.runtime.microbatch.driven_enumerator import plan_splits
from sluiceway.runtime.microbatch.run_directory import new_run
from sluiceway.runtime.microbatch.state_export import write_extract
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.savepoint.rows import read_state
from sluiceway.steps import SourceStep
from sluiceway.table import agg, col
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.stages.batch_tasks import RecentPlans, load_plan, ship
from sluiceway_spark.structured.state import state_log
from sluiceway_spark.structured.state.state_log import LogWriter, keyed_state, saved
from sluiceway_spark.structured.state.subtask_cache import Cache


class Store:
    """What Spark keeps of a subtask. Counts calls, and can forget an attempt."""

    def __init__(self) -> None:
        self.state: tuple[str | None, list[bytes]] = (None, [])
        self.before = self.state
        self.calls = 0

    def token(self, *, is_there: bool) -> str | None:
        self.calls += 1
        return self.state[0]

    def set_token(self, token: str) -> None:
        self.calls += 1
        self.state = token, self.state[1]

    def records(self) -> list[bytes]:
        self.calls += 1
        return list(self.state[1])

    def append(self, record: bytes) -> None:
        self.calls += 1
        self.state = self.state[0], [*self.state[1], record]

    def replace(self, record: bytes) -> None:
        self.calls += 1
        self.state = self.state[0], [record]


class MicroBatches:
    """Runs a pipeline as Spark would: source subtasks and sinks stay, those in between are Cache's."""

    def __init__(
        self,
        flow: Pipeline,
        *,
        processes: int = 2,
        seed: int = 1,
        settings: Settings | None = None,
        keyed_subtasks: int | None = None,
        shipped: bool = False,
    ):
        settings = settings or Settings()
        self.services = default_manager().services()
        self.plan = SteppedPlan.of(
            flow.graph(settings), settings, self.services, key_groups=4, keyed_subtasks=keyed_subtasks
        )
        if shipped:
            self.plan, self.services = load_plan(ship(self.plan, self.services))
        self.clock = VirtualClock(0)
        self.given: list[Any] = []  # records for sinks
        self.caches = [self.new_cache() for _ in range(processes)]
        self.stores: dict[int, Store] = defaultdict(Store)
        self.random = random.Random(seed)
        self.sinks = {t: self.chain(t, own=False) for t in self.plan.targets_of(self.plan.last_stage)}
        self.sources = {t: self.chain(t) for t in self.plan.targets_of(0)}
        for source in (self.plan.graph.vertex(id_) for id_ in self.plan.sources):
            step = source.head.step
            assert isinstance(step, SourceStep)
            for subtask, splits in enumerate(plan_splits(step.source, source.parallelism, SystemClock())):
                chain = self.sources[self.plan.target(source.id, subtask)]
                chain.add_splits(splits)
                chain.no_more_splits()
        self.number = 0

    def new_cache(self) -> Cache:
        return Cache(self.clock, lambda: self.services)

    def chain(self, target: int, **how: Any) -> SteppedTask:
        vertex, subtask = self.plan.who(target)
        chain = SteppedTask(
            self.plan,
            vertex,
            subtask,
            state_backend=self.services.state_backend("memory"),
            clock=self.clock,
            services=self.services,
            **how,
        )
        chain.open()
        return chain

    def rows(self, chain: SteppedTask) -> list[Row]:
        return [Row(*numbers, self.plan.pack(numbers[2], elements)) for *numbers, elements in chain.take()]

    def batch(self, limit: int, *, fail_first: bool = False) -> None:
        rows: list[Row] = []
        for chain in self.sources.values():
            chain.read(limit)
            rows += self.rows(chain)
        for stage in range(1, self.plan.last_stage):
            rows = self.level(stage, rows, fail_first=fail_first)
        for target, chain in self.sinks.items():
            mine = (row for row in rows if row.stage == self.plan.last_stage and row.target == target)
            for row in sorted(mine, key=lambda r: (r.sender, r.seq)):
                elements = self.plan.unpack(row.sender, row.payload)
                self.given += [value for element in elements if type(element) is Batch for value in element.values]
                chain.feed(row.sender, elements)
            chain.settle()
        self.number += 1

    def level(self, stage: int, rows: list[Row], *, fail_first: bool) -> list[Row]:
        self.random.shuffle(rows)
        out = [row for row in rows if row.stage > stage]
        mine: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            if row.stage == stage:
                mine[row.target].append(row)
        for target, some in mine.items():
            store = self.stores[target]
            if fail_first:
                before = store.state
                list(self.random.choice(self.caches).process("run", self.plan, target, self.number, some, store))
                store.state = before
            calls = store.calls
            cache = self.random.choice(self.caches)
            out += cache.process("run", self.plan, target, self.number, some, store)
            assert store.calls - calls <= 4
        return out

    def run(self, limit: int, **how: Any) -> None:
        while not all(chain.ended for chain in self.sinks.values()):
            self.batch(limit, **how)
        for chain in (*self.sinks.values(), *self.sources.values()):
            chain.close()
        for cache in self.caches:
            cache.close()


TEXT = [f"{'abcdefgh'[i * 7 % 8]} {'xyz'[i % 3]}" for i in range(300)]
RECORDS = [(i, f"k{i % 5}") for i in [*range(0, 200, 2), *range(1, 200, 20)]]


def words(flow: Pipeline) -> Any:
    return flow.from_collection(TEXT).flat_map(str.split).key_by(lambda word: word).count()


class Quiet(KeyedProcessFunction[Any, Any, Any]):
    """State of several kinds, and timers."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int, default=0))
        self.names = ctx.get_map_state(MapStateDescriptor("names", int, key_type=str))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update(self.seen.value() + 1)
        self.names.put(str(value), 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 15)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield self.seen.value(), sorted(self.names.keys()), timestamp


class Held(KeyedProcessFunction[Any, Any, Any]):
    """Holds records back for some processing time."""

    def open(self, ctx: Any) -> None:
        self.held = ctx.get_list_state(ListStateDescriptor("held", int))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.held.add(value)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 30)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield from list(self.held.get())
        self.held.clear()


@pytest.mark.parametrize("fail_first", [False, True])
def test_what_is_due_when_a_subtask_comes_to_another_process_is_given_out_there(fail_first: bool) -> None:
    flow = Pipeline("held", parallelism=2)
    got = flow.from_collection(range(400)).key_by(lambda n: n % 12).process(Held()).collect()
    job = MicroBatches(flow, processes=3)
    while not all(chain.ended for chain in job.sinks.values()):
        job.clock.advance(100)
        job.batch(30, fail_first=fail_first)
    for chain in job.sinks.values():
        chain.snapshot(1)
        chain.completed(1)
    job.run(30)
    assert sorted(got) == list(range(400))


def times(flow: Pipeline) -> Any:
    """Windows, late records and event time over two levels of keys."""
    stamped = flow.from_collection(RECORDS).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(3).with_timestamp_assigner(lambda r: r[0])
    )
    counts = stamped.key_by(lambda r: r[1]).window(TumblingEventTimeWindows.of(20)).count()
    return counts.key_by(lambda r: r[0]).process(Quiet())


AT = [i + (i * 7) % 4 for i in range(4000)]
ROWS = pa.table({"key": [f"k{i % 23}" for i in range(4000)], "n": [i % 50 for i in range(4000)], "at": AT})


def columns(flow: Pipeline) -> Any:
    """Sliding windows and sessions, each joined with the rows that they are of."""
    strategy: Any = WatermarkStrategy.for_bounded_out_of_orderness(3).with_timestamp_column("at")
    rows = flow.table(ROWS, watermark_strategy=strategy)
    keyed = rows.filter(col("n") < 40).key_by("key")
    sums: dict[str, Any] = {"count": agg.count(), "total": agg.sum("n"), "last": agg.last("at")}
    sliding = keyed.window(SlidingEventTimeWindows(400, 200)).aggregate(**sums)
    sessions = keyed.window(EventTimeSessionWindows(100)).aggregate(**sums)
    joined = sliding.union(sessions).key_by("key").interval_join(rows.key_by("key"), -30, 0)
    return joined.select("key", "count", "total", "last", "window_start", "window_end", "at")


SCRIPT = """
from dataclasses import dataclass
from enum import Enum

class Kind(Enum):
    EVEN = 0
    ODD = 1

@dataclass(frozen=True)
class Meter:
    kind: Kind

def meter(n):
    return Meter(Kind(n % 2))
"""


def test_keys_of_classes_of_a_script_are_those_of_its_next_run() -> None:
    counts = []
    stores: Any = None
    for _ in range(2):
        script: dict[str, Any] = {"__name__": "__main__"}
        exec(SCRIPT, script)
        flow = Pipeline("meters")
        meters = flow.generate().map(script["meter"])
        meters.key_by(lambda meter: meter).count().map(lambda pair: (pair[0].kind.name, pair[1])).sink(
            DiscardSink()
        )
        job = MicroBatches(flow, shipped=True)
        job.stores = stores = stores or job.stores
        for _ in range(3):
            job.batch(20)
        counts.append(sorted(job.given))
    first, second = ([(name, n) for name in ("EVEN", "ODD") for n in run] for run in (range(1, 31), range(31, 61)))
    assert counts == [first, second]


def expected(build: Callable[[Pipeline], Any]) -> list[Any]:
    flow = Pipeline("tasks")
    got = build(flow).collect()
    flow.run()
    return sorted(got, key=repr)


@pytest.mark.parametrize("build", [words, times, columns])
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("keyed_subtasks", [None, 3])
def test_micro_batches_give_what_a_job_gives(
    build: Callable[[Pipeline], Any], processes: int, keyed_subtasks: int | None
) -> None:
    flow = Pipeline("batches")
    got = build(flow).collect()
    job = MicroBatches(flow, processes=processes, keyed_subtasks=keyed_subtasks)
    job.run(7)
    assert sorted(got, key=repr) == expected(build)
    assert job.number > 5
    misses = sum(cache.misses for cache in job.caches)
    assert misses == len(job.stores) if processes == 1 else misses > 2 * len(job.stores)


@pytest.mark.parametrize("build", [words, times, columns])
def test_an_attempt_that_came_to_nothing_leaves_nothing(build: Callable[[Pipeline], Any]) -> None:
    flow = Pipeline("batches")
    got = build(flow).collect()
    MicroBatches(flow, processes=2).run(20, fail_first=True)
    assert sorted(got, key=repr) == expected(build)


@pytest.mark.parametrize("build", [words, times, columns])
def test_logs_that_are_written_anew_all_the_time(
    build: Callable[[Pipeline], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "_MOST", 2)
    flow = Pipeline("batches")
    got = build(flow).collect()
    job = MicroBatches(flow, processes=3)
    job.run(7)
    assert sorted(got, key=repr) == expected(build)
    assert max(len(store.state[1]) for store in job.stores.values()) <= 3


def test_a_subtask_that_has_nothing_to_do_writes_nothing() -> None:
    flow = Pipeline("batches")
    words(flow).collect()
    job = MicroBatches(flow, processes=1)
    job.batch(10)
    before = {target: store.state for target, store in job.stores.items()}
    job.level(1, [Row(1, target, 0, 0, b"") for target in before], fail_first=False)
    assert {target: store.state for target, store in job.stores.items()} == before


def test_what_is_not_used_any_more_is_closed() -> None:
    closed: list[str] = []

    class Noting(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value

        def close(self) -> None:
            closed.append("closed")

    flow = Pipeline("batches")
    flow.from_collection(["a"]).key_by(lambda word: word).process(Noting()).collect()
    job = MicroBatches(flow, processes=1)
    [cache] = job.caches
    target = job.plan.targets_of(1)[0]
    list(cache.process("run", job.plan, target, 0, [], job.stores[target]))
    other = job.plan.targets_of(1)[1]
    for batch in range(1, 20):
        list(cache.process("run", job.plan, other, batch, [], job.stores[other]))
    assert closed == ["closed"]
    list(cache.process("another run", job.plan, target, 0, [], Store()))
    assert closed == ["closed"], "two queries may be at work in one process"
    job.clock.advance(1_000_000)
    list(cache.process("another run", job.plan, target, 1, [], Store()))
    assert len(closed) == 3, "and what is of a run that is over goes in the end"


def alternately(cache: Cache, jobs: list[MicroBatches], batches: range) -> None:
    """Runs jobs as plans of one query: in each micro-batch one after the other, in one process."""
    for job in jobs:
        job.caches = [cache]
    for _ in batches:
        for job in jobs:
            job.batch(10)


def counting(parallelism: int = 2) -> MicroBatches:
    flow = Pipeline("counting", parallelism=parallelism)
    words(flow).collect()
    return MicroBatches(flow, processes=0)


def test_plans_of_one_query_leave_each_others_subtasks_in_place() -> None:
    jobs = [counting(), counting()]
    cache = jobs[0].new_cache()
    alternately(cache, jobs, range(3))
    assert cache.misses == sum(len(job.stores) for job in jobs)
    assert jobs[0].given == jobs[1].given
    cache.close()


def test_a_plan_that_a_later_query_has_replaced_holds_no_subtasks() -> None:
    before, after = counting(), counting()
    cache = before.new_cache()
    alternately(cache, [before], range(1))
    after.stores, after.number = before.stores, before.number
    alternately(cache, [after], range(2))
    assert len(cache._live) == len(after.stores)
    cache.close()


def test_a_process_keeps_the_last_plans_it_was_sent() -> None:
    plans = RecentPlans()
    first, second, *others = (ship(job.plan, job.services) for job in [counting(1) for _ in range(5)])
    taken = plans.take(first)
    dropped = plans.take(second)
    assert plans.take(first) is taken
    for each in others:
        plans.take(each)
    assert plans.take(first) is taken
    assert plans.take(second) is not dropped


def test_a_function_that_fails_is_named_and_does_not_stay() -> None:
    def fail(word: str) -> str:
        raise ValueError("no more")

    flow = Pipeline("batches")
    flow.from_collection(TEXT).key_by(lambda word: word).map(fail).name("failing").collect()
    job = MicroBatches(flow, processes=1)
    with pytest.raises(ValueError, match="no more") as caught:
        job.batch(10)
    assert "failing" in " ".join(caught.value.__notes__)
    assert all(store.state == (None, []) for store in job.stores.values())


def test_damaged_records_are_refused() -> None:
    with pytest.raises(CorruptStreamError, match="no record of a subtask's state"):
        saved([b"nonsense"])


@pytest.mark.parametrize("keyed_subtasks", [None, 3])
def test_what_spark_keeps_can_be_looked_into(keyed_subtasks: int | None, tmp_path: Path) -> None:
    """Keyed state as a checkpoint, which the command line reads."""
    flow = Pipeline("kept")
    times(flow).collect()
    job = MicroBatches(flow, processes=2, keyed_subtasks=keyed_subtasks)
    job.run(20)
    run = new_run(job.plan, "spark", 1_000, 2)
    states = {
        target: [OperatorSnapshot(uid, keyed=keyed) for uid, keyed in keyed_state(store.state[1]).items()]
        for target, store in job.stores.items()
    }
    location = write_extract(run, states, job.services.checkpoint_storage(str(tmp_path)), 2_000)
    rows = list(read_state(location))
    assert {row.state for row in rows} >= {"seen", "names"}
    assert sum(row.value for row in rows if row.state == "seen") == 50
    assert len({row.key_group for row in rows}) == 4, "by key group, whatever the number of subtasks"


def test_state_of_classes_that_cannot_be_imported_is_kept() -> None:
    """As those of a program are, in a Python worker of Spark's."""
    kind = type("Rule", (tuple,), {"__module__": "nowhere_to_be_found"})
    record = LogWriter([]).record(None, [OperatorSnapshot("uid", splits=(kind((1, 2)),))], whole=True)
    assert record is not None
    [taken] = saved([record]).operators
    assert taken.splits == ((1, 2),)
