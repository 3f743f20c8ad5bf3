"""Deserializers: from records of Kafka to the records of the pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from confluent_kafka import Message

from sluiceway.errors import ConfigurationError, SerializationError, choose
from sluiceway_kafka._records import KafkaRecord, record_of

__all__ = ["Decoder", "Deserializer", "decoder_of"]

Deserializer: TypeAlias = str | Callable[[KafkaRecord], Any]

_value: Final = Message.value


class Decoder(ABC):
    """Makes records of the pipeline. It can be pickled with cloudpickle."""

    @property
    def output_type(self) -> Any:
        """The type of what it makes, or None."""
        return None

    def start(self) -> None:
        """Make what cannot be pickled."""

    @abstractmethod
    def decode(self, messages: Sequence[Message]) -> list[Any]:
        """Return a value for each message; raises whatever one of them raises, for the caller to find which."""

    @abstractmethod
    def decode_one(self, message: Message) -> Any:
        """Return the value of one message.

        Raises:
            Exception: it cannot be decoded.
        """


class _ValueDecoder(Decoder):
    """A function from the bytes of a value; a record without one cannot be decoded."""

    function: Callable[[bytes], Any]
    name = ""

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        return list(map(self.function, map(_value, messages)))

    def decode_one(self, message: Message) -> Any:
        value = message.value()
        if value is None:
            raise SerializationError(
                "the record has no value: it is a tombstone. deserializer='bytes', 'record' or a function "
                "take those"
            )
        return self.function(value)


class _Text(_ValueDecoder):
    """UTF-8."""

    function = staticmethod(bytes.decode)

    @property
    def output_type(self) -> Any:
        return str


class _Bytes(Decoder):
    @property
    def output_type(self) -> Any:
        return bytes | None

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        return list(map(_value, messages))

    def decode_one(self, message: Message) -> Any:
        return message.value()


class _Json(_ValueDecoder):
    def __init__(self, type_: Any) -> None:
        self._type = type_

    @property
    def output_type(self) -> Any:
        return self._type

    def start(self) -> None:
        validate = getattr(self._type, "model_validate_json", None)  # of pydantic
        if validate is not None:
            self.function = validate
        elif self._type is None:
            self.function = msgspec.json.Decoder().decode
        else:
            self.function = msgspec.json.Decoder(self._type).decode

    def __getstate__(self) -> dict[str, Any]:
        return {"_type": self._type}


class _Records(Decoder):
    @property
    def output_type(self) -> Any:
        return KafkaRecord

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        return list(map(record_of, messages))

    def decode_one(self, message: Message) -> Any:
        return record_of(message)


class _Function(Decoder):
    def __init__(self, function: Callable[[KafkaRecord], Any]) -> None:
        self._function = function

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        return list(map(self._function, map(record_of, messages)))

    def decode_one(self, message: Message) -> Any:
        return self._function(record_of(message))


_NAMED: Final[dict[str, Callable[[], Decoder]]] = {"text": _Text, "bytes": _Bytes, "record": _Records}


def decoder_of(deserializer: Deserializer, type_: Any) -> Decoder:
    """Make the decoder that the arguments of a source ask for.

    Raises:
        ConfigurationError: they cannot be used.
    """
    if deserializer == "json":
        if type_ is not None and not hasattr(type_, "model_validate_json"):
            try:
                msgspec.json.Decoder(type_)
            except TypeError as error:
                raise ConfigurationError(f"type={type_!r} cannot be decoded from JSON: {error}") from error
        return _Json(type_)
    if type_ is not None:
        raise ConfigurationError(f"type={type_!r} goes with deserializer='json', not {deserializer!r:.60}")
    if isinstance(deserializer, str):
        if deserializer not in _NAMED:
            raise choose("deserializer", deserializer, [*_NAMED, "json"])
        return _NAMED[deserializer]()
    if not callable(deserializer):
        raise ConfigurationError(
            f"deserializer={deserializer!r:.60} must be a name or a function that is given a KafkaRecord"
        )
    return _Function(deserializer)
