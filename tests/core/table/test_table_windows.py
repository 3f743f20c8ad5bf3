"""Windows in columns: equal to those of records, at any batch size and parallelism, and to DuckDB's."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from effort import FEW, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.table.column_harness import ColumnHarness

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.columns.aggregation import slices
from sluiceway.columns.keys import idle_keys
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import GraphError, IncompatibleStateError, UnstableKeyError
from sluiceway.functions import ProcessWindowFunction
from sluiceway.operators.columns import merged_slices
from sluiceway.operators.columns import windows as column_windows
from sluiceway.operators.columns.slicing import WindowSlices
from sluiceway.table import TableStream, agg
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

SCHEMA = pa.schema([("user", pa.string()), ("item", pa.int32()), ("price", pa.int64())])
LATE: OutputTag[Any] = OutputTag("late")
IN_SLICES = [
    TumblingEventTimeWindows(10),
    TumblingEventTimeWindows(10, 3),
    SlidingEventTimeWindows(20, 10),
    SlidingEventTimeWindows(15, 6, 2),
    SlidingEventTimeWindows(14, 1),
    CumulativeEventTimeWindows(5, 20),
    CumulativeEventTimeWindows(5, 20, 7),
    CumulativeEventTimeWindows(1, 16, 3),
]
SESSIONS = [EventTimeSessionWindows(1), EventTimeSessionWindows(4), EventTimeSessionWindows(10)]
BACKENDS = ["memory", "filesystem", "rocksdb"]
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "high": agg.max("price"),
    "prices": agg.collect("price"),
    "first": agg.first("price"),
    "different": agg.count_distinct("price"),
}


class InRecords(ProcessWindowFunction[Any, Any, Any]):
    """The same aggregates from all rows of a window."""

    def __init__(self, assigner: Any) -> None:
        self.merging = isinstance(assigner, EventTimeSessionWindows)

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        rows = list(elements)
        prices = [row["price"] for row in rows if row["price"] is not None]
        found = {"n": len(rows), "total": sum(prices) if prices else None, "high": max(prices, default=None)}
        found |= {"prices": prices, "first": prices[0] if prices else None, "different": len(set(prices))}
        window = context.window()
        yield in_order((*key, window.start, window.end, found), self.merging)


def in_order(row: Any, merging: bool) -> Any:
    """Return a result without the order of rows where windows merge: records are put in another one."""
    if merging:
        row[-1]["prices"] = sorted(row[-1]["prices"])
        del row[-1]["first"]
    return row


def in_columns(assigner: Any, lateness: int = 0, named: Any = NAMED, **options: Any) -> OperatorHarness:
    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user", "item")
        if assigner is None:
            return table.aggregate(**named).to_records()
        windows = table.window(assigner).side_output_late_data(LATE)
        if lateness:
            windows = windows.allowed_lateness(lateness)
        return windows.aggregate(**named).to_records()

    return ColumnHarness(program, SCHEMA, **options)


def in_records(assigner: Any, lateness: int = 0) -> OperatorHarness:
    return OperatorHarness(
        lambda stream: (
            stream.key_by(lambda row: (row["user"], row["item"]))
            .window(assigner)
            .side_output_late_data(LATE)
            .allowed_lateness(lateness)
            .process(InRecords(assigner))
        )
    )


def row_of(found: dict[str, Any]) -> tuple[Any, ...]:
    start, end = (int(found.pop(name).timestamp() * 1000) for name in ("window_start", "window_end"))
    return (found.pop("user"), found.pop("item"), start, end, found)


ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.integers(0, 3) | st.none())
STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(ROWS, st.integers(0, 15)), min_size=1, max_size=8),
        st.integers(0, 20),
        st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(BACKENDS)),
    ),
    max_size=10,
)


@pytest.fixture(autouse=True, scope="module")
def _small_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slices, "CHUNK", 2)
        patched.setattr(slices, "KEYS_OF_CHANGES", 0)
        patched.setattr(merged_slices, "_BITS", 1)
        yield


@examples(FEW, 300)
@given(st.sampled_from(IN_SLICES + SESSIONS), STEPS)
def test_windows_are_those_of_records(assigner: Any, steps: list[Any]) -> None:
    compare(assigner, 0, steps)


@examples(FEW, 300)
@given(st.sampled_from(IN_SLICES), st.integers(1, 25), STEPS, st.booleans())
def test_late_rows_have_the_results_of_records(
    assigner: Any, lateness: int, steps: list[Any], lists: bool
) -> None:
    compare(assigner, lateness, steps, NAMED if lists else {n: a for n, a in NAMED.items() if n != "prices"})


@examples(FEW, 300)
@given(st.sampled_from(SESSIONS), st.integers(1, 25), STEPS)
def test_late_rows_of_sessions_have_the_results_of_records(assigner: Any, lateness: int, steps: list[Any]) -> None:
    compare(assigner, lateness, steps)


@settings(deadline=None, max_examples=10)  # databases are opened for each
@given(st.sampled_from(IN_SLICES), st.sampled_from([0, 0, 15]), STEPS)
def test_windows_that_are_in_the_state_alone_are_those_of_records(
    assigner: Any, lateness: int, steps: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLUICEWAY_ROCKSDB_COLUMNS", "1b")
        only = [(step[0], "rocksdb") if isinstance(step, tuple) else step for step in steps]
        compare(assigner, lateness, only, state_backend="rocksdb")


def test_slices_are_in_memory_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_COLUMNS", "8kb")
    rows = [{"user": f"u{number}", "item": 1, "price": number} for number in range(100)]
    for backend, most in (("rocksdb", 6), ("memory", 10)):
        with in_columns(TumblingEventTimeWindows(10), named={"n": agg.count()}, state_backend=backend) as columns:
            operator: Any = columns._subtasks[0].operators[0]
            for start in range(0, 100, 10):
                columns.process_batch(rows, [start] * 100)
            assert len(operator._slices) == 10
            assert len(operator._slices._in_memory) <= most
            columns.process_batch(rows[:50], [5] * 50)  # the first one is read again, and changed
            taken = columns.snapshot()
            found = columns.process_watermark(30)
            assert [row["n"] for row in found] == [2] * 50 + [1] * 250
        with in_columns(
            TumblingEventTimeWindows(10),
            named={"n": agg.count()},
            state_backend=backend,
            restored=taken,
            parallelism=2,
        ) as columns:
            assert sorted(row["n"] for row in columns.process_watermark(MAX_WATERMARK)) == [1] * 950 + [2] * 50


def test_changed_aggregates_are_refused_before_rows_also_of_slices_that_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_COLUMNS", "1b")
    options: Any = {"state_backend": "rocksdb"}
    with in_columns(TumblingEventTimeWindows(10), named={"n": agg.count()}, **options) as columns:
        for start in (0, 10, 20):
            columns.process_batch([{"user": "a", "item": 1, "price": 1}], [start])
        taken = columns.snapshot()
    with pytest.raises(IncompatibleStateError, match=r"'total' was not there, and is sum\('price'\)"):
        in_columns(TumblingEventTimeWindows(10), named={"total": agg.sum("price")}, restored=taken, **options)


def compare(assigner: Any, lateness: int, steps: list[Any], named: Any = NAMED, **options: Any) -> None:
    expected: list[Any] = []
    found: list[Any] = []
    late: list[Any] = []
    columns = in_columns(assigner, lateness, named, **options)
    with in_records(assigner, lateness) as records:
        try:
            now = 0
            for step in steps:
                if isinstance(step, int):
                    now += step
                    expected += records.process_watermark(now)
                    found += columns.process_watermark(now)
                elif isinstance(step, tuple):
                    taken = columns.snapshot()
                    late += columns.side_records(LATE)
                    columns.close()
                    parallelism, backend = step
                    columns = in_columns(
                        assigner, lateness, named, parallelism=parallelism, state_backend=backend, restored=taken
                    )
                else:
                    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row, _ in step]
                    stamps = [now + apart - 10 for _, apart in step]
                    expected += records.process_batch(rows, stamps)
                    found += columns.process_batch(rows, stamps)
            expected += records.process_watermark(MAX_WATERMARK)
            found += columns.process_watermark(MAX_WATERMARK)
            late += columns.side_records(LATE)
        finally:
            columns.close()
        by = repr
        for *_, row in expected:
            for name in set(row) - set(named):
                del row[name]
        merging = isinstance(assigner, EventTimeSessionWindows)
        assert sorted((in_order(row_of(row), merging) for row in found), key=by) == sorted(expected, key=by)
        assert sorted(late, key=by) == sorted(records.side_records(LATE), key=by)


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(10), SlidingEventTimeWindows(20, 10)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backlog_of_windows_is_not_walked_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch, assigner: Any, backend: str
) -> None:
    walked = 0
    last_end = WindowSlices.last_end

    def counted(slicing: WindowSlices, start: int) -> int:
        nonlocal walked
        walked += 1
        return last_end(slicing, start)

    monkeypatch.setattr(WindowSlices, "last_end", counted)
    with in_columns(assigner, 5, {"n": agg.count()}, state_backend=backend) as windows:
        stamps = random.Random(1).sample(range(0, 5000, 10), 500)
        windows.process_batch([{"user": "a", "item": 1, "price": 1}] * 500, stamps)
        walked = 0
        ends = [row["window_end"] for row in windows.process_watermark(MAX_WATERMARK)]
    assert len(ends) == len(set(ends)) == 500 + (assigner.size_ms == 20)
    assert ends == sorted(ends)
    assert walked < 500 * 2 * 30, "each looks for its place among the others by halves"


@pytest.mark.parametrize("aggregate", [agg.count(), agg.collect("price")], ids=["running", "collected"])
def test_a_late_row_walks_over_the_slices_of_its_windows_alone(
    monkeypatch: pytest.MonkeyPatch, aggregate: Any
) -> None:
    walked = 0
    window_start = WindowSlices.window_start

    def counted(slicing: WindowSlices, end: int) -> int:
        nonlocal walked
        walked += 1
        return window_start(slicing, end)

    row = {"user": "a", "item": 1, "price": 1}
    with in_columns(SlidingEventTimeWindows(20, 10), 5000, {"found": aggregate}) as windows:
        windows.process_batch([row] * 500, range(0, 5000, 10))
        windows.process_watermark(4999)
        monkeypatch.setattr(WindowSlices, "window_start", counted)
        results = windows.process_batch([row], [2000])
    assert [one["found"] for one in results] == ([3, 3] if aggregate.kind == "count" else [[1, 1, 1]] * 2)
    assert walked < 20


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "assigner",
    [SlidingEventTimeWindows(6000, 10), CumulativeEventTimeWindows(10, 6000)],
    ids=["sliding", "cumulative"],
)
def test_a_window_of_many_slices_is_not_merged_of_each_of_them(
    monkeypatch: pytest.MonkeyPatch, assigner: Any, backend: str
) -> None:
    merged = 0
    merge = slices.AggregateSlice.merge

    def counted(into: slices.AggregateSlice, other: slices.AggregateSlice) -> None:
        nonlocal merged
        merged += 1
        merge(into, other)

    monkeypatch.setattr(slices.AggregateSlice, "merge", counted)
    monkeypatch.setattr(merged_slices, "_BITS", 4)
    rows = [({"user": "a", "item": 1, "price": number}, 10 * number) for number in range(1200)]
    late = [({"user": "a", "item": 1, "price": 1}, at) for at in (5999, 6000, 9000)]
    with in_columns(assigner, 0, {"n": agg.count(), "total": agg.sum("price")}, state_backend=backend) as windows:
        windows.process_batch(*zip(*rows, strict=True))
        found = windows.process_watermark(6000)
        windows.process_batch(*zip(*late, strict=True))  # the first of them is in windows that are over, too
        found += windows.process_watermark(MAX_WATERMARK)
        operator: Any = windows._subtasks[0].operators[0]
        assert not operator._slices
        assert not list(operator._slices.holders())
    for row in found:
        start, end = (int(row[name].timestamp() * 1000) for name in ("window_start", "window_end"))
        prices = [row["price"] for row, at in (rows if end <= 6000 else rows + late) if start <= at < end]
        assert (row["n"], row["total"]) == (len(prices), sum(prices))
    assert merged < len(found) * 50


def test_merged_intervals_keep_to_a_part_of_the_memory_while_windows_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_COLUMNS", "16kb")
    rows = [{"user": f"u{number}", "item": 1, "price": number} for number in range(50)]
    with in_columns(SlidingEventTimeWindows(640, 10), 0, {"n": agg.count()}, state_backend="rocksdb") as windows:
        for at in range(0, 640, 10):
            windows.process_batch(rows, [at] * 50)
        found = windows.process_watermark(649)
        merged = windows._subtasks[0].operators[0]._slices._merged  # type: ignore[attr-defined]
        assert 0 < merged.nbytes <= 4 << 10
    counts = {number: [row["n"] for row in found].count(number) for number in range(1, 65)}
    assert counts == {**dict.fromkeys(range(1, 63), 50), 63: 100, 64: 50}


def test_results_come_in_the_order_of_windows_and_arrival() -> None:
    with in_columns(TumblingEventTimeWindows(10)) as columns:
        rows = [{"user": user, "item": 1, "price": 1} for user in "cabcb"]
        columns.process_batch(rows, [1, 12, 3, 11, 2])
        columns.process_watermark(MAX_WATERMARK)
        order = [(row["user"], stamp) for row, stamp in columns.records]
    assert order == [("c", 9), ("b", 9), ("a", 19), ("c", 19)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restored_job_does_not_open_windows_that_are_over(backend: str) -> None:
    row = {"user": "a", "item": 1, "price": 1}
    with in_columns(TumblingEventTimeWindows(10), state_backend=backend) as columns:
        columns.process_batch([row, row], [5, 15])
        assert len(columns.process_watermark(9)) == 1
        taken = columns.snapshot()
    with in_columns(TumblingEventTimeWindows(10), state_backend=backend, restored=taken) as columns:
        columns.process_batch([row, row], [6, 16])  # no watermark has come yet
        assert [found["n"] for found in columns.process_watermark(MAX_WATERMARK)] == [2]
        assert columns.side_records(LATE) == [(row, 6)]


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("named", [NAMED, {"n": agg.count()}])
def test_each_late_row_has_a_result(size: int, named: Any) -> None:
    row = {"user": "a", "item": 1, "price": 1}
    other = {"user": "b", "item": 1, "price": 1}
    with in_columns(TumblingEventTimeWindows(10), 5, named) as columns:
        operator: Any = columns._subtasks[0].operators[0]
        columns.process_batch([row, other], [5, 25])
        assert [found["n"] for found in columns.process_watermark(12)] == [1]
        late, stamps = [row, other, row, row, other], [6, 7, 8, 15, 5]
        for at in range(0, 5, size):
            columns.process_batch(late[at : at + size], stamps[at : at + size])
        found = [(found["user"], found["n"], stamp) for found, stamp in columns.records[1:]]
        assert found == [("a", 2, 9), ("b", 1, 9), ("a", 3, 9), ("b", 2, 9)]
        assert columns.process_watermark(13) == []
        assert sorted(operator._slices) == [0, 10, 20]
        assert columns.process_watermark(14) == []
        assert sorted(operator._slices) == [10, 20]
        columns.process_batch([row], [9])
        assert columns.side_records(LATE) == [(row, 9)]


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(10), EventTimeSessionWindows(4)])
def test_keys_of_late_rows_are_forgotten(monkeypatch: pytest.MonkeyPatch, assigner: Any) -> None:
    monkeypatch.setattr(idle_keys, "_IDLE", 10)
    with in_columns(assigner) as columns:
        operator: Any = columns._subtasks[0].operators[0]
        columns.process_batch([{"user": "open", "item": 1, "price": 1}], [5000])
        for now in range(100, 200):
            columns.process_watermark(now)
            columns.process_batch([{"user": str(now), "item": 1, "price": 1}], [5])
        assert len(operator._keys) < 30
        assert [row["user"] for row in columns.process_watermark(6000)] == ["open"]


FLOATS = pa.schema([("user", pa.string()), ("item", pa.int32()), ("price", pa.float64())])
RUNNING = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "mean": agg.mean("price"),
    "spread": agg.variance("price"),
    "high": agg.max("price"),
    "first": agg.first("price"),
    "last": agg.last("price"),
    "different": agg.count_distinct("item"),
    "items": agg.sum("item"),
}


@pytest.mark.parametrize("assigner", [SlidingEventTimeWindows(15, 6, 2), CumulativeEventTimeWindows(5, 20)])
def test_late_rows_in_one_batch_have_the_results_of_row_by_row(
    assigner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also sums of floats, to the last bit; and equal to evaluating the windows once for each row."""
    monkeypatch.setattr(column_windows, "_LATE_RESULTS", 10)

    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, FLOATS, "test").key_by("user")
        return table.window(assigner).allowed_lateness(17).aggregate(**RUNNING).to_records()

    def results(size: int, *, by_row: bool = False) -> list[str]:
        dice = random.Random(3)
        with ColumnHarness(program, FLOATS) as columns:
            if by_row:
                columns._subtasks[0].operators[0]._has_running = False
            now = 0
            for _ in range(6):
                rows = [
                    {
                        "user": dice.choice("ab"),
                        "item": dice.randrange(3),
                        "price": dice.choice([None, dice.random()]),
                    }
                    for _ in range(12)
                ]
                stamps = [now + dice.randrange(-40, 10) for _ in rows]
                for at in range(0, len(rows), size):
                    columns.process_batch(rows[at : at + size], stamps[at : at + size])
                now += dice.randrange(12)
                columns.process_watermark(now)
            columns.process_watermark(MAX_WATERMARK)
            return [repr(record) for record in columns.records]

    whole = results(12)
    assert len(whole) > 30
    assert results(1) == whole
    assert sorted(results(12, by_row=True)) == sorted(whole)


def test_late_results_are_in_the_order_of_rows_and_windows() -> None:
    rows = [{"user": user, "item": 1, "price": 1} for user in "abab"]
    with in_columns(SlidingEventTimeWindows(20, 10), 50) as columns:
        columns.process_watermark(35)
        columns.process_batch(rows, [5, 15, 15, 5])
        found = [(row["user"], row["n"], stamp) for row, stamp in columns.records]
    of_a, of_b = [(1, 9), (1, 19)], [(1, 19), (1, 29)]
    more = [("a", 2, 19), ("a", 1, 29), ("b", 1, 9), ("b", 2, 19)]
    assert found == [*(("a", *each) for each in of_a), *(("b", *each) for each in of_b), *more]


def test_only_slices_that_have_changed_are_written_again() -> None:
    row = {"user": "a", "item": 1, "price": 1}
    with in_columns(TumblingEventTimeWindows(10)) as columns:
        operator: Any = columns._subtasks[0].operators[0]
        columns.process_batch([row, row], [5, 15])
        columns.snapshot()
        columns.process_batch([row], [15])
        assert [[n for n, _ in each.take_changes()] for each in operator._slices.values()] == [[], [0]]


def test_windows_with_other_borders_are_refused() -> None:
    with in_columns(TumblingEventTimeWindows(10)) as columns:
        columns.process_batch([{"user": "a", "item": 1, "price": 1}], [5])
        taken = columns.snapshot()
    with pytest.raises(IncompatibleStateError, match=r"its windows were Tumbling.*10ms.*, and are Tumbling.*15ms"):
        in_columns(TumblingEventTimeWindows(15), restored=taken)


def test_without_windows_results_come_at_the_end() -> None:
    rows = [{"user": user, "item": 1, "price": price} for user, price in [("b", 1), ("a", 2), ("b", None)]]
    with in_columns(None) as columns:
        columns.process_batch(rows[:2])
        taken = columns.snapshot()
    with in_columns(None, parallelism=2, restored=taken) as columns:
        columns.process_batch(rows[2:])
        assert columns.process_watermark(10**15) == []
        found = columns.process_watermark(MAX_WATERMARK)
    assert sorted((row["user"], row["n"], row["total"]) for row in found) == [("a", 1, 2), ("b", 2, 1)]


# ---- whole jobs ------------------------------------------------------------------------------------------------

_RNG = np.random.default_rng(11)
_SIZE = 4000
_ORDERS = pa.table(
    {
        "user": [f"user-{n}" for n in _RNG.integers(0, 40, _SIZE)],
        "price": pa.array(_RNG.integers(0, 1000, _SIZE) / 4, mask=_RNG.random(_SIZE) < 0.1),
        "at": pa.array(np.arange(_SIZE) * 10 + _RNG.integers(0, 500, _SIZE), pa.timestamp("ms")),
    }
)
_STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1s").with_timestamp_column("at")


def _windows(assigner: Any) -> TableStream:
    table = Pipeline().table(_ORDERS).assign_timestamps_and_watermarks(_STRATEGY)
    return table.key_by("user").window(assigner).aggregate(
        n=agg.count("price"), total=agg.sum("price"), low=agg.min("price"), spread=agg.stddev("price"),
        first=agg.first("price"), prices=agg.collect("price"),
    )  # fmt: skip


def _sorted(found: Any) -> list[Any]:
    return sorted(found.to_pylist(), key=lambda row: (row["window_end"], row["user"]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"chaining": False, "parallelism": 3},
        pytest.param({"workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_tumbling_windows_are_those_of_duckdb(options: dict[str, Any]) -> None:
    orders = _ORDERS  # noqa: F841 (DuckDB finds it by its name)
    expected = duckdb.sql(
        "SELECT user, count(price) n, sum(price) total, min(price) low, stddev(price) spread, "
        'epoch_ms(time_bucket(INTERVAL 5 SECOND, "at")) window_start FROM orders GROUP BY ALL'
    ).fetchall()
    found = _windows(TumblingEventTimeWindows("5s")).to_arrow(**options)
    rows = [
        (row["user"], row["n"], row["total"], row["low"], row["spread"], row["window_start"].timestamp() * 1000)
        for row in _sorted(found)
    ]
    expected.sort(key=lambda row: (row[-1], row[0]))
    assert len(rows) == len(expected)
    for mine, theirs in zip(rows, expected, strict=True):
        assert (*mine[:4], mine[5]) == (*theirs[:4], theirs[5])
        assert mine[4] == (theirs[4] and pytest.approx(theirs[4], rel=1e-9))


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"chaining": False, "parallelism": 3}])
def test_sessions_are_those_of_duckdb(options: dict[str, Any]) -> None:
    orders = _ORDERS  # noqa: F841 (DuckDB finds it by its name)
    expected = duckdb.sql(
        'WITH t AS (SELECT user, price, epoch_ms("at"::TIMESTAMP) ms FROM orders), '
        "a AS (SELECT *, ms > lag(ms) OVER (PARTITION BY user ORDER BY ms) + 300 AS new FROM t), "
        "b AS (SELECT *, count(*) FILTER (new) OVER (PARTITION BY user ORDER BY ms) number FROM a) "
        "SELECT user, min(ms), max(ms) + 300, count(price), sum(price), min(price) "
        "FROM b GROUP BY user, number"
    ).fetchall()
    found = [
        (
            row["user"],
            *(round(row[name].timestamp() * 1000) for name in ("window_start", "window_end")),
            *(row[name] for name in ("n", "total", "low")),
        )
        for row in _windows(EventTimeSessionWindows("300ms")).to_arrow(**options).to_pylist()
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert len(found) > 500


@pytest.mark.parametrize(
    "assigner",
    [
        SlidingEventTimeWindows("10s", "3s"),
        SlidingEventTimeWindows("20s", "100ms"),
        CumulativeEventTimeWindows("2s", "8s"),
        EventTimeSessionWindows("300ms"),
    ],
)
def test_no_bit_depends_on_batches(assigner: Any) -> None:
    whole = _windows(assigner).to_arrow()
    for size in (1, 7):
        assert _windows(assigner).to_arrow(batch_size=size).equals(whole)


def test_late_rows_come_out_at_the_side() -> None:
    flow = Pipeline()
    orders = pa.table({"user": ["a"] * 82, "at": [1000, *[60_000] * 80, 2000]})
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    table = flow.table(orders).assign_timestamps_and_watermarks(strategy)
    counted = table.key_by("user").window(TumblingEventTimeWindows("10s")).side_output_late_data(LATE)
    result = counted.aggregate(n=agg.count())
    late, rows = result.get_side_output(LATE).collect(), result.collect()
    flow.run(batch_size=1)
    assert late == [{"user": "a", "at": 2000}]
    assert [row["n"] for row in rows] == [1, 80]
    has = r"get_side_output\('later'\) .* has no such output; .* side_output_late_data\(tag\), .* left_late=tag"
    with pytest.raises(GraphError, match=has):
        result.get_side_output(OutputTag("later"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda t: t.key_by("usr"), "there is no column 'usr'; did you mean 'user'?"),
        (lambda t: t.key_by("who"), "there is no column 'who'; the columns are"),
        (lambda t: t.key_by("user", "user"), "a column is named twice"),
        (lambda t: t.key_by("tags"), r"column 'tags' is of type list<item: string>, which cannot be a key"),
        (
            lambda t: t.key_by("user").aggregate(x=agg.sum("pricee")),
            r"sum\('pricee'\) names column 'pricee', .* did you mean 'price'\?",
        ),
        (lambda t: t.key_by("user").aggregate(x=agg.sum("user")), r"'user' of type string: it takes integers"),
        (lambda t: t.key_by("user").aggregate(user=agg.count()), "a column 'user' already"),
        (
            lambda t: t.key_by("user").window(TumblingEventTimeWindows(1)).aggregate(window_end=agg.count()),
            "a column 'window_end' already",
        ),
        (
            lambda t: t.key_by("user").window(EventTimeSessionWindows.with_dynamic_gap(lambda row: 1)),
            r"not EventTimeSessionWindows\(dynamic gap\): use to_records\(\)",
        ),
        (lambda t: t.key_by("user").window(TumblingProcessingTimeWindows("1s")), "windows of event time, and not"),
        (lambda t: t.key_by("user").window(SlidingEventTimeWindows(5, 10)), r"sliding \(without gaps\)"),
        (
            lambda t: t.key_by("user").window(GlobalWindows()),
            r"no GlobalWindows\(\): rows of several senders have no order, .* depends on arrival: use over"
            r"\(rows=n\).*running\(\).*to_records\(\)\.key_by\(\.\.\.\)\.count_window\(n\)\. Totals .* no window",
        ),
    ],
)
def test_mistakes_are_found_where_they_are_made(build: Any, message: str) -> None:
    schema = pa.schema([("user", pa.string()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))])
    with pytest.raises(GraphError, match=message) as raised:
        build(Pipeline().table(schema.empty_table()))
    assert "test_table_windows.py" in str(raised.value)


@pytest.mark.parametrize("texts", [["a", "b"], ["a", "b" * 100]])  # long ones go through a dict
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_that_is_no_number_is_refused_with_its_column(parallelism: int, texts: list[str]) -> None:
    data = pa.table({"user": texts, "whole": [1, 2], "share": [1.5, float("nan")], "at": [1, 2]})
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    flow = Pipeline()
    keyed = flow.table(data, watermark_strategy=strategy).key_by("user", "whole", "share")
    for step in (
        keyed.aggregate(n=agg.count()),
        keyed.running(n=agg.count()),
        keyed.distinct(),
        keyed.over(rows=2).aggregate(n=agg.count()),
        keyed.window(EventTimeSessionWindows(5)).aggregate(n=agg.count()),
    ):
        with pytest.raises(
            UnstableKeyError, match=r"column 'share': nan \(float\) cannot be a key: NaN is not equal"
        ):
            step.to_arrow(parallelism=parallelism)


def test_windows_of_counts_are_refused_with_the_reason() -> None:
    table: Any = Pipeline().table(_ORDERS)
    with pytest.raises(
        AttributeError, match=r"no count_window; rows of several senders have no order.*over\(rows=n\)"
    ):
        table.key_by("user").count_window(3)
    with pytest.raises(AttributeError, match=r"no count_window\(\): key_by\(\) first"):
        table.count_window(3)


@pytest.mark.parametrize(
    "aggregated",
    [
        lambda keyed: keyed.aggregate(agg.count()),
        lambda keyed: keyed.running(agg.count()),
        lambda keyed: keyed.over(rows=2).aggregate(agg.count()),
        lambda keyed: keyed.window(TumblingEventTimeWindows(10)).aggregate(agg.count()),
    ],
)
def test_an_aggregate_without_a_name_is_refused(aggregated: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"test_table_windows.py:\d+ takes aggregates by name, .*given .*count"):
        aggregated(Pipeline().table(_ORDERS).key_by("user"))


def test_what_is_no_aggregate_is_refused() -> None:
    keyed = Pipeline().table(_ORDERS).key_by("user")
    with pytest.raises(TypeError, match=r'takes aggregates, as in x=agg.sum\("price"\), not'):
        keyed.aggregate(x="sum")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes at least one aggregate"):
        keyed.aggregate()
    with pytest.raises(TypeError, match="takes a WindowAssigner"):
        keyed.window("10s")  # type: ignore[arg-type]


def test_a_key_may_not_have_the_name_of_a_column_of_windows() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    table = Pipeline().table(pa.table({"window_start": [1], "at": [1]}), watermark_strategy=strategy)
    with pytest.raises(GraphError, match="'window_start' of its own"):
        table.key_by("window_start").window(TumblingEventTimeWindows("1s")).aggregate(n=agg.count())


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}])
def test_values_of_extension_types_come_out_as_they_went_in(options: dict[str, Any]) -> None:
    ids = [uuid.UUID(int=n) for n in (5, 2, 9, 4)]
    stored: list[Any] = [
        (pa.bool8(), pa.array([1, 0, None, 1], pa.int8())),
        (pa.uuid(), pa.array([one.bytes for one in ids], pa.binary(16))),
        (pa.json_(), pa.array(["1", "3", "2", None])),
    ]
    for kind, storage in stored:
        values: Any = pa.ExtensionArray.from_storage(kind, storage)
        rows = Pipeline().table(pa.table({"k": [1] * 4, "v": values})).key_by("k")
        named = {name: getattr(agg, name)("v") for name in ("first", "last", "min", "max", "count_distinct")}
        found = rows.aggregate(**named).to_arrow(**options)
        known = [value for value in values.to_pylist() if value is not None]
        (row,) = found.to_pylist()
        assert row == {
            "k": 1,
            "first": known[0],
            "last": known[-1],
            "min": min(known),
            "max": max(known),
            "count_distinct": len(set(known)),
        }
        assert found.schema.field("min").type == kind
        running = rows.running(so_far=agg.last("v")).to_arrow(**options)
        assert running["so_far"].to_pylist()[-1] == known[-1]


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(10), EventTimeSessionWindows(4)])
def test_aggregates_may_have_the_names_of_columns_of_the_state(assigner: Any) -> None:
    names = ("position", "start", "end", "arrival", "rows", "key user")
    named = {name: agg.sum("price") for name in names} | {"n": agg.count()}
    with in_columns(assigner, named=named) as before:
        before.process_batch([{"user": "a", "item": 1, "price": 5}, {"user": "b", "item": 2, "price": 7}], [1, 2])
        taken = before.snapshot()
    fewer = {name: named[name] for name in ("n", *names[1:])}
    for later in (named, fewer):
        with in_columns(assigner, named=later, restored=taken) as after:
            after.process_batch([{"user": "a", "item": 1, "price": 6}], [3])
            after.process_watermark(20)
            found = {row["user"]: [row[name] for name in later] for row in after.values}
        assert found == {
            "a": [2 if name == "n" else 11 for name in later],
            "b": [1 if name == "n" else 7 for name in later],
        }


@pytest.mark.parametrize("size", [10, 20])
def test_sums_beyond_floats_are_infinite_without_a_warning(size: int) -> None:
    inf = float("inf")
    rows = pa.table({"k": [1] * 6, "x": [inf, 1.0, 1e308, 1e308, -inf, 1e308], "at": [1, 12, 23, 24, 35, 46]})
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    stream = Pipeline().table(rows, watermark_strategy=strategy).key_by("k")
    found = stream.window(SlidingEventTimeWindows(size, 10)).aggregate(s=agg.sum("x"), m=agg.mean("x")).to_arrow()
    wanted = [inf, 1.0, inf, -inf, 1e308] if size == 10 else [inf, inf, inf, "nan", -inf, 1e308]
    sums = found["s"].to_pylist()
    assert [("nan" if number != number else number) for number in sums][: len(wanted)] == wanted
