"""JOIN: rows of a stream with those of another one by event time, or with those of a table that stays the same."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import narwhals as nw
import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.expressions import Scope, translate
from sluiceway.api.table.sql.functions import interval_of
from sluiceway.api.table.sql.joined_tables import (
    Elements,
    JoinedTable,
    Names,
    Rows,
    columns_in,
    joined_table,
    resolve,
)
from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.select_list import column_at, passed_as
from sluiceway.api.table.sql.steps import for_each_row, step
from sluiceway.api.table.sql.types import Typed, as_boolean, unified
from sluiceway.api.table.stream import TableStream

__all__ = ["joined"]

_HOW: Final = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}
_MIRRORED: Final[dict[type[exp.Expr], type[exp.Expr]]] = {
    exp.GTE: exp.LTE,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.LT: exp.GT,
    exp.EQ: exp.EQ,
}
_MILLISECOND: Final = dt.timedelta(milliseconds=1)
_FORM: Final = "JOIN b ON a.id = b.id AND b.time BETWEEN a.time AND a.time + INTERVAL '10' MINUTE"


def joined(
    node: exp.Select, rows_of: Callable[[exp.Expr], tuple[Rows, Scope]]
) -> tuple[exp.Select, TableStream, Scope]:
    """Add the joins of a query.

    Args:
        node: the query.
        rows_of: returns the rows of a table in FROM or behind JOIN, and their columns.

    Returns:
        the query without its joins, the stream that has their rows, and its columns.

    Raises:
        RefusedError: a join has no translation, or a column is in several tables or in none.
    """
    query = node.copy()
    joins = query.args["joins"]
    names = Names()
    first, *others = [
        joined_table(one, rows_of, names) for one in (query.args["from_"].this, *(join.this for join in joins))
    ]
    if first.stream is None:
        raise RefusedError(node.args["from_"].this, "a table that stays the same stands behind JOIN")
    for join, other in zip(joins, others, strict=True):
        _check(join)
        _with_using(join, other, names)
    resolve(query, names)
    needed = {name for one in query.find_all(exp.Column) for name in columns_in(one)}
    needed |= {one.rows.column for one in others if isinstance(one.rows, Elements)}
    where = list(_conjuncts(query.args.get("where")))
    # Rows that WHERE drops need not wait for a partner; but for those that a later join makes of NULLs.
    outer = any(one.args.get("side") in ("RIGHT", "FULL") for one in joins)
    early, where = ([], where) if outer else (where, [])
    left = first.renamed(needed)
    for join, other in zip(joins, others, strict=True):
        left = _filtered(left, early)
        if isinstance(other.rows, Elements):
            left = _with_elements(join, left, other, other.rows)
            continue
        made = _Join(join, left, other, needed, early)
        left = made.made()
        if made.has_one_time:
            # Either name is that of the event times: they become one.
            for one in (query, *early, *where):
                one.transform(_renamed, made.other_time, left._time_column, copy=False)
    where = early or where
    query.set("joins", None)
    query.set("where", exp.Where(this=exp.and_(*where, copy=False)) if where else None)
    return query, left, Scope(None, left.schema)


def _check(join: exp.Join) -> None:
    check_parts(join, frozenset({"this", "method", "side", "kind", "on", "using"}))
    method, side, kind = (join.args.get(part) or "" for part in ("method", "side", "kind"))
    word = " ".join(one for one in (method, side, kind) if one)
    if method not in ("", "ASOF") or side not in _HOW or kind not in ("", "INNER", "OUTER", "CROSS"):
        raise RefusedError(join.this, f"{word} JOIN has no translation: joins are as in {_FORM}")


def _with_using(join: exp.Join, other: JoinedTable, names: Names) -> None:
    """Replace USING by the equalities that it stands for."""
    using = join.args.get("using")
    if not using:
        return
    if join.args.get("side") in ("RIGHT", "FULL"):
        raise RefusedError(join.this, "USING has one column for both, which this join does not have: write ON")
    before = names.tables[: names.tables.index(other)]
    conditions: list[exp.Expr] = []
    for one in using:
        left, right = names.find(one, before), names.find(one, [other])
        if left is None or right is None:
            raise RefusedError(one, f"{one.name!r} is no column of both tables")
        conditions.append(exp.EQ(this=column_at(left, one), expression=column_at(right, one)))
        names.merge(one, other)
    join.set("using", None)
    join.set("on", exp.and_(*conditions))


def _with_elements(join: exp.Join, left: TableStream, other: JoinedTable, rows: Elements) -> TableStream:
    on = join.args.get("on")
    if join.args.get("side") or (on is not None and on != exp.true()):
        raise RefusedError(join.this, "UNNEST is joined by CROSS JOIN alone: rows without elements are left out")
    (name,) = other.columns
    return step(join.this, lambda: left.with_columns(nw.col(rows.column).alias(name)).explode(name))


def _renamed(node: exp.Expr, old: str, new: str) -> exp.Expr:
    is_old = isinstance(node, exp.Column) and node.parts[0].name == old
    return column_at(new, node) if is_old else node


# ---- conditions ----------------------------------------------------------------------------------------------


def _conjuncts(node: exp.Expr | None) -> Iterator[exp.Expr]:
    """Iterate over the conditions that AND joins."""
    if node is None:
        return
    if isinstance(node, exp.Where):
        node = node.this
    if isinstance(node, exp.And):
        yield from _conjuncts(node.this)
        yield from _conjuncts(node.expression)
    elif isinstance(node, exp.Paren):
        yield from _conjuncts(node.this)
    elif isinstance(node, exp.Between) and not node.args.get("symmetric"):
        yield exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
        yield exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
    else:
        yield node.copy()


def _filtered(table: TableStream, conditions: list[exp.Expr]) -> TableStream:
    """Return the rows for which those conditions are true that are of their columns alone, and take these away."""
    own = [one for one in conditions if (read := columns_in(one)) and read <= set(table.schema.names)]
    for one in own:
        conditions.remove(one)
        table = _kept(table, one, "WHERE")
    return table


def _kept(table: TableStream, condition: exp.Expr, word: str) -> TableStream:
    made = as_boolean(translate(condition, Scope(None, table.schema)), word)
    return step(condition, lambda: table.filter(for_each_row(made, table.schema)))


# ---- one join ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Moment:
    """Column of times with an offset, cut to milliseconds or not."""

    column: str
    offset: dt.timedelta = dt.timedelta()
    is_cut: bool = False


@dataclass(frozen=True)
class _Times:
    """Comparison of the event times of both tables.

    Attributes:
        kind: how the time of the right row is compared with that of the left one.
        offset: what is added to the latter.
        condition: the comparison in the query.
        is_exact: whether event times, which are of milliseconds, decide it.
        is_cut: whether a time in it is cut to milliseconds.
    """

    kind: type[exp.Expr]
    offset: dt.timedelta
    condition: exp.Expr
    is_exact: bool
    is_cut: bool


@dataclass
class _Join:
    """One join of a query.

    Attributes:
        node: the join.
        left: the rows before it, with the names inside.
        other: the table behind it.
        needed: the columns that the query reads.
        where: the conditions of WHERE, which loses those that the join sees to.
        keys: the equalities.
        times: the comparisons of the event times.
        rest: the other conditions.
        has_one_time: whether both rows of a pair have the same value in their columns of the event times.
    """

    node: exp.Join
    left: TableStream
    other: JoinedTable
    needed: set[str]
    where: list[exp.Expr]
    keys: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    times: list[_Times] = field(default_factory=list)
    rest: list[exp.Expr] = field(default_factory=list)
    has_one_time: bool = False

    def __post_init__(self) -> None:
        self.how = _HOW[self.node.args.get("side") or ""]
        self.is_asof = self.node.args.get("method") == "ASOF"
        self.schema = pa.schema(
            self.other.schema.field(i).with_name(name) for i, name in enumerate(self.other.columns)
        )
        stream = self.other.stream
        known = None if stream is None else stream._time_column
        self.time = self.left._time_column
        self.other_time = None if known is None else self.other.inside(known)
        for one in _conjuncts(self.node.args.get("on")):
            if not self._is_of_both(one):
                self.rest.append(one)
        if self.how == "inner" and not self.is_asof:
            self.where[:] = [one for one in self.where if not self._is_of_both(one)]

    def _is_of_both(self, condition: exp.Expr) -> bool:
        """Note an equality or a comparison of times of both tables. Return whether it is one."""
        left, right = set(self.left.schema.names), set(self.other.columns)
        if type(condition) in _MIRRORED:
            if (found := self._as_times(condition)) is not None:
                self.times.append(found)
                return True
            one, two = condition.this, condition.expression
            reads = columns_in(one), columns_in(two)
            if isinstance(condition, exp.EQ) and all(reads):
                if reads[0] <= left and reads[1] <= right:
                    self.keys.append((one, two))
                    return True
                if reads[0] <= right and reads[1] <= left:
                    self.keys.append((two, one))
                    return True
        return False

    def _as_times(self, condition: exp.Expr) -> _Times | None:
        one, two = _moment(condition.this), _moment(condition.expression)
        if one is None or two is None or self.time is None or self.other_time is None:
            return None
        kind = type(condition)
        if (one.column, two.column) == (self.time, self.other_time):
            one, two, kind = two, one, _MIRRORED[kind]
        if (one.column, two.column) != (self.other_time, self.time):
            return None
        is_exact = all(
            moment.is_cut or getattr(schema.field(moment.column).type, "unit", "ms") in ("s", "ms")
            for moment, schema in ((one, self.schema), (two, self.left.schema))
        )
        return _Times(kind, two.offset - one.offset, condition, is_exact, one.is_cut or two.is_cut)

    def made(self) -> TableStream:
        """Return the joined rows."""
        if not self.keys:
            raise RefusedError(self.node.this, f"a join takes an equality of columns of both, as in {_FORM}")
        if self.other.stream is None:
            made = self._looked_up()
        elif self.is_asof:
            made = self._as_of()
        else:
            made = self._by_interval()
        for one in self.rest:
            made = _kept(made, one, "ON")
        return made

    def _rest_of(self, right: TableStream) -> TableStream:
        """Return the right rows for which the conditions are true that are of them alone."""
        if self.how == "inner":
            return _filtered(_filtered(right, self.rest), self.where)
        if self.how == "left":
            right = _filtered(right, self.rest)
        elif self.how == "right":
            self.left = _filtered(self.left, self.rest)
        self._refuse_rest()
        return right

    def _refuse_rest(self) -> None:
        if self.rest:
            raise RefusedError(
                self.rest[0],
                "an outer join takes equalities and times in ON, and conditions of the table that may be missing",
            )

    def _keyed(self, right: TableStream) -> tuple[Any, Any]:
        """Return both sides by their keys, without rows that have no partner because a key is NULL."""
        pairs = [self._unified(*pair) for pair in self.keys]
        sides = []
        for at, table in enumerate((self.left, right)):
            word = ("left", "right")[at]
            scope = Scope(None, table.schema)
            # Keys are in the result on the left, with those of right rows alone, and not on the right.
            shares = at == 0 and self.how in ("inner", "left")
            keys = [
                (passed_as(one[at], scope) if shares else None) or f"${word}{i}" for i, one in enumerate(pairs)
            ]
            computed = {name: pair[at].expr for name, pair in zip(keys, pairs, strict=True) if name[0] == "$"}
            null = functools.reduce(lambda a, b: a | b, (pair[at].expr.is_null() for pair in pairs))
            if self.how == "full":
                # NULL is equal to nothing, and each such row is of the result: no two of both sides have one key.
                keys.append(f"${word}")
                computed[keys[-1]] = nw.when(null).then(nw.lit(at + 1)).otherwise(nw.lit(0))
            elif self.how != word:
                table = table.filter(~null)
            if computed:
                exprs = [one.alias(name) for name, one in computed.items()]
                table = step(self.node.this, functools.partial(table.with_columns, *exprs))
            sides.append(table.key_by(*keys))
        return sides[0], sides[1]

    def _unified(self, left: exp.Expr, right: exp.Expr) -> list[Typed]:
        pair = [translate(left, Scope(None, self.left.schema)), translate(right, Scope(None, self.schema))]
        return pair if pair[0].type == pair[1].type else unified(pair, "the equality of a join")

    # ---- with another stream ------------------------------------------------------------------------------

    def _check_times(self) -> None:
        for name, has in ((self.time, "the rows before it have"), (self.other_time, f"{self.other.name} has")):
            if name is None:
                raise RefusedError(
                    self.node.this,
                    f"a join of two streams is by event time, and {has} no column of it here: give table() "
                    "a strategy .with_timestamp_column(name), or give what stays the same as a pyarrow.Table",
                )

    def _refuse_fine(self) -> None:
        for one in self.times:
            if not one.is_exact:
                raise RefusedError(
                    one.condition,
                    "event times are of milliseconds, and a column here is finer: compare "
                    "DATE_TRUNC('millisecond', time) of both tables",
                )

    def _by_interval(self) -> TableStream:
        self._check_times()
        low, high = self._bounds()
        if low is None or high is None:
            raise RefusedError(
                self.node.this,
                f"a join of two streams takes both ends of their times, or rows would wait for ever: {_FORM}",
            )
        if low > high:
            raise RefusedError(self.node.this, "the times of this join end before they begin")
        assert self.other.stream is not None
        assert self.time is not None
        assert self.other_time is not None
        kinds = self.left.schema.field(self.time).type, self.schema.field(self.other_time).type
        are_equal = not low and not high and not any(one.is_cut for one in self.times)
        self.has_one_time = self.how == "inner" and are_equal and kinds[0] == kinds[1]
        right = self._rest_of(self.other.renamed(self.needed))
        one, other = self._keyed(right)
        how: Any = self.how
        return step(self.node.this, lambda: one.interval_join(other, low, high, how=how))

    def _bounds(self) -> tuple[dt.timedelta | None, dt.timedelta | None]:
        """Return the least and the greatest time of a right row after that of its left row."""
        if self.how != "inner":
            self._refuse_fine()
        low: dt.timedelta | None = None
        high: dt.timedelta | None = None
        for one in self.times:
            apart = _MILLISECOND if one.is_exact and one.kind in (exp.GT, exp.LT) else dt.timedelta()
            if one.kind in (exp.GTE, exp.GT, exp.EQ):
                low = one.offset + apart if low is None else max(low, one.offset + apart)
            if one.kind in (exp.LTE, exp.LT, exp.EQ):
                high = one.offset - apart if high is None else min(high, one.offset - apart)
            if not one.is_exact:
                self.rest.append(one.condition)  # the join is of milliseconds: the columns decide the rest
        return low, high

    def _as_of(self) -> TableStream:
        self._check_times()
        if self.how not in ("inner", "left"):
            raise RefusedError(self.node.this, f"ASOF JOIN is inner or LEFT, not {self.how.upper()}")
        if self.rest or [(one.kind, one.offset) for one in self.times] != [(exp.LTE, dt.timedelta())]:
            raise RefusedError(
                self.node.this,
                "ASOF JOIN takes equalities and one comparison of times: ON a.id = b.id AND a.time >= b.time",
            )
        self._refuse_fine()
        assert self.other.stream is not None
        one, other = self._keyed(self.other.renamed(self.needed))
        how: Any = self.how
        return step(self.node.this, lambda: one.asof_join(other, how=how))

    # ---- with a table that stays the same -----------------------------------------------------------------

    def _looked_up(self) -> TableStream:
        if self.is_asof or self.how not in ("inner", "left"):
            raise RefusedError(self.node.this, "a table that stays the same is joined by JOIN or LEFT JOIN")
        (key, other), *more = self.keys
        if more and self.how == "left":
            raise RefusedError(self.node.this, "rows of a table that stays the same are found by one equality")
        self.rest += (exp.EQ(this=one, expression=two) for one, two in more)
        # Among the rows that are left of the table each value is to occur once.
        given = [self.rest] if self.how == "left" else [self.rest, self.where]
        conditions = [one for some in given for one in some if columns_in(one) <= set(self.other.columns)]
        for some in given:
            some[:] = [one for one in some if one not in conditions]
        if self.how == "left":
            self._refuse_rest()
        found_by, found = self._unified(key, other)
        assert isinstance(self.other.rows, pa.RecordBatch)
        rows = nw.from_native(pa.Table.from_batches([self.other.rows]), eager_only=True)
        rows = rows.select(*(nw.col(name).alias(self.other.inside(name)) for name in self.other.schema.names))
        names = [name for name in self.other.columns if name in self.needed]
        try:
            for one in conditions:
                made = as_boolean(translate(one, Scope(None, self.schema)), "ON")
                rows = rows.filter(for_each_row(made, self.schema))
            rows = rows.select(*names, found.expr.alias("$key")).filter(~nw.col("$key").is_null())
        except pa.ArrowException as error:
            why = str(error).splitlines()[0]
            raise RefusedError(self.node.this, f"a value of this table cannot be computed: {why}") from None
        how: Any = self.how
        left = self.left.with_columns(for_each_row(found_by, self.left.schema).alias("$key"))
        try:
            return step(self.node.this, lambda: left.lookup(rows.to_native(), "$key", how)).drop("$key")
        except RefusedError as refused:
            raise RefusedError(self.node.this, refused.why.replace("'$key'", str(found))) from None


def _moment(node: exp.Expr) -> _Moment | None:
    """Return a time as in ``a.time + INTERVAL '1' HOUR``; None: it is no such."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        return _Moment(node.name) if not node.text("table") else None
    if isinstance(node, exp.Add) and isinstance(node.this, exp.Interval):
        node = exp.Add(this=node.expression.copy(), expression=node.this.copy())
    if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
        found = _moment(node.this)
        by = interval_of(node.expression)
        by = by if isinstance(node, exp.Add) else -by
        return None if found is None else replace(found, offset=found.offset + by)
    if isinstance(node, exp.TimestampTrunc | exp.DateTrunc) and node.text("unit").upper() == "MILLISECOND":
        found = _moment(node.this)
        return None if found is None else replace(found, is_cut=True)
    return None
