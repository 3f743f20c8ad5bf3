"""The latest row of each key."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import LARGEST, concatenated
from sluiceway.columns.kept.due_rows import Due
from sluiceway.columns.kept.keyed_runs import KeyedRuns, Run
from sluiceway.util.overriding import override

__all__ = ["Found", "LatestRows"]


class Found(NamedTuple):
    """Latest rows of keys.

    Attributes:
        source: which of the rows' batches has it; -1: there is none.
        place: its place there.
        stamps: its event time, in ms.
    """

    source: Any
    place: Any
    stamps: Any


class LatestRows(KeyedRuns):
    """The latest row of each key up to the watermark, for ever or until it is too old.

    A few runs of growing size; of the rows of a key, that in the last run counts.

    Args:
        keys: the keys of the subtask.
        schema: the rows.
        age: age in ms up to which a row counts; None: any.
        table: the state; a namespace is 0 and the number of a run.
    """

    @property
    def batches(self) -> list[Any]:
        """Batches of rows that the sources of :meth:`find` name."""
        return [run.data for run in self._runs]

    def find(self, ids: Any) -> Found:
        """Return the latest rows of keys, by their numbers."""
        source, place, stamps = (np.full(len(ids), -1, np.int64) for _ in range(3))
        left = np.arange(len(ids))
        for number in range(len(self._runs) - 1, -1, -1):
            if not len(left):
                break
            run = self._runs[number]
            wanted = ids[left]
            at = np.minimum(np.searchsorted(run.ids, wanted), len(run.ids) - 1)
            has = run.ids[at] == wanted
            rows = left[has]
            source[rows], place[rows], stamps[rows] = number, at[has], run.stamps[at[has]]
            left = left[~has]
        return Found(source, place, stamps)

    @override
    def rows_of(self, ids: Any) -> list[Due]:
        found, parts = self.find(ids), []
        for number, run in enumerate(self._runs):
            mine = np.flatnonzero(found.source == number)
            if len(mine):
                data = run.data.take(pa.array(found.place[mine]))
                parts.append(Due(ids[mine], found.stamps[mine], data))
        return parts

    @override
    def put(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Put rows in the place of earlier ones of their keys; a row that is older than the latest is dropped.

        Args:
            ids: the number of each row's key, in any order, also more than once.
            stamps: their event times, in ms.
            data: the rows, in order of arrival.
            number: number of the run, above all that there are.
        """
        # Of rows of one key and time the last to arrive counts: the sort is stable.
        order = np.lexsort((stamps, ids))
        ids, stamps = ids[order], stamps[order]
        last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
        ids, stamps, order = ids[last], stamps[last], order[last]
        found = self.find(ids)
        new = (found.source < 0) | (stamps >= found.stamps)
        if new.any():
            self._append(Run(number, ids[new], stamps[new], data.take(pa.array(order[new])), saved=False))

    def _append(self, run: Run) -> None:
        runs = self._runs
        while runs and len(run.ids) * 2 > len(runs[-1].ids):
            if run.data.nbytes + runs[-1].data.nbytes > LARGEST:
                break
            older = runs.pop()
            self._drop(older)
            ids, stamps = np.concatenate([older.ids, run.ids]), np.concatenate([older.stamps, run.stamps])
            order = ids.argsort(kind="stable")
            order = order[np.append(ids[order][1:] != ids[order][:-1], True)]
            data = concatenated([older.data, run.data]).take(pa.array(order))
            run = Run(run.number, ids[order], stamps[order], data, saved=False)
        runs.append(run)
