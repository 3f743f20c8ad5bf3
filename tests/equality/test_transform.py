"""Random pipelines say the same between two DataFrames of Spark's, batch and streaming, as in one process."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from equality_engines import HAS_MICRO_BATCHES, IN_PROCESS
from equality_functions import Rec
from equality_programs import KINDS, Found, Order, Program, differences, programs
from hypothesis import given
from hypothesis import strategies as st
from test_random import each, outcome, runs

import sluiceway as sw
from sluiceway.errors import ConfigurationError
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

ROW = "program int, origin int, key long, value long, time long"
RESULT = "leaf int, key long, value long, time long"
AFTER_ALL = 10**9
ATTEMPTS = 10
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

NOT_HERE = {"late"}
"""Watermarks come behind a micro-batch, not behind certain records."""

ENDS = {"at the end"}
"""A query over a stream stops, and its input has no end."""


def rows_of(several: Sequence[Program]) -> list[dict[str, int]]:
    """The records of all origins in one DataFrame, none further behind another one than in its own origin.

    The last one is of no origin: behind it no window is open.
    """
    placed = []
    for p, program in enumerate(several):
        for o, origin in enumerate(program.origins):
            highest = 0
            for key, value, time in origin.records:
                highest = max(highest, time)
                placed.append((highest, {"program": p, "origin": o, "key": key, "value": value, "time": time}))
    rows = [row for _, row in sorted(placed, key=lambda one: one[0])]
    return [*rows, {"program": -1, "origin": -1, "key": 0, "value": 0, "time": AFTER_ALL}]


def over(several: Sequence[Program], rows: Any) -> list[tuple[str, Any, Any]]:
    """The outputs of programs whose origins are parts of one stream."""
    bound = max(origin.bound for program in several for origin in program.origins)
    strategy: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness(bound)
    timed = rows.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda row: row["time"]))

    def part(p: int, o: int) -> Any:
        mine = timed.filter(lambda row: (row["program"], row["origin"]) == (p, o))
        return mine.map(lambda row: Rec(row["key"], row["value"]))

    return [
        output
        for p, program in enumerate(several)
        for output in program.outputs([part(p, o) for o in range(len(program.origins))])
    ]


def numbered(leaf: int, order: Order, stream: Any) -> Any:
    rows = stream.map(lambda pair: (leaf, *pair[0], pair[1]))
    return rows.set_parallelism(1) if order is Order.ALL else rows


def as_rows(several: Sequence[Found]) -> list[Found]:
    """With the order that a DataFrame has: those of a key come from one subtask, all others from anywhere."""
    return [Found(one.where, Order.NONE if one.order is Order.ALL else one.order, one.records) for one in several]


def as_one(several: Sequence[Program], outputs: list[tuple[str, Any, Any]]) -> Any:
    """Builder of one stream from the outputs of programs. The outputs are left in ``outputs``."""

    def build(rows: Any) -> Any:
        outputs[:] = over(several, rows)
        first, *others = [numbered(leaf, order, stream) for leaf, (_, order, stream) in enumerate(outputs)]
        return first.union(*others) if others else first

    return build


def transformed(several: Sequence[Program], spark: Any, *, batches: int) -> list[Found]:
    """Results of programs as one transform, over a DataFrame, or over so many micro-batches."""
    from sluiceway_spark import transform

    outputs: list[tuple[str, Any, Any]] = []
    build = as_one(several, outputs)
    rows = rows_of(several)
    if batches:
        with tempfile.TemporaryDirectory() as place:
            size = -(-len(rows) // batches)
            results = by_micro_batches(
                spark, Path(place), rows, size, lambda frame: transform(frame, build, RESULT)
            )
    else:
        frame = spark.createDataFrame([tuple(row.values()) for row in rows[:-1]], ROW)
        results = transform(frame, build, RESULT).collect()
    return [
        Found(where, order, [(Rec(r.key, r.value), r.time) for r in results if r.leaf == leaf])
        for leaf, (where, order, _) in enumerate(outputs)
    ]


def by_micro_batches(spark: Any, place: Path, rows: list[dict[str, int]], size: int, make: Any) -> list[Any]:
    from pyspark.errors import StreamingQueryException

    (place / "in").mkdir()
    for number, first in enumerate(range(0, len(rows), size)):
        file = place / f"{number}.new"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[first : first + size]))
        os.utime(file, (number + 1, number + 1))  # by which Spark reads them in their order
        file.rename(place / "in" / f"{number}.json")
    results: dict[int, list[Any]] = {}
    frame = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1).json(str(place / "in"))
    writer = make(frame).writeStream.foreachBatch(lambda made, batch: results.update({batch: made.collect()}))
    writer = writer.option("checkpointLocation", str(place / "kept")).trigger(availableNow=True)
    for attempt in range(ATTEMPTS):
        try:
            writer.start().awaitTermination()
            break
        except StreamingQueryException as error:
            # Spark gives the first Python process of a query 10 s to start, which a busy machine may not do.
            if "failed to connect back" not in str(error) or attempt == ATTEMPTS - 1:
                raise
    assert len(results) == -(-len(rows) // size)
    return [row for batch in sorted(results) for row in results[batch]]


def check(several: Sequence[Program], spark: Any, *, batches: int = 0) -> None:
    said = differences(as_rows(outcome(several, IN_PROCESS)), transformed(several, spark, batches=batches))
    assert not said, "\n".join([f"transform, with {batches} micro-batches, is not as {IN_PROCESS}:", *said])


@pytest.fixture(scope="module")
def session(spark: Any) -> Any:
    """With settings of its own."""
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


def without(kinds: set[str]) -> Any:
    drawn = programs(most_steps=5).filter(lambda program: not kinds & {step.kind for step in program.steps})
    return st.lists(drawn, min_size=2, max_size=3)


SHARES = pytest.mark.parametrize("first", range(0, len(KINDS), 5), ids=lambda first: f"from {list(KINDS)[first]}")


def share(first: int) -> list[str]:
    return [kind for kind in list(KINDS)[first : first + 5] if kind not in NOT_HERE]


@SHARES
def test_each_kind_of_step_over_a_dataframe(session: Any, first: int) -> None:
    check(each(share(first)), session)


@HAS_MICRO_BATCHES
def test_stateless_steps_over_a_stream(session: Any) -> None:
    check(each(["map", "filter", "flat_map", "rekey", "own chain"]), session, batches=18)


@pytest.mark.slow
@HAS_MICRO_BATCHES
@SHARES
def test_each_kind_of_step_over_a_stream(session: Any, first: int) -> None:
    check(each([kind for kind in share(first) if kind not in ENDS]), session, batches=4)


@pytest.mark.skipif(too_old(MICRO_BATCHES) is None, reason="this PySpark has keyed steps over streams")
def test_an_older_pyspark_refuses_keyed_steps_over_a_stream(session: Any, tmp_path: Path) -> None:
    from sluiceway_spark import transform

    # All of them, as the outputs of a program meet behind a shuffle.
    frame = session.readStream.schema(ROW).json(str(tmp_path))
    told = f"keyed steps over a streaming DataFrame: {too_old(MICRO_BATCHES)}"
    for kind in KINDS:
        with pytest.raises(ConfigurationError, match=re.escape(told)):
            transform(frame, as_one(each([kind]), []), RESULT)


@given(without(NOT_HERE))
@runs(5)
def test_random_pipelines_over_a_dataframe(session: Any, several: list[Program]) -> None:
    check(several, session)
