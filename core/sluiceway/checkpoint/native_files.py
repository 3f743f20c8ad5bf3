"""Conversion of keyed state in a backend's files into rows that every backend reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from sluiceway.operators import OperatorSnapshot
from sluiceway.state import BackendContext, KeyedSnapshot, RowsOnDemand, StateBackend

__all__ = ["OpenBackend", "opened_rows", "readable_by_all", "with_rows"]

OpenBackend: TypeAlias = Callable[[str], StateBackend]
"""Makes the state backend of a name."""


def with_rows(
    snapshot: KeyedSnapshot, open_backend: OpenBackend, operator: str, subtask: int, max_parallelism: int
) -> KeyedSnapshot:
    """Return keyed state that has rows, also where it is stored as the files of a backend.

    The files stay readable as before. The backend reads the rows at their first access;
    :meth:`KeyedSnapshot.release` frees its resources. For one thread.

    Args:
        snapshot: the state.
        open_backend: makes the backend that has written it.
        operator: uid of the operator, for messages.
        subtask: index of the subtask, for messages.
        max_parallelism: the number of key groups that the state is divided into.
    """
    native = snapshot.native
    if native is None:
        return snapshot
    context = BackendContext(operator, subtask, native.key_groups, max_parallelism)
    rows = _RowsOfFiles(snapshot, open_backend, native.format.partition(" ")[0], context)
    return replace(snapshot, groups=rows, on_release=rows.release)


@contextmanager
def opened_rows(
    snapshot: KeyedSnapshot, open_backend: OpenBackend, operator: str, subtask: int, max_parallelism: int
) -> Iterator[KeyedSnapshot]:
    """Open keyed state with rows, and release it at the end of the ``with`` block: see :func:`with_rows`."""
    opened = with_rows(snapshot, open_backend, operator, subtask, max_parallelism)
    try:
        yield opened
    finally:
        opened.release()


def readable_by_all(
    snapshot: OperatorSnapshot, open_backend: OpenBackend, max_parallelism: int
) -> OperatorSnapshot:
    """Return a step's snapshots with keyed state that any backend can restore: see :func:`with_rows`."""
    if snapshot.keyed is None or snapshot.keyed.native is None:
        return snapshot
    keyed = with_rows(snapshot.keyed, open_backend, snapshot.uid, snapshot.subtask, max_parallelism)
    return replace(snapshot, keyed=keyed)


class _RowsOfFiles(RowsOnDemand):
    def __init__(
        self, snapshot: KeyedSnapshot, open_backend: OpenBackend, name: str, context: BackendContext
    ) -> None:
        self._snapshot = snapshot
        self._open_backend = open_backend
        self._name = name
        self._context = context
        self._taken: KeyedSnapshot | None = None

    def _rows(self) -> Mapping[int, bytes]:
        if self._taken is None:
            backend = self._open_backend(self._name).create_keyed(self._context)
            try:
                backend.restore([self._snapshot])
                taken = backend.snapshot()
                len(taken.groups)  # from now on it needs no backend
            finally:
                backend.close()
            self._taken = taken
        return self._taken.groups

    def __getitem__(self, group: int) -> bytes:
        return self._rows()[group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())

    def release(self) -> None:
        """Free what the backend has taken for it. Harmless a second time."""
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.release()
