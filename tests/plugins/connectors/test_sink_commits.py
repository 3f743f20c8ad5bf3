"""Sinks that break, or are killed, at every moment of their two-phase commit: each record is there once.

Run as a program, with the name of a sink, a directory and moments, it is the job that is killed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sluiceway as sw
from sluiceway.connector import Poll, Reader, ReaderContext, Sink, Wait
from sluiceway.connector.lib import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.testing import BreakingSink, InjectedError, KeySequence
from sluiceway_files import FilesSink
from sluiceway_spark import SparkSink
from sluiceway_sql import SqlSink

COUNT = 3000
KEYS = 6
NUMBERS = pa.schema([("n", pa.int64())])


class Kind(NamedTuple):
    """A sink to a place, what reads that, and the moments at which the sink can break."""

    make: Callable[[Path], Sink[Any]]
    numbers: Callable[[Path], Iterable[int]]
    moments: tuple[str, ...] = BreakingSink.MOMENTS


def numbers_in_text(out: Path) -> Iterable[int]:
    return (int(line) for path in out.glob("part-*") for line in path.read_text().split())


def numbers_in_parquet(out: Path) -> Iterable[int]:
    return (row for path in out.rglob("part-*") for row in pq.read_table(path)["n"].to_pylist())


class DyingConnection(sqlite3.Connection):
    """Kills its process just before it commits, in its second transaction with rows, or just after that."""

    marks: Path
    dies: str
    written = 0

    def cursor(self, *args: Any) -> Any:  # type: ignore[override]
        connection = self

        class Cursor(sqlite3.Cursor):
            def executemany(self, *args: Any) -> Any:
                connection.written += 1
                return super().executemany(*args)

        return super().cursor(Cursor)

    def commit(self) -> None:
        self._die("before")
        super().commit()
        self._die("after")

    def _die(self, when: str) -> None:
        if self.written == 2 and when == self.dies and not (self.marks / f"{when}-the-transaction").exists():
            (self.marks / f"{when}-the-transaction").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def connect(out: Path, dies: str = "never") -> sqlite3.Connection:
    connection = sqlite3.connect(out, timeout=60, factory=DyingConnection)
    connection.marks, connection.dies = out.parent / "marks", dies
    connection.execute("PRAGMA synchronous = OFF")  # the process is killed, not the machine
    return connection


def numbers_in_sqlite(out: Path) -> Iterable[int]:
    with closing(sqlite3.connect(out)) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM numbers")]


def postgresql_url(out: Path) -> str:
    return (out.parent / "url").read_text()


def numbers_in_postgresql(out: Path) -> Iterable[int]:
    import psycopg

    with psycopg.connect(postgresql_url(out).replace("+psycopg", "", 1)) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM numbers")]


KINDS = {
    "text": Kind(lambda out: FilesSink.text(out, to_text=lambda r: str(r["n"]), roll_size=200), numbers_in_text),
    "text-over-checkpoints": Kind(
        lambda out: FilesSink.text(out, to_text=lambda r: str(r["n"]), roll_size=2000, roll_on_checkpoint=False),
        numbers_in_text,
    ),
    "parquet": Kind(lambda out: FilesSink.parquet(out, row_group_size=50, roll_size=1), numbers_in_parquet),
    "spark": Kind(lambda out: SparkSink.path(out, schema=NUMBERS, row_group_size=50), numbers_in_parquet),
    "sqlite": Kind(lambda out: SqlSink(partial(connect, out), "numbers", ["n"]), numbers_in_sqlite),
    "sqlite-idempotent": Kind(
        lambda out: SqlSink(partial(connect, out), "numbers", ["n"], key=["n"]),
        numbers_in_sqlite,
        BreakingSink.MOMENTS[:3],
    ),
    "sqlite-before": Kind(
        lambda out: SqlSink(partial(connect, out, "before"), "numbers", ["n"]), numbers_in_sqlite, ()
    ),
    "sqlite-after": Kind(
        lambda out: SqlSink(partial(connect, out, "after"), "numbers", ["n"]), numbers_in_sqlite, ()
    ),
    "postgresql": Kind(
        lambda out: SqlSink(postgresql_url(out), "numbers", ["n"], create="CREATE TABLE numbers (n BIGINT)"),
        numbers_in_postgresql,
    ),
}
BROKEN = [(kind, moment) for kind in KINDS for moment in KINDS[kind].moments]


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, which knows how to reach the database if one is asked for."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # killed workers leave something behind
    if request.node.callspec.params["kind"] == "postgresql":
        (tmp_path / "url").write_text(request.getfixturevalue("postgresql"))
    return tmp_path


class PatientSource(GeneratorSource[int]):
    """Gives the first of its numbers at once, one now and then while the sink has not broken, then the rest."""

    def __init__(self, marks: Path, moments: int) -> None:
        super().__init__(count=COUNT)
        self._marks = marks
        self._moments = moments

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        reader = super().create_reader(context)
        original, clock = reader.poll, context.clock
        at_once = COUNT // context.parallelism // (3 * self._moments + 3)
        given, at = 0, 0.0

        def poll(limit: int) -> Poll[int]:
            nonlocal given, at
            if len(os.listdir(self._marks)) >= self._moments:
                return original(limit)
            given += 20
            if given <= at_once:
                return original(20)
            if clock.monotonic() < at:
                return Wait(until=at)
            at = clock.monotonic() + 0.004
            return original(1)

        reader.poll = poll  # type: ignore[method-assign]
        return reader


def job(
    kind: str, place: Path, moments: Collection[str], *, kill: bool = False, parallelism: int = 2
) -> sw.Pipeline:
    """Numbers that are checked on their way, into a sink that breaks."""
    marks = place / "marks"
    marks.mkdir(exist_ok=True)
    flow = sw.Pipeline("broken commits", parallelism=parallelism)
    numbers = flow.source(PatientSource(marks, max(1, len(moments)))).uid("numbers")
    checked = numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("checked")
    sink = BreakingSink(KINDS[kind].make(place / "out"), marks, *moments, kill=kill)
    checked.rebalance().map(lambda n: {"n": n}).sink(sink).uid("out")
    return flow


def check(kind: str, place: Path, moments: Iterable[str]) -> None:
    """It has broken, each number is there once, and nothing else is left."""
    assert {path.name for path in (place / "marks").iterdir()} == {moment.replace(" ", "-") for moment in moments}
    found = Counter(KINDS[kind].numbers(place / "out"))
    lost = [n for n in range(COUNT) if n not in found]
    twice = [n for n, times in found.items() if times > 1]
    assert (lost, twice, len(found)) == ([], [], COUNT)
    assert not (place / "out").is_dir() or list((place / "out").glob(".*")) == []


# ---- errors, in this process -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "moment"), BROKEN)
def test_a_sink_that_breaks(kind: str, moment: str, place: Path) -> None:
    moments = before(moment)
    result = job(kind, place, moments).run(checkpoint_interval="5ms", restart="fixed-delay:3:1ms")
    assert result.status is JobStatus.FINISHED
    assert result.metrics.restarts == len(moments)
    check(kind, place, moments)


def before(moment: str) -> list[str]:
    """What has to break for a moment to come, and the moment."""
    return ["before commit", moment] if moment.endswith("recovery") else [moment]


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("kind", ["text", "text-over-checkpoints", "spark", "sqlite", "postgresql"])
def test_a_job_that_goes_on_at_another_parallelism(kind: str, parallelism: int, place: Path) -> None:
    kept, moments = place / "kept", ["before commit"]
    with pytest.raises(InjectedError):
        job(kind, place, moments).run(checkpoint_interval="5ms", checkpoints=kept, restart="none")
    flow = job(kind, place, moments, parallelism=parallelism)
    flow.run(checkpoint_interval="5ms", checkpoints=kept, from_checkpoint=kept)
    check(kind, place, moments)


# ---- a whole job that is killed, and goes on by --from ---------------------------------------------------------


def run_in_child(kind: str, place: Path, moments: Iterable[str]) -> int:
    child = subprocess.run([sys.executable, __file__, kind, place, *moments], stderr=subprocess.PIPE, check=False)
    assert child.returncode in (0, -signal.SIGKILL), child.stderr.decode()
    return child.returncode


def main(kind: str, place: Path, moments: list[str]) -> None:
    kept = place / "kept"
    # Without two phases it may be killed before the first checkpoint is complete.
    options = {"from_checkpoint": kept} if any(kept.rglob("metadata.json")) else {}
    flow = job(kind, place, moments, kill=True)
    flow.run(checkpoint_interval="10ms", checkpoints=kept, **options)


def killed_job(kind: str, place: Path, moments: list[str]) -> None:
    codes = [run_in_child(kind, place, moments) for _ in range(len(moments) + 1)]
    assert codes == [-signal.SIGKILL] * len(moments) + [0]
    check(kind, place, moments)


@pytest.mark.parametrize("kind", ["text", "postgresql"])
def test_a_job_that_is_killed_in_its_commit(kind: str, place: Path) -> None:
    killed_job(kind, place, ["during commit"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moment"), BROKEN)
def test_a_job_that_is_killed(kind: str, moment: str, place: Path) -> None:
    killed_job(kind, place, before(moment))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].moments])
def test_a_job_that_is_killed_again_and_again(kind: str, place: Path) -> None:
    killed_job(kind, place, list(KINDS[kind].moments))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite-before", "sqlite-after"])
def test_a_job_that_is_killed_at_the_end_of_a_transaction(kind: str, place: Path) -> None:
    (place / "marks").mkdir()
    assert run_in_child(kind, place, []) == -signal.SIGKILL
    assert run_in_child(kind, place, []) == 0
    check(kind, place, [f"{kind.partition('-')[2]} the transaction"])


# ---- workers that are killed -----------------------------------------------------------------------------------


def killed_worker(kind: str, place: Path, moments: list[str]) -> None:
    flow = job(kind, place, moments, kill=True)
    result = flow.run(
        workers=2, checkpoint_interval="30ms", checkpoints=place / "kept", restart="fixed-delay:20:10ms"
    )
    assert result.status is JobStatus.FINISHED
    check(kind, place, moments)


@pytest.mark.parametrize("kind", ["text"])
def test_a_worker_that_is_killed_after_it_has_pre_committed(kind: str, place: Path) -> None:
    killed_worker(kind, place, ["after pre-commit"])


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moment"), BROKEN)
def test_a_worker_that_is_killed(kind: str, moment: str, place: Path) -> None:
    killed_worker(kind, place, before(moment))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
