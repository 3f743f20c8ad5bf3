"""Keys of an operator without windows that are in the state alone, each by itself, because memory is full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.state_names import KEYS
from sluiceway.operators.columns.row_forms import RowForms
from sluiceway.state import StateTable, ValueStateDescriptor

__all__ = ["KEYS_STATE", "ColdKeys"]

KEYS_STATE: Final = ValueStateDescriptor(KEYS, bytes)
"""By key its aggregates; in a namespace of its own, the form of such values with a tag, by key group."""

_PART: Final = 1 << 15
"""Keys that are read at a time where all are."""


class ColdKeys:
    """Keys that are in the state, each by itself; those in memory may be newer than they are here.

    Keys that the subtask meets for the first time are looked up once. So each number of a key below ``len(keys)``
    at the last :meth:`fetch` is that of a key which is in memory, or nowhere.

    Args:
        layout: the columns.
        keys: the keys of the subtask.
        table: the state.
        group_keys: the key of each group's forms.
        own: the key groups of the subtask.
    """

    def __init__(
        self, layout: Layout, keys: KeyIds, table: StateTable, group_keys: Sequence[int], own: range
    ) -> None:
        self._layout, self._keys, self._table = layout, keys, table
        self._entries = table.entries()
        self._forms = RowForms(layout, table, KEYS, group_keys, own)
        self._known = 0

    def open(self) -> bool:
        """Read the forms, and return if there are keys.

        Raises:
            IncompatibleStateError: keys or aggregates have changed.
            StateError: a form is damaged.
        """
        return self._forms.open() is not None

    # ---- keys of a batch --------------------------------------------------------------------------------------

    def fetch(self, into: AggregateSlice) -> None:
        """Bring the keys that have got numbers since the last call into memory, if they are here."""
        before, now = self._known, len(self._keys)
        if before == now:
            return
        self._known = now
        found = self._table.read(self._forms.objects(self._keys.since(before)))
        if found:
            self._load(into, list(found.values()))

    def _load(self, into: AggregateSlice, values: Sequence[bytes]) -> None:
        count = len(self._layout.keys)
        for rows in self._forms.decode(values):
            into.load(self._keys.find(rows.columns[:count]), rows.columns[count:])

    def write(self, of: AggregateSlice, at: Any) -> None:
        """Write keys of a slice, by their positions."""
        for begin in range(0, len(at), _PART):
            rows = of.rows(at[begin : begin + _PART])
            values = self._forms.encode(rows)
            keys = self._forms.objects(rows.columns[: len(self._layout.keys)])
            self._entries.update(zip(keys, values, strict=True))

    # ---- all keys ---------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[AggregateSlice]:
        """Return all keys, a part at a time, each with keys of its own."""
        count, values = len(self._layout.keys), iter(self._entries.values())
        while part := list(islice(values, _PART)):
            for rows in self._forms.decode(part):
                keys = KeyIds(self._keys.types, self._keys.max_parallelism)
                found = AggregateSlice(self._layout, keys, tracked=False)
                found.load(keys.find(rows.columns[:count]), rows.columns[count:])
                yield found

    def load_all(self, into: AggregateSlice) -> None:
        """Bring all keys into memory."""
        values = iter(self._entries.values())
        while part := list(islice(values, _PART)):
            self._load(into, part)
        self._known = len(self._keys)

    def clear(self) -> None:
        """Forget all keys."""
        self._forms.clear()
        self._entries = self._table.entries()

    # ---- numbers of keys --------------------------------------------------------------------------------------

    def all_known(self) -> None:
        """Note that keys with numbers are in memory, or nowhere: there has been nothing here."""
        self._known = len(self._keys)

    def used_ids(self) -> Iterable[Any]:
        """Return no numbers: those of keys that are in memory are held there."""
        return ()

    def renumber(self, renumbered: Any) -> None:
        """Take over new numbers of the keys."""
        self._known = int((renumbered[: self._known] >= 0).sum())
