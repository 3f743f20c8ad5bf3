"""Columns of an Iceberg table in its data files: by the ids of fields, whatever their names were."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sluiceway.errors import ConnectorError
from sluiceway_lakehouse._iceberg_table import arrow_schema
from sluiceway_lakehouse._reading import LakeSplit, Layout, Wanted

__all__ = ["layout_by_id", "partition_constant"]

_FIELD_ID: Final = b"PARQUET:field_id"
_AS_INT32: Final = (types.is_date32,)
_AS_INT64: Final = (types.is_timestamp, types.is_time)


def layout_by_id(
    file: pa.Schema, split: LakeSplit, wanted: Wanted, *, fields: pa.Schema, name_mapping: Any, where: str
) -> Layout:
    """Return where the columns of a table are in a file.

    Args:
        file: schema of the file.
        split: of the file; its partition has values by the ids of columns.
        wanted: the rows.
        fields: columns of the table, with the ids of fields in their metadata.
        name_mapping: ids of the fields of files that do not have them, by name; None: there are none.
        where: the table, for messages.

    Raises:
        ConnectorError: it is not known which columns the file has.
    """
    there = {_id(one): one for one in _with_ids(file, name_mapping, f"{where}, file {split.path}") if _id(one)}
    columns, constants, converters = {}, {}, {}
    for field in fields:
        number = _id(field)
        key = (number or b"").decode()
        if key in split.partition:
            constants[field.name] = partition_constant(split.partition[key], field.type)
        if field.name not in wanted.needed.names or number not in there:
            continue
        columns[field.name] = there[number].name
        if not _is_alike(field.type, there[number].type):
            converters[field.name] = partial(
                _convert, to=field, of=there[number], where=f"{where}, file {split.path}"
            )
    # Else statistics would be looked up by the name of another column.
    is_plain = all((name if name in file.names else None) == columns.get(name) for name in wanted.needed.names)
    return Layout(columns, constants, is_plain, converters)


def partition_constant(value: Any, kind: Any) -> Any:
    """Return a partition value, as manifests have it, as a scalar of the type of its column."""
    if any(is_it(kind) for is_it in _AS_INT32):
        return pa.scalar(value, pa.int32()).cast(kind)
    if any(is_it(kind) for is_it in _AS_INT64):
        return pa.scalar(value, pa.int64()).cast(kind)
    return pa.scalar(value, kind)


def _id(field: Any) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(_FIELD_ID)
    return found


def _with_ids(file: pa.Schema, name_mapping: Any, where: str) -> pa.Schema:
    if any(_id(field) for field in file):
        return file
    if name_mapping is None:
        raise ConnectorError(
            f"{where} has no ids of fields, and the table no schema.name-mapping.default, so it is not known "
            "which columns these are"
        )
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    try:
        found = pyarrow_to_schema(file, name_mapping=name_mapping, downcast_ns_timestamp_to_us=True)
    except Exception as error:  # pyiceberg raises of several kinds
        raise ConnectorError(f"{where} does not fit schema.name-mapping.default of the table: {error}") from error
    schema: pa.Schema = arrow_schema(found)
    return schema


def _is_alike(table: Any, file: Any) -> bool:
    """Return whether types have the same fields inside, in the same order."""
    inside = _inside(table), _inside(file)
    return len(inside[0]) == len(inside[1]) and all(
        (_id(a), a.name if types.is_struct(table) else None)
        == (_id(b), b.name if types.is_struct(table) else None)
        and _is_alike(a.type, b.type)
        for a, b in zip(*inside, strict=True)
    )


def _inside(kind: Any) -> list[Any]:
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.value_field]
    return [kind.field(at) for at in range(kind.num_fields)] if types.is_struct(kind) else []


def _convert(column: Any, *, to: Any, of: Any, where: str) -> Any:
    """Return a column with the fields of the table's type, in a place of which the file has others."""
    if _is_alike(to.type, of.type):
        return column.cast(to.type) if column.type != to.type else column
    if types.is_struct(to.type) and types.is_struct(of.type):
        there = {_id(one): at for at, one in enumerate(_inside(of.type))}
        flat = column.flatten()
        children = []
        for one in _inside(to.type):
            at = there.get(_id(one))
            if at is None:
                children.append(pa.nulls(len(column), one.type))
            else:
                children.append(_convert(flat[at], to=one, of=of.type.field(at), where=where))
        # Whatever the file has: a field that was added later is null in it.
        fields = [
            one.with_type(child.type).with_nullable(True)
            for one, child in zip(_inside(to.type), children, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=fields, mask=column.is_null())
    if types.is_list(to.type) and types.is_list(of.type):
        values = _convert(column.flatten(), to=to.type.value_field, of=of.type.value_field, where=where)
        lengths = column.value_lengths().fill_null(0)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
        return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())
    raise ConnectorError(
        f"{where}: column {to.name!r} has {of.type}, in the table {to.type}, whose fields were changed inside "
        "of a map since: this is not read"
    )
