"""Workers that hang, die, cannot start or are left alone; functions that raise what nobody expects."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from patience import PATIENT_S, until

import sluiceway as sw
from sluiceway.engine import JobStatus
from sluiceway.errors import GraphError, SluicewayError
from sluiceway.runtime.cluster import interpreter_pool as launching
from sluiceway.testing import CollectingSink


def workers_of(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if b"sluiceway.entrypoint.worker" in line and above == parent:
                found.append(int(entry.name))
    return found


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def left(directory: Path) -> list[str]:
    return [p.name for p in directory.iterdir() if p.name.startswith("sluiceway-")]


def own_shared_memory() -> set[str]:
    """Segments by our names; other programs have theirs there, too."""
    return {file.name for file in Path("/dev/shm").glob("*sluiceway*")}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = own_shared_memory()
    yield
    assert workers_of(os.getpid()) == []
    assert left(tmp_path) == []
    assert own_shared_memory() <= shared


def waits_at(at: int, directory: Path) -> Callable[[int], int]:
    """Says who it is, and stays there."""

    def wait(value: int) -> int:
        if value == at:
            (directory / "part").write_text(str(os.getpid()))
            (directory / "part").rename(directory / "pid")
            threading.Event().wait(PATIENT_S)
        return value

    return wait


def when_it_waits(directory: Path, number: int) -> threading.Thread:
    def send() -> None:
        until((directory / "pid").exists)
        os.kill(int((directory / "pid").read_text()), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


# ---- hangs ---------------------------------------------------------------------------------------------------


def test_a_worker_that_is_stopped_is_noticed_and_killed(tmp_path: Path) -> None:
    flow = sw.Pipeline("hangs", parallelism=2)
    flow.from_collection(range(100)).map(waits_at(70, tmp_path)).collect()
    stopper = when_it_waits(tmp_path, signal.SIGSTOP)
    told = r"worker 'worker-\d' \(process \d+\) sent no heartbeat for 0.5 s and was killed"
    with pytest.raises(SluicewayError, match=told):
        flow.run(workers=2, heartbeat_timeout="500ms")
    stopper.join()


def test_a_function_that_takes_long_is_no_hang() -> None:
    def slow(value: int) -> int:
        if value == 3:
            threading.Event().wait(1.2)
        if value == 5:
            sum(range(60_000_000))  # in C, with nobody else let in
        return value

    flow = sw.Pipeline("slow")
    out = flow.from_collection(range(10)).map(slow).collect()
    flow.run(workers=1, heartbeat_timeout="300ms")
    assert out == list(range(10))


def test_a_cancelled_task_that_does_not_let_go_costs_its_worker(tmp_path: Path) -> None:
    flow = sw.Pipeline("stuck", parallelism=2)

    def fail_beside(value: int) -> int:
        if value == 1:
            until((tmp_path / "pid").exists)
            raise ValueError("beside")
        return waits_at(70, tmp_path)(value)

    flow.from_collection(range(100)).map(fail_beside).collect()
    with pytest.raises(ValueError, match="beside"):
        flow.run(workers=2, cancellation_timeout="300ms")


# ---- left alone ----------------------------------------------------------------------------------------------

STUCK = """
    import os, threading
    import sluiceway as sw

    def wait(value):
        open("pid-%d" % os.getpid(), "w").close()
        threading.Event().wait(3600)
        return value

    flow = sw.Pipeline("stuck", parallelism=2)
    flow.from_collection(range(100)).map(wait).print()
    if __name__ == "__main__":
        flow.run(workers=2)
"""
SLOW = STUCK.replace("wait(3600)", "wait(0.01)")


def started(tmp_path: Path, program: str, *command: str) -> tuple[subprocess.Popen[str], list[int]]:
    (tmp_path / "program.py").write_text(dedent(program))
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
    workers = [int(p.name[4:]) for p in tmp_path.glob("pid-*")]
    assert len(left(tmp_path)) == 1
    return process, workers


def test_workers_end_when_their_job_manager_is_killed_even_in_the_middle_of_a_function(tmp_path: Path) -> None:
    process, workers = started(tmp_path, STUCK, "program.py")
    process.kill()
    process.wait()  # its output stays open for as long as there is a worker
    until(lambda: not any(map(is_there, workers)))
    process.communicate()
    assert left(tmp_path) == []


def test_ctrl_c_twice_ends_everything_at_once(tmp_path: Path) -> None:
    process, workers = started(tmp_path, STUCK, "-m", "sluiceway", "run", "--workers", "2", "program.py")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    until(lambda: "cancelling" in process.stderr.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENT_S)
    assert process.returncode == 130
    until(lambda: not any(map(is_there, workers)))
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_one_signal_cancels(tmp_path: Path, number: int, code: int) -> None:
    process, workers = started(tmp_path, SLOW, "-m", "sluiceway", "run", "--workers", "2", "program.py")
    process.send_signal(number)
    process.communicate(timeout=PATIENT_S)
    assert process.returncode == code
    assert not any(map(is_there, workers))
    assert left(tmp_path) == []


def test_a_job_that_runs_beside_can_be_cancelled() -> None:
    async def go() -> JobStatus:
        flow = sw.Pipeline("beside")
        flow.generate(rate=1000).print()
        async with await flow.start(workers=1) as handle:
            while not handle.metrics().records_in:
                await asyncio.sleep(0.02)
            handle.cancel()
            return (await handle.result()).status

    assert asyncio.run(go()) is JobStatus.CANCELED


def test_a_program_can_be_interrupted_twice(tmp_path: Path) -> None:
    process, workers = started(tmp_path, STUCK, "program.py")
    process.send_signal(signal.SIGINT)
    told, pause_s = "", 0.2  # two signals at once would be one
    while process.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            _, told = process.communicate(timeout=pause_s)
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        pause_s = 15.0  # on a slow machine the first two were one
    assert "KeyboardInterrupt" in told
    assert not any(map(is_there, workers))
    assert left(tmp_path) == []


# ---- what cannot be sent, what cannot start ------------------------------------------------------------------


def test_what_cannot_be_sent_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: pytest.fail("something was started"))
    lock = threading.Lock()

    def locked(value: int) -> int:
        with lock:
            return value

    flow = sw.Pipeline("locked")
    flow.from_collection(range(3)).map(locked).name("careful").collect()
    with pytest.raises(GraphError, match=r"the function of 'careful' .* variable 'lock' .*cannot be pickled"):
        flow.run(workers=1)

    flow = sw.Pipeline("local")
    flow.from_collection(range(3)).sink(CollectingSink())
    with pytest.raises(GraphError, match=r"connectors of tests: .*inside one process.*; run without workers"):
        flow.run(workers=1)


def test_a_worker_that_cannot_start_is_told_of_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MODULE", "sluiceway.entrypoint.nowhere")
    flow = sw.Pipeline("nowhere")
    flow.from_collection(range(3)).collect()
    with pytest.raises(SluicewayError) as caught:
        flow.run(workers=1)
    assert "ended with exit code 1 before it had registered; it said:\n" in str(caught.value)
    assert "No module named sluiceway.entrypoint.nowhere" in str(caught.value)


# ---- what users' functions raise -----------------------------------------------------------------------------


class OfItsOwnError(Exception):
    def __init__(self, order: int, reason: str) -> None:
        super().__init__(f"order {order}: {reason}")
        self.order = order


class UnsendableError(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def failing(raise_: Callable[[], Any]) -> BaseException:
    flow = sw.Pipeline("raises")
    flow.from_collection(range(3)).map(lambda value: raise_()).name("risky").collect()
    with pytest.raises(BaseException) as caught:  # noqa: PT011 (the callers look at it)
        flow.run(workers=1)
    return caught.value


def throw(error: BaseException) -> None:
    raise error


def test_exceptions_of_any_make_come_back() -> None:
    own = failing(lambda: throw(OfItsOwnError(3, "late")))
    assert isinstance(own, OfItsOwnError)
    assert (str(own), own.order) == ("order 3: late", 3)
    assert any("in step 'risky'" in note for note in own.__notes__)

    unsendable = failing(lambda: throw(UnsendableError("with a lock")))
    assert isinstance(unsendable, UnsendableError)
    assert str(unsendable) == "with a lock"
    assert isinstance(unsendable.lock, str)  # what shows it
    assert any("in step 'risky'" in note for note in unsendable.__notes__)

    group = failing(lambda: throw(ExceptionGroup("several", [ValueError("a"), OfItsOwnError(1, "b")])))
    assert isinstance(group, ExceptionGroup) or "several" in str(group)


@pytest.mark.parametrize(
    ("raise_", "told"),
    [
        (lambda: sys.exit(3), r"step 'risky' raised SystemExit\(3\), which is meant to end a process"),
        (lambda: throw(KeyboardInterrupt()), r"step 'risky' raised KeyboardInterrupt\(\), which is meant to"),
        (lambda: os._exit(7), r"worker 'worker-1' \(process \d+\) ended with exit code 7"),
    ],
)
def test_what_would_end_a_process_ends_the_job(raise_: Callable[[], Any], told: str) -> None:
    error = failing(raise_)
    assert isinstance(error, SluicewayError)
    assert re.search(told, str(error)), error


def test_a_worker_without_memory_fails_the_job() -> None:
    def much(value: int) -> int:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        return len(bytearray(1 << 32))

    assert isinstance(failing(lambda: much(0)), MemoryError)


# ---- results -------------------------------------------------------------------------------------------------


def test_results_come_back_one_by_one_and_a_stream_without_end_can_be_left() -> None:
    flow = sw.Pipeline("numbers")
    numbers = flow.from_collection(range(20_000)).map(lambda v: v * 2)
    with numbers.execute_and_collect(workers=1) as records:
        assert list(records) == list(range(0, 40_000, 2))
    endless = sw.Pipeline("endless").generate().map(lambda v: v + 1)
    assert endless.take(5, workers=1) == [1, 2, 3, 4, 5]


def test_two_jobs_at_a_time_in_one_process() -> None:
    flows = [sw.Pipeline(f"job-{n}") for n in range(2)]
    outs = [flow.from_collection(range(1000)).map(lambda v: v + 1).collect() for flow in flows]
    results: list[JobStatus] = []
    threads = [threading.Thread(target=lambda f=f: results.append(f.run(workers=1).status)) for f in flows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [JobStatus.FINISHED] * 2
    assert all(out == list(range(1, 1001)) for out in outs)


def test_what_a_script_defines_goes_there_and_back(tmp_path: Path) -> None:
    script = """
        from dataclasses import dataclass
        import sluiceway as sw

        @dataclass(frozen=True)
        class Order:
            user: str
            amount: int

        def double(order: Order) -> Order:
            assert isinstance(order, Order)
            return Order(order.user, order.amount * 2)

        flow = sw.Pipeline("orders", parallelism=2)
        orders = flow.from_collection([Order("a", 1), Order("b", 2)])
        out = orders.map(double).key_by(lambda o: o.user).map(lambda o: o).collect()
        flow.run(workers=2)
        assert all(isinstance(o, Order) for o in out)
        assert set(out) == {Order("a", 2), Order("b", 4)}
        print("as it was")
    """
    (tmp_path / "script.py").write_text(dedent(script))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert done.stdout == "as it was\n", done.stderr
