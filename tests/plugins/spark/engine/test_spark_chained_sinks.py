"""Subtasks of stateful stages, and sinks chained to them, in micro-batches that may come again. Without Spark."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import DiscardSink
from sluiceway.elements import Batch
from sluiceway.errors import ConnectorError
from sluiceway.plugins import default_manager
from sluiceway.runtime.microbatch.driven_enumerator import plan_splits
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway.steps import SourceStep
from sluiceway_files import FilesSink

pytest.importorskip("pyarrow")

from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.stages.batch_tasks import ship
from sluiceway_spark.structured.stages.chained_sinks import ChainedSinks, chained_sinks
from sluiceway_spark.structured.stages.chained_sinks_spec import ChainedSinksSpec
from sluiceway_spark.structured.stages.driver_sinks import in_this_process
from sluiceway_spark.structured.stages.sink_stage import BatchReport, SinkStage
from sluiceway_spark.structured.state.placement import place_of
from sluiceway_spark.structured.state.subtask_cache import Cache

COUNT, LIMIT, KEYS = 120, 10, 6
READS = 2  # in a micro-batch, so that a channel has several rows in it
PARTITIONS, KEYED = 2, 4


class Store:
    """State of a subtask in Spark's store."""

    def __init__(self) -> None:
        self.state: tuple[str | None, list[bytes]] = None, []

    def token(self, *, is_there: bool) -> str | None:
        return self.state[0]

    def set_token(self, token: str) -> None:
        self.state = token, self.state[1]

    def records(self) -> list[bytes]:
        return self.state[1]

    def append(self, record: bytes) -> None:
        self.state = self.state[0], [*self.state[1], record]

    def replace(self, record: bytes) -> None:
        self.state = self.state[0], [record]


class Frame:
    """Micro-batch whose rows are computed by whoever asks for them, and come in any order, as Spark's."""

    def __init__(self, compute: Callable[[], list[Row]]) -> None:
        self.compute = compute

    def collect(self) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in reversed(self.compute())]


class Query:
    """Query over a directory: sources and state go on with a new driver, and micro-batches come again."""

    def __init__(self, flow: sw.Pipeline, directory: Path) -> None:
        settings = Settings()
        self.services = default_manager().services()
        self.plan = SteppedPlan.of(
            flow.graph(settings), settings, self.services, key_groups=8, keyed_subtasks=KEYED
        )
        self.directory = str(directory)
        local = in_this_process(self.plan)
        self.chained = chained_sinks(self.plan, PARTITIONS, spread=True, local=local)
        self.stores: dict[int, Store] = defaultdict(Store)
        self.batches: list[list[Row]] = []  # what sources have read
        self.done = 0
        self.actions = 0
        self.lost: set[int] = set()
        self.sources = {t: self._source(t) for t in self.plan.targets_of(0)}
        for vertex in map(self.plan.graph.vertex, self.plan.sources):
            step = vertex.head.step
            assert isinstance(step, SourceStep)
            for subtask, splits in enumerate(plan_splits(step.source, vertex.parallelism, SystemClock())):
                self.sources[self.plan.target(vertex.id, subtask)].add_splits(splits)
                self.sources[self.plan.target(vertex.id, subtask)].no_more_splits()

    def _source(self, target: int) -> SteppedTask:
        chain = SteppedTask(
            self.plan,
            *self.plan.who(target),
            state_backend=self.services.state_backend("memory"),
            clock=self.services.clock,
            services=self.services,
        )
        chain.open()
        return chain

    def close(self) -> None:
        for chain in self.sources.values():
            chain.close()

    def stage(self) -> SinkStage:
        return SinkStage(
            self.plan,
            self.directory,
            services=self.services,
            shipped=ship(self.plan, self.services),
            slots=2,
            owner="me",
            chained=self.chained,
        )

    def read(self, batch: int) -> list[Row]:
        if batch < len(self.batches):
            return self.batches[batch]
        rows: list[Row] = []
        for target, chain in self.sources.items():
            reached = set()
            for _ in range(READS):
                if chain.ended:
                    break
                chain.read(LIMIT // READS)
                for stage, to, sender, seq, elements in chain.take():
                    rows.append(Row(stage, to, sender, seq, self.plan.pack(sender, elements)))
                    reached.add(to)
            for route in self.plan.routes_from(*self.plan.who(target)):
                if route.target not in reached:
                    rows.append(Row(route.stage, route.target, route.sender, -1, b""))
        self.batches.append(rows)
        return rows

    def compute(self, batch: int, after: str) -> list[Row]:
        """The tasks of all stages, each with new processes, from the state behind the micro-batch before."""
        self.actions += 1
        rows = self.read(batch)
        for stage in range(1, self.plan.last_stage):
            out = [row for row in rows if row.stage != stage]
            for partition in range(PARTITIONS):
                cache = Cache(self.services.clock, lambda: self.services)
                sinks = self._sinks(stage, batch, after)
                for target in self.plan.targets_of(stage):
                    mine = [row for row in rows if (row.stage, row.target) == (stage, target)]
                    if place_of(self.plan, target, PARTITIONS) != partition or target in self.lost:
                        continue
                    assert mine, f"subtask {target} was left out in micro-batch {batch}"
                    out += cache.process("run", self.plan, target, batch, mine, self.stores[target], sinks)
                    out += sinks.done(target) if sinks is not None else ()
                if sinks is not None:
                    sinks.finish()
                cache.close()
            rows = out
        return rows

    def _sinks(self, stage: int, batch: int, after: str) -> ChainedSinks | None:
        if not self.chained or stage < self.plan.last_stage - 1:
            return None
        chaining = ChainedSinksSpec(self.directory, self.chained)
        return ChainedSinks(self.plan, self.services, chaining, batch, after)

    def run(self, stage: SinkStage | None = None) -> list[BatchReport]:
        reports = []
        stage = stage or self.stage()
        try:
            stage.open()
            while not stage.ended:
                batch, before = self.done, {target: store.state for target, store in self.stores.items()}
                frame = Frame(lambda batch=batch: self.compute(batch, stage.after(batch)))  # type: ignore[misc]
                try:
                    reports.append(stage.write(frame, batch))
                except BaseException:
                    for target, store in self.stores.items():
                        store.state = before.get(target, (None, []))
                    raise
                self.done += 1
        finally:
            stage.close()
        return reports


def counts(flow: sw.Pipeline) -> sw.DataStream[tuple[int, int]]:
    return flow.from_collection(range(COUNT)).key_by(lambda n: n % KEYS).count()


EXPECTED = Counter((key, count) for key in range(KEYS) for count in range(1, COUNT // KEYS + 1))


def text(out: Path) -> FilesSink:
    return FilesSink.text(out, to_text=lambda pair: f"{pair[0]} {pair[1]}")


def written(out: Path) -> Counter[tuple[int, ...]]:
    lines = [line for path in out.glob("part-*") for line in path.read_text().splitlines()]
    return Counter(tuple(map(int, line.split())) for line in lines)


def chained_of(flow: sw.Pipeline, directory: Path) -> list[int]:
    query = Query(flow, directory)
    query.close()
    return sorted(map(len, query.chained.values()))


@pytest.mark.parametrize(
    ("parallelism", "expected"), [(2, [2, 2]), (4, [1, 1, 1, 1]), (1, []), (3, [1, 1, 2])], ids=str
)
def test_a_sink_is_chained_if_one_task_has_all_its_producers(
    tmp_path: Path, parallelism: int, expected: list[int]
) -> None:
    flow = sw.Pipeline("counts", parallelism=parallelism)
    counts(flow).sink(DiscardSink())
    assert chained_of(flow, tmp_path) == expected


def test_sinks_of_this_program_and_of_sources_are_not_chained(tmp_path: Path) -> None:
    flow = sw.Pipeline("counts", parallelism=2)
    counts(flow).collect()
    flow.from_collection(range(3)).sink(DiscardSink())
    assert chained_of(flow, tmp_path) == []


def test_one_action_writes_and_commits_a_micro_batch(tmp_path: Path) -> None:
    flow = sw.Pipeline("counts", parallelism=2)
    results = counts(flow)
    results.sink(text(tmp_path / "out")).name("files")
    collected = results.map(lambda pair: pair).collect()
    query = Query(flow, tmp_path / "run")
    reports = query.run()
    query.close()
    assert written(tmp_path / "out") == Counter(collected) == EXPECTED
    for key in range(KEYS):
        assert [count for one, count in collected if one == key] == list(range(1, COUNT // KEYS + 1))
    assert query.actions == len(reports) > 2
    assert sum(sum(report.records.values()) for report in reports) == 2 * COUNT
    assert [report.ended for report in reports] == [False] * (len(reports) - 1) + [True]
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []


def test_sinks_of_this_program_get_the_rows_of_a_channel_in_order(tmp_path: Path) -> None:
    """Rows of a source pass by the stateful stage, whose shuffle gives them in any order."""
    flow = sw.Pipeline("numbers", parallelism=2)
    numbers = flow.from_collection(range(COUNT))
    collected = numbers.collect()
    numbers.key_by(lambda n: n % KEYS).count().sink(DiscardSink())
    query = Query(flow, tmp_path / "run")
    query.run()
    query.close()
    assert query.chained
    half = COUNT // 2  # what each of the two readers reads
    assert [n for n in collected if n < half] == list(range(half))
    assert [n for n in collected if n >= half] == list(range(half, COUNT))


def test_the_end_is_seen_where_nothing_comes_out(tmp_path: Path) -> None:
    flow = sw.Pipeline("counts", parallelism=2)
    counts(flow).filter(lambda pair: False).sink(DiscardSink())
    query = Query(flow, tmp_path / "run")
    reports = query.run()
    query.close()
    assert query.chained
    assert reports[-1].ended
    assert all(sum(report.records.values()) == 0 for report in reports)


@pytest.mark.parametrize("other", ["source", "earlier step", "one subtask"])
def test_all_sinks_are_chained_or_none(tmp_path: Path, other: str) -> None:
    """Behind an exchange Spark would repeat tasks that write although their outcomes were used."""
    flow = sw.Pipeline("counts", parallelism=2)
    numbers = flow.from_collection(range(COUNT))
    first = numbers.key_by(lambda n: n % KEYS).count()
    second = first.key_by(lambda pair: pair[0] % 2).count()
    second.sink(DiscardSink())
    assert chained_of(flow, tmp_path) == [2, 2]
    stream: sw.DataStream[Any] = {"source": numbers, "earlier step": first, "one subtask": second}[other]
    sink = stream.sink(DiscardSink())
    if other == "one subtask":
        sink.set_parallelism(1)
    assert chained_of(flow, tmp_path) == []


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("batch", [0, 1, -1])
def test_a_driver_killed_around_the_note_leaves_one_output(
    tmp_path: Path, moment: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = sw.Pipeline("counts", parallelism=2)
    counts(flow).sink(text(tmp_path / "out"))
    last = len(_batches(tmp_path / "tried"))
    query = Query(flow, tmp_path / "run")
    stage = query.stage()
    write = stage._log.write

    def dying(record: Any, ready: Any) -> None:
        if record.batch == batch % last and moment == "before":
            raise Killed
        write(record, ready)
        if record.batch == batch % last:
            raise Killed

    monkeypatch.setattr(stage._log, "write", dying)
    with pytest.raises(Killed):
        query.run(stage)
    again = query.stage()
    again.open()
    ended = again.ended
    again.close()
    assert ended == (moment == "after" and batch == -1)
    if not ended:
        assert query.run()[0].replayed == (moment == "after")
    query.close()
    assert written(tmp_path / "out") == EXPECTED


def _batches(place: Path) -> list[BatchReport]:
    flow = sw.Pipeline("counts", parallelism=2)
    counts(flow).sink(DiscardSink())
    query = Query(flow, place)
    reports = query.run()
    query.close()
    return reports


def test_a_producer_that_is_not_called_fails_the_task(tmp_path: Path) -> None:
    flow = sw.Pipeline("counts", parallelism=2)
    counts(flow).sink(text(tmp_path / "out"))
    query = Query(flow, tmp_path / "run")
    query.lost = {query.plan.targets_of(1)[0]}
    with pytest.raises(RuntimeError, match="several tasks, or has not called all of them"):
        query.run()
    query.close()
    assert written(tmp_path / "out") == Counter()


def test_a_task_that_is_left_out_commits_nothing(tmp_path: Path) -> None:
    flow = sw.Pipeline("counts", parallelism=2)
    counts(flow).sink(text(tmp_path / "out"))
    query = Query(flow, tmp_path / "run")
    query.lost = set(query.plan.targets_of(1)[:2])  # those of one partition
    with pytest.raises(ConnectorError, match=r"sink subtasks \[\d+\] did not report on micro-batch 0"):
        query.run()
    query.close()
    assert written(tmp_path / "out") == Counter()


def test_a_later_query_over_the_same_state_has_its_own_functions(tmp_path: Path) -> None:
    """As where a notebook starts its query again with another function, within the life of a Python worker."""

    def query(tag: str) -> Query:
        flow = sw.Pipeline("counts", parallelism=1)
        counts(flow).map(lambda pair: (tag, *pair)).collect()
        return Query(flow, tmp_path)

    def results(query: Query, batch: int) -> set[tuple[Any, ...]]:
        rows = query.read(batch)
        out: list[Row] = []
        for target in query.plan.targets_of(1):
            mine = [row for row in rows if row.target == target]
            out += cache.process("run", query.plan, target, batch, mine, query.stores[target])
        elements = (e for row in out if row.stage == 2 for e in query.plan.unpack(row.sender, row.payload))
        return {value for element in elements if isinstance(element, Batch) for value in element.values}

    before, after = query("old"), query("new")
    cache = Cache(SystemClock(), lambda: before.services)
    try:
        assert results(before, 0) == {("old", n % KEYS, n // KEYS + 1) for n in range(LIMIT)}
        after.close()
        after.stores, after.sources, after.batches = before.stores, before.sources, before.batches
        assert results(after, 1) == {("new", n % KEYS, n // KEYS + 1) for n in range(LIMIT, 2 * LIMIT)}
    finally:
        cache.close()
        before.close()
