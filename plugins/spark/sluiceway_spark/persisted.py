"""Classes of which pickled instances are in checkpoints and commit logs.

A pickle names a class by its module and its name, so this module and its classes keep their names. What earlier
versions stored under other names is listed below.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sluiceway.persisted import register_earlier

__all__ = ["AddedFile", "RemovedFiles", "SinkProgress", "StagedFile", "StagedRows", "StagingProgress"]


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of a staged partition, with the position to read from; a split of SparkSource.

    Attributes:
        directory: of the file.
        file: its name.
        partition: number of the partition in Spark.
        number: place of the file among those of the partition.
        row: number of rows that were read.
    """

    directory: str
    file: str
    partition: int
    number: int
    row: int = 0

    @property
    def split_id(self) -> str:
        """The file by partition and number."""
        return f"{self.partition:05d}-{self.number:05d}"


@dataclass(frozen=True, slots=True)
class StagingProgress:
    """Snapshot of the enumerator of SparkSource.

    Attributes:
        directory: of the staged files.
        pending: files that no reader was given.
        known: partitions whose files are pending or were given.
        complete: whether all partitions are known.
        fingerprint: of the DataFrame, where partitions are given before all are staged.
    """

    directory: str
    pending: tuple[StagedFile, ...]
    known: frozenset[int]
    complete: bool
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class AddedFile:
    """Committable of SparkSink: hidden and visible name of a file, relative to the target directory."""

    hidden: str
    name: str


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """Committable of SparkSink: files of an earlier job to remove."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Committable of SparkTableSink: the part that one subtask has in a transaction.

    Attributes:
        app: application id of the transaction.
        version: its version, which grows from one to the next.
        files: names of staged files in the staging directory.
        rows: number of rows in them.
    """

    app: str
    version: int
    files: tuple[str, ...]
    rows: int = 0


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """Part of a commit record that the sinks of a streaming query need for the next micro-batch.

    Attributes:
        subtasks: by uid and index of the subtask, its snapshots and position, pickled.
        ended: uid and index of the subtasks whose input has ended.
        now_ms: processing time of the micro-batch, ms since the epoch.
    """

    subtasks: dict[tuple[str, int], bytes] = field(default_factory=dict)
    ended: frozenset[tuple[str, int]] = frozenset()
    now_ms: int = 0


_EARLIER: Final[dict[str, dict[str, type]]] = {
    "sluiceway_spark._enumerator": {"Staged": StagingProgress},
    "sluiceway_spark._sinkwriter": {"Added": AddedFile, "Removed": RemovedFiles},
    "sluiceway_spark._staging": {"Part": StagedFile},
    "sluiceway_sparkengine.structured.sinkstage": {"_Kept": SinkProgress},
}
for _module, _classes in _EARLIER.items():
    register_earlier(_module, _classes)
