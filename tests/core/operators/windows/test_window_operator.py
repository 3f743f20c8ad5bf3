"""Windows by the general operator, and by the one with slices where it can: records, time, functions, state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import FunctionContractError, StateError, UnstableKeyError
from sluiceway.functions import (
    AggregateFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    WindowContext,
    WindowFunction,
)
from sluiceway.operators.windows import factory
from sluiceway.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from sluiceway.testing import OperatorHarness
from sluiceway.util import name_hints
from sluiceway.windows import (
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)

END = 2**63 - 1


@pytest.fixture(autouse=True, params=["general", "sliced"])
def operator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "general":
        monkeypatch.setattr(factory, "sliced_operator", lambda context: None)


def harness(
    assigner: WindowAssigner, finish: Callable[[Any], sw.DataStream[Any]], **options: Any
) -> OperatorHarness:
    """Keyed by the first character of a record."""
    return OperatorHarness(lambda stream: finish(stream.key_by(lambda r: r[0]).window(assigner)), **options)


def joined(key: Any, window: Any, elements: Iterable[str]) -> list[str]:
    return [f"{key} {window.start}-{window.end}: {' '.join(elements)}"]


class Told(EventTimeTrigger):
    """The default trigger, but not by its type: the operator has to ask it."""


def held(harness: OperatorHarness) -> list[Any]:
    """What the operator has in its tables, and its timers."""
    operator: Any = harness._subtasks[0].operators[0]
    tables = operator.backend._backend._tables
    return [
        *((name, namespace) for name, table in tables.items() for namespace in table._namespaces if namespace),
        *((name, namespace) for name, table in tables.items() for namespace in table.namespaces()),
        *(operator.event_timers.timers() if hasattr(operator, "event_timers") else ()),
        *(operator.processing_timers.timers() if hasattr(operator, "event_timers") else ()),
        *getattr(operator, "_windows", ()),
    ]


# ---- event time ------------------------------------------------------------------------------------------


def test_a_window_is_evaluated_when_the_watermark_comes_to_its_last_ms() -> None:
    with harness(TumblingEventTimeWindows(10), lambda w: w.process(joined)) as h:
        assert h.process_batch(["a1", "b1", "a2"], [3, 5, 12]) == []
        assert h.process_watermark(8) == []
        assert h.process_watermark(9) == ["a 0-10: a1", "b 0-10: b1"]
        assert h.process_watermark(END) == ["a 10-20: a2"]
        assert h.records[0] == ("a 0-10: a1", 9)
        assert held(h) == []


def test_late_records_are_counted_and_dropped() -> None:
    with harness(TumblingEventTimeWindows(10), lambda w: w.process(joined)) as h:
        h.process_watermark(9)
        assert h.process_batch(["a1", "a2"], [9, 10]) == []
        assert h.metrics().counter("numLateRecordsDropped").value == 1
        assert h.process_watermark(END) == ["a 10-20: a2"]


def test_late_records_go_to_the_side_output_with_their_timestamps() -> None:
    late: OutputTag[str] = OutputTag("late")
    with harness(TumblingEventTimeWindows(10), lambda w: w.side_output_late_data(late).process(joined)) as h:
        h.process_watermark(9)
        h.process_batch(["a1", "a2", "a3"], [9, 10, 3])
        assert h.side_records(late) == [("a1", 9), ("a3", 3)]
        assert h.metrics().counter("numLateRecordsDropped").value == 0


def test_within_the_allowed_lateness_a_late_record_has_the_window_evaluated_anew() -> None:
    with harness(TumblingEventTimeWindows(10), lambda w: w.allowed_lateness(5).process(joined)) as h:
        h.process("a1", 1)
        assert h.process_watermark(9) == ["a 0-10: a1"]
        assert h.process_batch(["a2", "a3"], [2, 3]) == ["a 0-10: a1 a2", "a 0-10: a1 a2 a3"]
        assert h.process("b1", 4) == ["b 0-10: b1"]
        assert h.process_watermark(13) == []
        assert h.process("b2", 4) == ["b 0-10: b1 b2"]
        assert h.process_watermark(14) == []
        assert h.process("b3", 4) == []
        assert h.metrics().counter("numLateRecordsDropped").value == 1
        assert held(h) == []


@pytest.mark.parametrize("trigger", [None, Told()])
def test_a_late_record_counts_before_the_watermark_is_known_again(trigger: Any) -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = stream.key_by(lambda r: r[0]).window(TumblingEventTimeWindows(10)).allowed_lateness(20)
        return (windowed if trigger is None else windowed.trigger(trigger)).process(joined).uid("w")

    with OperatorHarness(add) as h:
        h.process_batch(["a1", "b1"], [1, 2])
        assert h.process_watermark(9) == ["a 0-10: a1", "b 0-10: b1"]
        taken = h.snapshot()
    with OperatorHarness(add, restored=taken) as h:
        assert h.process("a2", 5) == []
        assert h.process_watermark(9) == ["a 0-10: a1 a2"]
        assert h.process_watermark(END) == []
        assert held(h) == []


def test_a_record_can_be_too_late_for_one_window_and_not_for_another() -> None:
    with harness(SlidingEventTimeWindows(10, 5), lambda w: w.process(joined)) as h:
        h.process_watermark(9)
        h.process("a1", 7)
        assert h.metrics().counter("numLateRecordsDropped").value == 0
        assert h.process_watermark(END) == ["a 5-15: a1"]


def test_a_record_in_no_window_is_late_only_if_it_is_behind_the_watermark() -> None:
    with harness(SlidingEventTimeWindows(2, 10), lambda w: w.process(joined)) as h:
        h.process("a1", 5)
        assert h.metrics().counter("numLateRecordsDropped").value == 0
        h.process_watermark(6)
        h.process("a2", 5)
        assert h.metrics().counter("numLateRecordsDropped").value == 1


def test_timestamps_are_asked_for() -> None:
    with (
        harness(TumblingEventTimeWindows(10), lambda w: w.process(joined)) as h,
        pytest.raises(StateError) as caught,
    ):
        h.process("a1")
    assert (
        "step 'TumblingEventTimeWindows(10ms).process(joined)' goes by event time, but its records have no "
        "timestamps: put assign_timestamps_and_watermarks(...) before it"
    ) in str(caught.value)


def test_a_timestamp_at_the_end_of_time_is_in_the_last_window() -> None:
    with harness(TumblingEventTimeWindows(10), lambda w: w.process(joined)) as h:
        h.process("a1", END)
        assert len(h.process_watermark(END)) == 1
        assert h.records[-1][1] == END
        assert held(h) == []
    with harness(TumblingEventTimeWindows(10), lambda w: w.allowed_lateness(50).process(joined)) as h:
        h.process("a1", END - 20)
        assert len(h.process_watermark(END)) == 1
        assert held(h) == []


@pytest.mark.parametrize(
    ("assigner", "windows"), [(TumblingEventTimeWindows(10), 1), (SlidingEventTimeWindows(10, 5), 2)]
)
def test_a_window_in_slices_that_reaches_beyond_the_end_of_time_is_over_then(
    assigner: WindowAssigner, windows: int
) -> None:
    with harness(assigner, lambda w: w.count()) as h:
        h.process("a1", END)
        h.process("b1", 0)
        assert h.process_watermark(END - 1) == [("b", 1)] * windows
        h.process_watermark(END)
        assert h.records[windows:] == [(("a", 1), END)] * windows
        assert not getattr(h._subtasks[0].operators[0], "_slices", None)


def test_an_unhashable_key_is_named() -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return stream.key_by(lambda r: [r]).window(TumblingEventTimeWindows(10)).process(joined)

    with OperatorHarness(add) as h, pytest.raises(UnstableKeyError, match="list"):
        h.process("a1", 1)


# ---- processing time ---------------------------------------------------------------------------------------


def test_windows_of_the_wall_clock() -> None:
    with harness(TumblingProcessingTimeWindows(10), lambda w: w.process(joined), start_ms=3) as h:
        h.process("a1")
        h.process("b1", 12345)  # its event time is of no importance
        assert h.advance(6) == []
        h.process("a2")  # in its last ms
        assert h.advance(1) == ["a 0-10: a1 a2", "b 0-10: b1"]
        assert h.records[0][1] == 9
        assert held(h) == []
        h.process("a3")
        assert h.finish() == ["a 10-20: a3"]
        assert held(h) == []


def test_windows_of_the_wall_clock_in_slices() -> None:
    with harness(TumblingProcessingTimeWindows(10), lambda w: w.count(), start_ms=3) as h:
        h.process("a1")
        assert h.advance(6) == []
        h.process("a2")  # in its last ms
        assert h.advance(1) == [("a", 2)]
        h.process("a3")
        assert h.finish() == [("a", 1)]


def test_sliding_windows_of_the_wall_clock() -> None:
    with harness(SlidingProcessingTimeWindows(10, 5), lambda w: w.process(joined), start_ms=7) as h:
        h.process("a1")
        assert h.advance(100) == ["a 0-10: a1", "a 5-15: a1"]
        assert held(h) == []


def test_sessions_of_the_wall_clock() -> None:
    with harness(ProcessingTimeSessionWindows(10), lambda w: w.process(joined)) as h:
        h.process("a1")
        h.advance(10)
        h.process("a2")  # the first has just ended
        assert h.values == ["a 0-10: a1"]
        h.advance(9)
        h.process("a3")
        assert h.advance(100) == ["a 10-29: a2 a3"]
        assert held(h) == []


# ---- global windows ----------------------------------------------------------------------------------------


def test_the_global_window_goes_on() -> None:
    def counted(key: str, window: Any, elements: list[str]) -> list[Any]:
        return [(key, len(elements))]

    with harness(GlobalWindows(), lambda w: w.trigger(CountTrigger(2)).process(counted)) as h:
        assert h.process_batch(["a1", "a2", "b1", "a3", "a4"]) == [("a", 2), ("a", 4)]
        assert h.records[0][1] == END
        assert h.finish() == []


def test_the_end_of_the_stream_can_evaluate_it() -> None:
    windows = GlobalWindows.create_with_end_of_stream_trigger()
    with harness(windows, lambda w: w.count()) as h:
        h.process_batch(["a1", "a2", "b1"])
        assert h.process_watermark(END) == [("a", 2), ("b", 1)]


# ---- functions ---------------------------------------------------------------------------------------------


class Longest(ReduceFunction[str]):
    def reduce(self, value1: str, value2: str) -> str:
        return max(value1, value2, key=len)


class Total(AggregateFunction[str, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: str, accumulator: int) -> int:
        return accumulator + len(value)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


class Labelled(WindowFunction[str, Any, Any]):
    def apply(self, key: str, window: TimeWindow, elements: list[Any]) -> Iterable[Any]:
        yield key, window.start, elements


class Described(ProcessWindowFunction[str, Any, Any]):
    def process(self, key: str, ctx: WindowContext, elements: list[Any]) -> Iterable[Any]:
        yield key, ctx.window().start, ctx.current_watermark(), ctx.current_processing_time(), elements


class Nothing(ProcessWindowFunction[str, Any, Any]):
    def process(self, key: str, ctx: WindowContext, elements: list[Any]) -> None:
        return None


RECORDS = ["a1", "a22", "a3"]


@pytest.mark.parametrize(
    ("finish", "result"),
    [
        (lambda w: w.reduce(Longest()), "a22"),
        (lambda w: w.reduce(Longest(), Labelled()), ("a", 0, ["a22"])),
        (lambda w: w.reduce(lambda x, y: x + y, Described()), ("a", 0, 20, 77, ["a1a22a3"])),
        (lambda w: w.reduce(max, lambda key, window, elements: elements), "a3"),
        (lambda w: w.aggregate(Total()), 7),
        (lambda w: w.aggregate(Total(), Labelled()), ("a", 0, [7])),
        (lambda w: w.aggregate(Total(), Described()), ("a", 0, 20, 77, [7])),
        (lambda w: w.process(Described()), ("a", 0, 20, 77, RECORDS)),
        (lambda w: w.apply(Labelled()), ("a", 0, RECORDS)),
        (lambda w: w.apply(lambda key, window, elements: [len(elements)]), 3),
        (lambda w: w.process(Nothing()), None),
        (lambda w: w.count(), ("a", 3)),
        (lambda w: w.sum(len), ("a", 7)),
        (lambda w: w.min(len), ("a", 2)),
        (lambda w: w.max(len), ("a", 3)),
        (lambda w: w.max(), "a3"),
        (lambda w: w.min(), "a1"),
        (lambda w: w.min_by(len), "a1"),
        (lambda w: w.min_by(len, first=False), "a3"),
        (lambda w: w.max_by(len), "a22"),
    ],
)
@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(10), EventTimeSessionWindows(10)])
def test_what_can_be_made_of_a_window(assigner: WindowAssigner, finish: Any, result: Any) -> None:
    with harness(assigner, finish, start_ms=77) as h:
        h.process_batch(RECORDS, [0, 0, 0])
        assert h.process_watermark(20) == ([] if result is None else [result])


def test_elements_are_a_list_of_ones_own() -> None:
    def greedy(key: str, window: Any, elements: list[str]) -> list[int]:
        count = len(elements)
        elements.clear()
        return [count]

    with harness(TumblingEventTimeWindows(10), lambda w: w.allowed_lateness(5).process(greedy)) as h:
        h.process_batch(["a1", "a2"], [1, 2])
        assert h.process_watermark(9) == [2]
        assert h.process("a3", 3) == [3]


def test_what_is_not_iterable_is_refused() -> None:
    wrong: Any = lambda key, window, elements: len(elements)  # noqa: E731
    with harness(TumblingEventTimeWindows(10), lambda w: w.process(wrong)) as h:
        h.process("a1", 1)
        with pytest.raises(FunctionContractError, match=r"returned 1 \(int\); it must yield its results, or"):
            h.process_watermark(9)


def test_an_error_in_a_window_function_names_key_and_window_time() -> None:
    def failing(key: str, window: Any, elements: list[str]) -> list[int]:
        raise RuntimeError("no")

    with harness(TumblingEventTimeWindows(10), lambda w: w.process(failing)) as h:
        h.process("a1", 1)
        with pytest.raises(RuntimeError, match="no") as caught:
            h.process_watermark(9)
    notes = "\n".join(caught.value.__notes__)
    assert "'a'" in notes
    assert "TumblingEventTimeWindows(10ms).process" in notes


def test_state_per_window_takes_a_descriptor() -> None:
    class Named(ProcessWindowFunction[str, Any, Any]):
        def process(self, key: str, ctx: WindowContext, elements: list[Any]) -> Iterable[Any]:
            ctx.window_state().get_state("times")  # type: ignore[arg-type]
            return []

    with harness(TumblingEventTimeWindows(10), lambda w: w.allowed_lateness(5).process(Named())) as h:
        h.process("a", 1)
        with pytest.raises(StateError, match="declared by a ValueStateDescriptor, not by str"):
            h.process_watermark(END)


class Opened(ProcessWindowFunction[str, Any, Any], ReduceFunction[Any]):
    """Keeps state per window and per key, and says when it is opened and cleared."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int, 0))

    def process(self, key: str, ctx: WindowContext, elements: list[Any]) -> Iterable[Any]:
        times = ctx.window_state().get_state(ValueStateDescriptor("times", int, 0))
        times.update(times.value() + 1)
        same = ctx.global_state().get_state(ValueStateDescriptor("total", int, 0))
        same.update(same.value() + 1)
        ctx.output(OutputTag("evaluated"), ctx.window().start)
        yield key, ctx.window().start, times.value(), self.total.value()

    def clear(self, ctx: WindowContext) -> None:
        times = ctx.window_state().get_state(ValueStateDescriptor("times", int, 0))
        ctx.output(OutputTag("cleared"), (ctx.window().start, times.value()))
        times.clear()

    def reduce(self, value1: Any, value2: Any) -> Any:
        return value2


@pytest.mark.parametrize("incremental", [False, True])
def test_state_per_window_and_per_key(incremental: bool) -> None:
    def finish(w: Any) -> sw.DataStream[Any]:
        late = w.allowed_lateness(5)
        result: sw.DataStream[Any] = late.reduce(max, Opened()) if incremental else late.process(Opened())
        return result

    with harness(TumblingEventTimeWindows(10), finish) as h:
        h.process_batch(["a1", "a2", "b1"], [1, 11, 2])
        assert h.process_watermark(9) == [("a", 0, 1, 1), ("b", 0, 1, 1)]
        assert h.process("a3", 3) == [("a", 0, 2, 2)]
        assert h.process_watermark(END) == [("a", 10, 1, 3)]
        assert h.side_records("evaluated") == [(0, 9), (0, 9), (0, 9), (10, 19)]
        assert h.side_records("cleared") == [((0, 2), 9), ((0, 1), 9), ((10, 1), 19)]
        assert {name for name, *_ in held(h)} == {"total"}


def test_all_kinds_of_state_per_window() -> None:
    add = ReducingStateDescriptor("sum", int, lambda x, y: x + y)

    class Everything(ProcessWindowFunction[str, Any, Any]):
        def process(self, key: str, ctx: WindowContext, elements: list[str]) -> Iterable[Any]:
            for state in (ctx.window_state(), ctx.global_state()):
                state.get_list_state(ListStateDescriptor("list")).add_all(elements)
                state.get_map_state(MapStateDescriptor("map")).put(len(elements), True)
                state.get_reducing_state(add).add(len(elements))
                state.get_aggregating_state(AggregatingStateDescriptor("total", int, Total())).add("xx")
                yield (
                    state.get_list_state(ListStateDescriptor("list")).get(),
                    list(state.get_map_state(MapStateDescriptor("map")).keys()),
                    state.get_reducing_state(add).get(),
                    state.get_aggregating_state(AggregatingStateDescriptor("total", int, Total())).get(),
                )

        def clear(self, ctx: WindowContext) -> None:
            state = ctx.window_state()
            state.get_list_state(ListStateDescriptor("list")).clear()
            state.get_map_state(MapStateDescriptor("map")).clear()
            state.get_reducing_state(add).clear()
            state.get_aggregating_state(AggregatingStateDescriptor("total", int, Total())).clear()

    with harness(TumblingEventTimeWindows(10), lambda w: w.process(Everything())) as h:
        h.process_batch(["a1", "a2"], [1, 11])
        assert h.process_watermark(9) == [(["a1"], [1], 1, 2), (["a1"], [1], 1, 2)]
        assert h.process_watermark(END) == [(["a2"], [1], 1, 2), (["a1", "a2"], [1], 2, 4)]
        assert {name for name, *_ in held(h)} == {"list", "map", "sum", "total"}


def test_descriptors_of_each_window_are_not_asked_for_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    refuse = name_hints.refuse

    def counted(given: object, name: str, *owners: str) -> None:
        asked.append(name)
        refuse(given, name, *owners)

    with harness(TumblingEventTimeWindows(10), lambda w: w.process(Opened())) as h:
        h.process_batch(["a1", "b1"], [1, 2])
        monkeypatch.setattr(name_hints, "refuse", counted)  # looks for similar names, which is slow
        assert h.process_watermark(9) == [("a", 0, 1, 1), ("b", 0, 1, 1)]
    assert asked == []


def test_state_per_window_is_refused_where_windows_merge() -> None:
    with harness(EventTimeSessionWindows(10), lambda w: w.process(Opened())) as h:
        h.process("a1", 1)
        with pytest.raises(StateError, match=r"asks for window_state\(\), but its windows merge.*global_state"):
            h.process_watermark(100)


def test_functions_are_opened_and_closed_in_every_subtask() -> None:
    events: list[Any] = []

    class Noted(Described):
        def __deepcopy__(self, memo: Any) -> Noted:
            return Noted()

        def open(self, context: RuntimeContext) -> None:
            events.append(("open", id(self), context.index_of_this_subtask))

        def close(self) -> None:
            events.append(("close", id(self)))

    with harness(TumblingEventTimeWindows(10), lambda w: w.reduce(max, Noted()), parallelism=2):
        pass
    opened = [event for event in events if event[0] == "open"]
    assert [index for *_, index in opened] == [0, 1]
    assert len({id_ for _, id_, _ in opened}) == 2
    assert sorted(id_ for _, id_, *_ in events[2:]) == sorted(id_ for _, id_, _ in opened)


def test_a_window_function_given_to_two_steps_is_copied() -> None:
    shared = Described()
    flow = sw.Pipeline("twice")
    windowed = flow.from_collection(["a"]).key_by(lambda r: r).window(TumblingEventTimeWindows(10))
    windowed.reduce(max, shared).collect()
    windowed.reduce(max, shared).uid("second").collect()
    steps: list[Any] = [node.step for node in flow.graph().nodes if node.step.kind == "window"]
    assert steps[0].window_fn is shared
    assert isinstance(steps[1].window_fn, Described)
    assert steps[1].window_fn is not shared


# ---- streams without keys ----------------------------------------------------------------------------------


class AllDescribed(ProcessAllWindowFunction[Any, Any]):
    def process(self, ctx: WindowContext, elements: list[Any]) -> Iterable[Any]:
        yield ctx.window().start, elements


@pytest.mark.parametrize(
    ("finish", "result"),
    [
        (lambda w: w.reduce(max), "b"),
        (lambda w: w.reduce(max, AllDescribed()), (0, ["b"])),
        (lambda w: w.aggregate(Total(), lambda window, elements: [(window.end, elements)]), (10, [3])),
        (lambda w: w.process(AllDescribed()), (0, ["a", "b", "a"])),
        (lambda w: w.apply(lambda window, elements: [elements]), ["a", "b", "a"]),
        (lambda w: w.count(), 3),
        (lambda w: w.sum(len), 3),
        (lambda w: w.min(ord), 97),
        (lambda w: w.max_by(ord), "b"),
    ],
)
def test_windows_of_all_records(finish: Any, result: Any) -> None:
    with OperatorHarness(lambda stream: finish(stream.window_all(TumblingEventTimeWindows(10)))) as h:
        h.process_batch(["a", "b", "a"], [1, 2, 3])
        assert h.process_watermark(9) == [result]


# ---- purging -----------------------------------------------------------------------------------------------


def test_purging_forgets_records_and_not_the_window() -> None:
    trigger = PurgingTrigger(EventTimeTrigger())
    with harness(
        TumblingEventTimeWindows(10), lambda w: w.allowed_lateness(5).trigger(trigger).process(joined)
    ) as h:
        h.process_batch(["a1", "a2"], [1, 2])
        assert h.process_watermark(9) == ["a 0-10: a1 a2"]
        assert h.process("a3", 3) == ["a 0-10: a3"]
        assert h.process_watermark(END) == []
        assert held(h) == []
