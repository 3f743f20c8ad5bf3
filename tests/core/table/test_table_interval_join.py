"""Interval joins in columns: equal to those of records, at any batch size and parallelism, and to DuckDB's."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from effort import first
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.table.column_harness import TwoColumnHarness, many_steps

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.columns.kept import timed_rows
from sluiceway.columns.keys import idle_keys
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import ConfigurationError, GraphError, IncompatibleStateError
from sluiceway.operators.columns import interval_join
from sluiceway.table import TableStream, col
from sluiceway.testing import TwoInputOperatorHarness

LEFT = pa.schema([("user", pa.string()), ("item", pa.int32()), ("number", pa.int64())])
RIGHT = pa.schema([("who", pa.dictionary(pa.int32(), pa.string())), ("thing", pa.int32()), ("paid", pa.int64())])
LATE: tuple[OutputTag[Any], OutputTag[Any]] = (OutputTag("late left"), OutputTag("late right"))
BACKENDS = ["memory", "filesystem", "rocksdb"]
BOUNDS = [(0, 0), (-5, 5), (0, 7), (-7, 0), (3, 9), (-9, -3), (5, 5)]


def in_columns(bounds: tuple[int, int], **options: Any) -> TwoColumnHarness:
    def program(left: Any, right: Any) -> Any:
        one = TableStream(left._pipeline, left._inputs, LEFT, "left").key_by("user", "item")
        other = TableStream(right._pipeline, right._inputs, RIGHT, "right").key_by("who", "thing")
        return one.interval_join(other, *bounds, left_late=LATE[0], right_late=LATE[1]).to_records()

    return TwoColumnHarness(program, LEFT, RIGHT, **options)


def in_records(bounds: tuple[int, int]) -> TwoInputOperatorHarness:
    def program(left: Any, right: Any) -> Any:
        one = left.key_by(lambda row: (row["user"], row["item"]))
        other = right.key_by(lambda row: (row["who"], row["thing"]))
        joined = one.interval_join(other).between(*bounds).side_output_left_late_data(LATE[0])
        return joined.side_output_right_late_data(LATE[1]).apply(lambda a, b: {**a, "paid": b["paid"]})

    return TwoInputOperatorHarness(program)


ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.integers(0, 99))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 1), st.lists(st.tuples(ROWS, st.integers(0, 20)), min_size=1, max_size=8)),
        st.integers(0, 12),
        st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(BACKENDS), st.sampled_from([1, 4, 1000])),
    ),
    max_size=14,
)


def fed(harness: Any, port: int, rows: list[Any], stamps: list[int]) -> None:
    feed = harness.process_batch2 if port else harness.process_batch1
    feed(rows, stamps)


@settings(deadline=None)
@given(st.sampled_from(BOUNDS), STEPS)
def test_pairs_are_those_of_records(bounds: tuple[int, int], steps: list[Any]) -> None:
    compare(bounds, steps)


@pytest.mark.parametrize("seed", first(len(BOUNDS), range(14)))
def test_many_pairs_are_those_of_records(seed: int) -> None:
    def batch(dice: Any, rows: list[Any]) -> Any:
        return dice.randrange(2), [(("ab"[number % 2], number % 2, number), time) for number, time in rows]

    def restore(dice: Any) -> Any:
        return dice.randrange(1, 4), dice.choice(BACKENDS), dice.choice([4, 4, 1000])

    compare(BOUNDS[seed % len(BOUNDS)], many_steps(seed, batch, restore))


def compare(bounds: tuple[int, int], steps: list[Any]) -> None:
    found: list[Any] = []
    late: tuple[list[Any], list[Any]] = ([], [])

    def take(columns: Any) -> None:
        found.extend(columns.records)
        for each, tag in zip(late, LATE, strict=True):
            each.extend(columns.side_records(tag))

    with pytest.MonkeyPatch.context() as patch, in_records(bounds) as records:
        patch.setattr(interval_join, "_LEAST_WIDTH", 4)
        patch.setattr(timed_rows, "_BURST", 3)
        patch.setattr(idle_keys, "_IDLE", 2)
        columns = in_columns(bounds)
        try:
            now = 0
            for step in steps:
                if isinstance(step, int):
                    now += step
                    records.process_watermark(now)
                    columns.process_watermark(now)
                elif len(step) == 3:
                    taken = columns.snapshot()
                    take(columns)
                    columns.close()
                    parallelism, backend, width = step
                    patch.setattr(interval_join, "_LEAST_WIDTH", width)
                    columns = in_columns(bounds, parallelism=parallelism, state_backend=backend, restored=taken)
                else:
                    port, given_rows = step
                    names = (RIGHT if port else LEFT).names
                    rows = [dict(zip(names, row, strict=True)) for row, _ in given_rows]
                    stamps = [now + apart - 6 for _, apart in given_rows]
                    fed(records, port, rows, stamps)
                    fed(columns, port, rows, stamps)
            take(columns)
        finally:
            columns.close()
        assert sorted(found, key=repr) == sorted(records.records, key=repr)
        for each, tag in zip(late, LATE, strict=True):
            assert sorted(each, key=repr) == sorted(records.side_records(tag), key=repr)


@pytest.mark.parametrize("bounds", BOUNDS)
def test_rows_at_the_watermark_have_the_matches_of_records(bounds: tuple[int, int]) -> None:
    def drive(harness: Any) -> Any:
        for start, watermark in ((0, None), (10, 10), (10, None), (12, 12), (12, None)):
            if watermark is not None:
                harness.process_watermark(watermark)
            for time in range(start, 16):
                harness.process1({"user": "a", "item": 1, "number": time}, time)
                harness.process2({"who": "a", "thing": 1, "paid": time}, time)
        return sorted(harness.records, key=repr)

    with in_columns(bounds) as columns, in_records(bounds) as records:
        assert drive(columns) == drive(records)


def test_rows_are_forgotten_when_nothing_can_match_them() -> None:
    with in_columns((-2000, 6000)) as columns:
        operator: Any = columns._subtasks[0].operators[0]
        sizes = []
        for second in range(0, 200, 4):
            for port, names in enumerate((LEFT.names, RIGHT.names)):
                rows = [dict(zip(names, (f"u{second % 8}", n % 3, n), strict=True)) for n in range(10)]
                fed(columns, port, rows, [second * 1000 + n for n in range(10)])
            columns.process_watermark(second * 1000)
            sizes.append([len(side) for side in operator._sides])
        # Left rows stay for 6 s, right ones for 2 s, and up to a slice of 2 s longer.
        assert max(left for left, _ in sizes) <= 30
        assert max(right for _, right in sizes) <= 20
        columns.process_watermark(MAX_WATERMARK)
        assert [len(side) for side in operator._sides] == [0, 0]
        columns.snapshot()
        assert not list(operator.backend.table(interval_join._LEFT).namespaces())


def test_small_batches_become_few_runs_and_are_written_once() -> None:
    row = {"user": "a", "item": 1, "number": 1}
    with in_columns((0, 100)) as columns:
        side: Any = columns._subtasks[0].operators[0]._sides[0]  # type: ignore[attr-defined]
        for n in range(300):
            columns.process1(row, n)
        assert side.runs < 12
        columns.snapshot()
        before = {run.number for runs in side._slices.values() for run in runs if run.saved}
        columns.process1(row, 301)
        after = {run.number for runs in side._slices.values() for run in runs if run.saved}
        assert len(before) >= 2
        assert before - after <= {max(before)}  # the large ones stay as they are


def test_rows_of_a_snapshot_get_new_columns_or_are_refused() -> None:
    global LEFT
    with in_columns((0, 5)) as columns:
        columns.process1({"user": "a", "item": 1, "number": 1}, 1)
        taken = columns.snapshot()
    kept = LEFT
    try:
        LEFT = kept.append(pa.field("note", pa.string()))
        with in_columns((0, 5), restored=taken) as columns:
            (found,) = columns.process2({"who": "a", "thing": 1, "paid": 2}, 2)
            assert found["note"] is None
        LEFT = kept.append(pa.field("note", pa.string(), nullable=False))
        with pytest.raises(
            IncompatibleStateError, match=r"the rows in its snapshot: column 'note' \(string\) is new"
        ):
            in_columns((0, 5), restored=taken)
    finally:
        LEFT = kept


# ---- whole jobs ------------------------------------------------------------------------------------------------

_RNG = np.random.default_rng(5)
_STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1s").with_timestamp_column("at")


def _table(name: str, size: int) -> Any:
    return pa.table(
        {
            "user": [f"user-{n}" for n in _RNG.integers(0, 30, size)],
            name: np.arange(size),
            "at": pa.array(np.arange(size) * 20 + _RNG.integers(0, 400, size), pa.timestamp("ms")),
        }
    )


_CLICKS, _ORDERS = _table("click", 2000), _table("order", 1500)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"chaining": False, "parallelism": 3},
        pytest.param({"workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_pairs_are_those_of_duckdb(options: dict[str, Any]) -> None:
    clicks, orders = _CLICKS, _ORDERS  # noqa: F841 (DuckDB finds them by their names)
    expected = duckdb.sql(
        'SELECT click, "order" FROM clicks c JOIN orders o ON c.user = o.user '
        'AND o."at" BETWEEN c."at" - INTERVAL 500 MILLISECOND AND c."at" + INTERVAL 3 SECOND'
    ).fetchall()
    flow = Pipeline()
    one = flow.table(_CLICKS, watermark_strategy=_STRATEGY).key_by("user")
    other = flow.table(_ORDERS, watermark_strategy=_STRATEGY).key_by("user")
    joined = one.interval_join(other, "-500ms", "3s", suffix="_of_order")
    assert joined.schema.names == ["user", "click", "at", "order", "at_of_order"]
    found = joined.with_columns(apart=col("at_of_order") - col("at")).to_arrow(**options)
    assert sorted(zip(found["click"].to_pylist(), found["order"].to_pylist(), strict=True)) == sorted(expected)


def test_a_pair_has_the_later_event_time() -> None:
    with in_columns((-5, 5)) as columns:
        columns.process1({"user": "a", "item": 1, "number": 1}, 10)
        columns.process2({"who": "a", "thing": 1, "paid": 2}, 8)
        columns.process2({"who": "a", "thing": 1, "paid": 3}, 12)
        assert [(row["paid"], stamp) for row, stamp in columns.records] == [(2, 10), (3, 12)]


def _tables(names: tuple[str, ...] = ("user",), **types: Any) -> tuple[TableStream, Any]:
    flow = Pipeline()
    fields = {"user": pa.string(), "n": pa.int64()} | types
    left = flow.table(pa.schema([("user", pa.string()), ("n", pa.int64())]).empty_table())
    return left, flow.table(pa.schema(list(fields.items())).empty_table()).key_by(*names)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: _tables(), GraphError, "both streams have columns 'n': give suffix='_right'"),
        (lambda: _tables(user=pa.int64()), GraphError, r"keys are user: string on the left and user: int64"),
        (lambda: _tables(("user", "n")), GraphError, r"user: string on the left and user: string, n: int64 on"),
    ],
)
def test_mistakes_are_found_where_they_are_made(build: Any, error: Any, message: str) -> None:
    left, right = build()
    with pytest.raises(error, match=message) as raised:
        left.key_by("user").interval_join(right, 0, 1)
    assert "test_table_interval_join.py" in str(raised.value)


def test_other_mistakes() -> None:
    left, right = _tables()
    keyed = left.key_by("user")
    with pytest.raises(ConfigurationError, match=r"interval_join\('5s', '1s'\) .*lower bound is above the upper"):
        keyed.interval_join(right, "5s", "1s", suffix="_r")
    with pytest.raises(TypeError, match=r"takes a stream in columns by key, not .*call key_by"):
        keyed.interval_join(left, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="belong to different pipelines"):
        keyed.interval_join(_tables()[1], 0, 1)
    with pytest.raises(TypeError, match="takes an OutputTag for late rows"):
        keyed.interval_join(right, 0, 1, suffix="_r", left_late="late")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="would have two columns 'n_r'"):
        left.with_columns(n_r=col("n")).key_by("user").interval_join(right, 0, 1, suffix="_r")
    with pytest.raises(TypeError, match="suffix is a text"):
        keyed.interval_join(right, 0, 1, suffix="")
    with pytest.raises(GraphError, match="are one side output"):
        keyed.interval_join(right, 0, 1, suffix="_r", left_late=LATE[0], right_late=LATE[0])
