"""Sink subtasks of one micro-batch in Spark's Python workers, in tasks of their own."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sluiceway.engine import Services
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.messages.pickling import dump
from sluiceway.runtime.stepped import Position, SteppedPlan, SteppedTask
from sluiceway.serializers.byvalue import dumps_with_classes
from sluiceway.serializers.program_classes import using
from sluiceway_spark.structured.microbatch.counts import ByStep
from sluiceway_spark.structured.row_format import Row, rows_in, to_batches
from sluiceway_spark.structured.stages.batch_tasks import StageWorker

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DELIVERED", "Delivered", "deliver", "finish_batch", "open_sink", "sink_chain", "sink_task"]

DELIVERED: Final = 2
"""Distance behind the last stage of the rows that sinks give to the driver."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Outcome of a sink subtask in one micro-batch, sent to the driver.

    Attributes:
        target: its number.
        records: how many it was given in this batch.
        metrics: the functions' own, by step and name.
        counters: those of them that count, and what they have counted in this batch.
        ended: whether its input has ended.
        kept: what it is to find in the next batch, as :func:`finish_batch` makes it.
        ready: what commits it, pickled; empty if there is nothing.
    """

    target: int
    records: int
    metrics: ByStep
    counters: ByStep
    ended: bool
    kept: bytes
    ready: bytes = b""


def sink_task(path: Sequence[str], shipped: bytes, batch: int, told: bytes) -> Any:
    """Return the task for ``mapInArrow`` that runs sink subtasks; arguments as of :func:`deliver`."""

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import sys

        sys.path += [entry for entry in path if entry not in sys.path]
        from sluiceway_spark.structured.stages.sink_tasks import deliver

        yield from deliver(shipped, batch, told, batches)

    return task


# ---- in the Python workers ----------------------------------------------------------------------------------


def deliver(
    shipped: bytes, batch: int, told: bytes, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the sink subtasks that the rows are for, and yield their outcomes.

    Args:
        shipped: plan and services.
        batch: number of the micro-batch.
        told: which targets work in the driver, which have ended before, and what those of the batch before kept.
        batches: the rows, those of a target behind one another.
    """
    worker = _SinkWorker(shipped)
    with worker:
        here, over, restored = worker.load(told)
        yield from to_batches(worker.deliver(batch, here, over, restored, rows_in(batches)))


class _SinkWorker(StageWorker):
    """Task of Spark with sink subtasks."""

    def deliver(
        self,
        batch: int,
        here: frozenset[int],
        over: frozenset[int],
        restored: Mapping[int, bytes],
        rows: Iterable[Row],
    ) -> Iterator[Row]:
        """Run subtask after subtask."""
        plan = self._plan
        chain: SteppedTask | None = None
        target = -1
        for row in rows:
            if row.stage > plan.last_stage or row.target in here:
                yield row
                continue
            if row.target in over:
                continue
            if chain is None or row.target != target:
                if chain is not None:
                    yield self._done(chain, batch)
                target = row.target
                chain = self._chain = sink_chain(plan, target, self._services)
                open_sink(chain, restored.get(target))
            chain.feed(row.sender, plan.unpack(row.sender, row.payload))
        if chain is not None:
            yield self._done(chain, batch)

    def _done(self, chain: SteppedTask, batch: int) -> Row:
        delivered = finish_batch(self._plan, chain, batch)
        self._chain = None
        chain.close()
        return Row(self._plan.last_stage + DELIVERED, delivered.target, -1, 0, dump(delivered))


def sink_chain(plan: SteppedPlan, target: int, services: Services, *, own: bool = True) -> SteppedTask:
    """Return a sink subtask, to be opened by :func:`open_sink`."""
    vertex, subtask = plan.who(target)
    return SteppedTask(
        plan,
        vertex,
        subtask,
        state_backend=services.state_backend("memory"),
        clock=services.clock,
        services=services,
        own=own,
    )


def open_sink(chain: SteppedTask, kept: bytes | None) -> None:
    """Open a sink subtask with what it kept in the micro-batch before; None: it is its first."""
    if kept is None:
        chain.open()
        return
    with using(chain.plan.classes):
        snapshots, position = pickle.loads(kept)
    chain.open(snapshots, position)


def finish_batch(plan: SteppedPlan, chain: SteppedTask, batch: int) -> Delivered:
    """Finish a micro-batch of a sink subtask and return its outcome."""
    chain.settle()
    snapshots = chain.snapshot(batch + 1)
    committables = [committable for snapshot in snapshots for committable in snapshot.committables]
    kept: tuple[list[OperatorSnapshot], Position] = (
        [replace(snapshot, committables=()) for snapshot in snapshots],
        chain.position(),
    )
    return Delivered(
        plan.target(chain.vertex.id, chain.subtask),
        chain.records_to_sinks,
        chain.metrics(),
        chain.counters(),
        chain.ended,
        dumps_with_classes(kept),
        dumps_with_classes(committables) if committables else b"",
    )
