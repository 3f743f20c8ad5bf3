"""Comparison of the columns of rows with those of a table, and conversion of rows."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from sluiceway.columns.not_null import checked_cast
from sluiceway.columns.schemas import shown
from sluiceway.errors import ConnectorError

__all__ = ["Fit", "new_columns", "plain", "storable"]

_MOST_PRECISE = 38
"""Digits of a decimal."""


def plain(kind: Any) -> Any:
    """Return the type that has the same values as a dictionary, a view, or a type with 64-bit offsets."""
    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field)
    return kind


def storable(schema: pa.Schema, where: str, *, has_times: bool) -> pa.Schema:
    """Return the columns of a new table for rows with these columns.

    Args:
        schema: of the rows.
        where: the table, for messages.
        has_times: whether the format has times of day.

    Raises:
        ConnectorError: a column has a type that the format does not have.
    """
    return pa.schema([_storable_field(field, field.name, where, has_times) for field in schema])


def _storable_field(field: Any, name: str, where: str, has_times: bool) -> Any:
    return pa.field(field.name, _storable_type(field.type, name, where, has_times), field.nullable)


def _storable_type(given: Any, name: str, where: str, has_times: bool) -> Any:
    kind = plain(given)
    # The formats have no unsigned integers and no half floats: the next type holds all their values.
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}
    if kind in wider:
        return wider[kind]
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_date(kind):
        return pa.date32()
    if types.is_decimal(kind) and kind.precision <= _MOST_PRECISE:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_list(kind):
        return pa.list_(_storable_field(kind.value_field.with_name("element"), name, where, has_times))
    if types.is_struct(kind):
        return pa.struct(
            [
                _storable_field(kind.field(at), f"{name}.{kind.field(at).name}", where, has_times)
                for at in range(kind.num_fields)
            ]
        )
    if types.is_map(kind):
        key = _storable_type(kind.key_type, name, where, has_times)
        return pa.map_(key, _storable_field(kind.item_field, name, where, has_times))
    if types.is_time(kind) and has_times:
        return pa.time64("us")
    plains = (types.is_boolean, types.is_signed_integer, types.is_floating, types.is_string, types.is_binary)
    if any(is_it(kind) for is_it in plains):
        return kind
    raise ConnectorError(
        f"{where}: column {name!r} has {given}, which such a table has no type for: cast it before"
    )


def new_columns(rows: pa.Schema, table: pa.Schema) -> list[str]:
    """Return the names of columns that the table does not have."""
    return [name for name in rows.names if name not in table.names]


class Fit:
    """Conversion of rows to the columns of a table.

    Args:
        rows: schema of the rows.
        table: schema of the table.
        where: the table, for messages.
        hint: what to do about new columns, for messages.

    Raises:
        ConnectorError: the table has no column for one of the rows', requires one that they do not have, or has
            one of a type that does not hold every value.
    """

    def __init__(self, rows: pa.Schema, table: pa.Schema, where: str, hint: str = "") -> None:
        self.rows = rows
        self.table = table
        self._where = where
        if missing := new_columns(rows, table):
            near = difflib.get_close_matches(missing[0], table.names, 1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise ConnectorError(
                f"{where} has no column {missing[0]!r}{meant} Its columns are {shown(table)}{hint}"
            )
        for field in table:
            if field.name not in rows.names:
                if not field.nullable:
                    raise ConnectorError(
                        f"{where}: column {field.name!r} may not be null, and the rows do not have it; their "
                        f"columns are {shown(rows)}"
                    )
            elif not _holds(field.type, given := rows.field(field.name).type):
                raise ConnectorError(
                    f"{where}: column {field.name!r} has {field.type}, in the rows {given}: cast it before"
                )

    def convert(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the columns of the table. Raises ConnectorError: a value does not fit."""
        return pa.RecordBatch.from_arrays([self._column(data, field) for field in self.table], schema=self.table)

    def _column(self, data: pa.RecordBatch, field: Any) -> Any:
        at = data.schema.get_field_index(field.name)
        column: Any = pa.nulls(data.num_rows, field.type) if at < 0 else data.column(at)
        try:
            if types.is_dictionary(column.type):
                column = column.dictionary_decode()
            single = pa.RecordBatch.from_arrays([column], [field.name])
            column = checked_cast(single, pa.schema([field.with_nullable(True)])).column(0)
        except (pa.ArrowException, ValueError) as error:
            finer = types.is_timestamp(column.type) and "lose data" in str(error)
            advice = ". The table has microseconds: truncate it before" if finer else ""
            raise ConnectorError(
                f"{self._where}: a value of column {field.name!r} does not fit into {field.type}: {error}{advice}"
            ) from error
        if column.null_count and not field.nullable:
            row = data.slice(column.is_null().index(True).as_py(), 1).to_pylist()[0]
            raise ConnectorError(f"{self._where}: column {field.name!r} may not be null, and is in {row!r:.200}")
        return column


def _holds(target: Any, given: Any) -> bool:
    """Return whether a type holds the values of another; of times and dates those that are not finer."""
    target, given = plain(target), plain(given)
    if target == given or types.is_null(given):
        return True
    if types.is_integer(target) and types.is_integer(given):
        signs = types.is_signed_integer(target), types.is_signed_integer(given)
        room = target.bit_width - given.bit_width
        return room >= 0 if signs[0] == signs[1] else signs[0] and room > 0
    if types.is_floating(target) and types.is_floating(given):
        return bool(target.bit_width >= given.bit_width)
    if types.is_timestamp(target) and types.is_timestamp(given):
        return (target.tz is None) == (given.tz is None)
    if types.is_decimal(target) and types.is_decimal(given):
        whole = target.precision - target.scale >= given.precision - given.scale
        return bool(whole and target.scale >= given.scale)
    for of_kind in (types.is_date, types.is_time):
        if of_kind(target) and of_kind(given):
            return True
    if types.is_list(target) and types.is_list(given):
        return _holds_field(target.value_field, given.value_field)
    if types.is_map(target) and types.is_map(given):
        return _holds(target.key_type, given.key_type) and _holds_field(target.item_field, given.item_field)
    if types.is_struct(target) and types.is_struct(given):
        fields = _fields(target), _fields(given)
        return [f.name for f in fields[0]] == [f.name for f in fields[1]] and all(map(_holds_field, *fields))
    return False


def _holds_field(target: Any, given: Any) -> bool:
    return _holds(target.type, given.type) and (target.nullable or not given.nullable)


def _fields(struct: Any) -> Sequence[Any]:
    return [struct.field(at) for at in range(struct.num_fields)]
