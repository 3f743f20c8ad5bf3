"""The sink that writes rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError, unknown_column
from sluiceway.util.name_hints import HintingType
from sluiceway.util.overriding import override
from sluiceway_sql._databases import DatabaseLike, database_of
from sluiceway_sql._table import Target
from sluiceway_sql._writers import CommittingSqlWriter, SqlWriter

__all__ = ["SqlSink"]

_COMMIT_TABLE: Final = "sluiceway_commits"

Promise: TypeAlias = Literal["exactly-once", "idempotent", "at-least-once"]


class SqlSink(Sink[Any], metaclass=HintingType):
    """Sink that writes each record as a row of a table.

    A record is a mapping, dataclass, named tuple or msgspec struct with the columns' names, which may have more;
    or a tuple or list with a value for each column.

    With ``key``, a record takes the place of the row with its key: writing it again after a failure changes
    nothing, so the sink is *idempotent*, and rows are written as they come. Distribute by the same key, or give
    the sink parallelism 1: which of two subtasks writes a key last is not determined. In PostgreSQL, rows are
    written in the order of their keys, so that two subtasks do not wait for each other's (a deadlock); in the
    order in which they came, if the table has a foreign key to itself.

    Without, it is *exactly-once* in a job with checkpoints: rows are kept in memory, and in the checkpoint, until
    that is complete, then written in one transaction, in which a table of its own, ``sluiceway_commits``, notes
    the writer and the number of its transaction; a commit that comes again finds it there. So rows are seen as
    late as checkpoints are complete, and those of one interval have to fit into memory. The rows of
    ``sluiceway_commits`` are small, one for each writer of each attempt; those of jobs that will not go on may be
    removed. ``guarantee="exactly-once"`` has rows with a key written so, too: all of a checkpoint at once.

    Where a job has no checkpoints, all rows are written as they come, and what a failed job had written stays. So
    it is in a job without a checkpoint interval that continues from a checkpoint, once what that has made ready is
    committed.

    Rows in columns (:class:`~sluiceway.table.TableStream`) are copied into PostgreSQL in bulk, by psycopg.

    A connection that the database or a firewall has closed meanwhile is opened anew, and the transaction that
    finds it closed is written again. If it is lost in a commit, the job fails or restarts, as the rows may be
    there. A transaction that the database ends for a deadlock or a serialization failure (SQLSTATE 40P01, 40001)
    is written again, up to nine times.

    Databases are SQLite, without anything installed, and whatever SQLAlchemy (the extra ``sql``) or a driver of
    the DB-API reaches; tested with SQLite and PostgreSQL. Calls of the database are made in the task's thread: a
    slow one holds up everything else in its worker. SQLite lets one write at a time; the others wait, a minute at
    the most.

    Args:
        database: the path of a SQLite file, made where there is none; the URL of a database as SQLAlchemy has it,
            with its driver: ``postgresql+psycopg://user@host/shop``; or a function without arguments that returns
            a connection of the DB-API, not in autocommit mode. Passwords in URLs are not shown in messages.
        table: name of the table; ``schema.table`` where it is in a schema.
        columns: the columns to write.
        key: those of them that say which row is meant. The table must have a unique index on them.
        guarantee: what to promise; None: ``idempotent`` with a key, else ``exactly-once``. ``at-least-once`` adds
            rows as they come: some twice after a failure.
        create: statement that makes the table where it is not there yet. In SQLite it is made without, with
            columns that have no type, and the key as primary key, NOT NULL.
        commit_table: another name for ``sluiceway_commits``.
        paramstyle: of the driver of a function's connections (``qmark``, ``format``, ...), where it cannot be
            told.

    Raises:
        ConfigurationError: one of them cannot be used, or they do not go together.
        MissingExtraError: a URL needs SQLAlchemy, which is not installed.
    """

    def __init__(
        self,
        database: DatabaseLike,
        table: str,
        columns: Sequence[str],
        *,
        key: Sequence[str] = (),
        guarantee: Promise | None = None,
        create: str | None = None,
        commit_table: str = _COMMIT_TABLE,
        paramstyle: str | None = None,
    ) -> None:
        for name, value in (("table", table), ("commit_table", commit_table)):
            odd = name == "commit_table" and "%" in str(value)  # drivers disagree on what that is
            if not isinstance(value, str) or not all(value.split(".")) or odd:
                raise ConfigurationError(f"{name}={value!r} must be the name of a table")
        names, key_names = _names("columns", columns), _names("key", key)
        if not names:
            raise ConfigurationError("columns= must name at least one column to write")
        if missing := [name for name in key_names if name not in names]:
            raise ConfigurationError(f"key=: {missing[0]!r} is not one of the columns {', '.join(names)}")
        known = [str(g.value) for g in DeliveryGuarantee if g is not DeliveryGuarantee.NONE]
        if guarantee is not None and guarantee not in known:
            raise ConfigurationError(
                f"guarantee={guarantee!r} must be one of {', '.join(map(repr, known))}, or None"
            )
        if guarantee == "idempotent" and not key_names:
            raise ConfigurationError(
                "guarantee='idempotent' takes key=: rows without a key cannot be written again"
            )
        if guarantee == "at-least-once" and key_names:
            raise ConfigurationError(
                "guarantee='at-least-once' is for rows without key=; with it, they are idempotent"
            )
        self._guarantee = DeliveryGuarantee(guarantee or ("idempotent" if key_names else "exactly-once"))
        self._target = Target(database_of(database, paramstyle), table, names, key_names, create, commit_table)

    def __repr__(self) -> str:
        return f"SqlSink({str(self._target.database)!r}, {self._target.table!r})"

    @property
    def name(self) -> str:
        """The table's name."""
        return f"sql {self._target.table}"

    @property
    def guarantee(self) -> DeliveryGuarantee:
        """As asked for; else idempotent with a key, exactly-once without."""
        return self._guarantee

    def problems_of_columns(self, schema: Any) -> Sequence[str]:
        """Return which of ``columns=`` the rows lack."""
        missing = [name for name in self._target.columns if name not in schema.names]
        return [f"columns=: {unknown_column(name, schema.names)}" for name in missing]

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        # What goes on from a checkpoint may have something to commit.
        may_commit = context.has_checkpoints or context.is_restored
        if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE and may_commit:
            return CommittingSqlWriter(self._target, context)
        return SqlWriter(self._target)


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"{argument}={names!r:.100} must be names of columns, in a list or tuple")
    if len(set(names)) < len(names):
        raise ConfigurationError(f"{argument}={list(names)!r:.100} names a column twice")
    return tuple(names)
