"""Throughput with a checkpoint every second, against none, with 10,000 keys, 100,000 and a million.

The jobs with checkpoints and without are the same otherwise, and run in turn; their sinks keep a sum that has to
be the same. On a busy machine a job takes longer, and so has more checkpoints: what each takes of processor time
says what they would cost on an idle one.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import sluiceway as sw
from benchmarks.harness import Plan, Row, Time, timed
from benchmarks.windows import SumOfAmounts, time_of, user_of
from sluiceway.windows import TumblingEventTimeWindows

__all__ = ["checkpoints_in", "is_there", "measure", "missing"]

KEYS = (10_000, 100_000, 1_000_000)
WINDOWED_KEYS = 100_000
RECORDS = 4_000_000
FEWER_RECORDS = 1_500_000
"""For the most keys, of which RocksDB takes some ten microseconds for each record."""
AIMS = {"memory": 0.9, "rocksdb": 0.8}
LATE_MS = 5_000

Run = Callable[..., int]


def measure(plan: Plan) -> Iterator[Row]:
    records = plan.size(RECORDS, 4_000)
    _warm_up()
    for keys in KEYS:
        given = plan.size(FEWER_RECORDS, records) if keys == max(KEYS) else records
        yield from _rows("word count", _words, keys, given, plan)
    yield from _rows("windowed sum", _sums, WINDOWED_KEYS, records, plan)


def _warm_up() -> None:
    """Import everything before the first measured run."""
    for backend in filter(is_there, AIMS):
        with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
            _words(10, 1_000)(state_backend=backend, checkpoint_interval="1s", checkpoints=directory)


def _rows(job: str, make: Callable[[int, int], Run], keys: int, records: int, plan: Plan) -> Iterator[Row]:
    keys = plan.size(keys, keys // 1_000)
    run = make(keys, records)
    for backend in AIMS:
        title = f"{job} with a checkpoint every second, {keys:,} keys, {backend}"
        yield _throughput(title, run, backend, plan) if is_there(backend) else missing(title, "x speed")


def is_there(backend: str) -> bool:
    return backend != "rocksdb" or find_spec("rocksdict") is not None


def missing(title: str, unit: str) -> Row:
    return Row(title, unit, (), note="rocksdict is not installed")


def _throughput(title: str, run: Run, backend: str, plan: Plan) -> Row:
    interval = "20ms" if plan.quick else "1s"
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        sides: tuple[list[Time], list[Time]] = ([], [])
        results, taken = set(), []

        def one(**options: Any) -> None:
            results.add(run(state_backend=backend, **options))

        for _ in range(plan.runs):
            sides[0].append(timed(one))
            place = tempfile.mkdtemp(dir=directory)
            sides[1].append(timed(lambda place=place: one(checkpoint_interval=interval, checkpoints=place)))
            taken.append(max(checkpoints_in(place), default=1))
    if len(results) > 1:
        raise RuntimeError(f"{title}: the results differ")
    walls = [without.wall / taking.wall for without, taking in zip(*sides, strict=True)]
    cpus = [without.cpu / taking.cpu for without, taking in zip(*sides, strict=True)]
    each = [(b.cpu - a.cpu) / number for a, b, number in zip(*sides, taken, strict=True)]
    seconds = [statistics.median(t.wall for t in side) for side in sides]
    return Row(
        title,
        "x speed",
        tuple(walls),
        aim=AIMS[backend],
        note=f"{seconds[1]:.1f} s against {seconds[0]:.1f}, by processor time "
        f"{statistics.median(cpus):.2f}; {1e3 * statistics.median(each):.0f} ms of it for each of "
        f"{statistics.median(taken):.0f} checkpoints",
        details={"ratios_by_cpu_time": cpus, "checkpoints": taken, "cpu_s_of_each": each},
        against="no checkpoints",
    )


def checkpoints_in(place: str) -> dict[int, Path]:
    """Return the checkpoints in a directory, by number."""
    found = Path(place).glob("*/chk-*/metadata.json")
    return {int(path.parent.name.removeprefix("chk-")): path.parent for path in found}


def _words(keys: int, records: int) -> Run:
    random = Random(3)
    words = [f"word{random.randrange(keys)}" for _ in range(records)]

    def run(**options: Any) -> int:
        flow = sw.Pipeline("word count")
        total = 0

        def seen(pair: tuple[str, int]) -> None:
            nonlocal total
            total += pair[1]

        counts = flow.from_collection(words).map(lambda word: (word, 1)).key_by(lambda pair: pair[0])
        counts.reduce(lambda a, b: (a[0], a[1] + b[1])).for_each(seen)
        flow.run(**options)
        return total

    return run


def _sums(keys: int, records: int) -> Run:
    random = Random(4)
    # Each key has something in about every window.
    per_second = max(keys // 10, 1_000)
    events = [
        (random.randrange(keys), random.randrange(1, 1_000), i * 1_000 // per_second - random.randrange(LATE_MS))
        for i in range(records)
    ]

    def run(**options: Any) -> int:
        flow = sw.Pipeline("windows")
        total = 0

        def seen(amount: int) -> None:
            nonlocal total
            total += amount

        strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(LATE_MS).with_timestamp_assigner(time_of)
        stream = flow.from_collection(events).assign_timestamps_and_watermarks(strategy).key_by(user_of)
        stream.window(TumblingEventTimeWindows.of("10s")).aggregate(SumOfAmounts()).for_each(seen)
        flow.run(**options)
        return total

    return run
