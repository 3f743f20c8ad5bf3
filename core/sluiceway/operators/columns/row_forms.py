"""Rows of keys in a table of the state, each in the form that it was written in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from sluiceway.columns.aggregation.keyed import DUE, encode_keyed, form_of, keyed_rows, open_form
from sluiceway.columns.aggregation.stored import LAYOUT
from sluiceway.errors import StateError
from sluiceway.state import VOID_NAMESPACE, StateTable

__all__ = ["Columns", "RowForms"]


class Columns(Protocol):
    """Columns of rows, as :class:`~sluiceway.columns.aggregation.layout.Layout` describes them.

    Attributes:
        step: name of the step, for messages.
        metadata: description of the columns.
    """

    step: str
    metadata: bytes

    def read(self, metadata: bytes | None, rows: Any, count: int) -> Any:
        """Return saved rows in the columns of now. Raises IncompatibleStateError."""


class RowForms:
    """Forms of rows, each in a namespace of its own: its tag.

    Args:
        layout: the columns.
        table: the state.
        name: name of the state.
        group_keys: the key of each group's forms.
        own: the key groups of the subtask.
        others: number of the columns in front of the keys.
    """

    def __init__(
        self,
        layout: Columns,
        table: StateTable,
        name: str,
        group_keys: Sequence[int],
        own: range,
        others: int = 0,
    ) -> None:
        self._layout, self._table, self._name = layout, table, name
        self._group_keys, self._own, self._others = group_keys, own, others
        self._schemas: dict[int, Any] = {}
        self._written: set[int] = set()

    def open(self) -> list[tuple[int, int]] | None:
        """Read the forms that are in the state.

        Returns:
            start and width, in ms, of each namespace with keys by a time; None if there are no rows: then all else
            has been removed, as forms of rows that are gone need not be in the columns of now.

        Raises:
            IncompatibleStateError: keys or other columns have changed.
            StateError: a form is damaged.
        """
        spaces: list[Any] = list(self._table.namespaces())
        if VOID_NAMESPACE not in spaces:
            self.clear()
            return None
        times = []
        for name in spaces:
            match name:
                case (str(kind), int(start), int(width)) if kind == DUE and width > 0:
                    times.append((start, width))
                case _ if name != VOID_NAMESPACE:
                    self._open(name)
        return times

    def _open(self, name: Any) -> None:
        try:
            (tag,) = name
            for form in self._table.entries(name).values():
                self._schemas[tag] = open_form(tag, form)
        except (ValueError, TypeError, OSError) as error:  # pa.ArrowInvalid is a ValueError
            raise self.damaged(error) from error
        schema = self._schemas[tag]
        self._read(schema, [_empty(schema)])

    def damaged(self, error: Exception) -> StateError:
        """Return the error of a state that cannot be read."""
        return StateError(
            f"state {self._name!r} of step {self._layout.step!r} cannot be read: {error}. Start from another "
            "checkpoint"
        )

    def _read(self, schema: Any, batches: Iterable[Any]) -> list[Any]:
        metadata = (schema.metadata or {}).get(LAYOUT)
        return [self._layout.read(metadata, rows, self._others) for rows in batches]

    def decode(self, values: Sequence[bytes]) -> Iterator[Any]:
        """Return rows as record batches in the columns of the layout.

        Raises:
            StateError: one is damaged.
        """
        try:
            found = list(keyed_rows(values, self._schemas))  # a damaged one is found before any is used
        except ValueError as error:
            raise self.damaged(error) from error
        for rows in found:
            yield from self._read(rows.schema, [rows])

    def encode(self, rows: Any) -> list[bytes]:
        """Return the value of each row of a record batch, and have its form in the state."""
        tag, form = form_of(rows, self._layout.metadata)
        if tag not in self._written:
            self._schemas.setdefault(tag, open_form(tag, form))
            entries = self._table.entries((tag,))
            for group in self._own:
                key = self._group_keys[group]
                if entries.get(key) != form:
                    entries[key] = form
            self._written.add(tag)
        return encode_keyed(tag, rows)

    def objects(self, columns: Sequence[Any]) -> list[Any]:
        """Return keys as records have them. Raises StateError if Python has no such time."""
        try:
            values = [column.to_pylist() for column in columns]
        except (OverflowError, ValueError) as error:
            raise StateError(
                f"step {self._layout.step!r} has more keys than go into memory, and one of them cannot be written "
                f"by itself, as Python has no such time: {error}. Cast the column of the key to an integer"
            ) from error
        return values[0] if len(values) == 1 else list(zip(*values, strict=True))

    def clear(self) -> None:
        """Remove all that is in the state: rows, forms, and keys by a time."""
        for name in list(self._table.namespaces()):
            self._table.drop(name)
        self._schemas, self._written = {}, set()


def _empty(schema: Any) -> Any:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
