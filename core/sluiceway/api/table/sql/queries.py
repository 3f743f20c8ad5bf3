"""Queries: the steps that SELECT, DISTINCT, WHERE, UNION, sub-queries and WITH become."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import narwhals as nw
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from sluiceway.api.arguments import describe
from sluiceway.api.location import caller_location
from sluiceway.api.program import Program
from sluiceway.api.table.sources import rows_of
from sluiceway.api.table.sql.dialect import WINDOW_EXAMPLE, Dialect
from sluiceway.api.table.sql.expressions import Scope, column_path, named_like, no_table, translate
from sluiceway.api.table.sql.grouping import grouped
from sluiceway.api.table.sql.joined_tables import Rows
from sluiceway.api.table.sql.joins import joined
from sluiceway.api.table.sql.over import has_over, with_over
from sluiceway.api.table.sql.positions import RefusedError, at_offset, check_parts, with_position
from sluiceway.api.table.sql.steps import for_each_row, per_row, step
from sluiceway.api.table.sql.types import Typed, as_boolean, dtype_of, unified
from sluiceway.api.table.sql.unnest import has_unnest, with_elements
from sluiceway.api.table.sql.windowed_tables import without_windowed_table
from sluiceway.api.table.stream import TableStream
from sluiceway.columns.schemas import shown
from sluiceway.errors import GraphError

__all__ = ["table_of"]

Tables = Mapping[str, Rows]

_SELECT: Final = frozenset(
    {"expressions", "from_", "joins", "where", "group", "having", "qualify", "with_", "distinct", "windows"}
)
_TABLE_FUNCTION: Final = re.compile(
    r"\bTABLE\s*\(\s*(TUMBLE|HOP|CUMULATE|SESSION)\s*\(|\b(TUMBLE|HOP|CUMULATE|SESSION)\s*\(\s*TABLE\b",
    re.IGNORECASE,
)
_INCOMPLETE: Final = re.compile(r"Required keyword: .* missing for <class '(?:\w+\.)*(\w+)'>")
_UNCLOSED: Final = re.compile(r"Missing (\S+) from \d+:(\d+)")
_PARAMETER: Final = re.compile(r"(?<!:):\w")
_CLAUSES: Final[dict[str, tuple[str, str]]] = {
    "order": ("ORDER", "a stream without an end has no order over all rows"),
    "limit": ("LIMIT", "LIMIT would depend on the order in which rows arrive"),
    "offset": ("OFFSET", "OFFSET would depend on the order in which rows arrive"),
}


def table_of(pipeline: Program, text: str, tables: Mapping[str, Any]) -> TableStream:
    """Return the result of a query over streams in columns.

    Args:
        pipeline: the pipeline that the streams belong to.
        text: the query.
        tables: the streams, and tables that stay the same, by the names that the query has for them.

    Raises:
        TypeError: the query is no text, or a table is none.
        GraphError: the text is no query, or a part of it has no translation: says which, and its position; or a
            stream of another pipeline.
    """
    where = f"sql() at {caller_location()}"
    if not isinstance(text, str):
        raise TypeError(f"{where} takes a query as text, not {describe(text)}")
    known: dict[str, Rows] = {}
    for name, table in tables.items():
        if isinstance(table, TableStream) and table._pipeline is not pipeline:
            raise GraphError(f"{where}: the stream {name!r} belongs to another pipeline")
        try:
            known[name] = table if isinstance(table, TableStream) else rows_of(table, "sql")
        except TypeError:
            raise TypeError(
                f"{where}: {name}= takes a TableStream, as table() returns, or for JOIN a pyarrow.Table or frame "
                f"that stays the same, not {describe(table)}"
            ) from None
        names = known[name].schema.names
        if len(set(names)) < len(names):
            raise GraphError(f"{where}: {name}= has two columns of one name")
    try:
        return _query(_parsed(text, where), known)
    except RefusedError as refused:
        raise GraphError(f"{where}: {with_position(text, refused)}") from None
    except RecursionError:
        raise GraphError(
            f"{where}: the query is nested too deeply, as by hundreds of conditions with OR: IN (...) takes many "
            "values"
        ) from None


def _parsed(text: str, where: str) -> exp.Expr:
    log = logging.getLogger("sqlglot")
    level = log.level
    log.setLevel(logging.ERROR)  # a statement that is no query is refused below, and not logged as well
    try:
        # Comments behind a final semicolon are a statement of their own.
        parsed = sqlglot.parse(text, dialect=Dialect)
        statements = [one for one in parsed if one is not None and not isinstance(one, exp.Semicolon)]
    except ParseError as error:
        found = error.errors[0]
        line, column = found.get("line") or 1, found.get("col") or 1
        begin = sum(len(one) + 1 for one in text.split("\n")[: line - 1])
        why = str(found.get("description")).partition(" but got <Token")[0]
        # sqlglot's column is that in which a word ends.
        start = begin + max(column - len(found.get("highlight") or " "), 0)
        if function := _TABLE_FUNCTION.search(text):
            start = function.start()
            why = (
                "a window is written as in FROM TUMBLE(TABLE orders, DESCRIPTOR(time), INTERVAL '10' SECOND), or "
                f"in GROUP BY user, {WINDOW_EXAMPLE}"
            )
        elif text[start : start + 1] == "`":
            why = 'names are quoted as in "user", without backticks'
        elif incomplete := _INCOMPLETE.match(why):
            why = f"{incomplete[1].upper()} lacks an operand or argument here"
            if incomplete[1] == "Alias" and (parameter := _PARAMETER.search(text)):  # DuckDB has `name: value`
                start, why = parameter.start(), "a query has no parameters: write the value in its place"
        raise GraphError(f"{where}: {at_offset(text, start, why)}") from None
    except TokenError as error:
        raise GraphError(f"{where}: {_without_end(text, error)}") from None
    except Exception as error:  # some texts that are no SQL break the parser
        raise GraphError(f"{where}: sqlglot cannot read the query ({error})") from error
    finally:
        log.setLevel(level)
    if len(statements) != 1:
        raise GraphError(f"{where}: takes one query, not {len(statements)}")
    return statements[0]


def _without_end(text: str, error: TokenError) -> str:
    """Return the reason why a text has no tokens: a part of it, as in quotes, has no end."""
    why = str(error.__cause__ or error).splitlines()[0]
    if found := _UNCLOSED.match(why):
        return at_offset(text, int(found[2]), f"{found[1]} is missing at the end of what begins here")
    if isinstance(error.__cause__, IndexError) and (start := text.rfind("/*")) >= 0:
        return at_offset(text, start, "*/ is missing at the end of the comment that begins here")
    return why


def _query(node: exp.Expr, tables: Tables) -> TableStream:
    if isinstance(node, exp.Subquery):
        check_parts(node, frozenset({"this"}))
        return _query(node.this, tables)
    if isinstance(node, exp.Select):
        return _select(node, _with(node, tables))
    if isinstance(node, exp.Union):
        return _union(node, _with(node, tables))
    if isinstance(node, exp.Query):
        raise RefusedError(node, f"{node.key.upper()} has no translation: queries are of SELECT and UNION")
    raise RefusedError(node, "this is no query: sql() reads, with SELECT ... FROM ...")


def _with(node: exp.Expr, tables: Tables) -> Tables:
    given = node.args.get("with_")
    if given is None:
        return tables
    if given.args.get("recursive"):
        raise RefusedError(given, "WITH RECURSIVE has no translation", "RECURSIVE")
    known = dict(tables)
    for one in given.expressions:
        check_parts(one, frozenset({"this", "alias"}))
        alias = one.args["alias"]
        check_parts(alias, frozenset({"this"}))
        made = _query(one.this, known)
        # A name hides a table of the same name, whatever its case, from what follows.
        for name in [name for name in known if name.casefold() == alias.name.casefold()]:
            del known[name]
        known[alias.name] = made
    return known


# ---- SELECT -----------------------------------------------------------------------------------------------


def _select(node: exp.Select, tables: Tables) -> TableStream:
    for name, (keyword, why) in _CLAUSES.items():
        if found := node.args.get(name):
            at = found[0] if isinstance(found, list) else found
            raise RefusedError(at if isinstance(at, exp.Expr) else node, why, keyword or None)
    check_parts(node, _SELECT)
    given = node.args.get("from_")
    if given is None:
        raise RefusedError(node, "SELECT takes its rows FROM a table")
    if node.args.get("joins"):
        node, table, scope = joined(node, functools.partial(_from, tables=tables))
    else:
        node = without_windowed_table(node)
        rows, scope = _from(node.args["from_"].this, tables)
        if not isinstance(rows, TableStream):
            raise RefusedError(
                node.args["from_"].this,
                f"{scope.name} stays the same, and stands behind JOIN: flow.table({scope.name}) makes it a stream",
            )
        table = rows
    if (where := node.args.get("where")) is not None:
        condition = as_boolean(translate(where.this, scope), "WHERE")
        table = step(where.this, lambda: table.filter(for_each_row(condition, table.schema)))
    if has_unnest(node):
        node, table, scope = with_elements(node, table, scope)
    if node.args.get("group") is not None:
        node, table, scope = grouped(node, table, scope)
    elif has_over(node):
        node, table, scope = with_over(node, table, scope)
    if (having := node.args.get("having")) is not None:
        if node.args.get("group") is None:
            raise RefusedError(having, "HAVING takes the results of GROUP BY: use WHERE for rows", "HAVING")
        condition = as_boolean(translate(having.this, scope), "HAVING")
        table = step(having.this, lambda: table.filter(for_each_row(condition, table.schema)))
    if (qualify := node.args.get("qualify")) is not None:
        if node.args.get("group") is not None:
            raise RefusedError(qualify, "QUALIFY has no translation beside GROUP BY: use a sub-query", "QUALIFY")
        condition = as_boolean(translate(qualify.this, scope), "QUALIFY")
        table = step(qualify.this, lambda: table.filter(for_each_row(condition, table.schema)))
    made = _projected(node, table, scope)
    if (distinct := node.args.get("distinct")) is not None:
        if distinct.args.get("on") is not None:
            raise RefusedError(
                distinct, "DISTINCT ON has no translation: DISTINCT alone compares all columns", "ON"
            )
        return _distinct(node, made)
    return made


def _distinct(node: exp.Expr, table: TableStream) -> TableStream:
    return step(node, lambda: table.key_by(*table.schema.names).distinct())


def _from(node: exp.Expr, tables: Tables) -> tuple[Rows, Scope]:
    alias = node.args.get("alias")
    if alias is not None:
        check_parts(alias, frozenset({"this"}))
    name = None if alias is None else alias.name
    if isinstance(node, exp.Subquery):
        check_parts(node, frozenset({"this", "alias"}))
        table = _query(node.this, tables)
        return table, Scope(name, table.schema)
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        raise RefusedError(node, "FROM takes a table or a query in brackets")
    check_parts(node, frozenset({"this", "alias"}))
    found = named_like(node.name, list(tables), quoted=bool(node.this.args.get("quoted")))
    if found is None:
        near = get_close_matches(node.name, list(tables), 1)
        hint = f"did you mean {near[0]}? The" if near else "the"
        has = f"{hint} tables are {', '.join(tables)}" if tables else "sql() was given no tables"
        raise RefusedError(node, f"there is no table {node.name!r}; {has}. Give it as {node.name}=...")
    return tables[found], Scope(name or found, tables[found].schema)


def _projected(node: exp.Select, table: TableStream, scope: Scope) -> TableStream:
    if not node.expressions:
        raise RefusedError(node, "SELECT takes at least one column, or *", "SELECT")
    selected: dict[str, Typed] = {}
    for one in node.expressions:
        for name, made in _outputs(one, scope):
            if name in selected:
                raise RefusedError(one, f"two columns would have the name {name!r}: give one another with AS")
            selected[name] = made
    # SELECT * adds no step.
    if list(selected) == table.schema.names and all(isinstance(one.node, exp.Star) for one in selected.values()):
        return table
    # Constants alone have one row: one of them as a column says how many there are.
    if all(made.constant for made in selected.values()):
        first = next(iter(selected))
        selected[first] = per_row(selected[first], table.schema)
    return step(node, lambda: table.select(*(made.expr.alias(name) for name, made in selected.items())))


def _outputs(node: exp.Expr, scope: Scope) -> list[tuple[str, Typed]]:
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        of = node.args["table"]
        if not scope.has_table(of):
            raise no_table(of, scope)
        node = node.this
    if isinstance(node, exp.Star):
        return _starred(node, scope)
    if isinstance(node, exp.Alias):
        check_parts(node, frozenset({"this", "alias"}))
        name, node = node.alias, node.this
    elif isinstance(node, exp.Column):
        column, *fields = column_path(node, scope)
        name = node.name if fields else column
    else:
        name = node.sql("duckdb", normalize_functions="lower")
    made = translate(node, scope)
    if made.kind == "null" and made.constant:
        raise RefusedError(node, "NULL has no type here: CAST(NULL AS type) gives it one")
    return [(name, made)]


def _starred(node: exp.Star, scope: Scope) -> list[tuple[str, Typed]]:
    check_parts(node, frozenset({"except_"}))
    names = scope.schema.names
    left_out = set()
    for one in node.args.get("except_") or []:
        translate(one, scope)
        left_out.add(named_like(one.name, names))
    kept = [field for field in scope.schema if field.name not in left_out]
    if not kept:
        raise RefusedError(node, "no column would be left")
    return [(field.name, Typed(nw.col(field.name), field.type, node)) for field in kept]


# ---- UNION ALL --------------------------------------------------------------------------------------------


def _union(node: exp.Union, tables: Tables) -> TableStream:
    for name, (keyword, why) in _CLAUSES.items():
        if found := node.args.get(name):
            raise RefusedError(found, why, keyword or None)
    check_parts(node, frozenset({"this", "expression", "with_", "distinct"}))
    sides = [_query(node.this, tables), _query(node.expression, tables)]
    names = sides[0].schema.names
    if len(names) != len(sides[1].schema.names):
        raise RefusedError(
            node.expression,
            f"UNION ALL takes as many columns on both sides, not {shown(sides[0].schema)} and "
            f"{shown(sides[1].schema)}",
            "UNION",
        )
    if names != sides[1].schema.names or sides[0].schema.types != sides[1].schema.types:
        sides = _alike(node, sides, names)
    made = step(node, lambda: sides[0].union(sides[1]))
    return _distinct(node, made) if node.args.get("distinct") else made


def _alike(node: exp.Union, sides: list[TableStream], names: list[str]) -> list[TableStream]:
    columns: list[list[nw.Expr]] = [[], []]
    for i, name in enumerate(names):
        pair = [
            Typed(nw.col(side.schema.names[i]), side.schema.field(i).type, exp.column(side.schema.names[i]))
            for side in sides
        ]
        try:
            made = pair if pair[0].type == pair[1].type else unified(pair, f"column {name!r} of UNION ALL")
        except RefusedError as refused:
            raise RefusedError(node.expression, refused.why, "UNION") from None
        for side, before, one in zip(columns, pair, made, strict=True):
            # A column that is cast would not be known as that of the event time any more.
            dtype = None if one.type == before.type else dtype_of(one.type)
            side.append((one.expr if dtype is None else one.expr.cast(dtype)).alias(name))
    return [side.select(*given) for side, given in zip(sides, columns, strict=True)]
