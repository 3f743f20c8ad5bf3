"""Which serializer the batches of an edge go through on their way to another process."""

from __future__ import annotations

from typing import Any, Final

from sluiceway.serializers.base import Serializer
from sluiceway.serializers.content import ContentSerializer
from sluiceway.serializers.msgpack import MsgspecSerializer

__all__ = ["edge_serializer"]

_BY_CONTENT: Final = ContentSerializer()
_SCALARS: Final = (int, float, str, bytes, bool)
_TYPED: Final[dict[Any, Serializer]] = {
    scalar: MsgspecSerializer(list[scalar])  # type: ignore[valid-type]
    for scalar in _SCALARS
}


def edge_serializer(record_type: Any) -> Serializer:
    """The serializer for lists of an edge's records: of those that keep every type, the fastest one.

    Args:
        record_type: what the program says of them; None where it says nothing.
    """
    try:
        return _TYPED.get(record_type, _BY_CONTENT)
    except TypeError:  # a hint that cannot be hashed
        return _BY_CONTENT
