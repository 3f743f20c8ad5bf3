"""Columns that an expression reads, and the comparisons that its result implies, for a source to read less.

Both are read off the nodes of a Narwhals expression. Their attributes are not public: an expression that cannot be
read needs all columns and implies nothing, so that a source reads more than it must, and never too little.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import narwhals as nw

from sluiceway.connector import Alternatives, Comparison

__all__ = ["both", "implied", "kept_names", "named_by", "read_by", "renamed", "without"]

_KINDS: Final = ("COL", "LITERAL", "ELEMENTWISE")
_OPERATORS: Final = {"__eq__": "=", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_MIRRORED: Final = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_CLOSED: Final = {"both": (">=", "<="), "left": (">=", "<"), "right": (">", "<="), "none": (">", "<")}
_VALUES: Final = (bool, int, float, str, bytes, dt.date, dt.datetime, Decimal)
_MOST_ALTERNATIVES: Final = 16
_DTYPES: Final[tuple[tuple[Any, type], ...]] = (
    (nw.Int64, int),
    (nw.Float64, float),
    (nw.String, str),
    (nw.Boolean, bool),
    (nw.Date, dt.date),
)


def read_by(expressions: Iterable[nw.Expr]) -> frozenset[str] | None:
    """Return the names of the columns that expressions read; None: they cannot be told."""
    found: set[str] = set()
    try:
        for expression in expressions:
            for node in expression._nodes:
                if node.kind.name not in _KINDS or any(isinstance(v, nw.Expr) for v in node.kwargs.values()):
                    return None
                if node.kind.name == "COL":
                    found.update(node.kwargs["names"])
                inner = [one for one in node.exprs or () if isinstance(one, nw.Expr)]
                if not node.str_as_lit:
                    found.update(one for one in node.exprs or () if isinstance(one, str))
                if (below := read_by(inner)) is None:
                    return None
                found |= below
    except (AttributeError, KeyError, TypeError):
        return None
    return frozenset(found)


def kept_names(expressions: Iterable[nw.Expr]) -> dict[str, str] | None:
    """Return by the names of results the columns that they are; None: an expression is more than a column."""
    found: dict[str, str] = {}
    try:
        for expression in expressions:
            first, *rest = expression._nodes
            names = list(first.kwargs["names"]) if first.name == "col" else []
            if not names or any(node.name != "alias" for node in rest):
                return None
            if rest:
                (name,) = names
                found[rest[-1].kwargs["name"]] = name
            else:
                found |= {name: name for name in names}
    except (AttributeError, KeyError, ValueError):
        return None
    return found


def named_by(expressions: Iterable[nw.Expr]) -> set[str] | None:
    """Return names among which are all that expressions give to their results; None: they cannot be told."""
    # Narwhals' name of a constant without an alias.
    found: set[str] = {"literal"}
    try:
        for expression in expressions:
            aliases = [node.kwargs["name"] for node in expression._nodes if node.name == "alias"]
            read = read_by([expression])
            if read is None:
                return None
            found |= {aliases[-1]} if aliases else read
    except (AttributeError, KeyError):
        return None
    return found


def renamed(held: Alternatives | None, names: Mapping[str, str]) -> Alternatives | None:
    """Return what holds, said of columns by their names before: ``names`` are these by the names after."""
    if held is None:
        return None
    return _known(
        tuple((names[name], operator, value) for name, operator, value in each if name in names) for each in held
    )


def without(held: Alternatives | None, names: Collection[str]) -> Alternatives | None:
    """Return what holds of other columns than some."""
    if held is None:
        return None
    return _known(tuple(one for one in each if one[0] not in names) for each in held)


def _known(alternatives: Iterable[tuple[Comparison, ...]]) -> Alternatives | None:
    found = tuple(alternatives)
    return found if all(found) else None


def implied(predicates: Sequence[nw.Expr]) -> Alternatives | None:
    """Return comparisons that hold for each row for which all predicates are true; None: nothing is known."""
    found: Alternatives | None = None
    for predicate in predicates:
        try:
            found = both(found, _of_nodes(predicate._nodes))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return found


def both(one: Alternatives | None, other: Alternatives | None) -> Alternatives | None:
    """Return what holds where two things hold."""
    if one is None or other is None:
        return other if one is None else one
    if len(one) * len(other) > _MOST_ALTERNATIVES:
        return one  # less is known, which is never wrong
    return tuple((*left, *right) for left in one for right in other)


def _of_nodes(nodes: Sequence[Any]) -> Alternatives | None:
    """Return what a chain of nodes implies: a column or value, then operators on what came before."""
    last = nodes[-1]
    before = nodes[:-1]
    if last.name == "all_horizontal" and not before:
        if last.kwargs["ignore_nulls"]:  # null would be true
            return None
        found: Alternatives | None = None
        for inner in last.exprs:
            found = both(found, _of_nodes(inner._nodes))
        return found
    if last.name == "when_then" and not before and len(last.exprs) == 2:
        # Null where the condition is not true.
        condition, value = (_of_nodes(inner._nodes) for inner in last.exprs)
        return both(condition, value)
    # Of AND each side alone is implied; OR implies something if both sides do.
    if last.name in ("__and__", "__or__"):
        (inner,) = last.exprs
        left = _of_nodes(before)
        right = _of_nodes(inner._nodes) if isinstance(inner, nw.Expr) else None
        if last.name == "__and__":
            return both(left, right)
        if left is None or right is None or len(left) + len(right) > _MOST_ALTERNATIVES:
            return None
        return (*left, *right)
    comparisons = _compared(last, before)
    return None if comparisons is None else (comparisons,)


def _compared(last: Any, before: Sequence[Any]) -> tuple[Comparison, ...] | None:
    if len(before) != 1:
        return None
    (first,) = before
    if operator := _OPERATORS.get(last.name):
        (inner,) = last.exprs
        if first.name == "lit" and isinstance(inner, nw.Expr) and len(inner._nodes) == 1:
            name, value = _column(inner._nodes[0]), _literal(first)
            operator = _MIRRORED[operator]
        else:
            name, value = _column(first), _value(inner, last)
        return None if name is None or value is None else ((name, operator, value),)
    name = _column(first)
    if name is None:
        return None
    if last.name == "is_between":
        low, high = (_value(inner, last) for inner in last.exprs)
        under, over = _CLOSED[last.kwargs["closed"]]
        return None if low is None or high is None else ((name, under, low), (name, over, high))
    if last.name == "is_in":
        values = last.kwargs["other"]
        if not isinstance(values, (list, tuple, set, frozenset)) or not all(map(_is_plain, values)):
            return None
        return ((name, "in", tuple(values)),)
    return None


def _column(node: Any) -> str | None:
    if node.name != "col" or len(node.kwargs["names"]) != 1:
        return None
    return str(next(iter(node.kwargs["names"])))


def _literal(node: Any) -> Any:
    value = node.kwargs["value"]
    if node.name != "lit" or not _is_plain(value):
        return None
    return value if _is_as_written(value, node.kwargs["dtype"]) else None


def _is_as_written(value: Any, dtype: Any) -> bool:
    """Return whether a literal of a type is the value itself, with nothing cut off."""
    if dtype is None:
        return True
    if isinstance(dtype, nw.Datetime):
        # The others would cut off microseconds.
        return type(value) is dt.datetime and dtype.time_unit in ("us", "ns") and _zoned(value) == _zoned(dtype)
    return any(dtype == known and type(value) is kind for known, kind in _DTYPES)


def _zoned(time: Any) -> bool:
    return (time.tzinfo if isinstance(time, dt.datetime) else time.time_zone) is not None


def _value(given: Any, node: Any) -> Any:
    """Return a literal that a node has as an operand; None: it is none."""
    if isinstance(given, nw.Expr):
        return _literal(given._nodes[0]) if len(given._nodes) == 1 and given._nodes[0].name == "lit" else None
    if isinstance(given, str) and not node.str_as_lit:
        return None  # the name of a column
    return given if _is_plain(given) else None


def _is_plain(value: Any) -> bool:
    # NaN is left out: it is equal to nothing here, and to itself elsewhere.
    return type(value) in _VALUES and value == value
