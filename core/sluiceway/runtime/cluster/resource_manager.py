"""Resource manager: registration, liveness and slots of the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sluiceway.clock import Clock
from sluiceway.errors import SluicewayError
from sluiceway.monitoring.infos import WorkerInfo
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.worker_launcher import WorkerHandle, adopt_worker
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.processes import OpenInspector
from sluiceway.runtime.messages.workers import Register, StopWorker
from sluiceway.scheduler import SlotPool

__all__ = ["ResourceManager", "WorkerLostError"]

# Intervals of looks at running workers, at those that start, and at lost ones whose reason is still to come.
_CHECK_S: Final = 1.0
_CHECK_STARTING_S: Final = 0.1
_CHECK_REASON_S: Final = 0.02
_EXIT_S: Final = 1.0
_START_S: Final = 60.0


class WorkerLostError(SluicewayError):
    """A worker process has ended, hangs, or cannot be reached.

    Args:
        message: the event, with the name of the worker.
        started: whether the worker had registered before.
        killed: whether a signal ended it before it registered.
        hopeless: whether another worker would fail to start, too.
    """

    def __init__(self, message: str, started: bool = True, killed: bool = False, hopeless: bool = False) -> None:
        super().__init__(message)
        self.started = started
        self.killed = killed
        self.hopeless = hopeless


class _Known:
    """State of a worker in the job manager."""

    def __init__(self, name: str, process: WorkerHandle, started: float) -> None:
        self.name = name
        self.process = process
        self.pid = process.pid
        self.connection: Connection | None = None
        self.address = ""
        self.slots = 0
        self.started = started
        # Liveness, by messages or by bytes on the line, and the last message, which is what is displayed.
        self.heard = started
        self.spoke = started
        self.idle_since: float | None = None
        self.released = False
        self.left = False


class ResourceManager:
    """Registry of the workers, with their liveness and slots. All calls in the job manager's loop.

    Args:
        loop: loop of the job manager.
        clock: clock of heartbeats.
        on_registered: called with the name of a worker that has registered.
        on_lost: called with the workers that were lost together and the error; not for stopped workers.
        on_releasing: called with the name of an idle worker that is asked to end.
        on_released: called when it has ended.
        heartbeat_timeout_s: time without a heartbeat after which a worker is killed and counts as lost. A long
            call of a user's function does not count: the signs are sent by a thread of their own.
        idle_s: time after which a worker without allocated slots is ended; None: never.
        epoch: epoch of the job manager.
    """

    def __init__(
        self,
        loop: TaskletLoop,
        clock: Clock,
        *,
        on_registered: Callable[[str], None],
        on_lost: Callable[[Sequence[str], WorkerLostError], None],
        on_releasing: Callable[[str], None],
        on_released: Callable[[], None],
        heartbeat_timeout_s: float,
        idle_s: float | None = None,
        epoch: int = 0,
    ) -> None:
        self.slots = SlotPool()
        self._loop = loop
        self._clock = clock
        self._on_registered = on_registered
        self._on_lost = on_lost
        self._on_releasing = on_releasing
        self._on_released = on_released
        self._timeout_s = heartbeat_timeout_s
        self._idle_s = idle_s
        self._epoch = epoch
        self._check_s = min([_CHECK_S, heartbeat_timeout_s / 4, *([] if idle_s is None else [idle_s])])
        self._checked_at = clock.monotonic()
        self._workers: dict[str, _Known] = {}
        self._by_connection: dict[Connection, _Known] = {}
        self._stopping = False
        self._watching = False
        self._loop.at(self._checked_at + self._check_s, self._check)

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses of the registered workers' transports, by worker."""
        return {w.name: w.address for w in self._workers.values() if w.connection is not None}

    @property
    def starting(self) -> list[str]:
        """Names of workers that were started and have not registered yet."""
        return [w.name for w in self._workers.values() if w.connection is None and not (w.left or w.released)]

    @property
    def awaits_reason(self) -> bool:
        """True while the reason for a worker's closed connection is not known."""
        return any(worker.left for worker in self._workers.values())

    def expect(self, name: str, process: WorkerHandle) -> None:
        """Add a worker that was started and will register."""
        now = self._clock.monotonic()
        self._workers[name] = _Known(name, process, now)
        if not self._watching:
            self._watching = True
            self._loop.at(now + _CHECK_STARTING_S, self._check_starting)

    def register(self, connection: Connection, message: Register) -> None:
        """Register a worker, and offer its slots."""
        known = self._workers.get(message.worker)
        if known is None or known.connection is not None or known.left or known.released:
            connection.close()  # not started by this job manager, or its name is in use
            return
        known.connection = connection
        known.address = message.address
        known.slots = message.slots
        known.pid = message.pid  # a worker placed by a host has no known process id before
        known.heard = known.spoke = self._clock.monotonic()
        self._by_connection[connection] = known
        self.slots.offer(known.name, message.slots)
        self._on_registered(known.name)

    def extend(self, worker: str, slots: int) -> None:
        """Add slots to a registered worker."""
        self._workers[worker].slots += slots
        self.slots.extend(worker, slots)

    def adopt(self, connection: Connection, message: Register) -> None:
        """Register a worker that an earlier job manager has started."""
        if message.worker in self._workers or self._stopping:
            connection.send(StopWorker(self._epoch))
            connection.close()
            return
        try:
            process = adopt_worker(message.pid, message.line)
        except OSError:  # it has ended by now
            connection.close()
            return
        self._workers[message.worker] = _Known(message.worker, process, self._clock.monotonic())
        self.register(connection, message)

    def heard_from(self, connection: Connection) -> None:
        """Record a message of a worker as a heartbeat."""
        known = self._by_connection.get(connection)
        if known is not None:
            known.heard = known.spoke = self._clock.monotonic()

    def closed(self, connection: Connection, why: ConnectionLostError | None) -> None:
        """Handle the end of a worker's connection, after which the worker is lost or released."""
        known = self._by_connection.pop(connection, None)
        if known is None:
            return
        known.connection = None
        # It was idle and has been asked to end.
        if known.released:
            self._await_exit(known, self._clock.monotonic() + _EXIT_S)
        elif not self._stopping:
            known.left = True
            for fellow in self._lost_with(known):
                self.slots.withdraw(fellow.name)  # nothing may be deployed there until the reason is known
            # A process that dies closes its connection a moment before it can be waited for.
            self._await_reason(known, why, self._clock.monotonic() + known.process.reason_within_s)

    def send(self, worker: str, message: Message) -> None:
        """Send a message to a worker. Dropped if the worker is lost, which is reported by ``on_lost``."""
        known = self._workers.get(worker)
        if known is not None and known.connection is not None:
            known.connection.send(message)

    def call_inspector(self, worker: str) -> None:
        """Request a connection of a worker's inspector: through the line to its process, else through its loop."""
        known = self._workers.get(worker)
        if known is not None and known.connection is not None and not known.process.call_inspector():
            known.connection.send(OpenInspector())

    def pid_of(self, worker: str) -> int | None:
        """Return the process id of a registered worker, on any machine; None if it is not registered."""
        known = self._workers.get(worker)
        return None if known is None or known.connection is None else known.pid

    def local_pid_of(self, worker: str) -> int | None:
        """Return the process id of a worker on this machine; None if it is elsewhere or unknown."""
        known = self._workers.get(worker)
        return None if known is None else known.process.pid or None

    def infos(self) -> list[WorkerInfo]:
        """Return the monitoring data of the registered workers."""
        now = self._clock.monotonic()
        return [
            WorkerInfo(w.name, w.pid, w.slots, max(0.0, now - w.spoke), self.slots.available_of(w.name))
            for w in self._workers.values()
            if w.connection is not None
        ]

    def pids(self) -> set[int]:
        """Return the process ids of the registered workers."""
        return {w.process.pid for w in self._workers.values() if w.connection is not None}

    def names(self) -> list[str]:
        """Return the names of the registered workers."""
        return [w.name for w in self._workers.values() if w.connection is not None]

    def stop(self) -> None:
        """Stop all workers. Each of them closes its connection; one that does not is stuck in a call."""
        self._stopping = True
        for known in list(self._workers.values()):
            if known.connection is not None:
                known.connection.send(StopWorker(self._epoch))
            elif not known.released:
                known.process.kill()  # starting: it has no connection to send to

    @property
    def connected(self) -> bool:
        """True while a worker is connected."""
        return bool(self._by_connection)

    def end_processes(self, within_s: float) -> None:
        """Wait for the processes to end, and kill those that do not in time."""
        # One limit for all of them together.
        until = self._clock.monotonic() + within_s
        for known in self._workers.values():
            if not known.process.ended(max(0.0, until - self._clock.monotonic())):
                known.process.kill()
        self._workers.clear()
        for connection in self._by_connection:
            connection.abandon()
        self._by_connection.clear()

    def kill(self, worker: str, why: str) -> None:
        """Kill a worker that does not comply; it counts as lost."""
        known = self._workers.get(worker)
        if known is not None and known.connection is not None and not known.released:
            self._cut_off(known)
            self._lose(known, f"{why} and was killed")

    def _await_exit(self, known: _Known, until: float) -> None:
        """Forget a released worker once its process has ended; kill it at ``until``."""
        if known.name not in self._workers:
            return  # all of them were stopped
        now = self._clock.monotonic()
        if not known.process.ended():
            if now < until:
                self._loop.at(now + _CHECK_REASON_S, lambda: self._await_exit(known, until))
                return
            known.process.kill()
        del self._workers[known.name]
        if not self._stopping:
            self._on_released()

    def _await_reason(self, known: _Known, why: ConnectionLostError | None, until: float) -> None:
        """Report a worker as lost once the end of its process is known, at ``until`` at the latest."""
        if self._stopping or known.name not in self._workers:
            return
        now = self._clock.monotonic()
        ended = known.process.ended()
        if not ended and now < until:
            self._loop.at(now + _CHECK_REASON_S, lambda: self._await_reason(known, why, until))
            return
        how = known.process.how_it_ended() if ended else "has left without ending and was killed"
        known.process.kill()
        self._lose(known, f"{how} ({why})")

    def _check(self) -> None:
        if self._stopping:
            return
        now = self._clock.monotonic()
        # Time for which this process itself was suspended does not count as silence of the workers.
        slept = max(0.0, now - self._checked_at - self._check_s)
        self._checked_at = now
        for known in list(self._workers.values()):
            known.heard += slept
            if known.process.heard():
                known.heard = now
            if known.connection is not None and now - known.heard > self._timeout_s / 2:
                # Code in C that holds the interpreter lock keeps the thread from sending; used processor time
                # shows that the process does not hang.
                if known.process.is_at_work():
                    known.heard = now
                elif now - known.heard > self._timeout_s:
                    self._cut_off(known)
                    self._lose(known, f"sent no heartbeat for {self._timeout_s:g} s and was killed")
        if self._idle_s is not None:
            self._release_idle(now, self._idle_s)
        self._loop.at(now + self._check_s, self._check)

    def _check_starting(self) -> None:
        """Check the processes of starting workers: one that fails to start sends no message."""
        now, starting = self._clock.monotonic(), self.starting
        for known in list(self._workers.values()):
            if known.name not in self._workers:
                continue  # lost together with an earlier one
            if known.name in starting and not self._stopping:
                if known.process.ended():
                    how = known.process.how_it_ended()
                    if not known.process.is_hopeless():  # its own message is complete
                        how = f"{how} before it had registered"
                    self._lose(known, how, killed=known.process.was_killed())
                elif now - known.started > _START_S:
                    known.process.kill()
                    self._lose(known, f"did not register within {_START_S:g} s")
        self._watching = bool(self.starting) and not self._stopping
        if self._watching:
            self._loop.at(now + _CHECK_STARTING_S, self._check_starting)

    def _release_idle(self, now: float, idle_s: float) -> None:
        idle = self.slots.idle_workers()
        for known in self._workers.values():
            if known.name not in idle:
                known.idle_since = None
            elif known.idle_since is None:
                known.idle_since = now
            elif now - known.idle_since >= idle_s and known.connection is not None:
                # Withdrawn before it is stopped: nothing may be deployed there any more.
                known.released = True
                self.slots.withdraw(known.name)
                known.connection.send(StopWorker(self._epoch))
                known.connection.close()
                self._on_releasing(known.name)

    def _cut_off(self, known: _Known) -> None:
        if known.connection is not None:
            self._by_connection.pop(known.connection, None)
            known.connection.close()
            known.connection = None
        known.process.kill()

    def _lost_with(self, known: _Known) -> list[_Known]:
        """Return the workers that end when one does, that one first."""
        others = (w for w in self._workers.values() if w is not known and w.process.ends_with(known.process))
        return [known, *others]

    def _lose(self, known: _Known, why: str, killed: bool = False) -> None:
        lost = self._lost_with(known)
        for each in lost:
            # Workers that end together are cut off at once, without waiting until each connection closes.
            if each is not known:
                self._cut_off(each)
            del self._workers[each.name]
            self.slots.withdraw(each.name)
        # A worker tells its address when it registers.
        started = bool(known.address)
        said = known.process.what_it_said()
        if said and not started:
            why = f"{why}; it said:\n{said}"
        process = f"(process {known.pid}) " if known.pid else ""
        message = f"worker {known.name!r} {process}{why}"
        hopeless = known.process.is_hopeless()
        self._on_lost([each.name for each in lost], WorkerLostError(message, started, killed, hopeless))
