"""What becomes of timers and windows that are not due when bounded input ends: as docs/from-flink.md has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.windows import GlobalWindows, TumblingEventTimeWindows, TumblingProcessingTimeWindows

RECORDS = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]


def results(build: Any) -> list[Any]:
    flow = sw.Pipeline()
    collected = build(flow.from_collection(RECORDS).key_by(lambda record: record[0])).collect()
    flow.run()
    return sorted(collected)


class Later(sw.KeyedProcessFunction[str, Any, Any]):
    """Sets a timer of an hour, which sets another one."""

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(
            timers.current_processing_time() // 3_600_000 * 3_600_000 + 7_200_000
        )

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timestamp + 3_600_000)
        yield ctx.get_current_key()


def test_timers_of_processing_time_fire_once() -> None:
    assert results(lambda keyed: keyed.process(Later())) == ["a", "b"]


def test_windows_of_processing_time_are_evaluated() -> None:
    made = results(lambda keyed: keyed.window(TumblingProcessingTimeWindows.of("1d")).sum(1))
    assert sum(total for _, total in made) == 10  # in two windows if it is midnight


def test_windows_of_event_time_are_evaluated() -> None:
    def windowed(keyed: Any) -> Any:
        strategy = sw.WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda record: record[1])
        stamped = keyed.assign_timestamps_and_watermarks(strategy).key_by(lambda record: record[0])
        return stamped.window(TumblingEventTimeWindows.of("1d")).sum(1)

    assert results(windowed) == [("a", 8), ("b", 2)]


def test_count_windows_that_are_not_full_are_dropped() -> None:
    assert results(lambda keyed: keyed.count_window(2).sum(1)) == [("a", 4)]


def test_a_trigger_for_the_end_gives_one_result_per_key() -> None:
    windows = GlobalWindows.create_with_end_of_stream_trigger()
    assert results(lambda keyed: keyed.window(windows).sum(1)) == [("a", 8), ("b", 2)]
    assert results(lambda keyed: keyed.sum(1)) == [("a", 1), ("a", 4), ("a", 8), ("b", 2)]


@pytest.mark.parametrize(("key", "hint"), [([1], r"tuple\(key\)"), ({}, "tuple"), ({1}, "frozenset")])
def test_unhashable_keys_are_refused_with_one_that_will_do(key: Any, hint: str) -> None:
    flow = sw.Pipeline()
    flow.from_collection(RECORDS).key_by(lambda record: key).sum(1).collect()
    with pytest.raises(sw.UnstableKeyError, match=hint):
        flow.run()
