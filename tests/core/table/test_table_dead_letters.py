"""Rows on which a step in columns fails: skipped as dead letters, while the rest of their batch goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluiceway import Pipeline
from sluiceway.errors import FunctionContractError, GraphError
from sluiceway.functions import DeadLetter
from sluiceway.table import agg, col

TEXTS = ["1", "x", "3", "4", None, "y", "7", "8", "z"]
TABLE = pa.table({"text": TEXTS, "n": range(len(TEXTS))})
GOOD = [(0, 1), (2, 3), (3, 4), (4, None), (6, 7), (7, 8)]
OPTIONS: list[dict[str, Any]] = [{}, {"batch_size": 1}, {"parallelism": 3, "batch_size": 1}]


def by_function(rows: pa.RecordBatch) -> pa.RecordBatch:
    values = [None if text is None else int(text) for text in rows["text"].to_pylist()]
    return pa.record_batch({"n": rows["n"], "value": pa.array(values, pa.int64())})


def numbers(letters: Any) -> list[int]:
    return sorted(letter.value()["n"][0].as_py() for letter in letters)


def run(flow: Pipeline, **options: Any) -> None:
    flow.run(**options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("by", ["expression", "function"])
def test_the_rest_of_a_batch_goes_on(options: dict[str, Any], by: str) -> None:
    flow = Pipeline()
    rows = flow.table(TABLE)
    if by == "expression":
        step = rows.select("n", value=col("text").cast(_int64()))
    else:
        step = rows.map_batches(by_function, schema=pa.schema([("n", pa.int64()), ("value", pa.int64())]))
    step = step.on_error("skip")
    found, letters = step.to_records().collect(), step.dead_letters().collect()
    run(flow, **options)
    assert sorted((row["n"], row["value"]) for row in found) == GOOD
    assert numbers(letters) == [1, 5, 8]
    (letter,) = [each for each in letters if each.value()["n"][0].as_py() == 5]
    assert isinstance(letter, DeadLetter)
    assert letter.record == "{'text': 'y', 'n': 5}"
    assert "'y'" in letter.error


def test_order_and_a_most() -> None:
    flow = Pipeline()
    step = flow.table(TABLE).select("n", value=col("text").cast(_int64())).on_error("skip", max=3)
    assert [row["n"] for row in step.to_arrow().to_pylist()] == [n for n, _ in GOOD]
    flow = Pipeline()
    step = flow.table(TABLE).select("n", value=col("text").cast(_int64())).on_error("skip", max=2)
    with pytest.raises(FunctionContractError) as raised:
        step.to_arrow()
    assert "skips at most 2 records" in "".join(raised.value.__notes__)


def test_without_it_the_job_fails() -> None:
    with pytest.raises(FunctionContractError):
        Pipeline().table(TABLE).select(value=col("text").cast(_int64())).to_arrow()


def test_a_stateful_step_cannot_skip() -> None:
    with pytest.raises(GraphError, match=r"cannot skip records.*steps of columns without state"):
        Pipeline().table(TABLE).key_by("n").running(m=agg.count()).on_error("skip")


@pytest.mark.parametrize("options", OPTIONS)
def test_records_that_do_not_fit_are_skipped(options: dict[str, Any]) -> None:
    flow = Pipeline()
    records = [{"n": 1}, {"n": "x"}, {"n": 3}, {"m": 4}]
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    step = flow.from_collection(records).to_columns(schema).on_error("skip")
    found, letters = step.to_records().collect(), step.dead_letters().collect()
    run(flow, **options)
    assert sorted(row["n"] for row in found) == [1, 3]
    assert sorted(letter.record for letter in letters) == ["{'m': 4}", "{'n': 'x'}"]


def test_rows_are_replayed(tmp_path: Path) -> None:
    from sluiceway.api.replay import replaying
    from sluiceway.config.settings import Settings

    def flow_of(step: Any) -> tuple[Pipeline, Any]:
        flow = Pipeline("replayed")
        made = flow.table(TABLE).map_batches(step, schema=pa.schema([("n", pa.int64()), ("value", pa.int64())]))
        return flow, made.uid("parse").on_error("skip")

    flow, step = flow_of(by_function)
    letters = step.dead_letters().collect()
    flow.run()

    def better(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": rows["n"], "value": pa.array([-1] * len(rows), pa.int64())})

    flow, step = flow_of(better)
    found = step.to_records().collect()
    replaying(flow, list(letters), Settings()).run()
    assert sorted((row["n"], row["value"]) for row in found) == [(1, -1), (5, -1), (8, -1)]


def _int64() -> Any:
    import narwhals

    return narwhals.Int64()
