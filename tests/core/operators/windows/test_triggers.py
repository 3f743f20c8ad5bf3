"""Triggers and evictors at work, the built-in ones and some of one's own."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest

import sluiceway as sw
from sluiceway.errors import ConfigurationError, FunctionContractError, StateError
from sluiceway.functions import AggregateFunction
from sluiceway.state import ReducingStateDescriptor, ValueStateDescriptor
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    EvictorContext,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    TimeEvictor,
    Timestamped,
    Trigger,
    TriggerContext,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Window,
    WindowAssigner,
)

END = 2**63 - 1
CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


def harness(assigner: WindowAssigner, finish: Callable[[Any], Any], **options: Any) -> OperatorHarness:
    """Keyed by the first character of a record."""
    return OperatorHarness(lambda stream: finish(stream.key_by(lambda r: r[0]).window(assigner)), **options)


def triggered(assigner: WindowAssigner, trigger: Trigger, lateness: int = 0, **options: Any) -> OperatorHarness:
    def finish(windowed: Any) -> sw.DataStream[Any]:
        late = windowed.allowed_lateness(lateness) if lateness else windowed
        result: sw.DataStream[Any] = late.trigger(trigger).process(joined)
        return result

    return harness(assigner, finish, **options)


def evicted(evictor: Evictor, trigger: Trigger | None = None) -> OperatorHarness:
    def finish(windowed: Any) -> sw.DataStream[Any]:
        result: sw.DataStream[Any] = windowed.trigger(trigger or CountTrigger(1)).evictor(evictor).process(joined)
        return result

    return harness(GlobalWindows(), finish)


def joined(key: Any, window: Any, elements: Iterable[str]) -> list[str]:
    return [" ".join(elements)]


def timers(h: OperatorHarness) -> list[tuple[int, str]]:
    operator: Any = h._subtasks[0].operators[0]
    found = [*operator.event_timers.timers(), *operator.processing_timers.timers()]
    return sorted((at, key) for at, key, _ in found)


def empty(h: OperatorHarness) -> bool:
    operator: Any = h._subtasks[0].operators[0]
    names = [n for table in operator.backend._backend._tables.values() for n in table._namespaces if n]
    return not timers(h) and not names and all(not s.keyed or not s.keyed.groups for s in h.snapshot().operators)


# ---- counting and comparing ------------------------------------------------------------------------------


def test_count_trigger_counts_per_key_and_window_anew() -> None:
    with triggered(TumblingEventTimeWindows(10), CountTrigger(2)) as h:
        assert h.process_batch(["a1", "b1", "a2", "a3", "a4", "a5"], [1, 1, 2, 12, 3, 4]) == [
            "a1 a2",
            "a1 a2 a4 a5",
        ]
        assert h.process("a6", 5) == []
        assert h.process("a7", 12) == ["a3 a7"]
        assert h.process_watermark(END) == []
        assert empty(h)


def test_count_trigger_adds_up_when_windows_merge() -> None:
    with triggered(EventTimeSessionWindows(10), CountTrigger(4)) as h:
        assert h.process_batch(["a1", "a2", "a3"], [0, 15, 16]) == []
        assert h.process("a4", 8) == ["a1 a2 a3 a4"]
        assert h.process_batch(["a5", "a6", "a7"], [9, 9, 9]) == []
        assert h.process("a8", 9) == ["a1 a2 a3 a4 a5 a6 a7 a8"]
        assert h.process_watermark(END) == []
        assert empty(h)


def test_delta_trigger_fires_past_the_threshold() -> None:
    trigger = DeltaTrigger(2, lambda old, new: int(new[1]) - int(old[1]))
    with triggered(GlobalWindows(), trigger) as h:
        assert h.process_batch(["a1", "a3"]) == []
        assert h.process("a4") == ["a1 a3 a4"]
        assert h.process("a6") == []
        assert h.process("a7") == ["a1 a3 a4 a6 a7"]


def test_purging_trigger_empties_the_window_each_time() -> None:
    with triggered(GlobalWindows(), PurgingTrigger(CountTrigger(2))) as h:
        assert h.process_batch(["a1", "a2", "a3", "b1", "a4"]) == ["a1 a2", "a3 a4"]


def test_never_trigger_never_fires() -> None:
    with triggered(TumblingEventTimeWindows(10), NeverTrigger()) as h:
        h.process("a1", 1)
        assert h.process_watermark(END) == []
        assert empty(h)


# ---- again and again ---------------------------------------------------------------------------------------


def test_continuous_event_time_trigger_fires_at_multiples_and_at_the_end() -> None:
    with triggered(TumblingEventTimeWindows(25), ContinuousEventTimeTrigger("10ms"), lateness=5) as h:
        assert h.process("a1", 3) == []
        assert h.process_watermark(9) == []
        assert h.process_watermark(10) == ["a1"]
        assert h.process("a2", 12) == []
        assert h.process_watermark(20) == ["a1 a2"]
        assert h.process_watermark(23) == []
        assert h.process_watermark(24) == ["a1 a2"]
        assert h.process("a3", 24) == ["a1 a2 a3"]
        assert h.process_watermark(END) == []
        assert empty(h)


def test_continuous_event_time_trigger_catches_up_one_interval_after_another() -> None:
    with triggered(TumblingEventTimeWindows(40), ContinuousEventTimeTrigger(10)) as h:
        h.process("a1", 3)
        assert h.process_watermark(END) == ["a1"] * 4
        assert empty(h)


@pytest.mark.parametrize("at", [15, 20])
def test_continuous_event_time_trigger_does_not_fire_behind_the_end(at: int) -> None:
    with triggered(TumblingEventTimeWindows(20, 1), ContinuousEventTimeTrigger(5), lateness=100) as h:
        h.process("a1", at)
        fired = [text for now in range(at, 200, 5) for text in h.process_watermark(now)]
        assert fired == ["a1"]
        assert empty(h)


def test_continuous_event_time_trigger_of_a_window_without_an_end() -> None:
    with triggered(GlobalWindows(), ContinuousEventTimeTrigger(10)) as h:
        h.process("a1", 3)
        assert h.process_watermark(20) == ["a1"] * 2
        h.process("a2", 25)
        assert h.process_watermark(END) == ["a1 a2"]


def test_continuous_event_time_trigger_goes_on_after_windows_merge() -> None:
    with triggered(EventTimeSessionWindows(10), ContinuousEventTimeTrigger(8)) as h:
        h.process_batch(["a1", "a2"], [1, 15])
        h.process("a3", 8)
        assert h.process_watermark(8) == ["a1 a2 a3"]
        assert h.process_watermark(16) == ["a1 a2 a3"]
        assert h.process_watermark(END) == ["a1 a2 a3"]
        assert empty(h)


def test_continuous_event_time_trigger_keeps_to_multiples_while_a_session_grows() -> None:
    with triggered(EventTimeSessionWindows(10), ContinuousEventTimeTrigger(8)) as h:
        h.process("a1", 1)
        assert h.process_watermark(8) == ["a1"]
        h.process("a2", 9)
        assert h.process_watermark(10) == [], "where it ended before"
        assert h.process_watermark(16) == ["a1 a2"]
        assert h.process_watermark(18) == ["a1 a2"]
        assert timers(h) == []


def test_continuous_processing_time_trigger() -> None:
    trigger = ContinuousProcessingTimeTrigger("10ms")
    with triggered(TumblingProcessingTimeWindows(25), trigger, start_ms=3) as h:
        h.process("a1")
        assert h.advance(7) == []
        assert h.advance(1) == ["a1"]
        h.process("a2")
        assert h.advance(10) == ["a1 a2"]
        assert h.advance(4) == ["a1 a2"]
        assert empty(h)


def test_continuous_processing_time_trigger_in_windows_long_past() -> None:
    """By the wall clock such windows are over; they are evaluated until the watermark ends them."""
    with triggered(TumblingEventTimeWindows(10), ContinuousProcessingTimeTrigger(10), start_ms=1000) as h:
        h.process("a1", 5)
        assert h.advance(31) == ["a1"] * 3
        assert h.process_watermark(9) == []
        assert empty(h)
        assert h.advance(100) == []


def test_the_end_of_the_input_fires_what_waits_once() -> None:
    with triggered(GlobalWindows(), ContinuousProcessingTimeTrigger(10)) as h:
        h.process_batch(["a1", "b1"])
        assert h.finish() == ["a1", "b1"]


# ---- timeouts ----------------------------------------------------------------------------------------------


def test_processing_timeout_fires_for_what_the_other_trigger_waits_for() -> None:
    trigger = ProcessingTimeoutTrigger(PurgingTrigger(CountTrigger(3)), "10ms")
    with triggered(GlobalWindows(), trigger) as h:
        assert h.process_batch(["a1", "a2", "a3"]) == ["a1 a2 a3"]
        assert timers(h) == []
        h.process("a4")
        h.advance(5)
        h.process("a5")
        assert h.advance(5) == []
        assert h.advance(1) == ["a4 a5"]
        assert timers(h) == []
        # The other one was cleared: it counts anew.
        assert h.process_batch(["a6", "a7"]) == []
        assert h.process("a8") == ["a4 a5 a6 a7 a8"]


def test_processing_timeout_can_be_counted_from_the_latest_record() -> None:
    trigger = ProcessingTimeoutTrigger.of(CountTrigger(9), 10, reset_timer_on_new_record=True)
    with triggered(GlobalWindows(), trigger) as h:
        h.process("a1")
        h.advance(5)
        h.process("a2")
        assert h.advance(10) == []
        assert h.advance(1) == ["a1 a2"]


def test_processing_timeout_can_leave_the_other_trigger_alone() -> None:
    trigger = ProcessingTimeoutTrigger(CountTrigger(3), 10, should_clear_on_timeout=False)
    with triggered(GlobalWindows(), trigger) as h:
        h.process_batch(["a1", "a2"])
        assert h.advance(11) == ["a1 a2"]
        assert h.process("a3") == ["a1 a2 a3"]


def test_a_timeout_does_not_take_the_end_of_the_window_with_it() -> None:
    trigger = ProcessingTimeoutTrigger(EventTimeTrigger(), 10)
    with triggered(TumblingEventTimeWindows(10), trigger) as h:
        h.process("a1", 1)
        assert h.advance(11) == ["a1"]
        assert h.process_watermark(9) == ["a1"]
        assert empty(h)


def test_nor_does_it_by_the_wall_clock() -> None:
    trigger = ProcessingTimeoutTrigger(ProcessingTimeTrigger(), 3)
    with triggered(TumblingProcessingTimeWindows(10), trigger) as h:
        h.process("a1")
        assert h.advance(4) == ["a1"]
        assert h.advance(6) == ["a1"]
        assert empty(h)


# ---- one's own ---------------------------------------------------------------------------------------------


class Custom(Trigger):
    """Fires for values that end in ``!``, remembers how often, and looks at what it is told."""

    FIRED = ReducingStateDescriptor("fired", int, lambda a, b: a + b)
    seen: ClassVar[list[Any]] = []

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        self.seen.append((context.key, timestamp, window.max_timestamp, context.current_processing_time()))
        context.register_event_time_timer(timestamp + 100)
        context.register_processing_time_timer(50)
        if value.endswith("!"):
            context.get_reducing_state(self.FIRED).add(1)
            return FIRE
        return TriggerResult.PURGE if value.endswith("?") else CONTINUE

    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        self.seen.append(("event", timestamp, context.current_watermark()))
        return FIRE

    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        self.seen.append(("processing", timestamp))
        return CONTINUE

    def clear(self, window: Window, context: TriggerContext) -> None:
        self.seen.append(("clear", context.get_reducing_state(self.FIRED).get()))
        context.get_reducing_state(self.FIRED).clear()


def test_a_trigger_of_ones_own() -> None:
    Custom.seen = []
    with triggered(TumblingEventTimeWindows(10), Custom(), lateness=200, start_ms=7) as h:
        assert h.process_batch(["a1", "a2!", "a3"], [1, 2, 3]) == ["a1 a2!"]
        assert Custom.seen == [("a", 1, 9, 7), ("a", 2, 9, 7), ("a", 3, 9, 7)]
        assert h.process("a4?", 3) == []
        assert h.process("a5", 4) == []
        h.advance(44)
        assert Custom.seen[5:] == [("processing", 50)]
        assert h.process_watermark(102) == ["a5"] * 2
        assert Custom.seen[6:] == [("event", 101, 102), ("event", 102, 102)]
        assert h.process_watermark(END) == ["a5"] * 3
        assert Custom.seen[8:] == [("event", 103, END), ("event", 104, END), ("event", 209, END), ("clear", 1)]
        assert empty(h)


def test_a_window_ends_by_its_own_time_alone() -> None:
    class Both(CountTrigger):
        def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            context.register_event_time_timer(window.max_timestamp)
            return CONTINUE

        def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            return FIRE

        def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            return FIRE

    with triggered(TumblingProcessingTimeWindows(10), Both(1)) as h:
        h.process("a1")
        assert h.process_watermark(9) == ["a1"]
        assert h.advance(10) == ["a1"]
        assert empty(h)


def test_a_timer_deleted_while_the_input_ends_does_not_fire() -> None:
    class Once(CountTrigger):
        def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            context.register_processing_time_timer(10)
            context.register_processing_time_timer(20)
            return CONTINUE

        def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            context.delete_processing_time_timer(20)
            return FIRE

    with triggered(GlobalWindows(), Once(1)) as h:
        h.process("a1")
        assert h.finish() == ["a1"]
        assert timers(h) == []


def test_a_trigger_must_say_what_it_wants() -> None:
    class Forgetful(CountTrigger):
        def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            return None  # type: ignore[return-value]

    message = "Forgetful of step .* gave None.*must return a TriggerResult, as in TriggerResult.CONTINUE"
    with triggered(GlobalWindows(), Forgetful(1)) as h, pytest.raises(FunctionContractError, match=message):
        h.process("a1")


def test_a_triggers_timers_are_in_whole_ms() -> None:
    class Fractional(CountTrigger):
        def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            context.register_event_time_timer(timestamp + 0.5)
            return CONTINUE

    message = r"a trigger's timer needs a whole number of ms .*, or an aware datetime, not 1.5 \(float\)"
    with (
        triggered(TumblingEventTimeWindows(10), Fractional(1)) as h,
        pytest.raises(FunctionContractError, match=message),
    ):
        h.process("a1", 1)


def test_state_is_merged_only_when_windows_are() -> None:
    class Hasty(CountTrigger):
        def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
            if value == "a!":
                context.merge_reducing_state(self._COUNT)
            return CONTINUE

    with triggered(EventTimeSessionWindows(10), Hasty(1)) as h:
        h.process_batch(["a1", "a2"], [0, 5])
        with pytest.raises(StateError, match=r"merge_state\(\) is for on_merge\(\) alone"):
            h.process("a!", 5)


def test_a_triggers_state_does_not_meet_that_of_the_function() -> None:
    class Counting(sw.ProcessWindowFunction[str, str, Any]):
        def process(self, key: str, ctx: Any, elements: list[str]) -> Iterable[Any]:
            state = ctx.window_state().get_state(ValueStateDescriptor("count", str, "none"))
            yield state.value(), ctx.global_state().get_state(ValueStateDescriptor("count", float, 0.5)).value()

    with harness(GlobalWindows(), lambda w: w.trigger(CountTrigger(2)).process(Counting())) as h:
        assert h.process_batch(["a1", "a2"]) == [("none", 0.5)]


def test_triggers_survive_a_restore_at_another_parallelism() -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = stream.key_by(lambda r: r[0]).window(TumblingEventTimeWindows(25))
        return windowed.trigger(ContinuousEventTimeTrigger(10)).process(joined).uid("w")

    with OperatorHarness(add) as h:
        h.process_batch(["a1", "b1", "c1", "d1"], [1, 11, 2, 3])
        assert h.process_watermark(10) == ["a1", "c1", "d1"]
        taken = h.snapshot()
    with OperatorHarness(add, parallelism=3, restored=taken) as h:
        assert h.process_watermark(10) == []
        assert sorted(h.process_watermark(20)) == ["a1", "b1", "c1", "d1"]
        assert sorted(h.process_watermark(24)) == ["a1", "b1", "c1", "d1"]
        assert empty(h)


# ---- evictors ----------------------------------------------------------------------------------------------


def test_count_evictor_leaves_the_last() -> None:
    with evicted(CountEvictor(2)) as h:
        assert h.process_batch(["a1", "a2", "a3", "a4"]) == ["a1", "a1 a2", "a2 a3", "a3 a4"]


def test_evicting_after_shows_everything_first() -> None:
    with evicted(CountEvictor(2, do_evict_after=True)) as h:
        assert h.process_batch(["a1", "a2", "a3", "a4"]) == ["a1", "a1 a2", "a1 a2 a3", "a2 a3 a4"]


def test_time_evictor_goes_by_timestamps() -> None:
    with evicted(TimeEvictor("10ms")) as h:
        assert h.process_batch(["a1", "a2", "a3", "a4"], [5, 14, 15, 3]) == ["a1", "a1 a2", "a2 a3", "a2 a3"]


def test_time_evictor_goes_by_arrival_where_there_are_no_timestamps() -> None:
    with evicted(TimeEvictor(10)) as h:
        assert h.process("a1") == ["a1"]
        h.advance(9)
        assert h.process("a2") == ["a1 a2"]
        h.advance(1)
        assert h.process("a3") == ["a2 a3"]


def test_delta_evictor_leaves_what_is_near_the_last() -> None:
    with evicted(DeltaEvictor(2, lambda element, last: abs(int(element[1]) - int(last[1])))) as h:
        assert h.process_batch(["a1", "a2", "a3", "a5"]) == ["a1", "a1 a2", "a2 a3", "a5"]
        assert h.process("a1") == ["a1"]


class Total(AggregateFunction[str, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: str, accumulator: int) -> int:
        return accumulator + int(value[1:])

    def get_result(self, accumulator: int) -> int:
        return accumulator


class Everything(Evictor):
    def evict_before(
        self, elements: list[Timestamped[Any]], window: Window, context: EvictorContext
    ) -> list[Timestamped[Any]]:
        assert context.current_watermark() == -(2**63)
        assert context.current_processing_time() == 0
        return []


@pytest.mark.parametrize(
    ("evictor", "finish", "results"),
    [
        (CountEvictor(2), lambda w: w.reduce(lambda x, y: x + y), ["a1", "a1a2", "a2a3"]),
        (CountEvictor(2), lambda w: w.aggregate(Total()), [1, 3, 5]),
        (CountEvictor(2), lambda w: w.aggregate(Total(), lambda key, window, found: found), [1, 3, 5]),
        (CountEvictor(2), lambda w: w.sum(lambda r: int(r[1:])), [("a", 1), ("a", 3), ("a", 5)]),
        (Everything(), lambda w: w.reduce(lambda x, y: x + y), []),
        (Everything(), lambda w: w.reduce(lambda x, y: x + y, lambda key, window, found: found), []),
        (Everything(), lambda w: w.aggregate(Total()), [0, 0, 0]),
        (Everything(), lambda w: w.process(lambda key, window, found: [found]), [[], [], []]),
    ],
)
def test_reducing_and_aggregating_what_is_left(evictor: Evictor, finish: Any, results: list[Any]) -> None:
    with harness(GlobalWindows(), lambda w: finish(w.trigger(CountTrigger(1)).evictor(evictor))) as h:
        assert h.process_batch(["a1", "a2", "a3"]) == results


def test_evictors_work_in_sessions_whose_aggregate_cannot_merge() -> None:
    with harness(EventTimeSessionWindows(10), lambda w: w.evictor(CountEvictor(2)).aggregate(Total())) as h:
        h.process_batch(["a1", "a2", "a4"], [0, 15, 8])
        assert h.process_watermark(END) == [6]
        assert empty(h)


def test_an_evictor_must_return_a_list() -> None:
    class Wrong(CountEvictor):
        def evict_after(self, elements: Any, window: Any, context: Any) -> Any:
            return None

    message = r"Wrong.evict_after\(\) gave None \(NoneType\); it must return the list of the elements that"
    with evicted(Wrong(1)) as h, pytest.raises(FunctionContractError, match=message):
        h.process("a1")


@pytest.mark.parametrize("method", ["evict_before", "evict_after"])
def test_an_evictor_must_return_elements(method: str) -> None:
    class Wrong(CountEvictor):
        pass

    setattr(Wrong, method, lambda self, elements, window, context: [element.value for element in elements])
    message = rf"Wrong.{method}\(\) gave \['a1'\] \(list\), in which an element is of type str; it must"
    with evicted(Wrong(1)) as h, pytest.raises(FunctionContractError, match=message):
        h.process("a1")


# ---- what they say -----------------------------------------------------------------------------------------


def test_they_say_what_they_are_and_can_be_pickled() -> None:
    shown: dict[str, Trigger | Evictor] = {
        "EventTimeTrigger()": EventTimeTrigger.create(),
        "ProcessingTimeTrigger()": ProcessingTimeTrigger.create(),
        "NeverTrigger()": NeverTrigger(),
        "CountTrigger(3)": CountTrigger.of(3),
        "ContinuousEventTimeTrigger(10s)": ContinuousEventTimeTrigger.of("10s"),
        "ContinuousProcessingTimeTrigger(1min)": ContinuousProcessingTimeTrigger.of("60s"),
        "DeltaTrigger(0.5)": DeltaTrigger.of(0.5, max),
        "PurgingTrigger(CountTrigger(3))": PurgingTrigger.of(CountTrigger(3)),
        "ProcessingTimeoutTrigger(CountTrigger(3), 5s)": ProcessingTimeoutTrigger.of(CountTrigger(3), "5s"),
        "CountEvictor(3)": CountEvictor.of(3),
        "TimeEvictor(10s, do_evict_after=True)": TimeEvictor.of("10s", do_evict_after=True),
        "DeltaEvictor(2)": DeltaEvictor.of(2, max),
    }
    for text, made in shown.items():
        assert repr(made) == text
        assert repr(pickle.loads(pickle.dumps(made))) == text


WRONG: Any = ["3", None, CountTrigger]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CountTrigger(0), r"CountTrigger\(0\): must be a whole number of records, at least 1"),
        (lambda: CountTrigger(WRONG[0]), r"CountTrigger\('3'\): must be a whole number"),
        (lambda: CountEvictor(0), r"CountEvictor\(0\): must leave a whole number of records, at least 1"),
        (lambda: TimeEvictor(0), r"TimeEvictor\(window_size=0\): must be longer than 0 ms"),
        (
            lambda: ContinuousEventTimeTrigger(0),
            r"ContinuousEventTimeTrigger\(interval=0\): must be longer",
        ),
        (lambda: DeltaTrigger(1, WRONG[1]), r"DeltaTrigger: delta must be a function of two records, not None"),
        (lambda: DeltaEvictor(1, WRONG[1]), r"DeltaEvictor: delta must be a function of two records, not None"),
        (lambda: PurgingTrigger(WRONG[2]), r"PurgingTrigger needs another trigger, not the class CountTrigger"),
        (
            lambda: ProcessingTimeoutTrigger(WRONG[0], 1),
            r"ProcessingTimeoutTrigger needs another trigger, not",
        ),
        (lambda: ProcessingTimeoutTrigger(NeverTrigger(), 0), r"\(timeout=0\): must be longer than 0 ms"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
