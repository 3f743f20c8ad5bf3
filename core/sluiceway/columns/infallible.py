"""Expressions that fail on no row, as the types of the columns say that they read.

Arrow fails on single values where it casts an operand to the type of the other one, as whole numbers beside floats
that are beyond 2**53. Rows that are left out before such an expression would have failed the job.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import reduce
from itertools import combinations
from typing import Any, Final

import narwhals as nw
import pyarrow as pa

__all__ = ["cannot_fail"]

_INT: Final = "int"
"""Integers of up to 32 bits, each of which a double can be."""
_LONG: Final = "long"
_UNSIGNED: Final = "unsigned long"
_FLOAT: Final = "float"
_DOUBLE: Final = "double"
_DECIMAL: Final = "decimal"
_BOOL: Final = "bool"
_TEXT: Final = "text"
_NULL: Final = "null"
_SMALL: Final = "constant that a float can be"
_NUMBER: Final = "constant that a double can be"
_MOMENT: Final = "constant time"

_NUMBERS: Final = frozenset({_INT, _LONG, _UNSIGNED, _FLOAT, _DOUBLE, _DECIMAL, _SMALL, _NUMBER})
_COMPARISONS: Final = frozenset({"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "is_between"})
_ARITHMETIC: Final = frozenset({"__add__", "__sub__", "__mul__"})
_LOGIC: Final = frozenset({"__and__", "__or__"})
_SEARCHES: Final = frozenset({"str.contains", "str.starts_with", "str.ends_with"})
_CASES: Final = frozenset({"str.to_lowercase", "str.to_uppercase"})

_TOGETHER: Final = {
    **{frozenset(pair): _LONG for pair in combinations((_INT, _LONG, _SMALL, _NUMBER), 2)},
    **{frozenset((one, _DOUBLE)): _DOUBLE for one in (_INT, _FLOAT, _SMALL, _NUMBER, _DECIMAL)},
    **{frozenset((one, _DECIMAL)): _DECIMAL for one in (_INT, _LONG, _UNSIGNED, _SMALL, _NUMBER)},
    frozenset((_FLOAT, _SMALL)): _FLOAT,
    frozenset((_FLOAT, _DECIMAL)): _DOUBLE,
}
"""Two kinds of operands of which no value fails, and what is made of them."""

_CONSTANTS: Final[dict[type, str]] = {
    bool: _BOOL,
    float: _DOUBLE,
    str: _TEXT,
    bytes: "binary",
    type(None): _NULL,
    dt.datetime: _MOMENT,
    dt.date: "date32[day]",
    Decimal: _DECIMAL,
}

_DTYPES: Final[tuple[tuple[Any, str], ...]] = (
    (nw.Int64, _LONG),
    (nw.Float64, _DOUBLE),
    (nw.String, _TEXT),
    (nw.Boolean, _BOOL),
    (nw.Date, "date32[day]"),
)


def cannot_fail(expressions: Iterable[nw.Expr], schema: pa.Schema) -> bool:
    """Return whether expressions fail on no row, so that rows may be left out before.

    Args:
        expressions: as they are given, for these columns.
        schema: the columns that they read.
    """
    try:
        return all(_kind(one._nodes, schema) is not None for one in expressions)
    except (AttributeError, KeyError, TypeError, ValueError):  # the attributes are not public
        return False


def _kind(nodes: Sequence[Any], schema: pa.Schema) -> str | None:
    """Return the kind of the values of an expression; None: it may fail, or is not known."""
    first, *rest = nodes
    kind = _first(first, schema)
    for node in rest:
        kind = None if kind is None else _then(node, kind, schema)
    return kind


def _first(node: Any, schema: pa.Schema) -> str | None:
    if node.name == "col":
        (name,) = node.kwargs["names"]
        return _kind_of(schema.field(name).type)
    if node.name == "lit":
        dtype = node.kwargs["dtype"]
        if dtype is None:
            return _constant(node.kwargs["value"])
        return next((kind for known, kind in _DTYPES if dtype == known), None)
    kinds = [_operand(one, node, schema) for one in node.exprs]
    if node.name in ("all_horizontal", "any_horizontal"):
        return _BOOL if set(kinds) == {_BOOL} else None
    if node.name == "when_then":
        return _joined(kinds[1:]) if kinds[0] == _BOOL else None
    return _joined(kinds) if node.name == "coalesce" else None


def _then(node: Any, kind: str, schema: pa.Schema) -> str | None:
    """Return the kind of what a node makes of values of a kind."""
    name = node.name
    if name == "alias":
        return kind
    if name == "is_null":
        return _BOOL
    if name == "is_in":
        return _BOOL if _is_among(kind, node.kwargs["other"]) else None
    if name == "fill_null":
        # Narwhals casts the constant to the type of the column.
        return kind if node.kwargs["strategy"] is None and not isinstance(node.exprs[0], nw.Expr) else None
    if name in _COMPARISONS:
        return None if None in [_together(kind, _operand(one, node, schema)) for one in node.exprs] else _BOOL
    if name in _ARITHMETIC:
        made = _together(kind, _operand(node.exprs[0], node, schema))
        return made if made in _NUMBERS else None
    if name in _LOGIC:
        return _BOOL if kind == _operand(node.exprs[0], node, schema) == _BOOL else None
    if name in _SEARCHES:
        return _BOOL if kind == _TEXT and not any(isinstance(one, nw.Expr) for one in node.exprs) else None
    return _ONE_OPERAND.get(name, {}).get(kind)


_ONE_OPERAND: Final[dict[str, dict[str, str]]] = {
    "__invert__": {_BOOL: _BOOL},
    **{name: dict.fromkeys(_NUMBERS, _BOOL) for name in ("is_nan", "is_finite")},
    **{name: {_TEXT: _TEXT} for name in _CASES},
    "str.len_chars": {_TEXT: _INT},
}


def _operand(given: Any, node: Any, schema: pa.Schema) -> str | None:
    if isinstance(given, nw.Expr):
        return _kind(given._nodes, schema)
    if isinstance(given, str) and not node.str_as_lit:
        return _kind_of(schema.field(given).type)
    return _constant(given)


def _constant(value: Any) -> str | None:
    if type(value) is int:
        return _SMALL if abs(value) <= 1 << 24 else _NUMBER if abs(value) <= 1 << 53 else _LONG
    return _CONSTANTS.get(type(value))


def _joined(kinds: Sequence[str | None]) -> str | None:
    return reduce(_together, kinds)


def _together(one: str | None, other: str | None) -> str | None:
    """Return the kind of what is made of two operands; None: a value of one may fail."""
    if one is None or other is None:
        return None
    if one == other:
        return _LONG if one == _INT else one  # signed and unsigned ones become int64
    if _NULL in (one, other):
        return one if other == _NULL else other
    if _MOMENT in (one, other):
        time = one if other == _MOMENT else other
        # Fails where microseconds of 64 bits end, some 290,000 years from now: taken for never.
        return time if time.startswith("timestamp") else None
    return _TOGETHER.get(frozenset((one, other)))


def _is_among(kind: str, values: Any) -> bool:
    """Return whether is_in() fails for no value of a kind: Arrow casts these to the type of the values."""
    among = _joined(list(map(_constant, values))) if values else None
    if among == _MOMENT:
        return kind.startswith("timestamp")
    if kind in (_INT, _LONG):
        return among in (_SMALL, _NUMBER, _LONG)
    return kind == among != _DECIMAL or (kind, among) == (_FLOAT, _DOUBLE)


def _kind_of(kind: Any) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return _INT if kind.bit_width <= 32 else _LONG if pa.types.is_signed_integer(kind) else _UNSIGNED
    if pa.types.is_decimal(kind):
        return _DECIMAL
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _TEXT
    known = {pa.float32(): _FLOAT, pa.float64(): _DOUBLE, pa.bool_(): _BOOL, pa.null(): _NULL}
    return known.get(kind, str(kind))
