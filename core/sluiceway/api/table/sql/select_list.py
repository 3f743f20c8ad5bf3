"""Columns of SELECT: their names, what a star stands for, and columns in place of what is computed before."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sluiceway.api.table.sql.expressions import Scope, named_like, translate
from sluiceway.api.table.sql.positions import start_of
from sluiceway.api.table.sql.types import Typed
from sluiceway.columns.transforms import passed

__all__ = ["column_at", "columns_of_star", "computed_name", "named", "named_as_before", "passed_as", "text_of"]


def passed_as(made: Typed, scope: Scope) -> str | None:
    """Return the name of the column that an expression is; None: it is another one."""
    return next((name for name in scope.schema.names if passed(made.expr, name) == name), None)


def computed_name(text: str, scope: Scope) -> str:
    """Return the name of a column that is computed for a step, the same for each text: one that no column has."""
    name = f"${text}"
    while name in scope.schema.names:
        name += "'"
    return name


def text_of(node: exp.Expr) -> str:
    """Return an expression as it is written, for the name of its column."""
    return node.sql("duckdb", normalize_functions="lower")


def column_at(name: str, node: exp.Expr, fields: Sequence[exp.Expr] = ()) -> exp.Column:
    """Return a column, or a field in it, in the place of a part of a query, whose position it has."""
    path = [exp.to_identifier(name, quoted=True), *fields]
    column = exp.Column(**dict(zip(("this", "table", "db", "catalog"), reversed(path), strict=False)))
    column.meta["start"] = start_of(node)
    return column


def columns_of_star(star: exp.Expr, scope: Scope) -> list[exp.Expr]:
    """Return the columns that a star of SELECT stands for, in its place: none that are computed later."""
    of = star.args.get("table")
    if of is not None and (scope.name is None or named_like(of.name, [scope.name]) is None):
        return [star]  # refused as such
    star = star.this if isinstance(star, exp.Column) else star
    left_out = set()
    for one in star.args.get("except_") or []:
        translate(one, scope)
        left_out.add(named_like(one.name, scope.schema.names))
    return [column_at(name, star) for name in scope.schema.names if name not in left_out]


def named(node: exp.Expr, name: str) -> exp.Alias:
    """Return a column of SELECT with a name."""
    return exp.Alias(this=node, alias=exp.to_identifier(name, quoted=True))


def named_as_before(node: exp.Expr, made: exp.Expr) -> exp.Expr:
    """Return what a column of SELECT was rewritten to, with the name that the column had."""
    if isinstance(node, exp.Alias) or (isinstance(node, exp.Column) and made == node):
        return made
    return named(made, node.name if isinstance(node, exp.Column) else text_of(node))
