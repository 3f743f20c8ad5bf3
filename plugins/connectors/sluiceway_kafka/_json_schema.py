"""JSON Schema with a schema registry."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from sluiceway.errors import SerializationError
from sluiceway.util.overriding import override
from sluiceway_kafka._derived_schemas import json_schema_of
from sluiceway_kafka._formats import (
    FormatReader,
    SchemaTextFormat,
    Strategy,
    encode_json,
    fetch_references,
    fetched,
    no_schema,
    parsed_json,
    prefix_of,
    references,
)
from sluiceway_kafka._registry import PREFIX_LENGTH, SchemaCache, SchemaRegistry, check_libraries

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

__all__ = ["JsonSchemaFormat"]


class JsonSchemaFormat(SchemaTextFormat):
    """JSON with a schema registry, for ``deserializer``, ``serializer`` and the same of keys.

    Read records become plain dicts, lists, strings and numbers, or what ``type`` says, which checks them. With
    ``validate`` they are checked against the schema that they were written with, too, which takes much longer.

    Records to write are what ``serializer="json"`` takes; None is a tombstone. The schema is ``schema``, or
    derived of ``type``, and is registered when a subtask writes its first record to a topic. Without
    ``auto_register``, the registry must have ``schema`` already; if ``schema`` is not given, the newest one of the
    subject counts.

    Args:
        registry: URL of the registry, or a :class:`SchemaRegistry`.
        type: what records become when read: a dataclass, a msgspec struct or a pydantic model; None: plain ones.
        schema: JSON text, a ``pathlib.Path`` of a file with it, or a dict. For writing.
        validate: True if records are checked against the schema, both when read and when written.
        auto_register: True if schemas are registered to write with.
        subject_name_strategy: what subjects are called after: ``topic``, ``record`` (the title of the schema) or
            ``topic-record``.
        normalize: True if the registry is to normalise schemas.

    Raises:
        ConfigurationError: an argument cannot be used.
        MissingExtraError: the extra ``kafka-registry`` is not installed.
    """

    schema_type = "JSON"

    def __init__(
        self,
        registry: str | SchemaRegistry,
        *,
        type: Any = None,  # noqa: A002 - the word for it everywhere here
        schema: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        validate: bool = False,
        auto_register: bool = True,
        subject_name_strategy: Strategy = "topic",
        normalize: bool = False,
    ) -> None:
        check_libraries("JsonSchemaFormat", "jsonschema", "referencing")
        super().__init__(registry, type, schema, auto_register, subject_name_strategy, normalize)
        self.validate = bool(validate)

    @override
    def reader(self, wake: Callable[[], None] | None) -> FormatReader:
        return _JsonReader(self, wake)

    @override
    def _name(self, text: str) -> str | None:
        schema = parsed_json(text)
        return schema.get("title") if isinstance(schema, dict) else None

    @override
    def _derive(self) -> str:
        return json.dumps(json_schema_of(self.type))

    @override
    def serializer(self, topic: str, field: str) -> Callable[[Any], bytes | None]:
        schema_id, schema = self._registered(topic, field)
        validate = None
        if self.validate:
            referred = fetch_references(self.registry, schema)
            validate = _validator(schema.schema_str, referred)
        prefix = prefix_of(schema_id)

        def encode(record: Any) -> bytes | None:
            if record is None:
                return None
            data = encode_json(record)
            if validate is not None:
                validate(data)
            return prefix + data

        return encode


def _validator(text: str, references: list[tuple[str, str]]) -> Callable[[bytes], None]:
    """Make what checks JSON against a schema."""
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    schema = json.loads(text)
    resources = [
        (name, Resource.from_contents(json.loads(each), default_specification=DRAFT7)) for name, each in references
    ]
    registry: Any = Registry().with_resources(resources)
    check = validator_for(schema)(schema, registry=registry).validate

    def validate(data: bytes) -> None:
        try:
            check(json.loads(data))
        except ValidationError as error:
            raise SerializationError(
                f"it does not fit its JSON Schema: {error.message} at {error.json_path}"
            ) from error

    return validate


class _JsonReader(FormatReader):
    def __init__(self, format_: JsonSchemaFormat, wake: Callable[[], None] | None) -> None:
        type_ = format_.type
        parse: Callable[[bytes], Any]
        if hasattr(type_, "model_validate_json"):  # of pydantic
            parse = type_.model_validate_json
        else:
            parse = (msgspec.json.Decoder() if type_ is None else msgspec.json.Decoder(type_)).decode

        def make(client: SchemaRegistryClient, schema_id: int) -> Callable[[bytes], None]:
            schema = fetched(client, schema_id, format_.schema_type)
            if not format_.validate:
                return _valid
            referred = list(references(client, schema, set()))
            try:
                return _validator(schema.schema_str or "", referred)
            except Exception as error:
                raise no_schema(format_.registry, schema_id, "JSON Schema", schema, error) from error

        cache: SchemaCache[Callable[[bytes], None]] = SchemaCache(format_.registry, make, wake)
        known, get = cache.known, cache.get

        def decode(data: bytes) -> Any:
            prefix = data[:PREFIX_LENGTH]
            validate = known.get(prefix)
            if validate is None:
                validate = get(prefix)
            rest = data[PREFIX_LENGTH:]
            # The schema is fetched in any case: an id that the registry does not know is an error.
            if validate is not _valid:
                validate(rest)
            return parse(rest)

        self._cache = cache
        self.decode = decode

    def close(self) -> None:
        self._cache.close()


def _valid(data: bytes) -> None:
    """Accept everything."""
