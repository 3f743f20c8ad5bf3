"""The Spark engine, beside what somebody who knows Spark writes in its own API, and beside the engine ``local``.

All in one session with two cores, with micro-batches of a million words or readings. Both sides read
the same files to their end, and write nowhere; before they are timed, their results are compared on less. A stream
goes on, so speeds are those from the second micro-batch on, as Spark itself tells of each; what a query takes from
its start to its end, and the processor time of all processes, which other load changes less, are in the notes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import sluiceway as sw
from benchmarks.harness import Plan, Row, check_same
from benchmarks.sparkqueries import Processors, Taken, taken_by
from benchmarks.sparksession import spark_session, workers_of_its_own
from benchmarks.text import zipf_lines
from benchmarks.wordcount import add, word_of
from benchmarks.workers import WORDS_A_LINE, line_of_many, once, words_of
from sluiceway.connector.lib import DiscardSink
from sluiceway.functions import BatchProcessFunction, KeyedBatchProcessFunction
from sluiceway.state import ValueStateDescriptor
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSource

__all__ = ["measure"]

RECORDS = 4_000_000
"""In all micro-batches together."""
ROWS = 1_200_000
"""Of the Parquet file."""
VOCABULARY = 50_000
FEW, MANY = 1_000, 100_000
"""Keys of readings."""
FILES, TOGETHER = 8, 2
"""So many files, of which a micro-batch reads so many: each in a task of its own."""
BY_KEY_FILES = 4
"""So many of them for programs with a group for each key, which take longest."""
PARQUET = "batch job over Parquet on Spark, filter and map, against mapInPandas"
HOSTED = "hosted on Spark, word count: 2 workers against 2 of the engine local"
CONF = {
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
}

Stream = Any
"""Stream of records, or one in columns."""


class Way(NamedTuple):
    """A way to write a job with us.

    Attributes:
        build: from a pipeline and a directory of files to the stream of results.
        aims: speed against the program by key, and against Spark's own operators; None: nobody has promised any.
        batch_size: records that a step is given at a time.
        rows: of columns that count as one record of a micro-batch's limit.
    """

    build: Callable[[sw.Pipeline, str], Stream]
    aims: tuple[float | None, float | None]
    batch_size: int = 1_024
    rows: int = 1


def measure(plan: Plan) -> Iterator[Row]:
    if missing := [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]:
        for name in (*(row for job in JOBS for row in _names(job)), PARQUET, HOSTED):
            yield Row(name, "x speed", (), note=f"{missing[0]} is not installed")
        return
    with spark_session(CONF) as (spark, place):
        for job in JOBS:
            yield from _job(plan, spark, place, job)
        yield _parquet(plan, spark, place)
        yield _hosted(plan)


def _job(plan: Plan, spark: Any, place: Path, name: str) -> Iterator[Row]:
    from benchmarks.sparkprograms import PROGRAMS, run, text

    job, programs = JOBS[name], PROGRAMS[name]
    _check(spark, _written(place / f"{name}, checked", job.lines(2_000, 100)), name)
    records = plan.size(job.records, 4_000)
    files = _written(place / name, job.lines(records, job.keys))
    less = place / f"{name}, by key"
    less.mkdir()
    for file in sorted(files.iterdir())[:BY_KEY_FILES]:
        (less / file.name).hardlink_to(file)

    def their(program: Any, files: Path) -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoints, workers_of_its_own(spark):
            run(program[0](text(spark, files, TOGETHER)), program[1], Path(checkpoints))

    (by_key, one), (own, other) = programs.items()
    ways: dict[str, Callable[[], Any]] = {
        **{way: partial(_structured, files, job, way, _discarded, records) for way in job.ways},
        by_key: partial(their, one, less),
        own: partial(their, other, files),
    }
    if job.many:
        many = _written(place / f"{name}, {MANY}", job.lines(records, MANY))
        ways["many"] = partial(_structured, many, job, next(iter(job.ways)), _discarded, records)
    taken: dict[str, list[Taken]] = {way: [] for way in ways}
    for _ in range(plan.runs):
        for way, work in ways.items():
            taken[way].append(taken_by(work))

    def told(way: str) -> str:
        some, each = taken[way], job.records_a_line
        return (
            f"{each * median(one.rate for one in some) / 1e3:.3g} k records/s, "
            f"{each * median(one.cpu_rate for one in some) / 1e3:.3g} k in a second of processors, "
            f"{median(one.whole for one in some):.3g} s in all"
        )

    details = {
        "records_a_line": job.records_a_line,
        "lines": {way: [one.records for one in some] for way, some in taken.items()},
        "seconds": {way: [one.whole for one in some] for way, some in taken.items()},
        "seconds_from_the_second": {way: [one.wall for one in some] for way, some in taken.items()},
        "processor_seconds_from_the_second": {way: [one.cpu for one in some] for way, some in taken.items()},
    }

    def row(name: str, fast: str, slow: str, aim: float | None) -> Row:
        pairs = list(zip(taken[fast], taken[slow], strict=True))
        by_cpu = median(one.cpu_rate / other.cpu_rate for one, other in pairs)
        note = f"{told(fast)}; other side {told(slow)}; {by_cpu:.2f} by processor time"
        return Row(name, "x speed", tuple(a.rate / b.rate for a, b in pairs), aim=aim, note=note, details=details)

    names = iter(_names(name))
    for way, how in job.ways.items():
        for program, aim in zip(programs, how.aims, strict=True):
            yield row(next(names), way, program, aim)
    if job.many:
        yield row(next(names), "many", next(iter(job.ways)), 0.5)


def _names(name: str) -> Iterator[str]:
    """Names of the rows of a job."""
    for way in JOBS[name].ways:
        for program in ("transformWithState by key", "mapInArrow and groupBy"):
            yield f"micro-batches on Spark, {name} {way}, against {program}"
    if JOBS[name].many:
        yield f"micro-batches on Spark, {name}: {MANY:,} keys against {FEW:,}"


# ---- input ----------------------------------------------------------------------------------------------------


def _words(count: int, keys: int) -> list[str]:
    """So many words, ten in a line, as often as words of a language are."""
    return zipf_lines(count // WORDS_A_LINE, distinct=keys)


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


def _counts(flow: sw.Pipeline, files: str) -> Stream:
    return flow.source(FilesSource.text(files)).flat_map(str.split).key_by(lambda word: word).count()


def _parsed(line: str) -> tuple[str, int, int]:
    key, value, time = line.split(",")
    return key, int(value), int(time)


def _sums(flow: sw.Pipeline, files: str) -> Stream:
    return _windowed(flow.source(FilesSource.text(files)).map(_parsed))


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


def _counts_by_batches(flow: sw.Pipeline, files: str) -> Stream:
    return flow.source(FilesSource.text(files)).process(_Parts()).key_by(word_of).process(_Totals())


def _counts_in_columns(flow: sw.Pipeline, files: str) -> Stream:
    from sluiceway.table import agg, col

    lines = flow.table(FilesSource.csv(files, header=["line"]))
    words = lines.select(word=col("line").str.split(" ")).explode("word")
    return words.key_by("word").running(count=agg.count())


class _PartsOfWindows(BatchProcessFunction[str, tuple[str, int, int]]):
    """Sums that a batch of lines adds to each key's windows."""

    def process_batch(self, values: Sequence[str], ctx: Any) -> Iterable[tuple[str, int, int]]:
        sums: dict[tuple[str, int], int] = {}
        for line in values:
            key, value, time = line.split(",")
            place = key, int(time) // 10_000
            sums[place] = sums.get(place, 0) + int(value)
        return [(key, total, number * 10_000) for (key, number), total in sums.items()]


def _sums_by_batches(flow: sw.Pipeline, files: str) -> Stream:
    return _windowed(flow.source(FilesSource.text(files)).process(_PartsOfWindows()))


def _sums_in_columns(flow: sw.Pipeline, files: str) -> Stream:
    from sluiceway.table import agg

    source = FilesSource.csv(files, header=["key", "value", "ms"], type=Reading)
    strategy: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness(0).with_timestamp_column("ms")
    windows = flow.table(source, watermark_strategy=strategy).key_by("key")
    sums = windows.window(TumblingEventTimeWindows.of(10_000)).aggregate(sum=agg.sum("value"))
    return sums.select("key", "window_start", "sum")


def _structured(directory: Path, job: Job, way: str, sink: Callable[[Stream], Any], records: int) -> Any:
    """Run it as a query that goes on from its checkpoints, in as many micro-batches as the other side's."""
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured import streaming_query

    flow, how = sw.Pipeline("benchmark"), job.ways[way]
    kept = sink(how.build(flow, str(directory)))
    lines = records // job.records_a_line
    # And one, to see where it ends. The time is no limit, on a busy machine either.
    limits = BatchLimits(records=lines // FILES // how.rows + 1, time_s=3600.0)
    with tempfile.TemporaryDirectory() as checkpoints, patch.object(streaming_query, "LIMITS", limits):
        flow.run(engine="spark", checkpoints=checkpoints, parallelism=TOGETHER, batch_size=how.batch_size)
    return kept


def _discarded(stream: Stream) -> None:
    stream.sink(DiscardSink())


def _collected(stream: Stream) -> Any:
    return stream.collect()


# ---- comparisons ----------------------------------------------------------------------------------------------


def _final_counts(results: Iterable[Any]) -> dict[str, int]:
    final: dict[str, int] = {}
    for word, count in results:
        final[word] = max(count, final.get(word, 0))
    return final


def _check(spark: Any, directory: Path, name: str) -> None:
    """Raise RuntimeError if one of their programs gives something else than one of our pipelines."""
    from benchmarks.sparkprograms import PROGRAMS, run, text

    job = JOBS[name]
    ours = {way: job.final(map(_row, _structured(directory, job, way, _collected, 2_000))) for way in job.ways}
    for program_name, (program, mode) in PROGRAMS[name].items():
        results: list[Any] = []
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoints:
            run(
                program(text(spark, directory, TOGETHER)),
                mode,
                Path(checkpoints),
                lambda frame: results.extend(tuple(row) for row in frame.collect()),  # noqa: B023 (called at once)
            )
        theirs = job.final(results)
        for way, expected in ours.items():
            # Spark's windows wait for a later record, so those that end last are missing with it.
            last = max((key[1] for key in expected if len(key) == 3), default=None)
            got, wanted = (
                {(key, n) for key, n in side.items() if last is None or key[1] != last}
                for side in (theirs, expected)
            )
            if not got or got != wanted:
                one, other = wanted - got, got - wanted
                raise RuntimeError(
                    f"{name}: the pipeline {way} and {program_name} differ: {len(one)} results of {len(wanted)} "
                    f"in the one alone, like {sorted(one)[:3]}, {len(other)} of {len(got)} in the other, like "
                    f"{sorted(other)[:3]}"
                )


def _row(result: Any) -> Any:
    """Return a result as a tuple; from columns it is a dict, with times as datetimes."""
    if not isinstance(result, dict):
        return result
    return tuple(round(1e3 * v.timestamp()) if isinstance(v, datetime) else v for v in result.values())


class Job(NamedTuple):
    """A comparison.

    Attributes:
        lines: of input, for so many records and keys.
        ways: how we write it.
        final: what of the results is compared.
        keys: in the input.
        records: so many in all.
        records_a_line: of input.
        many: whether the first way is also measured with many keys.
    """

    lines: Callable[[int, int], list[str]]
    ways: dict[str, Way]
    final: Callable[[Iterable[Any]], Any]
    keys: int
    records: int
    records_a_line: int = 1
    many: bool = False


JOBS = {
    "word count": Job(
        _words,
        {
            "record by record": Way(_counts, (6.0, None)),
            "by batches": Way(_counts_by_batches, (15.0, 1.0), batch_size=8_192),
            "in columns": Way(_counts_in_columns, (None, None), rows=8),
        },
        _final_counts,
        VOCABULARY,
        RECORDS,
        WORDS_A_LINE,
    ),
    "sums of windows": Job(
        _readings,
        {
            "record by record": Way(_sums, (6.0, None)),
            "by batches": Way(_sums_by_batches, (15.0, None), batch_size=8_192),
            "in columns": Way(_sums_in_columns, (None, None), rows=8),
        },
        Counter,
        FEW,
        RECORDS,
        many=True,
    ),
}


# ---- a batch job ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    key: str
    value: int
    ms: int


def _kept(reading: Any) -> bool:
    return reading.value % 3 > 0


def _scored(reading: Any) -> tuple[str, int]:
    return reading.key.upper(), reading.value * 7 + reading.ms % 11


def _scored_frames(frames: Iterable[Any]) -> Iterator[Any]:
    import pandas as pd

    for frame in frames:
        results = [_scored(reading) for reading in frame.itertuples(index=False) if _kept(reading)]
        yield pd.DataFrame(results, columns=["key", "score"])


def _parquet(plan: Plan, spark: Any, place: Path) -> Row:
    """A filter and a map of rows, from Parquet to nowhere, against the same functions in ``mapInPandas``."""

    def ours(path: str, sink: Callable[[Stream], Any] = _discarded) -> Any:
        flow = sw.Pipeline("benchmark")
        kept = sink(flow.source(FilesSource.parquet(path, type=Reading)).filter(_kept).map(_scored))
        flow.run(engine="spark", parallelism=TOGETHER)
        return kept

    def theirs(path: str) -> Any:
        return spark.read.parquet(path).mapInPandas(_scored_frames, "key string, score long")

    paths = {}
    for name, rows in (("checked", 2_000), ("measured", plan.size(ROWS, 2_000))):
        paths[name] = str(place / f"{name}.parquet")
        frame = spark.range(0, rows, 1, TOGETHER)
        frame.selectExpr("concat('key', id % 1000) AS key", "id % 100 AS value", "id AS ms").write.parquet(
            paths[name]
        )
    expected = [tuple(row) for row in theirs(paths["checked"]).collect()]
    check_same(f"{PARQUET}: both", expected, list(ours(paths["checked"], _collected)), in_order=False)
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(paths["measured"]),
        "theirs": lambda: theirs(paths["measured"]).write.format("noop").mode("overwrite").save(),
    }
    processors = Processors()
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(plan.runs):
        for way, work in ways.items():
            before, began = processors.ms(), time.perf_counter()
            work()
            taken[way].append((time.perf_counter() - began, (processors.ms() - before) / 1e3))
    wall, cpu = (
        [theirs[n] / ours[n] for ours, theirs in zip(taken["ours"], taken["theirs"], strict=True)] for n in (0, 1)
    )
    seconds, other = (median(one for one, _ in taken[way]) for way in ways)
    note = f"{seconds:.3g} s, theirs {other:.3g} s; {median(cpu):.2f} by processor time"
    return Row(PARQUET, "x speed", tuple(wall), aim=0.5, note=note, details={"seconds": taken})


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
