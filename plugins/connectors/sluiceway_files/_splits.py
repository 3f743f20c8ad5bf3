"""Splits of files, and the formats that read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

from sluiceway.connector import EndOfInput, Wait
from sluiceway.elements import Batch
from sluiceway.metrics import MetricGroup
from sluiceway_files._compression import Compression
from sluiceway_files._places import Found
from sluiceway_files._sizes import least_size

__all__ = ["FileSplit", "Format", "OpenFile", "SplitReader"]


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A file, or the part of it that begins between two places.

    Attributes:
        root: index of the source's path through which the file was found.
        path: the file's path on its filesystem.
        start: byte (of a decompressed text) or row group where the part begins.
        end: where the next part begins; None: the part goes to the file's end.
        offset: where to go on: a byte where a line begins, or the row group; None: not begun.
        skip: how many lines, rows or records after ``offset`` were read already.
        line: number of lines of the part before ``offset``.
        seen: CRC-32 of what tells the file from another one of its name: of the lines that were read where
            ``skip`` counts from, of the last bytes before ``offset`` if it is 0, or of the footer of a Parquet
            file; 0: not known.
        size: bytes of the file when it was listed; None: not known.
        tail: CRC-32 of the last bytes of a file in several parts when it was listed; 0: not known.
    """

    root: int
    path: str
    start: int = 0
    end: int | None = None
    offset: int | None = None
    skip: int = 0
    line: int = 0
    seen: int = 0
    size: int | None = None
    tail: int = 0

    def __setstate__(self, state: list[Any]) -> None:
        # Of an earlier version: without the last fields.
        for field, value in zip_longest(fields(self), state):
            object.__setattr__(self, field.name, field.default if value is None else value)

    @property
    def split_id(self) -> str:
        """Root, path and start."""
        return f"{self.root}:{self.path}@{self.start}"


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An opened file.

    Attributes:
        raw: the binary file as it is stored.
        compression: how it is compressed.
        name: how messages call it.
        metrics: of the reader.
    """

    raw: Any
    compression: Compression | None
    name: str
    metrics: MetricGroup


class SplitReader(ABC):
    """Reader of one split."""

    @abstractmethod
    def read(self, limit: int) -> list[Any] | Batch[Any] | Wait | EndOfInput:
        """At most ``limit`` records, or a wait that is over, or the end. May raise OSError."""

    @abstractmethod
    def position(self) -> FileSplit | None:
        """Return the split as of the last record; None at the end."""

    def close(self) -> None:
        """Free everything but the raw file."""


class Format(ABC):
    """Format of records in a file. Picklable."""

    suffix: str = ""

    @property
    def output_type(self) -> Any:
        """The type of its records, or None."""
        return None

    def plan(
        self, file: Found, name: str, opener: Callable[[], Any], compression: Compression | None, split_size: int
    ) -> list[FileSplit]:
        """Return the splits of a file; ``opener`` opens it, for a format that must look into it."""
        return [FileSplit(file.root, file.path, size=file.size)]

    def least_split(self, *, local: bool) -> int:
        """Return how many bytes a split has at least; ``local``: if files are on a local disk."""
        return least_size(local=local)

    def may_hold(self, path: str, name: str) -> bool:
        """Return whether a file may have records to read, by its path; otherwise it is not opened."""
        return True

    @abstractmethod
    def read(self, file: OpenFile, split: FileSplit) -> SplitReader:
        """Begin to read a split."""
