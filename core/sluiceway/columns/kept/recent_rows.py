"""The last rows of each key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import LARGEST, concatenated, plain_schema, write_blocks
from sluiceway.columns.kept.due_rows import Due
from sluiceway.columns.keys.key_ids import KeyIds

__all__ = ["RecentRows"]

_PAUSE: Final = 1000
"""Event time in ms between two looks for rows that are too old, at least."""


class _Run(NamedTuple):
    """Rows in order of key and time."""

    number: int
    ids: Any
    stamps: Any
    data: Any
    saved: bool


class RecentRows:
    """The last rows of each key up to the watermark: so many, or those of some time, or both.

    A few runs of growing size; rows that are too many of a key, or too old, go when runs are put together.

    Args:
        keys: the keys of the subtask.
        schema: the rows.
        most: how many of a key; None: any number.
        age: how old a row may be, in ms; None: any age.
        table: the state; a namespace is 0 and the number of a run.
    """

    def __init__(self, keys: KeyIds, schema: Any, most: int | None, age: int | None, table: Any) -> None:
        self._keys = keys
        self.schema = plain_schema(schema)
        self._most = most
        self._age = age
        self._table = table
        self._runs: list[_Run] = []
        self._look_at = 0

    def __len__(self) -> int:
        return sum(len(run.ids) for run in self._runs)

    def find(self, ids: Any) -> list[Due]:
        """Return the rows of keys, by their numbers, each once and ascending: parts, the older first."""
        found = []
        for run in self._runs:
            first, end = np.searchsorted(run.ids, ids), np.searchsorted(run.ids, ids, "right")
            if self._most is not None:
                first = np.maximum(first, end - self._most)
            counts = end - first
            if counts.any():
                ends = np.cumsum(counts)
                at = np.arange(ends[-1]) - np.repeat(ends - counts - first, counts)
                found.append(Due(run.ids[at], run.stamps[at], run.data.take(pa.array(at))))
        return found

    def put(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Add rows that are later than those that are there.

        Args:
            ids: the number of each row's key.
            stamps: their event times, in ms.
            data: the rows, in order of time.
            number: number of the run, above all that there are.
        """
        if self._most == 0:
            return
        runs = self._runs
        run = self._made(number, ids, stamps, data)
        while runs and len(run.ids) * 2 > len(runs[-1].ids):
            older = runs[-1]
            if run.data.nbytes + older.data.nbytes > LARGEST:
                break
            runs.pop()
            self._drop(older)
            run = self._made(
                number,
                np.concatenate([older.ids, run.ids]),
                np.concatenate([older.stamps, run.stamps]),
                concatenated([older.data, run.data]),
            )
        runs.append(run)

    def _made(self, number: int, ids: Any, stamps: Any, data: Any) -> _Run:
        order = ids.argsort(kind="stable")
        if self._most is not None:
            ends = np.searchsorted(ids[order], ids[order], "right")
            order = order[ends - np.arange(len(order)) <= self._most]
        return _Run(number, ids[order], stamps[order], data.take(pa.array(order)), saved=False)

    def add_saved(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Add the rows of a run that the state has."""
        order = ids.argsort(kind="stable")
        self._runs.append(_Run(number, ids[order], stamps[order], data.take(pa.array(order)), saved=True))

    def _drop(self, run: _Run) -> None:
        if run.saved:
            self._table.drop((0, run.number))

    def expire(self, watermark: int) -> None:
        """Forget rows that are too old for any row to come. Some stay for a quarter of the age longer."""
        if self._age is None or watermark < self._look_at:
            return
        self._look_at = watermark + max(_PAUSE, self._age // 4)
        left = []
        for run in self._runs:
            kept = np.flatnonzero(run.stamps >= watermark - self._age)
            if len(kept) < len(run.ids):
                self._drop(run)
                if not len(kept):
                    continue
                rows = run.data.take(pa.array(kept))
                run = _Run(run.number, run.ids[kept], run.stamps[kept], rows, saved=False)
            left.append(run)
        self._runs = left

    def save(self, group_keys: Sequence[int]) -> None:
        """Write the runs that the state does not have."""
        groups = self._keys.groups()
        for at, run in enumerate(self._runs):
            if not run.saved:
                entries = self._table.entries((0, run.number))
                write_blocks(entries, group_keys, groups[run.ids], run.stamps, run.data)
                self._runs[at] = run._replace(saved=True)

    def ids(self) -> Iterable[Any]:
        """Return the numbers of the keys of the rows, run by run."""
        return (run.ids for run in self._runs)

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        self._runs = [run._replace(ids=renumbered[run.ids]) for run in self._runs]
