"""Word count and windows from a file by others, beside Sluiceway in one process, as far as they are installed.

Nothing is installed for it, except Flink and PyFlink where ``--peers DIRECTORY`` asks for them. Each peer does the
same work with one worker, on the same file, with its results discarded after a check, beside ours in records and
in columns. What they promise differs: Bytewax, Flink and PyFlink emit a count for every word, Pathway and pyarrow
the final counts alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import sluiceway as sw
from benchmarks.columns import sums_of_windows
from benchmarks.columnwords import counted_so_far
from benchmarks.files import Work, event_of, windows_from_file, words_from_file
from benchmarks.flinkpeer import Flink
from benchmarks.harness import Job, Plan, Row, Way, check_same, short, timed
from benchmarks.peerprogram import PeerProgram, PeerUnavailableError
from benchmarks.pyflinkpeer import PyFlink
from benchmarks.windows import Event, time_of, user_of
from benchmarks.wordcount import Pair, add, split, word_of
from sluiceway.connector.lib import DiscardSink
from sluiceway_files import FilesSource

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
    with tempfile.TemporaryDirectory(prefix="sluiceway-bench-") as directory, ExitStack() as running:
        flinks = [_started(running, plan.peers, kind) for kind in (Flink, PyFlink)]
        for make, job in ((words_from_file, "words"), (windows_from_file, "windows")):
            path = Path(directory, f"{job}.txt")
            work = make(path, records)
            for package, name, peers in _packages(job, path):
                if find_spec(package) is None:
                    yield _missing(f"{work.job} by {name}", f"{package} is not installed")
                else:
                    given, source = work, path
                    if job == "windows":
                        source = path.with_suffix(".fewer")
                        given = make(source, min(records, FEWER))
                    yield _measured(given, source, _peer(f"{name} {version(package)}", peers), plan)
            for name, flink, reason in flinks:
                if flink is None:
                    yield _missing(f"{work.job} by {name}", reason)
                else:
                    yield _measured(work, path, _by_flink(name, flink, job, path), plan)


def _missing(name: str, reason: str) -> Row:
    return Row(name, "x speed", (), note=reason, against=OURS)


def _measured(work: Work, path: Path, peer: _Peer, plan: Plan) -> Row:
    records, columns = Job(work.build), _in_columns(work, path)
    name = f"{work.job} by {peer.name}"
    try:
        theirs = peer.results()
        for ours in (records, columns):
            check_same(name, peer.final(ours.results()), theirs, in_order=False)
        runs = [(timed(records.run).wall, timed(columns.run).wall, peer.seconds()) for _ in range(plan.runs)]
    except Exception as error:  # another version of theirs is no reason to show nothing of ours
        return _missing(name, f"failed: {type(error).__name__}: {error}")
    seconds = dict(zip(("ours_s", "in_columns_s", "peer_s"), zip(*runs, strict=True), strict=True))
    own, wide, its = (work.records / median(each) for each in seconds.values())
    return Row(
        name,
        "x speed",
        tuple(one / other for one, _, other in runs),
        note=f"{short(its)} records/s, Sluiceway {short(own)}, in columns {short(wide)}"
        + ("; the final counts only" if peer.final is _final else ""),
        details={"records": work.records, **seconds},
        against=OURS,
    )


def _in_columns(work: Work, path: Path) -> Way:
    """The same work on the same file, read as a CSV file."""
    words = work.job.startswith("word")

    def build(flow: sw.Pipeline) -> Any:
        return (_words_in_columns if words else _windows_in_columns)(flow, path)

    def results() -> list[Any]:
        found = build(sw.Pipeline("benchmark")).to_arrow()
        if words:
            return list(zip(found["word"].to_pylist(), found["count"].to_pylist(), strict=True))
        return list(found["total"].to_pylist())

    def run() -> None:
        flow = sw.Pipeline("benchmark")
        build(flow).sink(DiscardSink())
        flow.run()

    return Way(results, run)


def _words_in_columns(flow: sw.Pipeline, path: Path) -> Any:
    import pyarrow as pa

    schema = pa.schema([("line", pa.string())])
    return counted_so_far(flow.table(FilesSource.csv(str(path), header=schema.names, type=schema)))


def _windows_in_columns(flow: sw.Pipeline, path: Path) -> Any:
    import pyarrow as pa

    schema = pa.schema([("user", pa.int64()), ("amount", pa.int64()), ("at", pa.int64())])
    return sums_of_windows(flow.table(FilesSource.csv(str(path), header=schema.names, type=schema)))


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


# ---- Flink and PyFlink ------------------------------------------------------------------------------------------


def _started(
    running: ExitStack, directory: str | None, kind: type[Flink] | type[PyFlink]
) -> tuple[str, PeerProgram | None, str]:
    """The peer's name and its program, or why it is left out."""
    if directory is None:
        return kind.NAME, None, "left out without --peers DIRECTORY"
    try:
        return kind.NAME, running.enter_context(closing(kind(Path(directory)))), ""
    except PeerUnavailableError as error:
        return kind.NAME, None, str(error)


def _by_flink(name: str, flink: PeerProgram, job: str, path: Path) -> _Peer:
    def results() -> list[Any]:
        lines = flink.check(job, path, path.with_suffix(".results"))
        if job == "windows":
            return list(map(int, lines))
        return [(word, int(count)) for word, count in (line.split("\t") for line in lines)]

    return _Peer(name, results, lambda: flink.run(job, path))


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
