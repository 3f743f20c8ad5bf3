"""One region begins anew from a checkpoint, the others go on: what was handed out since comes to somebody once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from effort import diagonal

import sluiceway as sw
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Wait,
)
from sluiceway.engine import JobStatus
from sluiceway.testing import FailOnce, NumberFiles

SPLITS = 60
EACH = 50
COUNT = SPLITS * EACH


@dataclass(frozen=True)
class Hundred:
    number: int
    at: int = 0

    @property
    def split_id(self) -> str:
        return str(self.number)


class Hundreds(Source[int]):
    """Many small splits, handed out one by one, each a little at a time."""

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, map(Hundred, range(SPLITS)) if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _Reader(context)


class _Reader(SimpleReader[int]):
    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self._split = Hundred(0)
        self._rests = False

    def open_split(self, split: Hundred) -> None:
        self._split = split

    def read(self, limit: int) -> Poll[int]:
        self._rests = not self._rests
        if self._rests:
            return Wait(until=self.context.clock.monotonic() + 0.001)
        at = self._split.at
        if at == EACH:
            return END_OF_INPUT
        end = min(at + 10, EACH)
        self._split = replace(self._split, at=end)
        return [self._split.number * EACH + n for n in range(at, end)]

    def position(self) -> Hundred | None:
        return None if self._split.at == EACH else self._split

    def close_split(self) -> None:
        pass


@pytest.mark.parametrize(("workers", "parallelism"), diagonal([0, 2], [2, 3]))
def test_splits_come_to_somebody_once(workers: int, parallelism: int, tmp_path: Path) -> None:
    out = NumberFiles(tmp_path / "out")
    flow = sw.Pipeline("regions", parallelism=parallelism)
    failing = FailOnce(tmp_path, at=(COUNT // 4, COUNT // 2, COUNT - 5))
    flow.source(Hundreds()).map(failing).sink(out)
    result = flow.run(workers=workers, checkpoint_interval="15ms", restart="fixed-delay:5:2ms")
    assert result.status is JobStatus.FINISHED
    assert result.metrics.restarts == 3
    assert min(s.attempt for s in result.metrics.subtasks) < 3, "not all have begun anew each time"
    report = out.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
