"""Expressions of a query with their types, and the conversions between types that SQL makes by itself."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import narwhals as nw
import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.positions import RefusedError

__all__ = [
    "BOOLEAN",
    "DATE",
    "DOUBLE",
    "INTEGER",
    "ORDERED",
    "TEXT",
    "Typed",
    "as_boolean",
    "as_double",
    "as_text",
    "comparable_decimals",
    "has_decimal",
    "literal",
    "number_pair",
    "too_many_digits",
    "unified",
]

INTEGER: Final = pa.int64()
DOUBLE: Final = pa.float64()
TEXT: Final = pa.string()
BOOLEAN: Final = pa.bool_()
DATE: Final = pa.date32()

ORDERED: Final = ("integer", "double", "text", "date", "timestamp", "instant")
"""Kinds of types whose values are less or greater than others; decimals are, too."""

_EXACT_WIDTH: Final = 32
"""Bits of an integer that each fit into a DOUBLE."""

_MOST_DIGITS: Final = 38

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MOST_MICROSECONDS: Final = ((1 << 63) - 1) // 1000
_NANOSECONDS: Final = re.compile(r"[.,]\d{6}0*[1-9]")

_PLAIN: Final[tuple[tuple[Any, Any], ...]] = (
    (INTEGER, nw.Int64),
    (DOUBLE, nw.Float64),
    (TEXT, nw.String),
    (BOOLEAN, nw.Boolean),
    (DATE, nw.Date),
)


@dataclass(frozen=True)
class Typed:
    """Expression with its type.

    Attributes:
        expr: the expression of Narwhals.
        type: type of its values.
        node: the part of the query that it is.
        value: value of a literal; None: it is no literal, or NULL.
        constant: whether it looks at no column.
    """

    expr: nw.Expr
    type: Any
    node: exp.Expr
    value: Any = None
    constant: bool = False

    @property
    def kind(self) -> str:
        """Group of types that one rule is for: ``integer``, ``double``, ``text`` and so on, or ``other``."""
        return kind_of(self.type)

    def __str__(self) -> str:
        shown = self.node.name if isinstance(self.node, exp.Column) else self.node.sql("duckdb")
        return f"{shown} ({'NULL' if self.kind == 'null' else self.type})"


def kind_of(kind: Any) -> str:
    """Return the group of types that one rule is for."""
    if pa.types.is_null(kind):
        return "null"
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "double"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "instant"
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value):
        return "text"
    return "other"


def dtype_of(kind: Any) -> Any:
    """Return Narwhals' name of a type; None: it has none here."""
    for arrow, name in _PLAIN:
        if kind == arrow:
            return name
    if pa.types.is_timestamp(kind):
        return nw.Datetime(kind.unit, kind.tz)
    if pa.types.is_decimal128(kind):
        return nw.Decimal(kind.precision, kind.scale)
    return None


def literal(node: exp.Expr, value: Any, kind: Any) -> Typed:
    """Return a constant; NULL of a type for the value None."""
    return Typed(nw.lit(value, dtype=dtype_of(kind)), kind, node, value, constant=True)


def widened(given: Typed) -> Typed:
    """Return a number or text in the one type in which its kind is computed."""
    wanted: Any = {"integer": INTEGER, "double": DOUBLE, "text": TEXT, "date": DATE}.get(given.kind)
    if wanted is None or given.type == wanted:
        return given
    return replace(given, expr=given.expr.cast(dtype_of(wanted)), type=wanted)


def as_double(given: Typed) -> Typed:
    """Return a number as the nearest DOUBLE."""
    if given.type == DOUBLE:
        return given
    if given.value is not None:
        return literal(given.node, float(given.value), DOUBLE)
    expr = given.expr
    if pa.types.is_integer(given.type) and given.type.bit_width > _EXACT_WIDTH:
        # Arrow refuses to cast integers above 2**53 at once, as they may be rounded.
        expr = expr.cast(nw.Decimal(20, 0))
    if (
        has_decimal([given])
        and given.type.scale > 0
        and given.type.precision + given.type.scale + 2 <= _MOST_DIGITS
    ):
        # Arrow multiplies by a power of ten that is rounded, as 0.01 is: this divides once, as DuckDB does.
        power = Decimal(10) ** given.type.scale
        whole = (expr * nw.lit(power)).cast(nw.Decimal(given.type.precision, 0))
        return replace(given, expr=whole.cast(nw.Float64) / float(power), type=DOUBLE)
    return replace(given, expr=expr.cast(nw.Float64), type=DOUBLE)


def unified(given: Sequence[Typed], what: str) -> list[Typed]:
    """Return expressions of one type: NULL takes that of the others, whole numbers beside others become DOUBLE.

    Beside a decimal, numbers other than columns of DOUBLE become decimals.

    A text literal beside a date or a timestamp is read as one.

    Args:
        given: the expressions.
        what: the operation, for messages.

    Raises:
        RefusedError: they have no type in common.
    """
    known = [one for one in given if one.kind != "null"]
    if not known:
        raise RefusedError(
            given[0].node, f"{what} of nothing but NULL has no type: CAST(NULL AS type) gives it one"
        )
    times = [one for one in known if one.kind in ("date", "timestamp", "instant")]
    if times:
        known = [parsed(one, times[0]) if isinstance(one.value, str) else one for one in known]
    if has_decimal(known):
        known = _of_one_decimal(known, what)
        return _with_nulls(given, known, known[0].type)
    # One DOUBLE makes all of them DOUBLE, as in DuckDB.
    mixed = {one.kind for one in known} == {"integer", "double"}
    known = [as_double(one) if mixed else widened(one) for one in known]
    first = known[0]
    for other in known:
        if other.type != first.type:
            if other.kind == first.kind in ("timestamp", "instant"):
                return _in_one_unit(given, known)
            raise RefusedError(
                other.node, f"{what} takes values of one type, not {first} and {other}: CAST(... AS type) converts"
            )
    return _with_nulls(given, known, first.type)


def has_decimal(given: Sequence[Typed]) -> bool:
    """Return whether one of some expressions is a decimal."""
    return any(pa.types.is_decimal128(one.type) for one in given)


def comparable_decimals(one: Typed, other: Typed) -> tuple[Typed, Typed]:
    """Return two values, one a decimal, as Arrow compares them: numbers in the query to their last digit.

    Raises:
        RefusedError: the other is no number, or they have too many digits together.
    """
    if one.kind == "null":
        return _null_like(one.node, other), other
    if other.kind == "null":
        return one, _null_like(other.node, one)
    made = number_pair(one, other, "a comparison")
    if has_decimal(made):
        _one_decimal(made)
        # Arrow compares a column of integers as it is; a source knows a column, and not what it is cast to.
        one, other = (
            given if given.kind == "integer" and given.value is None else decimal
            for given, decimal in zip((one, other), made, strict=True)
        )
        return one, other
    return made


def number_pair(one: Typed, other: Typed, what: str) -> tuple[Typed, Typed]:
    """Return two numbers, one a decimal, as decimals with all digits; beside a column of DOUBLE, both as such.

    Args:
        one: a value, not NULL.
        other: another one.
        what: the operation, for messages.

    Raises:
        RefusedError: one is no number, or has too many digits.
    """
    one, other = _numbers_beside_decimals((one, other), what)
    return one, other


def _numbers_beside_decimals(given: Sequence[Typed], what: str) -> list[Typed]:
    for one in given:
        if one.kind not in ("integer", "double") and not pa.types.is_decimal128(one.type):
            raise RefusedError(
                one.node, f"{what} takes numbers beside a decimal, not {one}: CAST(... AS DOUBLE) converts"
            )
    if any(one.kind == "double" and not _has_all_digits(one) for one in given):
        return [as_double(one) for one in given]
    return [_as_decimal(one) for one in given]


def _has_all_digits(given: Typed) -> bool:
    """Return whether a DOUBLE is a number in the query that SQL takes to its last digit, as 1.5, and not 15e-1."""
    return given.value is not None and _written(given).replace(".", "").isdecimal()


def _written(given: Typed) -> str:
    """Return a number in the query as it is written there, without its sign."""
    (found,) = given.node.find_all(exp.Literal)
    return found.name


def _as_decimal(given: Typed) -> Typed:
    if pa.types.is_decimal128(given.type):
        return given
    if given.value is None:
        kind = pa.decimal128(len(str(1 << (given.type.bit_width - 1))), 0)
        return replace(given, expr=given.expr.cast(dtype_of(kind)), type=kind)
    value = Decimal(_written(given))
    value = value.copy_negate() if given.value < 0 else value
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a number without an exponent is finite"
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale)
    if precision > _MOST_DIGITS:
        raise RefusedError(given.node, f"{given!s:.60} has too many digits beside a decimal")
    return replace(given, expr=nw.lit(value), type=pa.decimal128(precision, scale))


def _of_one_decimal(given: Sequence[Typed], what: str) -> list[Typed]:
    """Return numbers, one a decimal, in the type that has the digits of all; or as DOUBLE, if a column is one."""
    made = _numbers_beside_decimals(given, what)
    if not has_decimal(made):
        return made
    kind = _one_decimal(made)
    return [
        one if one.type == kind else replace(one, expr=one.expr.cast(dtype_of(kind)), type=kind) for one in made
    ]


def _one_decimal(given: Sequence[Typed]) -> Any:
    """Return the type that has the digits of all decimals. Raises RefusedError: there is none."""
    scale = max(one.type.scale for one in given)
    precision = max(one.type.precision - one.type.scale for one in given) + scale
    if precision > _MOST_DIGITS:
        raise too_many_digits(given[-1].node, given)
    return pa.decimal128(precision, scale)


def too_many_digits(node: exp.Expr, given: Sequence[Typed]) -> RefusedError:
    """Return the refusal of decimals that no type can hold together."""
    shown = " and ".join(str(one) for one in given)
    return RefusedError(node, f"{shown} have too many digits together: CAST one AS DOUBLE")


def _in_one_unit(given: Sequence[Typed], known: list[Typed]) -> list[Typed]:
    """Return times in microseconds, or in nanoseconds where one has these and the others are written here."""
    zones = {one.type.tz for one in known}
    others = [one for one in known if one.type.unit != "ns"]
    fine = len(others) < len(known)
    # Columns are not converted to nanoseconds: these end in the year 2262.
    if len(zones) > 1 or (fine and any(one.value is None for one in others)):
        raise RefusedError(known[1].node, f"{known[0]} and {known[1]} have different units or zones")
    kind = pa.timestamp("ns" if fine else "us", zones.pop())
    if fine:
        for one in others:
            _check_nanoseconds(one, kind)
    return _with_nulls(given, [replace(one, expr=one.expr.cast(dtype_of(kind)), type=kind) for one in known], kind)


def _check_nanoseconds(given: Typed, kind: Any) -> None:
    """Check that a time that is written in the query is one of a type with nanoseconds."""
    moment: dt.datetime = given.value
    since = moment.replace(tzinfo=dt.UTC) - _EPOCH
    if not -_MOST_MICROSECONDS <= since // dt.timedelta(microseconds=1) <= _MOST_MICROSECONDS:
        raise RefusedError(given.node, f"{given} is beyond {kind}, which has the years from 1678 to 2261")
    if isinstance(given.node, exp.Literal) and _NANOSECONDS.search(given.node.name):
        raise RefusedError(given.node, f"{given} beside {kind} is read to the microsecond: write six digits")


def _with_nulls(given: Sequence[Typed], known: list[Typed], kind: Any) -> list[Typed]:
    others = iter(known)
    return [_null_like(one.node, known[0]) if one.kind == "null" else next(others) for one in given]


def _null_like(node: exp.Expr, given: Typed) -> Typed:
    """Return a NULL of the type of an expression."""
    if dtype_of(given.type) is not None:
        return literal(node, None, given.type)
    # Narwhals has no name of such a type here, but a condition that is never true gives its NULL.
    absent = given.expr.is_null()
    return replace(given, expr=nw.when(absent & ~absent).then(given.expr), node=node, value=None)


def parsed(given: Typed, like: Typed) -> Typed:
    """Return a text literal as a date or timestamp of the type of another expression.

    Raises:
        RefusedError: it is none.
    """
    text: str = given.value
    try:
        if like.kind == "date":
            return literal(given.node, dt.date.fromisoformat(text), DATE)
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        wanted = "date, as in '2025-03-01'" if like.kind == "date" else "timestamp, as in '2025-03-01 12:00:00'"
        raise RefusedError(given.node, f"{text!r} is no {wanted}") from None
    if (moment.tzinfo is None) is not (like.kind == "timestamp"):
        need = "no offset" if like.kind == "timestamp" else "an offset, as in '2025-03-01 12:00:00+00:00'"
        raise RefusedError(given.node, f"{text!r} beside {like.type} must have {need}")
    zone = None if moment.tzinfo is None else like.type.tz
    moment = moment if zone is None else moment.astimezone(dt.UTC)
    kind = pa.timestamp("us", zone)
    made = nw.lit(moment)
    made = made if zone in (None, "UTC") else made.cast(dtype_of(kind))
    return Typed(made, kind, given.node, moment, constant=True)


def as_boolean(given: Typed, what: str) -> Typed:
    """Return a condition. Raises RefusedError: it is none."""
    if given.kind == "null":
        return literal(given.node, None, BOOLEAN)
    if given.kind != "boolean":
        raise RefusedError(given.node, f"{what} takes a condition, not {given}")
    return given


def as_text(given: Typed, what: str) -> Typed:
    """Return a text. Raises RefusedError: it is none."""
    if given.kind == "null":
        return literal(given.node, None, TEXT)
    if given.kind != "text":
        raise RefusedError(given.node, f"{what} takes a text, not {given}: CAST(... AS VARCHAR) converts")
    return widened(given)
