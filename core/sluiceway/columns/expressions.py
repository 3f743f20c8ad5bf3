"""Compilation of simple expressions to calls of Arrow's kernels.

Narwhals takes 0.3 to 0.4 ms for a step, however few rows a batch has; the kernels take as long for some 100,000
rows. An expression of columns, constants, arithmetic, comparisons, logic and the usual operations of texts is
therefore compiled once, to the kernels that Narwhals calls for it. Others are left to Narwhals.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final, NamedTuple

import narwhals as nw
import pyarrow as pa
import pyarrow.compute

__all__ = ["Compiled", "all_compiled"]

_compute: Any = pyarrow.compute

_NAME_OF_CONSTANTS: Final = "literal"
_CONSTANTS: Final = (bool, int, float, str, bytes, Decimal, dt.datetime, dt.date, dt.timedelta)


class Compiled(NamedTuple):
    """Expression as a function.

    Attributes:
        name: of the column that it makes.
        values: returns the column, an array, for a record batch.
    """

    name: str
    values: Callable[[pa.RecordBatch], Any]


def all_compiled(expressions: Iterable[nw.Expr]) -> list[Compiled] | None:
    """Return the expressions as functions; None: one of them has to be left to Narwhals."""
    found = []
    for expression in expressions:
        one = _compiled(expression)
        if one is None:
            return None
        found.append(one)
    return found


def _compiled(expression: nw.Expr) -> Compiled | None:
    try:
        first, *rest = expression._nodes
        if first.name != "col":
            return None
        (name,) = first.kwargs["names"]
        values = _column(name)
        for node in rest:
            if node.name == "alias":
                name = node.kwargs["name"]
                continue
            then = _applied(node, values)
            if then is None:
                return None
            values = then
            if node.name.startswith("__r"):  # a constant stands to the left, and gives its name
                name = _NAME_OF_CONSTANTS
    except (AttributeError, KeyError, ValueError):  # the attributes are not public, and may have been renamed
        return None
    return Compiled(name, values)


def _column(name: str) -> Callable[[pa.RecordBatch], Any]:
    return lambda data: data.column(name)


def _applied(node: Any, left: Callable[[pa.RecordBatch], Any]) -> Callable[[pa.RecordBatch], Any] | None:
    """Return the function of a node of an expression, of what stands to its left; None: it has none here."""
    options = node.kwargs
    if options.keys() != _OPTIONS.get(node.name, frozenset()):
        return None
    if not node.exprs:
        unary = _UNARY.get(node.name)
        return None if unary is None else lambda data: unary(left(data), **options)
    (operand,) = node.exprs
    constant = _constant(operand, node)
    if node.name in _OF_TEXTS:
        of_texts = _OF_TEXTS[node.name]
        text = None if constant is None else constant.as_py()
        return (lambda data: of_texts(left(data), text, **options)) if isinstance(text, str) else None
    binary = _BINARY.get(node.name)
    if binary is None:
        return None
    if constant is not None:
        return lambda data: binary(left(data), constant)
    right = _compiled(operand) if isinstance(operand, nw.Expr) else None
    if right is None:
        return None
    values = right.values
    return lambda data: binary(left(data), values(data))


def _constant(operand: Any, node: Any) -> Any:
    """Return an operand as an Arrow scalar; None: it is no constant."""
    if isinstance(operand, nw.Expr):
        only, *rest = operand._nodes
        if rest or only.name != "lit" or only.kwargs["dtype"] is not None:
            return None
        operand = only.kwargs["value"]
    elif isinstance(operand, str) and not node.str_as_lit:
        return None
    value: Any = operand
    if not isinstance(value, _CONSTANTS):
        return None
    made: Any = pa.array([value])
    return made[0]


def _divided(left: Any, right: Any) -> Any:
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        left, right = left.cast(pa.float64(), safe=False), right.cast(pa.float64(), safe=False)
    return _compute.divide(left, right)


def _contains(texts: Any, pattern: str, *, literal: bool) -> Any:
    return (_compute.match_substring if literal else _compute.match_substring_regex)(texts, pattern)


def _split(texts: Any, *, by: str) -> Any:
    return _compute.split_pattern(texts, by)


_OPTIONS: Final = {"str.contains": {"literal"}, "str.split": {"by"}}
"""Names of the options of the operations that have some; others with options are left to Narwhals."""

_UNARY: Final[dict[str, Callable[..., Any]]] = {
    "__neg__": _compute.negate,
    "__invert__": _compute.invert,
    "is_null": _compute.is_null,
    "str.len_chars": _compute.utf8_length,
    "str.split": _split,
    "str.to_lowercase": _compute.utf8_lower,
    "str.to_uppercase": _compute.utf8_upper,
}

_OF_TEXTS: Final[dict[str, Callable[..., Any]]] = {
    "str.contains": _contains,
    "str.ends_with": _compute.ends_with,
    "str.starts_with": _compute.starts_with,
}
"""Operations of a column of texts and a constant text."""

_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "__add__": _compute.add,
    "__sub__": _compute.subtract,
    "__rsub__": lambda left, right: _compute.subtract(right, left),
    "__mul__": _compute.multiply,
    "__truediv__": _divided,
    "__rtruediv__": lambda left, right: _divided(right, left),
    "__eq__": _compute.equal,
    "__ne__": _compute.not_equal,
    "__lt__": _compute.less,
    "__le__": _compute.less_equal,
    "__gt__": _compute.greater,
    "__ge__": _compute.greater_equal,
    "__and__": _compute.and_kleene,
    "__or__": _compute.or_kleene,
}
