"""Files as sources: word count from a text file and sums of windows from lines of numbers.

The same pipeline runs in one process, on one worker and on two, at two sizes, and beside loops over the open file.
Runs are timed from the moment when the workers are up, as a job that is worth them runs for long; those on workers
also from the call to its return, in which they have to start and to end.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import sluiceway as sw
from benchmarks.harness import BY_HAND, FUNCTIONS, Emit, Loop, Plan, Row, check_same, short, timed
from benchmarks.runs import Taken, timed_run
from benchmarks.text import zipf_lines
from benchmarks.windows import LATE_MS, WINDOW_MS, Event, SumOfAmounts, events_of, user_of
from benchmarks.wordcount import Pair, add, split, word_of
from sluiceway.connector.lib import DiscardSink
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_files import FilesSource

__all__ = ["Work", "event_of", "measure", "windows_from_file", "words_from_file"]

SIZES = (1_000_000, 5_000_000)
QUICK = (2_000,)
WORKERS = {1: "one worker", 2: "two workers"}
WORDS_A_LINE = 10


@dataclass(frozen=True, slots=True)
class Work:
    """One of the two jobs, over one file.

    Attributes:
        job: without the size.
        name: of the rows, with the size.
        records: how many words or events the file has.
        build: adds everything but the sink to a pipeline.
        functions: loop that calls the same functions.
        by_hand: loop written out by hand.
    """

    job: str
    name: str
    records: int
    build: Callable[[sw.Pipeline], sw.DataStream[Any]]
    functions: Loop
    by_hand: Loop


def measure(plan: Plan) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        for make in (words_from_file, windows_from_file):
            for number, records in enumerate(QUICK if plan.quick else SIZES):
                path = Path(directory, f"{make.__name__}{number}.txt")
                work = make(path, records)
                if number == 0:
                    _check(work)
                yield from _measured(work, plan)
                path.unlink()


# ---- the two jobs -----------------------------------------------------------------------------------------------


def words_from_file(path: Path, records: int) -> Work:
    path.write_text("".join(f"{line}\n" for line in zipf_lines(records // WORDS_A_LINE)))

    def build(flow: sw.Pipeline) -> sw.DataStream[Pair]:
        return flow.source(FilesSource.text(str(path))).flat_map(split).key_by(word_of).reduce(add)

    return Work(
        "word count from a text file",
        f"word count, {records / 1e6:g} M words of a text file",
        records,
        build,
        Loop(_words_with_functions, path),
        Loop(_words_by_hand, path),
    )


def windows_from_file(path: Path, records: int) -> Work:
    path.write_text("".join(f"{user},{amount},{time}\n" for user, amount, time in events_of(records)))

    def build(flow: sw.Pipeline) -> sw.DataStream[int]:
        strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(LATE_MS).with_timestamp_assigner(time_of_line)
        lines = flow.source(FilesSource.text(str(path)), watermark_strategy=strategy)
        windows = TumblingEventTimeWindows.of("10s")
        return lines.map(event_of).key_by(user_of).window(windows).aggregate(SumOfAmounts())

    return Work(
        "tumbling windows from a text file",
        f"tumbling windows, {records / 1e6:g} M lines of numbers",
        records,
        build,
        Loop(_windows_with_functions, path),
        Loop(_windows_by_hand, path),
    )


def time_of_line(line: str) -> int:
    return int(line.rpartition(",")[2])


def event_of(line: str) -> Event:
    user, amount, time = line.split(",")
    return (int(user), int(amount), int(time))


def _words_with_functions(path: Path, emit: Emit) -> None:
    counts: dict[str, Pair] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            for pair in split(line.rstrip("\n")):
                word = word_of(pair)
                so_far = counts.get(word)
                new = counts[word] = pair if so_far is None else add(so_far, pair)
                emit(new)


def _words_by_hand(path: Path, emit: Emit) -> None:
    counts: dict[str, int] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            for word in line.split():
                count = counts[word] = counts.get(word, 0) + 1
                emit((word, count))


def _windows_with_functions(path: Path, emit: Emit) -> None:
    windows: dict[int, dict[int, int]] = {}
    sums = SumOfAmounts()
    create, add, result = sums.create_accumulator, sums.add, sums.get_result
    highest, next_end = 0, 0
    with path.open(encoding="utf-8") as lines:
        for with_end in lines:
            line = with_end.rstrip("\n")
            time = time_of_line(line)
            event = event_of(line)
            if time > highest:
                highest = time
                if highest - LATE_MS > next_end:
                    for start in sorted(s for s in windows if s + WINDOW_MS < highest - LATE_MS):
                        for accumulator in windows.pop(start).values():
                            emit(result(accumulator))
                    next_end = min(windows, default=time - time % WINDOW_MS) + WINDOW_MS
            start = time - time % WINDOW_MS
            window = windows.get(start)
            if window is None:
                window = windows[start] = {}
            user = user_of(event)
            so_far = window.get(user)
            window[user] = add(event, create() if so_far is None else so_far)
    for start in sorted(windows):
        for accumulator in windows[start].values():
            emit(result(accumulator))


def _windows_by_hand(path: Path, emit: Emit) -> None:
    windows: dict[int, dict[str, int]] = {}
    highest, next_end = 0, 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            user, amount, text = line.split(",")
            time = int(text)
            if time > highest:
                highest = time
                if highest - LATE_MS > next_end:
                    for start in sorted(s for s in windows if s + WINDOW_MS < highest - LATE_MS):
                        for total in windows.pop(start).values():
                            emit(total)
                    next_end = min(windows, default=time - time % WINDOW_MS) + WINDOW_MS
            start = time - time % WINDOW_MS
            window = windows.get(start)
            if window is None:
                window = windows[start] = {}
            window[user] = window.get(user, 0) + int(amount)
    for start in sorted(windows):
        for total in windows[start].values():
            emit(total)


# ---- check and measurement --------------------------------------------------------------------------------------


def _check(work: Work) -> None:
    """Raise RuntimeError unless all ways give the same results, in any order."""
    expected = work.by_hand.results()
    check_same(f"{work.name}: the two loops", expected, work.functions.results(), in_order=False)
    for workers in (0, *WORKERS):
        flow = sw.Pipeline("files", parallelism=max(1, workers))
        got = work.build(flow).collect()
        flow.run(workers=workers)
        check_same(f"{work.name}: a loop and the pipeline on {workers} workers", expected, got, in_order=False)


def _run(work: Work, workers: int, results: int) -> Taken:
    flow = sw.Pipeline("files", parallelism=max(1, workers))
    work.build(flow).sink(DiscardSink())
    return timed_run(flow, workers, results)


def _measured(work: Work, plan: Plan) -> Iterator[Row]:
    results = work.by_hand.count()
    sides = {FUNCTIONS: work.functions, BY_HAND: work.by_hand}
    loops: dict[str, list[float]] = {name: [] for name in sides}
    ours: dict[int, list[Taken]] = {workers: [] for workers in (0, *WORKERS)}
    for _ in range(plan.runs):
        for name, side in sides.items():
            loops[name].append(timed(side.run).wall)
        for workers, runs in ours.items():
            gc.collect()
            runs.append(_run(work, workers, results))
    details = {
        "records": work.records,
        "loop_s": loops,
        "ours_s": {str(workers): [run.wall for run in runs] for workers, runs in ours.items()},
        "start_s": {str(workers): [run.start for run in runs] for workers, runs in ours.items()},
        "cpu_s": {str(workers): [run.cpu for run in runs] for workers, runs in ours.items()},
    }
    for workers, runs in ours.items():
        speed = work.records / median(run.wall for run in runs)
        note = f"{short(speed)} records/s once it runs; {median(run.start for run in runs):.2g} s to start and end"
        row = Row(f"{work.name}, {WORKERS.get(workers, 'one process')}", "x loop", (), note=note, details=details)
        for name, times in loops.items():
            walls = zip(times, runs, strict=True)
            yield replace(row, values=tuple(loop / run.wall for loop, run in walls), against=name)
        if workers:
            pairs = list(zip(ours[0], runs, strict=True))
            without = tuple(one.wall / run.wall for one, run in pairs)
            yield replace(row, unit="x speed", values=without, against="one process")
            whole = tuple((one.wall + one.start) / (run.wall + run.start) for one, run in pairs)
            yield replace(row, unit="x speed", values=whole, against="one process, with start and end")
