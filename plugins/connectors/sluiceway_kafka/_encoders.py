"""Serializers: from records of the pipeline to records of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, TypeAlias

from sluiceway.elements import Columns
from sluiceway.errors import ConfigurationError, RejectedRecordError, choose
from sluiceway.util.surrogates import encodable
from sluiceway_kafka._formats import FormatWriter, RegistryFormat, encode_json
from sluiceway_kafka._registry import RegistryError

__all__ = ["Encoder", "Headers", "Message", "Serializer", "encoder_of"]

Serializer: TypeAlias = str | RegistryFormat | Callable[[Any], bytes | str | None]
Headers: TypeAlias = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
Message: TypeAlias = tuple[str, Any, Any, int, int, Any]
"""Topic, value, key, partition (-1: by the key), timestamp (0: the time of writing), headers."""


@dataclass(frozen=True)
class Encoder:
    """Encoder of records into messages. It can be pickled with cloudpickle.

    Attributes:
        topic: a topic, or a function from a record to one.
        value: from a record to its bytes, text or None (a tombstone), or what makes that for a topic.
        key: from a record to its key.
        headers: from a record to its headers.
        partition: from a record to the number of its partition.
        timestamp: from a record to its timestamp in ms; 0: the time of writing.
        key_format: makes what encodes keys for a topic; None: they are bytes or text as they are.
    """

    topic: str | Callable[[Any], str]
    value: Callable[[Any], Any] | FormatWriter
    key: Callable[[Any], Any] | None = None
    headers: Callable[[Any], Headers | None] | None = None
    partition: Callable[[Any], int] | None = None
    timestamp: Callable[[Any], int] | None = None
    key_format: FormatWriter | None = None

    def encode(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> list[Message]:
        """Return a message for each record.

        Raises:
            ConnectorError: what a function has returned is no value, key, header, partition or timestamp.
            RejectedRecordError: an event time is not after the epoch, so that Kafka has no timestamp for it.
            RegistryError: a schema cannot be registered.
            Exception: whatever one of the functions raises, with a note that shows the record.
        """
        if self.timestamp is None and timestamps is not None and min(timestamps, default=1) < 1:
            raise _no_timestamp(values, timestamps)
        if type(values) is Columns and self._takes_columns:
            return self._encode_columns(values.data, timestamps)
        if isinstance(self.topic, str) and self._functions == (None, None, None):
            return self._encode_plain(self.topic, list(values), timestamps)
        messages: list[Message] = []
        record: Any = None
        topic, key, headers, partition, timestamp = (
            self.topic, self.key, self.headers, self.partition, self.timestamp
        )  # fmt: skip
        by_topic = isinstance(self.value, FormatWriter) or self.key_format is not None
        name = topic if isinstance(topic, str) else ""
        value: Any = self.value
        serialize_key: Any = None
        if by_topic and name:
            value, serialize_key = self._serializers(name)
        try:
            for index, record in enumerate(values):
                at = 0
                if timestamp is not None:
                    at = timestamp(record)
                    if isinstance(at, int) and at < 0:
                        raise RejectedRecordError(
                            f"KafkaSink: timestamp= has returned {at}, and Kafka has no times before 1970: return "
                            "ms since the epoch, or 0 for the time of writing"
                        )
                elif timestamps is not None:
                    at = timestamps[index]
                if not isinstance(topic, str):
                    name = topic(record)
                    if by_topic:
                        value, serialize_key = self._serializers(name)
                made = None if key is None else key(record)
                messages.append(
                    (
                        name,
                        value(record),
                        made if serialize_key is None else serialize_key(made),
                        -1 if partition is None else partition(record),
                        at,
                        None if headers is None else _headers(headers(record)),
                    )
                )
        except RegistryError:
            raise  # no fault of the record
        except Exception as error:
            error.add_note(f"record: {record!r:.200}")
            raise
        return messages

    @property
    def _functions(self) -> tuple[Any, Any, Any]:
        return (self.headers, self.partition, self.timestamp)

    def _encode_plain(self, topic: str, records: Sequence[Any], timestamps: Sequence[int] | None) -> list[Message]:
        """Return messages for one topic, of keys, values and event times alone."""
        # Field by field, which takes less than half the time of a loop that makes one message after the other.
        value, serialize_key = self._serializers(topic)
        keys: Iterable[Any] = repeat(None)
        if self.key is not None:  # before the values: a function may take the key out of its record
            keys = _each(self.key, records, serialize_key)
        texts = value is _text and set(map(type, records)) == {str}
        made = records if texts else _each(value, records)
        stamps = repeat(0) if timestamps is None else timestamps
        return list(zip(repeat(topic), made, keys, repeat(-1), stamps, repeat(None), strict=False))

    @property
    def _takes_columns(self) -> bool:
        """True if no function is to be called with a record."""
        key = self.key.key if isinstance(self.key, _Key) else self.key
        return (
            isinstance(self.topic, str)
            and self.value is encode_json
            and (key is None or isinstance(key, Field))
            and self._functions == (None, None, None)
        )

    def problems_of_columns(self, schema: Any) -> list[str]:
        """Return why rows with the columns of a ``pyarrow.Schema`` have no value or no key."""
        from sluiceway_kafka._row_encoder import problem_of_key

        found = []
        if self.value in (_text, _bytes):
            name = "text" if self.value is _text else "bytes"
            found.append(f"serializer={name!r} takes no rows: use serializer='json', a format or a function")
        key = self.key.key if isinstance(self.key, _Key) else self.key
        if isinstance(key, Field):
            serialized = isinstance(self.key, _Key) or self.key_format is not None
            found.append(problem_of_key(schema, key.name, serialized=serialized) or "")
        return [problem for problem in found if problem]

    def _encode_columns(self, data: Any, timestamps: Sequence[int] | None) -> list[Message]:
        from sluiceway_kafka._row_encoder import encode_keys, encode_rows

        assert isinstance(self.topic, str)
        keys: Iterable[Any] = repeat(None)
        serialize: Any = None
        field: Any = self.key
        if isinstance(field, _Key):
            field, serialize = field.key, field.serialize
        elif self.key_format is not None:
            serialize = self.key_format.of(self.topic)
        if field is not None:
            keys = encode_keys(data, field.name, serialize)
        stamps = repeat(0) if timestamps is None else timestamps
        return [
            (self.topic, value, key, -1, stamp, None)
            for value, key, stamp in zip(encode_rows(data), keys, stamps, strict=False)
        ]

    def _serializers(self, topic: str) -> tuple[Any, Any]:
        """Return what encodes values and keys for a topic; None for keys that stay as they are."""
        value, key = self.value, self.key_format
        return (
            value.of(topic) if isinstance(value, FormatWriter) else value,
            None if key is None else key.of(topic),
        )


def _each(
    function: Callable[[Any], Any], records: Sequence[Any], then: Callable[[Any], Any] | None = None
) -> list[Any]:
    """Return the results of a function, and of another one that is given its results, for each record.

    Raises:
        Exception: whatever one of them raises, with a note that shows the record.
    """
    record: Any = None
    try:
        if then is None:
            return [function(record := each) for each in records]
        return [then(function(record := each)) for each in records]
    except RegistryError:
        raise  # no fault of the record
    except Exception as error:
        error.add_note(f"record: {record!r:.200}")
        raise


def _no_timestamp(values: Sequence[Any], timestamps: Sequence[int]) -> RejectedRecordError:
    """Return the error for the first event time that Kafka has no timestamp for.

    Kafka refuses negative ones, and the client takes 0 for the time of writing. Either would be another time where
    the record is read, and in another window.
    """
    index = next(index for index, stamp in enumerate(timestamps) if stamp < 1)
    error = RejectedRecordError(
        f"KafkaSink: the event time {timestamps[index]} ms is not after 1970-01-01T00:00:00Z, and Kafka has no "
        "such timestamp. Give the record another one with timestamp=, a function that may return 0 for the time "
        "of writing, and keep the event time as a field of the value"
    )
    error.add_note(f"record: {values[index]!r:.200}")
    return error


def _headers(given: Headers | None) -> list[tuple[str, bytes | str | None]] | None:
    """Return headers as the client takes them.

    Raises:
        RejectedRecordError: they are no headers, or Kafka has no such name.
    """
    if given is None:
        return None
    pairs = (
        list(given.items() if isinstance(given, Mapping) else given) if isinstance(given, Iterable) else [given]
    )
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise RejectedRecordError(
                f"KafkaSink: headers= has returned {given!r:.80}: it takes a mapping, pairs of a name and a "
                "value, or None"
            )
        # The client writes names of other types as str() shows them, cuts them at a null character, and ends the
        # process where they are not UTF-8.
        name = pair[0]
        if not isinstance(name, str) or "\0" in name or encodable(name) != name:
            raise RejectedRecordError(
                f"KafkaSink: headers= has returned the name {name!r:.80}: names of headers are str that can be "
                "encoded in UTF-8, without null characters"
            )
    return pairs


def _text(record: Any) -> str:
    if not isinstance(record, str):
        raise RejectedRecordError(
            f"serializer='text' takes str, not {type(record).__name__}: use map(str), serializer='json' or a "
            "function"
        )
    return record


def _bytes(record: Any) -> bytes | None:
    if record is not None and not isinstance(record, bytes):
        raise RejectedRecordError(f"serializer='bytes' takes bytes and None, not {type(record).__name__}")
    return record


_NAMED: Final[dict[str, Callable[[], Callable[[Any], Any]]]] = {
    "text": lambda: _text,
    "bytes": lambda: _bytes,
    "json": lambda: encode_json,
}


def encoder_of(
    topic: str | Callable[[Any], str],
    serializer: Serializer,
    *,
    key: Callable[[Any], Any] | str | None,
    key_serializer: Serializer | None = None,
    headers: Callable[[Any], Headers | None] | None,
    partition: Callable[[Any], int] | None,
    timestamp: Callable[[Any], int] | None,
) -> Encoder:
    """Make the encoder that the arguments of a sink ask for.

    Raises:
        ConfigurationError: they cannot be used.
    """
    if not callable(topic) and (not isinstance(topic, str) or not topic):
        raise ConfigurationError(f"topic={topic!r} must be the name of a topic, or a function from a record to it")
    if isinstance(key, str):
        key = Field(key)
    value = _serializer_of("serializer", serializer, "value")
    functions = {"key": key, "headers": headers, "partition": partition, "timestamp": timestamp}
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ConfigurationError(f"{name}={function!r:.60} must be a function of a record, or None")
    if key_serializer is None:
        return Encoder(topic, value, key, headers, partition, timestamp)
    if key is None:
        raise ConfigurationError("key_serializer= needs key=, a function from a record to its key")
    serialize = _serializer_of("key_serializer", key_serializer, "key")
    if isinstance(serialize, FormatWriter):
        return Encoder(topic, value, key, headers, partition, timestamp, serialize)
    return Encoder(topic, value, _Key(key, serialize), headers, partition, timestamp)


class _Key:
    """From a record to its key in bytes; a record without a key has none."""

    def __init__(self, key: Callable[[Any], Any], serialize: Callable[[Any], Any]) -> None:
        self.key = key
        self.serialize = serialize

    def __call__(self, record: Any) -> Any:
        key = self.key(record)
        return None if key is None else self.serialize(key)


class Field:
    """Function from a record to its field of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, record: Any) -> Any:
        try:
            return record[self.name] if isinstance(record, Mapping) else getattr(record, self.name)
        except (KeyError, AttributeError):
            raise RejectedRecordError(
                f"KafkaSink: key={self.name!r} is no field of a {type(record).__name__}"
            ) from None


def _serializer_of(argument: str, serializer: Serializer, field: str) -> Callable[[Any], Any] | FormatWriter:
    if isinstance(serializer, RegistryFormat):
        serializer.check_writing()
        return FormatWriter(serializer, field)
    if isinstance(serializer, str):
        if serializer not in _NAMED:
            raise choose(argument, serializer, _NAMED)
        return _NAMED[serializer]()
    if callable(serializer):
        return serializer
    raise ConfigurationError(
        f"{argument}={serializer!r:.60} must be a name, a format such as AvroFormat, or a function to bytes"
    )
