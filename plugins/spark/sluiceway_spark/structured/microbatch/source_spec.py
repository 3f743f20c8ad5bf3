"""Specification of the source stage, sent to Python workers, and the part of each reader in a micro-batch."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.engine import Services
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.batch_log import BatchLog
from sluiceway.runtime.microbatch.batch_reader import BatchWork
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway_spark.structured.stages.batch_tasks import load_plan

__all__ = ["SourcePart", "SourceStage", "batch_files"]

# In a Python worker: the plan of the job that it has worked for last.
_plans: dict[int, tuple[bytes, SteppedPlan, Services]] = {}


@dataclass(frozen=True)
class SourceStage:
    """Specification of the source stage; picklable.

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

    def open(self) -> tuple[SteppedPlan, Services, CheckpointStorage]:
        """Return plan, services and storage; the plan is cached per process."""
        sys.path += [entry for entry in self.path if entry not in sys.path]
        found = _plans.get(0)
        if found is None or found[0] != self.shipped:
            found = _plans[0] = (self.shipped, *load_plan(self.shipped))
        _, plan, services = found
        return plan, services, services.checkpoint_storage(self.directory)


@dataclass(frozen=True, slots=True)
class SourcePart:
    """Part of one reader in a micro-batch.

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


def batch_files(storage: CheckpointStorage, plan: SteppedPlan, vertex: int, run: str) -> BatchLog:
    """Return the files of the micro-batches of one source in one run of the query."""
    return BatchLog(storage, f"sources/{plan.graph.vertex(vertex).uid}/{run}", plan.classes)
