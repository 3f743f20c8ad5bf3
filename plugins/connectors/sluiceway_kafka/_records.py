"""Records of Kafka as users see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["KafkaRecord", "record_of"]


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as it is in its partition.

    Attributes:
        topic: its topic.
        partition: number of its partition.
        offset: its offset in the partition.
        timestamp: its timestamp in ms since the epoch, or None.
        key: its key, or None: bytes, or what ``key_deserializer`` has made of them.
        value: its value: bytes, or with ``key_deserializer`` what ``deserializer`` has made of them; None: a
            tombstone.
        headers: its headers in their order.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_of(message: Any, key: Any = ..., value: Any = ...) -> KafkaRecord:
    """Return the record of a message of confluent-kafka.

    Args:
        message: the message.
        key: its decoded key; ``...``: as it is.
        value: its decoded value; ``...``: as it is.
    """
    kind, ms = message.timestamp()
    return KafkaRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        ms if kind else None,
        message.key() if key is ... else key,
        message.value() if value is ... else value,
        tuple(message.headers() or ()),
    )
