"""Monitor over the control connection of a job manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import TypeVar

from sluiceway.errors import ConnectorError
from sluiceway.monitoring.infos import CheckpointInfo, ClusterInfo, JobDescription, RescaleInfo
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.processes import ProcessMonitor
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.monitoring.state_view import StateMonitor
from sluiceway.runtime.cluster.client import ClusterClient
from sluiceway.runtime.cluster.client_keys import client_keys
from sluiceway.runtime.cluster.client_processes import ClientProcesses
from sluiceway.runtime.cluster.home import Known
from sluiceway.util.overriding import override

__all__ = ["ClientMonitor"]

T = TypeVar("T")


class ClientMonitor(Monitor):
    """Monitor over one connection, which is opened again after a loss.

    Checkpoints, savepoints, rescales and samples of stacks take long, so each has its own connection.

    Args:
        known: address and secret of the job manager; None: those of this user's cluster, looked up each time that
            a connection is opened.
        state: reads state and dead letters; None: they are not read.
    """

    def __init__(self, known: Known | None = None, state: StateMonitor | None = None) -> None:
        self._known = known
        self._state = state or StateMonitor()
        self._client: ClusterClient | None = None
        self._lock = Lock()

    @override
    def cluster(self, *, figures: bool = False) -> ClusterInfo:
        told = self._ask(lambda client: client.status(figures=figures))
        return ClusterInfo(
            pid=told.pid,
            epoch=told.epoch,
            started_ms=told.started_ms,
            slots=told.slots,
            free_slots=told.free_slots,
            max_workers=told.max_workers,
            transport=told.transport,
            jobs=told.jobs,
            workers=told.workers,
            figures=told.figures,
            job_store=told.job_store,
            problems=told.problems,
            standbys=told.standbys,
        )

    @override
    def describe(self, job: str) -> JobDescription:
        return self._ask(lambda client: client.describe(job))

    @override
    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        return self._ask(lambda client: client.checkpoints(job))

    def sample_stacks(self, job: str, seconds: float, rate: float) -> list[StackSamples]:
        """Take samples of the stacks of a job's processes, over a separate connection."""
        with ClusterClient(self._known) as client:
            return client.sample_stacks(job, seconds, rate)

    def sample_keys(self, job: str, vertices: list[int], seconds: float) -> list[KeySample]:
        """Count the keys that tasks of a job receive, over a separate connection."""
        with ClusterClient(self._known) as client:
            return client_keys(client, job, vertices, seconds)

    @override
    def cancel(self, job: str) -> None:
        self._ask(lambda client: client.cancel(job))

    @override
    def stop(self, job: str) -> None:
        self._ask(lambda client: client.stop(job))

    @override
    def checkpoint(self, job: str) -> int:
        with ClusterClient(self._known) as client:
            return client.checkpoint(job)

    @override
    def savepoint(self, job: str, place: str = "", *, stop: bool = False) -> str:
        with ClusterClient(self._known) as client:
            return client.savepoint(job, place, stop=stop)

    @override
    def rescale(
        self, job: str, parallelism: int | None, steps: Mapping[str, int], *, wait: bool = True
    ) -> RescaleInfo:
        with ClusterClient(self._known) as client:
            return client.rescale(job, parallelism, steps, wait=wait)

    @property
    def processes(self) -> ProcessMonitor:
        """Access to the processes, over connections of their own."""
        return ClientProcesses(self._known)

    @property
    def state(self) -> StateMonitor:
        """Access to state and dead letters."""
        return self._state

    @override
    def close(self) -> None:
        with self._lock:
            self._drop()

    def _ask(self, question: Callable[[ClusterClient], T]) -> T:
        # One question at a time: a client is for one thread.
        with self._lock:
            if self._client is None:
                self._client = ClusterClient(self._known)
            try:
                return question(self._client)
            except ConnectorError:
                self._drop()
                raise

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError, ConnectorError):
                client.close()
