"""Stateful steps in columns after a worker was killed: the results of a run without a failure."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.table import TableStream, agg, col
from sluiceway.windows import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from sluiceway_files import FilesSink

_RNG = np.random.default_rng(17)
_SIZE = 15_000
_ROWS = pa.table(
    {
        "number": np.arange(_SIZE),
        "user": [f"u{n}" for n in _RNG.integers(0, 60, _SIZE)],
        "price": _RNG.random(_SIZE),
        "at": pa.array(np.arange(_SIZE) + _RNG.integers(0, 200, _SIZE), pa.timestamp("ms")),
    }
)
_STRATEGY: Any = WatermarkStrategy.for_bounded_out_of_orderness("200ms").with_timestamp_column("at")


def _steps(rows: TableStream) -> dict[str, TableStream]:
    keyed = rows.key_by("user")
    named = {"n": agg.count(), "total": agg.sum("price"), "different": agg.count_distinct("number")}
    # One subtask, so that rows of one user and time stay in order: the last of them counts in the as-of join.
    cheap = rows.filter(col("price") < 0.2).set_parallelism(1).key_by("user")
    sliding = keyed.window(SlidingEventTimeWindows("2s", "1s")).allowed_lateness("1s")
    return {
        "running": keyed.running(**named),
        "firsts": keyed.distinct(),
        "firsts of windows": keyed.window(TumblingEventTimeWindows("1s")).distinct(),
        "sessions": keyed.window(EventTimeSessionWindows("400ms")).aggregate(**named, prices=agg.collect("price")),
        "windows": sliding.aggregate(**named),
        "pairs": keyed.interval_join(keyed, "-50ms", "100ms", suffix="_2"),
        "latest": rows.filter(col("price") > 0.5)
        .set_parallelism(1)
        .key_by("user")
        .asof_join(cheap, tolerance="1s", suffix="_2"),
        "moving": keyed.over(rows=5).aggregate(**named),
    }


def _sorted(table: Any) -> list[Any]:
    return sorted(table.to_pylist(), key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_killed_worker_changes_no_result(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With RocksDB nearly all slices of windows are in the database alone."""
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_COLUMNS", "1KB")
    kept, killed = tmp_path / "kept", tmp_path / "killed"

    def kill_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if (
            not killed.exists()
            and rows.num_rows
            and rows["number"][0].as_py() > 5_000
            and any(kept.glob("*/chk-*/*"))
        ):
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    flow = Pipeline("killed")
    rows = flow.table(_ROWS, watermark_strategy=_STRATEGY).set_parallelism(1).map_batches(kill_once)
    for name, table in _steps(rows.set_parallelism(1)).items():
        table.sink(FilesSink.parquet(str(tmp_path / name)))
    flow.run(
        workers=2,
        batch_size=1,
        state_backend=backend,
        checkpoints=str(kept),
        checkpoint_interval="20ms",
        restart="fixed-delay:3:10ms",
    )
    assert killed.exists()
    for name in _steps(rows):
        found = pa.concat_tables([pq.read_table(part) for part in sorted((tmp_path / name).glob("part-*"))])
        whole = _steps(Pipeline().table(_ROWS, watermark_strategy=_STRATEGY))[name].to_arrow()
        assert _sorted(found) == _sorted(whole), name
