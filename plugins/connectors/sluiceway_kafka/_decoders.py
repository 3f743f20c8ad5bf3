"""Deserializers: from records of Kafka to the records of the pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final, TypeAlias

import msgspec
from confluent_kafka import Message

from sluiceway.elements import Columns
from sluiceway.errors import (
    ConfigurationError,
    FunctionContractError,
    SerializationError,
    UnknownNameError,
    choose,
)
from sluiceway_kafka._arrow import ArrowColumns, ArrowReader, joined
from sluiceway_kafka._formats import FormatReader, RegistryFormat
from sluiceway_kafka._protobuf import ProtobufFormat
from sluiceway_kafka._records import KafkaRecord, record_of

__all__ = ["Decoder", "Deserializer", "JoiningDecoder", "KeyDeserializer", "columns_decoder_of", "decoder_of"]

Deserializer: TypeAlias = str | RegistryFormat | ArrowColumns | Callable[[KafkaRecord], Any]
KeyDeserializer: TypeAlias = str | RegistryFormat

_value: Final = Message.value
_STEP: Final = "kafka"


class Decoder(ABC):
    """Decoder of messages into records. It can be pickled with cloudpickle.

    Attributes:
        joins: whether it makes one record of all messages that it is given.
        columns: whether that is a RecordBatch whose rows are the records.
    """

    joins: bool = False
    columns: bool = False

    @property
    def output_type(self) -> Any:
        """The type of what it makes, or None."""
        return None

    def for_subtask(self) -> Decoder:
        """Return a copy that is not started: the subtasks of a process may have the same source."""
        return copy(self)

    def start(self, wake: Callable[[], None] | None = None) -> None:
        """Make what cannot be pickled.

        Args:
            wake: called, in any thread, when decoding that had to wait for a schema can go on; None: decoding
                blocks.
        """

    def close(self) -> None:
        """Free what :meth:`start` has made."""

    @abstractmethod
    def decode(self, messages: Sequence[Message]) -> list[Any]:
        """Return a value for each message, or one for all.

        Args:
            messages: of one partition.

        Raises:
            SchemaPendingError: it has to wait for a schema.
            RegistryError: the schema registry cannot be reached.
            Exception: one of them cannot be decoded; the caller finds which.
        """

    @abstractmethod
    def decode_one(self, message: Message) -> Any:
        """Return the value of one message.

        Raises:
            SchemaPendingError: it has to wait for a schema.
            RegistryError: the schema registry cannot be reached.
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

    def start(self, wake: Callable[[], None] | None = None) -> None:
        validate = getattr(self._type, "model_validate_json", None)  # of pydantic
        if validate is not None:
            self.function = validate
        elif self._type is None:
            self.function = msgspec.json.Decoder().decode
        else:
            self.function = msgspec.json.Decoder(self._type).decode

    def __getstate__(self) -> dict[str, Any]:
        # start() makes the function: decoders of msgspec cannot be pickled.
        return {"_type": self._type}


class _Format(_ValueDecoder):
    def __init__(self, format_: RegistryFormat) -> None:
        self._format = format_
        self._reader: FormatReader | None = None

    @property
    def output_type(self) -> Any:
        return self._format.type

    def start(self, wake: Callable[[], None] | None = None) -> None:
        self._reader = self._format.reader(wake)
        self.function = self._reader.decode

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_format": self._format, "_reader": None}


class _KeysAndValues(Decoder):
    """Records with their keys and values decoded, both of which may be missing."""

    def __init__(self, keys: Decoder, values: Decoder) -> None:
        self._keys = keys
        self._values = values
        self._functions: tuple[Callable[[bytes], Any], Callable[[bytes], Any]] = (bytes, bytes)

    def for_subtask(self) -> Decoder:
        return _KeysAndValues(self._keys.for_subtask(), self._values.for_subtask())

    @property
    def output_type(self) -> Any:
        return KafkaRecord

    def start(self, wake: Callable[[], None] | None = None) -> None:
        self._keys.start(wake)
        self._values.start(wake)
        # Decoders of bytes have no function.
        key, value = (getattr(each, "function", bytes) for each in (self._keys, self._values))
        self._functions = (key, value)

    def close(self) -> None:
        self._keys.close()
        self._values.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_keys": self._keys, "_values": self._values, "_functions": (bytes, bytes)}

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        return [self.decode_one(message) for message in messages]

    def decode_one(self, message: Message) -> Any:
        key_of, value_of = self._functions
        key, value = message.key(), message.value()
        return record_of(message, None if key is None else key_of(key), None if value is None else value_of(value))


class _Records(Decoder):
    @property
    def output_type(self) -> Any:
        return KafkaRecord

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        return list(map(record_of, messages))

    def decode_one(self, message: Message) -> Any:
        return record_of(message)


class JoiningDecoder(Decoder):
    """Decoder that makes one RecordBatch of all messages."""

    joins = True

    def decode_one(self, message: Message) -> Any:
        return self.decode([message])[0]

    @abstractmethod
    def join(self, values: Sequence[Any]) -> list[Any]:
        """Return the rows of several RecordBatches as one."""


class _Arrow(JoiningDecoder):
    """One RecordBatch for all messages."""

    def __init__(self, columns: ArrowColumns) -> None:
        self._columns = columns
        self._reader: ArrowReader | None = None

    @property
    def output_type(self) -> Any:
        import pyarrow

        return pyarrow.RecordBatch

    def start(self, wake: Callable[[], None] | None = None) -> None:
        self._reader = ArrowReader(self._columns)

    def __getstate__(self) -> dict[str, Any]:
        return {"_columns": self._columns, "_reader": None}

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        assert self._reader is not None
        return [self._reader.decode(messages)]

    def join(self, values: Sequence[Any]) -> list[Any]:
        return [joined(values)] if values else []


class _ArrowRows(_Arrow):
    """As :class:`_Arrow`, each row a record."""

    columns = True

    @property
    def output_type(self) -> Any:
        return Columns


class _TypedRows(JoiningDecoder):
    """Rows of records that a decoder of values makes, whose type says what columns they have.

    Args:
        values: makes the records.
        schema: the columns.
        message: class of the records, if they are messages of Protobuf; None: they are objects or mappings.
    """

    columns = True

    def __init__(self, values: Decoder, schema: Any, message: type | None = None) -> None:
        self._values = values
        self._schema = schema
        self._message = message
        self._row: Callable[[Any], Any] | None = None
        self._encode: Callable[[Sequence[Any]], Any] | None = None

    def for_subtask(self) -> Decoder:
        return _TypedRows(self._values.for_subtask(), self._schema, self._message)

    @property
    def output_type(self) -> Any:
        return Columns

    def start(self, wake: Callable[[], None] | None = None) -> None:
        from sluiceway.columns.record_conversion import Encoder

        self._values.start(wake)
        self._encode = Encoder(self._schema, _STEP).encode
        if self._message is not None:
            from sluiceway_kafka._protobuf_columns import row_of

            of: Any = self._message
            self._row = row_of(of.DESCRIPTOR)

    def close(self) -> None:
        self._values.close()

    def __getstate__(self) -> dict[str, Any]:
        kept = {"_values": self._values, "_schema": self._schema, "_message": self._message}
        return kept | {"_encode": None, "_row": None}

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        assert self._encode is not None
        if len(messages) == 1:  # with the reason why
            values = [self._values.decode_one(messages[0])]
        else:
            values = self._values.decode(messages)
        if self._row is not None:
            values = list(map(self._row, values))
        try:
            return [self._encode(values)]
        except FunctionContractError as error:
            raise SerializationError(str(error).removeprefix(f"step {_STEP!r}: ")) from error

    def join(self, values: Sequence[Any]) -> list[Any]:
        return [joined(values)] if values else []


class _Function(Decoder):
    def __init__(self, function: Callable[[KafkaRecord], Any]) -> None:
        self._function = function

    def decode(self, messages: Sequence[Message]) -> list[Any]:
        function = self._function  # not in map(), for which its StopIteration would be the end of the messages
        return [function(record_of(message)) for message in messages]

    def decode_one(self, message: Message) -> Any:
        return self._function(record_of(message))


_NAMED: Final[dict[str, Callable[[], Decoder]]] = {"text": _Text, "bytes": _Bytes, "record": _Records}


def decoder_of(
    deserializer: Deserializer, type_: Any = None, key_deserializer: KeyDeserializer | None = None
) -> Decoder:
    """Make the decoder that the arguments of a source ask for.

    Raises:
        ConfigurationError: they cannot be used.
    """
    values = _decoder_of(deserializer, type_)
    if key_deserializer is None:
        return values
    if not isinstance(key_deserializer, str | RegistryFormat) or key_deserializer == "record":
        raise ConfigurationError(
            f"key_deserializer={key_deserializer!r:.60} must be 'text', 'bytes', 'json' or a format such as "
            "AvroFormat; with deserializer= a function is given keys, too"
        )
    if isinstance(values, _Records | _Function | _Arrow):
        raise ConfigurationError(
            f"key_deserializer= does not go with deserializer={deserializer!r:.60}, which is given keys as bytes"
        )
    try:
        keys = _decoder_of(key_deserializer, None)
    except UnknownNameError:
        raise choose("key_deserializer", str(key_deserializer), ["text", "bytes", "json"]) from None
    return _KeysAndValues(keys, values)


def columns_decoder_of(decoder: Decoder, deserializer: Deserializer) -> tuple[Decoder, Any]:
    """Make the decoder that returns the rows of another one in columns, and their schema.

    Args:
        decoder: of a source.
        deserializer: argument that it was made of, for messages.

    Raises:
        ConfigurationError: the records have no columns, or none that are known; or a message holds itself.
        SerializationError: a field of their type has no type in Arrow.
    """
    from sluiceway.columns.schemas import is_record_type, schema_of

    if isinstance(decoder, _Arrow):
        return _ArrowRows(decoder._columns), decoder._columns.full_schema
    if isinstance(decoder, _KeysAndValues):
        raise ConfigurationError(
            "KafkaSource in columns takes no key_deserializer=: deserializer=ArrowColumns(schema, "
            "columns=['key', 'value']) has keys as bytes"
        )
    if not isinstance(decoder, _Json | _Format):
        shown = deserializer if isinstance(deserializer, str) else "a function"
        raise ConfigurationError(
            f"KafkaSource: records of deserializer={shown!r} have no columns. 'arrow', ArrowColumns(schema), "
            "'json' with type= and formats with type= have"
        )
    of = decoder.output_type
    if isinstance(deserializer, ProtobufFormat):
        from sluiceway_kafka._protobuf_columns import schema_of_message

        schema = schema_of_message(of.DESCRIPTOR)
        return _TypedRows(decoder, schema, of), schema
    if not is_record_type(of):
        shown = repr(of)
        if of is None:
            shown = repr(deserializer) if isinstance(deserializer, str) else type(deserializer).__name__
        raise ConfigurationError(
            f"KafkaSource: the columns of {shown} are not known: give type=, a class with a "
            "field per column, or for JSON deserializer=ArrowColumns(schema)"
        )
    schema = schema_of(of)
    return _TypedRows(decoder, schema), schema


def _decoder_of(deserializer: Deserializer, type_: Any) -> Decoder:
    if deserializer == "json":
        if type_ is not None and not hasattr(type_, "model_validate_json"):
            try:
                msgspec.json.Decoder(type_)
            except TypeError as error:
                is_schema = type(type_).__module__.partition(".")[0] == "pyarrow"
                hint = ". deserializer=ArrowColumns(schema) takes a schema" if is_schema else ""
                raise ConfigurationError(f"type={type_!r} cannot be decoded from JSON: {error}{hint}") from error
        return _Json(type_)
    if type_ is not None:
        raise ConfigurationError(
            f"type={type_!r} goes with deserializer='json', not {deserializer!r:.60}"
            + (": give it to the format" if isinstance(deserializer, RegistryFormat) else "")
            + (": ArrowColumns(schema) takes a schema" if deserializer == "arrow" else "")
        )
    if deserializer == "arrow":
        return _Arrow(ArrowColumns())
    if isinstance(deserializer, ArrowColumns):
        return _Arrow(deserializer)
    if isinstance(deserializer, RegistryFormat):
        return _Format(deserializer)
    if isinstance(deserializer, str):
        if deserializer not in _NAMED:
            raise choose("deserializer", deserializer, [*_NAMED, "json", "arrow"])
        return _NAMED[deserializer]()
    if not callable(deserializer):
        raise ConfigurationError(
            f"deserializer={deserializer!r:.60} must be a name, a format such as AvroFormat, ArrowColumns, or a "
            "function that is given a KafkaRecord"
        )
    return _Function(deserializer)
