"""Jobs in columns that do not import pandas, which takes 0.3 to 0.5 s of each process, although pyarrow would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# Found before the real one, installed or not; pyarrow takes it as none.
PANDAS = """\
import os, sys, traceback

with open(os.environ["IMPORTED"], "a") as file:
    print("imported by", sys.argv, *traceback.format_stack(), sep="\\n", file=file)
raise ImportError("not to be imported")
"""

PROGRAM = """\
import sluiceway as sw
from benchmarks.columnwords import counted_so_far, totals
from sluiceway.connector.lib import DiscardSink
from sluiceway.table import agg
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink, FilesSource

flow = sw.Pipeline("several jobs", parallelism=WORKERS)
strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamp_column("at")
events = flow.table(FilesSource.parquet("events.parquet")).assign_timestamps_and_watermarks(strategy)
lines = flow.table(FilesSource.parquet("lines.parquet"))
sums = {
    "total": agg.sum("amount"),
    "n": agg.count(),
    "most": agg.max("amount"),
    "least": agg.min("price"),
    "mean": agg.mean("price"),
    "last": agg.last("at"),
}
seconds = TumblingEventTimeWindows.of("1s")
events.key_by("user").window(seconds).aggregate(**sums).sink(FilesSink.parquet("windows"))
events.key_by("name", "at").window(seconds).aggregate(**sums).sink(DiscardSink())
events.key_by("name").aggregate(**sums).sink(DiscardSink())
totals(lines).sink(FilesSink.parquet("words"))
counted_so_far(lines).sink(DiscardSink())
workers = {"workers": WORKERS} if WORKERS > 1 else {}
flow.run(checkpoint_interval="10ms", checkpoints="checkpoints", state_backend="memory", **workers)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Directory with the files that the jobs read, and the package that takes the place of pandas."""
    rows = 4_000
    users = np.arange(rows) % 50
    events = pa.table(
        {
            "user": users,
            "name": pa.array([f"user {user}" for user in users], mask=users == 7),
            "amount": pa.array(np.arange(rows) % 997, mask=users == 8),
            "price": np.arange(rows) / 8,
            "at": pa.array(np.arange(rows) * 10).cast(pa.timestamp("ms")),
        }
    )
    pq.write_table(events, tmp_path / "events.parquet", row_group_size=1_000)
    words = pa.table({"line": [f"to be or not to be {number % 100}" for number in range(rows)]})
    pq.write_table(words, tmp_path / "lines.parquet", row_group_size=1_000)
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text(PANDAS)
    return tmp_path


def imports(program: str, place: Path) -> str:
    """Return where the processes of a program imported pandas."""
    imported = place / "imported"
    path = os.pathsep.join([str(place), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path, "IMPORTED": str(imported)},
        cwd=place,
        check=True,
    )
    return imported.read_text() if imported.exists() else ""


def test_an_import_is_seen(place: Path) -> None:
    assert "in <module>" in imports("try:\n    import pandas\nexcept ImportError:\n    pass", place)


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_from_parquet_do_not_import_pandas(place: Path, workers: int) -> None:
    assert imports(f"WORKERS = {workers}\n{PROGRAM}", place) == ""
    assert all(any((place / name).glob("**/*.parquet")) for name in ("windows", "words"))
