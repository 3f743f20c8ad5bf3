"""Format of checkpoints: state files, metadata, directories, reading and collection of garbage.

A worker calls :func:`write_subtask` and sends the entry that it returns. The job manager puts the entries of
all subtasks into a :class:`CheckpointMetadata` and completes it in a :class:`CheckpointDirectory`. From it,
:func:`read_operators` returns the snapshots.
"""

from sluiceway.checkpoint.directory import (
    METADATA,
    CheckpointDirectory,
    Orphans,
    checkpoint_name,
    checkpoint_number,
    find_checkpoints,
    load_metadata,
    split_location,
    write_enumerators,
)
from sluiceway.checkpoint.metadata import (
    CHECKPOINT,
    FORMAT_VERSION,
    SAVEPOINT,
    CheckpointMetadata,
    HistoryEntry,
    InFlightEntry,
    NativeFileEntry,
    Section,
    SharedFileEntry,
    StepEntry,
    SubtaskEntry,
    VertexEntry,
    decode_metadata,
    encode_metadata,
)
from sluiceway.checkpoint.native_files import OpenBackend, opened_rows, readable_by_all
from sluiceway.checkpoint.restore import StateReader, read_enumerators, read_in_flight, read_operators
from sluiceway.checkpoint.state_file import decode_subtask, encode_subtask, shared_files, write_subtask

__all__ = [
    "CHECKPOINT",
    "FORMAT_VERSION",
    "METADATA",
    "SAVEPOINT",
    "CheckpointDirectory",
    "CheckpointMetadata",
    "HistoryEntry",
    "InFlightEntry",
    "NativeFileEntry",
    "OpenBackend",
    "Orphans",
    "Section",
    "SharedFileEntry",
    "StateReader",
    "StepEntry",
    "SubtaskEntry",
    "VertexEntry",
    "checkpoint_name",
    "checkpoint_number",
    "decode_metadata",
    "decode_subtask",
    "encode_metadata",
    "encode_subtask",
    "find_checkpoints",
    "load_metadata",
    "opened_rows",
    "read_enumerators",
    "read_in_flight",
    "read_operators",
    "readable_by_all",
    "shared_files",
    "split_location",
    "write_enumerators",
    "write_subtask",
]
