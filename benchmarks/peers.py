"""Word count and windows from a file by others, beside Sluiceway in one process, as far as they are installed.

Nothing is installed for it, except the jars of Flink where ``--peers DIRECTORY`` asks for them. Each peer does the
same work with one worker, on the same file, with its results discarded after a check. What they promise differs:
Bytewax and Flink emit a count for every word, Pathway and pyarrow the final counts alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.files import Work, event_of, windows_from_file, words_from_file
from benchmarks.flinkpeer import VERSION, Flink, FlinkUnavailableError
from benchmarks.harness import Job, Plan, Row, check_same, short, timed
from benchmarks.windows import Event, time_of, user_of
from benchmarks.wordcount import Pair, add, split, word_of

__all__ = ["measure"]

RECORDS = 2_000_000
FEWER = 100_000
"""For the windows of Bytewax, which take longer."""
OURS = "Sluiceway in one process"


@dataclass(frozen=True, slots=True)
class _Peer:
    """Somebody else's way to do one of the jobs.

    Attributes:
        name: of the row, with the version.
        results: does the work, and returns what is compared with ours.
        seconds: does the work, discards its results, and returns how long it took.
        final: what our results come to where the peer emits fewer.
    """

    name: str
    results: Callable[[], Sequence[Any]]
    seconds: Callable[[], float]
    final: Callable[[Sequence[Any]], Sequence[Any]] = list


def measure(plan: Plan) -> Iterator[Row]:
    records = plan.size(RECORDS, 2_000)
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory:
        flink, reason = _flink(plan.peers)
        try:
            for make, job in ((words_from_file, "words"), (windows_from_file, "windows")):
                path = Path(directory, f"{job}.txt")
                work = make(path, records)
                for package, name, peers in _packages(job, path):
                    if find_spec(package) is None:
                        yield _missing(f"{work.job} by {name}", f"{package} is not installed")
                    else:
                        given = work
                        if job == "windows":
                            given = make(path.with_suffix(".fewer"), min(records, FEWER))
                        yield _measured(given, _peer(f"{name} {version(package)}", peers), plan)
                if flink is None:
                    yield _missing(f"{work.job} by Flink {VERSION}", reason)
                else:
                    yield _measured(work, _by_flink(flink, job, path), plan)
        finally:
            if flink is not None:
                flink.close()


def _missing(name: str, reason: str) -> Row:
    return Row(name, "x speed", (), note=reason, against=OURS)


def _measured(work: Work, peer: _Peer, plan: Plan) -> Row:
    ours = Job(work.build)
    name = f"{work.job} by {peer.name}"
    try:
        check_same(name, peer.final(ours.results()), peer.results(), in_order=False)
        pairs = [(timed(ours.run).wall, peer.seconds()) for _ in range(plan.runs)]
    except Exception as error:  # another version of theirs is no reason to show nothing of ours
        return _missing(name, f"failed: {type(error).__name__}: {error}")
    own, its = (work.records / median(seconds) for seconds in zip(*pairs, strict=True))
    return Row(
        name,
        "x speed",
        tuple(one / other for one, other in pairs),
        note=f"{short(its)} records/s, Sluiceway {short(own)}"
        + ("; the final counts only" if peer.final is _final else ""),
        details={"records": work.records, "ours_s": [a for a, _ in pairs], "peer_s": [b for _, b in pairs]},
        against=OURS,
    )


_Ways = tuple[Callable[[bool], Sequence[Any]], Callable[[Sequence[Any]], Sequence[Any]]]


def _peer(name: str, ways: _Ways) -> _Peer:
    way, final = ways
    return _Peer(name, lambda: way(True), lambda: timed(lambda: way(False)).wall, final)


def _packages(job: str, path: Path) -> list[tuple[str, str, _Ways]]:
    if job == "words":
        return [
            ("bytewax", "Bytewax", (lambda keep: _bytewax_words(path, keep), list)),
            ("pathway", "Pathway", (lambda keep: _pathway_words(path, keep), _final)),
            ("pyarrow", "pyarrow", (lambda keep: _arrow_words(path), _final)),
        ]
    return [("bytewax", "Bytewax", (lambda keep: _bytewax_windows(path.with_suffix(".fewer"), keep), list))]


def _final(counts: Sequence[Pair]) -> list[Pair]:
    return list(dict(sorted(counts)).items())


# ---- Flink ------------------------------------------------------------------------------------------------------


def _flink(directory: str | None) -> tuple[Flink | None, str]:
    if directory is None:
        return None, "left out without --peers DIRECTORY"
    try:
        return Flink(Path(directory)), ""
    except FlinkUnavailableError as error:
        return None, str(error)


def _by_flink(flink: Flink, job: str, path: Path) -> _Peer:
    def results() -> list[Any]:
        lines = flink.check(job, path, path.with_suffix(".results"))
        if job == "windows":
            return list(map(int, lines))
        return [(word, int(count)) for word, count in (line.split("\t") for line in lines)]

    return _Peer(f"Flink {VERSION}", results, lambda: flink.run(job, path))


# ---- Python packages --------------------------------------------------------------------------------------------


def _bytewax_run(flow: Any, stream: Any, keep: bool) -> list[Any]:
    import bytewax.operators as op  # type: ignore[import-not-found]
    from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
    from bytewax.testing import TestingSink, run_main  # type: ignore[import-not-found]

    class Partition(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            pass

    class Discard(DynamicSink):  # type: ignore[misc]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Partition:
            return Partition()

    results: list[Any] = []
    op.output("results", stream, TestingSink(results) if keep else Discard())
    run_main(flow)
    return results


def _bytewax_words(path: Path, keep: bool) -> list[Pair]:
    import bytewax.operators as op
    from bytewax.connectors.files import FileSource  # type: ignore[import-not-found]
    from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]

    def reduce(so_far: Pair | None, pair: Pair) -> tuple[Pair, Pair]:
        new = pair if so_far is None else add(so_far, pair)
        return new, new

    flow = Dataflow("word_count")
    pairs = op.flat_map("split", op.input("lines", flow, FileSource(path, batch_size=1024)), split)
    counts = op.stateful_map("reduce", op.key_on("word", pairs, word_of), reduce)
    return _bytewax_run(flow, op.key_rm("pair", counts), keep)


def _bytewax_windows(path: Path, keep: bool) -> list[int]:
    import bytewax.operators as op
    import bytewax.operators.windowing as windowing  # type: ignore[import-not-found]
    from bytewax.connectors.files import FileSource
    from bytewax.dataflow import Dataflow

    def at(event: Event) -> datetime:
        return datetime.fromtimestamp(time_of(event) / 1000, UTC)

    # Its clock goes on with that of the machine between two events; here event time alone counts.
    now = datetime.now(UTC)
    flow = Dataflow("windows")
    events = op.map("parse", op.input("lines", flow, FileSource(path, batch_size=1024)), event_of)
    keyed = op.key_on("user", events, lambda event: str(user_of(event)))
    folded = windowing.fold_window(
        "sums",
        keyed,
        windowing.EventClock(at, timedelta(seconds=5), now_getter=lambda: now),
        windowing.TumblingWindower(timedelta(seconds=10), datetime.fromtimestamp(0, UTC)),
        int,
        lambda so_far, event: so_far + event[1],
        int.__add__,
    )
    return _bytewax_run(flow, op.map("sum", folded.down, lambda keyed: keyed[1][1]), keep)


def _pathway_words(path: Path, keep: bool) -> list[Pair]:
    import pathway as pw  # type: ignore[import-not-found]

    pw.internals.parse_graph.G.clear()
    lines = pw.io.plaintext.read(str(path), mode="static")
    words = lines.select(word=pw.apply_with_type(str.split, list[str], pw.this.data)).flatten(pw.this.word)
    counts = words.groupby(words.word).reduce(words.word, count=pw.reducers.count())
    results: list[Pair] = []
    if keep:
        pw.io.subscribe(
            counts, on_change=lambda key, row, time, is_addition: results.append((row["word"], row["count"]))
        )
    else:
        pw.io.null.write(counts)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return results


def _arrow_words(path: Path) -> list[Pair]:
    """Bound for programs without user functions: whole columns at a time."""
    import pyarrow
    import pyarrow.compute

    functions: Any = pyarrow.compute
    lines = path.read_text().splitlines()
    words = functions.list_flatten(functions.utf8_split_whitespace(pyarrow.array(lines)))
    counts = functions.value_counts(words)
    return list(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))
