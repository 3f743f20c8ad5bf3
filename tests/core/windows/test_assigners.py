"""Assigners: which windows a record belongs to, and what they refuse."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import ConfigurationError, FunctionContractError
from sluiceway.windows import (
    GLOBAL_WINDOW,
    AssignerContext,
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    ProcessingTimeTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Window,
    WindowAssigner,
)

WRONG: Any = [10.5, "5s", SessionWindowTimeGapExtractor]


class At(AssignerContext):
    def __init__(self, now: int) -> None:
        self.now = now

    def current_processing_time(self) -> int:
        return self.now


def assigned(assigner: WindowAssigner, timestamp: int, now: int = 0, value: Any = None) -> list[Window]:
    return list(assigner.assign(value, timestamp, At(now)))


@pytest.mark.parametrize(
    ("size", "offset", "timestamp", "start"),
    [
        (10, 0, 0, 0),
        (10, 0, 9, 0),
        (10, 0, 10, 10),
        (10, 0, -1, -10),
        (10, 3, 2, -7),
        (10, 3, 3, 3),
        (10, -3, 6, -3),
        (10, -3, 7, 7),
    ],
)
def test_tumbling(size: int, offset: int, timestamp: int, start: int) -> None:
    window = TimeWindow(start, start + size)
    assert assigned(TumblingEventTimeWindows(size, offset), timestamp) == [window]
    assert assigned(TumblingProcessingTimeWindows.of(size, offset), 12345, now=timestamp) == [window]


@given(
    size=st.integers(1, 40),
    slide=st.integers(1, 40),
    data=st.data(),
    timestamp=st.integers(-100, 100),
)
def test_sliding_are_all_that_hold_the_time_latest_first(
    size: int, slide: int, data: st.DataObject, timestamp: int
) -> None:
    offset = data.draw(st.integers(1 - slide, slide - 1))
    expected = [
        TimeWindow(start, start + size)
        for start in range(timestamp, timestamp - size, -1)
        if (start - offset) % slide == 0
    ]
    assert assigned(SlidingEventTimeWindows(size, slide, offset), timestamp) == expected
    assert assigned(SlidingProcessingTimeWindows.of(size, slide, offset), 0, now=timestamp) == expected


def test_durations_are_timedeltas_ms_or_texts() -> None:
    for ten in (10_000, "10s", timedelta(seconds=10)):
        assert TumblingEventTimeWindows(ten).size_ms == 10_000
    days = TumblingEventTimeWindows("1d", "-8h")
    assert (days.size_ms, days.offset_ms) == (86_400_000, -28_800_000)
    assert TumblingEventTimeWindows("1d", timedelta(hours=-8)).offset_ms == -28_800_000
    assert TumblingEventTimeWindows("1d", -28_800_000).offset_ms == -28_800_000


def test_sessions_reach_from_the_record_to_the_gap() -> None:
    assert assigned(EventTimeSessionWindows.with_gap("5s"), 100) == [TimeWindow(100, 5100)]
    assert assigned(ProcessingTimeSessionWindows.with_gap(5), 100, now=7) == [TimeWindow(7, 12)]
    dynamic = EventTimeSessionWindows.with_dynamic_gap(lambda record: record["gap"])
    for gap in (2000, "2s", timedelta(seconds=2)):
        assert assigned(dynamic, 100, value={"gap": gap}) == [TimeWindow(100, 2100)]

    class Gap(SessionWindowTimeGapExtractor):
        def extract(self, element: Any) -> int:
            return int(element)

    assert assigned(ProcessingTimeSessionWindows.with_dynamic_gap(Gap()), 0, now=7, value="3") == [
        TimeWindow(7, 10)
    ]


def test_sessions_that_overlap_or_touch_become_one() -> None:
    windows = [TimeWindow(20, 25), TimeWindow(0, 10), TimeWindow(10, 12), TimeWindow(30, 31), TimeWindow(24, 26)]
    assert EventTimeSessionWindows.with_gap(1).merge(windows) == [
        (TimeWindow(0, 12), [TimeWindow(0, 10), TimeWindow(10, 12)]),
        (TimeWindow(20, 26), [TimeWindow(20, 25), TimeWindow(24, 26)]),
    ]


@given(st.sets(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=8))
def test_merging_equals_painting_the_line(spans: set[tuple[int, int]]) -> None:
    windows = sorted({TimeWindow(start, start + length) for start, length in spans})
    merged = dict(EventTimeSessionWindows.with_gap(1).merge(windows))
    left = [w for w in windows if not any(w in parts for parts in merged.values())]
    # Points and the gaps between them: windows touch where the end of one is the start of the other.
    painted = {point for w in windows for point in range(2 * w.start, 2 * w.end + 1)}
    for cover in [*merged, *left]:
        assert {2 * cover.start - 1, 2 * cover.end + 1} & painted == set()
        assert set(range(2 * cover.start, 2 * cover.end + 1)) <= painted
    assert sorted(w for parts in merged.values() for w in parts) == sorted(set(windows) - set(left))
    assert all(len(parts) > 1 for parts in merged.values())


def test_the_global_window_is_the_same_for_all() -> None:
    assert assigned(GlobalWindows(), 5) == [GLOBAL_WINDOW]
    assert isinstance(GlobalWindows.create().default_trigger(), NeverTrigger)
    assert isinstance(GlobalWindows.create_with_end_of_stream_trigger().default_trigger(), EventTimeTrigger)


def test_each_has_the_trigger_of_its_time() -> None:
    for event in (TumblingEventTimeWindows(1), SlidingEventTimeWindows(2, 1), EventTimeSessionWindows(1)):
        assert event.event_time
        assert isinstance(event.default_trigger(), EventTimeTrigger)
    for processing in (
        TumblingProcessingTimeWindows(1),
        SlidingProcessingTimeWindows(2, 1),
        ProcessingTimeSessionWindows(1),
    ):
        assert not processing.event_time
        assert isinstance(processing.default_trigger(), ProcessingTimeTrigger)


def test_they_say_what_they_are_and_can_be_pickled() -> None:
    shown = {
        "TumblingEventTimeWindows(10s)": TumblingEventTimeWindows("10s"),
        "TumblingProcessingTimeWindows(1d, offset=-8h)": TumblingProcessingTimeWindows("1d", "-8h"),
        "SlidingEventTimeWindows(1min, 1s)": SlidingEventTimeWindows("1min", "1s"),
        "SlidingProcessingTimeWindows(1500ms, 1s, offset=1ms)": SlidingProcessingTimeWindows("1.5s", "1s", 1),
        "EventTimeSessionWindows(5s)": EventTimeSessionWindows("5s"),
        "ProcessingTimeSessionWindows(dynamic gap)": ProcessingTimeSessionWindows.with_dynamic_gap(len),
        "GlobalWindows()": GlobalWindows(),
    }
    for text, assigner in shown.items():
        assert repr(assigner) == text
        assert repr(pickle.loads(pickle.dumps(assigner))) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingEventTimeWindows(0), r"TumblingEventTimeWindows\(size=0\): must be longer than 0 ms"),
        (lambda: TumblingEventTimeWindows(-1), r"\(size=-1\): -1 is not a whole number of milliseconds >= 0"),
        (
            lambda: TumblingEventTimeWindows("soon"),
            r"\(size='soon'\): 'soon' is not a duration; give a",
        ),
        (lambda: TumblingEventTimeWindows(WRONG[0]), r"\(size=10.5\): 10.5 is not a duration"),
        (lambda: TumblingEventTimeWindows(1 << 63), r"is longer than 4611686018427387904 ms, 146 million years"),
        (lambda: TumblingEventTimeWindows(10, 10), r"offset \(10ms\) must be shorter than the size \(10ms\)"),
        (
            lambda: TumblingProcessingTimeWindows("1d", "-24h"),
            r"offset \(-1d\) must be shorter than the size",
        ),
        (lambda: SlidingEventTimeWindows(10, 0), r"SlidingEventTimeWindows\(slide=0\): must be longer than 0"),
        (lambda: SlidingEventTimeWindows(0, 1), r"SlidingEventTimeWindows\(size=0\): must be longer than 0"),
        (lambda: SlidingEventTimeWindows(10, 5, -5), r"offset \(-5ms\) must be shorter than the slide \(5ms\)"),
        (
            lambda: SlidingEventTimeWindows("365d", 1),
            r"into 31536000000 windows; .* make the slide longer",
        ),
        (
            lambda: CumulativeEventTimeWindows(1, "1d"),
            r"into 86400000 windows; .* make the step longer",
        ),
        (lambda: EventTimeSessionWindows.with_gap(0), r"EventTimeSessionWindows\(gap=0\): must be longer than 0"),
        (
            lambda: ProcessingTimeSessionWindows.with_dynamic_gap(WRONG[1]),
            r"with_dynamic_gap\('5s'\): needs a function of a record; for one gap for all, use with_gap\(\)",
        ),
        (
            lambda: EventTimeSessionWindows.with_dynamic_gap(WRONG[2]),
            r"with_dynamic_gap\(<class .*: needs a function of a record",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("gap", [0, -5, 1.5, None, "soon", "0s", True])
def test_a_dynamic_gap_must_be_longer_than_nothing(gap: Any) -> None:
    windows = EventTimeSessionWindows.with_dynamic_gap(lambda record: gap)
    with pytest.raises(FunctionContractError, match=r"the function gave .* for a record; a gap is a duration"):
        assigned(windows, 0)


def test_time_ends_where_watermarks_do() -> None:
    window = TimeWindow(2**63 - 5, 2**63 + 5)
    assert window.max_timestamp == 2**63 - 1
    assert TimeWindow(0, 10).max_timestamp == 9
    assert GLOBAL_WINDOW.max_timestamp == 2**63 - 1


def test_the_package_is_there_without_importing_it() -> None:
    assert sw.windows.TumblingEventTimeWindows is TumblingEventTimeWindows
