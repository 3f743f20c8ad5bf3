"""Duration of a checkpoint under back-pressure: aligned, aligned with a timeout, unaligned.

A job of three stages in one process, and sinks that take a share of what it could do. Where no checkpoint was
completed in a run, the row has how long the run lasted, and says so.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import sluiceway as sw
from benchmarks.harness import Plan, Row
from sluiceway.checkpoint import find_checkpoints, load_metadata
from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway.connector.lib import GeneratorSource
from sluiceway.errors import CheckpointError
from sluiceway.plugins import default_manager

__all__ = ["measure"]

PRESSURE = (0, 50, 90, 100)
TIMEOUT = "500ms"
WAYS: dict[str, dict[str, Any]] = {
    "aligned": {},
    f"unaligned after {TIMEOUT}": {"checkpoint_unaligned": True, "checkpoint_aligned_timeout": TIMEOUT},
    "unaligned": {"checkpoint_unaligned": True},
}
KEYS = 10_000
PARALLELISM = 2
TAKEN = 5
"""Checkpoints in a run."""
LONGEST_S = 10.0


class _Paced(Sink[Any]):
    """Takes so many records a second in each writer; None: as many as come; 0: none."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return _PacedWriter(self.rate, context)


class _PacedWriter(SinkWriter[Any]):
    def __init__(self, rate: float | None, context: WriterContext) -> None:
        self._rate = rate
        self._now = context.clock.monotonic
        self._free_at = 0.0

    def blocked(self) -> Wait | None:
        now = self._now()
        if self._rate == 0:
            return Wait(until=now + 0.1)
        return Wait(until=self._free_at) if self._free_at > now else None

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if self._rate:
            self._free_at = max(self._now(), self._free_at) + len(values) / self._rate


def measure(plan: Plan) -> Iterator[Row]:
    speed = _speed(plan)
    for pressure in PRESSURE:
        rate = None if pressure == 0 else speed * (100 - pressure) / 100 / PARALLELISM
        runs: dict[str, list[_Run]] = {way: [] for way in WAYS}
        for _ in range(plan.runs):
            for way, options in WAYS.items():
                runs[way].append(_run(rate, plan, options))
        for way, some in runs.items():
            yield _row(f"a checkpoint at {pressure} % back-pressure, {way}", some)


@dataclass(frozen=True, slots=True)
class _Run:
    """Result of one run.

    Attributes:
        durations_ms: of the checkpoints that were completed.
        in_flight: bytes of those that were in flight.
        held_up: share of the time that the source could not go on.
        lasted_ms: the run.
    """

    durations_ms: tuple[int, ...]
    in_flight: tuple[int, ...]
    held_up: float
    lasted_ms: float


def _row(name: str, runs: Sequence[_Run]) -> Row:
    never = sum(not run.durations_ms for run in runs)
    in_flight = [size / 1024 for run in runs for size in run.in_flight]
    held_up = median(run.held_up for run in runs)
    notes = [f"source held up for {held_up:.0%} of the time"]
    if any(in_flight):
        notes.append(f"{median(in_flight):,.0f} KiB in flight")
    if never:
        notes.append(f"no checkpoint completed in {never} of {len(runs)} runs")
    return Row(
        name,
        "ms",
        tuple(median(run.durations_ms) if run.durations_ms else run.lasted_ms for run in runs),
        note="; ".join(notes),
        details={"held_up": held_up, "never_completed": never, "kib_in_flight": in_flight},
    )


def _job(rate: float | None, count: int) -> sw.Pipeline:
    flow = sw.Pipeline("under pressure", max_parallelism=128)
    numbers = flow.source(GeneratorSource(count=count)).map(lambda n: (n % KEYS, 1))
    counts = numbers.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    counts.rebalance().map(lambda pair: pair[1]).sink(_Paced(rate))
    return flow


def _speed(plan: Plan) -> float:
    """Records a second with sinks that take everything."""
    count = plan.size(2_000_000, 20_000)
    began = time.monotonic()
    _job(None, count).run(parallelism=PARALLELISM)
    return count / (time.monotonic() - began)


def _run(rate: float | None, plan: Plan, options: dict[str, Any]) -> _Run:
    taken = 1 if plan.quick else TAKEN
    longest_s = 1.0 if plan.quick else LONGEST_S
    given = {"checkpoint_interval": "50ms" if plan.quick else "500ms", "parallelism": PARALLELISM}

    async def go(place: str) -> tuple[float, float]:
        async with await _job(rate, 10**12).start(checkpoints=place, **given, **options) as handle:
            began = time.monotonic()
            while (lasted := time.monotonic() - began) < longest_s and len(_durations(place)[0]) < taken:
                await asyncio.sleep(0.05)
            sources = [s for s in handle.metrics().subtasks if s.vertex_id == 0]
            handle.cancel()
            await handle.result()
        at_all = sum(s.busy_s + s.idle_s + s.backpressured_s for s in sources)
        return lasted, sum(s.backpressured_s for s in sources) / at_all

    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as place:
        lasted, held_up = asyncio.run(go(place))
        durations, in_flight = _durations(place)
    return _Run(durations, in_flight, held_up, lasted * 1000)


def _durations(place: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of all checkpoints that were completed: ms, and bytes in flight. The newest knows of those before it."""
    storage = default_manager().checkpoint_storage(place)
    found = []
    for directory in find_checkpoints(storage):
        with suppress(CheckpointError):  # it was the newest
            found.append(load_metadata(storage, directory))
    if not found:
        return (), ()
    last = max(found, key=lambda metadata: metadata.checkpoint_id)
    earlier = [entry for entry in last.history if entry.status == "completed"]
    times = [entry.duration_ms or 0 for entry in earlier] + [last.completed_ms - last.triggered_ms]
    in_flight = sum(s.in_flight_size for v in last.vertices for s in v.subtasks)
    return tuple(times), (*(entry.in_flight for entry in earlier), in_flight)
