"""Dictionary coding of key columns: each different key of a batch is looked up once, however many rows have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.keys.key_columns import plain
from sluiceway.columns.numpy_arrays import array_of, numpy_of

__all__ = ["DictionaryCoding"]

_FEWEST_ROWS: Final = 1_024
"""Rows below which the calls cost more than the look-ups they save."""

_REPEATS: Final = 5
"""Rows for each different key, at least, so that coding pays: it costs as much as the look-up of a short text."""

_LONGEST_PAUSE: Final = 64
"""Batches of hardly repeated keys between two tries, at most."""

_MOST: Final = 1 << 62
"""Combinations of values that are told apart by one integer."""


class DictionaryCoding:
    """Different keys of batches that repeat them. Not for use from several threads.

    Keys with texts are tried now and then, ever less often while they do not repeat. Others cost less to look up
    than to code.

    Args:
        least_bytes: mean bytes of a single column's texts, with their offsets, below which they are not tried.
    """

    def __init__(self, least_bytes: int = 0) -> None:
        self._least_bytes = least_bytes
        self._left = 0  # batches that are not tried
        self._pause = 1

    def of(self, columns: Sequence[Any]) -> tuple[list[Any], Any] | None:
        """Return the different keys by their first appearance, and the place of each row's key among them.

        Some of these may be equal: a dictionary that a column has come with may have a value twice.

        Args:
            columns: the key columns, arrays of one length.

        Returns:
            columns, and an array of integers; None where the rows are to be looked up one by one.
        """
        if len(columns) == 1 and _has_codes(columns[0]):
            return _first_rows(columns, _codes_of(columns[0]), len(columns[0].dictionary))
        size = len(columns[0])
        if size < _FEWEST_ROWS or not any(map(_has_texts, columns)) or not all(map(_can_be_coded, columns)):
            return None
        if len(columns) == 1 and columns[0].nbytes < self._least_bytes * size:
            return None
        if self._left:
            self._left -= 1
            return None
        coded = _coded(columns)
        if coded is not None and len(coded.dictionary) * _REPEATS <= size:
            self._pause = 1
        else:
            self._left, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        if coded is None:
            return None
        places = _codes_of(coded)
        if len(columns) == 1:
            return [coded.dictionary], places
        return _first_rows(columns, places, len(coded.dictionary))


def _has_texts(column: Any) -> bool:
    kind, types = column.type, pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(test(kind) for test in tests)


def _can_be_coded(column: Any) -> bool:
    kind, types = column.type, pa.types
    return bool(_has_texts(column) or types.is_integer(kind) or types.is_boolean(kind) or types.is_date(kind))


def _has_codes(column: Any) -> bool:
    """Return whether the codes of a column's own dictionary can be used."""
    return (
        pa.types.is_dictionary(column.type)
        and not column.indices.null_count
        and len(column.dictionary) <= len(column)
    )


def _codes_of(column: Any) -> Any:
    """Return the codes as numpy takes them for indices, which unsigned ones of 64 bits are not."""
    return numpy_of(column.indices).astype(np.intp, copy=False)


def _coded(columns: Sequence[Any]) -> Any:
    """Return a column with a dictionary that has a value for each combination; None: there may be too many."""
    if len(columns) == 1:
        return plain(columns[0]).dictionary_encode("encode")
    codes, most = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        coded = column if _has_codes(column) else plain(column).dictionary_encode("encode")
        most *= len(coded.dictionary)
        if most > _MOST:
            return None
        codes *= len(coded.dictionary)
        codes += _codes_of(coded)
    return array_of(codes).dictionary_encode()


def _first_rows(columns: Sequence[Any], codes: Any, count: int) -> tuple[list[Any], Any]:
    """Return the first row of each code, in the order of these rows, and the place of each row's among them."""
    size = len(codes)
    first = np.full(count, size)
    # From the last row to the first, so that the first one stays.
    first[codes[::-1]] = np.arange(size)[::-1]
    order = first.argsort()[: np.count_nonzero(first < size)]  # a dictionary may have values that no row has
    place = np.empty(count, np.intp)
    place[order] = np.arange(len(order))
    rows = array_of(first[order])
    return [column.take(rows) for column in columns], place.take(codes)
