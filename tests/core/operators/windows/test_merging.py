"""Windows that merge: which contents, timers and windows are left, and assigners with ideas of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import FunctionContractError, UnstableKeyError
from sluiceway.functions import OutputTag
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    AssignerContext,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    MergingWindowAssigner,
    PurgingTrigger,
    TimeWindow,
    Trigger,
    TriggerResult,
    Window,
    WindowAssigner,
)

END = 2**63 - 1


def shown(key: Any, window: Any, elements: Iterable[str]) -> list[str]:
    return [f"{key} {window.start}-{window.end}: {' '.join(elements)}"]


def harness(
    assigner: WindowAssigner, finish: Callable[[Any], Any] = lambda w: w.process(shown), **options: Any
) -> OperatorHarness:
    """Keyed by the first character of a record."""
    return OperatorHarness(lambda stream: finish(stream.key_by(lambda r: r[0]).window(assigner)), **options)


def operator(h: OperatorHarness) -> Any:
    return h._subtasks[0].operators[0]


def timers(h: OperatorHarness) -> list[tuple[int, Any]]:
    return sorted((at, window) for at, _, window in operator(h).event_timers.timers())


def places(h: OperatorHarness) -> list[Any]:
    """Where the operator keeps anything in a snapshot, empty or not."""
    h.snapshot()
    tables = operator(h).backend._backend._tables
    kept = [n for name, table in tables.items() if name != "merging windows" for n in table._namespaces if n]
    assert set(operator(h)._windows) <= set(kept)
    return sorted(kept)


class Told(EventTimeTrigger):
    """The default trigger, but not by its type: the operator has to ask it."""


class Early(Told):
    """Fires at timers of its own before the end, and leaves them behind; sets none at the end."""

    def on_element(self, value: Any, timestamp: int, window: Window, context: Any) -> TriggerResult:
        context.register_event_time_timer(timestamp + 2)
        return TriggerResult.CONTINUE

    def on_event_time(self, timestamp: int, window: Window, context: Any) -> TriggerResult:
        return TriggerResult.FIRE

    def on_merge(self, window: Window, context: Any) -> None:
        context.register_event_time_timer(window.max_timestamp - 1)


def plain(windowed: Any) -> Any:
    return windowed


def told(windowed: Any) -> Any:
    return windowed.trigger(Told())


ASKED = [plain, told]


@pytest.mark.parametrize("ask", ASKED)
def test_windows_grow_at_both_ends(ask: Any) -> None:
    with harness(EventTimeSessionWindows(10), lambda w: ask(w).process(shown)) as h:
        h.process_batch(["a1", "a2", "a3"], [10, 15, 3])
        assert timers(h) == [(24, TimeWindow(3, 25)) if ask is told else (19, TimeWindow(10, 20))]
        assert places(h) == [(10, 20)]
        assert h.process_watermark(23) == []
        assert h.process_watermark(24) == ["a 3-25: a1 a2 a3"]
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("ask", ASKED)
def test_a_record_in_the_middle_changes_nothing_of_the_window(ask: Any) -> None:
    with harness(EventTimeSessionWindows(10), lambda w: ask(w).process(shown)) as h:
        h.process_batch(["a1", "a2", "a3", "a4"], [0, 8, 3, 0])
        assert h.process_watermark(END) == ["a 0-18: a1 a2 a3 a4"]


@pytest.mark.parametrize("ask", ASKED)
def test_timers_of_a_window_that_has_grown_are_moved(ask: Any) -> None:
    with harness(EventTimeSessionWindows(10), lambda w: ask(w).allowed_lateness(5).process(shown)) as h:
        h.process_batch(["a1", "a2"], [10, 15])
        if ask is told:
            assert timers(h) == [(24, TimeWindow(10, 25)), (29, TimeWindow(10, 25))]
            return
        # They are under the name of the place, and the one at the end goes on as the window does.
        place = TimeWindow(10, 20)
        assert timers(h) == [(24, place)]
        assert h.process_watermark(24) == ["a 10-25: a1 a2"]
        assert timers(h) == [(29, place)]
        assert h.process("a3", 18) == []
        assert timers(h) == [(27, place), (29, place)]
        assert h.process_watermark(28) == ["a 10-28: a1 a2 a3"]
        assert timers(h) == [(29, place), (32, place)]
        assert h.process_watermark(31) == []
        assert timers(h) == [(32, place)]
        assert h.process_watermark(32) == []
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("ask", ASKED)
def test_a_window_that_was_evaluated_may_grow_before_the_watermark_is_known_again(ask: Any) -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = ask(stream.key_by(lambda r: r[0]).window(EventTimeSessionWindows(10)))
        kept: sw.DataStream[Any] = windowed.allowed_lateness(20).process(shown).uid("sessions")
        return kept

    with OperatorHarness(add) as h:
        h.process("a1", 10)
        assert h.process_watermark(19) == ["a 10-20: a1"]
        taken = h.snapshot()
    with OperatorHarness(add, restored=taken) as h:
        assert h.process("a2", 15) == []
        assert h.process_watermark(24) == ["a 10-25: a1 a2"]
        assert h.process_watermark(END) == []
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("ask", ASKED)
def test_a_window_that_was_evaluated_takes_records_before_the_watermark_is_known_again(ask: Any) -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = ask(stream.key_by(lambda r: r[0]).window(EventTimeSessionWindows(10)))
        kept: sw.DataStream[Any] = windowed.allowed_lateness(20).process(shown).uid("sessions")
        return kept

    with OperatorHarness(add) as h:
        h.process("a1", 10)
        assert h.process_watermark(19) == ["a 10-20: a1"]
        taken = h.snapshot()
    with OperatorHarness(add, restored=taken) as h:
        assert h.process("a2", 10) == []
        assert h.process_watermark(24) == ["a 10-20: a1 a2"]
        assert h.process_watermark(END) == []
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("records", [[("a1", 10)], [("a1", 10), ("a2", 15)]])
def test_a_restore_sets_no_timer_that_the_trigger_has_not_set(records: list[tuple[str, int]]) -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = stream.key_by(lambda r: r[0]).window(EventTimeSessionWindows(10)).trigger(Early())
        kept: sw.DataStream[Any] = windowed.allowed_lateness(20).process(shown).uid("sessions")
        return kept

    with OperatorHarness(add) as h:
        for value, timestamp in records:
            h.process(value, timestamp)
        taken = h.snapshot()
        as_before = h.process_watermark(END)
    with OperatorHarness(add, restored=taken) as h:
        assert h.process_watermark(END) == as_before
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("ask", ASKED)
def test_a_record_bridges_windows_whose_contents_come_in_the_order_of_their_starts(ask: Any) -> None:
    with harness(EventTimeSessionWindows(10), lambda w: ask(w).process(shown)) as h:
        h.process_batch(["a1", "a2", "a3", "a4"], [40, 20, 0, 41])
        assert places(h) == [(0, 10), (20, 30), (40, 50)]
        h.process("a5", 10)  # touches both
        if ask is told:
            assert timers(h) == [(29, TimeWindow(0, 30)), (50, TimeWindow(40, 51))]
        assert places(h) == [(0, 10), (40, 50)]
        h.process("a6", 30)
        if ask is told:
            assert timers(h) == [(50, TimeWindow(0, 51))]
        assert places(h) == [(0, 10)]
        assert h.process_watermark(END) == ["a 0-51: a3 a2 a5 a1 a4 a6"]
        assert (timers(h), places(h)) == ([], [])


def test_windows_of_different_keys_have_nothing_to_do_with_one_another() -> None:
    with harness(EventTimeSessionWindows(10)) as h:
        h.process_batch(["a1", "b1", "a2", "b2"], [0, 0, 5, 20])
        assert places(h) == [(0, 10), (20, 30)]
        assert h.process_watermark(9) == ["b 0-10: b1"]
        assert places(h) == [(0, 10), (20, 30)]
        assert h.process_watermark(END) == ["a 0-15: a1 a2", "b 20-30: b2"]
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("ask", ASKED)
def test_late_records_and_merging(ask: Any) -> None:
    late: OutputTag[str] = OutputTag("late")
    with harness(
        EventTimeSessionWindows(10),
        lambda w: ask(w).allowed_lateness(5).side_output_late_data(late).process(shown),
    ) as h:
        h.process("a1", 0)
        assert h.process_watermark(12) == ["a 0-10: a1"]
        # Late itself, but its window touches one that is kept: that has been evaluated, and grows.
        assert h.process("a2", -3) == ["a -3-10: a1 a2"]
        assert h.process("a3", 2) == ["a -3-12: a1 a2 a3"]
        assert h.process("a4", 8) == []
        if ask is told:
            assert timers(h) == [(17, TimeWindow(-3, 18)), (22, TimeWindow(-3, 18))]
        assert h.process("c1", 3) == ["c 3-13: c1"]
        assert h.process_watermark(17) == ["a -3-18: a1 a2 a3 a4"]
        assert h.process("a5", -8) == ["a -8-18: a1 a2 a3 a4 a5"]
        assert h.process("b1", 3) == []
        assert h.side_records(late) == [("b1", 3)]
        assert h.process_watermark(22) == []
        assert h.process("a6", 7) == []
        assert h.side_output(late) == ["b1", "a6"]
        assert (timers(h), places(h)) == ([], [])


def test_merged_timers_are_gone_and_stale_ones_do_nothing() -> None:
    class Careless(EventTimeTrigger):
        def clear(self, window: Window, context: Any) -> None:
            """Leaves its timers."""

    with harness(
        EventTimeSessionWindows(10), lambda w: w.trigger(Careless()).allowed_lateness(3).process(shown)
    ) as h:
        h.process_batch(["a1", "a2"], [0, 5])
        assert timers(h) == [(9, TimeWindow(0, 10)), (14, TimeWindow(0, 15)), (17, TimeWindow(0, 15))]
        assert h.process_watermark(13) == []
        assert h.process_watermark(END) == ["a 0-15: a1 a2"]
        assert (timers(h), places(h)) == ([], [])


def test_purged_windows_go_on_without_their_contents() -> None:
    with harness(
        EventTimeSessionWindows(10), lambda w: w.trigger(PurgingTrigger(CountTrigger(2))).process(shown)
    ) as h:
        assert h.process_batch(["a1", "a2", "a3"], [0, 5, 20]) == ["a 0-15: a1 a2"]
        assert h.process("a4", 12) == ["a 0-30: a3 a4"]
        assert h.process_watermark(END) == []
        assert (timers(h), places(h)) == ([], [])


def test_sessions_survive_a_restore_at_another_parallelism() -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return stream.key_by(lambda r: r[0]).window(EventTimeSessionWindows(10)).process(shown).uid("sessions")

    with OperatorHarness(add, parallelism=2) as h:
        h.process_batch(["a1", "b1", "c1", "d1", "a2"], [0, 1, 2, 3, 20])
        taken = h.snapshot()
    with OperatorHarness(add, parallelism=3, restored=taken) as h:
        h.process_batch(["a3", "c2"], [10, 5])
        assert sorted(h.process_watermark(END)) == [
            "a 0-30: a1 a2 a3",
            "b 1-11: b1",
            "c 2-15: c1 c2",
            "d 3-13: d1",
        ]


def test_an_unhashable_key_is_named() -> None:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return stream.key_by(lambda r: [r]).window(EventTimeSessionWindows(10)).process(shown)

    with OperatorHarness(add) as h, pytest.raises(UnstableKeyError, match="list"):
        h.process("a1", 1)


# ---- assigners of one's own --------------------------------------------------------------------------------


class InSameTens(MergingWindowAssigner):
    """A window per record; those that begin in the same ten become one, two or more tens at the same time."""

    def assign(self, value: Any, timestamp: int, context: AssignerContext) -> Sequence[Window]:
        return [TimeWindow(timestamp, timestamp + 3)]

    def default_trigger(self) -> Trigger:
        return EventTimeTrigger()

    def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
        tens = sorted({window.start // 10 for window in windows})
        groups = [[window for window in windows if window.start // 10 == ten] for ten in tens]
        covers = [TimeWindow(min(w.start for w in group), max(w.end for w in group)) for group in groups]
        return [(cover, group) for cover, group in zip(covers, groups, strict=True) if len(group) > 1]


@pytest.mark.parametrize("ask", ASKED)
def test_an_assigner_may_merge_in_another_way(ask: Any) -> None:
    with harness(InSameTens(), lambda w: ask(w).process(shown)) as h:
        h.process_batch(["a1", "a2", "a3", "a4", "a4"], [1, 9, 10, 18, 18])
        if ask is told:
            assert timers(h) == [(11, TimeWindow(1, 12)), (20, TimeWindow(10, 21))]
        assert h.process_watermark(END) == ["a 1-12: a1 a2", "a 10-21: a3 a4 a4"]
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("lateness", [0, 5])
@pytest.mark.parametrize("ask", ASKED)
def test_windows_that_merge_without_the_one_of_the_record_are_evaluated_at_their_end(
    ask: Any, lateness: int
) -> None:
    class AllButTheLast(InSameTens):
        def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
            *olds, _ = sorted(windows)
            return [(TimeWindow(olds[0].start, olds[-1].end), olds)] if len(olds) > 1 else []

    with harness(AllButTheLast(), lambda w: ask(w).allowed_lateness(lateness).process(shown)) as h:
        h.process_batch(["a1", "a2", "a3"], [0, 20, 40])
        assert h.process_watermark(21) == []
        assert h.process_watermark(22) == ["a 0-23: a1 a2"]
        assert h.process_watermark(42) == ["a 40-43: a3"]
        h.process_watermark(END)
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("lateness", [0, 5])
@pytest.mark.parametrize("ask", ASKED)
def test_windows_that_end_earlier_when_they_merge_are_evaluated_then(ask: Any, lateness: int) -> None:
    class UpToTheLast(InSameTens):
        def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
            starts = [window.start for window in windows]
            return [(TimeWindow(min(starts), max(starts) + 1), windows)] if len(windows) > 1 else []

    with harness(UpToTheLast(), lambda w: ask(w).allowed_lateness(lateness).process(shown)) as h:
        h.process_batch(["a1", "a2"], [10, 11])
        assert h.process_watermark(10) == []
        assert h.process_watermark(11) == ["a 10-12: a1 a2"]
        assert h.process_watermark(END) == []
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("ask", ASKED)
def test_a_late_window_that_an_assigner_leaves_alone_is_evaluated_once(ask: Any) -> None:
    with harness(InSameTens(), lambda w: ask(w).allowed_lateness(20).process(shown)) as h:
        h.process("a1", 30)
        h.process_watermark(20)
        assert h.process("a2", 3) == ["a 3-6: a2"]
        assert h.process_watermark(21) == []
        assert h.process_watermark(END) == ["a 30-33: a1"]
        assert (timers(h), places(h)) == ([], [])


@pytest.mark.parametrize("ask", ASKED)
def test_a_window_that_is_over_when_it_has_merged_takes_nothing(ask: Any) -> None:
    class AllOfOne(InSameTens):
        def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
            return []

    with harness(AllOfOne(), lambda w: ask(w).process(shown)) as h:
        h.process_watermark(20)
        h.process_batch(["a1", "a2"], [30, 3])
        assert len(operator(h)._sets["a"]) == 1
        assert h.metrics().counter("numLateRecordsDropped").value == 1
        assert h.process_watermark(END) == ["a 30-33: a1"]
        assert operator(h)._sets == {}
        assert (timers(h), places(h)) == ([], [])


def test_the_trigger_is_told_only_of_windows_that_change() -> None:
    told: list[Any] = []

    class Noting(EventTimeTrigger):
        def on_merge(self, window: Window, context: Any) -> None:
            told.append(window)
            super().on_merge(window, context)

    with harness(InSameTens(), lambda w: w.trigger(Noting()).process(shown)) as h:
        h.process_batch(["a1", "a2", "a3", "b1"], [1, 7, 3, 1])
        assert told == [TimeWindow(1, 10)]


@pytest.mark.parametrize("ask", ASKED)
def test_merging_may_make_a_window_end_earlier_that_is_not_over_then(ask: Any) -> None:
    class Trimmed(InSameTens):
        def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
            return [(TimeWindow(cover.start, cover.start + 2), parts) for cover, parts in super().merge(windows)]

    with harness(Trimmed(), lambda w: ask(w).process(shown)) as h:
        h.process_batch(["a1", "a2"], [1, 2])
        assert h.process_watermark(1) == []
        assert h.process_watermark(2) == ["a 1-3: a1 a2"]
        assert h.process_watermark(END) == []
        assert (timers(h), places(h)) == ([], [])


def test_merging_must_not_make_a_window_end_earlier() -> None:
    class Shrinking(InSameTens):
        def merge(self, windows: Sequence[TimeWindow]) -> Sequence[tuple[TimeWindow, Sequence[TimeWindow]]]:
            return [(TimeWindow(0, 1), windows)] if len(windows) > 1 else []

    with harness(Shrinking()) as h:
        h.process_watermark(4)
        h.process("a1", 5)
        message = (
            r"Shrinking of step .* merged windows of key 'a' to .*end=1.*, which is over already \(watermark 4\)"
        )
        with pytest.raises(FunctionContractError, match=message):
            h.process("a2", 6)
