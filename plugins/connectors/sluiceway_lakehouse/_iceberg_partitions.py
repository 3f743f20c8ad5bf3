"""Partition values of rows, by the partition spec of an Iceberg table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sluiceway.errors import ConfigurationError
from sluiceway_lakehouse._errors import MisfitError

__all__ = ["Partitioning", "partition_fields", "transform_of"]

_US_PER: Final = {"day": 86_400_000_000, "hour": 3_600_000_000}
_FIELD: Final = re.compile(r"(\w+)\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)")
_WITH_NUMBER: Final = ("bucket", "truncate")
_PLAIN: Final = ("year", "month", "day", "hour")
_LONGEST_NAME: Final = 240


def partition_fields(given: str | Sequence[str] | None) -> tuple[tuple[str, str], ...] | None:
    """Return column and transform of each partition field that a user names, such as ``day(at)``.

    Raises:
        ConfigurationError: it is no column, and no transform of one.
    """
    if given is None:
        return None
    texts = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(text, str) and text.strip() for text in texts) or len(set(texts)) < len(texts):
        raise ConfigurationError(
            f"partition_by={given!r:.100} must be a column or a transform of one, or several different ones"
        )
    return tuple(map(_partition_field, texts))


def _partition_field(text: str) -> tuple[str, str]:
    if "(" not in text:
        return text.strip(), "identity"
    match = _FIELD.fullmatch(text.strip())
    if match is not None:
        name, number, column = match.groups()
        if name in _WITH_NUMBER and number is not None and int(number):
            return column, f"{name}[{int(number)}]"
        if name in _PLAIN and number is None:
            return column, name
    raise ConfigurationError(
        f"partition_by={text!r:.100} is no column and no transform: year(c), month(c), day(c), hour(c), "
        "bucket(16, c) and truncate(4, c) are"
    )


def transform_of(field: Any) -> str:
    """Return the transform of a partition field as a text, such as ``bucket[16]``."""
    return str(field.transform)


class Partitioning:
    """Partition values of rows with the columns of a table.

    Args:
        schema: ``pyiceberg.schema.Schema`` of the table.
        spec: ``pyiceberg.partitioning.PartitionSpec`` of the table.
        where: the table, for messages.

    Raises:
        MisfitError: a transform is not known, or takes a type that is not supported.
    """

    def __init__(self, schema: Any, spec: Any, where: str) -> None:
        self._schema = schema
        self._spec = spec
        self._where = where
        self._fields: list[tuple[list[str], str, Any, Any]] = []  # path, transform, it, type
        for field in spec.fields:
            path = _path_to(schema.as_struct(), field.source_id)
            kind = schema.find_field(field.source_id).field_type if path else None
            transform = transform_of(field)
            known = transform.partition("[")[0] in (*_WITH_NUMBER, *_PLAIN, "identity", "void")
            if not path or not known or str(kind) == "uuid":
                of = ".".join(path) if path else f"field {field.source_id}"
                raise MisfitError(
                    f"{where} is partitioned by {transform} of {of} ({kind}), which is not supported"
                )
            self._fields.append((path, transform, field.transform, kind))
        # No column of a table has such a name.
        self.names = tuple(f"\0partition {at}" for at in range(len(self._fields)))

    def with_values(self, data: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with the partition values as further columns."""
        arrays = [*data.columns, *(self._values(data, *field) for field in self._fields)]
        added = [
            pa.field(name, array.type) for name, array in zip(self.names, arrays[data.num_columns :], strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*data.schema, *added]))

    def directory(self, partition: Mapping[str, Any]) -> _Directory | None:
        """Return the directory of a partition; None: of the table, or its name would be too long."""
        from pyiceberg.typedef import Record

        if not self.names:
            return None
        path = self._spec.partition_to_path(Record(*partition.values()), self._schema)
        return None if any(len(part) > _LONGEST_NAME for part in path.split("/")) else _Directory(path)

    def _values(self, data: pa.RecordBatch, path: list[str], transform: str, of: Any, kind: Any) -> Any:
        column: Any = data.column(path[0])
        for name in path[1:]:
            column = pc.struct_field(column, name)
        if transform == "identity":
            return _physical(column)
        if transform == "void":
            return pa.nulls(len(column), pa.int32())
        if transform in _PLAIN:
            return _time(column, transform)
        # Each distinct value once: these transforms are defined by pyiceberg, value by value.
        encoded = column.dictionary_encode()
        physical: list[Any] = _physical(encoded.dictionary).to_pylist()
        values = pa.array(list(map(of.transform(kind), physical)), pa.int32() if transform[0] == "b" else None)
        if transform[0] == "t":
            values = values.cast(_physical(column.slice(0, 0)).type)
        return values.take(encoded.indices)


class _Directory:
    """Directory of a partition, as location providers of pyiceberg take it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def to_path(self) -> str:
        return self._path


def _path_to(struct: Any, number: int) -> list[str]:
    """Return the names from the table to a field, through structs alone; empty: there is none."""
    for one in struct.fields:
        if one.field_id == number:
            return [one.name]
        if one.field_type.is_struct and (rest := _path_to(one.field_type, number)):
            return [one.name, *rest]
    return []


def _physical(column: Any) -> Any:
    """Return dates and times as the numbers that they are stored as."""
    kind = column.type
    if types.is_date32(kind):
        return column.cast(pa.int32())
    if types.is_timestamp(kind) or types.is_time(kind):
        return column.cast(pa.int64())
    return column


def _time(column: Any, unit: str) -> Any:
    """Return whole years, months, days or hours since 1970-01-01, also before it."""
    if unit in ("year", "month"):
        years = pc.subtract(pc.year(column), 1970)
        if unit == "month":
            years = pc.add(pc.multiply(years, 12), pc.subtract(pc.month(column), 1))
        return years.cast(pa.int32())
    if types.is_date(column.type):
        return column.cast(pa.int32())
    size = pa.scalar(_US_PER[unit] * (1000 if column.type.unit == "ns" else 1), pa.int64())
    numbers = column.cast(pa.int64())
    quotients = pc.divide(numbers, size)  # towards zero
    # Before 1970 the unit that has begun is one less.
    below = pc.greater(pc.multiply(quotients, size), numbers)
    return pc.subtract(quotients, below.cast(pa.int64())).cast(pa.int32())
