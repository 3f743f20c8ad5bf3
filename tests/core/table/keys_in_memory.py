"""Program with aggregates of many keys. Prints sums of its results, and the memory that it took."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from peak_memory import peak_kib

from sluiceway import Pipeline
from sluiceway.connector.lib import DiscardSink
from sluiceway.table import agg

_BACKEND, _KIND, _KEYS, _ROWS, _CHECKPOINTS = (
    sys.argv[1],
    sys.argv[2],
    int(sys.argv[3]),
    int(sys.argv[4]),
    sys.argv[5],
)
_SCHEMA = pa.schema([("key", pa.string()), ("number", pa.int64()), ("price", pa.float64())])
_TOTAL = {"rows": 0, "n": 0, "total": 0, "high": 0.0}
_text: Any = pyarrow.compute


def _rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    numbers = batch.column("number").to_numpy()
    # Each key comes once, but for some that come all the time.
    keys = np.where(numbers % 8, numbers % _KEYS, numbers * 31 % (_KEYS // 50))
    return pa.RecordBatch.from_arrays(
        [_text.utf8_lpad(pa.array(keys).cast(pa.string()), 56, "0"), pa.array(numbers), pa.array(numbers * 0.5)],
        schema=_SCHEMA,
    )


def _summed(batch: pa.RecordBatch) -> pa.RecordBatch:
    weights = batch.column("key").cast(pa.int64()).to_numpy() % 100 + 1
    _TOTAL["rows"] += batch.num_rows
    for name in _TOTAL.keys() & set(batch.schema.names):
        _TOTAL[name] += (batch.column(name).to_numpy() * weights).sum().item()
    return batch


flow = Pipeline("memory")
rows = flow.table(pa.table({"number": np.arange(_ROWS)})).map_batches(_rows, _SCHEMA).key_by("key")
named = {"n": agg.count(), "total": agg.sum("number"), "high": agg.max("price")}
named |= {"mean": agg.mean("price"), "spread": agg.variance("price"), "first": agg.first("number")}
named |= {"last": agg.last("number"), "low": agg.min("number")}
found = {
    "running": lambda: rows.running(**named),
    "totals": lambda: rows.aggregate(**named),
    "distinct": rows.distinct,
}[_KIND]()
found.map_batches(_summed, found.schema).sink(DiscardSink())
options = {"checkpoints": _CHECKPOINTS, "checkpoint_interval": "2s"} if _CHECKPOINTS else {}
flow.run(state_backend=_BACKEND, **options)
print(*_TOTAL.values(), peak_kib())
