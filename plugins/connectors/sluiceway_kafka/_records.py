"""Records of Kafka as users see them."""

from __future__ import annotations

from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final, TypeAlias

from sluiceway.errors import SerializationError

__all__ = ["KafkaRecord", "headers_of", "record_of", "rejected_record_of"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

# Not message.headers(): confluent-kafka 2.16 returns headers and sets an exception where a name is not UTF-8. The
# interpreter notices that in calls by C code, but not where it has specialised a call for the method.
_headers: Final = methodcaller("headers")

_UNREADABLE: Final = object()
"""Mark of a message whose headers the client could not make."""

_NOT_UTF_8: Final = "the name of one of its headers is not UTF-8"


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
    headers: Headers = ()


def record_of(message: Any, key: Any = ..., value: Any = ..., headers: Any = ...) -> KafkaRecord:
    """Return the record of a message of confluent-kafka.

    Args:
        message: the message.
        key: its decoded key; ``...``: as it is.
        value: its decoded value; ``...``: as it is.
        headers: its headers; ``...``: as they are.

    Raises:
        SerializationError: its headers cannot be read.
    """
    kind, ms = message.timestamp()
    return KafkaRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        ms if kind and ms >= 0 else None,
        message.key() if key is ... else key,
        message.value() if value is ... else value,
        headers_of(message) if headers is ... else headers,
    )


def headers_of(message: Any) -> Headers:
    """Return the headers of a message of confluent-kafka.

    Raises:
        SerializationError: the name of one is not UTF-8.
    """
    try:
        headers = _headers(message)
    except (UnicodeDecodeError, SystemError) as error:
        # A second call would return headers with a null pointer for the name, and a look at it ends the process.
        message.set_headers(_UNREADABLE)
        raise SerializationError(_NOT_UTF_8) from error
    if headers is _UNREADABLE:
        raise SerializationError(_NOT_UTF_8)
    return tuple(headers or ())


def rejected_record_of(message: Any) -> KafkaRecord:
    """Return the record of a message that cannot be decoded; without headers if they cannot be read."""
    try:
        return record_of(message)
    except SerializationError:
        return record_of(message, headers=())
