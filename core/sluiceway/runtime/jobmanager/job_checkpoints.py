"""The checkpoints of a job: what the coordinator needs to know of it, and how it reaches its tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from sluiceway.clock import Clock
from sluiceway.config.settings import Settings
from sluiceway.elements import CheckpointBarrier
from sluiceway.engine import LifecycleListener
from sluiceway.errors import CheckpointError, SluicewayError
from sluiceway.functions import CheckpointedFunction
from sluiceway.graph import ExecutionGraph, ExecutionState, ExecutionVertex, JobGraph
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
from sluiceway.runtime.jobmanager.job_events import JobEvents
from sluiceway.runtime.jobmanager.source_coordinator import SourceCoordinator
from sluiceway.runtime.logging.engine_log import WARNING, log
from sluiceway.runtime.loop.tasklet import Scheduled
from sluiceway.runtime.messages.base import TaskMessage, TasksMessage
from sluiceway.runtime.messages.tasks import CheckpointAborted, CheckpointCompleted, TriggerCheckpoint
from sluiceway.runtime.task.snapshot import JobSnapshot, TaskSnapshot
from sluiceway.steps import SourceStep, Step

__all__ = ["CompletedCheckpointStore", "JobCheckpoints", "MemoryCheckpointStore"]


class CompletedCheckpointStore(Protocol):
    """Where completed checkpoints are kept. Calls return at once.

    Attributes:
        path: where tasks have to write what they keep, relative to the location of the checkpoints.
    """

    path: str

    def use(self, graph: JobGraph) -> None:
        """Keep those of the job at another parallelism from now on. None is being kept."""

    def keep(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Keep one; calls ``stored`` in the job master's thread, with None or with why that was not possible."""

    def load(self, checkpoint: CompletedCheckpoint) -> JobSnapshot:
        """What the job goes on from, of one that is kept."""

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Forget one that was kept."""

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Forget what a task has done for one that will not be complete."""

    def left_behind(self, savepoints: Sequence[str]) -> None:
        """The job begins anew from before these savepoints. Returns when that is noted in them."""

    def stopped_with(self, savepoint: str) -> None:
        """Note the savepoint that the job is stopped with. Returns when that is noted."""

    def ended(self) -> None:
        """The job has ended: nothing more will be complete."""


class MemoryCheckpointStore(CompletedCheckpointStore):
    """Keeps checkpoints where they are: in the memory of the job master, as long as that lives.

    For workers that share no file system with the job manager, and for jobs that take none.
    """

    path = ""

    def use(self, graph: JobGraph) -> None:
        """Nothing here depends on it."""

    def keep(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """It is there."""
        stored(None)

    def load(self, checkpoint: CompletedCheckpoint) -> JobSnapshot:
        """All of it."""
        return checkpoint.snapshot

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Nobody holds it any more."""

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Nobody holds it any more."""

    def left_behind(self, savepoints: Sequence[str]) -> None:
        """It keeps none."""

    def stopped_with(self, savepoint: str) -> None:
        """It keeps none."""

    def ended(self) -> None:
        """It goes with the process."""


class JobCheckpoints:
    """Takes the checkpoints of a job, and knows what it goes on from. Job master's thread.

    Args:
        executions: the job.
        settings: the options of the run.
        send: sends a message to the tasks that it is about.
        post: has something called in this thread after a delay in seconds.
        job: its id.
        epoch: of its job master.
        clock: for time stamps and durations.
        listener: told of checkpoints.
        sources: the enumerators' coordinators, by id of the job vertex.
        restored: what the job begins with; None: from the beginning.
        keeper: where completed checkpoints are kept.
        savepoints: where completed savepoints are kept: where those who asked for them want them.
        seed: for the time of the first one.
        fail: called when too many have failed.
        events: told of checkpoints that have ended.

    Attributes:
        completions: how many checkpoints have completed, without savepoints.
        ended_with: path or URL of the savepoint that the job ends with; empty: there is none.
        figures: how many there were, and what the last one was like. To be read from any thread.
    """

    def __init__(
        self,
        executions: ExecutionGraph,
        settings: Settings,
        send: Callable[[TaskMessage | TasksMessage], None],
        post: Callable[[Callable[[], None], float], Scheduled],
        *,
        job: str,
        epoch: int,
        clock: Clock,
        listener: LifecycleListener,
        sources: Mapping[int, SourceCoordinator],
        restored: JobSnapshot | None,
        keeper: CompletedCheckpointStore,
        savepoints: CompletedCheckpointStore | None,
        seed: int,
        fail: Callable[[BaseException], None],
        events: JobEvents,
    ) -> None:
        self.keeper = keeper
        self.ended_with = ""
        self._savepoints = savepoints
        self._since: list[str] = []
        self._restored = restored
        self._loaded: tuple[int, JobSnapshot] | None = None
        self._executions = executions
        self._send = send
        self._job = job
        self._epoch = epoch
        self._listener = listener
        self._sources = sources
        self._fail = fail
        self._interval_ms = settings.checkpoint_interval_ms
        self._events = events
        self._clock = clock
        self.figures = CheckpointFigures(settings.checkpoint_interval_ms)
        self._tolerated = settings.checkpoint_tolerated_failures
        self.completions = 0
        self.coordinator = CheckpointCoordinator(CheckpointPolicy.of(settings), clock, Random(seed), self, post)

    def snapshot(self) -> JobSnapshot | None:
        """What a subtask that begins now goes on from; None: it begins at the beginning.

        Raises:
            CheckpointError: the last checkpoint cannot be read.
        """
        latest = self.coordinator.latest
        if latest is None:
            return self._restored
        if self._loaded is None or self._loaded[0] != latest.checkpoint_id:
            self._loaded = latest.checkpoint_id, self.keeper.load(latest)
        return self._loaded[1]

    def savepoint(self, request: SavepointRequest) -> None:
        """Take a savepoint."""
        try:
            check_savepoint(self._executions.job_graph)
            if self._savepoints is None:
                raise CheckpointError("this job takes no savepoints")
        except SluicewayError as error:
            request.done("", error)
        else:
            self.coordinator.savepoint(request)

    def suspend(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint with which all tasks end; ``done`` is given its number, or 0 and why there is none."""

        def answer(location: str, problem: BaseException | None) -> None:
            latest = self.coordinator.latest
            done(0 if problem is not None or latest is None else latest.checkpoint_id, problem)

        self.coordinator.savepoint(SavepointRequest("", self._job, False, answer, suspends=True))

    def use(self, executions: ExecutionGraph) -> None:
        """Take those of the job at another parallelism from now on; all tasks have ended."""
        self._executions = executions
        self.keeper.use(executions.job_graph)
        if self._savepoints is not None:
            self._savepoints.use(executions.job_graph)
        self.coordinator.resized()

    def checkpoint(self, done: Callable[[int, BaseException | None], None]) -> None:
        """Take a checkpoint now; ``done`` is given its number, or 0 and why there is none."""
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
        """A subtask has changed its state."""
        state = vertex.state
        if state.ended:
            failed = state is not ExecutionState.FINISHED
            self.coordinator.task_ended(vertex.current.attempt_id, failed=failed)
        elif state is ExecutionState.RUNNING:
            self.coordinator.look()

    # ---- what the coordinator asks --------------------------------------------------------------------------

    def participants(self) -> Participants | None:
        """All subtasks that run, if the others have finished."""
        running: dict[str, Subtask] = {}
        first: list[str] = []
        finished: list[Subtask] = []
        for vertex in self._executions.subtasks():
            where = vertex.job_vertex.id, vertex.subtask
            if vertex.state is ExecutionState.FINISHED:
                finished.append(where)
            elif vertex.state is not ExecutionState.RUNNING:
                return None
            else:
                running[vertex.current.attempt_id] = where
                if not any(p.state is ExecutionState.RUNNING for p in self._producers(vertex)):
                    first.append(vertex.current.attempt_id)
        return Participants(running, tuple(first), tuple(finished))

    def _producers(self, vertex: ExecutionVertex) -> list[ExecutionVertex]:
        return [
            self._executions.subtask(edge.source, producer)
            for edge in self._executions.edges
            if edge.target == vertex.job_vertex.id
            for producer in self._executions.producers_of(edge, vertex.subtask)
        ]

    def empty_final_snapshot(self, where: Subtask) -> TaskSnapshot | None:
        """What stands for a subtask that has finished and is in no checkpoint; None: it has had state."""
        vertex = self._executions.job_graph.vertex(where[0])
        if any(_keeps_state(node.step) for node in vertex.nodes):
            return None
        done = (OperatorSnapshot(n.uid, subtask=where[1], parallelism=vertex.parallelism) for n in vertex.nodes)
        return TaskSnapshot(tuple(replace(operator, drained=True) for operator in done), drained=True)

    def enumerators(self, checkpoint_id: int) -> dict[str, Any]:
        """What they have not handed out."""
        graph = self._executions.job_graph
        return {graph.vertex(id_).uid: c.checkpoint(checkpoint_id) for id_, c in self._sources.items()}

    def trigger(self, attempt_id: str, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint in a task."""
        self._send(TriggerCheckpoint(self._job, self._epoch, attempt_id, barrier))

    def store(self, checkpoint: CompletedCheckpoint, stored: Callable[[BaseException | None], None]) -> None:
        """Keep it."""
        self._keeper_of(checkpoint).keep(checkpoint, stored)

    def discard(self, checkpoint: CompletedCheckpoint) -> None:
        """Forget it."""
        self._keeper_of(checkpoint).discard(checkpoint)

    def discard_part(self, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        """Forget what a task has sent in vain."""
        self._keeper_of(snapshot).discard_part(checkpoint_id, snapshot)

    def _keeper_of(self, what: CompletedCheckpoint | TaskSnapshot) -> CompletedCheckpointStore:
        return self._savepoints if what.savepoint and self._savepoints is not None else self.keeper

    def completed(self, checkpoint: CompletedCheckpoint, record: CheckpointRecord) -> None:
        """From now on the job goes on from it, or ends with it; of another savepoint tasks need not know."""
        if checkpoint.stops:
            self.ended_with = checkpoint.savepoint
            # Before sinks commit with it: a job that resumes must not go back behind their output.
            self.keeper.stopped_with(checkpoint.savepoint)
        elif checkpoint.savepoint:
            self._since.append(checkpoint.savepoint)
        else:
            self._since.clear()
            self.completions += 1
        if checkpoint.stops or not checkpoint.savepoint:
            for source in self._sources.values():
                source.checkpoint_completed(checkpoint.checkpoint_id)
            self.notify(self._running(), checkpoint.checkpoint_id, True)
        known = self.figures
        self.figures = replace(
            known,
            completed=known.completed + 1,
            completed_ms=self._clock.now_ms(),
            duration_ms=record.duration_ms or 0,
            size=record.size,
        )
        self._events.checkpoint_ended(record)
        job_name, duration_ms = self._executions.job_graph.job_name, record.duration_ms or 0
        self._listener.checkpoint_completed(job_name, checkpoint.checkpoint_id, duration_ms, record.size)

    def restarting(self) -> None:
        """Tasks begin anew, from before any savepoint that was taken since the last checkpoint."""
        self.coordinator.restarting()
        if self._since and self._savepoints is not None:
            self._savepoints.left_behind(self._since)
            self._since.clear()

    def aborted(self, checkpoint_id: int, cause: BaseException, failures: int) -> None:
        """Tell everybody; log a failure that is tolerated, of which nothing else tells."""
        if 0 < failures <= self._tolerated:
            text = (
                f"checkpoint {checkpoint_id} has failed: {describe(cause)}; the job goes on without it:"
                f" checkpoint-tolerated-failures is {self._tolerated}, and this is failure {failures} in a row"
            )
            log(WARNING, "jobs", text, job=self._executions.job_graph.job_name)
        self.figures = replace(self.figures, failed=self.figures.failed + 1)
        for record in self.coordinator.history:
            if record.checkpoint_id == checkpoint_id:
                self._events.checkpoint_ended(record)
        self.notify(self._running(), checkpoint_id, False)
        self._listener.checkpoint_failed(self._executions.job_graph.job_name, checkpoint_id, cause)

    def notify(self, attempt_ids: list[str], checkpoint_id: int, completed: bool) -> None:
        """Notify tasks that a checkpoint is complete, or was aborted."""
        kind = CheckpointCompleted if completed else CheckpointAborted
        self._send(kind(self._job, self._epoch, attempt_ids, checkpoint_id))

    def ended(self) -> None:
        """The job has ended: release the state that it would have been restored from."""
        self.coordinator.forget()
        self._restored = self._loaded = None
        self.keeper.ended()

    def fail(self, cause: BaseException) -> None:
        """Tell the job."""
        self._fail(cause)

    def _running(self) -> list[str]:
        return [v.current.attempt_id for v in self._executions.subtasks() if v.state is ExecutionState.RUNNING]


def _keeps_state(step: Step) -> bool:
    """Whether it has state at its end. A reader has none, since all is read, nor a sink: all is committed."""
    functions = any(isinstance(f, CheckpointedFunction) for f in step.functions)
    return functions or (step.stateful and not isinstance(step, SourceStep))
