"""Routing of rows to consumers, by key or by an index for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.keys.dictionary_coding import DictionaryCoding
from sluiceway.columns.keys.key_ids import key_groups_in
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.columns.times import as_array, as_numpy
from sluiceway.elements import Batch
from sluiceway.keygroups import SubtaskCache

__all__ = ["ColumnKey", "KeyRouting", "scattered", "subtasks_of_groups"]


class ColumnKey:
    """Key of a row: the value of a column, or the tuple of several.

    Callable on a row as a dict, so that it serves as the key function of records too.

    Args:
        names: the columns.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, row: Any) -> Any:
        """Return the key of a row."""
        if len(self.names) == 1:
            return row[self.names[0]]
        return tuple([row[name] for name in self.names])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnKey) and other.names == self.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return ", ".join(self.names)


class KeyRouting:
    """Consumers of rows, by their keys. Not for use from several threads.

    Args:
        key: their key, a :class:`ColumnKey`.
        known: has the number of consumers and of key groups.
    """

    def __init__(self, key: Any, known: SubtaskCache) -> None:
        self._names = key.names
        self._key_groups = known.max_parallelism
        self._subtasks = subtasks_of_groups(known.parallelism, known.max_parallelism)
        self._coding = DictionaryCoding()

    def routes(self, data: pa.RecordBatch) -> np.ndarray[Any, Any]:
        """Return the consumer of each row. Raises UnstableKeyError: a key has no stable hash."""
        groups = key_groups_in(data, self._names, self._key_groups, self._coding)
        routes: np.ndarray[Any, Any] = self._subtasks.take(groups)
        return routes


@lru_cache(maxsize=8)
def subtasks_of_groups(parallelism: int, max_parallelism: int) -> Any:
    """Return the subtask of each key group, as an array of few bytes that must not be changed."""
    subtasks = np.arange(max_parallelism) * parallelism // max_parallelism
    return subtasks.astype(np.uint8 if parallelism <= 1 << 8 else np.int64)


def scattered(
    data: pa.RecordBatch, timestamps: Sequence[int] | None, routes: Sequence[int], consumers: int
) -> list[tuple[int, Batch[Any]]]:
    """Return the rows for each consumer that has any, in their order.

    Args:
        data: the rows.
        timestamps: event time of each in ms, or None.
        routes: consumer of each.
        consumers: number of consumers.
    """
    stamps = None if timestamps is None else as_numpy(timestamps)
    of = np.asarray(routes)
    out: list[tuple[int, Batch[Any]]] = []
    for consumer in range(consumers):
        rows = np.flatnonzero(of == consumer)
        # All rows have one consumer, as with parallelism 1: no copy.
        if len(rows) == len(of):
            return [(consumer, Batch.of_columns(data, timestamps))]
        if len(rows):
            part = data.take(array_of(rows))
            out.append((consumer, Batch.of_columns(part, None if stamps is None else as_array(stamps.take(rows)))))
    return out
