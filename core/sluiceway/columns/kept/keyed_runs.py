"""Rows by key, in runs of growing size: base of the latest and of the last rows of each key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from sluiceway.columns.kept.blocks import plain_schema, write_blocks
from sluiceway.columns.kept.due_rows import Due
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.elements import MIN_WATERMARK

__all__ = ["KeyedRuns", "Run"]

_PAUSE: Final = 1000
"""Event time in ms between two looks for rows that are too old, at least."""


class Run(NamedTuple):
    """Rows in order of key, those of a key in order of time."""

    number: int
    ids: Any
    stamps: Any
    data: Any
    saved: bool


class KeyedRuns(ABC):
    """Rows by key, for ever or until they are too old.

    Args:
        keys: the keys of the subtask.
        schema: the rows.
        age: age in ms up to which a row is kept; None: any.
        table: the state; a namespace is 0 and the number of a run.
    """

    def __init__(self, keys: KeyIds, schema: Any, age: int | None, table: Any) -> None:
        self._keys = keys
        self.schema = plain_schema(schema)
        self._age = age
        self._table = table
        self._runs: list[Run] = []
        self._look_at = MIN_WATERMARK

    def __len__(self) -> int:
        return sum(len(run.ids) for run in self._runs)

    @property
    def nbytes(self) -> int:
        """Memory of the rows, in bytes."""
        return sum(int(run.data.nbytes + run.ids.nbytes + run.stamps.nbytes) for run in self._runs)

    def add_saved(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Add the rows of a run that the state has."""
        order = ids.argsort(kind="stable")
        self._runs.append(Run(number, ids[order], stamps[order], data.take(pa.array(order)), saved=True))

    @abstractmethod
    def put(self, ids: Any, stamps: Any, data: Any, number: int) -> None:
        """Add rows.

        Args:
            ids: the number of each row's key.
            stamps: their event times, in ms.
            data: the rows.
            number: number of the run, above all that there are.
        """

    def _drop(self, run: Run) -> None:
        if run.saved:
            self._table.drop((0, run.number))

    def expire(self, watermark: int) -> None:
        """Forget rows that are too old for any row to come. Some stay for a quarter of the age longer."""
        if self._age is None or watermark < self._look_at:
            return
        # Looking reads all rows, so it is done a few times in the age that they have.
        self._look_at = watermark + max(_PAUSE, self._age // 4)
        over = watermark - self._age
        self._keep(lambda run: run.stamps >= over)

    def _keep(self, chosen: Callable[[Run], Any]) -> None:
        """Keep the rows of each run for which a function returns true."""
        left = []
        for run in self._runs:
            kept = np.flatnonzero(chosen(run))
            if len(kept) < len(run.ids):
                self._drop(run)
                if not len(kept):
                    continue
                rows = run.data.take(pa.array(kept))
                run = Run(run.number, run.ids[kept], run.stamps[kept], rows, saved=False)
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

    # ---- rows that leave --------------------------------------------------------------------------------------

    @abstractmethod
    def rows_of(self, ids: Any) -> list[Due]:
        """Return the rows that count of keys: parts, the older first. Numbers come once and ascending."""

    def take_out(self, ids: Any) -> list[Due]:
        """Remove the rows of keys, by their numbers, each once and ascending, and return those that count."""
        found = self.rows_of(ids)
        self._keep(lambda run: ~np.isin(run.ids, ids))
        return found

    def used_ids(self) -> Iterable[Any]:
        """Return the numbers of the keys of the rows, run by run."""
        return (run.ids for run in self._runs)

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        self._runs = [run._replace(ids=renumbered[run.ids]) for run in self._runs]
