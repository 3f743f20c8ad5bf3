"""GROUP BY: the aggregates of a key, in windows of event time or over all rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import narwhals as nw
import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.expressions import Scope, named_like, translate
from sluiceway.api.table.sql.functions import interval_of
from sluiceway.api.table.sql.positions import RefusedError, check_parts, start_of
from sluiceway.api.table.sql.steps import for_each_row, step
from sluiceway.api.table.sql.types import INTEGER, Typed, as_boolean, literal
from sluiceway.api.table.stream import TableStream
from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.transforms import passed
from sluiceway.errors import ConfigurationError, GraphError
from sluiceway.windows import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from sluiceway.windows.base import WindowAssigner

__all__ = ["WINDOW_EXAMPLE", "grouped"]

WINDOW_EXAMPLE: Final = "TUMBLE(time, INTERVAL '10' SECOND)"

_ARGUMENTS: Final = {
    "TUMBLE": ("time", "size"),
    "HOP": ("time", "slide", "size"),
    "CUMULATE": ("time", "step", "size"),
    "SESSION": ("time", "gap"),
}
_BOUNDS: Final = {
    f"{name}_{end}": (name, f"window_{end.lower()}") for name in _ARGUMENTS for end in ("START", "END")
}
_AGGREGATES: Final = {
    exp.Sum: agg.sum,
    exp.Avg: agg.mean,
    exp.Min: agg.min,
    exp.Max: agg.max,
    exp.LogicalAnd: agg.min,
    exp.LogicalOr: agg.max,
    exp.Variance: agg.variance,
    exp.VariancePop: lambda column: agg.variance(column, ddof=0),
    exp.Stddev: agg.stddev,
    exp.StddevSamp: agg.stddev,
    exp.StddevPop: lambda column: agg.stddev(column, ddof=0),
}
_NAMES: Final = (
    "SUM, COUNT, COUNT_IF, MIN, MAX, AVG, BOOL_AND, BOOL_OR, VARIANCE, VAR_SAMP, VAR_POP, STDDEV, STDDEV_SAMP and "
    "STDDEV_POP"
)


def grouped(node: exp.Select, table: TableStream, scope: Scope) -> tuple[exp.Select, TableStream, Scope]:
    """Add the aggregates of a query with GROUP BY.

    Args:
        node: the query.
        table: its rows, after WHERE.
        scope: their columns.

    Returns:
        the query with columns in place of its aggregates, the stream that has these, and its columns.

    Raises:
        RefusedError: a part has no translation, or a column is neither in GROUP BY nor in an aggregate.
    """
    node, table, scope = _with_columns(node, table, scope)
    grouping = _grouping(node, table, scope)
    query = node.copy()
    having = query.args.get("having")
    if having is not None:
        having.set("this", grouping.rewritten(_without_aliases(having.this, node, grouping)))
    query.set("expressions", [grouping.output(one) for one in query.expressions])
    made = grouping.aggregated(node.args["group"])
    return query, made, Scope(scope.name, made.schema)


@dataclass
class _Grouping:
    """Parts of a query with GROUP BY, collected for one step.

    Attributes:
        table: the rows.
        scope: their columns.
        keys: names of the columns in GROUP BY.
        call: the window as it is written; None: there is none.
        assigner: the window.
        aggregates: names of the results, by aggregate.
        inputs: the columns that the aggregates take, by name.
    """

    table: TableStream
    scope: Scope
    keys: list[str]
    call: exp.Anonymous | None
    assigner: WindowAssigner | None
    aggregates: dict[agg.Aggregate, str] = field(default_factory=dict)
    inputs: dict[str, nw.Expr] = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the result that are no aggregates."""
        return [*self.keys, *(() if self.assigner is None else ("window_start", "window_end"))]

    def output(self, node: exp.Expr) -> exp.Expr:
        """Return a column of SELECT with columns in place of its aggregates, and its name as before."""
        if isinstance(node, exp.Alias | exp.Column):
            return self.rewritten(node)
        name = _text_of(node)
        return exp.Alias(this=self.rewritten(node), alias=exp.to_identifier(name, quoted=True))

    def rewritten(self, node: exp.Expr) -> exp.Expr:
        """Return an expression with columns in place of its aggregates."""
        # transform() does not go into what was replaced: columns inside aggregates need not be in GROUP BY.
        return node.transform(self._replaced)

    def _replaced(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Filter):
            return _column(self._aggregate(_filtered(node)), node)
        if isinstance(node, exp.Window | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
            raise RefusedError(node, f"{node.sql('duckdb')} has no translation; aggregates are {_NAMES}")
        if isinstance(node, exp.Query | exp.Exists):
            raise RefusedError(node, "a query belongs into FROM or WITH: in an expression it would be a join")
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            raise RefusedError(node, "SELECT with GROUP BY names its columns, and takes no *")
        if isinstance(node, exp.AggFunc):
            return _column(self._aggregate(node), node)
        if isinstance(node, exp.Anonymous) and node.name.upper() in _BOUNDS:
            return _column(self._bound(node), node)
        if isinstance(node, exp.Column):
            self._check_column(node)
        return node

    def _check_column(self, node: exp.Column) -> None:
        if named_like(node.name, self.columns, quoted=bool(node.this.args.get("quoted"))) is not None:
            return
        if node.args.get("table") is None and node.name.casefold() in ("window_start", "window_end"):
            raise RefusedError(node, f"{node.name} needs a window: GROUP BY {WINDOW_EXAMPLE}")
        translate(node, self.scope)  # a column that does not exist is refused as such
        raise RefusedError(
            node, f"{node.name!r} must stand in GROUP BY or in an aggregate, as in MAX({node.name})"
        )

    def _bound(self, node: exp.Anonymous) -> str:
        window, name = _BOUNDS[node.name.upper()]
        if self.call is None or self.call.name.upper() != window or self.call.expressions != node.expressions:
            raise RefusedError(node, f"{node.name} takes the arguments of {window} in GROUP BY", node.name.upper())
        return name

    def _aggregate(self, node: exp.AggFunc) -> str:
        """Return the name of the column that has the results of an aggregate."""
        if isinstance(node, exp.CountIf):
            node = exp.Count(this=_only_where(node.this, exp.Literal.number(1)))
        check_parts(node, frozenset({"this", "big_int"}))
        given = node.this
        if isinstance(node, exp.Count) and (given is None or isinstance(given, exp.Star)):
            return self._named(agg.count(), "count(*)")
        make = agg.count if isinstance(node, exp.Count) else _AGGREGATES.get(type(node))
        if make is None:
            raise RefusedError(
                node, f"{node.sql_name()} has no translation; aggregates are {_NAMES}", node.sql_name()
            )
        if isinstance(given, exp.Distinct):
            check_parts(given, frozenset({"expressions"}))
            if not isinstance(node, exp.Count) or len(given.expressions) != 1:
                raise RefusedError(given, "DISTINCT has a translation in COUNT(DISTINCT value) alone", "DISTINCT")
            make, given = agg.count_distinct, given.expressions[0]
        made = translate(given, self.scope)
        if made.kind == "null":
            raise RefusedError(given, "NULL has no type here: CAST(NULL AS type) gives it one")
        if isinstance(node, exp.LogicalAnd | exp.LogicalOr):
            made = as_boolean(made, "BOOL_AND" if isinstance(node, exp.LogicalAnd) else "BOOL_OR")
        if isinstance(node, exp.Avg) and pa.types.is_decimal(made.type):
            raise RefusedError(given, f"AVG does not take {made}: CAST(... AS DOUBLE) converts")
        # A column is aggregated as it is. Anything else is computed before, in a column with its text as name.
        name = _passed(made, self.scope)
        aggregate = make(name if name is not None else f"${given.sql('duckdb')}")
        try:
            # Refused here, where the position in the query is known.
            aggregate.bind(pa.schema([(aggregate.columns[0], made.type)]), "")
        except GraphError:
            raise RefusedError(
                given, f"{node.sql_name()} does not take {made}: CAST(... AS type) converts"
            ) from None
        self.inputs[aggregate.columns[0]] = for_each_row(made, self.scope.schema)
        return self._named(aggregate, _text_of(node))

    def _named(self, aggregate: agg.Aggregate, name: str) -> str:
        if aggregate not in self.aggregates:
            while name in self.columns or name in self.aggregates.values():
                name += "'"
            self.aggregates[aggregate] = name
        return self.aggregates[aggregate]

    def aggregated(self, node: exp.Expr) -> TableStream:
        """Add the steps: the columns that are needed, the key, the window, the aggregates."""
        # Groups alone: the step takes at least one aggregate, which the query then does not select.
        if not self.aggregates:
            self._named(agg.count(), "count(*)")
        keys = {name: nw.col(name) for name in self.keys}
        if not keys:
            # One key for all rows, without a name that a query could have for it.
            keys["$all"] = for_each_row(literal(node, 0, INTEGER), self.scope.schema)
        columns = {**self.inputs, **keys}
        named = {name: aggregate for aggregate, name in self.aggregates.items()}

        def add() -> TableStream:
            needed = self.table.select(*(expr.alias(name) for name, expr in columns.items()))
            keyed = needed.key_by(*keys)
            return (keyed if self.assigner is None else keyed.window(self.assigner)).aggregate(**named)

        return step(node if self.call is None else self.call, add)


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


def _column(name: str, node: exp.Expr) -> exp.Column:
    column = exp.column(name, quoted=True)
    column.meta["start"] = start_of(node)
    return column


def _without_aliases(condition: exp.Expr, node: exp.Select, grouping: _Grouping) -> exp.Expr:
    """Return a condition of HAVING with the expressions of SELECT in place of their names."""
    aliases = {one.alias.casefold(): one.this for one in node.expressions if isinstance(one, exp.Alias)}

    def replaced(part: exp.Expr) -> exp.Expr:
        if (
            not isinstance(part, exp.Column)
            or part.args.get("table") is not None
            or part.find_ancestor(exp.AggFunc)
        ):
            return part
        # Columns of the groups go before names of SELECT.
        if named_like(part.name, grouping.columns) is not None or part.name.casefold() not in aliases:
            return part
        return exp.Paren(this=aliases[part.name.casefold()].copy())

    return condition.transform(replaced)


# ---- expressions that are grouped by ----------------------------------------------------------------------


def _with_columns(node: exp.Select, table: TableStream, scope: Scope) -> tuple[exp.Select, TableStream, Scope]:
    """Return a query whose GROUP BY has columns and windows alone: other expressions are computed before."""
    group = node.args["group"]
    if group.args.get("all"):
        raise RefusedError(node, "GROUP BY ALL has no translation: name the columns")
    check_parts(group, frozenset({"expressions"}))
    query = node.copy()
    computed: dict[str, nw.Expr] = {}
    names: list[tuple[exp.Expr, str]] = []
    for given in list(query.args["group"].expressions):
        one, name = _meant(given, query, scope)
        if isinstance(one, exp.Anonymous):
            continue
        if isinstance(one, exp.Rollup | exp.Cube | exp.GroupingSets):
            why = "has no translation: write a query for each of the groupings, with UNION ALL"
            raise RefusedError(one, f"{one.key.upper()} {why}")
        if aggregate := one.find(exp.AggFunc):
            raise RefusedError(given, f"GROUP BY takes what rows have, and no {aggregate.sql_name()}")
        made = translate(one, scope)
        known = _passed(made, scope)
        if made.constant:
            given.pop()  # one group, as without it
        elif known is not None:
            given.replace(_column(known, given))
        else:
            # Hidden, as SELECT gives it its name: one that no column of the query has.
            while named_like(name, [*scope.schema.names, *computed]) is not None:
                name += "'"
            computed[name] = made.expr.alias(name)
            names.append((_plain(one, scope), name))
            given.replace(_column(name, given))
    if not computed:
        return query, table, scope

    def replaced(part: exp.Expr) -> exp.Expr:
        plain = _plain(part, scope)
        return next((_column(name, part) for one, name in names if one == plain), part)

    query.set("expressions", [_replaced_output(one, replaced) for one in query.expressions])
    if (having := query.args.get("having")) is not None:
        having.set("this", having.this.transform(replaced))
    table = step(group, functools.partial(table.with_columns, *computed.values()))
    return query, table, Scope(scope.name, table.schema)


def _meant(given: exp.Expr, query: exp.Select, scope: Scope) -> tuple[exp.Expr, str]:
    """Return the expression that a part of GROUP BY stands for, and a name for it.

    A part may be a name of SELECT, if no column of the table has it, or the position of a column there.
    """
    selected = query.expressions
    if isinstance(given, exp.Literal) and not given.args["is_string"]:
        if not given.name.isdecimal() or not 1 <= int(given.name) <= len(selected):
            raise RefusedError(given, f"SELECT has the columns 1 to {len(selected)}, and no {given.name}")
        chosen = selected[int(given.name) - 1]
        if chosen.is_star:
            raise RefusedError(given, "SELECT with GROUP BY names its columns, and takes no *")
        return (chosen.this, chosen.alias) if isinstance(chosen, exp.Alias) else (chosen, _text_of(chosen))
    quoted = isinstance(given, exp.Column) and bool(given.this.args.get("quoted"))
    if (
        isinstance(given, exp.Column)
        and given.args.get("table") is None
        and named_like(given.name, scope.schema.names, quoted=quoted) is None
    ):
        aliases = {one.alias: one.this for one in selected if isinstance(one, exp.Alias)}
        name = named_like(given.name, list(aliases), quoted=quoted)
        if name is not None:
            return aliases[name], name
    return given, _text_of(given)


def _replaced_output(node: exp.Expr, replaced: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Return a column of SELECT with columns in place of what is grouped by, and its name as before."""
    made = node.transform(replaced)
    if isinstance(made, exp.Column) and made != node:
        name = node.name if isinstance(node, exp.Column) else _text_of(node)
        return exp.Alias(this=made, alias=exp.to_identifier(name, quoted=True))
    return made


def _plain(node: exp.Expr, scope: Scope) -> exp.Expr:
    """Return an expression as it is compared: with its columns as the table has them, and no brackets around."""

    def named(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column) or isinstance(part.this, exp.Star):
            return part
        try:
            name = _passed(translate(part, scope), scope)
        except RefusedError:  # a name of SELECT
            return part
        return part if name is None else exp.column(name, quoted=True)

    return node.unnest().copy().transform(named)


def _passed(made: Typed, scope: Scope) -> str | None:
    """Return the name of the column that an expression is; None: it is another one."""
    return next((name for name in scope.schema.names if passed(made.expr, name) == name), None)


def _text_of(node: exp.Expr) -> str:
    return node.sql("duckdb", normalize_functions="lower")


# ---- GROUP BY ---------------------------------------------------------------------------------------------


def _grouping(node: exp.Select, table: TableStream, scope: Scope) -> _Grouping:
    group = node.args["group"]
    keys: list[str] = []
    call = assigner = None
    for one in group.expressions:
        if isinstance(one, exp.Anonymous):
            if call is not None:
                raise RefusedError(one, "GROUP BY takes one window", one.name.upper())
            call, assigner = one, _assigner(one, table, scope)
            continue
        name = _passed(translate(one, scope), scope)
        assert name is not None  # others were computed before
        if name not in keys:
            keys.append(name)
    for one in group.expressions:
        if (
            call is not None
            and isinstance(one, exp.Column)
            and one.name.casefold() in ("window_start", "window_end")
        ):
            raise RefusedError(one, f"the window has a column {one.name} as well: rename this one in a sub-query")
    return _Grouping(table, scope, keys, call, assigner)


def _assigner(node: exp.Anonymous, table: TableStream, scope: Scope) -> WindowAssigner:
    name = node.name.upper()
    if name not in _ARGUMENTS:
        raise RefusedError(node, f"GROUP BY has the windows {', '.join(_ARGUMENTS)}, and no {name}", name)
    wanted = _ARGUMENTS[name]
    time, *lengths = node.expressions or [None]
    if len(node.expressions) != len(wanted) or not all(isinstance(one, exp.Interval) for one in lengths):
        example = ", ".join(f"INTERVAL '{10 * n}' SECOND" for n in range(1, len(wanted)))
        raise RefusedError(node, f"{name} takes {', '.join(wanted)}, as in {name}(time, {example})", name)
    _check_time(name, time, table, scope)
    first, *others = (interval_of(one) for one in lengths)
    try:
        if name == "TUMBLE":
            return TumblingEventTimeWindows(first)
        if name == "HOP":
            return SlidingEventTimeWindows(others[0], first)
        if name == "SESSION":
            return EventTimeSessionWindows(first)
        return CumulativeEventTimeWindows(first, others[0])
    except ConfigurationError as error:
        raise RefusedError(node, str(error), name) from None


def _check_time(window: str, time: exp.Expr, table: TableStream, scope: Scope) -> None:
    """Check that the time of a window is the column of the event time: windows are of nothing else."""
    # Windows go by the event time of rows, whatever the column says: another column would be read and ignored.
    made = translate(time, scope)
    known = table._time_column
    if known is not None and passed(made.expr, known) == known:
        return
    if known is None:
        raise RefusedError(
            time,
            f"{window} takes the column of the event time, and none is known here: give table() or "
            "assign_timestamps_and_watermarks() a strategy .with_timestamp_column(name), and select that column "
            "unchanged",
        )
    raise RefusedError(time, f"{window} takes the column of the event time, which is {known!r}, not {made}")
