"""Failures at every kind of moment, and nothing is lost, counted twice or written twice."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.engine import JobStatus
from sluiceway.errors import CheckpointFailedError
from sluiceway.testing import FailOnce, KeySequence, NumberFiles

COUNT = 30_000
KEYS = 14
MOMENTS: list[dict[str, Any]] = [
    {"at": (COUNT // 4, COUNT // 2 + 1)},
    {"in_snapshots": (1, 3)},
    {"at": (COUNT // 2,), "in_restore": True},
    {"at_close": True},
]


def pipeline(marks: Path, out: NumberFiles, rate: float | None, failing: FailOnce) -> sw.Pipeline:
    flow = sw.Pipeline("exactly once", parallelism=2)
    numbers = flow.source(GeneratorSource(count=COUNT, rate=rate))
    counted = numbers.key_by(lambda n: n % KEYS).map(KeySequence(KEYS)).uid("counted")
    counted.map(failing).rebalance().map(lambda n: n).sink(out)
    return flow


@pytest.mark.parametrize(
    ("workers", "moments"),
    [
        pytest.param(
            workers,
            moments,
            id=f"{' and '.join(moments)}, {workers or 'no'} workers",
            marks=[pytest.mark.slow] if workers and "in_restore" not in moments else [],
        )
        for workers in (0, 2)
        for moments in MOMENTS
    ],
)
def test_nothing_is_lost_or_comes_twice(workers: int, moments: dict[str, Any], tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    out = NumberFiles(tmp_path / "out")
    flow = pipeline(marks, out, 60_000 if workers else None, FailOnce(marks, **moments))
    result = flow.run(
        workers=workers,
        checkpoint_interval="20ms" if workers else "3ms",
        checkpoint_tolerated_failures=3,
        restart="fixed-delay:9:1ms",
    )
    assert result.status is JobStatus.FINISHED
    assert list(marks.iterdir()), "it has failed"
    report = out.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report
    left = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert left == {".done"}


# ---- workers that are killed ---------------------------------------------------------------------------------


def workers_of_this_process() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if b"sluiceway.entrypoint.worker" in line and above == os.getpid():
                    found.append(int(entry.name))
    return found


@contextmanager
def killing(seed: int, kills: int, out: Path) -> Iterator[list[int]]:
    """Kill workers at random while they write, until the context is left or there were enough."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        lots = random.Random(seed)
        while len(killed) < kills and not over.wait(0.1 + 0.3 * lots.random()):
            before = {path.name for path in out.glob("*")}
            while {path.name for path in out.glob("*")} <= before:  # it has begun again, and goes on
                if over.wait(0.01):
                    return
            there = workers_of_this_process()
            if there and not over.wait(0.1 * lots.random()):
                victim = lots.choice(there)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.append(victim)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("seed", range(int(os.environ.get("KILL_SEEDS", "1"))))
@pytest.mark.parametrize("where", [pytest.param("in memory", marks=pytest.mark.slow), "in files"])
def test_killed_workers(seed: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    marks = tmp_path / "marks"
    marks.mkdir()
    out = NumberFiles(tmp_path / "out")
    flow = pipeline(marks, out, 15_000, FailOnce(marks))
    with killing(seed, 2, tmp_path / "out") as killed:
        result = flow.run(
            workers=2,
            checkpoint_interval="30ms",
            checkpoints=tmp_path / "kept" if where == "in files" else None,
            restart="fixed-delay:30:10ms",
        )
    assert killed
    assert result.metrics.restarts
    assert result.status is JobStatus.FINISHED
    report = out.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


# ---- where two-phase commit can break off --------------------------------------------------------------------


class Breaking(NumberFiles):
    """Fails once, just before or after one of its steps."""

    def __init__(self, directory: Path, marks: Path, point: str) -> None:
        super().__init__(directory)
        self._marks = marks
        self._point = point

    def _at(self, point: str) -> None:
        if point == self._point:
            try:
                os.close(os.open(self._marks / "broken", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            raise OSError(f"broken {point}")

    def begin_transaction(self) -> str:
        if self._next > 2:
            self._at("before a transaction begins")
        return super().begin_transaction()

    def write(self, transaction: str, values: Any, timestamps: Any) -> None:
        self._at("before it writes")
        super().write(transaction, values, timestamps)
        self._at("after it has written")

    def pre_commit(self, transaction: str) -> None:
        self._at("before it pre-commits")
        super().pre_commit(transaction)
        self._at("after it has pre-committed")

    def commit(self, transaction: str) -> None:
        self._at("when the checkpoint is complete")
        super().commit(transaction)
        self._at("after it has committed")


@pytest.mark.parametrize(
    "point",
    [
        "before a transaction begins",
        "before it writes",
        "after it has written",
        "before it pre-commits",
        "after it has pre-committed",
        "when the checkpoint is complete",
        "after it has committed",
    ],
)
def test_a_commit_that_breaks_off(point: str, tmp_path: Path) -> None:
    out = Breaking(tmp_path / "out", tmp_path, point)
    flow = pipeline(tmp_path, out, None, FailOnce(tmp_path))
    result = flow.run(checkpoint_interval="3ms", checkpoint_tolerated_failures=3, restart="fixed-delay:3:1ms")
    assert result.status is JobStatus.FINISHED
    assert (tmp_path / "broken").exists()
    report = out.report(COUNT)
    assert (report.received, report.lost, report.duplicates) == (COUNT, 0, 0), report


class LockOnce(sw.KeyedProcessFunction[int, int, int]):
    """Puts something into its state that cannot be saved, in its first attempt."""

    def __init__(self, marks: Path) -> None:
        self._marks = marks

    def open(self, context: sw.RuntimeContext) -> None:
        self._state = context.get_state(sw.ValueStateDescriptor("state"))

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        if self._state.value() is None:
            try:
                os.close(os.open(self._marks / "locked", os.O_CREAT | os.O_EXCL))
                self._state.update(threading.Lock())
            except FileExistsError:
                self._state.update(1)
        yield value


def locking(marks: Path, out: NumberFiles) -> sw.Pipeline:
    flow = sw.Pipeline("locking", parallelism=2)
    numbers = flow.source(GeneratorSource(count=COUNT))
    numbers.key_by(lambda n: n % KEYS).process(LockOnce(marks)).sink(out)
    return flow


def test_too_many_failed_checkpoints_begin_the_job_anew(tmp_path: Path) -> None:
    out = NumberFiles(tmp_path / "out")
    result = locking(tmp_path, out).run(checkpoint_interval="1ms", restart="fixed-delay:1:1ms")
    assert result.metrics.restarts == 1
    assert out.report(COUNT).received == COUNT
    assert out.report(COUNT).duplicates == 0


def test_too_many_failed_checkpoints_fail_a_job_that_is_not_restarted(tmp_path: Path) -> None:
    told = r"checkpoint \d+ has failed: .*state 'state' .*That makes 2 in a row, and .*failures is 1"
    with pytest.raises(CheckpointFailedError, match=told):
        locking(tmp_path, NumberFiles(tmp_path / "out")).run(
            checkpoint_interval="1ms", checkpoint_tolerated_failures=1, restart="none"
        )
