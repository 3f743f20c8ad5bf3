"""Schemas of types as plain data, stored beside the values.

A *schema* is a text for a scalar (``int``), or an object with one telling field:

================  =============================================================================================
``record``        the name of a class with fields; ``module``, ``qualname``, ``form`` (``dataclass``, ``struct``,
                  ``namedtuple``, ``pydantic``), ``fields``, ``array`` where they are written by place and not by
                  name, ``tag`` where the class is written among them
``list``, ``set``, ``frozenset``, ``row``  what the elements are; ``row`` is a tuple of any length
``tuple``         an array: what stands in each place
``dict``          an array: keys, values
``union``         an array
``enum``          its name; ``values``
``literal``       an array
================  =============================================================================================

A field has ``name``, ``type``, ``key`` where it is written under another name, ``default`` where it has one, and
``was`` with earlier names.
"""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Final
from uuid import UUID

import msgspec

from sluiceway.serializers.models import is_pydantic
from sluiceway.types import unaliased

__all__ = ["RenamedFrom", "Schema", "describe", "shown", "without_names"]

Schema: typing.TypeAlias = str | dict[str, Any]

SCALARS: Final[dict[Any, str]] = {
    NoneType: "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    dt.date: "date",
    dt.datetime: "datetime",
    dt.time: "time",
    dt.timedelta: "timedelta",
    Decimal: "decimal",
    UUID: "uuid",
}


@dataclass(frozen=True, slots=True)
class RenamedFrom:
    """Earlier name of a field, for state that was saved under it: ``total: Annotated[int, RenamedFrom("sum")]``.

    Attributes:
        name: earlier name of the field.
    """

    name: str


def describe(hint: Any, classes: dict[tuple[str, str], type] | None = None) -> Schema:
    """Return the schema of a type whose values are written as msgpack.

    Args:
        hint: the type.
        classes: receives the classes of the records, by module and qualified name.

    Raises:
        TypeError: the type cannot be described.
    """
    if hint is Any or hint is object:
        return "any"
    if hint is None:
        return "null"
    if (plain := unaliased(hint)) is not hint:
        return describe(plain, classes)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return describe(args[0], classes)
    if origin in (typing.Union, UnionType):
        return {"union": [describe(arg, classes) for arg in args]}
    if origin is typing.Literal:
        return {"literal": list(args)}
    kind = origin or hint
    if kind is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return {"row": describe(args[0], classes)}
        return {"tuple": [describe(arg, classes) for arg in args]}
    if kind is dict:
        return {"dict": [describe(arg, classes) for arg in (args or (Any, Any))]}
    if kind in (list, set, frozenset):
        return {kind.__name__: describe(args[0] if args else Any, classes)}
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": hint.__name__, "values": [member.value for member in hint]}
    if isinstance(hint, type):
        return _record(hint, classes)
    raise TypeError(f"{hint!r} cannot be described")


def _record(cls: Any, classes: dict[tuple[str, str], type] | None) -> Schema:
    found: dict[str, Any] = {"record": cls.__name__, "module": cls.__module__, "qualname": cls.__qualname__}
    if classes is not None:
        classes[cls.__module__, cls.__qualname__] = cls
    # Of each field: its name, its name as written, whether it has a default, and other names that it may come
    # under.
    parts: Iterable[tuple[str, str, bool, tuple[str, ...]]]
    if issubclass(cls, tuple):
        form, found["array"] = "namedtuple", True
        parts = [(name, name, name in cls._field_defaults, ()) for name in cls._fields]
    elif issubclass(cls, msgspec.Struct):
        form, config = "struct", cls.__struct_config__
        if config.array_like:
            found["array"] = True
        if config.tag is not None:
            found["tag"] = [config.tag_field, config.tag]
        parts = [(f.name, f.encode_name, not f.required, ()) for f in msgspec.structs.fields(cls)]
    elif is_dataclass(cls):
        form = "dataclass"
        parts = [
            (f.name, f.name, f.default is not MISSING or f.default_factory is not MISSING, ()) for f in fields(cls)
        ]
    elif is_pydantic(cls):
        form = "pydantic"
        parts = [
            (name, name, not field.is_required(), _aliases(field)) for name, field in cls.model_fields.items()
        ]
    else:
        raise TypeError(f"{cls.__name__} has no fields that are known")
    hints = typing.get_type_hints(cls, include_extras=True)
    found["form"], found["fields"] = form, []
    for name, key, default, was in parts:
        hint = hints[name]
        field: dict[str, Any] = {"name": name, "type": describe(hint, classes)}
        if key != name:
            field["key"] = key
        if default:
            field["default"] = True
        extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
        earlier = [*was, *(extra.name for extra in extras if isinstance(extra, RenamedFrom))]
        if earlier:
            field["was"] = earlier
        found["fields"].append(field)
    return found


def _aliases(field: Any) -> tuple[str, ...]:
    """Return the other names by which a field of a pydantic model can be given."""
    found = [field.alias, field.validation_alias]
    found += getattr(field.validation_alias, "choices", ())
    return tuple(dict.fromkeys(name for name in found if isinstance(name, str)))


def without_names(schema: Schema) -> Schema:
    """Return the part of a schema that decides how values are written."""
    if isinstance(schema, str):
        return schema
    bare = {key: value for key, value in schema.items() if key not in ("module", "qualname", "form")}
    if "fields" in bare:
        bare["fields"] = [
            {"name": f["name"], "key": f.get("key", f["name"]), "type": without_names(f["type"])}
            for f in bare["fields"]
        ]
    for kind in ("list", "set", "frozenset", "row"):
        if kind in bare:
            bare[kind] = without_names(bare[kind])
    for kind in ("tuple", "dict", "union"):
        if kind in bare:
            bare[kind] = [without_names(part) for part in bare[kind]]
    return bare


def shown(schema: Schema, *, deep: bool = True) -> str:
    """Return a schema as people write types; ``deep``: with the fields of a class."""
    if isinstance(schema, str):
        return {"null": "None", "any": "Any", "decimal": "Decimal", "uuid": "UUID"}.get(schema, schema)
    if "record" in schema:
        name = str(schema["record"])
        inside = ", ".join(f"{f['name']}: {shown(f['type'], deep=False)}" for f in schema["fields"])
        return f"{name}({inside})" if deep else name
    if "enum" in schema:
        return str(schema["enum"])
    if "literal" in schema:
        return f"Literal[{', '.join(map(repr, schema['literal']))}]"
    [(kind, parts)] = schema.items()
    if kind == "row":
        return f"tuple[{shown(parts, deep=deep)}, ...]"
    if kind == "union":
        return " | ".join(shown(part, deep=deep) for part in parts)
    inside = ", ".join(shown(part, deep=deep) for part in (parts if isinstance(parts, list) else [parts]))
    return f"{kind}[{inside}]"
