"""Rows that wait for event time to reach them, in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import LARGEST, concatenated, plain_schema, write_blocks
from sluiceway.columns.keys.key_ids import KeyIds

__all__ = ["Due", "DueRows"]


class Due(NamedTuple):
    """Rows in order of time, those of one time in order of arrival.

    Attributes:
        ids: the number of each row's key.
        stamps: their event times, in ms.
        data: the rows.
    """

    ids: Any
    stamps: Any
    data: Any


class _Run(NamedTuple):
    """Rows that arrived one after the other; ``whole`` is how many they were before some became due."""

    number: int
    rows: Due
    whole: int
    saved: bool


def _ordered(ids: Any, stamps: Any, data: Any) -> Due:
    if len(stamps) > 1 and (stamps[1:] < stamps[:-1]).any():
        order = stamps.argsort(kind="stable")
        return Due(ids[order], stamps[order], data.take(pa.array(order)))
    return Due(ids, stamps, data)


def _joined(parts: Sequence[Due]) -> Due:
    if len(parts) == 1:
        return parts[0]
    ids, stamps = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    return _ordered(ids, stamps, concatenated([part.data for part in parts]))


class DueRows:
    """Rows of an input, until the watermark reaches their times.

    A few runs of growing size, each in order of time: what is due is at their beginnings.

    Args:
        keys: the keys of the subtask.
        schema: the rows.
        table: the state; a namespace is 0 and the number of a run.
    """

    def __init__(self, keys: KeyIds, schema: Any, table: Any) -> None:
        self._keys = keys
        self.schema = plain_schema(schema)
        self._table = table
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(len(run.rows.ids) for run in self._runs)

    def add(self, ids: Any, stamps: Any, data: Any, number: int, *, saved: bool = False) -> None:
        """Add rows.

        Args:
            ids: the number of each row's key.
            stamps: their event times, in ms.
            data: the rows, in order of arrival.
            number: number of the run, above all that there are.
            saved: whether the state has them.
        """
        run = _Run(number, _ordered(ids, stamps, data), len(ids), saved)
        runs = self._runs
        while not saved and runs and len(run.rows.ids) * 2 > len(runs[-1].rows.ids):
            older = runs[-1]
            if older.rows.data.nbytes + run.rows.data.nbytes > LARGEST:
                break
            runs.pop()
            self._drop(older)
            rows = _joined([older.rows, run.rows])
            run = _Run(number, rows, len(rows.ids), saved=False)
        runs.append(run)

    def _drop(self, run: _Run) -> None:
        if run.saved:
            self._table.drop((0, run.number))

    def take(self, watermark: int) -> Due | None:
        """Remove and return the rows whose time is at most ``watermark``; None if there are none."""
        due, left = [], []
        for run in self._runs:
            ids, stamps, data = run.rows
            count = int(np.searchsorted(stamps, watermark, "right"))
            if not count:
                left.append(run)
                continue
            # Slices: what is due is emitted at once, and no copy of the rest is made before half of it is gone.
            due.append(Due(ids[:count], stamps[:count], data.slice(0, count)))
            rest = len(ids) - count
            if not rest:
                self._drop(run)
                continue
            rows, whole, saved = Due(ids[count:], stamps[count:], data.slice(count)), run.whole, run.saved
            if rest * 2 < whole:
                # A copy, so that the memory and the block of those that are gone become free.
                self._drop(run)
                places = pa.array(np.arange(count, count + rest))
                rows, whole, saved = Due(rows.ids.copy(), rows.stamps.copy(), data.take(places)), rest, False
            left.append(_Run(run.number, rows, whole, saved))
        self._runs = left
        return _joined(due) if due else None

    def save(self, group_keys: Sequence[int]) -> None:
        """Write the runs that the state does not have."""
        groups = self._keys.groups()
        for place, run in enumerate(self._runs):
            if not run.saved:
                ids, stamps, data = run.rows
                write_blocks(self._table.entries((0, run.number)), group_keys, groups[ids], stamps, data)
                self._runs[place] = run._replace(saved=True)

    def used_ids(self) -> Iterable[Any]:
        """Return the numbers of the keys of the rows, run by run."""
        return (run.rows.ids for run in self._runs)

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        self._runs = [run._replace(rows=run.rows._replace(ids=renumbered[run.rows.ids])) for run in self._runs]
