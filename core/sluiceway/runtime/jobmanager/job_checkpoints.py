"""Checkpoints of a job: connection of the coordinator to the execution graph and to the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Protocol

from sluiceway.config.settings import Settings
from sluiceway.elements import CheckpointBarrier
from sluiceway.engine import LifecycleListener
from sluiceway.errors import CheckpointError, SluicewayError
from sluiceway.functions import CheckpointedFunction
from sluiceway.graph import ExecutionGraph, ExecutionState, ExecutionVertex
from sluiceway.graph.check.iterations import check_savepoint
from sluiceway.metrics import CheckpointFigures
from sluiceway.operators import OperatorSnapshot
from sluiceway.runtime.failures.error_texts import describe
from sluiceway.runtime.jobmanager.checkpoint_coordinator import (
    CheckpointCoordinator,
    CheckpointPolicy,
    CheckpointRecord,
    CompletedCheckpoint,
    Participants,
    SavepointRequest,
    Subtask,
)
from sluiceway.runtime.jobmanager.checkpoint_store import CheckpointStores
from sluiceway.runtime.jobmanager.job_events import JobEvents
from sluiceway.runtime.jobmanager.job_host import JobHost
from sluiceway.runtime.jobmanager.job_sources import JobSources
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.messages.base import TaskMessage, TasksMessage
from sluiceway.runtime.messages.tasks import CheckpointAborted, CheckpointCompleted, TriggerCheckpoint
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot
from sluiceway.steps import SourceStep, Step

__all__ = ["CheckpointingJob", "JobCheckpoints"]


class CheckpointingJob(Protocol):
    """Interface of a job to its checkpoints. Job master's thread.

    Attributes:
        name: name by which tasks address the job.
        epoch: epoch of its job master.
        executions: attempts of its subtasks; anew for each parallelism.
        sources: its sources.
        events: notified of checkpoints that have ended.
    """

    name: str
    epoch: int
    executions: ExecutionGraph
    sources: JobSources
    events: JobEvents

    def send(self, message: TaskMessage | TasksMessage) -> None:
        """Send a message to its tasks."""

    def fail_over(self, cause: BaseException) -> None:
        """Restart the whole job, if the restart strategy allows it."""


class JobCheckpoints:
    """Checkpoints of a job, and the snapshot for its restores. From the job master's thread.

    Args:
        job: the job.
        settings: the options of the run.
        host: its clock, for time stamps and durations, and its timers.
        stores: stores of its checkpoints and savepoints.
        listener: notified of checkpoints.
        seed: seed for the time of the first checkpoint.
        restored: snapshot that the job starts from; None: it starts empty.

    Attributes:
        completions: number of completed checkpoints, without savepoints.
        since: savepoints that were taken since the last of them: a restart goes back to before these.
        ended_with: path or URL of the savepoint that the job ends with; empty: there is none.
        figures: counts, and figures of the last checkpoint. Readable from any thread.
    """

    def __init__(
        self,
        job: CheckpointingJob,
        settings: Settings,
        host: JobHost,
        stores: CheckpointStores,
        *,
        listener: LifecycleListener,
        seed: int,
        restored: JobSnapshot | None,
    ) -> None:
        self.ended_with = ""
        self.since: list[str] = []
        self.figures = CheckpointFigures(settings.checkpoint_interval_ms)
        self.completions = 0
        self._job = job
        self._clock = host.clock
        self._stores = stores
        self._listener = listener
        self._restored = restored
        self._loaded: tuple[int, JobSnapshot] | None = None
        self._loading: list[Callable[[BaseException | None], None]] = []
        self._interval_ms = settings.checkpoint_interval_ms
        self._tolerated = settings.checkpoint_tolerated_failures
        self.coordinator = CheckpointCoordinator(
            CheckpointPolicy.of(settings), host.clock, Random(seed), self, host.post
        )

    @property
    def path(self) -> str:
        """Directory for the tasks' files, relative to the location of the checkpoints."""
        return self._stores.checkpoints.path

    def adopt(self, completed: Iterable[CompletedCheckpoint], next_id: int) -> None:
        """Adopt the checkpoints of an earlier job manager; the job starts from the last one. Before the start."""
        self.coordinator.adopt(completed, next_id)
        if (latest := self.coordinator.latest) is not None and self._restored is not None:
            self._loaded = latest.checkpoint_id, self._restored

    def load(self, loaded: Callable[[BaseException | None], None]) -> None:
        """Read the snapshot for subtasks that start now, unless it was read; then call ``loaded``.

        It is called in this thread, at once or later, with None or the error. Other jobs of this thread go on
        meanwhile, however slow the storage is.
        """
        latest = self.coordinator.latest
        if latest is None or self.is_loaded:
            loaded(None)
            return
        self._loading.append(loaded)
        if len(self._loading) == 1:
            self._stores.checkpoints.load(latest, partial(self._load_ended, latest.checkpoint_id))

    def _load_ended(self, checkpoint_id: int, snapshot: JobSnapshot | None, problem: BaseException | None) -> None:
        waiting, self._loading = self._loading, []
        latest = self.coordinator.latest
        if latest is not None and latest.checkpoint_id == checkpoint_id:
            if snapshot is not None:
                self._loaded = checkpoint_id, snapshot
            for loaded in waiting:
                loaded(problem)
        else:
            # One that was being stored is complete by now; or the job has ended.
            for loaded in waiting:
                self.load(loaded)

    def snapshot(self) -> JobSnapshot | None:
        """Return the snapshot that :meth:`load` has read, for a subtask that starts now; None: it starts empty."""
        latest = self.coordinator.latest
        if latest is None:
            return self._restored
        assert self._loaded is not None
        assert self._loaded[0] == latest.checkpoint_id
        return self._loaded[1]

    @property
    def is_loaded(self) -> bool:
        """True if :meth:`load` has nothing to read."""
        latest = self.coordinator.latest
        return latest is None or (self._loaded is not None and self._loaded[0] == latest.checkpoint_id)

    def savepoint(self, request: SavepointRequest) -> None:
        """Take a savepoint."""
        try:
            check_savepoint(self._job.executions.job_graph)
        except SluicewayError as error:
            request.done("", error)
        else:
            self.coordinator.savepoint(request)

    def suspend(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint with which all tasks end; ``done`` is called with its id, or with 0 and the error."""

        def answer(location: str, problem: BaseException | None) -> None:
            # Retained before this is called, and nothing newer has begun.
            latest = self.coordinator.latest
            done(0 if problem is not None or latest is None else latest.checkpoint_id, problem)

        self.coordinator.savepoint(SavepointRequest("", self._job.name, False, answer, suspends=True))

    def resized(self) -> None:
        """Use the job at another parallelism from now on; all tasks have ended."""
        self._stores.use(self._job.executions.job_graph)
        self.coordinator.resized()

    def checkpoint(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint now; ``done`` is called with its id, or with 0 and the error."""
        if self._interval_ms:
            self.coordinator.checkpoint(done)
        else:
            done(
                0,
                CheckpointError(
                    "the job takes no checkpoints: begin it with --checkpoint-interval, or take a savepoint"
                ),
            )

    def changed(self, vertex: ExecutionVertex) -> None:
        """Handle a change of a subtask's state."""
        state = vertex.state
        if state.ended:
            failed = state is not ExecutionState.FINISHED
            self.coordinator.task_ended(vertex.current.attempt_id, failed=failed)
        elif state is ExecutionState.RUNNING:
            self.coordinator.maybe_trigger()

    # ---- what the coordinator asks --------------------------------------------------------------------------

    def participants(self) -> Participants | None:
        """Return all running subtasks, if the others have finished."""
        running: dict[str, Subtask] = {}
        first: list[str] = []
        finished: list[Subtask] = []
        for vertex in self._job.executions.subtasks():
            where = vertex.job_vertex.id, vertex.subtask
            if vertex.state is ExecutionState.FINISHED:
                finished.append(where)
            # All or none: a checkpoint without a task that is coming up would lack its state.
            elif vertex.state is not ExecutionState.RUNNING:
                return None
            else:
                running[vertex.current.attempt_id] = where
                # Barriers arrive from producers; without a running one the subtask is triggered by a message.
                if not any(p.state is ExecutionState.RUNNING for p in self._producers(vertex)):
                    first.append(vertex.current.attempt_id)
        return Participants(running, tuple(first), tuple(finished))

    def _producers(self, vertex: ExecutionVertex) -> list[ExecutionVertex]:
        return [
            self._job.executions.subtask(edge.source, producer)
            for edge in self._job.executions.edges
            if edge.target == vertex.job_vertex.id
            for producer in self._job.executions.producers_of(edge, vertex.subtask)
        ]

    def empty_final_snapshot(self, where: Subtask) -> TaskSnapshot | None:
        """Snapshot recorded for a finished subtask that is in no checkpoint; None if it held state."""
        vertex = self._job.executions.job_graph.vertex(where[0])
        if any(_keeps_state(node.step) for node in vertex.nodes):
            return None
        done = (OperatorSnapshot(n.uid, subtask=where[1], parallelism=vertex.parallelism) for n in vertex.nodes)
        return TaskSnapshot(tuple(replace(operator, drained=True) for operator in done), drained=True)

    def enumerators(self, checkpoint_id: int) -> dict[str, Any]:
        """Return the snapshots of the enumerators: what they have not assigned."""
        return self._job.sources.checkpoint(checkpoint_id)

    def trigger(self, attempt_id: str, barrier: CheckpointBarrier) -> None:
        """Trigger a checkpoint in a task."""
        self._job.send(TriggerCheckpoint(self._job.name, self._job.epoch, attempt_id, barrier))

    def store(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Store a checkpoint."""
        self._stores.of(checkpoint.savepoint).keep(checkpoint, stored)

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Delete a checkpoint."""
        self._stores.of(checkpoint.savepoint).discard(checkpoint)

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Delete the part of a task in an aborted checkpoint."""
        self._stores.of(snapshot.savepoint).discard_part(checkpoint_id, snapshot)

    def discard_rest(self, checkpoint_id: int, savepoint: str) -> None:
        """Delete what is left of an aborted checkpoint."""
        self._stores.of(savepoint).discard_rest(checkpoint_id, savepoint)

    def completed(self, checkpoint: CompletedCheckpoint, record: CheckpointRecord) -> None:
        """Use the checkpoint for restores, or end with it; tasks are not notified of other savepoints."""
        if checkpoint.stops:
            self.ended_with = checkpoint.savepoint
            # Before sinks commit with it: a job that resumes must not restart from before their output.
            self._stores.checkpoints.stopped_with(checkpoint.savepoint)
        elif checkpoint.savepoint:
            self.since.append(checkpoint.savepoint)
        else:
            self.since.clear()
            self.completions += 1
            # The state of a whole job, where workers are sent it.
            self._loaded = None
        if checkpoint.stops or not checkpoint.savepoint:
            self._job.sources.checkpoint_completed(checkpoint.checkpoint_id)
            self.notify(self._running(), checkpoint.checkpoint_id, True)
        # Replaced as a whole: other threads read it.
        known = self.figures
        self.figures = replace(
            known,
            completed=known.completed + 1,
            completed_ms=self._clock.now_ms(),
            duration_ms=record.duration_ms or 0,
            size=record.size,
        )
        self._job.events.checkpoint_ended(record)
        job_name, duration_ms = self._job.executions.job_graph.job_name, record.duration_ms or 0
        self._listener.checkpoint_completed(job_name, checkpoint.checkpoint_id, duration_ms, record.size)

    def restarting(self) -> None:
        """Restart tasks from before any savepoint that was taken since the last checkpoint."""
        self.coordinator.restarting()
        # Transactions that these savepoints count on are aborted by the restart.
        if self.since:
            self._stores.savepoints.left_behind(self.since)
            self.since.clear()

    def aborted(self, checkpoint_id: int, cause: BaseException, failures: int) -> None:
        """Notify all tasks; log a tolerated failure, which is reported nowhere else."""
        if 0 < failures <= self._tolerated:
            text = (
                f"checkpoint {checkpoint_id} has failed: {describe(cause)}; the job continues without it:"
                f" checkpoint-tolerated-failures is {self._tolerated}, and this is failure {failures} in a row"
            )
            log(WARNING, "jobs", text, job=self._job.executions.job_graph.job_name)
        self.figures = replace(self.figures, failed=self.figures.failed + 1)
        for record in self.coordinator.history:
            if record.checkpoint_id == checkpoint_id:
                self._job.events.checkpoint_ended(record)
        self.notify(self._running(), checkpoint_id, False)
        self._listener.checkpoint_failed(self._job.executions.job_graph.job_name, checkpoint_id, cause)

    def notify(self, attempt_ids: list[str], checkpoint_id: int, completed: bool) -> None:
        """Notify tasks that a checkpoint is complete, or was aborted."""
        kind = CheckpointCompleted if completed else CheckpointAborted
        self._job.send(kind(self._job.name, self._job.epoch, attempt_ids, checkpoint_id))

    def ended(self) -> None:
        """Release the state for restores: the job has ended."""
        self.coordinator.forget()
        self._restored = self._loaded = None
        self._stores.checkpoints.ended()

    def fail(self, cause: BaseException) -> None:
        """Fail the job."""
        self._job.fail_over(cause)

    def _running(self) -> list[str]:
        return [v.current.attempt_id for v in self._job.executions.subtasks() if v.state is ExecutionState.RUNNING]


def _keeps_state(step: Step) -> bool:
    """Return whether a step has state at its end. Readers have none, as all is read; sinks have committed."""
    functions = any(isinstance(f, CheckpointedFunction) for f in step.functions)
    return functions or (step.stateful and not isinstance(step, SourceStep))
