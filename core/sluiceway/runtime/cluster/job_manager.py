"""Job manager: one loop with a listener, the resource manager, and a job master for each job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from msgspec.structs import replace as structs_replace

from sluiceway.config.settings import Settings
from sluiceway.engine import Services
from sluiceway.errors import NoResourceAvailableError
from sluiceway.graph import JobGraph, slots_required
from sluiceway.runtime.cluster.cluster_directory import worker_numbers
from sluiceway.runtime.cluster.connection import BrokenProtocolError, Connection, ConnectionLostError
from sluiceway.runtime.cluster.epoch_fence import EpochFence
from sluiceway.runtime.cluster.heartbeats import heartbeat_interval_s
from sluiceway.runtime.cluster.job_preparation import EarlierRun, PreparedJob, prepare_job
from sluiceway.runtime.cluster.job_run import JobRun
from sluiceway.runtime.cluster.os_platform import Platform, Stream
from sluiceway.runtime.cluster.process_queries import ProcessQueries
from sluiceway.runtime.cluster.remote_logs import show_lines
from sluiceway.runtime.cluster.resource_manager import ResourceManager, WorkerLostError
from sluiceway.runtime.cluster.stuck_workers import StuckWorkers
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig
from sluiceway.runtime.cluster.worker_settings import WorkerSettings
from sluiceway.runtime.jobmanager.checkpoint_store import CheckpointPlace
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.blocking_io import CLOSE_S, Backgrounds
from sluiceway.runtime.messages.base import JobMessage, Message
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.workers import Logged, Register, StopWorker
from sluiceway.transport.accept_loop import AcceptLoop
from sluiceway.util.file_names import file_name

__all__ = ["STOP_S", "JobManager"]

STOP_S: Final = 5.0
"""Seconds that tasks have for ending when a cluster stops. Below the 10 s of container managers."""
# Seconds for the workers that are left once those stuck in a call are killed.
_LAST_S: Final = 1.5
# Failed starts in a row that end the jobs which wait for a worker. One that a signal ended counts a quarter.
_MOST_FAILED_STARTS: Final = 3
_START_AGAIN_S: Final = 0.5
_AS_MANY_KILLS: Final = 4
_SEGMENT_BYTES: Final = 32 * 1024
# Seconds after which workers of an earlier job manager are killed. They end their tasks or themselves within two.
_FENCE_S: Final = 10.0
_LOOK_S: Final = 0.05
_REJOIN_S: Final = 60.0
"""Seconds that workers wait for the next job manager after theirs is gone."""


class JobManager(Handlers):
    """Job manager: runs jobs on workers that it starts. From one thread, unless a method says otherwise.

    Attributes:
        loop: loop of its thread.
        jobs: jobs by id.
        backgrounds: executors of blocking calls, two for each job: of checkpoints, and of sources.
        processes: queries of worker processes.
        stuck: kills workers that are stuck in a call.
        epoch: epoch of this job manager.

    Args:
        directory: the cluster's directory, which only its user may enter; removed at the end.
        secret: secret of the cluster.
        services: factories of the plugins.
        workers: settings of the workers.
        platform: services of the operating system, with the start of workers.
        on_client: called with messages of clients and standbys.
        on_client_gone: called with each of their connections that has closed.
        epoch: epoch of this job manager, higher than that of any earlier one of this cluster.
        fence: no job is started while it knows of live workers; None: there are none.
    """

    def __init__(
        self,
        directory: Path,
        secret: bytes,
        services: Services,
        workers: WorkerSettings,
        *,
        platform: Platform | None = None,
        on_client: Callable[[Connection, Message], None] | None = None,
        on_client_gone: Callable[[Connection], None] | None = None,
        epoch: int = 1,
        fence: EpochFence | None = None,
    ) -> None:
        self._platform = platform or Platform()
        self.loop, self._poller = self._platform.loop(services.clock)
        self.backgrounds = self.make_backgrounds()
        self.jobs: dict[str, JobRun] = {}
        self._directory = directory
        self._secret = secret
        self._services = services
        self._clock = services.clock
        self._workers = workers
        self._slots_per_worker = workers.slots
        self._on_client = on_client
        self._on_client_gone = on_client_gone
        self.epoch = epoch
        # Numbers above those of an earlier job manager: its leftovers in the directory do not collide, and its
        # live workers keep their names when they register here.
        earlier = [*worker_numbers(directory), *([] if fence is None else fence.worker_numbers())]
        self._names = count(max(earlier, default=0) + 1)
        self._waiting: list[JobRun] = []
        self._spread: JobRun | None = None
        self._failed_starts = 0
        self._beat_s = heartbeat_interval_s(workers.heartbeat_timeout_s)
        self._stopping = False
        self._fence = fence
        self._fenced = fence is not None
        self._fenced_since = self._clock.monotonic()
        self.resources = ResourceManager(
            self.loop,
            self._clock,
            on_registered=self._registered,
            on_lost=self._lost,
            on_releasing=self._releasing,
            on_released=self._start_what_can,
            heartbeat_timeout_s=workers.heartbeat_timeout_s,
            idle_s=workers.idle_s,
            epoch=epoch,
        )
        self.processes = ProcessQueries(self.loop, self._clock, self.resources)
        self.stuck = StuckWorkers(self.processes, self.resources)
        self._listener = self._platform.listen(directory)
        self._connections: set[Connection] = set()
        self._accepting = AcceptLoop(
            self._listener,
            self._accept,
            watch=self._poller.keep,
            unwatch=self._poller.drop,
            later=lambda action, after_s: self.loop.at(self._clock.monotonic() + after_s, action),
            warn=lambda text: log(WARNING, "workers", text),
            what="the job manager",
        )
        if fence is not None:
            self.loop.soon(lambda: self._look_beyond(fence))

    # ---- the loop -------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Process what is due, or sleep until there is work."""
        if not self.loop.run_ready(16):
            deadline = self.loop.next_deadline()
            self._poller.poll(None if deadline is None else max(0.0, deadline - self._clock.monotonic()))

    def stop_workers(self) -> None:
        """Stop all workers, and kill those that are stuck in a call. No worker is started any more."""
        self._stopping = True
        self.resources.stop()
        if not self._workers_leave(STOP_S):
            self.stuck.end_connected(STOP_S)
            self._workers_leave(_LAST_S)
        # Processes whose connection has closed are about to end; those still connected are stuck, and have had
        # their time.
        self.resources.end_processes(STOP_S if not self.resources.connected else 0)

    def _workers_leave(self, within_s: float) -> bool:
        """Wait until no worker is connected; return False if one still is after ``within_s``."""
        until = self._clock.monotonic() + within_s
        # A deadline without an action ends the sleep of turn().
        self.loop.at(until, lambda: None)
        while self.resources.connected and self._clock.monotonic() < until:
            self.turn()
        return not self.resources.connected

    def close(self, *, hands_over: bool = False) -> None:
        """Stop all workers, and remove the directory; with ``hands_over`` it stays for a standby."""
        try:
            self.stop_workers()
        finally:
            self.abandon(stopped=not hands_over)

    def abandon(self, *, stopped: bool = False) -> None:
        """Kill all workers, and remove the directory. Harmless twice.

        Args:
            stopped: the directory is removed even if a standby watches it, which ends then.
        """
        self._stopping = True
        self.resources.end_processes(0)
        if self._listener.fileno() >= 0:
            self._accepting.close()
            for connection in self._connections:
                connection.abandon()
            self._connections.clear()
            self.backgrounds.close(CLOSE_S)
            self._listener.close()
            self._poller.close()
        self._platform.remove(self._directory, stopped=stopped)

    # ---- jobs -----------------------------------------------------------------------------------------------

    def make_backgrounds(self) -> Backgrounds:
        """Return new executors of blocking calls, which the caller closes."""
        return Backgrounds(lambda: self._platform.background(self.loop))

    def prepare(
        self, job: str, graph: JobGraph, settings: Settings, earlier: EarlierRun | None = None
    ) -> PreparedJob:
        """Read what a job starts from; see :func:`.prepare_job`. Blocks. From any thread."""
        return prepare_job(job, graph, settings, self._services, self._temporary_place, earlier)

    def submit(self, prepared: PreparedJob) -> JobRun:
        """Accept a job, which starts once it has slots.

        Raises:
            SerializationError: the job cannot be sent to workers; names what is in the way.
        """
        run = JobRun(
            prepared,
            self.epoch,
            self._services,
            self.resources,
            loop=self.loop,
            backgrounds=self.backgrounds,
            late=self.stuck.late,
            look_for_slots=lambda: self.loop.soon(self._start_what_can),
            make_room=self._make_room,
        )
        self.jobs[prepared.job] = run
        # Started by a later turn: the caller records the job before its first task is deployed.
        self._waiting.append(run)
        self.loop.soon(self._start_what_can)
        return run

    def _temporary_place(self, job: str) -> CheckpointPlace:
        name = file_name(job) or "job"
        storage = self._platform.temporary_storage(self._directory / "checkpoints" / f"{name}-{self.epoch}")
        return CheckpointPlace(storage, temporary=True, shared=self._platform.shares_files)

    def ended(self, run: JobRun) -> None:
        """Remove an ended job, here and on the workers."""
        run.forget()
        self.jobs.pop(run.job, None)
        self.backgrounds.drop(run.job)
        if run in self._waiting:
            self._waiting.remove(run)
        if self._spread is run:
            self._spread = None
        self.loop.soon(self._start_what_can)

    def is_waiting(self, run: JobRun) -> bool:
        """Return whether a job waits for slots."""
        return run in self._waiting

    @property
    def address(self) -> str:
        """Address at which workers, clients and standbys reach this job manager."""
        return self._platform.address(self._directory, self._listener)

    def _start_what_can(self) -> None:
        """Allocate slots to waiting jobs in order, and start workers for the first one that lacks slots.

        Restarts come before jobs that have not started.
        """
        if self._stopping or self._fenced:
            return
        running = [run for run in self.jobs.values() if run.waits_for_slots]
        for run in running:
            run.slots_came()
        # Jobs that have not started wait, too: they would take the slots of tasks that are to be restarted.
        if waiting := [run for run in running if run.waits_for_slots]:
            lacking = sum(run.slots_wanted for run in waiting) - self.resources.slots.available
            self._start_workers(max(1, -(-lacking // self._slots_per_worker)))
            return
        while self._waiting:
            run = self._waiting[0]
            if run.status.ended:
                self._waiting.pop(0)
                continue
            if not self._has_room(run):
                return
            self._waiting.pop(0)
            run.start()

    def _make_room(self, run: JobRun, lacking: int) -> None:
        """Start workers for the slots that a rescale lacks, up to the largest number of workers.

        Raises:
            NoResourceAvailableError: the slots cannot be provided while other jobs run.
        """
        pool = self.resources.slots
        most = self._workers.most * self._slots_per_worker
        # A waiting rescale keeps waiting for slots that other jobs have taken.
        others = 0 if run in self._waiting else pool.total - pool.available - run.master.slots.held
        # Slots that are lacking even if all workers run and all that other jobs do not have is given to this one.
        short = run.master.slots.held + lacking - (most - others)
        if short > 0 and not self._workers.slots_grow:
            taken = f", of which other jobs have taken {others}" if others else ""
            raise NoResourceAvailableError(
                f"job {run.job!r} needs {run.master.slots.held + lacking} slots for that parallelism, and this "
                f"cluster has {most} ({self._workers.most} workers with {self._slots_per_worker} each){taken}"
            )
        if short > 0:
            more = -(-short // self._workers.most)
            self._slots_per_worker += more
            for worker in self.resources.names():
                self.resources.extend(worker, more)
        if lacking > pool.available:
            self.loop.soon(self._start_what_can)

    def _look_beyond(self, fence: EpochFence) -> None:
        """Check for workers of an earlier job manager: they end by themselves, and are killed after a time."""
        now = self._clock.monotonic()
        if self._stopping:
            return
        alive = set(fence.alive()) - self.resources.pids()  # a registered worker has closed its tasks
        if not alive:
            self._fenced = False
            self._start_what_can()
            return
        if now - self._fenced_since > _FENCE_S:
            pids = ", ".join(map(str, sorted(alive)))
            log(WARNING, "workers", f"killed process {pids}: a worker of an earlier job manager, and still there")
            fence.end(alive)
            self._fenced_since = now
        self.loop.at(now + _LOOK_S, lambda: self._look_beyond(fence))

    def _has_room(self, run: JobRun) -> bool:
        """Return whether a job has its slots, on as many workers as it can use; if not, start workers.

        It waits for workers that are starting; if none can start, it uses the slots that exist.
        """
        needed = sum(slots_required(run.graph).values())
        # A job that restarts after a delay, or reads its checkpoint, will take the slots that its tasks had.
        available = self.resources.slots.available - sum(other.slots_wanted for other in self.jobs.values())
        lacking = -(-(needed - available) // self._slots_per_worker)
        wanted = max(lacking, 0)
        # Once per job, as many workers as it can use: a job packed onto few of them leaves the cores of the others
        # idle.
        if self._spread is not run:
            self._spread = run
            wanted = max(wanted, min(needed, self._workers.most) - len(self.resources.slots.idle_workers()))
        self._start_workers(wanted)
        return lacking <= 0 and not self.resources.starting

    def _start_workers(self, wanted: int) -> None:
        """Start workers up to ``wanted`` in all, within the limit; starting ones count."""
        coming = len(self.resources.starting)
        room = self._workers.most - len(self.resources.names()) - coming
        for _ in range(min(wanted - coming, room)):
            self._start_worker()

    # ---- workers --------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        name = f"worker-{next(self._names)}"
        config = WorkerConfig(
            name=name,
            manager=self.address,
            directory=str(self._directory),
            secret=self._secret.hex(),
            slots=self._slots_per_worker,
            transport=self._workers.transport,
            segments=self._workers.network_buffers,
            segment_bytes=_SEGMENT_BYTES,
            path=sys.path,
            beat_s=self._beat_s,
            logs=self._workers.logs.directory,
            tells=self._workers.logs.told,
            log_level=self._workers.logs.level,
            log_format=self._workers.logs.style,
            epoch=self.epoch,
            lock="" if self._fence is None else str(self._fence.file(name)),
            rejoin_s=0.0 if self._fence is None else _REJOIN_S,
        )
        try:
            process = self._platform.start_worker(config)
        except OSError as error:  # lack of descriptors, memory or processes may pass
            why = WorkerLostError(f"worker {name!r} cannot be started: {error}", started=False, killed=True)
            log(WARNING, "workers", f"{why}; another one is tried in {_START_AGAIN_S:g} s")
            self.loop.at(self._clock.monotonic() + _START_AGAIN_S, lambda: self._lost([name], why))
        else:
            self.resources.expect(config.name, process)

    def _registered(self, worker: str) -> None:
        self._failed_starts = 0
        self._start_what_can()

    def _releasing(self, worker: str) -> None:
        self.processes.lost(worker)
        for run in self.jobs.values():
            run.forget_worker(worker)

    def _lost(self, workers: Sequence[str], why: WorkerLostError) -> None:
        if self._fence is not None:
            for worker in workers:
                self._fence.file(worker).unlink(missing_ok=True)
        if self._stopping:
            return
        if why.started and why.hopeless:
            # Before the restart strategies are asked: another worker would fail to start in the same way.
            for run in list(self.jobs.values()):
                run.give_up(why)
        for worker in workers:
            self.processes.lost(worker)
        for run in list(self.jobs.values()):
            run.workers_lost(workers, why)
        if not why.started:
            # Starts that keep failing must end; those that were killed from outside get more attempts.
            self._failed_starts += 1 if why.killed else _AS_MANY_KILLS
            if why.hopeless or self._failed_starts >= _MOST_FAILED_STARTS * _AS_MANY_KILLS:
                self._failed_starts = 0
                for run in list(self.jobs.values()):
                    if run in self._waiting or run.waits_for_slots:
                        run.give_up(why)
        self.loop.soon(self._start_what_can)

    # ---- connections ----------------------------------------------------------------------------------------

    def _accept(self, sock: Stream) -> Connection:
        connection = Connection(
            sock,
            self.loop,
            self._secret,
            "manager",
            on_open=self._accepting.forget,
            on_message=self._message,
            on_closed=self._closed,
        )
        self._connections.add(connection)
        return connection

    def _message(self, connection: Connection, message: Message) -> None:
        if connection.peer == "inspector":
            self.processes.take(connection, message)
            return
        if connection.peer != "worker":
            if self._on_client is not None:
                self._on_client(connection, message)
            return
        # Any message proves that the worker lives.
        self.resources.heard_from(connection)
        if isinstance(message, JobMessage):
            if (run := self.jobs.get(message.job)) is not None:
                run.take(message)
        else:
            self.dispatch(message, connection)

    @handles(Logged)
    def _logged(self, message: Logged, connection: Connection) -> None:
        # Not in here: an error in writing to the terminal ends the job, not the connection.
        self.loop.soon(lambda: show_lines(message.lines, self._workers.logs.style))

    @handles(Register)
    def _register(self, message: Register, connection: Connection) -> None:
        # Some may have been started before the number of slots grew.
        if self._workers.slots_grow and message.slots < self._slots_per_worker:
            message = structs_replace(message, slots=self._slots_per_worker)
        if message.slots != self._slots_per_worker and message.epoch == self.epoch:
            raise BrokenProtocolError(f"worker {message.worker!r:.80} offers {message.slots} slots")
        # Three origins: started by this job manager, left by an earlier one and waiting for the next, or neither.
        if message.epoch == self.epoch:
            self.resources.register(connection, message)
        elif message.line and message.epoch < self.epoch and self._could_start(message):
            self.resources.adopt(connection, message)
        else:
            connection.send(StopWorker(self.epoch))  # it was started for an earlier job manager that is gone
            connection.close()

    def _could_start(self, message: Register) -> bool:
        """Return whether a worker is configured as those that this job manager starts."""
        return (message.slots, message.transport) == (self._slots_per_worker, self._workers.transport)

    def _closed(self, connection: Connection, why: ConnectionLostError | None) -> None:
        self._accepting.forget(connection)
        self._connections.discard(connection)
        if connection.peer == "inspector":
            self.processes.closed(connection)
        elif connection.peer != "worker" and self._on_client_gone is not None:
            self._on_client_gone(connection)
        if not connection.proved:
            if isinstance(why, BrokenProtocolError):
                self._accepting.refused(str(why))
        elif connection.peer == "worker":
            self.resources.closed(connection, why)  # this gives the reason for the loss of the worker
        elif isinstance(why, BrokenProtocolError):
            log(WARNING, "workers", f"closed a connection: {why}")
