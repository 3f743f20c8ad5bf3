"""Aggregates without windows that exceed the memory for them: the same results, from and to state of each form."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from effort import FEW, examples
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.table.column_harness import ColumnHarness

from sluiceway.columns.aggregation.sums import AggregateOverflowError
from sluiceway.elements import MAX_WATERMARK, Batch
from sluiceway.errors import IncompatibleStateError, StateError
from sluiceway.serializers import decode_rows
from sluiceway.state import VOID_NAMESPACE
from sluiceway.table import TableStream, agg

SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("number", pa.int32()),
        ("day", pa.date32()),
        ("cents", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.int64()),
        ("weight", pa.float64()),
    ]
)
KEYS = [("user",), ("number",), ("user", "number"), ("day",), ("cents",), ("at", "user")]
RUNNING = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "weight_sum": agg.sum("weight"),
    "mean": agg.mean("cents"),
    "low": agg.min("user"),
    "last": agg.last("at"),
    "different": agg.count_distinct("price"),
    "spread": agg.variance("weight"),
}
TOTALS = {
    **RUNNING,
    "prices": agg.collect("price"),
    "top": agg.top_k("price", 2),
    "median": agg.quantile("weight", 0.5),
}
LARGE = 2**62
PLAIN = {"n": agg.count(), "total": agg.sum("price")}
ROWS = st.fixed_dictionaries(
    {
        "user": st.sampled_from(["a", "b", "c", "d", "", None]),
        "number": st.integers(0, 5) | st.none(),
        "day": st.sampled_from([dt.date(2026, 1, 1), dt.date(1, 1, 1), None]),
        "cents": st.sampled_from([Decimal("1.00"), Decimal("-0.10"), Decimal("0.00")]),
        "at": st.sampled_from(
            [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC), None]
        ),
        "price": st.sampled_from([0, 1, 7, LARGE]) | st.none(),
        "weight": st.sampled_from([0.1, 1e16, -3.0, None]),
    }
)
PLACES = st.tuples(
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["memory", "filesystem", "rocksdb", "rocksdb"]),
    st.sampled_from([1, 6000]),
)
"""Parallelism, backend, and the bytes of memory for aggregates with RocksDB."""

STEPS = st.lists(st.lists(ROWS, min_size=1, max_size=8) | PLACES, max_size=8)


def harness(kind: str, keys: tuple[str, ...], memory: int, named: Any = None, **options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by(*keys)
        if kind == "distinct":
            return table.distinct().uid("it").to_records()
        if kind == "running":
            return table.running(**(named or RUNNING)).uid("it").to_records()
        return table.aggregate(**(named or TOTALS)).uid("it").to_records()

    with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS=str(memory)):
        return ColumnHarness(program, SCHEMA, **options)


def results(kind: str, keys: tuple[str, ...], steps: list[Any], *, one_by_one: bool = False) -> list[Any]:
    """Return what comes of rows, with the restarts that are among them; a sum that is too large ends it."""
    found, at = [], 0
    one = harness(kind, keys, 1)
    try:
        for step in steps:
            if isinstance(step, tuple):
                taken = one.snapshot()
                found += one.records
                one.close()
                one = harness(kind, keys, step[2], parallelism=step[0], state_backend=step[1], restored=taken)
                continue
            for part in [[row] for row in step] if one_by_one else [step]:
                one.process_batch(part, list(range(at, at + len(part))))
                at += len(part)
        one.process_watermark(MAX_WATERMARK)
        found += one.records
    except AggregateOverflowError:
        return ["overflow"]
    finally:
        one.close()
    return sorted((repr(value), time) for value, time in found)


TOO_LARGE = {
    "user": "a",
    "number": 1,
    "day": None,
    "cents": Decimal("1.00"),
    "at": None,
    "price": LARGE,
    "weight": 0.1,
}


@examples(FEW, 300)
@example("running", ("user",), [[TOO_LARGE], (1, "rocksdb", 1), [TOO_LARGE]], False)
@example("totals", ("user",), [[TOO_LARGE, TOO_LARGE]], True)
@given(st.sampled_from(["running", "totals", "distinct"]), st.sampled_from(KEYS), STEPS, st.booleans())
def test_results_are_those_of_state_in_memory(
    kind: str, keys: tuple[str, ...], steps: list[Any], one_by_one: bool
) -> None:
    if not any(isinstance(step, list) for step in steps):
        return
    expected = results(kind, keys, [step for step in steps if isinstance(step, list)])
    assert results(kind, keys, [(2, "rocksdb", 1), *steps], one_by_one=one_by_one) == expected


def row(user: str, price: int = 1) -> dict[str, Any]:
    return dict.fromkeys(SCHEMA.names) | {"user": user, "price": price}


def many(count: int) -> list[dict[str, Any]]:
    return [row(f"u{number}") for number in range(count)]


def tables(taken: Any) -> dict[str, set[int]]:
    """Return the key groups in which a snapshot has each table."""
    found: dict[str, set[int]] = {}
    for operator in taken.operators:
        if operator.keyed is not None:
            for group, data in operator.keyed.groups.items():
                for line in decode_rows(data):
                    found.setdefault(operator.keyed.tables[line.table].name, set()).add(group)
    return found


def test_keys_leave_memory_and_blocks_leave_the_state() -> None:
    with harness("running", ("user",), 60_000, PLAIN, state_backend="rocksdb") as one:
        one.process_batch(many(100), list(range(100)))
        slices: Any = one._subtasks[0].operators[0]._slices  # type: ignore[attr-defined]
        assert "slices in columns" in tables(one.snapshot())
        assert "keys in columns" not in tables(one.snapshot())
        for begin in range(100, 5000, 100):
            one.process_batch(many(begin + 100)[begin:], list(range(begin, begin + 100)))
        assert slices._size() < 90_000
        taken = one.snapshot()
        assert "slices in columns" not in tables(taken)
        assert "keys in columns" in tables(taken)
        assert {r["n"] for r in one.process_batch(many(100), list(range(100)))} == {2}
    with harness("running", ("user",), 60_000, PLAIN, state_backend="memory", restored=taken) as one:
        assert {r["n"] for r in one.process_batch(many(5000), list(range(5000)))} == {2}
        back = one.snapshot()
        assert "slices in columns" in tables(back)
        assert "keys in columns" not in tables(back)
    with harness("running", ("user",), 60_000, PLAIN, state_backend="rocksdb", restored=back) as one:
        assert {r["n"] for r in one.process_batch(many(5000), list(range(5000)))} == {3}


def test_a_checkpoint_has_the_keys_that_have_changed() -> None:
    with harness("running", ("user",), 60_000, PLAIN, state_backend="rocksdb") as one:
        one.process_batch(many(5000), list(range(5000)))
        one.snapshot()
        operator: Any = one._subtasks[0].operators[0]
        written: list[int] = []
        cold = operator._slices._cold
        write = cold.write
        cold.write = lambda of, at: (written.append(len(at)), write(of, at))
        one.process_batch(many(3), [1, 2, 3])
        one.snapshot()
        assert sum(written) == 3
        written.clear()
        one.snapshot()
        assert sum(written) == 0


def test_columns_may_change_as_they_may_in_blocks() -> None:
    with harness("totals", ("user",), 1, PLAIN, state_backend="rocksdb") as one:
        one.process_batch(many(20), list(range(20)))
        one.process_batch([row("large", LARGE)], [1])  # a sum in several parts, others in one
        taken = one.snapshot()
    for backend in ("memory", "rocksdb"):
        fewer = {"total": PLAIN["total"]}
        with harness("totals", ("user",), 1, fewer, state_backend=backend, restored=taken) as one:
            one.process_batch(many(2), [1, 2])
            one.process_watermark(MAX_WATERMARK)
            found = {
                value["user"]: value["total"]
                for value, _ in one.records
                if value["total"] is None or value["total"] < LARGE
            }
            assert found == {f"u{n}": 2 if n < 2 else 1 for n in range(20)}
        with pytest.raises(IncompatibleStateError, match="of its aggregates, 'total' was sum"):
            harness("totals", ("user",), 1, {"total": agg.max("price")}, state_backend=backend, restored=taken)


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_damaged_keys_are_named(backend: str, form: bool) -> None:
    with harness("running", ("user",), 1, state_backend="rocksdb") as one:
        one.process_batch(many(20), list(range(20)))
        one.snapshot()
        operator: Any = one._subtasks[0].operators[0]
        table = operator._slices._cold._table
        spaces = [space for space in table.namespaces() if (space != VOID_NAMESPACE) == form]
        for space in spaces:
            entries = table.entries(space)
            for key in list(entries):
                entries[key] = entries[key][:-2]
        taken = one.snapshot()
    with pytest.raises(StateError, match=r"state 'keys in columns' of step .* cannot be read: "):  # noqa: SIM117
        with harness("running", ("user",), 1, state_backend=backend, restored=taken) as one:
            one.process_batch(many(20), list(range(20)))


def test_times_that_python_does_not_have_are_named() -> None:
    with harness("totals", ("day",), 1, state_backend="rocksdb") as one:
        data = pa.RecordBatch.from_arrays(
            [
                pa.array([3_000_000], pa.int32()).view(pa.date32()) if name == "day" else pa.nulls(1, kind)
                for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)
            ],
            schema=SCHEMA,
        )
        operator: Any = one._subtasks[0].operators[0]
        with pytest.raises(StateError, match="Cast the column of the key to an integer"):
            operator.process(Batch.of_columns(data, None))


def test_keys_of_other_types_stay_in_memory() -> None:
    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("weight")
        return table.running(n=agg.count()).uid("it").to_records()

    with patch.dict("os.environ", SLUICEWAY_ROCKSDB_COLUMNS="1"):
        one = ColumnHarness(program, SCHEMA, state_backend="rocksdb")
    with one:
        for zero in (0.0, -0.0):
            found = one.process_batch([row("a") | {"weight": zero}], [1])
        assert found[0]["n"] == 2
        assert "keys in columns" not in tables(one.snapshot())
