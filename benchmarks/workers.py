"""Worker processes: word count on two of them, what a hop between them costs, small timeouts, and back-pressure.

Runs are timed from the moment the workers are up, as a job that is worth them runs for long; how long they take to
come up is said in a note. Processor time is looked at as well, because on a machine with little to spare two
processes have to share what one has to itself.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import sluiceway as sw
from benchmarks.harness import Plan, Row
from benchmarks.plainprocesses import PlainProcesses
from benchmarks.runs import Taken, timed_run
from benchmarks.text import zipf_lines
from benchmarks.wordcount import Pair, add, word_of
from sluiceway.connector import Sink, SinkWriter, WriterContext
from sluiceway.connector.lib import DiscardSink

__all__ = ["measure"]

LINES = 10_000
"""Different ones; the generator goes through them again and again."""
WORDS_A_LINE = 10
FEW, MANY = 100, 20_000
"""Different words: so few that they stay in the processor's caches, and too many for that."""
PRODUCERS, CONSUMERS = 10, 20
SINK_RATE = 1_000
_MEGABYTE = 1 << 20


def measure(plan: Plan) -> Iterator[Row]:
    yield from _word_count(plan)
    yield from _hop(plan)
    yield _timeouts(plan)
    yield from _back_pressure(plan)


# ---- word count -----------------------------------------------------------------------------------------------


@cache
def _text(distinct: int) -> list[str]:
    return zipf_lines(LINES, distinct=distinct)


def line_of_few(number: int) -> str:
    return _text(FEW)[number % LINES]


def line_of_many(number: int) -> str:
    return _text(MANY)[number % LINES]


_WORD = re.compile(r"\w+")


def words_of(line: str) -> list[str]:
    return _WORD.findall(line.lower())


def once(word: str) -> Pair:
    return (word, 1)


def _counted(
    line_of: Callable[[int], str], lines: int, parallelism: int
) -> tuple[sw.Pipeline, sw.DataStream[Pair]]:
    flow = sw.Pipeline("word count", parallelism=parallelism)
    ones = flow.generate(line_of, count=lines).flat_map(words_of).map(once)
    return flow, ones.key_by(word_of).reduce(add)


def _count(line_of: Callable[[int], str], lines: int, workers: int) -> Taken:
    flow, counts = _counted(line_of, lines, max(1, workers))
    counts.sink(DiscardSink())
    return timed_run(flow, workers, lines * WORDS_A_LINE)


def _word_count(plan: Plan) -> Iterator[Row]:
    lines = plan.size(400_000, 300)
    _check_counts(line_of_few, min(lines, 3_000))
    for line_of, distinct in ((line_of_few, FEW), (line_of_many, MANY)):
        yield from _word_counts(plan, line_of, lines, f"word count, {distinct:,} words")


def _word_counts(plan: Plan, line_of: Callable[[int], str], lines: int, name: str) -> Iterator[Row]:
    ways = (0, 1, 2)
    plain = PlainProcesses(name, "a loop written out by hand", count_by_hand, line_of, lines // 2)
    # With a line for each worker, so that each makes the text.
    started = {workers: _count(line_of, workers, workers).cpu for workers in ways}
    taken: dict[int, list[Taken]] = {workers: [] for workers in ways}
    with plain:
        for _ in range(plan.runs):
            for workers in ways:
                taken[workers].append(_count(line_of, lines, workers))
            plain.measure()
    for against, other, aim in ((0, "one process", 1.5), (1, "one worker", None)):
        pairs = list(zip(taken[against], taken[2], strict=True))
        speedups = tuple(one.wall / two.wall for one, two in pairs)
        cpus = [2 * (one.cpu - started[against]) / (two.cpu - started[2]) for one, two in pairs]
        speed = lines * WORDS_A_LINE / median(t.wall for t in taken[2])
        yield Row(
            f"{name}: 2 workers against {other}",
            "x speed",
            speedups,
            aim=aim,
            note=f"{plain.share(speedups)}; {speed / 1e6:.3g} M words/s; by processor time {median(cpus):.2f};"
            f" {median(t.start for t in taken[2]):.2g} s to start and end the workers left out",
            details={
                "words": lines * WORDS_A_LINE,
                "seconds": {str(w): [t.wall for t in ts] for w, ts in taken.items()},
                "processor_seconds": {str(w): [t.cpu for t in ts] for w, ts in taken.items()},
                "ratios_by_cpu_time": cpus,
            },
        )
    yield plain.row()


def count_by_hand(line_of: Callable[[int], str], lines: int) -> None:
    """Count words as the pipeline does, with a result for each."""
    counts: dict[str, int] = {}
    for number in range(lines):
        for word in _WORD.findall(line_of(number).lower()):
            counts[word] = counts.get(word, 0) + 1
            (word, counts[word])


def _check_counts(line_of: Callable[[int], str], lines: int) -> None:
    """The last count of every word, from one process and from two workers."""
    expected = Counter(word for number in range(lines) for word in line_of(number).split())
    for workers in (0, 2):
        flow, counts = _counted(line_of, lines, max(1, workers))
        got = counts.collect()
        flow.run(workers=workers)
        highest: Counter[str] = Counter()
        for word, count in got:
            highest[word] = max(highest[word], count)
        if highest != expected or len(got) != expected.total():
            raise RuntimeError(f"word count with {workers} workers has counted something else than a loop")


# ---- a hop --------------------------------------------------------------------------------------------------


def same(pair: Pair) -> Pair:
    return pair


def _hops(records: int, workers: int, transport: str) -> Taken:
    flow = sw.Pipeline("hop", chaining=False)
    pairs = flow.generate(number_of, count=records).map(same)
    pairs.slot_sharing_group("first")
    pairs.map(same).slot_sharing_group("second").sink(DiscardSink())
    return timed_run(flow, workers, records, transport=transport)


def number_of(number: int) -> Pair:
    return (f"word{number % 1_000}", number)


def _hop(plan: Plan) -> Iterator[Row]:
    records = plan.size(1_000_000, 3_000)
    ways = {"by reference": (1, "shm"), "shm": (2, "shm")}
    started = {way: median(_hops(1, *how).cpu for _ in range(plan.size(3, 1))) for way, how in ways.items()}
    taken: dict[str, list[Taken]] = {way: [] for way in ways}
    for _ in range(plan.runs):
        for way, how in ways.items():
            taken[way].append(_hops(records, *how))
    costs = {way: [(t.cpu - started[way]) / records * 1e9 for t in ts] for way, ts in taken.items()}
    yield Row(
        "a record's hop through shared memory, beside one by reference",
        "ns",
        tuple(shm - local for shm, local in zip(costs["shm"], costs["by reference"], strict=True)),
        note=f"processor time of both ends; the whole job takes {median(costs['by reference']):.0f} ns a record by"
        f" reference and {median(costs['shm']):.0f} ns in two processes",
        details={"records": records, "ns": costs},
    )


# ---- many channels --------------------------------------------------------------------------------------------


def _through_many(lines: int, timeout_ms: int) -> Taken:
    flow = sw.Pipeline("many channels", parallelism=PRODUCERS, buffer_timeout=timeout_ms)
    words = flow.generate(line_of_few, count=lines).flat_map(words_of).map(once)
    words.key_by(word_of).reduce(add).set_parallelism(CONSUMERS).sink(DiscardSink()).set_parallelism(CONSUMERS)
    return timed_run(flow, 2, lines * WORDS_A_LINE)


def _timeouts(plan: Plan) -> Row:
    lines = plan.size(200_000, 300)
    short, long = [], []
    for _ in range(plan.runs):
        long.append(_through_many(lines, 100))
        short.append(_through_many(lines, 1))
    return Row(
        f"buffer timeout of 1 ms against 100 ms, {PRODUCERS * CONSUMERS} channels on 2 workers",
        "x speed",
        tuple(b.wall / a.wall for a, b in zip(short, long, strict=True)),
        aim=0.7,
        note=f"by processor time {median(b.cpu / a.cpu for a, b in zip(short, long, strict=True)):.2f}",
        details={"short_s": [t.wall for t in short], "long_s": [t.wall for t in long]},
    )


# ---- back-pressure --------------------------------------------------------------------------------------------


class SlowSink(Sink[Any]):
    """Takes ``SINK_RATE`` records a second."""

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return _SlowWriter()


class _SlowWriter(SinkWriter[Any]):
    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        time.sleep(len(values) / SINK_RATE)


def _back_pressure(plan: Plan) -> Iterator[Row]:
    lasts_s = plan.seconds if not plan.quick else 0.5
    if not Path("/proc/self/stat").exists():
        yield Row("back-pressure: growth of the workers", "MB", (), note="read from /proc, on Linux only")
        return
    seen = asyncio.run(_under_pressure(lasts_s, settle_s=plan.size(5, 1)))
    yield Row(
        "back-pressure: growth of the workers",
        "MB",
        (seen.last_mb - seen.first_mb,),
        aim=2.0,
        note=f"from {seen.first_mb:.0f} MB, both together, to {seen.last_mb:.0f} MB in {lasts_s:g} s; at most"
        f" {seen.most_mb:.0f} MB",
        details={"seconds": lasts_s, "first_mb": seen.first_mb, "last_mb": seen.last_mb, "most_mb": seen.most_mb},
    )
    yield Row(
        "back-pressure: what the source reads",
        "x sink",
        (seen.read / seen.written,) if seen.written else (),
        note=f"{seen.written:.0f} records/s written, {seen.read:.0f} read; the sink takes {SINK_RATE}",
        details={"read_per_s": seen.read, "written_per_s": seen.written},
    )
    yield Row("back-pressure: cancel", "s", (seen.cancel_s,), aim=1.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    first_mb: float
    last_mb: float
    most_mb: float
    read: float
    written: float
    cancel_s: float


async def _under_pressure(lasts_s: float, settle_s: float) -> _Seen:
    flow = sw.Pipeline("back-pressure")
    numbers = flow.generate(number_of).slot_sharing_group("source")
    numbers.rebalance().map(same).slot_sharing_group("sink").sink(SlowSink())
    handle = await flow.start(workers=2)
    while handle.metrics().records_out == 0:
        await asyncio.sleep(0.05)
    await asyncio.sleep(settle_s)
    before, since = handle.metrics(), time.perf_counter()
    first = most = _children_mb()
    # The sink takes a second for a batch: something must have been written, on a slow machine as well.
    while time.perf_counter() - since < lasts_s or handle.metrics().records_out == before.records_out:
        await asyncio.sleep(0.25)
        most = max(most, _children_mb())
    after, passed = handle.metrics(), time.perf_counter() - since
    last = _children_mb()
    cancelled = time.perf_counter()
    handle.cancel()
    await handle.result()
    return _Seen(
        first,
        last,
        most,
        (after.records_in - before.records_in) / passed,
        (after.records_out - before.records_out) / passed,
        time.perf_counter() - cancelled,
    )


def _children_mb() -> float:
    """Resident memory of this process's children."""
    pages = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == os.getpid():
            pages += int(fields[21])
    return pages * resource.getpagesize() / _MEGABYTE
