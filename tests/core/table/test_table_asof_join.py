"""As-of joins in columns: equal to those of records, at any batch size and parallelism, and to DuckDB's."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from effort import FEW, examples, first
from hypothesis import given
from hypothesis import strategies as st
from tests.core.table.column_harness import TwoColumnHarness, many_steps

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.columns.kept import due_rows, keyed_runs
from sluiceway.columns.keys import idle_keys
from sluiceway.elements import MAX_WATERMARK, Watermark
from sluiceway.errors import ConfigurationError, GraphError
from sluiceway.operators.columns import asof_join
from sluiceway.table import TableStream, col
from sluiceway.testing import TwoInputOperatorHarness

LEFT = pa.schema([("user", pa.string()), ("number", pa.int64())])
RIGHT = pa.schema([("who", pa.string()), ("price", pa.int64()), ("words", pa.list_(pa.string()))])
LATE: OutputTag[Any] = OutputTag("late")
BACKENDS = ["memory", "filesystem", "rocksdb"]
SETTINGS: list[dict[str, Any]] = [{}, {"tolerance": 0}, {"tolerance": 7}, {"tolerance": 7, "how": "inner"}]


def in_columns(given_settings: dict[str, Any], **options: Any) -> TwoColumnHarness:
    def program(left: Any, right: Any) -> Any:
        one = TableStream(left._pipeline, left._inputs, LEFT, "left").key_by("user")
        other = TableStream(right._pipeline, right._inputs, RIGHT, "right").key_by("who")
        return one.asof_join(other, left_late=LATE, **given_settings).to_records()

    return TwoColumnHarness(program, LEFT, RIGHT, **options)


def in_records(given_settings: dict[str, Any]) -> TwoInputOperatorHarness:
    def joined(left: Any, right: Any) -> Any:
        return {**left, "price": right and right["price"], "words": right and right["words"]}

    def program(left: Any, right: Any) -> Any:
        one, other = left.key_by(lambda row: row["user"]), right.key_by(lambda row: row["who"])
        return one.asof_join(other, **given_settings).side_output_left_late_data(LATE).apply(joined)

    return TwoInputOperatorHarness(program)


USERS = st.sampled_from(["a", "b", None])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 1), st.lists(st.tuples(USERS, st.integers(0, 20)), min_size=1, max_size=8)),
        st.integers(0, 12),
        st.tuples(st.just("restore"), st.sampled_from([1, 2, 3]), st.sampled_from(BACKENDS)),
    ),
    max_size=14,
)


@examples(FEW, 300)
@given(st.sampled_from(SETTINGS), STEPS)
def test_rows_are_those_of_records(given_settings: dict[str, Any], steps: list[Any]) -> None:
    compare(given_settings, steps)


@pytest.mark.parametrize("seed", first(len(SETTINGS), range(16)))
def test_many_rows_are_those_of_records(seed: int) -> None:
    def batch(dice: Any, rows: list[Any]) -> Any:
        return dice.randrange(2), [("ab"[number % 2], time) for number, time in rows]

    def restore(dice: Any) -> Any:
        return "restore", dice.randrange(1, 4), dice.choice(BACKENDS)

    compare(SETTINGS[seed % len(SETTINGS)], many_steps(seed, batch, restore))


def compare(given_settings: dict[str, Any], steps: list[Any]) -> None:
    found: list[Any] = []
    late: list[Any] = []

    def take(columns: Any) -> None:
        found.extend(columns.records)
        late.extend(columns.side_records(LATE))

    with pytest.MonkeyPatch.context() as patch, in_records(given_settings) as records:
        patch.setattr(asof_join, "_BURST", 3)
        patch.setattr(idle_keys, "_IDLE", 2)
        patch.setattr(keyed_runs, "_PAUSE", 2)
        patch.setattr(due_rows, "_STEP", 300)
        columns = in_columns(given_settings)
        try:
            now = count = 0
            for step in steps:
                if isinstance(step, int):
                    now += step
                    records.process_watermark(now)
                    columns.process_watermark(now)
                elif len(step) == 3:
                    taken = columns.snapshot()
                    take(columns)
                    columns.close()
                    columns = in_columns(
                        given_settings, parallelism=step[1], state_backend=step[2], restored=taken
                    )
                else:
                    rows: list[Any] = []
                    for user, _ in step[1]:
                        count += 1
                        rows.append({"who": user, "price": count, "words": [str(count)]})
                        if not step[0]:
                            rows[-1] = {"user": user, "number": count}
                    stamps = [now + apart - 6 for _, apart in step[1]]
                    for harness in (records, columns):
                        feed = harness.process_batch2 if step[0] else harness.process_batch1
                        feed(rows, stamps)
            records.process_watermark(MAX_WATERMARK)
            columns.process_watermark(MAX_WATERMARK)
            take(columns)
        finally:
            columns.close()
        assert sorted(found, key=repr) == sorted(records.records, key=repr)
        assert sorted(late, key=repr) == sorted(records.side_records(LATE), key=repr)


def test_rows_come_in_order_of_time_when_the_watermark_reaches_them() -> None:
    with in_columns({}) as columns:
        columns.process_batch2([{"who": "a", "price": n, "words": None} for n in (4, 2)], [4, 2])
        columns.process_batch1([{"user": "a", "number": n} for n in (5, 3, 9, 1)], [5, 3, 9, 1])
        assert [(row["number"], row["price"]) for row in columns.process_watermark(5)] == [
            (1, None),
            (3, 2),
            (5, 4),
        ]
        assert [(row["number"], row["price"]) for row in columns.process_watermark(9)] == [(9, 4)]


def test_key_groups_that_were_restored_from_different_watermarks_join_by_their_own() -> None:
    """As after an unaligned checkpoint, whose barriers may have been faster than watermarks in some subtasks."""
    users = [f"u{n}" for n in range(12)]
    with in_columns({}, parallelism=2) as columns:
        columns.process_batch1([{"user": user, "number": 1} for user in users], [120] * len(users))
        columns.process_batch2([{"who": user, "price": 100, "words": None} for user in users], [100] * len(users))
        for subtask, watermark in zip(columns._subtasks, (100, 200), strict=True):
            subtask.control(Watermark(watermark))
        first = [row for row, _ in columns.records]
        taken = columns.snapshot()
    assert 0 < len(first) < len(users)
    with in_columns({}, restored=taken) as columns:
        assert columns.process_watermark(150) == []
        columns.process_batch2([{"who": user, "price": 140, "words": None} for user in users], [140] * len(users))
        rest = columns.process_watermark(300)
    assert sorted((row["user"], row["price"]) for row in first + rest) == sorted((user, 100) for user in users)


def _operator(columns: Any) -> Any:
    return columns._subtasks[0].operators[0]


@pytest.mark.parametrize(("given_settings", "kept"), [({}, 8), ({"tolerance": 8000}, 4)])
def test_the_latest_right_row_of_a_key_is_kept(given_settings: dict[str, Any], kept: int) -> None:
    with in_columns(given_settings) as columns:
        operator = _operator(columns)
        for second in range(200):
            who = f"u{second % 8}" if second < 100 else f"u{second % 3}"
            columns.process2({"who": who, "price": second, "words": ["x"]}, second * 1000)
            columns.process1({"user": who, "number": second}, second * 1000 + 1)
            columns.process_watermark(second * 1000)
        columns.snapshot()
        assert len({id_ for ids in operator._latest.used_ids() for id_ in ids.tolist()}) <= kept
        assert len(operator._latest) <= 2 * kept
        assert len(operator._waiting) + len(operator._coming) <= 1
        names = asof_join._WAITING, asof_join._COMING, asof_join._LATEST
        tables = (operator.backend.table(name) for name in names)
        assert sum(len(list(table.namespaces())) for table in tables) <= 6


# ---- whole jobs ------------------------------------------------------------------------------------------------

_RNG = np.random.default_rng(7)
_STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1s").with_timestamp_column("at")


def _table(name: str, size: int) -> Any:
    at = np.arange(size) * 20 + _RNG.integers(0, 400, size)
    return pa.table(
        {
            "user": [f"user-{n}" for n in _RNG.integers(0, 30, size)],
            name: np.arange(size),
            "at": pa.array(at, pa.timestamp("ms")),
        }
    )


_SALES, _PRICES = _table("sale", 2000), _table("price", 800)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"chaining": False, "parallelism": 3},
        pytest.param({"workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_rows_are_those_of_duckdb(options: dict[str, Any]) -> None:
    sales, prices = _SALES, _PRICES.group_by(["user", "at"]).aggregate([("price", "max")])  # noqa: F841
    expected = duckdb.sql(
        'SELECT sale, price_max FROM sales s ASOF LEFT JOIN prices p ON s.user = p.user AND s."at" >= p."at"'
    ).fetchall()
    flow = Pipeline()
    one = flow.table(_SALES, watermark_strategy=_STRATEGY).key_by("user")
    prices_of = flow.table(_PRICES, watermark_strategy=_STRATEGY)
    joined = one.asof_join(prices_of.key_by("user"), suffix="_of_price")
    assert joined.schema.names == ["user", "sale", "at", "price", "at_of_price"]
    found = joined.with_columns(age=col("at") - col("at_of_price")).to_arrow(**options)
    assert found["at"].to_pylist() == sorted(_SALES["at"].to_pylist()) or options
    assert sorted(zip(found["sale"].to_pylist(), found["price"].to_pylist(), strict=True)) == sorted(expected)


def test_mistakes_are_found_where_they_are_made() -> None:
    flow = Pipeline()
    left, right = (flow.table(schema.empty_table()) for schema in (LEFT, RIGHT))
    keyed, other = left.key_by("user"), right.key_by("who")
    with pytest.raises(ConfigurationError, match=r"asof_join\(how='outer'\) .*how is 'left' or 'inner'"):
        keyed.asof_join(other, how="outer")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"asof_join\(tolerance='long'\)"):
        keyed.asof_join(other, tolerance="long")
    with pytest.raises(GraphError, match=r"asof_join\(\) .*both streams have columns 'price'"):
        left.with_columns(price=1).key_by("user").asof_join(other)
    assert keyed.asof_join(other).schema.field("price").nullable
