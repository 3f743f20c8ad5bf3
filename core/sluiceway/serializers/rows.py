"""The rows of a keyed snapshot as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from sluiceway.errors import CorruptStreamError

__all__ = ["Row", "decode_rows", "encode_rows"]

_encode_msgpack = msgspec.msgpack.Encoder().encode


class Row(NamedTuple):
    """The state of one key in one namespace of one table.

    Attributes:
        table: index into :attr:`KeyedSnapshot.tables <sluiceway.state.KeyedSnapshot>`.
        namespace: encoded by :data:`KEY_SERIALIZER`.
        key: encoded by :data:`KEY_SERIALIZER`.
        value: by the table's serializer: for a value table the value; for a map table a list with a pair
            ``(key, value)`` for each entry, in order.
    """

    table: int
    namespace: bytes
    key: bytes
    value: bytes | list[bytes]


_MAGIC: Final = b"SWR\x01"  # the last byte is the version of the layout
_decode_row_list = msgspec.msgpack.Decoder(list[Row]).decode


def encode_rows(rows: Iterable[Row]) -> bytes:
    """The rows of one key group as bytes.

    Layout: ``SWR`` and a byte for the version, 1; the CRC-32 of what follows, 4 bytes little-endian; a msgpack
    array of rows, each an array of table (int), namespace (bin), key (bin) and value (bin, or array of bin).
    """
    body = _encode_msgpack(rows if isinstance(rows, list) else list(rows))
    return b"".join((_MAGIC, crc32(body).to_bytes(4, "little"), body))


def decode_rows(data: bytes) -> list[Row]:
    """The rows that :func:`encode_rows` was given. Raises CorruptStreamError."""
    if data[:3] != _MAGIC[:3] or len(data) < 8:
        raise CorruptStreamError(f"these {len(data)} bytes are no state rows: they begin with {data[:4]!r}")
    if data[3:4] != _MAGIC[3:]:
        raise CorruptStreamError(f"state rows of layout {data[3]} cannot be read: this version knows layout 1")
    body = memoryview(data)[8:]
    written, found = int.from_bytes(data[4:8], "little"), crc32(body)
    if written != found:
        raise CorruptStreamError(
            f"state rows are damaged: checksum {found:08x} of {len(body)} bytes, {written:08x} was written"
        )
    try:
        return _decode_row_list(body)
    except msgspec.MsgspecError as error:  # a writer's mistake: the checksum is right
        raise CorruptStreamError(f"state rows are not what their layout says: {error}") from error
