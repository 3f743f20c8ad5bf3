"""Keeping completed checkpoints in a storage, from which they can be read when everything else is gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from sluiceway.checkpoints import (
    CHECKPOINT,
    CheckpointDirectory,
    CheckpointMetadata,
    StateReader,
    StepEntry,
    SubtaskEntry,
    VertexEntry,
    read_operators,
    write_enumerators,
    write_subtask,
)
from sluiceway.clock import Clock
from sluiceway.graph import JobGraph, JobVertex
from sluiceway.runtime.background import Background
from sluiceway.runtime.jobmanager.checkpoints import CompletedCheckpoint
from sluiceway.runtime.jobmanager.jobcheckpoints import CheckpointKeeper, MemoryKeeper
from sluiceway.runtime.snapshots import JobSnapshot, TaskSnapshot
from sluiceway.storage import CheckpointStorage

__all__ = ["StorageKeeper", "keeper_of"]


def keeper_of(
    storage: CheckpointStorage | None,
    graph: JobGraph,
    job_id: str,
    clock: Clock,
    seed: int,
    background: Background,
) -> CheckpointKeeper:
    """Keeps the checkpoints of one run in a directory of its own in the storage, or in memory if there is none."""
    if storage is None:
        return MemoryKeeper()
    name = re.sub(r"[^\w.-]+", "-", job_id).strip(".-") or "job"
    directory = CheckpointDirectory(storage, f"{name}-{clock.now_ms()}-{seed & 0xFFFF:04x}")
    return StorageKeeper(directory, graph, job_id, clock, background)


class StorageKeeper(CheckpointKeeper):
    """Completes checkpoints of which the tasks have written their parts.

    Called in the job master's thread; what blocks is done beside it.

    Args:
        directory: of the run.
        graph: the job.
        job_id: its id.
        clock: for time stamps.
        background: does what blocks.
    """

    def __init__(
        self, directory: CheckpointDirectory, graph: JobGraph, job_id: str, clock: Clock, background: Background
    ) -> None:
        self.path = directory.path
        self._directory = directory
        self._graph = graph
        self._job_id = job_id
        self._clock = clock
        self._background = background
        self._metadata: dict[int, CheckpointMetadata] = {}

    def keep(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Write the metadata, which makes it complete."""

        def done(metadata: CheckpointMetadata, problem: BaseException | None) -> None:
            if problem is None:
                self._metadata[checkpoint.checkpoint_id] = metadata
            stored(problem)

        self._background.run(lambda: self._complete(checkpoint), done)

    def load(self, checkpoint: CompletedCheckpoint) -> JobSnapshot:
        """What a job goes on from: keyed state is read by those who need it."""
        id_ = checkpoint.checkpoint_id
        operators = read_operators(self._directory.storage, self._directory.directory(id_), self._metadata[id_])
        return JobSnapshot(operators, checkpoint.enumerators)

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Delete it, but for what others share with it."""
        self._metadata.pop(checkpoint.checkpoint_id, None)
        self._background.run(lambda: self._directory.discard(checkpoint.checkpoint_id), _whatever)

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Delete what was written for it. What it shares with others is for the collection of orphans."""
        entry = snapshot.entry
        if entry is not None:
            self._background.run(lambda: self._delete(checkpoint_id, entry), _whatever)

    def _complete(self, checkpoint: CompletedCheckpoint) -> CheckpointMetadata:
        directory = self._directory.directory(checkpoint.checkpoint_id)
        by_vertex: dict[int, list[SubtaskEntry]] = {}
        for where, snapshot in sorted(checkpoint.tasks.items()):
            if snapshot.checkpoint_id != checkpoint.checkpoint_id:
                snapshot = checkpoint.tasks[where] = self._copied(where, snapshot, checkpoint.checkpoint_id)
            assert snapshot.entry is not None
            by_vertex.setdefault(where[0], []).append(snapshot.entry)
        metadata = CheckpointMetadata(
            job_name=self._graph.job_name,
            job_id=self._job_id,
            checkpoint_id=checkpoint.checkpoint_id,
            kind=CHECKPOINT,
            triggered_ms=checkpoint.timestamp_ms,
            completed_ms=self._clock.now_ms(),
            vertices=tuple(_vertex(v, by_vertex.get(v.id, ())) for v in self._graph.vertices),
            enumerators=write_enumerators(self._directory.storage, directory, checkpoint.enumerators),
        )
        self._directory.complete(metadata)
        return metadata

    def _copied(self, where: tuple[int, int], snapshot: TaskSnapshot, checkpoint_id: int) -> TaskSnapshot:
        """The state of a task that has finished, written once more: the checkpoint that has it will be dropped."""
        assert snapshot.entry is not None
        storage = self._directory.storage
        reader = StateReader(storage, self._directory.directory(snapshot.checkpoint_id))
        entry = write_subtask(
            storage,
            self._directory.directory(checkpoint_id),
            f"{where[0]}-{where[1]}-finished.state",
            where[1],
            [reader.operator(operator) for operator in snapshot.entry.operators],
            finished=True,
            canonical=True,
        )
        return replace(snapshot, entry=entry, checkpoint_id=checkpoint_id)

    def _delete(self, checkpoint_id: int, entry: SubtaskEntry) -> None:
        directory = self._directory.directory(checkpoint_id)
        alone = CheckpointMetadata(
            job_name="",
            job_id="",
            checkpoint_id=checkpoint_id,
            kind=CHECKPOINT,
            triggered_ms=0,
            completed_ms=0,
            vertices=(VertexEntry(uid="", name="", parallelism=1, max_parallelism=1, subtasks=(entry,)),),
        )
        files = (f"{directory}/{name}" for name in alone.files() if not name.startswith("../"))
        self._directory.storage.delete(files)


def _vertex(vertex: JobVertex, subtasks: list[SubtaskEntry] | tuple[()]) -> VertexEntry:
    return VertexEntry(
        uid=vertex.uid,
        name=vertex.name,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism,
        steps=tuple(StepEntry(uid=n.uid, name=n.name, kind=n.step.kind) for n in vertex.nodes),
        subtasks=tuple(subtasks),
    )


def _whatever(result: object, problem: BaseException | None) -> None:
    """What could not be deleted is found by the collection of orphans."""
