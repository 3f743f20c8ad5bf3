"""Timers of keyed process functions, in whole jobs and in the harness."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK
from sluiceway.errors import StateError
from sluiceway.testing import OperatorHarness

Event = tuple[str, int]


class Deadline(sw.KeyedProcessFunction[str, Event, tuple[str, str, int]]):
    """Says for each record when it came, and 10 ms later that it is over."""

    def process_element(
        self, value: Event, ctx: sw.KeyedProcessFunction.Context
    ) -> Iterable[tuple[str, str, int]]:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value[1] + 10)
        timers.register_event_time_timer(value[1] + 10)
        if value[1] < 0:
            timers.delete_event_time_timer(value[1] + 10)
        yield "seen", value[0], timers.current_watermark()

    def on_timer(
        self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext
    ) -> Iterable[tuple[str, str, int]]:
        assert ctx.timestamp() == timestamp
        yield "over", ctx.get_current_key(), timestamp


def harness(function: Any, **options: Any) -> OperatorHarness:
    return OperatorHarness(lambda s: s.key_by(lambda v: v[0]).process(function), **options)


def test_event_time_timers_fire_with_the_watermark_once_and_in_order() -> None:
    with harness(Deadline()) as op:
        op.process(("a", 5), timestamp=5)
        op.process(("b", 1), timestamp=1)
        op.process(("c", -1), timestamp=0)
        op.take()
        assert op.process_watermark(10) == []
        assert op.process_watermark(15) == [("over", "b", 11), ("over", "a", 15)]
        assert op.process_watermark(1000) == []


def test_timers_are_dealt_out_with_the_keys() -> None:
    with harness(Deadline(), parallelism=1) as op:
        for n in range(20):
            op.process((f"k{n}", n), timestamp=n)
        snapshot = op.snapshot()
    with harness(Deadline(), parallelism=3, restored=snapshot) as op:
        fired = op.process_watermark(100)
    assert sorted(fired, key=lambda f: f[2]) == [("over", f"k{n}", n + 10) for n in range(20)]


def test_a_bounded_job_fires_all_event_time_timers_at_its_end() -> None:
    flow = sw.Pipeline("timers")
    events = [(f"k{n % 5}", n * 100) for n in range(3000)]
    source = flow.from_collection(events, timestamp=lambda e: e[1])
    out = source.key_by(lambda e: e[0]).process(Deadline()).collect()
    flow.run(parallelism=2)
    assert sorted(t for what, _, t in out if what == "over") == [n * 100 + 10 for n in range(3000)]


class Tick(sw.KeyedProcessFunction[str, Event, int]):
    def process_element(self, value: Event, ctx: sw.KeyedProcessFunction.Context) -> None:
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + value[1])

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
        assert ctx.time_domain().value == "processing time"
        assert ctx.timestamp() == timestamp
        yield timestamp


def test_processing_time_timers_fire_by_the_clock() -> None:
    with harness(Tick()) as op:
        start = op.clock.now_ms()
        op.process(("a", 50))
        op.process(("b", 20))
        assert op.advance(10) == []
        assert op.advance(100) == [start + 20, start + 50]


def test_what_a_processing_time_timer_gives_has_no_event_time() -> None:
    tag = sw.OutputTag[int]("aside")

    class Aside(Tick):
        def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
            ctx.output(tag, timestamp)
            yield timestamp

    class Stamp(Tick):
        def process_element(self, value: Event, ctx: sw.KeyedProcessFunction.Context) -> Any:
            super().process_element(value, ctx)
            return [ctx.timestamp()]

    with harness(Aside()) as op:
        op.process(("a", 50), timestamp=7)
        op.advance(50)
        assert op.records == op.side_records(tag) == [(50, None)]
    with harness(Stamp()) as op:
        op.process(("a", 50), timestamp=7)
        op.advance(50)
        assert op.process(("a", 50)) == [None]


def test_processing_time_timers_in_a_job_wake_it_and_the_rest_fire_at_the_end() -> None:
    flow = sw.Pipeline("ticks")
    out = flow.generate(lambda i: ("k", 15 if i < 2 else 60_000), count=3, rate=10).key_by(lambda e: e[0])
    ticks = out.process(Tick()).collect()
    flow.run()
    assert len(ticks) == 3
    assert list(ticks) == sorted(ticks)
    assert ticks[2] - ticks[0] > 50_000


def test_timers_without_a_key_are_refused() -> None:
    flow = sw.Pipeline("unkeyed")
    flow.from_collection([1]).process(lambda v, ctx: ctx.timer_service()).print()
    with pytest.raises(StateError, match="put key_by"):
        flow.run()


def test_a_failing_timer_names_its_key_and_time() -> None:
    class Fails(Deadline):
        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            raise ZeroDivisionError("timer")

    with harness(Fails()) as op:
        op.process(("a", 5), timestamp=5)
        with pytest.raises(ZeroDivisionError) as caught:
            op.process_watermark(100)
    notes = "\n".join(caught.value.__notes__)
    assert "key: 'a'" in notes
    assert "timestamp: 15 ms" in notes


def test_a_timestamp_that_is_no_whole_number_is_refused() -> None:
    class Wrong(Deadline):
        def process_element(self, value: Event, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(1.5)

    with (
        harness(Wrong()) as op,
        pytest.raises(TypeError, match=r"whole number of ms .*, or an aware datetime, not 1\.5"),
    ):
        op.process(("a", 5), timestamp=5)


@pytest.mark.parametrize("word", ["event", "processing"])
def test_a_timer_that_could_never_fire_is_refused(word: str) -> None:
    class Beyond(Deadline):
        def process_element(self, value: Event, ctx: Any) -> Any:
            getattr(ctx.timer_service(), f"register_{word}_time_timer")(value[1])

    with harness(Beyond()) as op:
        op.process(("a", MAX_WATERMARK), timestamp=5)
        op.process(("a", MIN_WATERMARK), timestamp=5)
        with pytest.raises(ValueError, match=f"time begins after a timer at {MIN_WATERMARK - 1}"):
            op.process(("a", MIN_WATERMARK - 1), timestamp=5)
        with pytest.raises(ValueError, match=f"time comes to an end before a timer at {MAX_WATERMARK + 1} could"):
            op.process(("a", MAX_WATERMARK + 1), timestamp=5)


class Bursting(sw.KeyedProcessFunction[int, int, int], sw.CheckpointedFunction, sw.CheckpointListener):
    """Fails, once, when a checkpoint is complete that was taken while timers were firing."""

    def __init__(self, timers: int, marks: Path) -> None:
        self._timers = timers
        self._mark = marks / "failed"

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        self._fired = 0
        self._taken: set[int] = set()
        self._fails = False

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        if 0 < self._fired < self._timers:
            self._taken.add(context.checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._fails = checkpoint_id in self._taken and not self._mark.exists()

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
        self._fired += 1
        if self._fails:
            self._mark.touch()
            raise RuntimeError("in the midst of it")
        for _ in range(1500):  # takes its time, so that there are checkpoints within the burst
            pass
        yield timestamp


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("unaligned", [False, True])
def test_a_burst_of_timers_goes_on_from_a_checkpoint_within_it(
    unaligned: bool, workers: int, tmp_path: Path
) -> None:
    count = 30_000
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(count).with_timestamp_assigner(lambda n: n)
    for _ in range(4):  # the one or other burst is over before a checkpoint comes
        flow = sw.Pipeline("burst")
        numbers = flow.from_collection(range(count)).assign_timestamps_and_watermarks(strategy)
        fired = numbers.key_by(lambda n: n).process(Bursting(count, tmp_path)).collect()
        result = flow.run(
            workers=workers,
            checkpoint_interval="10ms",
            checkpoint_unaligned=unaligned,
            restart="fixed-delay:1:1ms",
        )
        if result.metrics.restarts:
            break
    assert result.metrics.restarts == 1, "there was no checkpoint within any burst"
    assert set(fired) == set(range(count))
    assert len(fired) < 2 * count
