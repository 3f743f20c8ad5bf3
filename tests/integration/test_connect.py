"""Two streams in one step: co-map, co-flat-map, co-process, and what they share."""

from __future__ import annotations

from typing import Any

import pytest

import sluiceway as sw
from sluiceway.testing import EOF, PAUSE, CollectingSink, PipelineHarness, TestSource, every_way, run_pipeline


class Shout(sw.CoMapFunction[int, str, str]):
    def map1(self, value: int) -> str:
        return f"number {value}"

    def map2(self, value: str) -> str:
        return value.upper()


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_co_map_calls_the_method_of_the_stream(parallelism: int) -> None:
    flow = sw.Pipeline("connect", parallelism=parallelism)
    numbers, words = flow.from_collection([1, 2, 3]), flow.from_collection(["a", "b"])
    result = numbers.connect(words).map(Shout()).collect()
    run_pipeline(flow)
    assert sorted(result) == ["A", "B", "number 1", "number 2", "number 3"]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_two_callables_may_stand_in_for_the_object(parallelism: int) -> None:
    flow = sw.Pipeline("connect", parallelism=parallelism)
    numbers, words = flow.from_collection([1, 2, 3]), flow.from_collection(["a", "b"])
    result = numbers.connect(words).map(str, str.upper).collect()
    run_pipeline(flow)
    assert sorted(result) == ["1", "2", "3", "A", "B"]


RULES = sw.MapStateDescriptor("rules", int, key_type=str)


class Price(sw.BroadcastProcessFunction[str, tuple[str, int], tuple[str, int | None]]):
    def process_element(self, value: str, ctx: sw.BroadcastProcessFunction.ReadOnlyContext) -> Any:
        yield value, ctx.get_broadcast_state(RULES).get(value)

    def process_broadcast_element(self, value: tuple[str, int], ctx: sw.BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(*value)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_records_are_looked_up_in_what_was_broadcast(parallelism: int) -> None:
    flow = sw.Pipeline("rules", parallelism=parallelism)
    rules, items = TestSource([("a", 1), ("b", 2), PAUSE, EOF]), TestSource([PAUSE, "a", "b", "c", EOF])
    sink = CollectingSink()
    stream = flow.source(items).rebalance()
    stream.connect(flow.source(rules).broadcast(RULES)).process(Price()).sink(sink)
    with PipelineHarness(flow) as harness:
        harness.run()
        items.resume()
        harness.run()
        rules.resume()
        harness.run_to_end()
    assert sorted(sink.values) == [("a", 1), ("b", 2), ("c", None)]


# ---- event time ------------------------------------------------------------------------------------------------


class Punctual(sw.WatermarkGenerator[Any]):
    """A watermark behind every record."""

    punctuated = True

    def on_event(self, value: Any, timestamp: int, output: sw.WatermarkOutput) -> None:
        output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None: ...


PUNCTUAL = sw.WatermarkStrategy.for_generator(Punctual).with_timestamp_assigner(lambda record: record[1])


class Remember(sw.KeyedCoProcessFunction[str, Any, Any, Any]):
    """Says what the first stream's record met when its time has come on both streams."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.met = context.get_list_state(sw.ListStateDescriptor("met"))

    def process_element1(self, value: Any, ctx: sw.KeyedCoProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value[1])

    def process_element2(self, value: Any, ctx: sw.KeyedCoProcessFunction.Context) -> None:
        self.met.add(value[1])

    def on_timer(self, timestamp: int, ctx: sw.KeyedCoProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), timestamp, sorted(n for n in self.met.get() if n <= timestamp)


def timed(flow: sw.Pipeline, source: Any) -> Any:
    return flow.source(source).assign_timestamps_and_watermarks(PUNCTUAL)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_timers_wait_for_the_slower_stream(parallelism: int) -> None:
    flow = sw.Pipeline("slower", parallelism=parallelism)
    fast = TestSource([("a", 10), ("b", 20), ("c", 30), EOF])
    slow = TestSource([("a", 5), ("b", 15), PAUSE, ("b", 16), ("c", 29), ("c", 31), EOF])
    sink = CollectingSink()
    # One reader each, so the watermarks do not depend on who reads what.
    left, right = timed(flow, fast).set_parallelism(1), timed(flow, slow).set_parallelism(1)
    left.connect(right).key_by(first_of, first_of).process(Remember()).sink(sink)
    with PipelineHarness(flow) as harness:
        harness.run()
        assert sink.values == [("a", 10, [5])], "the second stream is at 15"
        slow.resume()
        harness.run_to_end()
    assert sorted(sink.values) == [("a", 10, [5]), ("b", 20, [15, 16]), ("c", 30, [29])]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_union_of_many_is_as_late_as_the_latest(parallelism: int) -> None:
    flow = sw.Pipeline("union", parallelism=parallelism)
    sources = [TestSource([(f"s{n}", 10 * n), PAUSE, (f"s{n}", 100 + n), EOF]) for n in range(1, 9)]
    streams = [timed(flow, source).set_parallelism(1) for source in sources]
    seen: list[int] = []
    watched = streams[0].union(*streams[1:]).key_by(lambda record: "all").process(Watch(seen))
    watched.set_parallelism(1).for_each(lambda record: None)
    with PipelineHarness(flow) as harness:
        harness.run()
        assert seen == [10]
        for source in reversed(sources[1:]):
            source.resume()
            harness.run()
            assert seen == [10], "the first one is still at 10"
        sources[0].resume()
        harness.run_to_end()
    assert seen[0] == 10
    assert seen[1] >= 101
    assert seen == sorted(set(seen))


class Watch(sw.KeyedProcessFunction[str, Any, Any]):
    """Notes each watermark that fires a timer."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def process_element(self, value: Any, ctx: sw.KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> None:
        if not self.seen or ctx.current_watermark() != self.seen[-1]:
            self.seen.append(ctx.current_watermark())


def first_of(value: Any) -> Any:
    return value[0]


# ---- loops, restores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_step_with_two_inputs_may_stand_in_a_loop(parallelism: int) -> None:
    flow = sw.Pipeline("loop", parallelism=parallelism)
    numbers, steps = flow.from_collection([3, 5, 7]), flow.from_collection([1, 2])
    loop = numbers.iterate()
    less = loop.connect(steps).map(lambda n: n - 1, lambda n: -n)
    loop.close_with(less.filter(lambda n: n > 0))
    result = less.collect()
    run_pipeline(flow)
    assert sorted(result) == sorted([2, 1, 0, 4, 3, 2, 1, 0, 6, 5, 4, 3, 2, 1, 0, -1, -2])


def test_both_ends_of_a_loop_may_be_connected() -> None:
    flow = sw.Pipeline("loop")
    loop = flow.from_collection([1, 2]).iterate()
    less = loop.map(lambda n: n - 1)
    both = loop.connect(less).map(lambda n: ("in", n), lambda n: ("out", n))
    loop.close_with(less.filter(lambda n: n > 0))
    result = both.collect()
    run_pipeline(flow)
    assert sorted(result) == [("in", 1), ("in", 1), ("in", 2), ("out", 0), ("out", 0), ("out", 1)]


class Limit(sw.KeyedBroadcastProcessFunction[str, Any, int, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(sw.ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, ctx: sw.KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        self.seen.update(self.seen.value() + 1)
        yield ctx.get_current_key(), self.seen.value(), dict(ctx.get_broadcast_state(RULES))

    def process_broadcast_element(self, value: int, ctx: sw.KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put("limit", value)


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_keyed_and_broadcast_state_go_on_at_another_parallelism(before: int, after: int) -> None:
    def build() -> tuple[sw.Pipeline, TestSource, CollectingSink]:
        flow = sw.Pipeline("restored", max_parallelism=16)
        words, limits = TestSource([*"abcabd", PAUSE, *"aaaabcde", EOF]), TestSource([7, 9, EOF])
        sink = CollectingSink()
        stream = flow.source(words).uid("words").key_by(lambda word: word)
        limit = flow.source(limits).uid("limits").broadcast(RULES)
        stream.connect(limit).process(Limit()).uid("limit").sink(sink)
        return flow, words, sink

    flow, words, first = build()
    with PipelineHarness(flow, parallelism=before) as harness:
        harness.run()
        snapshot = harness.snapshot()
    flow, words, then = build()
    with PipelineHarness(flow, parallelism=after, restored=snapshot) as harness:
        harness.run()
        words.resume()
        harness.run_to_end()
    limit = {"limit": 9}
    assert sorted(word for word, *_ in first.values) == sorted("abcabd")
    assert [v for v in then.values if v[0] == "a"] == [("a", n, limit) for n in (3, 4, 5, 6)]
    assert sorted(v for v in then.values if v[0] != "a") == [
        ("b", 3, limit),
        ("c", 2, limit),
        ("d", 2, limit),
        ("e", 1, limit),
    ]


def test_broadcast_state_that_no_step_would_get_is_refused() -> None:
    def build(uid: str) -> sw.Pipeline:
        flow = sw.Pipeline("renamed")
        limits = flow.source(TestSource([7, PAUSE])).uid("limits").broadcast(RULES)
        flow.source(TestSource(["a", PAUSE])).uid("words").connect(limits).process(Put()).uid(uid).print()
        return flow

    with PipelineHarness(build("old")) as harness:
        harness.run()
        snapshot = harness.snapshot()
    with pytest.raises(sw.StateError, match=r"has state of 'old', which no step of job 'renamed' goes by"):
        PipelineHarness(build("new"), restored=snapshot)


class Put(sw.BroadcastProcessFunction[str, int, Any]):
    def process_element(self, value: str, ctx: Any) -> None: ...

    def process_broadcast_element(self, value: int, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("limit", value)


# ---- however it comes ------------------------------------------------------------------------------------------


class Running(sw.KeyedCoProcessFunction[int, int, int, Any]):
    """Order among the streams does not matter to it: a sum per stream and key, given out at the end."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.sums = context.get_map_state(sw.MapStateDescriptor("sums", int, key_type=int))

    def _add(self, port: int, value: int, ctx: Any) -> None:
        self.sums.put(port, (self.sums.get(port) or 0) + value)
        ctx.timer_service().register_event_time_timer(1_000)

    def process_element1(self, value: int, ctx: Any) -> None:
        self._add(1, value, ctx)

    def process_element2(self, value: int, ctx: Any) -> None:
        self._add(2, value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.sums.get(1), self.sums.get(2)


def test_however_the_records_come() -> None:
    def program(stream: Any) -> Any:
        odd, even = stream.filter(lambda n: n % 2), stream.filter(lambda n: n % 2 == 0)
        return odd.connect(even).key_by(lambda n: n % 3, lambda n: n % 3).process(Running()).uid("running")

    result = every_way(program, range(20), ordered=False)
    expected = [
        (key, sum(n for n in range(key, 20, 3) if n % 2), sum(n for n in range(key, 20, 3) if n % 2 == 0))
        for key in range(3)
    ]
    assert sorted(result) == expected
