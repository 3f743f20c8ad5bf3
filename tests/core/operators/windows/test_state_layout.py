"""Window steps that go on from a snapshot after their trigger, lateness, functions or windows were changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import StateError
from sluiceway.functions import AggregateFunction
from sluiceway.operators.windows import sliding
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.testing import EOF, OperatorHarness, PipelineHarness, TestSource
from sluiceway.windows import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

END = 2**63 - 1
TUMBLING = TumblingEventTimeWindows.of(10)
SLIDING = SlidingEventTimeWindows.of(10, 5)
SESSIONS = EventTimeSessionWindows.with_gap(5)


class Joined(AggregateFunction[Any, list[str], str]):
    """The records in alphabetical order; spoils what it is given to merge, as it may."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: Any, accumulator: list[str]) -> list[str]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[str]) -> str:
        return " ".join(sorted(accumulator))

    def merge(self, accumulator1: list[str], accumulator2: list[str]) -> list[str]:
        accumulator1.extend(accumulator2)
        accumulator2.clear()
        return accumulator1


class Asked(EventTimeTrigger):
    """Does what the default trigger does; it is asked, and not taken for that one."""


class Unmergeable(Joined):
    """Without a merge(), which it may have had before."""

    merge = AggregateFunction.merge


Finish = Callable[[Any], Any]


def sorted_words(a: str, b: str) -> str:
    return " ".join(sorted([*a.split(), *b.split()]))


def told(key: str, window: Any, elements: list[str]) -> list[str]:
    return [f"{key} {window.start} {element}" for element in elements]


def of(windows: Any, finish: Finish) -> Finish:
    return lambda stream: finish(stream.key_by(lambda r: r[0]).window(windows)).uid("w").name("windows")


def joined(windows: Any, **settings: Any) -> Finish:
    return of(windows, lambda w: with_settings(w, **settings).aggregate(Joined()))


def reduced(windows: Any, **settings: Any) -> Finish:
    return of(windows, lambda w: with_settings(w, **settings).reduce(sorted_words))


def listed(windows: Any, **settings: Any) -> Finish:
    return of(windows, lambda w: with_settings(w, **settings).process(lambda key, window, elements: elements))


def with_settings(w: Any, trigger: Any = None, lateness: int = 0, evictor: Any = None) -> Any:
    w = w if trigger is None else w.trigger(trigger)
    w = w if evictor is None else w.evictor(evictor)
    return w.allowed_lateness(lateness) if lateness else w


EARLY = [("a1", 1), ("a2", 8), ("b1", 3), ("a3", 12), ("b2", 14)]
LATER = [("a4", 9), ("a5", 13), ("c1", 14), ("b3", 21)]


def feed(h: OperatorHarness, records: list[tuple[str, int]]) -> None:
    for value, timestamp in records:
        h.process(value, timestamp)


def before(program: Finish, watermark: int = 2, records: list[tuple[str, int]] = EARLY) -> JobSnapshot:
    with OperatorHarness(program) as h:
        h.process_watermark(0)
        feed(h, records)
        h.process_watermark(watermark)
        return h.snapshot()


def after(program: Finish, taken: JobSnapshot, watermark: int = 2, parallelism: int = 1) -> list[Any]:
    """What comes out after a restore."""
    with OperatorHarness(program, restored=taken, parallelism=parallelism) as h:
        h.process_watermark(watermark)
        feed(h, LATER)
        h.process_watermark(END)
        return sorted(h.records)


def without_a_break(program: Finish, watermark: int = 2) -> list[Any]:
    """What comes out behind the same watermark where nothing is restored."""
    with OperatorHarness(program) as h:
        h.process_watermark(0)
        feed(h, EARLY)
        h.process_watermark(watermark)
        seen = len(h.records)
        feed(h, LATER)
        h.process_watermark(END)
        return sorted(h.records[seen:])


# ---- what goes on ----------------------------------------------------------------------------------------------

NEVER = NeverTrigger()

SAME = [
    (joined(SLIDING), joined(SLIDING, lateness=3)),
    (joined(SLIDING), joined(SLIDING, trigger=Asked())),
    (joined(SLIDING), joined(SLIDING, trigger=Asked(), lateness=3)),
    (reduced(SLIDING), reduced(SLIDING, trigger=Asked())),
    (joined(TUMBLING), joined(TUMBLING, lateness=3)),
    (joined(TUMBLING), joined(TUMBLING, trigger=Asked())),
    (joined(TUMBLING), joined(TUMBLING, trigger=Asked(), lateness=3)),
    (joined(TUMBLING, trigger=Asked()), joined(TUMBLING)),
    (joined(TUMBLING, trigger=Asked()), joined(TUMBLING, lateness=3)),
    (joined(TUMBLING, trigger=Asked(), lateness=3), joined(TUMBLING)),
    (reduced(TUMBLING, trigger=Asked()), reduced(TUMBLING)),
    (joined(SLIDING, trigger=Asked()), joined(SLIDING, lateness=3)),
    (joined(SLIDING, lateness=3), joined(SLIDING, trigger=Asked())),
    (joined(SLIDING, trigger=Asked()), joined(SLIDING)),
    (joined(SLIDING, lateness=3), joined(SLIDING)),
    (reduced(SLIDING, trigger=Asked(), lateness=3), reduced(SLIDING)),
    (joined(SLIDING, trigger=Asked()), of(SLIDING, lambda w: w.aggregate(Joined(), told))),
    (listed(SLIDING), listed(SLIDING, trigger=Asked())),
    (listed(SLIDING, trigger=Asked(), lateness=3), listed(SLIDING)),
    (joined(SESSIONS), joined(SESSIONS, trigger=Asked())),
    (joined(SESSIONS), joined(SESSIONS, lateness=3)),
    (joined(SESSIONS), joined(SESSIONS, trigger=Asked(), lateness=3)),
    (joined(SESSIONS, trigger=Asked()), joined(SESSIONS)),
    (joined(SESSIONS, trigger=Asked(), lateness=3), joined(SESSIONS, lateness=4)),
    (joined(SESSIONS, lateness=3), joined(SESSIONS)),
    (joined(SESSIONS, trigger=Asked(), lateness=3), joined(SESSIONS)),
    # A trigger that sets no timer: that of the cleanup is the only one of a window that is open.
    (joined(TUMBLING, trigger=NEVER, lateness=3), joined(TUMBLING)),
    (joined(TUMBLING, trigger=NEVER, lateness=3), joined(TUMBLING, lateness=3)),
    (listed(TUMBLING, trigger=NEVER, lateness=3), listed(TUMBLING)),
    (joined(SLIDING, trigger=NEVER, lateness=3), joined(SLIDING)),
    (joined(SLIDING, trigger=NEVER, lateness=3), joined(SLIDING, lateness=3)),
    (joined(SESSIONS, trigger=NEVER, lateness=3), joined(SESSIONS)),
    (joined(SESSIONS, trigger=NEVER, lateness=3), joined(SESSIONS, lateness=3)),
]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize(("was", "now"), SAME)
def test_open_windows_go_on_whatever_operator_runs_them(was: Finish, now: Finish, parallelism: int) -> None:
    assert after(now, before(was), parallelism=parallelism) == without_a_break(now)
    # The way of a snapshot through both of them and a third time is no longer one.
    with OperatorHarness(now, restored=before(was)) as h:
        again = h.snapshot()
    assert after(now, again) == without_a_break(now)


def test_a_sliding_window_is_given_a_trigger_in_a_pipeline() -> None:
    def flow(change: Callable[[Any], Any], script: list[Any]) -> tuple[sw.Pipeline, Any]:
        pipeline = sw.Pipeline("trigger")
        lines = pipeline.source(TestSource(script)).uid("lines")
        stamped = lines.assign_timestamps_and_watermarks(
            sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda r: r[1])
        ).uid("stamped")
        windows: Any = stamped.key_by(lambda r: r[0][0]).window(SLIDING)
        return pipeline, change(windows).aggregate(First()).uid("windows").collect()

    class First(Joined):
        def add(self, value: Any, accumulator: list[str]) -> list[str]:
            return super().add(value[0], accumulator)

    pipeline, results = flow(lambda w: w, list(EARLY))
    with PipelineHarness(pipeline) as h:
        h.advance(1000)
        assert sorted(results) == ["a1", "a1 a2", "b1", "b1"]
        taken = h.snapshot()
    pipeline, results = flow(lambda w: w.trigger(Asked()).allowed_lateness(3), [*EARLY, EOF])
    with PipelineHarness(pipeline, restored=taken) as h:
        h.run_to_end()
    assert sorted(results) == ["a2 a3", "a3", "b2", "b2"]


def test_windows_that_were_evaluated_are_not_evaluated_again_after_lateness_was_added_or_taken_away() -> None:
    for was, now in [
        (joined(TUMBLING, lateness=50), joined(TUMBLING, trigger=Asked(), lateness=50)),
        (joined(TUMBLING, trigger=Asked(), lateness=50), joined(TUMBLING, lateness=50)),
        (joined(SLIDING), joined(SLIDING, lateness=50)),
        (joined(SLIDING, lateness=50), joined(SLIDING)),
        (joined(SLIDING, lateness=50), joined(SLIDING, lateness=60)),
        (joined(SESSIONS, lateness=50), joined(SESSIONS, trigger=Asked(), lateness=50)),
        (joined(SESSIONS, trigger=Asked(), lateness=50), joined(SESSIONS, lateness=50)),
        (joined(SESSIONS, trigger=Asked(), lateness=50), joined(SESSIONS)),
        (joined(SESSIONS, lateness=50), joined(SESSIONS)),
        (joined(TUMBLING, lateness=50), joined(TUMBLING)),
        *(
            (joined(windows, trigger=trigger, lateness=50), joined(windows, trigger=Asked()))
            for windows in (TUMBLING, SLIDING, SESSIONS)
            for trigger in (None, Asked())
        ),
        (joined(TUMBLING, trigger=NEVER, lateness=50), joined(TUMBLING)),
        (joined(SLIDING, trigger=NEVER, lateness=50), joined(SLIDING, lateness=50)),
        (joined(SESSIONS, trigger=NEVER, lateness=50), joined(SESSIONS)),
    ]:
        with OperatorHarness(now, restored=before(was, watermark=30)) as h:
            assert h.process_watermark(END) == []
        # Neither where a snapshot was taken before the watermark was back.
        again = before_the_watermark(was, before(was, watermark=30))
        with OperatorHarness(now, restored=again) as h:
            assert h.process_watermark(END) == []


def before_the_watermark(program: Finish, taken: JobSnapshot) -> JobSnapshot:
    with OperatorHarness(program, restored=taken) as h:
        return h.snapshot()


def test_a_window_that_is_over_by_the_lateness_of_now_is_dropped() -> None:
    generally = listed(TUMBLING)
    with OperatorHarness(generally, restored=before(listed(TUMBLING, lateness=50), watermark=30)) as h:
        assert rows_of(h) == {}
        assert h.process_watermark(END) == []
    with OperatorHarness(joined(TUMBLING), restored=before(joined(TUMBLING, lateness=50), watermark=30)) as h:
        assert rows_of(h) == {}
    for windows in (TUMBLING, SLIDING, SESSIONS):
        for trigger in (Asked(), CountTrigger.of(3)):  # the second has state
            taken = before(joined(windows, trigger=trigger, lateness=50), watermark=30)
            with OperatorHarness(joined(windows, trigger=trigger), restored=taken) as h:
                assert rows_of(h) == {}


@pytest.mark.parametrize("trigger", [None, Asked()])
@pytest.mark.parametrize("lateness", [0, 5])
def test_a_session_that_is_over_by_the_lateness_of_now_takes_no_record(trigger: Any, lateness: int) -> None:
    """The windows of a are [1, 6) and [8, 17)."""
    taken = before(joined(SESSIONS, trigger=trigger, lateness=50), watermark=30)
    now = joined(SESSIONS, lateness=lateness)
    with OperatorHarness(now, restored=taken) as h:
        assert h.process("a9", 9) == []
        with_kept = ["a2 a3 a9"] if lateness else ["a9"]
        assert h.process_watermark(30) == with_kept  # a restore forgets the watermark, by which it is late
    with OperatorHarness(now, restored=taken) as h:
        assert h.process_watermark(30) == []
        assert rows_of(h) == {}
        assert h.process("a9", 9) == []
        assert h.process_watermark(END) == []
        assert h.metrics().counter("numLateRecordsDropped").value == 1


def test_a_late_record_is_added_to_what_was_kept_for_it() -> None:
    for was, now in [
        (joined(TUMBLING, lateness=50), joined(TUMBLING, trigger=Asked(), lateness=50)),
        (joined(TUMBLING, trigger=Asked(), lateness=50), joined(TUMBLING, lateness=50)),
    ]:
        with OperatorHarness(now, restored=before(was, watermark=30)) as h:
            assert h.process("a9", 2) == []  # a restore forgets the watermark
            assert h.process_watermark(30) == ["a1 a2 a9"]


def test_windows_are_gone_from_the_state_when_they_are_over() -> None:
    for was, now in SAME:
        with OperatorHarness(now, restored=before(was)) as h:
            h.process_watermark(END)
            assert rows_of(h) == {}


def test_a_trigger_begins_with_what_the_windows_have_and_without_memory() -> None:
    taken = before(joined(TUMBLING))
    with OperatorHarness(joined(TUMBLING, trigger=CountTrigger.of(2)), restored=taken) as h:
        assert h.process("a4", 9) == []
        assert h.process("a5", 9) == ["a1 a2 a4 a5"]
    with OperatorHarness(joined(TUMBLING, trigger=ContinuousEventTimeTrigger.of(4)), restored=taken) as h:
        assert h.process_watermark(END) == ["a1 a2", "b1", "a3", "b2"]


def test_slices_become_windows_of_another_size() -> None:
    taken = before(joined(SLIDING), watermark=9)
    for windows in (TumblingEventTimeWindows.of(20), SlidingEventTimeWindows.of(20, 20)):
        # The slice from 0 to 5 is gone already.
        results = [value for value, _ in after(joined(windows), taken, watermark=9)]
        assert results == ["a2 a3 a4 a5", "b2", "b3", "c1"]


@pytest.mark.parametrize("windows", [TumblingProcessingTimeWindows.of(10), SlidingProcessingTimeWindows.of(10, 5)])
@pytest.mark.parametrize("goes_on", [True, False])
def test_the_wall_clock(windows: Any, goes_on: bool) -> None:
    class Asks(ProcessingTimeTrigger):
        """Is not taken for the default trigger."""

    def results(was: Finish, now: Finish) -> list[Any]:
        with OperatorHarness(was) as h:
            h.advance(7)
            h.process("a1")
            taken = h.snapshot()
        with OperatorHarness(now, restored=taken, start_ms=8) as h:
            if goes_on:
                h.process("a2")
            seen = h.advance(3)
            h.finish()
            return [seen, *h.values]

    in_slices, one_by_one = joined(windows), joined(windows, trigger=Asks())
    expected = results(in_slices, in_slices)
    assert results(in_slices, one_by_one) == expected
    assert results(one_by_one, one_by_one) == expected
    assert results(one_by_one, in_slices) == expected


@pytest.mark.parametrize("lateness", [0, 3])
def test_a_session_that_has_grown_is_given_a_trigger(lateness: int) -> None:
    taken = before(joined(SESSIONS), records=[("a1", 8), ("a2", 12)])
    with OperatorHarness(joined(SESSIONS, trigger=Asked(), lateness=lateness), restored=taken) as h:
        h.process_watermark(END)
        assert h.records == [("a1 a2", 16)]
        assert rows_of(h) == {}


def test_tumbling_windows_are_among_those_that_slide() -> None:
    results = after(joined(SLIDING), before(joined(TUMBLING)))
    assert ("a1 a2 a4", 9) in results
    assert ("a3 a5", 19) in results


@pytest.mark.parametrize("turns", range(9))
def test_a_snapshot_within_a_burst_of_inherited_windows(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding, "BURST", 2)
    early, late = [(f"{key}1", 8) for key in "abcde"], [(f"{key}2", 9) for key in "dcgh"]
    with OperatorHarness(joined(SLIDING), restored=before(joined(SLIDING, trigger=Asked()), records=early)) as h:
        feed(h, late)
        operator: Any = h._subtasks[0].operators[0]
        operator.control(sw.elements.Watermark(END))
        for _ in range(turns):
            if operator.has_work:
                operator.work()
        out, taken = list(h.records), h.snapshot()
    with OperatorHarness(joined(SLIDING), restored=taken) as h:
        h.process_watermark(END)
        out += h.records
        assert h._subtasks[0].operators[0]._inherited == {}  # type: ignore[attr-defined]
    expected = ["a1", "b1", "c1 c2", "d1 d2", "e1", "g2", "h2"]
    assert sorted(out) == sorted((value, end) for value in expected for end in (9, 14))


# ---- what is refused -------------------------------------------------------------------------------------------

BORDERS = "they have borders at other times than those of "


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        (
            joined(SLIDING),
            joined(SLIDING, evictor=CountEvictor.of(3)),
            "they keep an accumulator each, as aggregate() does, and now they would keep all their records with "
            "timestamps, as an evictor wants them",
        ),
        (
            joined(TUMBLING),
            listed(TUMBLING),
            "they keep an accumulator each, as aggregate() does, and now they would keep all their records, as "
            "process() and apply() do",
        ),
        (
            listed(TUMBLING, evictor=CountEvictor.of(3)),
            reduced(TUMBLING),
            "they keep all their records with timestamps, as an evictor wants them, and now they would keep one "
            "record each, as reduce() makes it",
        ),
        (reduced(TUMBLING), joined(TUMBLING), "they keep one record each, as reduce() makes it, and now"),
        (joined(TUMBLING), joined(TumblingEventTimeWindows.of(5)), BORDERS + "TumblingEventTimeWindows(5ms)"),
        (joined(TUMBLING), joined(TumblingEventTimeWindows.of(10, 3)), BORDERS + "TumblingEventTimeWindows(10ms"),
        (
            joined(SLIDING),
            joined(SlidingEventTimeWindows.of(10, 2)),
            BORDERS + "SlidingEventTimeWindows(10ms, 2ms",
        ),
        (joined(SLIDING), joined(SlidingEventTimeWindows.of(9, 3), trigger=Asked()), BORDERS + "Sliding"),
        (joined(SLIDING), joined(TumblingEventTimeWindows.of(12)), BORDERS + "TumblingEventTimeWindows(12ms)"),
        (joined(SLIDING, trigger=Asked()), joined(SlidingEventTimeWindows.of(15, 5)), BORDERS + "Sliding"),
        (
            joined(SLIDING),
            of(SLIDING, lambda w: w.aggregate(Unmergeable())),
            "they are kept in slices to be merged, and Unmergeable has no merge()",
        ),
        (
            joined(TUMBLING),
            joined(SlidingEventTimeWindows.of(20, 5)),
            BORDERS + "SlidingEventTimeWindows(20ms, 5ms)",
        ),
        (
            joined(GlobalWindows.create(), trigger=CountTrigger.of(9)),
            joined(TUMBLING),
            BORDERS + "TumblingEventTimeWindows(10ms)",
        ),
        (
            joined(GlobalWindows.create(), trigger=CountTrigger.of(9)),
            joined(SLIDING),
            BORDERS + "SlidingEventTimeWindows(10ms, 5ms)",
        ),
        (joined(SESSIONS), joined(TUMBLING), "they merge, unlike those of TumblingEventTimeWindows(10ms)"),
        (joined(TUMBLING), joined(SESSIONS), "they do not merge, unlike those of EventTimeSessionWindows"),
        (joined(SLIDING), joined(SESSIONS), "they do not merge, unlike those of EventTimeSessionWindows"),
        (
            joined(SLIDING),
            joined(GlobalWindows.create(), trigger=CountTrigger.of(1)),
            "they share slices, which cannot be made into windows of GlobalWindows()",
        ),
    ],
)
def test_what_cannot_go_on_is_refused(was: Finish, now: Finish, why: str) -> None:
    taken = before(was)
    with pytest.raises(StateError) as failed:
        OperatorHarness(now, restored=taken)
    said = str(failed.value)
    assert why in said
    assert said.startswith("step 'windows' cannot restore the windows that are open in its snapshot: they ")
    assert said.endswith(
        ". Undo what was changed in the step until these windows have ended, or give it another uid, so that it "
        "begins without them"
    )


def test_count_windows_that_begin_to_slide_are_refused() -> None:
    def counted(*sizes: int) -> Finish:
        return lambda stream: stream.key_by(lambda r: r[0]).count_window(*sizes).reduce(max).uid("w")

    taken = before(counted(3))
    with pytest.raises(StateError, match="now they would keep all their records with timestamps"):
        OperatorHarness(counted(3, 1), restored=taken)


def test_nothing_is_refused_where_no_window_is_open() -> None:
    with OperatorHarness(joined(SLIDING)) as h:
        h.process("a1", 1)
        h.process_watermark(100)
        taken = h.snapshot()
    for now in (
        joined(TumblingEventTimeWindows.of(7)),
        listed(SESSIONS),
        joined(SLIDING, evictor=CountEvictor.of(1)),
    ):
        with OperatorHarness(now, restored=taken) as h:
            h.process("b1", 1)
            assert set(h.process_watermark(END)) == {"b1"}


def rows_of(h: OperatorHarness) -> dict[int, bytes]:
    """What is left in the keyed state."""
    return {
        group: rows
        for taken in h.snapshot().operators
        if taken.keyed
        for group, rows in taken.keyed.groups.items()
    }
