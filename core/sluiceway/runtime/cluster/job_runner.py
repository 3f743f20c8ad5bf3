"""One job in the job manager: its job master, and the messages between that and the workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Any

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.connector.lib.process_local import living
from sluiceway.elements import CheckpointBarrier
from sluiceway.engine import JobStatus, LifecycleListener
from sluiceway.graph import ExecutionState, JobGraph
from sluiceway.metrics import JobMetrics
from sluiceway.runtime.cluster.messages import (
    AcknowledgeCheckpoint,
    AnnounceWatermark,
    AskState,
    AssignSplits,
    CancelTask,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    DeployTasks,
    Drained,
    FoundState,
    HoldResults,
    JobEnded,
    NoMoreSplits,
    ReportMetrics,
    ReportTask,
    ReportWatermark,
    RequestSplit,
    Results,
    StateRead,
    StopSource,
    SubmitJob,
    TriggerCheckpoint,
)
from sluiceway.runtime.cluster.pickling import dump, load, load_error
from sluiceway.runtime.cluster.resource_manager import ResourceManager, WorkerLostError
from sluiceway.runtime.cluster.state_queries import StateReads
from sluiceway.runtime.cluster.worker_process import Program
from sluiceway.runtime.jobmanager.checkpoint_store import SavepointCheckpointStore, checkpoint_store_of
from sluiceway.runtime.jobmanager.job_master import JobMaster
from sluiceway.runtime.jobmanager.job_metrics import JobFigures
from sluiceway.runtime.jobmanager.recovery import Recovered
from sluiceway.runtime.loop.blocking_io import Background
from sluiceway.runtime.loop.tasklet import Scheduled, TaskletLoop
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot
from sluiceway.state import StateBackend

__all__ = ["JobRun"]


class JobRun:
    """Runs one job on the cluster's workers. All calls in the job manager's loop, except where it says otherwise.

    Attributes:
        settings: the options of the run.
        begins_with: where it begins, for people.
        checkpoint_path: directory of its checkpoints, in their place; empty: they are in memory.
        rejected: messages of workers that were meant for an earlier leader of the job.
        cancelling: by attempt id, the call that kills the worker of an attempt that does not end when cancelled.

    Args:
        job: its id.
        epoch: of this leader: what workers say to an earlier one is not for this one.
        graph: the job.
        settings: the options of the run.
        loop: the job manager's.
        clock: the runtime's.
        resources: the workers.
        listener: told about state changes.
        on_slots_wanted: told when something that is to begin anew finds no slots.
        background: does what blocks.
        open_storage: opens the storage at a path or URL.
        open_backend: makes the state backend of a name.
        storage: where checkpoints are kept; None: in memory.
        restored: what the job begins with; None: at the beginning.
        recovered: what an earlier job manager has left of it; None: it is a new job.
    """

    def __init__(
        self,
        job: str,
        epoch: int,
        graph: JobGraph,
        settings: Settings,
        *,
        loop: TaskletLoop,
        clock: Clock,
        resources: ResourceManager,
        listener: LifecycleListener,
        on_slots_wanted: Callable[[], None],
        background: Background,
        open_storage: Callable[[str], CheckpointStorage],
        open_backend: Callable[[str], StateBackend],
        storage: CheckpointStorage | None = None,
        restored: JobSnapshot | None = None,
        recovered: Recovered | None = None,
    ) -> None:
        self.job = job
        self.graph = graph
        self.epoch = epoch
        self.settings = settings
        self.cancellation_timeout_s = settings.cancellation_timeout_ms / 1000
        self.loop = loop
        self.clock = clock
        self.resources = resources
        self._figures = JobFigures()
        self.workers: set[str] = set()
        self.rejected = 0
        self.cancelling: dict[str, Scheduled] = {}
        self._held: set[int] = set()
        self._readers = StateReads(self)
        self._started_at = 0.0
        self._ended_at: float | None = None
        self.program = dump(Program(graph.job_name, settings, tuple(sys.path)))
        seed = SystemRandom().getrandbits(32) if settings.seed is None else settings.seed
        keeper = checkpoint_store_of(storage, graph, job, clock, seed, background, recovered)
        self.checkpoint_path = keeper.path
        self.begins_with = _begins_with(recovered, restored)
        self.master = JobMaster(
            graph,
            settings,
            _Gateway(self),
            clock=clock,
            listener=listener,
            slots=resources.slots,
            seed=seed,
            restored=restored,
            keeper=keeper,
            savepoints=SavepointCheckpointStore(open_storage, open_backend, graph, job, clock, background, keeper),
            job=job,
            on_slots_wanted=on_slots_wanted,
        )
        if recovered is not None:
            completed = (checkpoint for checkpoint, _ in recovered.completed)
            self.master.checkpoints.coordinator.go_on(completed, recovered.next_id)

    @property
    def status(self) -> JobStatus:
        """The job's status. From any thread."""
        return self.master.status

    @property
    def failure(self) -> BaseException | None:
        """Why it failed."""
        return self.master.failure

    def cancel(self) -> None:
        """End it without finishing it."""
        self.master.cancel()

    def stop(self) -> None:
        """End its sources and let it finish."""
        self.master.stop()

    def savepoint(self, place: str, stops: bool, done: Callable[[str, BaseException | None], None]) -> None:
        """Take a savepoint in a place, and perhaps end with it; ``done`` is given where it is, or why not."""
        self.master.savepoint(place, stops, done)

    def read_state(self, message: AskState, done: Callable[[FoundState | None, str], None]) -> None:
        """Read what a key has now; ``done`` is given that, or why not, once."""
        self._readers.ask(message, done)

    def give_up(self, why: BaseException) -> None:
        """Fail it, whatever its restart strategy says."""
        self.master.fail(why)

    def start(self) -> None:
        """Start it; enough slots are there."""
        self._started_at = self.clock.monotonic()
        self.master.start()

    def forget(self) -> None:
        """The job has ended: the workers may forget it."""
        self._ended_at = self.clock.monotonic()
        for late in self.cancelling.values():
            late.cancel()
        self.cancelling.clear()
        for worker in sorted(self.workers):
            self.resources.send(worker, JobEnded(self.job, self.epoch))

    def worker_lost(self, worker: str, why: WorkerLostError) -> None:
        """A worker is gone."""
        self.workers.discard(worker)
        self.master.worker_lost(worker, why)

    @property
    def waits_for_slots(self) -> bool:
        """Whether something in it is to begin anew and has found no slots."""
        return not self.status.ended and self.master.waits_for_slots

    def slots_came(self) -> None:
        """There are more slots than there were."""
        self.master.slots_came()

    def take(
        self,
        message: ReportTask
        | RequestSplit
        | ReportMetrics
        | ReportWatermark
        | AcknowledgeCheckpoint
        | DeclineCheckpoint
        | Drained
        | Results
        | StateRead,
    ) -> None:
        """A worker says something about the job."""
        if message.epoch != self.epoch:
            self.rejected += 1
            return
        match message:
            case ReportTask():
                cause = load_error(message.cause) if message.cause else None
                state = ExecutionState(message.state)
                if state.ended and message.attempt in self.cancelling:
                    self.cancelling.pop(message.attempt).cancel()
                self.master.report(message.attempt, state, cause)
            case RequestSplit():
                self.master.split_requested(message.vertex, message.subtask)
            case ReportWatermark():
                self.master.watermark_reported(message.attempt, message.group, message.mark)
            case AcknowledgeCheckpoint():
                self._acknowledged(message)
            case DeclineCheckpoint():
                self.master.decline(message.attempt, message.checkpoint, load_error(message.cause))
            case Drained():
                self.master.drained(message.attempt)
            case ReportMetrics():
                self._figures.take(load(message.figures))
            case StateRead():
                self._readers.answered(message)
            case Results():
                self._results(message)

    def _acknowledged(self, message: AcknowledgeCheckpoint) -> None:
        try:
            snapshot: TaskSnapshot = load(message.snapshot)
        except Exception as error:
            error.add_note("while the job manager unpickled what a task has acknowledged the checkpoint with")
            self.master.decline(message.attempt, message.checkpoint, error)
        else:
            self.master.acknowledge(message.attempt, message.checkpoint, snapshot)

    def _results(self, message: Results) -> None:
        handle = living(message.number)
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
            self._held.add(message.number)
            self._hold(message.number, True)
            handle.when_wanted(lambda: self.loop.mail(lambda: self._hold(message.number, False)))

    def _hold(self, number: int, hold: bool) -> None:
        """Tell the workers that the program has enough records for now, or wants more again."""
        if not hold:
            self._held.discard(number)
        for worker in sorted(self.workers):
            self.resources.send(worker, HoldResults(self.job, self.epoch, number, hold))

    def metrics(self) -> JobMetrics:
        """The figures that the workers have sent last. From any thread."""
        until = self._ended_at or self.clock.monotonic()
        return self._figures.metrics(
            self.graph.job_name,
            self.status.value,
            until - self._started_at if self._started_at else 0.0,
            self.master.executions,
            self.master.restarts,
        )


def _begins_with(recovered: Recovered | None, restored: JobSnapshot | None) -> str:
    if recovered is not None and recovered.savepoint:
        return f"from the savepoint that it was to end with, {recovered.savepoint}"
    if recovered is not None and recovered.completed:
        return f"from checkpoint {recovered.completed[-1][0].checkpoint_id}"
    return "from its beginning" if restored is None else "from the checkpoint that it was begun with"


class _Gateway:
    """The job master's way to the workers."""

    def __init__(self, run: JobRun) -> None:
        self._run = run

    def submit(self, deployments: Sequence[TaskDeployment]) -> None:
        """To each worker its own, with the addresses of all."""
        by_worker: dict[str, list[TaskDeployment]] = {}
        for deployment in deployments:
            place = self._run.master.place_of(deployment.attempt_id)
            assert place is not None
            by_worker.setdefault(place, []).append(deployment)
        addresses = self._run.resources.addresses
        for worker, some in by_worker.items():
            if worker not in self._run.workers:
                self._run.workers.add(worker)
                self._run.resources.send(worker, SubmitJob(self._run.job, self._run.epoch, self._run.program))
            attempts = [deployment.attempt_id for deployment in some]
            self._run.resources.send(
                worker, DeployTasks(self._run.job, self._run.epoch, attempts, dump(some), addresses)
            )

    def cancel(self, attempt_id: str) -> None:
        """Cancel an attempt; a worker that does not get round to it within the limit is killed."""
        worker = self._place(attempt_id)
        self._run.resources.send(worker, CancelTask(self._run.job, self._run.epoch, attempt_id))
        late = self.post(lambda: self._check_cancelled(worker, attempt_id), self._run.cancellation_timeout_s)
        self._run.cancelling[attempt_id] = late

    def _check_cancelled(self, worker: str, attempt_id: str) -> None:
        self._run.cancelling.pop(attempt_id, None)
        execution = self._run.master.executions.execution(attempt_id)
        if execution is not None and not execution.state.ended:
            name = f"{execution.vertex_name!r}, subtask {execution.subtask + 1}"
            late = f"{self._run.cancellation_timeout_s:g} s after it had been cancelled,"
            self._run.resources.kill(worker, f"was still in a call of {name}, {late}")

    def assign_splits(self, attempt_id: str, splits: Sequence[Any]) -> None:
        """Give splits to a reader."""
        message = AssignSplits(self._run.job, self._run.epoch, attempt_id, dump(list(splits)))
        self._run.resources.send(self._place(attempt_id), message)

    def no_more_splits(self, attempt_id: str) -> None:
        """Tell a reader."""
        self._run.resources.send(self._place(attempt_id), NoMoreSplits(self._run.job, self._run.epoch, attempt_id))

    def announce_watermark(self, attempt_id: str, mark: int | None) -> None:
        """Tell a reader where the slowest of its group is."""
        self._run.resources.send(
            self._place(attempt_id), AnnounceWatermark(self._run.job, self._run.epoch, attempt_id, mark)
        )

    def stop_source(self, attempt_id: str) -> None:
        """Have a reader come to its end."""
        self._run.resources.send(self._place(attempt_id), StopSource(self._run.job, self._run.epoch, attempt_id))

    def trigger_checkpoint(self, attempt_id: str, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint in a task."""
        message = TriggerCheckpoint(
            self._run.job,
            self._run.epoch,
            attempt_id,
            barrier.checkpoint_id,
            barrier.timestamp_ms,
            barrier.savepoint,
            barrier.stops,
            barrier.aligned_ms,
        )
        self._run.resources.send(self._place(attempt_id), message)

    def checkpoint_completed(self, attempt_ids: Sequence[str], checkpoint_id: int) -> None:
        """Tell tasks."""
        self._checkpoint_over(attempt_ids, checkpoint_id, CheckpointCompleted)

    def checkpoint_aborted(self, attempt_ids: Sequence[str], checkpoint_id: int) -> None:
        """Tell tasks."""
        self._checkpoint_over(attempt_ids, checkpoint_id, CheckpointAborted)

    def _checkpoint_over(
        self,
        attempt_ids: Sequence[str],
        checkpoint_id: int,
        kind: type[CheckpointCompleted] | type[CheckpointAborted],
    ) -> None:
        by_worker: dict[str, list[str]] = {}
        for attempt_id in attempt_ids:
            by_worker.setdefault(self._place(attempt_id), []).append(attempt_id)
        for worker, some in by_worker.items():
            self._run.resources.send(worker, kind(self._run.job, self._run.epoch, some, checkpoint_id))

    def post(self, action: Callable[[], None], after_s: float) -> Scheduled:
        """Have something run in the loop. From any thread."""
        return self._run.loop.post(action, after_s)

    def _place(self, attempt_id: str) -> str:
        return self._run.master.place_of(attempt_id) or ""
