"""SparkTableSink before a session is there: its arguments, and where it is refused."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import pytest

import sluiceway as sw
from sluiceway.errors import ConfigurationError, GraphError

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pytest.importorskip("pyarrow")

from sluiceway_spark import SparkTableSink

pytestmark = pytest.mark.spark


class Order(NamedTuple):
    id: int
    day: dt.date


@pytest.fixture(autouse=True)
def _no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session would be started, and the table created, by what only looks at the job."""
    from sluiceway_spark.session.configuration import SessionConf

    def session(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("a session was started")

    monkeypatch.setattr(SessionConf, "session", session)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "replace"}, r"no mode 'replace'. Known: 'append', 'overwrite', 'overwrite_partitions'"),
        ({"format": "hudi"}, r"'hudi'. Known: 'delta', 'iceberg'"),
        ({"add_columns": True}, r"add_columns=True adds columns of schema=, which is not given"),
        ({"partition_by": "id; DROP TABLE x"}, r"partition_by has 'id; DROP TABLE x', and takes names of columns"),
        ({"partition_by": 3}, r"partition_by"),
        ({"partition_by": "days(day)", "format": "delta"}, r"tables of Delta are partitioned by columns alone"),
        ({"partition_by": "month", "schema": Order}, r"partition_by has 'month', and the columns are id, day"),
        ({"schema": 3}, r"schema=3 must be a pyarrow\.Schema"),
    ],
)
def test_arguments_are_checked_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        SparkTableSink("lake.orders", **options)


def test_a_table_has_a_name() -> None:
    with pytest.raises(ConfigurationError, match="takes the name of a table, not ' '"):
        SparkTableSink(" ")


def orders(mode: str = "append") -> sw.Pipeline:
    flow = sw.Pipeline("orders")
    flow.from_collection([Order(1, dt.date(2026, 1, 1))]).sink(SparkTableSink("lake.orders", mode=mode)).name(
        "table"
    )
    return flow


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        (
            "append",
            {"engine": "spark", "hosted": True},
            "with --hosted does not have sinks that commit in the program",
        ),
        ("append", {"workers": 2}, "'local' with workers does not have sinks that commit in the program itself"),
        (
            "overwrite",
            {"engine": "spark", "checkpoints": "runs"},
            "in micro-batches does not have sinks that replace",
        ),
        ("overwrite_partitions", {"checkpoint_interval": "1s"}, "does not have sinks that replace what is there"),
    ],
)
def test_where_it_cannot_commit_it_is_refused(mode: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=rf"'table' \(.*{said}"):
        orders(mode).run(**options)
    (finding,) = [found for found in orders(mode).check(**options) if found.code == "engine-lacks"]
    assert finding.node == "table"


@pytest.mark.parametrize("options", [{}, {"engine": "spark"}, {"checkpoint_interval": "1s"}])
def test_elsewhere_checking_starts_no_session(options: dict[str, Any]) -> None:
    assert not [found for found in orders().check(**options) if found.code == "engine-lacks"]
