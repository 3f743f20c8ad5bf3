"""A job in columns that is stopped when its checkpoints share files, and goes on from one of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sluiceway as sw
from sluiceway.checkpoint import CheckpointMetadata, find_checkpoints, load_metadata
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.errors import CheckpointError
from sluiceway.table import agg
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSink
from sluiceway_filesystem._storage import open_storage

__all__ = ["Ends", "begun", "ended", "newest"]

COUNT, KEYS, WIDTH = 60_000, 50, 3_000
SCHEMA = pa.schema([("key", pa.int64()), ("number", pa.int64()), ("text", pa.string())])


class Ends(Exception):
    """The first run is over."""


def newest(storage: CheckpointStorage) -> tuple[str, CheckpointMetadata] | None:
    """Return the directory and the metadata of the newest checkpoint."""
    found = []
    for directory in find_checkpoints(storage):
        with suppress(CheckpointError):  # deleted since, for a newer one
            found.append((directory, load_metadata(storage, directory)))
    return max(found, key=lambda each: each[1].checkpoint_id, default=None)


def _flow(out: Path, kept: str | None) -> sw.Pipeline:
    def check(value: int) -> dict[str, Any]:
        if kept is not None and value % 1_000 == 0:
            found = newest(open_storage(kept))
            if found is not None and found[1].written * 3 < found[1].size:
                raise Ends
        return {"key": value % KEYS, "number": value, "text": f"{value:080}"}

    flow = sw.Pipeline("sums")
    numbers: Any = flow.source(GeneratorSource(count=COUNT, rate=None if kept is None else 6_000)).uid("numbers")
    # No window ends before the input does.
    strategy: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness("1h").with_timestamp_assigner(
        lambda row, _: row["number"]
    )
    rows = (
        numbers.map(check).uid("rows").assign_timestamps_and_watermarks(strategy).uid("times").to_columns(SCHEMA)
    )
    windows = rows.key_by("key").window(TumblingEventTimeWindows(WIDTH))
    sums = windows.aggregate(n=agg.count(), total=agg.sum("number"), texts=agg.collect("text")).uid("sums")
    sums.sink(FilesSink.parquet(str(out))).uid("files")
    return flow


def begun(out: Path, kept: str, **options: Any) -> None:
    """Run the job until a checkpoint has written less than a third of its state."""
    with pytest.raises(Ends):
        _flow(out, kept).run(checkpoints=kept, checkpoint_interval="50ms", restart="none", **options)


def ended(out: Path, kept: str, **options: Any) -> None:
    """Run the job from its last checkpoint to its end, and compare its results."""
    _flow(out, None).run(from_checkpoint=kept, restart="none", **options)
    table = pa.concat_tables([pq.read_table(part) for part in sorted(out.glob("part-*"))])
    found = sorted((row["window_start"].timestamp() * 1000, row["key"], row) for row in table.to_pylist())
    assert len(found) == COUNT // WIDTH * KEYS
    for start, key, row in found:
        numbers = [number for number in range(int(start), int(start) + WIDTH) if number % KEYS == key]
        assert (row["n"], row["total"]) == (len(numbers), sum(numbers))
        assert sorted(row["texts"]) == [f"{number:080}" for number in numbers]
