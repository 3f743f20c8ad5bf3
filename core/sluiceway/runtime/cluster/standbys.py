"""Standby job managers of a leader: starting, monitoring and replacing them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sluiceway.clock import Clock
from sluiceway.monitoring.infos import StandbyInfo
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.cluster_directory import is_stood_by
from sluiceway.runtime.cluster.connection import Connection
from sluiceway.runtime.cluster.heartbeats import heartbeat_interval_s
from sluiceway.runtime.logging.engine_log import INFO, WARNING, log
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.workers import Heartbeat, Leads, RegisterStandby, StopStandby
from sluiceway.util.engine_processes import engine_command

__all__ = ["MODULE", "Standbys", "start_standby"]

MODULE: Final = "sluiceway.entrypoint.jobmanager"
_STOP_S: Final = 5.0
_KILL_S: Final = 5.0
# Seconds in which a started standby has to register, and the longest pause between two starts that fail.
_START_S: Final = 60.0
_MOST_DELAY_S: Final = 30.0


def start_standby(config: ClusterConfig) -> subprocess.Popen[bytes]:
    """Start a standby job manager in a session of its own, so that it outlives this process."""
    process = subprocess.Popen(engine_command(MODULE), stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    assert process.stdin is not None
    with suppress(OSError), process.stdin as told:  # if it has ended, polling the child shows it
        told.write(json.dumps({**asdict(config), "stands_by": True}).encode() + b"\n")
    return process


@dataclass(slots=True)
class _Standby:
    """Registered standby. ``process`` is its pidfd, which a reused process id cannot redirect."""

    pid: int
    process: int
    heard: float


class Standbys(Handlers):
    """Monitor that keeps the configured number of standbys running. All calls in the job manager's loop.

    Args:
        config: configuration of the cluster; ``standby`` is the number, and standbys are started with it.
        epoch: epoch of this leader.
        loop: loop of the timers.
        clock: clock of the timers.
        start: function that starts a standby.

    Attributes:
        problem: reason why standbys are missing; empty: none is known.
    """

    def __init__(
        self,
        config: ClusterConfig,
        epoch: int,
        loop: TaskletLoop,
        clock: Clock,
        start: Callable[[ClusterConfig], subprocess.Popen[bytes]] = start_standby,
    ) -> None:
        self._config = config
        self._epoch = epoch
        self._loop = loop
        self._clock = clock
        self._start = start
        self._beat_s = heartbeat_interval_s(config.heartbeat_timeout_s)
        self._here: dict[Connection, _Standby] = {}
        self._children: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._failed = 0
        self._next_start = clock.monotonic()
        self._checked = clock.monotonic()
        self._stopping = False
        self._waits = True
        self.problem = ""
        if config.standby:
            loop.soon(self._beat)

    def infos(self) -> list[StandbyInfo]:
        """Return the monitoring data of the standbys."""
        now = self._clock.monotonic()
        return [StandbyInfo(s.pid, max(0.0, now - s.heard)) for s in self._here.values()]

    def take(self, connection: Connection, message: Message) -> None:
        """Process a message of a standby; any other message ends its connection."""
        if not self.dispatch(message, connection):
            self._part(connection)

    @handles(RegisterStandby)
    def _register(self, message: RegisterStandby, connection: Connection) -> None:
        if self._stopping or connection in self._here:
            self._part(connection)
            return
        try:
            process = os.pidfd_open(message.pid)
        except OSError:  # the process has ended meanwhile
            connection.close()
            return
        self._here[connection] = _Standby(message.pid, process, self._clock.monotonic())
        self._failed, self.problem = 0, ""
        connection.send(Leads(self._epoch))
        log(INFO, "jobs", f"process {message.pid} stands by")

    @handles(Heartbeat)
    def _beats(self, message: Heartbeat, connection: Connection) -> None:
        if connection in self._here:
            self._here[connection].heard = self._clock.monotonic()
        else:
            self._part(connection)

    def _part(self, connection: Connection) -> None:
        connection.send(StopStandby())
        connection.close()

    def closed(self, connection: Connection) -> None:
        """Handle the end of a standby's connection: kill its process and start another one."""
        standby = self._here.pop(connection, None)
        if standby is None:
            return
        # Killed also if it has only lost the connection: it would register again, beside its replacement.
        _kill(standby.process)
        os.close(standby.process)
        if not self._stopping:
            log(WARNING, "jobs", f"the standby (process {standby.pid}) has ended; another one is started")
            self._keep_up()

    def stop(self) -> None:
        """Stop all standbys and wait for them; those that do not end in time are killed."""
        self._stopping = True
        for connection in self._here:
            connection.send(StopStandby())
        until = self._clock.monotonic() + _STOP_S
        here = {standby.pid for standby in self._here.values()}
        starting = [child for pid, (child, _) in self._children.items() if pid not in here]
        for child in starting:
            child.kill()  # it has no connection to send to
        self._loop.run_ready(4)
        for standby in self._here.values():
            if not _has_ended(standby.process, max(0.0, until - self._clock.monotonic())):
                _kill(standby.process)
                _has_ended(standby.process, _KILL_S)
        # A killed process holds its locks until it has ended: the directory would count as stood by, and stay.
        for child in starting:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_KILL_S)
        self.close()

    def close(self) -> None:
        """Release the standbys without ending them: one of them becomes the leader. Idempotent."""
        self._stopping = True
        for standby in self._here.values():
            os.close(standby.process)
        self._here.clear()
        for child, _ in self._children.values():
            child.poll()
        self._children.clear()

    def _beat(self) -> None:
        if self._stopping:
            return
        now = self._clock.monotonic()
        # Time for which this process itself was suspended does not count as silence of the standbys.
        slept = max(0.0, now - self._checked - self._beat_s)
        self._checked = now
        for connection, standby in list(self._here.items()):
            standby.heard += slept
            # The heartbeat of the leader: standbys depose one that does not send it.
            connection.send(Leads(self._epoch))
            if now - standby.heard > self._config.heartbeat_timeout_s:
                log(WARNING, "jobs", f"killed the standby (process {standby.pid}): it sends no heartbeat")
                _kill(standby.process)
        # Other standbys of the leader before are about to register: before the next beat they are not missing.
        if not (self._waits and is_stood_by(Path(self._config.directory))):
            self._keep_up()
        self._waits = False
        self._loop.at(now + self._beat_s, self._beat)

    def _keep_up(self) -> None:
        """Start missing standbys, with growing delays while they end before they register."""
        now = self._clock.monotonic()
        here = {s.pid for s in self._here.values()}
        for pid, (child, since) in list(self._children.items()):
            code = child.poll()
            if code is None and pid not in here and now - since > _START_S:
                child.kill()
                child.wait()
                code = child.returncode
            if code is not None:
                del self._children[pid]
                self._not_up(pid, f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}")
        coming = sum(pid not in here for pid in self._children)
        if now < self._next_start:
            return
        for _ in range(self._config.standby - len(here) - coming):
            try:
                child = self._start(self._config)
            except OSError as error:
                self._not_up(0, f"cannot be started: {error}")
                return
            # Also once it has registered: this process has to collect its exit status.
            self._children[child.pid] = child, now

    def _not_up(self, pid: int, how: str) -> None:
        if self._failed:
            self.problem = f"there is no standby: process {pid} {how}" if pid else f"the standby {how}"
            log(WARNING, "jobs", self.problem)
        self._failed += 1
        delay_s = 0.0 if self._failed == 1 else min(_MOST_DELAY_S, 2.0 ** (self._failed - 2))
        self._next_start = self._clock.monotonic() + delay_s


def _has_ended(process: int, within_s: float) -> bool:
    return bool(select.select([process], [], [], within_s)[0])


def _kill(process: int) -> None:
    with suppress(OSError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
