"""Format of the aggregates of keys that are in the state each by itself, because all of them exceed memory.

The value of a key is a tag of four bytes and the row of the key and its accumulators, as
:mod:`sluiceway.columns.row_bytes` has it. A form is an Arrow IPC stream without rows, with the names and types of
these columns; its tag is its checksum. Where a key has several rows, as several sessions, its value has each of
them behind its length. Rows stay in the form that they were written in until they change: a sum of integers may be
in one part of 64 bits in some and in several in others, and columns may have become wider since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from zlib import crc32

import pyarrow as pa

from sluiceway.columns.aggregation.layout import Layout
from sluiceway.columns.aggregation.stored import LAYOUT
from sluiceway.columns.row_bytes import can_be_rows, decode_rows, encode_rows

__all__ = [
    "DUE",
    "can_be_keyed",
    "encode_keyed",
    "form_of",
    "is_plain_key",
    "keyed_rows",
    "open_form",
    "pack",
    "tag_of",
    "unpack",
]

DUE: Final = "due"
"""First part of the names of namespaces with keys by a time, such as that of the end of a session.

The other parts are the time and how many ms it lasts. Keys have no values there, but in the void namespace.
"""

_TAG: Final = 4
_LENGTH: Final = 4


def can_be_keyed(layout: Layout) -> bool:
    """Return if keys can be in the state by themselves.

    Keys have to be of types of :func:`is_plain_key`.
    """
    kinds = (*layout.keys.values(), *(bound.create().state(0).type for bound in layout.aggregates.values()))
    return all(map(is_plain_key, layout.keys.values())) and all(map(can_be_rows, kinds))


def is_plain_key(kind: Any) -> bool:
    """Return if the key of a row can be that of the same row as a record, without a look at its value.

    That is where equal values are equal in Python, too, and show alike: not floats, of which 0.0 and -0.0 are
    equal, nor times with a zone, which are equal in the hour before and after clocks are set back, nor
    nanoseconds.
    """
    if pa.types.is_timestamp(kind):
        return kind.unit != "ns" and kind.tz in (None, "UTC")
    texts = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
    others = pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32, pa.types.is_decimal128, pa.types.is_null
    return any(test(kind) for test in (*texts, *others))


def form_of(rows: Any, layout: bytes) -> tuple[int, bytes]:
    """Return tag and form of rows of a layout, which is given as its metadata."""
    schema = rows.schema.with_metadata({LAYOUT: layout})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema):
        pass
    form: bytes = sink.getvalue().to_pybytes()
    return crc32(form), form


def open_form(tag: int, form: bytes) -> Any:
    """Return the schema of a form. Raises ValueError if it is damaged."""
    if crc32(form) != tag:
        raise ValueError(f"the form {tag:08x} of keys in columns is damaged: its checksum is {crc32(form):08x}")
    with pa.ipc.open_stream(form) as reader:
        return reader.schema


def encode_keyed(tag: int, rows: Any) -> list[bytes]:
    """Return the value of each row of a record batch of keys and accumulators."""
    mark = tag.to_bytes(_TAG)
    return list(map(mark.__add__, encode_rows(rows.columns)))


def tag_of(value: bytes) -> int:
    """Return the tag of the form of a value of :func:`encode_keyed`."""
    return int.from_bytes(value[:_TAG])


def keyed_rows(values: Sequence[bytes], schemas: Mapping[int, Any]) -> Iterator[Any]:
    """Return values as record batches, one for each form that they have.

    Args:
        values: from :func:`encode_keyed`.
        schemas: schemas of forms by their tags.

    Raises:
        ValueError: a value is damaged.
    """
    tags = [value[:_TAG] for value in values]
    for mark in dict.fromkeys(tags):
        schema = schemas.get(int.from_bytes(mark)) if len(mark) == _TAG else None
        if schema is None:
            raise ValueError(f"a key in columns has the form {mark.hex() or 'of no byte'}, which is not there")
        mine = [value[_TAG:] for value, found in zip(values, tags, strict=True) if found == mark]
        columns = decode_rows(mine, [field.type for field in schema])
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def pack(rows: Sequence[bytes]) -> bytes:
    """Return several rows of one key as its value."""
    return b"".join(part for row in rows for part in (len(row).to_bytes(_LENGTH), row))


def unpack(value: bytes) -> Iterator[bytes]:
    """Yield the rows of :func:`pack`. Raises ValueError if the value is damaged."""
    at = 0
    while at < len(value):
        end = at + _LENGTH + int.from_bytes(value[at : at + _LENGTH])
        if end > len(value):
            raise ValueError(f"the rows of a key in columns are damaged: they need {end} bytes of {len(value)}")
        yield value[at + _LENGTH : end]
        at = end
