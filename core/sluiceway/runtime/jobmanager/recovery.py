"""A job that goes on under another job manager: what of its checkpoints is there."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.checkpoints import CheckpointDirectory, CheckpointMetadata, read_enumerators, read_operators
from sluiceway.graph import JobGraph
from sluiceway.runtime.jobmanager.checkpoints import CompletedCheckpoint
from sluiceway.runtime.restoring import saved_key_groups
from sluiceway.runtime.snapshots import JobSnapshot, TaskSnapshot
from sluiceway.storage import CheckpointStorage

__all__ = ["Recovered", "recover"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What an earlier job manager has left of a job's checkpoints.

    Attributes:
        path: the directory of the run, in the storage.
        next_id: the number of the next checkpoint: higher than all before, complete or not.
        completed: the complete ones, oldest first, with what is written of each.
        snapshot: what the job goes on from; None: none was complete.
    """

    path: str
    next_id: int = 1
    completed: tuple[tuple[CompletedCheckpoint, CheckpointMetadata], ...] = ()
    snapshot: JobSnapshot | None = None


def recover(storage: CheckpointStorage, path: str, graph: JobGraph) -> Recovered:
    """Look for the checkpoints of a run. Blocks.

    If the newest one is damaged this does not fall back on an older one: what was committed with the newest would
    be committed once more.

    Args:
        storage: where they are.
        path: the directory of the run.
        graph: the job.

    Raises:
        CheckpointError: one cannot be read.
    """
    directory = CheckpointDirectory(storage, path)
    begun = [_number(file.name[len(path) + 1 :]) for file in storage.files(path)]
    next_id = max(begun, default=0) + 1
    completed = []
    for id_ in directory.ids():
        metadata = directory.load(id_)
        completed.append((_completed(metadata, graph), metadata))
    if not completed:
        return Recovered(path, next_id)
    latest = completed[-1][1]
    where = directory.directory(latest.checkpoint_id)
    enumerators = read_enumerators(storage, where, latest)
    snapshot = JobSnapshot(read_operators(storage, where, latest), enumerators, saved_key_groups(latest))
    return Recovered(path, next_id, tuple(completed), snapshot)


def _number(name: str) -> int:
    directory = name.partition("/")[0]
    number = directory.removeprefix("chk-")
    return int(number) if directory.startswith("chk-") and number.isdecimal() else 0


def _completed(metadata: CheckpointMetadata, graph: JobGraph) -> CompletedCheckpoint:
    ids = {vertex.uid: vertex.id for vertex in graph.vertices}
    tasks = {
        (ids[vertex.uid], entry.index): TaskSnapshot(
            (), drained=entry.finished, checkpoint_id=metadata.checkpoint_id, entry=entry
        )
        for vertex in metadata.vertices
        for entry in vertex.subtasks
    }
    return CompletedCheckpoint(metadata.checkpoint_id, metadata.triggered_ms, tasks, {})
