"""Base of file writers: files stay hidden until they are complete."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from sluiceway.connector import SinkWriter, WriterContext
from sluiceway.errors import ConnectorError, SuppressRestartsError
from sluiceway_files import _compression
from sluiceway_files._compression import SUFFIXES, Compression
from sluiceway_files._encoders import FileEncoder, SinkFormat
from sluiceway_files._places import absolute, failing_with, open_filesystem, shown

__all__ = ["Output", "OutputWriter", "TakenError"]


_NAME = re.compile(r"part-(\d+)-")


class TakenError(ConnectorError, SuppressRestartsError):
    """The directory has output of another run, which no restart removes."""


@dataclass(frozen=True)
class Output:
    """Settings of a sink.

    Attributes:
        directory: path or URL.
        format: format of the files.
        compression: of whole files.
        roll_size: bytes after which a file is complete, or None.
        roll_interval_ms: age at which a file is complete, or None.
        roll_on_checkpoint: whether each checkpoint completes the file.
        append: whether files of earlier runs are allowed.
        options: options of the filesystem.
        partition_by: columns whose values name the directories that the files are in.
        max_open: files that a subtask has open at a time, of different partitions.
    """

    directory: str
    format: SinkFormat
    compression: Compression | None = None
    roll_size: int | None = None
    roll_interval_ms: int | None = None
    roll_on_checkpoint: bool = True
    append: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    max_open: int = 1

    def __getstate__(self) -> dict[str, Any]:
        # A worker may have another working directory.
        state = {**self.__dict__, "directory": absolute(self.directory)}
        state.pop("place", None)
        return state

    @cached_property
    def place(self) -> str:
        """URL or absolute path, that of the first use: functions may change the working directory during a run."""
        return absolute(self.directory)

    @property
    def suffix(self) -> str:
        """Suffix of its file names."""
        return self.format.suffix + (SUFFIXES[self.compression] if self.compression else "")


class OutputWriter(SinkWriter[Any]):
    """Writer of one file after the other, under hidden names; a subclass handles complete ones.

    Attributes:
        counts_hidden: whether the numbers of files go on behind those of hidden files, too.
    """

    counts_hidden: bool = False

    def __init__(self, output: Output, context: WriterContext) -> None:
        self.output = output
        self.context = context
        self.prefix = f"part-{context.subtask}-"
        self.number = 0
        self.filesystem: Any = None
        self.directory = ""
        self.raw: Any = None
        self.size = 0
        """Bytes of the open file that this writer has written."""
        self._file: Any = None
        self._encoder: FileEncoder | None = None
        self._begun_at = 0.0

    @abstractmethod
    def final_name(self) -> str:
        """Return the final name of the open file."""

    @abstractmethod
    def hidden_name(self) -> str:
        """Return the name of the open file until it is complete; begins with a dot."""

    @abstractmethod
    def completed(self) -> None:
        """Handle a complete file: it was written and closed."""

    @property
    def may_have_earlier(self) -> bool:
        """Return whether the directory may hold earlier files of this subtask."""
        return self.output.append or self.context.is_restored

    @property
    def is_local(self) -> bool:
        """True if the files are on a local filesystem."""
        return isinstance(self.filesystem, LocalFileSystem)

    @property
    def has_open_file(self) -> bool:
        """True if the open file has records."""
        return self._encoder is not None

    @property
    def encoder(self) -> FileEncoder | None:
        """Encoder of the open file, if one is open."""
        return self._encoder

    @property
    def is_due(self) -> bool:
        """Return whether the open file is large or old enough."""
        assert self._encoder is not None
        size, interval = self.output.roll_size, self.output.roll_interval_ms
        if size is not None and self.size + self._encoder.written >= size:
            return True
        return interval is not None and (self.context.clock.monotonic() - self._begun_at) * 1000 >= interval

    def open(self) -> None:
        self.filesystem, path = open_filesystem(self.output.place, self.output.options)
        self.directory = path.rstrip("/")
        place = shown(self.filesystem, self.directory)
        with failing_with(f"write to {place}"):
            if self.filesystem.isfile(self.directory):
                raise ConnectorError(f"cannot write to {place}: it is a file; FilesSink writes into a directory")
            self.filesystem.makedirs(self.directory, exist_ok=True)
            names = self.names()
        plain = [name.rpartition("/")[2] for name in names]
        earlier = [name for name, own in zip(names, plain, strict=True) if self._looks_after(own)]
        if earlier and not self.may_have_earlier:
            resume = ""
            if self.context.has_checkpoints:
                resume = ". To go on with that run, start the job with resume, or from its checkpoint"
            raise TakenError(
                f"{place} already holds {min(earlier)} from an earlier run. Take another directory, or "
                f"append=True to write beside it{resume}"
            )
        counted = re.compile(rf"{'[.]?' if self.counts_hidden else ''}{self.prefix}(\d+)")
        numbers = [int(match[1]) for name in plain if (match := counted.match(name))]
        self.number = max(numbers, default=-1) + 1

    def _looks_after(self, name: str) -> bool:
        """Return whether a file is one that this subtask has to refuse, if it may not have earlier ones.

        Those of subtasks that this run has are theirs, as they may have begun already; of an earlier run with more
        of them each has one here.
        """
        match = _NAME.match(name)
        return match is not None and int(match[1]) % self.context.parallelism == self.context.subtask

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if not values:
            return
        if self._encoder is None:
            with failing_with(f"write {self._shown()}"):
                self._encoder = self._begin()
        # Not within failing_with(): an error here is one of the record, not of the file.
        data = self._encoder.encode(values)
        self.size += len(data)
        with failing_with(f"write {self._shown()}"):
            self._file.write(data)
            if self.is_due:
                self.complete()

    def flush(self) -> None:
        if self.has_open_file:
            with failing_with(f"write {self._shown()}"):
                if self.raw is self._file:
                    self.raw.flush()
                if self.is_due:
                    self.complete()

    def finish(self) -> None:
        if self.has_open_file:
            with failing_with(f"write {self._shown()}"):
                self.complete()

    def close(self) -> None:
        if self.raw is None:
            return
        try:
            with suppress(Exception):  # incomplete files do not count
                if self._encoder is not None:
                    self._encoder.abandon()
            with suppress(Exception):
                self._close_files()
        finally:
            self.abandoned()

    def abandoned(self) -> None:
        """Handle an open file that was closed before it was complete."""
        self.remove(self.hidden_name())

    def complete(self) -> None:
        """Write the trailer of the format, and close the file."""
        assert self._encoder is not None
        self._encoder.finish()
        # A checkpoint may know of the file as soon as it is complete.
        self._close_files(durably=self.context.has_checkpoints)
        self.completed()
        self.number += 1
        self.size = 0

    def names(self) -> list[str]:
        """Return the names of all files in the directory; with partitions, their paths in it."""
        self.filesystem.invalidate_cache()
        if self.output.partition_by:
            return [str(path)[len(self.directory) + 1 :] for path in self.filesystem.find(self.directory)]
        try:
            found = self.filesystem.ls(self.directory, detail=False)
        except FileNotFoundError:  # an object store has no directory without a file, whatever makedirs() says
            return []
        return [str(path).rsplit("/", 1)[-1] for path in found]

    def path(self, name: str) -> str:
        """Return the path of a file of the directory."""
        return f"{self.directory}/{name}"

    def move(self, source: str, target: str) -> None:
        """Rename a file, replacing the target. Raises FileNotFoundError if it does not exist."""
        if self.is_local:
            # Atomic, which fsspec's move is not.
            os.replace(source, target)
        else:
            self.filesystem.mv(source, target)

    def remove(self, name: str) -> None:
        """Remove a file of the directory, if it exists."""
        with suppress(FileNotFoundError):
            self.filesystem.rm_file(self.path(name))

    def _begin(self) -> FileEncoder:
        hidden = self.path(self.hidden_name())
        try:
            self.raw = self.filesystem.open(hidden, "wb")
        except FileNotFoundError:
            # Those who the files are for took the directory away with them.
            self.filesystem.makedirs(self.directory, exist_ok=True)
            self.raw = self.filesystem.open(hidden, "wb")
        self._file = _compression.compressing(self.raw, self.output.compression)
        self._begun_at = self.context.clock.monotonic()
        return self.output.format.encoder(self._file, self._shown())

    def _close_files(self, durably: bool = False) -> None:
        raw, file = self.raw, self._file
        self._encoder = self._file = None
        try:
            if file is not None and file is not raw:
                file.close()
            if durably:
                self.sync(raw)
        finally:
            raw.close()
        self.raw = None

    def sync(self, file: Any) -> None:
        """Sync a local file to disk."""
        if self.is_local:
            file.flush()
            os.fsync(file.fileno())

    def _shown(self) -> str:
        return shown(self.filesystem, self.path(self.final_name()))
