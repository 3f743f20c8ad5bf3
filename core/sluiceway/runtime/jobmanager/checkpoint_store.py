"""Stores of completed checkpoints, and of savepoints, in a checkpoint storage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Final, Protocol

import msgspec

from sluiceway.checkpoint import (
    CHECKPOINT,
    METADATA,
    SAVEPOINT,
    CheckpointDirectory,
    CheckpointMetadata,
    Section,
    StateReader,
    StepEntry,
    SubtaskEntry,
    VertexEntry,
    encode_metadata,
    opened_rows,
    read_in_flight,
    read_operators,
    shared_files,
    split_location,
    write_enumerators,
    write_subtask,
)
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import Clock
from sluiceway.engine import Services
from sluiceway.errors import CheckpointError
from sluiceway.graph import JobGraph, JobVertex
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.jobmanager.checkpoint_coordinator import CompletedCheckpoint
from sluiceway.runtime.jobmanager.newest_checkpoint import note_stop
from sluiceway.runtime.jobmanager.takeover import Recovered, mark_left_behind
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.blocking_io import Background
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot, with_objects
from sluiceway.state import KeyedSnapshot
from sluiceway.util.file_names import file_name
from sluiceway.util.overriding import override

__all__ = [
    "CheckpointPlace",
    "CheckpointStores",
    "CompletedCheckpointStore",
    "SavepointCheckpointStore",
    "SentCheckpointStore",
    "StorageCheckpointStore",
    "TemporaryCheckpointStore",
    "checkpoint_stores_of",
    "directory_of",
]


_EVER: Final = 1 << 62
"""Later than any file was written."""


class CompletedCheckpointStore(Protocol):
    """Store of completed checkpoints. From the job master's thread.

    Calls return at once, except those that say so.

    Attributes:
        path: directory for the tasks' files, relative to the location of the checkpoints.
    """

    path: str

    def use(self, graph: JobGraph) -> None:
        """Store checkpoints of the job at another parallelism from now on; no store is pending."""

    def keep(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Store one; ``stored`` is called in the job master's thread, with None or the error."""

    def load(
        self, checkpoint: CompletedCheckpoint, loaded: Callable[[JobSnapshot | None, BaseException | None], None]
    ) -> None:
        """Read a stored checkpoint; ``loaded`` is called in the job master's thread, with it or with the error."""

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Delete a stored checkpoint."""

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Delete what a task has written for a checkpoint that was aborted."""

    def discard_rest(self, checkpoint_id: int, savepoint: str) -> None:
        """Delete what tasks have written for an aborted one without acknowledging it, as their worker was lost."""

    def left_behind(self, savepoints: Sequence[str]) -> None:
        """Record in these savepoints that the job is restored from before them. Blocks until that is written."""

    def stopped_with(self, savepoint: str) -> None:
        """Record the savepoint that the job is stopped with. Blocks until that is written."""

    def ended(self) -> None:
        """Handle the end of the job: no checkpoint will complete any more."""


class CheckpointPlace(msgspec.Struct, frozen=True):
    """Place of a job's checkpoints.

    Attributes:
        storage: the storage.
        temporary: whether it is this run's alone, and goes with it.
        shared: whether workers can read it, too; else their state is sent to and fro.
    """

    storage: CheckpointStorage
    temporary: bool = False
    shared: bool = True

    @property
    def directory(self) -> str:
        """Temporary directory that workers write to; empty: there is none."""
        return self.storage.location if self.temporary and self.shared else ""


@dataclass(frozen=True, slots=True)
class CheckpointStores:
    """Stores of one run.

    Attributes:
        checkpoints: store of its checkpoints.
        savepoints: store of its savepoints, in the places that requests name.
    """

    checkpoints: CompletedCheckpointStore
    savepoints: CompletedCheckpointStore

    def of(self, savepoint: str) -> CompletedCheckpointStore:
        """Return the store of the savepoint at a path or URL; empty: that of checkpoints."""
        return self.savepoints if savepoint else self.checkpoints

    def use(self, graph: JobGraph) -> None:
        """Store checkpoints of the job at another parallelism from now on; no store is pending."""
        self.checkpoints.use(graph)
        self.savepoints.use(graph)


def checkpoint_stores_of(
    place: CheckpointPlace,
    services: Services,
    graph: JobGraph,
    job_id: str,
    seed: int,
    background: Background,
    recovered: Recovered | None = None,
) -> CheckpointStores:
    """Return the stores of one run, that of checkpoints in a directory of its own unless the place is temporary.

    A run that is recovered by another job manager keeps its directory.
    """
    checkpoints: StorageCheckpointStore
    if place.temporary:
        kind = TemporaryCheckpointStore if place.shared else SentCheckpointStore
        checkpoints = kind(CheckpointDirectory(place.storage), graph, job_id, services.clock, background)
    else:
        name = file_name(job_id) or "job"
        earlier = "" if recovered is None else recovered.path
        path = earlier or f"{name}-{services.clock.now_ms()}-{seed & 0xFFFF:04x}"
        directory = CheckpointDirectory(place.storage, path)
        checkpoints = StorageCheckpointStore(directory, graph, job_id, services.clock, background)
        for _, metadata in () if recovered is None else recovered.completed:
            checkpoints.adopt(metadata)
    savepoints = SavepointCheckpointStore(services, graph, job_id, background, checkpoints)
    return CheckpointStores(checkpoints, savepoints)


class StorageCheckpointStore(CompletedCheckpointStore):
    """Store that completes checkpoints whose parts the tasks have written.

    From the job master's thread; blocking calls run in the background.

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
        # Aborted checkpoints, and the last of them that each of their shared files belongs to.
        self._given_up: set[int] = set()
        self._given_up_files: dict[str, int] = {}

    def adopt(self, metadata: CheckpointMetadata) -> None:
        """Adopt a checkpoint that an earlier job manager has completed."""
        self._metadata[metadata.checkpoint_id] = metadata

    def use(self, graph: JobGraph) -> None:
        """Write the parallelism of this graph into metadata from now on."""
        self._graph = graph

    def keep(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Write the metadata, which completes the checkpoint."""

        def done(metadata: CheckpointMetadata, problem: BaseException | None) -> None:
            if problem is None:
                # In the job master's thread again, to which these belong.
                self._metadata[checkpoint.checkpoint_id] = metadata
                self._delete_given_up(checkpoint.checkpoint_id)
            stored(problem)

        self._background.run(lambda: self._complete(checkpoint), done)

    def load(
        self, checkpoint: CompletedCheckpoint, loaded: Callable[[JobSnapshot | None, BaseException | None], None]
    ) -> None:
        """Read a checkpoint; keyed state is read later, by the subtasks that need it."""
        metadata = self._metadata[checkpoint.checkpoint_id]
        self._background.run(lambda: self._read(checkpoint, metadata), loaded)

    def left_behind(self, savepoints: Sequence[str]) -> None:
        """Do nothing: this store has no savepoints."""

    def stopped_with(self, savepoint: str) -> None:
        """Record the savepoint beside the checkpoints, for a job that resumes from them."""
        try:
            note_stop(self._directory.storage, self.path, self._graph.job_name, savepoint, self._clock.now_ms())
        except CheckpointError as error:
            log(WARNING, "jobs", f"{error}: to resume, name {savepoint} with --from", job=self._job_id)

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Delete a checkpoint, except files that others share."""
        id_ = checkpoint.checkpoint_id
        metadata = self._metadata.pop(id_, None)
        is_newest = all(other < id_ for other in self._metadata)
        if is_newest and metadata is not None:
            # It was aborted while it was stored. Tasks do not know that it was complete, and may have written the
            # same shared files again for one in progress.
            shared = {name for entry in metadata.subtasks() for name in shared_files(entry)}
            self._give_up(id_, shared)
        self._background.run(lambda: self._directory.discard(id_, shared=not is_newest), _whatever)

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Delete what was written for it; shared files once a newer checkpoint is complete."""
        entry = snapshot.entry
        if entry is not None:
            # Shared files stay until a newer checkpoint is complete: one that is being taken may refer to them.
            self._give_up(checkpoint_id, shared_files(entry))
            self._background.run(lambda: self._delete(checkpoint_id, entry), _whatever)

    def discard_rest(self, checkpoint_id: int, savepoint: str) -> None:
        """Delete it once a newer checkpoint is complete: until then tasks may still write it."""
        self._give_up(checkpoint_id)

    def ended(self) -> None:
        """Delete all files that no complete checkpoint refers to."""
        self._background.run(lambda: self._directory.collect(_EVER, 0), _whatever)

    def _give_up(self, checkpoint_id: int, shared: Iterable[str] = ()) -> None:
        self._given_up.add(checkpoint_id)
        for name in shared:
            self._given_up_files[name] = max(checkpoint_id, self._given_up_files.get(name, checkpoint_id))

    def _delete_given_up(self, checkpoint_id: int) -> None:
        """Delete files of aborted checkpoints that are older than a complete one."""
        before = sorted(id_ for id_ in self._given_up if id_ < checkpoint_id)
        self._given_up.difference_update(before)
        names = {name for name, id_ in self._given_up_files.items() if id_ < checkpoint_id}
        for name in names:
            del self._given_up_files[name]
        if names:
            self._background.run(lambda: self._directory.delete_shared(names), _whatever)
        for id_ in before:
            self._background.run(partial(self._directory.discard, id_, shared=False), _whatever)

    def _read(self, checkpoint: CompletedCheckpoint, metadata: CheckpointMetadata) -> JobSnapshot:
        storage, directory = self._directory.storage, self._directory.directory(checkpoint.checkpoint_id)
        operators = read_operators(storage, directory, metadata)
        return JobSnapshot(
            operators, checkpoint.enumerators, in_flight=read_in_flight(storage, directory, metadata)
        )

    def _complete(self, checkpoint: CompletedCheckpoint) -> CheckpointMetadata:
        directory = self._directory.directory(checkpoint.checkpoint_id)
        by_vertex: dict[int, list[SubtaskEntry]] = {}
        for where, snapshot in sorted(checkpoint.tasks.items()):
            # A task that has finished before: its state is in the directory of an earlier checkpoint.
            if snapshot.checkpoint_id != checkpoint.checkpoint_id:
                snapshot = checkpoint.tasks[where] = self._copied(where, snapshot, checkpoint.checkpoint_id)
            by_vertex.setdefault(where[0], []).append(snapshot.timed_entry())
        metadata = _metadata(
            self._graph,
            self._job_id,
            checkpoint,
            CHECKPOINT,
            self.path,
            self._clock.now_ms(),
            by_vertex,
            self._write_enumerators(directory, checkpoint),
        )
        # Last, when all other files are written: the metadata make the checkpoint complete.
        self._directory.complete(metadata)
        return metadata

    def _write_enumerators(self, directory: str, checkpoint: CompletedCheckpoint) -> dict[str, Section]:
        return write_enumerators(self._directory.storage, directory, checkpoint.enumerators)

    def _copied(self, where: tuple[int, int], snapshot: TaskSnapshot, checkpoint_id: int) -> TaskSnapshot:
        """Copy the state of a finished task: the checkpoint that holds it will be deleted."""
        directory = self._directory.directory(checkpoint_id)
        entry = _finished(self._directory.storage, directory, where, self._written(snapshot))
        return msgspec.structs.replace(_without_times(snapshot), entry=entry, checkpoint_id=checkpoint_id)

    def state_of(self, snapshot: TaskSnapshot) -> list[OperatorSnapshot]:
        """Return the state that a task has written, read on access."""
        return self._written(snapshot)

    def _written(self, snapshot: TaskSnapshot) -> list[OperatorSnapshot]:
        if snapshot.entry is None:  # the snapshot of a task without state, for which nothing was written
            return list(snapshot.operators)
        reader = StateReader(self._directory.storage, self._directory.directory(snapshot.checkpoint_id))
        return [reader.operator(operator) for operator in snapshot.entry.operators]

    def _delete(self, checkpoint_id: int, entry: SubtaskEntry) -> None:
        directory = self._directory.directory(checkpoint_id)
        self._directory.storage.delete(_own_files(directory, entry))


class TemporaryCheckpointStore(StorageCheckpointStore):
    """Store in a temporary directory, for restores while the job master lives.

    State is in files there. The states of enumerators, and in one process the objects that have no serializer,
    stay with the checkpoint in memory.
    """

    @override
    def _read(self, checkpoint: CompletedCheckpoint, metadata: CheckpointMetadata) -> JobSnapshot:
        snapshot = super()._read(checkpoint, metadata)
        # Bytes are in the files, objects in memory: they meet by step and subtask.
        objects = {(o.uid, o.subtask): o for task in checkpoint.tasks.values() for o in task.operators}
        if not objects:
            return snapshot
        found = ((o, objects.get((o.uid, o.subtask))) for o in snapshot.operators)
        operators = tuple(o if kept is None else with_objects(o, kept) for o, kept in found)
        return msgspec.structs.replace(snapshot, operators=operators)

    def state_of(self, snapshot: TaskSnapshot) -> list[OperatorSnapshot]:
        """Return the state that a task has written, with its objects."""
        objects = {o.uid: o for o in snapshot.operators}
        found = ((o, objects.get(o.uid)) for o in self._written(snapshot))
        return [o if kept is None else with_objects(o, kept) for o, kept in found]

    def stopped_with(self, savepoint: str) -> None:
        """Do nothing: no job resumes from this store."""

    def ended(self) -> None:
        """Delete all files."""
        storage = self._directory.storage
        self._background.run(lambda: storage.delete([file.name for file in storage.files()]), _whatever)

    def _write_enumerators(self, directory: str, checkpoint: CompletedCheckpoint) -> dict[str, Section]:
        return {}


class SentCheckpointStore(TemporaryCheckpointStore):
    """Temporary store that workers cannot read: what a job restores has all its state in it, as bytes."""

    @override
    def _read(self, checkpoint: CompletedCheckpoint, metadata: CheckpointMetadata) -> JobSnapshot:
        snapshot = super()._read(checkpoint, metadata)
        return msgspec.structs.replace(
            snapshot,
            operators=tuple(map(_with_state, snapshot.operators)),
            in_flight=tuple(msgspec.structs.replace(p, frames=tuple(p.frames)) for p in snapshot.in_flight),
        )


class SavepointCheckpointStore(CompletedCheckpointStore):
    """Store that completes savepoints whose parts the tasks have written; blocking calls run in the background.

    Args:
        services: factories of the plugins, and the clock for time stamps.
        graph: the job.
        job_id: its id.
        background: does what blocks.
        checkpoints: store of the job's checkpoints, with the state of finished tasks.
    """

    path = ""

    def __init__(
        self,
        services: Services,
        graph: JobGraph,
        job_id: str,
        background: Background,
        checkpoints: CompletedCheckpointStore,
    ) -> None:
        self._services = services
        self._graph = graph
        self._job_id = job_id
        self._background = background
        self._checkpoints = checkpoints

    def use(self, graph: JobGraph) -> None:
        """Write the parallelism of this graph into metadata from now on."""
        self._graph = graph

    def keep(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Write the metadata, which completes the savepoint."""
        self._background.run(lambda: self._complete(checkpoint), lambda result, problem: stored(problem))

    def load(
        self, checkpoint: CompletedCheckpoint, loaded: Callable[[JobSnapshot | None, BaseException | None], None]
    ) -> None:
        """Fail: no job is restored from a savepoint after a failure."""
        loaded(None, CheckpointError(f"{checkpoint.savepoint} is a savepoint, which begins another run"))

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Delete a savepoint that was aborted while it was being completed."""
        self._background.run(lambda: self._delete_all(checkpoint.savepoint), _whatever)

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Delete what a task has written for an aborted savepoint."""
        entry = snapshot.entry
        if entry is not None:
            self._background.run(lambda: self._delete(snapshot.savepoint, entry), _whatever)

    def discard_rest(self, checkpoint_id: int, savepoint: str) -> None:
        """Delete its directory. Tasks that are late acknowledge what they still write there, for a deletion."""
        self._background.run(lambda: self._delete_all(savepoint), _whatever)

    def ended(self) -> None:
        """Do nothing: aborted savepoints are deleted already, and complete ones belong to the user."""

    def stopped_with(self, savepoint: str) -> None:
        """Do nothing: the savepoint's own metadata say so."""

    def left_behind(self, savepoints: Sequence[str]) -> None:
        """Record it in the savepoints' metadata, before transactions that they rely on are aborted."""
        mark_left_behind(savepoints, self._services.checkpoint_storage)

    def _complete(self, checkpoint: CompletedCheckpoint) -> None:
        place, directory = split_location(checkpoint.savepoint)
        storage = self._services.checkpoint_storage(place)
        by_vertex: dict[int, list[SubtaskEntry]] = {}
        for where, snapshot in sorted(checkpoint.tasks.items()):
            # Finished tasks have written nothing for the savepoint: their state comes from the last checkpoint, as
            # rows.
            if not snapshot.savepoint:
                most = self._graph.vertex(where[0]).max_parallelism
                state = (self._as_rows(operator, most) for operator in self._state_of(snapshot))
                entry = _finished(storage, directory, where, state)
                snapshot = msgspec.structs.replace(_without_times(snapshot), entry=entry)
            by_vertex.setdefault(where[0], []).append(snapshot.timed_entry())
        metadata = _metadata(
            self._graph,
            self._job_id,
            checkpoint,
            SAVEPOINT,
            self._checkpoints.path,
            self._services.clock.now_ms(),
            by_vertex,
            write_enumerators(storage, directory, checkpoint.enumerators),
        )
        storage.write(f"{directory}/{METADATA}", (encode_metadata(metadata),))

    def _state_of(self, snapshot: TaskSnapshot) -> Iterable[OperatorSnapshot]:
        """Return the state of a finished task from the last checkpoint."""
        if snapshot.entry is None:
            return snapshot.operators
        assert isinstance(self._checkpoints, StorageCheckpointStore)
        return self._checkpoints.state_of(snapshot)

    def _as_rows(self, operator: OperatorSnapshot, max_parallelism: int) -> OperatorSnapshot:
        """Return the snapshot with keyed state as rows, which any backend can read, instead of backend files."""
        keyed = operator.keyed
        if keyed is None or keyed.native is None:
            return operator
        with opened_rows(
            keyed, self._services.state_backend, operator.uid, operator.subtask, max_parallelism
        ) as found:
            # Read at once: the release frees what the backend has taken for it.
            rows = KeyedSnapshot(found.tables, dict(found.groups))
        return replace(operator, keyed=rows)

    def _delete(self, savepoint: str, entry: SubtaskEntry) -> None:
        place, directory = split_location(savepoint)
        self._services.checkpoint_storage(place).delete(_own_files(directory, entry))

    def _delete_all(self, savepoint: str) -> None:
        place, directory = split_location(savepoint)
        storage = self._services.checkpoint_storage(place)
        # The metadata first: what is left after an interruption is no savepoint.
        storage.delete([f"{directory}/{METADATA}"])
        storage.delete_directory(directory)


def _own_files(directory: str, entry: SubtaskEntry) -> list[str]:
    """Return the files of a subtask that no other checkpoint refers to."""
    alone = CheckpointMetadata(
        job_name="",
        job_id="",
        checkpoint_id=0,
        kind=CHECKPOINT,
        triggered_ms=0,
        completed_ms=0,
        vertices=(VertexEntry(uid="", name="", parallelism=1, max_parallelism=1, subtasks=(entry,)),),
    )
    return [f"{directory}/{name}" for name in alone.files() if not name.startswith("../")]


def _finished(
    storage: CheckpointStorage, directory: str, where: tuple[int, int], state: Iterable[OperatorSnapshot]
) -> SubtaskEntry:
    """Copy the state of a finished task: the checkpoint that holds it will be deleted."""
    name = f"{where[0]}-{where[1]}-finished.state"
    return write_subtask(storage, directory, name, where[1], state, finished=True, canonical=True)


def _without_times(snapshot: TaskSnapshot) -> TaskSnapshot:
    """Return the snapshot of an already finished task without times, as it took no part in this checkpoint."""
    return msgspec.structs.replace(snapshot, start_delay_ms=0, alignment_ms=0, flush_ms=0, sync_ms=0, async_ms=0)


def _metadata(
    graph: JobGraph,
    job_id: str,
    checkpoint: CompletedCheckpoint,
    kind: str,
    run: str,
    now_ms: int,
    by_vertex: Mapping[int, list[SubtaskEntry]],
    enumerators: dict[str, Section],
) -> CheckpointMetadata:
    return CheckpointMetadata(
        job_name=graph.job_name,
        job_id=job_id,
        checkpoint_id=checkpoint.checkpoint_id,
        kind=kind,
        triggered_ms=checkpoint.timestamp_ms,
        completed_ms=now_ms,
        vertices=tuple(_vertex(v, by_vertex.get(v.id, ())) for v in graph.vertices),
        enumerators=enumerators,
        written_by=version("sluiceway"),
        properties={**({"run": run} if run else {}), **({"stops": True} if checkpoint.stops else {})},
        history=checkpoint.history,
    )


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
    """Ignore the result: files that could not be deleted are found by the collection of orphans."""


def directory_of(place: str | None, path: str) -> str:
    """Return the path or URL of a job's checkpoint directory; empty: there are no files."""
    return f"{place.rstrip('/')}/{path}" if place and path else ""


def _with_state(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    keyed = snapshot.keyed
    if keyed is None:
        return snapshot
    return replace(snapshot, keyed=KeyedSnapshot(keyed.tables, dict(keyed.groups)))
