"""Avro schemas and JSON Schemas of dataclasses, msgspec structs and other types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect

from sluiceway.errors import ConfigurationError

__all__ = ["avro_schema_of", "json_schema_of"]

_SIMPLE: Final[dict[type[inspect.Type], Any]] = {
    inspect.NoneType: "null",
    inspect.BoolType: "boolean",
    inspect.IntType: "long",
    inspect.FloatType: "double",
    inspect.StrType: "string",
    inspect.BytesType: "bytes",
    inspect.DateTimeType: {"type": "long", "logicalType": "timestamp-micros"},
    inspect.DateType: {"type": "int", "logicalType": "date"},
    inspect.TimeType: {"type": "long", "logicalType": "time-micros"},
    inspect.UUIDType: {"type": "string", "logicalType": "uuid"},
}

_DEFAULTS: Final = {"boolean": bool, "long": int, "double": float, "string": str}
"""Types whose defaults are the same in Avro, by name of the Avro type."""


def avro_schema_of(type_: Any) -> Any:
    """Derive the Avro schema of a type.

    Raises:
        ConfigurationError: a part of it has no clear counterpart in Avro.
    """
    return _Derivation(type_).schema()


class _Derivation:
    def __init__(self, type_: Any) -> None:
        self._type = type_
        self._names: dict[str, type] = {}
        self._begun: set[type] = set()

    def schema(self) -> Any:
        try:
            info = inspect.type_info(self._type)
        except (TypeError, NameError) as error:
            raise self._error(str(error)) from error
        return self._of(info, "")

    def _error(self, why: str) -> ConfigurationError:
        name = getattr(self._type, "__name__", repr(self._type))
        return ConfigurationError(f"no Avro schema can be derived of {name}: {why}. Give it as schema=")

    def _of(self, info: inspect.Type, where: str) -> Any:
        simple = _SIMPLE.get(type(info))
        if simple is not None:
            return simple
        if isinstance(info, inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType):
            return {"type": "array", "items": self._of(info.item_type, where)}
        if isinstance(info, inspect.DictType) and isinstance(info.key_type, inspect.StrType):
            return {"type": "map", "values": self._of(info.value_type, where)}
        if isinstance(info, inspect.UnionType):
            return [self._of(each, where) for each in sorted(info.types, key=_null_first)]
        if isinstance(info, inspect.LiteralType):
            kinds = {type(value) for value in info.values}
            if kinds in ({str}, {int}):
                return "string" if kinds == {str} else "long"
        if isinstance(info, inspect.EnumType):
            return self._enum(info.cls, where)
        if isinstance(info, inspect.StructType) and (info.array_like or info.tag is not None):
            raise self._error(f"{info.cls.__name__} is tagged or array_like")
        if isinstance(info, inspect.StructType | inspect.DataclassType):
            return self._record(info)
        kind = type(info).__name__.removesuffix("Type")
        raise self._error(f"{where or 'the type itself'} is of a type without a clear counterpart ({kind})")

    def _seen(self, cls: type) -> bool:
        """Return True if a class has a schema already, which has its name."""
        known = self._names.setdefault(cls.__name__, cls)
        if known is not cls:
            raise self._error(f"two of its classes are called {cls.__name__}")
        if cls in self._begun:
            return True
        self._begun.add(cls)
        return False

    def _enum(self, cls: Any, where: str) -> Any:
        symbols = [each.value for each in cls]
        if not all(isinstance(each, str) and re.fullmatch(r"[A-Za-z_]\w*", each, re.ASCII) for each in symbols):
            raise self._error(f"{where} is an enum whose values are not names, as Avro wants them")
        if self._seen(cls):
            return cls.__name__
        return {"type": "enum", "name": cls.__name__, "symbols": symbols}

    def _record(self, info: inspect.StructType | inspect.DataclassType) -> Any:
        cls = info.cls
        if self._seen(cls):
            return cls.__name__
        return {
            "type": "record",
            "name": cls.__name__,
            "fields": [self._field(each, cls.__name__) for each in info.fields],
        }

    def _field(self, field: inspect.Field, owner: str) -> dict[str, Any]:
        schema = self._of(field.type, f"{owner}.{field.name}")
        result = {"name": field.encode_name, "type": schema}
        default = field.default
        if default is msgspec.NODEFAULT:
            if field.default_factory is list:
                default = []
            elif field.default_factory is dict:
                default = {}
        if isinstance(schema, list) and default is not None and default is not msgspec.NODEFAULT:
            # The default of a union is of its first type.
            fitting = [each for each in schema if _fits(default, each)]
            if fitting:
                result["type"] = [fitting[0], *(each for each in schema if each is not fitting[0])]
                result["default"] = default
        elif (isinstance(schema, list) and default is None) or _fits(default, schema):
            result["default"] = default
        return result


def _fits(default: Any, schema: Any) -> bool:
    if default is None:
        return bool(schema == "null")
    if isinstance(schema, dict):
        return default == ([] if schema["type"] == "array" else {}) and schema["type"] in ("array", "map")
    return isinstance(schema, str) and type(default) is _DEFAULTS.get(schema)


def _null_first(info: inspect.Type) -> bool:
    return not isinstance(info, inspect.NoneType)


def json_schema_of(type_: Any) -> dict[str, Any]:
    """Derive the JSON Schema of a type; its title is the name of the class.

    Raises:
        ConfigurationError: a part of it has no counterpart in JSON.
    """
    name = getattr(type_, "__name__", repr(type_))
    of_pydantic = getattr(type_, "model_json_schema", None)
    if of_pydantic is not None:
        schema: dict[str, Any] = of_pydantic()
        return schema
    try:
        schema = msgspec.json.schema(type_)
    except (TypeError, NameError) as error:
        raise ConfigurationError(
            f"no JSON Schema can be derived of {name}: {error}. Give it as schema="
        ) from error
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": name, **_inlined(schema)}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the definition that it consists of in place of a reference, for readers of schemas.

    Drafts before 2019-09 ignore everything beside a reference, such as the title.
    """
    reference, definitions = schema.get("$ref"), dict(schema.get("$defs", {}))
    if not isinstance(reference, str):
        return schema
    name = reference.rpartition("/")[2]
    top = definitions[name]
    if not _mentions(list(definitions.values()), reference):
        del definitions[name]
    return {**top, "$defs": definitions} if definitions else dict(top)


def _mentions(schema: Any, reference: str) -> bool:
    if isinstance(schema, dict):
        return bool(schema.get("$ref") == reference) or any(_mentions(each, reference) for each in schema.values())
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return any(_mentions(each, reference) for each in schema)
    return False
