"""SQLite for Sluiceway: tables as sources and sinks, and keyed state in a file instead of in memory.

The classes can be imported from here; the module that has one is loaded when that happens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluiceway.hooks import Offer, hookimpl

if TYPE_CHECKING:
    from sluiceway_sqlite._sink import SqliteSink as SqliteSink
    from sluiceway_sqlite._source import SqliteSource as SqliteSource
    from sluiceway_sqlite._state import SqliteStateBackend as SqliteStateBackend

__all__ = ["SqliteSink", "SqliteSource", "SqliteStateBackend"]

_WHERE = {"SqliteSink": "_sink", "SqliteSource": "_source", "SqliteStateBackend": "_state"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


@hookimpl
def sluiceway_connectors() -> list[Offer]:
    """Tables of a SQLite database, read and written."""

    def load() -> Any:
        from sluiceway.connector import Connector

        from sluiceway_sqlite._sink import SqliteSink
        from sluiceway_sqlite._source import SqliteSource

        return Connector(source=SqliteSource, sink=SqliteSink)

    return [Offer("sqlite", load, "tables of a SQLite database")]


@hookimpl
def sluiceway_state_backends() -> list[Offer]:
    """Keyed state in a file of SQLite's."""

    def load() -> Any:
        from sluiceway_sqlite._state import SqliteStateBackend

        return SqliteStateBackend

    return [Offer("sqlite", load, "keyed state in a temporary file: larger than memory, slower than memory")]
