"""Routing of rows to consumers, by key or by an index for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.times import as_array, as_numpy
from sluiceway.elements import Batch
from sluiceway.keygroups import check_key

__all__ = ["ColumnKey", "key_codes", "routes_by_key", "scattered"]


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


def key_codes(data: pa.RecordBatch, key: ColumnKey) -> tuple[np.ndarray[Any, Any], list[Any]]:
    """Return the distinct keys of rows, as records would have them, and for each row the index of its key."""
    coded = [_codes(data.column(name)) for name in key.names]
    if len(coded) == 1:
        return coded[0]
    codes, size = coded[0][0].astype(np.int64), len(coded[0][1])
    for more, values in coded[1:]:
        if size * len(values) >= 1 << 62:
            seen, codes = np.unique(codes, return_inverse=True)
            size = len(seen)
        codes = codes * len(values) + more
        size *= len(values)
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    parts = [[values[i] for i in each[first].tolist()] for each, values in coded]
    return codes, list(zip(*parts, strict=True))


def _codes(column: pa.Array[Any]) -> tuple[np.ndarray[Any, Any], list[Any]]:
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()  # its dictionary need not have null, and may have a value twice
    try:
        encoded: Any = column.dictionary_encode(null_encoding="encode")
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # nested types
        values = column.to_pylist()
        known: dict[Any, int] = {}
        for value in values:
            check_key(value)
            known.setdefault(value, len(known))
        return np.fromiter(map(known.__getitem__, values), np.int64, len(values)), list(known)
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()


def routes_by_key(data: pa.RecordBatch, key: Any, known: Mapping[Any, int]) -> np.ndarray[Any, Any]:
    """Return the consumer of each row.

    Args:
        data: the rows.
        key: their key, a :class:`ColumnKey`.
        known: gives the consumer of a key, a :class:`~sluiceway.keygroups.SubtaskCache`.

    Raises:
        UnstableKeyError: a key has no stable hash.
    """
    codes, keys = key_codes(data, key)
    routes: np.ndarray[Any, Any] = np.array([known[k] for k in keys], np.int32)[codes]
    return routes


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
        if len(rows) == len(of):
            return [(consumer, Batch.of_columns(data, timestamps))]
        if len(rows):
            part = data.take(rows)
            out.append((consumer, Batch.of_columns(part, None if stamps is None else as_array(stamps[rows]))))
    return out
