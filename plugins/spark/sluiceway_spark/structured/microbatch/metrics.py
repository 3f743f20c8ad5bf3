"""Metrics of a streaming query, per micro-batch."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.runtime.stepped import SteppedPlan, SteppedTask
from sluiceway_spark.structured.microbatch.counts import ByStep, Counts, increase, sums
from sluiceway_spark.structured.row_format import Row

if TYPE_CHECKING:
    from sluiceway_spark.structured.stages.sink_stage import BatchReport

__all__ = ["Did", "StreamFigures", "did_since", "told"]


@dataclass(frozen=True, slots=True)
class Did:
    """Report of a subtask on one micro-batch.

    Attributes:
        target: its number.
        records_in: records read or taken in it.
        records_out: records given on in it.
        watermark: of its input, ms; None: not known.
        metrics: its functions' own metrics, as they are now.
        counters: those of them that count, and what they have counted in it.
        ended: whether it has come to its end.
        due_ms: when it has something to do without any input, ms since the epoch; None: not before that.
    """

    target: int
    records_in: int
    records_out: int
    watermark: int | None = None
    metrics: ByStep = field(default_factory=dict)
    counters: ByStep = field(default_factory=dict)
    ended: bool = False
    due_ms: int | None = None


def told(plan: SteppedPlan, did: Did) -> Row:
    """Return a row with a report for the driver.

    It goes by way of a subtask that its sender reaches in any case: a group of its own in the next stage would
    cost some round trips to the JVM in each micro-batch.
    """
    way = next((route.target for route in plan.routes_from(*plan.who(did.target))), did.target)
    return Row(plan.last_stage + 1, way, -1, 0, pickle.dumps(did))


def did_since(plan: SteppedPlan, chain: SteppedTask, before: Counts) -> Did:
    """Return the report of a subtask since it had these counts."""
    mark = chain.watermark
    return Did(
        plan.target(chain.vertex.id, chain.subtask),
        chain.records_in - before.records_in,
        chain.records_out - before.records_out,
        None if mark == MIN_WATERMARK else mark,
        chain.metrics(),
        increase(chain.counters(), before.counters),
        chain.ended,
        None if chain.ended else chain.due_ms,
    )


class StreamFigures:
    """Sums of the reports of subtasks. Updated in one thread, read in any.

    Args:
        plan: the job.
    """

    def __init__(self, plan: SteppedPlan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._batches = 0
        self._took_s = 0.0
        self._by_target: dict[int, Did] = {}
        self._due_ms: dict[int, int | None] = {}

    def __len__(self) -> int:
        return sum(vertex.parallelism for vertex in self._plan.graph.vertices)

    def take(self, report: BatchReport, took_s: float) -> None:
        """Count a committed micro-batch, so long after it was planned. One that came again counts once."""
        found: list[Did] = [pickle.loads(row.payload) for row in report.rows]
        with self._lock:
            # Also of a repeated micro-batch: these are times, no sums.
            self._due_ms.update((did.target, did.due_ms) for did in found)
        if report.replayed:
            return
        found += [
            Did(self._plan.target(vertex, 0), records, records) for vertex, records in report.records.items()
        ]
        found += [Did(target, 0, 0, None, *own) for target, own in report.metrics.items()]
        with self._lock:
            self._batches += 1
            self._took_s = took_s
            for did in found:
                known = self._by_target.get(did.target)
                if known is not None:
                    did = replace(
                        did,
                        records_in=known.records_in + did.records_in,
                        records_out=known.records_out + did.records_out,
                        watermark=known.watermark if did.watermark is None else did.watermark,
                        metrics={**known.metrics, **did.metrics},
                        counters=sums(known.counters, did.counters),
                    )
                self._by_target[did.target] = did

    @property
    def batches(self) -> int:
        """Return the number of micro-batches that were committed."""
        with self._lock:
            return self._batches

    @property
    def records_in(self) -> int:
        """Return the records that the sources have read."""
        with self._lock:
            found = list(self._by_target.items())
        return sum(did.records_in for target, did in found if self._plan.who(target)[0] in self._plan.sources)

    @property
    def due_ms(self) -> int | None:
        """Earliest time at which a subtask has work without input, ms since the epoch; None if none has."""
        with self._lock:
            return min((at for at in self._due_ms.values() if at is not None), default=None)

    def metrics(self, name: str, status: str, elapsed_s: float, restarts: int, now_ms: int) -> JobMetrics:
        """Return all figures."""
        plan = self._plan
        with self._lock:
            found, batches, took_s = dict(self._by_target), self._batches, self._took_s
        subtasks = []
        records_in = records_out = 0
        for target, did in sorted(found.items()):
            vertex, subtask = plan.who(target)
            if vertex in plan.sources:
                records_in += did.records_in
            if vertex in plan.sinks:
                records_out += did.records_out
            # A counter among the metrics has counted in one process alone.
            own = {step: {**each, **did.counters.get(step, {})} for step, each in did.metrics.items()}
            subtasks.append(
                SubtaskMetrics(
                    plan.graph.vertex(vertex).name,
                    subtask,
                    "finished" if did.ended else "running",
                    records_in=did.records_in,
                    records_out=did.records_out,
                    watermark=did.watermark,
                    watermark_lag_ms=_lag(did.watermark, now_ms),
                    user={name: value for each in own.values() for name, value in each.items()},
                    operators=own,
                    vertex_id=vertex,
                    at_ms=now_ms,
                )
            )
        return JobMetrics(
            name,
            status,
            elapsed_s,
            records_in,
            records_out,
            tuple(subtasks),
            restarts=restarts,
            micro_batches=batches,
            micro_batch_s=took_s,
        )


def _lag(watermark: int | None, now_ms: int) -> int | None:
    return None if watermark is None or watermark >= MAX_WATERMARK else max(0, now_ms - watermark)
