"""Loops in whole jobs: what goes round, what does not, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.elements import Batch
from sluiceway.errors import StateError
from sluiceway.testing import EOF, PAUSE, PipelineHarness, TestSource, every_way, run_pipeline
from sluiceway.windows import TumblingEventTimeWindows

Seen = tuple[int, int | None, int]


def seen(value: int, ctx: sw.ProcessFunction.Context) -> Iterable[Seen]:
    yield value, ctx.timestamp(), ctx.current_watermark()


def count_down(stream: sw.DataStream[int]) -> sw.DataStream[int]:
    loop = stream.iterate()
    lower = loop.map(lambda n: n - 1)
    loop.close_with(lower.filter(lambda n: n > 0))
    return lower


def test_records_keep_their_timestamps_all_the_way_round() -> None:
    flow = sw.Pipeline("stamps")
    out = count_down(flow.source(TestSource([Batch([2, 3], [10, 20]), EOF]))).process(seen).collect()
    run_pipeline(flow)
    assert sorted((value, stamp) for value, stamp, _ in out) == [(0, 10), (0, 20), (1, 10), (1, 20), (2, 20)]


def test_watermarks_pass_a_loop_once_and_are_not_held_by_what_comes_back() -> None:
    source = TestSource([Batch([5], [10]), PAUSE, Batch([1], [100]), PAUSE, EOF])
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps()
    flow = sw.Pipeline("marks")
    stamped = flow.source(source).assign_timestamps_and_watermarks(strategy)
    out = count_down(stamped).process(seen).collect()
    with PipelineHarness(flow, chaining=False) as harness:
        harness.run_until(lambda: source.paused)
        harness.advance(1000)
        source.resume()
        harness.run_until(lambda: source.paused)
        # The first record went round before its watermark came; the second one finds that watermark there.
        assert [value for value, _, _ in out] == [4, 3, 2, 1, 0, 0]
        assert out[-1] == (0, 100, 9)
        source.resume()
        harness.run_to_end()


@pytest.mark.parametrize("parallelism", [1, 2])
def test_the_end_of_time_comes_through_a_loop(parallelism: int) -> None:
    class AtTheEnd(sw.KeyedProcessFunction[int, int, str]):
        def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(10_000)

        def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[str]:
            yield f"key {ctx.get_current_key()} at {timestamp}"

    flow = sw.Pipeline("end")
    numbers = flow.from_collection([3], timestamp=lambda n: n)
    out = count_down(numbers).key_by(lambda n: n % 2).process(AtTheEnd()).collect()
    flow.run(parallelism=parallelism)
    assert sorted(out) == ["key 0 at 10000", "key 1 at 10000"]


def test_no_record_of_a_bounded_input_is_late_on_its_way_round() -> None:
    def windowed(stream: sw.DataStream[int]) -> sw.DataStream[Any]:
        loop = stream.iterate()
        lower = loop.key_by(lambda n: n % 3).map(lambda n: n - 1)
        loop.close_with(lower.filter(lambda n: n > 0))
        return lower.key_by(lambda n: n % 2).window(TumblingEventTimeWindows.of(10)).count()

    numbers = [40, 1, 7, 30]
    stamps = [0, 1, 2, 3]
    down = [below for number in numbers for below in range(number)]
    counts = [(odd, sum(n % 2 == odd for n in down)) for odd in (0, 1)]
    assert sorted(every_way(windowed, numbers, timestamps=stamps, ordered=False)) == counts


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_what_the_end_of_time_lets_out_may_go_round_again(parallelism: int) -> None:
    flow = sw.Pipeline("again", parallelism=parallelism)
    loop = flow.from_collection([3, 4, 5], timestamp=lambda n: n).iterate()
    summed = loop.key_by(lambda n: n >= 100).window(TumblingEventTimeWindows.of(10)).sum()
    loop.close_with(summed.map(lambda n: n * 100).filter(lambda n: n < 10_000))
    late = sw.OutputTag[int]("late")
    seen = loop.key_by(lambda n: n).window(TumblingEventTimeWindows.of(10)).side_output_late_data(late).sum()
    out, after = seen.collect(), seen.get_side_output(late).collect()
    flow.run()
    assert sorted(out) == [3, 4, 5]
    assert list(after) == [1200]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_side_output_can_go_back(parallelism: int) -> None:
    back = sw.OutputTag[int]("back")

    def body(value: int, ctx: sw.ProcessFunction.Context) -> Iterable[int]:
        if value > 1:
            ctx.output(back, value - 1)
        yield value

    flow = sw.Pipeline("side")
    loop = flow.from_collection([5, 3]).iterate()
    done = loop.process(body)
    loop.close_with(done.get_side_output(back))
    out = done.collect()
    flow.run(parallelism=parallelism)
    assert sorted(out) == [1, 1, 2, 2, 3, 3, 4, 5]


@pytest.mark.parametrize("distribute", [lambda s: s.key_by(lambda n: n), lambda s: s.rebalance()])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_body_of_another_parallelism(distribute: Callable[[Any], Any], parallelism: int) -> None:
    flow = sw.Pipeline("other")
    loop = flow.from_collection([5, 3]).union(flow.from_collection([2])).iterate()
    lower = loop.map(lambda n: n - 1).set_parallelism(4)
    loop.close_with(distribute(lower.filter(lambda n: n > 0)))
    out = lower.collect()
    flow.run(parallelism=parallelism)
    assert sorted(out) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 4]


def test_a_loop_in_every_way_but_restores_with_records_on_their_way_round() -> None:
    assert sorted(every_way(count_down, [4, 1, 3], ordered=False)) == [0, 0, 0, 1, 1, 2, 2, 3]


class Later(sw.KeyedProcessFunction[int, int, int]):
    """Gives each number less one, a minute later."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.last = context.get_state(sw.ValueStateDescriptor("last", int, default=0))

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
        self.last.update(value)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 60_000)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[int]:
        yield self.last.value() - 1


def timed_loop(flow: sw.Pipeline, source: sw.DataStream[int], chained: bool = True) -> Any:
    loop = source.iterate()
    later = loop.key_by(lambda n: 0).process(Later())
    body = later if chained else later.rebalance().map(lambda n: n)
    loop.close_with(body.filter(lambda n: n > 0))
    return body.collect()


def test_timers_in_a_loop_bring_records_back_while_the_input_is_open() -> None:
    source = TestSource([3, PAUSE, EOF])
    flow = sw.Pipeline("timers")
    out = timed_loop(flow, flow.source(source))
    with PipelineHarness(flow) as harness:
        harness.advance(59_999)
        assert list(out) == []
        harness.advance(120_001)
        assert list(out) == [2, 1, 0]
        source.resume()
        harness.run_to_end()


@pytest.mark.parametrize("chained", [True, False])
def test_records_that_come_back_too_late_are_not_lost_in_silence(chained: bool) -> None:
    flow = sw.Pipeline("late")
    timed_loop(flow, flow.from_collection([3]), chained)
    with pytest.raises(StateError, match="iteration 'iterate' received a record after its end") as caught:
        run_pipeline(flow)
    assert "record: 2" in "\n".join(caught.value.__notes__)


def test_what_such_timers_give_outside_the_loop_is_no_matter() -> None:
    flow = sw.Pipeline("fine")
    out = timed_loop(flow, flow.from_collection([1]))
    run_pipeline(flow)
    assert list(out) == [0]
