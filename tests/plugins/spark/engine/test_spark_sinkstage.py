"""Sinks at the end of micro-batches that may come again: everything is there once. Without Spark."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluiceway import Pipeline
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.connector import Sink
from sluiceway.connector.lib import CallbackSink, PrintSink
from sluiceway.elements import Batch, EndOfData, EndOfPartition, Watermark
from sluiceway.errors import CheckpointError, ConfigurationError
from sluiceway.plugins import default_manager
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.testing import BreakingSink, InjectedError
from sluiceway_files import FilesSink

pytest.importorskip("pyarrow")

from sluiceway_spark.structured.row_format import Row, rows_in, to_batches
from sluiceway_spark.structured.stages.batch_tasks import ship
from sluiceway_spark.structured.stages.driver_sinks import refuse_speculation
from sluiceway_spark.structured.stages.sink_stage import BatchReport, SinkStage

BATCHES = 4
EACH = 10
READERS = 2


class SparkError(Exception):
    """What Spark makes of an exception in a task."""

    __module__ = "pyspark.errors"


class Frame:
    """As much of a DataFrame as there has to be: partitions of rows, brought together and sent through a task."""

    def __init__(self, make: Callable[[], list[list[Row]]], actions: list[int]) -> None:
        self.make = make
        self.actions = actions

    def repartitionById(self, parts: int, column: str) -> Frame:
        assert column == "target"

        def make() -> list[list[Row]]:
            rows = [row for part in reversed(self.make()) for row in part]
            return [[row for row in rows if row.target % parts == part] for part in range(parts)]

        return Frame(make, self.actions)

    def sortWithinPartitions(self, *columns: str) -> Frame:
        def by(row: Row) -> list[Any]:
            return [getattr(row, column) for column in columns]

        return Frame(lambda: [sorted(part, key=by) for part in self.make()], self.actions)

    def mapInArrow(self, task: Callable[[Any], Iterator[Any]], schema: str) -> Frame:
        def run(part: list[Row]) -> list[Row]:
            try:
                return [row._replace(payload=bytes(row.payload)) for row in rows_in(task(to_batches(part)))]
            except Exception as error:
                raise SparkError(f"Job aborted: {error}") from None

        return Frame(lambda: [run(part) for part in self.make()], self.actions)

    def collect(self) -> list[tuple[Any, ...]]:
        self.actions.append(1)
        return [tuple(row) for part in self.make() for row in part]


class Stream:
    """A pipeline of a source and sinks, and what would come of the steps before the sinks."""

    def __init__(self, directory: Path, *sinks: Sink[Any]) -> None:
        self.flow = Pipeline("numbers", parallelism=READERS)
        self.records = self.flow.from_collection(range(10))
        for number, sink in enumerate(sinks):
            self.records.sink(sink).name(f"sink {number}").uid(f"sink-{number}")
        self.services = default_manager().services()
        self.directory = directory
        self.actions: list[int] = []
        self.done = 0

    def stage(self) -> SinkStage:
        settings = Settings()
        self.plan = SteppedPlan.of(self.flow.graph(settings), settings, self.services)
        shipped = ship(self.plan, self.services)
        return SinkStage(
            self.plan, str(self.directory), services=self.services, shipped=shipped, slots=2, owner="me"
        )

    def rows(self, batch: int) -> Frame:
        """Each reader has read its share of the batch; with the last batch all ends."""
        parts = []
        for reader in range(READERS):
            rows = []
            first = (batch * READERS + reader) * EACH
            for target in self.plan.targets_of(self.plan.last_stage):
                for route in self.plan.senders_into(target):
                    if self.plan.from_whom(route.sender)[1] != reader:
                        continue
                    elements: list[Any] = [Batch(list(range(first, first + EACH))), Watermark(batch)]
                    if batch == BATCHES - 1:
                        elements += [EndOfData(), EndOfPartition()]
                    for seq, element in enumerate(elements):
                        payload = self.plan.pack(route.sender, [element])
                        rows.append(Row(route.stage, target, route.sender, batch * 10 + seq, payload))
            rows.append(Row(self.plan.last_stage + 1, reader, -1, batch, b"for the driver"))
            parts.append(rows)
        return Frame(lambda: parts, self.actions)

    def run(self, stage: SinkStage | None = None) -> list[BatchReport]:
        """From where it is, as a driver would; what Spark knows of is ``done``."""
        reports = []
        stage = stage or self.stage()
        try:
            stage.open()
            while self.done < BATCHES:
                reports.append(stage.write(self.rows(self.done), self.done))
                self.done += 1
        finally:
            stage.close()
        return reports


class Kind(NamedTuple):
    make: Callable[[Path], Sink[Any]]
    numbers: Callable[[Path], Iterable[int]]


def in_text(out: Path) -> Iterable[int]:
    return (int(line) for path in out.glob("part-*") for line in path.read_text().split())


KINDS = {
    "text": Kind(lambda out: FilesSink.text(out), in_text),
    "text-going-on": Kind(lambda out: FilesSink.text(out, roll_on_checkpoint=False), in_text),
}
EVERYTHING = Counter(range(BATCHES * READERS * EACH))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def check(kind: Kind, out: Path) -> None:
    assert Counter(kind.numbers(out)) == EVERYTHING
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_batches_are_written_and_reported_with_one_action_each(kind: Kind, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stream = Stream(tmp_path / "run", kind.make(out), kind.make(tmp_path / "other"))
    reports = stream.run()
    check(kind, out)
    check(kind, tmp_path / "other")
    assert len(stream.actions) == BATCHES
    assert [report.batch for report in reports] == list(range(BATCHES))
    assert [report.ended for report in reports] == [False] * (BATCHES - 1) + [True]
    assert not any(report.replayed for report in reports)
    assert all(list(report.records.values()) == [READERS * EACH] * 2 for report in reports)
    assert [[row.target for row in report.rows] for report in reports] == [[0, 1]] * BATCHES
    assert reports[0].rows[0].payload == b"for the driver"


def test_a_batch_that_is_noted_is_computed_again_and_not_written(kind: Kind, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stream = Stream(tmp_path / "run", kind.make(out))
    stream.run()
    stream.done = BATCHES - 1  # Spark has not noted that it is done with the last one
    stream.actions.clear()
    stage = stream.stage()
    [report] = stream.run(stage)
    assert report.replayed
    assert report.ended
    assert stage.committed == BATCHES - 1
    assert dict(report.records) == {}
    assert len(report.rows) == READERS
    assert stream.actions == [1]
    check(kind, out)


def test_a_sink_that_breaks_at_any_moment_leaves_one_output(kind: Kind, tmp_path: Path) -> None:
    for moment in [*BreakingSink.MOMENTS[:4], *BreakingSink.MOMENTS[7:]]:
        place = tmp_path / moment.replace(" ", "-")
        marks = place / "marks"
        marks.mkdir(parents=True)
        stream = Stream(place / "run", BreakingSink(kind.make(place / "out"), marks, moment, after=0))
        with pytest.raises(InjectedError, match=f"injected {moment}") as raised:
            stream.run()
        assert any("sink 0" in note for note in raised.value.__notes__), moment
        stream.run()
        check(kind, place / "out")


def test_what_a_batch_that_failed_has_left_goes_at_once(tmp_path: Path) -> None:
    out, marks = tmp_path / "out", tmp_path / "marks"
    marks.mkdir()
    breaking = BreakingSink(FilesSink.text(tmp_path / "other"), marks, "after write", after=0)
    stream = Stream(tmp_path / "run", FilesSink.text(out), breaking)
    with pytest.raises(InjectedError):
        stream.run()
    assert list(out.iterdir()) == []


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_driver_killed_around_the_note_leaves_one_output(
    kind: Kind, tmp_path: Path, moment: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    stream = Stream(tmp_path / "run", kind.make(out))
    stage = stream.stage()
    write = stage._log.write

    def dying(record: Any, ready: Any) -> None:
        if record.batch == batch and moment == "before":
            raise Killed
        write(record, ready)
        if record.batch == batch:
            raise Killed

    monkeypatch.setattr(stage._log, "write", dying)
    with pytest.raises(Killed):
        stream.run(stage)
    assert stream.done == batch
    if moment == "after":  # it is made up for also if the batch never comes again
        again = stream.stage()
        again.open()
        again.close()
        assert len(list(kind.numbers(out))) == (batch + 1) * READERS * EACH
        assert again.ended == (batch == BATCHES - 1)
    reports = stream.run()
    assert reports[0].replayed == (moment == "after")
    check(kind, out)


def test_sinks_of_this_program_get_each_batch_when_the_others_have_written_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    breaking = BreakingSink(FilesSink.text(tmp_path / "out"), marks, "after pre-commit", after=0)
    stream = Stream(tmp_path / "run", breaking, PrintSink())
    collected = stream.records.collect()
    with pytest.raises(InjectedError):
        stream.run()
    assert (list(collected), capsys.readouterr().out) == ([], "")
    reports = stream.run()
    assert Counter(collected) == EVERYTHING
    lines = capsys.readouterr().out.splitlines()
    assert Counter(int(line.split("> ")[1]) for line in lines) == EVERYTHING
    assert {line.split("> ")[0] for line in lines} == {"1", "2"}
    assert [sorted(report.records.values()) for report in reports] == [[READERS * EACH] * 3] * BATCHES
    assert reports[-1].ended


def test_sinks_of_this_program_alone_take_one_action_a_batch(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "run")
    collected = stream.records.collect()
    reports = stream.run()
    assert Counter(collected) == EVERYTHING
    assert len(stream.actions) == BATCHES
    stream.done = BATCHES - 1
    assert stream.run()[0].replayed
    assert Counter(collected) == EVERYTHING
    assert reports[-1].ended


def test_sinks_without_two_phases_are_written_again_only_if_the_batch_was_not_noted(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def append(value: int) -> None:
        with open(out, "a") as file:
            file.write(f"{value}\n")

    stream = Stream(tmp_path / "run", CallbackSink(append))
    stream.run()
    stream.done = BATCHES - 1
    stream.run()
    assert Counter(map(int, out.read_text().split())) == EVERYTHING


def test_a_place_of_another_stream_is_refused(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "run", FilesSink.text(tmp_path / "out"))
    stream.run()
    stage = stream.stage()
    stage._owner = "somebody else"
    with pytest.raises(ConfigurationError, match="commits of another query"):
        stage.open()


def test_a_place_that_has_come_back_empty_is_refused(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "run", FilesSink.text(tmp_path / "out"))
    stage = stream.stage()
    stage.open()
    stage.write(stream.rows(0), 0)
    stage.close()
    written = sorted(in_text(tmp_path / "out"))
    shutil.rmtree(tmp_path / "run")
    stream.done = 1
    with pytest.raises(
        CheckpointError, match=r"the record of micro-batch 0 is not in .*commits: a run has to keep"
    ):
        stream.run()
    assert written == sorted(in_text(tmp_path / "out"))


def test_a_batch_that_was_noted_comes_again_at_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(1_000, 100)
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: next(ticks))
    stream = Stream(tmp_path / "run", FilesSink.text(tmp_path / "out"))
    stage = stream.stage()
    stage.open()
    times = []
    for batch in range(2):
        times.append(stage.time_of(batch))
        stage.write(stream.rows(batch), batch)
    not_noted = stage.time_of(2)
    again = stream.stage()
    again.open()
    assert again.time_of(1) == times[1] > times[0]
    assert again.time_of(2) > not_noted
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: 0)
    assert again.time_of(2) == times[1]


def test_two_attempts_at_a_time_are_refused(tmp_path: Path) -> None:
    class Session:
        def __init__(self, **conf: str) -> None:
            self.conf = {name.replace("_", "."): value for name, value in conf.items()}

    stream = Stream(tmp_path / "run", FilesSink.text(tmp_path / "out"))
    stream.stage()
    refuse_speculation(Session(), stream.plan)
    refuse_speculation(Session(spark_speculation="false"), stream.plan)
    with pytest.raises(ConfigurationError, match=r"sink 'sink 0' writes in two phases, .* spark\.speculation"):
        refuse_speculation(Session(spark_speculation="true"), stream.plan)
    harmless = Stream(tmp_path / "other", PrintSink(), CallbackSink(print))
    harmless.stage()
    refuse_speculation(Session(spark_speculation="true"), harmless.plan)
