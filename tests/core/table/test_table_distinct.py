"""First rows of keys in columns: those that a loop over the rows finds, at any batch size and parallelism."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from effort import FEW, diagonal, examples
from hypothesis import given
from hypothesis import strategies as st
from tests.core.table.column_harness import ColumnHarness

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.columns.aggregation import slices
from sluiceway.elements import MAX_WATERMARK
from sluiceway.errors import GraphError, IncompatibleStateError
from sluiceway.table import TableStream, agg
from sluiceway.windows import SlidingEventTimeWindows, TumblingEventTimeWindows

SCHEMA = pa.schema([("user", pa.string()), ("number", pa.int64())])
LATE: OutputTag[Any] = OutputTag("late")
BACKENDS = ["memory", "filesystem", "rocksdb"]


def harness(assigner: Any, **options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        keyed = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user")
        if assigner is None:
            return keyed.distinct().uid("it").to_records()
        return keyed.window(assigner).side_output_late_data(LATE).distinct().to_records()

    return ColumnHarness(program, SCHEMA, **options)


STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 25)), min_size=1, max_size=8)
    | st.integers(0, 15)
    | st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(BACKENDS)),
    max_size=10,
)


@examples(FEW, 300)
@given(st.sampled_from([None, TumblingEventTimeWindows(10)]), STEPS)
def test_first_rows_are_those_of_a_loop(assigner: Any, steps: list[Any]) -> None:
    one, now, count, watermarks = harness(assigner), 0, 0, 0
    seen, expected, expected_late, found, late = set(), [], [], [], []
    try:
        for step in steps:
            if isinstance(step, int):
                now += step
                watermarks += 1
                assert one.process_watermark(now) == []
            elif isinstance(step, tuple):
                taken = one.snapshot()
                late += one.side_records(LATE) if assigner else []
                one.close()
                one = harness(assigner, parallelism=step[0], state_backend=step[1], restored=taken)
            else:
                rows = [{"user": user, "number": count + at} for at, (user, _) in enumerate(step)]
                stamps = [now + apart - 15 for _, apart in step]
                count += len(rows)
                found += one.process_batch(rows, stamps)
                for row, stamp in zip(rows, stamps, strict=True):
                    window = 0 if assigner is None else stamp // 10
                    if assigner is not None and watermarks and window * 10 + 9 <= now:
                        expected_late.append((row, stamp))
                        continue
                    if (window, row["user"]) not in seen:
                        seen.add((window, row["user"]))
                        expected.append(row)
        late += one.side_records(LATE) if assigner else []
    finally:
        one.close()
    assert sorted(found, key=lambda row: row["number"]) == expected
    assert sorted(late, key=lambda pair: pair[0]["number"]) == expected_late


def test_keys_of_windows_that_are_over_are_forgotten() -> None:
    with harness(TumblingEventTimeWindows(10)) as one:
        operator: Any = one._subtasks[0].operators[0]
        one.process_batch([{"user": user, "number": 1} for user in "abc"], [1, 2, 15])
        one.process_watermark(9)
        assert list(operator._slices) == [10]
        one.snapshot()
        assert list(operator._blocks.namespaces()) == [(10, 20)]
        one.process_watermark(MAX_WATERMARK)
        assert not operator._slices


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_new_keys_are_written(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(slices, "CHUNK", 10)
    rows = [{"user": f"u{number}", "number": number} for number in range(95)]
    with harness(None, state_backend=backend) as one:
        operator: Any = one._subtasks[0].operators[0]
        one.process_batch(rows[:25])
        one.snapshot()
        one.process_batch(rows[:35])
        assert [number for number, _ in operator._slices[0].take_changes()] == [2, 3]
        operator._slices[0].find(operator._keys.find([pa.array([row["user"] for row in rows[20:35]])]))
        taken = one.snapshot()
    with harness(None, state_backend=backend, parallelism=3, restored=taken) as one:
        assert one.process_batch(rows[:40]) == rows[35:40] or len(one.records) == 5
        taken = one.snapshot()
    with harness(None, state_backend=backend, restored=taken) as one:
        assert one.process_batch(rows) == rows[40:]
        operator = one._subtasks[0].operators[0]
        one.snapshot()
        assert sorted(map(len, operator._blocks.namespaces())) == [2, *[3] * 9]
        taken = one.snapshot()
    with harness(None, state_backend=backend, restored=taken) as one:
        assert one.process_batch(rows) == []


_RNG = np.random.default_rng(3)
_SIZE = 3000
_CLICKS = pa.table(
    {
        "user": [f"user-{n}" for n in _RNG.integers(0, 300, _SIZE)],
        "page": _RNG.integers(0, 3, _SIZE),
        "number": np.arange(_SIZE),
        "at": pa.array(np.arange(_SIZE) * 10, pa.timestamp("ms")),
    }
)


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        *diagonal([{"batch_size": 1}, {"chaining": False, "parallelism": 3}], [False, True]),
        pytest.param({"workers": 2}, False, marks=pytest.mark.slow),
    ],
)
def test_first_rows_are_those_of_duckdb(options: dict[str, Any], windows: bool) -> None:
    clicks = _CLICKS  # noqa: F841 (DuckDB finds it by its name)
    more = ', time_bucket(INTERVAL 5 SECOND, "at")' if windows else ""
    expected = duckdb.sql(
        f"SELECT * FROM clicks QUALIFY row_number() OVER (PARTITION BY user, page{more} ORDER BY number) = 1 "
        "ORDER BY number"
    ).fetchall()
    strategy: Any = WatermarkStrategy.for_bounded_out_of_orderness("1min").with_timestamp_column("at")
    keyed = Pipeline().table(_CLICKS, watermark_strategy=strategy).set_parallelism(1).key_by("user", "page")
    firsts = keyed.window(TumblingEventTimeWindows("5s")).distinct() if windows else keyed.distinct()
    found = firsts.to_arrow(**options).sort_by("number").to_pylist()
    assert [tuple(row.values()) for row in found] == expected


def test_state_of_aggregates_is_refused() -> None:
    def totals(stream: Any) -> Any:
        keyed = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user")
        return keyed.aggregate(n=agg.count()).uid("it").to_records()

    with ColumnHarness(totals, SCHEMA) as one:
        one.process_batch([{"user": "a", "number": 1}])
        taken = one.snapshot()
    with pytest.raises(IncompatibleStateError, match=r"of its aggregates, 'n' was count\(\): int64, and is not"):
        harness(None, restored=taken)


def test_windows_without_one_first_row_are_refused() -> None:
    keyed = Pipeline().table(_CLICKS).key_by("user")
    with pytest.raises(GraphError, match=r"SlidingEventTimeWindows\(.*\) has none"):
        keyed.window(SlidingEventTimeWindows(10, 5)).distinct()
