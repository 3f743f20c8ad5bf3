"""Windows around a table in FROM, as Flink writes them: the same as windows in GROUP BY."""

from __future__ import annotations

from sqlglot import exp

from sluiceway.api.table.sql.dialect import WINDOW_COLUMNS, WindowedTable
from sluiceway.api.table.sql.positions import RefusedError

__all__ = ["without_windowed_table"]

_BOUNDS = WINDOW_COLUMNS[:2]


def without_windowed_table(node: exp.Select) -> exp.Select:
    """Return a query with its window in GROUP BY, in place of ``window_start`` to ``window_time`` there.

    Raises:
        RefusedError: it is not grouped by ``window_start`` and ``window_end``, or by other columns than those of
            its sessions.
    """
    if not isinstance(node.args["from_"].this, WindowedTable):
        return node
    query = node.copy()
    given = query.args["from_"].this
    call, table, keys = given.this, given.args["table"], given.args["keys"]
    name = call.name.upper()
    group = query.args.get("group") or exp.Group()
    columns = [one for one in group.expressions if isinstance(one, exp.Column)]
    bounds = {one.name.casefold(): one for one in columns if one.name.casefold() in WINDOW_COLUMNS}
    if not bounds.keys() >= set(_BOUNDS):
        raise RefusedError(call, f"{name} around a table takes GROUP BY {', '.join(_BOUNDS)} beside the keys")
    for bound in bounds.values():
        bound.pop()
    if name != "SESSION" and keys:
        raise RefusedError(keys[0], f"PARTITION BY belongs to SESSION, and not to {name}")
    if name == "SESSION" and _names(keys) != _names(group.expressions):
        raise RefusedError(call, "SESSION takes PARTITION BY with the other columns of GROUP BY: it is of them")
    group.append("expressions", call)
    table.set("alias", given.args.get("alias"))
    query.args["from_"].set("this", table)
    return query


def _names(columns: list[exp.Expr]) -> set[str]:
    return {one.name.casefold() for one in columns}
