"""The directory that dead letters are kept in: the sink that writes them there, and the way back."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from sluiceway.connector import CommittingSinkWriter, Sink, SinkWriter, WriterContext
from sluiceway.connector.two_phase_commit import TwoPhaseCommitSink
from sluiceway.errors import ConnectorError
from sluiceway.functions import DeadLetter
from sluiceway.util.durable_files import sync_directory
from sluiceway.util.overriding import override
from sluiceway.util.surrogates import json_bytes

__all__ = [
    "DEAD_LETTER_SINK",
    "DeadLetterSink",
    "dead_letter_files",
    "delete_dead_letters",
    "read_dead_letters",
]

DEAD_LETTER_SINK: Final = "dead letters"
"""Name of the sink of the option ``dead-letters``, and its uid."""

_SUFFIX: Final = ".dead.jsonl"
_OPEN: Final = ".open"
"""Behind the name of a file that is not complete: nobody reads it."""


class DeadLetterSink(Sink[DeadLetter]):
    """Sink that writes dead letters to files in a directory, one JSON object a line, the record itself in base64.

    Where the job takes checkpoints, a letter can be seen when the checkpoint after it is complete, and is there
    exactly once. Without, files are complete as soon as input runs dry; what a job that fails has skipped last may
    be missing.

    Args:
        directory: made if it is not there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)
        self._run = uuid.uuid4().hex[:12]  # the same in all attempts of a run, and in no other run

    @property
    @override
    def name(self) -> str:
        return DEAD_LETTER_SINK

    @property
    @override
    def input_type(self) -> Any:
        return DeadLetter

    @property
    def max_writers(self) -> int:
        """One: it cleans up what earlier attempts have left."""
        return 1

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[DeadLetter]:
        if context.has_checkpoints:
            return _Transactions(self.directory, self._run).create_writer(context)
        return _Writer(_Files(self.directory, self._run, context))


class _Files:
    """The files of a run: each is written under a name that nobody reads, and then renamed."""

    def __init__(self, directory: str, run: str, context: WriterContext) -> None:
        self._directory = Path(directory)
        self._run = run
        self._clock = context.clock
        self._job = "".join(c if c.isalnum() else "-" for c in context.job_name)

    def prepare(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConnectorError(f"dead letters cannot be kept in {self._directory}: {error.strerror}") from error

    def new(self) -> str:
        # By name they are in the order of time.
        return f"{self._job}-{self._clock.now_ms():013d}-{self._run}-{uuid.uuid4().hex[:8]}{_SUFFIX}"

    def append(self, name: str, letters: Sequence[DeadLetter]) -> None:
        try:
            with open(self._open(name), "ab") as file:
                file.write(_encoded(letters))
        except OSError as error:
            raise ConnectorError(
                f"dead letters cannot be written to {self._open(name)}: {error.strerror}"
            ) from error

    def sync(self, name: str) -> None:
        if self._open(name).exists():
            with open(self._open(name), "rb+") as file:
                os.fsync(file.fileno())
            sync_directory(self._directory)

    def complete(self, name: str, *, durably: bool = False) -> None:
        # One that is not there was empty, or was completed before.
        if self._open(name).exists():
            os.replace(self._open(name), self._directory / name)
            if durably:
                sync_directory(self._directory)

    def remove(self, name: str) -> None:
        self._open(name).unlink(missing_ok=True)

    def remove_open(self) -> None:
        for path in self._directory.glob(f"*-{self._run}-*{_SUFFIX}{_OPEN}"):
            path.unlink(missing_ok=True)

    def _open(self, name: str) -> Path:
        return self._directory / (name + _OPEN)


class _Writer(CommittingSinkWriter[DeadLetter]):
    """For jobs without checkpoints: a file for each time that input runs dry; it commits nothing of its own."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        self._name: str | None = None

    def open(self) -> None:
        self._files.prepare()

    def write(self, values: Sequence[DeadLetter], timestamps: Sequence[int] | None) -> None:
        if self._name is None:
            self._name = self._files.new()
        self._files.append(self._name, values)

    def recover(self, committables: Sequence[Any]) -> None:
        # Of an earlier run that took checkpoints, as _Transactions has written them: nobody skips these again.
        for to_be_committed, name in committables:
            if to_be_committed:
                self._files.complete(name, durably=True)
        # Behind that: what was open at one checkpoint may be complete with the next one.
        for to_be_committed, name in committables:
            if not to_be_committed:
                self._files.remove(name)

    def flush(self) -> None:
        name, self._name = self._name, None
        if name is not None:
            self._files.complete(name)

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        return []  # flush() has completed what there is

    def commit(self, committables: Sequence[Any]) -> None:
        """Do nothing: nothing is made ready."""

    def close(self) -> None:
        # What a job has skipped before it failed is worth more than that nothing is there twice.
        self.flush()


class _Transactions(TwoPhaseCommitSink[DeadLetter, str]):
    """For jobs with checkpoints: a file for each of them."""

    def __init__(self, directory: str, run: str) -> None:
        self._directory = directory
        self._run = run
        self._files: _Files

    def open(self, context: WriterContext) -> None:
        self._files = _Files(self._directory, self._run, context)
        self._files.prepare()

    def begin_transaction(self) -> str:
        return self._files.new()

    def write(self, transaction: str, values: Sequence[DeadLetter], timestamps: Sequence[int] | None) -> None:
        self._files.append(transaction, values)

    def pre_commit(self, transaction: str) -> None:
        self._files.sync(transaction)

    def commit(self, transaction: str) -> None:
        # Later checkpoints do not name the file: an attempt that found it under its open name would remove it.
        self._files.complete(transaction, durably=True)

    def abort(self, transaction: str) -> None:
        self._files.remove(transaction)

    def abort_unknown(self) -> None:
        # What the checkpoint names is complete by now, and with one writer no other subtask has any.
        self._files.remove_open()


def dead_letter_files(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the complete files in a directory of dead letters.

    Raises:
        ConnectorError: there is no such directory.
    """
    place = Path(directory)
    if not place.is_dir():
        raise ConnectorError(f"there is no directory {place} with dead letters")
    return sorted(place.glob(f"*{_SUFFIX}"))


def read_dead_letters(files: Sequence[Path]) -> Iterator[DeadLetter]:
    """Return the letters in some files, those of each file in the order in which they were written.

    Nothing is unpickled.

    Raises:
        ConnectorError: a file cannot be read or is not one of dead letters; names the line.
    """
    decode = msgspec.json.Decoder(DeadLetter).decode
    for path in files:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise ConnectorError(f"{path} cannot be read: {error.strerror}") from error
        for number, line in enumerate(lines, 1):
            try:
                yield decode(line)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise ConnectorError(f"{path}, line {number}: no dead letter: {error}") from error


def delete_dead_letters(files: Sequence[Path], which: Callable[[DeadLetter], bool]) -> None:
    """Take letters out of some files; a file with none left is deleted.

    Raises:
        ConnectorError: a file cannot be read or written.
    """
    for path in files:
        left = [letter for letter in read_dead_letters([path]) if not which(letter)]
        try:
            if left:
                beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
                beside.write_bytes(_encoded(left))
                os.replace(beside, path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ConnectorError(f"dead letters cannot be deleted from {path}: {error.strerror}") from error


def _encoded(letters: Sequence[DeadLetter]) -> bytes:
    return b"".join(json_bytes(letter) + b"\n" for letter in letters)
