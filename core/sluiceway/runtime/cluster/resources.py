"""The resource manager: which workers there are, whether they live, and what slots they offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluiceway.clock import Clock
from sluiceway.errors import SluicewayError
from sluiceway.graph import SlotPool
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.messages import Message, Register, StopWorker, WorkerInfo
from sluiceway.runtime.cluster.processes import WorkerHandle
from sluiceway.runtime.worker import Worker

__all__ = ["HEARTBEAT_TIMEOUT_S", "ResourceManager", "WorkerLostError"]

HEARTBEAT_TIMEOUT_S: Final = 15.0
_CHECK_S: Final = 1.0
_EXIT_S: Final = 1.0


class WorkerLostError(SluicewayError):
    """A worker process has died, hangs, or cannot be reached."""


class _Known:
    """A worker, as the job manager sees it."""

    def __init__(self, name: str, process: WorkerHandle, started: float) -> None:
        self.name = name
        self.process = process
        self.connection: Connection | None = None
        self.address = ""
        self.slots = 0
        self.heard = started


class ResourceManager:
    """Keeps the workers. All calls in the job manager's loop.

    Args:
        loop: the job manager's.
        clock: for heartbeats.
        on_registered: told when a worker has come up.
        on_lost: told of each worker that is lost, with why; not of those that were stopped.
        heartbeat_timeout_s: a worker that is silent for longer is killed and counts as lost.
    """

    def __init__(
        self,
        loop: Worker,
        clock: Clock,
        *,
        on_registered: Callable[[str], None],
        on_lost: Callable[[str, WorkerLostError], None],
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self.slots = SlotPool()
        self._loop = loop
        self._clock = clock
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._timeout_s = heartbeat_timeout_s
        self._workers: dict[str, _Known] = {}
        self._by_connection: dict[Connection, _Known] = {}
        self._stopping = False
        self._loop.at(clock.monotonic() + _CHECK_S, self._check)

    @property
    def addresses(self) -> dict[str, str]:
        """Where the registered workers' transports can be reached."""
        return {w.name: w.address for w in self._workers.values() if w.connection is not None}

    @property
    def starting(self) -> list[str]:
        """Workers that were started and have not registered yet."""
        return [w.name for w in self._workers.values() if w.connection is None]

    def expect(self, name: str, process: WorkerHandle) -> None:
        """A worker was started and will register."""
        self._workers[name] = _Known(name, process, self._clock.monotonic())

    def register(self, connection: Connection, message: Register) -> None:
        """A worker has come."""
        known = self._workers.get(message.worker)
        if known is None or known.connection is not None:
            connection.close()  # Nobody has started it, or there is one of that name already.
            return
        known.connection = connection
        known.address = message.address
        known.slots = message.slots
        known.heard = self._clock.monotonic()
        self._by_connection[connection] = known
        self.slots.offer(known.name, message.slots)
        self._on_registered(known.name)

    def heard_from(self, connection: Connection) -> None:
        """A message of a worker is a sign of life."""
        known = self._by_connection.get(connection)
        if known is not None:
            known.heard = self._clock.monotonic()

    def closed(self, connection: Connection, why: ConnectionLostError | None) -> None:
        """A worker's connection is gone, and the worker with it."""
        known = self._by_connection.pop(connection, None)
        if known is None:
            return
        known.connection = None
        if not self._stopping:
            # A process that dies closes its connection a moment before it can be waited for.
            known.process.ended(_EXIT_S)
            self._lose(known, f"{known.process.how_it_ended()} ({why})")

    def send(self, worker: str, message: Message) -> None:
        """Send a message to a worker; lost where the worker is."""
        known = self._workers.get(worker)
        if known is not None and known.connection is not None:
            known.connection.send(message)

    def infos(self) -> list[WorkerInfo]:
        """What is to be told of the workers that are registered."""
        now = self._clock.monotonic()
        return [
            WorkerInfo(w.name, w.process.pid, w.slots, max(0.0, now - w.heard))
            for w in self._workers.values()
            if w.connection is not None
        ]

    def names(self) -> list[str]:
        """The workers that are registered."""
        return [w.name for w in self._workers.values() if w.connection is not None]

    def stop(self) -> None:
        """Tell all workers to end."""
        self._stopping = True
        for known in self._workers.values():
            if known.connection is not None:
                known.connection.send(StopWorker())
                known.connection.close()

    @property
    def connected(self) -> bool:
        """Whether any worker is still connected."""
        return bool(self._by_connection)

    def end_processes(self, within_s: float) -> None:
        """Wait for the processes to end, and kill those that do not."""
        until = self._clock.monotonic() + within_s
        for known in self._workers.values():
            if not known.process.ended(max(0.0, until - self._clock.monotonic())):
                known.process.kill()
        self._workers.clear()

    def _check(self) -> None:
        if self._stopping:
            return
        now = self._clock.monotonic()
        for known in list(self._workers.values()):
            if known.connection is None:
                if known.process.ended():
                    self._lose(known, f"{known.process.how_it_ended()} before it had registered")
                elif now - known.heard > self._timeout_s:
                    known.process.kill()
                    self._lose(known, f"did not register within {self._timeout_s:g} s")
            elif now - known.heard > self._timeout_s:
                self._by_connection.pop(known.connection, None)
                known.connection.close()
                known.connection = None
                known.process.kill()
                self._lose(known, f"has not been heard of for {self._timeout_s:g} s and was killed")
        self._loop.at(now + _CHECK_S, self._check)

    def _lose(self, known: _Known, why: str) -> None:
        del self._workers[known.name]
        self.slots.withdraw(known.name)
        self._on_lost(known.name, WorkerLostError(f"worker {known.name!r} (process {known.process.pid}) {why}"))
