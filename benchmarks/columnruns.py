"""Jobs in columns as they run: on two workers, with checkpoints, and the memory of many keys."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import sluiceway as sw
from benchmarks.checkpoints import checkpoints_in
from benchmarks.harness import Plan, Row, Time, short, timed
from benchmarks.plainprocesses import PlainProcesses
from benchmarks.runs import Taken, timed_run
from benchmarks.windows import LATE_MS, PER_SECOND, START
from sluiceway.connector.lib import DiscardSink
from sluiceway.windows import TumblingEventTimeWindows

__all__ = ["measure_runs"]

KEYS = 10_000
_GROUP = 250_000
"""Rows of a row group: what a reader takes at a time."""


def measure_runs(plan: Plan) -> Iterator[Row]:
    place = Path(tempfile.mkdtemp(prefix="columns-"))
    try:
        yield from _workers(plan, place)
        yield _checkpoints(plan, place)
    finally:
        shutil.rmtree(place)
    yield _memory(plan)


# ---- two workers ------------------------------------------------------------------------------------------------


def _workers(plan: Plan, place: Path) -> Iterator[Row]:
    """Words of Parquet files that are counted, and sums of windows of events in them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks.columnwords import totals
    from benchmarks.text import zipf_lines

    # So much that the seconds in which each worker imports what the job needs do not count.
    lines = zipf_lines(plan.size(100_000, 500))
    repeated = pa.table(
        {"line": pa.array(lines).take(pa.array(np.arange(plan.size(1_000_000, 500)) % len(lines)))}
    )
    times, rows = plan.size(4, 1), plan.size(20_000_000, 10_000)
    with pq.ParquetWriter(place / "lines.parquet", repeated.schema) as writer:
        for _ in range(times):
            writer.write_table(repeated, row_group_size=_GROUP // 10)
    with pq.ParquetWriter(place / "events.parquet", events_of(0).schema) as writer:
        for number in range(times):
            writer.write_table(events_of(rows, number * rows), row_group_size=_GROUP)
    for name, file, build, plain, groups, count in (
        (
            "word count in columns, totals, from Parquet",
            "lines.parquet",
            totals,
            totals_by_pyarrow,
            30,
            times * repeated.num_rows,
        ),
        (
            "windows of 10 s in columns, sums, from Parquet",
            "events.parquet",
            summed,
            summed_by_pyarrow,
            60,
            times * rows,
        ),
    ):
        loop = PlainProcesses(name, "a loop that calls pyarrow", plain, str(place / file), plan.size(groups, 1))
        yield from _two_workers(name, place / file, build, count, loop, plan)


def _two_workers(
    name: str, file: Path, build: Callable[[Any], Any], rows: int, plain: PlainProcesses, plan: Plan
) -> Iterator[Row]:
    results = build(_from(sw.Pipeline("benchmark"), file)).to_arrow().num_rows
    taken: dict[int, list[Taken]] = {1: [], 2: []}
    with plain:
        for _ in range(plan.runs):
            for workers, runs in taken.items():
                flow = sw.Pipeline("benchmark", parallelism=workers)
                build(_from(flow, file)).sink(DiscardSink())
                runs.append(timed_run(flow, workers, results))
            plain.measure()
    pairs = list(zip(taken[1], taken[2], strict=True))
    speedups = tuple(one.wall / two.wall for one, two in pairs)
    yield Row(
        f"{name}: 2 workers against one",
        "x speed",
        speedups,
        aim=1.6,
        note=f"{plain.share(speedups)}; {short(rows / median(two.wall for _, two in pairs))} rows/s; "
        f"by processor time {median(2 * one.cpu / two.cpu for one, two in pairs):.2f}, start included; "
        f"{median(two.start for _, two in pairs):.2g} s to start and end the workers left out",
        details={
            "rows": rows,
            "seconds": {str(w): [t.wall for t in ts] for w, ts in taken.items()},
            "processor_seconds": {str(w): [t.cpu for t in ts] for w, ts in taken.items()},
        },
    )
    yield plain.row()


def _from(flow: sw.Pipeline, file: Path) -> Any:
    from sluiceway_files import FilesSource

    return flow.table(FilesSource.parquet(str(file)))


def events_of(rows: int, first: int = 0) -> Any:
    """Return a table of events from one of them on, each up to five seconds out of order."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(1)
    times = START + np.arange(first, first + rows) * 1_000 // PER_SECOND - random.integers(0, LATE_MS, rows)
    users, amounts = random.integers(0, KEYS, rows), random.integers(1, 1_000, rows)
    return pa.table({"user": users, "amount": amounts, "at": times})


def summed(stream: Any) -> Any:
    from sluiceway.table import agg

    strategy: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness(LATE_MS).with_timestamp_column("at")
    stream = stream.assign_timestamps_and_watermarks(strategy).key_by("user")
    return stream.window(TumblingEventTimeWindows.of("10s")).aggregate(total=agg.sum("amount"))


def totals_by_pyarrow(file: str, groups: int) -> None:
    """Count the words of the first row groups by pyarrow alone, on one thread."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = []
    for group in _groups(file, groups):
        words = pc.list_flatten(pc.split_pattern(group["line"], " "))
        counts.append(pa.table({"word": words}).group_by("word", use_threads=False).aggregate([([], "count_all")]))
    pa.concat_tables(counts).group_by("word", use_threads=False).aggregate([("count_all", "sum")])


def summed_by_pyarrow(file: str, groups: int) -> None:
    """Sum the windows in the first row groups by pyarrow alone, on one thread."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sums = []
    for group in _groups(file, groups):
        rows = group.set_column(2, "window", pc.divide(group["at"], 10_000))
        sums.append(rows.group_by(["user", "window"], use_threads=False).aggregate([("amount", "sum")]))
    pa.concat_tables(sums).group_by(["user", "window"], use_threads=False).aggregate([("amount_sum", "sum")])


def _groups(file: str, groups: int) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as reader:
        for number in range(groups):
            yield reader.read_row_group(number, use_threads=False)


# ---- checkpoints ------------------------------------------------------------------------------------------------

_BATCH = 1 << 16


def _checkpoints(plan: Plan, place: Path) -> Row:
    """The same job with a checkpoint every second and without, by wall clock and by processor time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    batches, interval = plan.size(1_500, 3), "20ms" if plan.quick else "1s"
    sides: tuple[list[Time], list[Time]] = ([], [])
    taken: list[int] = []
    block = events_of(_BATCH).combine_chunks().to_batches()[0]
    of_block = _BATCH * 1_000 // PER_SECOND

    def later(number: int) -> Any:
        at = pc.add(block.column("at"), number * of_block)
        return block.set_column(2, "at", at)

    def run(**options: Any) -> None:
        flow = sw.Pipeline("benchmark")
        summed(flow.generate(later, count=batches).returns(pa.RecordBatch).to_columns(block.schema)).sink(
            DiscardSink()
        )
        flow.run(**options)

    for number in range(plan.runs):
        kept = str(place / f"checkpoints{number}")
        sides[0].append(timed(run))
        sides[1].append(timed(lambda kept=kept: run(checkpoint_interval=interval, checkpoints=kept)))
        taken.append(max(checkpoints_in(kept), default=0))
    pairs = list(zip(*sides, strict=True))
    cpus = [without.cpu / taking.cpu for without, taking in pairs]
    return Row(
        f"windows in columns with a checkpoint every second, {KEYS:,} keys",
        "x speed",
        tuple(without.wall / taking.wall for without, taking in pairs),
        aim=0.95,
        note=f"by processor time {median(cpus):.3g}; {median(taken):.0f} checkpoints in "
        f"{median(taking.wall for _, taking in pairs):.1f} s",
        details={"rows": batches * _BATCH, "ratios_by_cpu_time": cpus, "checkpoints": taken},
        against="no checkpoints",
    )


# ---- memory -----------------------------------------------------------------------------------------------------

_MANY = """
import re, sys
import numpy as np, pyarrow as pa
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.table import agg
from sluiceway.windows import TumblingEventTimeWindows

windows, keys = map(int, sys.argv[1:])


def rows(number: int) -> pa.RecordBatch:
    many = np.arange(keys)
    return pa.record_batch({"user": many, "amount": many % 997, "at": np.full(keys, number * 10_000)})


schema = rows(0).schema
strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness("1d").with_timestamp_column("at")
flow = sw.Pipeline("many keys")
stream = flow.generate(rows, count=max(windows, 1)).returns(pa.RecordBatch).to_columns(schema)
if windows:
    windows = TumblingEventTimeWindows("10s")
    stream = stream.assign_timestamps_and_watermarks(strategy).key_by("user").window(windows).aggregate(
        n=agg.count(), total=agg.sum("amount"), most=agg.max("amount")
    )
stream.sink(DiscardSink())
flow.run()
# Not getrusage(): its figure begins with that of the process which started this one.
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 1024)
"""


def _memory(plan: Plan) -> Row:
    """All windows are open until the end of the input: the watermark is a day behind."""
    windows, keys = 10, plan.size(1_000_000, 1_000)
    values, bare = [], []
    for _ in range(min(plan.runs, 3)):
        values.append(_megabytes(windows, keys))
        bare.append(_megabytes(0, keys))
    return Row(
        f"memory of ten windows of {keys:,} keys with three aggregates",
        "MB",
        tuple(values),
        aim=1_024,
        note=f"at the most, of the whole process; {median(bare):.0f} MB of it without windows",
        details={"without_windows_mb": bare},
    )


def _megabytes(windows: int, keys: int) -> float:
    command = [sys.executable, "-c", _MANY, str(windows), str(keys)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
