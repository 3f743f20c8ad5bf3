"""The entry of a transform: rows of a partition through the steps before the first exchange. Without a session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.elements import Batch

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

COUNT = 20


async def slowly(row: dict[str, int]) -> int:
    await asyncio.sleep(0.001)
    return row["n"]


@pytest.mark.parametrize("streams", [False, True], ids=["batch", "streaming"])
def test_what_steps_still_hold_comes_out_with_the_last_row(streams: bool) -> None:
    from sluiceway_spark.datasource.rows_to_records import Rows
    from sluiceway_spark.frames import tasks
    from sluiceway_spark.frames.endpoints import FrameSink, FrameSource
    from sluiceway_spark.frames.plan import plan_of

    source = FrameSource(Rows(dict, None), streams)
    flow = sw.Pipeline("entry", parallelism=2)
    flow.source(source).async_map(slowly, timeout=None, capacity=3).sink(FrameSink())
    plan, services = plan_of(flow, Settings(engine="spark"), source, keyed_subtasks=2)
    columns: dict[str, Any] = {"n": list(range(COUNT))} | ({tasks.NOW: [5] * COUNT} if streams else {})
    entry = tasks._Entry(plan, services, streams=streams)
    given = [batch for row in entry.elements(pa.table(columns).to_batches()) for batch in row.payload]
    assert sorted(value for batch in given for value in batch.values) == list(range(COUNT))


@pytest.mark.parametrize("streams", [False, True], ids=["batch", "streaming"])
def test_large_rows_leave_in_parts_of_limited_size(streams: bool) -> None:
    from sluiceway_spark.datasource.rows_to_records import Rows
    from sluiceway_spark.frames import tasks
    from sluiceway_spark.frames.endpoints import FrameSink, FrameSource
    from sluiceway_spark.frames.plan import plan_of

    source = FrameSource(Rows("value", None), streams)
    flow = sw.Pipeline("entry", parallelism=2)
    flow.source(source).key_by(lambda text: 0).map(str).sink(FrameSink())
    plan, services = plan_of(flow, Settings(engine="spark"), source, keyed_subtasks=2)
    texts = [f"{n:04096}" for n in range(6000)]
    columns: dict[str, Any] = {"text": texts} | ({tasks.NOW: [5] * len(texts)} if streams else {})
    rows = list(tasks._Entry(plan, services, streams=streams).rows(pa.table(columns).to_batches()))
    assert max(len(row.payload) for row in rows) < 9 << 20
    assert len({(row.sender, row.seq) for row in rows if row.seq >= 0}) == sum(row.seq >= 0 for row in rows)
    given = [e for row in rows for e in plan.unpack(row.sender, row.payload) if isinstance(e, Batch)]
    assert [text for batch in given for text in batch.values] == texts


def test_a_null_struct_with_a_field_that_is_not_null_enters_in_columns() -> None:
    from sluiceway_spark.datasource.rows_to_records import Rows
    from sluiceway_spark.frames import tasks
    from sluiceway_spark.frames.endpoints import FrameSink, FrameSource
    from sluiceway_spark.frames.plan import plan_of

    field = pa.field("n", pa.int64(), nullable=False)
    structs = pa.StructArray.from_arrays([pa.array([1, None])], fields=[field], mask=pa.array([False, True]))
    rows = pa.record_batch({"of": structs})
    source = FrameSource(Rows("columns", None), False, rows.schema)
    flow = sw.Pipeline("entry", parallelism=2)
    flow.table(source).sink(FrameSink())
    plan, services = plan_of(flow, Settings(engine="spark"), source, keyed_subtasks=2)
    given = [
        batch for row in tasks._Entry(plan, services, streams=False).elements([rows]) for batch in row.payload
    ]
    assert [row for batch in given for row in batch.columns.to_pylist()] == [{"of": {"n": 1}}, {"of": None}]


class Unopened(sw.MapFunction[int, int]):
    """Cannot be closed, as it could not be opened."""

    def open(self, context: sw.RuntimeContext) -> None:
        raise ValueError("wrong password")

    def map(self, value: int) -> int:
        return value

    def close(self) -> None:
        raise AttributeError("no connection")


@pytest.mark.parametrize("streams", [False, True], ids=["batch", "streaming"])
def test_what_has_failed_first_is_told_although_closing_fails_as_well(streams: bool) -> None:
    from sluiceway_spark.datasource.rows_to_records import Rows
    from sluiceway_spark.frames import tasks
    from sluiceway_spark.frames.endpoints import FrameSink, FrameSource
    from sluiceway_spark.frames.plan import plan_of

    source = FrameSource(Rows("value", None), streams)
    flow = sw.Pipeline("entry", parallelism=2)
    flow.source(source).map(Unopened()).sink(FrameSink())
    plan, services = plan_of(flow, Settings(engine="spark"), source, keyed_subtasks=2)
    columns: dict[str, Any] = {"n": [1, 2]} | ({tasks.NOW: [5] * 2} if streams else {})
    entry = tasks._Entry(plan, services, streams=streams)
    with pytest.raises(ValueError, match="wrong password"):
        list(entry.elements(pa.table(columns).to_batches()))


class Numbered(sw.MapFunction[int, int], sw.CheckpointedFunction):
    """Counts in its subtask."""

    def __init__(self) -> None:
        self.count = 0

    def map(self, value: int) -> int:
        self.count += 1
        return self.count

    def snapshot_state(self, context: Any) -> None:
        pass

    def initialize_state(self, context: Any) -> None:
        pass


def united(rows: Any) -> Any:
    return rows.union(rows.map(lambda n: -n)).map(abs)


def connected(rows: Any) -> Any:
    return rows.connect(rows.map(lambda n: -n)).map(abs, abs)


@pytest.mark.parametrize(
    ("build", "streams", "spread"),
    [
        (united, False, [0, 1, 2, 0]),
        (united, True, [0, 1, 2, 0]),
        (connected, False, [0, 1, 2, 0]),
        (lambda rows: rows.union(rows).map(Numbered()), False, [0, 1, 2, 0]),
        (lambda rows: rows.union(rows).map(Numbered()), True, [0, 0, 0, 0]),
    ],
    ids=["union", "streamed union", "connect", "state", "streamed state"],
)
def test_partitions_take_turns_with_the_subtasks_behind_a_union(
    build: Any, streams: bool, spread: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluiceway_spark.datasource.rows_to_records import Rows
    from sluiceway_spark.frames import tasks
    from sluiceway_spark.frames.endpoints import FrameSink, FrameSource
    from sluiceway_spark.frames.plan import plan_of

    source = FrameSource(Rows("value", None), streams)
    flow = sw.Pipeline("entry", parallelism=3)
    build(flow.source(source)).key_by(lambda n: n).map(str).sink(FrameSink())
    plan, services = plan_of(flow, Settings(engine="spark"), source, keyed_subtasks=2)
    columns: dict[str, Any] = {"n": [1, 2, 3]} | ({tasks.NOW: [5] * 3} if streams else {})
    found = []
    for partition in range(4):
        monkeypatch.setattr(tasks, "_partition", lambda number=partition: number)
        entry = tasks._Entry(plan, services, streams=streams)
        rows = list(entry.elements(pa.table(columns).to_batches()))
        assert sum(len(batch) for row in rows for batch in row.payload) == 6
        (target,) = {row.target for row in rows}
        found.append(plan.who(target)[1])
    assert found == spread
