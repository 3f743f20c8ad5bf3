"""Rows in columns, as PostgreSQL copies them into a table."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sluiceway.errors import ConnectorError, RejectedRecordError
from sluiceway_sql._rows import Row

if TYPE_CHECKING:
    import pyarrow

__all__ = ["copy", "copyable", "from_bytes", "merge", "rows_of", "selected", "to_bytes"]

_STAGING: Final = "sluiceway_staging"
_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = -719_162  # of the year 1
_LAST_YEAR: Final = 32_767
_END_DAY: Final = 11_248_738  # the first one after that year
_ORDER: Final = "sluiceway_order"


def selected(data: pyarrow.RecordBatch, columns: Sequence[str], where: str) -> pyarrow.RecordBatch:
    """Return these columns of rows.

    Raises:
        ConnectorError: one is missing.
    """
    for name in columns:
        if name not in data.schema.names:
            raise ConnectorError(
                f"{where}: the rows have no column {name!r}; their columns are {', '.join(data.schema.names)}"
            )
    return data.select(list(columns))


def rows_of(data: pyarrow.RecordBatch, where: str) -> list[Row]:
    """Return the rows as tuples.

    Raises:
        RejectedRecordError: Python has no such value as one of theirs.
    """
    from sluiceway.util.arrow_values import NoPythonValueError, values_of  # pyarrow is optional

    try:
        columns = [values_of(column, name) for name, column in zip(data.schema.names, data.columns, strict=True)]
    except NoPythonValueError as error:
        raise RejectedRecordError(f"{where}: {error}") from error
    return list(zip(*columns, strict=True))


def copyable(data: pyarrow.RecordBatch, where: str) -> pyarrow.RecordBatch | None:
    """Return rows with columns whose texts PostgreSQL reads as it takes their Python objects.

    None: a column has none, such as bytes, lists and structs.

    Raises:
        RejectedRecordError: a column has times that are finer than microseconds, or far off.
    """
    import pyarrow as pa

    arrays = []
    for name, column in zip(data.schema.names, data.columns, strict=True):
        target = _target(column.type)
        if target is None:
            return None
        try:
            array = column if target == column.type else column.cast(target)
        except pa.ArrowInvalid as error:
            if getattr(column.type, "unit", None) != "ns":
                raise _far_off(name, column.type, where) from error
            raise RejectedRecordError(
                f"{where}: column {name!r} has {column.type}, finer than the microseconds of PostgreSQL: {error}. "
                "Truncate it before"
            ) from error
        if not _has_text(array):
            raise _far_off(name, column.type, where)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=data.schema.names)


def _far_off(name: str, kind: Any, where: str) -> RejectedRecordError:
    return RejectedRecordError(
        f"{where}: column {name!r} has {kind}, and a time outside of the years 1 to {_LAST_YEAR}, which cannot be "
        "copied into PostgreSQL. Filter such rows out before"
    )


def _has_text(array: Any) -> bool:
    """Return whether Arrow writes each date or timestamp as a text that PostgreSQL reads as the same.

    Its years have sixteen bits: far off, it writes other ones.
    """
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute
    number: Any
    if pa.types.is_date(array.type):
        number, in_a_day = pa.int32(), 1
    elif pa.types.is_timestamp(array.type):
        number, in_a_day = pa.int64(), _DAY_US
    else:
        return True
    ends = compute.min_max(array.view(number)).as_py()
    if ends["min"] is None:
        return True
    return bool(_FIRST_DAY * in_a_day <= ends["min"] and ends["max"] < _END_DAY * in_a_day)


def _target(kind: Any) -> Any:
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _target(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_time(kind):
        return pa.time64("us")
    if types.is_date(kind):
        return pa.date32()
    if types.is_float32(kind):  # whose texts are shorter than those of the same number as a double
        return pa.float64()
    if types.is_string(kind) or types.is_boolean(kind) or types.is_integer(kind) or types.is_float64(kind):
        return kind
    if types.is_large_string(kind) or types.is_decimal128(kind) or types.is_null(kind):
        return kind
    return None


def to_bytes(batches: Sequence[pyarrow.RecordBatch]) -> bytes:
    """Return rows of one schema as an Arrow IPC stream, for checkpoints."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        writer.write_table(pa.Table.from_batches(batches).combine_chunks())
    return sink.getvalue().to_pybytes()


def from_bytes(stream: bytes) -> list[pyarrow.RecordBatch]:
    """Return the rows of :func:`to_bytes`."""
    import pyarrow as pa

    with pa.ipc.open_stream(stream) as reader:
        return list(reader)


def copy(cursor: Any, table: str, columns: str, batches: Sequence[pyarrow.RecordBatch]) -> None:
    """Copy rows into a table, by a cursor of psycopg; names are quoted."""
    import pyarrow.csv

    # Values are in quotes and null is not: so an empty text differs from it.
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    statement = f"COPY {table} ({columns}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
    # Names have their percent signs doubled, as for statements with parameters, which this one has none of.
    with cursor.copy(statement.replace("%%", "%")) as copying:
        for batch in batches:
            data = io.BytesIO()
            pyarrow.csv.write_csv(batch, data, options)
            copying.write(data.getbuffer())


def merge(
    cursor: Any,
    dialect: Any,
    target: tuple[str, Sequence[str], Sequence[str]],
    batches: Sequence[pyarrow.RecordBatch],
) -> None:
    """Copy rows into a temporary table, and from there insert or update; of rows with one key, the last counts.

    Args:
        cursor: of psycopg.
        dialect: SQL of the database.
        target: name of the table, its columns, those of the key.
        batches: rows.
    """
    name, columns, key = target
    staging, order, names = dialect.column(_STAGING), dialect.column(_ORDER), dialect.columns(columns)
    table, keys = dialect.identifier(name), dialect.columns(key)
    cursor.execute(
        f"CREATE TEMPORARY TABLE {staging} ON COMMIT DROP AS SELECT {names} FROM {table} WITH NO DATA", ()
    )
    cursor.execute(f"ALTER TABLE {staging} ADD COLUMN {order} bigserial", ())
    # COPY cannot update rows: they go through a table that has the order in which they came.
    copy(cursor, staging, names, batches)
    # ON CONFLICT refuses a statement that has a key twice; the row that was copied last wins.
    rows = f"SELECT DISTINCT ON ({keys}) {names} FROM {staging} ORDER BY {keys}, {order} DESC"
    rest = [dialect.column(column) for column in columns if column not in key]
    changes = ", ".join(f"{column} = excluded.{column}" for column in rest)
    then = f"UPDATE SET {changes}" if changes else "NOTHING"
    cursor.execute(f"INSERT INTO {table} ({names}) {rows} ON CONFLICT ({keys}) DO {then}", ())
    cursor.execute(f"DROP TABLE {staging}", ())
