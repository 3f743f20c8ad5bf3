"""Streams in columns on Spark, with a real session on this machine: results are those of one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway.table import TableStream, agg, col
from sluiceway.windows import SlidingEventTimeWindows, TumblingEventTimeWindows
from sluiceway_files import FilesSink, FilesSource
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

ROWS = 6000
IN_BATCH = {"engine": "spark"}
HOSTED = {"engine": "spark", "hosted": True, "workers": 2}
STRATEGY: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness("5s").with_timestamp_column("at")


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """py4j keeps the connections by which Spark calls this process until the JVM collects its garbage."""


@dataclass
class Sale:
    """Result of a function of records for a row."""

    user: str
    cents: int
    tags: list[str]


def sale(row: dict[str, Any]) -> Sale:
    return Sale(row["user"].upper(), row["cents"] or 0, row["tags"] or [])


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of Parquet with nulls, lists and times that are a little out of order."""
    place = tmp_path_factory.mktemp("sales")
    for part in range(3):
        of = range(part * ROWS // 3, (part + 1) * ROWS // 3)  # a reader may have read all others before
        rows = pa.table(
            {
                "user": pa.array([f"u{i % 97}" for i in of]),
                "cents": pa.array([None if i % 11 == 0 else i % 500 for i in of], pa.int64()),
                "tags": pa.array([None if i % 7 == 0 else ["a"] * (i % 3) for i in of], pa.list_(pa.string())),
                "at": pa.array([i * 20 + (i * 37) % 4000 for i in of], pa.timestamp("ms")),
            }
        )
        pq.write_table(rows, place / f"{part}.parquet", row_group_size=500)
    return place


def rows_of(flow: sw.Pipeline, sales: Path) -> TableStream:
    rows = flow.table(FilesSource.parquet(sales), watermark_strategy=STRATEGY)
    return rows.with_columns(twice=col("cents") * 2).filter(col("twice").is_null() | (col("twice") > 10))


def windows(flow: sw.Pipeline, sales: Path, check: Any = lambda one: one) -> TableStream:
    """Columns to records and back, then windows."""
    keyed = rows_of(flow, sales).map(sale).map(check).returns(Sale).to_columns(Sale).key_by("user")
    return keyed.window(SlidingEventTimeWindows("20s", "10s")).aggregate(
        n=agg.count(), cents=agg.sum("cents"), most=agg.max("cents"), kinds=agg.count_distinct("cents")
    )


class FailsOnce:
    """Raises at a sale, when there is no file that says that it did."""

    def __init__(self, note: Path) -> None:
        self.note = str(note)

    def __call__(self, sale: Sale) -> Sale:
        if (sale.user, sale.cents) == ("U61", 493) and not Path(self.note).exists():
            Path(self.note).touch()
            raise ValueError("once")
        return sale


def in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("window_start", "ascending"), ("user", "ascending")])


@pytest.mark.parametrize("options", [IN_BATCH, HOSTED], ids=["batch", "hosted"])
def test_windows_of_columns_are_those_of_one_process(sales: Path, options: dict[str, Any]) -> None:
    expected, found = (
        in_order(windows(sw.Pipeline("windows", parallelism=2), sales).to_arrow(**each)) for each in ({}, options)
    )
    assert expected.num_rows > ROWS // 10
    assert found.equals(expected)


@pytest.mark.parametrize("options", [IN_BATCH, HOSTED], ids=["batch", "hosted"])
def test_steps_with_less_to_read_and_look_ups_are_those_of_one_process(
    sales: Path, options: dict[str, Any]
) -> None:
    async def found_for(users: list[str]) -> list[dict[str, Any]]:
        return [{"user": user, "length": len(user)} for user in users if user != "u5"]

    found = []
    for each in ({}, options):
        rows = sw.Pipeline("looks up", parallelism=2).table(FilesSource.parquet(sales))
        rows = rows.filter(col("cents") > 200).select("user", "cents")
        looked_up = rows.lookup_async(found_for, "user", pa.schema([("length", pa.int64())]), timeout=None)
        table = looked_up.to_arrow(**each)
        found.append(table.sort_by([("user", "ascending"), ("cents", "ascending")]))
    assert found[0].num_rows > ROWS // 10
    assert found[1].equals(found[0])


def test_a_batch_job_writes_columns(sales: Path, tmp_path: Path) -> None:
    found = []
    for name, options in (("one process", {}), ("spark", IN_BATCH)):
        flow = sw.Pipeline("writes", parallelism=2)
        rows = rows_of(flow, sales)
        totals = rows.key_by("user").window(TumblingEventTimeWindows("10s")).aggregate(total=agg.sum("twice"))
        totals.sink(FilesSink.parquet(tmp_path / name))
        result = flow.run(**options)
        assert result.status is JobStatus.FINISHED
        found.append(in_order(pq.read_table(tmp_path / name)))
        assert (result.metrics.records_in, result.metrics.records_out) == (ROWS, found[-1].num_rows)
    assert found[1].equals(found[0])


@pytest.mark.skipif(too_old(MICRO_BATCHES) is not None, reason=f"micro-batches: {too_old(MICRO_BATCHES)}")
def test_micro_batches_give_what_one_process_gives(
    sales: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them fails, and is read again."""
    from sluiceway.runtime.microbatch.batch_limits import BatchLimits
    from sluiceway_spark.structured import streaming_query

    monkeypatch.setattr(streaming_query, "LIMITS", BatchLimits(records=120, wait_s=0.1, linger_s=0.05))
    expected = windows(sw.Pipeline("windows", parallelism=2), sales).to_arrow()
    flow = sw.Pipeline("windows", parallelism=2)
    windows(flow, sales, FailsOnce(tmp_path / "failed")).sink(FilesSink.parquet(tmp_path / "out"))
    result = flow.run(engine="spark", checkpoints=str(tmp_path / "kept"), restart="fixed-delay:1:10ms")
    assert (result.status, result.metrics.records_in) == (JobStatus.FINISHED, ROWS)
    assert [str(failure.cause) for failure in result.failures] == ["once"]
    assert result.metrics.micro_batches > 3
    found = in_order(pq.read_table(tmp_path / "out"))
    assert found.equals(in_order(expected).cast(found.schema))
