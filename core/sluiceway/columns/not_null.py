"""Columns, and parts of them, that are NOT NULL: casts to such, and a search for nulls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

__all__ = ["cast", "checked_cast", "has_required", "null_in"]

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def checked_cast(rows: _Rows, schema: Any) -> _Rows:
    """Return rows with a schema, and without nulls in fields that are NOT NULL.

    In place of a struct, list or map that is null such fields may have nulls, too, as in tables of Spark's: they
    become empty values, since writers of Parquet take no others.

    Raises:
        pyarrow.ArrowException: a value does not fit.
        ValueError: a column is missing, or one that is NOT NULL, or a part of it, has a null.
    """
    made = cast(rows, schema)
    for at, field in enumerate(schema):
        if not has_required(field):
            continue
        column = made.column(at)
        for part in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if (path := _path_in(part, field, field.name)) is not None:
                raise ValueError(f"column {path!r} is NOT NULL, and has a null")
        if _parts_of(field.type):
            made = made.set_column(at, field, _each(_filled, column))
    return made


def cast(rows: _Rows, schema: Any, *, safe: bool = True) -> _Rows:
    """Return rows with a schema, whose NOT NULL is for the caller to check.

    ``cast()`` of pyarrow's alone refuses a null in place of a struct with a field that is NOT NULL where the array
    of that field has a null there, too, even if the rows have that schema.

    Args:
        rows: a ``pyarrow.Table`` or ``RecordBatch``; the result is of the same class.
        schema: the columns, by name and in the order of the rows.
        safe: refuse values that the cast would cut off.

    Raises:
        pyarrow.ArrowException: a value does not fit.
        ValueError: a column is missing.
    """
    if rows.schema.equals(schema):
        return rows.replace_schema_metadata(schema.metadata)
    made = rows.cast(pa.schema([_nullable(field) for field in schema]), safe=safe)
    if isinstance(made, pa.Table):
        return pa.Table.from_batches(
            [pa.record_batch(_Retyped(batch, schema)) for batch in made.to_batches()], schema
        )
    return pa.record_batch(_Retyped(made, schema))


def _filled(column: Any) -> Any:
    """Return an array with an empty value for each null in a part of it that is NOT NULL."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [_with_empty(column.field(place), field) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if not _parts_of(kind):
        return column
    # The values of all lists, also of those that are null or before the offset.
    field = pa.field("entries", column.values.type, nullable=False) if pa.types.is_map(kind) else kind.value_field
    own = column.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    values = [_with_empty(column.values, field)]
    return pa.Array.from_buffers(kind, len(column), own, column.null_count, column.offset, values)


def _with_empty(values: Any, field: Any) -> Any:
    if has_required(field):
        values = _filled(values)
    if field.nullable or not values.null_count:
        return values
    empty: Any = pa.array([None], pa.struct([field]))
    places = np.where(values.is_valid().to_numpy(zero_copy_only=False), np.arange(len(values)), len(values))
    return pa.concat_arrays([values, empty.field(0)]).take(pa.array(places))


def _each(convert: Callable[[Any], Any], column: Any) -> Any:
    """Return a column, or each chunk of one, converted."""
    if not isinstance(column, pa.ChunkedArray):
        return convert(column)
    return pa.chunked_array([convert(chunk) for chunk in column.chunks], column.type)


class _Retyped:
    """Arrow batch with another schema, by Arrow's protocol for other libraries: no data is copied."""

    def __init__(self, batch: Any, schema: Any) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def _nullable(field: Any) -> Any:
    """Return a field that takes null, as do the parts of its type, but for keys of maps."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(part) for part in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_nullable(kind.key_field).with_nullable(False), _nullable(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_nullable(kind.value_field))
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_nullable(kind.value_field), kind.list_size)
    return field.with_type(kind).with_nullable(True)


def has_required(field: Any) -> bool:
    """Return whether an Arrow field, or a part of its type, takes no null; keys of maps never do."""
    return not field.nullable or any(map(has_required, _parts_of(field.type)))


def null_in(column: Any, field: Any) -> tuple[int, str] | None:
    """Return the row and the path of the first null of a column where its field takes none.

    Args:
        column: an Arrow array.
        field: of the type of the array.
    """
    if _path_in(column, field, field.name) is None:
        return None
    found = ((row, _path_in(column.slice(row, 1), field, field.name)) for row in range(len(column)))
    return next((row, path) for row, path in found if path is not None)


def _path_in(column: Any, field: Any, path: str) -> str | None:
    if column.null_count:
        if not field.nullable:
            return path
        column = column.drop_null()
    parts = [part for part in _parts_of(field.type) if has_required(part)]
    if not parts:
        return None
    if pa.types.is_struct(field.type):
        values = column.flatten()
        inside = [(values[field.type.get_field_index(part.name)], part, f"{path}.{part.name}") for part in parts]
    elif pa.types.is_map(field.type):
        ends = column.offsets  # a map has no flatten(), and items are those of all rows before slice()
        first, last = ends[0].as_py(), ends[-1].as_py()
        inside = [(column.items[first:last], field.type.item_field, f"{path}.value")]
    else:
        inside = [(column.flatten(), field.type.value_field, f"{path}[]")]
    return next((found for each in inside if (found := _path_in(*each)) is not None), None)


def _parts_of(kind: Any) -> list[Any]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if any(is_list(kind) for is_list in _LISTS) else []
