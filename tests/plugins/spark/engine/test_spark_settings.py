"""Settings of a query of Spark's, and what of them the user has a say in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

from sluiceway_spark.structured.query_settings import CHANGELOG, FILE_MANAGER, apply_settings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def users(spark: Any) -> Iterator[Any]:
    """A session as of a notebook."""
    yield (session := spark.newSession())
    for name in (CHANGELOG, FILE_MANAGER):
        session.conf.unset(name)


def set_by(users: Any, location: str) -> tuple[str | None, str | None]:
    """The file manager's class without its package, and whether changes are logged."""
    session = users.newSession()
    apply_settings(session, users, partitions=2, location=location)
    assert session.conf.get("spark.sql.shuffle.partitions") == "2"
    manager = session.conf.get(FILE_MANAGER, None)
    return manager and manager.rpartition(".")[2], session.conf.get(CHANGELOG, None)


def test_local_places_get_the_manager_that_forks_less(users: Any, tmp_path: Path) -> None:
    quick = ("FileSystemBasedCheckpointFileManager", "true")
    assert set_by(users, str(tmp_path)) == quick
    assert set_by(users, tmp_path.as_uri()) == quick
    assert set_by(users, "hdfs://host/runs") == (None, "true")
    assert set_by(users, "s3://bucket/runs") == (None, "true")


def test_what_the_user_has_set_stays(users: Any, tmp_path: Path) -> None:
    users.conf.set(FILE_MANAGER, "com.example.Own")
    users.conf.set(CHANGELOG, "false")
    assert set_by(users, str(tmp_path)) == ("Own", "false")
    assert set_by(users, "hdfs://host/runs") == ("Own", "false")


def test_arrow_batches_fit_into_the_memory_of_a_small_driver(spark: Any) -> None:
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "64m"
