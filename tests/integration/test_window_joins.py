"""Joins and co-groups in windows, in whole jobs, against loops over everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import FunctionContractError
from sluiceway.testing import EOF, PAUSE, PipelineHarness, TestSource, run_pipeline
from sluiceway.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

Event = tuple[str, int, int]


def key_of(event: Event) -> str:
    return event[0]


def time_of(event: Event) -> int:
    return event[1]


def pair(left: Event, right: Event) -> tuple[Event, Event]:
    return left, right


def group(lefts: Sequence[Event], rights: Sequence[Event]) -> Iterator[Any]:
    yield sorted(lefts), sorted(rights)


# ---- the model -------------------------------------------------------------------------------------------------

Kind = tuple[str, int, int]


def assigner_of(kind: Kind) -> WindowAssigner:
    name, size, slide = kind
    if name == "tumbling":
        return TumblingEventTimeWindows(size)
    return SlidingEventTimeWindows(size, slide) if name == "sliding" else EventTimeSessionWindows.with_gap(size)


def windows_of(kind: Kind, events: Sequence[Event]) -> list[tuple[int, int]]:
    """Start and end of the windows that one key's events make."""
    name, size, slide = kind
    if name == "session":
        sessions: list[list[int]] = []
        for time in sorted(map(time_of, events)):
            if sessions and time <= sessions[-1][1]:
                sessions[-1][1] = time + size
            else:
                sessions.append([time, time + size])
        return [(start, end) for start, end in sessions]
    step = slide if name == "sliding" else size
    starts = {
        start for e in events for start in range(-200, 200) if start % step == 0 and 0 <= e[1] - start < size
    }
    return [(start, start + size) for start in sorted(starts)]


def groups_of(
    kind: Kind, lefts: Sequence[Event], rights: Sequence[Event]
) -> Iterator[tuple[list[Event], list[Event], int]]:
    for key in {key_of(e) for e in (*lefts, *rights)}:
        of_key = [[e for e in events if key_of(e) == key] for events in (lefts, rights)]
        for start, end in windows_of(kind, [*of_key[0], *of_key[1]]):
            inside = [sorted(e for e in events if start <= time_of(e) < end) for events in of_key]
            yield inside[0], inside[1], end - 1


events = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 99)), min_size=6, max_size=20
)
kinds = st.one_of(
    st.tuples(st.just("tumbling"), st.integers(1, 20), st.just(0)),
    st.tuples(st.just("sliding"), st.integers(1, 20), st.integers(1, 20)),
    st.tuples(st.just("session"), st.integers(1, 10), st.just(0)),
)


def stamped(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
    """Each record with its timestamp."""
    return stream.process(lambda value, ctx: [(value, ctx.timestamp())])


@settings(max_examples=60, deadline=None)
@given(
    kind=kinds,
    lefts=events,
    rights=events,
    parallelism=st.integers(1, 3),
    batch_size=st.sampled_from([1, 3, 1000]),
)
def test_it_is_as_loops_over_everything_say(
    kind: Kind, lefts: list[Event], rights: list[Event], parallelism: int, batch_size: int
) -> None:
    flow = sw.Pipeline("windows", parallelism=parallelism)
    left, right = (flow.from_collection(es, timestamp=time_of) for es in (lefts, rights))
    assigner = assigner_of(kind)
    joined = left.join(right).where(key_of).equal_to(key_of).window(assigner).apply(pair)
    grouped = left.co_group(right).where(key_of).equal_to(key_of).window(assigner).apply(group)
    seen = stamped(joined).collect(), stamped(grouped).collect()
    run_pipeline(flow, batch_size=batch_size)
    model = list(groups_of(kind, lefts, rights))
    assert sorted(seen[1]) == sorted(((ls, rs), last) for ls, rs, last in model)
    assert sorted(seen[0]) == sorted(((l1, r1), last) for ls, rs, last in model for l1 in ls for r1 in rs)


# ---- settings --------------------------------------------------------------------------------------------------


class AsTold(sw.WatermarkGenerator[Event]):
    """A watermark with each record of key ``x``, at its timestamp."""

    punctuated = True

    def on_event(self, value: Event, timestamp: int, output: sw.WatermarkOutput) -> None:
        if value[0] == "x":
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
        pass


TIMES = sw.WatermarkStrategy.for_generator(AsTold).with_timestamp_assigner(time_of)
LATE = sw.OutputTag[sw.TaggedUnion[Event]]("late")


def test_late_records_have_a_window_evaluated_anew_until_they_are_too_late() -> None:
    sources = (
        TestSource([("k", 1, 1), ("x", 30, 0), PAUSE, ("k", 2, 2), PAUSE, ("x", 60, 0), PAUSE, ("k", 3, 3), EOF]),
        TestSource([("k", 5, 5), ("x", 30, 0), PAUSE, PAUSE, ("x", 60, 0), PAUSE, EOF]),
    )
    flow = sw.Pipeline("late")
    left, right = (flow.source(source).assign_timestamps_and_watermarks(TIMES) for source in sources)
    windows = left.join(right).where(key_of).equal_to(key_of).window(TumblingEventTimeWindows(10))
    joined = windows.allowed_lateness(30).side_output_late_data(LATE).apply(pair)
    seen, late = joined.filter(lambda p: p[0][0] == "k").collect(), joined.get_side_output(LATE).collect()
    one, two, of_right = ("k", 1, 1), ("k", 2, 2), ("k", 5, 5)
    expected: list[list[Any]] = [[(one, of_right)], [(one, of_right), (two, of_right)], [], []]
    with PipelineHarness(flow) as harness:
        for phase in range(4):
            harness.run()
            assert sorted(seen) == sorted(p for results in expected[: phase + 1] for p in results)
            if phase < 3:
                for source in sources:
                    source.resume()
        harness.run_to_end()
    assert late == [sw.TaggedUnion("left", ("k", 3, 3))]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_windows_come_back_at_any_parallelism(before: int, after: int) -> None:
    lefts, rights = ([(f"k{n}", n, side) for n in range(10)] for side in (0, 1))

    def program() -> tuple[sw.Pipeline, list[TestSource], Any]:
        flow = sw.Pipeline("restore", max_parallelism=16)
        sources = [TestSource([*lefts, PAUSE, EOF]), TestSource([PAUSE, *rights, EOF])]
        left, right = (flow.source(s).uid(f"in{i}") for i, s in enumerate(sources))
        left, right = (s.assign_timestamps_and_watermarks(TIMES).name("times") for s in (left, right))
        windows = left.join(right).where(key_of).equal_to(key_of).window(EventTimeSessionWindows.with_gap(5))
        return flow, sources, windows.apply(pair).uid("joined").collect()

    flow, sources, _ = program()
    with PipelineHarness(flow, parallelism=before) as harness:
        harness.run()
        snapshot = harness.snapshot()
    flow, sources, joined = program()
    with PipelineHarness(flow, parallelism=after, restored=snapshot) as harness:
        harness.run()
        for source in sources:
            source.resume()
        harness.run_to_end()
    assert sorted(joined) == list(zip(lefts, rights, strict=True))


def test_triggers_and_evictors_see_the_records_of_both_sides() -> None:
    flow = sw.Pipeline("global")
    left, right = (flow.from_collection([(w, n, n) for n in range(3)], timestamp=time_of) for w in ("k", "k"))
    windows = left.co_group(right).where(key_of).equal_to(key_of).window(GlobalWindows.create())
    grouped = windows.trigger(CountTrigger(6)).evictor(CountEvictor(5)).apply(group).collect()
    run_pipeline(flow)
    (lefts, rights), *more = grouped
    assert more == []
    assert len(lefts) + len(rights) == 5


# ---- functions -------------------------------------------------------------------------------------------------


class Count(sw.JoinFunction[Event, Event, tuple[str, int]]):
    """How many pairs a key had so far, over all its windows."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, context: sw.RuntimeContext) -> None:
        self.calls.append("open")
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def join(self, left: Event, right: Event) -> tuple[str, int]:
        self.count.update(self.count.value() + 1)
        return left[0], self.count.value()

    def close(self) -> None:
        self.calls.append("close")


class Twice(sw.FlatJoinFunction[Event, Event, int]):
    def join(self, left: Event, right: Event) -> Iterable[int] | None:
        return [left[2]] * 2 if left[2] else None


class Sizes(sw.CoGroupFunction[Event, Event, tuple[int, int]]):
    def co_group(self, lefts: Sequence[Event], rights: Sequence[Event]) -> Iterable[tuple[int, int]] | None:
        return [(len(lefts), len(rights))] if lefts else None


def program(word: str, fn: Any) -> tuple[sw.Pipeline, Any]:
    flow = sw.Pipeline("functions")
    left, right = (flow.from_collection([("a", 1, 1), ("a", 11, 0)], timestamp=time_of) for _ in range(2))
    windows = getattr(left, word)(right).where(key_of).equal_to(key_of).window(TumblingEventTimeWindows(10))
    return flow, windows.apply(fn).name("both").collect()


@pytest.mark.parametrize(
    ("word", "fn", "expected"),
    [
        ("join", count := Count(), [("a", 1), ("a", 2)]),
        ("join", Twice(), [1, 1]),
        ("co_group", Sizes(), [(1, 1), (1, 1)]),
        ("co_group", lambda lefts, rights: None, []),
    ],
)
def test_function_objects(word: str, fn: Any, expected: list[Any]) -> None:
    flow, seen = program(word, fn)
    run_pipeline(flow)
    assert seen == expected
    if fn is count:
        assert fn.calls == ["open", "close"]


class Numbered(sw.CheckpointedFunction, sw.CheckpointListener):
    """Counts the calls of a subtask in operator state, and the checkpoints of which it is notified."""

    def __init__(self) -> None:
        self.calls, self.completed = 0, 0

    def initialize_state(self, context: sw.FunctionInitializationContext) -> None:
        self.kept = context.operator_state_store.get_list_state(sw.ListStateDescriptor("calls", int))
        self.calls = sum(self.kept.get())

    def snapshot_state(self, context: sw.FunctionSnapshotContext) -> None:
        self.kept.update([self.calls])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.completed += 1

    def number(self) -> int:
        self.calls += 1
        return self.calls


class NumberedPairs(Numbered, sw.JoinFunction[Event, Event, int]):
    def join(self, left: Event, right: Event) -> int:
        return self.number()


class NumberedLists(Numbered, sw.FlatJoinFunction[Event, Event, int]):
    def join(self, left: Event, right: Event) -> Iterable[int]:
        return [self.number()]


class NumberedGroups(Numbered, sw.CoGroupFunction[Event, Event, int]):
    def co_group(self, lefts: Sequence[Event], rights: Sequence[Event]) -> Iterable[int]:
        return [self.number()]


@pytest.mark.parametrize(
    ("word", "kind"), [("join", NumberedPairs), ("join", NumberedLists), ("co_group", NumberedGroups)]
)
def test_function_objects_have_operator_state(word: str, kind: type[Numbered]) -> None:
    def program(fn: Numbered) -> tuple[sw.Pipeline, list[TestSource], Any]:
        flow = sw.Pipeline("numbered")
        times = sw.WatermarkStrategy[Event].for_monotonous_timestamps().with_timestamp_assigner(time_of)
        sources = [
            TestSource([("a", 1, 1), ("a", 11, 1), ("a", 25, 1), PAUSE, ("a", 40, 1), EOF]) for _ in range(2)
        ]
        left, right = (
            flow.source(s).uid(f"in{i}").assign_timestamps_and_watermarks(times).uid(f"times{i}")
            for i, s in enumerate(sources)
        )
        windows = getattr(left, word)(right).where(key_of).equal_to(key_of).window(TumblingEventTimeWindows(10))
        return flow, sources, windows.apply(fn).uid("numbered").collect()

    flow, _, numbers = program(fn := kind())
    with PipelineHarness(flow, checkpoint_interval="1s") as harness:
        harness.advance(1_500)
        snapshot = harness.snapshot()
    before = list(numbers)
    assert before
    assert before == list(range(1, len(before) + 1))
    assert fn.completed == 1

    flow, sources, numbers = program(kind())
    with PipelineHarness(flow, restored=snapshot) as harness:
        harness.run()
        for source in sources:
            source.resume()
        harness.run_to_end()
    assert numbers[0] == len(before) + 1


def test_a_function_that_only_listens_is_notified() -> None:
    class Listening(sw.CoGroupFunction[Event, Event, int], sw.CheckpointListener):
        completed = 0

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            self.completed += 1

        def co_group(self, lefts: Sequence[Event], rights: Sequence[Event]) -> Iterable[int]:
            return [1]

    flow, _ = program("co_group", fn := Listening())
    run_pipeline(flow, checkpoint_interval="1h")
    assert fn.completed == 1


def test_a_failing_function_is_told_with_both_records() -> None:
    flow, _ = program("join", lambda left, right: left[2] // right[2])
    with pytest.raises(ZeroDivisionError) as caught:
        run_pipeline(flow)
    notes = "\n".join(caught.value.__notes__)
    assert "in step 'both'" in notes
    assert "record: Pair(left=('a', 11, 0), right=('a', 11, 0))" in notes
    assert "key: 'a'" in notes
    assert "timestamp: 19 ms" in notes


def into_left(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """Changes both records, and returns one of them."""
    right["met"] = right.get("met", 0) + 1
    left["sum"] = left.get("sum", left["n"]) + right["n"] * right["met"]
    return left


class IntoLeft(sw.FlatJoinFunction[Any, Any, Any]):
    def join(self, left: Any, right: Any) -> Iterator[Any]:
        yield into_left(left, right)


@pytest.mark.parametrize("fn", [into_left, IntoLeft()])
def test_each_pair_is_of_records_that_no_call_has_changed(fn: Any) -> None:
    flow = sw.Pipeline("changing")
    lefts, rights = [{"n": 1}, {"n": 2}], [{"n": 10}, {"n": 20}]
    left, right = (flow.from_collection(records, timestamp=lambda r: 0) for records in (lefts, rights))
    windows = left.join(right).where(lambda r: 0).equal_to(lambda r: 0).window(TumblingEventTimeWindows(10))
    joined = windows.apply(fn).collect()
    run_pipeline(flow)
    assert joined == [{"n": 1, "sum": 11}, {"n": 1, "sum": 21}, {"n": 2, "sum": 12}, {"n": 2, "sum": 22}]


class No(sw.FlatJoinFunction[Event, Event, int]):
    def join(self, left: Event, right: Event) -> Any:
        return 5


def test_what_is_no_iterable_is_refused() -> None:
    flow, _ = program("join", No())
    with pytest.raises(
        FunctionContractError, match=r"for a pair, the function of step 'both' returned 5 \(int\); it must yield"
    ):
        run_pipeline(flow)
