"""Standby job managers of a leader, without processes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from sluiceway.clock import SystemClock
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import stand_by
from sluiceway.runtime.cluster.os_platform import Platform
from sluiceway.runtime.cluster.standbys import Standbys
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop


class Dying:
    """A standby that has not registered yet: once killed, it holds its locks until it has ended."""

    pid = 1

    def __init__(self, directory: Path) -> None:
        self._held = stand_by(directory)
        self._killed = False

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


def test_a_leader_that_stops_waits_for_the_end_of_a_standby_that_it_kills(tmp_path: Path) -> None:
    """Its directory would count as stood by, and nobody would be left to remove it."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    clock, poller = SystemClock(), SelectorPoller()
    loop, child = TaskletLoop(clock, poller), Dying(directory)
    started: Any = Mock(return_value=child)
    standbys = Standbys(ClusterConfig(1, 1, "shm", directory=str(directory), standby=1), 1, loop, clock, started)
    try:
        loop.run_ready(4)  # starts it
        standbys.stop()
        Platform().remove(directory)
        assert not directory.exists()
    finally:
        child.close()
        poller.close()
