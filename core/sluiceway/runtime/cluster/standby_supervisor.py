"""Standby job manager: waits until the leader has ended or is silent, then campaigns for leadership."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path
from typing import Final

from sluiceway.clock import SystemClock
from sluiceway.election import LeaderElection
from sluiceway.runtime.cluster.cluster_config import ClusterConfig
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.heartbeats import heartbeat_interval_s
from sluiceway.runtime.cluster.worker_launcher import is_at_work
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.poller import SelectorPoller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.workers import Heartbeat, Leads, RegisterStandby, StopStandby

__all__ = ["wait_until_elected"]

_LOOK_S: Final = 0.05
_RETRY_S: Final = 1.0


def wait_until_elected(config: ClusterConfig, election: LeaderElection) -> bool:
    """Stand by until this process is the leader.

    It campaigns as soon as the leader's process ends. A leader that is silent for the cluster's heartbeat timeout
    is deposed first, and remains leader while that fails.

    Args:
        config: configuration of the cluster.
        election: leader election, with this process as candidate.

    Returns:
        True if this process leads; False if the cluster was stopped.
    """
    directory = Path(config.directory)
    while directory.is_dir():
        # A leader that accepts connections is watched. Where none does, this process campaigns.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(directory / "manager"))
        except OSError:
            sock.close()
            pause_s = _LOOK_S
            try:
                if election.campaign():
                    return directory.is_dir()  # the cluster may have been stopped since it was looked at
            except OSError as error:
                log(WARNING, "jobs", f"cannot become the leader, and tries again: {error}")
                pause_s = _RETRY_S
            select.select([], [], [], pause_s)
        else:
            watch = _Watch(sock, config, election)
            try:
                watch.run()
            finally:
                watch.close()
            if watch.stopped:
                return False
    return False


class _Watch(Handlers):
    """Monitor of one leader, until its connection is closed or the cluster is stopped.

    Attributes:
        stopped: whether the cluster was stopped.
    """

    def __init__(self, sock: socket.socket, config: ClusterConfig, election: LeaderElection) -> None:
        self._config = config
        self._election = election
        self._clock = SystemClock()
        self._poller = SelectorPoller()
        self._loop = TaskletLoop(self._clock, self._poller)
        self._beat_s = heartbeat_interval_s(config.heartbeat_timeout_s)
        self._lost = False
        self._beats = 0
        self._used: str | None = None
        self._heard = self._checked = self._clock.monotonic()
        self.stopped = False
        self._connection = Connection(
            sock,
            self._loop,
            bytes.fromhex(config.secret),
            "standby",
            peer_role="manager",
            on_open=lambda connection: None,
            on_message=self._message,
            on_closed=self._closed,
        )
        self._connection.send(RegisterStandby(os.getpid()))

    def run(self) -> None:
        """Run until the connection is closed or the cluster is stopped."""
        self._beat()
        while not self._lost and not self.stopped:
            if not self._loop.run_ready(4):
                deadline = self._loop.next_deadline()
                self._poller.poll(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))

    def close(self) -> None:
        """Close the connection to the leader."""
        self._connection.abandon()
        self._poller.close()

    def _message(self, connection: Connection, message: Message) -> None:
        self.dispatch(message)

    @handles(StopStandby)
    def _stop(self, message: StopStandby) -> None:
        self.stopped = True

    @handles(Leads)
    def _leads(self, message: Leads) -> None:
        self._heard = self._clock.monotonic()

    def _closed(self, connection: Connection, why: ConnectionLostError | None) -> None:
        self._lost = True

    def _beat(self) -> None:
        now = self._clock.monotonic()
        # Time for which this process itself was suspended does not count as silence of the leader.
        self._heard += max(0.0, now - self._checked - self._beat_s)
        self._checked = now
        self._beats += 1
        self._connection.send(Heartbeat(self._beats))
        silent_s = now - self._heard
        if silent_s > self._config.heartbeat_timeout_s / 2:
            leader = self._election.leader()
            at_work, self._used = is_at_work(leader.pid, self._used) if leader is not None else (False, None)
            # As for workers: a leader in a long call of C code sends nothing, but uses processor time.
            if at_work:
                self._heard = now
            elif silent_s > self._config.heartbeat_timeout_s:
                self._election.depose()
        self._loop.at(now + self._beat_s, self._beat)
