"""The source stage of streaming queries, without Spark: what is planned, and what runs in a Python worker."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.api import Pipeline
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.connector import Reader, ReaderContext, Wait
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.elements import MAX_WATERMARK, Batch, EndOfData, Watermark, WatermarkStatus
from sluiceway.errors import CheckpointError
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.plugins import default_manager
from sluiceway.runtime.messages.pickling import dump, load_error
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.util.overriding import override
from sluiceway_files import FilesSource
from sluiceway_spark.structured.microbatch import reading
from sluiceway_spark.structured.microbatch.control_files import sources_ended, stop_sources, write_due
from sluiceway_spark.structured.microbatch.last_positions import publish_last_positions
from sluiceway_spark.structured.microbatch.planning import SourcePlanning
from sluiceway_spark.structured.microbatch.reading import read_part
from sluiceway_spark.structured.microbatch.source_spec import SourceStage
from sluiceway_spark.structured.row_format import Row
from sluiceway_spark.structured.stages.batch_tasks import SubtaskFailedError

LIMITS = BatchLimits(records=10, wait_s=0.05, linger_s=0.01)


class Query:
    """What Spark does with the source stage; restarted whenever the test wants it."""

    def __init__(self, flow: Pipeline, directory: Path, limits: BatchLimits = LIMITS, **settings: Any) -> None:
        options = Settings(**settings)
        services = default_manager().services()
        self.plan = SteppedPlan.of(flow.graph(options), options, services)
        stage = SourceStage(dump((self.plan, services)), str(directory), limits, ())
        self.stage: SourceStage = pickle.loads(cloudpickle.dumps(stage))
        self.storage = services.checkpoint_storage(str(directory))
        self.offset: dict[str, Any] = {"run": "run", "batch": 0}
        self.planning = SourcePlanning(self.stage, "run")

        self.due_ms: int | None = None

    def restart(self) -> None:
        self.planning.close()
        reading._readers.close()
        self.planning = SourcePlanning(self.stage, "run")

    def batch(self, *, again: int = 0, restarts: bool = False) -> list[Row] | None:
        """The rows of the next batch; None: there is none."""
        end = self.planning.next(self.offset)
        if end == self.offset:
            return None
        rows = self.rows(end["batch"])
        for _ in range(again):
            if restarts:
                self.restart()
            assert self.rows(end["batch"]) == rows
        self.offset = end
        self.planning.committed(end["batch"])
        return rows

    def rows(self, batch: int) -> list[Row]:
        parts = pickle.loads(cloudpickle.dumps(self.planning.partitions(batch)))
        rows = [row for part in parts for row in read_part(self.stage, part)]
        told = [pickle.loads(row.payload) for row in rows if row.stage > self.plan.last_stage]
        self.due_ms = min((did.due_ms for did in told if did.due_ms is not None), default=None)
        return [row for row in rows if row.stage <= self.plan.last_stage]  # others are for the driver

    def elements(self, rows: list[Row]) -> list[Any]:
        return [element for row in rows for element in self.plan.unpack(row.sender, bytes(row.payload))]

    def close(self) -> None:
        self.planning.close()
        reading._readers.close()


@pytest.fixture
def queries() -> Iterator[list[Query]]:
    made: list[Query] = []
    yield made
    for query in made:
        query.close()


def values(elements: list[Any]) -> list[Any]:
    return [value for element in elements if isinstance(element, Batch) for value in element.values]


def numbers(count: int | None = 45) -> Pipeline:
    flow = sw.Pipeline("numbers")
    strategy = WatermarkStrategy[int].for_bounded_out_of_orderness(5).with_timestamp_assigner(lambda n: n * 10)
    stream = flow.source(GeneratorSource(count=count), watermark_strategy=strategy)
    stream.map(lambda n: n * 2).key_by(lambda n: n % 3).sum().collect()
    return flow


@pytest.mark.parametrize("restarts", [False, True])
def test_batches_repeat_to_the_byte_and_nothing_is_lost(
    tmp_path: Path, queries: list[Query], restarts: bool
) -> None:
    query = Query(numbers(), tmp_path, parallelism=2)
    queries.append(query)
    got: list[Any] = []
    while (rows := query.batch(again=2, restarts=restarts)) is not None:
        got += query.elements(rows)
        assert not sources_ended(query.storage)
        assert query.offset["batch"] < 10
    assert sorted(values(got)) == [2 * n for n in range(45)]
    assert sources_ended(query.storage)
    ends = sum(isinstance(element, EndOfData) for element in got)
    assert ends == 2 * 32  # each reader tells each key group


class Publishing(FilesSource[str]):
    """Files whose readers hear nothing of batches, and whose ends are written into a file."""

    ends: Path
    commits_positions = True

    @override
    def batch_completed(self, splits: Sequence[Any]) -> None:
        with self.ends.open("a") as file:
            file.writelines(f"{Path(split.path).name}\n" for split in splits)


def test_the_ends_of_splits_are_published_behind_their_last_batch(tmp_path: Path, queries: list[Query]) -> None:
    ends = tmp_path / "ends"
    for name, lines in (("short", 3), ("long", 25)):
        (tmp_path / f"{name}.txt").write_text("line\n" * lines)
    flow = sw.Pipeline("ends")
    source = Publishing.text(f"{tmp_path}/*.txt")
    source.ends = ends
    flow.source(source).key_by(str).count().collect()
    query = Query(flow, tmp_path / "run", parallelism=2)
    queries.append(query)
    query.batch()
    query.batch()
    assert ends.read_text() == "short.txt\n"  # the other reader goes on
    while query.batch() is not None:
        pass
    assert ends.read_text() == "short.txt\nlong.txt\n"
    ends.unlink()
    end = json.dumps(query.offset)
    publish_last_positions(query.storage, query.plan, {"sources": [{"endOffset": end}]})
    assert ends.read_text() == "long.txt\n"  # Spark may not have asked for another batch


def test_a_reader_whose_record_is_gone_does_not_begin_anew(tmp_path: Path, queries: list[Query]) -> None:
    query = Query(numbers(), tmp_path, parallelism=1)
    queries.append(query)
    query.batch()
    end = query.planning.next(query.offset)
    parts = query.planning.partitions(end["batch"])
    shutil.rmtree(next(tmp_path.glob("sources/*/run/1")))
    with pytest.raises(SubtaskFailedError) as raised:
        list(read_part(query.stage, parts[0]))
    assert isinstance(raised.value.__context__, CheckpointError)
    assert re.search(r"record of reader 0 in micro-batch 1 is not in .*sources", str(raised.value.__context__))


def test_every_channel_is_heard_in_every_batch(tmp_path: Path, queries: list[Query]) -> None:
    flow = sw.Pipeline("two")
    short = flow.source(GeneratorSource(count=3))
    long = flow.source(GeneratorSource(count=50))
    short.union(long).key_by(lambda n: n % 3).sum().collect()
    query = Query(flow, tmp_path, parallelism=1)
    queries.append(query)
    channels = {(r.sender, r.target) for v in query.plan.sources for r in query.plan.routes_from(v, 0)}
    batches = 0
    got: list[Any] = []
    while (rows := query.batch()) is not None:
        assert {(row.sender, row.target) for row in rows} == channels
        got += values(query.elements(rows))
        batches += 1
    assert batches >= 5
    assert sorted(got) == sorted([*range(3), *range(50)])


@pytest.mark.parametrize("restarts", [False, True])
def test_sources_that_are_stopped_come_to_their_end_where_they_are(
    tmp_path: Path, queries: list[Query], restarts: bool
) -> None:
    flow = sw.Pipeline("stopped")
    short = flow.source(GeneratorSource(count=3))
    endless = flow.source(GeneratorSource())
    short.union(endless).key_by(lambda n: n % 3).sum().collect()
    query = Query(flow, tmp_path, parallelism=1)
    queries.append(query)
    got: list[Any] = []
    for _ in range(2):
        got += query.elements(query.batch() or [])
    stop_sources(query.storage)
    last = query.elements(query.batch(again=2, restarts=restarts) or [])
    assert values(last) == []
    ends = sum(isinstance(element, EndOfData) for element in [*got, *last])
    assert ends == 2 * 32
    assert sorted(values(got)) == sorted([*range(3), *range(20)])
    assert query.batch() is None
    assert sources_ended(query.storage)
    assert list(query.storage.files("sources/stop")) != []
    stop_sources(query.storage, False)
    assert list(query.storage.files("sources/stop")) == []


def test_watermarks_are_made_within_the_batch(tmp_path: Path, queries: list[Query]) -> None:
    query = Query(numbers(), tmp_path, parallelism=1)
    queries.append(query)
    rows = query.batch(again=1)
    assert rows is not None
    marks = [e.timestamp for e in query.elements(rows) if isinstance(e, Watermark)]
    assert max(marks) == 9 * 10 - 5 - 1


def test_splits_that_wait_hold_nothing_back_and_those_read_are_remembered(
    tmp_path: Path, queries: list[Query]
) -> None:
    """As in one process, where a reader has one file at a time; and a batch may end anywhere."""
    for name, first in (("a", 100), ("b", 200), ("c", 0)):
        (tmp_path / name).write_text("".join(f"{n}\n" for n in range(first, first + 14)))
    flow = sw.Pipeline("files")
    strategy = (
        WatermarkStrategy[str].for_bounded_out_of_orderness(0).with_timestamp_assigner(lambda line: int(line))
    )
    source = FilesSource.text([str(tmp_path / name) for name in "abc"])
    flow.source(source, watermark_strategy=strategy).key_by(lambda line: 0).map(lambda line: line).collect()
    query = Query(flow, tmp_path / "job", parallelism=1)
    queries.append(query)
    marks = []
    while (rows := query.batch(again=1)) is not None:
        marks.append(max((e.timestamp for e in query.elements(rows) if isinstance(e, Watermark)), default=None))
    assert marks[:2] == [108, 204]
    assert marks[-1] == MAX_WATERMARK
    assert all(mark is None or mark >= 204 for mark in marks[2:])


class Nothing(GeneratorSource[int]):
    """Has numbers that never come."""

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        reader: Any = super().create_reader(context)
        reader.poll = lambda limit: Wait()
        return reader


def test_there_is_no_batch_while_nothing_comes_and_nothing_is_due(tmp_path: Path, queries: list[Query]) -> None:
    flow = sw.Pipeline("rare")
    rare = flow.source(Nothing())
    rare.union(flow.source(GeneratorSource(count=25))).key_by(lambda n: n % 3).sum().collect()
    query = Query(flow, tmp_path, parallelism=1)
    queries.append(query)
    batches = 0
    while query.batch() is not None:
        batches += 1
        assert batches < 8
    assert batches >= 3
    assert query.batch() is None
    write_due(query.storage, SystemClock().now_ms() + 3_600_000)
    assert query.batch() is None
    write_due(query.storage, SystemClock().now_ms())
    assert query.batch() is not None
    write_due(query.storage, None)
    assert query.batch() is None
    query.restart()
    assert query.batch() is not None  # it tells what is due
    assert query.batch() is None


class Lost(Nothing):
    seekable = False


def test_an_interval_bounds_the_wait_for_input(tmp_path: Path, queries: list[Query]) -> None:
    """Spark logs that a query is falling behind if the look for input alone takes longer than the interval."""
    flow = sw.Pipeline("rare")
    flow.source(Nothing()).union(flow.source(Lost())).key_by(lambda n: n % 3).sum().collect()
    patient = BatchLimits(wait_s=PATIENT_S, time_s=0.1)
    assert patient.every(0, 2) == patient
    limits = patient.every(400, 2)
    assert limits == replace(patient, idle_s=0.1)
    query = Query(flow, tmp_path, limits, parallelism=1)
    queries.append(query)
    for _ in range(3):
        query.batch()
    assert query.batch() is None


async def _never(number: int) -> int:
    await asyncio.Event().wait()
    return number


def test_calls_come_to_their_deadlines(tmp_path: Path, queries: list[Query]) -> None:
    """Though the clock of a batch stands still, so that it can be repeated."""
    flow = sw.Pipeline("calls")
    called = flow.source(GeneratorSource(count=12)).async_map(_never, timeout="50ms", capacity=5).on_error("skip")
    called.key_by(lambda n: n).sum().collect()
    query = Query(flow, tmp_path, parallelism=1)
    queries.append(query)
    rows = query.batch()
    assert rows is not None
    assert values(query.elements(rows)) == []


@pytest.mark.parametrize("where", ["source", "step"])
def test_who_is_silent_for_too_long_is_idle(tmp_path: Path, queries: list[Query], where: str) -> None:
    flow = sw.Pipeline("silent")
    strategy = WatermarkStrategy[int].for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    strategy = strategy.with_idleness("1s")
    if where == "source":
        numbers = flow.source(Nothing(), watermark_strategy=strategy)
    else:
        numbers = flow.source(Nothing()).assign_timestamps_and_watermarks(strategy)
    numbers.key_by(lambda n: n % 3).sum().collect()
    query = Query(flow, tmp_path, parallelism=1)
    queries.append(query)
    elements: list[Any] = []
    batches = 0
    while WatermarkStatus(False) not in elements:
        write_due(query.storage, query.due_ms)
        rows = query.batch(again=1)
        if rows is not None:
            elements += query.elements(rows)
            batches += 1
            assert batches < 6
    assert query.due_ms is None
    write_due(query.storage, None)
    assert query.batch() is None


def test_what_a_function_raises_crosses_spark(tmp_path: Path, queries: list[Query]) -> None:
    flow = sw.Pipeline("broken")
    flow.source(GeneratorSource(count=20)).map(lambda n: 1 // (n - 7)).key_by(lambda n: n).sum().collect()
    query = Query(flow, tmp_path, parallelism=1)
    queries.append(query)
    with pytest.raises(SubtaskFailedError) as caught:
        query.batch()
    import base64
    import re

    from sluiceway_spark.structured.stages.batch_tasks import FAILED

    [found] = re.findall(FAILED, str(caught.value))
    error = load_error(base64.b64decode(found))
    assert isinstance(error, ZeroDivisionError)
    assert any("map" in note for note in error.__notes__)
