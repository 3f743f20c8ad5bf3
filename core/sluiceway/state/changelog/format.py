"""Format of the change log: records of what changed in keyed state between two snapshots.

A change log is a sequence of records, oldest first. State backends and engines store the records as they like: one
file per checkpoint (RocksDB), one element of a list (Spark's state store), a tuple in memory. A record that is
*whole* holds all state and makes every record before it obsolete. Any other record applies to what the records
before it, or a database below the log, have left.

Layout of a record, version 1::

    offset  size  content
    0       3     b"SWC"
    3       1     version of the layout: 1
    4       4     CRC-32 of all that follows, little-endian
    8             msgpack array of five:
                    whole    bool
                    tables   array of tables, which the other parts refer to by index; empty: the tables of
                             the snapshot that the log belongs to. A table is an array of name, kind,
                             serializer, version, type, expires, declared, ttl_ms and schema, as in StateMeta
                    dropped  array of [table, namespace]: namespaces that were dropped as a whole
                    removed  map of key group to array of [table, namespace, array of keys]
                    written  map of key group to rows, as sluiceway.serializers.encode_rows writes them

Namespaces and keys are bytes of ``sluiceway.serializers.KEY_SERIALIZER``.

Guarantees:

- A record is applied in the order dropped, removed, written. Applied twice it has the effect of once.
- A damaged or truncated record raises CorruptStreamError; no part of it is used.
- Reading a record runs no code of the job: tables are plain data, and keys and values stay bytes.
- A reader that owns some of the key groups skips the others without decoding their rows.
- Equal keys can have different bytes, such as 1 and 1.0. A reader must compare keys decoded, as
  :class:`~sluiceway.state.changelog.fold.ChangeFold` does.

Records of earlier layouts are read as well, see :mod:`sluiceway.state.changelog.earlier_formats`.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.state.changelog.earlier_formats import decode_earlier
from sluiceway.state.changelog.record import ChangeRecord

__all__ = ["decode_record", "encode_record"]

_MAGIC: Final = b"SWC"
_VERSION: Final = 1
_HEADER: Final = 8

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ChangeRecord).decode


def encode_record(record: ChangeRecord) -> bytes:
    """Return the bytes of a record."""
    body = _encode(record)
    return b"".join((_MAGIC, _VERSION.to_bytes(1), crc32(body).to_bytes(4, "little"), body))


def decode_record(data: bytes) -> ChangeRecord:
    """Return the record that :func:`encode_record` was given, or that an earlier version wrote.

    Raises:
        CorruptStreamError: the bytes are damaged, no change record, or of a later layout.
    """
    if data[:3] != _MAGIC:
        return decode_earlier(data)
    if len(data) < _HEADER:
        raise CorruptStreamError(f"a change record ends after {len(data)} bytes")
    if data[3] != _VERSION:
        raise CorruptStreamError(
            f"a change record of layout {data[3]} cannot be read: this version knows layout {_VERSION}"
        )
    body = memoryview(data)[_HEADER:]
    written, found = int.from_bytes(data[4:8], "little"), crc32(body)
    if written != found:
        raise CorruptStreamError(
            f"a change record is damaged: checksum {found:08x} of {len(body)} bytes, {written:08x} was written"
        )
    try:
        return _decode(body)
    except msgspec.MsgspecError as error:  # a writer's mistake: the checksum is right
        raise CorruptStreamError(f"a change record does not have its layout: {error}") from error
