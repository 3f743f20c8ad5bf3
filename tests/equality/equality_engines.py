"""Where a pipeline can run, as options of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

__all__ = ["HAS_MICRO_BATCHES", "IN_PROCESS", "ON_SPARK", "OTHERS", "Engine"]

HAS_MICRO_BATCHES = pytest.mark.skipif(
    too_old(MICRO_BATCHES) is not None, reason=f"micro-batches: {too_old(MICRO_BATCHES)}"
)
"""Skips a test where PySpark is too old for it."""


@dataclass(frozen=True)
class Engine:
    """A way to run.

    Attributes:
        name: what tests call it.
        parallelism: of steps that do not say.
        options: given a new directory, those of the run.
        marks: what its tests are marked with.
        loops: whether records can go round.
    """

    name: str
    parallelism: int
    options: Callable[[Path], dict[str, Any]] = lambda place: {}
    marks: tuple[Any, ...] = ()
    loops: bool = True

    def __str__(self) -> str:
        return self.name

    def run(self, flow: sw.Pipeline, place: Path, batch: int = 15, several: bool = True) -> int:
        """Run to the end; the pipeline must not say its parallelism. How many records were read.

        Args:
            flow: what to run.
            place: a directory, for what the engine keeps.
            batch: so many records at the most are in a micro-batch of each source's reader, where there are any.
            several: whether the input is enough for more than one of them.
        """
        options = self.options(place)
        with _micro_batches(batch) if "checkpoints" in options else nullcontext():
            result = flow.run(parallelism=self.parallelism, **options)
        assert result.status is JobStatus.FINISHED
        if "checkpoints" in options:
            first = min(subtask.vertex_id for subtask in result.metrics.subtasks)  # a source
            most = max(one.records_in for one in result.metrics.subtasks if one.vertex_id == first)
            assert result.metrics.micro_batches >= max(2 if several else 1, -(-most // batch)), result.metrics
        return result.metrics.records_in

    @property
    def parameter(self) -> Any:
        return pytest.param(self, marks=self.marks, id=self.name)


def _micro_batches(records: int) -> Any:
    """So few records a reader that there are several micro-batches."""
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured import streaming_query

    return patch.object(streaming_query, "LIMITS", BatchLimits(records=records, wait_s=0.1, linger_s=0.05))


_SPARK = (pytest.mark.spark, pytest.mark.timeout(600))

IN_PROCESS = Engine("in process", 1)
"""What the others are compared with: one subtask of everything."""

OTHERS = [
    Engine("in process, three subtasks", 3, lambda place: {"batch_size": 2}),
    Engine("two workers", 2, lambda place: {"workers": 2}),
]

ON_SPARK = [
    Engine("spark, bounded", 2, lambda place: {"engine": "spark"}, _SPARK, loops=False),
    Engine(
        "spark, micro-batches",
        2,
        lambda place: {"engine": "spark", "checkpoints": place / "kept"},
        (*_SPARK, HAS_MICRO_BATCHES),
        loops=False,
    ),
    Engine("spark, hosted", 2, lambda place: {"engine": "spark", "hosted": True, "workers": 2}, _SPARK),
]
