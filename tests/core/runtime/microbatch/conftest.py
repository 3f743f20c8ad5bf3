"""An engine that reads sources batch by batch, driven by hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.connector import END_OF_INPUT, Source, Wait
from sluiceway.elements import Batch
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.batch_log import BatchLog, BatchRead
from sluiceway.runtime.microbatch.batch_reader import BatchReader, BatchWork, ReaderCache
from sluiceway.runtime.microbatch.planner import BatchPlanner
from sluiceway_filesystem._local import LocalStorage

QUICK = BatchLimits(records=10, wait_s=0.05, linger_s=0.01, time_s=2.0)


def values_of(got: list[Any]) -> list[Any]:
    return [value for values, _, _ in got[:-1:3] for value in values]


class Driver:
    """An engine that runs one batch after the other, and whose driver may begin anew at any time."""

    def __init__(
        self,
        source: Source[Any],
        storage: CheckpointStorage,
        readers: int = 2,
        *,
        limits: BatchLimits = QUICK,
        cache: ReaderCache | None = None,
    ) -> None:
        self.source = source
        self.files = BatchLog(storage, "run")
        self.readers = readers
        self.limits = limits
        self.cache = cache
        self.program = "first"
        self.batch = 0
        self.given: list[Any] = []
        self.in_columns: set[bool] = set()
        self.planner = self._planner()

    def _planner(self) -> BatchPlanner:
        return BatchPlanner(self.source, self.files, self.readers, limits=self.limits)

    def restart(self) -> None:
        self.planner.close()
        self.planner = self._planner()

    def close(self) -> None:
        self.planner.close()
        if self.cache is not None:
            self.cache.close()

    def attempt(self, work: BatchWork, most: int | None = None) -> tuple[list[Any], BatchRead | None]:
        """Read what a reader has to; ``most`` batches of records and then die."""
        work = pickle.loads(pickle.dumps(work))
        reader = BatchReader(self.planner.source, work, self.files, cache=self.cache, program=self.program)
        got: list[Any] = []
        try:
            reader.start()
            while not isinstance(result := reader.poll(4), Wait) and result is not END_OF_INPUT:
                values = result.values if isinstance(result, Batch) else result
                stamps = result.timestamps if isinstance(result, Batch) else None
                self.in_columns.add(isinstance(result, Batch) and result.columns is not None)
                got.append((tuple(values), None if stamps is None else tuple(stamps), reader.current_split_id))
                got.append(tuple(reader.finished_splits()))
                got.append(frozenset(reader.waiting_splits()))
                if most is not None and len(got) >= 3 * most:
                    return got, None
            got.append(tuple(reader.finished_splits()))
            return got, reader.finish(b"payload")
        finally:
            reader.close()

    def run_batch(self, **options: Any) -> bool:
        """One batch, all goes well. False: there was nothing to plan."""
        plan = self.planner.plan(self.batch + 1, **options)
        if plan is None:
            return False
        self.batch += 1
        for work in self.planner.work(self.batch):
            got, _ = self.attempt(work)
            self.given += values_of(got)
        self.planner.committed(self.batch)
        return True


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return LocalStorage(str(tmp_path / "positions"))


@pytest.fixture
def drive() -> type[Driver]:
    """``drive(source, storage)`` drives it."""
    return Driver
