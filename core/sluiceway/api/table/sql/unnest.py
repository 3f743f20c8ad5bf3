"""UNNEST in SELECT: a row for each element of a list."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.expressions import Scope, translate
from sluiceway.api.table.sql.positions import RefusedError
from sluiceway.api.table.sql.select_list import column_at, columns_of_star, computed_name, named_as_before
from sluiceway.api.table.sql.steps import for_each_row, step
from sluiceway.api.table.stream import TableStream

__all__ = ["element_type", "has_unnest", "with_elements"]


def has_unnest(node: exp.Select) -> bool:
    """Return whether a query has UNNEST in SELECT."""
    return any(one.find(exp.Explode) is not None for one in node.expressions)


def with_elements(node: exp.Select, table: TableStream, scope: Scope) -> tuple[exp.Select, TableStream, Scope]:
    """Make a row of each element of the list in UNNEST; a list that is empty or NULL makes none.

    Args:
        node: the query.
        table: its rows, after WHERE.
        scope: their columns.

    Returns:
        the query with a column in place of UNNEST and of its stars, the stream that has it, and its columns.

    Raises:
        RefusedError: there are several lists, or it is none.
    """
    query = node.copy()
    found = [one for output in query.expressions for one in output.find_all(exp.Explode)]
    if node.args.get("group") is not None:
        raise RefusedError(found[0], "UNNEST has no translation beside GROUP BY: put it into a sub-query")
    if any(one != found[0] for one in found):
        raise RefusedError(found[1], "SELECT takes one UNNEST: put the other one into a sub-query")
    lists = translate(found[0].this, scope)
    element_type(found[0], lists.type)
    element = computed_name("element", scope)

    def as_element(part: exp.Expr) -> exp.Expr:
        return column_at(element, part) if isinstance(part, exp.Explode) else part

    outputs: list[exp.Expr] = []
    for one in query.expressions:
        if isinstance(one, exp.Star | exp.Column) and one.is_star:
            outputs += columns_of_star(one, scope)
        else:
            outputs.append(named_as_before(one, one.transform(as_element)))
    query.set("expressions", outputs)
    column = for_each_row(lists, scope.schema).alias(element)
    table = step(found[0], lambda: table.with_columns(column).explode(element))
    return query, table, Scope(scope.name, table.schema)


def element_type(node: exp.Expr, kind: pa.DataType) -> pa.DataType:
    """Return the type of the elements of a list. Raises RefusedError: it is none."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise RefusedError(node, f"UNNEST takes a list, and not {kind}")
    made: pa.DataType = kind.value_type
    return made
