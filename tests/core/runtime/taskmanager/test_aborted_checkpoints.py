"""Files of checkpoints that are aborted one after the other, so that none is ever complete."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import sluiceway as sw
from sluiceway.checkpoint import SubtaskEntry
from sluiceway.connector.lib import DiscardSink, GeneratorSource
from sluiceway.errors import CheckpointError
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.snapshot import TaskSnapshot
from sluiceway.runtime.taskmanager.snapshot_writer import StorageWriter
from sluiceway.testing import PipelineHarness


def entries_in_memory() -> int:
    gc.collect()
    return sum(type(each) is SubtaskEntry for each in gc.get_objects())


def test_nothing_grows_with_the_number_of_aborted_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = 0, StorageWriter.write

    def half(self: StorageWriter, deployment: TaskDeployment, id_: int, taken: TaskSnapshot) -> TaskSnapshot:
        nonlocal written
        if deployment.subtask:
            raise CheckpointError("no room on this disk")
        written += 1
        return write(self, deployment, id_, taken)

    monkeypatch.setattr(StorageWriter, "write", half)
    flow = sw.Pipeline("no room")
    flow.source(GeneratorSource(rate=10.0)).key_by(lambda n: n % 8).count().sink(DiscardSink())
    options = {"checkpoint_interval": "1s", "checkpoint_tolerated_failures": 1 << 30, "parallelism": 2}
    with PipelineHarness(flow, **options) as harness:
        harness.advance(60_000)
        before, written = entries_in_memory(), 0
        harness.advance(60_000)
        assert written > 50
        assert entries_in_memory() <= before


class Listens(sw.MapFunction[int, int], sw.CheckpointListener):
    told: list[int]

    def map(self, value: int) -> int:
        return value

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.told.append(checkpoint_id)


def test_functions_are_notified_once_of_an_aborted_checkpoint(tmp_path: Path) -> None:
    Listens.told = []
    flow = sw.Pipeline("no place")
    flow.source(GeneratorSource(rate=10.0)).map(Listens()).sink(DiscardSink())
    (tmp_path / "file").touch()
    failed: list[BaseException | None] = []
    with PipelineHarness(flow) as harness:
        harness.advance(1_000)
        place = str(tmp_path / "file/savepoints")
        harness._job.savepoint(place, stop=True, done=lambda _, why: failed.append(why))
        harness.run_until(lambda: bool(failed))
        harness.advance(120_000)  # in which lost notifications are repeated
        assert isinstance(failed[0], CheckpointError)
        assert Listens.told == [1]
