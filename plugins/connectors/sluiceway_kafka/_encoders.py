"""Serializers: from records of the pipeline to records of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from sluiceway.errors import ConfigurationError, ConnectorError, choose

__all__ = ["Encoder", "Headers", "Message", "Serializer", "encoder_of"]

Serializer: TypeAlias = str | Callable[[Any], bytes | str | None]
Headers: TypeAlias = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
Message: TypeAlias = tuple[str, Any, Any, int, int, Any]
"""Topic, value, key, partition (-1: by the key), timestamp (0: now), headers."""


@dataclass(frozen=True)
class Encoder:
    """Makes messages of records. It can be pickled with cloudpickle.

    Attributes:
        topic: a topic, or a function from a record to one.
        value: from a record to its bytes, text or None (a tombstone).
        key: from a record to its key.
        headers: from a record to its headers.
        partition: from a record to the number of its partition.
        timestamp: from a record to its timestamp in ms.
    """

    topic: str | Callable[[Any], str]
    value: Callable[[Any], Any]
    key: Callable[[Any], Any] | None = None
    headers: Callable[[Any], Headers] | None = None
    partition: Callable[[Any], int] | None = None
    timestamp: Callable[[Any], int] | None = None

    def encode(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> list[Message]:
        """Return a message for each record.

        Raises:
            ConnectorError: what a function has returned is no value, key, header, partition or timestamp.
            Exception: whatever one of the functions raises, with a note that shows the record.
        """
        messages: list[Message] = []
        record: Any = None
        topic, key, headers, partition, timestamp = (
            self.topic, self.key, self.headers, self.partition, self.timestamp
        )  # fmt: skip
        try:
            for index, record in enumerate(values):
                at = 0
                if timestamp is not None:
                    at = timestamp(record)
                elif timestamps is not None:
                    at = max(timestamps[index], 0)
                messages.append(
                    (
                        topic if isinstance(topic, str) else topic(record),
                        self.value(record),
                        None if key is None else key(record),
                        -1 if partition is None else partition(record),
                        at,
                        None if headers is None else _headers(headers(record)),
                    )
                )
        except Exception as error:
            error.add_note(f"while a record was made into one for Kafka: {record!r:.200}")
            raise
        return messages


def _headers(given: Headers) -> list[tuple[str, bytes | str | None]]:
    return list(given.items()) if isinstance(given, Mapping) else list(given)


def _text(record: Any) -> str:
    if not isinstance(record, str):
        raise ConnectorError(
            f"serializer='text' takes str, not {type(record).__name__}: use map(str), serializer='json' or a "
            "function"
        )
    return record


def _bytes(record: Any) -> bytes | None:
    if record is not None and not isinstance(record, bytes):
        raise ConnectorError(f"serializer='bytes' takes bytes and None, not {type(record).__name__}")
    return record


class _Json:
    """Dataclasses, msgspec structs and pydantic models become objects."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder(enc_hook=_of_pydantic).encode

    def __call__(self, record: Any) -> bytes:
        return self._encode(record)

    def __reduce__(self) -> Any:
        return (_Json, ())


def _of_pydantic(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"JSON has nothing for {type(value).__name__}")
    return dump(mode="json")


_NAMED: Final[dict[str, Callable[[], Callable[[Any], Any]]]] = {
    "text": lambda: _text,
    "bytes": lambda: _bytes,
    "json": _Json,
}


def encoder_of(
    topic: str | Callable[[Any], str],
    serializer: Serializer,
    *,
    key: Callable[[Any], Any] | None,
    headers: Callable[[Any], Headers] | None,
    partition: Callable[[Any], int] | None,
    timestamp: Callable[[Any], int] | None,
) -> Encoder:
    """Make the encoder that the arguments of a sink ask for.

    Raises:
        ConfigurationError: they cannot be used.
    """
    if not callable(topic) and (not isinstance(topic, str) or not topic):
        raise ConfigurationError(f"topic={topic!r} must be the name of a topic, or a function from a record to it")
    if isinstance(serializer, str):
        if serializer not in _NAMED:
            raise choose("serializer", serializer, _NAMED)
        value = _NAMED[serializer]()
    elif callable(serializer):
        value = serializer
    else:
        raise ConfigurationError(
            f"serializer={serializer!r:.60} must be a name or a function from a record to bytes"
        )
    functions = {"key": key, "headers": headers, "partition": partition, "timestamp": timestamp}
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name}={function!r:.60} must be a function of a record, or None")
    return Encoder(topic, value, key, headers, partition, timestamp)
