"""That the benchmarks run and are fair; what they measure is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

NEXMARK = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 15, 17, 18, 19, 20)
SENT = (
    "(str, int)",
    "(repeated str, 1)",
    "str",
    "dataclass",
    "dataclass with slots",
    "NamedTuple",
    "msgspec.Struct",
    "(str, dataclass)",
    "nested dataclass",
    "datetime",
    "dict",
    "pydantic model",
    "numpy array of 8",
    "numpy.float64",
)
ROWS = [
    "chain of four lambdas",
    "word count, reduce",
    "word count, reduce, parallelism 2 in one process",
    "word count, reduce, parallelism 4 in one process",
    "word count, count()",
    "word count, process function with state",
    "word count, process function of batches",
    "tumbling windows of 10 s, sums",
    "tumbling windows of 10 s, sums: the loop calls the functions, too",
    "sliding windows of 60 s by 1 s, sums: cost",
    "timers of the queue",
    "timers of the queue: each",
    "timers of a keyed process function",
    "timers of a keyed process function: each",
    *(f"nexmark q{number}" for number in NEXMARK),
    "interval join, two matches per record",
    "latency at 100 lines/s, median",
    "latency at 100 lines/s, 99th percentile",
    *(
        f"a buffer of {size}: {way}"
        for size in ("32 KiB", "1 MiB")
        for way in ("copied", "pipe", "shm", "zmq", "bare pyzmq")
    ),
    *(f"there and back: {way}" for way in ("pipe", "shm", "zmq", "bare pyzmq")),
    "(str, int): encode one",
    "(str, int): decode one",
    *(f"sent: {kind}, against pickle" for kind in SENT),
    *(f"keyed count on RocksDB, {way}" for way in ("Zipf, exponent 1.2", "Zipf, exponent 1", "uniform")),
    *(
        f"{row}, {backend}"
        for backend in ("memory", "rocksdb")
        for row in (
            "pause for a snapshot",
            "making the snapshot beside the processing",
            "restore",
            "restore of half of the key groups",
        )
    ),
    *(
        f"{job} with a checkpoint every second, {keys} keys, {backend}"
        for keys in ("10", "2,000")
        for job in ("word count", "windowed sum")
        for backend in ("memory", "rocksdb")
    ),
    *(f"longest pause in each second, checkpoints of a million keys, {way}" for way in ("memory", "rocksdb")),
    *(f"from the start to the end of a job that restores a million keys, {way}" for way in ("memory", "rocksdb")),
    "longest wait of a barrier while a million timers fire, memory",
    "keyed sum in batches of 8 records",
    *(
        f"a checkpoint at {pressure} % back-pressure, {way}"
        for pressure in (0, 50, 90, 100)
        for way in ("aligned", "unaligned after 500ms", "unaligned")
    ),
    *(
        f"word count, {distinct} words: 2 workers against {other}"
        for distinct in ("100", "20,000")
        for other in ("one process", "one worker")
    ),
    "a record's hop through shared memory, beside one by reference",
    "buffer timeout of 1 ms against 100 ms, 200 channels on 2 workers",
    "back-pressure: growth of the workers",
    "back-pressure: what the source reads",
    "back-pressure: cancel",
    "sluiceway run of an empty job",
    "memory after an empty job",
    "word count, reduce, by bytewax",
    "word count, final counts only, by pyarrow",
    "SparkSource, Arrow batches, against mapInArrow",
    "SparkSource, tuples, against mapInArrow that makes them",
    "SparkSource, Arrow batches, against toArrow()",
    "SparkSource, memory for a table 4 times as large, Arrow batches",
    "SparkSource, memory for a table 4 times as large, tuples",
    *(
        f"micro-batches on Spark, {job}{what}"
        for job in ("word count", "sums of windows")
        for what in (
            ", against transformWithState by key",
            ", against mapInArrow and groupBy",
            ": 100,000 keys against 1,000",
        )
    ),
    *(
        f"micro-batches on Spark, {job} by batches, against {what}"
        for job in ("word count", "sums of windows")
        for what in ("transformWithState by key", "mapInArrow and groupBy")
    ),
    "hosted on Spark, word count: 2 workers against 2 of the engine local",
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: import_module(f"benchmarks.{name}")


def test_all_of_them_run_and_both_sides_of_each_agree(tmp_path: Path) -> None:
    """They compare their results themselves, and end with an error where these differ."""
    done = run("--quick", "--runs", "1", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "figures.json").read_text())
    assert len(written["rows"]) == len(ROWS)
    for row, name in zip(written["rows"], ROWS, strict=True):
        assert row["name"].startswith(name)
        assert len([line for line in done.stdout.splitlines() if line.startswith(row["name"])]) >= 1
        if not row["values"]:
            assert row["note"].endswith(("is not installed", "on Linux only"))
    assert written["machine"]["cores"] >= 1
    assert "too small for the figures to mean anything" in done.stdout


def test_one_of_them_runs_alone(tmp_path: Path) -> None:
    done = run("--quick", "--runs", "2", "--only", "chain", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "figures.json").read_text())["rows"]
    assert len(row["values"]) == 2
    assert row["aim"] == 0.9


def test_no_run_is_refused() -> None:
    done = run("--runs", "0")
    assert done.returncode == 2
    assert "'0' is not a whole number of at least 1" in done.stderr


@pytest.mark.parametrize(
    ("ours", "in_order", "difference"),
    [
        ([1, 3, 2], True, "result 1 is 3 instead of 2"),
        ([1, 2], True, "2 results instead of 3"),
        ([1, 2, 3, 3], False, "4 results instead of 3"),
    ],
)
def test_what_differs_is_not_timed(
    module: Callable[[str], Any], ours: Sequence[int], in_order: bool, difference: str
) -> None:
    harness = module("harness")
    unfair = harness.Comparison("it", 3, loop=lambda: [1, 2, 3], ours=lambda: ours, in_order=in_order)
    with pytest.raises(RuntimeError, match=f"^it: the pipeline and the plain loop differ: {difference}$"):
        harness.compare(unfair, harness.Plan(runs=1))


def test_a_ratio_is_the_time_of_the_loop_over_ours(
    module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In turns, each side once to compare and then once per run."""
    harness = module("harness")
    now = 0.0
    turns: list[str] = []

    def taking(seconds: float, name: str) -> Callable[[], list[int]]:
        def work() -> list[int]:
            nonlocal now
            now += seconds
            turns.append(name)
            return []

        return work

    monkeypatch.setattr(harness.time, "perf_counter", lambda: now)
    monkeypatch.setattr(harness.time, "process_time", lambda: now / 2)
    pair = harness.Comparison("it", 6, loop=taking(3.0, "loop"), ours=taking(4.0, "ours"), aim=0.8, floor=0.7)
    row = harness.compare(pair, harness.Plan(runs=2))
    assert turns == ["loop", "ours"] * 3
    assert row.values == (0.75, 0.75)
    assert row.verdict == "above floor"
    assert row.note.startswith("1.5 records/s, the loop 2; 50% of the time went elsewhere")


@pytest.mark.parametrize(
    ("unit", "values", "aim", "floor", "verdict"),
    [
        ("x loop", (0.1, 0.9, 1.0), 0.9, 0.8, "reached"),
        ("x loop", (0.79,), 0.9, 0.8, "missed"),
        ("x speed", (1.4, 1.6, 1.7), 1.5, None, "reached"),
        ("x speed", (1.4,), 1.5, None, "missed"),
        ("ms", (4.0, 5.0, 90.0), 5.0, None, "reached"),
        ("ms", (5.1,), 5.0, None, "missed"),
        ("ms", (5.1,), None, None, ""),
        ("x loop", (), 0.9, 0.8, ""),
    ],
)
def test_the_median_is_what_is_judged(
    module: Callable[[str], Any],
    unit: str,
    values: tuple[float, ...],
    aim: float | None,
    floor: float | None,
    verdict: str,
) -> None:
    assert module("harness").Row("it", unit, values, aim, floor).verdict == verdict


def test_the_text_is_always_the_same_and_zipfs(module: Callable[[str], Any]) -> None:
    zipf_lines = module("text").zipf_lines
    lines = zipf_lines(5_000, distinct=1_000)
    assert lines == zipf_lines(5_000, distinct=1_000)
    assert lines != zipf_lines(5_000, distinct=1_000, seed=2)
    assert {len(line.split()) for line in lines} == {10}
    counts = Counter(word for line in lines for word in line.split())
    assert 900 < len(counts) <= 1_000
    (_, first), (_, second), (_, third), *_ = counts.most_common()
    assert first / second == pytest.approx(2, rel=0.15)
    assert first / third == pytest.approx(3, rel=0.15)


def test_a_percentile_is_one_of_the_values(module: Callable[[str], Any]) -> None:
    quantile = module("latency").quantile
    assert quantile([float(n) for n in range(100, 0, -1)], 0.99) == 99
    assert quantile([float(n) for n in range(1, 501)], 0.5) == 250
    assert quantile([7.0], 0.5) == 7


def test_the_longest_pause_of_each_second(module: Callable[[str], Any]) -> None:
    longest = module("checkpoints")._longest
    assert longest([0.0, 0.25, 0.5, 1.25, 1.5, 2.25], 1.0) == pytest.approx([250, 750, 750])


def test_a_busy_machine_is_told(module: Callable[[str], Any]) -> None:
    warnings = module("machine").warnings
    assert warnings({"load": 0.5, "cores": 2}) == []
    assert warnings({"load": 1.5, "cores": 2}) == ["the machine was busy before it began: load 1.5 on 2 cores"]
