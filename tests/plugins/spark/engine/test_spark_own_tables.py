"""What Spark computes as the source of a pipeline that Spark runs: with a real session on this machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import GraphError, NoResourceAvailableError

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

from sluiceway_spark import SparkSource  # noqa: E402 - where there is no Spark, this says so

pytestmark = pytest.mark.spark


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    spark.range(0, 60, 1, 3).selectExpr("id", "concat('w', id % 5) AS word").write.parquet(path)
    return path


def counting(path: str, flow: sw.Pipeline | None = None) -> Any:
    rows = (flow or sw.Pipeline("counts")).source(SparkSource.path(path, records=tuple))
    return rows.key_by(lambda row: row[1]).count()


@pytest.mark.parametrize("options", [{}, {"hosted": True, "workers": 2}], ids=["batch", "hosted"])
def test_a_table_is_read_by_the_session_of_the_program(table: str, options: dict[str, Any]) -> None:
    with counting(table).execute_and_collect(engine="spark", **options) as rows:
        counts: Counter[str] = Counter()
        for word, count in rows:
            counts[word] = max(counts[word], count)
    assert counts == {f"w{number}": 12 for number in range(5)}


def test_micro_batches_say_what_to_do_instead(table: str, tmp_path: Path) -> None:
    flow = sw.Pipeline("counts")
    counting(table, flow).print()
    message = (
        r"test_spark_own_tables.py:\d+\): engine 'spark' in micro-batches does not have sources that are planned "
        r"in the program itself .* no session; run it .* as a batch job, or with --hosted"
    )
    options = {"engine": "spark", "checkpoints": str(tmp_path / "runs")}
    with pytest.raises(GraphError, match=message):
        flow.run(**options)
    (finding,) = [f for f in flow.check(**options) if f.code == "engine-lacks"]
    assert finding.node == f"source(spark parquet {table})"
    assert not [f for f in flow.check(engine="spark") if f.code == "engine-lacks"]


def test_workers_leave_a_slot_for_what_spark_computes(table: str) -> None:
    flow = sw.Pipeline("counts")
    counting(table, flow).print()
    message = (
        r"3 workers take 3 task slots .*, and what SparkSource reads takes 1 beside them, and local\[3\] has 3"
    )
    with pytest.raises(NoResourceAvailableError, match=message):
        flow.run(engine="spark", hosted=True, workers=3, parallelism=3)
