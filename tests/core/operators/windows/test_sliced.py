"""Windows kept in slices: what is theirs alone. That they give what others give is in test_sliced_model.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import StateError, UnstableKeyError
from sluiceway.functions import AggregateFunction, OutputTag, ReduceFunction
from sluiceway.operators.windows import sliding, tumbling
from sluiceway.operators.windows.factory import sliced_operator
from sluiceway.operators.windows.processing_time import (
    SlidingProcessingTimeOperator,
    TumblingProcessingTimeOperator,
)
from sluiceway.operators.windows.sliced_window_operator import SlicedWindowOperator
from sluiceway.operators.windows.sliding import SlidingOperator
from sluiceway.operators.windows.tumbling import TumblingOperator
from sluiceway.operators.windows.window_operator import WindowOperator
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

END = 2**63 - 1
TUMBLING = TumblingEventTimeWindows.of(10)
SLIDING = SlidingEventTimeWindows.of(10, 5)


class Join(AggregateFunction[Any, list[Any], Any]):
    """A list of records, changed in place wherever that is allowed."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Any:
        return " ".join(accumulator)

    def merge(self, accumulator1: list[Any], accumulator2: list[Any]) -> list[Any]:
        accumulator1.extend(accumulator2)
        accumulator2.clear()
        return accumulator1


class Whole(Join):
    """Its accumulators are its results."""

    def get_result(self, accumulator: list[Any]) -> Any:
        return accumulator


class Unmergeable(AggregateFunction[Any, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator


class NeedsContext(sw.ProcessWindowFunction[str, str, str]):
    def process(self, key: str, ctx: sw.ProcessWindowFunction.Context, elements: list[str]) -> list[str]:
        return elements


def concatenated(a: str, b: str) -> str:
    return f"{a} {b}"


def keyed(stream: sw.DataStream[str], windows: Any) -> sw.WindowedStream[str, str]:
    return stream.key_by(lambda r: r[0]).window(windows)


def harness(windows: Any, fn: Any = None, **options: Any) -> OperatorHarness:
    """Keyed by the first character; joined, or with another function of windows."""
    finish = fn or (lambda w: w.aggregate(Join()))
    return OperatorHarness(lambda stream: finish(keyed(stream, windows)), **options)


def operator_of(h: OperatorHarness) -> Any:
    return h._subtasks[0].operators[0]


# ---- who runs what ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "fn", "operator"),
    [
        (TUMBLING, lambda w: w.reduce(concatenated), TumblingOperator),
        (TUMBLING, lambda w: w.aggregate(Unmergeable()), TumblingOperator),
        (TUMBLING, lambda w: w.trigger(EventTimeTrigger.create()).reduce(concatenated), TumblingOperator),
        (TUMBLING, lambda w: w.allowed_lateness(5).reduce(concatenated), TumblingOperator),
        (TumblingProcessingTimeWindows.of(10), lambda w: w.count(), TumblingProcessingTimeOperator),
        (SLIDING, lambda w: w.aggregate(Join()), SlidingOperator),
        (SLIDING, lambda w: w.reduce(concatenated), SlidingOperator),
        (SlidingEventTimeWindows.of(10, 10, 3), lambda w: w.reduce(concatenated), TumblingOperator),
        (SlidingProcessingTimeWindows.of(10, 5), lambda w: w.aggregate(Join()), SlidingProcessingTimeOperator),
        (SLIDING, lambda w: w.aggregate(Unmergeable()), WindowOperator),
        (SLIDING, lambda w: w.allowed_lateness(5).aggregate(Join()), WindowOperator),
        (SlidingEventTimeWindows.of(5, 10), lambda w: w.reduce(concatenated), WindowOperator),
        (SlidingEventTimeWindows.of(1000, 999), lambda w: w.reduce(concatenated), WindowOperator),
        (TUMBLING, lambda w: w.trigger(CountTrigger.of(1)).reduce(concatenated), WindowOperator),
        (TUMBLING, lambda w: w.evictor(CountEvictor.of(1)).reduce(concatenated), WindowOperator),
        (TUMBLING, lambda w: w.process(lambda key, window, elements: elements), TumblingOperator),
        (SLIDING, lambda w: w.process(lambda key, window, elements: elements), SlidingOperator),
        (SLIDING, lambda w: w.allowed_lateness(5).process(lambda key, window, elements: elements), WindowOperator),
        (TUMBLING, lambda w: w.reduce(concatenated, lambda key, window, elements: elements), TumblingOperator),
        (SLIDING, lambda w: w.aggregate(Join(), lambda key, window, elements: elements), SlidingOperator),
        (SLIDING, lambda w: w.aggregate(Join(), NeedsContext()), SlidingOperator),
    ],
)
def test_slices_where_they_do(windows: Any, fn: Callable[[Any], Any], operator: type) -> None:
    with harness(windows, fn) as h:
        assert type(operator_of(h)) is operator


def test_a_trigger_that_only_resembles_the_default_one_is_asked() -> None:
    class Other(EventTimeTrigger):
        pass

    with harness(TUMBLING, lambda w: w.trigger(Other()).reduce(concatenated)) as h:
        assert sliced_operator(operator_of(h).context) is None


# ---- records, results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [None, lambda w: w.reduce(concatenated)], ids=["aggregate", "reduce"])
def test_a_tumbling_window_gives_one_result_per_key_in_the_order_of_first_records(fn: Any) -> None:
    with harness(TUMBLING, fn) as h:
        h.process_batch(["b1", "a1", "b2", "a2", "c1"], [5, 1, 9, 10, 3])
        assert h.process_watermark(8) == []
        assert h.process_watermark(9) == ["b1 b2", "a1", "c1"]
        assert h.process_watermark(END) == ["a2"]
        assert [stamp for _, stamp in h.records] == [9, 9, 9, 19]


@pytest.mark.parametrize("fn", [None, lambda w: w.reduce(concatenated)], ids=["aggregate", "reduce"])
def test_sliding_windows_share_slices(fn: Any) -> None:
    with harness(SLIDING, fn) as h:
        h.process_batch(["a1", "a2", "b1", "a3"], [1, 6, 7, 12])
        h.process_watermark(END)
        assert sorted(h.records) == sorted(
            [("a1", 4), ("a1 a2", 9), ("b1", 9), ("a2 a3", 14), ("b1", 14), ("a3", 19)]
        )
        stamps = [stamp for _, stamp in h.records]
        assert stamps == sorted(stamps)


def test_windows_come_in_the_order_of_their_ends_and_the_watermark_after_them() -> None:
    with harness(SLIDING) as h:
        h.process_batch(["a2", "a1"], [47, 3])
        h.process_watermark(60)
        stamps = [e.timestamps if isinstance(e, sw.elements.Batch) else e for e in h.elements]
        assert stamps == [[4], [9], [49], [54], sw.elements.Watermark(60)]


def test_negative_times_and_offsets() -> None:
    with harness(TumblingEventTimeWindows.of(10, -3)) as h:
        h.process_batch(["a1", "a2", "a3"], [-14, -13, -4])
        h.process_watermark(END)
        assert h.records == [("a1", -14), ("a2 a3", -4)]


@pytest.mark.parametrize("made", [lambda w: w.count(), lambda w: w.apply(lambda key, window, values: [key])])
def test_the_first_windows_of_all_time_are_evaluated(made: Callable[[Any], Any]) -> None:
    first = -(2**63)
    with harness(SLIDING, made) as h:
        h.process_batch(["a1", "a2"], [first, first + 2])
        h.process_watermark(END)
        assert [at for _, at in h.records] == [first + 2, first + 7]


def test_merge_may_change_what_it_is_given_and_results_may_be_accumulators() -> None:
    with harness(SlidingEventTimeWindows.of(30, 10), lambda w: w.aggregate(Whole())) as h:
        h.process_batch([f"a{i}" for i in range(9)], [i * 10 for i in range(9)])
        h.process_watermark(END)
        numbers = [[f"a{i}" for i in range(max(0, end - 3), min(9, end))] for end in range(1, 12)]
        assert h.values == numbers
        assert len({id(value) for value in h.values}) == len(h.values)


def test_accumulators_of_late_records_alone_are_not_shared_either() -> None:
    with harness(SlidingEventTimeWindows.of(30, 10), lambda w: w.aggregate(Whole())) as h:
        h.process_watermark(9)
        h.process("a1", 8)
        assert h.process_watermark(19) == [["a1"]]
        h.process("a2", 18)
        assert h.process_watermark(END) == [["a1", "a2"], ["a2"]]
        assert h.values[0] == ["a1"]


def test_a_rich_reduce_function_is_opened() -> None:
    class Rich(ReduceFunction[str]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.between = "+"

        def reduce(self, value1: str, value2: str) -> str:
            return value1 + self.between + value2

    with harness(TUMBLING, lambda w: w.reduce(Rich())) as h:
        h.process_batch(["a1", "a2"], [1, 2])
        assert h.process_watermark(9) == ["a1+a2"]


def test_pairs_of_key_and_result() -> None:
    for windows in (TUMBLING, SLIDING):
        with harness(windows, lambda w: w.count()) as h:
            h.process_batch(["a1", "b1", "a2"], [5, 6, 7])
            assert sorted(h.process_watermark(9)) == [("a", 2), ("b", 1)]


# ---- late records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [TUMBLING, SLIDING])
def test_late_records_are_counted(windows: Any) -> None:
    with harness(windows) as h:
        h.process_watermark(19)
        h.process_batch(["a1", "a2", "a3"], [4, 20, 3])
        assert h.process_watermark(END)[0] == "a2"
        assert h.metrics().counter("numLateRecordsDropped").value == 2


@pytest.mark.parametrize("windows", [TUMBLING, SLIDING])
def test_late_records_to_a_side_output(windows: Any) -> None:
    late = OutputTag[str]("late")
    with harness(windows, lambda w: w.side_output_late_data(late).aggregate(Join())) as h:
        h.process_watermark(19)
        h.process_batch(["a1", "a2", "a3"], [4, 20, 3])
        assert h.side_records(late) == [("a1", 4), ("a3", 3)]
        assert h.metrics().counter("numLateRecordsDropped").value == 0


def test_a_record_that_comes_too_late_for_some_windows_counts_in_the_others() -> None:
    with harness(SLIDING) as h:
        h.process_batch(["a1", "a2"], [6, 12])
        assert h.process_watermark(10) == ["a1"]
        h.process("a3", 8)
        h.process("b1", 9)
        assert sorted(h.process_watermark(14)) == ["a1 a3 a2", "b1"]
        assert h.process_watermark(END) == ["a2"]


def test_allowed_lateness_evaluates_again_for_each_record() -> None:
    with harness(TUMBLING, lambda w: w.allowed_lateness(5).aggregate(Join())) as h:
        h.process("a1", 1)
        assert h.process_watermark(9) == ["a1"]
        assert h.process_batch(["a2", "b1", "a3"], [3, 4, 5]) == ["a1 a2", "b1", "a1 a2 a3"]
        assert [stamp for _, stamp in h.records] == [9, 9, 9, 9]
        h.process_watermark(13)
        assert h.process("b2", 0) == ["b1 b2"]
        h.process_watermark(14)
        assert h.process("b3", 0) == []
        assert h.metrics().counter("numLateRecordsDropped").value == 1


# ---- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [TUMBLING, SLIDING])
def test_records_without_timestamps(windows: Any) -> None:
    with (
        harness(windows) as h,
        pytest.raises(StateError, match=r"its records have no timestamps: put assign_timestamps_and_watermarks"),
    ):
        h.process("a1")


@pytest.mark.parametrize("key", [[1], float("nan")], ids=["unhashable", "unstable"])
def test_keys_that_are_none(key: Any) -> None:
    with (
        OperatorHarness(lambda s: s.key_by(lambda r: key).window(TUMBLING).aggregate(Join())) as h,
        pytest.raises(UnstableKeyError),
    ):
        h.process("a1", 1)


class Broken(Join):
    def __init__(self, broken: str) -> None:
        self._broken = broken

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        if self._broken == "add" and value == "a2":
            raise ValueError("no good")
        return super().add(value, accumulator)

    def get_result(self, accumulator: list[Any]) -> Any:
        if self._broken == "get_result":
            raise ValueError("no good")
        return super().get_result(accumulator)

    def merge(self, accumulator1: list[Any], accumulator2: list[Any]) -> list[Any]:
        if self._broken == "merge":
            raise ValueError("no good")
        return super().merge(accumulator1, accumulator2)


def _feed(h: OperatorHarness, values: list[str], stamps: list[int]) -> None:
    h.process_batch(values, stamps)
    h.process_watermark(END)


@pytest.mark.parametrize(
    ("windows", "broken"),
    [
        (TUMBLING, "add"),
        (TUMBLING, "get_result"),
        (SLIDING, "add"),
        (SLIDING, "get_result"),
        (SLIDING, "merge"),
    ],
)
def test_what_a_function_raises_names_step_and_key(windows: Any, broken: str) -> None:
    with harness(windows, lambda w: w.aggregate(Broken(broken)).name("joined")) as h:
        with pytest.raises(ValueError, match="no good") as raised:
            _feed(h, ["a1", "a2", "a3"], [1, 6, 7])
        notes = "\n".join(raised.value.__notes__)
        assert "joined" in notes
        assert "'a'" in notes
        assert raised.value.__context__ is None
        if broken == "add":
            assert "'a2'" in notes
    with harness(windows, lambda w: w.aggregate(Broken("add"))) as h:
        h.process_watermark(7)  # a record that needs a slice of its own, or one that is closed
        with pytest.raises(ValueError, match="no good") as raised:
            h.process("a2", 6)
        assert raised.value.__context__ is None


# ---- bursts, state ---------------------------------------------------------------------------------------


@pytest.fixture
def small_bursts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tumbling, "BURST", 2)
    monkeypatch.setattr(sliding, "BURST", 2)
    return


def _advance_a_part(h: OperatorHarness, watermark: int) -> SlicedWindowOperator:
    operator: SlicedWindowOperator = operator_of(h)
    operator.control(sw.elements.Watermark(watermark))
    return operator


@pytest.mark.usefixtures("small_bursts")
@pytest.mark.parametrize("windows", [TUMBLING, SLIDING])
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("turns", range(12))
def test_a_snapshot_within_a_burst_neither_loses_nor_doubles_results(
    windows: Any, parallelism: int, turns: int
) -> None:
    def fn(w: Any) -> Any:
        return w.count()

    records, stamps = [f"{key}{i}" for i in range(2) for key in "abcdefg"], [3] * 7 + [8] * 7
    with harness(windows, fn) as whole:
        whole.process_batch(records, stamps)
        whole.process_watermark(END)
    with harness(windows, fn) as h:
        h.process_batch(records, stamps)
        operator = _advance_a_part(h, END)
        for _ in range(turns):
            if operator.has_work:
                operator.work()
        before, snapshot = list(h.records), h.snapshot()
        while operator.has_work:
            operator.work()
        assert h.records == whole.records, "the snapshot has changed something"
    with harness(windows, fn, restored=snapshot, parallelism=parallelism) as h:
        h.process_watermark(END)
        assert sorted(before + h.records) == sorted(whole.records)


class Emptied(AggregateFunction[str, list[str], str]):
    """Takes the results out of its accumulators, as it may: they are its own."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[str]) -> str:
        joined = " ".join(accumulator)
        accumulator.clear()
        return joined

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b


@pytest.mark.usefixtures("small_bursts")
def test_a_snapshot_within_a_burst_that_is_read_when_the_burst_is_over() -> None:
    def fn(w: Any) -> Any:
        return w.aggregate(Emptied())

    with harness(TUMBLING, fn) as h:
        h.process_batch([f"{key}1" for key in "abcdefg"], [3] * 7)
        operator = _advance_a_part(h, END)
        before, snapshot = list(h.values), operator.snapshot()
        while operator.has_work:
            operator.work()
        assert snapshot.keyed is not None
        dict(snapshot.keyed.groups)
    with harness(TUMBLING, fn, restored=JobSnapshot((snapshot,))) as h:
        assert before + h.process_watermark(END) == [f"{key}1" for key in "abcdefg"]


@pytest.mark.usefixtures("small_bursts")
def test_a_burst_gives_way_and_the_watermark_waits_for_its_end() -> None:
    with harness(TUMBLING) as h:
        h.process_batch([f"{key}1" for key in "abcde"], [1] * 5)
        operator = _advance_a_part(h, 9)
        assert operator.has_work
        assert h.values == ["a1", "b1"]
        operator.work()
        assert h.values == ["a1", "b1", "c1", "d1"]
        while operator.has_work:
            assert not isinstance(h.elements[-1], sw.elements.Watermark)
            operator.work()
        assert h.elements[-1] == sw.elements.Watermark(9)


def test_nothing_stays_in_the_state_of_windows_that_are_over() -> None:
    for windows in (TUMBLING, SLIDING):
        with harness(windows) as h:
            h.process_batch(["a1", "b1"], [1, 6])
            assert h.snapshot().operators[0].keyed.groups
            h.process_watermark(END)
            assert not h.snapshot().operators[0].keyed.groups


def test_kept_windows_are_not_evaluated_again_after_a_restore_but_for_late_records() -> None:
    def fn(w: Any) -> Any:
        return w.allowed_lateness(20).aggregate(Join())

    with harness(TUMBLING, fn) as h:
        h.process_batch(["a1", "b1"], [1, 2])
        assert h.process_watermark(9) == ["a1", "b1"]
        snapshot = h.snapshot()
    with harness(TUMBLING, fn, restored=snapshot, parallelism=2) as h:
        h.process("b2", 3)
        assert h.process_watermark(9) == ["b1 b2"]
        assert h.process("a2", 4) == ["a1 a2"]
        h.process_watermark(29)
        assert not any(operator.keyed.groups for operator in h.snapshot().operators)


@pytest.mark.parametrize(
    "fn", [lambda w: w.aggregate(Join()), lambda w: w.apply(lambda key, window, records: [" ".join(records)])]
)
def test_records_of_windows_that_were_over_before_a_restore_are_late(fn: Callable[[Any], Any]) -> None:
    late = OutputTag[str]("late")

    def late_aside(w: Any) -> Any:
        return fn(w.side_output_late_data(late))

    with harness(SLIDING, late_aside) as h:
        h.process_batch(["a1", "a2"], [1, 22])
        assert h.process_watermark(21) == ["a1", "a1"]
        snapshot = h.snapshot()
    with harness(SLIDING, late_aside, restored=snapshot) as h:
        # The windows of 11 end by 20; of those of 18 one is left; b has no windows that were evaluated.
        h.process_batch(["b1", "a3", "a4", "b2"], [11, 11, 18, 12])
        assert h.side_records(late) == [("a3", 11)]
        assert sorted(sorted(result.split()) for result in h.process_watermark(24)) == [
            ["a2", "a4"],
            *[["b1", "b2"]] * 2,
        ]
        assert h.process_watermark(END) == ["a2"]


def test_an_unhashable_key_is_named_after_a_restore() -> None:
    def by_record(w: Any) -> Any:
        return w.key_by(lambda record: record).window(SLIDING).aggregate(Join())

    with OperatorHarness(by_record) as h:
        h.process_batch(["a", "a"], [1, 22])
        h.process_watermark(21)
        snapshot = h.snapshot()
    with (
        OperatorHarness(by_record, restored=snapshot) as h,
        pytest.raises(UnstableKeyError, match=r"\['b'\] \(list\) cannot be a key"),
    ):
        h.process(["b"], 11)


# ---- processing time -------------------------------------------------------------------------------------


def test_tumbling_windows_of_processing_time() -> None:
    with harness(TumblingProcessingTimeWindows.of(10), start_ms=3) as h:
        h.process("a1")
        h.process_watermark(END)
        h.advance(6)
        assert h.process("a2") == []
        assert h.advance(1) == ["a1 a2"]
        h.process("a3")
        assert h.finish() == ["a3"]
        assert [stamp for _, stamp in h.records] == [9, 19]


def test_sliding_windows_of_processing_time() -> None:
    with harness(SlidingProcessingTimeWindows.of(10, 5), start_ms=3) as h:
        h.process("a1")
        assert h.advance(2) == ["a1"]
        h.process("a2")
        assert h.advance(5) == ["a1 a2"]
        assert h.finish() == ["a2"]
        assert [stamp for _, stamp in h.records] == [4, 9, 14]


@pytest.mark.parametrize("fn", [None, lambda w: w.apply(lambda key, window, records: [" ".join(records)])])
def test_no_record_is_lost_behind_a_restore_where_the_clock_is_behind(fn: Any) -> None:
    windows = SlidingProcessingTimeWindows.of(10, 5)
    with harness(windows, fn, start_ms=100) as h:
        h.process("a1")
        assert h.advance(6) == ["a1"]
        taken = h.snapshot()
    with harness(windows, fn, restored=taken, start_ms=90) as h:
        h.process("a2")
        assert h.advance(30) == ["a1 a2", "a2"]
        assert h.finish() == []


def test_a_window_of_processing_time_is_not_over_before_its_last_ms_is() -> None:
    with harness(SlidingProcessingTimeWindows.of(2, 1), start_ms=9) as h:
        h.process("a1")
        assert h.advance(1) == ["a1"]
        assert [stamp for _, stamp in h.records] == [9]
        assert h.advance(1) == ["a1"]
        assert [stamp for _, stamp in h.records] == [9, 10]
