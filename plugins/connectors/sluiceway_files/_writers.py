"""The two ways in which complete files get their names: at once, and with a checkpoint."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from sluiceway.connector import CommittingSinkWriter, WriterContext
from sluiceway.errors import ConnectorError
from sluiceway_files._output import Output, OutputWriter
from sluiceway_files._places import failing_with, shown

__all__ = ["CommittingFilesWriter", "FilesWriter"]

_log: Final = logging.getLogger("sluiceway_files")

# Ends of hidden names: written to; complete, without its name until the checkpoint is; beginning of a file, copied
# by a restore before it gets its name.
_IN_PROGRESS: Final = "in-progress"
_PENDING: Final = "pending"
_CUT: Final = "cut"


class FilesWriter(OutputWriter, CommittingSinkWriter[Any]):
    """Without checkpoints: a file gets its name when it is complete. A savepoint completes it, too."""

    def final_name(self) -> str:
        return f"{self.prefix}{self.number}{self.output.suffix}"

    def hidden_name(self) -> str:
        return f".{self.final_name()}.{_IN_PROGRESS}"

    def completed(self) -> None:
        self.move(self.path(self.hidden_name()), self.path(self.final_name()))

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        self.finish()
        return []

    def commit(self, committables: Sequence[Any]) -> None:
        pass


Committable: TypeAlias = tuple[str, str, int | None]
"""Hidden path and final path of a file; how many of its bytes belong to the checkpoint, None: it is complete."""


class CommittingFilesWriter(OutputWriter, CommittingSinkWriter[Any]):
    """With checkpoints: a file gets its name when it is complete, and a checkpoint that knows of it as well.

    A restored run that takes none commits what the checkpoint knows of, then names files as :class:`FilesWriter`.

    The names of the files of each attempt are its own: a task that is thought to be dead, and is not, disturbs
    nobody. Hidden names tell, too, which job and step they are of: so whoever comes next finds what was left.
    """

    counts_hidden = True

    def __init__(self, output: Output, context: WriterContext) -> None:
        super().__init__(output, context)
        self.attempt = uuid.uuid4().hex[:8]
        self._owner = hashlib.sha256(f"{context.job_name}\0{context.uid}".encode()).hexdigest()[:8]
        self._ready: list[Committable] = []
        self._is_in_checkpoint = False  # the open file
        self._unknown: list[str] = []  # complete files that no part of is in a checkpoint

    def final_name(self) -> str:
        return f"{self.prefix}{self.number}-{self.attempt}{self.output.suffix}"

    def hidden_name(self) -> str:
        return self._hidden(_IN_PROGRESS)

    def completed(self) -> None:
        hidden = self.path(self.hidden_name())
        if not self.context.has_checkpoints:
            # Restored, in a run that takes none: the file would stay hidden until the end, and go with a cancel.
            self.move(hidden, self.path(self.final_name()))
            return
        if self.is_local:  # elsewhere this would copy all of it
            pending = self.path(self._hidden(_PENDING))
            self.move(hidden, pending)
            hidden = pending
        self._ready.append((hidden, self.path(self.final_name()), None))
        if not self._is_in_checkpoint:
            self._unknown.append(hidden.rsplit("/", 1)[-1])
        self._is_in_checkpoint = False

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        ready = self._ready
        if self.has_open_file:
            with failing_with(f"write {shown(self.filesystem, self.path(self.final_name()))}"):
                # Without checkpoints a file that goes on would get its name with records from after the savepoint.
                if self.output.roll_on_checkpoint or self.is_due or not self.context.has_checkpoints:
                    self.complete()
                else:
                    self.sync(self.raw)
                    self._is_in_checkpoint = True
                    ready.append((self.path(self.hidden_name()), self.path(self.final_name()), self.size))
        # From here a checkpoint may know of these files: close() leaves them alone.
        self._ready, self._unknown = [], []
        return ready

    def take_ready(self) -> tuple[list[Committable], list[str]]:
        """Return what the next checkpoint is to commit, and the names of files that no checkpoint knows of."""
        ready, self._ready = self._ready, []
        unknown, self._unknown = self._unknown, []
        return ready, unknown

    def commit(self, committables: Sequence[Committable]) -> None:
        for hidden, final, length in committables:
            # A file that goes on gets its name when it is complete. Only a restore publishes a part of one.
            if length is None and not self._publish(hidden, final):
                raise ConnectorError(
                    f"cannot commit {shown(self.filesystem, final)}: neither it nor {hidden} is there any more. "
                    "Was it removed by hand, or does another job of this name write into the directory?"
                )
        self._sync_directories(final for _, final, _ in committables)

    def recover(self, committables: Sequence[Committable]) -> None:
        # A file that goes on over several checkpoints is in each of them; the last one has most of it.
        latest = {final: (hidden, length) for hidden, final, length in committables}
        for final, (hidden, length) in latest.items():
            with failing_with(f"commit {shown(self.filesystem, final)}"):
                if length is None:
                    is_there = self._publish(hidden, final)
                else:
                    is_there = self._publish_cut(hidden, final, length)
            if not is_there:
                # It was committed, most likely, and then taken away by those who it was for.
                _log.warning("%s is not there any more", shown(self.filesystem, final))
        with failing_with(f"write to {shown(self.filesystem, self.directory)}"):
            self._remove_left()
        self._sync_directories(latest)

    def abandoned(self) -> None:
        if not self._is_in_checkpoint:
            super().abandoned()

    def close(self) -> None:
        super().close()
        unknown, self._unknown = self._unknown, []
        for name in unknown:
            self.remove(name)

    def _hidden(self, state: str) -> str:
        return f".{self.final_name()}.{self._owner}.{state}"

    def _publish(self, hidden: str, final: str) -> bool:
        """Give a complete file its name, if it has not got it yet. False: it is not there."""
        try:
            self.move(hidden, final)
        except FileNotFoundError:
            return bool(self.filesystem.exists(final))
        return True

    def _publish_cut(self, hidden: str, final: str, length: int) -> bool:
        """As :meth:`_publish`, for the beginning of a file.

        It is copied: whoever wrote the file may not know yet that it is not to write any more.
        """
        base = hidden.removesuffix(_IN_PROGRESS)
        if os.path.exists(final):
            return True
        for source in (hidden, base + _PENDING):
            if os.path.exists(source):
                cut = base + _CUT
                with open(source, "rb") as file, open(cut, "wb") as copy:
                    shutil.copyfileobj(file, copy)
                    copy.truncate(length)
                    self.sync(copy)
                os.replace(cut, final)
                return True
        return False

    def _remove_left(self) -> None:
        """Remove files left by the subtasks that this one replaces; no checkpoint refers to them."""
        pattern = re.compile(rf"\.part-(\d+)-.*\.{self._owner}\.({_IN_PROGRESS}|{_PENDING}|{_CUT})")
        for name in self.names():
            match = pattern.fullmatch(name.rpartition("/")[2])
            # Each earlier subtask has one successor, whatever the parallelism was.
            if match and int(match[1]) % self.context.parallelism == self.context.subtask:
                self.remove(name)

    def _sync_directories(self, files: Iterable[str]) -> None:
        """Sync the directories that these files are in, and those up to that of the sink."""
        if not self.is_local:
            return
        directories: set[str] = set()
        for file in files:
            directory = os.path.dirname(file)
            while directory not in directories:
                directories.add(directory)
                if len(directory) <= len(self.directory):
                    break
                directory = os.path.dirname(directory)
        for directory in directories:
            with suppress(FileNotFoundError):  # taken away, with its files, by those who it was for
                descriptor = os.open(directory, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
