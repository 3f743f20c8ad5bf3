"""The latest row of each key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import LARGEST, concatenated, plain_schema, write_blocks
from sluiceway.columns.keys.key_ids import KeyIds

__all__ = ["Found", "LatestRows"]

_PAUSE: Final = 1000
"""Event time in ms between two looks for rows that are too old, at least."""


class _Run(NamedTuple):
    """Rows of different keys, in order of key."""

    number: int
    ids: Any
    stamps: Any
    data: Any
    saved: bool


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


class LatestRows:
    """The latest row of each key up to the watermark, for ever or until it is too old.

    A few runs of growing size; of the rows of a key, that in the last run counts.

    Args:
        keys: the keys of the subtask.
        schema: the rows.
        tolerance: age in ms up to which a row counts; None: any.
        table: the state; a namespace is 0 and the number of a run.
    """

    def __init__(self, keys: KeyIds, schema: Any, tolerance: int | None, table: Any) -> None:
        self._keys = keys
        self.schema = plain_schema(schema)
        self._tolerance = tolerance
        self._table = table
        self._runs: list[_Run] = []
        self._look_at = 0

    def __len__(self) -> int:
        return sum(len(run.ids) for run in self._runs)

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

    def put(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Put rows in the place of earlier ones of their keys; a row that is older than the latest is dropped.

        Args:
            ids: the number of each row's key, in any order, also more than once.
            stamps: their event times, in ms.
            data: the rows, in order of arrival.
            number: number of the run, above all that there are.
        """
        order = np.lexsort((stamps, ids))
        ids, stamps = ids[order], stamps[order]
        last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
        ids, stamps, order = ids[last], stamps[last], order[last]
        found = self.find(ids)
        new = (found.source < 0) | (stamps >= found.stamps)
        if new.any():
            self._append(_Run(number, ids[new], stamps[new], data.take(pa.array(order[new])), saved=False))

    def add_saved(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Add the rows of a run that the state has."""
        order = ids.argsort()
        self._runs.append(_Run(number, ids[order], stamps[order], data.take(pa.array(order)), saved=True))

    def _append(self, run: _Run) -> None:
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
            run = _Run(run.number, ids[order], stamps[order], data, saved=False)
        runs.append(run)

    def _drop(self, run: _Run) -> None:
        if run.saved:
            self._table.drop((0, run.number))

    def expire(self, watermark: int) -> None:
        """Forget rows that are too old for any row to come. Some stay for a quarter of the tolerance longer."""
        if self._tolerance is None or watermark < self._look_at:
            return
        self._look_at = watermark + max(_PAUSE, self._tolerance // 4)
        left = []
        for run in self._runs:
            kept = np.flatnonzero(run.stamps >= watermark - self._tolerance)
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
