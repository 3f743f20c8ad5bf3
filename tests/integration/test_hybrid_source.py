"""Jobs that read several sources one after the other, with failures and restores in any of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from effort import diagonal, first

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
from sluiceway.testing import FailOnce, InjectedError, NumberFiles

SPLITS = 20
EACH = 25
PART = SPLITS * EACH
COUNT = 3 * PART


@dataclass(frozen=True)
class Run:
    """The numbers from ``at`` up to ``stop``."""

    at: int
    stop: int

    @property
    def split_id(self) -> str:
        return str(self.stop)


class Runs(Source[int]):
    """The numbers from ``first`` on in many small splits, each read a little at a time."""

    def __init__(self, first: int) -> None:
        self.first = first

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        starts = range(self.first, self.first + PART, EACH)
        return SimpleEnumerator(context, [Run(n, n + EACH) for n in starts] if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return RunReader(context)


class RunReader(SimpleReader[int]):
    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self._split = Run(0, 0)
        self._rests = False

    def open_split(self, split: Run) -> None:
        self._split = split

    def read(self, limit: int) -> Poll[int]:
        self._rests = not self._rests
        if self._rests:
            return Wait(until=self.context.clock.monotonic() + 0.001)
        at, stop = self._split.at, self._split.stop
        if at == stop:
            return END_OF_INPUT
        end = min(at + 5, stop)
        self._split = replace(self._split, at=end)
        return list(range(at, end))

    def position(self) -> Run | None:
        return None if self._split.at == self._split.stop else self._split

    def close_split(self) -> None:
        pass


def three() -> sw.HybridSource[int]:
    return sw.HybridSource(Runs(0), lambda switch: Runs(PART), Runs(2 * PART), boundedness=Boundedness.BOUNDED)


@pytest.mark.parametrize(("workers", "parallelism"), diagonal([0, 2], [2, 3]))
@pytest.mark.parametrize("seed", first(2, range(12)))
def test_readers_that_fail_alone_lose_and_repeat_nothing(
    workers: int, parallelism: int, seed: int, tmp_path: Path
) -> None:
    # Each subtask is a region of its own: others go on, also to the next source, while one begins anew before it.
    at = random.Random(seed).sample(range(COUNT), 3)
    out = NumberFiles(tmp_path / "out")
    flow = sw.Pipeline("hybrid", parallelism=parallelism)
    flow.source(three()).map(FailOnce(tmp_path, at=(*at, PART, 2 * PART - 1, 2 * PART))).sink(out)
    result = flow.run(workers=workers, checkpoint_interval="15ms", restart="fixed-delay:9:2ms")
    assert result.status is JobStatus.FINISHED
    assert result.metrics.restarts >= 3
    report = out.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


@pytest.mark.parametrize("seed", first(3, range(20)))
def test_a_job_restored_with_another_parallelism_goes_on_in_the_same_source(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    out = NumberFiles(tmp_path / "out")
    at = sorted({*dice.sample(range(COUNT), 3), PART, 2 * PART})
    (tmp_path / "marks").mkdir()
    failures = 0
    while True:
        flow = sw.Pipeline("hybrid", parallelism=dice.choice([1, 2, 3, 5]))
        flow.source(three()).uid("in").map(FailOnce(tmp_path / "marks", at=at)).uid("fails").sink(out).uid("out")
        try:
            flow.run(
                checkpoint_interval="10ms",
                checkpoint_unaligned=dice.random() < 0.5,
                checkpoints=tmp_path / "kept",
                resume=failures > 0 and any((tmp_path / "kept").rglob("metadata.json")),
                restart="none",
            )
            break
        except InjectedError:
            failures += 1
    assert 0 < failures <= len(at)  # two subtasks may fail in one run
    report = out.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
