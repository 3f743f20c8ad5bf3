"""Enumerator of splits that are all known, and assigned, when the job starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sluiceway.connector import Enumerator, EnumeratorContext
from sluiceway.util.overriding import override

__all__ = ["Share", "StaticSplitEnumerator"]


class Share(Protocol):
    """Split with a number."""

    @property
    def index(self) -> int:
        """Its number among all splits."""


class StaticSplitEnumerator(Enumerator):
    """Enumerator that assigns split ``i`` to reader ``i % parallelism``: the same in each run.

    Args:
        context: given by the runtime.
        splits: all splits that are not assigned.
    """

    def __init__(self, context: EnumeratorContext, splits: Iterable[Share]) -> None:
        self._context = context
        self._pending: dict[int, list[Any]] = {}
        for split in splits:
            self._pending.setdefault(split.index % context.parallelism, []).append(split)

    def handle_split_request(self, reader: int) -> None:
        """Give the reader all that is its own, and say that nothing follows."""
        splits = self._pending.pop(reader, None)
        if splits:
            self._context.assign(reader, splits)
        self._context.no_more_splits(reader)

    def add_splits_back(self, splits: Sequence[Any], reader: int) -> None:
        """Keep the splits for the same reader's next attempt."""
        self._pending.setdefault(reader, [])[:0] = splits

    @override
    def snapshot(self) -> Any:
        return [split for splits in self._pending.values() for split in splits]
