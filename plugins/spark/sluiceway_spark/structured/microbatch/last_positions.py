"""Positions at which a query has ended, for sources that publish them, as to a group of Kafka."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import SystemClock
from sluiceway.runtime.microbatch.batch_log import BatchLog
from sluiceway.runtime.microbatch.batch_reader import LiveReader
from sluiceway.runtime.microbatch.planner import BatchPlanner
from sluiceway.runtime.stepped import SteppedPlan
from sluiceway.steps import SourceStep
from sluiceway_spark.structured.microbatch.planning import publish_ends
from sluiceway_spark.structured.microbatch.source_spec import batch_files

__all__ = ["publish_last_positions"]

_log: Final = logging.getLogger("sluiceway_spark")


def publish_last_positions(storage: CheckpointStorage, plan: SteppedPlan, progress: Mapping[str, Any]) -> None:
    """Notify the sources of a query that its last micro-batch is complete, as no further one does.

    Failures are logged: the output is committed, and nothing depends on what is published.

    Args:
        storage: the job's directory.
        plan: the job.
        progress: of the last micro-batch, from Spark.
    """
    for vertex in plan.sources:
        step = plan.graph.vertex(vertex).head.step
        assert isinstance(step, SourceStep)
        if not step.source.commits_positions:
            continue
        try:
            files, batch = _last_batch(storage, plan, vertex, json.loads(progress["sources"][0]["endOffset"]))
            readers = plan.graph.vertex(vertex).parallelism
            with closing(BatchPlanner(step.source, files, readers)) as planner:
                publish_ends(planner, batch)
            if splits := _splits_after(files, batch, readers):
                live = LiveReader(step.source, 0, 1, SystemClock(), splits)
                try:
                    live.reader.checkpoint_completed(live.snapshot())
                finally:
                    live.close()
        except Exception:
            _log.warning("positions of %s at its end were not published", step.source.name, exc_info=True)


def _last_batch(
    storage: CheckpointStorage, plan: SteppedPlan, vertex: int, end: Mapping[str, Any]
) -> tuple[BatchLog, int]:
    """Return the files of a source and the last batch in which it was read, as of an offset of the query."""
    files, batch = batch_files(storage, plan, vertex, end["run"]), int(end["batch"])
    planned = files.plan(batch)
    if planned is not None and planned.stops:  # nothing was read in it, and readers have no splits behind it
        batch -= 1
    return files, batch


def _splits_after(files: BatchLog, batch: int, readers: int) -> list[Any]:
    """Return the splits that all readers of a source have begun and not finished behind a batch."""
    reads = [files.read(batch, reader) for reader in range(readers)]
    return [split for read in reads if read is not None for split in read.splits[: len(read.splits) - read.queued]]
