"""State of a step in columns that is put into an edited savepoint as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sluiceway.checkpoint.offline_reader import Decoder, blocks_in_columns, definitions_in_columns
from sluiceway.columns.state_names import (
    DEFINITION,
    KEYS,
    LATEST,
    LATEST_KEYS,
    LEFT,
    LEFT_WAITING,
    OVER_KEYS,
    OVER_RECENT,
    OVER_WAITING,
    SESSIONS,
    SLICES,
)
from sluiceway.errors import ConfigurationError, SluicewayError, StateError
from sluiceway.savepoint.arrow_schema import arrow
from sluiceway.state import KeyedSnapshot, KeyedStateBackend, ValueStateDescriptor

if TYPE_CHECKING:
    from sluiceway.columns.edited import EditedRows

__all__ = ["EditedColumns"]

_LEFT_KEY = (LEFT, LEFT_WAITING, OVER_RECENT, OVER_WAITING, OVER_KEYS)
_OTHERS: Final = {
    SLICES: (KEYS, SESSIONS),
    KEYS: (SLICES,),
    SESSIONS: (SLICES,),
    LATEST: (LATEST_KEYS,),
    LATEST_KEYS: (LATEST,),
    OVER_RECENT: (OVER_KEYS,),
    OVER_KEYS: (OVER_RECENT,),
}
"""States of the same step that have other keys."""


class EditedColumns:
    """State of a step in columns, in the place of the one that it had.

    Args:
        uid: uid of the operator.
        state: name of the state.
        kind: ``aggregates`` or ``rows``.
        max_parallelism: number of key groups.
    """

    def __init__(self, uid: str, state: str, kind: str, max_parallelism: int) -> None:
        self._uid, self._state, self._kind, self._most = uid, state, kind, max_parallelism
        self._rows: EditedRows
        # Keys that another state of the step has.
        self._others: dict[str, list[Any]] = {}

    def take_form(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        """Learn the columns from the state that there is. Raises StateError."""
        from sluiceway.columns.edited import EditedRows
        from sluiceway.columns.saved import saved_rows

        decode = Decoder(trusted=False)
        groups: list[Mapping[Any, Any]] = []
        definition: dict[str, Any] = {}
        others: list[tuple[str, Any]] = []
        with self._refusing():
            for snapshot in snapshots:
                groups += [blocks for _, blocks in blocks_in_columns(snapshot, self._state, decode)]
                for other in _OTHERS.get(self._state, ()):
                    for _, found in blocks_in_columns(snapshot, other, decode):
                        others += [(other, part) for part in saved_rows(self._kind, found)]
                for _, text in definitions_in_columns(snapshot, DEFINITION, decode):
                    definition = json.loads(text)
            key = "key" if self._state in _LEFT_KEY else "right key"
            keys = tuple(definition.get(key, ())) if self._kind == "rows" else ()
            if self._kind == "rows" and not keys:
                raise ValueError("the savepoint does not say which of its columns are the key: it is too old")
            self._rows = EditedRows(self._state, self._kind, groups, self._most, keys)
            for other, part in others:
                self._others.setdefault(other, []).append(part.data.select(list(part.keys or self._rows.keys)))

    def add(self, data: Any) -> int:
        """Add rows, and return their number. Raises StateError."""
        pa = arrow()
        if hasattr(data, "to_arrow_reader"):  # a query of DuckDB
            data = data.to_arrow_reader()
        with self._refusing():
            if hasattr(data, "__arrow_c_stream__"):
                return self._rows.add(pa.table(data))
            if hasattr(data, "__arrow_c_array__"):
                return self._rows.add(pa.Table.from_batches([pa.record_batch(data)]))
        if isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping):
            rows = list(data)
            if all(isinstance(row, Mapping) for row in rows):
                return self._add_dicts(rows)
        raise ConfigurationError(
            f"state {self._state!r} is made from a table or an iterable of dicts, not from {type(data).__name__} "
            f"{data!r:.60}"
        )

    def _add_dicts(self, rows: list[Any]) -> int:
        pa, schema = arrow(), self._rows.schema
        with self._refusing():
            names = set().union(*rows) - set(schema.names)
            if names:
                raise ValueError(f"column {min(names)!r} is not one of {', '.join(schema.names)}")
            for place, row in enumerate(rows):
                if lacking := [name for name in schema.names if name not in row]:
                    raise ValueError(f"column {lacking[0]!r} is missing in row {place}")
            try:
                return self._rows.add(pa.Table.from_pylist(rows, schema))
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise ValueError(f"a value is not of the type of its column: {error}") from error

    def write(self, backend: KeyedStateBackend, edited: Mapping[str, EditedColumns]) -> None:
        """Write all rows that have been added, in the place of those that have been written.

        Args:
            backend: the state of the step.
            edited: the states of the step that are put so, by name.

        Raises:
            StateError: the rows do not fit, or a key is in another of the states, too.
        """
        table = backend.table(ValueStateDescriptor(self._state, bytes))
        for name in list(table.namespaces()):
            table.drop(name)
        with self._refusing():
            for where in _OTHERS.get(self._state, ()):
                other = edited.get(where)
                others = self._others.get(where, []) if other is None else other._rows.key_rows()
                self._rows.check_others(where, others)
            self._rows.write(table)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except SluicewayError:
            raise
        except ValueError as error:  # pa.ArrowInvalid is one
            raise StateError(f"state {self._state!r} of operator {self._uid!r} cannot be put: {error}") from error
