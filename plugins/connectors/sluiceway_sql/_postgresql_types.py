"""Types of PostgreSQL as columns of Arrow: the SQL that makes a text of a value, and the text's way back."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json

from sluiceway.errors import ConnectorError

__all__ = ["Column", "column_of", "decoded"]

_compute: Any = pyarrow.compute

_PLAIN: Final[dict[str, Any]] = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.uint32(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
}
_AS_TEXT: Final = ("json", "jsonb", "uuid", "xml", "citext")
_MICROSECONDS: Final = "(extract(epoch FROM {}) * 1000000)::bigint"
_EPOCH: Final = {
    # Numbers, as texts of times before the year 1 and after 9999 are not read by everybody.
    "date": ("{} - date '1970-01-01'", pa.int32(), pa.date32()),
    "time": (_MICROSECONDS, pa.int64(), pa.time64("us")),
    "timestamp": (_MICROSECONDS, pa.int64(), pa.timestamp("us")),
    "timestamptz": (_MICROSECONDS, pa.int64(), pa.timestamp("us", "UTC")),
}
_ELEMENTS: Final = ("int2", "int4", "int8", "float4", "float8", "bool", "text", "varchar", "bpchar", "uuid")
_DAY_US: Final = 86_400_000_000


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        field: name and type in Arrow.
        expression: SQL of its values, with ``{}`` for its name.
        read: type as which Arrow reads the text of a value.
        convert: makes the column of those that were read; None: it is that.
    """

    field: Any
    expression: str
    read: Any
    convert: Callable[[Any], Any] | None = None


def column_of(name: str, kind: str, modifier: int, category: str, *, required: bool) -> Column | None:
    """Return a column; None: its type has no place in Arrow here.

    Args:
        name: its name.
        kind: name of the type in ``pg_type``, with ``_`` before it for an array of it.
        modifier: modifier of the type, which has the precision of a ``numeric``.
        category: category of the type in ``pg_type``: ``E`` is an enum.
        required: whether it is declared NOT NULL.
    """

    def made(read: Any, expression: str = "{}", target: Any = None, convert: Any = None) -> Column:
        return Column(pa.field(name, read if target is None else target, not required), expression, read, convert)

    if kind in _PLAIN:
        return made(_PLAIN[kind])
    if kind in _AS_TEXT or category == "E":
        return made(pa.string(), "{}::text")
    if kind in _EPOCH:
        expression, read, target = _EPOCH[kind]
        return made(read, expression, target, _time_of_day if kind == "time" else lambda array: array.cast(target))
    if kind == "numeric" and modifier >= 0:
        # As PostgreSQL packs them: sixteen bits of precision, eleven of a signed scale.
        precision, scale = (modifier - 4) >> 16, ((((modifier - 4) & 0x7FF) ^ 1024) - 1024)
        if 0 < precision <= 38 and 0 <= scale <= precision:
            return made(pa.decimal128(precision, scale))
    if kind == "bytea":
        return made(pa.string(), "encode({}, 'hex')", pa.binary(), _bytes_of_hex)
    if kind.startswith("_") and kind[1:] in _ELEMENTS:
        element = pa.string() if kind == "_uuid" else _PLAIN[kind[1:]]
        of_lists = pa.list_(element)
        return made(pa.string(), "array_to_json({})::text", of_lists, lambda array: _lists(array, of_lists))
    return None


def decoded(rows: Sequence[bytes], columns: Sequence[Column], where: str) -> pa.RecordBatch:
    """Return rows that PostgreSQL has copied as CSV.

    Args:
        rows: at least one.
        columns: those of the rows.
        where: name of the table, for messages.

    Raises:
        ConnectorError: a value has no place in its column.
    """
    data = b"".join(rows)
    names = [f"{at}" for at in range(len(columns))]
    options = pyarrow.csv.ConvertOptions(
        column_types={name: column.read for name, column in zip(names, columns, strict=True)},
        # An empty text is in quotes, and null is not.
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(data),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            pyarrow.csv.ParseOptions(newlines_in_values=True),
            options,
        )
    except pa.ArrowInvalid as error:
        raise ConnectorError(f"{where}: {_named(str(error), columns)}") from error
    arrays = []
    for at, column in enumerate(columns):
        array = _whole(table.column(at))
        try:
            arrays.append(array if column.convert is None else column.convert(array))
        except (pa.ArrowException, ValueError) as error:
            raise ConnectorError(
                f"{where}: a value of column {column.field.name!r} is no {column.field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field for column in columns]))


def _named(message: str, columns: Sequence[Column]) -> str:
    """Return a message of Arrow's reader with the name of the column in place of its number."""
    before, found, after = message.partition("In CSV column #")
    number, _, rest = after.partition(":")
    if not found or not number.isdigit() or int(number) >= len(columns):
        return message
    field = columns[int(number)].field
    return f"{before}a value of column {field.name!r} is no {field.type}:{rest}"


def _time_of_day(array: Any) -> Any:
    if len(array) and (_compute.max(array).as_py() or 0) >= _DAY_US:
        raise ValueError("24:00:00 is no time of a day in Arrow")
    return array.cast(pa.time64("us"))


def _bytes_of_hex(array: Any) -> Any:
    """Return the bytes whose hexadecimal digits are in a column of texts, all in one call."""
    import numpy as np

    lengths = _compute.fill_null(_compute.binary_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths // 2)]).astype(np.int32)
    joined = "".join(_compute.drop_null(array).to_pylist())
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    mask = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes()) if array.null_count else None
    buffers = [mask, pa.py_buffer(offsets.tobytes()), pa.py_buffer(bytes.fromhex(joined))]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers, array.null_count)


def _lists(array: Any, kind: Any) -> Any:
    """Return the lists of a column of JSON. Raises ArrowInvalid: a list has lists in it, or NaN."""
    texts = _compute.binary_join_element_wise('{"v":', _compute.fill_null(array, "null"), "}\n", "")
    data = "".join(texts.to_pylist()).encode()
    table = pyarrow.json.read_json(
        io.BytesIO(data),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pyarrow.json.ParseOptions(explicit_schema=pa.schema([("v", kind)]), unexpected_field_behavior="error"),
    )
    return _whole(table.column(0))


def _whole(chunks: Any) -> Any:
    array = chunks.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
