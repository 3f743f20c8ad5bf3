"""Steps that wait for watermarks which never come."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import sluiceway as sw
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.graph import Finding
from sluiceway.table import agg
from sluiceway.windows import TumblingEventTimeWindows, TumblingProcessingTimeWindows

TEN_MS = TumblingEventTimeWindows.of(10)
MONOTONOUS: WatermarkStrategy[int] = WatermarkStrategy.for_monotonous_timestamps()


def found(flow: sw.Pipeline, code: str = "no-watermarks") -> list[Finding]:
    return [f for f in flow.check() if f.code == code]


def windowed(stream: sw.DataStream[int], windows: Any = TEN_MS) -> None:
    stream.key_by(lambda v: v).window(windows).reduce(max).print()


def test_a_window_that_will_never_end_is_warned_of() -> None:
    flow = sw.Pipeline()
    windowed(flow.generate().map(lambda v: v))
    (finding,) = found(flow)
    assert finding.level.value == "warning"
    assert (
        "waits for event time to advance, which it never does: no watermarks are emitted by 'source("
        in finding.message
    )
    assert "Give the source a watermark_strategy=, or put assign_timestamps" in finding.message


def test_who_does_not_wait_for_event_time_needs_no_watermarks() -> None:
    flow = sw.Pipeline()
    windowed(flow.generate(), TumblingProcessingTimeWindows.of(10))
    assert found(flow) == []


def test_a_source_that_ends_needs_none() -> None:
    flow = sw.Pipeline()
    windowed(flow.generate(count=10))
    assert found(flow) == []


def test_watermarks_of_the_source_or_on_the_way_will_do() -> None:
    flow = sw.Pipeline()
    windowed(flow.generate(watermark_strategy=MONOTONOUS).map(lambda v: v))
    windowed(flow.generate().map(lambda v: v).assign_timestamps_and_watermarks(MONOTONOUS).filter(bool))
    assert found(flow) == []


def test_a_strategy_without_watermarks_is_none() -> None:
    flow = sw.Pipeline()
    windowed(flow.generate(watermark_strategy=WatermarkStrategy.no_watermarks()))
    assert len(found(flow)) == 1


def test_one_input_without_watermarks_is_enough() -> None:
    flow = sw.Pipeline()
    windowed(flow.generate(watermark_strategy=MONOTONOUS).union(flow.generate()))
    left = flow.generate(watermark_strategy=MONOTONOUS).key_by(lambda v: v)
    right = flow.generate().key_by(lambda v: v)
    left.interval_join(right).between(-5, 5).apply(lambda a, b: a).print()
    assert [f.node.rpartition(".")[2] for f in found(flow)] == ["reduce(max)", "interval_join"]


def test_a_loop_upstream_is_walked_once() -> None:
    flow = sw.Pipeline()
    loop = flow.generate().iterate()
    loop.close_with(loop.filter(bool))
    windowed(loop)
    assert len(found(flow)) == 1


def test_a_strategy_that_cannot_be_sent_to_a_worker_is_an_error() -> None:
    lock = threading.Lock()

    def stamp(value: int) -> int:
        with lock:
            return value

    flow = sw.Pipeline()
    strategy = MONOTONOUS.with_timestamp_assigner(stamp)
    flow.generate(count=1, watermark_strategy=strategy).assign_timestamps_and_watermarks(strategy).print()
    errors = found(flow, "unserialisable")
    assert len(errors) == 2
    assert all("the watermark strategy of" in e.message and "'lock'" in e.message for e in errors)


MIXED = "watermarks-of-mixed-records"


def test_watermarks_of_records_of_several_inputs_are_warned_of() -> None:
    flow = sw.Pipeline()
    left = flow.generate(count=1, watermark_strategy=MONOTONOUS).key_by(lambda v: v)
    right = flow.generate(count=1, watermark_strategy=MONOTONOUS).key_by(lambda v: v)
    pairs = left.interval_join(right).between(-5, 5).apply(lambda a, b: a)
    windowed(pairs.map(lambda v: v).assign_timestamps_and_watermarks(MONOTONOUS))
    (finding,) = found(flow, MIXED)
    assert finding.level.value == "warning"
    assert "'interval_join' (" in finding.message
    assert "receives them from several inputs, in an order that depends on the load" in finding.message
    assert "Assign event times at the sources" in finding.message


def test_watermarks_of_records_of_several_subtasks_are_warned_of() -> None:
    def made(parallelism: int) -> list[Finding]:
        flow = sw.Pipeline()
        numbers = (
            flow.generate(count=1).map(lambda v: v).set_parallelism(parallelism).key_by(lambda v: v).reduce(max)
        )
        windowed(numbers.assign_timestamps_and_watermarks(MONOTONOUS))
        return found(flow, MIXED)

    (finding,) = made(2)
    assert "receives them from the 2 subtasks of 'map" in finding.message
    assert made(1) == []


def test_watermarks_behind_steps_of_one_source_have_an_order() -> None:
    flow = sw.Pipeline()
    windowed(flow.generate(count=1).map(lambda v: v).assign_timestamps_and_watermarks(MONOTONOUS))
    twice = flow.generate(count=1).union(flow.generate(count=1)).assign_timestamps_and_watermarks
    twice(WatermarkStrategy.no_watermarks()).print()
    assert found(flow, MIXED) == []


@pytest.mark.parametrize("without", [0, 1])
def test_a_join_of_columns_names_the_input_without_timestamps(without: int) -> None:
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    flow, rows = sw.Pipeline(), pa.table({"user": ["ann"], "at": [1]})
    left, right = (
        flow.table(rows, watermark_strategy=None if side == without else strategy).key_by("user")
        for side in (0, 1)
    )
    left.interval_join(right, "-1s", "1s", suffix="_right").uid("near").print()
    (finding,) = found(flow, "no-timestamps")
    side = ("left", "right")[without]
    assert f"goes by event time, but the records of its {side} input have no timestamps" in finding.message


def test_aggregates_over_last_rows_without_timestamps_are_no_windows() -> None:
    flow = sw.Pipeline()
    flow.table(pa.table({"user": ["ann"]})).key_by("user").over(rows=2).aggregate(n=agg.count()).print()
    (finding,) = found(flow, "no-timestamps")
    assert "'over(rows=2).aggregate(n)'" in finding.message
    assert "goes by event time, but its records have no timestamps" in finding.message
