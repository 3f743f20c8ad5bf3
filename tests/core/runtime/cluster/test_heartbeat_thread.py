"""The thread beside a worker's loop: heartbeats, and a word about a loop that does not turn."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from patience import PATIENT_S

from sluiceway.runtime.cluster.cluster_directory import lock_directory
from sluiceway.runtime.cluster.heartbeat_thread import HeartbeatThread
from sluiceway.runtime.cluster.worker_launcher import UP, WorkerConfig


def config(directory: Path) -> WorkerConfig:
    return WorkerConfig(
        name="worker-1",
        manager="",
        directory=str(directory),
        secret="",
        slots=1,
        transport="shm",
        segments=1,
        segment_bytes=1,
        path=[],
        beat_s=0.02,
        parent=os.getppid(),
    )


def test_a_loop_that_does_not_turn_is_told_of_once_and_the_process_counts_as_alive(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENT_S)
    mails: list[Callable[[], None]] = []
    guard = HeartbeatThread(config(tmp_path), theirs, stuck_s=0.1)
    guard.up(mails.append)
    assert ours.recv(1) == UP
    for _ in range(12):
        assert ours.recv(1) == b"."
    told = capfd.readouterr().err
    assert told.count("worker-1 has been in one call for") == 1
    assert "test_heartbeat_thread.py" in told, "it says where"
    mails[-1]()  # the loop turns again
    for _ in range(12):
        ours.recv(1)
    assert "has been in one call" in capfd.readouterr().err, "another time"
    guard.close()
    guard._thread.join(PATIENT_S)
    ours.close()
    theirs.close()


def test_who_is_left_alone_removes_what_the_cluster_had(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    ours, theirs = socket.socketpair()
    guard = HeartbeatThread(config(directory), theirs)
    guard.close()
    assert directory.exists(), "the job manager is there and does it"
    guard._thread.join(PATIENT_S)

    guard = HeartbeatThread(config(directory), theirs)
    ours.close()
    guard.close()
    guard._thread.join(PATIENT_S)
    assert not directory.exists()
    theirs.close()


def test_the_directory_of_a_job_manager_that_lives_is_not_removed(tmp_path: Path) -> None:
    """A function may close all descriptors of its worker, the line among them."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    with lock_directory(directory):
        ours, theirs = socket.socketpair()
        guard = HeartbeatThread(config(directory), theirs)
        ours.close()
        guard.close()
        guard._thread.join(PATIENT_S)
        assert directory.exists()
    theirs.close()


def test_an_orphan_removes_the_directory_though_a_child_of_the_job_manager_has_its_lock(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    with lock_directory(directory):
        ours, theirs = socket.socketpair()
        guard = HeartbeatThread(replace(config(directory), parent=-1), theirs)
        guard.close()
        guard._thread.join(PATIENT_S)
        assert not directory.exists()
    ours.close()
    theirs.close()
