"""Columns that no step reads: they are not sent to keyed steps, with equal results."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluiceway import OutputTag, Pipeline, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from sluiceway.columns.routing import ColumnKey
from sluiceway.elements import Batch
from sluiceway.errors import IncompatibleStateError
from sluiceway.graph import builder
from sluiceway.graph.pushdown import Pushdown
from sluiceway.network.channel_state import EdgeName
from sluiceway.network.partitioners import make_partitioner
from sluiceway.runtime.task.channel_state import recovered_batches
from sluiceway.steps import ColumnRunningStep
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.table import TableStream, agg, col
from sluiceway.windows import EventTimeSessionWindows, TumblingEventTimeWindows
from sluiceway_files import FilesSource

_RNG = np.random.default_rng(5)
_SIZE = 4_000
_ROWS = pa.table(
    {
        "note": [f"note {n}" for n in range(_SIZE)],
        "user": [f"u{n}" for n in _RNG.integers(0, 40, _SIZE)],
        "price": _RNG.integers(0, 1_000, _SIZE) / 8,  # of which sums are exact in any order
        "count": _RNG.integers(0, 9, _SIZE),
        "at": pa.array(np.arange(_SIZE) + _RNG.integers(0, 100, _SIZE), pa.timestamp("ms")),
        "other": np.arange(_SIZE),
    }
)
_STRATEGY: Any = WatermarkStrategy.for_bounded_out_of_orderness("100ms").with_timestamp_column("at")
_LATE: OutputTag[Any] = OutputTag("late")


def _windows(rows: TableStream) -> TableStream:
    windows = rows.filter(col("count") > 1).key_by("user").window(TumblingEventTimeWindows("1s"))
    return windows.aggregate(total=agg.sum("price"), n=agg.count())


def _sessions(rows: TableStream) -> TableStream:
    return rows.key_by("user").window(EventTimeSessionWindows("100ms")).aggregate(m=agg.mean("price"))


def _whole(rows: TableStream) -> TableStream:
    return rows.key_by("count", "user").aggregate(most=agg.max("price"), different=agg.count_distinct("note"))


def _running(rows: TableStream) -> TableStream:
    running = rows.set_parallelism(1).key_by("user").running(total=agg.sum("price"), user_n=agg.count())
    return running.with_columns(twice=col("total") * 2).filter(col("other") > 7).select("other", "twice", "user_n")


def _firsts(rows: TableStream) -> TableStream:
    firsts = rows.set_parallelism(1).key_by("user").distinct()
    return firsts.rename({"note": "n"}).drop("at").select("user", "n", "other")


def _twice(rows: TableStream) -> TableStream:
    both = rows.filter(col("count") > 3).union(rows.filter(col("count") < 2))
    sums = both.key_by("user", "count").aggregate(total=agg.sum("price"), left_out=agg.sum("other"))
    return sums.key_by("user").aggregate(n=agg.count(), total=agg.max("total"))


_PROGRAMS: dict[str, tuple[Callable[[TableStream], TableStream], tuple[tuple[str, ...] | None, ...]]] = {
    "windows": (_windows, (("user", "price"),)),
    "sessions": (_sessions, (("user", "price"),)),
    "whole input": (_whole, (("note", "user", "price", "count"),)),
    "running": (_running, (("user", "price", "other"),)),
    "first rows": (_firsts, (("note", "user", "other"),)),
    "two steps and a union": (_twice, (("user", "price", "count", "other"),) * 2 + (("user", "total"),)),
}


def _sent(stream: TableStream) -> tuple[tuple[str, ...] | None, ...]:
    stream.collect()
    graph = stream._pipeline.graph()
    return tuple(edge.partitioner.columns for edge in graph.edges if edge.partitioner.name == "hash")


def _timed(flow: Pipeline) -> TableStream:
    return flow.table(_ROWS).rebalance().assign_timestamps_and_watermarks(_STRATEGY)


def _sorted(table: Any) -> list[Any]:
    return sorted(table.to_pylist(), key=repr)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_rows_are_sent_with_the_columns_that_are_read(name: str) -> None:
    build, columns = _PROGRAMS[name]
    assert _sent(build(Pipeline().table(_ROWS, watermark_strategy=_STRATEGY))) == columns


@pytest.mark.parametrize("name", _PROGRAMS)
@pytest.mark.parametrize("options", [{"parallelism": 1}, {"parallelism": 3, "batch_size": 1}])
def test_results_are_those_of_rows_with_all_columns(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = _PROGRAMS[name][0]
    found = build(Pipeline().table(_ROWS, watermark_strategy=_STRATEGY)).to_arrow(**options)
    monkeypatch.setattr(builder, "pushed_down", lambda order: Pushdown())
    whole = build(Pipeline().table(_ROWS, watermark_strategy=_STRATEGY))
    assert found.schema == whole.schema
    assert _sorted(found) == _sorted(whole.to_arrow())


@pytest.mark.parametrize("name", ["windows", "running"])
def test_results_of_two_workers_with_checkpoints_are_the_same(name: str) -> None:
    build = _PROGRAMS[name][0]
    rows = Pipeline().table(_ROWS, watermark_strategy=_STRATEGY)
    found = build(rows).to_arrow(workers=2, parallelism=2, checkpoint_interval="20ms", local_aggregation="off")
    assert _sorted(found) == _sorted(build(Pipeline().table(_ROWS, watermark_strategy=_STRATEGY)).to_arrow())


def test_a_source_reads_what_an_aggregate_and_event_time_need(tmp_path: Any) -> None:
    pq.write_table(_ROWS, tmp_path / "rows.parquet")
    source = FilesSource.parquet(str(tmp_path / "rows.parquet"))
    plans = []
    for rows in (
        Pipeline().table(source, watermark_strategy=_STRATEGY),
        Pipeline().table(source).assign_timestamps_and_watermarks(_STRATEGY),
    ):
        sums = _windows(rows)
        sums.collect()
        plans.append(sums._pipeline.explain())
    for plan in plans:
        assert "pushed down columns user, price, count, at" in plan
        assert "=> task 2: hash by user, sends user, price, in Arrow's format" in plan
    assert _sorted(_windows(Pipeline().table(source, watermark_strategy=_STRATEGY)).to_arrow()) == _sorted(
        _windows(Pipeline().table(_ROWS, watermark_strategy=_STRATEGY)).to_arrow()
    )


class _ByNote(WatermarkGenerator[Any]):
    """Looks at a column that no step reads."""

    def on_event(self, value: Any, timestamp: int, output: WatermarkOutput) -> None:
        if value["note"].endswith("0"):
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


@pytest.mark.parametrize("place", ["source", "step", "distinct"])
def test_a_watermark_generator_sees_all_columns(
    tmp_path: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(_ROWS, tmp_path / "rows.parquet")
    source = FilesSource.parquet(str(tmp_path / "rows.parquet"))
    strategy: Any = WatermarkStrategy.for_generator(_ByNote).with_timestamp_column("at")

    def sums() -> Any:
        if place == "source":
            return _windows(Pipeline().table(source, watermark_strategy=strategy)).to_arrow()
        rows = Pipeline().table(source)
        rows = rows.key_by("other").distinct() if place == "distinct" else rows
        return _windows(rows.assign_timestamps_and_watermarks(strategy)).to_arrow()

    found = sums()
    monkeypatch.setattr(builder, "pushed_down", lambda order: Pushdown())
    assert _sorted(found) == _sorted(sums())
    assert found.num_rows


def _with_late(rows: TableStream) -> TableStream:
    windows = rows.key_by("user").window(TumblingEventTimeWindows("1s")).side_output_late_data(_LATE)
    sums = windows.aggregate(n=agg.count())
    sums.get_side_output(_LATE).collect()
    return sums


@pytest.mark.parametrize(
    "build",
    [
        _with_late,
        lambda rows: rows.key_by("user").running(n=agg.count()),
        lambda rows: rows.key_by("user").distinct().map_batches(lambda data: data.select(["user"])),
        lambda rows: rows.key_by("user").over(rows=2).aggregate(n=agg.count()).select("user", "n"),
        lambda rows: rows.key_by("user").asof_join(rows.key_by("user"), suffix="_2").select("user"),
    ],
    ids=["late rows", "rows that come out", "a function of rows", "over", "join"],
)
def test_steps_that_need_whole_rows_are_sent_them(build: Callable[[TableStream], TableStream]) -> None:
    sent = _sent(build(Pipeline().table(_ROWS, watermark_strategy=_STRATEGY)))
    assert sent
    assert set(sent) == {None}


def test_the_partitioner_sends_no_other_columns_also_to_one_consumer() -> None:
    batch = Batch.of_columns(_ROWS.combine_chunks().to_batches()[0])
    spec = PartitionerSpec("hash", key=ColumnKey(("user",)), columns=("user", "price"))
    for consumers in (1, 3):
        partitioner = make_partitioner(spec, 128, pytest.fail)
        partitioner.setup(0, consumers, 0)
        parts = [part for _, part in partitioner.partition(batch)]
        assert sum(map(len, parts)) == _SIZE
        for part in parts:
            assert part.columns is not None
            assert part.columns.schema.names == ["user", "price"]


def _deployment(batch: Batch[Any], columns: tuple[str, ...] | None, dealt: bool) -> Any:
    """Return the part of a deployment that restores rows that were in flight."""
    step = ColumnRunningStep(_ROWS.schema, ColumnKey(("user",)), _ROWS.schema, (("n", agg.count()),))
    spec = PartitionerSpec("hash", key=ColumnKey(("user",)), columns=columns)
    edge = EdgeName("rows", "sums")
    part = SimpleNamespace(batches=lambda serializer: iter([batch]))
    given = SimpleNamespace(in_flight=(part,), record_type=None, dealt=dealt, partitioner=spec, edge=edge, port=0)
    vertex = SimpleNamespace(head=SimpleNamespace(step=step, name="running"), parallelism=1, max_parallelism=8)
    return SimpleNamespace(inputs=[given], serializers=(), vertex=vertex, subtask=0)


@pytest.mark.parametrize("dealt", [False, True])
def test_rows_in_flight_lose_columns_that_a_changed_program_does_not_read(dealt: bool) -> None:
    batch = Batch.of_columns(_ROWS.combine_chunks().to_batches()[0])
    ((_, _, found),) = recovered_batches(_deployment(batch, ("user", "other"), dealt))
    assert found.columns is not None
    assert found.columns.schema.names == ["user", "other"]


@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize("columns", [None, ("user", "price", "other")])
def test_rows_in_flight_without_a_column_that_is_read_now_are_refused(
    columns: tuple[str, ...] | None, dealt: bool
) -> None:
    batch = Batch.of_columns(_ROWS.select(["user", "price"]).combine_chunks().to_batches()[0])
    with pytest.raises(IncompatibleStateError, match=r"to 'sums' have no column '(note|other)'"):
        list(recovered_batches(_deployment(batch, columns, dealt)))
