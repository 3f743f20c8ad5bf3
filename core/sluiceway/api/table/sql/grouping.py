"""GROUP BY: the aggregates of a key, in windows of event time or over all rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import narwhals as nw
from sqlglot import exp

from sluiceway.api.table.sql.aggregates import NAMES, aggregate_of
from sluiceway.api.table.sql.dialect import WINDOW_COLUMNS, WINDOW_EXAMPLE, WINDOWS
from sluiceway.api.table.sql.expressions import Scope, named_like, translate
from sluiceway.api.table.sql.functions import interval_of
from sluiceway.api.table.sql.group_expressions import with_group_columns
from sluiceway.api.table.sql.positions import RefusedError
from sluiceway.api.table.sql.select_list import column_at, computed_name, named_as_before, passed_as, text_of
from sluiceway.api.table.sql.steps import for_each_row, step
from sluiceway.api.table.sql.types import INTEGER, literal
from sluiceway.api.table.stream import TableStream
from sluiceway.columns.aggregation import aggregates as agg
from sluiceway.columns.transforms import passed
from sluiceway.errors import ConfigurationError
from sluiceway.windows import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from sluiceway.windows.base import WindowAssigner

__all__ = ["check_time", "grouped"]

_BOUNDS: Final = {f"{name}_{end}": (name, f"window_{end.lower()}") for name in WINDOWS for end in ("START", "END")}

_TIME: Final = WINDOW_COLUMNS[2]
"""Column of the event time of results: the last millisecond of their window. It is made where a query names it."""


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
    node, table, scope = with_group_columns(node, table, scope)
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
        has_time: True if the query names the event time of the results.
    """

    table: TableStream
    scope: Scope
    keys: list[str]
    call: exp.Anonymous | None
    assigner: WindowAssigner | None
    aggregates: dict[agg.Aggregate, str] = field(default_factory=dict)
    inputs: dict[str, nw.Expr] = field(default_factory=dict)
    has_time: bool = False

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the result that are no aggregates."""
        own = () if self.assigner is None else WINDOW_COLUMNS
        return list(dict.fromkeys((*self.keys, *own)))

    def output(self, node: exp.Expr) -> exp.Expr:
        """Return a column of SELECT with columns in place of its aggregates, and its name as before."""
        return named_as_before(node, self.rewritten(node))

    def rewritten(self, node: exp.Expr) -> exp.Expr:
        """Return an expression with columns in place of its aggregates."""
        # transform() does not go into what was replaced: columns inside aggregates need not be in GROUP BY.
        return node.transform(self._replaced)

    def _replaced(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Filter):
            return column_at(self._aggregate(node), node)
        if isinstance(node, exp.Window | exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup):
            raise RefusedError(
                node, f"{node.sql('duckdb')} has no translation beside GROUP BY; aggregates are {NAMES}"
            )
        if isinstance(node, exp.Query | exp.Exists):
            raise RefusedError(node, "a query belongs into FROM or WITH: in an expression it would be a join")
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            raise RefusedError(node, "SELECT with GROUP BY names its columns, and takes no *")
        if isinstance(node, exp.AggFunc):
            return column_at(self._aggregate(node), node)
        if isinstance(node, exp.Anonymous) and node.name.upper() in _BOUNDS:
            return column_at(self._bound(node), node)
        if isinstance(node, exp.Column):
            self._check_column(node)
        return node

    def _check_column(self, node: exp.Column) -> None:
        of = node.args.get("table")
        is_field = len(node.parts) > (2 if self.scope.has_table(node.parts[0]) else 1)
        quoted = bool(node.this.args.get("quoted"))
        if not is_field and (name := named_like(node.name, self.columns, quoted=quoted)) is not None:
            self.has_time |= name == _TIME and _TIME not in self.keys
            return
        if of is None and node.name.casefold() in WINDOW_COLUMNS:
            raise RefusedError(node, f"{node.name} needs a window: GROUP BY {WINDOW_EXAMPLE}")
        translate(node, self.scope)  # a column that does not exist is refused as such
        name = node.sql("duckdb") if is_field else node.name
        raise RefusedError(node, f"{name!r} must stand in GROUP BY or in an aggregate, as in MAX({name})")

    def _bound(self, node: exp.Anonymous) -> str:
        window, name = _BOUNDS[node.name.upper()]
        if self.call is None or self.call.name.upper() != window or self.call.expressions != node.expressions:
            raise RefusedError(node, f"{node.name} takes the arguments of {window} in GROUP BY", node.name.upper())
        return name

    def _aggregate(self, node: exp.Expr) -> str:
        """Return the name of the column that has the results of an aggregate."""
        aggregate, values = aggregate_of(node, self.scope)
        if values is not None:
            self.inputs[aggregate.columns[0]] = for_each_row(values, self.scope.schema)
        return self._named(aggregate, "count(*)" if values is None else text_of(node))

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
            keys[computed_name("all", self.scope)] = for_each_row(literal(node, 0, INTEGER), self.scope.schema)
        columns = {**self.inputs, **keys}
        named = {name: aggregate for aggregate, name in self.aggregates.items()}

        def add() -> TableStream:
            needed = self.table.select(*(expr.alias(name) for name, expr in columns.items()))
            keyed = needed.key_by(*keys)
            made = (keyed if self.assigner is None else keyed.window(self.assigner)).aggregate(**named)
            return _with_time(made) if self.has_time else made

        return step(node if self.call is None else self.call, add)


def _with_time(table: TableStream) -> TableStream:
    """Return results of windows with a column of their event time, which further windows go by."""
    # In ms, as a literal of a timedelta is one of microseconds.
    made = table.with_columns((nw.col("window_end") - nw.lit(1).cast(nw.Duration("ms"))).alias(_TIME))
    return TableStream(made._pipeline, made._inputs, made.schema, made._made_by, time_column=_TIME)


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
        name = passed_as(translate(one, scope), scope)
        assert name is not None  # others were computed before
        if name not in keys:
            keys.append(name)
    for one in group.expressions:
        if call is not None and isinstance(one, exp.Column) and one.name.casefold() in WINDOW_COLUMNS[:2]:
            raise RefusedError(one, f"the window has a column {one.name} as well: rename this one in a sub-query")
    return _Grouping(table, scope, keys, call, assigner)


def _assigner(node: exp.Anonymous, table: TableStream, scope: Scope) -> WindowAssigner:
    name = node.name.upper()
    if name not in WINDOWS:
        raise RefusedError(node, f"GROUP BY has the windows {', '.join(WINDOWS)}, and no {name}", name)
    wanted = WINDOWS[name]
    time, *lengths = node.expressions or [None]
    if len(node.expressions) != len(wanted) or not all(isinstance(one, exp.Interval) for one in lengths):
        example = ", ".join(f"INTERVAL '{10 * n}' SECOND" for n in range(1, len(wanted)))
        raise RefusedError(node, f"{name} takes {', '.join(wanted)}, as in {name}(time, {example})", name)
    check_time(name, time, table, scope)
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


def check_time(window: str, time: exp.Expr, table: TableStream, scope: Scope) -> None:
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
            "unchanged; pairs of a join have the later time, which is a column's where the rows of one table are "
            "never earlier than those of the other, and never missing",
        )
    raise RefusedError(time, f"{window} takes the column of the event time, which is {known!r}, not {made}")
