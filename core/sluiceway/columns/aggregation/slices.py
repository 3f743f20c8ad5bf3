"""Aggregates of the keys of a subtask in slices of time: arrays by position, in the order of the keys' arrival.

A key has a number in the subtask (:class:`~sluiceway.columns.keys.key_ids.KeyIds`) and a position in each slice
that it has rows in. Arrays have an element per position, so a slice needs memory for its own keys alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Accumulator
from sluiceway.columns.aggregation.layout import Layout, in_blocks
from sluiceway.columns.aggregation.row_positions import RowPositions
from sluiceway.columns.aggregation.runs import Runs
from sluiceway.columns.aggregation.stored import Stored, latest
from sluiceway.columns.aggregation.unwritten import Unwritten, grown
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.keys.direct_index import number_new
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.keys.word_table import WordTable
from sluiceway.columns.numpy_arrays import array_of, numpy_of

__all__ = [
    "CHUNK",
    "KEYS_OF_CHANGES",
    "AggregateSlice",
    "Positions",
    "part_of",
]

_FEW_KEYS: Final = 1 << 12
"""Keys up to which a slice has an element for each key of the subtask: an empty hash table is as large."""

_SPARSE: Final = 16
"""Keys of the subtask for one of the slice, or for a row of a batch, from which it has a hash table of its own."""

CHUNK: Final = 1 << 18
"""Positions of a block: those that have not changed are not written again."""

KEYS_OF_CHANGES: Final = 1 << 14
"""Keys of a slice from which on changes are written by themselves: a block has a kilobyte besides its rows."""

_MANY: Final = 4
"""A chunk of which this part has changed, or more, is written as a whole."""

_MOST_CHANGES: Final = 32
"""Changes of a slice in the state: then what they are of is written as a whole, as it is when half has changed."""

_TOGETHER: Final = 1 << 16
"""Rows of blocks that are restored in one piece, at most: it is a copy."""

_FIXED: Final = ("position",)


class Positions:
    """Positions of the keys of a slice, from 0, in the order of their arrival.

    Args:
        keys: the keys of the subtask.
        ids: numbers of the keys that have positions already.
    """

    def __init__(self, keys: KeyIds, ids: Any = ()) -> None:
        self._keys = keys
        self._ids = np.array(ids, np.int32) if len(ids) else np.zeros(64, np.int32)
        self.size = len(ids)
        # True as long as each key's position is its number, as in a slice that gets all rows: none is looked up.
        self._are_numbers = not self.size
        # Positions by key, or a table of the slice's own keys where these are few of many.
        self._dense: Any = np.full(0, -1, np.int32)
        self._sparse: WordTable | None = None

    @classmethod
    def of_all(cls, keys: KeyIds) -> Positions:
        """Return positions of all keys that are known, which are their numbers: none of these is looked up."""
        made = cls(keys, np.arange(len(keys)))
        made._are_numbers = True
        return made

    @property
    def ids(self) -> Any:
        """Number of the key at each position."""
        return self._ids[: self.size]

    def used_ids(self) -> Iterable[Any]:
        """Return the numbers of the keys."""
        return (self.ids,)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        sparse = 0 if self._sparse is None else self._sparse.nbytes
        return int(self._ids.nbytes + self._dense.nbytes + sparse)

    def find(self, ids: Any) -> Any:
        """Return the position of each key; new ones get the next positions."""
        if self._are_numbers:
            if self._takes_numbers(ids):
                return ids
            self._are_numbers = False
        known = len(self._keys)
        is_dense = known <= max(_FEW_KEYS, _SPARSE * self.size, _SPARSE * len(ids))
        if is_dense:
            self._make_dense(known)
            return self._find_dense(ids)
        if self._sparse is None:
            self._sparse = WordTable()
            self._dense = np.full(0, -1, np.int32)
            self._sparse.find([self.ids.astype(np.uint64)])
        positions, new = self._sparse.find([ids.astype(np.uint64)])
        self._append(ids[new])
        return positions

    def _takes_numbers(self, ids: Any) -> bool:
        """Return if positions stay the numbers of the keys; if so, the new ones are added."""
        # Most batches have known keys alone, and if all keys have positions, none is new.
        if not len(ids) or len(self._keys) <= self.size or (end := int(ids.max()) + 1) <= self.size:
            return True
        # The first row of each new key comes behind those of the keys with smaller numbers, and none is left out.
        reached = np.maximum.accumulate(ids[ids >= self.size])
        if reached[0] != self.size or int(np.diff(reached).max(initial=0)) > 1:
            return False
        self._append(np.arange(self.size, end))
        return True

    def _make_dense(self, known: int) -> None:
        if len(self._dense) >= known and self._sparse is None:
            return
        dense = np.full(known + known // 4, -1, np.int32)
        dense[self.ids] = np.arange(self.size, dtype=np.int32)
        self._dense, self._sparse = dense, None

    def _find_dense(self, ids: Any) -> Any:
        positions, new = number_new(self._dense, ids, self.size)
        if len(new):
            self._append(ids[new])
        return positions

    def _append(self, ids: Any) -> None:
        size = self.size + len(ids)
        if size > len(self._ids):
            grown = np.empty(max(size, len(self._ids) * 3 // 2), np.int32)
            grown[: self.size] = self.ids
            self._ids = grown
        self._ids[self.size : size] = ids
        self.size = size

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys.

        Args:
            renumbered: the new number by the old one.
        """
        self._ids = renumbered[self.ids].astype(np.int32)
        self._dense, self._sparse = np.full(0, -1, np.int32), None
        self._are_numbers = not self.size


class AggregateSlice:
    """Aggregates of the keys that have rows in one slice of time, or in one window.

    In the state, a slice is chunks of its keys, and changes: of a slice with many keys, those that have changed
    since the last snapshot are written by themselves, until there are too many of them.

    Args:
        layout: the columns.
        keys: the keys of the subtask.
        tracked: False if it is never saved.
        ages: True if keys that have not been used for long are to be found.
        of_all: True if all keys that are known have a position from the beginning, with rows or without.

    Attributes:
        moved: True if keys have other positions than in the blocks that the slice was restored from.
    """

    def __init__(
        self, layout: Layout, keys: KeyIds, *, tracked: bool = True, ages: bool = False, of_all: bool = False
    ) -> None:
        self.moved = False
        # By position, in how many batches it has been used; half of that after each :meth:`keep`.
        self._used: Any = np.zeros(0, np.uint8) if ages else None
        # Of what is never saved there are none to tell.
        self._changed = Unwritten() if tracked else None
        # Numbers of the changes that are in the state, how many rows these have, and the chunks that they are of.
        self._changes: list[int] = []
        self._last_change = self._rows_of_changes = 0
        self._chunks_of_changes: set[int] = set()
        self._layout, self._keys = layout, keys
        self.positions = Positions.of_all(keys) if of_all else Positions(keys)
        self.accumulators: dict[str, Accumulator] = {
            name: bound.create() for name, bound in layout.aggregates.items()
        }

    def __len__(self) -> int:
        return self.positions.size

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        tracked = sum(int(each.nbytes) for each in (self._changed, self._used) if each is not None)
        return self.positions.nbytes + tracked + sum(each.nbytes for each in self.accumulators.values())

    def find(self, ids: Any) -> Any:
        """Return the position of each key, which is going to change; new ones get the next positions."""
        at = self.positions.find(ids)
        if self._changed is not None:
            self._changed.add(at, len(self))
        if self._used is not None:
            self._used = grown(self._used, len(self))
            self._used[at] = np.minimum(self._used[at], 254) + 1
        return at

    # ---- keys by themselves -----------------------------------------------------------------------------------

    def groups(self) -> Any:
        """Return the key group of the key at each position."""
        return self._keys.groups()[self.positions.ids]

    def rows(self, at: Any) -> Any:
        """Return keys and accumulators at positions, as a record batch."""
        columns = self._keys.columns(self.positions.ids[at])
        columns += [accumulator.part(at) for accumulator in self.accumulators.values()]
        return pa.RecordBatch.from_arrays(columns, [*(f"key {n}" for n in self._layout.keys), *self.accumulators])

    def load(self, ids: Any, states: Sequence[Any]) -> None:
        """Add accumulators of keys that are not there, as :meth:`rows` returns them; they count as unchanged."""
        at = self.find(ids)
        for accumulator, state in zip(self.accumulators.values(), states, strict=True):
            accumulator.resize(len(self))
            accumulator.restore(at, state)
        if self._changed is not None:
            self._changed.discard(at, len(self))

    def changed(self) -> Any:
        """Return the positions that have changed since they were written."""
        assert self._changed is not None
        return self._changed.positions(len(self))

    def all_changed(self) -> None:
        """Note that no position has been written, and what was written before has others."""
        assert self._changed is not None
        self._changed.all()
        self.moved = True

    def written(self) -> None:
        """Note that all positions have been written."""
        assert self._changed is not None
        self._changed.clear()

    def most_used(self, count: int) -> Any:
        """Return so many positions, ascending: those that are used most, of others those that came last."""
        order = self._used[: len(self)].argsort(kind="stable")
        return np.sort(order[len(order) - count :])

    def keep(self, at: Any) -> None:
        """Forget all positions but some, ascending ones, which get the first numbers."""
        assert self._changed is not None
        self._changed.keep(at, len(self))
        ids, used = self.positions.ids[at], self._used[at] >> 1
        self.accumulators = part_of(self.accumulators, at, self._layout)
        self.positions = Positions(self._keys, ids)
        self._used = used

    # ---- chunks -----------------------------------------------------------------------------------------------

    def take_changes(self) -> list[tuple[int, dict[int, bytes] | None]]:
        """Return what the state has to have anew, by number: of chunks from 0 on, of changes below that.

        Each has blocks by key group; None: the state does not need it any more.
        """
        size = len(self)
        at = self.changed()
        self.written()
        if self.moved:  # all of it is written, and what was there is gone
            self._changes, self._rows_of_changes, self._chunks_of_changes = [], 0, set()
            self.moved = False
        if not len(at):
            return []
        chunks = at // CHUNK
        present, counts = np.unique(chunks, return_counts=True)
        whole = set(present[counts * _MANY >= np.minimum(size - present * CHUNK, CHUNK)].tolist())
        few = at[~np.isin(chunks, list(whole))]
        found: list[tuple[int, dict[int, bytes] | None]] = []
        if len(few) and (
            size < KEYS_OF_CHANGES
            or len(self._changes) >= _MOST_CHANGES
            or self._rows_of_changes + len(few) > size // 2
        ):
            whole = set(present.tolist()) | self._chunks_of_changes
            found += [(-number, None) for number in self._changes]
            self._changes, self._rows_of_changes, self._chunks_of_changes = [], 0, set()
        elif len(few):
            self._last_change += 1
            self._changes.append(self._last_change)
            self._rows_of_changes += len(few)
            self._chunks_of_changes |= set(present.tolist()) - whole
            # Chunks that are written now have what is changed now, too: their rows are not among these.
            found.append((-self._last_change, self._blocks_of(few, 0)))
        found += [(chunk, self.blocks(chunk)) for chunk in sorted(whole)]
        return found

    def update(self, ids: Any, columns: Mapping[str, Values], arrivals: Any) -> RowPositions:
        """Add rows, and return their positions.

        Args:
            ids: the number of each row's key.
            columns: the columns of :attr:`Layout.columns`.
            arrivals: numbers of the rows, ascending, also from call to call.
        """
        rows = RowPositions(self.find(ids), len(self))
        for name, accumulator in self.accumulators.items():
            accumulator.resize(len(self))
            names = self._layout.aggregates[name].columns
            accumulator.update(rows, [columns[column] for column in names], arrivals)
        return rows

    def running(self, ids: Any, columns: Mapping[str, Values], arrivals: Any) -> dict[str, Any]:
        """Add rows, as :meth:`update` does, and return the results after each row by name."""
        states = self.running_states(ids, columns, arrivals)
        return {name: each.result(len(ids)) for name, each in states.items()}

    def running_states(self, ids: Any, columns: Mapping[str, Values], arrivals: Any) -> dict[str, Accumulator]:
        """Add rows, as :meth:`update` does, and return accumulators by name with a position for each row."""
        runs = Runs(self.find(ids))
        found: dict[str, Accumulator] = {}
        for name, accumulator in self.accumulators.items():
            accumulator.resize(len(self))
            names = self._layout.aggregates[name].columns
            found[name] = accumulator.running(runs, [columns[column] for column in names], arrivals)
        return found

    def merge(self, other: AggregateSlice) -> None:
        """Add another slice."""
        at = self.find(other.positions.ids.astype(np.int64))
        for name, accumulator in self.accumulators.items():
            accumulator.resize(len(self))
            accumulator.merge(at, other.accumulators[name])

    def merge_states(self, ids: Any, states: Mapping[str, Any]) -> None:
        """Add accumulators as they are saved, by name: one of each for each of different keys."""
        at, rows = self.find(ids), np.arange(len(ids))
        for name, accumulator in self.accumulators.items():
            other = self._layout.aggregates[name].create()
            other.resize(len(ids))
            other.restore(rows, states[name])
            accumulator.resize(len(self))
            accumulator.merge(at, other)

    def merge_keys(self, other: AggregateSlice, ids: Any) -> None:
        """Add some keys of another slice; those that it does not have are left out."""
        at = np.flatnonzero(np.isin(other.positions.ids, ids))
        into = self.find(other.positions.ids[at].astype(np.int64))
        for name, part in part_of(other.accumulators, at, self._layout).items():
            self.accumulators[name].resize(len(self))
            self.accumulators[name].merge(into, part)

    def results(self) -> dict[str, Any]:
        """Return key columns and results by name, with a row per key in the order of arrival."""
        found = dict(zip(self._layout.keys, self._keys.columns(self.positions.ids), strict=True))
        for name, accumulator in self.accumulators.items():
            found[name] = accumulator.result(len(self))
        return found

    def blocks(self, chunk: int = 0) -> dict[int, bytes]:
        """Return the state of a chunk of positions as Arrow IPC streams, by key group."""
        at = np.arange(chunk * CHUNK, min(len(self), (chunk + 1) * CHUNK))
        return self._blocks_of(at, self._last_change)

    def _blocks_of(self, at: Any, includes: int) -> dict[int, bytes]:
        if not len(at):
            return {}
        ids = self.positions.ids[at]
        columns = [array_of(at.astype(np.int32)), *self._keys.columns(ids)]
        columns += [accumulator.part(at) for accumulator in self.accumulators.values()]
        names = ["position", *(f"key {name}" for name in self._layout.keys), *self.accumulators]
        whole = pa.RecordBatch.from_arrays(columns, names)
        return in_blocks(whole, self._keys.groups()[ids], self._layout.metadata, includes)

    def add_blocks(self, blocks: Sequence[Stored]) -> None:
        """Add the blocks of a key group that is not there; all of it counts as changed, at other positions.

        Raises:
            IncompatibleStateError: keys or aggregates have changed.
        """
        found = [
            block._replace(rows=self._layout.read(block.metadata, block.rows, len(_FIXED))) for block in blocks
        ]
        first = len(_FIXED) + len(self._layout.keys)
        for part in latest(found):
            self.load(self._keys.find(part.columns[len(_FIXED) : first]), part.columns[first:])
        self.all_changed()

    def restore(self, blocks: Iterable[Stored]) -> None:
        """Read the blocks of any key groups into the empty slice. Raises IncompatibleStateError."""
        found = [
            block._replace(rows=self._layout.read(block.metadata, block.rows, len(_FIXED))) for block in blocks
        ]
        parts = _together(latest(found))
        stored = [numpy_of(part.column(0)) for part in parts]
        order = _order(stored)
        self.moved = bool(len(order)) and not np.array_equal(np.concatenate(stored)[order], np.arange(len(order)))
        offset = 0
        at_of_row = np.empty(len(order), np.int64)
        at_of_row[order] = np.arange(len(order))
        keys = [
            pa.concat_arrays([part.column(place) for part in parts]).take(array_of(order))
            if parts
            else pa.nulls(0, kind)
            for place, kind in enumerate(self._layout.keys.values(), len(_FIXED))
        ]
        self.find(self._keys.find(keys))
        for accumulator in self.accumulators.values():
            accumulator.resize(len(self))
        for part in parts:
            at = at_of_row[offset : offset + len(part)]
            offset += len(part)
            states = part.columns[len(_FIXED) + len(keys) :]
            for accumulator, state in zip(self.accumulators.values(), states, strict=True):
                accumulator.restore(at, state)
        if self._changed is not None and not self.moved:
            self._changed.clear()
        self._know_changes(found)

    def _know_changes(self, blocks: Iterable[Stored]) -> None:
        for block in blocks:
            self._last_change = max(self._last_change, -block.number, block.includes)
            if block.number < 0:
                self._rows_of_changes += len(block.rows)
                places = numpy_of(block.rows.column(0)) // CHUNK
                self._chunks_of_changes |= set(np.unique(places).tolist())
        self._changes = sorted({-block.number for block in blocks if block.number < 0})


def _together(parts: Iterable[Any]) -> list[Any]:
    """Return record batches, small ones with the same types in one: each costs as much as hundreds of rows.

    An integer sum may be in one part of 64 bits in some, and in several of 32 in others.
    """
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for part in parts:
        alike.setdefault(tuple(part.schema.types), []).append(part)
    found: list[Any] = []
    for some in alike.values():
        if sum(map(len, some)) <= _TOGETHER:
            # Of lists that do not fit into one array, there is an error, and of texts several batches.
            with suppress(pa.ArrowException):
                found += pa.Table.from_batches(some).combine_chunks().to_batches()
                continue
        found += some
    return found


def _order(positions: Sequence[Any]) -> Any:
    return np.concatenate(positions).argsort(kind="stable") if positions else np.zeros(0, np.int64)


def part_of(accumulators: Mapping[str, Accumulator], at: Any, layout: Layout) -> dict[str, Accumulator]:
    """Return accumulators of their own, equal to those at some positions.

    Args:
        accumulators: accumulators by the names of their results.
        at: an array of positions.
        layout: has the aggregates.
    """
    found: dict[str, Accumulator] = {}
    everyone = np.arange(len(at))
    for name, accumulator in accumulators.items():
        found[name] = taken = layout.aggregates[name].create()
        if len(at):
            taken.resize(len(at))
            taken.restore(everyone, accumulator.part(at))
    return found
