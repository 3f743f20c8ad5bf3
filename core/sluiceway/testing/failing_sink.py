"""Sink that fails at chosen moments of its two-phase commit, in any process."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from copy import copy
from typing import Any, Final

from sluiceway.connector import CommittingSinkWriter, DeliveryGuarantee, Sink, SinkWriter, Wait, WriterContext
from sluiceway.errors import choose
from sluiceway.testing.exactly_once import InjectedError
from sluiceway.util.overriding import override

__all__ = ["BreakingSink"]

_ONE_PHASE: Final = ("before write", "after write", "after flush")
_TWO_PHASES: Final = (
    *_ONE_PHASE,
    "after pre-commit",
    "before commit",
    "during commit",
    "after commit",
    "before recovery",
    "after recovery",
)


class BreakingSink(Sink[Any]):
    """Wrapper of a sink that fails once at each chosen moment: by an InjectedError, or by killing its process.

    With it a pipeline shows that its output is exactly-once, or idempotent: run it until it has ended, restarted
    by itself or by hand, and look at the output.

    Args:
        sink: the other sink.
        marks: an empty directory, where it is noted what has broken already.
        moments: some of :attr:`MOMENTS`. ``before commit`` is when a checkpoint has become complete; ``during
            commit`` when the first half of what is to be committed is; ``before recovery`` and ``after recovery``
            are in an attempt that has something to commit before it begins. Without two phases only the first
            three ever come.
        kill: whether to end the process with SIGKILL, and not to raise anything.
        after: how many commits of a writer go well first; without two phases, how many flushes.

    Attributes:
        MOMENTS: the moments.

    Raises:
        UnknownNameError: there is no such moment.
    """

    MOMENTS: Final = _TWO_PHASES

    def __init__(
        self,
        sink: Sink[Any],
        marks: str | os.PathLike[str],
        *moments: str,
        kill: bool = False,
        after: int = 1,
    ) -> None:
        for moment in moments:
            if moment not in _TWO_PHASES:
                raise choose("moment", moment, _TWO_PHASES)
        self.sink = sink
        self._marks = os.fspath(marks)
        self._moments = moments
        self._kill = kill
        self._after = after

    @property
    @override
    def name(self) -> str:
        return self.sink.name

    @property
    @override
    def guarantee(self) -> DeliveryGuarantee:
        return self.sink.guarantee

    @property
    @override
    def input_type(self) -> Any:
        return self.sink.input_type

    @property
    @override
    def max_writers(self) -> int | None:
        return self.sink.max_writers

    def for_columns(self, schema: Any) -> Sink[Any]:
        """Return a copy with what the wrapped sink returns."""
        breaking = copy(self)
        breaking.sink = self.sink.for_columns(schema)
        return breaking

    @property
    def needs_program(self) -> bool:
        """Place of the commit of the wrapped sink: True for the program's process."""
        return self.sink.needs_program

    @property
    def commits_once(self) -> bool:
        """Limit of the wrapped sink to one commit in a run."""
        return self.sink.commits_once

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        """Return a writer that fails at the chosen moments."""
        writer = self.sink.create_writer(context)
        if isinstance(writer, CommittingSinkWriter):
            return _BreakingCommittingWriter(self, writer)
        return _BreakingWriter(self, writer)

    def at(self, moment: str, went_well: int | None) -> None:
        """Break, if this is one of the moments and it has not come yet. None: no commit must have gone well."""
        if moment not in self._moments or (went_well is not None and went_well < self._after):
            return
        mark = os.path.join(self._marks, moment.replace(" ", "-"))
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
        if self._kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise InjectedError(f"injected {moment}")


class _BreakingWriter(SinkWriter[Any]):
    def __init__(self, sink: BreakingSink, writer: SinkWriter[Any]) -> None:
        self._sink = sink
        self._writer = writer
        self._went_well = 0

    def open(self) -> None:
        self._writer.open()

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._at("before write")
        self._writer.write(values, timestamps)
        self._at("after write")

    def blocked(self) -> Wait | None:
        return self._writer.blocked()

    def flush(self) -> None:
        self._writer.flush()
        self._at("after flush")
        self._flushed()

    def finish(self) -> None:
        self._writer.finish()

    def close(self) -> None:
        self._writer.close()

    def _flushed(self) -> None:
        self._went_well += 1

    def _at(self, moment: str) -> None:
        self._sink.at(moment, self._went_well)


class _BreakingCommittingWriter(_BreakingWriter, CommittingSinkWriter[Any]):
    _writer: CommittingSinkWriter[Any]

    def _flushed(self) -> None:
        pass

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        ready = self._writer.prepare_commit(checkpoint_id)
        self._at("after pre-commit")
        return ready

    def commit(self, committables: Sequence[Any]) -> None:
        self._at("before commit")
        half = len(committables) // 2
        self._writer.commit(committables[:half])
        self._at("during commit")
        self._writer.commit(committables[half:])
        self._at("after commit")
        self._went_well += 1

    def recover(self, committables: Sequence[Any]) -> None:
        if committables:
            self._sink.at("before recovery", None)
        self._writer.recover(committables)
        if committables:
            self._sink.at("after recovery", None)
