"""The Spark engine, beside what somebody who knows Spark writes in its own API, and beside the engine ``local``.

All in one session with two cores. Both sides read the same files to their end, and write nowhere; before they are
timed, their results are compared on less. A stream goes on, so speeds are those from the second micro-batch on, as
Spark itself tells of each; what a query takes from its start to its end is in the notes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import sluiceway as sw
from benchmarks.harness import Plan, Row
from benchmarks.wordcount import add, word_of
from benchmarks.workers import WORDS_A_LINE, line_of_many, once, words_of
from sluiceway.connector.lib import DiscardSink
from sluiceway.functions import BatchProcessFunction, KeyedBatchProcessFunction
from sluiceway.state import ValueStateDescriptor
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSource

__all__ = ["measure"]

RECORDS = 1_500_000
BACKLOG = 16_000_000
FEW, MANY = 1_000, 100_000
FILES, TOGETHER = 8, 2
"""So many files, of which a micro-batch reads so many: each in a task of its own."""
RATIO = 1 - TOGETHER / FILES
"""So much of the input is in the micro-batches after the first one."""
HOSTED = "hosted on Spark, word count: 2 workers against 2 of the engine local"
CONF = {
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
}

Ours = Callable[[sw.DataStream[str]], sw.DataStream[Any]]


def measure(plan: Plan) -> Iterator[Row]:
    if missing := [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]:
        for name in (*(row for job in JOBS for row in _names(job)), HOSTED):
            yield Row(name, "x speed", (), note=f"{missing[0]} is not installed")
        return
    from sluiceway_spark import SessionConf

    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as place, _own_address():
        local = {"spark.local.dir": place, "spark.sql.warehouse.dir": f"{place}/warehouse"}
        spark = SessionConf.of("local[2]", None, {**CONF, **local}).session()
        try:
            for job in JOBS:
                yield from _job(plan, spark, Path(place), job)
            yield _hosted(plan)
        finally:
            spark.stop()


def _job(plan: Plan, spark: Any, place: Path, name: str) -> Iterator[Row]:
    from benchmarks.sparkprograms import PROGRAMS, run, text

    job = JOBS[name]
    programs = PROGRAMS[job.theirs]
    _check(spark, _written(place / f"{name}, checked", job.lines(2_000, 100)), job)
    records = plan.size(job.records, 2_000)
    few = _written(place / f"{name}, {FEW}", job.lines(records, FEW))

    def their(program: Any) -> None:
        with tempfile.TemporaryDirectory() as checkpoints:
            run(program[0](text(spark, few, TOGETHER)), program[1], Path(checkpoints))

    ways: dict[str, Callable[[], Any]] = {
        "few": lambda: _structured(few, job, _discarded, records),
        **{way: partial(their, program) for way, program in programs.items()},
    }
    if job.many:
        many = _written(place / f"{name}, {MANY}", job.lines(records, MANY))
        ways["many"] = lambda: _structured(many, job, _discarded, records)
    taken: dict[str, list[_Taken]] = {way: [] for way in ways}
    for _ in range(plan.runs):
        for way, work in ways.items():
            taken[way].append(_timed(work))
    told = {
        way: f"{records * RATIO / median(one.rest for one in some) / 1e3:.3g} k records/s, "
        f"{median(one.whole for one in some):.3g} s in all"
        for way, some in taken.items()
    }
    details = {
        "records": records,
        "micro_batches": FILES // TOGETHER,
        "seconds": {way: [one.whole for one in some] for way, some in taken.items()},
        "seconds_from_the_second": {way: [one.rest for one in some] for way, some in taken.items()},
    }

    def row(name: str, slow: str, fast: str, aim: float, note: str) -> Row:
        ratios = (one.rest / other.rest for one, other in zip(taken[slow], taken[fast], strict=True))
        return Row(name, "x speed", tuple(ratios), aim=aim, note=note, details=details)

    names = _names(name)
    for one, way, aim in zip(names, programs, (8.0, 2.0), strict=False):
        yield row(one, way, "few", aim, f"{told['few']}; theirs {told[way]}")
    if job.many:
        yield row(names[-1], "few", "many", 0.5, f"{told['many']}; with few keys {told['few']}")


def _names(name: str) -> tuple[str, ...]:
    """Names of the rows of a job."""
    names = (
        f"micro-batches on Spark, {name}, against transformWithState by key",
        f"micro-batches on Spark, {name}, against mapInArrow and groupBy",
    )
    return (*names, f"micro-batches on Spark, {name}: {MANY:,} keys against {FEW:,}") if JOBS[name].many else names


# ---- input ----------------------------------------------------------------------------------------------------


def _words(count: int, keys: int) -> list[str]:
    """So many words, ten in a line, each as often as any other."""
    random = Random(1)
    words = [f"word{number}" for number in range(keys)]
    return [" ".join(random.choices(words, k=WORDS_A_LINE)) for _ in range(count // WORDS_A_LINE)]


def _readings(count: int, keys: int) -> list[str]:
    """Key, value and time: ten windows in all, none of them at the epoch, where Spark takes all to be late."""
    random = Random(1)
    return [f"key{random.randrange(keys)},{n % 100},{100_000 + n * 100_000 // count}" for n in range(count)]


def _written(directory: Path, lines: list[str]) -> Path:
    """A directory of files in their order."""
    directory.mkdir()
    size = -(-len(lines) // FILES)
    for number in range(FILES):
        (directory / f"part-{number}.txt").write_text(
            "".join(f"{line}\n" for line in lines[number * size :][:size])
        )
        os.utime(directory / f"part-{number}.txt", (number + 1, number + 1))  # Spark takes the oldest first
    return directory


# ---- ours -----------------------------------------------------------------------------------------------------


def _counts(lines: sw.DataStream[str]) -> sw.DataStream[tuple[str, int]]:
    return lines.flat_map(str.split).key_by(lambda word: word).count()


def _parsed(line: str) -> tuple[str, int, int]:
    key, value, time = line.split(",")
    return key, int(value), int(time)


def _sums(lines: sw.DataStream[str]) -> sw.DataStream[tuple[str, int, int]]:
    return _windowed(lines.map(_parsed))


def _windowed(readings: sw.DataStream[tuple[str, int, int]]) -> sw.DataStream[tuple[str, int, int]]:
    timed = readings.assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_bounded_out_of_orderness(0).with_timestamp_assigner(lambda reading: reading[2])
    )
    windows = timed.key_by(lambda reading: reading[0]).window(TumblingEventTimeWindows.of(10_000))
    return windows.reduce(lambda one, other: (one[0], one[1] + other[1], other[2]), _with_start)


def _with_start(key: str, window: Any, sums: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return [(key, window.start, sums[0][1])]


class _Parts(BatchProcessFunction[str, tuple[str, int]]):
    """Counts that a batch of lines adds to each word."""

    def process_batch(self, values: Sequence[str], ctx: Any) -> Iterable[tuple[str, int]]:
        return Counter(" ".join(values).split()).items()


class _Totals(KeyedBatchProcessFunction[str, tuple[str, int], tuple[str, int]]):
    """A result for each word in a batch, as Spark's own programs give one for each in a micro-batch."""

    def open(self, ctx: Any) -> None:
        self._total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_batch(self, values: Sequence[tuple[str, int]], ctx: Any) -> Iterable[tuple[str, int]]:
        totals, added = ctx.bulk(self._total), Counter[str]()
        for word, number in values:
            added[word] += number
        for word, number in added.items():
            totals[word] = added[word] = totals.get(word, 0) + number
        return added.items()


def _counts_by_batches(lines: sw.DataStream[str]) -> sw.DataStream[tuple[str, int]]:
    return lines.process(_Parts()).key_by(word_of).process(_Totals())


class _PartsOfWindows(BatchProcessFunction[str, tuple[str, int, int]]):
    """Sums that a batch of lines adds to each key's windows."""

    def process_batch(self, values: Sequence[str], ctx: Any) -> Iterable[tuple[str, int, int]]:
        sums: dict[tuple[str, int], int] = {}
        for line in values:
            key, value, time = line.split(",")
            place = key, int(time) // 10_000
            sums[place] = sums.get(place, 0) + int(value)
        return [(key, total, number * 10_000) for (key, number), total in sums.items()]


def _sums_by_batches(lines: sw.DataStream[str]) -> sw.DataStream[tuple[str, int, int]]:
    return _windowed(lines.process(_PartsOfWindows()))


def _structured(directory: Path, job: Job, sink: Callable[[sw.DataStream[Any]], Any], records: int) -> Any:
    """Run it as a query that goes on from its checkpoints, in as many micro-batches as the other side's."""
    from sluiceway.runtime.microbatch.planner import BatchLimits
    from sluiceway_spark.structured import streaming_query

    flow = sw.Pipeline("benchmark")
    kept = sink(job.ours(flow.source(FilesSource.text(str(directory)))))
    lines = records // job.records_a_line
    limits = BatchLimits(records=lines // FILES + 1, time_s=60.0)  # and one, to see where it ends
    with tempfile.TemporaryDirectory() as checkpoints, patch.object(streaming_query, "LIMITS", limits):
        flow.run(engine="spark", checkpoints=checkpoints, parallelism=TOGETHER, batch_size=job.batch_size)
    return kept


def _discarded(stream: sw.DataStream[Any]) -> None:
    stream.sink(DiscardSink())


# ---- comparisons ----------------------------------------------------------------------------------------------


def _final_counts(results: list[Any]) -> dict[str, int]:
    final: dict[str, int] = {}
    for word, count in results:
        final[word] = max(count, final.get(word, 0))
    return final


def _check(spark: Any, directory: Path, job: Job) -> None:
    """Raise RuntimeError if one of their programs gives something else than our pipeline."""
    from benchmarks.sparkprograms import PROGRAMS, run, text

    final = job.final
    expected = final(list(_structured(directory, job, lambda stream: stream.collect(), 2_000)))
    for name, (program, mode) in PROGRAMS[job.theirs].items():
        results: list[Any] = []
        with tempfile.TemporaryDirectory() as checkpoints:
            run(
                program(text(spark, directory, TOGETHER)),
                mode,
                Path(checkpoints),
                lambda frame: results.extend(tuple(row) for row in frame.collect()),  # noqa: B023 (called at once)
            )
        # Spark's windows wait for a later record, so those that end last are missing with it.
        last = max((key[1] for key in expected if len(key) == 3), default=None)
        got, wanted = (
            {(key, n) for key, n in side.items() if last is None or key[1] != last}
            for side in (final(results), expected)
        )
        if not got or got != wanted:
            one, other = wanted - got, got - wanted
            raise RuntimeError(
                f"{job.theirs}: the pipeline and {name} differ: {len(one)} results of {len(wanted)} in the one "
                f"alone, like {sorted(one)[:3]}, {len(other)} of {len(got)} in the other, like {sorted(other)[:3]}"
            )


class _Taken(NamedTuple):
    """Seconds: from the start of a query to its end, and of the micro-batches with input but for the first."""

    whole: float
    rest: float


def _timed(work: Callable[[], Any]) -> _Taken:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    queries: list[Any] = []
    start = DataStreamWriter.start

    def note(writer: Any, *args: Any, **kwargs: Any) -> Any:
        queries.append(start(writer, *args, **kwargs))
        return queries[-1]

    began = time.perf_counter()
    with patch.object(DataStreamWriter, "start", note):
        work()
    whole = time.perf_counter() - began
    [query] = queries
    told = {batch.batchId: batch.durationMs["triggerExecution"] for batch in query.recentProgress}
    rest = sum(told[number] for number in range(1, FILES // TOGETHER))
    return _Taken(whole, rest / 1e3)


class Job(NamedTuple):
    """A comparison.

    Attributes:
        lines: of input, for so many records and keys.
        ours: what we do with them.
        final: what of the results is compared.
        theirs: which programs it is compared with.
        records_a_line: of input.
        records: so many in all.
        many: whether it is also measured with many keys.
        batch_size: records that a step is given at a time.
    """

    lines: Callable[[int, int], list[str]]
    ours: Ours
    final: Callable[[Any], Any]
    theirs: str
    records_a_line: int = 1
    records: int = RECORDS
    many: bool = True
    batch_size: int = 1_024


_BACKLOG: dict[str, Any] = {"records": BACKLOG, "many": False, "batch_size": 8_192}
JOBS = {
    "word count": Job(_words, _counts, _final_counts, "word count", WORDS_A_LINE),
    "sums of windows": Job(_readings, _sums, Counter, "sums of windows"),
    "word count by batches": Job(
        _words, _counts_by_batches, _final_counts, "word count", WORDS_A_LINE, **_BACKLOG
    ),
    "sums of windows by batches": Job(
        _readings, _sums_by_batches, Counter, "sums of windows", **{**_BACKLOG, "records": BACKLOG // 4}
    ),
}
"""Those by batches behind a backlog, so that micro-batches are large."""


def _hosted(plan: Plan) -> Row:
    lines = plan.size(400_000, 300)
    ways: dict[str, dict[str, Any]] = {"local": {}, "hosted": {"engine": "spark", "hosted": True}}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(plan.runs):
        for way, options in ways.items():
            flow = sw.Pipeline("word count", parallelism=2)
            ones = flow.generate(line_of_many, count=lines).flat_map(words_of).map(once)
            ones.key_by(word_of).reduce(add).sink(DiscardSink())
            taken[way].append(flow.run(workers=2, **options).metrics.elapsed_s)
    return Row(
        HOSTED,
        "x speed",
        tuple(one / other for one, other in zip(*taken.values(), strict=True)),
        aim=0.8,
        note=f"{lines * WORDS_A_LINE / median(taken['hosted']) / 1e6:.3g} M words/s from when the workers were up",
        details={"words": lines * WORDS_A_LINE, "seconds": taken},
    )


@contextmanager
def _own_address() -> Iterator[None]:
    """For Spark to use: else it looks for one, and says so."""
    missing = "SPARK_LOCAL_IP" not in os.environ
    if missing:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        if missing:
            del os.environ["SPARK_LOCAL_IP"]
