"""Simulated cluster: the real job manager and workers in a simulated world."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sluiceway.clock import Clock
from sluiceway.engine import JobStatus, LifecycleListener, Services
from sluiceway.plugins import default_manager
from sluiceway.plugins.services import PluginServices
from sluiceway.runtime.cluster.job_manager import JobManager
from sluiceway.runtime.cluster.os_platform import Listener, Platform
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig, WorkerHandle
from sluiceway.runtime.cluster.worker_process import WorkerProcess
from sluiceway.runtime.cluster.worker_settings import WorkerSettings
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.blocking_io import Background
from sluiceway.runtime.loop.poller import Poller
from sluiceway.runtime.loop.tasklet import TaskletLoop
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage
from sluiceway.testing.simulation.background import SimulatedBackground
from sluiceway.testing.simulation.carrier import SimulatedCarrier
from sluiceway.testing.simulation.errors import SimulationError
from sluiceway.testing.simulation.faults import CancelJob, Crash, Fault, LoseJobManager, TakeSavepoint
from sluiceway.testing.simulation.loop import Node, NoEventLoop
from sluiceway.testing.simulation.messages import UnreliableMessages
from sluiceway.testing.simulation.streams import SimulatedListener, connect
from sluiceway.testing.simulation.world import World
from sluiceway.transport.carrier import Carrier
from sluiceway.util.overriding import override

__all__ = ["MANAGER", "SimulatedCluster"]

MANAGER: Final = "job manager"
_TRANSPORT: Final = "simulated"
_SECRET: Final = b"simulated" * 4
# A real job manager removes its directory at the end, so this must be none.
_NOWHERE: Final = Path("/nonexistent/sluiceway-simulation")
_STARTS_WITHIN_US: Final = 300_000
_GOES_ON_FOR_US: Final = 2_000_000


class SimulatedCluster(LifecycleListener):
    """Job manager with its workers.

    Args:
        world: where they live.
        services: whose listener is told, too.
        workers: how many.
        slots: how many each of them offers.
        heartbeat_timeout_s: a worker that sends no heartbeat for longer is killed.
        segments: network buffers of each worker.
        segment_bytes: size of each.
        faults: what goes wrong.
        unreliable: the chance that a message about a checkpoint is lost, doubled, late or made a refusal.
        shares_files: whether workers write the files of checkpoints themselves.

    Attributes:
        savepoints: those that have become complete.
    """

    def __init__(
        self,
        world: World,
        services: Services,
        *,
        workers: int,
        slots: int,
        heartbeat_timeout_s: float,
        segments: int,
        segment_bytes: int,
        faults: Sequence[Fault],
        unreliable: float = 0.0,
        shares_files: bool = True,
    ) -> None:
        self.world = world
        self.workers: dict[str, SimulatedProcess] = {}
        self.carriers: dict[str, SimulatedCarrier] = {}
        self.happened: list[Fault] = []
        self.savepoints: list[str] = []
        self.messages = UnreliableMessages(world, unreliable)
        self.services = services
        self.segments = segments
        self.segment_bytes = segment_bytes
        self.node = Node(world, MANAGER)
        self._pids = count(1001)
        self._due = sorted(faults, key=lambda fault: fault.step, reverse=True)
        self._checkpoints = TemporaryDirectory(prefix="simulated-sluiceway-")
        self._platform = _ManagerPlatform(self, self._checkpoints.name, shares_files)
        self.manager = JobManager(
            _NOWHERE,
            _SECRET,
            SimulatedServices(self, self.node),
            WorkerSettings(_TRANSPORT, most=workers, slots=slots, heartbeat_timeout_s=heartbeat_timeout_s),
            platform=self._platform,
        )
        world.before_step = self._before_step
        resources, send = self.manager.resources, self.manager.resources.send
        resources.send = partial(self.messages.to_worker, self.node, send)  # type: ignore[method-assign]

    @property
    def listener(self) -> SimulatedListener:
        """Listener that workers connect to."""
        return self._platform.listener

    @property
    def living(self) -> list[SimulatedProcess]:
        """Return the workers that have not ended."""
        return [process for process in self.workers.values() if process.node.alive]

    def start_worker(self, config: WorkerConfig) -> WorkerHandle:
        """Start a worker, which connects after a time."""
        config = replace(config, segments=self.segments, segment_bytes=self.segment_bytes)
        process = SimulatedProcess(self, config, next(self._pids))
        self.workers[config.name] = process
        return process

    def settle(self) -> None:
        """Stop all faults, and let messages in flight arrive."""
        self._due.clear()
        self.messages.chance = 0.0
        self._wait_for_hangs()
        self.world.run(lambda: False, _GOES_ON_FOR_US)

    def check_nothing_is_held(self) -> None:
        """Check that workers hold nothing of a job that was removed.

        Raises:
            SimulationError: a worker holds something.
        """
        held = [
            f"{process.node.name}: {what}"
            for process in self.living
            if process.worker is not None
            for what in _held(process.worker)
        ]
        if held:
            raise SimulationError("the job has ended, and workers still hold of it\n  " + "\n  ".join(held))
        slots = self.manager.resources.slots
        if slots.available != slots.total:
            raise SimulationError(f"the job has ended, and {slots.total - slots.available} slots are still taken")

    def close(self) -> None:
        """Stop the workers and the job manager.

        Raises:
            SimulationError: a worker does not end by itself.
        """
        self.manager.close()
        self.node.end(cleanly=True)
        self.end_without_manager()

    def end_without_manager(self) -> None:
        """Wait for the workers to end by themselves.

        Raises:
            SimulationError: a worker does not end.
        """
        self._wait_for_hangs()
        if not self.world.run(lambda: not self.living, 60_000_000):
            names = ", ".join(process.node.name for process in self.living)
            raise SimulationError(f"the job manager is gone, and workers go on without it: {names}")

    def let_go(self) -> None:
        """Release what ended processes hold, as the operating system would."""
        self._checkpoints.cleanup()
        for process in self.workers.values():
            if process.worker is not None and not process.closed:
                for job in process.worker._jobs.values():
                    for task in job.tasks.tasks:
                        # Of a crashed process: what state its tasks are in is unknown.
                        with suppress(Exception):
                            task.input.close()

    # ---- what happens ---------------------------------------------------------------------------------------

    def job_status_changed(self, job_name: str, old: JobStatus, new: JobStatus) -> None:
        """Write the change to the trace."""
        self.world.note(MANAGER, f"the job is {new.value}")
        self.services.listener.job_status_changed(job_name, old, new)

    def task_state_changed(self, job_name: str, vertex: str, subtask: int, old: str, new: str) -> None:
        """Write the change to the trace."""
        self.world.note(MANAGER, f"{vertex} [{subtask}] is {new}")
        self.services.listener.task_state_changed(job_name, vertex, subtask, old, new)

    def _savepoint_over(self, location: str, problem: BaseException | None) -> None:
        if problem is None:
            self.savepoints.append(location)
        self.world.note(MANAGER, f"there is a savepoint, {location}" if location else f"no savepoint: {problem}")

    def _wait_for_hangs(self) -> None:
        self.world.run(lambda: not any(process.node.hung for process in self.living))

    def _before_step(self, step: int) -> None:
        while self._due and self._due[-1].step <= step:
            fault = self._due.pop()
            if isinstance(fault, LoseJobManager):
                self.world.note(MANAGER, "is lost")
                self.happened.append(fault)
                self.node.end(cleanly=False)
                continue
            if isinstance(fault, CancelJob):
                self.world.note(MANAGER, "is asked to cancel the job")
                self.happened.append(fault)
                for run in self.manager.jobs.values():
                    # In a turn of the job manager, as the request of a client comes.
                    self.node.loop.soon(run.cancel)
                continue
            if isinstance(fault, TakeSavepoint):
                self.world.note(MANAGER, f"is asked for a savepoint{' to stop with' * fault.stop}")
                self.happened.append(fault)
                for run in self.manager.jobs.values():
                    self.node.loop.soon(partial(run.savepoint, fault.place, fault.stop, self._savepoint_over))
                continue
            candidates = [p for p in self.living if fault.worker in (None, p.node.name)]
            if not candidates:
                continue
            process = self.world.chance.choice(candidates)
            self.happened.append(fault)
            if isinstance(fault, Crash):
                self.world.note(process.node.name, "crashes")
                process.crash("SIGKILL")
            else:
                self.world.note(process.node.name, f"hangs for {fault.ms} ms")
                process.node.hung_until_us = self.world.clock.us + fault.ms * 1000


class SimulatedProcess(WorkerHandle):
    """Worker, and the job manager's handle of its process."""

    def __init__(self, cluster: SimulatedCluster, config: WorkerConfig, pid: int) -> None:
        self.node = Node(cluster.world, config.name)
        self.worker: WorkerProcess | None = None
        self.closed = False
        self._cluster = cluster
        self._config = config
        self._pid = pid
        self._how = "ended with exit code 0"
        self._killed = False
        self._said = ""
        self.node.on_turn = self._after_turn
        cluster.world.note(config.name, "is started")
        cluster.world.after(1 + int(_STARTS_WITHIN_US * cluster.world.chance.random()), self._up)

    @property
    @override
    def pid(self) -> int:
        return self._pid

    def ended(self, within_s: float = 0.0) -> bool:
        """Return whether it has ended; the job manager waits while the world runs."""
        if self.node.alive and within_s > 0:
            waiting = self._cluster.node
            before, waiting.waits_inside = waiting.waits_inside, True
            try:
                self._cluster.world.run(lambda: not self.node.alive, round(within_s * 1_000_000))
            finally:
                waiting.waits_inside = before
                waiting.go_on()
        return not self.node.alive

    @override
    def kill(self) -> None:
        if self.node.alive:
            self._cluster.world.note(self.node.name, "is killed by the job manager")
            self.crash("SIGKILL")

    def heard(self) -> bool:
        """Return whether it lives and does not hang."""
        return self.node.alive and not self.node.hung

    def is_at_work(self) -> bool:
        """Return whether it uses the processor; a hanging worker does not."""
        return self.heard()

    @override
    def was_killed(self) -> bool:
        return self._killed

    @override
    def how_it_ended(self) -> str:
        return "is still running" if self.node.alive else self._how

    @override
    def what_it_said(self) -> str:
        return self._said

    def crash(self, signal: str) -> None:
        """End the worker at once, as by a signal."""
        self._killed = True
        self._how = f"was killed by {signal}"
        self.node.end(cleanly=False)

    def _up(self) -> None:
        if not self.node.alive:
            return
        try:
            stream = connect(self.node, self._cluster.listener)
        except OSError as error:
            self._how, self._said = "ended with exit code 1", str(error)
            self.node.end(cleanly=False)
            return
        config = self._config
        self.worker = WorkerProcess(
            config,
            stream,
            SimulatedServices(self._cluster, self.node),
            _Platform(self.node),
        )
        send = self.worker.send
        to_manager = self._cluster.messages.to_manager
        self.worker.send = lambda message: to_manager(self.node, send, message)  # type: ignore[method-assign]

    def _after_turn(self) -> None:
        if self.node.loop.ended and self.worker is not None:
            self.worker.close()
            self.closed = True
            self._cluster.world.note(self.node.name, "ends")
            self.node.end(cleanly=True)


def _held(worker: WorkerProcess) -> list[str]:
    """Return what a worker holds of jobs, channels and buffers."""
    network = worker.network
    jobs = [f"job {name!r}" for name in worker._jobs]
    senders = [f"sender of channel {channel}" for channel in network._senders]
    receivers = [f"{len(link._receivers)} receivers" for link in network._to_producers.values() if link._receivers]
    waiting = [f"channel {channel}, opened for a producer that has not come" for channel in network._opened]
    missing = network._buffers.total - network._buffers.available
    return [*jobs, *senders, *receivers, *waiting, *([f"{missing} network buffers"] if missing else [])]


class _Platform(Platform):
    def __init__(self, node: Node) -> None:
        self._node = node

    def loop(self, clock: Clock) -> tuple[TaskletLoop, Poller]:
        return self._node.loop, self._node.poller

    def event_loop(self) -> EventLoop:
        return NoEventLoop()

    def background(self, loop: TaskletLoop) -> Background:
        return SimulatedBackground(self._node)


class _ManagerPlatform(_Platform):
    def __init__(self, cluster: SimulatedCluster, checkpoints: str, shares_files: bool) -> None:
        super().__init__(cluster.node)
        self.shares_files = shares_files
        self._cluster = cluster
        self._checkpoints = checkpoints
        self.listener = SimulatedListener(cluster.node)

    def start_worker(self, config: WorkerConfig) -> WorkerHandle:
        return self._cluster.start_worker(config)

    def listen(self, directory: Path) -> Listener:
        return self.listener

    def temporary_storage(self, directory: Path) -> TemporaryStorage:
        """Return storage in a directory of the simulation."""
        return TemporaryStorage(self._checkpoints)

    def remove(self, directory: Path, *, stopped: bool = False) -> None:
        """Do nothing: the cluster has no directory."""


class SimulatedServices(PluginServices):
    """Services of plugins, except network and listener, which are those of the simulated world."""

    def __init__(self, cluster: SimulatedCluster, node: Node) -> None:
        super().__init__(default_manager(), cluster.world.clock)
        self._cluster = cluster
        self._node = node

    @property
    def listener(self) -> LifecycleListener:
        """Listener that also writes the trace."""
        return self._cluster

    def carrier(self, name: str) -> Carrier:
        """Return the carrier of the world."""
        return SimulatedCarrier(self._node, self._cluster.carriers)
