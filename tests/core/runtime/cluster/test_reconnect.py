"""Workers without a job manager: how long they wait, what they keep, and what they are told by."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from sluiceway.runtime.cluster.cluster_directory import (
    is_awaited,
    lock_directory,
    remove_dead,
    remove_if_dead,
    stay,
    worker_numbers,
)
from sluiceway.runtime.cluster.epoch_fence import EpochFence, hold
from sluiceway.runtime.cluster.heartbeat_thread import HeartbeatThread
from sluiceway.runtime.cluster.reconnect import Patience, find_job_manager
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, adopt_worker


def config(directory: Path, rejoin_s: float) -> WorkerConfig:
    return WorkerConfig(
        name="worker-1",
        manager=str(directory / "manager"),
        directory=str(directory),
        secret="",
        slots=1,
        transport="shm",
        segments=1,
        segment_bytes=1,
        path=[],
        beat_s=0.02,
        rejoin_s=rejoin_s,
        parent=os.getppid(),
    )


def test_nobody_comes(tmp_path: Path) -> None:
    assert find_job_manager(config(tmp_path, 0.1)) is None
    assert find_job_manager(config(tmp_path / "gone", 60)) is None, "nobody can come any more"


def test_a_line_that_cannot_be_listened_for_leaves_no_socket(tmp_path: Path) -> None:
    told = replace(config(tmp_path, 0.1), name="nowhere/worker-1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as manager:
        manager.bind(told.manager)
        manager.listen()
        before = len(os.listdir("/proc/self/fd"))
        assert find_job_manager(told) is None
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_job_manager_comes_and_is_given_a_line(tmp_path: Path) -> None:
    told = config(tmp_path, 60)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as manager:
        manager.bind(told.manager)
        manager.listen()
        found = find_job_manager(told)
        assert found is not None
        sock, line = found
        manager.accept()[0].close()
        sock.close()
    guard = HeartbeatThread(told, line, own=False)
    process = adopt_worker(os.getpid(), line.getsockname())
    guard.up(lambda action: action())
    while not process.heard():
        pass
    assert process.pid == os.getpid()
    assert not process.ended()
    assert process.how_it_ended() == "is still running"
    guard.part()
    process._close()


def test_how_an_adopted_worker_ends(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.bind(str(tmp_path / "line"))
        line.listen()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        process = adopt_worker(child.pid, str(tmp_path / "line"))
        process.kill()
        assert process.ended()
        assert process.how_it_ended() == "has ended"
        child.communicate()


def test_a_directory_stays_as_long_as_workers_wait_in_it(tmp_path: Path) -> None:
    directory = tmp_path / "sluiceway-1"
    directory.mkdir()
    manager = lock_directory(directory)
    worker = stay(directory)
    other = stay(directory)
    assert not is_awaited(directory), "the job manager is there"
    manager.close()
    assert is_awaited(directory)
    assert remove_dead(tmp_path) == []
    worker.close()
    remove_if_dead(directory)
    assert is_awaited(directory)
    other.close()
    assert not is_awaited(directory)
    remove_if_dead(directory)
    assert not directory.exists()
    assert not is_awaited(directory)


def test_names_of_workers_go_on_behind_those_that_left_something(tmp_path: Path) -> None:
    assert worker_numbers(tmp_path) == []
    for name in ("worker-2.shm", "worker-11.line", "worker-x", "manager", "worker-3"):
        (tmp_path / name).touch()
    assert sorted(worker_numbers(tmp_path)) == [2, 3, 11]


def test_a_fence_knows_who_lives(tmp_path: Path) -> None:
    before, after = EpochFence(tmp_path), EpochFence(tmp_path)
    held = hold(str(before.file("worker-1")))
    assert before.alive() == [], "its own"
    assert after.alive() == [os.getpid()]
    held.close()
    assert after.alive() == []
    assert list(tmp_path.iterdir()) == []


def test_a_fence_ends_what_does_not_end_by_itself(tmp_path: Path) -> None:
    before, after = EpochFence(tmp_path), EpochFence(tmp_path)
    program = """
import sys
from dataclasses import replace
from sluiceway.runtime.cluster.epoch_fence import hold
held = hold(sys.argv[1])
print()
input()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(before.file("worker-1"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert after.alive() == [child.pid]
    after.end([])
    assert child.poll() is None
    after.end([child.pid])
    child.communicate()
    assert child.returncode < 0
    assert after.alive() == []


def test_what_a_worker_has_started_and_that_outlives_it_is_no_worker(tmp_path: Path) -> None:
    before, after = EpochFence(tmp_path), EpochFence(tmp_path)
    program = """
import os, sys
from sluiceway.runtime.cluster.epoch_fence import hold
held = hold(sys.argv[1])
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
"""
    child = subprocess.Popen([sys.executable, "-c", program, str(before.file("worker-1"))], stdin=subprocess.PIPE)
    child.wait()
    assert after.alive() == []
    child.communicate()


def test_a_job_manager_that_does_not_keep_a_worker_is_not_joined_for_ever() -> None:
    patience = Patience()
    assert patience.pause_s(1000.0) == 0, "most have kept it"
    pauses = [patience.pause_s(0.01) for _ in range(10)]
    assert pauses[0] == 0.05
    assert pauses == sorted(pauses, key=float)  # type: ignore[arg-type]
    assert 60 < sum(filter(None, pauses)) < 120
    assert patience.pause_s(0.01) is None
    again = Patience()
    for _ in range(100):
        assert again.pause_s(0.01) is not None
        assert again.pause_s(60.0) == 0
