"""Small micro-batches on Spark, beside the least that Spark needs for one and beside programs in its own API.

All in one session with two cores and one set of settings, in turn, with 1,000 records in a micro-batch and no
output. A figure is the median time of a micro-batch as Spark reports it, without the first ones of a query; the
notes have the processor time of all processes, too, which other load on the machine changes less. The floor is an
empty ``transformWithState``: no program with state in Python goes below it. The aim is therefore a multiple of the
floor, 1.3: an earlier one, 350 ms, is below the floor itself on two cores of an AMD EPYC, where that takes 410 ms.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import sluiceway as sw
from benchmarks.harness import Plan, Row
from benchmarks.spark import CONF
from benchmarks.sparksession import spark_session, workers_of_its_own
from sluiceway.connector.lib import DiscardSink, GeneratorSource
from sluiceway.windows import TumblingEventTimeWindows

__all__ = ["measure"]

RECORDS = 1_000
"""In a micro-batch, in two partitions."""
KEYS = 100
BATCHES = 25
WARM = 5
"""Micro-batches that are not counted: the first ones start processes and compile code."""
READERS = 2
PATIENCE_S = 300.0
LOOK_S = 0.1
WINDOW_MS = 10_000
FIRST_MS, BATCH_MS = 100_000, 2_500
"""Event time of the first reading, not at the epoch, where Spark takes all to be late; and from batch to batch."""

FLOOR = "empty transformWithState"
COLLECTED = "empty transformWithState, foreachBatch with collect()"
WORDS, WINDOWS = "word count", "sums of windows"
THEIRS = ("transformWithState by key", "mapInArrow and groupBy")


class Batch(NamedTuple):
    """Micro-batch as Spark reports it: times in ms."""

    whole: float
    phases: dict[str, float]


class Run(NamedTuple):
    """Run of a query: its micro-batches, and the processor time of all processes for one, ms."""

    batches: list[Batch]
    cpu: float


def measure(plan: Plan) -> Iterator[Row]:
    if missing := [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]:
        for name, unit in _names():
            yield Row(name, unit, (), note=f"{missing[0]} is not installed")
        return
    with spark_session(CONF) as (spark, _):
        yield from _measure(plan, spark)


def _measure(plan: Plan, spark: Any) -> Iterator[Row]:
    from benchmarks.sparkprograms import SMALL

    _check(spark)
    count = plan.size(BATCHES, 1)
    ways: dict[str, Callable[[], Run]] = {
        FLOOR: partial(_theirs, spark, *SMALL[FLOOR], count),
        COLLECTED: partial(_theirs, spark, *SMALL[FLOOR], count, lambda frame: frame.collect()),
        **{way: partial(_theirs, spark, *program, count) for way, program in SMALL.items() if way != FLOOR},
        WORDS: lambda: _ours(_words, count),
        WINDOWS: lambda: _ours(_windows, count),
    }
    taken: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(plan.runs):
        for way, work in ways.items():
            taken[way].append(work())
    ms = {way: [median(batch.whole for batch in run.batches) for run in runs] for way, runs in taken.items()}
    cpu = {way: [run.cpu for run in runs] for way, runs in taken.items()}
    phases = {way: _phases([batch for run in runs for batch in run.batches]) for way, runs in taken.items()}

    def row(name: str, unit: str, over: str, under: str, aim: float | None) -> Row:
        ratios = tuple(one / other for one, other in zip(ms[over], ms[under], strict=True))
        mine, other = (over, under) if unit == "x floor" else (under, over)
        took = {way: f"{median(ms[way]):.0f} ms (processors {median(cpu[way]):.0f} ms)" for way in (mine, other)}
        note = f"{took[mine]} a micro-batch, {other} {took[other]}"
        if mine in (WORDS, WINDOWS):
            spent = [f"{phase} {each:.0f}" for phase, each in phases[mine].items() if each >= 10]
            note += f"; {', '.join(spent)}"
        return Row(name, unit, ratios, aim=aim, note=note, details={"ms": ms, "cpu_ms": cpu, "phases_ms": phases})

    for name, unit in _names():
        job = next((job for job in (WORDS, WINDOWS) if job in name), COLLECTED)
        if unit == "x floor":
            yield row(name, unit, job, FLOOR, None if job == COLLECTED else 1.3)
        else:
            way = next(way for way in THEIRS if way in name)
            yield row(name, unit, f"{job}, {way}", job, None)


def _names() -> Iterator[tuple[str, str]]:
    """Names of the rows, with their units."""
    small = f"micro-batches of {RECORDS:,} on Spark"
    yield f"{small}, foreachBatch with collect(), against {FLOOR}", "x floor"
    for job in (WORDS, WINDOWS):
        yield f"{small}, {job}, against {FLOOR}", "x floor"
        for way in THEIRS:
            yield f"{small}, {job}, against {way}", "x speed"


def _phases(batches: Sequence[Batch]) -> dict[str, float]:
    """Return the median of each phase of these micro-batches, ms."""
    names = dict.fromkeys(name for batch in batches for name in batch.phases)
    return {name: median(batch.phases.get(name, 0.0) for batch in batches) for name in names}


# ---- ours -----------------------------------------------------------------------------------------------------


def _word(number: int) -> str:
    return f"word{number % KEYS}"


def _words(numbers: sw.DataStream[int]) -> sw.DataStream[tuple[str, int]]:
    return numbers.map(_word).key_by(lambda word: word).count()


def _reading(number: int) -> tuple[str, int, int]:
    """Key, value and time: a window of ten seconds ends in every fourth micro-batch."""
    return f"key{number % KEYS}", number % 97, FIRST_MS + number * BATCH_MS // RECORDS


def _windows(numbers: sw.DataStream[int]) -> sw.DataStream[tuple[str, int, int]]:
    timed = numbers.map(_reading).assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_bounded_out_of_orderness(0).with_timestamp_assigner(lambda reading: reading[2])
    )
    windows = timed.key_by(lambda reading: reading[0]).window(TumblingEventTimeWindows.of(WINDOW_MS))
    return windows.reduce(lambda one, other: (one[0], one[1] + other[1], other[2]), _with_start)


def _with_start(key: str, window: Any, sums: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    return [(key, window.start, sums[0][1])]


def _ours(
    build: Callable[[sw.DataStream[int]], sw.DataStream[Any]], count: int, results: list[Any] | None = None
) -> Run:
    """Run a pipeline in so many micro-batches, not counting the first ones and the last one."""
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured import streaming_query

    flow = sw.Pipeline("benchmark")
    stream = build(flow.source(GeneratorSource(int, count=(count + WARM) * RECORDS)))
    kept = None if results is None else stream.collect()
    if kept is None:
        stream.sink(DiscardSink())
    limits = BatchLimits(records=RECORDS // READERS, time_s=60.0)
    watched: list[_Watched] = []
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    start = DataStreamWriter.start

    def note(writer: Any, *args: Any, **kwargs: Any) -> Any:
        query = start(writer, *args, **kwargs)
        watched.append(_Watched(query, count))
        return query

    with (
        _directory() as checkpoints,
        patch.object(streaming_query, "LIMITS", limits),
        patch.object(DataStreamWriter, "start", note),
    ):
        flow.run(engine="spark", checkpoints=checkpoints, parallelism=READERS)
    if kept is not None and results is not None:
        results += kept
    return watched[0].result()


# ---- theirs ---------------------------------------------------------------------------------------------------


def _theirs(spark: Any, program: Any, mode: str, count: int, each: Any = None) -> Run:
    """Run a program of Spark's over rows with numbers until it has done so many micro-batches, and stop it."""
    from sluiceway_spark.structured.callback_failures import in_short
    from sluiceway_spark.structured.query_settings import apply_settings

    def call(frame: Any, number: int) -> None:
        try:
            each(frame)
        except Exception as error:  # it is stopped in the middle of a micro-batch
            raise in_short(error) from None

    with _directory() as checkpoints, workers_of_its_own(spark):
        session = spark.newSession()
        apply_settings(session, spark, partitions=READERS, location=checkpoints)
        session.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")  # made for our rows, which hold many
        rows = session.readStream.format("rate-micro-batch").options(
            rowsPerBatch=RECORDS, numPartitions=READERS, startTimestamp=0
        )
        writer = program(rows.load()).writeStream.outputMode(mode)
        writer = writer.option("checkpointLocation", str(Path(checkpoints, "query")))
        writer = writer.format("noop") if each is None else writer.foreachBatch(call)
        query = writer.start()
        try:
            return _Watched(query, count).result()
        finally:
            query.stop()


def _directory() -> tempfile.TemporaryDirectory[str]:
    """Return a directory for checkpoints. Tasks of a query that was stopped may write into it for a while yet."""
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


class _Watched(threading.Thread):
    """Thread that looks at the micro-batches of a query, and at the processor time in between."""

    def __init__(self, query: Any, count: int) -> None:
        super().__init__(daemon=True)
        self._query = query
        self._last = WARM + count - 1
        self._seen: list[tuple[int, float]] = []
        self.start()

    def run(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            number = (self._query.lastProgress or {"batchId": -1})["batchId"]
            if number >= WARM - 1 and (not self._seen or number > self._seen[-1][0]):
                self._seen.append((number, _processors_ms()))
            if number >= self._last or self._query.awaitTermination(LOOK_S):
                return

    def result(self) -> Run:
        """Return what was seen when the query has done its micro-batches.

        Raises:
            RuntimeError: it has not.
        """
        self.join()
        found = {}
        for batch in self._query.recentProgress:
            phases = dict(batch["durationMs"])
            if "addBatch" in phases and WARM <= batch["batchId"] <= self._last:
                found[batch["batchId"]] = Batch(phases.pop("triggerExecution"), phases)
        if self._last not in found:
            raise RuntimeError(f"a query did only micro-batches {sorted(found)}: {self._query.exception()}")
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return Run([found[number] for number in sorted(found)], (after - before) / max(1, last - first))


def _processors_ms() -> float:
    """Return the processor time of this process and all below it, those that have ended included, ms."""
    ticks = 0
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number = int(place.parent.name)
            fields = place.read_text().rpartition(")")[2].split()
            parents[number], used[number] = int(fields[1]), sum(map(int, fields[11:15]))
    for number, spent in used.items():
        above = number
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        ticks += spent if above else 0
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


def _check(spark: Any) -> None:
    """Raise RuntimeError if one of their programs gives something else than our pipeline."""
    from benchmarks.sparkprograms import SMALL

    for job, build in ((WORDS, _words), (WINDOWS, _windows)):
        results: list[Any] = []
        _ours(build, 1, results)
        expected = _comparable(job, results)
        for way in THEIRS:
            program, mode = SMALL[f"{job}, {way}"]
            results = []
            _theirs(spark, program, mode, 1, lambda frame: results.extend(map(tuple, frame.collect())))  # noqa: B023
            got = _comparable(job, results)
            # Ours gives a count for each record, theirs for each micro-batch.
            if not got or not got <= expected or (job == WINDOWS and got != expected):
                raise RuntimeError(
                    f"{job}: the pipeline and {way} differ: {sorted(got ^ expected)[:5]} are results of one alone"
                )


def _comparable(job: str, results: list[Any]) -> set[Any]:
    """Return the results of the first micro-batches: a query of Spark's may have done more before it stopped."""
    records = (WARM + 1) * RECORDS
    if job == WORDS:
        return {(word, count) for word, count in results if count <= records // KEYS}
    return {result for result in results if result[1] + WINDOW_MS <= FIRST_MS + records * BATCH_MS // RECORDS}
