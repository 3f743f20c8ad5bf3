"""What checkpoints cost: throughput with one every second, and pauses of the loop.

The jobs with checkpoints and without are the same otherwise, and run in turn. A job with a million keys shows by
the time between two batches how long it stands still. Restoring them is measured with the ``state``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from random import Random
from typing import Any

import sluiceway as sw
from benchmarks.harness import Plan, Row, Time, timed
from benchmarks.latency import quantile
from benchmarks.windows import SumOfAmounts, time_of, user_of
from sluiceway.windows import TumblingEventTimeWindows

__all__ = ["measure"]

KEYS = (1_000, 200_000)
RECORDS = 3_000_000
MANY = 1_000_000
AIMS = {"memory": 0.9, "rocksdb": 0.8}
PAUSES = {"memory": 50.0, "rocksdb": 20.0}
LATE_MS = 5_000

Run = Callable[..., int]


def measure(plan: Plan) -> Iterator[Row]:
    records = plan.size(RECORDS, 4_000)
    for keys in KEYS:
        keys = plan.size(keys, keys // 100)
        for name, run in (("word count", _words(keys, records)), ("windowed sum", _sums(keys, records))):
            for backend in AIMS:
                title = f"{name} with a checkpoint every second, {keys:,} keys, {backend}"
                yield _throughput(title, run, backend, plan) if _is_there(backend) else _missing(title, "x speed")
    for backend in PAUSES:
        title = f"longest pause in each second, checkpoints of a million keys, {backend}"
        yield _pauses(title, backend, plan) if _is_there(backend) else _missing(title, "ms")


def _is_there(backend: str) -> bool:
    return backend != "rocksdb" or find_spec("rocksdict") is not None


def _missing(title: str, unit: str) -> Row:
    return Row(title, unit, (), note="rocksdict is not installed")


# -- throughput -----------------------------------------------------------------------------------------------


def _throughput(title: str, run: Run, backend: str, plan: Plan) -> Row:
    interval = "20ms" if plan.quick else "1s"
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        sides: tuple[list[Time], list[Time]] = ([], [])
        results = set()

        def one(**options: Any) -> None:
            results.add(run(state_backend=backend, **options))

        for _ in range(plan.runs):
            sides[0].append(timed(one))
            sides[1].append(timed(lambda: one(checkpoint_interval=interval, checkpoints=directory)))
    if len(results) > 1:
        raise RuntimeError(f"{title}: the results differ")
    walls = [without.wall / taking.wall for without, taking in zip(*sides, strict=True)]
    cpus = [without.cpu / taking.cpu for without, taking in zip(*sides, strict=True)]
    seconds = [statistics.median(t.wall for t in side) for side in sides]
    return Row(
        title,
        "x speed",
        tuple(walls),
        aim=AIMS[backend],
        note=f"against none; {seconds[1]:.1f} s against {seconds[0]:.1f}, by processor time "
        f"{statistics.median(cpus):.2f}",
        details={"ratios_by_cpu_time": cpus},
    )


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


# -- pauses ---------------------------------------------------------------------------------------------------


class _Times(sw.KeyedBatchProcessFunction[int, int, int]):
    """Counts, and notes when it is given batches, once all keys are there."""

    def __init__(self, keys: int, times: list[float]) -> None:
        self._keys = keys
        self._times = times

    def open(self, runtime_context: sw.RuntimeContext) -> None:
        self._count = runtime_context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def process_batch(self, values: Sequence[int], ctx: sw.KeyedBatchProcessFunction.Context) -> list[int]:
        keys, counts = self._keys, ctx.bulk(self._count)
        count_of = counts.get
        for value in values:
            key = value % keys
            counts[key] = count_of(key, 0) + 1
        if values[0] >= keys:
            self._times.append(time.perf_counter())
        return []


def _pauses(title: str, backend: str, plan: Plan) -> Row:
    keys = plan.size(MANY, 2_000)
    seconds = 0.02 if plan.quick else 1.0
    pauses: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        taking = {"checkpoint_interval": "20ms" if plan.quick else "1s", "checkpoints": directory}
        for _ in range(plan.runs):
            for with_checkpoints, options in ((False, {}), (True, taking)):
                times: list[float] = []
                flow = sw.Pipeline("pauses")
                numbers = flow.from_sequence(0, keys * 6 - 1).key_by(lambda n, keys=keys: n % keys)
                numbers.process(_Times(keys, times)).for_each(print)
                flow.run(state_backend=backend, **options)
                pauses[with_checkpoints].append(quantile(_longest(times, seconds), 0.99))
    return Row(
        title,
        "ms",
        tuple(pauses[True]),
        aim=PAUSES[backend],
        note=f"99th percentile; without checkpoints {statistics.median(pauses[False]):.1f} ms",
    )


def _longest(times: list[float], seconds: float) -> list[float]:
    """In each second, in ms, the longest time from one to the next."""
    longest: dict[int, float] = {}
    for before, after in pairwise(times):
        second = int((after - times[0]) / seconds)
        longest[second] = max(longest.get(second, 0.0), (after - before) * 1e3)
    return list(longest.values())
