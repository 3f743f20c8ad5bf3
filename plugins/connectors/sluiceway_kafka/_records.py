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
        key: its key, or None.
        value: its value; None: a tombstone.
        headers: its headers in their order.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record_of(message: Any) -> KafkaRecord:
    """Return the record of a message of confluent-kafka."""
    kind, ms = message.timestamp()
    return KafkaRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        ms if kind else None,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )
