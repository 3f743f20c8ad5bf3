"""SparkSource against Spark's own ways to Python, over the same Parquet files; and its memory.

As a program, with a path and what rows are to become, it is the process whose memory is measured.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sluiceway as sw
from benchmarks.harness import Plan, Row
from benchmarks.sparksession import spark_session
from sluiceway.connector import Sink, SinkWriter, WriterContext

__all__ = ["measure"]

ROWS = 4_000_000
TIMES = 4  # how much larger the large table is
FILES = 8
BATCHES, TUPLES, TO_ARROW, MEMORY, MEMORY_TUPLES = (
    "SparkSource, Arrow batches, against mapInArrow",
    "SparkSource, tuples, against mapInArrow that makes them",
    "SparkSource, Arrow batches, against toArrow()",
    f"SparkSource, memory for a table {TIMES} times as large, Arrow batches",
    f"SparkSource, memory for a table {TIMES} times as large, tuples",
)


class Counting(Sink[Any]):
    """Counts rows, in this process."""

    counted = 0

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return _CountingWriter()


class _CountingWriter(SinkWriter[Any]):
    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        if type(values[0]) is tuple:
            Counting.counted += len(values)
        else:
            Counting.counted += sum(batch.num_rows for batch in values)


def measure(plan: Plan) -> Iterator[Row]:
    if missing := [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]:
        for name in (BATCHES, TUPLES, TO_ARROW):
            yield Row(name, "x speed", (), note=f"{missing[0]} is not installed")
        for name in (MEMORY, MEMORY_TUPLES):
            yield Row(name, "x memory", (), note=f"{missing[0]} is not installed")
        return
    with spark_session({"spark.driver.memory": "2g", "spark.driver.maxResultSize": "0"}) as (session, place):
        size = plan.size(ROWS, 2000)
        path, large = f"{place}/table", f"{place}/large"
        make_table(session, path, size, FILES)
        make_table(session, large, size * TIMES, FILES * TIMES)
        by_map = lambda: _by_map(session, path, _count_batches)  # noqa: E731 - as the next
        tuples_by_map = lambda: _by_map(session, path, _count_tuples)  # noqa: E731
        yield _pairs(BATCHES, plan, size, by_map, lambda: _ours(path, "arrow"))
        yield _pairs(TUPLES, plan, size, tuples_by_map, lambda: _ours(path, tuple))
        yield _pairs(
            TO_ARROW,
            plan,
            size,
            lambda: int(session.read.parquet(path).toArrow().num_rows),
            lambda: _ours(path, "arrow"),
        )
        yield _memory(MEMORY, plan, path, large, "arrow")
        yield _memory(MEMORY_TUPLES, plan, path, large, "tuple")


def make_table(session: Any, path: str, rows: int, files: int) -> None:
    """Numbers and words, in Parquet files."""
    frame = session.range(0, rows, 1, files)
    frame.selectExpr("id", "concat('word', id % 1000) AS word", "id * 0.5D AS price").write.parquet(path)


def _pairs(name: str, plan: Plan, size: int, theirs: Callable[[], int], ours: Callable[[], int]) -> Row:
    found = (theirs(), ours())  # warm, too
    if found != (size, size):
        raise RuntimeError(f"{name}: {found} rows, there are {size}")
    times = [(_seconds(theirs), _seconds(ours)) for _ in range(plan.runs)]
    ratios = tuple(a / b for a, b in times)
    rates = [size / sorted(side)[len(times) // 2] / 1e6 for side in zip(*times, strict=True)]
    note = f"{rates[1]:.3g} M rows/s, Spark alone {rates[0]:.3g} M"
    return Row(name, "x speed", ratios, aim=0.7, note=note, details={"rows": size, "seconds": times})


def _seconds(work: Callable[[], int]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _ours(path: str, records: Any) -> int:
    from sluiceway_spark import SparkSource

    Counting.counted = 0
    flow = sw.Pipeline("count")
    flow.source(SparkSource.path(path, records=records)).sink(Counting())
    flow.run()
    return Counting.counted


def _by_map(session: Any, path: str, count: Callable[[Iterable[Any]], Iterator[Any]]) -> int:
    return sum(row.n for row in session.read.parquet(path).mapInArrow(count, "n long").collect())


def _count_batches(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})


def _count_tuples(batches: Iterable[Any]) -> Iterator[Any]:
    import pyarrow as pa

    rows = 0
    for batch in batches:
        rows += len(list(zip(*(column.to_pylist() for column in batch.columns), strict=True)))
    yield pa.RecordBatch.from_pydict({"n": [rows]})


# ---- memory ----------------------------------------------------------------------------------------------------


def _memory(name: str, plan: Plan, small: str, large: str, records: str) -> Row:
    ratios, found = [], []
    for _ in range(min(plan.runs, 2)):
        found.append(tuple(_peak_mb(path, records) for path in (small, large)))
        ratios.append(found[-1][1] / found[-1][0])
    note = f"{found[-1][0]:.0f} MB and {found[-1][1]:.0f} MB at most, Spark's own process left out"
    return Row(name, "x memory", tuple(ratios), aim=1.2, note=note, details={"mb": found})


def _peak_mb(path: str, records: str) -> float:
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.sparksource", path, records],
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"measuring memory failed: {child.stderr[-2000:]}")
    return float(child.stdout.split()[-1])


def main(path: str, records: str) -> None:
    """Read a table, and print how much memory this process has had at most, in MB."""
    with spark_session({"spark.driver.memory": "2g"}):
        _ours(path, tuple if records == "tuple" else records)
    status = Path("/proc/self/status").read_text()
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    print(int(kilobytes) / 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
