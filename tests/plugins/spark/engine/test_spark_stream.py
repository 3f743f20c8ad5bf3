"""Pipelines in micro-batches on Spark: with a real session on this machine."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointError, ConnectorError, StateError
from sluiceway.runtime.microbatch.run_directory import Run, new_run
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink, FilesSource
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old
from sluiceway_spark.structured.query_settings import STATE_PROVIDER
from sluiceway_spark.structured.state.placement import partition_of

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("spark"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(too_old(MICRO_BATCHES) is not None, reason=f"micro-batches: {too_old(MICRO_BATCHES)}"),
]

TEXT = [f"{'abcdefgh'[i * 7 % 8]} {'xyz'[i % 3]}" for i in range(600)]
STAMPED: Any = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """py4j keeps the connections by which Spark calls this process until the JVM collects its garbage."""


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few records a reader that there are several micro-batches."""
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured import streaming_query

    monkeypatch.setattr(streaming_query, "LIMITS", BatchLimits(records=150, wait_s=0.1, linger_s=0.05))


def words(flow: sw.Pipeline) -> Any:
    return flow.from_collection(TEXT).flat_map(str.split).key_by(lambda word: word).count()


class SoFar(sw.KeyedProcessFunction[Any, Any, Any]):
    """Tells, a while of event time after each record, how many there were by then."""

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_map_state(sw.MapStateDescriptor("seen", int, key_type=int))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.seen.put(ctx.timestamp(), self.seen.get(ctx.timestamp(), 0) + value[1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 50)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, sum(n for at, n in self.seen.items() if at <= timestamp)


def timers(flow: sw.Pipeline) -> Any:
    """Two levels of keys: windows, and timers behind them."""
    pairs = [(f"k{i % 5}", i if i % 100 < 60 else i + 37) for i in range(600)]
    stamped = flow.from_collection(sorted(pairs, key=lambda p: p[1])).assign_timestamps_and_watermarks(STAMPED)
    counts = stamped.key_by(lambda p: p[0]).window(TumblingEventTimeWindows.of(20)).count()
    return counts.key_by(lambda c: c[0]).process(SoFar())


@pytest.mark.pysparks
@pytest.mark.parametrize("build", [words, timers])
def test_gives_what_one_process_gives(build: Any, tmp_path: Path) -> None:
    flow = sw.Pipeline("local", parallelism=2)
    expected = build(flow).collect()
    flow.run()
    flow = sw.Pipeline("spark", parallelism=2)
    got = build(flow).collect()
    result = flow.run(engine="spark", checkpoints=str(tmp_path))
    assert result.status is JobStatus.FINISHED
    assert sorted(got) == sorted(expected)
    assert result.metrics.records_in == 600
    assert result.metrics.records_out == len(expected)
    [run] = tmp_path.iterdir()
    assert len(list((run / "spark" / "commits").glob("[0-9]*"))) >= 3, "several micro-batches"
    assert (run / "finished.json").exists()


class Counting(sw.KeyedProcessFunction[Any, Any, Any]):
    def open(self, ctx: Any) -> None:
        self.calls = ctx.metrics.counter("calls")

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.calls.inc()
        yield value


def test_counters_count_over_all_micro_batches(tmp_path: Path) -> None:
    """Those of readers, of chains that are made anew for each micro-batch, and of subtasks that stay."""
    lines = tmp_path / "numbers.jsonl"
    lines.write_text("".join("nothing\n" if n % 50 == 7 else f"{n}\n" for n in range(600)))

    def counted(**options: Any) -> dict[tuple[str, str], float]:
        flow = sw.Pipeline("counted", parallelism=1)
        numbers = flow.source(FilesSource.json_lines(str(lines), type=int, on_error="skip"))
        steps = numbers.map(lambda n: 100 // (n % 100)).name("divide").on_error("skip")
        steps.key_by(lambda n: n % 3).process(Counting()).name("count").collect()
        found: Counter[tuple[str, str]] = Counter()
        for subtask in flow.run(**options).metrics.subtasks:
            for step, own in subtask.operators.items():
                found.update({(step, name): value for name, value in own.items()})
        return dict(found)

    here, there = counted(), counted(engine="spark", checkpoints=str(tmp_path / "run"))
    names = [("divide", "deadLetters"), ("count", "calls")]
    assert {name: there.get(name) for name in names} == {name: here[name] for name in names}
    assert here[names[0]] == 6
    # A reader that is opened in the middle of a block of lines decodes all of it again.
    skipped = ("source(FilesSource)", "records_skipped")
    assert there.get(skipped, 0) >= here[skipped] == 12


def read(place: Path) -> Counter[str]:
    return Counter(line for file in place.rglob("*") if file.is_file() for line in file.read_text().splitlines())


class Fails:
    """Raises once, when there is no file that says that it did."""

    def __init__(self, note: Path, word: str) -> None:
        self.note = str(note)
        self.word = word

    def __call__(self, pair: Any) -> Any:
        if pair[1] >= 150 and pair[0] == self.word and not Path(self.note).exists():
            Path(self.note).touch()
            raise ValueError(f"{pair[0]} for the {pair[1]}th time")
        return f"{pair[0]} {pair[1]}"


def counts_to(place: Path, note: Path, *, parallelism: int = 2) -> sw.Pipeline:
    flow = sw.Pipeline("counts", parallelism=parallelism)
    counts = flow.from_collection(TEXT).uid("text").flat_map(str.split).key_by(lambda w: w).count().uid("counts")
    lines = counts.key_by(lambda pair: pair[0]).map(Fails(note, "x")).uid("lines")
    lines.sink(FilesSink.text(place)).uid("files")
    return flow


EXPECTED = Counter(
    f"{word} {n}"
    for word, count in Counter(w for line in TEXT for w in line.split()).items()
    for n in range(1, count + 1)
)


@pytest.mark.parametrize("parallelism", [2, 3], ids=["sink apart", "chained sink"])
def test_goes_on_after_a_failure_in_the_same_run(tmp_path: Path, parallelism: int) -> None:
    """With as many subtasks as the session has cores, the sink is written by the tasks of the keyed step."""
    flow = counts_to(tmp_path / "out", tmp_path / "failed", parallelism=parallelism)
    result = flow.run(engine="spark", checkpoints=str(tmp_path / "runs"), restart="fixed-delay:2:10ms")
    assert result.status is JobStatus.FINISHED
    assert [str(failure.cause) for failure in result.failures] == ["x for the 150th time"]
    assert read(tmp_path / "out") == EXPECTED


@pytest.mark.pysparks
def test_goes_on_in_a_later_run_with_what_spark_has(tmp_path: Path) -> None:
    """All subtasks are brought back from Spark's state, and what was written stays as it is."""
    runs = tmp_path / "runs"
    with pytest.raises(ValueError, match="x for the 150th time") as caught:
        counts_to(tmp_path / "out", tmp_path / "failed").run(engine="spark", checkpoints=str(runs), restart="none")
    assert "'lines'" in " ".join(caught.value.__notes__) or "map" in " ".join(caught.value.__notes__)
    before = read(tmp_path / "out")
    assert before
    other = sw.Pipeline("counts", parallelism=2)
    lines = other.from_collection(TEXT).uid("text").map(str.upper).uid("other")
    lines.sink(FilesSink.text(tmp_path / "x"))
    with pytest.raises(StateError, match=r"cannot resume from .*runs.*step 'counts' is gone.*Undo that"):
        other.run(engine="spark", from_checkpoint=str(runs))
    result = counts_to(tmp_path / "out", tmp_path / "failed").run(engine="spark", from_checkpoint=str(runs))
    assert result.status is JobStatus.FINISHED
    assert read(tmp_path / "out") == EXPECTED
    assert len(list(runs.iterdir())) == 1
    # What has ended stays ended.
    assert counts_to(tmp_path / "out", tmp_path / "failed").run(engine="spark", checkpoints=str(runs), resume=True)
    assert len(list(runs.iterdir())) == 1
    assert counts_to(tmp_path / "out", tmp_path / "failed").run(engine="spark", from_checkpoint=str(runs))
    assert read(tmp_path / "out") == EXPECTED


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In those, each key group was a group of Spark's, in the partition that a hash of its number says."""

    def new(job: Any, storage: CheckpointStorage, slots: int) -> Run:
        run = new_run(job.plan, "spark", 1_000, slots)
        run.write(storage)
        [file] = tmp_path.glob("runs/*/run.json")
        described = json.loads(file.read_text())
        del described["spread"]
        file.write_text(json.dumps(described))
        return run

    runs = tmp_path / "runs"
    with monkeypatch.context() as earlier:
        earlier.setattr("sluiceway_spark.structured.stream_job.StreamJob._new", new)
        with pytest.raises(ValueError, match="x for the 150th time"):
            counts_to(tmp_path / "out", tmp_path / "failed").run(
                engine="spark", checkpoints=str(runs), restart="none"
            )
    assert read(tmp_path / "out")
    result = counts_to(tmp_path / "out", tmp_path / "failed").run(engine="spark", from_checkpoint=str(runs))
    assert result.status is JobStatus.FINISHED
    assert max(subtask.subtask for subtask in result.metrics.subtasks) == 31
    assert read(tmp_path / "out") == EXPECTED


def test_a_pipeline_of_some_megabytes_goes_as_a_file(tmp_path: Path) -> None:
    table = {letter: letter * 400_000 for letter in "abcdefghxyz"}
    flow = sw.Pipeline("large", parallelism=2)
    got = words(flow).filter(lambda pair: len(table[pair[0]]) == 400_000).collect()
    assert flow.run(engine="spark", checkpoints=str(tmp_path)).status is JobStatus.FINISHED
    counts = Counter(word for line in TEXT for word in line.split())
    assert sorted(got) == sorted((word, n + 1) for word, count in counts.items() for n in range(count))


def test_subtasks_are_where_they_are_placed(spark: Any) -> None:
    keys = [target + (turn << 16) for target in range(40) for turn in range(3)]
    for partitions in (1, 2, 3, 8):
        numbers = ", ".join(map(str, keys))
        found = spark.sql(f"SELECT pmod(hash(key), {partitions}) FROM (SELECT explode(array({numbers})) AS key)")
        assert [row[0] for row in found.collect()] == [partition_of(key, partitions) for key in keys]


def test_the_state_of_subtasks_is_spread_over_the_partitions(tmp_path: Path, spark: Any) -> None:
    flow = counts_to(tmp_path / "out", tmp_path / "failed")
    flow.run(engine="spark", checkpoints=str(tmp_path / "runs"), restart="fixed-delay:2:10ms")
    [file] = tmp_path.glob("runs/*/run.json")
    described = json.loads(file.read_text())
    partitions = described["partitions"]
    assert described["spread"]
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_PROVIDER)
    checkpoint = str(file.parent / "spark")
    operators = session.read.format("state-metadata").load(checkpoint).select("operatorId").distinct().collect()
    stages = []
    for [operator] in operators:
        reader = session.read.format("statestore").option("operatorId", operator).option("stateVarName", "log")
        frame = reader.option("flattenCollectionTypes", "false").load(checkpoint)
        held = Counter(row[0] for row in frame.select("partition_id").collect())
        assert max(held.values()) <= -(-held.total() // partitions)
        stages.append(held.total())
    assert max(stages) > partitions, "so many subtasks that a hash would deal them out unevenly"


def test_a_place_without_a_run_is_refused(tmp_path: Path) -> None:
    flow = counts_to(tmp_path / "out", tmp_path / "failed")
    with pytest.raises(CheckpointError, match=r"there is no run of engine 'spark' in .*nothing"):
        flow.run(engine="spark", from_checkpoint=str(tmp_path / "nothing"))


def test_a_source_without_an_end_is_cancelled(tmp_path: Path) -> None:
    flow = sw.Pipeline("for ever")
    seen = flow.source(GeneratorSource(lambda n: n, rate=200)).key_by(lambda n: n % 3).count().collect()
    job = flow.prepare(Settings(engine="spark", checkpoint_interval_ms=100))
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            if len(seen) > 100:
                job.cancel()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = job.run()
    finally:
        done.set()
        watcher.join()
    assert result.status is JobStatus.CANCELED
    counts = sorted(seen)
    assert counts == [(key, n + 1) for key in range(3) for n in range(sum(1 for k, _ in counts if k == key))]


def test_what_fails_with_spark_s_application_is_not_tried_again() -> None:
    class Gone:
        @property
        def sparkContext(self) -> Any:
            raise ConnectionRefusedError("of the JVM")

    flow = sw.Pipeline("gone")
    flow.source(GeneratorSource(lambda n: n, rate=200)).key_by(lambda n: n % 3).count().collect()
    job: Any = flow.prepare(Settings(engine="spark", checkpoint_interval_ms=100))
    cause = ConnectorError("the query has failed")
    assert not job._go_on_after(cause, Gone())
    assert "job 'gone' ended with Spark's application" in cause.__notes__[0]
