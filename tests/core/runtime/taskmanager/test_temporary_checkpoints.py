"""Checkpoints of a job that names no place for them: files that go with the job, and small acknowledgements."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.connector import TwoPhaseCommitSink, WriterContext
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.runtime.cluster import connection as connections
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.protocol import encode
from sluiceway.runtime.taskmanager.snapshot_writer import TemporaryWriter
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage
from sluiceway.testing import NumberFiles
from sluiceway.testing.conformance.checkpoint_storage import CheckpointStorageConformance
from sluiceway.testing.simulation import Simulation


class TestTemporaryStorage(CheckpointStorageConformance):
    def make_storage(self) -> CheckpointStorage:
        return TemporaryStorage(str(self.tmp_path / "kept"))


def failing_once(at: int, marks: Path) -> Callable[[int], int]:
    def check(value: int) -> int:
        mark = marks / str(at)
        if value == at and not mark.exists():
            mark.touch()
            raise ValueError(value)
        return value

    return check


class Here:
    """An object of this process: it can be copied, and not be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __deepcopy__(self, memo: object) -> Here:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("an object of this process")


class HereFiles(TwoPhaseCommitSink[int, Here]):
    """Number files whose transactions cannot be pickled."""

    def __init__(self, directory: Path) -> None:
        self._files = NumberFiles(directory)

    def open(self, context: WriterContext) -> None:
        self._files.open(context)

    def begin_transaction(self) -> Here:
        return Here(self._files.begin_transaction())

    def write(self, transaction: Here, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        self._files.write(transaction.name, values, timestamps)

    def pre_commit(self, transaction: Here) -> None:
        self._files.pre_commit(transaction.name)

    def commit(self, transaction: Here) -> None:
        self._files.commit(transaction.name)

    def abort(self, transaction: Here) -> None:
        self._files.abort(transaction.name)

    def abort_unknown(self) -> None:
        self._files.abort_unknown()


def test_in_one_process_state_is_in_files_and_objects_stay_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[int, int]] = []
    write = TemporaryWriter.write

    def noted(self: TemporaryWriter, *arguments: Any) -> Any:
        snapshot = write(self, *arguments)
        assert snapshot.entry is not None
        assert all(operator.keyed is None for operator in snapshot.operators)
        found = sum(file.size for file in self._storage.files())
        written.append((sum(len(operator.committables) for operator in snapshot.operators), found))
        return snapshot

    monkeypatch.setattr(TemporaryWriter, "write", noted)
    flow = sw.Pipeline("here", parallelism=2)
    numbers = flow.source(GeneratorSource(count=40_000)).map(failing_once(20_001, tmp_path))
    sink = HereFiles(tmp_path / "out")
    numbers.key_by(lambda n: n % 5).reduce(lambda a, b: b).sink(sink)
    result = flow.run(checkpoint_interval="2ms", restart="fixed-delay:1:0ms")
    assert (result.status, result.metrics.restarts) == (JobStatus.FINISHED, 1)
    report = NumberFiles(tmp_path / "out").report(40_000)
    assert not report.lost
    assert not report.duplicates
    assert max(objects for objects, _ in written) > 0
    assert max(size for _, size in written) > 0


@pytest.mark.parametrize("crashes", [0, 2])
def test_between_processes_no_state_travels_in_acknowledgements(
    crashes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, list[int]] = {}

    def noted(message: Message) -> bytes:
        data = encode(message)
        sizes.setdefault(type(message).__name__, []).append(len(data))
        return data

    monkeypatch.setattr(connections, "encode", noted)
    flow = sw.Pipeline("large", parallelism=2)
    numbers = flow.source(GeneratorSource(count=60, rate=1000.0)).map(lambda n: (n % 3, "x" * 100_000))
    results = numbers.key_by(lambda pair: pair[0]).reduce(lambda a, b: b).map(lambda pair: pair[0]).collect()
    simulation = Simulation(
        flow, seed=5, crashes=crashes, checkpoint_interval="5ms", restart="fixed-delay:99:10ms", batch_size=4
    )
    result = simulation.run()
    assert result.status is JobStatus.FINISHED, result.failure
    assert set(results) == {0, 1, 2}
    assert "StoreStatePart" not in sizes
    assert len(sizes["AcknowledgeCheckpoint"]) > 4
    assert max(sizes["AcknowledgeCheckpoint"]) < 10_000


def test_nothing_is_left_of_a_job_that_has_failed(tmp_path: Path) -> None:
    flow = sw.Pipeline("fails")
    numbers = flow.source(GeneratorSource(count=40_000)).map(failing_once(20_001, tmp_path))
    numbers.key_by(lambda n: n % 5).count().collect()
    before = set(os.listdir(tmp_path.parent))
    with pytest.raises(ValueError, match="20001"):
        flow.run(checkpoint_interval="2ms", restart="none")
    assert set(os.listdir(tmp_path.parent)) == before
