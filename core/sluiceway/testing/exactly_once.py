"""Tools that verify exactly-once results under failures, in one process and in many.

The source is a :class:`~sluiceway.connector.lib.GeneratorSource` of numbers. On their way they go through a
:class:`KeySequence`, which has a number of its own for each key and compares, and through a :class:`FailOnce`,
which fails at the moments that it was told; at the end a :class:`NumberFiles` writes them and says what has come.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from sluiceway.connector import WriterContext
from sluiceway.connector.lib import SequenceChecker, SequenceReport
from sluiceway.connector.two_phase_commit import TwoPhaseCommitSink
from sluiceway.functions import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    MapFunction,
    RuntimeContext,
)
from sluiceway.state import ValueState, ValueStateDescriptor
from sluiceway.util.overriding import override

__all__ = ["FailOnce", "InjectedError", "KeySequence", "NumberFiles"]


class InjectedError(Exception):
    """Failure injected by a test."""


class KeySequence(MapFunction[Any, Any]):
    """Function that forwards numbers that grow by ``step`` within their key, and fails at any other.

    For a stream keyed by ``lambda n: n % step``: the state of a key is the last of its numbers. If state and
    source do not go back to the same moment after a failure, a number comes twice, or one is missing.

    Args:
        step: how many keys there are; a multiple of the source's parallelism, so that the numbers of each come in
            order.
        number: finds the number in a record; None: the record is the number.
    """

    def __init__(self, step: int, number: Callable[[Any], int] | None = None) -> None:
        self._step = step
        self._number = number
        self._last: ValueState[int]

    @override
    def open(self, context: RuntimeContext) -> None:
        self._last = context.get_state(ValueStateDescriptor("last number", int))

    def map(self, value: Any) -> Any:
        """Compare.

        Raises:
            AssertionError: the number is not the next one of its key.
        """
        number = value if self._number is None else self._number(value)
        last = self._last.value()
        expected = number % self._step if last is None else last + self._step
        if number != expected:
            what = "lost" if number > expected else "counted twice"
            raise AssertionError(
                f"key {number % self._step}: after {last} comes {number}, not {expected}: something was {what}"
            )
        self._last.update(number)
        return value


class FailOnce(MapFunction[Any, Any], CheckpointedFunction, CheckpointListener):
    """Function that forwards records, and fails once at each of some moments, in whichever process is first.

    Args:
        marks: an empty directory, where it is noted what has failed already.
        at: the numbers at which it fails: records that compare equal.
        in_snapshots: the checkpoints in which it fails while state is taken: ``(2, 5)`` for the second and the
            fifth of a subtask's attempt.
        in_restore: whether it fails when it is first restored.
        at_close: whether it fails when it is first closed.
        in_notify: whether it fails when it first hears that a checkpoint is complete.
        kill_at: the numbers at which it ends its process with SIGKILL; for jobs on workers.
    """

    def __init__(
        self,
        marks: str | os.PathLike[str],
        at: Iterable[Any] = (),
        *,
        in_snapshots: Iterable[int] = (),
        in_restore: bool = False,
        at_close: bool = False,
        in_notify: bool = False,
        kill_at: Iterable[Any] = (),
    ) -> None:
        self._marks = os.fspath(marks)
        self._at = frozenset(at)
        self._in_snapshots = frozenset(in_snapshots)
        self._in_restore = in_restore
        self._at_close = at_close
        self._in_notify = in_notify
        self._kill_at = frozenset(kill_at)
        self._snapshots = 0

    def map(self, value: Any) -> Any:
        """Fail, or pass the record on."""
        if value in self._at:
            self._fail(f"at {value}")
        if value in self._kill_at and self._is_first(f"kill at {value}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    @override
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        if self._in_restore and context.is_restored:
            self._fail("while it was restored")

    @override
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self._snapshots += 1
        if self._snapshots in self._in_snapshots:
            self._fail(f"in snapshot {self._snapshots}")

    @override
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if self._in_notify:
            self._fail("when a checkpoint was complete")

    @override
    def close(self) -> None:
        if self._at_close:
            self._fail("when it was closed")

    def _fail(self, when: str) -> None:
        if self._is_first(when):
            raise InjectedError(f"injected {when}")

    def _is_first(self, when: str) -> bool:
        mark = os.path.join(self._marks, when.replace(" ", "-"))
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True


_OPEN: Final = ".open"
_READY: Final = ".ready"
_DONE: Final = ".done"


class NumberFiles(TwoPhaseCommitSink[int, str]):
    """Sink that writes numbers to a file per checkpoint and subtask, renamed when the checkpoint is complete.

    Args:
        directory: where to. It is made if it is not there.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.fspath(directory)
        self._subtask = 0
        self._attempt = ""
        self._next = 0

    def open(self, context: WriterContext) -> None:
        """Find out what is there."""
        os.makedirs(self._directory, exist_ok=True)
        self._subtask = context.subtask
        # A name that is used again could be committed for what another attempt has written.
        self._attempt = os.urandom(4).hex()

    def begin_transaction(self) -> str:
        """Return the name of the next file, unique among attempts."""
        name = f"{self._subtask:04}-{self._next:08}-{self._attempt}"
        self._next += 1
        return name

    @override
    def write(self, transaction: str, values: Sequence[int], timestamps: Sequence[int] | None) -> None:
        with open(self._path(transaction, _OPEN), "a", encoding="ascii") as file:
            file.write("".join(f"{value}\n" for value in values))

    @override
    def pre_commit(self, transaction: str) -> None:
        if os.path.exists(self._path(transaction, _OPEN)):
            os.rename(self._path(transaction, _OPEN), self._path(transaction, _READY))

    def commit(self, transaction: str) -> None:
        """Make the file a part of the result; if it is missing, nothing was written, or it is one already."""
        if os.path.exists(self._path(transaction, _READY)):
            os.rename(self._path(transaction, _READY), self._path(transaction, _DONE))

    @override
    def abort(self, transaction: str) -> None:
        for kind in (_OPEN, _READY):
            if os.path.exists(self._path(transaction, kind)):
                os.remove(self._path(transaction, kind))

    def abort_unknown(self) -> None:
        """Remove what no checkpoint knows of, and go on behind what is there."""
        for name in os.listdir(self._directory):
            if name.startswith(f"{self._subtask:04}-"):
                if name.endswith(_DONE):
                    self._next = max(self._next, int(name.split("-")[1]) + 1)
                else:
                    os.remove(os.path.join(self._directory, name))

    def report(self, count: int | None = None, lanes: int = 1) -> SequenceReport:
        """Return the contents of the committed files.

        Args:
            count: how many numbers there should be; None: up to the largest that came.
            lanes: the parallelism of the source: order is kept among numbers that agree modulo ``lanes``.
        """
        checker = SequenceChecker(lanes)
        for file in sorted(Path(self._directory).glob("*" + _DONE)):
            checker.check(map(int, file.read_text().split()), int(file.name.partition("-")[0]))
        return checker.report(count)

    def _path(self, transaction: str, kind: str) -> str:
        return os.path.join(self._directory, transaction + kind)
