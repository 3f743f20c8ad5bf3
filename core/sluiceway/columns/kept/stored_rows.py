"""Rows of a run that are in the state alone, because memory is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.ipc import encode
from sluiceway.columns.kept.blocks import LARGEST, block_of, concatenated
from sluiceway.state import StateTable

__all__ = ["RowBlocks", "StoredRows", "largest_run"]

_LEAST: Final = 1 << 20
"""Bytes of a run, at least, up to which smaller ones are put together."""


_FEW: Final = 4
"""Share of the rows of blocks up to which they are taken block by block."""


def largest_run(table: StateTable) -> int:
    """Return the bytes of a run beyond which nothing is added to it: it is read as a whole, to add rows."""
    memory = table.working_memory
    return LARGEST if memory is None else min(LARGEST, max(_LEAST, memory // 16))


class RowBlocks(NamedTuple):
    """Blocks of the rows of an input.

    Attributes:
        table: the state.
        group_keys: the key of each group's blocks.
        read: returns event times and rows of a block, in the columns that they have now.
        schema: the columns that :meth:`StoredRows.take` returns.
    """

    table: StateTable
    group_keys: Sequence[int]
    read: Callable[[bytes], tuple[Any, Any]]
    schema: Any


class StoredRows:
    """Rows of a run that are in the state alone. Each read is of the key groups in question.

    Args:
        blocks: of the input.
        namespace: where the run is.
        groups: the key groups that have a block, ascending.
        starts: for each of them, how many rows the blocks before have.
        places: of each row of the run, its place among the rows of all blocks.
        nbytes: bytes of the rows in memory.
    """

    __slots__ = ("_blocks", "_groups", "_namespace", "_places", "_stale", "_starts", "nbytes")

    def __init__(
        self, blocks: RowBlocks, namespace: tuple[int, ...], groups: Any, starts: Any, places: Any, nbytes: int
    ) -> None:
        self._blocks, self._namespace, self._groups = blocks, namespace, groups
        self._starts, self._places = starts, places.astype(np.int32)
        self._stale = np.zeros(len(groups), bool)
        self.nbytes = nbytes

    @classmethod
    def written(cls, blocks: RowBlocks, namespace: tuple[int, ...], groups: Any, nbytes: int) -> StoredRows:
        """Return the rows that :func:`~sluiceway.columns.kept.blocks.write_blocks` has written.

        Args:
            blocks: of the input.
            namespace: where the run is.
            groups: the key group of each row.
            nbytes: bytes of the rows in memory.
        """
        order = groups.argsort(kind="stable")
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        present, starts = np.unique(groups[order], return_index=True)
        return cls(blocks, namespace, present, starts, places, nbytes)

    @property
    def held(self) -> int:
        """Bytes that stay in memory."""
        return int(self._places.nbytes)

    def taken(self, order: Any) -> StoredRows:
        """Return some of the rows, in another order."""
        places, share = self._places[order], len(order) / max(len(self._places), 1)
        nbytes = int(self.nbytes * share)
        return StoredRows(self._blocks, self._namespace, self._groups, self._starts, places, nbytes)

    def take(self, at: Any = None) -> Any:
        """Return rows by their places in the run, as a record batch; None: all."""
        return self.read(at)[1]

    def read(self, at: Any = None) -> tuple[Any, Any]:
        """Return event times, in ms, and rows, by their places in the run; None: all."""
        places = self._places if at is None else self._places[np.asarray(at)]
        schema = self._blocks.schema
        if not len(places):
            none = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
            return np.zeros(0, np.int64), none
        block = np.searchsorted(self._starts, places, "right") - 1
        numbers, which = np.unique(block, return_inverse=True)
        found, inside = self._read(numbers), places - self._starts[block]
        parts, stamps, before = [], [], np.zeros(len(numbers), np.int64)
        few = len(places) * _FEW < sum(len(times) for times, _ in found.values())
        order = which.argsort(kind="stable") if few else None
        ends = None if order is None else np.searchsorted(which[order], np.arange(len(numbers) + 1))
        size = 0
        for at, number in enumerate(numbers.tolist()):
            times, rows = found.pop(number)
            rows = rows.select(schema.names)
            if order is not None and ends is not None:  # whole blocks need not be copied
                mine = order[ends[at] : ends[at + 1]]
                times, rows = times[inside[mine]], rows.take(pa.array(inside[mine]))
                inside[mine] = np.arange(len(mine))
            stamps.append(times)
            parts.append(rows)
            before[at] = size
            size += len(times)
        inside = inside + before[which]
        return np.concatenate(stamps)[inside], concatenated(parts).take(pa.array(inside))

    def _read(self, numbers: Any) -> dict[int, tuple[Any, Any]]:
        keys = [self._blocks.group_keys[group] for group in self._groups[numbers].tolist()]
        found = self._blocks.table.read(keys, self._namespace)
        return {n: self._blocks.read(found[key]) for n, key in zip(numbers.tolist(), keys, strict=True)}

    # ---- a column that changes --------------------------------------------------------------------------------

    def mark(self, at: Any) -> None:
        """Note that the blocks of some rows say something of them that has changed."""
        self._stale[np.searchsorted(self._starts, self._places[at], "right") - 1] = True

    def write_marks(self, name: str, marks: Any) -> None:
        """Write the blocks that have changed, with another column of truth values, of all rows of the run."""
        numbers = np.flatnonzero(self._stale)
        if not len(numbers):
            return
        self._stale[:] = False
        entries = self._blocks.table.entries(self._namespace)
        block = np.searchsorted(self._starts, self._places, "right") - 1
        for number in numbers.tolist():  # one at a time in memory
            times, rows = self._read(np.array([number]))[number]
            column, mine = np.array(rows.column(name).to_numpy(zero_copy_only=False), bool), block == number
            column[self._places[mine] - self._starts[number]] = marks[mine]
            rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), pa.array(column))
            key = self._blocks.group_keys[self._groups[number]]
            entries[key] = bytes(encode(block_of(times, rows)))
