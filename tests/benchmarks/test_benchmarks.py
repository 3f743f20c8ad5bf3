"""That the benchmarks run and are fair; what they measure is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.docs

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
LOOPS = (", against a loop that calls the same functions", ", against a loop written out by hand")
ROWS = [
    *(f"chain of four lambdas{loop}" for loop in LOOPS),
    *(f"word count, reduce{loop}" for loop in LOOPS),
    f"word count, reduce, lambdas without types{LOOPS[0]}",
    f"word count, reduce, parallelism 2 in one process{LOOPS[0]}",
    *(
        f"word count, {way}{loop}"
        for way in ("count()", "process function with state", "process function of batches")
        for loop in LOOPS
    ),
    *(
        f"{windows}, sums{loop}"
        for windows in (
            "tumbling windows of 10 s",
            "sliding windows of 60 s by 10 s",
            "session windows with a gap of 1 s",
        )
        for loop in LOOPS
    ),
    "tumbling windows of 10 s, built-in sum(), against an aggregate function written for it",
    "sliding windows of 60 s by 1 s, sums: cost",
    "timers of the queue",
    "timers of the queue: each",
    "timers of a keyed process function",
    "timers of a keyed process function: each",
    *(
        f"nexmark q{number}, "
        for number in NEXMARK
        for _ in range(1 if f"q{number}" in ("q4", "q6", "q9", "q12", "q18", "q19") else 2)
    ),
    "nexmark, geometric mean of 17 queries, against a streaming loop",
    "nexmark, geometric mean of 11 queries in columns, against a streaming loop",
    f"interval join, two matches per record{LOOPS[0]}",
    *(
        f"{job}, {where}{against}"
        for job in (
            "word count, 0.002 M words of a text file",
            "tumbling windows, 0.002 M lines of numbers",
        )
        for where, against in (
            *(("one process", loop) for loop in LOOPS),
            *(
                (workers, against)
                for workers in ("one worker", "two workers")
                for against in (
                    *LOOPS,
                    ", against one process",
                    ", against one process, with start and end",
                )
            ),
        )
    ),
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
        for job, keys in (
            ("word count", "10"),
            ("word count", "100"),
            ("word count", "1,000"),
            ("windowed sum", "100"),
        )
        for backend in ("memory", "rocksdb")
    ),
    *(f"longest pause in each second, checkpoints of a million keys, {way}" for way in ("memory", "rocksdb")),
    "longest wait of a barrier while a million timers fire, memory",
    *(f"from the start to the end of a job that restores a million keys, {way}" for way in ("memory", "rocksdb")),
    "keyed sum in batches of 8 records, against batches of 1,024",
    *(f"four expressions in columns{loop}" for loop in LOOPS),
    f"filter and projection in columns{LOOPS[1]}",
    *(f"tumbling windows of 10 s in columns, sums of {keys} keys{LOOPS[1]}" for keys in ("10,000", "1,000,000")),
    "filter and projection, Parquet to Parquet, against Polars",
    *(f"word count in columns, {what}{LOOPS[1]}" for what in ("running count per word", "totals")),
    *(
        f"{job}, from Parquet: 2 {what} against one"
        for job in ("word count in columns, totals", "windows of 10 s in columns, sums")
        for what in ("workers", "plain processes at once")
    ),
    "windows in columns with a checkpoint every second, 10,000 keys, against no checkpoints",
    "memory of ten windows of 1,000 keys with three aggregates",
    *(
        f"a checkpoint at {pressure} % back-pressure, {way}"
        for pressure in (0, 50, 90, 100)
        for way in ("aligned", "unaligned after 500ms", "unaligned")
    ),
    *(
        f"throughput with the page of the job open{way}"
        for way in (", against no ", ", by processor time, against no ")
    ),
    "processor time of the job's process for the page of the job",
    "processor time of the web process",
    *(
        f"throughput while stacks are sampled at 50 Hz{way}"
        for way in (", against no ", ", by processor time, against no ")
    ),
    "processor time of the thread that takes samples",
    "/jobs/overview of 100 jobs of 30 tasks",
    "/jobs/overview of 100 jobs of 30 tasks, processor time",
    *(
        f"word count, {distinct} words: 2 {what}"
        for distinct in ("100", "20,000")
        for what in (
            "workers against one process",
            "workers against one worker",
            "plain processes at once against one",
        )
    ),
    "a record's hop through shared memory, beside one by reference",
    "buffer timeout of 1 ms against 100 ms, 200 channels on 2 workers",
    "back-pressure: growth of the workers",
    "back-pressure: what the source reads",
    "back-pressure: cancel",
    "sluiceway run of an empty job",
    "memory after an empty job",
    *(f"word count from a text file by {peer}" for peer in ("Bytewax", "Pathway", "pyarrow", "Flink", "PyFlink")),
    *(f"tumbling windows from a text file by {peer}" for peer in ("Bytewax", "Flink", "PyFlink")),
    "Kafka source to a discarding sink",
    "Kafka sink, at least once",
    "Kafka to Kafka with a checkpoint every second, exactly once",
    *(f"latency through Kafka at 1,000 records/s, {share}" for share in ("median", "99th percentile")),
    "SparkSource, Arrow batches, against mapInArrow",
    "SparkSource, tuples, against mapInArrow that makes them",
    "SparkSource, Arrow batches, against toArrow()",
    "SparkSource, memory for a table 4 times as large, Arrow batches",
    "SparkSource, memory for a table 4 times as large, tuples",
    *(
        f"micro-batches on Spark, {job}{what}"
        for job, others in (("word count", ()), ("sums of windows", (": 100,000 keys against 1,000",)))
        for what in (
            *(
                f" {way}, against {other}"
                for way in ("record by record", "by batches", "in columns")
                for other in ("transformWithState by key", "mapInArrow and groupBy")
            ),
            *others,
        )
    ),
    "batch job over Parquet on Spark, filter and map, against mapInPandas",
    "hosted on Spark, word count: 2 workers against 2 of the engine local",
    "micro-batches of 1,000 on Spark, foreachBatch with collect(), against empty transformWithState",
    *(
        f"micro-batches of 1,000 on Spark, {job}, against {what}"
        for job in ("word count", "sums of windows")
        for what in ("empty transformWithState", "transformWithState by key", "mapInArrow and groupBy")
    ),
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: import_module(f"benchmarks.{name}")


# Ten minutes on a quiet machine.
@pytest.mark.timeout(7200)
def test_all_of_them_run_and_both_sides_of_each_agree(tmp_path: Path) -> None:
    """They compare their results themselves, and end with an error where these differ."""
    done = run("--quick", "--runs", "1", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "figures.json").read_text())
    assert len(written["rows"]) == len(ROWS)
    for row, name in zip(written["rows"], ROWS, strict=True):
        title = f"{row['name']}, against {row['against']}" if row["against"] else row["name"]
        assert title.startswith(name)
        assert len([line for line in done.stdout.splitlines() if line.startswith(title)]) >= 1
        if not row["values"]:
            assert row["note"].endswith(("is not installed", "on Linux only", "without --peers DIRECTORY"))
    assert written["machine"]["cores"] >= 1
    assert "too small for the figures to mean anything" in done.stdout


def test_one_of_them_runs_alone(tmp_path: Path) -> None:
    done = run("--quick", "--runs", "2", "--only", "chain", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "figures.json").read_text())
    functions, by_hand = written["rows"]
    assert len(functions["values"]) == len(by_hand["values"]) == 2
    assert (functions["aim"], by_hand["aim"]) == (0.9, None)
    assert list(written["loads"]) == ["chain"]


def test_what_was_measured_before_ctrl_c_is_printed() -> None:
    program = (
        "import sys, types\n"
        "from benchmarks import __main__ as benchmarks\n"
        "def measure(plan):\n"
        "    raise KeyboardInterrupt\n"
        "    yield\n"
        "sys.modules['benchmarks.timers'] = types.SimpleNamespace(measure=measure)\n"
        "benchmarks.main()\n"
    )
    command = [sys.executable, "-c", program, "--quick", "--runs", "1", "--only", "chain", "--only", "timers"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "WARNING: interrupted in timers" in done.stdout
    assert "chain of four lambdas" in done.stdout


def test_no_run_is_refused() -> None:
    done = run("--runs", "0")
    assert done.returncode == 2
    assert "'0' is not a whole number of at least 1" in done.stderr


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
    longest = module("pauses")._longest
    assert longest([0.0, 0.25, 0.5, 1.25, 1.5, 2.25], 1.0) == pytest.approx([250, 750, 750])


def test_a_busy_machine_is_told(module: Callable[[str], Any]) -> None:
    warnings = module("machine").warnings
    assert warnings({"load": 0.5, "cores": 2}) == []
    assert warnings({"load": 1.5, "cores": 2}) == ["the machine was busy before it began: load 1.5 on 2 cores"]
    # Benchmarks that ran before use up to all of its cores.
    assert warnings({"load": 2.5, "cores": 2}, "windows") == []
    assert warnings({"load": 2.7, "cores": 2}, "windows") == [
        "the machine was busy before windows began: load 2.7 on 2 cores"
    ]
