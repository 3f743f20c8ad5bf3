"""Snapshots of tasks and jobs, and their redistribution to the subtasks of another run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace as replace_struct

from sluiceway.checkpoint import SubtaskEntry
from sluiceway.errors import IncompatibleStateError, NotSerializableError
from sluiceway.graph import JobEdge, JobGraph, JobVertex
from sluiceway.keygroups import KeyGroupRange
from sluiceway.network.channel_state import EdgeName, InFlight, Overtaken
from sluiceway.operators import OperatorSnapshot
from sluiceway.state import KeyedSnapshot

__all__ = [
    "JobSnapshot",
    "TaskSnapshot",
    "edge_names",
    "has_objects",
    "with_objects",
    "with_own_objects",
    "without_objects",
]


T = TypeVar("T")


class TaskSnapshot(msgspec.Struct, frozen=True):
    """Snapshot with which a subtask acknowledges a checkpoint.

    Attributes:
        operators: the state of each step, in the order of the chain.
        drained: whether it was taken after all input was processed.
        start_delay_ms: from the trigger to the moment when the state was taken.
        alignment_ms: time for which some channels waited for others.
        flush_ms: time from the barrier until the sinks were flushed.
        sync_ms: time for which the task was blocked while its state was taken.
        async_ms: time for reading and writing it, while the task continued.
        checkpoint_id: id of the checkpoint.
        size_alone: its size in bytes, if the state itself is not kept.
        entry: where the state is, if it was written into a storage; then ``operators`` has, in one process, the
            objects that were not written, else nothing.
        savepoint: path or URL of the savepoint that it is for; empty: it is for a checkpoint.
        unaligned: whether the barrier has overtaken records.
        in_flight: those of them that this subtask keeps: what it had not processed, and what it had not sent.
        in_flight_size: bytes of those, as far as they were written and are not in ``in_flight``.
    """

    operators: tuple[OperatorSnapshot, ...]
    drained: bool = False
    start_delay_ms: int = 0
    alignment_ms: int = 0
    flush_ms: int = 0
    sync_ms: int = 0
    async_ms: int = 0
    checkpoint_id: int = 0
    entry: SubtaskEntry | None = None
    size_alone: int = 0
    savepoint: str = ""
    unaligned: bool = False
    in_flight: tuple[Overtaken | InFlight, ...] = ()
    in_flight_size: int = 0

    @property
    def size(self) -> int:
        """Bytes of serialized state in it, or that it refers to, including in-flight records."""
        if self.entry is not None:
            return self.entry.size
        in_flight = sum(part.size for part in self.in_flight if isinstance(part, InFlight))
        return self.size_alone + sum(_size(s) for s in self.operators) + in_flight

    @classmethod
    def of_entry(
        cls, entry: SubtaskEntry, checkpoint_id: int, savepoint: str, unaligned: bool, objects: tuple[Any, ...]
    ) -> TaskSnapshot:
        """Return the snapshot of which everything except the objects was written."""
        return cls(
            objects,
            drained=entry.finished,
            start_delay_ms=entry.start_delay_ms,
            alignment_ms=entry.alignment_ms,
            flush_ms=entry.flush_ms,
            sync_ms=entry.sync_ms,
            async_ms=entry.async_ms,
            checkpoint_id=checkpoint_id,
            entry=entry,
            savepoint=savepoint,
            unaligned=unaligned,
            in_flight_size=entry.in_flight_size,
        )

    def timed_entry(self) -> SubtaskEntry:
        """Return the entry of its state, with durations."""
        assert self.entry is not None
        return replace_struct(
            self.entry,
            start_delay_ms=self.start_delay_ms,
            alignment_ms=self.alignment_ms,
            flush_ms=self.flush_ms,
            sync_ms=self.sync_ms,
            async_ms=self.async_ms,
        )

    def release(self) -> None:
        """Free what the state backends hold for it: nothing will read it."""
        for operator in self.operators:
            if operator.keyed is not None:
                operator.keyed.release()

    def without_in_flight(self) -> TaskSnapshot:
        """Return it without in-flight records, which have been processed by a finished task."""
        entry = self.entry
        if entry is not None and entry.in_flight:
            entry = replace_struct(entry, in_flight=())
        return replace_struct(self, in_flight=(), in_flight_size=0, entry=entry)


class JobSnapshot(msgspec.Struct, frozen=True):
    """Snapshot of a job.

    Attributes:
        operators: per subtask and step, the subtasks of a step in order: keyed state, or the splits of a source's
            reader with positions, and so on.
        enumerators: snapshot of the enumerator by uid of a source.
        key_groups: per uid of a step with keyed state, into how many key groups it is divided; of another run's.
        in_flight: in-flight records between subtasks.
    """

    operators: tuple[OperatorSnapshot, ...] = ()
    enumerators: Mapping[str, Any] = msgspec.field(default_factory=dict)
    key_groups: Mapping[str, int] = msgspec.field(default_factory=dict)
    in_flight: tuple[InFlight, ...] = ()

    def fit(self, graph: JobGraph) -> JobGraph:
        """Return the graph with the saved numbers of key groups, where none was chosen and parallelism allows."""
        return replace(graph, vertices=tuple(map(self._fit, graph.vertices)))

    def _fit(self, vertex: JobVertex) -> JobVertex:
        saved = {self.key_groups[node.uid] for node in vertex.nodes if node.uid in self.key_groups}
        # One number for the whole chain, whose steps share their key groups.
        if len(saved) != 1 or any(node.max_parallelism_given for node in vertex.nodes):
            return vertex
        (groups,) = saved
        if groups < vertex.parallelism:
            return vertex
        nodes = tuple(replace_struct(node, max_parallelism=groups) for node in vertex.nodes)
        return replace_struct(vertex, nodes=nodes, max_parallelism=groups)

    def share(self, vertex: JobVertex, subtask: int) -> tuple[OperatorSnapshot, ...]:
        """Return the snapshots for one subtask, whatever the earlier parallelism.

        Splits are distributed here: with the same parallelism as before, each subtask gets its own again.
        Everything else is given whole, as it was in each earlier subtask in order, and a step keeps what it owns;
        keyed state in which it owns nothing is left out.
        """
        uids = {n.uid for n in vertex.nodes}
        own = KeyGroupRange.of_subtask(subtask, vertex.parallelism, vertex.max_parallelism)
        mine = [replace(s, splits=(), keyed=_if_any(s.keyed, own)) for s in self.operators if s.uid in uids]
        readers = [s for s in self.operators if s.uid == vertex.uid]
        if all(s.parallelism == vertex.parallelism for s in readers):
            dealt = tuple(split for s in readers if s.subtask == subtask for split in s.splits)
        else:
            # Every subtask computes the same list, so each split goes to exactly one.
            dealt = tuple([split for s in readers for split in s.splits][subtask :: vertex.parallelism])
        return (*mine, OperatorSnapshot(vertex.uid, splits=dealt)) if dealt else tuple(mine)

    def in_flight_on(
        self, name: EdgeName, edge: JobEdge, target: JobVertex, subtask: int
    ) -> tuple[tuple[InFlight, ...], bool]:
        """Return the in-flight records of an edge for one subtask, in order.

        Returns:
            the records, and whether they are to be dealt out: then all subtasks are given the same, and each
            takes its share. That is so when there are other subtasks than there were, or another partitioner.
        """
        # Oldest first: recovered ones, then those received, then those not sent.
        parts = sorted(
            (p for p in self.in_flight if p.edge == name), key=lambda p: (p.stage, p.producer, p.consumer)
        )
        # Unchanged routes: the same subtasks, and for a hash edge the same key groups.
        partitioner = edge.edge.partitioner.name
        if all(
            p.partitioner == partitioner
            and p.consumers == target.parallelism
            and (partitioner != "hash" or p.max_parallelism == target.max_parallelism)
            for p in parts
        ):
            return tuple(p for p in parts if p.consumer == subtask), False
        return tuple(parts), True

    def drained(self, vertex: JobVertex, subtask: int) -> bool:
        """Return whether all steps of a subtask had reached their end."""
        uids = {n.uid for n in vertex.nodes}
        mine = [s for s in self.operators if s.uid in uids]
        # A step without a snapshot is new in this chain, and has not processed anything.
        if not mine or uids != {s.uid for s in mine}:
            return False
        # At another parallelism a subtask has ended only if all of them had.
        if all(s.parallelism == vertex.parallelism for s in mine):
            mine = [s for s in mine if s.subtask == subtask]
        return all(s.drained for s in mine)

    def check_ends(self, graph: JobGraph) -> None:
        """Raise an error if records would come to a task that is restored as finished, which reads none.

        Raises:
            IncompatibleStateError: names a source and the steps.
        """
        fed: dict[int, JobVertex] = {}  # by vertex: a source that may still have records for it
        for vertex in graph.vertices:
            edges = [edge for edge in graph.in_edges(vertex.id) if not edge.feedback]
            if edges:
                source = next((fed[edge.source] for edge in edges if edge.source in fed), None)
            else:
                read = [s.drained for s in self.operators if s.uid == vertex.uid]
                source = None if read and all(read) else vertex
            if source is None:
                continue
            if edges and all(self.drained(vertex, subtask) for subtask in range(vertex.parallelism)):
                raise IncompatibleStateError(
                    f"in the snapshot {vertex.name!r} of job {graph.job_name!r} has come to the end of its input, "
                    f"after which it takes no records, and those of {source.head.name!r} (uid {source.uid}), not "
                    "read to its end there, would be lost: begin with a checkpoint or savepoint from before that "
                    "end, or put the state into a new savepoint, with sluiceway.savepoint.write()"
                )
            fed[vertex.id] = source

    def check_known(self, graph: JobGraph) -> None:
        """Raise an error for state that no step of the job restores.

        Raises:
            IncompatibleStateError: names the uids.
        """
        edges = set(edge_names(graph).values())
        lost_on = {p.edge for p in self.in_flight if p.edge not in edges}
        if lost_on:
            where = ", ".join(sorted(map(str, lost_on)))
            raise IncompatibleStateError(
                f"the checkpoint was unaligned and has records that were in flight {where}, and job "
                f"{graph.job_name!r} {_without_edges(lost_on, graph)}, or leave the records behind, with "
                "allow-dropped-state"
            )
        known = {n.uid for v in graph.vertices for n in v.nodes}
        listed = {s.uid for s in self.operators if any(kept.elements for kept in s.lists)}
        undealt = {uid for uid, state in self.enumerators.items() if state}
        sources = {v.uid for v in graph.vertices if all(edge.feedback for edge in graph.in_edges(v.id))}
        positions = {s.uid for s in self.operators if s.splits} | undealt
        if moved := (positions & known) - sources - graph.left_out:
            raise IncompatibleStateError(
                f"the snapshot has the positions of a source under the uid {', '.join(map(repr, sorted(moved)))}, "
                f"which is that of another step in job {graph.job_name!r}, so that the source would begin anew: "
                "give the source that uid, with .uid(...), or leave the positions behind, with allow-dropped-state"
            )
        lost = (_stateful(self.operators) | listed | undealt) - known - graph.left_out
        if lost:
            raise IncompatibleStateError(
                f"the snapshot has state of {', '.join(map(repr, sorted(lost)))}, which no step of job "
                f"{graph.job_name!r} goes by: give its step that uid, with .uid(...), or leave the state behind, "
                "with allow-dropped-state"
            )


def _without_edges(names: Iterable[EdgeName], graph: JobGraph) -> str:
    """Return why a job lacks these edges, and what to do, for a message."""
    tasks = {n.uid: v.id for v in graph.vertices for n in v.nodes}
    # Steps that had another parallelism each when the checkpoint was taken may have the same one now.
    if all(name.source in tasks and tasks[name.source] == tasks.get(name.target) for name in names):
        return (
            "runs these steps in one task, as their parallelism is the same now: turn chaining off "
            "(--no-chaining) until the job has taken a savepoint"
        )
    return (
        "has no such edge between two tasks: go on with the pipeline that it was taken of and take a savepoint of "
        "that"
    )


def edge_names(graph: JobGraph) -> dict[str, EdgeName]:
    """Return the checkpoint names of the edges between tasks, by id."""
    uids = {n.id: n.uid for v in graph.vertices for n in v.nodes}
    names: dict[str, EdgeName] = {}
    counted: dict[EdgeName, int] = {}
    for edge in graph.edges:
        tag = "" if edge.edge.tag is None else edge.edge.tag.name
        name = EdgeName(uids[edge.source_node], uids[edge.target_node], edge.edge.port, tag)
        number = counted[name] = counted.get(name, -1) + 1
        names[edge.id] = replace_struct(name, number=number)
    return names


def has_objects(snapshot: OperatorSnapshot) -> bool:
    """Return True if it holds objects of users and connectors, which may have no serializer."""
    return bool(snapshot.splits or snapshot.pending or snapshot.committables) or snapshot.broadcast is not None


def without_objects(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    """Return the snapshot with nothing but bytes."""
    return replace(snapshot, splits=(), pending=(), committables=(), broadcast=None)


def with_objects(snapshot: OperatorSnapshot, objects: OperatorSnapshot) -> OperatorSnapshot:
    """Return the snapshot with the objects of another one."""
    o = objects
    return replace(
        snapshot, splits=o.splits, pending=o.pending, committables=o.committables, broadcast=o.broadcast
    )


def with_own_objects(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    """Return a copy of objects that a task or a user's function may change after the snapshot or the restore.

    Raises:
        NotSerializableError: an object holds what belongs to this process, such as a lock.
    """
    if not (snapshot.splits or snapshot.pending or snapshot.committables or snapshot.broadcast):
        return snapshot
    return replace(
        snapshot,
        splits=_own("a split with its position", snapshot.splits),
        pending=_own("a record of an asynchronous step", snapshot.pending),
        committables=_own("a committable of a sink", snapshot.committables),
        broadcast=_own("broadcast state", snapshot.broadcast),
    )


def _own(kind: str, objects: T) -> T:
    try:
        return deepcopy(objects)
    except Exception as error:  # of the __deepcopy__ or __reduce__ of anything
        raise NotSerializableError(
            f"{kind} cannot be part of a checkpoint: {type(error).__name__}: {error}; keep plain values in it, "
            "and make locks, files and connections anew where they are used"
        ) from error


def _if_any(keyed: KeyedSnapshot | None, groups: KeyGroupRange) -> KeyedSnapshot | None:
    """Return keyed state if it has entries in those key groups; None otherwise, as its tables are useless then."""
    return keyed if keyed is None or any(groups.start <= g < groups.end for g in keyed.groups) else None


def _size(snapshot: OperatorSnapshot) -> int:
    keyed = 0 if snapshot.keyed is None else sum(map(len, snapshot.keyed.groups.values()))
    return keyed + sum(len(element) for kept in snapshot.lists for element in kept.elements)


def _stateful(operators: Iterable[OperatorSnapshot]) -> set[str]:
    return {s.uid for s in operators if s.splits or s.pending or s.committables or _has_state(s)}


def _has_state(snapshot: OperatorSnapshot) -> bool:
    keyed = snapshot.keyed
    return any((snapshot.broadcast or {}).values()) or (keyed is not None and bool(keyed.groups))
