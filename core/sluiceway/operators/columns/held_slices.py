"""Slices of an operator: in memory, or, where the state backend is larger than that, in the state alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.aggregation.stored import Stored, open_stored
from sluiceway.columns.keys.idle_keys import HoldsKeys
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.state_names import SLICES
from sluiceway.operators.columns.cold_keys import ColdKeys
from sluiceway.operators.columns.definition import reading
from sluiceway.operators.columns.merged_slices import MergedSlices
from sluiceway.state import StateTable

__all__ = ["HeldSlices"]

_PART_OF_INTERVALS: Final = 4
"""Part of the memory for slices that merged intervals may take, which grow while windows are evaluated: 1/4."""


class HeldSlices(Mapping[int, AggregateSlice]):
    """Slices by the time at which they start.

    With a state backend that has :attr:`~sluiceway.state.StateTable.working_memory`, those that have not been
    changed for longest are written and forgotten when all take more memory than that, once merged intervals of
    slices have been. They are read again when a row is added, and for a while when a window is evaluated. The
    slice that is being changed stays, however large it is; but where all rows are in one slice, keys of it that
    have had no row for long are written by themselves. From then on blocks are not used: what has changed is
    written key by key.

    Args:
        layout: the columns.
        keys: the keys of the subtask.
        table: the state.
        group_keys: the key of each group's blocks.
        width: width of a slice, in ms.
        cold: the keys of the one slice that are in the state by themselves; None: they cannot be.
    """

    def __init__(
        self,
        layout: Layout,
        keys: KeyIds,
        table: StateTable,
        group_keys: Sequence[int],
        width: int,
        cold: ColdKeys | None = None,
    ) -> None:
        self._layout, self._keys, self._table, self._cold = layout, keys, table, cold
        # True from when memory was full on: the state of the one slice is that of its keys.
        self._by_key = False
        self._group_keys, self._width = group_keys, width
        self._budget = table.working_memory
        # By start, those used last at the end.
        self._in_memory: dict[int, AggregateSlice] = {}
        # Namespaces of the blocks that are in the state, by slice.
        self._stored: dict[int, set[tuple[int, ...]]] = {}
        # The starts of all, in order: behind a backlog there are thousands.
        self._starts: list[int] = []
        # Memory of each slice and of all, as far as measured, and the slices that have changed since.
        self._sizes: dict[int, int] = {}
        self._measured = 0
        self._unmeasured: set[int] = set()
        room = None if self._budget is None else self._budget // _PART_OF_INTERVALS
        self._merged = MergedSlices(self, lambda: AggregateSlice(layout, keys, tracked=False), width, room)

    def __getitem__(self, start: int) -> AggregateSlice:
        """Return a slice for reading. One that is in the state alone is read anew each time."""
        found = self._in_memory.get(start)
        if found is None:
            if start not in self._stored:
                raise KeyError(start)
            found = AggregateSlice(self._layout, self._keys, tracked=False)
            found.restore(self._blocks_of(start))
        return found

    @property
    def starts(self) -> Sequence[int]:
        """The starts of all slices, ascending; valid until a slice is added or dropped."""
        return self._starts

    def between(self, start: int, end: int) -> Sequence[int]:
        """Return the starts of the slices of the window between two times, ascending."""
        return self._starts[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    def window(self, start: int, end: int) -> AggregateSlice | None:
        """Return the window between two times for reading; None: it has no slice."""
        inside = self.between(start, end)
        return self._merged.window(inside, start, end) if inside else None

    def __iter__(self) -> Iterator[int]:
        return iter(self._starts[:])

    def __len__(self) -> int:
        return len(self._starts)

    def __contains__(self, start: object) -> bool:
        return start in self._in_memory or start in self._stored

    def holders(self) -> Iterator[HoldsKeys]:
        """Return what holds numbers of keys."""
        for each in chain(self._in_memory.values(), self._merged.intervals()):
            yield each.positions
        if self._cold is not None:
            yield self._cold

    def change(self, start: int) -> AggregateSlice:
        """Return a slice that is going to be changed, a new one if there is none."""
        self._merged.forget(start)
        found = self._in_memory.get(start)
        if found is None:
            self.shrink()
            found = self._in_memory[start] = self._new()
            if start in self._stored:
                found.restore(self._blocks_of(start))
            else:
                insort(self._starts, start)
        elif self._budget is not None:
            self._in_memory[start] = self._in_memory.pop(start)
        if self._budget is not None:
            self._unmeasured.add(start)
        if self._by_key:
            assert self._cold is not None
            self._cold.fetch(found)
        return found

    def _new(self) -> AggregateSlice:
        return AggregateSlice(self._layout, self._keys, ages=self._cold is not None)

    def parts(self, start: int) -> Iterator[AggregateSlice]:
        """Return a slice for reading, in parts that are in memory one by one."""
        if self._by_key:
            assert self._cold is not None
            self.save()
            yield from self._cold.parts()
        elif start in self:
            yield self[start]

    def drop(self, start: int) -> None:
        """Forget a slice, if there is one."""
        if start in self:
            del self._starts[bisect_left(self._starts, start)]
            self._merged.forget(start)
        if self._in_memory.pop(start, None) is not None and self._budget is not None:
            self._unmeasured.add(start)
        self._drop_blocks(start)
        if self._by_key:
            assert self._cold is not None
            self._cold.clear()
            self._by_key = False

    def _drop_blocks(self, start: int) -> None:
        for name in self._stored.pop(start, ()):
            self._table.drop(name)

    # ---- state ------------------------------------------------------------------------------------------------

    def open(self, check: Callable[[tuple[Any, ...]], None]) -> None:
        """Read the slices that are in the state, as many as there is memory for.

        Args:
            check: called with each namespace; raises IncompatibleStateError if it is no slice of the operator.

        Raises:
            IncompatibleStateError: as ``check``, or keys or aggregates have changed.
        """
        names: Any = self._table.namespaces()
        for name in names:
            check(name)
            self._stored.setdefault(name[0], set()).add(name)
        if self._cold is None or not self._open_keys(self._cold):
            self._open_slices()
        self._starts = sorted(self._in_memory.keys() | self._stored.keys())

    def _open_slices(self) -> None:
        for start in sorted(self._stored):
            if self._budget is None or self._size() < self._budget:
                each = self._in_memory[start] = self._new()
                each.restore(self._blocks_of(start))
                self._unmeasured.add(start)
                continue
            for block in self._blocks_of(start):  # what cannot be read is refused now
                self._layout.read(block.metadata, block.rows.slice(0, 0), 1)
        self.shrink()

    def _open_keys(self, cold: ColdKeys) -> bool:
        """Read the one slice if the state has keys by themselves, or more of it than goes into memory."""
        names, budget = self._stored.get(0, set()), self._budget
        if not cold.open():
            size = sum(len(block) for name in names for block in self._table.entries(name).values())
            if budget is None or size <= budget:
                return False
        self._stored.clear()
        each = self._in_memory[0] = self._new()
        for group in sorted({group for name in names for group in self._table.entries(name)}):
            each.add_blocks(list(self._blocks_of_group(names, group)))
            cold.all_known()
            self.shrink()
        for name in names:
            self._table.drop(name)
        if budget is None:
            cold.load_all(each)
            cold.clear()
            each.all_changed()
        else:
            self._go_by_key(each)
        return True

    def _blocks_of_group(self, names: Iterable[tuple[int, ...]], group: int) -> Iterator[Stored]:
        for name in names:
            if (block := self._table.entries(name).get(group)) is not None:
                with reading(self._layout.step, SLICES):
                    opened = open_stored(group, name[2] if len(name) > 2 else 0, block)
                yield opened

    def _blocks_of(self, start: int) -> Iterator[Stored]:
        for name in self._stored[start]:
            _, _, *number = name
            for key, block in self._table.entries(name).items():
                with reading(self._layout.step, SLICES):
                    opened = open_stored(key, number[0] if number else 0, block)
                yield opened

    def save(self) -> None:
        """Write what has changed since it was written."""
        for start, each in self._in_memory.items():
            if self._by_key:
                assert self._cold is not None
                self._cold.write(each, each.changed())
                each.written()
            else:
                self._save(start, each)

    def _save(self, start: int, each: AggregateSlice) -> None:
        stored = self._stored.setdefault(start, set())
        if each.moved:  # blocks of other subtasks have come together, or have been parted
            for name in stored:
                self._table.drop(name)
            stored.clear()
        for number, blocks in each.take_changes():
            name = (start, start + self._width, *((number,) if number else ()))
            if blocks is None:
                self._table.drop(name)
                stored.discard(name)
                continue
            stored.add(name)
            entries = self._table.entries(name)
            for group, block in blocks.items():
                entries[self._group_keys[group]] = block

    # ---- memory -----------------------------------------------------------------------------------------------

    def _size(self) -> int:
        """Return the memory of all slices and intervals, in bytes; slices are measured once they have changed."""
        if self._cold is not None:
            return self._keys.nbytes + sum(each.nbytes for each in self._in_memory.values())
        for start in self._unmeasured:
            each = self._in_memory.get(start)
            size = 0 if each is None else each.nbytes
            self._measured += size - self._sizes.pop(start, 0)
            if size:
                self._sizes[start] = size
        self._unmeasured.clear()
        return self._measured + self._merged.nbytes

    def shrink(self) -> bool:
        """Write and forget slices if all take too much memory. Return if any was forgotten."""
        if self._budget is None or (size := self._size()) <= self._budget:
            return False
        if self._cold is not None:
            return self._shrink_keys(self._cold, self._budget, size)
        size -= self._merged.nbytes
        self._merged.clear()
        if size <= self._budget:
            return False
        before = len(self._in_memory)
        for start in list(self._in_memory)[:-1]:
            each = self._in_memory[start]
            self._save(start, each)
            del self._in_memory[start]
            self._unmeasured.add(start)
            size -= each.nbytes
            if size <= self._budget * 3 // 4:
                break
        return len(self._in_memory) < before

    def _shrink_keys(self, cold: ColdKeys, budget: int, size: int) -> bool:
        """Write and forget the keys with rows in the fewest batches of late, an eighth of them or more."""
        each = next(iter(self._in_memory.values()), None)
        if each is None or not len(each):
            return False
        self._go_by_key(each)
        kept = each.most_used(min(len(each) * 7 // 8, len(each) * budget * 7 // 8 // size))
        gone = np.ones(len(each), bool)
        gone[kept] = False
        changed = each.changed()
        cold.write(each, changed[gone[changed]])
        each.keep(kept)
        live = np.zeros(len(self._keys), bool)
        live[each.positions.ids] = True
        renumbered = self._keys.retain(live)
        for holder in self.holders():
            holder.renumber(renumbered)
        return True

    def _go_by_key(self, each: AggregateSlice) -> None:
        """Have the state of the one slice be that of its keys."""
        if not self._by_key:
            assert self._cold is not None
            self._by_key = True
            for start in list(self._stored):
                self._drop_blocks(start)
            each.all_changed()
            self._cold.all_known()
