"""Recovery of a job's checkpoints under another job manager."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from sluiceway.checkpoint import (
    METADATA,
    CheckpointDirectory,
    CheckpointMetadata,
    checkpoint_number,
    encode_metadata,
    find_checkpoints,
    load_metadata,
    read_enumerators,
    read_in_flight,
    read_operators,
    split_location,
)
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError
from sluiceway.graph import JobGraph
from sluiceway.runtime.jobmanager.checkpoint_coordinator import CompletedCheckpoint
from sluiceway.runtime.jobmanager.metadata_checks import saved_key_groups
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot
from sluiceway.util.file_names import file_name

__all__ = ["Recovered", "find_last_savepoint", "mark_left_behind", "recover"]


class Recovered(msgspec.Struct, frozen=True):
    """Checkpoints of a job from an earlier job manager.

    Attributes:
        path: directory of the run in the storage.
        next_id: id of the next checkpoint, higher than all earlier ones, complete or not.
        completed: complete checkpoints, oldest first, with their metadata.
        snapshot: snapshot to restore; None: no checkpoint was complete.
        savepoint: path or URL of the final savepoint, which is restored instead.
    """

    path: str
    next_id: int = 1
    completed: tuple[tuple[CompletedCheckpoint, CheckpointMetadata], ...] = ()
    snapshot: JobSnapshot | None = None
    savepoint: str = ""

    @property
    def latest(self) -> int:
        """Return the id of the last complete checkpoint; 0: none."""
        return self.completed[-1][0].checkpoint_id if self.completed else 0

    def from_savepoint(self, location: str, number: int) -> Recovered:
        """Restore a savepoint; the checkpoints before it are useless then."""
        return Recovered(self.path, max(self.next_id, number + 1), savepoint=location)


def recover(storage: CheckpointStorage, path: str, graph: JobGraph, now_ms: int) -> Recovered:
    """Find the checkpoints of a run, and remove incomplete ones. Blocks.

    If the newest one is damaged this does not fall back on an older one: what was committed with the newest would
    be committed once more.

    Args:
        storage: storage of the checkpoints.
        path: the directory of the run.
        graph: the job.
        now_ms: the time, ms since the epoch.

    Raises:
        CheckpointError: one cannot be read.
    """
    directory = CheckpointDirectory(storage, path)
    # Incomplete checkpoints count as well: an id is never used twice in a directory.
    begun = [_number(file.name[len(path) + 1 :]) for file in storage.files(path)]
    next_id = max(begun, default=0) + 1
    completed = []
    for id_ in directory.ids():
        metadata = directory.load(id_)
        completed.append((_completed(metadata, graph), metadata))
    with suppress(CheckpointError):  # then the file stays
        directory.collect(now_ms, 0)
    if not completed:
        return Recovered(path, next_id)
    latest = completed[-1][1]
    where = directory.directory(latest.checkpoint_id)
    enumerators = read_enumerators(storage, where, latest)
    snapshot = JobSnapshot(
        read_operators(storage, where, latest),
        enumerators,
        saved_key_groups(latest),
        read_in_flight(storage, where, latest),
    )
    return Recovered(path, next_id, tuple(completed), snapshot)


def find_last_savepoint(storage: CheckpointStorage, job: str, after: int, run: str = "") -> tuple[str, int] | None:
    """Return the final savepoint of a job if it was completed: its sinks may have committed with it.

    Args:
        storage: the place where it was to be.
        job: the job's id.
        after: the number of its last checkpoint.
        run: the directory of its checkpoints, if it keeps that for good: a job of another job store may have had
            the same id. Empty: savepoints of any run count.

    Returns:
        its path or URL, and its number; None: there is none.

    Raises:
        CheckpointError: a savepoint of that job there cannot be read.
    """
    found = []
    # Others are not read: one that is damaged must not keep this job from being recovered.
    named = re.compile(rf"savepoint-{re.escape(file_name(job) or 'job')}-\d+-(\d+)")
    for directory in find_checkpoints(storage):
        name = named.fullmatch(directory.rpartition("/")[2])
        if name is not None and int(name[1]) > after:
            metadata = load_metadata(storage, directory)
            properties = metadata.properties
            mine = metadata.job_id == job and (not run or properties.get("run", "") == run)
            if mine and properties.get("stops"):
                found.append((metadata.checkpoint_id, directory))
    if not found:
        return None
    number, directory = max(found)
    return storage.shown(directory), number


def mark_left_behind(
    savepoints: Iterable[str], open_storage: Callable[[str], CheckpointStorage], after: int = 0
) -> None:
    """Record in the metadata of savepoints that their job is restored from before them. Blocks.

    Args:
        savepoints: their paths or URLs.
        open_storage: opens the storage at a path or URL.
        after: number of the checkpoint that is restored; older savepoints are left alone.
    """
    for savepoint in savepoints:
        place, directory = split_location(savepoint)
        # Its owner may have moved or deleted it.
        with suppress(CheckpointError):
            storage = open_storage(place)
            metadata = load_metadata(storage, directory)
            if metadata.checkpoint_id > after:
                behind = msgspec.structs.replace(metadata, properties={**metadata.properties, "behind": True})
                storage.write(f"{directory}/{METADATA}", (encode_metadata(behind),))


def _number(name: str) -> int:
    return checkpoint_number(name.partition("/")[0]) or 0


def _completed(metadata: CheckpointMetadata, graph: JobGraph) -> CompletedCheckpoint:
    # At another parallelism it has other subtasks than the job, and their states must not be confused.
    now = {vertex.uid: vertex for vertex in graph.vertices}
    ids = {v.uid: now[v.uid].id for v in metadata.vertices if now[v.uid].parallelism == v.parallelism}
    tasks = {
        (ids[vertex.uid], entry.index): TaskSnapshot(
            (), drained=entry.finished, checkpoint_id=metadata.checkpoint_id, entry=entry
        )
        for vertex in metadata.vertices
        if vertex.uid in ids
        for entry in vertex.subtasks
    }
    return CompletedCheckpoint(metadata.checkpoint_id, metadata.triggered_ms, tasks, {})
