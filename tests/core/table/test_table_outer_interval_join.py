"""Outer interval joins in columns: the pairs of the inner join, and each row without one, when none can come."""

from __future__ import annotations

from itertools import count
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from effort import diagonal
from tests.core.table.column_harness import TwoColumnHarness, many_steps

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.columns.kept import timed_rows
from sluiceway.columns.keys import idle_keys
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import ConfigurationError
from sluiceway.operators.columns import interval_join
from sluiceway.table import TableStream, agg
from sluiceway.windows import TumblingEventTimeWindows

LEFT = pa.schema([("user", pa.string()), ("number", pa.int64())])
RIGHT = pa.schema([("who", pa.string()), ("paid", pa.int64())])
LATE: tuple[OutputTag[Any], OutputTag[Any]] = (OutputTag("late left"), OutputTag("late right"))
BOUNDS = [(0, 0), (-5, 5), (0, 7), (-7, 0), (3, 9), (-9, -3)]
HOWS = ["left", "right", "full"]


def joined(bounds: tuple[int, int], how: Any, **options: Any) -> TwoColumnHarness:
    def program(left: Any, right: Any) -> Any:
        one = TableStream(left._pipeline, left._inputs, LEFT, "left").key_by("user")
        other = TableStream(right._pipeline, right._inputs, RIGHT, "right").key_by("who")
        return one.interval_join(other, *bounds, how=how, left_late=LATE[0], right_late=LATE[1]).to_records()

    return TwoColumnHarness(program, LEFT, RIGHT, **options)


@pytest.mark.parametrize(("bounds", "how"), diagonal(BOUNDS, HOWS))
def test_rows_are_the_pairs_and_those_without_one(
    bounds: tuple[int, int], how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over restores at other parallelism, width of slices and backend; compared with the inner join."""
    seed = BOUNDS.index(bounds) + len(BOUNDS) * HOWS.index(how)
    monkeypatch.setattr(interval_join, "_LEAST_WIDTH", 4)
    monkeypatch.setattr(timed_rows, "_BURST", 3)
    monkeypatch.setattr(idle_keys, "_IDLE", 2)
    number = count()

    def batch(dice: Any, rows: list[Any]) -> Any:
        return dice.randrange(2), [(f"u{value}", next(number), time) for value, time in rows]

    def restore(dice: Any) -> Any:
        return dice.randrange(1, 4), dice.choice(["memory", "filesystem", "rocksdb"]), dice.choice([4, 4, 1000])

    found: list[Any] = []
    late: set[int] = set()
    given: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
    outer, inner = joined(bounds, how), joined(bounds, "inner")

    def take() -> None:
        found.extend(outer.records)
        for tag, name in zip(LATE, ("number", "paid"), strict=True):
            late.update(row[name] for row, _ in outer.side_records(tag))

    try:
        now = 0
        for step in many_steps(seed, batch, restore):
            if isinstance(step, int):
                now += step
                for each in (outer, inner):
                    each.process_watermark(now)
            elif len(step) == 3:
                taken = outer.snapshot()
                take()
                outer.close()
                parallelism, backend, width = step
                monkeypatch.setattr(interval_join, "_LEAST_WIDTH", width)
                outer = joined(bounds, how, parallelism=parallelism, state_backend=backend, restored=taken)
            else:
                port, triples = step
                names = (RIGHT if port else LEFT).names
                rows = [dict(zip(names, (user, value), strict=True)) for user, value, _ in triples]
                stamps = [now + apart - 6 for _, _, apart in triples]
                given[port].update(
                    {value: (user, at) for (user, value, _), at in zip(triples, stamps, strict=True)}
                )
                for each in (outer, inner):
                    (each.process_batch2 if port else each.process_batch1)(rows, stamps)
        for each in (outer, inner):
            each.process_watermark(MAX_WATERMARK)
        take()
        pairs = [((row["user"], row["number"], row["paid"]), at) for row, at in inner.records]
    finally:
        outer.close()
        inner.close()
    expected = list(pairs)
    matched = {left for (_, left, _), _ in pairs}, {right for (_, _, right), _ in pairs}
    for port, side in enumerate(("left", "right")):
        for value, (user, at) in given[port].items():
            if how in (side, "full") and value not in late and value not in matched[port]:
                expected.append(((user, None, value) if port else (user, value, None), at))
    assert len(expected) > len(pairs)
    result = [((row["user"], row["number"], row["paid"]), at) for row, at in found]
    assert sorted(result, key=repr) == sorted(expected, key=repr)


def test_a_row_comes_when_its_time_has_passed() -> None:
    with joined((-2, 5), "left") as harness:
        harness.process1({"user": "a", "number": 1}, 10)
        harness.process1({"user": "b", "number": 2}, 10)
        harness.process2({"who": "b", "paid": 3}, 15)
        harness.process_watermark(14)
        assert [row["number"] for row, _ in harness.records] == [2]
        harness.process_watermark(15)
        assert harness.records[1:] == [({"user": "a", "number": 1, "paid": None}, 10)]


def test_rows_with_a_match_are_saved_once_more() -> None:
    with joined((0, 100), "full") as harness:
        harness.process1({"user": "a", "number": 1}, 10)
        harness.snapshot()
        harness.process2({"who": "a", "paid": 3}, 15)
        taken = harness.snapshot()
    with joined((0, 100), "full", restored=taken) as harness:
        harness.process_watermark(MAX_WATERMARK)
        assert harness.records == []


_RNG = np.random.default_rng(5)
_STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1s").with_timestamp_column("at")


def _table(name: str, size: int) -> Any:
    times = np.arange(size) * 20 + _RNG.integers(0, 400, size)
    users = [f"user-{n}" for n in _RNG.integers(0, 200, size)]
    return pa.table({"user": users, name: np.arange(size), "at": pa.array(times, pa.timestamp("ms"))})


_CLICKS, _ORDERS = _table("click", 800), _table("order", 600)


@pytest.mark.parametrize(
    ("how", "options"), diagonal(HOWS, [{}, {"batch_size": 1, "parallelism": 3}, {"workers": 2}])
)
def test_rows_are_those_of_duckdb(how: Any, options: dict[str, Any]) -> None:
    clicks, orders = _CLICKS, _ORDERS  # noqa: F841 (DuckDB finds them by their names)
    expected = duckdb.sql(
        f'SELECT coalesce(c.user, o.user), click, "order" FROM clicks c {how} JOIN orders o ON c.user = o.user '
        'AND o."at" BETWEEN c."at" - INTERVAL 500 MILLISECOND AND c."at" + INTERVAL 3 SECOND'
    ).fetchall()
    flow = Pipeline()
    one = flow.table(_CLICKS, watermark_strategy=_STRATEGY).key_by("user")
    other = flow.table(_ORDERS, watermark_strategy=_STRATEGY).drop("at").key_by("user")
    rows = one.interval_join(other, "-500ms", "3s", how=how)
    found = rows.select("user", "click", "order").to_arrow(**options).to_pydict()
    assert sorted(zip(*found.values(), strict=True), key=repr) == sorted(expected, key=repr)
    # No row is late behind the join.
    sums = rows.key_by("user").window(TumblingEventTimeWindows("1s")).aggregate(n=agg.count())
    assert sum(sums.to_arrow(**options)["n"].to_pylist()) == len(expected)


def test_another_word_is_refused() -> None:
    flow = Pipeline()
    left, right = (flow.table(schema.empty_table()) for schema in (LEFT, RIGHT))
    with pytest.raises(ConfigurationError, match="how is 'inner', 'left', 'right' or 'full'"):
        left.key_by("user").interval_join(right.key_by("who"), 0, 1, how="outer")  # type: ignore[arg-type]
