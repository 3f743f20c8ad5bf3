"""Tables of SQL databases, written: ``SqlSink``; those of PostgreSQL, read: ``PostgreSqlSource``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_sql._postgresql_source import PostgreSqlSource
    from sluiceway_sql._sink import SqlSink

__all__ = ["PostgreSqlSource", "SqlSink"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        from sluiceway.util.name_hints import hint_for, refuse_in_module

        refuse_in_module(__name__, name, __all__, hint_for(__name__, name))
    if name == "PostgreSqlSource":
        from sluiceway_sql._postgresql_source import PostgreSqlSource

        return PostgreSqlSource
    from sluiceway_sql._sink import SqlSink

    return SqlSink


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Offer ``sql`` and ``postgresql``."""

    def load() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_sql._sink import SqlSink

        return Connector(sink=SqlSink)

    def load_postgresql() -> Any:
        from sluiceway.connector import Connector
        from sluiceway_sql._postgresql_source import PostgreSqlSource

        return Connector(source=PostgreSqlSource)

    return [
        Offer("sql", load, "tables of SQLite, and of any database with a DB-API driver or SQLAlchemy URL; sink"),
        Offer("postgresql", load_postgresql, "tables of PostgreSQL, read in bulk, in columns or as dicts; source"),
    ]
