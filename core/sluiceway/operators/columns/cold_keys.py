"""Keys of an operator without windows that are in the state alone, each by itself, because memory is full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from sluiceway.columns.aggregation.keyed import encode_keyed, form_of, keyed_rows, open_form
from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.slices import AggregateSlice
from sluiceway.columns.aggregation.stored import LAYOUT
from sluiceway.columns.keys.key_ids import KeyIds
from sluiceway.columns.state_names import KEYS
from sluiceway.errors import StateError
from sluiceway.state import VOID_NAMESPACE, StateTable, ValueStateDescriptor

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
        self._group_keys, self._own = group_keys, own
        self._known = 0
        self._schemas: dict[int, Any] = {}
        self._written: set[int] = set()

    def open(self) -> bool:
        """Read the forms, and return if there are keys.

        Raises:
            IncompatibleStateError: keys or aggregates have changed.
            StateError: a form is damaged.
        """
        spaces: list[Any] = list(self._table.namespaces())
        for name in spaces:
            if name != VOID_NAMESPACE:
                try:
                    (tag,) = name
                    for form in self._table.entries(name).values():
                        self._schemas[tag] = open_form(tag, form)
                except (ValueError, TypeError, OSError) as error:  # pa.ArrowInvalid is a ValueError
                    raise self._damaged(error) from error
                schema = self._schemas[tag]
                self._read(schema, [_empty(schema)])
        return VOID_NAMESPACE in spaces

    def _damaged(self, error: Exception) -> StateError:
        return StateError(
            f"state {KEYS!r} of step {self._layout.step!r} cannot be read: {error}. Start from another checkpoint"
        )

    def _read(self, schema: Any, batches: Iterable[Any]) -> list[Any]:
        metadata = (schema.metadata or {}).get(LAYOUT)
        return [self._layout.read(metadata, rows, 0) for rows in batches]

    def _rows(self, values: Sequence[bytes]) -> Iterator[Any]:
        """Return values as record batches in the columns of the layout."""
        try:
            found = list(keyed_rows(values, self._schemas))  # a damaged one is found before any is used
        except ValueError as error:
            raise self._damaged(error) from error
        for rows in found:
            yield from self._read(rows.schema, [rows])

    # ---- keys of a batch --------------------------------------------------------------------------------------

    def fetch(self, into: AggregateSlice) -> None:
        """Bring the keys that have got numbers since the last call into memory, if they are here."""
        before, now = self._known, len(self._keys)
        if before == now:
            return
        self._known = now
        found = self._table.read(self._objects(self._keys.since(before)))
        if found:
            self._load(into, list(found.values()))

    def _load(self, into: AggregateSlice, values: Sequence[bytes]) -> None:
        count = len(self._layout.keys)
        for rows in self._rows(values):
            into.load(self._keys.find(rows.columns[:count]), rows.columns[count:])

    def _objects(self, columns: Sequence[Any]) -> list[Any]:
        """Return keys as records have them."""
        try:
            values = [column.to_pylist() for column in columns]
        except (OverflowError, ValueError) as error:
            raise StateError(
                f"step {self._layout.step!r} has more keys than go into memory, and one of them cannot be written "
                f"by itself, as Python has no such time: {error}. Cast the column of the key to an integer"
            ) from error
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def write(self, of: AggregateSlice, at: Any) -> None:
        """Write keys of a slice, by their positions."""
        for begin in range(0, len(at), _PART):
            part = at[begin : begin + _PART]
            rows = of.rows(part)
            tag, form = form_of(rows, self._layout.metadata)
            if tag not in self._written:
                self._schemas.setdefault(tag, open_form(tag, form))
                entries = self._table.entries((tag,))
                for group in self._own:
                    key = self._group_keys[group]
                    if entries.get(key) != form:
                        entries[key] = form
                self._written.add(tag)
            keys = self._objects(rows.columns[: len(self._layout.keys)])
            self._entries.update(zip(keys, encode_keyed(tag, rows), strict=True))

    # ---- all keys ---------------------------------------------------------------------------------------------

    def parts(self) -> Iterator[AggregateSlice]:
        """Return all keys, a part at a time, each with keys of its own."""
        count, values = len(self._layout.keys), iter(self._entries.values())
        while part := list(islice(values, _PART)):
            for rows in self._rows(part):
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
        for name in list(self._table.namespaces()):
            self._table.drop(name)
        self._entries = self._table.entries()
        self._schemas, self._written = {}, set()

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


def _empty(schema: Any) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
