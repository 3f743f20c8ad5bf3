"""Open sessions of keys, with their aggregates in arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.accumulator import Accumulator, Arrays
from sluiceway.columns.aggregation.due_places import DuePlaces
from sluiceway.columns.aggregation.layout import Layout, in_blocks
from sluiceway.columns.aggregation.row_positions import RowPositions
from sluiceway.columns.aggregation.session_rows import assign
from sluiceway.columns.aggregation.slices import part_of
from sluiceway.columns.aggregation.stored import open_stored
from sluiceway.columns.aggregation.values import Values
from sluiceway.columns.kept.timed_rows import shifted
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.numpy_arrays import array_of, numpy_of
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["SAVED", "Sessions"]

_SPARE: Final = 1 << 12
"""Places of sessions that have ended up to which nothing is moved."""

_KEYS_PER_ROW: Final = 64
"""Keys of a subtask for each row of a batch up to which a look at all of them costs less than sorting the rows."""

_NONE: Final = np.zeros(0, np.int64)


class Sessions:
    """Open sessions of the keys of a subtask.

    A row opens a session from its event time to the gap after it; sessions of a key that overlap or touch merge. A
    session has a place in arrays, and those of one key are linked.

    Args:
        layout: keys and aggregates.
        keys: the keys of the subtask.
        gap: time without rows after which a session ends, in ms.
        lateness: time after its end for which a session takes late rows, in ms.
    """

    def __init__(self, layout: Layout, keys: KeyIds, gap: int, lateness: int = 0) -> None:
        self._layout, self._keys, self._gap, self._lateness = layout, keys, gap, lateness
        # Sessions without their results, and those that take late rows after it, each once, by an end that they
        # have had: a session that has grown since is found too early, and filed again.
        self._due, self._late = DuePlaces(), DuePlaces()
        self._clear()
        self._changed = np.zeros(keys.max_parallelism, bool)
        # Numbers of the keys of sessions that have ended, for who keeps them key by key; None: nobody does.
        self._ended: list[Any] | None = None

    def _clear(self) -> None:
        zero, none = np.int64(0), np.int64(-1)
        self._all = Arrays(
            key=zero, start=zero, end=zero, arrival=zero, before=none, open=False, due=False, late=False
        )
        self._accumulators: dict[str, Accumulator] = {
            name: bound.create() for name, bound in self._layout.aggregates.items()
        }
        # By key the place of one of its sessions; ``before`` has that of the next one.
        self._latest = np.full(0, -1, np.int64)
        self._size = self._open = 0
        self._due.clear()
        self._late.clear()

    def __len__(self) -> int:
        return self._open

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        arrays = sum(array.nbytes for array in self._all.all.values()) + self._latest.nbytes
        arrays += self._due.nbytes + self._late.nbytes
        return int(arrays) + sum(each.nbytes for each in self._accumulators.values())

    def _places(self) -> Any:
        return np.flatnonzero(self._all["open"][: self._size])

    # ---- keys -------------------------------------------------------------------------------------------------

    def used_ids(self) -> Iterable[Any]:
        """Return the numbers of the keys that have open sessions."""
        return (self._all["key"][self._places()],)

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        places = self._places()
        self._all["key"][places] = renumbered[self._all["key"][places]]
        self._latest = np.full(0, -1, np.int64)
        self._link(places)

    def _know(self, ids: Any) -> None:
        known = len(self._latest)
        if len(ids) and int(ids.max()) >= known:
            grown = np.full(max(len(self._keys), known + known // 2, 64), -1, np.int64)
            grown[:known] = self._latest
            self._latest = grown

    def _of_keys(self, ids: Any) -> Any:
        """Return the places of the open sessions of different keys."""
        self._know(ids)
        found, before = [], self._all["before"]
        at = self._latest[ids]
        while len(at := at[at >= 0]):
            found.append(at)
            at = before[at]
        if not found:
            return _NONE
        places = np.concatenate(found)
        return places[self._all["open"][places]]

    def _link(self, places: Any) -> None:
        """Link sessions; ``places`` has all of the keys that it has any of."""
        ids = self._all["key"][places]
        self._know(ids)
        order = ids.argsort(kind="stable")
        places, ids = places[order], ids[order]
        previous = np.full(len(places), -1, np.int64)
        same = ids[1:] == ids[:-1]
        previous[1:][same] = places[:-1][same]
        self._all["before"][places] = previous
        self._latest[ids] = places  # the last one of a key stays

    # ---- rows -------------------------------------------------------------------------------------------------

    def add(self, ids: Any, stamps: Any, columns: Mapping[str, Values], arrivals: Any, over: Any) -> Any:
        """Add rows to their sessions.

        Args:
            ids: the number of each row's key.
            stamps: event time of each row, in ms.
            columns: the columns that the aggregates read.
            arrivals: numbers of the rows, ascending, also from call to call.
            over: for each row, sessions of its key that end by this take no more rows.

        Returns:
            the indices, ascending, of the rows that are too late: their sessions are over.
        """
        every = self._all
        touched = self._different(ids)
        held = self._of_keys(touched)
        sessions = every["key"][held], every["start"][held], every["end"][held]
        assigned = assign(ids, stamps, self._gap, over, *sessions)
        added = len(assigned.first_rows)
        # Sessions that assign() numbers: the open ones of these keys first, then new ones at the end of the
        # arrays.
        places = np.concatenate([held, np.arange(self._size, self._size + added)])
        self._resize(added)
        every["key"][places[len(held) :]] = ids[assigned.first_rows]
        every["arrival"][places[len(held) :]] = arrivals[assigned.first_rows]
        every["start"][places], every["end"][places] = assigned.starts, assigned.ends
        every["open"][places] = True
        for merging in assigned.rounds:
            if len(merging.sources):
                self._merge(places[merging.targets], places[merging.sources])
            if len(merging.rows) == len(ids):
                self._update(places[merging.sessions], columns, arrivals)
            elif len(rows := merging.rows):
                taken = {name: values.take(rows) for name, values in columns.items()}
                self._update(places[merging.sessions], taken, arrivals[rows])
        # Merged sessions have been closed. The chains of the keys are made anew of those that are left.
        places = places[every["open"][places]]
        self._open += len(places) - len(held)
        self._file("due", places)
        self._latest[touched] = -1
        self._link(places)
        self._changed[self._keys.groups()[touched]] = True
        return assigned.late

    def _different(self, ids: Any) -> Any:
        """Return the different ones of some numbers of keys, ascending."""
        if len(self._keys) > _KEYS_PER_ROW * len(ids):
            return np.unique(ids)
        is_there = np.zeros(len(self._keys), bool)
        is_there[ids] = True
        return np.flatnonzero(is_there)

    def _resize(self, added: int) -> None:
        self._size += added
        self._all.resize(self._size)
        for accumulator in self._accumulators.values():
            accumulator.resize(self._size)

    def _update(self, places: Any, columns: Mapping[str, Values], arrivals: Any) -> None:
        rows = RowPositions(places, self._size)
        for name, accumulator in self._accumulators.items():
            read = self._layout.aggregates[name].columns
            accumulator.update(rows, [columns[column] for column in read], arrivals)

    def _merge(self, targets: Any, sources: Any) -> None:
        arrival = self._all["arrival"]
        arrival[targets] = np.minimum(arrival[targets], arrival[sources])
        # Accumulators of sources stay in the arrays until places are moved together.
        self._all["open"][sources] = False
        for name, part in part_of(self._accumulators, sources, self._layout).items():
            self._accumulators[name].merge(targets, part)

    # ---- ends -------------------------------------------------------------------------------------------------

    def _file(self, name: str, places: Any) -> None:
        """Have sessions looked at when they end: for their results, or ``late``, for being forgotten."""
        filed = self._all[name]
        places = places[~filed[places]]
        filed[places] = True
        (self._due if name == "due" else self._late).add(self._all["end"][places], places)

    def _take(self, name: str, until: int) -> Any:
        """Return the open sessions that end by ``until`` among those filed; sessions that have grown stay."""
        every = self._all
        places = (self._due if name == "due" else self._late).take(until)
        every[name][places] = False
        places = places[every["open"][places]]
        has_ended = every["end"][places] <= until
        self._file(name, places[~has_ended])
        return places[has_ended]

    def _forgotten(self, until: int) -> int:
        """Return the end by which sessions take no more rows at an event time."""
        return until if until >= MAX_WATERMARK else max(until - self._lateness, MIN_WATERMARK)

    def is_due(self, until: int) -> bool:
        """Return if a session may end by ``until``, or be forgotten."""
        return self._due.earliest <= until or self._late.earliest <= self._forgotten(until)

    def close(self, until: int, over: Any = None) -> tuple[dict[str, Any], Any, Any]:
        """End the sessions that end by ``until``, and return key columns and results by name, starts and ends.

        They are in the order of their ends, then in that of the arrival of their first rows. It costs as much as
        there are of them, whatever the number of open sessions.

        Args:
            until: event time.
            over: by key group, sessions that end by this have had their results; None: no session has.
        """
        every = self._all
        ended = self._take("due", until)
        places = ended
        if over is not None:
            places = places[every["end"][places] > over[self._keys.groups()[every["key"][places]]]]
        places = places[np.lexsort((every["arrival"][places], every["end"][places]))]
        found = self.results(places)
        if self._lateness:
            self._file("late", ended)
            ended = self._take("late", self._forgotten(until))
        self._end(ended)
        if self._size > 2 * self._open + _SPARE:
            self._move_together()
        return found

    def _end(self, places: Any) -> None:
        ids = self._all["key"][places]
        if self._ended is not None:
            self._ended.append(ids)
        self._changed[self._keys.groups()[ids]] = True
        self._all["open"][places] = False
        self._open -= len(places)

    def results(self, places: Any) -> tuple[dict[str, Any], Any, Any]:
        """Return key columns and results by name, starts and ends of the sessions at some places."""
        every = self._all
        found = dict(zip(self._layout.keys, self._keys.columns(every["key"][places]), strict=True))
        for name, part in part_of(self._accumulators, places, self._layout).items():
            found[name] = part.result(len(places))
        return found, every["start"][places], every["end"][places]

    def forget(self, over: Any, places: Any = None) -> None:
        """Forget the sessions that take no more rows.

        Args:
            over: by key group, sessions that end by this are over.
            places: those to look at; None: all.
        """
        every, places = self._all, self._places() if places is None else places
        groups = self._keys.groups()[every["key"][places]]
        gone = (every["end"][places] <= shifted(over, -self._lateness)[groups]) | (over[groups] >= MAX_WATERMARK)
        self._end(places[gone])

    def places_of(self, ids: Any, stamps: Any) -> Any:
        """Return the places of the sessions that rows belong to. All of them have been added."""
        every, places = self._all, self._of_keys(np.unique(ids))
        keys, starts = every["key"][places], every["start"][places]
        # Key and time as one number: the place of a time among all times takes few bits.
        times = np.unique(np.concatenate([starts, stamps]))
        codes = keys.astype(np.int64) * (len(times) + 1) + np.searchsorted(times, starts)
        order = codes.argsort()
        wanted = ids.astype(np.int64) * (len(times) + 1) + np.searchsorted(times, stamps)
        return places[order[np.searchsorted(codes[order], wanted, "right") - 1]]

    def _move_together(self) -> None:
        places = self._places()
        kept = {name: array[places] for name, array in self._all.all.items()}
        # Read before the arrays are cleared.
        accumulators = part_of(self._accumulators, places, self._layout)
        self._clear()
        self._accumulators = accumulators
        self._open = len(places)
        self._resize(len(places))
        for name, values in kept.items():
            self._all[name][: len(places)] = values
        for name in ("due", "late"):
            filed = np.flatnonzero(kept[name])
            self._all[name][filed] = False
            self._file(name, filed)
        self._link(np.arange(len(places)))

    # ---- state ------------------------------------------------------------------------------------------------

    def blocks(self) -> dict[int, bytes | None]:
        """Return the state of the key groups that have changed since the last call; None: it has no sessions."""
        groups = np.flatnonzero(self._changed)
        self._changed[:] = False
        found: dict[int, bytes | None] = dict.fromkeys(groups.tolist())
        places = self._places()
        of_key = self._keys.groups()
        places = places[np.isin(of_key[self._all["key"][places]], groups)]
        if len(places):
            found |= in_blocks(self.rows(places), of_key[self._all["key"][places]], self._layout.metadata)
        return found

    def all_changed(self) -> None:
        """Have the next :meth:`blocks` return the state of all key groups."""
        self._changed[:] = True

    def restore(self, blocks: Iterable[bytes]) -> Any:
        """Read the blocks of any key groups, and return the places. Raises IncompatibleStateError."""
        opened = (open_stored(0, 0, block) for block in blocks)
        return self.load(self._layout.read(each.metadata, each.rows, len(SAVED)) for each in opened)

    def rows(self, places: Any) -> Any:
        """Return the sessions at some places as a record batch: bounds, keys and accumulators."""
        columns = [*(array_of(self._all[name][places]) for name in SAVED)]
        columns += self._keys.columns(self._all["key"][places])
        columns += [each.part(places) for each in self._accumulators.values()]
        names = [*SAVED, *(f"key {name}" for name in self._layout.keys), *self._accumulators]
        return pa.RecordBatch.from_arrays(columns, names)

    def load(self, parts: Iterable[Any]) -> Any:
        """Add sessions of keys that have none, as :meth:`rows` returns them, and return their places."""
        before, first = self._size, len(SAVED) + len(self._layout.keys)
        for part in parts:
            places = np.arange(self._size, self._size + len(part))
            self._resize(len(part))
            columns = part.columns
            for name, column in zip(SAVED, columns, strict=False):
                self._all[name][places] = numpy_of(column)
            self._all["key"][places] = self._keys.find(columns[len(SAVED) : first])
            self._all["open"][places] = True
            for accumulator, state in zip(self._accumulators.values(), columns[first:], strict=True):
                accumulator.restore(places, state)
        added = np.arange(before, self._size)
        self._open += len(added)
        self._file("due", added)
        self._link(added)
        return added

    # ---- key by key -------------------------------------------------------------------------------------------

    def note_ends(self) -> None:
        """Have :meth:`take_ended` return the keys of sessions that end from now on."""
        self._ended = []

    def take_ended(self) -> Any:
        """Return the keys of sessions that have ended since the last call, each once, and if any is left of them.

        Returns:
            an array of numbers, and one of bool.
        """
        ended = self._ended or []
        self._ended = []
        ids = np.unique(np.concatenate(ended)) if ended else _NONE
        return ids, np.isin(ids, self._all["key"][self._of_keys(ids)])

    def of_keys(self, ids: Any) -> tuple[Any, Any, Any]:
        """Return the places of the sessions of different keys, those of a key together, with keys and ends."""
        places = self._of_keys(ids)
        places = places[self._all["key"][places].argsort(kind="stable")]
        return places, self._all["key"][places], self._all["end"][places]

    def compact(self) -> None:
        """Free the places of sessions that have ended."""
        if self._size > self._open:
            self._move_together()

    def take_out(self, ids: Any) -> None:
        """Forget the sessions of some keys, which are kept elsewhere."""
        places = self._of_keys(ids)
        self._all["open"][places] = False
        self._open -= len(places)
        self._move_together()


SAVED: Final = ("start", "end", "arrival")
"""Columns in front of the keys."""
