"""Rows on which a step in columns fails: skipped as dead letters, while the rest of their batch goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluiceway import Pipeline, WatermarkStrategy
from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, GraphError
from sluiceway.functions import DeadLetter
from sluiceway.operators.watermarking import Stamper
from sluiceway.table import agg, col
from sluiceway.windows import TumblingEventTimeWindows

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


LATEST = 10**16  # seconds, which milliseconds of 64 bits cannot hold
TIMES: dict[str, Any] = {
    "ms": pa.array([1, None, 5, 6, None], pa.timestamp("ms")),
    "s": pa.array([1, None, 5, 6, LATEST], pa.timestamp("s")),
    "int64": pa.array([1, None, 5, 6, None]),
}
AT = WatermarkStrategy.for_bounded_out_of_orderness("5s").with_timestamp_column("at")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("place", ["source", "step"])
@pytest.mark.parametrize("unit", TIMES)
def test_rows_without_an_event_time_are_skipped(options: dict[str, Any], place: str, unit: str) -> None:
    table = pa.table({"at": TIMES[unit], "n": range(5)})
    flow = Pipeline()
    rows = flow.table(table, watermark_strategy=AT) if place == "source" else flow.table(table)
    step = (rows if place == "source" else rows.assign_timestamps_and_watermarks(AT)).on_error("skip")
    found, letters = step.to_records().collect(), step.dead_letters().collect()
    run(flow, **options)
    assert sorted(row["n"] for row in found) == [0, 2, 3]
    assert numbers(letters) == [1, 4]
    (letter,) = [each for each in letters if each.value()["n"][0].as_py() == 1]
    assert letter.record == "{'at': None, 'n': 1}"
    assert "column 'at' gives the event time and is null" in letter.error
    with pytest.raises(FunctionContractError, match="column 'at' gives the event time"):
        Pipeline().table(table, watermark_strategy=AT).to_arrow(**options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("place", ["source", "step"])
@pytest.mark.parametrize("arguments", [1, 2])
def test_rows_on_which_a_timestamp_function_raises_are_skipped(
    options: dict[str, Any], place: str, arguments: int
) -> None:
    bounded: Any = WatermarkStrategy.for_bounded_out_of_orderness("5s")
    at = bounded.with_timestamp_assigner(
        (lambda row: row["at"] + 0) if arguments == 1 else (lambda row, before: row["at"] + 0)
    )
    table = pa.table({"at": TIMES["int64"], "n": range(5)})
    flow = Pipeline()
    rows = flow.table(table, watermark_strategy=at) if place == "source" else flow.table(table)
    step = (rows if place == "source" else rows.assign_timestamps_and_watermarks(at)).on_error("skip")
    found, letters = step.filter(col("n") >= 0).to_records().collect(), step.dead_letters().collect()
    run(flow, **options)
    assert sorted(row["n"] for row in found) == [0, 2, 3]
    assert numbers(letters) == [1, 4]
    (letter,) = [each for each in letters if each.value()["n"][0].as_py() == 1]
    assert letter.record == "{'at': None, 'n': 1}"


def test_a_row_without_an_event_time_leaves_the_windows_of_others_alone() -> None:
    table = pa.table({"at": pa.array([1, None, 5000], pa.timestamp("ms")), "text": ["a", "b", "c"]})
    rows = Pipeline().table(table, watermark_strategy=AT).on_error("skip")
    windows = rows.key_by("text").window(TumblingEventTimeWindows("1s")).aggregate(n=agg.count())
    assert sorted(row["text"] for row in windows.to_arrow().to_pylist()) == ["a", "c"]


def test_rows_of_a_source_with_views_are_skipped() -> None:
    class Kept:
        skipping = True

        def take(self, *args: Any, **named: Any) -> bool:
            return True

    views = pa.array(["a", "b", "c"], pa.string_view())
    runs: Any = pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.array([7]))
    data = pa.record_batch({"at": pa.array([1, None, 5]), "text": views, "run": runs})
    stamped = Stamper(AT, "step", Kept()).stamp(Batch.of_columns(data))
    assert list(stamped.timestamps or ()) == [1, 5]
    assert list(stamped.values) == [{"at": 1, "text": "a", "run": 7}, {"at": 5, "text": "c", "run": 7}]


def test_a_most_of_rows_without_an_event_time() -> None:
    table = pa.table({"at": TIMES["ms"], "n": range(5)})
    assert Pipeline().table(table, watermark_strategy=AT).on_error("skip", max=2).to_arrow().num_rows == 3
    with pytest.raises(FunctionContractError) as raised:
        Pipeline().table(table, watermark_strategy=AT).on_error("skip", max=1).to_arrow()
    assert "skips at most 1 records" in "".join(raised.value.__notes__)


def test_a_row_that_python_has_no_values_for_is_skipped() -> None:
    table = pa.table({"text": ["x", "2"], "at": pa.array([LATEST, 1], pa.timestamp("s"))})
    flow = Pipeline()
    step = flow.table(table).with_columns(n=col("text").cast(_int64())).on_error("skip")
    found, letters = step.select("n").to_records().collect(), step.dead_letters().collect()
    run(flow)
    assert list(found) == [{"n": 2}]
    assert [letter.record for letter in letters] == ['text: ["x"], at: [<value out of range: 10000000000000000>]']


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


def test_rows_without_an_event_time_are_replayed() -> None:
    from sluiceway.api.replay import replaying
    from sluiceway.config.settings import Settings

    table = pa.table({"at": TIMES["ms"], "other": pa.array(range(5), pa.timestamp("ms")), "n": range(5)})
    for at_source in (True, False):

        def flow_of(name: str, at_source: bool = at_source) -> tuple[Pipeline, Any]:
            flow, strategy = Pipeline("replayed"), AT.with_timestamp_column(name)
            if at_source:
                return flow, flow.table(table, watermark_strategy=strategy).uid("times").on_error("skip")
            rows = flow.table(table).assign_timestamps_and_watermarks(strategy)
            return flow, rows.uid("times").on_error("skip")

        flow, step = flow_of("at")
        letters = step.dead_letters().collect()
        flow.run()
        flow, step = flow_of("other")
        found = step.to_records().collect()
        replaying(flow, list(letters), Settings()).run()
        assert sorted(row["n"] for row in found) == [1, 4]


def _int64() -> Any:
    import narwhals

    return narwhals.Int64()
