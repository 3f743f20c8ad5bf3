"""Windowed streams: how they are written, what is refused, and whole pipelines with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.functions import (
    AggregateFunction,
    AllWindowFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowContext,
    WindowFunction,
)
from sluiceway.testing import run_pipeline
from sluiceway.windows import (
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)

TEN = TumblingEventTimeWindows("10s")


@pytest.fixture
def flow() -> sw.Pipeline:
    return sw.Pipeline("windows")


@pytest.fixture
def words(flow: sw.Pipeline) -> sw.DataStream[str]:
    return flow.from_collection(["a", "bb"])


@pytest.fixture
def keyed(words: sw.DataStream[str]) -> sw.KeyedStream[str, str]:
    return words.key_by(lambda word: word)


class Length(AggregateFunction[str, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: str, accumulator: int) -> int:
        return accumulator + len(value)

    def get_result(self, accumulator: int) -> int:
        return accumulator


class MergeableLength(Length):
    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


class Longest(ReduceFunction[str]):
    def reduce(self, value1: str, value2: str) -> str:
        return max(value1, value2, key=len)


class Listed(ProcessWindowFunction[str, str, list[str]]):
    def process(self, key: str, ctx: WindowContext, elements: list[str]) -> Iterable[list[str]]:
        yield elements


class Applied(WindowFunction[str, str, list[str]]):
    def apply(self, key: str, window: TimeWindow, elements: list[str]) -> Iterable[list[str]]:
        yield elements


class AllListed(ProcessAllWindowFunction[str, list[str]]):
    def process(self, ctx: WindowContext, elements: list[str]) -> Iterable[list[str]]:
        yield elements


class AllApplied(AllWindowFunction[str, list[str]]):
    def apply(self, window: TimeWindow, elements: list[str]) -> Iterable[list[str]]:
        yield elements


# ---- how it is written -------------------------------------------------------------------------------------


def test_settings_give_new_objects(keyed: sw.KeyedStream[str, str]) -> None:
    plain = keyed.window(TEN)
    changed = plain.trigger(CountTrigger(1)).evictor(CountEvictor(1)).allowed_lateness("5s")
    plain.count()
    changed.side_output_late_data(OutputTag("late")).count()
    steps: list[Any] = [t.step for t in keyed._pipeline._transformations if t.step.kind == "window"]
    assert (steps[0].trigger, steps[0].evictor, steps[0].allowed_lateness_ms, steps[0].late_tag) == (None,) * 2 + (
        0,
        None,
    )
    assert repr(steps[1].trigger) == "CountTrigger(1)"
    assert repr(steps[1].evictor) == "CountEvictor(1)"
    assert (steps[1].allowed_lateness_ms, steps[1].late_tag) == (5000, OutputTag("late"))


def test_steps_are_called_by_their_windows_and_what_becomes_of_them(flow: sw.Pipeline, words: Any) -> None:
    class Own(WindowAssigner):
        def assign(self, value: Any, timestamp: int, context: Any) -> list[Any]:
            return []

        def default_trigger(self) -> Any:
            return CountTrigger(1)

    keyed = words.key_by(lambda word: word)
    keyed.window(TEN).reduce(Longest()).collect()
    keyed.window(EventTimeSessionWindows.with_gap(500)).aggregate(MergeableLength(), Listed()).collect()
    keyed.window(TEN).process(lambda key, window, elements: []).collect()
    keyed.window(Own()).max_by(0).collect()
    keyed.count_window(3).sum(0).collect()
    words.window_all(TEN).count().collect()
    names = [node.name for node in flow.graph().nodes if node.step.kind == "window"]
    assert names == [
        "TumblingEventTimeWindows(10s).reduce(Longest)",
        "EventTimeSessionWindows(500ms).aggregate(MergeableLength, Listed)",
        "TumblingEventTimeWindows(10s).process",
        "Own.max_by(0)",
        "GlobalWindows().sum(0)",
        "TumblingEventTimeWindows(10s).count",
    ]


def test_results_have_the_types_that_hints_say(flow: sw.Pipeline, words: Any) -> None:
    keyed = words.key_by(len)
    keyed.window(TEN).reduce(Longest()).collect()
    keyed.window(TEN).aggregate(Length()).collect()
    keyed.window(TEN).process(Listed()).collect()
    keyed.window(TEN).aggregate(Length(), Applied()).collect()
    keyed.window(TEN).count().collect()
    words.window_all(TEN).count().collect()
    words.window_all(TEN).apply(AllApplied()).collect()
    types = [node.output_type for node in flow.graph().nodes if node.step.kind == "window"]
    assert types == [str, int, list[str], list[str], tuple[Any, int], int, list[str]]


# ---- what is refused ---------------------------------------------------------------------------------------

ANY: Any = object()


class MergesByMethod(CountTrigger):
    def can_merge(self) -> bool:  # type: ignore[override]
        return False


class Triggered(TumblingEventTimeWindows):
    def __init__(self, trigger: Any) -> None:
        super().__init__(10)
        self.trigger = trigger

    def default_trigger(self) -> Any:
        return self.trigger


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda k: k.window("10s"),
            TypeError,
            r"window\(\) at .*test_windowed.py:\d+ takes a WindowAssigner, as in Tum",
        ),
        (
            lambda k: k.window(GlobalWindows),
            TypeError,
            r"was given the class GlobalWindows; give it an object: Glob",
        ),
        (lambda k: k.window_all(10), TypeError, r"window_all\(\) at .* takes a WindowAssigner"),
        (
            lambda k: k.window(TEN).trigger(10),
            TypeError,
            r"trigger\(\) at .* takes a Trigger, as in CountTrigger\(100",
        ),
        (
            lambda k: k.window(TEN).trigger(CountTrigger),
            TypeError,
            r"was given the class CountTrigger; give it an ob",
        ),
        (
            lambda k: k.window(TEN).evictor(10),
            TypeError,
            r"evictor\(\) at .* takes an Evictor, as in CountEvictor",
        ),
        (
            lambda k: k.window(TEN).side_output_late_data("late"),
            TypeError,
            r'takes an OutputTag, as in OutputTag\("la',
        ),
        (
            lambda k: k.window(EventTimeSessionWindows(1)).trigger(DeltaTrigger(1, max)),
            sw.GraphError,
            r"trigger\(\) at .*: DeltaTrigger\(1\) cannot be used with EventTimeSessionWindows\(1ms\), whose wind",
        ),
        (
            lambda k: k.window(EventTimeSessionWindows(1)).trigger(MergesByMethod(1)),
            TypeError,
            r"trigger\(\) at .*: can_merge of MergesByMethod, .* is a method, and so always true: make it a p",
        ),
        (
            lambda k: k.window(EventTimeSessionWindows(1)).trigger(PurgingTrigger(MergesByMethod(1))),
            TypeError,
            r"trigger\(\) at .*: can_merge of PurgingTrigger, or of the trigger in it, is a method",
        ),
        (
            lambda k: k.window(Triggered(EventTimeTrigger)).count(),
            TypeError,
            r"count\(\) at .*: Triggered.default_trigger\(\) gave the class EventTimeTrigger; it must return",
        ),
        (
            lambda k: k.window(Triggered(None)).count(),
            TypeError,
            r"count\(\) at .*: Triggered.default_trigger\(\) gave None \(NoneType\); it must return an object",
        ),
        (
            lambda k: k.window(EventTimeSessionWindows(1)).aggregate(Length()),
            sw.GraphError,
            r"aggregate\(\) at .*: the windows of EventTimeSessionWindows\(1ms\) merge, so Length needs a merge",
        ),
        (
            lambda k: k.window_all(ProcessingTimeSessionWindows(1)).aggregate(Length()),
            sw.GraphError,
            r"the windows of ProcessingTimeSessionWindows\(1ms\) merge, so Length needs a merge",
        ),
        (
            lambda k: k.window(TumblingProcessingTimeWindows(1)).allowed_lateness(1),
            sw.GraphError,
            r"allowed_lateness\(\) at .*: no record is ever late for TumblingProcessingTimeWindows\(1ms\), which ",
        ),
        (
            lambda k: k.window(GlobalWindows()).side_output_late_data(OutputTag("late")),
            sw.GraphError,
            r"side_output_late_data\(\) at .*: no record is ever late for GlobalWindows\(\)",
        ),
        (
            lambda k: k.window(GlobalWindows()).count(),
            sw.GraphError,
            r"count\(\) at .*: GlobalWindows\(\) never evaluate a window by themselves: say when with trigger\(..",
        ),
        (
            lambda k: k.window(TEN).allowed_lateness(-1),
            sw.ConfigurationError,
            r"allowed_lateness\(-1\): -1 is not a",
        ),
        (lambda k: k.window(TEN).reduce(len), TypeError, r"reduce\(\) at .* calls its function with 2 arguments"),
        (lambda k: k.window(TEN).reduce(Length()), TypeError, r"reduce\(\) .*; Length is a AggregateFunction"),
        (
            lambda k: k.window(TEN).aggregate(max),
            TypeError,
            r"aggregate\(\) at .* takes an AggregateFunction, not",
        ),
        (lambda k: k.window(TEN).process(len), TypeError, r"process\(\) at .* with 3 arguments, but len"),
        (
            lambda k: k.window(TEN).process(Applied()),
            TypeError,
            r"takes a callable or a ProcessWindowFunction; Applied",
        ),
        (
            lambda k: k.window(TEN).apply(Listed()),
            TypeError,
            r"apply\(\) .* WindowFunction; Listed is a ProcessWindow",
        ),
        (lambda k: k.window(TEN).process(Listed), TypeError, r"was given the class Listed; give it an object"),
        (lambda k: k.window(TEN).process(AllListed()), TypeError, r"AllListed is a ProcessAllWindowFunction"),
        (lambda k: k.window_all(TEN).process(Listed()), TypeError, r"Listed is a ProcessWindowFunction"),
        (lambda k: k.window_all(TEN).process(lambda k, w, e: e), TypeError, r"with 2 arguments, but .*lambda"),
        (lambda k: k.window(TEN).reduce(max, lambda w, e: e), TypeError, r"reduce\(\) at .* with 3 arguments"),
        (
            lambda k: k.window(TEN).sum(1.5),
            TypeError,
            r"sum\(\) at .* takes an index, the name of a key or attribute",
        ),
        (lambda k: k.count_window(0), ValueError, r"count_window\(\) size at .* must be at least 1, not 0"),
        (lambda k: k.count_window(3, "1"), TypeError, r"count_window\(\) slide at .* takes an int, not '1'"),
        (lambda k: k.count_window_all(0), ValueError, r"count_window_all\(\) size at .* must be at least 1"),
        (
            lambda k: k.window(TEN).map(len),
            AttributeError,
            r"WindowedStream has no map\(\): say first what to make of",
        ),
        (lambda k: k.window(TEN).proces(len), AttributeError, r"no attribute 'proces'. Did you mean 'process'\?"),
    ],
)
def test_what_cannot_work_is_refused(
    keyed: sw.KeyedStream[str, str], write: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write(keyed)


def test_what_merges_or_fires_after_all_is_not_refused(keyed: sw.KeyedStream[str, str]) -> None:
    sessions = keyed.window(EventTimeSessionWindows(1))
    sessions.aggregate(MergeableLength())
    sessions.evictor(CountEvictor(1)).aggregate(Length())
    keyed.window(GlobalWindows()).trigger(NeverTrigger()).count()
    keyed.window(GlobalWindows.create_with_end_of_stream_trigger()).count()


def test_windows_ask_for_a_key(words: sw.DataStream[str]) -> None:
    with pytest.raises(
        AttributeError, match=r"DataStream has no count_window\(\): it works per key, so call key_by"
    ):
        words.count_window(3)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no time_window; use key_by\(...\).window\(Tumbling"):
        words.time_window  # type: ignore[attr-defined]  # noqa: B018


def test_windows_of_all_records_have_one_subtask(flow: sw.Pipeline, words: sw.DataStream[str]) -> None:
    counted = words.window_all(TEN).count()
    counted.collect()
    assert [node.parallelism for node in flow.graph(sw.Settings(parallelism=3)).nodes if node.step.keyed] == [1]
    counted.set_parallelism(2)
    with pytest.raises(sw.GraphError, match="windows of a stream without keys are kept by 1 subtask at the most"):
        flow.graph()


def test_windows_show_what_they_are(keyed: sw.KeyedStream[str, str]) -> None:
    assert repr(keyed.window(TEN)).startswith("<WindowedStream of TumblingEventTimeWindows(10s) from <KeyedStream")


# ---- whole pipelines -----------------------------------------------------------------------------------------

EVENTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 120)), max_size=40)


def brute_force(events: list[tuple[str, int]], size: int, slide: int) -> list[Any]:
    ends = range(slide, 120 + size + slide, slide)
    found = [
        (key, end, sum(k == key and end - size <= at < end for k, at in events)) for key in "abcd" for end in ends
    ]
    return [entry for entry in found if entry[2]]


def sessions_of(events: list[tuple[str, int]], gap: int) -> list[Any]:
    found: list[Any] = []
    for key in "abcd":
        times = sorted(at for k, at in events if k == key)
        for at in times:
            if found and found[-1][0] == key and at <= found[-1][1]:
                found[-1] = (key, at + gap, found[-1][2] + 1)
            else:
                found.append((key, at + gap, 1))
    return found


@settings(max_examples=25, deadline=None)
@given(
    events=EVENTS,
    parallelism=st.integers(1, 3),
    batch_size=st.integers(1, 7),
    interval=st.sampled_from([0, 1, 200]),
    kind=st.sampled_from(["tumbling", "sliding", "session", "all"]),
    incremental=st.booleans(),
)
def test_jobs_equal_brute_force_over_all_events(
    events: list[tuple[str, int]], parallelism: int, batch_size: int, interval: int, kind: str, incremental: bool
) -> None:
    """Where records may be as late as they like, the order in which they come is of no importance."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(1000).with_timestamp_assigner(lambda e: e[1])
    assigner: WindowAssigner = {
        "tumbling": TumblingEventTimeWindows(20),
        "all": TumblingEventTimeWindows(20),
        "sliding": SlidingEventTimeWindows(30, 10),
        "session": EventTimeSessionWindows(8),
    }[kind]
    flow = sw.Pipeline("brute", parallelism=parallelism)
    stamped = flow.from_collection(events).assign_timestamps_and_watermarks(strategy)

    def counted(key: str, window: TimeWindow, elements: list[Any]) -> list[Any]:
        return [(key, window.end, elements[0] if incremental else len(elements))]

    if kind == "all":
        result = stamped.window_all(assigner).process(lambda window, elements: [("", window.end, len(elements))])
        expected = brute_force([("a", at) for _, at in events], 20, 20)
        expected = [("", end, count) for _, end, count in expected]
    else:
        keyed: Any = stamped.key_by(lambda e: e[0]).window(assigner)
        result = keyed.aggregate(Ones(), counted) if incremental else keyed.process(counted)
        size, slide = (30, 10) if kind == "sliding" else (20, 20)
        expected = sessions_of(events, 8) if kind == "session" else brute_force(events, size, slide)
    out = result.collect()
    run_pipeline(flow, batch_size=batch_size, auto_watermark_interval=interval)
    assert sorted(out) == sorted(expected)


class Ones(AggregateFunction[Any, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


@pytest.mark.parametrize(("tag_type", "produced"), [(None, "int"), (bytes, "bytes")])
def test_late_records_have_the_type_of_the_windows_input(tag_type: Any, produced: str) -> None:
    def length(value: str) -> int:
        return len(value)

    def text(value: str) -> str:
        return value

    flow = sw.Pipeline("late")
    late: OutputTag[Any] = OutputTag("late", tag_type)
    lengths = flow.from_collection(["a"], timestamp=len).map(length)
    counted = lengths.key_by(lambda n: n).window(TEN).side_output_late_data(late).count()
    counted.get_side_output(late).map(text).print()
    (clash,) = [finding.message for finding in flow.check() if finding.code == "type-clash"]
    assert clash.startswith("side output 'late' of ")
    assert f" produces {produced}, but 'map(text)' " in clash


def test_late_records_come_out_at_the_side_of_a_job() -> None:
    late: OutputTag[tuple[str, int]] = OutputTag("late")
    flow = sw.Pipeline("late", parallelism=1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda e: e[1])
    events = [("a", 1), ("a", 25), ("a", 3), ("b", 26)]
    stamped = flow.from_collection(events).assign_timestamps_and_watermarks(strategy)
    counted = (
        stamped.key_by(lambda e: e[0]).window(TumblingEventTimeWindows(10)).side_output_late_data(late).count()
    )
    out, aside = counted.collect(), counted.get_side_output(late).collect()
    run_pipeline(flow, batch_size=1, auto_watermark_interval=0)
    assert sorted(out) == [("a", 1), ("a", 1), ("b", 1)]
    assert list(aside) == [("a", 3)]
