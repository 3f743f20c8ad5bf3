"""Pauses at checkpoints: of a job with a million keys in each second, and of a barrier behind a million timers.

The time between two batches of a job shows how long it stands still.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import sluiceway as sw
from benchmarks.checkpoints import checkpoints_in, is_there, missing
from benchmarks.harness import Plan, Row
from benchmarks.latency import quantile
from sluiceway.checkpoint import load_metadata
from sluiceway.plugins.manager import default_manager

__all__ = ["measure"]

MANY = 1_000_000
PAUSES = {"memory": 50.0, "rocksdb": 20.0}
WAIT_MS = 50.0


def measure(plan: Plan) -> Iterator[Row]:
    for backend in PAUSES:
        title = f"longest pause in each second, checkpoints of a million keys, {backend}"
        yield _pauses(title, backend, plan) if is_there(backend) else missing(title, "ms")
    yield _timers(plan)


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


# -- timers ---------------------------------------------------------------------------------------------------


WORK = 200
"""Work of each timer: the burst has to outlast the checkpoint of all timers that is under way when it begins."""


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
    """Measure the wait of a barrier while a million timers fire that one watermark has made due."""
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
            waited = [_waited(place) for id_, place in checkpoints_in(directory).items() if id_ in within]
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
