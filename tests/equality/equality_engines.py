"""Where a pipeline can run, as options of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.engine import JobStatus

__all__ = ["IN_PROCESS", "ON_SPARK", "OTHERS", "Engine"]


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

    def run(self, flow: sw.Pipeline, place: Path) -> None:
        """Run to the end; the pipeline must not say its parallelism."""
        result = flow.run(parallelism=self.parallelism, **self.options(place))
        assert result.status is JobStatus.FINISHED

    @property
    def parameter(self) -> Any:
        return pytest.param(self, marks=self.marks, id=self.name)


_SPARK = (pytest.mark.spark, pytest.mark.timeout(600))

IN_PROCESS = Engine("in process", 1)
"""What the others are compared with: one subtask of everything."""

OTHERS = [
    Engine("in process, three subtasks", 3, lambda place: {"batch_size": 2}),
    Engine("two workers", 2, lambda place: {"workers": 2}),
]

ON_SPARK = [
    Engine("spark, bounded", 2, lambda place: {"engine": "spark"}, _SPARK, loops=False),
    Engine("spark, hosted", 2, lambda place: {"engine": "spark", "hosted": True, "workers": 2}, _SPARK),
]
