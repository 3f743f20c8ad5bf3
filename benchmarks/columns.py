"""Streams in columns against loops over the same rows, and against Polars on one thread."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sluiceway as sw
from benchmarks.columnruns import measure_runs
from benchmarks.columnwords import measure_words
from benchmarks.harness import BY_HAND, FUNCTIONS, Comparison, Emit, Loop, Plan, Row, Way, compare, timed
from benchmarks.windows import LATE_MS, PER_SECOND, START, tumbling_by_hand
from sluiceway.connector.lib import DiscardSink
from sluiceway.windows import TumblingEventTimeWindows

__all__ = ["measure"]

USERS = 1_000


def measure(plan: Plan) -> Iterator[Row]:
    if find_spec("pyarrow") is None or find_spec("narwhals") is None:
        yield Row("four expressions in columns", "x loop", (), note="the extra columns is not installed")
        return
    yield from _chain(plan)
    yield from _filter(plan)
    yield from _windows(plan, 10_000, plan.size(2_000_000, 20_000), aim=8)
    yield from _windows(plan, 1_000_000, plan.size(4_000_000, 20_000), aim=5)
    yield _parquet(plan)
    yield from measure_words(plan)
    yield from measure_runs(plan)


# ---- expressions ----------------------------------------------------------------------------------------------

STEPS: tuple[Callable[[int], int], ...] = (lambda x: x + 1, lambda x: x * 3, lambda x: x - 2, lambda x: x * x)


def _chain(plan: Plan) -> Iterator[Row]:
    """The same as the chain of four lambdas, in columns."""
    import numpy as np
    import pyarrow as pa

    from sluiceway.table import col

    numbers = range(plan.size(6_000_000, 5_000))
    table = pa.table({"x": np.arange(len(numbers))})
    x = col("x")

    def build(flow: sw.Pipeline) -> Any:
        rows = flow.table(table)
        for expression in (x + 1, x * 3, x - 2, x * x):
            rows = rows.with_columns(expression)
        return rows

    loops = {FUNCTIONS: Loop(_with_functions, numbers), BY_HAND: Loop(_written_out, numbers)}
    ours = _way(build, lambda row: row["x"])
    yield from compare(Comparison("four expressions in columns", len(numbers), ours, loops, aim=9, floor=5), plan)


def _with_functions(numbers: range, emit: Emit) -> None:
    first, second, third, fourth = STEPS
    for number in numbers:
        emit(fourth(third(second(first(number)))))


def _written_out(numbers: range, emit: Emit) -> None:
    for number in numbers:
        x = (number + 1) * 3 - 2
        emit(x * x)


def _filter(plan: Plan) -> Iterator[Row]:
    """Texts and numbers, of which a filter keeps some; the loop has the rows as tuples already."""
    table = _table(plan.size(4_000_000, 5_000))
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    ours = _way(lambda flow: _four(flow.table(table)), lambda row: (row["user"], row["gross"]))
    loops = {BY_HAND: Loop(_by_hand, rows)}
    yield from compare(Comparison("filter and projection in columns", len(rows), ours, loops), plan)


def _table(rows: int) -> Any:
    import numpy as np
    import pyarrow as pa

    numbers = np.arange(rows)
    users = pa.array([f"user{n}" for n in range(USERS)]).take(pa.array(numbers % USERS))
    return pa.table({"user": users, "price": (numbers % 997) / 8, "count": numbers % 13})


def _four(stream: Any) -> Any:
    from sluiceway.table import col

    return (
        stream.with_columns(total=col("price") * col("count"))
        .filter(col("total") > 100)
        .with_columns(vat=col("total") * 0.25)
        .select("user", gross=col("total") + col("vat"))
    )


def _by_hand(rows: Sequence[tuple[str, float, int]], emit: Emit) -> None:
    for user, price, count in rows:
        total = price * count
        if total > 100:
            vat = total * 0.25
            emit((user, total + vat))


def _way(build: Callable[[sw.Pipeline], Any], result: Callable[[dict[str, Any]], Any]) -> Way:
    def run() -> None:
        flow = sw.Pipeline("benchmark")
        build(flow).sink(DiscardSink())
        flow.run()

    return Way(lambda: list(map(result, build(sw.Pipeline("benchmark")).to_arrow().to_pylist())), run)


# ---- windows --------------------------------------------------------------------------------------------------


def _windows(plan: Plan, keys: int, rows: int, aim: float) -> Iterator[Row]:
    """Sums of windows of 10 s, in which each key has some 25 rows, or about one of a million keys."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(1)
    per_second = max(PER_SECOND, keys // 10)
    times = START + np.arange(rows) * 1_000 // per_second - random.integers(0, LATE_MS, rows)
    table = pa.table(
        {"user": random.integers(0, keys, rows), "amount": random.integers(1, 1_000, rows), "at": times}
    )
    events = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    yield from compare(
        Comparison(
            f"tumbling windows of 10 s in columns, sums of {keys:,} keys",
            rows,
            _way(lambda flow: sums_of_windows(flow.table(table)), lambda row: row["total"]),
            {BY_HAND: Loop(tumbling_by_hand, events)},
            in_order=False,
            aim=aim,
            floor=aim / 2,
        ),
        plan,
    )


def sums_of_windows(stream: Any) -> Any:
    from sluiceway.table import agg

    strategy: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness(LATE_MS).with_timestamp_column("at")
    timed_rows = stream.assign_timestamps_and_watermarks(strategy)
    windows = timed_rows.key_by("user").window(TumblingEventTimeWindows.of("10s"))
    return windows.aggregate(total=agg.sum("amount"))


# ---- Parquet to Parquet ---------------------------------------------------------------------------------------


def _parquet(plan: Plan) -> Row:
    name, against = "filter and projection, Parquet to Parquet", "Polars' streaming engine on one thread"
    if find_spec("polars") is None:
        return Row(name, "x speed", (), aim=0.6, note="polars is not installed", against=against)
    import pyarrow.parquet as pq

    place = Path(tempfile.mkdtemp(prefix="columns-"))
    try:
        pq.write_table(_table(plan.size(8_000_000, 20_000)), place / "in.parquet", row_group_size=500_000)
        ratios = []
        for _ in range(plan.runs):
            theirs = _polars_seconds(place)
            ours = timed(lambda: _with_files(place)).wall
            ratios.append(theirs / ours)
            _check_same_rows(place)
            shutil.rmtree(place / "out")
        return Row(name, "x speed", tuple(ratios), aim=0.6, floor=0.3, against=against)
    finally:
        shutil.rmtree(place)


def _with_files(place: Path) -> None:
    from sluiceway_files import FilesSink, FilesSource

    flow = sw.Pipeline("benchmark")
    rows = _four(flow.table(FilesSource.parquet(str(place / "in.parquet"))))
    rows.sink(FilesSink.parquet(str(place / "out")))
    flow.run()


_POLARS = """
import sys, time, polars as pl
source, target = sys.argv[1:]
begin = time.perf_counter()
total = pl.col("price") * pl.col("count")
(
    pl.scan_parquet(source).with_columns(total=total).filter(pl.col("total") > 100)
    .select("user", gross=pl.col("total") + pl.col("total") * 0.25)
    .sink_parquet(target, compression="snappy")
)
print(time.perf_counter() - begin)
"""


def _polars_seconds(place: Path) -> float:
    """Run in a process of its own, as the number of threads is read from the environment at import."""
    command = [sys.executable, "-c", _POLARS, str(place / "in.parquet"), str(place / "polars.parquet")]
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout)


def _check_same_rows(place: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    sums = [
        (len(table), round(pc.sum(table["gross"]).as_py(), 3))
        for table in (pq.read_table(place / "out"), pq.read_table(place / "polars.parquet"))
    ]
    if sums[0] != sums[1]:
        raise RuntimeError(f"Parquet to Parquet: {sums[0]} by us, {sums[1]} by Polars")
