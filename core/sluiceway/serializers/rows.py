"""Encoding of the rows of a keyed snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.serializers.base import PICKLE, PickleSerializer, Serializer
from sluiceway.serializers.exactness import JSON_SCALARS
from sluiceway.serializers.msgpack import MsgspecSerializer

__all__ = [
    "Block",
    "Row",
    "are_plain",
    "block_kind",
    "decode_block",
    "decode_blocks",
    "decode_rows",
    "encode_block",
    "encode_items",
    "encode_rows",
    "join_items",
    "merge_rows",
    "pack",
    "rows_of",
]

_encode_msgpack = msgspec.msgpack.Encoder().encode


class Row(NamedTuple):
    """State of one key in one namespace of one table.

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


class Block(NamedTuple):
    """State of many keys in one namespace of one value table: plain keys, and values that are plain or typed.

    Attributes:
        table: as in :class:`Row`.
        namespace: as in :class:`Row`.
        pickled: True if the table's serializer is pickle; else values are as it writes them.
        keys: msgpack array of the keys, each as :data:`KEY_SERIALIZER` writes it.
        values: msgpack array of as many values.
    """

    table: int
    namespace: bytes
    pickled: bool
    keys: bytes
    values: bytes


_MAGIC: Final = b"SWR\x01"  # the last byte is the version of the layout
_WITH_BLOCKS: Final = b"SWR\x02"
_decode_row_list = msgspec.msgpack.Decoder(list[Row]).decode
_decode_both = msgspec.msgpack.Decoder(tuple[list[Row], list[Block]]).decode
_decode_tuples = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def encode_rows(rows: Iterable[Row], blocks: Sequence[Block] = ()) -> bytes:
    """Return the rows of one key group as bytes.

    Layout: ``SWR`` and a byte for the version, 1; the CRC-32 of what follows, 4 bytes little-endian; a msgpack
    array of rows, each an array of table (int), namespace (bin), key (bin) and value (bin, or array of bin).
    With blocks it is version 2, with an array of rows and blocks.
    """
    listed = rows if isinstance(rows, list) else list(rows)
    body = _encode_msgpack((listed, blocks) if blocks else listed)
    return b"".join((_WITH_BLOCKS if blocks else _MAGIC, crc32(body).to_bytes(4, "little"), body))


def encode_items(items: Sequence[Row] | Sequence[Block]) -> bytes:
    """Return some rows or blocks of a key group as :func:`join_items` takes them, together with others."""
    head = 1 if len(items) < 16 else 3 if len(items) < 1 << 16 else 5  # of a msgpack array
    return _encode_msgpack(items)[head:]


def join_items(rows: int, row_items: Iterable[bytes], blocks: int, block_items: Iterable[bytes]) -> bytes:
    """Return what :func:`encode_rows` returns, from rows and blocks that were encoded in several steps."""
    body = b"".join(
        (b"\x92\xdd", rows.to_bytes(4), *row_items, b"\xdd", blocks.to_bytes(4), *block_items)  # arrays
    )
    return b"".join((_WITH_BLOCKS, crc32(body).to_bytes(4, "little"), body))


def merge_rows(parts: Sequence[bytes]) -> bytes:
    """Return the rows of a key group from several results of :func:`encode_rows` as one result.

    Raises:
        CorruptStreamError: a part is damaged.
    """
    if len(parts) == 1:
        return parts[0]
    rows: list[Row] = []
    blocks: list[Block] = []
    for part in parts:
        some, others = decode_blocks(part)
        rows += some
        blocks += others
    return encode_rows(rows, blocks)


def decode_rows(data: bytes) -> list[Row]:
    """Return the rows that :func:`encode_rows` was given, with blocks split. Raises CorruptStreamError."""
    rows, blocks = decode_blocks(data)
    for block in blocks:
        rows += rows_of(block)
    return rows


def decode_blocks(data: bytes) -> tuple[list[Row], list[Block]]:
    """Return the rows and blocks that :func:`encode_rows` was given. Raises CorruptStreamError."""
    if data[:3] != _MAGIC[:3] or len(data) < 8:
        raise CorruptStreamError(f"these {len(data)} bytes are no state rows: they begin with {data[:4]!r}")
    if data[:4] not in (_MAGIC, _WITH_BLOCKS):
        raise CorruptStreamError(
            f"state rows of layout {data[3]} cannot be read: this version knows layouts 1 and 2"
        )
    body = memoryview(data)[8:]
    written, found = int.from_bytes(data[4:8], "little"), crc32(body)
    if written != found:
        raise CorruptStreamError(
            f"state rows are damaged: checksum {found:08x} of {len(body)} bytes, {written:08x} was written"
        )
    try:
        return (_decode_row_list(body), []) if data[:4] == _MAGIC else _decode_both(body)
    except msgspec.MsgspecError as error:  # a writer's mistake: the checksum is right
        raise CorruptStreamError(f"state rows are not what their layout says: {error}") from error


# ---- blocks -------------------------------------------------------------------------------------------------


def are_plain(values: Sequence[Any]) -> bool:
    """Return whether all values are scalars or tuples of scalars, which are immutable."""
    if len(values) > 1 and type(first := values[0]) is tuple and len(first) == 2:
        kinds_of_first = type(first[0]), type(first[1])
        if JSON_SCALARS.issuperset(kinds_of_first) and _are_pairs_of(values, *kinds_of_first):
            return True
    kinds = set(map(type, values))
    if tuple in kinds:
        kinds.remove(tuple)
        inside = values if not kinds else [value for value in values if type(value) is tuple]
        if not JSON_SCALARS.issuperset(map(type, chain.from_iterable(inside))):
            return False
    return JSON_SCALARS.issuperset(kinds)


def _are_pairs_of(values: Sequence[Any], left: type, right: type) -> bool:
    # The usual state of a reduce. The interpreter has specialised instructions for each line of this loop, so that
    # it takes two thirds of what sets of types take.
    try:
        for value in values:
            if type(value) is not tuple:
                return False
            first, second = value
            if type(first) is not left or type(second) is not right:
                return False
    except ValueError:  # a tuple of another length
        return False
    return True


def block_kind(serializer: Serializer, values: Sequence[Any]) -> bool | None:
    """Return whether blocks of such values are ``pickled``; None where blocks cannot hold them."""
    if type(serializer) is PickleSerializer:
        return True
    return False if type(serializer) is MsgspecSerializer and serializer.takes_all(values) else None


def encode_block(
    table: int, namespace: bytes, pickled: bool, keys: Sequence[Any], values: Sequence[Any]
) -> Block | None:
    """Return a block of plain keys and values (see :func:`are_plain`), or None where these have to be rows.

    Args:
        table: the table's index.
        namespace: encoded.
        pickled: as :func:`block_kind` returns.
        keys: each once.
        values: of these keys.
    """
    packed_keys, packed_values = pack(keys), pack(values)
    if packed_keys is None or packed_values is None:
        return None
    return Block(table, namespace, pickled, packed_keys, packed_values)


def pack(values: Sequence[Any]) -> bytes | None:
    """Return keys or values as a :class:`Block` has them, if they are plain; None where these have to be rows."""
    try:
        return _encode_msgpack(values)
    except Exception:  # integers of more than 64 bits, lone surrogates; others are not plain
        return None


def decode_block(block: Block, reader: Serializer) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return keys and values of a block.

    Args:
        block: from :func:`decode_blocks`.
        reader: reader of the values.

    Raises:
        SerializationError: a value cannot be read.
    """
    if block.pickled:
        values = _plain(block.values)
        if type(reader) is not PickleSerializer:  # it makes something else of what was pickled
            values = [reader.loads(PICKLE.dumps(value)) for value in values]
    elif type(reader) is MsgspecSerializer:
        values = reader.loads_all(block.values)
    else:
        values = [reader.loads(bytes(raw)) for raw in _decode_raw(block.values)]
    return _plain(block.keys), values


def _plain(data: bytes) -> list[Any]:
    """Return the values that :func:`pack` was given."""
    if _begins_with_tuple(data):
        try:
            return _decode_tuples(data)  # in half the time
        except msgspec.ValidationError:  # there are others among them
            pass
    decoded: list[Any] = msgspec.msgpack.decode(data)
    if list not in set(map(type, decoded)):
        return decoded
    return [tuple(part) if type(part) is list else part for part in decoded]


def _begins_with_tuple(data: bytes) -> bool:
    """Return whether the first element of an array is one."""
    first = data[{0xDC: 3, 0xDD: 5}.get(data[0], 1) :][:1]
    return b"\x90" <= first <= b"\x9f" or first in (b"\xdc", b"\xdd")


def rows_of(block: Block) -> Iterator[Row]:
    """Yield the rows of a block."""
    keys = map(bytes, _decode_raw(block.keys))
    values = map(PICKLE.dumps, _plain(block.values)) if block.pickled else map(bytes, _decode_raw(block.values))
    for key, value in zip(keys, values, strict=True):
        yield Row(block.table, block.namespace, key, value)
