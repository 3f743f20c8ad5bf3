"""Formats of keys and values with schemas in a registry, in Confluent's wire format."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from sluiceway.errors import ConfigurationError, RejectedRecordError, SerializationError
from sluiceway.util.overriding import override
from sluiceway_kafka._registry import (
    PREFIX_LENGTH,
    RegistryError,
    SchemaRefusedError,
    SchemaRegistry,
    cannot,
    is_not_found,
    registry_of,
    request,
)

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

__all__ = [
    "Decode",
    "FormatReader",
    "FormatWriter",
    "RegistryFormat",
    "SchemaTextFormat",
    "Strategy",
    "converter",
    "encode_json",
    "fetch_references",
    "fetched",
    "no_schema",
    "parsed_json",
    "plain",
    "prefix_of",
    "references",
    "refused",
]


Strategy: TypeAlias = Literal["topic", "record", "topic-record"]

_STRATEGIES: Final = ("topic", "record", "topic-record")

_AS_THEY_ARE: Final = frozenset((dict, str, int, float, bool, bytes, type(None)))

Decode: TypeAlias = Callable[[bytes], Any]


class FormatReader(ABC):
    """Decoder of the keys or the values of one subtask.

    Attributes:
        decode: from bytes to a record; raises SerializationError if they cannot be decoded, SchemaPendingError if
            a schema is being fetched, and RegistryError.
    """

    decode: Decode

    @abstractmethod
    def close(self) -> None:
        """End a fetch."""


class RegistryFormat(ABC):
    """Format of keys or values, with schemas in a registry. It can be pickled with cloudpickle.

    Args:
        registry: the registry.
        type_: the type of decoded values, or None.
        auto_register: True if schemas are registered to write with.
        strategy: what subjects are called after.
        normalize: True if the registry is to normalise schemas.
    """

    schema_type: str
    """As the registry calls it."""

    def __init__(
        self, registry: str | SchemaRegistry, type_: Any, auto_register: bool, strategy: Strategy, normalize: bool
    ) -> None:
        self.registry = registry_of(registry)
        self.type = type_
        self.auto_register = bool(auto_register)
        if strategy not in _STRATEGIES:
            raise ConfigurationError(
                f"subject_name_strategy={strategy!r} must be one of {', '.join(map(repr, _STRATEGIES))}"
            )
        self.strategy = strategy
        self.normalize = bool(normalize)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.registry.url!r})"

    @abstractmethod
    def reader(self, wake: Callable[[], None] | None) -> FormatReader:
        """Make what decodes.

        Args:
            wake: called when a schema that was pending is there; None: the reader waits for it.
        """

    @abstractmethod
    def check_writing(self) -> None:
        """Check the schema that is written.

        Raises:
            ConfigurationError: there is none, or it cannot be used.
        """

    @abstractmethod
    def serializer(self, topic: str, field: str) -> Callable[[Any], bytes | None]:
        """Make what encodes for one topic, with the schema registered or looked up.

        Args:
            topic: the topic.
            field: ``key`` or ``value``.

        Raises:
            RegistryError: the registry cannot be reached, or refuses the schema.
        """

    def subject(self, topic: str, field: str, record_name: str | None) -> str:
        """Return the subject of a schema."""
        if self.strategy == "topic":
            return f"{topic}-{field}"
        if not record_name:
            raise ConfigurationError(
                f"subject_name_strategy={self.strategy!r} needs a schema with a name: a record, or the title of a "
                "JSON Schema"
            )
        return record_name if self.strategy == "record" else f"{topic}-{record_name}"


class SchemaTextFormat(RegistryFormat):
    """Base of formats that write by a schema text: given, derived of the type, or the newest of the subject.

    Args:
        registry: the registry.
        type_: the type of decoded values, or None.
        schema: the text, a path of its file, or the parsed text; None: derived of the type.
        auto_register: True if schemas are registered to write with.
        strategy: what subjects are called after.
        normalize: True if the registry is to normalise schemas.
    """

    def __init__(
        self,
        registry: str | SchemaRegistry,
        type_: Any,
        schema: str | os.PathLike[str] | Mapping[str, Any] | list[Any] | None,
        auto_register: bool,
        strategy: Strategy,
        normalize: bool,
    ) -> None:
        super().__init__(registry, type_, auto_register, strategy, normalize)
        _check_type(type_)
        self.schema = _read_schema(schema)
        self._derived: str | None = None
        if self.schema is not None:
            self._name(self.schema)

    @abstractmethod
    def _name(self, text: str) -> str | None:
        """Return the name that a schema has, if any. Raises ConfigurationError: the text is no schema."""

    @abstractmethod
    def _derive(self) -> str:
        """Return the schema of the type of records. Raises ConfigurationError: it has none."""

    @override
    def check_writing(self) -> None:
        text = self._written()
        if text is not None and self.strategy != "topic":
            self.subject("", "", self._name(text))

    def _written(self) -> str | None:
        """Return the schema to write with; None: the newest one of the subject."""
        if self.schema is not None:
            return self.schema
        if not self.auto_register:
            return None
        if self.type is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs schema= or type= to write, or auto_register=False, which takes the "
                "newest schema of the subject"
            )
        if self._derived is None:
            self._derived = self._derive()
        return self._derived

    def _registered(self, topic: str, field: str) -> tuple[int, Schema]:
        """Return id and schema to write with, as the registry has them for a topic.

        Raises:
            RegistryError: the registry cannot be reached, or refuses the schema.
        """
        from confluent_kafka.schema_registry import Schema

        text = self._written()
        if text is None:
            name, schema = getattr(self.type, "__name__", None), None
        else:
            name, schema = self._name(text), Schema(text, self.schema_type)
        return _registered(self, self.subject(topic, field, name), schema)


class FormatWriter:
    """Encoder of the keys or the values of one subtask. It can be pickled until it is used.

    Args:
        format_: the format.
        field: ``key`` or ``value``.
    """

    def __init__(self, format_: RegistryFormat, field: str) -> None:
        self._format = format_
        self._field = field
        self._serializers: dict[str, Callable[[Any], bytes | None]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_serializers": {}}

    def of(self, topic: str) -> Callable[[Any], bytes | None]:
        """Return what encodes for a topic.

        Raises:
            RegistryError: the registry cannot be reached, or refuses the schema.
        """
        known = self._serializers.get(topic)
        if known is not None:
            return known
        made = self._serializers[topic] = self._format.serializer(topic, self._field)
        return made


def _read_schema(schema: Any) -> str | None:
    """Return the text of a schema that was given as a text, a file or a structure."""
    if schema is None:
        return None
    if isinstance(schema, os.PathLike):
        try:
            text = Path(schema).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"the schema in {os.fspath(schema)} cannot be read: {error}") from error
    elif isinstance(schema, str):
        text = schema
    elif isinstance(schema, Mapping | list):
        return json.dumps(schema)
    else:
        raise ConfigurationError(f"schema={schema!r:.60} must be a text, a pathlib.Path of a file, or a dict")
    if not text.lstrip().startswith(("{", "[", '"')):
        raise ConfigurationError(
            f"schema={text!r:.60} is no schema in JSON. If it is the name of a file, give it as a pathlib.Path"
        )
    return text


def parsed_json(text: str) -> Any:
    """Return the structure that a schema's text stands for."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"schema={text!r:.60} is no JSON: {error}") from error


def fetched(client: SchemaRegistryClient, schema_id: int, schema_type: str, form: str | None = None) -> Schema:
    """Return a schema of a registry, which must be one of Avro, Protobuf or JSON Schema."""
    schema = client.get_schema(schema_id, fmt=form)
    if not isinstance(schema.schema_str, str):
        raise TypeError(f"its schema is {schema.schema_str!r:.60}")  # request() says whose answer this is
    # Registries leave the type out for Avro.
    if (schema.schema_type or "AVRO") != schema_type:
        raise SerializationError(
            f"the schema with id {schema_id} is of type {schema.schema_type}, not {schema_type}"
        )
    return schema


def no_schema(
    registry: SchemaRegistry, schema_id: int, kind: str, answer: Schema, error: Exception
) -> RegistryError:
    """Return the error for a registry's answer that is no schema, which is no fault of the record with its id."""
    doing = f"fetch the schema with id {schema_id}"
    return RegistryError(
        f"{cannot(doing, registry)}: its answer is no {kind}: {answer.schema_str!r:.200} ({error!r:.200})"
    )


def references(client: SchemaRegistryClient, schema: Schema, seen: set[str]) -> Iterator[tuple[str, str]]:
    """Yield name and text of the schemas that a schema refers to, those first that refer to none."""
    for reference in schema.references or ():
        if reference.name in seen:
            continue
        seen.add(reference.name)
        # True: deleted versions, too, since records that were written with them are still there.
        found = client.get_version(reference.subject, reference.version, True).schema
        yield from references(client, found, seen)
        yield reference.name, found.schema_str


def _registered(format_: RegistryFormat, subject: str, schema: Schema | None) -> tuple[int, Schema]:
    """Return id and schema to write with, as the registry has them under a subject.

    Args:
        format_: the registry, and whether schemas are registered.
        subject: the subject.
        schema: the schema; None: the newest one of the subject.
    """
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    doing = f"{'register' if format_.auto_register else 'find'} the schema of subject {subject!r}"

    def ask(client: SchemaRegistryClient) -> tuple[int, Schema]:
        if schema is None:
            newest = client.get_latest_version(subject)
            return newest.schema_id, newest.schema
        if format_.auto_register:
            return client.register_schema(subject, schema, normalize_schemas=format_.normalize), schema
        found = client.lookup_schema(subject, schema, normalize_schemas=format_.normalize)
        return found.schema_id, schema

    try:
        return request(format_.registry, doing, ask)
    except SchemaRegistryError as error:
        raise refused(doing, format_, error) from error


def refused(doing: str, format_: RegistryFormat, error: Exception) -> SchemaRefusedError:
    """Make the error for a schema that a registry refuses or does not have."""
    help_ = ""
    if is_not_found(error) and not format_.auto_register:
        help_ = ". Register it, or use auto_register=True"
    return SchemaRefusedError(f"{cannot(doing, format_.registry)}: {error}{help_}")


def fetch_references(registry: SchemaRegistry, schema: Schema) -> list[tuple[str, str]]:
    """Return name and text of the schemas that a schema refers to, those first that refer to none."""
    if not schema.references:
        return []
    return request(registry, "fetch references", lambda client: list(references(client, schema, set())))


def prefix_of(schema_id: int) -> bytes:
    """Return the bytes that records with a schema begin with."""
    return b"\0" + schema_id.to_bytes(PREFIX_LENGTH - 1, "big")


def converter(type_: Any) -> Callable[[Any], Any] | None:
    """Return what makes values of a type of plain structures; None: they stay as they are."""
    if type_ is None:
        return None
    validate = getattr(type_, "model_validate", None)  # of pydantic
    if validate is not None:
        return cast("Callable[[Any], Any]", validate)
    convert = msgspec.convert
    return lambda value: convert(value, type_)


def _check_type(type_: Any) -> None:
    """Raise an error if decoded values cannot become values of a type.

    Raises:
        ConfigurationError: they cannot.
    """
    if type_ is None or hasattr(type_, "model_validate"):
        return
    try:
        msgspec.json.Decoder(type_)
    except TypeError as error:
        raise ConfigurationError(f"type={type_!r} cannot be made of decoded values: {error}") from error


def plain(record: Any, native: tuple[type, ...]) -> Any:
    """Return a record as dicts, lists and simple values."""
    if type(record) in _AS_THEY_ARE:
        return record
    dump = getattr(record, "model_dump", None)  # of pydantic
    return msgspec.to_builtins(record if dump is None else dump(), builtin_types=native)


def _of_pydantic(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"JSON has nothing for {type(value).__name__}")
    return dump(mode="json")


_encoder: Final = msgspec.json.Encoder(enc_hook=_of_pydantic)


def encode_json(record: Any) -> bytes:
    """Return the JSON of a dataclass, a msgspec struct, a pydantic model or what JSON has itself.

    Raises:
        RejectedRecordError: JSON has nothing for it, or for a part of it.
    """
    try:
        return _encoder.encode(record)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise RejectedRecordError(
            f"a record of {type(record).__name__} cannot be written as JSON: {error}. A map before the sink can "
            "make it of dicts, lists, texts that are UTF-8, numbers and dataclasses"
        ) from error
