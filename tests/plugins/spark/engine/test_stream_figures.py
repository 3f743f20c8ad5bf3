"""Figures of a streaming query, for who watches it. Without Spark."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

from sluiceway.monitoring.rates import RateMeter
from sluiceway_spark.structured.microbatch.metrics import Did, StreamFigures
from sluiceway_spark.structured.row_format import Row

PLAN: Any = SimpleNamespace(
    who=lambda target: (target, 0),
    sources=(0,),
    sinks=(1,),
    graph=SimpleNamespace(vertex=lambda vertex: SimpleNamespace(name=f"step {vertex}")),
)


def report(watermark: int) -> Any:
    row = Row(1, 0, -1, 0, pickle.dumps(Did(0, 10, 10, watermark)))
    return SimpleNamespace(rows=[row], replayed=False, records={}, metrics={})


def test_each_reading_shows_what_the_micro_batches_have_done_since() -> None:
    figures, meter = StreamFigures(PLAN), RateMeter()
    shown = []
    for second in (1, 2):
        figures.take(report(second * 1_000), 0.5)
        (rates,) = meter.read("job", figures.metrics("job", "running", second, 0, 1_000_000 + second * 1_000))
        shown.append((rates.metrics.watermark, rates.metrics.records_in, rates.in_per_s))
    assert shown == [(1_000, 10, 10.0), (2_000, 20, 10.0)]
