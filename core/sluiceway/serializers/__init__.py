"""Serializers of values, for state and for the wire.

A serializer belongs to a type: ``serializer_for(Order)`` chooses the first known format that keeps values of
that type exactly. Formats of plugins are asked first, then msgspec (for types with known content), then
pickle, which accepts anything. Snapshots name the serializer and its version, so that they can be read later, or
be refused with a reason.
"""

from sluiceway.serializers.base import PickleSerializer, Serializer
from sluiceway.serializers.msgpack import KEY_SERIALIZER, KeySerializer, MsgspecSerializer
from sluiceway.serializers.registry import register_serializer, serializer_by_name, serializer_for
from sluiceway.serializers.rows import (
    Block,
    Row,
    are_plain,
    block_kind,
    decode_block,
    decode_blocks,
    decode_rows,
    encode_block,
    encode_items,
    encode_rows,
    join_items,
    merge_rows,
    pack,
    rows_of,
)

__all__ = [
    "KEY_SERIALIZER",
    "Block",
    "KeySerializer",
    "MsgspecSerializer",
    "PickleSerializer",
    "Row",
    "Serializer",
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
    "register_serializer",
    "rows_of",
    "serializer_by_name",
    "serializer_for",
]
