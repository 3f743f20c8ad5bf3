"""Dense numbers for the keys of a subtask, their key groups, and the keys themselves as columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.keys.dictionary_coding import DictionaryCoding
from sluiceway.columns.keys.key_columns import (
    counts_of,
    key_hashes,
    plain,
    refuse_fractions,
    without_negative_zeros,
    words_of,
)
from sluiceway.columns.keys.word_table import WordTable
from sluiceway.columns.numpy_arrays import array_of
from sluiceway.errors import StateError, UnstableKeyError
from sluiceway.keygroups import stable_hash

__all__ = ["KeyIds", "check_key_type", "key_groups_in", "key_groups_of_rows", "keys_of_groups"]

_OBJECT: Final = 150
"""Bytes of a key in a dict, about."""

_CHUNKS: Final = 64
"""Pieces of the keys' columns that are put together when there are more."""

_SHARE: Final = 16
"""Share of the keys up to which their columns are taken from the pieces as they are."""

_LEAST_BYTES: Final = 12
"""Mean bytes of a text with its offset, below which most texts are one word: found as fast as they are coded."""

_MOST_BYTES: Final = (1 << 31) - 1
"""Bytes of the texts of an array whose offsets have 32 bits."""


def check_key_type(name: str, kind: Any) -> None:
    """Check that a column may be part of a key. Raises UnstableKeyError with the column and its type."""
    while pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    if pa.types.is_nested(kind) or pa.types.is_interval(kind) or isinstance(kind, pa.BaseExtensionType):
        raise UnstableKeyError(
            f"column {name!r} is of type {kind}, which cannot be a key: lists, structs and maps can be changed, "
            "and have no hash. Make columns of the fields of a struct, with unnest(), and key by these"
        )


def key_groups_of_rows(
    columns: Sequence[Any], max_parallelism: int, coding: DictionaryCoding | None = None
) -> Any:
    """Return the key group of each row: that of the same row as a record.

    Args:
        columns: the key columns.
        max_parallelism: number of key groups.
        coding: of the batches of which this is one; None: there is no other.

    Returns:
        an array of int32. Raises UnstableKeyError as :func:`sluiceway.keygroups.stable_hash` does.
    """
    if coding is not None and (coded := coding.of(columns)) is not None:
        keys, places = coded
        return key_groups_of_rows(keys, max_parallelism).take(places)
    hashes = key_hashes(list(map(plain, columns)))
    if max_parallelism & max_parallelism - 1:
        hashes %= np.uint32(max_parallelism)
    else:  # a power of two, as the default is: a division costs as much as the hash
        hashes &= np.uint32(max_parallelism - 1)
    return hashes.view(np.int32)


def key_groups_in(
    data: Any, names: Sequence[str], max_parallelism: int, coding: DictionaryCoding | None = None
) -> Any:
    """Return :func:`key_groups_of_rows` of some columns of a record batch.

    Raises:
        UnstableKeyError: with the name of the column.
    """
    columns = [data.column(name) for name in names]
    try:
        return key_groups_of_rows(columns, max_parallelism, coding)
    except UnstableKeyError as error:
        raise _named(error, columns, names) from None


def _named(error: UnstableKeyError, columns: Sequence[Any], names: Sequence[str]) -> UnstableKeyError:
    """Return an error with the name of the first key column that has such a value."""
    for name, column in zip(names, columns, strict=True):
        try:
            key_hashes([plain(column)])
        except UnstableKeyError as own:
            return UnstableKeyError(f"column {name!r}: {own}")
    return error


@lru_cache(maxsize=8)
def keys_of_groups(max_parallelism: int) -> list[int]:
    """Return for each key group the smallest integer that is in it: the key of the group's blocks."""
    found = np.full(max_parallelism, -1, np.int64)
    start, step = 0, max(1024, 4 * max_parallelism)
    while (found < 0).any():
        numbers = np.arange(start, start + step)
        groups = key_groups_of_rows([array_of(numbers)], max_parallelism)
        first, at = np.unique(groups, return_index=True)
        new = found[first] < 0
        found[first[new]] = numbers[at[new]]
        start += step
    keys: list[int] = found.tolist()
    return keys


def _joined(parts: Sequence[Any]) -> Any:
    """Return arrays of keys as one. Raises StateError: their texts are larger than an array."""
    if sum(map(_text_bytes, parts)) > _MOST_BYTES:
        raise StateError(
            f"the keys of one subtask have more than {_MOST_BYTES:,} bytes in a column of type {parts[0].type}, "
            "which is all that an Arrow array can have. Raise the parallelism, so that a subtask has fewer keys, "
            "use the state backend rocksdb, which keeps some of the keys in memory, or key by a shorter value"
        )
    return pa.concat_arrays(parts)


def _text_bytes(column: Any) -> int:
    """Return the bytes of the texts of a column whose offsets have 32 bits; 0 for other types."""
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)) or not len(column):
        return 0
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return int(offsets[column.offset + len(column)]) - int(offsets[column.offset])


class KeyIds:
    """Ids of the keys of a subtask, from 0, in the order of their first appearance.

    Keys of any type that :func:`check_key_type` allows. Most types are compared as words in numpy; keys with texts
    longer than 63 bytes and the like go through a dict, slower. Not for use from several threads.

    Args:
        types: the Arrow types of the key columns.
        max_parallelism: number of key groups.
        takes_nan: True if NaN is one value, equal to itself, and times may have nanoseconds: for values that are
            no keys.
    """

    def __init__(self, types: Sequence[Any], max_parallelism: int = 1, *, takes_nan: bool = False) -> None:
        self._takes_nan = takes_nan
        self.types = tuple(types)
        self.max_parallelism = max_parallelism
        self._coding = DictionaryCoding(_LEAST_BYTES)
        self._table: WordTable | None = WordTable(0)
        # Place in the table of each word that a column has had so far.
        self._places: dict[tuple[int, int], int] = {}
        self._numbers: dict[Any, int] = {}
        # Has room behind the groups that are known.
        self._groups = np.zeros(0, np.int32)
        self._grouped = 0
        self._chunks: list[list[Any]] = [[] for _ in types]
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Memory of the keys, in bytes; an estimate where they go through a dict."""
        if self._table is None:
            found = _OBJECT * self._size
        else:
            found = self._table.nbytes
        return int(found + self._groups.nbytes + sum(chunk.nbytes for each in self._chunks for chunk in each))

    def find(self, columns: Sequence[Any]) -> Any:
        """Return the number of each row's key, as an array of int64; new keys get the next ones.

        Raises:
            UnstableKeyError: a key is NaN, or a time with fractions of a microsecond.
        """
        if not len(columns[0]):
            return np.zeros(0, np.int64)
        if (coded := self._coding.of(columns)) is not None:
            keys, places = coded
            return self._find(keys).take(places)
        return self._find(columns)

    def _find(self, columns: Sequence[Any]) -> Any:
        columns = list(map(plain, columns))
        if not self._takes_nan:
            # Otherwise such a key fails where the first key group is asked for: between subtasks, at a checkpoint.
            for column in columns:
                refuse_fractions(column)
        found = self._find_words(columns) if self._table is not None else None
        numbers, new = self._find_objects(columns) if found is None else found
        if len(new):
            self._append([column.take(array_of(new)) for column in columns])
        return numbers

    def find_in(self, data: Any, names: Sequence[str]) -> Any:
        """Return :meth:`find` of columns of a record batch. Raises UnstableKeyError with the column's name."""
        columns = [data.column(name) for name in names]
        try:
            return self.find(columns)
        except UnstableKeyError as error:
            raise _named(error, columns, names) from None

    def groups(self) -> Any:
        """Return the key group of each number, as an array of int32 that must not be changed."""
        if (done := self._grouped) < self._size:
            if len(self._groups) < self._size:
                grown = np.zeros(max(self._size, done + done // 2), np.int32)
                grown[:done] = self._groups[:done]
                self._groups = grown
            # Of the new keys alone: a batch of one row may have one, among millions.
            self._groups[done : self._size] = key_groups_of_rows(self.since(done), self.max_parallelism)
            self._grouped = self._size
        return self._groups[: self._size]

    def columns(self, numbers: Any = None) -> list[Any]:
        """Return the key columns, of all keys by number, or of an array of numbers."""
        if numbers is not None and len(self._chunks[0]) > 1 and len(numbers) * _SHARE < self._size:
            return self._some(numbers)
        for index, chunks in enumerate(self._chunks):
            if len(chunks) > 1:
                self._chunks[index] = [_joined(chunks)]
        columns = [
            chunks[0] if chunks else pa.nulls(0, t) for chunks, t in zip(self._chunks, self.types, strict=True)
        ]
        if numbers is None:
            return columns
        taken = array_of(numbers)
        return [column.take(taken) for column in columns]

    def _some(self, numbers: Any) -> list[Any]:
        """Return the key columns of a few numbers, without a copy of the others."""
        starts = np.cumsum([0, *map(len, self._chunks[0])])
        chunk_of = np.searchsorted(starts, numbers, "right") - 1
        order = chunk_of.argsort(kind="stable")
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        places, borders = (
            (numbers - starts[chunk_of])[order],
            np.searchsorted(chunk_of[order], np.arange(len(starts))),
        )
        found = []
        for chunks, kind in zip(self._chunks, self.types, strict=True):
            parts = [pa.nulls(0, kind)]
            for chunk, begin, end in zip(chunks, borders[:-1], borders[1:], strict=True):
                parts.append(chunk.take(array_of(places[begin:end])))
            found.append(pa.concat_arrays(parts).take(array_of(back)))
        return found

    def since(self, number: int) -> list[Any]:
        """Return the key columns of the numbers from one on; it costs as much as there are of these."""
        found = []
        for chunks, kind in zip(self._chunks, self.types, strict=True):
            parts, left = [], self._size - number
            for chunk in reversed(chunks):
                if left <= 0:
                    break
                parts.append(chunk.slice(max(0, len(chunk) - left)))
                left -= len(chunk)
            found.append(_joined(parts[::-1]) if parts else pa.nulls(0, kind))
        return found

    def retain(self, live: Any) -> Any:
        """Forget keys, and number the others anew in the same order.

        Args:
            live: array of bool by number.

        Returns:
            the new number by old number; -1 for those forgotten.
        """
        kept = np.flatnonzero(live)
        if self._table is not None:
            renumbered = self._table.retain(live)
        else:
            renumbered = np.full(self._size, -1, np.int64)
            renumbered[kept] = np.arange(len(kept))
            self._numbers = {k: int(renumbered[n]) for k, n in self._numbers.items() if renumbered[n] >= 0}
        columns = self.columns(kept)
        # Groups are computed when they are asked for, so the last keys may have none yet.
        self._groups = self._groups[kept[kept < self._grouped]]
        self._grouped = len(self._groups)
        self._chunks = [[column] for column in columns]
        self._size = len(kept)
        return renumbered

    def _append(self, columns: Sequence[Any]) -> None:
        for chunks, column, kind in zip(self._chunks, columns, self.types, strict=True):
            chunks.append(without_negative_zeros(column if column.type == kind else column.cast(kind)))
            # Put together in powers, so that each key is copied a few times only.
            while len(chunks) > 1 and len(chunks[-1]) * 2 > len(chunks[-2]):
                later = chunks.pop()
                chunks[-1] = _joined([chunks[-1], later])
        self._size += len(columns[0])

    def _find_words(self, columns: Sequence[Any]) -> tuple[Any, Any] | None:
        table, places = self._table, self._places
        assert table is not None
        row: dict[int, Any] = {}
        for index, column in enumerate(columns):
            words = words_of(column, takes_nan=self._takes_nan)
            if words is None:
                self._leave_words()
                return None
            for number, word in words:
                row[places.setdefault((index, number), len(places))] = word
        # Earlier batches may have had words that this one lacks, such as that of nulls or of a longer text.
        return table.find([row.get(place) for place in range(len(places))])

    def _leave_words(self) -> None:
        """Find keys through a dict from now on."""
        # Numbers stay those of the table: slices have arrays by them.
        self._table = None
        self._numbers = (
            {key: number for number, key in enumerate(self._objects(self.columns()))} if self._size else {}
        )

    @staticmethod
    def _objects(columns: Sequence[Any]) -> list[Any]:
        # Of the two hours before and after clocks are set back Python's times are equal, and counts are not.
        values = [counts_of(column).to_pylist() for column in columns]
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def _find_objects(self, columns: Sequence[Any]) -> tuple[Any, Any]:
        known, new, found = self._numbers, [], []
        for row, key in enumerate(self._objects(columns)):
            number = known.get(key)
            if number is None:
                stable_hash(key)  # refuses NaN
                number = known[key] = len(known)
                new.append(row)
            found.append(number)
        return np.array(found, np.int64), np.array(new, np.int64)
