"""What checkpoints cost: throughput with one every second, pauses of the loop, restores, waiting for timers.

The jobs with checkpoints and without are the same otherwise, and run in turn. A job with a million keys shows by
the time between two batches how long it stands still. On a busy machine a job takes longer, and so has more
checkpoints: what each takes of processor time says what they would cost on an idle one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import sluiceway as sw
from benchmarks.harness import Plan, Row, Time, timed
from benchmarks.latency import quantile
from benchmarks.windows import SumOfAmounts, time_of, user_of
from sluiceway.checkpoints import load_metadata
from sluiceway.plugins.manager import default_manager
from sluiceway.windows import TumblingEventTimeWindows

__all__ = ["measure"]

KEYS = (1_000, 200_000)
RECORDS = 3_000_000
MANY = 1_000_000
AIMS = {"memory": 0.9, "rocksdb": 0.8}
PAUSES = {"memory": 50.0, "rocksdb": 20.0}
LATE_MS = 5_000
RESTORE_S: dict[str, float | None] = {"memory": 2.0, "rocksdb": None}
WAIT_MS = 50.0
SMALL = 8

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
    for backend in RESTORE_S:
        title = f"from the start to the end of a job that restores a million keys, {backend}"
        yield _restore(title, backend, plan) if _is_there(backend) else _missing(title, "s")
    yield _timers(plan)
    yield _small_batches(plan)


def _is_there(backend: str) -> bool:
    return backend != "rocksdb" or find_spec("rocksdict") is not None


def _missing(title: str, unit: str) -> Row:
    return Row(title, unit, (), note="rocksdict is not installed")


# -- throughput -----------------------------------------------------------------------------------------------


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
            taken.append(max(_checkpoints(place), default=1))
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
        note=f"against none; {seconds[1]:.1f} s against {seconds[0]:.1f}, by processor time "
        f"{statistics.median(cpus):.2f}; {1e3 * statistics.median(each):.0f} ms of it for each of "
        f"{statistics.median(taken):.0f} checkpoints",
        details={"ratios_by_cpu_time": cpus, "checkpoints": taken, "cpu_s_of_each": each},
    )


def _checkpoints(place: str) -> dict[int, Path]:
    """What is kept in a directory, by number."""
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


# -- restores -------------------------------------------------------------------------------------------------


def _restore(title: str, backend: str, plan: Plan) -> Row:
    keys = plan.size(MANY, 2_000)
    seconds = []

    def run(**options: Any) -> None:
        flow = sw.Pipeline("restored")
        pairs = flow.from_sequence(0, keys - 1).map(lambda n: (f"key{n}", n)).key_by(lambda pair: pair[0])
        pairs.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("sums").for_each(lambda pair: None)
        flow.run(state_backend=backend, **options)

    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        run(checkpoint_interval="10min", checkpoints=directory)
        for _ in range(plan.runs):
            seconds.append(timed(lambda: run(from_checkpoint=directory)))
    return Row(
        title,
        "s",
        tuple(t.wall for t in seconds),
        aim=RESTORE_S[backend],
        note=f"processor time {statistics.median(t.cpu for t in seconds):.2f} s",
    )


# -- timers ---------------------------------------------------------------------------------------------------


WORK = 200
"""What each timer does: the burst has to outlast the checkpoint of all timers that is under way when it begins."""


class _Fired(sw.KeyedProcessFunction[int, int, int], sw.CheckpointedFunction):
    """A timer for each record; notes how many have fired when a checkpoint is taken."""

    def __init__(self, taken: dict[int, int], times: list[float]) -> None:
        self._taken = taken
        self._times = times

    def __deepcopy__(self, memo: Any) -> _Fired:
        return _Fired(self._taken, self._times)

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        self._fired = 0

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        self._taken[context.checkpoint_id] = self._fired

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> None:
        if not self._fired:
            self._times.append(time.perf_counter())
        self._fired += 1
        sum(range(WORK))
        self._times[1:] = [time.perf_counter()] if not self._fired % 1_000 else self._times[1:]


def _timers(plan: Plan) -> Row:
    """How long a barrier waits while a million timers fire that one watermark has made due."""
    timers = plan.size(MANY, 20_000)
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(10**9).with_timestamp_assigner(lambda n: n)
    waits, bursts, snapshots = [], [], 0
    for _ in range(plan.runs):
        with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
            taken: dict[int, int] = {}
            times: list[float] = []
            flow = sw.Pipeline("timers")
            numbers = flow.from_sequence(0, timers - 1).assign_timestamps_and_watermarks(strategy)
            numbers.key_by(lambda n: n).process(_Fired(taken, times)).uid("fired").for_each(print)
            options: dict[str, Any] = {"checkpoint_retained": 1_000, "checkpoints": directory}
            flow.run(checkpoint_interval="5ms" if plan.quick else "100ms", **options)
            within = {id_ for id_, fired in taken.items() if 0 < fired < timers}
            waited = [_waited(place) for id_, place in _checkpoints(directory).items() if id_ in within]
            bursts.append(times[-1] - times[0])
            waits.append(max(waited, default=bursts[-1] * 1e3))
            snapshots += len(waited)
    return Row(
        "longest wait of a barrier while a million timers fire, memory",
        "ms",
        tuple(waits),
        aim=WAIT_MS,
        note=f"of {snapshots} in all; they fire in {statistics.median(bursts):.1f} s",
    )


def _waited(place: Path) -> float:
    """From the trigger to the moment when the timers were taken, in ms."""
    storage = default_manager().checkpoint_storage(str(place.parent))
    found = load_metadata(storage, place.name)
    return max(
        subtask.start_delay_ms
        for vertex in found.vertices
        for subtask in vertex.subtasks
        if any(operator.uid == "fired" for operator in subtask.operators)
    )


# -- small batches --------------------------------------------------------------------------------------------


def _small_batches(plan: Plan) -> Row:
    """What is done for each batch: to look for mails, timers, barriers, room in the outputs."""
    records = plan.size(400_000, 2_000)

    def run(size: int) -> None:
        flow = sw.Pipeline("small")
        keyed = flow.from_sequence(0, records - 1).key_by(lambda n: n % 1_000)
        keyed.reduce(lambda a, b: a + b).for_each(lambda n: None)
        flow.run(batch_size=size)

    pairs = [(timed(lambda: run(SMALL)), timed(lambda: run(1_024))) for _ in range(plan.runs)]
    each = statistics.median((a.cpu - b.cpu) / records * SMALL for a, b in pairs)
    return Row(
        f"keyed sum in batches of {SMALL} records",
        "x speed",
        tuple(full.wall / small.wall for small, full in pairs),
        note=f"against batches of 1,024; {each * 1e6:.1f} us of processor time for each batch",
    )
