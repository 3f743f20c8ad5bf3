"""A PostgreSQL server and sessions of Spark's of the tests' own, where these are installed."""

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


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on this machine, whose batches of Arrow's have 7 rows."""
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    from sluiceway_spark import SessionConf

    conf = {
        "spark.sql.shuffle.partitions": 3,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.execution.arrow.maxRecordsPerBatch": 7,
    }
    session = SessionConf.of("local[2]", None, conf).session()
    # Its Python workers are there now.
    list(session.range(3).mapInArrow(lambda batches: batches, "id long").collect())
    yield session
    session.stop()
