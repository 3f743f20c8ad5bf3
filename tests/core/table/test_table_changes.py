"""State of steps in columns whose windows, bounds or keys have changed: the same results as before, or refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.core.table.column_harness import ColumnHarness, TwoColumnHarness

from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import IncompatibleStateError
from sluiceway.table import TableStream, agg
from sluiceway.windows import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("n", pa.int64())])
RIGHT = pa.schema([("who", pa.string()), ("what", pa.string()), ("m", pa.int64())])
TUMBLING = TumblingEventTimeWindows(10)
SLIDING = SlidingEventTimeWindows(20, 10)
REFUSED = "step .* cannot restore its snapshot: {}.*another uid"


def table(stream: Any, schema: Any = SCHEMA) -> Any:
    return TableStream(stream._pipeline, stream._inputs, schema, "test")


def windows(assigner: Any, lateness: int = 0, **options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        keyed = table(stream).key_by("user")
        if assigner is None:
            return keyed.aggregate(n=agg.sum("n")).uid("sums").to_records()
        given = keyed.window(assigner)
        given = given.allowed_lateness(lateness) if lateness else given
        return given.aggregate(n=agg.sum("n")).uid("sums").to_records()

    return ColumnHarness(program, SCHEMA, **options)


def over(*keys: str, given: dict[str, Any], **options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        return table(stream).key_by(*keys).over(**given).aggregate(total=agg.sum("n")).to_records()

    return ColumnHarness(program, SCHEMA, **options)


def interval(
    lower: int, upper: int, how: Any = "inner", *, keys: tuple[int, ...] = (0,), **options: Any
) -> TwoColumnHarness:
    def program(left: Any, right: Any) -> Any:
        one = table(left).key_by(*(SCHEMA.names[place] for place in keys))
        other = table(right, RIGHT).key_by(*(RIGHT.names[place] for place in keys))
        return one.interval_join(other, lower, upper, how=how).to_records()

    return TwoColumnHarness(program, SCHEMA, RIGHT, **options)


def asof(tolerance: Any, **options: Any) -> TwoColumnHarness:
    def program(left: Any, right: Any) -> Any:
        other = table(right, RIGHT).key_by("who")
        return table(left).key_by("user").asof_join(other, tolerance=tolerance).to_records()

    return TwoColumnHarness(program, SCHEMA, RIGHT, **options)


def row(user: str, n: int, item: str = "i") -> dict[str, Any]:
    return {"user": user, "item": item, "n": n}


def paid(who: str, m: int, what: str = "i") -> dict[str, Any]:
    return {"who": who, "what": what, "m": m}


# ---- windows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TUMBLING, SLIDING),  # the first half of a window would be gone
        (SLIDING, TUMBLING),
        (TUMBLING, TumblingEventTimeWindows(20)),
        (TUMBLING, TumblingEventTimeWindows(10, 3)),
        (TUMBLING, CumulativeEventTimeWindows(10, 20)),
        (CumulativeEventTimeWindows(10, 20), TUMBLING),
        (TUMBLING, EventTimeSessionWindows(10)),
        (EventTimeSessionWindows(10), TUMBLING),
        (EventTimeSessionWindows(10), EventTimeSessionWindows(20)),
        (EventTimeSessionWindows(10), EventTimeSessionWindows(5)),
        (TUMBLING, None),
        (None, TUMBLING),
    ],
)
@pytest.mark.parametrize("open_ones", [True, False])
def test_other_windows_are_refused(old: Any, new: Any, open_ones: bool) -> None:
    with windows(old) as harness:
        harness.process_batch([row("a", 1)], [5])
        harness.process_watermark(15)
        if open_ones:
            harness.process_batch([row("a", 1)], [16])
        taken = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=REFUSED.format("its windows were .*, and are .* now")):
        windows(new, restored=taken)


@pytest.mark.parametrize("assigner", [TUMBLING, SLIDING])
def test_a_longer_lateness_is_refused(assigner: Any) -> None:
    with windows(assigner) as harness:
        harness.process_batch([row("a", 1)], [5])
        harness.process_watermark(45)
        taken = harness.snapshot()
    message = REFUSED.format("its allowed lateness was 0 ms, and is 100 ms now")
    with pytest.raises(IncompatibleStateError, match=message):
        windows(assigner, 100, restored=taken)


@pytest.mark.parametrize("assigner", [TUMBLING, SLIDING])
def test_a_shorter_lateness_emits_no_window_again(assigner: Any) -> None:
    with windows(assigner, 30) as harness:
        for stamp in (5, 15, 25, 35, 45):
            harness.process_batch([row("a", 1)], [stamp])
        harness.process_watermark(46)
        before = [value["window_end"] for value, _ in harness.records]
        taken = harness.snapshot()
    with windows(assigner, 0, restored=taken) as harness:
        harness.process_batch([row("a", 1)], [5])
        harness.process_watermark(MAX_WATERMARK)
        after = [value["window_end"] for value, _ in harness.records]
    assert len(before) == 4
    assert sorted({*before, *after}) == [*before, *after]


# ---- the last rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ({"rows": 2}, {"rows": 3}, "its rows= was 2 rows, and is 3 rows now"),
        ({"rows": 2}, {"range": 5}, "its rows= was 2 rows, and has no bound now"),
        ({"range": 5}, {"range": 50}, "its range= was 5 ms, and is 50 ms now"),
        ({"range": 5}, {"rows": 2}, "its range= was 5 ms, and has no bound now"),
    ],
)
def test_more_rows_than_were_kept_are_refused(old: Any, new: Any, problem: str) -> None:
    with over("user", given=old) as harness:
        harness.process_batch([row("a", 1), row("a", 2), row("a", 3)], [1, 2, 3])
        harness.process_watermark(100)
        taken = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=REFUSED.format(problem)):
        over("user", given=new, restored=taken)


@pytest.mark.parametrize(
    ("old", "new", "total"), [({"rows": 4}, {"rows": 2}, 103), ({"range": 9}, {"range": 2, "rows": 3}, 105)]
)
def test_fewer_rows_go_on(old: Any, new: Any, total: int) -> None:
    with over("user", given=old) as harness:
        harness.process_batch([row("a", 1), row("a", 2), row("a", 3)], [1, 2, 3])
        harness.process_watermark(3)
        taken = harness.snapshot()
    with over("user", given=new, restored=taken) as harness:
        harness.process_batch([row("a", 100)], [4])
        harness.process_watermark(MAX_WATERMARK)
        assert [value["total"] for value, _ in harness.records] == [total]


@pytest.mark.parametrize(("old", "new"), [(("user",), ("user", "item")), (("user", "item"), ("user",))])
def test_another_key_of_rows_is_refused(old: Any, new: Any) -> None:
    with over(*old, given={"rows": 2}) as harness:
        harness.process_batch([row("a", 1)], [1])
        taken = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=REFUSED.format("its key was user.*, and is user.* now")):
        over(*new, given={"rows": 2}, restored=taken)


# ---- joins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ((0, 5), (0, 50), "its bounds were 0 to 5 ms, and are 0 to 50 ms now"),
        ((0, 5), (-5, 5), "its bounds were 0 to 5 ms, and are -5 to 5 ms now"),
        ((3, 9), (0, 9), "its bounds were 3 to 9 ms, and are 0 to 9 ms now"),
        ((0, 5, "left"), (0, 4, "left"), "its bounds were 0 to 5 ms, and are 0 to 4 ms now"),
        ((0, 5), (0, 5, "left"), "it was a join with how='inner', and has how='left' now.*left rows"),
        ((0, 5), (0, 5, "right"), "it was a join with how='inner', and has how='right' now.*right rows"),
        ((0, 5, "left"), (0, 5, "full"), "it was a join with how='left', and has how='full' now.*right rows"),
    ],
)
@pytest.mark.parametrize("rows_left", [True, False])
def test_joins_that_need_other_rows_are_refused(old: Any, new: Any, problem: str, rows_left: bool) -> None:
    with interval(*old) as harness:
        harness.process_batch1([row("a", 1)], [1])
        harness.process_batch2([paid("a", 1)], [1])
        harness.process_watermark(3 if rows_left else 20_000)
        taken = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=REFUSED.format(problem)):
        interval(*new, restored=taken)


@pytest.mark.parametrize(
    ("old", "new"),
    [((-5, 5), (0, 3)), ((0, 3, "left"), (0, 3)), ((0, 3, "full"), (0, 3)), ((-2, 5, "full"), (0, 3))],
)
def test_joins_that_need_fewer_rows_go_on(old: Any, new: Any) -> None:
    with interval(*old) as harness:
        harness.process_batch1([row("a", n) for n in range(5)], list(range(5)))
        taken = harness.snapshot()
    with interval(*new, restored=taken) as harness:
        harness.process_batch2([paid("a", 7)], [4])
        harness.process_watermark(MAX_WATERMARK)
        assert sorted(value["n"] for value, _ in harness.records) == [1, 2, 3, 4]


@pytest.mark.parametrize(("old", "new"), [("full", "left"), ("full", "right")])
def test_a_full_join_may_become_one_of_a_side(old: Any, new: Any) -> None:
    with interval(0, 3, old) as harness:
        harness.process_batch1([row("a", 1), row("b", 2)], [1, 1])
        harness.process_batch2([paid("a", 7), paid("c", 8)], [2, 2])
        assert len(harness.records) == 1
        taken = harness.snapshot()
    with interval(0, 3, new, restored=taken) as harness:
        harness.process_watermark(MAX_WATERMARK)
        assert [(value["user"], value["n"], value["m"]) for value, _ in harness.records] == [
            ("b", 2, None) if new == "left" else ("c", None, 8)
        ]


@pytest.mark.parametrize(("old", "new"), [((0,), (0, 1)), ((0, 1), (0,))])
def test_another_key_of_a_join_is_refused(old: Any, new: Any) -> None:
    with interval(0, 3, keys=old) as harness:
        harness.process_batch1([row("a", 1)], [1])
        taken = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=REFUSED.format("its key was user.*, and is user.* now")):
        interval(0, 3, keys=new, restored=taken)


@pytest.mark.parametrize(("old", "new"), [(5, 50), (5, None)])
def test_a_longer_tolerance_is_refused(old: Any, new: Any) -> None:
    with asof(old) as harness:
        harness.process_batch2([paid("a", 1)], [1])
        harness.process_watermark(20_000)
        taken = harness.snapshot()
    with pytest.raises(IncompatibleStateError, match=REFUSED.format("its tolerance was 5 ms, and .* now")):
        asof(new, restored=taken)


def test_a_shorter_tolerance_goes_on() -> None:
    with asof(None) as harness:
        harness.process_batch2([paid("a", 1)], [1])
        harness.process_watermark(2)
        taken = harness.snapshot()
    with asof(5, restored=taken) as harness:
        harness.process_batch1([row("a", 1), row("a", 2)], [6, 7])
        harness.process_watermark(MAX_WATERMARK)
        assert [value["m"] for value, _ in harness.records] == [1, None]
