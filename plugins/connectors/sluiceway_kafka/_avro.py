"""Avro with a schema registry."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sluiceway.errors import ConfigurationError, SerializationError
from sluiceway.util.overriding import override
from sluiceway_kafka._derived_schemas import avro_schema_of
from sluiceway_kafka._formats import (
    FormatReader,
    SchemaTextFormat,
    Strategy,
    converter,
    fetch_references,
    fetched,
    no_schema,
    parsed_json,
    plain,
    prefix_of,
    references,
)
from sluiceway_kafka._registry import PREFIX_LENGTH, SchemaCache, SchemaRegistry, check_libraries

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

__all__ = ["AvroFormat"]

_NATIVE: Final = (bytes, bytearray, datetime, date, time, timedelta, Decimal, UUID)
"""Types that fastavro takes for logical types."""


class AvroFormat(SchemaTextFormat):
    """Avro with a schema registry, for ``deserializer``, ``serializer`` and the same of keys.

    Read records are decoded with the schema that they were written with. They become dicts, or what ``type`` says,
    which leaves out fields that it does not have and takes its defaults for those that records do not have.

    Records to write are dicts, dataclasses, msgspec structs or pydantic models; None is a tombstone. The schema is
    ``schema``, or derived of ``type`` if that is a dataclass or a struct, and is registered when a subtask writes
    its first record to a topic. Without ``auto_register``, the registry must have ``schema`` already; without
    ``schema`` the newest one of the subject is written.

    Args:
        registry: URL of the registry, or a :class:`SchemaRegistry`.
        type: what records become when read: a dataclass, a msgspec struct or a pydantic model; None: dicts.
        schema: JSON text, a ``pathlib.Path`` of a file with it, or a dict. Read records are resolved to it
            (aliases, defaults, promotions).
        auto_register: True if schemas are registered to write with.
        subject_name_strategy: what subjects are called after: ``topic``, ``record`` or ``topic-record``.
        normalize: True if the registry is to normalise schemas.

    Raises:
        ConfigurationError: an argument cannot be used.
        MissingExtraError: the extra ``kafka-registry`` is not installed.
    """

    schema_type = "AVRO"

    def __init__(
        self,
        registry: str | SchemaRegistry,
        *,
        type: Any = None,  # noqa: A002 - the word for it everywhere here
        schema: str | os.PathLike[str] | Mapping[str, Any] | list[Any] | None = None,
        auto_register: bool = True,
        subject_name_strategy: Strategy = "topic",
        normalize: bool = False,
    ) -> None:
        check_libraries("AvroFormat", "fastavro")
        super().__init__(registry, type, schema, auto_register, subject_name_strategy, normalize)

    def _parse(self, text: str) -> Any:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException

        try:
            return parse_schema(parsed_json(text))
        except (SchemaParseException, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"schema={text!r:.60} is no Avro schema: {error!r}") from error

    @override
    def reader(self, wake: Callable[[], None] | None) -> FormatReader:
        return _AvroReader(self, wake)

    @override
    def _name(self, text: str) -> str | None:
        parsed = self._parse(text)
        name = parsed.get("name") if isinstance(parsed, dict) else None
        return name if isinstance(name, str) else None

    @override
    def _derive(self) -> str:
        return json.dumps(avro_schema_of(self.type))

    @override
    def serializer(self, topic: str, field: str) -> Callable[[Any], bytes | None]:
        from fastavro import parse_schema, schemaless_writer

        schema_id, schema = self._registered(topic, field)
        named: dict[str, Any] = {}
        if schema.references:
            for _, each in fetch_references(self.registry, schema):
                parse_schema(json.loads(each), named)
        parsed = parse_schema(json.loads(schema.schema_str), named)
        prefix = prefix_of(schema_id)

        def encode(record: Any) -> bytes | None:
            if record is None:
                return None
            out = BytesIO()
            out.write(prefix)
            schemaless_writer(out, parsed, plain(record, _NATIVE))
            return out.getvalue()

        return encode


def _reader_of(schema: Any, named: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what reads values of a schema, and raises RecursionError for one that nests too deeply.

    Args:
        schema: as fastavro has parsed it.
        named: schemas by their full names.
    """
    # fastavro's extension descends into each level of a value without a limit: 5000 bytes can overflow the stack.
    if _is_recursive(schema, named):
        from fastavro._read_py import schemaless_reader
    else:
        from fastavro import schemaless_reader
    read: Callable[..., Any] = schemaless_reader
    return read


def _is_recursive(schema: Any, named: Mapping[str, Any]) -> bool:
    """Return True if a value may hold values of its own type, or a part of it may."""
    entered: set[str] = set()
    left: set[str] = set()

    def visit(node: Any) -> bool:
        if isinstance(node, str):
            return node in named and node not in left and (node in entered or visit(named[node]))
        if isinstance(node, list):
            return any(map(visit, node))
        if "fields" not in node:
            return any(visit(node[part]) for part in ("type", "items", "values") if part in node)
        entered.add(node["name"])
        found = any(visit(each["type"]) for each in node["fields"])
        left.add(node["name"])
        return found

    return visit(schema)


def _has_array_of_nothing(schema: Any, named: Mapping[str, Any]) -> bool:
    """Return True if a value may hold an array whose items take no bytes."""
    left, seen = [schema], set[str]()
    while left:
        node = left.pop()
        if isinstance(node, str):
            if node in named and node not in seen:
                seen.add(node)
                left.append(named[node])
        elif isinstance(node, list):
            left += node
        elif "fields" in node:
            left += [each["type"] for each in node["fields"]]
        elif node["type"] == "array" and _takes_no_bytes(node["items"], named, frozenset()):
            return True
        else:
            left += [node[part] for part in ("type", "items", "values") if part in node]
    return False


def _takes_no_bytes(node: Any, named: Mapping[str, Any], within: frozenset[str]) -> bool:
    """Return True if all values of a schema have an empty encoding. ``within`` are the names that it is in."""
    if isinstance(node, str):
        known = node in named and node not in within
        return node == "null" or (known and _takes_no_bytes(named[node], named, within | {node}))
    if isinstance(node, list):  # its index takes a byte
        return False
    if "fields" in node:
        return all(_takes_no_bytes(each["type"], named, within | {node["name"]}) for each in node["fields"])
    return node["size"] == 0 if node["type"] == "fixed" else _takes_no_bytes(node["type"], named, within)


class _AvroReader(FormatReader):
    def __init__(self, format_: AvroFormat, wake: Callable[[], None] | None) -> None:
        from fastavro import parse_schema

        wanted = None if format_.schema is None else parse_schema(json.loads(format_.schema))
        convert = converter(format_.type)

        def make(client: SchemaRegistryClient, schema_id: int) -> Any:
            schema = fetched(client, schema_id, format_.schema_type)
            named: dict[str, Any] = {}
            texts = [text for _, text in references(client, schema, set())]
            try:
                for text in texts:
                    parse_schema(json.loads(text), named)
                parsed = parse_schema(json.loads(schema.schema_str or ""), named)
            except Exception as error:
                raise no_schema(format_.registry, schema_id, "Avro schema", schema, error) from error
            if _has_array_of_nothing(parsed, named):
                # A few bytes can announce any number of items, and fastavro makes them all.
                raise SerializationError(
                    f"the Avro schema with id {schema_id} cannot be used: it has an array of items that take no "
                    "bytes, such as 'null'"
                )
            return _reader_of(parsed, named), parsed

        cache: SchemaCache[Any] = SchemaCache(format_.registry, make, wake)
        known, get = cache.known, cache.get

        def decode(data: bytes) -> Any:
            prefix = data[:PREFIX_LENGTH]
            read, written = known.get(prefix) or get(prefix)
            stream = BytesIO(data)
            stream.seek(PREFIX_LENGTH)
            try:
                value = read(stream, written, wanted)
            except Exception as error:
                raise SerializationError(
                    f"it does not fit its Avro schema, id {int.from_bytes(prefix[1:], 'big')}: {error!r}"
                ) from error
            # fastavro stops without an error where the schema ends.
            if stream.tell() != len(data):
                raise SerializationError(
                    f"it does not fit its Avro schema, id {int.from_bytes(prefix[1:], 'big')}: "
                    f"{len(data) - stream.tell()} bytes are left"
                )
            return value if convert is None else convert(value)

        self._cache = cache
        self.decode = decode

    def close(self) -> None:
        self._cache.close()
