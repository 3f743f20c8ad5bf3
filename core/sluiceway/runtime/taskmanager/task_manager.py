"""Task manager: receives the messages of a job master about the tasks of one job on one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from sluiceway.checkpoint import readable_by_all
from sluiceway.connector import Reader, ReaderContext
from sluiceway.connector.products import checked
from sluiceway.engine import Services
from sluiceway.errors import CheckpointFailedError, SerializationError
from sluiceway.graph import ExecutionState
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.blocking_io import Background
from sluiceway.runtime.loop.tasklet import Tasklet, TaskletLoop, acting_for
from sluiceway.runtime.messages.base import JobMessage, Message, TaskMessage
from sluiceway.runtime.messages.handlers import Handlers, handles
from sluiceway.runtime.messages.payload import Cause, Payload
from sluiceway.runtime.messages.tasks import (
    AcknowledgeCheckpoint,
    AnnounceWatermark,
    AssignSplits,
    CancelTask,
    CheckpointAborted,
    CheckpointCompleted,
    DeclineCheckpoint,
    DeployTasks,
    NoMoreSplits,
    ReportTask,
    RequestSplit,
    SendEnumeratorEvent,
    SendReaderEvent,
    StopSource,
    TriggerCheckpoint,
)
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.snapshot import TaskSnapshot
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.runtime.task.task import Task
from sluiceway.runtime.taskmanager.snapshot_writer import SavepointWriter, SnapshotWriter
from sluiceway.serializers.program_classes import ProgramClasses, using
from sluiceway.state import StateBackend
from sluiceway.steps import SourceStep
from sluiceway.transport import Transport

__all__ = ["TaskManager"]

T = TypeVar("T")


def _open(payload: Payload[T], what: str) -> T:
    return payload.open()


def _acknowledgement(d: TaskDeployment, written: TaskSnapshot) -> Message:
    w = written
    objects = Payload(w.operators) if w.operators else None
    return AcknowledgeCheckpoint(
        d.job, d.epoch, d.attempt_id, w.checkpoint_id, w.timed_entry(), w.savepoint, w.unaligned, objects
    )


class TaskManager(Handlers):
    """Tasks of one job on one worker. From the worker's thread only.

    Args:
        worker: runs the tasks.
        transport: opens their channels.
        state_backend: creates their keyed state.
        services: for plugin partitioners and the clock.
        event_loop: where coroutines run.
        send: sends a message to the job master.
        writer: writes the state of checkpoints.
        background: executor for blocking calls.
        on_dropped: notified of each ended task that is removed because a later attempt replaces it.
        open_payload: opens what a message holds, such as ``"steps"`` or ``"splits"``; adds to what that raises.
        classes: those of the program, where it came from another process.
    """

    def __init__(
        self,
        worker: TaskletLoop,
        transport: Transport,
        state_backend: StateBackend,
        services: Services,
        event_loop: EventLoop,
        send: Callable[[Message], None],
        writer: SnapshotWriter,
        background: Background,
        on_dropped: Callable[[Task], None] = lambda task: None,
        open_payload: Callable[[Payload[Any], str], Any] = _open,
        classes: ProgramClasses | None = None,
    ) -> None:
        self._worker = worker
        self._transport = transport
        self._state_backend = state_backend
        self._services = services
        self._event_loop = event_loop
        self._send = send
        self._writer = writer
        self._savepoints = SavepointWriter(services.checkpoint_storage)
        self._background = background
        self._on_dropped = on_dropped
        self._open = open_payload
        self._classes = classes
        self._tasks: dict[str, Task] = {}
        # Snapshots whose write has not begun, by attempt and checkpoint. Removed by the helper thread that writes
        # one, or by this thread, which drops it.
        self._queued: dict[tuple[str, int], TaskSnapshot] = {}

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the deployed tasks. From any thread."""
        return tuple(self._tasks.values())

    def task_of(self, tasklet: Tasklet) -> tuple[int, int] | None:
        """Return vertex and subtask of a tasklet if it is one of these tasks. From any thread."""
        if isinstance(tasklet, Task) and tasklet in self.tasks:
            return tasklet.deployment.vertex.id, tasklet.deployment.subtask
        return None

    @handles(DeployTasks)
    def deploy(self, message: DeployTasks) -> None:
        """Create tasks: all consumers' ends first, then the producers'."""
        try:
            deployments: Sequence[TaskDeployment] = self._open(message.deployments, "steps")
        except Exception as error:
            for attempt in message.attempts:
                self._failed(message, attempt, error)
            return
        tasks = []
        with using(self._classes):
            deployments = [self._readable(deployment) for deployment in deployments]
        # In one process, ended tasks are kept until here: their figures are asked for.
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
                    send=self._send,
                    acknowledge=partial(self._acknowledge, deployment),
                    classes=self._classes,
                )
                self._tasks[deployment.attempt_id] = task
                tasks.append(task)
            for task in tasks:
                task.connect()
        except Exception as error:
            for deployment in deployments:
                self._failed(message, deployment.attempt_id, error)
            for task in tasks:
                self._cancel(task)  # they have channels already
            return
        for task in tasks:
            # When all are wired: a task may emit in its first step.
            self._worker.add(task)

    def _failed(self, message: JobMessage, attempt: str, error: Exception) -> None:
        self._send(ReportTask(message.job, message.epoch, attempt, ExecutionState.FAILED.value, Cause(error)))

    def _readable(self, deployment: TaskDeployment) -> TaskDeployment:
        """Return the deployment with keyed state that this worker's state backend can restore."""
        most, open_backend = deployment.vertex.max_parallelism, self._services.state_backend
        restored = tuple(readable_by_all(snapshot, open_backend, most) for snapshot in deployment.restored)
        return msgspec.structs.replace(deployment, restored=restored)

    def drop(self, attempt_id: str) -> None:
        """Remove an ended task; unknown ones are ignored."""
        self._tasks.pop(attempt_id, None)
        self._writer.forget(attempt_id)
        for queued in list(self._queued):
            if queued[0] == attempt_id:
                self._drop_queued(queued)

    def _drop_earlier(self, deployments: Iterable[TaskDeployment]) -> None:
        """Remove ended earlier attempts, with the objects of their functions and their state."""
        coming = {(d.vertex.id, d.subtask) for d in deployments}
        for attempt_id, task in list(self._tasks.items()):
            if (task.deployment.vertex.id, task.deployment.subtask) in coming:
                self.drop(attempt_id)
                self._on_dropped(task)

    @handles(CancelTask)
    def cancel(self, message: CancelTask) -> None:
        """Cancel a task; unknown ones are ignored."""
        task = self._tasks.get(message.attempt)
        if task is not None:
            self._cancel(task)

    def cancel_all(self) -> None:
        """Cancel every task."""
        for task in tuple(self._tasks.values()):
            self._cancel(task)

    def _cancel(self, task: Task) -> None:
        # Functions may log while they are closed, and these lines are the task's.
        with acting_for(task):
            task.cancel()

    @handles(AssignSplits)
    def assign_splits(self, message: AssignSplits) -> None:
        """Add splits to a reader, between its batches."""
        self._with_opened(message, message.splits, "splits", lambda source, splits: source.add_splits(splits))

    @handles(SendReaderEvent)
    def send_reader_event(self, message: SendReaderEvent) -> None:
        """Pass an event of the enumerator to a reader, between its batches."""

        def handle(source: SourceInput, event: Any) -> None:
            source.call_reader(lambda reader: reader.handle_event(event))

        self._with_opened(message, message.event, "event", handle)

    @handles(NoMoreSplits)
    def no_more_splits(self, message: NoMoreSplits) -> None:
        """Notify a reader that no splits will come, between its batches."""
        self._with_source(message, lambda source: source.call_reader(lambda reader: reader.no_more_splits()))

    @handles(AnnounceWatermark)
    def announce_watermark(self, message: AnnounceWatermark) -> None:
        """Send a reader the watermark of the slowest of its alignment group."""
        self._with_source(message, lambda source: source.announced(message.mark))

    @handles(StopSource)
    def stop_source(self, message: StopSource) -> None:
        """End a reader, between its batches."""
        self._with_source(message, SourceInput.stop)

    @handles(TriggerCheckpoint)
    def trigger_checkpoint(self, message: TriggerCheckpoint) -> None:
        """Begin a checkpoint in a task, between its batches."""
        task, barrier = self._tasks.get(message.attempt), message.barrier
        if task is None or task.ended:
            # Answered for the task, as the checkpoint would otherwise wait for its timeout.
            ended = Cause(CheckpointFailedError("a task has ended before it"))
            m = message
            self._send(DeclineCheckpoint(m.job, m.epoch, m.attempt, barrier.checkpoint_id, ended))
        else:
            task.mail(partial(task.checkpoints.start, barrier))

    def ask(self, attempt_id: str, action: Callable[[Task], None]) -> bool:
        """Call an action with a task between its batches. False: it does not exist, or has ended."""
        task = self._tasks.get(attempt_id)
        if task is None or task.ended:
            return False
        task.mail(partial(action, task))
        return True

    @handles(CheckpointCompleted)
    def checkpoint_completed(self, message: CheckpointCompleted) -> None:
        """Notify tasks, between their batches."""
        # Before the tasks take their next snapshot, which may refer to these files.
        self._writer.completed(message.attempts, message.checkpoint)
        for task in filter(None, map(self._tasks.get, message.attempts)):
            task.mail(partial(task.checkpoints.completed, message.checkpoint))

    @handles(CheckpointAborted)
    def checkpoint_aborted(self, message: CheckpointAborted) -> None:
        """Drop snapshots that wait for the storage, and notify tasks, between their batches."""
        for attempt_id in message.attempts:
            self._drop_queued((attempt_id, message.checkpoint))
        for task in filter(None, map(self._tasks.get, message.attempts)):
            task.mail(partial(task.checkpoints.aborted, message.checkpoint))

    def _drop_queued(self, queued: tuple[str, int]) -> None:
        """Release the snapshot of an attempt for a checkpoint that was aborted, unless its write has begun."""
        if (snapshot := self._queued.pop(queued, None)) is not None:
            snapshot.release()

    def _acknowledge(self, deployment: TaskDeployment, taken: TaskSnapshot) -> None:
        """Write the snapshot while the task continues, then acknowledge the checkpoint."""
        d, checkpoint_id = deployment, taken.checkpoint_id
        monotonic = self._services.clock.monotonic
        writer = self._savepoints if taken.savepoint else self._writer
        # A storage that is slower than the checkpoint timeout would be given ever more that nobody needs.
        queued = d.attempt_id, checkpoint_id
        self._queued[queued] = taken

        def work() -> TaskSnapshot | None:
            snapshot = self._queued.pop(queued, None)
            if snapshot is None:
                return None
            began = monotonic()
            with using(self._classes):  # a savepoint may be read back for another form of its state
                written = writer.write(d, checkpoint_id, snapshot)
            return msgspec.structs.replace(written, async_ms=round((monotonic() - began) * 1000))

        def done(written: TaskSnapshot | None, problem: BaseException | None) -> None:
            if written is not None:
                if not taken.savepoint and d.attempt_id in self._tasks:
                    writer.written(d.attempt_id, checkpoint_id, written.entry)
                # Between processes, sending pickles the objects of the snapshot.
                try:
                    self._send(_acknowledgement(d, written))
                except SerializationError as error:
                    problem = error
            if problem is not None:
                self._send(DeclineCheckpoint(d.job, d.epoch, d.attempt_id, checkpoint_id, Cause(problem)))

        self._background.run(work, done)

    def close(self) -> None:
        """Release the job's resources on this worker."""
        self._transport.close()
        self._event_loop.close()

    def _with_source(self, message: TaskMessage, action: Callable[[SourceInput], None]) -> None:
        task = self._tasks.get(message.attempt)
        if task is not None and isinstance(task.input, SourceInput):
            task.mail(partial(action, task.input))

    def _with_opened(
        self, message: TaskMessage, payload: Payload[Any], what: str, action: Callable[[SourceInput, Any], None]
    ) -> None:
        try:
            opened = self._open(payload, what)
        except Exception as error:
            if (task := self._tasks.get(message.attempt)) is not None:
                self._cancel(task)
            self._failed(message, message.attempt, error)
        else:
            self._with_source(message, lambda source: action(source, opened))

    def _reader_maker(self, task: Task) -> Callable[[], Reader[Any]]:
        d = task.deployment
        step = d.vertex.head.step
        assert isinstance(step, SourceStep)
        worker = self._worker
        context = ReaderContext(
            subtask=d.subtask,
            parallelism=d.vertex.parallelism,
            clock=self._services.clock,
            wake=lambda: worker.mail(lambda: worker.wake(task)),
            request_split=lambda: self._send(RequestSplit(d.job, d.epoch, d.vertex.id, d.subtask)),
            metrics=task.reader_metrics(),
            send_event=lambda event: self._send(SendEnumeratorEvent(d.job, d.epoch, d.attempt_id, Payload(event))),
        )
        # Made when the task opens its input: what it raises fails the task, and not the deployment.
        return lambda: checked(step.source.create_reader(context), Reader, step.source, "create_reader")
