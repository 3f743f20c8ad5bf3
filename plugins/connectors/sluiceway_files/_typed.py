"""Types of text formats in columns: the record type, its schema, and what Arrow's parsers can be trusted with."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from dataclasses import dataclass
from typing import Any, Final, NotRequired, TypedDict, get_type_hints

import msgspec
from msgspec import inspect

from sluiceway.errors import ConfigurationError
from sluiceway.serializers.models import is_pydantic

__all__ = [
    "Leaf",
    "Shape",
    "arrow_type",
    "certain",
    "check_record_type",
    "of_strings",
    "record_type_of",
    "shape_of",
    "targeted",
]


# ---- from a schema to a record type ------------------------------------------------------------------------


def check_record_type(given: Any) -> None:
    """Raise ConfigurationError for a class that msgspec, which decodes records, does not know."""
    if is_pydantic(given):
        raise ConfigurationError(
            f"type={given.__name__}: files are not decoded to models of pydantic: give a dataclass, a NamedTuple "
            "or a msgspec.Struct, or leave type= out and make models in a map()"
        )


def record_type_of(given: Any) -> tuple[Any, Any]:
    """Return a type for msgspec, and the schema if ``given`` is a ``pyarrow.Schema``.

    Raises:
        ConfigurationError: the schema has a type that text is not decoded to, or it is a class of pydantic's.
    """
    check_record_type(given)
    pa = sys.modules.get("pyarrow")
    if pa is None or not isinstance(given, pa.Schema):
        return given, None
    return _typed_dict("Row", given), given


def _typed_dict(name: str, fields: Any) -> Any:
    hints = {field.name: _hint(field.type, field.name) for field in fields}
    return TypedDict(  # type: ignore[operator]
        name,
        {
            field.name: NotRequired[hints[field.name] | None] if field.nullable else hints[field.name]
            for field in fields
        },
    )


def _hint(kind: Any, where: str) -> Any:
    import pyarrow as pa

    types = pa.types
    for check, hint in (
        (types.is_integer, int),
        (types.is_floating, float),
        (types.is_boolean, bool),
        (types.is_string, str),
        (types.is_large_string, str),
        (types.is_timestamp, dt.datetime),
        (types.is_date, dt.date),
        (types.is_time, dt.time),
        (types.is_duration, dt.timedelta),
        (types.is_decimal, decimal.Decimal),
        (types.is_binary, bytes),
        (types.is_large_binary, bytes),
    ):
        if check(kind):
            return hint
    if types.is_dictionary(kind):
        return _hint(kind.value_type, where)
    if types.is_list(kind) or types.is_large_list(kind):
        item = _hint(kind.value_type, where)
        return list[item | None] if kind.value_field.nullable else list[item]  # type: ignore[valid-type]
    if types.is_map(kind) and types.is_string(kind.key_type):
        item = _hint(kind.item_type, where)
        return dict[str, item | None] if kind.item_field.nullable else dict[str, item]  # type: ignore[valid-type]
    if types.is_struct(kind):
        return _typed_dict("Struct", [kind.field(i) for i in range(kind.num_fields)])
    raise ConfigurationError(f"type=: column {where!r} has the type {kind}, which text is not decoded to")


# ---- from a record type to what Arrow reads ----------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """Type of a column that Arrow's parsers read as msgspec does, once :func:`certain` has agreed.

    Attributes:
        kind: Python's type: int, float, str, bool, datetime or date; list or dict for a nested one.
        null: True if null in Arrow is None in the record, whether the field was null or missing.
        optional: True if the field can be None.
        children: of a nested one, by name; of a list, one without a name.
    """

    kind: type
    null: bool
    optional: bool
    children: tuple[tuple[str, Leaf], ...] = ()


Shape = tuple[tuple[str, Leaf], ...]
"""Name and type of each field."""

_PLAIN: Final[dict[type, type]] = {
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BoolType: bool,
    inspect.DateTimeType: dt.datetime,
    inspect.DateType: dt.date,
}


def shape_of(record_type: Any) -> Shape | None:
    """Return the fields of a record type; None if only msgspec decodes it: checks, tags, other names."""
    try:
        info = inspect.type_info(record_type)
    except TypeError:
        return None
    return _fields(info)


def _fields(info: Any) -> Shape | None:
    if not isinstance(
        info, inspect.DataclassType | inspect.TypedDictType | inspect.StructType | inspect.NamedTupleType
    ):
        return None
    if hasattr(info.cls, "__post_init__"):
        return None
    if isinstance(info, inspect.StructType) and (
        info.forbid_unknown_fields or info.array_like or info.tag is not None
    ):
        return None
    fields = []
    for field in info.fields:
        is_none = not field.required and (
            field.default is None
            or (isinstance(info, inspect.TypedDictType) and field.default is msgspec.NODEFAULT)
        )
        leaf = _leaf_of(field.type, is_none)
        if leaf is None or field.encode_name != field.name:
            return None
        fields.append((field.name, leaf))
    if isinstance(info, inspect.TypedDictType):
        order = list(get_type_hints(info.cls))  # that of the columns; msgspec sorts them by name
        fields.sort(key=lambda field: order.index(field[0]))
    return tuple(fields)


def _leaf_of(info: Any, is_none: bool) -> Leaf | None:
    """Return the type of a field; ``is_none``: a missing one is None."""
    optional = False
    if isinstance(info, inspect.UnionType):
        inner = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        if len(inner) != 1 or len(info.types) == 1:
            return None
        optional, info = len(info.types) > 1, inner[0]
    null = optional and is_none
    if (kind := _PLAIN.get(type(info))) is not None:
        # A type with bounds or a pattern has something in one of the attributes.
        limits = [getattr(info, name, None) for name in info.__struct_fields__]
        return Leaf(kind, null, optional) if not any(limit is not None for limit in limits) else None
    if isinstance(info, inspect.ListType) and info.min_length is None and info.max_length is None:
        item = _leaf_of(info.item_type, True)
        return None if item is None or _has_times(item) else Leaf(list, null, optional, (("", item),))
    if isinstance(info, inspect.NamedTupleType):
        return None
    children = _fields(info)
    if children is None or any(_has_times(leaf) for _, leaf in children):
        return None
    return Leaf(dict, null, optional, children)


def _has_times(leaf: Leaf) -> bool:
    return leaf.kind in (dt.datetime, dt.date) or any(_has_times(child) for _, child in leaf.children)


def arrow_type(leaf: Leaf) -> Any:
    """Return the type as which Arrow parses JSON: of times it is text, which is checked before it is converted."""
    import pyarrow as pa

    if leaf.kind is list:
        return pa.list_(arrow_type(leaf.children[0][1]))
    if leaf.kind is dict:
        return pa.struct([(name, arrow_type(child)) for name, child in leaf.children])
    plain = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    return plain.get(leaf.kind, pa.string())


def certain(array: Any, leaf: Leaf) -> bool:
    """Return whether values are what msgspec makes of the text.

    A null may be a value that is missing or has a default, and infinity is a number that msgspec refuses.
    """
    import pyarrow.compute as pc

    if array.null_count:
        if not leaf.null:
            return False
        array = pc.drop_null(array)
    if leaf.kind is float:
        return not _has_infinity(array)
    if leaf.kind is list:
        return certain(array.flatten(), leaf.children[0][1])
    if leaf.kind is dict:
        columns = zip(array.flatten(), leaf.children, strict=True)
        return all(certain(column, child) for column, (_, child) in columns)
    return True


# ---- text to columns ---------------------------------------------------------------------------------------

# What these patterns match, msgspec and Arrow read alike; of other text they disagree, or one of them refuses it.
_DATE: Final = r"[12][0-9]{3}-[01][0-9]-[0-3][0-9]"
_PATTERNS: Final[dict[type, str]] = {
    int: r"^(0|-?[1-9][0-9]{0,17})$",
    float: r"^-?((0\.|[1-9][0-9]*\.)[0-9]+([eE][-+]?[0-9]{1,2})?|[1-9][0-9]*)$|^0$",
    bool: r"^(?i:true|false|0|1)$",
    dt.datetime: rf"^{_DATE}[T ][0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[-+][01][0-9]:[0-5][0-9])$",
    dt.date: rf"^{_DATE}$",
}


def of_strings(array: Any, leaf: Leaf, *, has_null_text: bool = False) -> Any:
    """Return a column of text as one of the leaf's type; None if only msgspec can tell what the text means.

    Args:
        array: the text; null stays null.
        leaf: type of the column.
        has_null_text: whether no text and the text ``null`` are null, where the field can be None.

    Raises:
        pyarrow.ArrowException: likewise.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if leaf.kind is str:
        return array
    if leaf.optional and has_null_text:
        array = pc.if_else(pc.match_substring_regex(array, r"^(?i:null)?$"), None, array)
    matches = pc.all(pc.match_substring_regex(array, _PATTERNS[leaf.kind]), min_count=0).as_py()
    if not matches:
        return None
    if leaf.kind is bool:
        return pc.match_substring_regex(array, r"^(?i:true|1)$")
    kinds: dict[type, Any]
    kinds = {int: pa.int64(), float: pa.float64(), dt.datetime: pa.timestamp("us", "UTC"), dt.date: pa.date32()}
    array = array.cast(kinds[leaf.kind])
    return None if leaf.kind is float and _has_infinity(array) else array


def _has_infinity(array: Any) -> bool:
    """Return whether there is infinity, which Arrow makes of a number above the largest one."""
    import pyarrow.compute as pc

    return bool(pc.any(pc.is_inf(array)).as_py())


def targeted(arrays: list[Any], schema: Any) -> Any:
    """Return the columns as a record batch of ``schema``.

    Raises:
        pyarrow.ArrowException: a value does not fit.
    """
    import pyarrow as pa

    fitting = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(fitting, schema=schema)
