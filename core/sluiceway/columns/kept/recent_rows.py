"""The last rows of each key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import LARGEST, concatenated
from sluiceway.columns.kept.due_rows import Due
from sluiceway.columns.kept.keyed_runs import KeyedRuns, Run
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.util.overriding import override

__all__ = ["RecentRows"]


class RecentRows(KeyedRuns):
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
        super().__init__(keys, schema, age, table)
        self._most = most

    @override
    def rows_of(self, ids: Any) -> list[Due]:
        return self.find(ids)

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

    @override
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

    def _made(self, number: int, ids: Any, stamps: Any, data: Any) -> Run:
        order = ids.argsort(kind="stable")
        if self._most is not None:
            ends = np.searchsorted(ids[order], ids[order], "right")
            order = order[ends - np.arange(len(order)) <= self._most]
        return Run(number, ids[order], stamps[order], data.take(pa.array(order)), saved=False)
