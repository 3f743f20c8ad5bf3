"""Program with a step that keeps many rows. Prints sums of its results, and the memory that it took."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from peak_memory import peak_kib

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.connector.lib import DiscardSink
from sluiceway.table import agg

_BACKEND, _KIND, _ROWS, _WIDE = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
_KEYS = 5_000
_LEFT = pa.schema([("key", pa.int64()), ("note", pa.string()), ("at", pa.timestamp("ms"))])
_RIGHT = pa.schema([("key", pa.int64()), ("paid", pa.int64()), ("at", pa.timestamp("ms"))])
_TOTAL = {"rows": 0, "notes": 0, "numbers": 0}
_compute: Any = pyarrow.compute
# No row becomes due before the end of the input, and none is late.
_STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1d").with_timestamp_column("at")


def _wide(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column("number").to_numpy()
    notes = _compute.utf8_lpad(pa.array(numbers).cast(pa.string()), _WIDE, "0")
    keys = pa.array(numbers * 7919 % _KEYS)
    return pa.RecordBatch.from_arrays([keys, notes, pa.array(numbers).cast(pa.timestamp("ms"))], schema=_LEFT)


def _narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column("number").to_numpy()
    keys = pa.array(numbers * 7919 % _KEYS)
    return pa.RecordBatch.from_arrays(
        [keys, pa.array(numbers), pa.array(numbers).cast(pa.timestamp("ms"))], schema=_RIGHT
    )


def _summed(batch: pa.RecordBatch) -> pa.RecordBatch:
    keys = batch.column("key").to_numpy() % 100 + 1
    _TOTAL["rows"] += batch.num_rows
    _TOTAL["notes"] += int((batch.column("note").cast(pa.int64()).to_numpy() * keys).sum())
    other = batch.column("n" if _KIND == "over" else "paid").fill_null(-1)
    _TOTAL["numbers"] += int((other.to_numpy() * keys).sum())
    return batch


flow = Pipeline("memory")
numbers = flow.table(pa.table({"number": np.arange(_ROWS)}))
rows = numbers.map_batches(_wide, _LEFT).assign_timestamps_and_watermarks(_STRATEGY).key_by("key")
if _KIND == "over":
    found = rows.over(rows=3).aggregate(n=agg.count(), last=agg.max("note"))
else:
    few = flow.table(pa.table({"number": np.arange(0, _ROWS, 100)})).map_batches(_narrow, _RIGHT)
    other = few.assign_timestamps_and_watermarks(_STRATEGY).drop("at").key_by("key")
    found = rows.interval_join(other, "-1s", "1s") if _KIND == "interval" else rows.asof_join(other)
found.map_batches(_summed, found.schema).sink(DiscardSink())
flow.run(state_backend=_BACKEND)
print(*_TOTAL.values(), peak_kib())
