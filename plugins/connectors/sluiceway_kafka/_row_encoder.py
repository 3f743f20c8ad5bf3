"""Rows in columns as JSON objects, without a dict for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from sluiceway.errors import ConnectorError, RejectedRecordError, unknown_column
from sluiceway_kafka._formats import encode_json

if TYPE_CHECKING:
    import pyarrow

__all__ = ["encode_keys", "encode_rows", "problem_of_key"]


def encode_rows(data: pyarrow.RecordBatch) -> list[bytes]:
    """Return the JSON object of each row, as :func:`encode_json` of its dict; maps are objects.

    Raises:
        RejectedRecordError: a column has a value that Python has none for, such as times of nanoseconds, or JSON
            has nothing for one; a note shows the row then.
    """
    names = tuple(data.schema.names)
    rows: Iterable[Any] = zip(*(_listed(name, data.column(name)) for name in names), strict=True)
    make = _row_type(names)
    row: Any = None
    encoded = []
    try:
        for row in rows:
            encoded.append(encode_json(make(*row)))
    except Exception as error:
        shown = dict(zip(names, row or (), strict=False))
        error.add_note(f"record: {shown!r:.200}")
        raise
    return encoded


def encode_keys(
    data: pyarrow.RecordBatch, name: str, serialize: Callable[[Any], Any] | None
) -> Sequence[bytes | str | None]:
    """Return the key of each row, from one of its columns; null is no key.

    Args:
        data: the rows.
        name: name of the column.
        serialize: what makes bytes of a value; None: they are text or bytes.

    Raises:
        ConnectorError: no such column, or its values are no keys.
    """
    if problem := problem_of_key(data.schema, name, serialized=serialize is not None):
        raise ConnectorError(f"KafkaSink: {problem}")
    values = _listed(name, data.column(name))
    return values if serialize is None else [None if value is None else serialize(value) for value in values]


def problem_of_key(schema: pyarrow.Schema, name: str, *, serialized: bool) -> str | None:
    """Return why a column cannot be the key; None: it can.

    Args:
        schema: the columns.
        name: name of the column.
        serialized: whether its values are made into bytes.
    """
    import pyarrow as pa

    if name not in schema.names:
        return f"key={name!r}: {unknown_column(name, schema.names)}"
    kind = schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if serialized or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return None
    return (
        f"key={name!r} is a column of {kind}, and a key is text or bytes: set key_serializer='json', or cast the "
        "column before"
    )


def _listed(name: str, column: Any) -> list[Any]:
    """Return the values of a column as Python objects."""
    import pyarrow as pa

    from sluiceway.util.arrow_values import NoPythonValueError, values_of  # pyarrow is optional

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return list(column.to_numpy(zero_copy_only=False))
    if not column.null_count and (pa.types.is_integer(kind) or kind in (pa.float32(), pa.float64())):
        numbers: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return numbers
    try:
        return values_of(column, name)
    except NoPythonValueError as error:
        raise RejectedRecordError(f"KafkaSink: {error}") from error


@lru_cache(32)
def _row_type(names: tuple[str, ...]) -> Any:
    """Return a struct with fields of these names, which is encoded as a dict of them."""
    # Names of columns need not be identifiers, as those of fields must.
    fields = {f"f{at}": name for at, name in enumerate(names)}
    return msgspec.defstruct("Row", list(fields), rename=fields, gc=False)
