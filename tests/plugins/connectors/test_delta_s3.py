"""Tables of Delta Lake in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason='not installed: pip install "sluiceway[delta]"')

import pyarrow as pa
from deltalake import DeltaTable
from tests.plugins.checkpointstorages.test_s3 import bucket, server

import sluiceway as sw
from sluiceway.errors import ConnectorError
from sluiceway.testing import BreakingSink
from sluiceway_lakehouse import DeltaSink, DeltaSource

__all__ = ["bucket", "server"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("delta_runtime")]


def test_a_table_in_s3_is_written_over_a_failure_and_read(bucket: str, tmp_path: Path) -> None:
    options = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", "aws_conditional_put": "etag"}
    table = f"{bucket}/table"
    rows = pa.table({"n": range(200_000), "text": ["x" * 50] * 200_000, "p": ["a b", "c"] * 100_000})
    flow = sw.Pipeline("s3")
    sink = DeltaSink(table, partition_by="p", row_group_size=20_000, storage_options=options)
    flow.table(rows).sink(BreakingSink(sink, tmp_path, "after commit", after=0))
    result = flow.run(parallelism=2, checkpoint_interval="100ms", restart="fixed-delay:2:10ms")
    assert result.metrics.restarts == 1
    read = sw.Pipeline("read").table(DeltaSource(table, storage_options=options)).to_arrow().sort_by("n")
    assert read["n"].to_pylist() == list(range(200_000))
    assert DeltaTable(table, storage_options=options).to_pyarrow_table().num_rows == 200_000
    filters = [("p", "=", "a b"), ("n", "<", 10)]
    read = sw.Pipeline("read").table(DeltaSource(table, filters=filters, storage_options=options)).to_arrow()
    assert sorted(read["n"].to_pylist()) == [0, 2, 4, 6, 8]
    with pytest.raises(ConnectorError, match="does not exist"):
        sw.Pipeline("read").table(DeltaSource(f"{bucket}/none", storage_options=options))
