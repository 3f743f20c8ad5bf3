"""State of triggers, of any kind, and of window assigners: kept, restored, and merged where windows merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import StateError
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    MergingWindowAssigner,
    TimeWindow,
    Trigger,
    TriggerContext,
    TriggerResult,
    Window,
    WindowAssigner,
)
from sluiceway.windows.base import AssignerContext

CONTINUE, FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


class Sum(sw.AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


class Remembering(Trigger):
    """Fires when the window has had a record of "!"; with it, three kinds of state have what was there."""

    LETTERS = sw.ListStateDescriptor("letters", str)
    COUNTS = sw.MapStateDescriptor("letters and counts", int, key_type=str)
    TOTAL = sw.AggregatingStateDescriptor("total", int, aggregate=Sum())

    seen: list[Any]

    def __init__(self) -> None:
        self.seen = []

    def on_element(self, value: Any, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        letters, counts = context.get_list_state(self.LETTERS), context.get_map_state(self.COUNTS)
        total = context.get_aggregating_state(self.TOTAL)
        letters.append(value[1])
        counts[value[1]] = counts.get(value[1], 0) + 1
        total.add(1)
        if value[1] == "!":
            self.seen.append((list(letters), dict(counts), total.get()))
            return FIRE
        return CONTINUE

    def on_event_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    def on_processing_time(self, timestamp: int, window: Window, context: TriggerContext) -> TriggerResult:
        return CONTINUE

    @property
    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, context: TriggerContext) -> None:
        for descriptor in (self.LETTERS, self.COUNTS, self.TOTAL):
            context.merge_state(descriptor)

    def clear(self, window: Window, context: TriggerContext) -> None:
        context.get_list_state(self.LETTERS).clear()
        context.get_map_state(self.COUNTS).clear()
        context.get_aggregating_state(self.TOTAL).clear()


def harness(assigner: WindowAssigner, trigger: Trigger, **options: Any) -> OperatorHarness:
    def finish(stream: Any) -> Any:
        windowed = stream.key_by(lambda r: r[0]).window(assigner).trigger(trigger)
        return windowed.apply(lambda key, window, records: ["".join(records)])

    return OperatorHarness(finish, **options)


def test_a_trigger_may_have_lists_maps_and_accumulators() -> None:
    trigger = Remembering()
    with harness(GlobalWindows(), trigger) as h:
        h.process_batch(["ax", "bx", "ax", "a!"])
        assert h.values == ["axaxa!"]
        assert trigger.seen == [(["x", "x", "!"], {"x": 2, "!": 1}, 3)]


def test_it_is_in_snapshots() -> None:
    with harness(GlobalWindows(), Remembering()) as h:
        h.process_batch(["ax", "bx"])
        snapshot = h.snapshot()
    trigger = Remembering()
    with harness(GlobalWindows(), trigger, restored=snapshot) as h:
        h.process("a!")
        assert trigger.seen == [(["x", "!"], {"x": 1, "!": 1}, 2)]


def test_it_is_merged_where_windows_merge() -> None:
    trigger = Remembering()
    with harness(EventTimeSessionWindows(10), trigger) as h:
        h.process_batch(["ax", "ay", "bz"], [0, 15, 15])
        h.process("ax", 8)  # both sessions of a become one
        h.process("a!", 20)
        (letters, counts, total) = trigger.seen[-1]
        assert sorted(letters) == ["!", "x", "x", "y"]
        assert counts.keys() == {"!", "x", "y"}
        assert total == 4
        h.process_watermark(1000)
        kept = h.snapshot()
    with harness(EventTimeSessionWindows(10), trigger, restored=kept) as h:
        h.process("a!", 2000)
        assert trigger.seen[-1] == (["!"], {"!": 1}, 1)  # of the windows that are over nothing is left


@pytest.mark.parametrize("merge", ["merge_state", "merge_reducing_state"])
def test_a_value_cannot_be_merged(merge: str) -> None:
    class Wrong(Remembering):
        def on_merge(self, window: Window, context: TriggerContext) -> None:
            getattr(context, merge)(sw.ValueStateDescriptor("v"))

    with (
        harness(EventTimeSessionWindows(10), Wrong()) as h,
        pytest.raises(StateError, match="a ValueStateDescriptor does not say how values are merged"),
    ):
        h.process_batch(["ax", "ay"], [0, 5])


# ---- assigners -----------------------------------------------------------------------------------------------


class Growing(WindowAssigner):
    """The n-th window of a key is n * 10 ms long: an assigner that remembers, by key."""

    COUNT = sw.ValueStateDescriptor("count", int, default=0)

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        count = context.get_state(self.COUNT)
        count.update(count.value() + 1)
        return [TimeWindow(0, 10 * count.value())]

    def default_trigger(self) -> Trigger:
        return EventTimeTrigger()


class GrowingSessions(MergingWindowAssigner):
    """Sessions with gaps that grow with the records of the key."""

    GAPS = sw.ListStateDescriptor("gaps", int)

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        gaps = context.get_list_state(self.GAPS)
        gaps.append(10 * (len(gaps) + 1))
        return [TimeWindow(timestamp, timestamp + gaps[-1])]

    def default_trigger(self) -> Trigger:
        return EventTimeTrigger()


def results(assigner: WindowAssigner) -> Callable[..., OperatorHarness]:
    def build(stream: Any) -> Any:
        made = stream.key_by(lambda r: r[0]).window(assigner)
        return made.apply(lambda key, window, records: [(window.start, window.end, "".join(records))])

    return lambda **options: OperatorHarness(build, **options)


def test_an_assigner_may_have_state_of_the_key_which_is_in_snapshots() -> None:
    make = results(Growing())
    with make() as h:
        h.process_batch(["a1", "b1", "a2"], [1, 1, 1])
        snapshot = h.snapshot()
    with make(restored=snapshot) as h:
        h.process("a3", 1)
        h.process_watermark(1000)
        assert sorted(h.values) == [(0, 10, "a1"), (0, 10, "b1"), (0, 20, "a2"), (0, 30, "a3")]


def test_so_may_one_whose_windows_merge() -> None:
    with results(GrowingSessions())() as h:
        h.process_batch(["a1", "a2", "b1", "a3"], [0, 5, 0, 24])
        h.process_watermark(1000)
        assert sorted(h.values) == [(0, 10, "b1"), (0, 54, "a1a2a3")]


def test_a_context_of_a_test_has_no_state() -> None:
    class At(AssignerContext):
        def current_processing_time(self) -> int:
            return 0

    with pytest.raises(StateError, match="has no state: it is not an operator's"):
        At().get_state(Growing.COUNT)
