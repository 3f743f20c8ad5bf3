"""The as-of join by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import FunctionContractError, StateError
from sluiceway.functions import FlatJoinFunction, JoinFunction
from sluiceway.runtime.failures.explanation import explain_failure
from sluiceway.steps import AsOfJoinStep

LATE = sw.OutputTag[Any]("late")
Drive = Callable[..., Any]


def key_of(record: tuple[Any, int, Any]) -> Any:
    return record[0]


def payloads(left: tuple[Any, int, Any], right: tuple[Any, int, Any] | None) -> tuple[Any, Any]:
    return left[2], None if right is None else right[2]


def step(fn: Any = payloads, **more: Any) -> AsOfJoinStep:
    return AsOfJoinStep(fn, key_of, key_of, **more)


# ---- which version ---------------------------------------------------------------------------------------------


def test_the_latest_version_that_is_not_later_counts(drive: Drive) -> None:
    join = drive(step()).right(("k", 5, "a"), ("k", 10, "b"), ("k", 15, "c"))
    join.left(*(("k", t, t) for t in (4, 5, 9, 10, 14, 15, 99))).watermark(99)
    assert join.records == [
        ((4, None), 4),
        ((5, "a"), 5),
        ((9, "a"), 9),
        ((10, "b"), 10),
        ((14, "b"), 14),
        ((15, "c"), 15),
        ((99, "c"), 99),
    ]


def test_a_left_record_waits_for_the_watermark(drive: Drive) -> None:
    join = drive(step()).left(("k", 10, "l")).right(("k", 3, "old")).watermark(9)
    assert join.values == []
    join.right(("k", 10, "new")).watermark(10)
    assert join.values == [("l", "new")]


def test_results_come_before_the_watermark(drive: Drive) -> None:
    join = drive(step()).left(("k", 10, "l"))
    emitted: list[Any] = []
    join.operators[0].output = type("Order", (), {"emit": emitted.append, "control": emitted.append})
    join.watermark(10)
    assert emitted == [sw.elements.Batch([("l", None)], [10]), sw.elements.Watermark(10)]


def test_keys_are_kept_apart(drive: Drive) -> None:
    join = drive(step()).right(("a", 1, "ra"), ("b", 1, "rb")).left(("b", 2, "l"), ("c", 2, "l")).end()
    assert sorted(join.values, key=str) == [("l", "rb"), ("l", None)]


def test_left_records_of_one_time_come_in_order_of_arrival(drive: Drive) -> None:
    join = drive(step()).left(("k", 5, 1), ("k", 3, 2), ("k", 5, 3), ("k", 4, 4)).end()
    assert [left for left, _ in join.values] == [2, 4, 1, 3]


def test_of_two_versions_of_one_time_the_second_is_a_correction(drive: Drive) -> None:
    join = drive(step()).right(("k", 5, "wrong"), ("k", 7, "later"), ("k", 5, "right")).left(("k", 6, "l"))
    assert versions(join) == ["right", "later"]
    assert join.end().values == [("l", "right")]


def test_an_inner_join_leaves_out_what_has_no_version(drive: Drive) -> None:
    join = drive(step(how="inner")).right(("k", 5, "r")).left(("k", 4, 4), ("k", 5, 5), ("j", 9, 9)).end()
    assert join.records == [((5, "r"), 5)]


def test_a_version_may_be_as_old_as_the_tolerance(drive: Drive) -> None:
    join = drive(step(tolerance=3)).right(("k", 5, "r")).left(*(("k", t, t) for t in range(4, 10))).end()
    assert join.values == [(4, None), (5, "r"), (6, "r"), (7, "r"), (8, "r"), (9, None)]


# ---- time and state --------------------------------------------------------------------------------------------


def test_late_left_records_go_to_their_side_output(drive: Drive) -> None:
    join = drive(step(left_late=LATE)).watermark(10).left(("k", 9, "late"), ("k", 10, "on time")).watermark(11)
    assert join.sides == {"late": [(("k", 9, "late"), 9)]}
    assert (join.values, join.dropped()) == ([("on time", None)], 0)


def test_late_left_records_are_counted_where_nobody_wants_them(drive: Drive) -> None:
    assert drive(step()).watermark(10).left(("k", 9, "late"), ("k", 1, "late")).dropped() == 2


def test_a_late_version_counts_for_what_is_still_to_come(drive: Drive) -> None:
    join = drive(step()).left(("k", 20, "l")).watermark(10).right(("k", 3, "r")).end()
    assert join.values == [("l", "r")]


def test_a_late_version_does_not_replace_a_newer_one(drive: Drive) -> None:
    join = drive(step()).right(("k", 5, "r")).watermark(10).right(("k", 3, "older")).left(("k", 20, "l")).end()
    assert join.values == [("l", "r")]


def versions(join: Any) -> list[Any]:
    return [value[2] for run in join.operators[0]._versions.values() for _, value in run]


def test_superseded_versions_are_forgotten_though_nobody_asks(drive: Drive) -> None:
    join = drive(step()).right(*(("k", t, t) for t in range(10)))
    join.watermark(5)
    assert versions(join) == [5, 6, 7, 8, 9]
    join.end()
    assert versions(join) == [9]


def test_with_a_tolerance_all_versions_are_forgotten_in_time(drive: Drive) -> None:
    join = drive(step(tolerance=3)).right(("k", 5, 5)).watermark(8)
    assert versions(join) == [5]
    join.watermark(9)
    assert versions(join) == []
    join.right(("k", 5, 5))
    assert versions(join) == []
    assert join.state_size() == 0


def test_a_version_is_kept_for_a_left_record_at_the_watermark(drive: Drive) -> None:
    join = drive(step(tolerance=3)).right(("k", 5, "r")).watermark(8).left(("k", 8, "l")).watermark(9)
    assert join.values == [("l", "r")]
    join = drive(step(tolerance=3)).right(("k", 5, "r")).left(("k", 7, "m")).watermark(8)
    assert join.left(("k", 8, "l")).watermark(9).values == [("m", "r"), ("l", "r")]
    join = drive(step(tolerance=3)).watermark(8).right(("k", 5, "late")).left(("k", 8, "l")).watermark(9)
    assert join.values == [("l", "late")]


def test_many_results_go_out_in_parts(drive: Drive) -> None:
    join = drive(step()).left(*(("k", t, t) for t in range(10_000))).end()
    assert [left for left, _ in join.values] == list(range(10_000))
    assert join.batches == 3


# ---- functions and mistakes ------------------------------------------------------------------------------------


class Both(JoinFunction[Any, Any, Any]):
    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def join(self, left: Any, right: Any) -> Any:
        self.count.update(self.count.value() + 1)
        return left[0], self.count.value()


def test_a_join_function_has_the_state_of_the_pair_s_key(drive: Drive) -> None:
    join = drive(step(Both())).left(("a", 1, 0), ("b", 1, 0), ("a", 2, 0)).end()
    assert sorted(join.values) == [("a", 1), ("a", 2), ("b", 1)]


class Flat(FlatJoinFunction[Any, Any, Any]):
    def __init__(self, result: Any) -> None:
        self.result = result

    def join(self, left: Any, right: Any) -> Any:
        return self.result


def test_a_flat_join_function_gives_any_number(drive: Drive) -> None:
    join = drive(step(Flat(["x", "y"]))).left(("k", 1, 0)).end()
    assert join.records == [("x", 1), ("y", 1)]
    assert drive(step(Flat(None))).left(("k", 1, 0)).end().records == []
    with pytest.raises(FunctionContractError, match=r"for a pair, the function of step 'join' returned 5 \(int\)"):
        drive(step(Flat(5))).left(("k", 1, 0)).end()


@pytest.mark.parametrize("port", [0, 1])
def test_records_without_timestamps_are_refused(drive: Drive, port: int) -> None:
    join = drive(step())
    with pytest.raises(
        StateError, match=r"'join' goes by event time, but .* (left|right) input have no timestamps: put"
    ):
        join.operators[0].receivers()[port](sw.elements.Batch([("k", 1, 1)]))


def test_a_failing_function_is_told_with_both_records(drive: Drive) -> None:
    join = drive(step(lambda left, right: 1 // 0)).left(("k", 3, "x")).right(("k", 2, "y"))
    with pytest.raises(ZeroDivisionError) as caught:
        join.end()
    explain_failure(caught.value, vertex="v", step="join", subtask=0, parallelism=1)
    assert caught.value.__notes__ == [
        "in step 'join' of 'v', subtask 1 of 1",
        "record: Pair(left=('k', 3, 'x'), right=('k', 2, 'y'))",
        "key: 'k'",
        "timestamp: 3 ms",
    ]


# ---- the model -------------------------------------------------------------------------------------------------


class Model:
    """Everything is kept; when the watermark comes to a left record, all versions are looked at."""

    def __init__(self, tolerance: int | None, how: str) -> None:
        self.tolerance, self.how = tolerance, how
        self.lefts: list[Any] = []
        self.rights: list[Any] = []
        self.late: list[Any] = []
        self.results: list[Any] = []
        self.watermark = -(10**9)

    def left(self, record: Any) -> None:
        (self.late if record[1] < self.watermark else self.lefts).append(record)

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        for left in [r for r in self.lefts if r[1] <= watermark]:
            self.lefts.remove(left)
            oldest = -(10**9) if self.tolerance is None else left[1] - self.tolerance
            fitting = [r for r in self.rights if r[0] == left[0] and oldest <= r[1] <= left[1]]
            if fitting:
                latest = max(r[1] for r in fitting)
                self.results.append(((left[2], [r for r in fitting if r[1] == latest][-1][2]), left[1]))
            elif self.how == "left":
                self.results.append(((left[2], None), left[1]))


record = st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(-4, 10))
other = st.one_of(
    st.tuples(st.just("watermark"), st.integers(1, 5)),
    st.tuples(st.just("restore"), st.integers(1, 3)),
)
event = st.one_of(record, record, record, record, other)
# Long ones, which hypothesis by itself draws rarely, and short ones to shrink to.
events = st.lists(event, min_size=20, max_size=60) | st.lists(event, max_size=10)


@examples(50, 200)
@given(
    tolerance=st.none() | st.integers(0, 8),
    how=st.sampled_from(["left", "inner"]),
    parallelism=st.integers(1, 3),
    with_keys=st.booleans(),
    copies=st.booleans(),
    script=events,
)
def test_it_is_as_the_model_says(
    drive: Drive,
    tolerance: int | None,
    how: str,
    parallelism: int,
    with_keys: bool,
    copies: bool,
    script: list[Any],
) -> None:
    described = step(tolerance=tolerance, how=how, left_late=LATE)
    join, model = drive(described, parallelism, copies=copies), Model(tolerance, how)
    results: list[Any] = []
    late: list[Any] = []
    batch: list[Any] = []
    port = 0
    now = 0

    def flush() -> None:
        join.feed(port, batch, with_keys=with_keys)
        batch.clear()
        late.extend(value for value, _ in join.sides.pop("late", []))

    for number, event in enumerate([*script, ("watermark", 100)]):
        if event[0] in ("left", "right"):
            if port != (event[0] == "right"):
                flush()
                port = int(event[0] == "right")
            record = (event[1], now + event[2], number)
            batch.append(record)
            if port:
                model.rights.append(record)
            else:
                model.left(record)
            continue
        flush()
        if event[0] == "watermark":
            now += event[1]
            join.watermark(now)
            model.advance(now)
        elif event[0] == "restore":
            snapshot = join.snapshot()
            results += join.take()
            join.close()
            join = drive(described, event[1], snapshot, copies)
            if now:
                # Watermarks are no part of a snapshot; the sources make the same one anew.
                join.watermark(now)
                model.advance(now)
    results += join.take()
    assert sorted(results, key=str) == sorted(model.results, key=str)
    assert sorted(late) == sorted(model.late)
    if tolerance is not None:
        assert join.state_size() == 0
    join.close()
