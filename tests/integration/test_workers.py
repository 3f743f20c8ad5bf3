"""Jobs on worker processes: the same results as in one process, and nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway.errors import ConfigurationError, SluicewayError

pytestmark = pytest.mark.usefixtures("started_workers")


def worker_pids() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if b"sluiceway.entrypoint.worker" in line and parent == os.getpid():
                found.append(int(entry.name))
    return found


def own_shared_memory() -> set[str]:
    """Segments by our names; other programs have theirs there, too."""
    return {file.name for file in Path("/dev/shm").glob("*sluiceway*")}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = own_shared_memory()
    yield
    assert worker_pids() == []
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("sluiceway-")] == []
    assert own_shared_memory() <= shared


WORDS = ("to be or not to be that is the question " * 200).split()


def counted(workers: int, parallelism: int, **options: Any) -> dict[str, int]:
    flow = sw.Pipeline("wordcount", parallelism=parallelism)
    out = flow.from_collection(WORDS).key_by(lambda word: word).count().collect()
    result = flow.run(workers=workers, **options)
    assert result.status is JobStatus.FINISHED
    assert result.metrics.records_in == len(WORDS)
    assert result.metrics.records_out == len(WORDS)
    assert sorted(out) == sorted((w, n) for w in set(WORDS) for n in range(1, WORDS.count(w) + 1))
    return dict(out)


@pytest.mark.parametrize(("workers", "parallelism"), [(1, 1), (2, 2), (2, 3)])
def test_the_same_results_as_in_one_process(workers: int, parallelism: int) -> None:
    assert counted(workers, parallelism) == counted(0, 1)


def test_a_worker_looks_for_cycles_seldom_and_passes_over_what_was_imported() -> None:
    flow = sw.Pipeline("garbage")
    said = flow.from_collection([0]).map(lambda _: (gc.isenabled(), gc.get_threshold()[0], gc.get_freeze_count()))
    collected = said.collect()
    flow.run(workers=1)
    ((enabled, threshold, frozen),) = collected
    assert enabled
    assert threshold == 50_000
    assert frozen > 10_000


@pytest.mark.parametrize("bind", ["", "tcp://127.0.0.1:*"], ids=["path", "tcp"])
def test_the_same_results_over_zeromq(bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zmq", reason="needs pyzmq")
    monkeypatch.setenv("SLUICEWAY_ZMQ_BIND", bind)
    assert counted(2, 3, transport="zmq") == counted(0, 1)


def test_an_exception_comes_back_with_its_notes_and_the_workers_traceback() -> None:
    flow = sw.Pipeline("fails", parallelism=2)
    flow.from_collection(range(100)).map(lambda v: 1 // (v - 70)).collect()
    with pytest.raises(ZeroDivisionError) as caught:
        flow.run(workers=2)
    assert any("record: 70" in note for note in caught.value.__notes__)
    assert "in a worker process" in str(caught.value.__cause__)
    assert "test_workers.py" in str(caught.value.__cause__)


class Waits(sw.MapFunction[int, int]):
    """Writes its process id at its first record, and stays there until a file comes."""

    def __init__(self, directory: Path, at: int) -> None:
        self.directory = directory
        self.at = at

    def open(self, context: sw.RuntimeContext) -> None:
        self.first = context.attempt_number == 0

    def map(self, value: int) -> int:
        if value == self.at and self.first:
            (self.directory / "pid.part").write_text(str(os.getpid()))
            (self.directory / "pid.part").rename(self.directory / "pid")
            threading.Event().wait(PATIENT_S)
        return value


def kill_when_it_waits(directory: Path) -> threading.Thread:
    def kill() -> None:
        gate = threading.Event()
        while not (directory / "pid").exists():
            gate.wait(0.01)
        os.kill(int((directory / "pid").read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_breakpoint_in_a_worker_says_where_to_debug(on_error: Any) -> None:
    def stopped(n: int) -> int:
        breakpoint()
        return n

    flow = sw.Pipeline("debugged")
    flow.from_collection([1]).map(stopped).on_error(on_error).collect()
    with pytest.raises(
        ConfigurationError, match="in a worker process, which has no terminal: run the job without"
    ):
        flow.run(workers=1)


def test_a_worker_that_is_killed_fails_the_job_and_is_named(tmp_path: Path) -> None:
    flow = sw.Pipeline("killed", parallelism=2)
    flow.from_collection(range(100)).map(Waits(tmp_path, 70)).collect()
    killer = kill_when_it_waits(tmp_path)
    with pytest.raises(SluicewayError, match=r"worker 'worker-\d' \(process \d+\) was killed by SIGKILL"):
        flow.run(workers=2)
    killer.join()


@pytest.mark.parametrize("transport", ["shm", pytest.param("zmq", marks=pytest.mark.slow)])
def test_with_a_restart_strategy_another_worker_takes_its_place(tmp_path: Path, transport: str) -> None:
    if transport == "zmq":
        pytest.importorskip("zmq", reason="needs pyzmq")
    flow = sw.Pipeline("replaced", parallelism=2)
    out = flow.from_collection(range(100)).map(Waits(tmp_path, 70)).key_by(lambda v: v % 5).count().collect()
    killer = kill_when_it_waits(tmp_path)
    result = flow.run(workers=2, restart="fixed-delay:1:0ms", transport=transport)
    killer.join()
    assert result.status is JobStatus.FINISHED
    assert max(n for _, n in out) == 20
    assert set(out) == {(k, n) for k in range(5) for n in range(1, 21)}
