"""Expressions in GROUP BY: each becomes a column before, and what a query has of it becomes that column."""

from __future__ import annotations

from functools import partial

import narwhals as nw
from sqlglot import exp

from sluiceway.api.table.sql.dialect import WINDOW_COLUMNS, WINDOW_EXAMPLE
from sluiceway.api.table.sql.expressions import Scope, column_path, named_like, translate
from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.select_list import column_at, named_as_before, passed_as, text_of
from sluiceway.api.table.sql.steps import step
from sluiceway.api.table.stream import TableStream

__all__ = ["with_group_columns"]


def with_group_columns(
    node: exp.Select, table: TableStream, scope: Scope
) -> tuple[exp.Select, TableStream, Scope]:
    """Return a query whose GROUP BY has columns and windows alone: other expressions are computed before."""
    group = node.args["group"]
    if group.args.get("all"):
        raise RefusedError(node, "GROUP BY ALL has no translation: name the columns")
    check_parts(group, frozenset({"expressions"}))
    query = node.copy()
    computed: dict[str, nw.Expr] = {}
    names: list[tuple[exp.Expr, str]] = []
    has_window = any(isinstance(one, exp.Anonymous) for one in query.args["group"].expressions)
    for given in list(query.args["group"].expressions):
        one, name = _meant(given, query, scope)
        if _is_of_window(one, scope):
            if not has_window:
                raise RefusedError(given, f"{one.name} needs a window: GROUP BY {WINDOW_EXAMPLE}")
            given.pop()  # no more groups: the window determines it
            continue
        if isinstance(one, exp.Anonymous):
            if one is not given:
                if not one.name.upper().startswith(("TUMBLE", "HOP", "CUMULATE", "SESSION")):
                    translate(one, scope)  # refused as a function that is not known
                raise RefusedError(
                    given,
                    f"GROUP BY takes no name or position of {one.name.upper()}: a window stands there itself, as "
                    f"in GROUP BY {WINDOW_EXAMPLE}",
                )
            continue
        if isinstance(one, exp.Rollup | exp.Cube | exp.GroupingSets):
            why = "has no translation: write a query for each of the groupings, with UNION ALL"
            raise RefusedError(one, f"{one.key.upper()} {why}")
        if aggregate := one.find(exp.AggFunc):
            raise RefusedError(given, f"GROUP BY takes what rows have, and no {aggregate.sql_name()}")
        made = translate(one, scope)
        known = passed_as(made, scope)
        if made.constant:
            given.pop()  # one group, as without it
        elif known is not None:
            given.replace(column_at(known, given))
        else:
            # Hidden, as SELECT gives it its name: one that no column of the query has.
            while named_like(name, [*scope.schema.names, *computed]) is not None:
                name += "'"
            computed[name] = made.expr.alias(name)
            names.append((_plain(one, scope), name))
            given.replace(column_at(name, given))
    if not computed:
        return query, table, scope

    def replaced(part: exp.Expr) -> exp.Expr:
        plain = _plain(part, scope)
        return next((column_at(name, part) for one, name in names if one == plain), part)

    query.set("expressions", [named_as_before(one, one.transform(replaced)) for one in query.expressions])
    if (having := query.args.get("having")) is not None:
        having.set("this", having.this.transform(replaced))
    table = step(group, partial(table.with_columns, *computed.values()))
    return query, table, Scope(scope.name, table.schema)


def _meant(given: exp.Expr, query: exp.Select, scope: Scope) -> tuple[exp.Expr, str]:
    """Return the expression that a part of GROUP BY stands for, and a name for it.

    A part may be a name of SELECT, if no column of the table has it, or the position of a column there.
    """
    selected = query.expressions
    if isinstance(given, exp.Literal) and not given.args["is_string"]:
        positions = {str(number): one for number, one in enumerate(selected, 1)}
        if given.name not in positions:
            raise RefusedError(given, f"SELECT has the columns 1 to {len(selected)}, and no {given.name}")
        chosen = positions[given.name]
        if chosen.is_star:
            raise RefusedError(given, "SELECT with GROUP BY names its columns, and takes no *")
        return (chosen.this, chosen.alias) if isinstance(chosen, exp.Alias) else (chosen, text_of(chosen))
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
    return given, text_of(given)


def _is_of_window(node: exp.Expr, scope: Scope) -> bool:
    """Return whether an expression is a column of the window, and none of the table."""
    if not isinstance(node, exp.Column) or node.args.get("table") is not None:
        return False
    near = partial(named_like, node.name, quoted=bool(node.this.args.get("quoted")))
    return near(scope.schema.names) is None and near(list(WINDOW_COLUMNS)) is not None


def _plain(node: exp.Expr, scope: Scope) -> exp.Expr:
    """Return an expression as it is compared: with its columns as the table has them, and no brackets around."""

    def named(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column) or isinstance(part.this, exp.Star):
            return part
        try:
            path = column_path(part, scope)
        except RefusedError:  # a name of SELECT
            return part
        name, *fields = path
        return column_at(name, part, [exp.to_identifier(one, quoted=True) for one in fields])

    return node.unnest().copy().transform(named)
