"""Running values of accumulators: what each is after each row, in the order of the rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sluiceway.columns.keys.ordering import order_of

__all__ = ["Runs"]

_LONG: Final = 64
"""Rows of one position from which its run is computed by itself."""


class Runs:
    """Rows by position: a run is made of the rows of one position, in their order.

    Results are what adding row by row would give, to the last bit.

    Args:
        at: the position of each row, an array of int64.

    Attributes:
        at: the position of each row.
        order: the rows by position, in their order.
        positions: the position of each run.
        lasts: the last row of each run.
    """

    def __init__(self, at: Any) -> None:
        self.at = at
        self.order = order_of(at)
        by_position = at[self.order]
        first = np.ones(len(at), bool)
        first[1:] = by_position[1:] != by_position[:-1]
        self._starts = np.flatnonzero(first)
        self._run = np.cumsum(first) - 1
        self._ends = np.append(self._starts[1:], len(at))
        self.positions = by_position[self._starts]
        self.lasts = self.order[self._ends - 1]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def ranks(self) -> Any:
        """For each row the number of rows of its run that are before it."""
        return self._in_order(np.arange(len(self.at)) - self._starts[self._run])

    def _in_order(self, found: Any) -> Any:
        out = np.empty(len(found), found.dtype)
        out[self.order] = found
        return out

    def sums(self, begun: Any, values: Any) -> Any:
        """Return running sums of int64, from that of each run in ``begun`` on."""
        # One sum over all runs, from which what was there before each run is subtracted. It may wrap around; the
        # differences do not, as long as the sum of a run fits.
        total = np.cumsum(values[self.order], dtype=np.int64)
        before = np.concatenate([np.zeros(1, np.int64), total])[self._starts]
        return self._in_order(total + (begun - before)[self._run])

    def scan(self, function: Any, begun: Any, values: Any) -> Any:
        """Return running results of a binary function of numpy, from that of each run in ``begun`` on."""
        values = values[self.order].astype(begun.dtype, copy=False)
        found = np.empty_like(values)
        # Few long runs are gone through run by run, many short ones row by row of all runs at once.
        lengths = self._ends - self._starts
        by_length = np.argsort(-lengths, kind="stable")
        many = int(np.searchsorted(-lengths[by_length], -_LONG))
        for run in by_length[:many].tolist():
            start, end = int(self._starts[run]), int(self._ends[run])
            values[start] = function(begun[run], values[start])
            function.accumulate(values[start:end], out=found[start:end])
        # The first rows of all other runs, then the second ones, and so on.
        rest = by_length[many:]
        reached, places, left = begun[rest], self._starts[rest], lengths[rest]
        step = 0
        while len(places):
            reached = function(reached, values[places])
            found[places] = reached
            step += 1
            more = int(np.searchsorted(-left, -step))
            reached, places, left = reached[:more], places[:more] + 1, left[:more]
        return self._in_order(found)

    def latest(self, valid: Any) -> Any:
        """Return for each row the last one of its run up to it that is valid; -1 if there is none."""
        index = np.arange(len(self.at))
        # Places in the order of positions: one before the start of a run is of another position.
        marked = np.maximum.accumulate(np.where(valid[self.order], index, -1))
        return self._in_order(np.where(marked >= self._starts[self._run], self.order[marked], -1))

    def earliest(self, valid: Any) -> Any:
        """Return for each row the first one of its run that is valid; -1 if there is none up to it."""
        index = np.arange(len(self.at))
        firsts = np.full(len(self._starts), len(self.at))
        is_valid = valid[self.order]
        np.minimum.at(firsts, self._run[is_valid], index[is_valid])
        firsts = firsts[self._run]
        found = np.where(firsts <= index, self.order[np.minimum(firsts, len(self.at) - 1)], -1)
        return self._in_order(found)
