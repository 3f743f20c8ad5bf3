"""Functions of OVER that number rows or take the value of one, as aggregates of the rows of OVER.

``LAG(x, 2)`` is the first value of three rows, if there are three; ``ROW_NUMBER()`` counts the rows up to each.
"""

from __future__ import annotations

from typing import ClassVar, Final

from sqlglot import exp

from sluiceway.api.table.sql.expressions import Scope, translate
from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.types import unified

__all__ = ["FirstKnown", "LastKnown", "as_aggregates"]


class FirstKnown(exp.Expression, exp.AggFunc):
    """First value that is not NULL."""

    _sql_names: ClassVar[list[str]] = ["FIRST_VALUE"]


class LastKnown(exp.Expression, exp.AggFunc):
    """Last value that is not NULL."""

    _sql_names: ClassVar[list[str]] = ["LAST_VALUE"]


_PICKED: Final[dict[type[exp.Expr], type[exp.AggFunc]]] = {
    exp.FirstValue: FirstKnown,
    exp.First: FirstKnown,
    exp.LastValue: LastKnown,
    exp.Last: LastKnown,
}


def as_aggregates(window: exp.Window, scope: Scope) -> exp.Expr:
    """Return what computes the same as a function with OVER, by aggregates with OVER; itself: it is an aggregate.

    Args:
        window: the function with OVER.
        scope: the columns of the rows.

    Raises:
        RefusedError: a part of it has no translation.
    """
    function = window.this
    ignores = isinstance(function, exp.IgnoreNulls)
    if isinstance(function, exp.IgnoreNulls | exp.RespectNulls):
        function = function.this
    if isinstance(function, exp.RowNumber):
        check_parts(function, frozenset())
        return _over(window, exp.Count(this=exp.Star()), "UNBOUNDED")
    if isinstance(function, exp.Lag):
        return _lag(window, function, scope, ignores=ignores)
    if (make := _PICKED.get(type(function))) is not None:
        check_parts(function, frozenset({"this"}))
        value = _over(window, make(this=function.this.copy()))
        return value if ignores else _only_of_its_row(window, function.this, make)
    return window


def _lag(window: exp.Window, lag: exp.Lag, scope: Scope, *, ignores: bool) -> exp.Expr:
    check_parts(lag, frozenset({"this", "offset", "default"}))
    if ignores:
        raise RefusedError(lag, "IGNORE NULLS has a translation with FIRST_VALUE and LAST_VALUE alone")
    if isinstance(lag.this, exp.Order):
        raise RefusedError(lag.this, "ORDER BY belongs into OVER")
    offset = lag.args.get("offset") or exp.Literal.number(1)
    if not (isinstance(offset, exp.Literal) and offset.name.isdecimal() and len(offset.name) < 19):
        raise RefusedError(lag, "LAG takes a whole number of rows, as in LAG(price, 1)")
    default = lag.args.get("default")
    if default is not None:
        pair = [translate(one, scope) for one in (lag.this, default)]
        if pair[0].type != pair[1].type:
            unified(pair, "LAG")
    rows = int(offset.name)
    value = _only_of_its_row(window, lag.this, FirstKnown, str(rows))
    count = _over(window, exp.Count(this=exp.Star()), str(rows))
    missing = exp.LT(this=count, expression=exp.Literal.number(rows + 1))
    return exp.Case(
        ifs=[exp.If(this=missing, true=exp.Null() if default is None else default), *value.args["ifs"]]
    )


def _only_of_its_row(
    window: exp.Window, given: exp.Expr, make: type[exp.AggFunc], start: str | None = None
) -> exp.Case:
    """Return the value of the first or last row, NULL where it has none."""
    missing = _over(window, make(this=exp.Is(this=given.copy(), expression=exp.Null())), start)
    value = _over(window, make(this=given.copy()), start)
    return exp.Case(ifs=[exp.If(this=exp.Not(this=missing), true=value)])


def _over(window: exp.Window, aggregate: exp.AggFunc, start: str | None = None) -> exp.Window:
    """Return an aggregate over the rows of a window, or over those from another one on."""
    made = window.copy()
    made.set("this", aggregate)
    if start is not None:
        spec = exp.WindowSpec(
            kind="ROWS",
            start=start if start == "UNBOUNDED" else exp.Literal.number(start),
            start_side="PRECEDING",
            end="CURRENT ROW",
        )
        made.set("spec", spec)
    return made
