"""Slices of an operator: in memory, or, where the state backend is larger than that, in the state alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.aggregation.stored import Stored, open_stored
from sluiceway.columns.keys.idle_keys import HoldsKeys
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.state import StateTable

__all__ = ["HeldSlices"]


class HeldSlices(Mapping[int, AggregateSlice]):
    """Slices by the time at which they start.

    With a state backend that has :attr:`~sluiceway.state.StateTable.working_memory`, those that have not been
    changed for longest are written and forgotten when all take more memory than that. They are read again when a
    row is added, and for a while when a window is evaluated. The slice that is being changed stays, however large
    it is.

    Args:
        layout: the columns.
        keys: the keys of the subtask.
        table: the state.
        group_keys: the key of each group's blocks.
        width: width of a slice, in ms.
    """

    def __init__(
        self, layout: Layout, keys: KeyIds, table: StateTable, group_keys: Sequence[int], width: int
    ) -> None:
        self._layout, self._keys, self._table = layout, keys, table
        self._group_keys, self._width = group_keys, width
        self._budget = table.working_memory
        # By start, those used last at the end.
        self._in_memory: dict[int, AggregateSlice] = {}
        # Namespaces of the blocks that are in the state, by slice.
        self._stored: dict[int, set[tuple[int, ...]]] = {}

    def __getitem__(self, start: int) -> AggregateSlice:
        """Return a slice for reading. One that is in the state alone is read anew each time."""
        found = self._in_memory.get(start)
        if found is None:
            if start not in self._stored:
                raise KeyError(start)
            found = AggregateSlice(self._layout, self._keys, tracked=False)
            found.restore(self._blocks_of(start))
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._in_memory.keys() | self._stored.keys()))

    def __len__(self) -> int:
        return len(self._in_memory.keys() | self._stored.keys())

    def __contains__(self, start: object) -> bool:
        return start in self._in_memory or start in self._stored

    def holders(self) -> list[HoldsKeys]:
        """Return what holds numbers of keys."""
        return [each.positions for each in self._in_memory.values()]

    def change(self, start: int) -> AggregateSlice:
        """Return a slice that is going to be changed, a new one if there is none."""
        found = self._in_memory.get(start)
        if found is None:
            self.shrink()
            found = self._in_memory[start] = AggregateSlice(self._layout, self._keys)
            if start in self._stored:
                found.restore(self._blocks_of(start))
        elif self._budget is not None:
            self._in_memory[start] = self._in_memory.pop(start)
        return found

    def drop(self, start: int) -> None:
        """Forget a slice."""
        self._in_memory.pop(start, None)
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
        for start in sorted(self._stored):
            if self._budget is None or self._size() < self._budget:
                each = self._in_memory[start] = AggregateSlice(self._layout, self._keys)
                each.restore(self._blocks_of(start))
                continue
            for block in self._blocks_of(start):  # what cannot be read is refused now
                self._layout.read(block.metadata, block.rows.slice(0, 0), 1)
        self.shrink()

    def _blocks_of(self, start: int) -> Iterator[Stored]:
        for name in self._stored[start]:
            _, _, *number = name
            for key, block in self._table.entries(name).items():
                yield open_stored(key, number[0] if number else 0, block)

    def save(self) -> None:
        """Write what has changed since it was written."""
        for start, each in self._in_memory.items():
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
        return sum(each.nbytes for each in self._in_memory.values())

    def shrink(self) -> bool:
        """Write and forget slices if all take too much memory. Return if any was forgotten."""
        if self._budget is None or (size := self._size()) <= self._budget:
            return False
        before = len(self._in_memory)
        for start in list(self._in_memory)[:-1]:
            each = self._in_memory[start]
            self._save(start, each)
            del self._in_memory[start]
            size -= each.nbytes
            if size <= self._budget * 3 // 4:
                break
        return len(self._in_memory) < before
