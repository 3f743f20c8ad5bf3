"""Co-map, co-flat-map and co-process by themselves: keys, state, timers, timestamps, watermarks, restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.elements import Batch, Watermark, WatermarkStatus
from sluiceway.errors import FunctionContractError, GraphError, StateError
from sluiceway.functions import TimeDomain
from sluiceway.testing import TwoInputOperatorHarness

SEEN = sw.ValueStateDescriptor("seen", int, default=0)
LATE = sw.OutputTag[Any]("late")


def first_of(value: Any) -> Any:
    return value[0]


def last_of(value: Any) -> Any:
    return value[-1]


def keyed(function: Any, method: str = "process") -> Any:
    return lambda a, b: getattr(a.key_by(first_of).connect(b.key_by(last_of)), method)(function)


class CountBoth(sw.CoMapFunction[Any, Any, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(SEEN)

    def map1(self, value: Any) -> Any:
        self.seen.update(self.seen.value() + 1)
        return "first", value, self.seen.value()

    def map2(self, value: Any) -> Any:
        self.seen.update(self.seen.value() + 1)
        return "second", value, self.seen.value()


class RepeatBoth(sw.CoFlatMapFunction[Any, Any, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(SEEN)

    def flat_map1(self, value: Any) -> Iterator[Any]:
        self.seen.update(self.seen.value() + 1)
        for _ in range(self.seen.value()):
            yield value

    def flat_map2(self, value: Any) -> list[Any]:
        return [self.seen.value()]


class Meet(sw.KeyedCoProcessFunction[str, Any, Any, Any]):
    """Waits 10 ms for the other side; what met nobody goes aside."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.left = context.get_state(sw.ValueStateDescriptor("left"))

    def process_element1(self, value: Any, ctx: sw.KeyedCoProcessFunction.Context) -> None:
        self.left.update(value)
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)

    def process_element2(self, value: Any, ctx: sw.KeyedCoProcessFunction.Context) -> Iterable[Any]:
        left = self.left.value()
        if left is None:
            ctx.output(LATE, (ctx.get_current_key(), value))
            return []
        self.left.clear()
        return [(left, value)]

    def on_timer(self, timestamp: int, ctx: sw.KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        if self.left.value() is not None:
            yield "alone", ctx.get_current_key(), timestamp, ctx.current_watermark()


class TestMaps:
    def test_keyed_ones_share_the_state_of_a_key(self) -> None:
        with TwoInputOperatorHarness(keyed(CountBoth(), "map")) as harness:
            assert harness.process1("ax") == [("first", "ax", 1)]
            assert harness.process2("xa") == [("second", "xa", 2)]
            assert harness.process_batch2(["xb", "xa"], [1, 2]) == [("second", "xb", 1), ("second", "xa", 3)]
            assert harness.records[-1] == (("second", "xa", 3), 2)

    def test_a_flat_map_reads_its_state_while_the_key_is_there(self) -> None:
        with TwoInputOperatorHarness(keyed(RepeatBoth(), "flat_map")) as harness:
            assert harness.process_batch1(["a", "b", "a"], [5, 6, 7]) == ["a", "b", "a", "a"]
            assert [stamp for _, stamp in harness.records] == [5, 6, 7, 7]
            assert harness.process_batch2(["a", "b", "c"]) == [2, 1, 0]

    @pytest.mark.parametrize("function", [CountBoth, RepeatBoth, Meet])
    def test_there_is_no_current_key_when_no_record_is_processed(self, function: Any) -> None:
        class AtTheEnd(function):
            def close(self) -> None:
                getattr(self, "left" if function is Meet else "seen").value()

        method = {CountBoth: "map", RepeatBoth: "flat_map", Meet: "process"}[function]
        for feed in ("process1", "process2"):
            harness = TwoInputOperatorHarness(keyed(AtTheEnd(), method))
            getattr(harness, feed)("aa", 1)
            with pytest.raises(StateError, match="is used without a current key"):
                harness.close()

    def test_key_selector_objects_may_stand_on_either_side(self) -> None:
        class Nth(sw.KeySelector[str, str]):
            def __init__(self, index: int) -> None:
                self.index = index

            def get_key(self, value: str) -> str:
                return value[self.index]

        program: Any = lambda a, b: a.key_by(Nth(0)).connect(b.key_by(Nth(1))).map(CountBoth())  # noqa: E731
        with TwoInputOperatorHarness(program) as harness:
            assert harness.process1("ax") + harness.process2("xa") == [("first", "ax", 1), ("second", "xa", 2)]

    def test_there_is_no_state_without_keys_on_both(self) -> None:
        half = [
            lambda a, b: a.connect(b).map(CountBoth()),
            lambda a, b: a.key_by(first_of).connect(b).map(CountBoth()),
            lambda a, b: a.connect(b.key_by(first_of)).flat_map(RepeatBoth()),
        ]
        for program in half:
            with pytest.raises(
                StateError, match=r"keyed state 'seen' but not both of its inputs are.*key_by\(key1, key2"
            ):
                TwoInputOperatorHarness(program)

    def test_callables_without_keys_keep_timestamps(self) -> None:
        with TwoInputOperatorHarness(lambda a, b: a.connect(b).flat_map(str.split, lambda n: [n] * n)) as harness:
            harness.process1("x y", 3)
            harness.process2(2, 4)
            harness.process2(0, 5)
            harness.process1("z")
            assert harness.records == [("x", 3), ("y", 3), (2, 4), (2, 4), ("z", None)]

    def test_what_a_flat_map_cannot_use_is_said(self) -> None:
        with (
            TwoInputOperatorHarness(lambda a, b: a.connect(b).flat_map(len, str)) as harness,
            pytest.raises(FunctionContractError, match=r"returned 3 \(int\), which cannot be iterated over"),
        ):
            harness.process1("abc")

    def test_an_error_names_record_key_and_step(self) -> None:
        def fail(value: Any) -> Any:
            raise ValueError("no")

        program = lambda a, b: a.key_by(first_of).connect(b.key_by(first_of)).map(str, fail).name("meet")  # noqa: E731
        with TwoInputOperatorHarness(program) as harness, pytest.raises(ValueError, match="no") as caught:
            harness.process2("kx")
        assert caught.value.__notes__ == ["in step 'meet', subtask 1 of 1", "record: 'kx'", "key: 'k'"]


class TestProcess:
    def test_both_sides_meet_under_their_key(self) -> None:
        with TwoInputOperatorHarness(keyed(Meet())) as harness:
            assert harness.process1("a1", 100) == []
            assert harness.process2("1a", 103) == [("a1", "1a")]
            assert harness.process2("2b", 104) == []
            assert harness.side_records(LATE) == [(("b", "2b"), 104)]

    def test_timers_wait_for_the_slower_input(self) -> None:
        with TwoInputOperatorHarness(keyed(Meet())) as harness:
            harness.process1("a1", 100)
            assert harness.process_watermark1(500) == []
            assert harness.process_watermark2(109) == []
            assert harness.process_watermark2(120) == [("alone", "a", 110, 120)]
            assert harness.records[-1][1] == 110
            assert [e.timestamp for e in harness.elements if isinstance(e, Watermark)] == [109, 120]

    def test_an_idle_input_does_not_hold_the_other_back(self) -> None:
        with TwoInputOperatorHarness(keyed(Meet())) as harness:
            harness.process1("a1", 100)
            harness.process_watermark1(500)
            assert harness.process_element2(WatermarkStatus(False)) == [("alone", "a", 110, 500)]
            harness.process_element1(WatermarkStatus(False))
            harness.process_element2(WatermarkStatus(True))
            harness.process_element2(Watermark(400))
            kept = [e for e in harness.elements if not isinstance(e, Batch)]
            assert kept == [Watermark(500), WatermarkStatus(False), WatermarkStatus(True)]

    def test_without_keys_there_are_neither_state_nor_timers(self) -> None:
        class Ask(sw.CoProcessFunction[Any, Any, Any]):
            def process_element1(self, value: Any, ctx: Any) -> Any:
                return [(value, ctx.timestamp(), ctx.current_watermark(), ctx.current_processing_time())]

            def process_element2(self, value: Any, ctx: Any) -> Any:
                ctx.timer_service()

        with TwoInputOperatorHarness(lambda a, b: a.connect(b).process(Ask()), start_ms=7) as harness:
            harness.process_watermark(50)
            assert harness.process1("x", 60) == [("x", 60, 50, 7)]
            with pytest.raises(StateError, match=r"step 'co_process\(.*Ask\)' asks for timers but its input is"):
                harness.process2("y")

    def test_a_co_process_function_may_have_keys(self) -> None:
        class Ask(sw.CoProcessFunction[Any, Any, Any]):
            def open(self, context: sw.RuntimeContext) -> None:
                self.seen = context.get_state(SEEN)

            def process_element1(self, value: Any, ctx: Any) -> Any:
                self.seen.update(self.seen.value() + 1)

            def process_element2(self, value: Any, ctx: Any) -> Any:
                yield ctx.get_current_key(), self.seen.value()

        with TwoInputOperatorHarness(keyed(Ask())) as harness:
            harness.process_batch1(["a", "a", "b"])
            assert harness.process_batch2(["a", "b", "c"]) == [("a", 2), ("b", 1), ("c", 0)]

    def test_callables_may_set_processing_time_timers_that_do_nothing(self) -> None:
        def set_timer(value: Any, ctx: sw.KeyedProcessFunction.Context) -> Iterator[Any]:
            ctx.timer_service().register_processing_time_timer(ctx.current_processing_time() + 5)
            yield value

        program = lambda a, b: a.key_by(first_of).connect(b.key_by(first_of)).process(set_timer, set_timer)  # noqa: E731
        with TwoInputOperatorHarness(program) as harness:
            assert harness.process1("a") + harness.process2("b") == ["a", "b"]
            assert harness.advance(10) == []

    def test_what_is_no_iterable_is_said(self) -> None:
        with TwoInputOperatorHarness(
            lambda a, b: a.connect(b).process(lambda v, c: 1, lambda v, c: None)
        ) as harness:
            with pytest.raises(FunctionContractError, match=r"step 'co_process' returned 1 \(int\)"):
                harness.process1("x")
            assert harness.process2("x") == []

    @pytest.mark.parametrize("before", [1, 2, 3])
    @pytest.mark.parametrize("after", [1, 2, 4])
    def test_state_and_timers_go_on_at_another_parallelism(self, before: int, after: int) -> None:
        keys = "abcdefgh"
        with TwoInputOperatorHarness(keyed(Meet()), parallelism=before) as harness:
            harness.process_batch1([f"{k}1" for k in keys], list(range(100, 100 + len(keys))))
            snapshot = harness.snapshot()
        with TwoInputOperatorHarness(keyed(Meet()), parallelism=after, restored=snapshot) as harness:
            assert harness.process2("2d", 105) == [("d1", "2d")]
            alone = sorted(harness.process_watermark(115))
            assert alone == [("alone", k, 110 + i, 115) for i, k in enumerate(keys) if k not in "dgh"]


class TestHarness:
    def test_what_it_does_not_take(self) -> None:
        with pytest.raises(GraphError, match=r"a TwoInputOperatorHarness takes .* but the first step does not"):
            TwoInputOperatorHarness(lambda a, b: a.map(str).connect(b).map(str, str))
        with pytest.raises(GraphError, match="the first step does not connect its streams"):
            TwoInputOperatorHarness(lambda a, b: a.union(b).map(str))
        with TwoInputOperatorHarness(lambda a, b: a.connect(b).map(str, str)) as harness:
            with pytest.raises(TypeError, match=r"there are two inputs: use process1\(\) or process2\(\)"):
                harness.process("x")
            with pytest.raises(TypeError, match=r"process_batch1\(\)"):
                harness.process_batch(["x"])
            with pytest.raises(TypeError, match=r"process_element1\(\)"):
                harness.process_element(Watermark(1))


# ---- a model: two dicts and a list ---------------------------------------------------------------------------

EVENTS = st.lists(st.tuples(st.sampled_from((1, 2)), st.sampled_from("abc"), st.integers(0, 9)), max_size=30)


class Ledger(sw.KeyedCoProcessFunction[str, Any, Any, Any]):
    """Sums the first stream; the second asks for the sum and sets it back at a time."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.sum = context.get_state(sw.ValueStateDescriptor("sum", int, default=0))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.sum.update(self.sum.value() + value[1])

    def process_element2(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + value[1])
        yield value[0], self.sum.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.sum.value(), timestamp
        self.sum.clear()


def expected(events: list[tuple[int, str, int]]) -> list[Any]:
    sums = dict.fromkeys("abc", 0)
    timers: set[tuple[int, str]] = set()
    out: list[Any] = []
    for now, (port, key, number) in enumerate(events):
        if port == 1:
            sums[key] += number
        else:
            out.append((key, sums[key]))
            timers.add((now + number, key))
        for due in sorted(t for t in timers if t[0] <= now):
            timers.remove(due)
            out.append((due[1], sums[due[1]], due[0]))
            sums[due[1]] = 0
    return out


@given(events=EVENTS, parallelism=st.integers(1, 3), stops=st.sets(st.integers(0, 29), max_size=4))
@settings(deadline=None, max_examples=60)
def test_a_ledger_over_two_streams_is_that_of_two_dicts(
    events: list[tuple[int, str, int]], parallelism: int, stops: set[int]
) -> None:
    program: Any = lambda a, b: a.key_by(first_of).connect(b.key_by(first_of)).process(Ledger())  # noqa: E731
    harness = TwoInputOperatorHarness(program, parallelism=parallelism)
    values: list[Any] = []
    for now, (port, key, number) in enumerate(events):
        feed = harness.process1 if port == 1 else harness.process2
        values += feed((key, number), now)
        # Ties between keys fall as the subtasks come.
        values += sorted(harness.process_watermark(now), key=lambda v: (v[2], v[0]))
        if now in stops:
            snapshot = harness.snapshot()
            harness.close()
            parallelism = parallelism % 3 + 1
            harness = TwoInputOperatorHarness(program, parallelism=parallelism, restored=snapshot)
    harness.close()
    assert values == expected(events)


class Buffered(sw.CoMapFunction[Any, Any, Any], sw.CheckpointedFunction):
    """Keeps what the first stream brought in operator state, and gives the second one all of it."""

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        self.state = context.operator_state_store.get_union_list_state(sw.ListStateDescriptor("buffered"))
        self.kept = list(self.state.get())

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        self.state.update(self.kept)

    def map1(self, value: Any) -> Any:
        self.kept.append(value)
        return len(self.kept)

    def map2(self, value: Any) -> Any:
        return value, sorted(self.kept)


def test_a_co_function_may_have_operator_state() -> None:
    program: Any = lambda a, b: a.connect(b.broadcast()).map(Buffered())  # noqa: E731
    with TwoInputOperatorHarness(program, parallelism=2) as harness:
        assert harness.process_batch1(["a", "b", "c"]) == [1, 2, 1]
        snapshot = harness.snapshot()
    with TwoInputOperatorHarness(program, parallelism=3, restored=snapshot) as harness:
        assert harness.process2("x") == [("x", ["a", "b", "c"])] * 3


def test_processing_time_timers_that_wait_fire_at_the_end() -> None:
    class Wait(Meet):
        def process_element1(self, value: Any, ctx: sw.KeyedCoProcessFunction.Context) -> None:
            ctx.timer_service().register_processing_time_timer(ctx.current_processing_time() + 1_000)

        def on_timer(self, timestamp: int, ctx: sw.KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
            yield ctx.get_current_key(), timestamp, ctx.timestamp(), ctx.time_domain()

    with TwoInputOperatorHarness(keyed(Wait())) as harness:
        harness.process1("a")
        assert harness.advance(999) == []
        assert harness.advance(1) == [("a", 1_000, 1_000, TimeDomain.PROCESSING_TIME)]
        harness.process1("b")
        assert harness.finish() == [("b", 2_000, 2_000, TimeDomain.PROCESSING_TIME)]
