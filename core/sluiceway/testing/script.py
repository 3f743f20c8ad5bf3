"""Scripted source: records, with marks between them that pause, fail or end it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Wait,
)
from sluiceway.connector.lib.process_local import ProcessLocal
from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError
from sluiceway.isolation import isolated_all
from sluiceway.persisted import persisted
from sluiceway.util.overriding import override

__all__ = ["ABORT", "EOF", "PAUSE", "TestSource"]

T = TypeVar("T")


class _Mark(Enum):
    EOF = "EOF"
    PAUSE = "PAUSE"

    def __repr__(self) -> str:
        return self.value


EOF: Final = _Mark.EOF
"""Mark at which the input ends."""

PAUSE: Final = _Mark.PAUSE
"""Mark at which the source waits for :meth:`TestSource.resume`."""


@dataclass(frozen=True, eq=False)
class ABORT:
    """Mark at which the source fails.

    Attributes:
        error: what it raises.
    """

    error: BaseException


_EXAMPLE: Final = "TestSource([1, 2, PAUSE, 3, EOF])"


@persisted("ScriptSplit")
@dataclass(frozen=True, slots=True)
class _Lane:
    """Split: the script of an index, from ``position`` on."""

    index: int
    position: int = 0

    @property
    def split_id(self) -> str:
        return f"script-{self.index}"


class TestSource(ProcessLocal, Source[Any]):
    """Source that reads scripts and obeys their marks. One reader per script.

    A script holds records, :class:`~sluiceway.elements.Batch` objects (given as copies, with their timestamps),
    and the marks :data:`EOF`, :data:`PAUSE` and :class:`ABORT`. Records without a mark in between come in one
    batch, as far as the runtime's batch size lets them. A script that runs out without an EOF waits for
    :meth:`put`: a job with such a source ends only when it is cancelled.

    Positions can be snapshotted and restored. All methods may be called from any thread.

    Args:
        scripts: at least one.
    """

    __test__ = False  # for pytest, which goes by the name

    what = "TestSource"

    def __init__(self, *scripts: Iterable[Any]) -> None:
        super().__init__()
        if not scripts:
            raise ValueError(f"TestSource takes at least one script: {_EXAMPLE}")
        for script in scripts:
            if not isinstance(script, Iterable):
                raise TypeError(
                    f"a script of TestSource is a list of records and marks, not {script!r}: {_EXAMPLE}"
                )
        self._scripts: list[list[Any]] = [list(script) for script in scripts]
        self._changed = threading.Condition()
        self._readers: dict[int, _ScriptReader] = {}

    def __repr__(self) -> str:
        return f"TestSource({', '.join(map(repr, self._scripts))})"

    @property
    def boundedness(self) -> Boundedness:
        """Bounded if every script has an EOF or ABORT."""
        ends = all(any(item is EOF or isinstance(item, ABORT) for item in s) for s in self._scripts)
        return Boundedness.BOUNDED if ends else Boundedness.UNBOUNDED

    @property
    def max_readers(self) -> int | None:
        """Number of scripts."""
        return len(self._scripts)

    @property
    def paused(self) -> bool:
        """True while a reader waits at a PAUSE."""
        with self._changed:
            return any(reader.at_pause for reader in self._readers.values())

    def wait_until_paused(self, timeout_s: float = 10.0) -> None:
        """Block, in a thread other than the job's, until a reader is at a PAUSE. Raises TimeoutError."""
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: any(reader.at_pause for reader in self._readers.values()), timeout_s
            )
        if not arrived:
            raise TimeoutError(f"no reader of {self!r} has come to a PAUSE within {timeout_s:g} s")

    def resume(self) -> None:
        """Resume the readers that wait at a PAUSE.

        Raises:
            AssertionError: none does.
        """
        with self._changed:
            waiting = [reader for reader in self._readers.values() if reader.at_pause]
            for reader in waiting:
                reader.at_pause = False
                reader.released = True
        if not waiting:
            raise AssertionError(f"no reader of {self!r} waits at a PAUSE")
        for reader in waiting:
            reader.context.wake()

    def put(self, *items: Any, script: int = 0) -> None:
        """Append records and marks to a script."""
        with self._changed:
            self._scripts[script].extend(items)
            readers = list(self._readers.values())
        for reader in readers:
            reader.context.wake()

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Return an enumerator with one split per script."""
        lanes = [_Lane(i) for i in range(len(self._scripts))]
        return SimpleEnumerator(context, lanes if restored is None else restored)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        return _ScriptReader(context, self)


class _ScriptReader(SimpleReader[Any]):
    def __init__(self, context: ReaderContext, source: TestSource) -> None:
        super().__init__(context)
        self._source = source
        self._lane = _Lane(0)
        self._ended = False
        self.at_pause = False
        self.released = False

    def open_split(self, split: _Lane) -> None:
        self._lane = split
        self._ended = False
        with self._source._changed:
            self._source._readers[split.index] = self

    def read(self, limit: int) -> Poll[Any]:
        source = self._source
        with source._changed:
            script = source._scripts[self._lane.index]
            values: list[Any] = []
            position = self._lane.position
            while position < len(script) and len(values) < limit and not _stops(script[position]):
                values.append(script[position])
                position += 1
            if values:
                self._lane = replace(self._lane, position=position)
                return _given_away(values)
            if position == len(script):
                return Wait()
            return self._mark(script[position])

    def _mark(self, item: Any) -> Poll[Any]:
        if item is PAUSE and not self.released:
            self.at_pause = True
            self._source._changed.notify_all()
            return Wait()
        if isinstance(item, ABORT):
            raise item.error
        if item is EOF:
            self._ended = True
            return END_OF_INPUT
        self.released = False
        self._lane = replace(self._lane, position=self._lane.position + 1)
        if isinstance(item, Batch):
            return _copy(item)
        # Read on at once: the mark was no record.
        return Wait(until=self.context.clock.monotonic())

    def position(self) -> _Lane | None:
        return None if self._ended else self._lane

    def close_split(self) -> None:
        with self._source._changed:
            self.at_pause = False
            if self._source._readers.get(self._lane.index) is self:
                del self._source._readers[self._lane.index]


def _stops(item: Any) -> bool:
    return isinstance(item, _Mark | ABORT | Batch)


def _copy(batch: Batch[Any]) -> Batch[Any]:
    stamps: Sequence[int] | None = batch.timestamps
    return Batch(_given_away(batch.values), None if stamps is None else list(stamps))


def _given_away(values: list[Any]) -> list[Any]:
    """Return records that a step may change: the script may be read again, after a restart or in another way."""
    try:
        own = isolated_all(values)
    except FunctionContractError:  # such as a connection, which nobody can copy
        own = values
    return list(own) if own is values else own
