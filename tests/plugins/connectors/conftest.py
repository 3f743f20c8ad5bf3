"""A PostgreSQL server of the tests' own, where it is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest


def programs() -> Path | None:
    """Where initdb and pg_ctl are: distributions keep them out of the way."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return places[-1].parent if places else None


def other_user() -> str | None:
    """Who runs the server; None: this user does. The server refuses to be run by root."""
    if os.getuid():
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The directory of the server's socket."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    where = programs()
    if where is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    user = other_user()
    place = tempfile.mkdtemp(prefix="sluiceway-pg-", dir="/tmp")  # a socket's path is short
    if user is not None:
        os.chown(place, pwd.getpwnam(user).pw_uid, -1)

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [where / program, "-D", f"{place}/data", *arguments],
            user=user,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    settings = f"-k {place} -c listen_addresses='' -c fsync=off -c dynamic_shared_memory_type=mmap"
    try:
        call("initdb", "-U", "tests", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        call("pg_ctl", "-w", "-l", f"{place}/log", "-o", settings, "start")
        try:
            yield place
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place)


@pytest.fixture
def postgresql(postgresql_server: str) -> Iterator[str]:
    """The URL of a schema that is empty."""
    import psycopg

    schema = f"s{uuid.uuid4().hex}"
    with psycopg.connect(host=postgresql_server, user="tests", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"postgresql+psycopg://tests@/postgres?host={postgresql_server}&options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
