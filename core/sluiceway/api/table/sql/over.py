"""OVER: aggregates of the rows of a key up to each row, of the last or of all of them."""

from __future__ import annotations

import datetime as dt
import functools
from dataclasses import dataclass, field
from typing import Any, Final

import narwhals as nw
from sqlglot import exp

from sluiceway.api.table.sql.aggregates import aggregate_of
from sluiceway.api.table.sql.expressions import Scope, named_like, translate
from sluiceway.api.table.sql.functions import interval_of
from sluiceway.api.table.sql.grouping import check_time
from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.row_functions import as_aggregates
from sluiceway.api.table.sql.select_list import (
    column_at,
    columns_of_star,
    computed_name,
    named_as_before,
    passed_as,
    text_of,
)
from sluiceway.api.table.sql.steps import for_each_row, step
from sluiceway.api.table.sql.types import INTEGER, Typed, literal
from sluiceway.api.table.stream import TableStream
from sluiceway.columns.aggregation import aggregates as agg

__all__ = ["has_over", "with_over"]

_FORM: Final = "SUM(x) OVER (PARTITION BY id ORDER BY time ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)"


def has_over(node: exp.Select) -> bool:
    """Return whether a query has aggregates with OVER in SELECT or QUALIFY."""
    qualify = node.args.get("qualify")
    return qualify is not None or any(one.find(exp.Window) is not None for one in node.expressions)


def with_over(node: exp.Select, table: TableStream, scope: Scope) -> tuple[exp.Select, TableStream, Scope]:
    """Add the aggregates of OVER to the rows of a query.

    Args:
        node: the query, which has no GROUP BY.
        table: its rows, after WHERE.
        scope: their columns.

    Returns:
        the query with columns in place of these aggregates and of its stars, the stream that has them, and its
        columns.

    Raises:
        RefusedError: a part has no translation.
    """
    query = node.copy()
    steps: dict[tuple[Any, ...], _Over] = {}
    count = 0

    def replaced(part: exp.Expr) -> exp.Expr:
        nonlocal count
        if not isinstance(part, exp.Window):
            return part
        if (made := as_aggregates(part, scope)) is not part:
            return made.transform(replaced)
        aggregate, values = aggregate_of(part.this, scope)  # first, as its name says most
        over = _over(_named(part, query), table, scope)
        key = (tuple(over.keys), over.rows, over.range)
        name = computed_name(f"over{count}", scope)
        count += 1
        steps.setdefault(key, over).add(name, aggregate, values, scope)
        return column_at(name, part)

    outputs: list[exp.Expr] = []
    for one in query.expressions:
        if isinstance(one, exp.Star | exp.Column) and one.is_star:
            outputs += columns_of_star(one, scope)
        else:
            outputs.append(named_as_before(one, one.transform(replaced)))
    query.set("expressions", outputs)
    if (qualify := query.args.get("qualify")) is not None:
        names = {one.alias.casefold(): one.this for one in node.expressions if isinstance(one, exp.Alias)}
        query.set("qualify", qualify.transform(_spelled_out, names, scope).transform(replaced))
    query.set("windows", None)
    for over in steps.values():
        table = over.added(node, table)
    return query, table, Scope(scope.name, table.schema)


def _spelled_out(node: exp.Expr, names: dict[str, exp.Expr], scope: Scope) -> exp.Expr:
    """Return what a name that SELECT gives stands for; a column of the rows goes first."""
    if not isinstance(node, exp.Column) or node.args.get("table") is not None:
        return node
    is_column = named_like(node.name, scope.schema.names) is not None
    return node if is_column else names.get(node.name.casefold(), node).copy()


def _named(node: exp.Window, query: exp.Select) -> exp.Window:
    """Return a window with the parts of the one in the clause WINDOW that it names."""
    alias = node.args.get("alias")
    if alias is None:
        return node
    given = next(
        (one for one in query.args.get("windows") or [] if one.name.casefold() == alias.name.casefold()), None
    )
    if given is None:
        raise RefusedError(alias, f"there is no window {alias.name!r}: WINDOW {alias.name} AS (...) makes it")
    made = node.copy()
    made.set("alias", None)
    for part in ("partition_by", "order", "spec"):
        made.set(part, node.args.get(part) or given.args.get(part))
    return made


@dataclass
class _Over:
    """Aggregates over the same rows.

    Attributes:
        keys: the columns of PARTITION BY, by their names or texts.
        rows: so many rows, the row itself included; 0: all of them.
        range: those that are so much older at the most.
        inputs: the columns that the aggregates take and that are to be computed, by name.
        aggregates: the aggregates by the names of their results.
    """

    keys: dict[str, nw.Expr]
    rows: int | None
    range: dt.timedelta | None
    inputs: dict[str, nw.Expr] = field(default_factory=dict)
    aggregates: dict[str, agg.Aggregate] = field(default_factory=dict)

    def add(self, name: str, aggregate: agg.Aggregate, values: Typed | None, scope: Scope) -> None:
        """Add an aggregate, and the values that it takes."""
        self.aggregates[name] = aggregate
        if values is not None and aggregate.columns[0] not in scope.schema.names:
            self.inputs[aggregate.columns[0]] = for_each_row(values, scope.schema)

    def added(self, node: exp.Expr, table: TableStream) -> TableStream:
        """Return the rows with the aggregates."""
        computed = {name: one for name, one in (self.inputs | self.keys).items() if name not in table.schema.names}
        if computed:
            exprs = [one.alias(name) for name, one in computed.items()]
            table = step(node, functools.partial(table.with_columns, *exprs))
        if self.rows == 0:
            # Over one row, they are brought into the order of event time.
            row = computed_name("row", Scope(None, table.schema))
            in_order = step(node, lambda: table.key_by(*self.keys).over(rows=1).aggregate(**{row: agg.count()}))
            return step(node, lambda: in_order.drop(row).key_by(*self.keys).running(**self.aggregates))
        return step(
            node,
            lambda: table.key_by(*self.keys).over(rows=self.rows, range=self.range).aggregate(**self.aggregates),
        )


def _over(window: exp.Window, table: TableStream, scope: Scope) -> _Over:
    check_parts(window, frozenset({"this", "partition_by", "order", "spec", "over"}))
    keys: dict[str, nw.Expr] = {}
    for one in window.args.get("partition_by") or []:
        made = translate(one, scope)
        keys[passed_as(made, scope) or computed_name(text_of(one), scope)] = for_each_row(made, scope.schema)
    if not keys:
        keys[computed_name("all", scope)] = for_each_row(literal(window, 0, INTEGER), scope.schema)
    _check_order(window, table, scope)
    spec = window.args.get("spec")
    if spec is None:
        raise RefusedError(window, f"OVER takes the rows that count, as in {_FORM}")
    check_parts(spec, frozenset({"kind", "start", "start_side", "end", "end_side"}))
    kind, side = spec.args["kind"].upper(), (spec.args.get("start_side") or "").upper()
    if kind not in ("ROWS", "RANGE"):
        raise RefusedError(window, f"{kind} has no translation: OVER takes ROWS or RANGE, as in {_FORM}")
    start, end = spec.args.get("start"), spec.args.get("end")
    own = start == "CURRENT ROW"
    if end not in (None, "CURRENT ROW") or (side != "PRECEDING" and not own):
        raise RefusedError(window, f"the rows of OVER end with the row itself, as in {_FORM}")
    if start == "UNBOUNDED":
        if kind != "ROWS":
            raise RefusedError(
                window, "without a bound OVER takes ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
            )
        return _Over(keys, 0, None)
    if kind == "ROWS":
        if not own and not (isinstance(start, exp.Literal) and start.name.isdecimal() and len(start.name) < 19):
            raise RefusedError(window, f"ROWS takes a whole number, as in {_FORM}")
        return _Over(keys, 1 if own else int(start.name) + 1, None)
    if not (own or isinstance(start, exp.Interval)):
        raise RefusedError(window, "RANGE takes an interval, as in RANGE BETWEEN INTERVAL '5' MINUTE PRECEDING")
    return _Over(keys, None, dt.timedelta() if own else interval_of(start))


def _check_order(window: exp.Window, table: TableStream, scope: Scope) -> None:
    """Check that the rows are ordered by event time."""
    order = window.args.get("order")
    if order is None or len(order.expressions) != 1 or order.expressions[0].args.get("desc"):
        raise RefusedError(window, f"OVER takes ORDER BY the event time, the earliest first, as in {_FORM}")
    time = order.expressions[0].this
    is_cut = isinstance(time, exp.TimestampTrunc | exp.DateTrunc) and time.text("unit").upper() == "MILLISECOND"
    time = time.this if is_cut else time
    check_time("ORDER BY", time, table, scope)
    if not is_cut and getattr(translate(time, scope).type, "unit", "ms") in ("us", "ns"):
        raise RefusedError(
            time,
            "event times are of milliseconds, and this column is finer: ORDER BY DATE_TRUNC('millisecond', time)",
        )
