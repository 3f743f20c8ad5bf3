"""Program that has many open windows of many keys. Prints the sum of its results, and the memory that it took."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
from peak_memory import peak_kib

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.connector.lib import DiscardSink
from sluiceway.table import agg
from sluiceway.windows import TumblingEventTimeWindows

_BACKEND, _WINDOWS, _KEYS, _CHECKPOINTS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
_SCHEMA = pa.schema(
    [("key", pa.int64()), ("number", pa.int64()), ("price", pa.float64()), ("at", pa.timestamp("ms"))]
)
_TOTAL = {"rows": 0, "n": 0, "total": 0, "high": 0.0}


def _rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column("number").to_numpy()
    times = pa.array(numbers // _KEYS * 10_000 + 1).cast(pa.timestamp("ms"))
    columns = [pa.array(numbers * 7919 % _KEYS), pa.array(numbers), pa.array(numbers * 0.5), times]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _summed(batch: pa.RecordBatch) -> pa.RecordBatch:
    _TOTAL["rows"] += batch.num_rows
    for name in ("n", "total", "high"):
        weights = batch.column("key").to_numpy() % 100 + 1
        _TOTAL[name] += (batch.column(name).to_numpy() * weights).sum().item()
    return batch


flow = Pipeline("memory")
rows = flow.table(pa.table({"number": np.arange(_WINDOWS * _KEYS)})).map_batches(_rows, _SCHEMA)
strategy = WatermarkStrategy.for_bounded_out_of_orderness("100h").with_timestamp_column("at")
windows = rows.assign_timestamps_and_watermarks(strategy).key_by("key").window(TumblingEventTimeWindows("10s"))
found = windows.aggregate(n=agg.count(), total=agg.sum("number"), high=agg.max("price"))
found.map_batches(_summed, found.schema).sink(DiscardSink())
if _CHECKPOINTS:
    flow.run(state_backend=_BACKEND, checkpoints=_CHECKPOINTS, checkpoint_interval="2s")
else:
    flow.run(state_backend=_BACKEND)
print(*_TOTAL.values(), peak_kib())
