"""Files of checkpoints that were given up, of workers that have ended before they told of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import sluiceway as sw
from sluiceway.checkpoint import CheckpointDirectory, NativeFileEntry, SubtaskEntry
from sluiceway.checkpoint.metadata import KeyedEntry, NativeEntry, OperatorEntry
from sluiceway.clock import VirtualClock
from sluiceway.plugins import default_manager
from sluiceway.runtime.jobmanager.checkpoint_records import CompletedCheckpoint
from sluiceway.runtime.jobmanager.checkpoint_store import SavepointCheckpointStore, StorageCheckpointStore
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.runtime.loop.blocking_io import Inline
from sluiceway.runtime.task.snapshot import TaskSnapshot

SERVICES = default_manager().services()


class Stores:
    def __init__(self, place: Path) -> None:
        self.place = place
        flow = sw.Pipeline("job")
        flow.from_collection(range(10)).print()
        graph, clock = job_graph_of(flow.graph(), SERVICES), VirtualClock()
        background = Inline(lambda action: action())
        directory = CheckpointDirectory(SERVICES.checkpoint_storage(str(place)), "run")
        self.checkpoints = StorageCheckpointStore(directory, graph, "job-1", clock, background)
        self.savepoints = SavepointCheckpointStore(SERVICES, graph, "job-1", background, self.checkpoints)

    def write(self, name: str) -> None:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"state")

    def keep(self, number: int) -> None:
        problems: list[BaseException | None] = []
        self.checkpoints.keep(CompletedCheckpoint(number, 0, {}, {}), problems.append)
        assert problems == [None]

    @property
    def files(self) -> set[str]:
        return {str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.is_file()}


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_they_go_with_the_next_complete_checkpoint(stores: Stores) -> None:
    for number in (3, 5):
        stores.write(f"run/chk-{number}/0-0-0.state")
    stores.write("run/shared/of-others")
    stores.checkpoints.discard_rest(3, "")
    assert "run/chk-3/0-0-0.state" in stores.files, "others may still write there"
    stores.keep(4)
    kept = {"run/chk-5/0-0-0.state", "run/shared/of-others"}
    assert stores.files == {*kept, "run/chk-4/metadata.json"}
    # Only once: listing a storage may be slow.
    stores.write("run/chk-3/0-0-0.state")
    stores.keep(6)
    assert stores.files == {*kept, *(f"run/chk-{n}/metadata.json" for n in (4, 6)), "run/chk-3/0-0-0.state"}


def test_those_of_a_savepoint_go_at_once(stores: Stores) -> None:
    for number in (3, 4):
        stores.write(f"savepoint-job-1-100-{number}/0-0-0.state")
    stores.savepoints.discard_rest(3, str(stores.place / "savepoint-job-1-100-3"))
    assert stores.files == {"savepoint-job-1-100-4/0-0-0.state"}


def test_shared_files_are_known_once_however_many_checkpoints_are_aborted(stores: Stores) -> None:
    name = "x" * 200

    def abort(number: int) -> None:
        shared = NativeFileEntry(name="x", file=f"../shared/{name}", size=5, crc32=0, shared=True)
        native = NativeEntry(format="rows", start=0, end=8, files=(shared,))
        entry = SubtaskEntry(
            index=0, operators=(OperatorEntry(uid="step", keyed=KeyedEntry(tables=(), native=native)),)
        )
        stores.checkpoints.discard_part(number, TaskSnapshot((), checkpoint_id=number, entry=entry))
        stores.checkpoints.discard_rest(number, "")

    stores.write(f"run/shared/{name}")
    abort(1)
    tracemalloc.start()
    try:
        for number in range(2, 1000):
            abort(number)
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()
    assert f"run/shared/{name}" in stores.files
    stores.keep(1000)
    assert stores.files == {"run/chk-1000/metadata.json"}
