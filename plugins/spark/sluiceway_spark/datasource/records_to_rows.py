"""Conversion of a source's records to Arrow batches with the schema of a DataFrame."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.types import unaliased
from sluiceway_spark.conversion.arrow_schema import column_type, fields_of, schema_of
from sluiceway_spark.conversion.records_to_arrow import Columns, column_of

__all__ = ["Tables", "arrow_schema_of", "place_of"]

_VALUE: Final = "value"

# Spark's timestamps are of the years 1 to 9999, in ms since the epoch.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999


def arrow_schema_of(kind: Any, timestamp: str | None, where: str) -> Any:
    """Return the columns for records of a type: one for each field, or ``value``; then that of event times.

    Args:
        kind: the type, or None if it is not known.
        timestamp: the column's name, or None for none.
        where: names the source in messages.

    Raises:
        ConfigurationError: the type does not say which columns there are, or has one for which Spark has no type.
    """
    import pyarrow as pa

    kind = _plain(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and origin is None and fields_of(kind) is not None:
        fields = list(schema_of(kind, where))
    elif origin is tuple and arguments and arguments[-1] is not ...:
        fields = [pa.field(f"_{i}", column_type(part, where)) for i, part in enumerate(arguments, 1)]
    elif kind in (None, Any, object, dict, tuple, list) or origin is dict:
        said = "does not say what its records are" if kind is None else f"says that its records are {_name(kind)}"
        raise ConfigurationError(
            f"{where} {said}, which does not tell the columns: say them with .schema('name type, ...')"
        )
    else:
        fields = [pa.field(_VALUE, column_type(kind, where))]
    if timestamp is not None:
        if timestamp.lower() in {field.name.lower() for field in fields}:
            raise ConfigurationError(f"option timestamp={timestamp!r}: {where} has a column of that name")
        fields.append(pa.field(timestamp, pa.timestamp("us", "UTC")))
    return pa.schema(fields)


def place_of(column: str, names: Sequence[str]) -> int | None:
    """Return the place of a column among names, in any case; None: there is no such column.

    The very name comes first: with ``spark.sql.caseSensitive``, others may differ from it in case alone.
    """
    if column in names:
        return names.index(column)
    return next((place for place, name in enumerate(names) if name.lower() == column.lower()), None)


class Tables:
    """Converter of records to batches with one schema.

    Args:
        schema: Arrow's.
        kind: the type of the records, or None if it is not known.
        timestamp: the column for event times, or None.
        where: names the source in messages.

    Raises:
        ConfigurationError: there is no such column, or no other, or it is no timestamp.
    """

    def __init__(self, schema: Any, kind: Any, timestamp: str | None, where: str) -> None:
        import pyarrow as pa

        self._schema = schema
        self._where = where
        self._place: int | None = None
        rest = list(schema)
        if timestamp is not None:
            self._place = place_of(timestamp, schema.names)
            if self._place is None:
                raise ConfigurationError(
                    f"option timestamp={timestamp!r} is none of the columns {', '.join(schema.names)}"
                )
            if not pa.types.is_timestamp(rest[self._place].type):
                raise ConfigurationError(
                    f"option timestamp={timestamp!r}: the column is {rest[self._place].type}, not timestamp"
                )
            del rest[self._place]
        if not rest:
            raise ConfigurationError(f"{where}: there is no column for the records")
        self._rest = pa.schema(rest)
        beside = "" if timestamp is None else f", beside {timestamp!r} for event times"
        self._columns = Columns(self._rest, where + beside)
        from sluiceway.columns.not_null import has_required

        self._required = [place for place, field in enumerate(schema) if has_required(field)]
        self._is_single: bool | None = None if kind is None else len(rest) == 1 and not _is_row(kind)
        self._make: Callable[[Any], Any] | None = None

    def of(self, records: list[Any] | Batch[Any]) -> Any:
        """Return one batch with these records, in order.

        Raises:
            ConnectorError: one of them does not fit the schema, or has no value for what is NOT NULL.
        """
        import pyarrow as pa

        batch = records if isinstance(records, Batch) else Batch(records)
        if batch.columns is not None:
            made = self._fitted(batch.columns)
        else:
            made = self._single(batch.values) if self._takes_values(batch.values) else self._rows(batch.values)
        if self._place is None:
            return self._checked(made, batch)
        columns = list(made.columns)
        stamps = batch.timestamps
        if stamps is not None and len(stamps) != made.num_rows:
            raise ConnectorError(f"{self._where}: records that are Arrow batches have no event time for each row")
        kind = self._schema.field(self._place).type
        times = pa.nulls(made.num_rows, kind) if stamps is None else _times(stamps, kind)
        columns.insert(self._place, times)
        return self._checked(pa.RecordBatch.from_arrays(columns, schema=self._schema), batch)

    def _checked(self, made: Any, batch: Batch[Any]) -> Any:
        from sluiceway.columns.not_null import null_in

        for place in self._required:  # of which Spark would read whatever is in memory
            if (found := null_in(made.column(place), self._schema.field(place))) is not None:
                row, path = found
                record = batch.values[row] if len(batch) == made.num_rows else ""
                raise ConnectorError(
                    f"{self._where}: column {path!r} is NOT NULL, and has no value in {record!r:.200}"
                )
        return made

    def _fitted(self, data: Any) -> Any:
        """Return columns as those of the schema, by name."""
        import pyarrow as pa

        from sluiceway.columns.not_null import cast

        try:
            return cast(data.select(self._rest.names), self._rest)
        except (pa.ArrowException, KeyError, ValueError) as error:
            have, wanted = (", ".join(f"{f.name} {f.type}" for f in each) for each in (data.schema, self._rest))
            raise ConnectorError(f"{self._where}: the columns {have} do not fit into {wanted}: {error}") from error

    def _takes_values(self, values: list[Any]) -> bool:
        if self._is_single is None:
            self._is_single = len(self._rest.names) == 1 and not _is_row(type(values[0]))
        return self._is_single

    def _single(self, values: list[Any]) -> Any:
        import pyarrow as pa

        from sluiceway.columns.joining import as_one

        try:
            array = column_of(values, self._rest.field(0).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            (name,) = self._rest.names
            batches = self._columns.batches([{name: value} for value in values])  # says which one it is
            return as_one(pa.Table.from_batches(batches))
        return pa.RecordBatch.from_arrays([array], schema=self._rest)

    def _rows(self, values: list[Any]) -> Any:
        import pyarrow as pa

        from sluiceway.columns.joining import as_one

        batches = self._columns.batches(values)
        if len(batches) == 1:
            return batches[0]
        return as_one(pa.Table.from_batches(batches, self._rest))


def _times(stamps: list[int], kind: Any) -> Any:
    """Return event times as timestamps; null where Spark has none, as for the end of a global window."""
    import pyarrow as pa
    import pyarrow.compute as pc

    times: Any = pa.array(stamps, pa.int64())
    first, last = pa.scalar(_FIRST_MS), pa.scalar(_LAST_MS)
    has_timestamp = pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))
    within = pc.if_else(has_timestamp, times, pa.scalar(None, pa.int64()))
    return within.cast(pa.timestamp("ms", kind.tz)).cast(kind)


def _plain(kind: Any) -> Any:
    """Return a type hint without its option of None, and without the names of aliases."""
    kind = unaliased(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        rest = [part for part in typing.get_args(kind) if part is not type(None)]
        if len(rest) == 1:
            return _plain(rest[0])
    return kind


def _is_row(kind: Any) -> bool:
    import pyarrow as pa

    kind = _plain(kind)
    origin = typing.get_origin(kind) or kind
    if origin in (typing.Union, types.UnionType):
        return any(map(_is_row, typing.get_args(kind)))
    if not isinstance(origin, type):
        return False
    return (
        issubclass(origin, (Mapping, tuple, pa.RecordBatch, pa.Table))
        or hasattr(origin, "__fields__")
        or fields_of(origin) is not None
    )


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)
