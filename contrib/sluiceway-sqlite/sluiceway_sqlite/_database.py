"""Common parts of source and sink: quoting, and messages for refusals by SQLite."""

from __future__ import annotations

import sqlite3
from difflib import get_close_matches
from pathlib import Path

from sluiceway.errors import ConnectorError

__all__ = ["open_to_read", "quoted", "table_error"]


def quoted(name: str) -> str:
    """``name`` as an identifier in SQL. In double quotes, SQLite would take an unknown column for a string."""
    return "`" + name.replace("`", "``") + "`"


def open_to_read(database: Path) -> sqlite3.Connection:
    """A connection that reads. Raises ConnectorError where there is nothing to read."""
    if not database.is_file():
        raise ConnectorError(f"cannot read {database}: there is no such file")
    try:
        return sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise ConnectorError(f"cannot read {database}: {error}") from error


def table_error(
    connection: sqlite3.Connection, database: Path, table: str, error: sqlite3.Error
) -> ConnectorError:
    """The error for a statement about ``table`` that failed; a mistyped table gets a hint."""
    message = f"table {table!r} of {database}: {error}"
    if "no such table" in str(error):
        found = connection.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY name")
        names = [name for (name,) in found]
        close = get_close_matches(table, names, n=1)
        hint = f". Did you mean {close[0]!r}?" if close else ""
        message += f"{hint} There are: {', '.join(names) or 'none'}"
    return ConnectorError(message)
