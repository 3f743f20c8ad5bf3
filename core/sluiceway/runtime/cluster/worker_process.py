"""Worker process: registers with the job manager, runs tasks, and ends with the job manager."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.engine import Services
from sluiceway.graph import ExecutionState
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.network.local_channel import LocalTransport
from sluiceway.network.transport import NetworkTransport
from sluiceway.runtime.cluster.channel_routing import RoutingTransport
from sluiceway.runtime.cluster.connection import Connection, ConnectionLostError
from sluiceway.runtime.cluster.inspector import Inspector
from sluiceway.runtime.cluster.log_files import WorkerLog
from sluiceway.runtime.cluster.os_platform import Platform, Stream
from sluiceway.runtime.cluster.remote_logs import RemoteLogHandler
from sluiceway.runtime.cluster.search_path import SearchPath
from sluiceway.runtime.cluster.worker_job import Program, WorkerJob
from sluiceway.runtime.cluster.worker_launcher import WorkerConfig
from sluiceway.runtime.failures.explanation import add_note, contained
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.blocking_io import CLOSE_S, Backgrounds
from sluiceway.runtime.messages.base import JobMessage, Message
from sluiceway.runtime.messages.figures import TaskFigures
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.payload import Cause, Payload
from sluiceway.runtime.messages.pickling import dump_error, load, load_error
from sluiceway.runtime.messages.processes import OpenInspector
from sluiceway.runtime.messages.tasks import DeployTasks, ReportTask
from sluiceway.runtime.messages.workers import (
    Heartbeat,
    JobEnded,
    Logged,
    Register,
    ReportMetrics,
    StopWorker,
    SubmitJob,
    WorkerAddresses,
)
from sluiceway.runtime.task.task_figures import figures_of, plain_figures
from sluiceway.runtime.taskmanager.key_sampler import sample_keys
from sluiceway.runtime.taskmanager.local_recovery import LocalCopyRegistration, with_local_copies
from sluiceway.runtime.taskmanager.process_meter import process_metrics
from sluiceway.runtime.taskmanager.snapshot_writer import SendingWriter, SnapshotWriter, StorageWriter
from sluiceway.runtime.taskmanager.stack_sampler import sample_stacks
from sluiceway.runtime.taskmanager.task_manager import TaskManager
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage
from sluiceway.serializers.program_classes import ProgramClasses
from sluiceway.transport.buffers import NetworkBufferPool
from sluiceway.transport.carrier import Carrier, CarrierContext

__all__ = ["WorkerProcess"]

METRICS_S: Final = 0.5
"""Seconds between two reports of metrics."""
_ENDED_ADDRESSES: Final = 1000
"""Addresses of workers that have ended which a worker keeps."""


class WorkerProcess(Handlers):
    """Worker process: one loop, one control connection, any number of jobs.

    Args:
        config: configuration of the worker.
        sock: socket connected to the job manager.
        services: plugin services of this process.
        platform: operating system services.
        line: path of the socket that accepts a line of a later job manager.

    Attributes:
        network: channels to other workers.
        rejected: number of messages for unknown jobs, or of another leader.
        log: log with a level per job; None: standard error.
        left: whether the job manager was lost without having stopped this worker.
        inspector: inspector of the process.
    """

    def __init__(
        self,
        config: WorkerConfig,
        sock: Stream,
        services: Services,
        platform: Platform | None = None,
        line: str = "",
    ) -> None:
        self._config = config
        self._clock = services.clock
        self._platform = platform or Platform()
        self._loop, self._poller = self._platform.loop(self._clock)
        self._backgrounds = Backgrounds(lambda: self._platform.background(self._loop))
        self._loop.passed_on = ()  # no exception of a task may end a process that jobs share
        self._services = services
        self.rejected = 0
        self.left = False
        self._line = line
        self._epoch = config.epoch
        self.log: WorkerLog | None = None
        self.inspector = Inspector(config, services.clock)
        self._jobs: dict[str, WorkerJob] = {}
        self._unfit: dict[str, tuple[int, Exception]] = {}  # jobs that cannot run here, and why
        self._addresses: dict[str, str] = {}
        self._search_path = SearchPath()
        self._beats = 0
        self._ended = False
        secret = bytes.fromhex(config.secret)
        self._carrier: Carrier = self._services.carrier(config.transport)
        self._address = self._carrier.start(
            CarrierContext(
                worker=config.name,
                directory=config.directory,
                secret=secret,
                watch=self._poller.keep,
                unwatch=self._poller.drop,
                soon=self._loop.soon,
                # Looked up when a link is accepted: the network is created below, with the segments of this
                # carrier.
                accepted=lambda link: self.network.accepted(link),
                later=lambda action, after_s: self._loop.at(self._clock.monotonic() + after_s, action),
                warn=lambda text: log(WARNING, "workers", f"{config.name}: {text}"),
            )
        )
        segments = self._carrier.segments(config.segments, config.segment_bytes)
        self.network = NetworkTransport(
            self._carrier,
            NetworkBufferPool(segments),
            self._addresses.__getitem__,
            self._loop.soon,
            dump_error,
            load_error,
        )
        self._connection = Connection(
            sock,
            self._loop,
            secret,
            "worker",
            peer_role="manager",
            on_open=self._opened,
            on_message=self._message,
            on_closed=self._closed,
        )

    def run(self) -> None:
        """Run until the job manager stops this worker, or is lost."""
        try:
            self._loop.run()
        finally:
            self.close()

    def close(self) -> None:
        """Release all resources, after the end of the loop."""
        self.inspector.close()
        self._backgrounds.close(CLOSE_S)
        for job in self._jobs.values():
            job.tasks.close()
        self.network.close()
        self._poller.close()

    def mail(self, action: Callable[[], None]) -> None:
        """Call an action in the loop's thread. May be called from any thread."""
        self._loop.mail(action)

    def send(self, message: Message) -> None:
        """Send a message to the job manager."""
        self._connection.send(message)

    @property
    def name(self) -> str:
        """Name of this worker."""
        return self._config.name

    def sample_stacks(
        self, tasks: TaskManager, seconds: float, rate: float, done: Callable[[StackSamples | None, str], None]
    ) -> None:
        """Sample the stacks of this process and of the tasks of one job. ``done`` as for the sampler."""
        sample_stacks(self._loop, tasks.task_of, seconds, rate, self._config.name, self._clock, done)

    def sample_keys(
        self,
        tasks: TaskManager,
        vertices: list[int],
        seconds: float,
        done: Callable[[list[KeySample] | None, str], None],
    ) -> None:
        """Count the keys of the records that the tasks of one job receive. ``done`` as for the sampler."""
        sample_keys(self._loop, tasks.tasks, vertices, seconds, self._config.name, self._clock, done)

    def tell_lines(self) -> WorkerLog:
        """Send log lines and output of this process to the job manager from now on."""
        log = RemoteLogHandler(
            self._config.name,
            self._config.log_level,
            lambda lines: self.send(Logged(lines)),
            self.mail,
            lambda: self._connection.backlog,
        )
        log.take_over()
        return log

    def send_metrics(self, name: str) -> list[TaskFigures]:
        """Send the metrics of a job's tasks on this worker, and return them."""
        job = self._jobs.get(name)
        if job is None:
            return []
        figures = [plain_figures(figures_of(task, self._config.name)) for task in job.tasks.tasks]
        self.send(ReportMetrics(name, job.epoch, figures, process_metrics(self._config.name)))
        return figures

    # ---- the connection -------------------------------------------------------------------------------------

    def _opened(self, connection: Connection) -> None:
        c = self._config
        told = Register(c.name, os.getpid(), c.slots, self._address, self._epoch, self._line, c.transport)
        connection.send(told)
        self._beat()
        self._measure()

    def _closed(self, connection: Connection, why: ConnectionLostError | None) -> None:
        """End the tasks, and with them the loop: a worker cannot run them without its job manager."""
        self._ended = True
        self.left = why is not None
        # The loop ends by itself when the tasks have ended.
        for job in self._jobs.values():
            job.tasks.cancel_all()

    def _beat(self) -> None:
        if not self._ended:
            # Beside the bytes of the heartbeat thread: a message shows that the loop turns.
            self._beats += 1
            self.send(Heartbeat(self._beats))
            self._loop.at(self._clock.monotonic() + self._config.beat_s, self._beat)

    def _measure(self) -> None:
        if not self._ended:
            for name, job in self._jobs.items():
                # An ended task is kept until its last metrics are sent and its output has left the network
                # buffers.
                taken = {f.attempt_id for f in self.send_metrics(name) if not f.metrics.buffers_in_use}
                for attempt_id in job.over & taken:
                    job.over.discard(attempt_id)
                    job.tasks.drop(attempt_id)
            self._loop.at(self._clock.monotonic() + METRICS_S, self._measure)

    def _message(self, connection: Connection, message: Message) -> None:
        if getattr(message, "epoch", self._epoch) < self._epoch:
            self.rejected += 1  # of a deposed job manager: fenced, whatever its content
        elif isinstance(message, JobMessage) and not isinstance(message, SubmitJob):
            job = self._jobs.get(message.job)
            if job is None and self._is_about_unfit(message):
                return
            if job is None or message.epoch != job.epoch:
                self.rejected += 1
            # Handlers of the process, of the job, of its tasks.
            elif not (self.dispatch(message) or job.dispatch(message)):
                job.tasks.dispatch(message)
        else:
            self.dispatch(message)

    @handles(OpenInspector)
    def _open_inspector(self, message: OpenInspector) -> None:
        self.inspector.open()

    @handles(StopWorker)
    def _stop(self, message: StopWorker) -> None:
        self._connection.close()

    @handles(WorkerAddresses)
    def _use_addresses(self, message: WorkerAddresses) -> None:
        _use_addresses(self._addresses, message.addresses)

    @handles(JobEnded)
    def _job_ended(self, message: JobEnded) -> None:
        self._drop(message.job, self._jobs[message.job])

    def explained(self, raised: BaseException, doing: str) -> Exception:
        """Return an exception of this worker with notes of its action and machine."""
        error = contained(raised, "a module")
        add_note(error, f"while {self._config.name} {doing}")
        if isinstance(error, ImportError) and self._config.tells:
            where = f"on {platform.node()}, by {sys.executable}"
            add_note(error, f"{where}: install it there, or have it sent along, as with --py-files of Spark")
        return error

    def _use_log_level(self, job: str, level: str | None) -> None:
        if self.log is not None:
            self.log.use_level(job, level)
            logging.getLogger().setLevel(self.log.lowest)

    def _drop(self, name: str, job: WorkerJob) -> None:
        self._use_log_level(name, None)
        del self._jobs[name]
        job.close()
        self._backgrounds.drop(name)
        self._search_path.drop(name)

    @handles(SubmitJob)
    def _submitted(self, message: SubmitJob) -> None:
        """Prepare for a job. An error fails the job's tasks on this worker, and nothing else."""
        try:
            self._submit(message)
        except BaseException as raised:
            error = contained(raised, "a module")
            add_note(error, f"while {self._config.name} made ready for job {message.job!r}")
            self._unfit[message.job] = message.epoch, error

    def _is_about_unfit(self, message: Message) -> bool:
        """Return whether a message is for a job whose preparation failed; report its deployed tasks as failed."""
        unfit = self._unfit.get(getattr(message, "job", ""))
        if unfit is None or getattr(message, "epoch", None) != unfit[0]:
            return False
        if isinstance(message, DeployTasks):
            cause, failed = Cause(unfit[1]), ExecutionState.FAILED.value
            for attempt in message.attempts:
                self.send(ReportTask(message.job, message.epoch, attempt, failed, cause))
        elif isinstance(message, JobEnded):
            del self._unfit[message.job]
            self._search_path.drop(message.job)
        return True

    def _submit(self, message: SubmitJob) -> None:
        self._unfit.pop(message.job, None)
        before = self._jobs.get(message.job)
        if before is not None:
            # The leader prepares a worker once per epoch.
            if message.epoch <= before.epoch:
                self.rejected += 1
                return
            self._drop(message.job, before)
        # From here on, messages of earlier leaders are rejected, those about other jobs included.
        self._epoch = message.epoch
        program: Program = load(message.program)
        self._use_log_level(message.job, program.settings.log_level)
        self._search_path.use(message.job, program.path)
        location = program.settings.checkpoints
        storage = None
        if location is not None:
            storage = with_local_copies(self._services.checkpoint_storage(location), program.settings)

        def make_tasks(
            send: Callable[[Message], None],
            open_payload: Callable[[Payload[Any], str], Any],
            classes: ProgramClasses,
        ) -> TaskManager:
            return TaskManager(
                self._loop,
                RoutingTransport(self._config.name, LocalTransport(), self.network),
                self._services.state_backend(program.settings.state_backend),
                self._services,
                self._platform.event_loop(),
                send,
                self._writer(storage, program, send),
                self._backgrounds.of(message.job),
                open_payload=open_payload,
                classes=classes,
            )

        copies = LocalCopyRegistration(storage, program.settings, Path(self._config.directory))
        self._jobs[message.job] = WorkerJob(self, message, copies, make_tasks)

    def _writer(
        self, storage: CheckpointStorage | None, program: Program, send: Callable[[Message], None]
    ) -> SnapshotWriter:
        if storage is None and program.temporary:
            storage = TemporaryStorage(program.temporary)
        return SendingWriter(send, self.mail) if storage is None else StorageWriter(storage)


def _use_addresses(known: dict[str, str], registered: Mapping[str, str]) -> None:
    """Add the addresses of the registered workers, and remove the oldest ones of many workers that have ended."""
    known.update(registered)
    # A task may still connect to a worker that has just ended, and is told then that it cannot be reached.
    surplus = len(known) - len(registered) - _ENDED_ADDRESSES
    if surplus > 0:
        for name in [name for name in known if name not in registered][:surplus]:
            del known[name]
