"""Checkpoints made of state that is put together by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from sluiceway.checkpoint import (
    CHECKPOINT,
    CheckpointDirectory,
    CheckpointMetadata,
    StepEntry,
    VertexEntry,
    write_subtask,
)
from sluiceway.clock import VirtualClock
from sluiceway.keygroups import KeyGroupRange
from sluiceway.network.channel_state import InFlight
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.state import BackendContext, KeyedSnapshot, StateBackend
from sluiceway_filesystem._local import LocalStorage
from sluiceway_memory._backend import MemoryStateBackend
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions

NOW_MS = 5_000
MAX_PARALLELISM = 128

Fill: TypeAlias = Callable[[KeyedStateStore], None]


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> StateBackend:
    """The memory backend; parametrized indirectly, another one."""
    if getattr(request, "param", "memory") == "memory":
        return MemoryStateBackend()
    return RocksDBStateBackend(RocksDBOptions(str(tmp_path / "databases")))


@pytest.fixture
def keyed(backend: StateBackend) -> Iterator[Callable[..., KeyedSnapshot]]:
    """Makes a snapshot of the keyed state of a subtask of several: ``keyed(fill, subtask, parallelism)``."""
    made = []

    def taken(fill: Fill, subtask: int = 0, parallelism: int = 1) -> KeyedSnapshot:
        groups = KeyGroupRange.of_subtask(subtask, parallelism, MAX_PARALLELISM)
        state = backend.create_keyed(BackendContext("op", subtask, groups, MAX_PARALLELISM))
        made.append(state)
        fill(KeyedStateStore(state, VirtualClock(NOW_MS)))
        return state.snapshot()

    yield taken
    for state in made:
        state.close()


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    """Writes a checkpoint: ``save([snapshots of subtask 0], [of subtask 1], ...)``. Returns its path."""

    def write(
        *subtasks: list[OperatorSnapshot],
        attachments: dict[str, bytes] | None = None,
        in_flight: Iterable[InFlight] = (),
        kind: str = "process",
        stateless: Iterable[str] = (),
    ) -> str:
        run = CheckpointDirectory(LocalStorage(str(tmp_path / "place")), "run")
        entries = tuple(
            write_subtask(
                run.storage,
                run.directory(1),
                f"0-{index}.state",
                index,
                snapshots,
                attachments=attachments,
                in_flight=[part for part in in_flight if part.consumer == index],
            )
            for index, snapshots in enumerate(subtasks)
        )
        uids = dict.fromkeys([*(snapshot.uid for snapshots in subtasks for snapshot in snapshots), *stateless])
        vertex = VertexEntry(
            uid=next(iter(uids)),
            name="all of it",
            parallelism=len(subtasks),
            max_parallelism=MAX_PARALLELISM,
            steps=tuple(StepEntry(uid=uid, name=f"step {uid}", kind=kind) for uid in uids),
            subtasks=entries,
        )
        run.complete(
            CheckpointMetadata(
                job_name="job",
                job_id="run",
                checkpoint_id=1,
                kind=CHECKPOINT,
                triggered_ms=1_000,
                completed_ms=1_250,
                vertices=(vertex,),
            )
        )
        return str(tmp_path / "place/run/chk-1")

    return write
