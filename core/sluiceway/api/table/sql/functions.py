"""Functions of a query: what each takes, and the expression that it becomes."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import narwhals as nw
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from sluiceway.api.table.sql.positions import RefusedError
from sluiceway.api.table.sql.types import (
    BOOLEAN,
    DOUBLE,
    INTEGER,
    ORDERED,
    TEXT,
    Typed,
    as_double,
    as_text,
    has_decimal,
    literal,
    unified,
    widened,
)

__all__ = ["FUNCTIONS", "Call", "like", "shifted"]


@dataclass(frozen=True)
class Call:
    """Translation of a function.

    Attributes:
        name: the function, as it is written.
        make: makes the result of the part of the query and the arguments that are there.
        parts: sqlglot's names of the arguments, in their order.
        ignored: sqlglot's names of arguments that need no translation.
    """

    name: str
    make: Callable[[exp.Expr, list[Typed]], Typed]
    parts: tuple[str, ...] = ("this",)
    ignored: tuple[str, ...] = ()


def _made(node: exp.Expr, expr: nw.Expr, kind: Any, *given: Typed) -> Typed:
    return Typed(expr, kind, node, constant=all(one.constant for one in given))


def _number(given: Typed, name: str) -> Typed:
    if given.kind == "null":
        return literal(given.node, None, DOUBLE)
    if given.kind not in ("integer", "double"):
        raise RefusedError(given.node, f"{name} takes a number, not {given}: CAST(... AS DOUBLE) converts")
    return widened(given)


def _whole(given: Typed, name: str, least: int) -> int:
    if not isinstance(given.value, int) or isinstance(given.value, bool) or given.value < least:
        raise RefusedError(
            given.node, f"{name} takes a whole number from {least} on that is written here, not {given}"
        )
    return given.value


def _written(given: Typed, name: str) -> str:
    if not isinstance(given.value, str):
        raise RefusedError(given.node, f"{name} takes a text that is written here, in quotes, not {given}")
    return given.value


def _column_text(given: Typed, name: str) -> nw.Expr:
    if given.constant:
        raise RefusedError(given.node, f"{name} takes a text with a column in it, not the constant {given}")
    return as_text(given, name).expr


def _abs(node: exp.Expr, args: list[Typed]) -> Typed:
    number = args[0] if has_decimal(args) else _number(args[0], "ABS")
    return _made(node, number.expr.abs(), number.type, number)


def _rounding(name: str, method: Callable[[nw.Expr], nw.Expr]) -> Call:
    def make(node: exp.Expr, args: list[Typed]) -> Typed:
        number = _number(args[0], name)
        return _made(node, method(as_double(number).expr), DOUBLE, number)

    return Call(name, make)


def _round(node: exp.Expr, args: list[Typed]) -> Typed:
    number = _number(args[0], "ROUND")
    if number.kind == "integer":
        return number
    return _made(node, number.expr.round(0), DOUBLE, number)


def _text(name: str, method: Callable[[nw.Expr], nw.Expr]) -> Call:
    def make(node: exp.Expr, args: list[Typed]) -> Typed:
        text = as_text(args[0], name)
        return _made(node, method(text.expr), TEXT, text)

    return Call(name, make)


def _length(node: exp.Expr, args: list[Typed]) -> Typed:
    text = as_text(args[0], "LENGTH")
    return _made(node, text.expr.str.len_chars().cast(nw.Int64), INTEGER, text)


def _substring(node: exp.Expr, args: list[Typed]) -> Typed:
    text = as_text(args[0], "SUBSTRING")
    start = _whole(args[1], "SUBSTRING", 1) - 1
    length = _whole(args[2], "SUBSTRING", 0) if args[2:] else None
    return _made(node, text.expr.str.slice(start, length), TEXT, text)


def _left(node: exp.Expr, args: list[Typed]) -> Typed:
    text = as_text(args[0], "LEFT")
    return _made(node, text.expr.str.slice(0, _whole(args[1], "LEFT", 0)), TEXT, text)


def _replace(node: exp.Expr, args: list[Typed]) -> Typed:
    if not args[2:]:
        raise RefusedError(node, "REPLACE takes a text, what to replace and by what")
    text = as_text(args[0], "REPLACE")
    old, new = _written(args[1], "REPLACE"), _written(args[2], "REPLACE")
    if not old:
        raise RefusedError(args[1].node, "REPLACE takes at least one character to replace")
    expr = _column_text(text, "REPLACE")
    return _made(node, expr.str.replace_all(old, new, literal=True), TEXT, text)


def _searching(name: str, pattern: Callable[[str], str]) -> Callable[[exp.Expr, list[Typed]], Typed]:
    def make(node: exp.Expr, args: list[Typed]) -> Typed:
        text = _column_text(args[0], name)
        found = text.str.contains(f"(?s){pattern(re.escape(_written(args[1], name)))}")
        return _made(node, found, BOOLEAN, args[0])

    return make


def _lower(text: str) -> str:
    return str(pc.utf8_lower(pa.scalar(text)))  # unlike Python's lower(), one letter for each


def like(node: exp.Expr, text: Typed, pattern: Typed, escape: str | None, *, fold: bool) -> Typed:
    """Return LIKE, or ILIKE, with a pattern that is written in the query."""
    name = "ILIKE" if fold else "LIKE"
    expr, wanted = _column_text(text, name), _written(pattern, name)
    if fold:
        # Both in lower case: the flag `i` of RE2 also takes for equal what LOWER keeps apart, as two small sigmas.
        expr, wanted, escape = expr.str.to_lowercase(), _lower(wanted), escape and _lower(escape)
    signs, made = iter(wanted), ""
    for sign in signs:
        if sign == escape:
            following = next(signs, None)
            if following is None:
                raise RefusedError(pattern.node, f"the pattern of {name} ends in its escape character")
            made += re.escape(following)
        else:
            made += {"%": ".*", "_": "."}.get(sign, re.escape(sign))
    # In the syntax of RE2, which Arrow uses: \z is the end of the text, and `s` lets a dot match line breaks.
    return _made(node, expr.str.contains(rf"(?s)\A{made}\z"), BOOLEAN, text)


def _matches(node: exp.Expr, args: list[Typed]) -> Typed:
    text, pattern = _column_text(args[0], "REGEXP_MATCHES"), _written(args[1], "REGEXP_MATCHES")
    try:
        pc.match_substring_regex(pa.scalar(""), pattern)
    except pa.ArrowInvalid as error:
        raise RefusedError(args[1].node, str(error)) from None
    return _made(node, text.str.contains(pattern), BOOLEAN, args[0])


def _concat(node: exp.Expr, args: list[Typed]) -> Typed:
    texts = [
        replace(one, expr=one.expr.cast(nw.String), type=TEXT) if one.kind == "integer" else as_text(one, "CONCAT")
        for one in args
    ]
    return _made(node, nw.concat_str(*(one.expr for one in texts), ignore_nulls=True), TEXT, *texts)


_FIELDS: Final[dict[str, tuple[bool, Callable[[nw.Expr], nw.Expr]]]] = {
    "YEAR": (True, lambda e: e.dt.year()),
    "MONTH": (True, lambda e: e.dt.month()),
    "DAY": (True, lambda e: e.dt.day()),
    "DOY": (True, lambda e: e.dt.ordinal_day()),
    "ISODOW": (True, lambda e: e.dt.weekday()),
    "HOUR": (False, lambda e: e.dt.hour()),
    "MINUTE": (False, lambda e: e.dt.minute()),
    "SECOND": (False, lambda e: e.dt.second()),
}
"""Fields of EXTRACT, and whether a date has them."""


def time_of(given: Typed, name: str) -> nw.Expr:
    """Return a timestamp without a zone, or in UTC. Raises RefusedError: it is none."""
    if given.kind == "instant" and given.type.tz != "UTC":
        raise RefusedError(given.node, f"{name} depends on a zone, and {given} is not in UTC")
    if given.kind not in ("timestamp", "instant"):
        raise RefusedError(given.node, f"{name} takes a timestamp, not {given}")
    return given.expr


def extract(node: exp.Expr, field: str, given: Typed) -> Typed:
    """Return a field of a date or timestamp."""
    if field not in _FIELDS:
        raise RefusedError(node, f"EXTRACT has {', '.join(_FIELDS)}, not {field}")
    of_date, method = _FIELDS[field]
    expr = widened(given).expr if of_date and given.kind == "date" else time_of(given, field)
    return _made(node, method(expr).cast(nw.Int64), INTEGER, given)


def _field(name: str) -> Call:
    return Call(name, lambda node, args: extract(node, name, args[0]))


_TRUNCATED: Final = {
    "MICROSECOND": "1us",
    "MILLISECOND": "1ms",
    "SECOND": "1s",
    "MINUTE": "1m",
    "HOUR": "1h",
    "DAY": "1d",
    "WEEK": "7d",
    "MONTH": "1mo",
    "QUARTER": "1q",
    "YEAR": "1y",
}


def truncated(node: exp.Expr, unit: str, given: Typed) -> Typed:
    """Return a timestamp at the begin of its second, hour and so on."""
    if unit not in _TRUNCATED:
        raise RefusedError(node, f"DATE_TRUNC has {', '.join(_TRUNCATED)}, not {unit}")
    expr = time_of(given, "DATE_TRUNC")
    if unit == "WEEK":  # from Monday on, as in ISO 8601; days are counted from a Thursday
        return _made(node, expr.dt.offset_by("-4d").dt.truncate("7d").dt.offset_by("4d"), given.type, given)
    return _made(node, expr.dt.truncate(_TRUNCATED[unit]), given.type, given)


_SECONDS: Final = {"MILLISECOND": 0.001, "SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800}


def interval_of(node: exp.Interval) -> dt.timedelta:
    """Return the length of an interval that is written in the query. Raises RefusedError: none is fixed."""
    unit = str(node.args.get("unit") or "").upper().removesuffix("S")
    if unit not in _SECONDS:
        raise RefusedError(node, f"an interval is of a number and {', '.join(_SECONDS)}, not {node.sql('duckdb')}")
    given = node.this
    try:
        number = int(given.name) if isinstance(given, exp.Literal) else None
    except ValueError:
        number = None
    if number is None:
        shown = node.sql("duckdb")
        raise RefusedError(node, f"an interval takes a whole number, as in INTERVAL '10' {unit}, not {shown}")
    try:
        if unit == "MILLISECOND":
            return dt.timedelta(milliseconds=number)
        return dt.timedelta(seconds=number * _SECONDS[unit])
    except OverflowError:
        raise RefusedError(node, f"{node.sql('duckdb')} is longer than {dt.timedelta.max.days} days") from None


def shifted(node: exp.Expr, given: Typed, interval: exp.Interval, *, back: bool) -> Typed:
    """Return a timestamp that is an interval later, or earlier."""
    if given.kind not in ("timestamp", "instant"):
        raise RefusedError(node, f"an interval is added to a timestamp, not to {given}")
    by = nw.lit(interval_of(interval))
    kind: Any = given.type
    # An interval has microseconds, and Arrow computes in the finer unit of both.
    kind = kind if kind.unit == "ns" else pa.timestamp("us", kind.tz)
    return _made(node, given.expr - by if back else given.expr + by, kind, given)


def _nullif(node: exp.Expr, args: list[Typed]) -> Typed:
    one, other = unified(args, "NULLIF")
    # Whole numbers beside others are compared as DOUBLE, which may round them. The result is the value itself.
    given = one if args[0].kind == "null" else args[0]
    given = widened(given) if given.kind == "text" else given
    # NULLIF returns the first value also where the comparison is unknown.
    equal = (one.expr == other.expr).fill_null(False)
    return _made(node, nw.when(~equal).then(given.expr), given.type, *args)


def _coalesce(node: exp.Expr, args: list[Typed]) -> Typed:
    values = unified(args, "COALESCE")
    return _made(node, nw.coalesce(*(one.expr for one in values)), values[0].type, *args)


def _extreme(name: str, goes_first: Callable[[nw.Expr, nw.Expr], nw.Expr]) -> Call:
    """Return the function of the one value of several that goes before all others; NULLs are left out."""

    def make(node: exp.Expr, args: list[Typed]) -> Typed:
        values = unified(args, name)
        kind = values[0].kind
        if kind not in ORDERED and not has_decimal(values):
            raise RefusedError(values[0].node, f"{name} takes numbers, texts or times, not {values[0]}")
        first, *others = (one.expr for one in values)
        for other in others:
            before = goes_first(first, other) | other.is_null()
            if kind == "double":
                # NaN is greater than all numbers here, as in DuckDB.
                nan, given = (first, other) if name == "GREATEST" else (other, first)
                before |= nan.is_nan() & ~given.is_null()
            first = nw.when(before).then(first).otherwise(other)
        return _made(node, first, values[0].type, *args)

    return Call(name, make, ("this", "expressions"), ("ignore_nulls",))


FUNCTIONS: Final[dict[type[exp.Expr], Call]] = {
    exp.Abs: Call("ABS", _abs),
    exp.Ceil: _rounding("CEIL", lambda e: e.ceil()),
    exp.Floor: _rounding("FLOOR", lambda e: e.floor()),
    exp.Round: Call("ROUND", _round),
    exp.Upper: _text("UPPER", lambda e: e.str.to_uppercase()),
    exp.Lower: _text("LOWER", lambda e: e.str.to_lowercase()),
    exp.Trim: _text("TRIM", lambda e: e.str.strip_chars(" ")),
    exp.Length: Call("LENGTH", _length),
    exp.Substring: Call("SUBSTRING", _substring, ("this", "start", "length")),
    exp.Left: Call("LEFT", _left, ("this", "expression")),
    exp.Replace: Call("REPLACE", _replace, ("this", "expression", "replacement")),
    exp.StartsWith: Call("STARTS_WITH", _searching("STARTS_WITH", r"\A{}".format), ("this", "expression")),
    exp.EndsWith: Call("ENDS_WITH", _searching("ENDS_WITH", r"{}\z".format), ("this", "expression")),
    exp.Contains: Call("CONTAINS", _searching("CONTAINS", "{}".format), ("this", "expression"), ("json_scope",)),
    exp.Year: _field("YEAR"),
    exp.Month: _field("MONTH"),
    exp.Day: _field("DAY"),
    exp.Hour: _field("HOUR"),
    exp.Minute: _field("MINUTE"),
    exp.Second: _field("SECOND"),
    exp.DayOfWeekIso: _field("ISODOW"),
    exp.DayOfYear: Call("DAYOFYEAR", lambda node, args: extract(node, "DOY", args[0])),
    exp.RegexpLike: Call("REGEXP_MATCHES", _matches, ("this", "expression")),
    exp.Concat: Call("CONCAT", _concat, ("expressions",), ("safe", "coalesce")),
    exp.Greatest: _extreme("GREATEST", lambda a, b: a >= b),
    exp.Least: _extreme("LEAST", lambda a, b: a <= b),
    exp.Nullif: Call("NULLIF", _nullif, ("this", "expression")),
    exp.Coalesce: Call("COALESCE", _coalesce, ("this", "expressions"), ("is_null",)),
}
"""Functions by sqlglot's classes; EXTRACT, DATE_TRUNC, CAST and CASE are apart."""
