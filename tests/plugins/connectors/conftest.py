"""A PostgreSQL server and schema registries of the tests' own, where these are installed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.postgresql import programs, server


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The directory of the server's socket."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    where = programs()
    if where is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with server(where) as place:
        yield place


@pytest.fixture
def postgresql(postgresql_server: str) -> Iterator[str]:
    """The URL of a schema that is empty."""
    import psycopg

    schema = f"s{uuid.uuid4().hex}"
    with psycopg.connect(host=postgresql_server, user="tests", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"postgresql+psycopg://tests@/postgres?host={postgresql_server}&options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def registry() -> Iterator[Any]:
    """A schema registry of the tests' own."""
    from tests.plugins.connectors.schemaregistry import Registry

    registry = Registry()
    try:
        yield registry
    finally:
        registry.close()


@pytest.fixture(scope="session")
def apicurio_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a registry of Apicurio."""
    from tests.plugins.connectors.schemaregistry import ApicurioUnavailableError, apicurio

    running = apicurio(tmp_path_factory.mktemp("apicurio"))
    try:
        url = running.__enter__()
    except ApicurioUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield url
    finally:
        running.__exit__(None, None, None)
