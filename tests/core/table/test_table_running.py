"""Running aggregates and first rows per key in columns: equal to those of records, at any batch size."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from effort import FEW, examples
from hypothesis import given
from hypothesis import strategies as st
from tests.core.table.column_harness import ColumnHarness

from sluiceway import AggregateFunction, Pipeline
from sluiceway.errors import GraphError
from sluiceway.table import TableStream, agg

SCHEMA = pa.schema([("user", pa.string()), ("price", pa.int64())])
NAMED = {
    "n": agg.count(),
    "total": agg.sum("price"),
    "low": agg.min("price"),
    "different": agg.count_distinct("price"),
}
BACKENDS = ["memory", "filesystem", "rocksdb"]


class InRecords(AggregateFunction[Any, Any, Any]):
    """The same aggregates of records."""

    def create_accumulator(self) -> Any:
        return []

    def add(self, value: Any, accumulator: Any) -> Any:
        return [*accumulator, value]

    def get_result(self, rows: Any) -> Any:
        prices = [row["price"] for row in rows if row["price"] is not None]
        found = {"n": len(rows), "total": sum(prices) if prices else None, "low": min(prices, default=None)}
        return rows[-1] | found | {"different": len(set(prices))}

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


def harness(**options: Any) -> ColumnHarness:
    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("user")
        return table.running(**NAMED).to_records()

    return ColumnHarness(program, SCHEMA, **options)


ROWS = st.fixed_dictionaries(
    {"user": st.sampled_from(["a", "b", None]), "price": st.integers(0, 3) | st.none()},
)
STEPS = st.lists(
    st.lists(ROWS, min_size=1, max_size=8) | st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(BACKENDS)),
    max_size=8,
)


@examples(FEW, 300)
@given(STEPS)
def test_running_aggregates_are_those_of_records(steps: list[Any]) -> None:
    rows, found, one = [], [], harness()
    try:
        for step in steps:
            if isinstance(step, tuple):
                taken = one.snapshot()
                one.close()
                one = harness(parallelism=step[0], state_backend=step[1], restored=taken)
            else:
                rows += step
                found += one.process_batch(step, list(range(len(rows) - len(step), len(rows))))
    finally:
        one.close()
    flow = Pipeline()
    expected = flow.from_collection(rows).key_by(lambda row: row["user"]).aggregate(InRecords()).collect()
    if rows:
        flow.run()
    for user in ("a", "b", None):
        assert [row for row in found if row["user"] == user] == [row for row in expected if row["user"] == user]


_RNG = np.random.default_rng(7)
_SIZE = 5000
_WORDS = pa.table(
    {
        "number": np.arange(_SIZE),
        "word": pa.array([f"w{n}" for n in np.minimum(_RNG.zipf(1.5, _SIZE), 200)]).dictionary_encode(),
        "price": pa.array(_RNG.normal(size=_SIZE) * 1e6, mask=_RNG.random(_SIZE) < 0.1),
    }
)


def _running() -> TableStream:
    words = Pipeline().table(_WORDS).set_parallelism(1)  # in their order
    return words.key_by("word").running(
        n=agg.count(), total=agg.sum("price"), high=agg.max("price"), last=agg.last("price")
    )


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 1},
        {"chaining": False, "parallelism": 3},
        pytest.param({"workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_running_aggregates_are_those_of_duckdb(options: dict[str, Any]) -> None:
    words = _WORDS  # noqa: F841 (DuckDB finds it by its name)
    expected = duckdb.sql(
        "SELECT number, word, price, count(*) OVER w, max(price) OVER w, last_value(price IGNORE NULLS) OVER w "
        "FROM words WINDOW w AS (PARTITION BY word ORDER BY number) ORDER BY number"
    ).fetchall()
    found = _running().to_arrow(**options).sort_by("number")
    assert [tuple(row.values()) for row in found.drop_columns("total").to_pylist()] == expected
    totals: dict[str, float] = {}
    for row in found.to_pylist():  # sums of floats one after the other
        if row["price"] is not None:
            totals[row["word"]] = totals.get(row["word"], 0.0) + row["price"]
        assert row["total"] == totals.get(row["word"])


def test_words_are_counted_as_records_are() -> None:
    lines = ["to be or not to be", "that is", "the question to be"] * 20
    flow = Pipeline()
    words = flow.from_collection(lines).flat_map(lambda line: line.split())
    records = words.key_by(lambda word: word).count().collect()
    rows = words.map(lambda word: {"word": word}).to_columns(pa.schema([("word", pa.string())]))
    columns = rows.key_by("word").running(n=agg.count()).collect()
    flow.run(batch_size=3)
    assert [(row["word"], row["n"]) for row in columns] == list(records)


def test_totals_go_on_from_running_ones() -> None:
    rows = [{"user": "a", "price": 1}, {"user": "b", "price": 2}, {"user": "a", "price": None}]
    with harness() as one:
        assert [row["n"] for row in one.process_batch(rows, [1, 2, 3])] == [1, 1, 2]
        one.process_watermark(2**63 - 1)
        taken = one.snapshot()
    with harness(restored=taken) as one:  # also after the end of the input
        assert [row["total"] for row in one.process_batch(rows, [1, 2, 3])] == [2, 4, 2]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda t: t.running(x=agg.top_k("price", 2)), r"x=top_k\('price', k=2\) has no running results"),
        (lambda t: t.running(price=agg.count()), "a column 'price' already"),
        (lambda t: t.running(x=agg.sum("pric")), "did you mean 'price'"),
    ],
)
def test_mistakes_are_found_where_they_are_made(build: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message) as raised:
        build(Pipeline().table(SCHEMA.empty_table()).key_by("user"))
    assert "test_table_running.py" in str(raised.value)
    with pytest.raises(TypeError, match="takes at least one aggregate"):
        Pipeline().table(SCHEMA.empty_table()).key_by("user").running()
