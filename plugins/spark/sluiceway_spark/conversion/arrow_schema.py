"""Arrow schemas from record types and from Spark's schemas, in the types that Spark reads from Parquet and ORC."""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any, Final

import msgspec

from sluiceway.errors import ConfigurationError
from sluiceway.types import unaliased

__all__ = ["column_type", "fields_of", "for_spark", "schema_as_is", "schema_of"]

_TAKES: Final = (
    "a pyarrow.Schema, a StructType of Spark's, or a dataclass, NamedTuple, TypedDict or msgspec.Struct with types"
)


def schema_of(given: Any, where: str) -> Any:
    """Return the Arrow schema for a schema, a StructType or a record type.

    Raises:
        ConfigurationError: it is none of them, or has what Spark has no type for.
    """
    import pyarrow as pa

    if isinstance(given, pa.Schema):
        return for_spark(given, where)
    if type(given).__name__ == "StructType":
        return for_spark(pa.schema(_of_struct(given, where)), where)
    if not isinstance(given, type) or fields_of(given) is None:
        raise ConfigurationError(f"{where}: schema={given!r:.100} must be {_TAKES}")
    return for_spark(pa.schema(_columns_of(given, where)), where)


def fields_of(cls: type) -> list[tuple[str, str]] | None:
    """Return attribute and column name of each field of a record type; None: the class is none."""
    if dataclasses.is_dataclass(cls):
        return [(field.name, field.name) for field in dataclasses.fields(cls)]
    if issubclass(cls, msgspec.Struct):
        return list(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    names = getattr(cls, "_fields", None)
    if names is None and typing.is_typeddict(cls):
        names = cls.__annotations__
    return None if names is None else [(name, name) for name in names]


def for_spark(schema: Any, where: str) -> Any:
    """Return the schema in types that Spark reads: times to the microsecond, no dictionaries, no views.

    Raises:
        ConfigurationError: Spark has no type for one, or cannot tell two columns apart.
    """
    import pyarrow as pa

    names = [name.lower() for name in schema.names]
    if not names:
        raise ConfigurationError(f"{where}: a schema without columns")
    if twice := next((name for name in schema.names if names.count(name.lower()) > 1), None):
        raise ConfigurationError(f"{where}: there are two columns {twice!r}, which Spark cannot tell apart")
    return pa.schema([(f.name, _kind(f.type, f"{where}: column {f.name!r}")) for f in schema])


def _kind(kind: Any, where: str) -> Any:
    import pyarrow as pa

    is_ = pa.types
    if is_.is_dictionary(kind):
        return _kind(kind.value_type, where)
    if is_.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if (
        is_.is_binary(kind)
        or is_.is_large_binary(kind)
        or is_.is_binary_view(kind)
        or is_.is_fixed_size_binary(kind)
    ):
        return pa.binary()
    if is_.is_map(kind):
        return pa.map_(_kind(kind.key_type, where), _kind(kind.item_type, where))
    if is_.is_struct(kind):
        return pa.struct([(field.name, _kind(field.type, f"{where}.{field.name}")) for field in kind])
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return pa.list_(_kind(kind.value_type, where))
    if is_.is_date(kind):
        return pa.date32()
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if is_.is_boolean(kind) or is_.is_integer(kind) or is_.is_floating(kind):
        return kind
    raise ConfigurationError(f"{where} is {kind}, for which Spark has no type")


# ---- Spark's types ---------------------------------------------------------------------------------------------


def _of_struct(struct: Any, where: str) -> list[tuple[str, Any]]:
    return [(field.name, _of_spark(field.dataType, f"{where}: column {field.name!r}")) for field in struct]


def _of_spark(kind: Any, where: str, lacks: str = "which SparkSink cannot write") -> Any:
    import pyarrow as pa

    simple = {
        "BooleanType": pa.bool_(),
        "ByteType": pa.int8(),
        "ShortType": pa.int16(),
        "IntegerType": pa.int32(),
        "LongType": pa.int64(),
        "FloatType": pa.float32(),
        "DoubleType": pa.float64(),
        "StringType": pa.string(),
        "BinaryType": pa.binary(),
        "DateType": pa.date32(),
        "TimestampType": pa.timestamp("us", "UTC"),
        "TimestampNTZType": pa.timestamp("us"),
    }
    name = type(kind).__name__
    if name in simple:
        return simple[name]
    if name == "DecimalType":
        return pa.decimal128(kind.precision, kind.scale)
    if name == "ArrayType":
        return pa.list_(_of_spark(kind.elementType, where))
    if name == "MapType":
        return pa.map_(_of_spark(kind.keyType, where), _of_spark(kind.valueType, where))
    if name == "StructType":
        return pa.struct(_of_struct(kind, where))
    raise ConfigurationError(f"{where} is {kind.simpleString()}, {lacks}")


def schema_as_is(struct: Any, zone: str, where: str) -> Any:
    """Return the Arrow schema that Spark makes of a StructType in a session with this time zone.

    Raises:
        ConfigurationError: there is a type in it that is not known here, or two fields have one name.
    """
    import pyarrow as pa

    return pa.schema(_fields_as_is(struct, zone, where, ""))


def _fields_as_is(struct: Any, zone: str, where: str, path: str) -> list[Any]:
    import pyarrow as pa

    names = [f.name for f in struct]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(f"{where}: there are two columns {path + twice!r}: rename one of them")
    return [pa.field(f.name, _as_is(f.dataType, zone, where, path + f.name), f.nullable) for f in struct]


def _as_is(kind: Any, zone: str, where: str, path: str) -> Any:
    import pyarrow as pa

    name = type(kind).__name__
    if name == "TimestampType":
        return pa.timestamp("us", zone)
    if name == "ArrayType":
        element = _as_is(kind.elementType, zone, where, f"{path}[]")
        return pa.list_(pa.field("element", element, kind.containsNull))
    if name == "MapType":
        value = _as_is(kind.valueType, zone, where, f"{path}.value")
        key = _as_is(kind.keyType, zone, where, f"{path}.key")
        return pa.map_(key, pa.field("value", value, kind.valueContainsNull))
    if name == "StructType":
        return pa.struct(_fields_as_is(kind, zone, where, f"{path}."))
    return _of_spark(kind, f"{where}: column {path!r}", "for which there is no column here: cast it, as to STRING")


# ---- record types ----------------------------------------------------------------------------------------------


def _columns_of(cls: Any, where: str, within: tuple[Any, ...] = ()) -> list[tuple[str, Any]]:
    if cls in within:
        raise _endless(where)
    within = (*within, cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(
            f"{where}: the types of {cls.__name__} cannot be told ({error}): give schema= a pyarrow.Schema"
        ) from None
    fields = fields_of(cls) or []
    if untyped := [attribute for attribute, _ in fields if attribute not in hints]:
        raise ConfigurationError(f"{where}: {cls.__name__} does not say what type {untyped[0]!r} has")
    return [
        (column, _of_hint(hints[attribute], f"{where}: {cls.__name__}.{attribute}", within))
        for attribute, column in fields
    ]


def _endless(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} holds values of its own type, to any depth, and so is no column: take a class without this "
        "field, or give schema= a pyarrow.Schema"
    )


def column_type(hint: Any, where: str) -> Any:
    """Return Arrow's type for values of a type hint. Raises ConfigurationError."""
    return _of_hint(hint, where, ())


def _of_hint(hint: Any, where: str, within: tuple[Any, ...]) -> Any:
    import pyarrow as pa

    if (plain := unaliased(hint)) is not hint:
        if hint in within:
            raise _endless(where)
        return _of_hint(plain, where, (*within, hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        given = [extra for extra in arguments[1:] if isinstance(extra, pa.DataType)]
        return given[0] if given else _of_hint(arguments[0], where, within)
    if origin in (typing.Required, typing.NotRequired):
        return _of_hint(arguments[0], where, within)
    if origin in (typing.Union, types.UnionType):
        rest = [argument for argument in arguments if argument is not type(None)]
        if len(rest) == 1:
            return _of_hint(rest[0], where, within)
    if origin is typing.Literal and len({type(value) for value in arguments}) == 1:
        return _of_hint(type(arguments[0]), where, within)
    simple = {
        bool: pa.bool_(),
        int: pa.int64(),
        float: pa.float64(),
        str: pa.string(),
        bytes: pa.binary(),
        dt.datetime: pa.timestamp("us", "UTC"),
        dt.date: pa.date32(),
        # Spark's own for decimals of an unknown size.
        Decimal: pa.decimal128(38, 18),
    }
    if hint in simple:
        return simple[hint]
    if isinstance(origin, type):
        if issubclass(origin, Mapping) and len(arguments) == 2:
            return pa.map_(*(_of_hint(argument, where, within) for argument in arguments))
        if issubclass(origin, tuple) and (len(arguments) != 2 or arguments[1] is not ...):
            arguments = ()  # a tuple of parts that need not be alike
        if issubclass(origin, (Sequence, AbstractSet)) and arguments:
            return pa.list_(_of_hint(arguments[0], where, within))
    if isinstance(hint, type) and fields_of(hint) is not None:
        return pa.struct(_columns_of(hint, where, within))
    raise ConfigurationError(
        f"{where} is {getattr(hint, '__name__', hint)}, for which no column type is known: give schema= a "
        "pyarrow.Schema, or annotate the type as Annotated[..., pyarrow.int32()]"
    )
