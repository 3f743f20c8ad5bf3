"""Splits that have their reader from the start, because all of them are known when the job starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sluiceway.connector import Enumerator, EnumeratorContext

__all__ = ["Share", "StaticSplitEnumerator"]


class Share(Protocol):
    """A split with a number."""

    @property
    def index(self) -> int:
        """Its number among all of them."""


class StaticSplitEnumerator(Enumerator):
    """Gives split number ``i`` to reader ``i % parallelism``: the same program reads the same way each time.

    Args:
        context: given by the runtime.
        splits: all that nobody has.
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

    def snapshot(self) -> Any:
        """The splits that nobody has."""
        return [split for splits in self._pending.values() for split in splits]
