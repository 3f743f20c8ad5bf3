"""What the source stage of a streaming query does, without Spark: in the driver, and in a Python worker."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle

from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.connector import Reader, ReaderContext
from sluiceway.engine import Services
from sluiceway.errors import CheckpointError
from sluiceway.runtime.cluster.shipping import load
from sluiceway.runtime.embedded import EmbeddedChain, EmbeddedPlan
from sluiceway.runtime.microbatch.planner import BatchLimits, BatchPlanner
from sluiceway.runtime.microbatch.reading import BatchReader, BatchWork, ReaderCache
from sluiceway.runtime.microbatch.sidefiles import SideFiles
from sluiceway.runtime.microbatch.stored import readable
from sluiceway.steps import SourceStep
from sluiceway.storage import CheckpointStorage
from sluiceway_sparkengine.structured.progress import did_since, told
from sluiceway_sparkengine.structured.rows import Row
from sluiceway_sparkengine.structured.stages import pack_rows, sent

__all__ = [
    "SourcePart",
    "SourcePlanning",
    "SourceStage",
    "read_due",
    "read_part",
    "sources_ended",
    "sources_read",
    "stop_sources",
    "write_due",
]

_ENDED: Final = "sources/ended"
_STOP: Final = "sources/stop"
_DUE: Final = "sources/due"
_LOOK_S: Final = 0.05
"""So long a planner waits for its source before others are asked."""
_MANY: Final = 1 << 16
_FULL: Final = 1 << 12

# In a Python worker: readers that are open between batches, and the plan of the job that it has worked for last.
_readers: Final = ReaderCache()
_plans: dict[int, tuple[bytes, EmbeddedPlan, Services]] = {}


@dataclass(frozen=True)
class SourceStage:
    """What the source stage is made of. Picklable.

    Attributes:
        shipped: the plan and the services, as ``stages.ship`` makes them.
        directory: the job's, with all files beside Spark's checkpoint.
        limits: how much a batch is to be.
        path: the driver's ``sys.path``, where executors may find the user's modules.
    """

    shipped: bytes
    directory: str
    limits: BatchLimits
    path: tuple[str, ...]

    def open(self) -> tuple[EmbeddedPlan, Services, CheckpointStorage]:
        """What it stands for."""
        sys.path += [entry for entry in self.path if entry not in sys.path]
        found = _plans.get(0)
        if found is None or found[0] != self.shipped:
            found = _plans[0] = (self.shipped, *load(self.shipped, lambda number: None))
        _, plan, services = found
        return plan, services, services.checkpoint_storage(self.directory)


def sources_ended(storage: CheckpointStorage) -> bool:
    """Whether all sources have come to their end, and Spark has committed the last batch."""
    return any(True for _ in storage.files(_ENDED))


def stop_sources(storage: CheckpointStorage, stop: bool = True) -> None:
    """Have all sources come to their end with the next batch, or no longer. Raises CheckpointError."""
    if stop:
        storage.create(f"{_STOP}/asked", [b""])
    else:
        storage.delete([file.name for file in storage.files(_STOP)])


def sources_read(storage: CheckpointStorage, plan: EmbeddedPlan, run: str, batch: int) -> dict[int, int]:
    """How many records were read in a batch, by source vertex; as far as it was read."""
    return {
        vertex: sum(
            read.count
            for reader in range(plan.graph.vertex(vertex).parallelism)
            if (read := _files(storage, plan, vertex, run).read(batch, reader)) is not None
        )
        for vertex in plan.sources
    }


def _files(storage: CheckpointStorage, plan: EmbeddedPlan, vertex: int, run: str) -> SideFiles:
    return SideFiles(storage, f"sources/{plan.graph.vertex(vertex).uid}/{run}")


def write_due(storage: CheckpointStorage, due_ms: int | None) -> None:
    """Note when subtasks will have something to do without any input, for who plans the next micro-batch.

    Args:
        storage: the job's directory.
        due_ms: ms since the epoch; None: they will not.
    """
    storage.write(_DUE, [b"" if due_ms is None else str(due_ms).encode()])


def read_due(storage: CheckpointStorage) -> int | None:
    """What :func:`write_due` was given last; None also if that was never."""
    try:
        return int(storage.read(_DUE) or 0) or None
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


@dataclass(frozen=True, slots=True)
class SourcePart:
    """One reader's part of one batch.

    Attributes:
        vertex: id of the source's vertex.
        reader: number of the reader.
        run: names the run.
        work: what it is to read; None: it has ended.
    """

    vertex: int
    reader: int
    run: str
    work: BatchWork | None


class SourcePlanning:
    """The sources of a job in the driver, in one run of the query after all that were before."""

    def __init__(self, stage: SourceStage, run: str) -> None:
        self.plan, _, self._storage = stage.open()
        self._run = run
        self._wait_s = stage.limits.wait_s
        self._clock = SystemClock()
        self._is_first = True
        self._planners: dict[int, BatchPlanner] = {}
        for vertex in self.plan.sources:
            head = self.plan.graph.vertex(vertex)
            assert isinstance(head.head.step, SourceStep)
            files = _files(self._storage, self.plan, vertex, run)
            source = head.head.step.source
            self._planners[vertex] = BatchPlanner(source, files, head.parallelism, limits=stage.limits)

    def next(self, start: dict[str, Any]) -> dict[str, Any]:
        """The offset behind the next batch; the same if there will be none."""
        batch = int(start["batch"])
        if all(planner.ended(batch) for planner in self._planners.values()):
            self._storage.create(f"{_ENDED}/{self._run}", [str(batch).encode()])
            return start
        stops = any(True for _ in self._storage.files(_STOP))
        if not stops and not self._is_wanted(batch + 1):
            return start
        self._is_first = False
        for planner in self._planners.values():
            planner.plan(batch + 1, always=True, wait_s=0.0, stops=stops)
        return {"run": self._run, "batch": batch + 1}

    def _is_wanted(self, batch: int) -> bool:
        """Whether there is anything to do in a batch: waits a moment for that.

        The first of a query tells when subtasks will have something to do without any input, so it is always.
        """
        until = self._clock.monotonic() + self._wait_s
        while not self._is_first:
            for planner in self._planners.values():
                if planner.plan(batch, tells_end=True, looks=True, wait_s=_LOOK_S) is not None:
                    return True
            due_ms = read_due(self._storage)
            if due_ms is not None and due_ms <= self._clock.now_ms():
                return True
            if self._clock.monotonic() >= until:
                return False
        return True

    def partitions(self, batch: int) -> list[SourcePart]:
        """One for each reader, those that have ended included."""
        parts = []
        for vertex, planner in self._planners.items():
            works = {work.reader: work for work in planner.work(batch)}
            parts += [SourcePart(vertex, r, self._run, works.get(r)) for r in range(planner.readers)]
        return parts

    def committed(self, batch: int) -> None:
        """Spark has committed a batch."""
        for planner in self._planners.values():
            planner.committed(batch)

    def close(self) -> None:
        """Close the enumerators."""
        for planner in self._planners.values():
            planner.close()


def read_part(stage: SourceStage, part: SourcePart) -> Iterator[Row]:
    """The rows of one subtask in one batch."""
    try:
        plan, services, storage = stage.open()
        silent = {
            (route.sender, route.target): Row(route.stage, route.target, route.sender, -1, b"")
            for route in plan.routes_from(part.vertex, part.reader)
        }
        if part.work is not None:
            files = _files(storage, plan, part.vertex, part.run)
            for row in _run(plan, services, files, part.vertex, part.work):
                silent.pop((row.sender, row.target), None)
                yield row
        yield from silent.values()
    except Exception as error:
        raise sent(error) from None


def _run(plan: EmbeddedPlan, services: Services, files: SideFiles, vertex: int, work: BatchWork) -> Iterator[Row]:
    before = files.read(work.batch - 1, work.reader) if work.batch > 1 else None
    head = plan.graph.vertex(vertex).head.step
    assert isinstance(head, SourceStep)
    clock = VirtualClock(0)
    clock.advance(work.time_ms - work.silent_ms)
    source = readable(head.source, files)
    # Splits that are not begun must not hold watermarks back: the chain hears of one when the reader gets it.
    reader = BatchReader(source, work, files, cache=_readers, given=lambda splits: chain.add_splits(splits))

    def create(context: ReaderContext) -> Reader[Any]:
        return reader

    chain = EmbeddedChain(
        plan,
        vertex,
        work.reader,
        state_backend=services.state_backend("memory"),
        clock=clock,
        services=services,
        reader=create,
        calls_clock=SystemClock(),
    )
    try:
        restored, position = pickle.loads(before.payload) if before is not None else ((), None)
        chain.open(restored, position)
        clock.advance(work.silent_ms)  # and no further: who repeats the batch has the same time
        while not chain.read(_MANY, lambda: reader.over or chain.waiting >= _MANY) and not reader.over:
            yield from pack_rows(plan, chain.take(_FULL) or chain.take())
        if not chain.ended:  # watermarks that are made now and then are made now
            clock.advance(plan.settings.auto_watermark_interval_ms)
            chain.read(1, _once())
        chain.settle()
        snapshots = chain.snapshot(work.batch)
        rest = list(pack_rows(plan, chain.take()))
        reader.finish(cloudpickle.dumps((snapshots, chain.position())))
        yield from rest
        yield told(plan, did_since(plan, chain, (0, 0)))
    finally:
        chain.close()


def _once() -> Callable[[], bool]:
    answers = iter([False])
    return lambda: next(answers, True)
