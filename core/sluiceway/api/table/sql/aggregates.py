"""Aggregates of a query as those of columns: what GROUP BY and OVER compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.expressions import Scope, translate
from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.row_functions import FirstKnown, LastKnown
from sluiceway.api.table.sql.select_list import computed_name, passed_as
from sluiceway.api.table.sql.types import Typed, as_boolean
from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.errors import GraphError

__all__ = ["NAMES", "aggregate_of"]

NAMES: Final = (
    "SUM, COUNT, COUNT_IF, MIN, MAX, AVG, BOOL_AND, BOOL_OR, VARIANCE, VAR_SAMP, VAR_POP, STDDEV, STDDEV_SAMP, "
    "STDDEV_POP, and with OVER ROW_NUMBER, LAG, FIRST_VALUE and LAST_VALUE"
)
_AGGREGATES: Final[dict[type[exp.Expr], Callable[[str], agg.Aggregate]]] = {
    exp.Sum: agg.sum,
    exp.Avg: agg.mean,
    exp.Min: agg.min,
    exp.Max: agg.max,
    FirstKnown: agg.first,
    LastKnown: agg.last,
    exp.LogicalAnd: agg.min,
    exp.LogicalOr: agg.max,
    exp.Variance: agg.variance,
    exp.VariancePop: lambda column: agg.variance(column, ddof=0),
    exp.Stddev: agg.stddev,
    exp.StddevSamp: agg.stddev,
    exp.StddevPop: lambda column: agg.stddev(column, ddof=0),
}
_INSTEAD: Final = {
    "LEAD": ": it reads a row that has yet to come, and LAG on that row has the same two",
    **dict.fromkeys(("RANK", "DENSE_RANK"), ": ROW_NUMBER counts rows, also those of one time"),
    "ARRAY_AGG": ": agg.collect() of a stream in columns makes lists",
    "GROUP_CONCAT": ", as STRING_AGG or LISTAGG neither: agg.collect() of a stream in columns makes lists",
    "MEDIAN": ": agg.quantile() of a stream in columns has it",
}


def aggregate_of(node: exp.Expr, scope: Scope) -> tuple[agg.Aggregate, Typed | None]:
    """Return an aggregate for one of SQL, which may have a FILTER, and the values that it takes.

    These are the column that the aggregate names, or to be computed before in a column of that name; None for
    ``COUNT(*)``, which takes none.

    Raises:
        RefusedError: it has no translation, or does not take these values.
    """
    if isinstance(node, exp.Filter):
        node = _filtered(node)
    if isinstance(node, exp.CountIf):
        node = exp.Count(this=_only_where(node.this, exp.Literal.number(1)))
    make = agg.count if isinstance(node, exp.Count) else _AGGREGATES.get(type(node))
    if make is None:
        instead = _INSTEAD.get(_name(node), "")
        raise RefusedError(node, f"{_name(node)} has no translation{instead}; aggregates are {NAMES}", _name(node))
    check_parts(node, frozenset({"this", "big_int"}))
    given = node.this
    if isinstance(node, exp.Count) and (given is None or isinstance(given, exp.Star)):
        return agg.count(), None
    if isinstance(given, exp.Distinct):
        check_parts(given, frozenset({"expressions"}))
        if not isinstance(node, exp.Count) or len(given.expressions) != 1:
            raise RefusedError(given, "DISTINCT has a translation in COUNT(DISTINCT value) alone", "DISTINCT")
        make, given = agg.count_distinct, given.expressions[0]
    made = translate(given, scope)
    if made.kind == "null":
        shown = given.sql("duckdb")
        raise RefusedError(given, f"{shown} has no type here: CAST({shown} AS type) gives it one")
    if isinstance(node, exp.LogicalAnd | exp.LogicalOr):
        made = as_boolean(made, "BOOL_AND" if isinstance(node, exp.LogicalAnd) else "BOOL_OR")
    if isinstance(node, exp.Avg) and pa.types.is_decimal(made.type):
        raise RefusedError(given, f"AVG does not take {made}: CAST(... AS DOUBLE) converts")
    # A column is aggregated as it is. Anything else is computed before, in a column with its text as name.
    name = passed_as(made, scope)
    aggregate = make(computed_name(given.sql("duckdb"), scope) if name is None else name)
    try:
        # Refused here, where the position in the query is known.
        aggregate.bind(pa.schema([(aggregate.columns[0], made.type)]), "")
    except GraphError:
        raise RefusedError(given, f"{_name(node)} does not take {made}: CAST(... AS type) converts") from None
    return aggregate, made


def _filtered(node: exp.Filter) -> exp.AggFunc:
    """Return an aggregate with FILTER as one of values that are NULL where the condition is not true."""
    aggregate, condition = node.this.copy(), node.expression.this
    if not isinstance(aggregate, exp.AggFunc):
        raise RefusedError(node, f"FILTER belongs to an aggregate, and not to {aggregate.sql('duckdb')}")
    given = aggregate.this
    if isinstance(given, exp.Distinct):
        given.set("expressions", [_only_where(condition, one) for one in given.expressions])
    elif isinstance(aggregate, exp.CountIf):
        aggregate.set("this", exp.and_(condition, given))
    else:
        counted = given is None or isinstance(given, exp.Star)
        aggregate.set("this", _only_where(condition, exp.Literal.number(1) if counted else given))
    return aggregate


def _only_where(condition: exp.Expr, value: exp.Expr) -> exp.Case:
    return exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())])


def _name(node: exp.Expr) -> str:
    return node.sql_name() if isinstance(node, exp.Func) else node.sql("duckdb")
