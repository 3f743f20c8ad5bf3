"""Watermarks in whole jobs: from splits through gates to the operators that wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Wait,
)
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import FunctionContractError
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.testing import EOF, PAUSE, CollectingSink, PipelineHarness, TestSource, run_pipeline

Seen = tuple[Any, int]


def bounded(ms: int = 0) -> WatermarkStrategy[Any]:
    return WatermarkStrategy.for_bounded_out_of_orderness(ms).with_timestamp_assigner(lambda v: v)


class Look(sw.ProcessFunction[Any, Seen]):
    """Each record with the watermark that it met."""

    def process_element(self, value: Any, ctx: sw.ProcessFunction.Context) -> Iterable[Seen]:
        yield value, ctx.current_watermark()


def marks(harness: PipelineHarness, vertex: str) -> list[int | None]:
    """The watermark of each subtask of a chain."""
    return [s.watermark for s in harness.metrics().subtasks if s.vertex.startswith(vertex)]


# ---- a source that reads several splits side by side --------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    split_id: str
    items: tuple[int, ...]
    at: int = 0


class Parts(sw.Source[int]):
    """Reads all splits in turn, a record each; a number below 0 waits for so many ms."""

    def __init__(
        self, readers: int = 1, *, says: bool = True, pauses: bool = False, **parts: Sequence[int]
    ) -> None:
        self.parts = parts
        self.readers = readers
        self.says = says
        self.pauses = pauses

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @property
    def max_readers(self) -> int:
        return self.readers

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return _Dealer(
            context, [_Part(n, tuple(i)) for n, i in self.parts.items()] if restored is None else restored
        )

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _PartsReader(context, self)


class _Dealer(SimpleEnumerator):
    def handle_split_request(self, reader: int) -> None:
        mine = [s for n, s in enumerate(self._pending) if n % self._context.parallelism == reader]
        self._context.assign(reader, mine)
        self._context.no_more_splits(reader)


class _PartsReader(Reader[int]):
    def __init__(self, context: ReaderContext, source: Parts) -> None:
        self.context = context
        self.source = source
        self.parts: deque[_Part] = deque()
        self.until: dict[str, float] = {}
        self.paused: frozenset[str] = frozenset()
        self.finished: list[str] = []
        self.no_more = False

    def start(self) -> None:
        self.context.request_split()

    def add_splits(self, splits: Sequence[_Part]) -> None:
        self.parts.extend(splits)

    def no_more_splits(self) -> None:
        self.no_more = True

    def poll(self, limit: int) -> Poll[int]:
        now = self.context.clock.monotonic()
        for _ in range(len(self.parts)):
            part = self.parts.popleft()
            if part.at == len(part.items):
                self.finished.append(part.split_id)
                continue
            if part.split_id in self.paused or self.until.get(part.split_id, 0) > now:
                self.parts.append(part)
                continue
            item = part.items[part.at]
            self.parts.append(replace(part, at=part.at + 1))
            if item < 0:
                self.until[part.split_id] = now - item / 1000
                continue
            self.current_split_id = part.split_id if self.source.says else None
            return [item]
        if not self.parts:
            return END_OF_INPUT if self.no_more else Wait()
        waiting = [self.until.get(p.split_id, now) for p in self.parts if p.split_id not in self.paused]
        return Wait(until=min(waiting)) if waiting else Wait()

    def finished_splits(self) -> Sequence[str]:
        finished, self.finished = self.finished, []
        return finished

    def pause_splits(self, split_ids: Collection[str]) -> bool:
        self.paused = frozenset(split_ids)
        return self.source.pauses

    def snapshot(self) -> list[_Part]:
        return list(self.parts)

    def close(self) -> None:
        pass


# ---- on their way ------------------------------------------------------------------------------------------


def test_every_batch_is_followed_by_its_watermark_at_interval_0() -> None:
    flow = sw.Pipeline()
    seen = flow.from_collection([3, 1, 5, 9], watermark_strategy=bounded(2)).process(Look()).collect()
    run_pipeline(flow, batch_size=1, auto_watermark_interval=0)
    assert list(seen[1:]) == [(1, 0), (5, 0), (9, 2)]


def test_full_batches_are_followed_by_watermarks_though_no_time_passes() -> None:
    flow = sw.Pipeline()
    seen = flow.from_collection(range(100)).assign_timestamps_and_watermarks(bounded()).process(Look()).collect()
    run_pipeline(flow, batch_size=10)
    assert all(mark == value // 10 * 10 - 2 for value, mark in seen if value >= 10)


def test_the_first_input_that_says_nothing_holds_the_watermark_of_the_others() -> None:
    flow = sw.Pipeline()
    slow, fast = TestSource([5, PAUSE, 50, EOF]), TestSource([100, 200, EOF])
    both = flow.source(slow, watermark_strategy=bounded()).union(flow.source(fast, watermark_strategy=bounded()))
    both.rebalance().process(Look()).name("look").collect()
    with PipelineHarness(flow, auto_watermark_interval=0) as harness:
        harness.run()
        assert marks(harness, "look") == [4]
        slow.resume()
        harness.run_to_end()
        assert marks(harness, "look") == [MAX_WATERMARK]


def test_an_idle_subtask_does_not_hold_the_others_and_counts_again_later() -> None:
    flow = sw.Pipeline(parallelism=2)
    # Two that wake up at once would race: who is behind counts only when it has caught up.
    source = TestSource([5, PAUSE, 7, 500, PAUSE, EOF], [100, 200, PAUSE, PAUSE, 600, EOF])
    strategy = bounded().with_idleness("10s")
    flow.source(source, watermark_strategy=strategy).rebalance().process(Look()).name("look").collect()
    with PipelineHarness(flow, auto_watermark_interval=0) as harness:
        harness.run()
        assert marks(harness, "look") == [4, 4]
        harness.advance(9_999)
        assert marks(harness, "look") == [4, 4]
        harness.advance(1)
        assert marks(harness, "look") == [199, 199]
        source.resume()
        harness.run()
        assert marks(harness, "look") == [499, 499]
        source.resume()
        harness.run_to_end()


def test_idle_in_the_middle_of_a_stream() -> None:
    flow = sw.Pipeline()
    one, other = TestSource([5, PAUSE, EOF]), TestSource([100, PAUSE, EOF])
    strategy = bounded().with_idleness(1000)
    streams = [flow.source(s).assign_timestamps_and_watermarks(strategy) for s in (one, other)]
    streams[0].union(streams[1]).rebalance().process(Look()).name("look").collect()
    with PipelineHarness(flow, auto_watermark_interval=0) as harness:
        harness.run()
        assert marks(harness, "look") == [4]
        harness.advance(1000)
        # Of several that fall silent together, the fastest has said what all may rely on.
        assert marks(harness, "look") == [99]
        one.resume()
        other.resume()
        harness.run_to_end()
        assert marks(harness, "look") == [MAX_WATERMARK]


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
@pytest.mark.parametrize("at_source", [True, False])
def test_a_step_of_the_wall_clock_neither_delays_watermarks_nor_makes_idle(at_source: bool, step_ms: int) -> None:
    flow = sw.Pipeline()
    source, other = TestSource([5, PAUSE, 7, PAUSE, EOF]), TestSource([100, PAUSE, EOF])
    strategy = bounded().with_idleness("10s")
    both = [
        flow.source(s, watermark_strategy=strategy)
        if at_source
        else flow.source(s).assign_timestamps_and_watermarks(strategy)
        for s in (source, other)
    ]
    both[0].union(both[1]).rebalance().process(Look()).name("look").collect()
    with PipelineHarness(flow, start_ms=10**12, auto_watermark_interval="200ms") as harness:
        harness.advance(200)
        assert marks(harness, "look") == [4]
        source.resume()
        harness.run()
        harness.clock.set_wall_clock(step_ms)
        harness.advance(200)
        assert marks(harness, "look") == [6]
        # The other input is idle at 10 s of time that has passed.
        harness.advance(9_599)
        assert marks(harness, "look") == [6]
        harness.advance(201)
        assert marks(harness, "look") == [99]
        source.resume()
        other.resume()
        harness.run_to_end()


def test_records_are_not_late_because_another_input_has_ended_while_theirs_was_idle() -> None:
    flow = sw.Pipeline()
    short, long = TestSource([5, EOF]), TestSource([7, PAUSE, 50, 100, PAUSE, EOF])
    strategy = bounded().with_idleness("1s")
    streams = [flow.source(s, watermark_strategy=strategy) for s in (short, long)]
    streams[0].union(streams[1]).rebalance().process(Look()).name("look").collect()
    with PipelineHarness(flow, auto_watermark_interval=0) as harness:
        harness.advance(5_000)
        assert marks(harness, "look") == [6]
        long.resume()
        harness.run()
        assert marks(harness, "look") == [99]
        long.resume()
        harness.run_to_end()
        assert marks(harness, "look") == [MAX_WATERMARK]


@pytest.mark.parametrize("at_source", [True, False])
def test_who_cannot_go_on_because_output_is_blocked_is_not_idle(at_source: bool) -> None:
    flow = sw.Pipeline()
    sink = CollectingSink()
    source = TestSource([1, PAUSE, PAUSE, EOF])
    strategy = bounded().with_idleness(500)
    if at_source:
        stream = flow.source(source, watermark_strategy=strategy)
    else:
        stream = flow.source(source).assign_timestamps_and_watermarks(strategy)
    stream.sink(sink)
    other = flow.source(TestSource([100, 200, EOF]), watermark_strategy=bounded())
    other.union(stream).rebalance().process(Look()).name("both").collect()
    with PipelineHarness(flow, auto_watermark_interval=0) as harness:
        harness.run()
        assert marks(harness, "both") == [0]
        sink.block()
        source.resume()
        harness.advance(60_000)
        sink.unblock()
        harness.advance(499)
        assert marks(harness, "both") == [0]
        harness.advance(1)
        assert marks(harness, "both") == [199]
        source.resume()
        harness.run_to_end()


# ---- per split ---------------------------------------------------------------------------------------------


def test_splits_that_are_apart_do_not_make_each_other_s_records_late() -> None:
    parts: dict[str, Sequence[int]] = {"early": range(1000, 1100), "late": range(100)}
    late: dict[bool, int] = {}
    for says in (True, False):
        flow = sw.Pipeline()
        source = Parts(says=says, **parts)
        seen = flow.source(source, watermark_strategy=bounded()).process(Look()).collect()
        run_pipeline(flow, auto_watermark_interval=0)
        late[says] = sum(value <= mark for value, mark in seen)
        assert len(seen) == 200
    assert late == {True: 0, False: 100}


def test_a_split_that_has_been_read_lets_the_watermark_go_on() -> None:
    flow = sw.Pipeline()
    seen = flow.source(Parts(a=[10], b=[20, 30, 40]), watermark_strategy=bounded()).process(Look()).collect()
    run_pipeline(flow, auto_watermark_interval=0)
    assert list(seen[1:]) == [(20, -(2**63)), (30, 19), (40, 29)]


def test_a_split_whose_last_record_comes_with_its_end_lets_the_watermark_go_on() -> None:
    def program(parallelism: int) -> tuple[sw.Pipeline, Any]:
        flow = sw.Pipeline()
        numbers = flow.generate(count=9, watermark_strategy=bounded()).uid("numbers").set_parallelism(parallelism)
        return flow, numbers.process(Look()).collect()

    with PipelineHarness(program(2)[0], batch_size=1, auto_watermark_interval=0) as harness:
        harness.run_once()
        snapshot = harness.snapshot()
    flow, seen = program(1)
    with PipelineHarness(flow, restored=snapshot, batch_size=1, auto_watermark_interval=0) as harness:
        harness.run_to_end()
    # The odd numbers end at 7, the even ones go on to 8.
    assert seen[-1] == (8, 5)


def test_an_idle_split_of_a_busy_reader_does_not_hold_it() -> None:
    flow = sw.Pipeline()
    parts = Parts(busy=[n for i in range(1, 21) for n in (i, -100)], quiet=[1, -1000, 100])
    strategy = bounded().with_idleness(500)
    seen = flow.source(parts, watermark_strategy=strategy).process(Look()).collect()
    run_pipeline(flow, auto_watermark_interval=0)
    met = dict(seen)
    assert met[5] == 0
    assert met[8] == 6
    assert len(seen) == 22


def test_splits_spread_over_subtasks() -> None:
    flow = sw.Pipeline(parallelism=2)
    parts = Parts(2, a=[1, 2, 3], b=[50, 60], c=[10, 20], d=[70, 80])
    stream = flow.source(parts, watermark_strategy=bounded()).rebalance().process(Look())
    seen = stream.collect()
    run_pipeline(flow, auto_watermark_interval=0, seed=1)
    assert sorted(value for value, _ in seen) == [1, 2, 3, 10, 20, 50, 60, 70, 80]
    assert all(mark < value for value, mark in seen)


def test_after_a_restore_the_splits_start_anew() -> None:
    def program() -> tuple[sw.Pipeline, TestSource, Any]:
        flow = sw.Pipeline()
        source = TestSource([5, 100, PAUSE, 30, 200, EOF])
        stream = flow.source(source, watermark_strategy=bounded()).uid("source")
        return flow, source, stream.process(Look()).collect()

    flow, _, seen = program()
    with PipelineHarness(flow, auto_watermark_interval=0, batch_size=1) as harness:
        harness.run()
        snapshot = harness.snapshot()
        assert list(seen[1:]) == [(100, 4)]
    flow, source, seen = program()
    with PipelineHarness(flow, restored=snapshot, auto_watermark_interval=0, batch_size=1) as harness:
        harness.run()
        assert marks(harness, "source") == [None]
        source.resume()
        harness.run_to_end()
    assert list(seen) == [(30, -(2**63)), (200, 29)]


# ---- watermarks among the records --------------------------------------------------------------------------


class Marked(sw.WatermarkGenerator[Any]):
    """A record that ends in a full stop ends its time."""

    def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
        if value.endswith("."):
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
        """Nothing."""


@pytest.mark.parametrize("at_source", [True, False])
def test_a_punctuated_generator_s_watermarks_reach_timers_between_the_records(at_source: bool) -> None:
    class Timers(sw.KeyedProcessFunction[str, str, str]):
        def process_element(self, value: str, ctx: sw.KeyedProcessFunction.Context) -> Iterable[str]:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() or 0)
            yield value

        def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[str]:
            yield f"<{timestamp}>"

    flow = sw.Pipeline()
    strategy = WatermarkStrategy.for_generator(Marked).with_timestamp_assigner(len)
    words = ["a", "bb.", "ccc", "dddd.", "eeeee"]
    if at_source:
        stream = flow.from_collection(words, watermark_strategy=strategy)
    else:
        stream = flow.from_collection(words).assign_timestamps_and_watermarks(strategy)
    got = stream.key_by(lambda w: "k").process(Timers()).collect()
    run_pipeline(flow)
    # What comes at a time that has passed fires with the next watermark.
    assert list(got) == ["a", "bb.", "<1>", "<3>", "ccc", "dddd.", "<3>", "<5>", "eeeee", "<5>"]


class Unfinished(sw.WatermarkGenerator[str]):  # its other method is missing
    def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
        output.emit_watermark(timestamp)


@pytest.mark.parametrize("at_source", [True, False])
def test_a_generator_that_cannot_be_made_is_named_with_its_step(at_source: bool) -> None:
    flow = sw.Pipeline()
    strategy = WatermarkStrategy.for_generator(Unfinished).with_timestamp_assigner(len)
    if at_source:
        stream = flow.from_collection(["a"], watermark_strategy=strategy)
    else:
        stream = flow.from_collection(["a"]).assign_timestamps_and_watermarks(strategy)
    stream.name("times").collect()
    with pytest.raises(FunctionContractError, match=r"step 'times' makes no Watermark.*: .*on_periodic_emit"):
        run_pipeline(flow)


@settings(max_examples=25, deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=4),
    bound=st.integers(0, 20),
    parallelism=st.integers(1, 2),
    interval=st.sampled_from([0, 200]),
    in_the_middle=st.booleans(),
)
def test_a_record_that_keeps_to_the_bound_is_never_late(
    parts: list[list[int]], bound: int, parallelism: int, interval: int, in_the_middle: bool
) -> None:
    kept = {
        f"p{n}": [v for i, v in enumerate(items) if v >= max(items[: i + 1]) - bound]
        for n, items in enumerate(parts)
    }
    flow = sw.Pipeline(parallelism=parallelism)
    if in_the_middle:
        # The records of all splits of a reader are one stream there, so one split a reader.
        kept = dict(list(kept.items())[:parallelism])
        stream = flow.source(Parts(parallelism, **kept)).assign_timestamps_and_watermarks(bounded(bound))
    else:
        stream = flow.source(Parts(parallelism, **kept), watermark_strategy=bounded(bound))
    seen = stream.rebalance().process(Look()).collect()
    run_pipeline(flow, auto_watermark_interval=interval, batch_size=4)
    assert sorted(v for v, _ in seen) == sorted(v for items in kept.values() for v in items)
    assert all(mark < value for value, mark in seen)


# ---- what is told of them ----------------------------------------------------------------------------------


def test_metrics_say_what_came_in_what_went_out_and_how_far_that_is_behind() -> None:
    flow = sw.Pipeline()
    source = TestSource([1000, PAUSE, EOF])
    stream = flow.source(source, watermark_strategy=bounded(100)).map(lambda v: v + 500)
    stream.assign_timestamps_and_watermarks(bounded()).rebalance().print()
    with PipelineHarness(flow, auto_watermark_interval=0, start_ms=10_000) as harness:
        harness.run()
        first, second = harness.metrics().subtasks
        assert (first.watermark, first.output_watermark, first.watermark_lag_ms) == (899, 1499, 8501)
        assert (second.watermark, second.output_watermark, second.watermark_lag_ms) == (1499, 1499, 8501)
        source.resume()
        harness.run_to_end()
        first, second = harness.metrics().subtasks
        assert (first.output_watermark, first.watermark_lag_ms) == (MAX_WATERMARK, None)


def test_metrics_say_how_far_an_aligned_source_is_ahead() -> None:
    flow = sw.Pipeline()
    slow = TestSource([10, PAUSE, EOF])
    for name, source in (("fast", TestSource([50, 60, EOF])), ("slow", slow)):
        strategy = bounded().with_watermark_alignment("g", 1000)
        flow.source(source, watermark_strategy=strategy).name(name).rebalance().print()
    with PipelineHarness(flow, auto_watermark_interval=0, batch_size=1) as harness:
        harness.run_once(5)
        drifts = [s.user.get("watermarkAlignmentDrift") for s in harness.metrics().subtasks]
        assert drifts[0] in (40, 50)
        slow.resume()
        harness.run_to_end()


# ---- what is refused ---------------------------------------------------------------------------------------


def test_what_is_no_strategy_is_refused_where_it_is_given() -> None:
    flow = sw.Pipeline()
    with pytest.raises(
        TypeError, match=r"assign_timestamps_and_watermarks\(\) at .*py:\d+ takes a WatermarkStrategy"
    ):
        flow.from_collection([1]).assign_timestamps_and_watermarks(lambda v: v)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"watermark_strategy= at .* not 'monotonous'"):
        flow.from_collection([1], watermark_strategy="monotonous")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="calls its function with 1 argument"):
        flow.from_collection([1], watermark_strategy=bounded().with_timestamp_assigner(lambda a, b, c: 1))  # type: ignore


def test_alignment_in_the_middle_of_a_stream_is_refused() -> None:
    stream = sw.Pipeline().from_collection([1])
    with pytest.raises(sw.GraphError, match=r"only a source can wait for others.*watermark_strategy="):
        stream.assign_timestamps_and_watermarks(bounded().with_watermark_alignment("g", 10))
