"""Sessions that the rows of a batch belong to, found together, with the results of one row after the other.

The order of rows decides which of them are too late, and the last bit of a sum of floats whose sessions merge.
Rows that are near each other in time form a group with the open sessions that they touch. In most groups each
row, in the order of arrival, touches what is there of its group: then the group is one session. The others are
gone through row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sluiceway.columns.keys.ordering import order_of
from sluiceway.elements import MAX_WATERMARK

__all__ = ["Assigned", "Round", "assign"]

_NONE: Final = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Round:
    """Sessions that merge, and the rows that are added next.

    Attributes:
        targets: the sessions that others are added to; none occurs twice.
        sources: the sessions that are added to them, and are gone.
        rows: indices of rows, ascending.
        sessions: the session of each of them.
    """

    targets: Any
    sources: Any
    rows: Any
    sessions: Any


@dataclass(frozen=True)
class Assigned:
    """Sessions of the rows of a batch.

    Sessions are numbered: first those that were open, then the new ones.

    Attributes:
        starts: start of each session.
        ends: end of each session.
        first_rows: the first row of each new session.
        rounds: merges and rows, in this order.
        late: rows that are too late, ascending.
    """

    starts: Any
    ends: Any
    first_rows: Any
    rounds: list[Round]
    late: Any


def assign(
    ids: Any, stamps: Any, gap: int, over: Any, held_ids: Any, held_starts: Any, held_ends: Any
) -> Assigned:
    """Assign rows to sessions.

    Args:
        ids: the number of each row's key.
        stamps: event time of each row, in ms.
        gap: time without rows after which a session ends, in ms.
        over: for each row, sessions of its key that end by this are over.
        held_ids: the key of each open session. All open sessions of the rows' keys are given.
        held_starts: the start of each.
        held_ends: the end of each.
    """
    held, rows = len(held_ids), len(ids)
    # Open sessions before rows: what follows treats a session like a row that was there before.
    keys = np.concatenate([held_ids, ids])
    low = np.concatenate([held_starts, stamps])
    high = np.concatenate([held_ends, np.minimum(stamps, MAX_WATERMARK - gap) + gap])
    group = _groups(keys, low, high)
    count = int(group.max()) + 1 if len(group) else 0
    sessions = np.bincount(group[:held], minlength=count)
    of_row = group[held:]
    ends = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(ends, group, high)
    # A row alone is late if its own session would be over. In a group that is one session in any case, or late
    # altogether, the order of rows does not matter.
    is_late = high[held:] <= over
    some_late = np.bincount(of_row[is_late], minlength=count) > 0
    all_late = np.zeros(count, bool)
    all_late[of_row] = ends[of_row] <= over
    by_row = (sessions > 1) | (some_late & ~all_late) | _broken(group, low, high, count)
    by_row &= ~all_late
    at_once = ~(by_row | all_late)
    # The session of each group that is one.
    number = np.full(count, -1, np.int64)
    number[group[:held]] = np.arange(held)
    new = np.flatnonzero(at_once & (sessions == 0))
    number[new] = held + np.arange(len(new))
    first_rows = np.full(count, rows)
    np.minimum.at(first_rows, of_row, np.arange(rows))
    starts = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(starts, group, low)
    found_starts = np.concatenate([held_starts, starts[new]])
    found_ends = np.concatenate([held_ends, ends[new]])
    grown = np.flatnonzero(at_once & (sessions == 1))
    found_starts[number[grown]], found_ends[number[grown]] = starts[grown], ends[grown]
    # Round 0: rows of the groups that are one session. Rounds of the walk come behind it, with other sessions.
    chosen = np.flatnonzero(at_once[of_row])
    rounds = [Round(_NONE, _NONE, chosen, number[of_row[chosen]])]
    late = np.flatnonzero(all_late[of_row])
    assigned = Assigned(found_starts, found_ends, first_rows[new], rounds, late)
    if not by_row.any():
        return assigned
    walk = _Walk(assigned)
    for session in np.flatnonzero(by_row[group[:held]]).tolist():
        walk.hold(int(group[session]), session)
    for row in np.flatnonzero(by_row[of_row]).tolist():
        walk.add(int(of_row[row]), row, int(low[held + row]), int(high[held + row]), int(over[row]))
    return walk.result()


def _groups(keys: Any, low: Any, high: Any) -> Any:
    """Return the group of each item: items of a key that overlap or touch, directly or by others, are in one."""
    order = order_of(keys, low)
    keys, low = keys[order], low[order]
    other_key = np.ones(len(keys), bool)
    other_key[1:] = keys[1:] != keys[:-1]
    reached = _running(np.maximum, high[order], other_key)
    apart = other_key.copy()
    apart[1:] |= low[1:] > reached[:-1]
    group = np.empty(len(keys), np.int64)
    group[order] = np.cumsum(apart) - 1
    return group


def _broken(group: Any, low: Any, high: Any, count: int) -> Any:
    """Return for each group if an item touches none of those of the group that are before it."""
    order = order_of(group)
    low, high, group = low[order], high[order], group[order]
    first = np.ones(len(group), bool)
    first[1:] = group[1:] != group[:-1]
    reached, begun = _running(np.maximum, high, first), _running(np.minimum, low, first)
    apart = ~first[1:] & ((low[1:] > reached[:-1]) | (high[1:] < begun[:-1]))
    return np.bincount(group[1:][apart], minlength=count) > 0


def _running(extreme: Any, values: Any, first: Any) -> Any:
    """Return running extremes that begin anew at each ``first``."""
    if not len(values):
        return values
    # Segments are moved apart by more than any value, so that one accumulation does for all of them.
    segment = np.cumsum(first)
    least = int(values.min())
    width = int(values.max()) - least + 1
    if width * (len(values) + 1) >= 1 << 62:  # far apart: by rank
        ranks, places = np.unique(values, return_inverse=True)
        return ranks[_running(extreme, places.astype(np.int64), first)]
    # Each segment in a range of its own, behind or before those of the segments before it.
    offset = segment * (width if extreme is np.maximum else -width)
    found: Any = extreme.accumulate(values - least + offset) - offset + least
    return found


class _Open:
    """Session while rows are gone through one by one."""

    __slots__ = ("end", "number", "round", "start")

    def __init__(self, number: int, start: int, end: int) -> None:
        self.number, self.start, self.end, self.round = number, start, end, 0


class _Walk:
    """Assignment of rows one by one, to be added to what was assigned at once."""

    def __init__(self, assigned: Assigned) -> None:
        self._assigned = assigned
        self._count = len(assigned.starts)
        self._groups: dict[int, list[_Open]] = {}
        self._all: list[_Open] = []
        self._first_rows: list[int] = []
        self._late: list[int] = []
        # Of each round: targets, sources, rows and their sessions.
        self._rounds: list[tuple[list[int], list[int], list[int], list[int]]] = [([], [], [], [])]

    def hold(self, group: int, session: int) -> None:
        """Add a session that is open."""
        starts, ends = self._assigned.starts, self._assigned.ends
        one = _Open(session, int(starts[session]), int(ends[session]))
        self._all.append(one)
        self._groups.setdefault(group, []).append(one)

    def add(self, group: int, row: int, start: int, end: int, over: int) -> None:
        """Add a row; the rows of a group in the order of their arrival."""
        held = self._groups.setdefault(group, [])
        near = sorted((one for one in held if one.start <= end and start <= one.end), key=lambda one: one.start)
        if near:
            into = near[0]
            for other in near[1:]:
                self._merge(into, other)
                held.remove(other)
            into.start, into.end = min(into.start, start), max(into.end, end)
        elif end <= over:
            self._late.append(row)
            return
        else:
            into = _Open(self._count + len(self._first_rows), start, end)
            self._first_rows.append(row)
            self._all.append(into)
            held.append(into)
        _, _, rows, sessions = self._rounds[into.round]
        rows.append(row)
        sessions.append(into.number)

    def _merge(self, into: _Open, other: _Open) -> None:
        into.end = max(into.end, other.end)
        # Behind the rounds that added rows to either: a round merges first, and then adds its rows.
        into.round = max(into.round, other.round) + 1
        if into.round == len(self._rounds):
            self._rounds.append(([], [], [], []))
        targets, sources, _, _ = self._rounds[into.round]
        targets.append(into.number)
        sources.append(other.number)

    def result(self) -> Assigned:
        """Return the whole assignment."""
        before, added = self._assigned, len(self._first_rows)
        starts, ends = (
            np.concatenate([bounds, np.zeros(added, np.int64)]) for bounds in (before.starts, before.ends)
        )
        for one in self._all:
            starts[one.number], ends[one.number] = one.start, one.end
        rounds = [*before.rounds, *(Round(*(np.array(part, np.int64) for part in each)) for each in self._rounds)]
        return Assigned(
            starts,
            ends,
            np.concatenate([before.first_rows, np.array(self._first_rows, np.int64)]),
            rounds,
            np.sort(np.concatenate([before.late, np.array(self._late, np.int64)])),
        )
