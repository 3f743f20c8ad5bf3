"""The interval join by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import FunctionContractError, StateError
from sluiceway.functions import FlatJoinFunction, JoinFunction, ProcessJoinFunction
from sluiceway.runtime.failures.explanation import explain_failure
from sluiceway.steps import IntervalJoinStep

LATE_LEFT = sw.OutputTag[Any]("late left")
LATE_RIGHT = sw.OutputTag[Any]("late right")
Drive = Callable[..., Any]


def key_of(record: tuple[Any, int, Any]) -> Any:
    return record[0]


def payloads(left: tuple[Any, int, Any], right: tuple[Any, int, Any]) -> tuple[Any, Any]:
    return left[2], right[2]


def step(lower: int, upper: int, fn: Any = payloads, **more: Any) -> IntervalJoinStep:
    return IntervalJoinStep(fn, key_of, key_of, lower=lower, upper=upper, **more)


# ---- a pair --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["left", "right"])
def test_a_pair_is_joined_whichever_comes_first(drive: Drive, first: str) -> None:
    join = drive(step(-5, 5))
    if first == "left":
        join.left(("k", 10, "l")).right(("k", 13, "r"))
    else:
        join.right(("k", 13, "r")).left(("k", 10, "l"))
    assert join.records == [(("l", "r"), 13)]


def test_the_result_has_the_later_timestamp(drive: Drive) -> None:
    join = drive(step(-5, 5)).left(("k", 10, "l")).right(("k", 6, "r"))
    assert join.records == [(("l", "r"), 10)]


def test_both_bounds_are_inclusive(drive: Drive) -> None:
    join = drive(step(-2, 3)).left(("k", 10, "l"))
    join.right(*(("k", t, t) for t in range(5, 16)))
    assert [right for _, right in join.values] == [8, 9, 10, 11, 12, 13]


def test_keys_are_kept_apart(drive: Drive) -> None:
    join = drive(step(0, 9)).left(("a", 1, "la"), ("b", 1, "lb")).right(("b", 1, "rb"), ("c", 1, "rc"))
    assert join.values == [("lb", "rb")]


def test_matches_come_in_order_of_time_and_of_arrival(drive: Drive) -> None:
    join = drive(step(-100, 100))
    join.right(("k", 30, "c"), ("k", 10, "a"), ("k", 20, "b1"), ("k", 20, "b2"), ("k", 10, "a2"))
    join.left(("k", 20, "l"))
    assert [right for _, right in join.values] == ["a", "a2", "b1", "b2", "c"]


def test_matches_of_several_slices_come_in_order_of_time(drive: Drive) -> None:
    for lower, upper in [(-100, 100), (-1000, 1000)]:
        join = drive(step(lower, upper)).right(*(("k", t, t) for t in (150, 50, -50, 149, 20)))
        join.left(("k", 55, "l"))
        expected = [-50, 20, 50, 149, 150] if upper == 1000 else [20, 50, 149, 150]
        assert [right for _, right in join.values] == expected


def test_a_batch_comes_out_as_one(drive: Drive) -> None:
    join = drive(step(0, 9)).left(*(("k", t, t) for t in range(5)))
    join.right(*(("k", t, t) for t in range(5)))
    assert len(join.records) == 15
    assert join.batches == 1


# ---- time ----------------------------------------------------------------------------------------------------


def test_late_records_go_to_their_side_output(drive: Drive) -> None:
    join = drive(step(-9, 9, left_late=LATE_LEFT, right_late=LATE_RIGHT))
    join.watermark(10).left(("k", 9, "l"), ("k", 10, "on time")).right(("k", 8, "r"), ("k", 11, "r2"))
    assert join.sides == {"late left": [(("k", 9, "l"), 9)], "late right": [(("k", 8, "r"), 8)]}
    assert join.values == [("on time", "r2")]
    assert join.dropped() == 0


def test_late_records_are_counted_where_nobody_wants_them(drive: Drive) -> None:
    join = drive(step(-9, 9, right_late=LATE_RIGHT)).watermark(10)
    join.left(("k", 9, "l"), ("k", 0, "l")).right(("k", 8, "r"))
    assert join.dropped() == 2
    assert list(join.sides) == ["late right"]


BOUNDS = [(-5, 5), (-5, -3), (3, 5), (0, 0), (-7, 0), (0, 7), (300, 310)]


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
def test_state_goes_when_nothing_can_match_any_more(drive: Drive, lower: int, upper: int) -> None:
    slice_ms = max((upper - lower + 2) // 2, max(upper, -lower) // 64)
    for port, kept in enumerate([max(upper, 0), max(-lower, 0)]):
        for timestamp in range(20):
            join = drive(step(lower, upper)).feed(port, [("k", timestamp, "")])
            assert join.watermark(timestamp + kept - 1).state_size() == 1
            assert join.watermark(timestamp + kept + slice_ms - 1).state_size() == 0


@pytest.mark.parametrize(("lower", "upper"), BOUNDS)
def test_no_match_is_forgotten_too_early(drive: Drive, lower: int, upper: int) -> None:
    for timestamp in range(20):
        for port, distances in enumerate([(lower, upper), (-upper, -lower)]):
            for distance in distances:
                join = drive(step(lower, upper)).feed(port, [("k", timestamp, "")])
                join.watermark(timestamp + distance - 1).feed(1 - port, [("k", timestamp + distance, "")])
                assert len(join.values) == 1


def test_a_record_waits_until_the_watermark_has_passed_all_that_could_match(drive: Drive) -> None:
    join = drive(step(0, 5)).left(("k", 10, "l"))
    join.watermark(14).right(("k", 15, "r"))
    assert join.values == [("l", "r")]


def test_at_the_watermark_what_it_has_ended_is_gone(drive: Drive) -> None:
    join = drive(step(0, 5)).left(("k", 10, "l")).watermark(15).right(("k", 15, "r"))
    assert join.values == []
    join = drive(step(0, 0)).left(("k", 10, "l")).watermark(10).right(("k", 10, "r"))
    assert join.values == []


def test_records_at_the_watermark_meet_until_the_next_one(drive: Drive) -> None:
    join = drive(step(0, 0)).watermark(10).left(("k", 10, "l")).right(("k", 10, "r"))
    assert join.values == [("l", "r")]
    join.watermark(11).right(("k", 10, "r"), ("k", 11, "r"))
    assert (join.values, join.dropped()) == ([("l", "r")], 1)
    join = drive(step(3, 5)).watermark(10).right(("k", 10, "r")).left(("k", 10, "l"))
    assert join.values == []


def test_watermarks_pass(drive: Drive) -> None:
    join = drive(step(0, 0)).watermark(10).watermark(20)
    assert join.controls == [sw.elements.Watermark(10), sw.elements.Watermark(20)]


# ---- functions -----------------------------------------------------------------------------------------------


class Both(JoinFunction[Any, Any, Any]):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def open(self, context: sw.RuntimeContext) -> None:
        self.calls.append("open")
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def join(self, left: Any, right: Any) -> Any:
        self.count.update(self.count.value() + 1)
        return left[0], self.count.value()

    def close(self) -> None:
        self.calls.append("close")


def test_a_join_function_has_the_state_of_the_pair_s_key(drive: Drive) -> None:
    join = drive(step(0, 9, fn := Both()))
    join.left(("a", 1, 0), ("b", 1, 0)).right(("a", 1, 0), ("b", 2, 0), ("a", 3, 0))
    assert join.values == [("a", 1), ("b", 1), ("a", 2)]
    with pytest.raises(sw.StateError, match="without a current key"):
        fn.count.value()
    join.close()
    assert fn.calls == ["open", "close"]


class Flat(FlatJoinFunction[Any, Any, Any]):
    def join(self, left: Any, right: Any) -> Any:
        return [left[2]] * right[2] if right[2] else None


def test_a_flat_join_function_gives_any_number(drive: Drive) -> None:
    join = drive(step(0, 9, Flat())).left(("k", 1, "x")).right(("k", 1, 2), ("k", 1, 0), ("k", 4, 1))
    assert join.records == [("x", 1), ("x", 1), ("x", 4)]


TAG = sw.OutputTag[Any]("apart")


class Process(ProcessJoinFunction[Any, Any, Any]):
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Any:
        ctx.output(TAG, (left[2], right[2]))
        if right[2] == "none":
            return
        yield ctx.get_left_timestamp(), ctx.get_right_timestamp(), ctx.get_timestamp()


@pytest.mark.parametrize("fn", [Process(), Process().process_element], ids=["object", "callable"])
def test_a_process_function_knows_both_timestamps_and_has_side_outputs(drive: Drive, fn: Any) -> None:
    join = drive(step(-9, 9, fn, with_context=True)).left(("k", 5, "l"))
    join.right(("k", 3, "r"), ("k", 7, "r"), ("k", 7, "none")).left(("k", 6, "m"))
    assert join.records == [((5, 3, 5), 5), ((5, 7, 7), 7), ((6, 3, 6), 6), ((6, 7, 7), 7)]
    pairs = [
        (("l", "r"), 5),
        (("l", "r"), 7),
        (("l", "none"), 7),
        (("m", "r"), 6),
        (("m", "r"), 7),
        (("m", "none"), 7),
    ]
    assert join.sides == {"apart": pairs}


def test_with_object_reuse_a_side_output_takes_what_cannot_be_copied() -> None:
    locks = [threading.Lock()]
    flow = sw.Pipeline("reuse")
    left, right = (flow.from_collection([1], timestamp=lambda n: n).key_by(lambda n: "k") for _ in range(2))
    joined = left.interval_join(right).between(0, 0).process(lambda left, right, ctx: ctx.output(TAG, locks))
    same = joined.get_side_output(TAG).map(lambda found: found is locks).collect()
    flow.run(object_reuse=True)
    assert list(same) == [True]


# ---- mistakes ------------------------------------------------------------------------------------------------


def explained(error: BaseException) -> list[str]:
    explain_failure(error, vertex="v", step="join", subtask=0, parallelism=1)
    return error.__notes__


@pytest.mark.parametrize("port", [0, 1])
def test_records_without_timestamps_are_refused(drive: Drive, port: int) -> None:
    join = drive(step(0, 0))
    with pytest.raises(
        StateError, match=r"'join' goes by event time, but .* (left|right) input have no timestamps: put"
    ):
        join.operators[0].receivers()[port](sw.elements.Batch([("k", 1, 1)]))


@pytest.mark.parametrize("more", [{}, {"with_context": True}], ids=["pair", "process"])
@pytest.mark.parametrize("last", [0, 1])
def test_a_failing_function_is_told_with_both_records(drive: Drive, more: Any, last: int) -> None:
    def fails(left: Any, right: Any, ctx: Any = None) -> Any:
        raise ZeroDivisionError("no")

    join = drive(step(0, 9, fails, **more)).feed(1 - last, [("k", 3, "x")])
    with pytest.raises(ZeroDivisionError) as caught:
        join.feed(last, [("k", 3, "y")])
    left, right = ("y", "x") if last == 0 else ("x", "y")
    assert explained(caught.value) == [
        "in step 'join' of 'v', subtask 1 of 1",
        f"record: Pair(left=('k', 3, '{left}'), right=('k', 3, '{right}'))",
        "key: 'k'",
        "timestamp: 3 ms",
    ]


def test_what_is_no_iterable_is_refused(drive: Drive) -> None:
    join = drive(step(0, 9, lambda left, right, ctx: 5, with_context=True)).left(("k", 3, "x"))
    with pytest.raises(
        FunctionContractError, match=r"for a pair, the function of step 'join' returned 5 \(int\); it must yield"
    ):
        join.right(("k", 3, "y"))


def test_what_is_no_tag_is_refused(drive: Drive) -> None:
    join = drive(step(0, 9, lambda left, right, ctx: ctx.output("apart", 1), with_context=True))
    join.left(("k", 3, "x"))
    with pytest.raises(FunctionContractError, match=r"needs an OutputTag first, not 'apart'"):
        join.right(("k", 3, "y"))


@pytest.mark.parametrize("key", [["list"], float("nan"), object()], ids=["unhashable", "nan", "by address"])
def test_keys_that_cannot_be_keys_are_refused(drive: Drive, key: Any) -> None:
    join = drive(step(0, 9))
    with pytest.raises(sw.UnstableKeyError) as caught:
        join.operators[0].process(sw.elements.Batch([("ok", 1, 1), (key, 1, 1)], [1, 1]))
    assert any(note.startswith("record: (") for note in explained(caught.value))


# ---- snapshots -------------------------------------------------------------------------------------------------


def test_the_bounds_may_change_from_one_run_to_the_next(drive: Drive) -> None:
    join = drive(step(-50, 50)).left(*(("k", t, t) for t in (30, 10, 41, 11, 40)))
    join = drive(step(-10, 10), 1, join.snapshot()).right(("k", 30, "r"), ("k", 20, "r"))
    assert [left for left, _ in join.values] == [30, 40, 10, 11, 30]
    assert join.watermark(10 + 10 + 11).state_size() == 1
    assert join.watermark(41 + 10 + 11).state_size() == 0
    join = drive(step(-2, 2)).left(*(("k", t, t) for t in (30, 10, 41, 11, 40)))
    join = drive(step(-50, 50), 1, join.snapshot()).right(("k", 30, "r"))
    assert [left for left, _ in join.values] == [10, 11, 30, 40, 41]


# ---- the model -----------------------------------------------------------------------------------------------


class Model:
    """The algorithm as it is described: every record of the other side is looked at, every timer by itself."""

    def __init__(self, lower: int, upper: int) -> None:
        self.bounds = (lower, upper), (-upper, -lower)
        self.buffers: tuple[list[Any], list[Any]] = [], []
        self.watermark = -(10**9)
        self.pairs: list[Any] = []
        self.late: tuple[list[Any], list[Any]] = [], []

    def add(self, port: int, record: tuple[Any, int, Any]) -> None:
        key, timestamp, _ = record
        if timestamp < self.watermark:
            self.late[port].append(record)
            return
        lower, upper = self.bounds[port]
        for other in self.buffers[1 - port]:
            if other[0] == key and timestamp + lower <= other[1] <= timestamp + upper:
                left, right = (record, other) if port == 0 else (other, record)
                self.pairs.append((payloads(left, right), max(timestamp, other[1])))
        self.buffers[port].append(record)

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        for (_, upper), buffer in zip(self.bounds, self.buffers, strict=True):
            buffer[:] = [r for r in buffer if r[1] + max(upper, 0) > watermark]


record = st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.just(0) | st.integers(-3, 12))
other = st.one_of(
    st.tuples(st.just("watermark"), st.integers(1, 4)),
    st.tuples(st.just("batch end")),
    st.tuples(st.just("restore"), st.integers(1, 3)),
)
event = st.one_of(record, record, record, record, other)
# Long ones, which hypothesis by itself draws rarely, and short ones to shrink to.
events = st.lists(event, min_size=20, max_size=60) | st.lists(event, max_size=10)


@examples(50, 200)
@given(
    bounds=st.tuples(st.integers(-12, 12), st.integers(-12, 12)).map(sorted),
    scale=st.sampled_from([1, 7, 1000]),
    parallelism=st.integers(1, 3),
    with_keys=st.booleans(),
    copies=st.booleans(),
    script=events,
)
def test_it_is_as_the_model_says(
    drive: Drive,
    bounds: list[int],
    scale: int,
    parallelism: int,
    with_keys: bool,
    copies: bool,
    script: list[Any],
) -> None:
    lower, upper = bounds[0] * scale, bounds[1] * scale
    described = step(lower, upper, left_late=LATE_LEFT, right_late=LATE_RIGHT)
    join, model = drive(described, parallelism, copies=copies), Model(lower, upper)
    pairs: list[Any] = []
    late: dict[str, list[Any]] = {"late left": [], "late right": []}
    batch: list[Any] = []
    port = 0
    now = 0

    def flush() -> None:
        join.feed(port, batch, with_keys=with_keys)
        batch.clear()
        pairs.extend(join.take())
        for tag, records in join.sides.items():
            late[tag] += records
        join.sides.clear()

    for number, event in enumerate(script):
        if event[0] in ("left", "right"):
            if port != (event[0] == "right"):
                flush()
                port = int(event[0] == "right")
            record = (event[1], (now + event[2]) * scale, number)
            batch.append(record)
            model.add(port, record)
            continue
        flush()
        if event[0] == "watermark":
            now += event[1]
            join.watermark(now * scale)
            model.advance(now * scale)
        elif event[0] == "restore":
            # Watermarks are no part of a snapshot; the sources make the same one anew.
            snapshot = join.snapshot()
            join.close()
            join = drive(described, event[1], snapshot, copies)
            if now:
                for operator in join.operators:
                    operator.current_watermark = now * scale
                model.advance(now * scale)
    flush()
    assert sorted(pairs) == sorted(model.pairs)
    for tag, records in zip(("late left", "late right"), model.late, strict=True):
        assert sorted(late[tag]) == sorted((record, record[1]) for record in records)
    join.end()
    assert join.state_size() == 0
    join.close()
