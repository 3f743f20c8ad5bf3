"""Run of one job in the job manager: its job master, and the messages between that and the workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import TypeVar

from sluiceway.connector.lib.process_local import living
from sluiceway.engine import JobStatus, Services
from sluiceway.errors import SluicewayError
from sluiceway.graph import JobGraph
from sluiceway.metrics import JobMetrics
from sluiceway.monitoring.infos import CheckpointInfo, JobDescription
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.runtime.cluster.job_preparation import PreparedJob
from sluiceway.runtime.cluster.resource_manager import ResourceManager, WorkerLostError
from sluiceway.runtime.cluster.state_queries import StateReads
from sluiceway.runtime.cluster.state_receiver import StateReceiver
from sluiceway.runtime.cluster.worker_job import Program
from sluiceway.runtime.cluster.worker_queries import Sampled, WorkerQueries
from sluiceway.runtime.jobmanager.cancellation_timeouts import LateTask
from sluiceway.runtime.jobmanager.checkpoint_store import checkpoint_stores_of
from sluiceway.runtime.jobmanager.job_description import checkpoint_infos, describe_job
from sluiceway.runtime.jobmanager.job_host import JobHost
from sluiceway.runtime.jobmanager.job_master import JobMaster
from sluiceway.runtime.jobmanager.job_metrics import JobFigures
from sluiceway.runtime.jobmanager.takeover import Recovered
from sluiceway.runtime.loop.blocking_io import Background, Backgrounds
from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.messages.base import JobMessage, Message
from sluiceway.runtime.messages.clients import AskState
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.keys import KeysSampled, SampleKeys
from sluiceway.runtime.messages.pickling import dump, load
from sluiceway.runtime.messages.tasks import StoreStatePart
from sluiceway.runtime.messages.workers import (
    FoundState,
    HoldResults,
    JobEnded,
    ReportMetrics,
    Results,
    SampleStacks,
    StacksSampled,
    StateRead,
    SubmitJob,
    WorkerAddresses,
)
from sluiceway.runtime.task.snapshot import JobSnapshot
from sluiceway.runtime.taskmanager.temporary_storage import TemporaryStorage
from sluiceway.util.overriding import override

__all__ = ["JobRun"]

T = TypeVar("T")


class JobRun(Handlers):
    """Run of one job on the cluster's workers. From the job manager's loop, unless a method says otherwise.

    Attributes:
        settings: the options of the run.
        begins_with: description of its start, for display.
        checkpoint_path: directory of its checkpoints, relative to their place; empty: in memory.
        rejected: number of messages of workers to an earlier leader of the job.

    Args:
        prepared: the job, and what it starts from.
        epoch: epoch of this leader: messages of workers to an earlier one are rejected.
        services: factories of the plugins.
        resources: the workers.
        loop: loop of the job manager.
        backgrounds: executors of blocking calls, of which it uses its own.
        late: called for a task that has not ended within the limit after it was cancelled.
        look_for_slots: called when a restart lacks slots, and when slots may be free again.
        make_room: provides a number of further slots, or raises NoResourceAvailableError.
    """

    def __init__(
        self,
        prepared: PreparedJob,
        epoch: int,
        services: Services,
        resources: ResourceManager,
        *,
        loop: TaskletLoop,
        backgrounds: Backgrounds,
        late: Callable[[LateTask], None],
        look_for_slots: Callable[[], None],
        make_room: Callable[[JobRun, int], None],
    ) -> None:
        job = self.job = prepared.job
        settings = self.settings = prepared.settings
        graph, place, recovered = prepared.graph, prepared.place, prepared.recovered
        self.epoch = epoch
        self.loop = loop
        self.clock = services.clock
        self.resources = resources
        self._figures = JobFigures()
        self.workers: set[str] = set()
        self.rejected = 0
        self._held: set[int] = set()
        # They share the set of workers, which changes with deployments and losses.
        self._stacks: WorkerQueries[StackSamples] = WorkerQueries(self.workers, resources.send, loop)
        self._keys: WorkerQueries[list[KeySample]] = WorkerQueries(self.workers, resources.send, loop)
        self._started_at = 0.0
        self._ended_at: float | None = None
        self._job_name = graph.job_name
        self.program = dump(Program(graph.job_name, settings, tuple(sys.path), place.directory))
        seed = SystemRandom().getrandbits(32) if settings.seed is None else settings.seed
        stores = checkpoint_stores_of(place, services, graph, job, seed, backgrounds.of(job), recovered)
        self.checkpoint_path = stores.checkpoints.path
        self.begins_with = _begins_with(recovered, prepared.restored)
        searches = backgrounds.of(job, searches=True)
        self.master = JobMaster(
            graph,
            settings,
            _ClusterHost(self, late=late, look_for_slots=look_for_slots, make_room=make_room, searches=searches),
            listener=services.listener,
            seed=seed,
            stores=stores,
            restored=prepared.restored,
            job=job,
            epoch=epoch,
        )
        self._readers = StateReads(job, epoch, self.master, loop)
        self._receiver: StateReceiver | None = None
        if not place.shared and isinstance(place.storage, TemporaryStorage):
            decline = self.master.checkpoints.coordinator.decline
            self._receiver = StateReceiver(place.storage, self._subtask_of, decline)
        if recovered is not None:
            # Before the start: the first checkpoint here follows the last one of the earlier job manager.
            completed = (checkpoint for checkpoint, _ in recovered.completed)
            self.master.checkpoints.adopt(completed, recovered.next_id)

    @property
    def graph(self) -> JobGraph:
        """The job at its present parallelism. From any thread."""
        return self.master.graph

    @property
    def status(self) -> JobStatus:
        """The job's status. From any thread."""
        return self.master.status

    @property
    def failure(self) -> BaseException | None:
        """Failure of the job, or None."""
        return self.master.failure

    def cancel(self, within_s: float | None = None) -> None:
        """Cancel the job; see :meth:`.JobMaster.cancel`."""
        self.master.cancel(within_s)

    def stop(self) -> None:
        """End its sources and let it finish."""
        self.master.stop()

    def savepoint(self, place: str, stops: bool, done: Callable[[str, BaseException | None], None]) -> None:
        """Take a savepoint, and stop with it if ``stops``; ``done`` is called with its location or the error."""
        self.master.savepoint(place, stops, done)

    def read_state(self, message: AskState, done: Callable[[FoundState | SluicewayError], None]) -> None:
        """Read the current state of a key; ``done`` is called once, with it or the error."""
        self._readers.ask(message, done)

    def sample_stacks(self, seconds: float, rate: float, done: Sampled[StackSamples]) -> None:
        """Take samples of the stacks of its workers; ``done`` is called once."""
        self._stacks.ask(lambda number: SampleStacks(self.job, self.epoch, number, seconds, rate), seconds, done)

    def sample_keys(
        self, vertices: list[int], seconds: float, done: Callable[[list[KeySample], list[str]], None]
    ) -> None:
        """Count the keys that tasks of some vertices receive; ``done`` is called once."""

        def sampled(workers: list[list[KeySample]], problems: list[str]) -> None:
            done([sample for samples in workers for sample in samples], problems)

        self._keys.ask(
            lambda number: SampleKeys(self.job, self.epoch, number, vertices, seconds), seconds, sampled
        )

    def give_up(self, why: BaseException) -> None:
        """Fail the job, whatever its restart strategy; if it only waits for a rescale, cancel that instead."""
        if not self.master.fail_waiting_rescale(why):
            self.master.fail(why)

    def start(self) -> None:
        """Start the job; it has enough slots."""
        self._started_at = self.clock.monotonic()
        self.master.start()

    def forget(self) -> None:
        """Remove the job from the workers; it has ended."""
        self._ended_at = self.clock.monotonic()
        for worker in sorted(self.workers):
            self.resources.send(worker, JobEnded(self.job, self.epoch))

    def workers_lost(self, workers: Sequence[str], why: WorkerLostError) -> None:
        """Fail what ran on workers that were lost together."""
        for worker in workers:
            self.forget_worker(worker)
        self.master.workers_lost(workers, why)

    def forget_worker(self, worker: str) -> None:
        """Remove a worker that has no tasks of the job any more, or is lost with them."""
        self.workers.discard(worker)
        self._figures.worker_lost(worker)
        self._stacks.lost(worker)
        self._keys.lost(worker)

    @property
    def waits_for_slots(self) -> bool:
        """True if a restart lacks slots."""
        return not self.status.ended and self.master.waits_for_slots

    @property
    def slots_wanted(self) -> int:
        """Number of slots that the tasks to be restarted lack."""
        return self.master.slots_wanted

    def slots_came(self) -> None:
        """Retry restarts that lacked slots."""
        self.master.slots_came()

    def take(self, message: JobMessage) -> None:
        """Dispatch a message of a worker to a handler here or of the job master."""
        if message.epoch != self.epoch:
            self.rejected += 1
        elif not self.dispatch(message):
            self.master.dispatch(message)

    def prepare_worker(self, worker: str) -> None:
        """Send a worker the program, once, and the addresses of all workers, ahead of deployments."""
        if worker not in self.workers:
            self.workers.add(worker)
            self.resources.send(worker, SubmitJob(self.job, self.epoch, self.program))
            # The others were told when the program had enough for now.
            for number in sorted(self._held):
                self.resources.send(worker, HoldResults(self.job, self.epoch, number, True))
        self.resources.send(worker, WorkerAddresses(self.resources.addresses))

    @handles(ReportMetrics)
    def _measured(self, message: ReportMetrics) -> None:
        self._figures.take(message.figures)
        if message.process is not None:
            self._figures.take_process(message.process, self.resources.names())

    @handles(StoreStatePart)
    def _state_came(self, message: StoreStatePart) -> None:
        if self._receiver is not None:
            self._receiver.take(message)

    @handles(StateRead)
    def _state_read(self, message: StateRead) -> None:
        self._readers.answered(message)

    @handles(StacksSampled)
    def _stacks_sampled(self, message: StacksSampled) -> None:
        self._stacks.answered(message.number, message.worker, message.samples, message.problem)

    @handles(KeysSampled)
    def _keys_sampled(self, message: KeysSampled) -> None:
        self._keys.answered(message.number, message.worker, message.samples, message.problem)

    @handles(Results)
    def _results(self, message: Results) -> None:
        handle = living(message.number)
        # The program has dropped the object that collects them.
        if handle is None:
            return
        try:
            records = load(message.records)
        except Exception as error:
            error.add_note("while the program unpickled results of the job")
            self.master.fail(error)
            return
        handle._extend(records)
        if handle.full and message.number not in self._held:
            # The workers are told once, until the program wants more.
            self._held.add(message.number)
            self._hold(message.number, True)
            handle.when_wanted(lambda: self.loop.mail(lambda: self._hold(message.number, False)))

    def _subtask_of(self, attempt_id: str) -> tuple[int, int] | None:
        execution = self.master.executions.execution(attempt_id)
        return None if execution is None else (execution.vertex_id, execution.subtask)

    def _hold(self, number: int, hold: bool) -> None:
        """Notify the workers that the program has enough records for now, or needs more."""
        if not hold:
            self._held.discard(number)
        for worker in sorted(self.workers):
            self.resources.send(worker, HoldResults(self.job, self.epoch, number, hold))

    def describe(self) -> JobDescription:
        """Return the job's graph, attempts and options. From any thread."""
        return describe_job(self.graph, self.settings, self.master.executions, self.master.rescales)

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return the last checkpoints, oldest first. From any thread."""
        return checkpoint_infos(self.graph, self.master.checkpoints.coordinator.history.copy())

    def metrics(self) -> JobMetrics:
        """Return the metrics that the workers have sent last. From any thread."""
        until = self._ended_at or self.clock.monotonic()
        return self._figures.metrics(
            self._job_name,
            self.status.value,
            until - self._started_at if self._started_at else 0.0,
            self.master.executions,
            self.master.restarts,
            self.master.checkpoints.figures,
        )


class _ClusterHost(JobHost):
    """Cluster as the host of one of its jobs. For the arguments see :class:`JobRun`."""

    kills_late_tasks = True

    def __init__(
        self,
        run: JobRun,
        *,
        late: Callable[[LateTask], None],
        look_for_slots: Callable[[], None],
        make_room: Callable[[JobRun, int], None],
        searches: Background,
    ) -> None:
        super().__init__(run.clock, run.resources.slots)
        self._run = run
        self._resources = run.resources
        self._late = late
        self._look_for_slots = look_for_slots
        self._make_room = make_room
        self._searches = searches

    @override
    def send(self, worker: str, message: Message) -> None:
        self._resources.send(worker, message)

    @override
    def post(self, action: Callable[[], None], after_s: float) -> Scheduled:
        return self._run.loop.post(action, after_s)

    @override
    def search(self, work: Callable[[], T], done: Callable[[T, BaseException | None], None]) -> None:
        self._searches.run(work, done)

    @override
    def make_room(self, lacking: int) -> None:
        self._make_room(self._run, lacking)

    @override
    def prepare_worker(self, worker: str) -> None:
        self._run.prepare_worker(worker)

    @override
    def look_for_slots(self) -> None:
        self._look_for_slots()

    @override
    def task_late(self, task: LateTask) -> None:
        self._late(task)

    @property
    @override
    def awaits_reason(self) -> bool:
        return self._resources.awaits_reason


def _begins_with(recovered: Recovered | None, restored: JobSnapshot | None) -> str:
    if recovered is not None and recovered.savepoint:
        return f"from the savepoint that it was to end with, {recovered.savepoint}"
    if recovered is not None and recovered.completed:
        return f"from checkpoint {recovered.completed[-1][0].checkpoint_id}"
    return "from its beginning" if restored is None else "from the checkpoint that it was begun with"
