"""Timestamps and watermarks in the middle of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Batch,
    Element,
    LatencyMarker,
    Watermark,
    WatermarkStatus,
)
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.functions import DEAD_LETTERS
from sluiceway.testing import OperatorHarness

BATCH = Settings().batch_size


def harness(strategy: WatermarkStrategy[Any]) -> OperatorHarness:
    return OperatorHarness(lambda s: s.assign_timestamps_and_watermarks(strategy))


def bounded(ms: int) -> WatermarkStrategy[Any]:
    return WatermarkStrategy.for_bounded_out_of_orderness(ms).with_timestamp_assigner(lambda v: v)


def marks(elements: list[Element]) -> list[int]:
    return [e.timestamp for e in elements if isinstance(e, Watermark)]


class Marked(sw.WatermarkGenerator[str]):
    """A record in capitals says that nothing up to its time is missing."""

    def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
        if value.isupper():
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
        """Nothing."""


def test_records_get_the_assigner_s_timestamps() -> None:
    with harness(bounded(0)) as op:
        op.process_batch([5, 3], [1, 1])
    assert op.records == [(5, 5), (3, 3)]


def test_an_assigner_object_is_given_the_timestamp_that_the_record_has() -> None:
    class Later(sw.TimestampAssigner[str]):
        def extract_timestamp(self, value: str, record_timestamp: int) -> int:
            return record_timestamp + len(value)

    with harness(WatermarkStrategy.no_watermarks().with_timestamp_assigner(Later())) as op:
        op.process("abc", timestamp=100)
        op.process("abc")
    assert op.records == [("abc", 103), ("abc", MIN_WATERMARK + 3)]


def test_records_that_have_timestamps_need_no_assigner() -> None:
    with harness(WatermarkStrategy.for_monotonous_timestamps()) as op:
        op.process("a", timestamp=7)
        op.advance(200)
    assert op.elements == [Batch(["a"], [7]), Watermark(6)]


def test_records_without_timestamps_are_no_ground_for_watermarks() -> None:
    with (
        harness(WatermarkStrategy.for_monotonous_timestamps()) as op,
        pytest.raises(sw.FunctionContractError, match=r"'timestamps' have no timestamps.*with_timestamp_assigner"),
    ):
        op.process("a")


def test_who_makes_no_watermarks_needs_no_timestamps() -> None:
    with harness(WatermarkStrategy.no_watermarks()) as op:
        op.process_batch(["a"] * BATCH)
        op.advance(10_000)
        assert op.values == ["a"] * BATCH
        assert marks(op.elements) == []


@pytest.mark.parametrize("stamp", [2**63, -(2**63) - 1])
def test_a_timestamp_beyond_the_end_of_time_is_refused(stamp: int) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: stamp + v)
    with harness(strategy) as op:
        op.process_batch([1 if stamp < 0 else -1])
        with pytest.raises(sw.FunctionContractError, match=r"in 64 bits; for 0 it returned -?9\.223e\+18"):
            op.process_batch([0])


@pytest.mark.parametrize("stamp", [1.5, None, True, "1"])
def test_what_is_no_timestamp_is_refused_with_step_and_record(stamp: Any) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda v: stamp if v == "bad" else 1
    )
    with harness(strategy) as op, pytest.raises(sw.FunctionContractError) as caught:
        op.process_batch(["good", "bad", "good"])
    assert str(caught.value).startswith(
        "the timestamp assigner of step 'timestamps' must return milliseconds since the epoch as an int, or an "
        f"aware datetime; for 'bad' it returned {stamp!r} ({type(stamp).__name__})"
    )
    assert "record: 'bad'" in caught.value.__notes__


@pytest.mark.parametrize("as_object", [False, True])
def test_an_assigner_s_own_error_names_the_record(as_object: bool) -> None:
    class Assigner(sw.TimestampAssigner[Any]):
        def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
            return int(value["time"])

    assigner: Any = Assigner() if as_object else (lambda v: v["time"])
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(assigner)
    with harness(strategy) as op, pytest.raises(KeyError) as caught:
        op.process_batch([{"time": 1}, {"tme": 2}, {"time": 3}])
    assert caught.value.__notes__[1:] == ["record: {'tme': 2}"]


def test_a_generator_s_own_error_names_the_record() -> None:
    class Picky(Marked):
        def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
            raise ValueError("no")

    with harness(WatermarkStrategy.for_generator(Picky)) as op, pytest.raises(ValueError, match="no") as caught:
        op.process("a", timestamp=3)
    assert caught.value.__notes__[1:] == ["record: 'a'", "timestamp: 3 ms"]


@pytest.mark.parametrize("mark", [1.5, Watermark(5), True])
def test_what_is_no_watermark_is_refused(mark: Any) -> None:
    class Wrong(Marked):
        def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
            output.emit_watermark(mark)

    with harness(WatermarkStrategy.for_generator(Wrong)) as op, pytest.raises(sw.FunctionContractError) as caught:
        op.process("a", timestamp=3)
    assert str(caught.value) == (
        "the watermark generator of step 'timestamps' must emit milliseconds since the epoch as an int, or an "
        f"aware datetime, not {mark!r} ({type(mark).__name__})"
        + ("; it is not a whole number of milliseconds: round it with int()" if mark == 1.5 else "")
    )
    assert "record: 'a'" in caught.value.__notes__


def test_a_watermark_beyond_the_end_of_time_is_refused() -> None:
    class Wrong(sw.WatermarkGenerator[int]):
        def on_event(self, value: int, timestamp: int, output: sw.WatermarkOutput) -> None:
            output.emit_watermark(value)

        def on_periodic_emit(self, output: sw.WatermarkOutput) -> None: ...

    with harness(WatermarkStrategy.for_generator(Wrong)) as op:
        op.process(MAX_WATERMARK, timestamp=3)
        with pytest.raises(sw.FunctionContractError, match=rf"in 64 bits, not 9\.223e\+18; .* is {MAX_WATERMARK}"):
            op.process(MAX_WATERMARK + 1, timestamp=3)


def test_a_factory_that_makes_no_generator_is_refused() -> None:
    strategy: WatermarkStrategy[Any] = WatermarkStrategy.for_generator(dict)  # type: ignore[arg-type]
    with pytest.raises(
        sw.FunctionContractError, match=r"'timestamps' must make a WatermarkGenerator.*\{\} \(dict\)"
    ):
        harness(strategy)


# ---- when watermarks come ----------------------------------------------------------------------------------


def test_watermarks_come_at_the_interval_and_only_with_news() -> None:
    with harness(bounded(10)) as op:
        op.process(100)
        op.advance(199)
        assert marks(op.elements) == []
        op.advance(1)
        assert marks(op.elements) == [89]
        op.advance(1000)
        op.process(100)
        op.process(50)
        op.advance(1000)
        assert marks(op.elements) == [89]
        op.process(200)
        op.advance(200)
        assert marks(op.elements) == [89, 189]


def test_a_full_batch_is_followed_by_a_watermark_at_once() -> None:
    with harness(bounded(0)) as op:
        op.process_batch(list(range(BATCH - 1)))
        assert marks(op.elements) == []
        op.process(BATCH - 1)
        assert marks(op.elements) == [BATCH - 2]
        op.process_batch(list(range(BATCH, 3 * BATCH)))
        assert marks(op.elements) == [BATCH - 2, 3 * BATCH - 2]


def test_a_generator_of_the_user_s_is_asked_also_without_records() -> None:
    class Wall(sw.WatermarkGenerator[Any]):
        def __init__(self) -> None:
            self.mark = 0

        def on_event(self, value: Any, timestamp: int, output: sw.WatermarkOutput) -> None:
            """Nothing."""

        def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
            self.mark += 10
            output.emit_watermark(self.mark)

    with harness(WatermarkStrategy.for_generator(Wall)) as op:
        op.advance(650)
    assert op.elements == [Watermark(10), Watermark(20), Watermark(30)]


def test_watermarks_never_go_back_whatever_the_generator_says() -> None:
    class Jumpy(Marked):
        def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
            output.emit_watermark(timestamp)
            output.emit_watermark(timestamp - 5)

    with harness(WatermarkStrategy.for_generator(Jumpy)) as op:
        op.process_batch(["a", "b", "c"], [10, 7, 11])
    assert op.elements == [Batch(["a"], [10]), Watermark(10), Batch(["b", "c"], [7, 11]), Watermark(11)]


def test_what_a_generator_says_of_a_record_keeps_its_place() -> None:
    with harness(WatermarkStrategy.for_generator(Marked)) as op:
        op.process_batch(list("abCdEf"), list(range(6)))
        op.process_batch(list("gH"), [6, 7])
        op.process_batch(list("IJ"), [7, 8])
        op.advance(1000)
    assert op.elements == [
        Batch(["a", "b", "C"], [0, 1, 2]),
        Watermark(2),
        Batch(["d", "E"], [3, 4]),
        Watermark(4),
        Batch(["f"], [5]),
        Batch(["g", "H"], [6, 7]),
        Watermark(7),
        Batch(["I", "J"], [7, 8]),
        Watermark(8),
    ]


def test_what_follows_a_watermark_waits_until_downstream_has_dealt_with_it() -> None:
    with harness(WatermarkStrategy.for_generator(Marked)) as op:
        operator: Any = op._subtasks[0].operators[0]
        operator.process(Batch(list("aBCd"), [0, 1, 2, 3]))
        marker = LatencyMarker(0.0, "source", 0)
        operator.control(marker)
        batches = [Batch(["a", "B"], [0, 1]), Batch(["C"], [2]), Batch(["d"], [3])]
        assert (op.elements, operator.has_work) == ([batches[0], Watermark(1)], True)
        operator.work()
        assert (op.elements[2:], operator.has_work) == ([batches[1], Watermark(2)], True)
        operator.work()
        assert (op.elements[4:], operator.has_work) == ([batches[2], marker], False)
        assert op.metrics().histogram("latency").count == 1


def test_what_an_operator_upstream_flushes_at_the_end_goes_through() -> None:
    class Later(sw.KeyedProcessFunction[int, int, str]):
        def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_processing_time_timer(value)

        def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[str]:
            yield "ABC"[timestamp - 1000]

    strategy = WatermarkStrategy.for_generator(Marked).with_timestamp_assigner(ord)
    program = OperatorHarness(
        lambda s: s.key_by(lambda v: 0).process(Later()).assign_timestamps_and_watermarks(strategy)
    )
    with program as op:
        op.process_batch([1000, 1001, 1002])
        op.finish()
    assert op.elements == [
        Batch(["A"], [65]),
        Watermark(65),
        Batch(["B"], [66]),
        Watermark(66),
        Batch(["C"], [67]),
        Watermark(67),
    ]


def test_a_generator_that_sees_whole_batches_speaks_behind_them() -> None:
    class Whole(Marked):
        def on_batch(self, values: Any, timestamps: Any, output: sw.WatermarkOutput) -> None:
            output.emit_watermark(timestamps[0])

    with harness(WatermarkStrategy.for_generator(Whole)) as op:
        op.process_batch(["a", "b"], [3, 4])
    assert op.elements == [Batch(["a", "b"], [3, 4]), Watermark(3)]


def test_watermarks_from_upstream_end_here_but_for_the_last() -> None:
    with harness(bounded(0)) as op:
        op.process(10)
        op.process_watermark(500)
        op.process_element(WatermarkStatus(False))
        assert op.elements == [Batch([10], [10])]
        op.process_watermark(MAX_WATERMARK)
        op.finish()
        assert op.elements == [Batch([10], [10]), Watermark(MAX_WATERMARK)]


def test_what_was_not_said_when_the_input_ends_is_said_then() -> None:
    with harness(bounded(0)) as op:
        op.process(10)
        op.finish()
    assert marks(op.elements) == [9]


# ---- idleness ----------------------------------------------------------------------------------------------


def test_a_dry_stream_becomes_idle_and_active_again_before_its_next_record() -> None:
    with harness(bounded(0).with_idleness(500)) as op:
        op.advance(499)
        assert op.elements == []
        op.advance(1)
        assert op.elements == [WatermarkStatus(False)]
        op.advance(5000)
        op.process(7)
        op.advance(200)
        assert op.elements[1:] == [WatermarkStatus(True), Batch([7], [7]), Watermark(6)]
        op.advance(299)
        assert len(op.elements) == 4
        op.advance(1)
        assert op.elements[4:] == [WatermarkStatus(False)]
        op.process_watermark(MAX_WATERMARK)
        assert op.elements[5:] == [WatermarkStatus(True), Watermark(MAX_WATERMARK)]


def test_what_has_come_is_said_before_a_stream_becomes_idle() -> None:
    with harness(bounded(0).with_idleness(100)) as op:
        op.process(7)
        op.advance(150)
    assert op.elements == [Batch([7], [7]), Watermark(6), WatermarkStatus(False)]


def test_records_keep_a_stream_active_though_time_stands_still() -> None:
    with harness(bounded(0).with_idleness(500)) as op:
        for _ in range(10):
            op.process(7)
            op.advance(400)
    assert WatermarkStatus(False) not in op.elements


def test_a_generator_may_say_itself_that_it_is_idle() -> None:
    class Sleepy(Marked):
        def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
            if value == "sleep":
                output.mark_idle()
            elif value == "wake":
                output.mark_active()

    with harness(WatermarkStrategy.for_generator(Sleepy)) as op:
        op.process("a", timestamp=1)
        op.process("sleep", timestamp=2)
        op.process("wake", timestamp=3)
    asleep, awake = WatermarkStatus(False), WatermarkStatus(True)
    assert op.elements == [Batch(["a"], [1]), Batch(["sleep"], [2]), asleep, awake, Batch(["wake"], [3])]


@pytest.mark.parametrize("size", [1, 3])
def test_a_record_ends_an_idleness_of_its_own_batch(size: int) -> None:
    class Sleepy(Marked):
        def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
            if value == "sleep":
                output.mark_idle()

    values, stamps = ["a", "sleep", "b"], [1, 2, 3]
    with harness(WatermarkStrategy.for_generator(Sleepy)) as op:
        for at in range(0, 3, size):
            op.process_batch(values[at : at + size], stamps[at : at + size])
    statuses = [e.active for e in op.elements if isinstance(e, WatermarkStatus)]
    assert statuses[-1:] != [False], "an idle stream would let others pass, and its next records be late"


def test_who_has_a_watermark_to_say_is_not_idle_any_more() -> None:
    class Dozing(Marked):
        def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
            output.mark_idle()

        def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
            output.emit_watermark(5)

    with harness(WatermarkStrategy.for_generator(Dozing)) as op:
        op.process("a", timestamp=1)
        op.advance(200)
    assert op.elements == [Batch(["a"], [1]), WatermarkStatus(False), WatermarkStatus(True), Watermark(5)]


def test_a_record_ends_an_idleness_that_the_generator_declared_while_it_was_asked() -> None:
    class Dozing(Marked):
        def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
            output.mark_idle()

    with harness(WatermarkStrategy.for_generator(Dozing)) as op:
        op.advance(200)
        op.process("a", timestamp=1)
        assert op.elements == [WatermarkStatus(False), WatermarkStatus(True), Batch(["a"], [1])]


def test_generators_of_idle_streams_are_not_asked() -> None:
    class Wall(Marked):
        def __init__(self) -> None:
            self.asked = 0

        def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
            self.asked += 1
            output.emit_watermark(self.asked)

    with harness(WatermarkStrategy.for_generator(Wall).with_idleness(300)) as op:
        op.advance(1000)
        assert op.elements == [Watermark(1), Watermark(2), WatermarkStatus(False)]
        op.finish()
        assert len(op.elements) == 3


# ---- whatever comes ----------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.lists(st.integers(-1000, 1000), min_size=1, max_size=8),
        st.integers(1, 700).map(lambda ms: ("wait", ms)),
    ),
    max_size=12,
)


@given(steps=steps, bound=st.integers(0, 300), idleness=st.none() | st.integers(1, 600))
def test_watermarks_rise_and_leave_room_for_what_the_bound_allows(
    steps: list[Any], bound: int, idleness: int | None
) -> None:
    strategy = bounded(bound) if idleness is None else bounded(bound).with_idleness(idleness)
    with harness(strategy) as op:
        fed: list[int] = []
        for step in steps:
            if isinstance(step, tuple):
                op.advance(step[1])
            else:
                op.process_batch(step)
                fed += step
        op.finish()
        assert op.values == fed
    said = marks(op.elements)
    assert said == sorted(set(said))
    seen = mark = MIN_WATERMARK
    status = True
    for element in op.elements:
        if isinstance(element, Watermark):
            mark = element.timestamp
            assert status
            # The model: what the bound allows, and no more.
            assert mark == seen - bound - 1
        elif isinstance(element, WatermarkStatus):
            assert element.active is not status
            status = element.active
        elif isinstance(element, Batch):
            assert status
            for value in element.values:
                late = mark >= value
                assert not late or value < seen - bound
                seen = max(seen, value)


# ---- times as other libraries have them ---------------------------------------------------------------------


def assigned(assigner: Any) -> WatermarkStrategy[Any]:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)


def test_an_assigner_may_return_datetimes_and_other_numbers() -> None:
    at = datetime(2024, 3, 31, 12, tzinfo=UTC)
    with harness(assigned(lambda v: v)) as op:
        op.process_batch([at, np.int64(1_711_886_400_001), 1_711_886_400_002.0, 1_711_886_400_003])
        op.advance(200)
    stamps = [stamp for _, stamp in op.records]
    assert stamps == [1_711_886_400_000 + i for i in range(4)]
    assert {type(stamp) for stamp in stamps} == {int}
    assert marks(op.elements) == [1_711_886_400_002]


def test_a_naive_datetime_is_refused_with_the_record_and_a_hint() -> None:
    with harness(assigned(lambda v: v)) as op, pytest.raises(sw.FunctionContractError) as caught:
        op.process(datetime(2024, 3, 31))
    assert "step 'timestamps'" in str(caught.value)
    assert "no time zone" in str(caught.value)


def test_a_generator_may_emit_a_datetime() -> None:
    class Fixed(Marked):
        def on_event(self, value: str, timestamp: int, output: sw.WatermarkOutput) -> None:
            output.emit_watermark(datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC))

    with harness(WatermarkStrategy.for_generator(Fixed)) as op:
        op.process("a", timestamp=3)
        assert marks(op.elements) == [5000]


def test_a_function_of_two_arguments_is_given_the_timestamp_so_far() -> None:
    with harness(assigned(lambda value, record_timestamp: record_timestamp + len(value))) as op:
        op.process("abc", timestamp=100)
    assert op.records == [("abc", 103)]


def test_a_second_argument_with_a_default_is_left_alone() -> None:
    with harness(assigned(lambda value, factor=1000: value * factor)) as op:
        op.process(5, timestamp=1)
    assert op.records == [(5, 5000)]


def test_a_function_of_three_arguments_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="calls its function with 1 argument"):
        harness(assigned(lambda a, b, c: 1))


def test_timestamps_that_look_like_seconds_are_warned_of() -> None:
    with harness(assigned(lambda v: v)) as op:
        with pytest.warns(sw.TimestampUnitWarning, match=r"step 'timestamps' returns .* in seconds.*by 1000"):
            op.process(1_711_886_400)
        op.process(1_711_886_401)  # only the first is looked at: a second warning would be an error here


def test_small_timestamps_are_not_warned_of() -> None:
    for stamp in (0, 5_000, 3_600_000, 86_399_999, 1_711_886_400_000):
        with harness(assigned(lambda v: v)) as op:
            op.process(stamp)


# ---- records on which the assigner raises ---------------------------------------------------------------------


@pytest.mark.parametrize("two", [False, True])
def test_a_step_skips_records_on_which_its_assigner_raises(two: bool) -> None:
    assigner: Any = (lambda v, before: v["at"]) if two else (lambda v: v["at"])
    records = [{"at": 1}, {"when": 2}, {"at": "3"}, {"at": 4}]
    strategy = assigned(assigner)
    with OperatorHarness(lambda s: s.assign_timestamps_and_watermarks(strategy).on_error("skip")) as op:
        op.process_batch(records, [10, 20, 30, 40])
        assert op.records == [({"at": 1}, 1), ({"at": 4}, 4)]
        letters = op.side_output(DEAD_LETTERS)
        assert [(letter.value(), letter.timestamp) for letter in letters] == [(records[1], 20), (records[2], 30)]
        assert letters[0].error == "KeyError: 'at'"
        assert "FunctionContractError" in letters[1].error
        op.process_batch([{}, {}])  # nothing is left of it
        op.advance(200)
        assert marks(op.elements) == [3]


def test_it_skips_no_more_than_it_may() -> None:
    strategy = assigned(lambda v: 1 // v)
    with (
        OperatorHarness(lambda s: s.assign_timestamps_and_watermarks(strategy).on_error("skip", max=1)) as op,
        pytest.raises(ZeroDivisionError) as caught,
    ):
        op.process_batch([1, 0, 0])
    assert "record: 0" in caught.value.__notes__
