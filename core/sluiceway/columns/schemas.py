"""Arrow schemas of record types."""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute

from sluiceway.columns.not_null import cast
from sluiceway.errors import SerializationError
from sluiceway.types import members, type_name
from sluiceway.util.arrow_types import with_leaves

__all__ = [
    "fields_of",
    "from_outside",
    "has_unions",
    "is_record_type",
    "is_without_type",
    "schema_of",
    "shown",
    "without_views",
]

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

_compute: Any = pyarrow.compute

_OWN_METADATA: Final = b"sluiceway."
"""Beginning of the names of metadata that the engine writes: rows from outside must not have any."""

_PLAIN: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us", "UTC"),
    dt.time: pa.time64("us"),
    dt.timedelta: pa.duration("us"),
}
_SEQUENCES: Final = (list, Sequence)
_MAPPINGS: Final = (dict, Mapping)
_UNIONS: Final = (typing.Union, UnionType)
_QUALIFIERS: Final = tuple(
    getattr(typing, name) for name in ("Required", "NotRequired", "ReadOnly") if hasattr(typing, name)
)
_PAIR: Final = 2


def is_record_type(cls: Any) -> bool:
    """Return whether a class has named and typed fields: a dataclass, named tuple, Struct, TypedDict or model."""
    return isinstance(cls, type) and (
        hasattr(cls, "__dataclass_fields__")
        or hasattr(cls, "__struct_fields__")
        or hasattr(cls, "model_fields")
        or hasattr(cls, "__total__")
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def fields_of(cls: Any) -> dict[str, Any]:
    """Return the fields of a record type and their type hints, in the order of its constructor.

    Raises:
        SerializationError: it has no named and typed fields.
    """
    if not is_record_type(cls):
        raise SerializationError(
            f"{type_name(cls)} has no named and typed fields that could be columns: use a dataclass, a "
            "NamedTuple, a msgspec Struct, a TypedDict or a pydantic model, or give a pyarrow.Schema"
        )
    # With extras: an annotation may name the Arrow type of a field.
    hints = {name: _unqualified(hint) for name, hint in typing.get_type_hints(cls, include_extras=True).items()}
    names: Any = (
        getattr(cls, "__dataclass_fields__", None)
        or getattr(cls, "__struct_fields__", None)
        or getattr(cls, "model_fields", None)
        or getattr(cls, "_fields", None)
        or hints
    )
    return {name: hints.get(name) for name in names}


def schema_of(given: Any) -> pa.Schema:
    """Return the schema of a record type; of a schema, the same one :func:`without_views`.

    Args:
        given: a ``pyarrow.Schema``, or a class with named and typed fields. An optional field is nullable. A
            datetime is a timestamp of microseconds in UTC.

    Raises:
        SerializationError: a field's type has no Arrow type that holds each of its values; a schema says which.
    """
    if isinstance(given, pa.Schema):
        if len(set(given.names)) < len(given.names):
            double = sorted({name for name in given.names if given.names.count(name) > 1})
            raise SerializationError(f"columns must have different names; twice: {', '.join(double)}")
        return without_views(given)
    where = type_name(given)
    return pa.schema(_fields(given, where, ()))


def _fields(cls: Any, where: str, within: tuple[Any, ...]) -> list[Any]:
    """Return the fields of a record type. ``within`` are the types that it is in."""
    if cls in within:
        raise SerializationError(
            f"{where}: {type_name(cls)} holds values of its own type, to any depth, and so is no column. "
            "Give a class without this field, or a pyarrow.Schema in place of the class"
        )
    within = (*within, cls)
    return [_field(name, hint, f"{where}.{name}", within) for name, hint in fields_of(cls).items()]


def _field(name: str, hint: Any, where: str, within: tuple[Any, ...]) -> Any:
    alternatives = [one for one in members(hint) if one is not NoneType]
    nullable = len(alternatives) < len(members(hint))
    if (named := _named_type(hint)) is not None:
        return pa.field(name, named, nullable)
    if len(alternatives) != 1:
        raise _no_type(where, hint)
    return pa.field(name, _arrow_type(alternatives[0], where, within), nullable)


def _unqualified(hint: Any) -> Any:
    """Return the type of a field without what a TypedDict says about the presence of the field."""
    while typing.get_origin(hint) in _QUALIFIERS:
        (hint,) = typing.get_args(hint)
    return hint


def _named_type(hint: Any) -> pa.DataType | None:
    """Return the Arrow type in ``Annotated[Decimal, pyarrow.decimal128(12, 2)]``, also of a part of a union."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        named = next((arg for arg in args[1:] if isinstance(arg, pa.DataType)), None)
        return _named_type(args[0]) if named is None else named
    if origin in _UNIONS:
        return next((named for arg in args if (named := _named_type(arg)) is not None), None)
    return None


def _arrow_type(hint: Any, where: str, within: tuple[Any, ...]) -> pa.DataType:
    if isinstance(hint, pa.DataType):
        return hint
    if (plain := _PLAIN.get(hint)) is not None:
        return plain
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        named = _named_type(hint)
        return _arrow_type(args[0], where, within) if named is None else named
    if origin is typing.Literal and len(kinds := set(map(type, args))) == 1:
        return _arrow_type(kinds.pop(), where, within)
    if origin in _SEQUENCES and len(args) == 1:
        return pa.list_(_field("item", args[0], where, within))
    if origin is tuple and len(args) == _PAIR and args[1] is Ellipsis:
        return pa.list_(_field("item", args[0], where, within))
    if origin in _MAPPINGS and len(args) == _PAIR:
        key, value = _arrow_type(args[0], where, within), _field("value", args[1], where, within)
        of_map: pa.DataType = pa.map_(key, value)
        return of_map
    if is_record_type(hint):
        return pa.struct(_fields(hint, where, within))
    raise _no_type(where, hint)


def _no_type(where: str, hint: Any) -> SerializationError:
    return SerializationError(
        f"{where}: {type_name(hint)} has no one Arrow type. Give a pyarrow.Schema in place of the class, or "
        "annotate the field, as in Annotated[Decimal, pyarrow.decimal128(12, 2)]"
    )


def shown(schema: pa.Schema) -> str:
    """Return a schema for messages and plans: ``user: string, price: double``."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def is_without_type(kind: Any) -> bool:
    """Return if a type is that of nulls alone, or of lists, dictionaries and structs of such."""
    if pa.types.is_struct(kind):
        return any(is_without_type(field.type) for field in kind)
    if pa.types.is_map(kind):
        return is_without_type(kind.key_type) or is_without_type(kind.item_type)
    return bool(pa.types.is_null(kind)) or (hasattr(kind, "value_type") and is_without_type(kind.value_type))


def without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema with plain texts and bytes in place of views, also inside of other types.

    Columns with run-end encoding are without it. Frames of Polars have views; and Arrow has no kernel that takes
    or filters rows of either.
    """
    for at, field in enumerate(schema):
        kind: Any = field.type
        kind = _without_views(kind.value_type if pa.types.is_run_end_encoded(kind) else kind)
        if not kind.equals(field.type):
            schema = schema.set(at, field.with_type(kind))
    return schema


def from_outside(rows: _Rows) -> _Rows:
    """Return rows as they enter a pipeline: :func:`without_views`, and without metadata of the engine's names.

    State and partial aggregates have such metadata, and tables that were made of them may bring it along.

    Args:
        rows: a ``pyarrow.Table`` or ``RecordBatch``; the result is of the same class.
    """
    schema = without_views(rows.schema)
    if not schema.equals(rows.schema):
        rows = cast(_without_runs(rows), schema)
    if any(name.startswith(_OWN_METADATA) for name in rows.schema.metadata or ()):
        others = {name: text for name, text in rows.schema.metadata.items() if not name.startswith(_OWN_METADATA)}
        rows = rows.replace_schema_metadata(others or None)
    return rows


def _without_runs(rows: _Rows) -> _Rows:
    """Return rows whose columns have no run-end encoding, which no cast takes away."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_run_end_encoded(field.type):
            values: Any = _compute.run_end_decode(rows.column(at))
            rows = rows.set_column(at, field.with_type(values.type), values)
    return rows


def has_unions(kind: Any) -> bool:
    """Return if values of a type are of several types, or have parts that are: Arrow takes no rows of such."""
    if _is_plain(kind):  # no try, which would import pandas: see numpy_arrays
        return False
    try:
        pa.array([None], kind)
    except pa.ArrowNotImplementedError:
        return True
    return False


def _is_plain(kind: Any) -> bool:
    """Return if Arrow is known to make values of a type: it has no unions, extensions and rare encodings."""
    types = pa.types
    if types.is_dictionary(kind):
        return types.is_string(kind.value_type)
    if types.is_union(kind) or types.is_run_end_encoded(kind):
        return False
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return not isinstance(kind, pa.BaseExtensionType) and all(map(_is_plain, inner))


def _without_views(kind: Any) -> Any:
    """Return a type without views."""
    return with_leaves(kind, _without_view)


def _without_view(kind: Any) -> Any:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    return kind
