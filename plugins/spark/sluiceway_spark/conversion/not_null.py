"""Columns, and parts of them, that are NOT NULL: casts to such, and a search for nulls."""

from __future__ import annotations

from typing import Any

__all__ = ["cast", "has_required", "null_in"]


def cast(batch: Any, schema: Any, *, safe: bool = True) -> Any:
    """Return a RecordBatch with a schema, whose NOT NULL is for the caller to check.

    ``RecordBatch.cast()`` alone refuses a null in place of a struct with a field that is NOT NULL, since the array
    of that field has a null there, too.

    Raises:
        Exception: pyarrow's: a value does not fit, or a column is missing.
    """
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    made = batch.cast(pa.schema([_nullable(field) for field in schema]), safe=safe)
    return pa.record_batch(_Retyped(made, schema))


class _Retyped:
    """Arrow batch with another schema, by Arrow's protocol for other libraries: no data is copied."""

    def __init__(self, batch: Any, schema: Any) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def _nullable(field: Any) -> Any:
    """Return a field that takes null, as do the parts of its type, but for keys of maps."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(part) for part in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_nullable(kind.key_field).with_nullable(False), _nullable(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_nullable(kind.value_field))
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
    import pyarrow as pa

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
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []
