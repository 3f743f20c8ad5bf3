"""Sink that collects records, and that can be blocked or made to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sluiceway.connector import Sink, SinkWriter, Wait, WriterContext
from sluiceway.connector.lib.process_local import ProcessLocal
from sluiceway.isolation import copied
from sluiceway.util.overriding import override

__all__ = ["CollectingSink", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """Call of a writer's ``write``.

    Attributes:
        subtask: index of the writer.
        values: the records.
        timestamps: their event times in ms, or None.
    """

    subtask: int
    values: tuple[Any, ...]
    timestamps: tuple[int, ...] | None


class CollectingSink(ProcessLocal, Sink[Any]):
    """Sink that collects every batch, with timestamps and subtask, over several runs until :meth:`clear`.

    All methods may be called from any thread.

    Args:
        blocked: whether to begin stopped up, as after :meth:`block`.
        fail_at: raise ``error`` instead of taking the record of that number, counted from 1; None: never.
        error: what to raise; None: a RuntimeError.
        copies: whether to keep copies, which show each record as it was when it was written.

    Raises:
        ValueError: ``fail_at`` is less than 1.

    Attributes:
        writes: the calls of ``write``, in order.
        events: what else was called: ``open``, ``flush``, ``finish`` and ``close`` with the subtask's index.
    """

    what = "CollectingSink"

    def __init__(
        self,
        *,
        blocked: bool = False,
        fail_at: int | None = None,
        error: BaseException | None = None,
        copies: bool = False,
    ) -> None:
        super().__init__()
        if fail_at is not None and fail_at < 1:
            raise ValueError(f"fail_at is {fail_at}: records are counted from 1")
        self.writes: list[Written] = []
        self.events: list[tuple[str, int]] = []
        self._fail_at = fail_at
        self._keep: Callable[[Any], Any] = copied if copies else lambda value: value
        self._error = error or RuntimeError(f"CollectingSink fails at record {fail_at}, as it was told to")
        self._lock = threading.Lock()
        self._allowed: int | None = 0 if blocked else None
        self._count = 0
        self._contexts: list[WriterContext] = []

    @property
    def values(self) -> list[Any]:
        """All records, in order of arrival."""
        return [value for written in list(self.writes) for value in written.values]

    @property
    def records(self) -> list[tuple[Any, int | None]]:
        """All records with their event times (ms, or None)."""
        made: list[tuple[Any, int | None]] = []
        for written in list(self.writes):
            stamps: Sequence[int | None] = written.timestamps or [None] * len(written.values)
            made += zip(written.values, stamps, strict=True)
        return made

    def values_of(self, subtask: int) -> list[Any]:
        """Return the records of one writer."""
        return [value for w in list(self.writes) if w.subtask == subtask for value in w.values]

    def clear(self) -> None:
        """Clear the collected records and calls."""
        self.writes.clear()
        self.events.clear()

    def block(self) -> None:
        """Block writes until :meth:`unblock`, which puts back-pressure on the job."""
        self._allow(0)

    def unblock(self, writes: int | None = None) -> None:
        """Accept writes again: a number of them before blocking again; None: any number."""
        self._allow(writes)

    def _allow(self, writes: int | None) -> None:
        with self._lock:
            self._allowed = writes
            contexts = list(self._contexts)
        for context in contexts:
            context.wake()

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return _CollectingWriter(self, context)


class _CollectingWriter(SinkWriter[Any]):
    def __init__(self, sink: CollectingSink, context: WriterContext) -> None:
        self._sink = sink
        self._context = context

    def open(self) -> None:
        with self._sink._lock:
            self._sink._contexts.append(self._context)
        self._note("open")

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        sink = self._sink
        with sink._lock:
            if sink._allowed is not None:
                assert sink._allowed > 0, "write() was called while blocked() says to wait"
                sink._allowed -= 1
            reached = sink._count + len(values)
            if sink._fail_at is not None and sink._count < sink._fail_at <= reached:
                raise sink._error
            sink._count = reached
            stamps = None if timestamps is None else tuple(timestamps)
            sink.writes.append(Written(self._context.subtask, tuple(map(sink._keep, values)), stamps))

    def blocked(self) -> Wait | None:
        return Wait() if self._sink._allowed == 0 else None

    def flush(self) -> None:
        self._note("flush")

    def finish(self) -> None:
        self._note("finish")

    def close(self) -> None:
        with self._sink._lock:
            self._sink._contexts = [c for c in self._sink._contexts if c is not self._context]
        self._note("close")

    def _note(self, event: str) -> None:
        self._sink.events.append((event, self._context.subtask))
