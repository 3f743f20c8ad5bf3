"""Local aggregation in columns: what it changes, which is no result."""

from __future__ import annotations

import gc
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from effort import examples
from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.table.column_harness import ColumnHarness

import sluiceway as sw
from sluiceway.columns.aggregation.sums import AggregateOverflowError
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import DiscardSink
from sluiceway.elements import MIN_WATERMARK, Batch
from sluiceway.operators.columns import combining
from sluiceway.operators.columns.combining import ColumnCombiner, partials_of
from sluiceway.operators.columns.timed import layout_of
from sluiceway.operators.local_aggregation import combined_step
from sluiceway.runtime.task import input_slicing
from sluiceway.steps.columns import ColumnWindowStep
from sluiceway.streamgraph import PartitionerSpec
from sluiceway.table import TableStream, agg
from sluiceway.windows import CumulativeEventTimeWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from sluiceway_files import FilesSink

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("part", pa.int32()),
        ("amount", pa.int64()),
        ("price", pa.decimal128(20, 2)),
        ("name", pa.string()),
        ("at", pa.int64()),
    ]
)
NAMED = {
    "n": agg.count(),
    "known": agg.count("amount"),
    "total": agg.sum("amount"),
    "paid": agg.sum("price"),
    "mean": agg.mean("amount"),
    "least": agg.min("amount"),
    "longest": agg.max("name"),
}
ASSIGNERS = [
    TumblingEventTimeWindows("10ms"),
    TumblingEventTimeWindows("10ms", "3ms"),
    SlidingEventTimeWindows("20ms", "5ms"),
    CumulativeEventTimeWindows("5ms", "20ms"),
    None,
]
STRATEGY: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness("4ms").with_timestamp_column("at")


@pytest.fixture(autouse=True)
def small_batches_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combining, "_FEW", 1)
    monkeypatch.setattr(combining, "_KNOWN", 3)
    # Parts of three rows, however long a step takes: watermarks behind the same rows each time.
    monkeypatch.setattr(input_slicing, "_FIRST", 3)
    monkeypatch.setattr(input_slicing.InputSlicer, "learn", lambda self, size, made, took: None)


def rows_of(events: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "part": part,
            "amount": amount,
            "price": None if amount is None else Decimal(amount % 997) / 4,
            "name": None if amount is None else "x" * (amount % 5),
            "at": at,
        }
        for key, part, amount, at in events
    ]


def results(events: list[Any], assigner: Any, **options: Any) -> tuple[list[str], int]:
    """The results, and how many rows were late."""
    flow = sw.Pipeline("windows", parallelism=3)
    # From one producer: of several, which is ahead decides what is late, and combining holds watermarks back.
    stream = flow.table(pa.Table.from_pylist(rows_of(events), SCHEMA)).set_parallelism(1)
    stream = stream.assign_timestamps_and_watermarks(STRATEGY).set_parallelism(1).key_by("key", "part")
    found = (stream if assigner is None else stream.window(assigner)).aggregate(**NAMED).to_records().collect()
    try:
        metrics = flow.run(**options).metrics
    except AggregateOverflowError:
        return ["overflow"], 0
    late = sum(s.user.get("numLateRecordsDropped", 0) for s in metrics.subtasks)
    return sorted(map(repr, found)), late


@examples(20, 80)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.integers(0, 1),
            st.none() | st.integers(-5, 5) | st.sampled_from([2**61, -(2**61)]),
            st.integers(-9, 12),
        ),
        min_size=1,
        max_size=60,
    ),
    assigner=st.sampled_from(ASSIGNERS),
    batch_size=st.sampled_from([1, 3, 1024]),
    interval=st.sampled_from([0, 3_600_000]),  # behind each batch, or at the end alone
)
@example([("a", 0, 2**61, 0)] * 4, ASSIGNERS[0], 1, 0)
@example([("a", 0, 1, 5), ("b", 1, 2, 12), ("a", 0, 3, -9)] * 20, ASSIGNERS[0], 1, 0)
def test_results_and_late_rows_are_the_same(
    events: list[Any], assigner: Any, batch_size: int, interval: int
) -> None:
    time, timed = 0, []
    for key, part, amount, step in events:
        time = max(0, time + step)
        timed.append((key, part, amount, time))
    ways = [
        results(timed, assigner, batch_size=batch_size, auto_watermark_interval=interval, local_aggregation=which)
        for which in ("exact", "off")
    ]
    assert ways[0] == ways[1]


class _Node(NamedTuple):
    """The parts of a node that :func:`combined_step` looks at."""

    step: Any
    name: str = "step"
    skips_errors: bool = False


def step_of(build: Any) -> Any:
    flow = sw.Pipeline("one")
    stream = flow.table(SCHEMA.empty_table()).assign_timestamps_and_watermarks(STRATEGY)
    build(stream.key_by("key", "part")).sink(DiscardSink())
    (step,) = [t.step for t in flow._transformations if isinstance(t.step, ColumnWindowStep)]
    return _Node(step)


def windows(keyed: Any) -> Any:
    return keyed.window(ASSIGNERS[0])


@pytest.mark.parametrize(
    ("build", "settings", "combines"),
    [
        (lambda keyed: windows(keyed).aggregate(**NAMED), {}, True),
        (lambda keyed: keyed.aggregate(**NAMED), {}, True),
        (lambda keyed: keyed.aggregate(**NAMED), {"local_aggregation": "off"}, False),
        (lambda keyed: keyed.aggregate(**NAMED), {"checkpoint_unaligned": True}, False),
        (lambda keyed: windows(keyed).allowed_lateness("1s").aggregate(n=agg.count()), {}, False),
        (
            lambda keyed: windows(keyed).side_output_late_data(sw.OutputTag("late")).aggregate(n=agg.count()),
            {},
            False,
        ),
        (lambda keyed: keyed.running(n=agg.count()), {}, False),
        (lambda keyed: keyed.distinct(), {}, False),
        (lambda keyed: keyed.aggregate(n=agg.count(), first=agg.first("amount")), {}, False),
        (lambda keyed: keyed.aggregate(n=agg.count_distinct("amount")), {}, False),
        (lambda keyed: keyed.aggregate(n=agg.collect("amount")), {}, False),
        (lambda keyed: keyed.aggregate(n=agg.variance("amount")), {}, False),
    ],
)
def test_only_what_is_the_same_in_any_order_is_combined(build: Any, settings: Any, combines: bool) -> None:
    node = step_of(build)
    found = combined_step(PartitionerSpec("hash"), node, Settings(**settings))
    assert (found is node.step) if combines else found is None


@pytest.mark.parametrize("kind", [agg.sum, agg.mean, agg.min, agg.max])
def test_floats_are_not_combined(kind: Any) -> None:
    flow = sw.Pipeline("floats")
    flow.table(pa.table({"key": ["a"], "x": [0.1]})).key_by("key").aggregate(found=kind("x")).sink(DiscardSink())
    (step,) = [t.step for t in flow._transformations if isinstance(t.step, ColumnWindowStep)]
    node: Any = _Node(step)
    assert combined_step(PartitionerSpec("hash"), node, Settings()) is None


def batch_of(events: list[Any]) -> Batch[Any]:
    data = pa.RecordBatch.from_pylist(rows_of(events), SCHEMA)
    return Batch.of_columns(data, [event[-1] for event in events])


def test_rows_of_many_batches_become_one_row_of_each_key_and_slice() -> None:
    node = step_of(lambda keyed: windows(keyed).aggregate(**NAMED))
    combiner = ColumnCombiner(node.step, node.name, 2, 128)
    for _ in range(50):
        assert combiner.add(batch_of([("a", 0, 1, 3), ("b", 0, 2, 4), ("a", 0, 3, 14)]), MIN_WATERMARK) is None
    assert len(combiner) == 3
    layout, found = layout_of(node.step, node.name), []
    taken = combiner.take()
    # The partial results of all slices in one batch.
    assert len(taken) == len({consumer for consumer, _ in taken})
    for consumer, batch in taken:
        partials = partials_of(batch, layout)
        assert partials is not None
        assert consumer in (0, 1)
        keys = partials.keys[0].to_pylist()
        found += list(zip(keys, batch.timestamps or (), partials.rows.tolist(), strict=True))
    assert sorted(found) == [("a", 0, 50), ("a", 10, 50), ("b", 0, 50)]
    assert len(combiner) == 0
    assert combiner.take() == []
    # A slice whose first window is over is the consumer's matter.
    late = combiner.add(batch_of([("a", 0, 1, 3), ("a", 0, 1, 14)]), 9)
    assert late is not None
    assert list(late.timestamps or ()) == [3]
    assert len(combiner) == 1


def test_combining_rests_where_each_row_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    node = step_of(lambda keyed: keyed.aggregate(n=agg.count()))
    combiner = ColumnCombiner(node.step, node.name, 2, 128)
    monkeypatch.setattr(ColumnCombiner, "tried", 20)
    combiner.add(batch_of([(str(n), 0, 1, 0) for n in range(40)]), MIN_WATERMARK)
    combiner.take()
    assert combiner.rests(40)


def test_rows_of_partial_results_that_are_late_are_counted() -> None:
    def program(stream: Any) -> Any:
        table = TableStream(stream._pipeline, stream._inputs, SCHEMA, "test").key_by("key", "part")
        return table.window(ASSIGNERS[0]).aggregate(n=agg.count()).to_records()

    node = step_of(lambda keyed: windows(keyed).aggregate(n=agg.count()))
    combiner = ColumnCombiner(node.step, node.name, 1, 128)
    combiner.add(batch_of([("a", 0, 1, 3), ("a", 0, 1, 4), ("b", 0, 1, 14)]), MIN_WATERMARK)
    with ColumnHarness(program, SCHEMA) as harness:
        harness.process_watermark(12)
        for _, batch in combiner.take():
            harness._subtasks[0].process(0, batch)
        harness.process_watermark(30)
        assert [(row["key"], row["n"]) for row in harness.values] == [("b", 1)]
        assert harness.metrics().counter("numLateRecordsDropped").value == 2


def test_workers_that_take_checkpoints_and_begin_anew_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size = 60, 2_000
    marker = tmp_path / "failed"

    def rows(number: int) -> pa.RecordBatch:
        at = np.arange(number * size, (number + 1) * size)
        return pa.record_batch({"key": at % 7, "amount": at, "at": at})

    def fail_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows and batch["at"][0].as_py() >= 40 * size and not marker.exists():
            marker.touch()
            raise OSError("once")
        return batch

    def found(**options: Any) -> list[Any]:
        flow = sw.Pipeline("workers", parallelism=2)
        batches = flow.generate(rows, count=count, rate=100 if options else None).returns(pa.RecordBatch)
        stream = batches.to_columns(rows(0).schema).map_batches(fail_once)
        stream = stream.assign_timestamps_and_watermarks(STRATEGY).key_by("key")
        named = {"n": agg.count(), "total": agg.sum("amount"), "most": agg.max("amount")}
        out = tmp_path / ("with" if options else "without")
        stream.window(TumblingEventTimeWindows("5s")).aggregate(**named).sink(
            FilesSink.parquet(str(out / "windows"))
        )
        stream.aggregate(**named).sink(FilesSink.parquet(str(out / "totals")))
        flow.run(**(options or {"local_aggregation": "off"}))
        return [
            sorted(
                repr(row)
                for part in sorted((out / each).glob("part-*"))
                for row in pq.read_table(part).to_pylist()
            )
            for each in ("windows", "totals")
        ]

    got = found(workers=2, batch_size=64, checkpoint_interval="50ms", restart="fixed-delay:2:10ms")
    assert marker.exists()
    monkeypatch.undo()  # what combines nothing need not take three rows at a time
    assert got == found()


def _of_key(amounts: Any, key: int) -> Any:
    return amounts[amounts % 7 == key]


@pytest.mark.slow
def test_a_worker_killed_while_it_holds_partial_results_changes_no_result(tmp_path: Path) -> None:
    """Rows that a barrier finds in a combiner are before it; those that come later are read again."""
    count, size = 1_500, 2_000
    kept, killed = tmp_path / "kept", tmp_path / "killed"

    def rows(number: int) -> pa.RecordBatch:
        at = np.arange(number * size, (number + 1) * size)
        return pa.record_batch({"key": at % 7, "amount": at, "at": at})

    def kill_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        # On a machine under load the next batch comes so late that the rows of this one would have gone.
        ColumnCombiner.idle_s = ColumnCombiner.longest_s = 3600.0
        # The combiners of this process, behind this step, with the rows of batches before. Where it is slow, there
        # are less than ten checkpoints by the end.
        last_fifth = batch.num_rows and batch["at"][0].as_py() > count * size * 4 // 5
        numbers = [int(file.parent.name.removeprefix("chk-")) for file in kept.glob("*/chk-*/*")]
        if batch.num_rows and not killed.exists() and (last_fifth or max(numbers, default=0) >= 10):
            held = [each.waiting for each in gc.get_objects() if type(each) is ColumnCombiner]
            if any(held):
                killed.write_text(str(held))
                os.kill(os.getpid(), signal.SIGKILL)
        return batch

    flow = sw.Pipeline("killed", parallelism=2)
    # So slowly that there are ten checkpoints: barriers of the first few may find no rows.
    stream = flow.generate(rows, count=count, rate=500).returns(pa.RecordBatch).to_columns(rows(0).schema)
    stream = stream.map_batches(kill_once).assign_timestamps_and_watermarks(STRATEGY).key_by("key")
    named = {"n": agg.count(), "total": agg.sum("amount"), "most": agg.max("amount")}
    stream.window(TumblingEventTimeWindows("5s")).aggregate(**named).sink(
        FilesSink.parquet(str(tmp_path / "windows"))
    )
    stream.aggregate(**named).sink(FilesSink.parquet(str(tmp_path / "totals")))
    flow.run(
        workers=2,
        batch_size=64,
        checkpoints=str(kept),
        checkpoint_interval="20ms",
        restart="fixed-delay:3:10ms",
    )
    assert killed.exists()
    whole = np.arange(count * size)
    for name, starts in (("windows", whole // 5_000), ("totals", whole * 0)):
        wanted = {
            (int(start), key): (len(amounts), int(amounts.sum()), int(amounts.max()))
            for start in np.unique(starts)
            for key in range(7)
            if len(
                amounts := _of_key(
                    whole[np.searchsorted(starts, start) : np.searchsorted(starts, start, "right")], key
                )
            )
        }
        parts = [pq.read_table(part) for part in sorted((tmp_path / name).glob("part-*"))]
        found = {}
        for row in pa.concat_tables(parts).to_pylist():
            start = int(row["window_start"].timestamp() * 1_000) // 5_000 if "window_start" in row else 0
            assert (start, row["key"]) not in found, "a window has two results"
            found[start, row["key"]] = row["n"], row["total"], row["most"]
        assert found == wanted, name
