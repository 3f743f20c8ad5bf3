"""Standby job managers of a leader, without processes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sluiceway.clock import SystemClock, VirtualClock
from sluiceway.plugins import PluginManager
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import stand_by
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.os_platform import Platform
from sluiceway.runtime.cluster.standby_supervisor import wait_until_elected
from sluiceway.runtime.cluster.standbys import Standbys
from sluiceway.runtime.cluster.worker_settings import WorkerSettings
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop


class Dying:
    """A standby that has not registered yet: once killed, it holds its locks until it has ended."""

    pid = 1

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: list[Any] = []
        self._killed = False

    def begin(self, config: ClusterConfig) -> Any:
        self._held = stand_by(self._directory)
        return self

    def poll(self) -> int | None:
        return None if self._held else -9

    def kill(self) -> None:
        self._killed = True

    def wait(self, timeout: float | None = None) -> int:
        if not self._killed:
            raise subprocess.TimeoutExpired("standby", timeout or 0.0)
        self.close()
        return -9

    def close(self) -> None:
        for file in self._held:
            file.close()
        self._held = []


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "cluster"
    made.mkdir()
    return made


def config(directory: Path) -> ClusterConfig:
    return ClusterConfig(1, 1, "shm", directory=str(directory), standby=1)


def test_a_leader_that_stops_waits_for_the_end_of_a_standby_that_it_kills(directory: Path) -> None:
    """Its directory would count as stood by, and nobody would be left to remove it."""
    clock, poller = SystemClock(), SelectorPoller()
    loop, child = TaskletLoop(clock, poller), Dying(directory)
    standbys = Standbys(config(directory), 1, loop, clock, child.begin)
    try:
        loop.run_ready(4)  # starts it
        assert child.poll() is None
        standbys.stop()
        Platform().remove(directory)
        assert not directory.exists()
    finally:
        child.close()
        poller.close()


def test_a_new_leader_starts_none_while_those_of_the_leader_before_may_register(directory: Path) -> None:
    clock, poller = VirtualClock(), SelectorPoller()
    loop = TaskletLoop(clock, poller)
    started: Any = Mock(return_value=Mock(pid=1))
    standbys = Standbys(config(directory), 1, loop, clock, started)
    held = stand_by(directory)
    try:
        loop.run_ready(4)
        assert not started.called
        clock.advance(60_000)
        loop.run_ready(4)
        assert started.call_count == 1, "it has had its time"
    finally:
        standbys.close()
        for file in held:
            file.close()
        poller.close()


@pytest.mark.parametrize("hands_over", [True, False])
def test_the_directory_of_a_cluster_stays_only_if_a_standby_is_to_lead(hands_over: bool, directory: Path) -> None:
    options = {"hands_over": True} if hands_over else {}
    manager = JobManager(
        directory,
        b"secret",
        PluginManager().services(),
        WorkerSettings("shm", most=1, slots=1, heartbeat_timeout_s=50),
    )
    held = stand_by(directory)
    try:
        manager.close(**options)
        assert directory.exists() == hands_over
    finally:
        for file in held:
            file.close()


@pytest.mark.parametrize("stopped", [True, False])
def test_a_standby_that_wins_as_the_cluster_is_stopped_does_not_lead(stopped: bool, directory: Path) -> None:
    def campaign() -> bool:
        if stopped:
            directory.rmdir()
        return True

    election: Any = Mock(campaign=campaign)
    assert wait_until_elected(config(directory), election) is not stopped
