"""Event times at both ends of 64 bits, as programs write them for none: rows are neither lost nor an error."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.errors import FunctionContractError
from sluiceway.table import agg
from sluiceway.windows import CumulativeEventTimeWindows, SlidingEventTimeWindows, TumblingEventTimeWindows

_LEAST, _MOST = -(2**63), 2**63 - 1
_TIMES = WatermarkStrategy.for_bounded_out_of_orderness("1h").with_timestamp_column("at")


def _rows(flow: Pipeline, times: list[int]) -> Any:
    table = pa.table({"k": ["a"] * len(times), "at": pa.array(times, pa.int64())})
    return flow.table(table, watermark_strategy=_TIMES).key_by("k")


@pytest.mark.parametrize(
    ("window", "rows"),
    [
        (TumblingEventTimeWindows("1s"), 1),
        (TumblingEventTimeWindows("1s", 300), 1),
        (SlidingEventTimeWindows("1s", "500ms"), 2),
        (CumulativeEventTimeWindows("500ms", "1s", 100), None),
    ],
)
@pytest.mark.parametrize("times", [[_LEAST + 1, 0], [_LEAST + 1, 5, _MOST], [_LEAST + 5_000, _MOST - 1, 7]])
def test_windows(window: Any, rows: int | None, times: list[int]) -> None:
    found = _rows(Pipeline(), times).window(window).aggregate(n=agg.count()).to_arrow()
    assert set(found["n"].to_pylist()) == {1}
    assert rows is None or found.num_rows == rows * len(times)
    assert len(set(found["window_start"].cast(pa.int64()).to_pylist())) >= len(times)


@pytest.mark.parametrize("time", [_LEAST + 5, _MOST - 1])
def test_joins_and_last_rows(time: int) -> None:
    flow = Pipeline()
    joined = _rows(flow, [time]).interval_join(_rows(flow, [time, 0]), -10, 10, suffix="_right")
    assert joined.to_arrow()["at_right"].to_pylist() == [time]
    last = _rows(flow, [time, time + 1, 0]).over(range=10).aggregate(n=agg.count()).to_arrow()
    assert sorted(zip(last["at"].to_pylist(), last["n"].to_pylist(), strict=True)) == sorted(
        [(time, 1), (time + 1, 2), (0, 1)]
    )


def test_a_tolerance_spans_no_more_than_itself() -> None:
    flow = Pipeline()
    joined = _rows(flow, [_MOST - 1]).asof_join(_rows(flow, [_LEAST + 5]), tolerance=10, suffix="_right")
    assert joined.to_arrow()["at_right"].to_pylist() == [None]


def test_seconds_that_milliseconds_cannot_hold_are_an_error() -> None:
    table = pa.table({"at": pa.array([0, 10**16], pa.timestamp("s"))})
    flow = Pipeline()
    flow.table(table, watermark_strategy=_TIMES).print()
    with pytest.raises(
        FunctionContractError, match=r"column 'at' gives the event time, and 10000000000000000 s in row 1"
    ):
        flow.run()
