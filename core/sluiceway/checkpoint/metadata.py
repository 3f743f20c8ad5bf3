"""Metadata of checkpoints: versioned, JSON, readable without the job's code.

``docs/reference/checkpoint-format.md`` describes the format for other readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec

from sluiceway.errors import CheckpointError

__all__ = [
    "CHECKPOINT",
    "FORMAT_VERSION",
    "SAVEPOINT",
    "CheckpointMetadata",
    "GroupEntry",
    "HistoryEntry",
    "InFlightEntry",
    "KeyedEntry",
    "ListEntry",
    "NativeEntry",
    "NativeFileEntry",
    "OperatorEntry",
    "Section",
    "SharedFileEntry",
    "SharedRowsEntry",
    "StepEntry",
    "SubtaskEntry",
    "TableEntry",
    "VertexEntry",
    "decode_metadata",
    "encode_metadata",
]

FORMAT: Final = "sluiceway-checkpoint"
FORMAT_VERSION: Final = 3
"""Version 2 has records in flight, version 3 rows that checkpoints share. What has neither is written as
version 1, which older readers know: they would leave out what they do not know."""
CHECKPOINT: Final = "checkpoint"
SAVEPOINT: Final = "savepoint"


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of all parts. A reader ignores fields that it does not know; those with defaults may be missing."""


class Section(_Part, frozen=True, kw_only=True):
    """Range of bytes in a file.

    Attributes:
        file: name relative to the directory of the metadata.
        offset: start of the range.
        size: number of bytes.
        crc32: their checksum.
        count: number of values, if the bytes are values.
    """

    file: str
    offset: int
    size: int
    crc32: int
    count: int = 0


class TableEntry(_Part, frozen=True, kw_only=True):
    """Table of keyed state.

    Attributes:
        name: the state's name.
        table: ``value`` or ``map``.
        serializer: name of the serializer of the values.
        version: version of that serializer.
        type: the declared type as text; empty: none was declared.
        expires: True if each value is in a pair with the time of its last access.
        kind: the declared kind: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``.
        ttl_ms: its time to live.
        schema: schema of the values; None where only the job's classes can read them.
    """

    name: str
    table: str
    serializer: str
    version: int
    type: str = ""
    expires: bool = False
    kind: str = ""
    ttl_ms: int | None = None
    schema: Any = None


class GroupEntry(_Part, frozen=True, kw_only=True, array_like=True, omit_defaults=False):
    """Rows of a key group, in the file of its :class:`KeyedEntry`.

    Attributes:
        group: the key group.
        offset: start of the rows.
        size: number of bytes.
        crc32: their checksum.
    """

    group: int
    offset: int
    size: int
    crc32: int


class NativeFileEntry(_Part, frozen=True, kw_only=True):
    """File in the format of a state backend.

    Attributes:
        name: the backend's name for it.
        file: name relative to the directory of the metadata.
        size: in bytes.
        crc32: its checksum.
        shared: True if other checkpoints of the job may refer to the same file.
    """

    name: str
    file: str
    size: int
    crc32: int
    shared: bool = False


class SharedRowsEntry(_Part, frozen=True, kw_only=True):
    """File with rows of keyed state to which other checkpoints of the job may refer.

    The key groups are in the file itself, so that the metadata stay small.

    Attributes:
        file: name relative to the directory of the metadata.
        size: in bytes.
        index: range of a msgpack array with, as in a :class:`GroupEntry`, the place of the rows of each key group.
    """

    file: str
    size: int
    index: Section


SharedFileEntry: TypeAlias = NativeFileEntry | SharedRowsEntry
"""Entry of a file to which later checkpoints may refer."""


class NativeEntry(_Part, frozen=True, kw_only=True):
    """Keyed state as a backend's own files.

    Attributes:
        format: name and version of the format; the name is that of the backend.
        start: the first key group in them.
        end: the key group after the last.
        files: all files.
        properties: further data for the backend.
    """

    format: str
    start: int
    end: int
    files: tuple[NativeFileEntry, ...]
    properties: dict[str, str] = {}


class KeyedEntry(_Part, frozen=True, kw_only=True):
    """Keyed state of an operator in a subtask: rows by key group, or files of the backend.

    Attributes:
        tables: rows refer to them by index.
        file: file with the rows; None: no rows.
        groups: the key groups that have rows, also those that have them in shared files alone.
        native: the files of the backend, instead of rows.
        shared: files with more rows of these key groups.
    """

    tables: tuple[TableEntry, ...]
    file: str | None = None
    groups: tuple[GroupEntry, ...] = ()
    native: NativeEntry | None = None
    shared: tuple[SharedRowsEntry, ...] = ()


class ListEntry(_Part, frozen=True, kw_only=True):
    """List of operator state.

    Attributes:
        name: the state's name.
        mode: ``list``, ``union list``; of raw state ``raw list`` or ``raw keyed``.
        serializer: name of the serializer of the elements.
        version: version of that serializer.
        type: the declared type of an element as text.
        subtask: index of the subtask that had it.
        parallelism: the number of subtasks.
        elements: range of the elements; None: none.
        schema: schema of the values; None where only the job's classes can read them.
    """

    name: str
    mode: str
    serializer: str
    version: int
    type: str
    subtask: int
    parallelism: int
    elements: Section | None = None
    schema: Any = None


class OperatorEntry(_Part, frozen=True, kw_only=True):
    """State of one step in one subtask.

    Attributes:
        uid: uid of the step.
        keyed: its keyed state.
        splits: the splits of a source's reader, with positions.
        lists: its operator state.
        broadcast: its broadcast state.
        pending: received records without results yet.
        committables: commit output that was made ready.
    """

    uid: str
    keyed: KeyedEntry | None = None
    splits: Section | None = None
    lists: tuple[ListEntry, ...] = ()
    broadcast: Section | None = None
    pending: Section | None = None
    committables: Section | None = None


class InFlightEntry(_Part, frozen=True, kw_only=True):
    """In-flight records of one channel that a barrier has overtaken.

    Attributes:
        source: uid of the step that had sent them.
        target: uid of the step that was to receive them.
        elements: the batches.
        port: index of that step's input.
        tag: name of the side output.
        number: distinguishes edges that have all the above in common.
        partitioner: name of the edge's partitioner.
        producer: index of the subtask that had sent them.
        consumer: index of the subtask that was to receive them.
        consumers: parallelism of the consumer.
        max_parallelism: the consumer's number of key groups.
        stage: 0: in flight in an earlier checkpoint already; 1: queued at the consumer; 2: queued at the
            producer.
        serializer: name of the serializer of the records.
        version: version of that serializer.
    """

    source: str
    target: str
    elements: Section
    port: int = 0
    tag: str = ""
    number: int = 0
    partitioner: str
    producer: int
    consumer: int
    consumers: int
    max_parallelism: int
    stage: int
    serializer: str
    version: int


class SubtaskEntry(_Part, frozen=True, kw_only=True):
    """Part of one subtask in a checkpoint.

    Attributes:
        index: index of the subtask.
        operators: the state of its steps.
        attachments: other bytes by name.
        in_flight: records that the subtask had not processed, or had not sent. Only in an unaligned checkpoint.
        finished: True if the subtask had processed all of its input.
        size: bytes of state that the checkpoint refers to.
        written: of these, bytes that were written for this checkpoint.
        start_delay_ms: time from the trigger to the snapshot.
        alignment_ms: time for which some channels waited for others.
        flush_ms: time from the barrier until sinks had nothing buffered.
        sync_ms: time for which the snapshot blocked the task.
        async_ms: time to read and write it, while the task ran.
    """

    index: int
    operators: tuple[OperatorEntry, ...] = ()
    attachments: dict[str, Section] = {}
    in_flight: tuple[InFlightEntry, ...] = ()
    finished: bool = False
    size: int = 0
    written: int = 0
    start_delay_ms: int = 0
    alignment_ms: int = 0
    flush_ms: int = 0
    sync_ms: int = 0
    async_ms: int = 0

    @property
    def in_flight_size(self) -> int:
        """Bytes of the in-flight records."""
        return sum(part.elements.size for part in self.in_flight)


class StepEntry(_Part, frozen=True, kw_only=True):
    """Step of a job vertex.

    Attributes:
        uid: identifies the step's state.
        name: for people.
        kind: kind of the step, as in ``explain``.
    """

    uid: str
    name: str = ""
    kind: str = ""


class VertexEntry(_Part, frozen=True, kw_only=True):
    """Job vertex.

    Attributes:
        uid: uid of its first step.
        name: for people.
        parallelism: its number of subtasks.
        max_parallelism: its number of key groups.
        steps: all of its steps, in the order of the chain.
        subtasks: their state, those with any.
    """

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    steps: tuple[StepEntry, ...] = ()
    subtasks: tuple[SubtaskEntry, ...] = ()


class HistoryEntry(_Part, frozen=True, kw_only=True):
    """Outcome of an earlier checkpoint or savepoint of the run.

    Attributes:
        checkpoint_id: counted by the run.
        status: ``completed`` or ``failed``; ``pending``: in progress at that time.
        triggered_ms: time of the trigger, ms since the epoch.
        duration_ms: time until it completed or was aborted.
        size: bytes of state.
        reason: why it was aborted.
        savepoint: path or URL, if it is a savepoint.
        in_flight: of the size, bytes of in-flight records.
    """

    checkpoint_id: int
    status: str
    triggered_ms: int
    duration_ms: int | None = None
    size: int = 0
    reason: str = ""
    savepoint: str = ""
    in_flight: int = 0


class CheckpointMetadata(_Part, frozen=True, kw_only=True):
    """Metadata of a checkpoint or savepoint.

    Attributes:
        job_name: the pipeline's name.
        job_id: id of the run.
        checkpoint_id: counted by the run.
        kind: ``checkpoint`` or ``savepoint``.
        triggered_ms: time of the trigger, ms since the epoch.
        completed_ms: time of the last acknowledgement.
        vertices: the job's vertices with their state.
        enumerators: by uid of a source, the state of its enumerator; each one value.
        written_by: version of Sluiceway.
        properties: further data of the job manager.
        history: the run's last checkpoints and savepoints before it, also those that failed, oldest first.
    """

    job_name: str
    job_id: str
    checkpoint_id: int
    kind: str
    triggered_ms: int
    completed_ms: int
    vertices: tuple[VertexEntry, ...] = ()
    enumerators: dict[str, Section] = {}
    written_by: str = ""
    properties: dict[str, Any] = {}
    history: tuple[HistoryEntry, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of state that it refers to."""
        subtasks = sum(subtask.size for subtask in self.subtasks())
        return subtasks + sum(section.size for section in self.enumerators.values())

    @property
    def written(self) -> int:
        """Bytes of state that were written for it."""
        subtasks = sum(subtask.written for subtask in self.subtasks())
        return subtasks + sum(section.size for section in self.enumerators.values())

    def files(self) -> set[str]:
        """Names of all files that it refers to, relative to its directory."""
        found = {section.file for section in self.enumerators.values()}
        for subtask in self.subtasks():
            found.update(section.file for section in subtask.attachments.values())
            found.update(part.elements.file for part in subtask.in_flight)
            for operator in subtask.operators:
                found.update(_files_of(operator))
        return found

    def subtasks(self) -> Iterator[SubtaskEntry]:
        """Yield the entries of all subtasks."""
        for vertex in self.vertices:
            yield from vertex.subtasks

    def operators(self, uid: str | None = None) -> Iterator[tuple[VertexEntry, SubtaskEntry, OperatorEntry]]:
        """Yield the state of each step in each subtask, after the vertex and the subtask that had it.

        Args:
            uid: uid of the only step wanted; None: all steps.
        """
        for vertex in self.vertices:
            for subtask in vertex.subtasks:
                for operator in subtask.operators:
                    if uid in (None, operator.uid):
                        yield vertex, subtask, operator


def _files_of(operator: OperatorEntry) -> set[str]:
    values = [operator.splits, operator.broadcast, operator.pending, operator.committables]
    sections = [*values, *(kept.elements for kept in operator.lists)]
    found = {section.file for section in sections if section is not None}
    keyed = operator.keyed
    if keyed is not None and keyed.file is not None:
        found.add(keyed.file)
    if keyed is not None and keyed.native is not None:
        found.update(file.file for file in keyed.native.files)
    if keyed is not None:
        found.update(rows.file for rows in keyed.shared)
    return found


_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors that decoding raises: for invalid UTF-8 and deep nesting that is no error of msgspec's own."""


class _Envelope(msgspec.Struct, frozen=True):
    format: str
    version: int
    crc32: int = 0
    content: msgspec.Raw = msgspec.Raw(b"null")


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the metadata in the form of the file."""
    # Kept as raw bytes on both sides: the checksum is of exactly what stands in the file.
    content = msgspec.json.encode(metadata)
    if any(operator.keyed is not None and operator.keyed.shared for _, _, operator in metadata.operators()):
        version = 3
    else:
        version = 2 if any(subtask.in_flight for subtask in metadata.subtasks()) else 1
    return msgspec.json.encode(_Envelope(FORMAT, version, crc32(content), msgspec.Raw(content))) + b"\n"


def decode_metadata(data: bytes, where: str) -> CheckpointMetadata:
    """Return the metadata of a file.

    Args:
        data: content of the file.
        where: name of the file in messages.

    Raises:
        CheckpointError: it is damaged, no metadata at all, or of a version that this one cannot read.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except _UNREADABLE as error:
        raise CheckpointError(f"{where} is not the metadata of a checkpoint, or it is damaged: {error}") from error
    if envelope.format != FORMAT:
        raise CheckpointError(f"{where} is of format {envelope.format!r}, not {FORMAT!r}: it is no checkpoint")
    if not 1 <= envelope.version <= FORMAT_VERSION:
        raise CheckpointError(
            f"{where} was written by a newer Sluiceway: it is of version {envelope.version} of the format, this "
            f"one reads up to {FORMAT_VERSION}"
        )
    found = crc32(envelope.content)
    if found != envelope.crc32:
        raise CheckpointError(f"{where} is damaged: its checksum is {found}, {envelope.crc32} was written")
    try:
        return msgspec.json.decode(envelope.content, type=CheckpointMetadata)
    except _UNREADABLE as error:
        raise CheckpointError(f"{where} is not what its format says: {error}") from error
