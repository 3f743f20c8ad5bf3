"""Open sessions that are in the state alone, key by key, because memory is full."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.columns.aggregation.keyed import DUE, pack, unpack
from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.sessions import SAVED, Sessions
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.state_names import SESSIONS
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK
from sluiceway.operators.columns.row_forms import RowForms
from sluiceway.state import StateTable, ValueStateDescriptor

__all__ = ["SESSIONS_STATE", "ColdSessions"]

SESSIONS_STATE: Final = ValueStateDescriptor(SESSIONS, bytes)
"""By key its sessions; and in namespaces of their own the forms of these, and the keys by when they are due."""

_BUCKETS: Final = 64
"""Namespaces of what is due within the gap of a session from now on; half as many for what is twice as far."""

_FINER: Final = 64
"""Parts of such a namespace within the gap that has more sessions than go into memory."""

_FIRST: Final = 1 << 8
"""Keys that are read to learn how large their values are."""

_PART: Final = 1 << 15
"""Keys that are read or written at a time, at most."""

_BYTES: Final = 128
"""Memory of the sessions of a key besides their bytes, about."""

_NONE: Final = np.zeros(0, np.int64)


class ColdSessions:
    """Sessions of keys that are in the state by themselves; those in memory may be newer than they are here.

    While they go into memory they are not kept here. From when they do not on, the sessions of a key are the value
    of that key: those of keys with rows longest ago are written and forgotten, and are read when a row of the key
    comes, or one of them is due. For that a key is in a namespace for the time at which the first of its sessions
    is due. It may be in others, too, as it was written when that was another time: then it is read too early.

    From then on each number of a key is that of a key which is in memory, or nowhere, as new ones are looked up.

    Args:
        layout: the columns.
        keys: the keys of the subtask.
        sessions: those in memory.
        table: the state.
        group_keys: the key of each group's forms.
        own: the key groups of the subtask.
        gap: time without rows after which a session ends, in ms.
        lateness: time after its end for which a session takes late rows, in ms.
        over: returns by key group the time by which sessions have had their results.
    """

    def __init__(
        self,
        layout: Layout,
        keys: KeyIds,
        sessions: Sessions,
        table: StateTable,
        group_keys: Sequence[int],
        own: range,
        gap: int,
        lateness: int,
        over: Callable[[], Any],
    ) -> None:
        self._layout, self._keys, self._sessions, self._table = layout, keys, sessions, table
        self._entries = table.entries()
        self._forms = RowForms(layout, table, SESSIONS, group_keys, own, len(SAVED))
        self._lateness, self._over = lateness, over
        self._width = max(gap // _BUCKETS, 1)
        # Start and width of each namespace with keys by when they are due, and the same as a heap.
        self._buckets: set[tuple[int, int]] = set()
        self._ahead: list[tuple[int, int]] = []
        # The time that counts as now for the first watermark is not there yet.
        self._begin: int | None = None
        # True from when memory was full on: the state is that of the keys.
        self.by_key = False
        self._known = self._batch = 0
        # By number of a key: its last batch; if memory has it newer than the state; if the state has it; and the
        # start of the namespace that it was put into last, MIN_WATERMARK for none.
        self._ages, self._filed = _NONE, _NONE
        self._size_of_one = 2 * _BYTES
        self._changed = self._stored = np.zeros(0, bool)

    @property
    def nbytes(self) -> int:
        """Memory of all sessions and their keys, in bytes."""
        own = self._ages.nbytes + self._filed.nbytes + self._changed.nbytes + self._stored.nbytes
        return self._sessions.nbytes + self._keys.nbytes + int(own)

    def _is_full(self) -> bool:
        memory = self._table.working_memory
        return memory is not None and self.nbytes > memory

    def _grow(self, count: int | None = None) -> None:
        count, known = len(self._keys) if count is None else count, len(self._ages)
        if count > known:
            added = max(count, known + known // 2) - known
            self._ages = np.concatenate([self._ages, np.zeros(added, np.int64)])
            self._filed = np.concatenate([self._filed, np.full(added, MIN_WATERMARK)])
            self._changed, self._stored = (
                np.concatenate([each, np.zeros(added, bool)]) for each in (self._changed, self._stored)
            )

    # ---- start ------------------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Read what is not by key, and return if there are sessions.

        Raises:
            IncompatibleStateError: keys or aggregates have changed.
            StateError: the state is damaged.
        """
        times = self._forms.open()
        for start, width in times or ():
            self._add_bucket(start, width)
        return times is not None

    def go_by_key(self) -> None:
        """Write key by key from now on; all keys in memory that are not known yet count as changed."""
        self._grow()
        new = np.arange(0 if not self.by_key else self._known, len(self._keys))
        self._changed[new] = True
        self._known = len(self._keys)
        if not self.by_key:
            self.by_key = True
            self._sessions.note_ends()

    def load_all(self) -> None:
        """Bring all sessions into memory, and forget them here: the state is not that of the keys any more."""
        values = iter(self._entries.values())
        while part := list(islice(values, _PART)):
            self._load(part)
        self._forms.clear()
        self._entries = self._table.entries()
        self._buckets.clear()
        self._ahead.clear()
        self.by_key = False

    # ---- rows -------------------------------------------------------------------------------------------------

    def touch(self, ids: Any) -> None:
        """Have the sessions of the keys of a batch in memory, as they are going to be changed.

        Raises:
            StateError: the state is damaged, or a key cannot be written by itself.
        """
        self._grow()
        before, now = self._known, len(self._keys)
        if self.by_key and before < now:
            if found := self._table.read(self._forms.objects(self._keys.since(before))):
                self._load(list(found.values()))
            self._known = now
        self._batch += 1
        self._ages[ids] = self._batch
        self._changed[ids] = True

    def _load(self, values: Sequence[bytes], *, is_due: bool = False) -> None:
        """Bring values of keys into memory, but for those of keys that are there.

        Args:
            values: what the state has.
            is_due: True if the keys go from the namespace for when they are due, so that they have to be put into
                another one if memory is to lack them again.
        """
        before, parts, every = self._known, [], [_NONE]
        for rows in self._decode(values):
            ids = self._keys.find(self._keys_of(rows))
            every.append(ids)
            # Before the first number that is new, the key is in memory, as it is now.
            parts.append(rows if (new := ids >= before).all() else rows.filter(pa.array(new)))
        places = self._sessions.load(parts)
        self._known = len(self._keys)
        self._grow()
        ids = np.concatenate(every)
        if is_due:
            self._changed[ids], self._filed[ids] = True, MIN_WATERMARK
        ids = ids[ids >= before]
        self._ages[ids], self._stored[ids] = self._batch, True
        self._sessions.forget(self._over(), places)  # a shorter lateness than before has no use for some

    def _decode(self, values: Iterable[bytes]) -> Iterator[Any]:
        try:
            rows = [row for value in values for row in unpack(value)]
        except ValueError as error:
            raise self._forms.damaged(error) from error
        return self._forms.decode(rows)

    def _keys_of(self, rows: Any) -> list[Any]:
        found: list[Any] = rows.columns[len(SAVED) : len(SAVED) + len(self._layout.keys)]
        return found

    # ---- time -------------------------------------------------------------------------------------------------

    def _add_bucket(self, start: int, width: int) -> None:
        if (start, width) not in self._buckets:
            self._buckets.add((start, width))
            heapq.heappush(self._ahead, (start, width))

    def is_due(self, until: int) -> bool:
        """Return if a session may end by ``until``, or be forgotten."""
        return bool(self._ahead) and self._ahead[0][0] <= until

    def due(self, until: int) -> Iterator[int]:
        """Bring the sessions that end by a time into memory, a part at a time.

        Yields:
            times, each later than the one before and the last one ``until``: what ends by this is in memory.
        """
        count = 0
        while self.is_due(until):
            start, width = heapq.heappop(self._ahead)
            self._buckets.remove((start, width))
            count += self._read_due(start, width)
            # Some namespaces have few keys: each step costs as much as some hundreds of them.
            if count > self._room() // 2 and self._ahead and start < self._ahead[0][0] <= until:
                yield self._ahead[0][0] - 1
                count = 0
        yield until

    def _read_due(self, start: int, width: int) -> int:
        """Bring the sessions of a namespace into memory, or file them anew; return how many keys came."""
        keys, count = iter(self._table.entries((DUE, start, width))), 0
        some = list(islice(keys, _FIRST))
        values = list(self._table.read(some).values())
        self._measure(values)
        room = self._room()
        more = list(islice(keys, max(room + 1 - len(some), 0)))
        is_too_many = width > 1 and len(some) + len(more) > room
        keys = chain(more, keys)
        while True:
            if is_too_many:
                self._file_again(values, width)
            else:
                self._load(values, is_due=True)
                count += len(values)
            some = list(islice(keys, room))
            if not some:
                break
            values = list(self._table.read(some).values())
        self._table.drop((DUE, start, width))
        return count

    def _measure(self, values: Sequence[bytes]) -> None:
        if values:
            self._size_of_one = _BYTES + sum(map(len, values)) // len(values)

    def _room(self) -> int:
        """Return the number of keys that may be due at a time: a quarter of what goes into memory."""
        memory = self._table.working_memory
        return _PART if memory is None else min(max(memory // (4 * self._size_of_one), 1), _PART)

    def _file_again(self, values: Sequence[bytes], width: int) -> None:
        """Put keys into namespaces for shorter times than ``width``."""
        keys = KeyIds(self._keys.types, self._keys.max_parallelism)
        ids, ends = [_NONE], [_NONE]
        for rows in self._decode(values):
            ids.append(keys.find(self._keys_of(rows)))
            ends.append(rows.column(SAVED.index("end")).to_numpy())
        self._file(np.concatenate(ids), np.concatenate(ends), keys, width)

    def settle(self) -> None:
        """Remove the keys whose sessions have all ended. Before any of these is forgotten."""
        if not self.by_key:
            return
        ids, is_left = self._sessions.take_ended()
        self._changed[ids] = is_left
        gone = ids[~is_left & self._stored[ids]]
        self._stored[gone] = False
        if len(gone):
            self._table.remove(self._forms.objects(self._keys.columns(gone)))

    # ---- state ------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write what has changed since it was written."""
        self.settle()
        self._grow()
        self._write(np.flatnonzero(self._changed))

    def _write(self, ids: Any) -> None:
        """Write the sessions of keys."""
        self._changed[ids] = False
        for begin in range(0, len(ids), _PART):
            places, owners, ends = self._sessions.of_keys(ids[begin : begin + _PART])
            if not len(places):  # keys of rows that were late
                continue
            rows = self._forms.encode(self._sessions.rows(places))
            there, bounds = np.unique(owners, return_index=True)
            limits = [*bounds.tolist(), len(rows)]
            keys = self._file(owners, ends, self._keys, None, self._filed)
            values = [pack(rows[low:high]) for low, high in pairwise(limits)]
            self._measure(values)
            self._entries.update(zip(keys, values, strict=True))
            self._stored[there] = True

    def _file(self, owners: Any, ends: Any, keys: KeyIds, below: int | None, filed: Any = None) -> list[Any]:
        """Put keys into the namespaces for the times at which one of their sessions is due, and return the keys.

        Args:
            owners: for each session the number of its key.
            ends: the end of each.
            keys: the keys.
            below: the namespaces are for shorter times than so many ms; None: any.
            filed: by number of a key, the start of the namespace in which it is, which is brought up to date.
        """
        if not len(owners):
            return []
        over = np.minimum(self._over(), MAX_WATERMARK - 1)[keys.groups()[owners]]
        # A session that has had its result is due when it takes no more late rows.
        due = np.where(ends > over, ends, np.minimum(ends, MAX_WATERMARK - self._lateness) + self._lateness)
        order = np.lexsort((due, owners))
        there, first = np.unique(owners[order], return_index=True)
        first = order[first]
        due, over = due[first], over[first]
        widths = self._widths(due, int(over.min()), below)
        # Not before what is over: whoever reads what is due gets ahead.
        apart = due % widths
        starts = np.where(due < MIN_WATERMARK + apart, MIN_WATERMARK, due - apart)
        starts = np.maximum(starts, over + 1)
        objects = self._forms.objects(keys.columns(there))
        new = np.arange(len(there)) if filed is None else np.flatnonzero(filed[there] != starts)
        new = new[np.lexsort((widths[new], starts[new]))]
        other = np.diff(starts[new]).astype(bool) | np.diff(widths[new]).astype(bool)
        for some in np.split(new, np.flatnonzero(other) + 1):
            if len(some):
                start, width = int(starts[some[0]]), int(widths[some[0]])
                self._add_bucket(start, width)
                entries = self._table.entries((DUE, start, width))
                entries.update(dict.fromkeys([objects[at] for at in some.tolist()], b""))
        if filed is not None:
            filed[there] = starts
        return objects

    def _widths(self, due: Any, over: int, below: int | None) -> Any:
        """Return how long the times of the namespaces for some times are, in ms: the longer the farther these are.

        So there are few namespaces, however far sessions reach; what is read too early is filed anew.
        """
        finest = self._width
        if below is not None:
            now = int(due.min())
            if below <= finest:
                finest = max(below // _FINER, 1)
        elif over > MIN_WATERMARK:
            now = over
        else:
            now = self._begin = int(due.min()) if self._begin is None else self._begin
        # As floats: only a power of two is made of them, and times are far apart in 64 bits.
        apart = np.abs(due.astype(np.float64) - float(now)) / (_BUCKETS * finest)
        powers = np.ceil(np.log2(np.maximum(apart, 1))).astype(np.int64)
        widths = finest << np.minimum(powers, 61 - finest.bit_length())
        return widths if below is None else np.minimum(widths, max(below // 2, 1))

    # ---- memory -----------------------------------------------------------------------------------------------

    def shrink(self) -> bool:
        """Write and forget the keys with rows longest ago, an eighth or more, if all take too much memory.

        Returns:
            true if any was forgotten: those in memory have other numbers then.
        """
        if not self._is_full() or not len(self._sessions):
            return False
        self._sessions.compact()
        if not self._is_full():
            return False
        self.go_by_key()
        self.settle()
        ids = np.unique(np.concatenate(list(self._sessions.used_ids())))
        memory = self._table.working_memory or 0
        kept = min(len(ids) * 7 // 8, len(ids) * memory * 7 // 8 // self.nbytes)
        gone = ids[self._ages[ids].argsort(kind="stable")[: len(ids) - kept]]
        self._write(gone[self._changed[gone]])
        self._sessions.take_out(gone)
        live = np.zeros(len(self._keys), bool)
        live[np.concatenate(list(self._sessions.used_ids()))] = True
        renumbered = self._keys.retain(live)
        self._sessions.renumber(renumbered)
        self.renumber(renumbered)
        return True

    # ---- numbers of keys --------------------------------------------------------------------------------------

    def used_ids(self) -> Iterable[Any]:
        """Return no numbers: those of keys that are in memory are held there."""
        return ()

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        self._known = int((renumbered[: self._known] >= 0).sum())
        self._grow(len(renumbered))
        kept = np.flatnonzero(renumbered >= 0)
        self._ages, self._filed = self._ages[kept], self._filed[kept]
        self._changed, self._stored = self._changed[kept], self._stored[kept]
