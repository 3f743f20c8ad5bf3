"""Tables of a query with JOIN, and their columns.

These go by ``table.column`` inside. A query is written anew with these names, so that what follows in it knows of
one table only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import narwhals as nw
import pyarrow as pa
from sqlglot import exp

from sluiceway.api.table.sql.dialect import WindowedTable
from sluiceway.api.table.sql.expressions import Scope, named_like
from sluiceway.api.table.sql.positions import RefusedError, check_parts
from sluiceway.api.table.sql.select_list import column_at, named, text_of
from sluiceway.api.table.sql.unnest import element_type
from sluiceway.api.table.stream import TableStream
from sluiceway.columns.schemas import shown

__all__ = ["Elements", "JoinedTable", "Names", "Rows", "columns_in", "joined_table", "resolve"]

Rows = TableStream | pa.RecordBatch
"""A stream, or the rows of a table that stays the same."""


@dataclass(frozen=True)
class Elements:
    """Rows that the lists in a column of the rows before have, by the name of the column inside."""

    column: str


@dataclass
class JoinedTable:
    """Table of a query.

    Attributes:
        name: its name there.
        rows: its rows.
        schema: its columns.
    """

    name: str
    rows: Rows | Elements
    schema: pa.Schema

    @property
    def stream(self) -> TableStream | None:
        """The stream of its rows; None: it stays the same."""
        return self.rows if isinstance(self.rows, TableStream) else None

    def inside(self, column: str) -> str:
        """Return the name that a column has inside."""
        return f"{self.name}.{column}"

    @property
    def columns(self) -> list[str]:
        """Names of the columns inside."""
        return [self.inside(name) for name in self.schema.names]

    def chosen(self, needed: set[str]) -> list[nw.Expr]:
        """Return its columns that are needed, by their names inside, and that of its event times."""
        time = None if self.stream is None else self.stream._time_column
        return [
            nw.col(name).alias(self.inside(name))
            for name in self.schema.names
            if self.inside(name) in needed or name == time
        ] or [nw.col(self.schema.names[0]).alias(self.inside(self.schema.names[0]))]

    def renamed(self, needed: set[str]) -> TableStream:
        """Return the stream with the names inside."""
        assert self.stream is not None
        return self.stream.select(*self.chosen(needed))


@dataclass
class Names:
    """Columns of all tables of a query.

    Attributes:
        tables: the tables.
        merged: the tables that USING has joined by a column, whose name stands for that of the first of them.
    """

    tables: list[JoinedTable] = field(default_factory=list)
    merged: dict[str, list[JoinedTable]] = field(default_factory=dict)

    def merge(self, column: exp.Expr, other: JoinedTable) -> None:
        """Let the name of a column stand for that of another table, too."""
        tables = self.merged.setdefault(column.name.casefold(), [])
        before = self.tables[: self.tables.index(other)]
        tables += [one for one in (*before, other) if one not in tables and _column_of(one, column) is not None]

    def is_repeated(self, table: JoinedTable, column: str) -> bool:
        """Return whether a column is that of a table before, as USING says."""
        return any(one is table for one in self.merged.get(column.casefold(), ())[1:])

    def table(self, of: exp.Expr) -> JoinedTable | None:
        """Return the table of a name before a dot."""
        found = named_like(of.name, [one.name for one in self.tables], quoted=bool(of.args.get("quoted")))
        return next((one for one in self.tables if one.name == found), None)

    def find(self, name: exp.Expr, tables: Sequence[JoinedTable]) -> str | None:
        """Return the name inside of a column; None: no table has it."""
        found = [(one, column) for one in tables if (column := _column_of(one, name)) is not None]
        merged = self.merged.get(name.name.casefold(), [])
        if any(one not in merged for one, _ in found[1:]):
            where = " and ".join(one.name for one, _ in found)
            raise RefusedError(name, f"{name.name!r} is a column of {where}: write {found[0][0].name}.{name.name}")
        return found[0][0].inside(found[0][1]) if found else None


def _column_of(table: JoinedTable, name: exp.Expr) -> str | None:
    return named_like(name.name, table.schema.names, quoted=bool(name.args.get("quoted")))


def joined_table(node: exp.Expr, rows_of: Callable[[exp.Expr], tuple[Rows, Scope]], names: Names) -> JoinedTable:
    """Return a table in FROM or behind JOIN, and add it to the names.

    Raises:
        RefusedError: it is a window, or another table has its name.
    """
    if isinstance(node, WindowedTable):
        raise RefusedError(node, "a window around a table has no JOIN beside it: put one of them into a sub-query")
    if isinstance(node, exp.Unnest):
        return _elements(node, names)
    rows, scope = rows_of(node)
    name = scope.name or f"${len(names.tables)}"
    if named_like(name, [one.name for one in names.tables]) is not None:
        raise RefusedError(node, f"two tables have the name {name!r}: give one another, as in {name} AS other")
    made = JoinedTable(name, rows, scope.schema)
    names.tables.append(made)
    return made


def _elements(node: exp.Unnest, names: Names) -> JoinedTable:
    check_parts(node, frozenset({"expressions", "alias"}))
    given = node.expressions[0]
    if len(node.expressions) > 1 or not isinstance(given, exp.Column):
        raise RefusedError(
            node, "UNNEST takes a column of the tables before, as in CROSS JOIN UNNEST(tags) AS t(tag)"
        )
    of = given.args.get("table")
    tables = names.tables if of is None else [one for one in names.tables if one is names.table(of)]
    inside = names.find(given.this, tables)
    if inside is None:
        raise RefusedError(given, f"there is no column {given.name!r} in the tables before")
    (kind,) = [
        one.schema.field(name).type for one in tables for name in one.schema.names if one.inside(name) == inside
    ]
    alias = node.args.get("alias")
    columns = [] if alias is None else alias.columns
    name = alias.name if alias is not None and alias.name else "unnest"
    column = columns[0].name if columns else "unnest"
    made = JoinedTable(name, Elements(inside), pa.schema([(column, element_type(given, kind))]))
    names.tables.append(made)
    return made


def resolve(query: exp.Select, names: Names) -> None:
    """Replace the columns of a query by their names inside; those of SELECT keep their names outside."""
    resolve = functools.partial(_resolved, names=names)
    query.set("expressions", [made for one in query.expressions for made in _outputs(one, names)])
    for part in ("where", "group", "having", "qualify"):
        if query.args.get(part) is not None:
            query.set(part, query.args[part].transform(resolve))
    query.set("windows", [one.transform(resolve) for one in query.args.get("windows") or []])
    for join in query.args["joins"]:
        if join.args.get("on") is not None:
            join.set("on", join.args["on"].transform(resolve))


def _resolved(node: exp.Expr, names: Names) -> exp.Expr:
    if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
        return node
    first, *fields = node.parts
    table = names.table(first) if fields else None
    if table is not None:
        first, *fields = fields
        inside = names.find(first, [table])
        if inside is None:
            raise RefusedError(
                first, f"there is no column {first.name!r} in {table.name}, which has {shown(table.schema)}"
            )
        return column_at(inside, node, fields)
    inside = names.find(first, names.tables)
    if inside is not None:
        return column_at(inside, node, fields)
    if not fields:
        return node  # a name of SELECT
    known = ", ".join(one.name for one in names.tables)
    raise RefusedError(first, f"there is no table {first.name!r} here; they are {known}")


def _outputs(node: exp.Expr, names: Names) -> Iterator[exp.Expr]:
    """Iterate over the columns that one of SELECT stands for."""
    if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
        star = node if isinstance(node, exp.Star) else node.this
        check_parts(star, frozenset())
        tables = names.tables
        if isinstance(node, exp.Column):
            table = names.table(node.args["table"])
            if table is None:
                raise RefusedError(node.args["table"], f"there is no table {node.args['table'].name!r} here")
            tables = [table]
        for one in tables:
            for name in one.schema.names:
                if len(tables) == 1 or not names.is_repeated(one, name):
                    yield named(column_at(one.inside(name), node), name)
        return
    made = node.transform(functools.partial(_resolved, names=names))
    if isinstance(node, exp.Alias):
        yield made
    else:
        yield named(made, node.name if isinstance(node, exp.Column) else text_of(node))


def columns_in(node: exp.Expr) -> set[str]:
    """Return the names inside of the columns in an expression."""
    return {one.parts[0].name for one in node.find_all(exp.Column)}
