"""What a worker does for one job: makes its tasks, cancels them, and passes on what the job master says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from sluiceway.checkpoint import readable_by_all
from sluiceway.connector import Reader, ReaderContext
from sluiceway.elements import CheckpointBarrier
from sluiceway.engine import Services
from sluiceway.errors import CheckpointFailedError
from sluiceway.graph import ExecutionState
from sluiceway.metrics import MetricGroup
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.blocking_io import Background
from sluiceway.runtime.loop.tasklet import TaskletLoop, acting_for
from sluiceway.runtime.task.checkpointing import CheckpointReports
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.inputs import SourceInput
from sluiceway.runtime.task.snapshot import TaskSnapshot
from sluiceway.runtime.task.task import Task
from sluiceway.runtime.taskmanager.snapshot_writer import SavepointWriter, SnapshotWriter
from sluiceway.state import StateBackend
from sluiceway.steps import SourceStep
from sluiceway.transport import Transport

__all__ = ["MasterGateway", "TaskManager"]


class MasterGateway(CheckpointReports, Protocol):
    """How a worker reaches the job master. Calls return at once."""

    def report(self, attempt_id: str, state: ExecutionState, cause: BaseException | None) -> None:
        """A task has changed its state."""

    def request_split(self, vertex_id: int, subtask: int) -> None:
        """A reader wants a split."""

    def report_watermark(self, attempt_id: str, group: str, mark: int | None) -> None:
        """A reader of an alignment group is at ``mark`` (ms); None: it does not count for now."""


class _Reports:
    """What one task says of checkpoints."""

    def __init__(self, tasks: TaskManager, deployment: TaskDeployment) -> None:
        self._tasks = tasks
        self._deployment = deployment

    def acknowledge(self, attempt_id: str, checkpoint_id: int, snapshot: TaskSnapshot) -> None:
        self._tasks._write(self._deployment, checkpoint_id, snapshot)

    def decline(self, attempt_id: str, checkpoint_id: int, cause: BaseException) -> None:
        self._tasks._master.decline(attempt_id, checkpoint_id, cause)

    def drained(self, attempt_id: str) -> None:
        self._tasks._master.drained(attempt_id)


class TaskManager:
    """The tasks of one job on one worker. All calls in the worker's thread.

    Args:
        worker: runs the tasks.
        transport: opens their channels.
        state_backend: makes their keyed state.
        services: for plugin partitioners and the clock.
        event_loop: where coroutines run.
        master: whom to report to.
        writer: takes the state of checkpoints.
        background: does what blocks.
        on_dropped: told of each task that has ended and is forgotten, because a later attempt takes its place.
    """

    def __init__(
        self,
        worker: TaskletLoop,
        transport: Transport,
        state_backend: StateBackend,
        services: Services,
        event_loop: EventLoop,
        master: MasterGateway,
        writer: SnapshotWriter,
        background: Background,
        on_dropped: Callable[[Task], None] = lambda task: None,
    ) -> None:
        self._worker = worker
        self._transport = transport
        self._state_backend = state_backend
        self._services = services
        self._event_loop = event_loop
        self._master = master
        self._writer = writer
        self._savepoints = SavepointWriter(services.checkpoint_storage)
        self._background = background
        self._on_dropped = on_dropped
        self._tasks: dict[str, Task] = {}

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, as far as they are deployed. From any thread."""
        return tuple(self._tasks.values())

    def deploy(self, deployments: Iterable[TaskDeployment]) -> None:
        """Make the tasks: all consumers' ends first, then the producers'."""
        tasks = []
        deployments = [self._readable(deployment) for deployment in deployments]
        self._drop_earlier(deployments)
        try:
            for deployment in deployments:
                task = Task(
                    deployment,
                    worker=self._worker,
                    transport=self._transport,
                    state_backend=self._state_backend,
                    services=self._services,
                    event_loop=self._event_loop,
                    make_reader=self._reader_maker,
                    report=self._master.report,
                    report_watermark=self._master.report_watermark,
                    reports=_Reports(self, deployment),
                )
                self._tasks[deployment.attempt_id] = task
                tasks.append(task)
            for task in tasks:
                task.connect()
        except Exception as error:
            for deployment in deployments:
                self._master.report(deployment.attempt_id, ExecutionState.FAILED, error)
            for task in tasks:
                self._cancel(task)  # they have channels already
            return
        for task in tasks:
            self._worker.add(task)

    def _readable(self, deployment: TaskDeployment) -> TaskDeployment:
        """With keyed state that any state backend can go on from, whichever has written it."""
        most, open_backend = deployment.vertex.max_parallelism, self._services.state_backend
        restored = tuple(readable_by_all(snapshot, open_backend, most) for snapshot in deployment.restored)
        return replace(deployment, restored=restored)

    def drop(self, attempt_id: str) -> None:
        """Forget a task that has ended; unknown ones are ignored."""
        self._tasks.pop(attempt_id, None)

    def _drop_earlier(self, deployments: Iterable[TaskDeployment]) -> None:
        """Earlier attempts have ended; with them goes what their functions and their state have held."""
        coming = {(d.vertex.id, d.subtask) for d in deployments}
        for attempt_id, task in list(self._tasks.items()):
            if (task.deployment.vertex.id, task.deployment.subtask) in coming:
                self.drop(attempt_id)
                self._on_dropped(task)

    def cancel(self, attempt_id: str) -> None:
        """Cancel a task if it is there."""
        task = self._tasks.get(attempt_id)
        if task is not None:
            self._cancel(task)

    def cancel_all(self) -> None:
        """Cancel every task."""
        for task in tuple(self._tasks.values()):
            self._cancel(task)

    def _cancel(self, task: Task) -> None:
        with acting_for(task):
            task.cancel()

    def assign_splits(self, attempt_id: str, splits: Sequence[Any]) -> None:
        """Give splits to a reader, between its batches."""
        self._tell_source(attempt_id, lambda source: source.add_splits(splits))

    def no_more_splits(self, attempt_id: str) -> None:
        """Tell a reader, between its batches."""
        self._tell_source(attempt_id, lambda source: source.tell(lambda reader: reader.no_more_splits()))

    def announce_watermark(self, attempt_id: str, mark: int | None) -> None:
        """Tell a reader where the slowest of its alignment group is."""
        self._tell_source(attempt_id, lambda source: source.announced(mark))

    def stop_source(self, attempt_id: str) -> None:
        """Have a reader come to its end, between its batches."""
        self._tell_source(attempt_id, SourceInput.stop)

    def trigger_checkpoint(self, attempt_id: str, barrier: CheckpointBarrier) -> None:
        """Begin a checkpoint in a task, between its batches."""
        task = self._tasks.get(attempt_id)
        if task is None or task.ended:
            ended = CheckpointFailedError("a task has ended before it")
            self._master.decline(attempt_id, barrier.checkpoint_id, ended)
        else:
            task.mail(partial(task.checkpoints.start, barrier))

    def ask(self, attempt_id: str, action: Callable[[Task], None]) -> bool:
        """Have something look at a task between its batches. False: it is not there, or has ended."""
        task = self._tasks.get(attempt_id)
        if task is None or task.ended:
            return False
        task.mail(partial(action, task))
        return True

    def checkpoint_completed(self, attempt_ids: Sequence[str], checkpoint_id: int) -> None:
        """Tell tasks, between their batches."""
        self._writer.completed(attempt_ids, checkpoint_id)
        for task in filter(None, map(self._tasks.get, attempt_ids)):
            task.mail(partial(task.checkpoints.completed, checkpoint_id))

    def checkpoint_aborted(self, attempt_ids: Sequence[str], checkpoint_id: int) -> None:
        """Tell tasks, between their batches."""
        for task in filter(None, map(self._tasks.get, attempt_ids)):
            task.mail(partial(task.checkpoints.aborted, checkpoint_id))

    def _write(self, deployment: TaskDeployment, checkpoint_id: int, taken: TaskSnapshot) -> None:
        """Read what was taken while the task goes on, then acknowledge the checkpoint."""
        monotonic = self._services.clock.monotonic
        writer = self._savepoints if taken.savepoint else self._writer

        def work() -> TaskSnapshot:
            began = monotonic()
            written = writer.write(deployment, checkpoint_id, taken)
            return replace(written, async_ms=round((monotonic() - began) * 1000))

        def done(written: TaskSnapshot, problem: BaseException | None) -> None:
            if problem is None:
                self._master.acknowledge(deployment.attempt_id, checkpoint_id, written)
            else:
                self._master.decline(deployment.attempt_id, checkpoint_id, problem)

        self._background.run(work, done)

    def close(self) -> None:
        """Free what the job had here."""
        self._transport.close()
        self._event_loop.close()

    def _tell_source(self, attempt_id: str, action: Callable[[SourceInput], None]) -> None:
        task = self._tasks.get(attempt_id)
        if task is not None and isinstance(task.input, SourceInput):
            task.mail(partial(action, task.input))

    def _reader_maker(self, task: Task) -> Callable[[], Reader[Any]]:
        deployment = task.deployment
        step = deployment.vertex.head.step
        assert isinstance(step, SourceStep)
        worker = self._worker
        context = ReaderContext(
            subtask=deployment.subtask,
            parallelism=deployment.vertex.parallelism,
            clock=self._services.clock,
            wake=lambda: worker.mail(lambda: worker.wake(task)),
            request_split=lambda: self._master.request_split(deployment.vertex.id, deployment.subtask),
            metrics=MetricGroup(),
        )
        return lambda: step.source.create_reader(context)
