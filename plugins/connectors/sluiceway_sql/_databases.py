"""Access to a database: a file of SQLite's, a URL for SQLAlchemy, or a function that connects."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from sluiceway.errors import ConfigurationError, MissingExtraError
from sluiceway.util.install_hints import install_command
from sluiceway.util.redaction import redact
from sluiceway_sql._statements import PARAMSTYLES, Dialect

__all__ = ["Database", "DatabaseLike", "Opened", "database_of"]

DatabaseLike: TypeAlias = str | os.PathLike[str] | Callable[[], Any]

_BUSY_S: Final = 60.0
_POSTGRESQL_DRIVERS: Final = ("psycopg", "psycopg2", "psycopg2cffi", "pg8000", "pgdb", "postgresql")


class Opened:
    """A connection, and how to speak to it.

    Attributes:
        connection: of the DB-API.
        dialect: its SQL.
    """

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        self.connection = connection
        self.dialect = dialect

    def begin(self) -> Any:
        """Begin a transaction, which may write; returns a cursor."""
        cursor = self.connection.cursor()
        if self.dialect.name == "sqlite":
            # Takes the lock now: one that is taken later can be refused without waiting for it.
            cursor.execute("BEGIN IMMEDIATE")
        return cursor

    def roll_back(self) -> bool:
        """Roll back; returns False where that fails, as on a connection that is lost."""
        try:
            self.connection.rollback()
        except Exception:
            return False
        return True


class Database(ABC):
    """A description, picklable, that connects to nothing by itself."""

    @abstractmethod
    def open(self) -> Opened:
        """Connect. Raises what the driver does."""

    @abstractmethod
    def __str__(self) -> str:
        """For messages: without a password."""


def database_of(database: DatabaseLike, paramstyle: str | None) -> Database:
    """Return the database that the user's argument names.

    Raises:
        ConfigurationError: it is nothing that a database can be reached by.
        MissingExtraError: it needs SQLAlchemy.
    """
    if paramstyle is not None:
        if paramstyle not in PARAMSTYLES:
            raise ConfigurationError(
                f"paramstyle={paramstyle!r} must be one of {', '.join(map(repr, PARAMSTYLES))}"
            )
        if not callable(database):
            raise ConfigurationError("paramstyle= goes with a function that connects; else the driver is known")
    if callable(database):
        return _Connecting(database, paramstyle)
    if not isinstance(database, str | os.PathLike) or not os.fspath(database):
        raise ConfigurationError(
            f"database={database!r:.100} must be the path of a SQLite file, a URL, or a function that returns a "
            "connection"
        )
    given = os.fspath(database)
    if "://" in given and not given.startswith("sqlite://"):
        return _Url(given)
    path = unquote(given.removeprefix("sqlite://").removeprefix("/")) if "://" in given else given
    if path in ("", ":memory:"):
        raise ConfigurationError(
            f"database={given!r}: a database in memory is gone when its writer is; name a file"
        )
    return _SqliteFile(os.path.abspath(os.path.expanduser(path)))


class _SqliteFile(Database):
    def __init__(self, path: str) -> None:
        self._path = path

    def open(self) -> Opened:
        # isolation_level=None: transactions begin as begin() says, not before the first statement that changes
        # something.
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        return Opened(connection, Dialect("sqlite", sqlite3.paramstyle))

    def __str__(self) -> str:
        return self._path


class _Url(Database):
    def __init__(self, url: str) -> None:
        if importlib.util.find_spec("sqlalchemy") is None:
            raise MissingExtraError(f"databases by URL need SQLAlchemy: {install_command('sluiceway[sql]')}")
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        self._url = url
        try:
            self._shown = redact(make_url(url).render_as_string(hide_password=True))
        except (ArgumentError, ValueError):
            raise ConfigurationError(f"database={redact(url)!r} is not a URL that SQLAlchemy can read") from None

    def open(self) -> Opened:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import NoSuchModuleError
        from sqlalchemy.pool import NullPool

        try:
            # Without a pool, close() ends the connection instead of keeping it.
            engine = create_engine(self._url, poolclass=NullPool)
        except NoSuchModuleError as error:
            name = self._shown.partition(":")[0]
            hint = "postgresql+psycopg" if name.startswith("postgres") else "DATABASE+DRIVER"
            raise ConfigurationError(
                f"{self}: SQLAlchemy knows no database {name!r}, with which the URL begins ({error}). Begin it "
                f"with {hint}://, or install the package that adds it to SQLAlchemy"
            ) from None
        except ImportError as error:
            raise MissingExtraError(f"{self}: its driver is not installed ({error})") from None
        dialect = engine.dialect
        quote = dialect.identifier_preparer.quote_identifier
        pooled = engine.raw_connection()
        connection = pooled.dbapi_connection
        # Without SQLAlchemy, whose close() rolls back first: that waits for a copy under way, for ever, and logs
        # an error where the connection is lost.
        pooled.detach()
        return Opened(connection, Dialect(dialect.name, dialect.paramstyle, quote))

    def __str__(self) -> str:
        return self._shown


class _Connecting(Database):
    def __init__(self, connect: Callable[[], Any], paramstyle: str | None) -> None:
        self._connect = connect
        self._paramstyle = paramstyle

    def open(self) -> Opened:
        connection = self._connect()
        modules = [base.__module__.partition(".")[0] for base in type(connection).__mro__]
        driver = next((name for name in modules if hasattr(sys.modules.get(name), "paramstyle")), "")
        paramstyle = self._paramstyle or getattr(sys.modules.get(driver), "paramstyle", None)
        if paramstyle is None:
            connection.close()
            raise ConfigurationError(
                f"{self} returned a {type(connection).__module__}.{type(connection).__qualname__}, and it cannot "
                "be told which DB-API driver that is from. Set paramstyle= to the paramstyle of its driver"
            )
        name = "sqlite" if driver == "sqlite3" else "postgresql" if driver in _POSTGRESQL_DRIVERS else ""
        return Opened(connection, Dialect(name, paramstyle))

    def __str__(self) -> str:
        return str(getattr(self._connect, "__qualname__", None) or f"{self._connect!r:.60}")
