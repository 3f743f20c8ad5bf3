"""Task: one attempt of one subtask, run as a tasklet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Reader, Wait
from sluiceway.elements import (
    MAX_WATERMARK,
    ROWS_PER_RECORD,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from sluiceway.engine import Services
from sluiceway.graph import ExecutionState
from sluiceway.metrics import Histogram, MetricGroup, SubtaskMetrics
from sluiceway.network.input_gate import InputGate
from sluiceway.operators import IterationHeadOperator, Operator, OperatorContext, OperatorSnapshot
from sluiceway.runtime.failures.explanation import stand_in
from sluiceway.runtime.logging.context import TaskFields
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.tasklet import Progress, Tasklet, TaskletLoop
from sluiceway.runtime.messages.base import Message
from sluiceway.runtime.messages.payload import Cause
from sluiceway.runtime.messages.tasks import ReportTask
from sluiceway.runtime.task.channel_state import recovered_batches
from sluiceway.runtime.task.channels import EdgeOutput, open_gate, open_partition, open_source, operator_context
from sluiceway.runtime.task.checkpointing import TaskCheckpoints
from sluiceway.runtime.task.deployment import TaskDeployment
from sluiceway.runtime.task.gate_input import GateInput
from sluiceway.runtime.task.input_slicing import InputSlicer
from sluiceway.runtime.task.metrics import at_rest_s, latencies, records_to_sinks, subtask_metrics
from sluiceway.runtime.task.operator_chain import Blocked, OperatorChain
from sluiceway.runtime.task.outputs import TaskOutputs
from sluiceway.runtime.task.phase import TRANSITIONS, Phase
from sluiceway.runtime.task.snapshot import TaskSnapshot
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.runtime.task.task_input import TaskInput
from sluiceway.serializers.program_classes import ProgramClasses, using
from sluiceway.state import StateBackend
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamNode
from sluiceway.transport import Transport

__all__ = ["Task"]

MakeReader = Callable[["Task"], Callable[[], Reader[Any]]]

_UNTIL_WOKEN = Wait()
_CHECKPOINT = (CheckpointBarrier, CancelCheckpointMarker)
"""Elements that belong to :class:`.TaskCheckpoints`."""
_STEPS_OF_CONSUMERS = 4
"""Steps per turn. Several producers may send to one consumer, which must keep up with all of them: records that
wait long are in no cache any more when they are processed."""


class Task(Tasklet):
    """State machine that runs an operator chain between an input and result partitions.

    Each step does what the :class:`Phase` requires and reports whether the task has more to do. Created, run
    and called in the worker's thread; :meth:`cancel` comes between two steps. Every change of the execution state
    is reported.

    Args:
        deployment: descriptor of the task.
        worker: the loop that runs it.
        transport: opens its channels.
        state_backend: creates its keyed state.
        services: for plugin partitioners and the clock.
        event_loop: where coroutines run.
        make_reader: returns, for a task with a source, the factory of its reader.
        send: sends a message to the job master.
        acknowledge: writes the state that was taken for a checkpoint, then acknowledges the checkpoint with it.
        classes: those of its program, where it came from another process.
    """

    def __init__(
        self,
        deployment: TaskDeployment,
        *,
        worker: TaskletLoop,
        transport: Transport,
        state_backend: StateBackend,
        services: Services,
        event_loop: EventLoop,
        make_reader: MakeReader,
        send: Callable[[Message], None],
        acknowledge: Callable[[TaskSnapshot], None],
        classes: ProgramClasses | None = None,
    ) -> None:
        super().__init__()
        self.deployment = deployment
        self._classes = classes
        self.worker = worker
        self.clock: Clock = services.clock
        self.records_in = 0
        self.records_out = 0
        self.started = 0.0
        self._transport = transport
        self._state_backend = state_backend
        self._services = services
        self._event_loop = event_loop
        self._send = send
        self._phase = Phase.NEW
        self._mails: deque[Callable[[], None]] = deque()
        self._metric_groups: list[tuple[str, MetricGroup]] = []
        self._outputs = TaskOutputs(deployment)
        self._partitions = self._outputs.partitions
        self._edges: list[EdgeOutput] = []
        vertex = deployment.vertex
        self._chain = OperatorChain(vertex.name, vertex.nodes, vertex.inner_edges, deployment.subtask)
        self._parked = False
        self._slicer = InputSlicer(deployment.settings.batch_size)
        self._row_slicer = InputSlicer(deployment.settings.batch_size * ROWS_PER_RECORD)
        self._remainder: Batch[Any] | None = None
        """Part of the last batch that the chain has not processed."""
        self.input = self._make_input(make_reader)
        self.checkpoints = TaskCheckpoints(
            deployment, self.clock, self.input, self._outputs, self._chain, send, acknowledge
        )

    # ---- wiring: the consumer's end first, then the producer's ----------------------------------------------

    # The constructor opens the gate and connect() the partitions. The task manager constructs all tasks of a
    # deployment before it connects one.

    def _make_input(self, make_reader: MakeReader) -> TaskInput:
        d = self.deployment
        step = d.vertex.head.step
        if isinstance(step, SourceStep):
            reader = make_reader(self)
            return open_source(d, step, self.clock, reader, self._backpressured_s, self._send)
        self.steps_a_turn = _STEPS_OF_CONSUMERS
        gate = open_gate(d, self._transport, self._data_arrived, self._urgent_arrived)
        return GateInput(gate, partial(recovered_batches, d))

    def connect(self) -> None:
        """Open the outputs and build the chain; every consumer's end is open by now."""
        d = self.deployment
        outside: dict[int, list[tuple[str | None, EdgeOutput]]] = {}
        for output in d.outputs:
            partition = open_partition(d, output, self._transport, self._services, self._credit_arrived)
            self._partitions.append(partition)
            edge = EdgeOutput(self, partition)
            self._edges.append(edge)
            outside.setdefault(output.node, []).append((output.tag, edge))
        self._chain.build(self._context, outside, copy=d.subtask != 0)
        if isinstance(self._chain.head, IterationHeadOperator):
            # The head of a loop finishes when a termination probe has found the loop empty, not at the end of its
            # inputs: records may still go round.
            self._chain.head.on_quiet = self._start_finish

    def _context(self, node: StreamNode) -> OperatorContext:
        backend, wake, calls = self._state_backend, self._wake_from_anywhere, self._event_loop.calls
        context = operator_context(self.deployment, node, self.clock, backend, wake, self._backpressured_s, calls)
        self._metric_groups.append((node.name, context.metrics))
        return context

    def reader_metrics(self) -> MetricGroup:
        """Return a new group for metrics of the task's reader, which are reported as those of the source."""
        group = MetricGroup()
        self._metric_groups.append((self.deployment.vertex.head.name, group))
        return group

    def _backpressured_s(self) -> float:
        return self.blocked_s

    @property
    def operators(self) -> Sequence[Operator]:
        """Operators of the chain, head first."""
        return self._chain.operators

    def watch(self, look: Callable[[Batch[Any], int], None]) -> Callable[[], None]:
        """Show each batch of the input to a function, as :meth:`.OperatorChain.watch`. Worker's thread."""
        return self._chain.watch(look)

    @property
    def watchers(self) -> int:
        """Number of functions that are shown the batches."""
        return self._chain.watchers

    @property
    def ended(self) -> bool:
        """True once the task will not run again."""
        return self._phase is Phase.ENDED

    # ---- waking ---------------------------------------------------------------------------------------------

    # The callbacks of gates and partitions run in the worker's thread and wake the task directly. Helper threads
    # (readers, asynchronous calls) must go through the worker's mailbox: `_wake_from_anywhere`.

    def _data_arrived(self, gate: InputGate, channel: int) -> None:
        gate.wake(channel)
        self.worker.wake(self)

    # May be called in the middle of a step. As a mail, because an urgent barrier begins a checkpoint, which is
    # only possible between two batches of this task.
    def _urgent_arrived(self, gate: InputGate, channel: int) -> None:
        self.mail(partial(gate.take_urgent, channel))

    def _credit_arrived(self) -> None:
        self.worker.wake(self)

    def _wake_from_anywhere(self) -> None:
        self.worker.mail(partial(self.worker.wake, self))

    def mail(self, action: Callable[[], None]) -> None:
        """Have ``action`` run in this task, between batches, when every operator is open. Worker's thread."""
        self._mails.append(action)
        self.worker.wake(self)

    def cancel(self) -> None:
        """End without finishing: neither a watermark nor an end of data is sent. Worker's thread."""
        if self._phase is not Phase.ENDED:
            # The wake-up gives the loop a step that returns DONE: only then does it drop the tasklet.
            self._end(ExecutionState.CANCELED, None)
            self.worker.wake(self)

    # ---- phases ---------------------------------------------------------------------------------------------

    def step(self) -> Progress:
        """Do one step of the current phase; an exception of it fails the task."""
        if self._classes is None:
            return self._step()
        with using(self._classes):
            return self._step()

    def _step(self) -> Progress:
        try:
            match self._phase:
                case Phase.RUNNING:
                    return self._run()
                case Phase.NEW:
                    return self._open()
                case Phase.FINISHING:
                    return self._finish()
                case Phase.AWAITING_FINAL_CHECKPOINT:
                    return self._await_final_checkpoint()
                case Phase.SUSPENDED_FOR_SAVEPOINT:
                    return self._await_savepoint()
                case Phase.DRAINING:
                    return self._drain()
        # Not only Exception: sys.exit() in a user's function fails the task and must not end the worker, which
        # runs other tasks.
        except BaseException as error:
            if isinstance(error, self.worker.passed_on):
                self._chain.explain(error)
                raise
            self._end(ExecutionState.FAILED, stand_in(error, self._chain.step))
        # The step has failed, or cancel() has ended the task since the last one.
        return Progress.DONE

    def goes_on(self) -> bool:
        """Return whether the input has an element already."""
        return self.input.ready

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self._phase], f"{self._phase} must not be followed by {phase}"
        self._phase = phase

    def _open(self) -> Progress:
        d = self.deployment
        # State is restored before the input is opened: recovered in-flight batches go through the restored chain.
        self._report(ExecutionState.INITIALIZING)
        self._chain.open(d.restored)
        # A source that was read to its end needs no reader. A gate is opened all the same: barriers of further
        # checkpoints arrive through it.
        if d.drained and isinstance(self.input, SourceInput):
            self.input.end()
        else:
            self.input.open()
        self._enter(Phase.RUNNING)
        self._report(ExecutionState.RUNNING)
        if d.drained:
            # The restored state is that of a finished task. Its consumers may have been restored from before that.
            self._outputs.send(Watermark(MAX_WATERMARK))
            self._end_output()
        return Progress.AGAIN

    def _run(self) -> Progress:
        progress = self._prepare_for_input()
        if progress is not None:
            return progress
        # In this order: an aligned barrier arrived after the remainder, so the remainder belongs to its snapshot.
        if self._remainder is not None:
            self._process(self._remainder)
            return Progress.AGAIN
        if self.checkpoints.barrier is not None:
            return self._take_snapshot()
        element = self.input.read()
        if type(element) is Batch:
            self.records_in += len(element.values)
            self._process(element)
        elif isinstance(element, Wait):
            if self.checkpoints.hurry:
                return Progress.AGAIN  # an unaligned checkpoint starts with the element just read
            self._chain.flush()  # no input: output collected for larger batches must not wait for more
            return self._park(element, Progress.IDLE)
        elif type(element) is EndOfData:
            # The head of a loop sends a probe now, and finishes when that comes back.
            if isinstance(self._chain.head, IterationHeadOperator):
                self._chain.head.inputs_ended()
            else:
                self._start_finish()
        elif isinstance(element, _CHECKPOINT):
            self.checkpoints.on_barrier(element)
        elif type(element) is not EndOfPartition:
            self._chain.control(element)
        # An EndOfPartition is ignored: a loop may still hold records, and any other input has ended before.
        return Progress.AGAIN

    def _take_snapshot(self) -> Progress:
        wait = self.checkpoints.snapshot(self._remainder)
        if wait is not None:
            return self._park(wait, Progress.BLOCKED)
        if self.checkpoints.suspends:
            self._enter(Phase.SUSPENDED_FOR_SAVEPOINT)
        return Progress.AGAIN

    def _await_savepoint(self) -> Progress:
        self._unpark()
        self._read_mails()
        if self.checkpoints.finished:
            self._end_partitions()
        # The savepoint was aborted: the job continues.
        elif not self.checkpoints.suspends:
            self._enter(Phase.RUNNING)
        else:
            return self._park(_UNTIL_WOKEN, Progress.IDLE, 0)
        return Progress.AGAIN

    def _start_finish(self) -> None:
        self._chain.start_finish()
        self._enter(Phase.FINISHING)

    def _finish(self) -> Progress:
        # Also between two operators: mails are read, and nothing is emitted into a full output.
        progress = self._prepare_for_input()
        if progress is not None:
            return progress
        while self._chain.finishing:
            wait = self._chain.finish_next()
            if wait is not None:
                return self._park(wait, Progress.IDLE)
            if self._chain.timed:
                # Its results may have to wait in an operator behind it.
                return Progress.AGAIN
        self._end_output()
        return Progress.AGAIN

    def _end_output(self) -> None:
        """Send the end of data; with checkpoints, wait for one that holds the current state."""
        self._outputs.send(EndOfData())
        if self.deployment.settings.checkpoint_interval_ms:
            # Sinks commit with checkpoints: output since the last one needs a further one before the task may end.
            self._enter(Phase.AWAITING_FINAL_CHECKPOINT)
            self.checkpoints.input_ended()
        else:
            self._end_partitions()

    def _end_partitions(self) -> None:
        # With checkpoints, the barrier of the final one is sent between EndOfData and EndOfPartition.
        self._outputs.send(EndOfPartition())
        self._enter(Phase.DRAINING)

    def _await_final_checkpoint(self) -> Progress:
        self._unpark()
        self._read_mails()
        if self.checkpoints.attention:
            self.checkpoints.poll_timeouts(self.started)
        if self.checkpoints.finished:
            self._end_partitions()
        elif self.checkpoints.barrier is not None:
            wait = self.checkpoints.snapshot(self._remainder)
            return Progress.AGAIN if wait is None else self._park(wait, Progress.BLOCKED, 0)
        else:
            # Only barriers matter behind the end of data. Ends of partitions have reached the alignment within the
            # gate.
            element = self.input.poll()
            if isinstance(element, _CHECKPOINT):
                self.checkpoints.on_barrier(element)
            elif isinstance(element, Wait) and not self.checkpoints.hurry:
                return self._park(_UNTIL_WOKEN, Progress.IDLE, 0)
        return Progress.AGAIN

    def _drain(self) -> Progress:
        self._unpark()
        head = self._chain.head
        if isinstance(head, IterationHeadOperator) and isinstance(self.input, GateInput):
            while not isinstance(element := self.input.poll(), Wait):
                if type(element) is Batch:
                    # A record that comes back behind the end of the loop fails the task: it would be lost without
                    # a trace.
                    head.refuse(element)
            if not self.input.loops_ended():
                return self._park(_UNTIL_WOKEN, Progress.IDLE, 0)
        work, wait = self._chain.begun_work()
        if wait is not None:
            return self._park(wait, Progress.BLOCKED, 0)
        if work is not None:
            # In a task that was restored as finished, open() of an asynchronous function may end only now.
            work()
            return Progress.AGAIN
        self._end(ExecutionState.FINISHED, None)
        return Progress.DONE

    def _end(self, state: ExecutionState, cause: BaseException | None) -> None:
        """Close everything once, whatever the reason; an error in closing never hides the first one."""
        # The phase first: a cancel() during the following calls then does nothing.
        self._phase = Phase.ENDED
        if cause is not None:
            cause = self._chain.explain(cause)
        # The poller stops watching files before their owners close them, and snapshots of keyed state are released
        # before the operators close their backends.
        self.worker.forget(self)
        self.checkpoints.close()
        source = (self.deployment.vertex.head.name, self.input.close)
        cause = self._chain.close(cause, [source], self.worker.passed_on)
        if cause is not None:
            state = ExecutionState.FAILED
            for partition in self._partitions:
                # Before discard(): consumers receive the cause instead of a channel that ends.
                partition.fail(cause)
        for partition in self._partitions:
            if state is ExecutionState.FINISHED:
                partition.close()
            else:
                partition.discard()
        # The report is last: the job master releases the slot with it, and may deploy the next attempt.
        self._remainder = None
        self._report(state, cause)

    def _report(self, state: ExecutionState, cause: BaseException | None = None) -> None:
        d = self.deployment
        why = None if cause is None else Cause(cause)
        self._send(ReportTask(d.job, d.epoch, d.attempt_id, state.value, why))

    # ---- between two elements -------------------------------------------------------------------------------

    def _unpark(self) -> None:
        now = self.started = self.clock.monotonic()
        if self._parked:
            self._parked = False
            self.worker.forget(self)
        for partition in self._partitions:
            if partition.due is not None and partition.due <= now:
                partition.flush()

    def _prepare_for_input(self) -> Progress | None:
        """Do what comes before the next element: mails, a checkpoint in a hurry, the chain's pending work.

        Returns:
            the progress of this step; None: nothing was to do, and the chain and the outputs accept input.
        """
        self._unpark()
        if self._mails:
            self._read_mails()
        if self.checkpoints.attention:
            progress = self._hurry_checkpoint()
            if progress is not None:
                return progress
        # Back-pressure: with a full partition nothing is read and no timer fires, as both emit records.
        for partition in self._partitions:
            if not partition.available():
                return self._park(_UNTIL_WOKEN, Progress.BLOCKED, 0)
        pending = self._chain.poll()
        if pending is None:
            return None
        if isinstance(pending, Blocked):
            return self._park(pending.wait, Progress.BLOCKED, pending.depth)
        if self._yields_to_barrier():
            return self._take_snapshot()
        pending()
        return Progress.AGAIN

    def _hurry_checkpoint(self) -> Progress | None:
        """Take a checkpoint that overtakes: it neither waits for its turn nor for the output to accept more.

        Work that has begun is completed first, unless it may be interrupted. So is what a source has read ahead:
        it is in no channel, and could not be recorded.
        """
        self.checkpoints.poll_timeouts(self.started)
        if not self.checkpoints.hurry or self._phase is not Phase.RUNNING:
            return None
        early = self.checkpoints.early
        # Begun work is completed first where a snapshot cannot hold it, and where records have to be processed
        # before the snapshot: an operator with work left takes no input.
        if self._chain.interruptible and not (early and self._process_before_snapshot(can=False)):
            blocked = self._chain.blocked()
        else:
            work, blocked = self._chain.begun_work()
            if work is not None:
                if blocked is not None:
                    return self._make_room(blocked)
                work()
                return Progress.AGAIN
        if early and self._process_before_snapshot(can=blocked is None):
            return Progress.AGAIN if blocked is None else self._make_room(blocked)
        return self._take_snapshot()

    def _make_room(self, wait: Wait) -> Progress:
        """Wait until the chain accepts input, firing the timers that this may depend on, as that of a retry."""
        if not all(partition.available() for partition in self._partitions):
            return self._park(wait, Progress.BLOCKED, 0)
        pending = self._chain.poll()
        if isinstance(pending, Blocked):
            return self._park(pending.wait, Progress.BLOCKED, pending.depth)
        if pending is not None:
            pending()
        return Progress.AGAIN

    def _process_before_snapshot(self, *, can: bool) -> bool:
        """Return whether input is to be processed before the snapshot; if the chain ``can``, process a part."""
        self._chain.enter_head()
        if isinstance(self.input, GateInput) and self.input.may_record_remainder:
            return False
        # A remainder that cannot be recorded, as of a source or of an edge that aligns, has to be processed
        # into the state.
        if self._remainder is not None:
            if can:
                self._process(self._remainder)
            return True
        # Elements that a source has read ahead: the position in the snapshot of its reader is behind them.
        if not isinstance(self.input, SourceInput) or not self.input.reads_ahead:
            return False
        element = self.input.read_before() if can else None
        if type(element) is Batch:
            self.records_in += len(element.values)
            self._process(element)
        elif element is not None:
            self._chain.control(element)
        return True

    def _yields_to_barrier(self) -> bool:
        """Return whether the work that is due can wait for a checkpoint, and its barrier is the next element."""
        if self._phase is not Phase.RUNNING or not self._chain.interruptible:
            return False
        if self.checkpoints.barrier is None and self._remainder is None:
            self._chain.enter_head()
            element = self.input.look_ahead()
            # The barrier was not next. The batch waits as the remainder until the pending work is done.
            if isinstance(element, Batch):
                self._remainder = element
                self.records_in += len(element.values)
            elif element is not None:
                self.checkpoints.on_barrier(element)
        return self.checkpoints.barrier is not None

    def _read_mails(self) -> None:
        while self._mails:
            self._mails.popleft()()

    def _park(self, wait: Wait, progress: Progress, depth: int | None = None) -> Progress:
        """Sleep until the event to ``wait`` for, or until a timer of the last ``depth`` operators is due."""
        # Several waits may be registered; whichever ends first wakes the task, and `_unpark` drops the watches of
        # the others. A depth of 0 leaves out all timers: they emit, and the output is full or at its end.
        self._parked = True
        self.worker.wait(self, wait)
        if (in_s := self._chain.seconds_to_timer(self.clock, depth)) is not None:
            # To the nanosecond: 0.4 + 0.2 is more than 0.6, and would not come when the clock says 0.6.
            self.worker.wait(self, Wait(until=round(self.started + in_s, 9)))
        if self.checkpoints.due is not None:
            self.worker.wait(self, Wait(until=self.checkpoints.due))
        for partition in self._partitions:
            if progress is Progress.IDLE:
                # No further record fills up a buffered batch soon.
                partition.idle()
            if partition.due is not None:
                self.worker.wait(self, Wait(until=partition.due))
        return progress

    def _process(self, batch: Batch[Any]) -> None:
        """Pass a batch down the chain; where the chain makes many records of one, a part at a time."""
        size = len(batch.values)
        slicer = self._slicer if batch.columns is None else self._row_slicer
        if size > slicer.size:
            # Equal parts: a small one at the end costs as many calls as a full one.
            size = -(-size // -(-size // slicer.size))
            self._remainder = batch.part(size, None)
            batch = batch.part(0, size)
        else:
            self._remainder = None
        # Only records that leave the chain are counted. Where it ends in a sink, the duration alone decides on the
        # size.
        before = self.records_out
        self._chain.process(batch, self.input.port)
        slicer.learn(size, self.records_out - before, self.clock.monotonic() - self.started)

    # ---- what others ask ------------------------------------------------------------------------------------

    def snapshot(self) -> list[OperatorSnapshot]:
        """Return the current state of every step. Worker's thread, between steps.

        Raises:
            StateError: the task has ended, and with it its state.
        """
        return self._chain.snapshot(0, drained=self.checkpoints.drained, splits=self.input.snapshot)

    def under_way(self) -> int:
        """Return the number of elements, mails and pieces of work that wait in the task, its input and output."""
        waiting = sum(p.backlog() + p.waiting() for p in self._partitions)
        return (
            self.input.queued()
            + self.input.looked_at()
            + len(self._mails)
            + waiting
            + self._chain.pending_work()
            + (self._remainder is not None)
        )

    def metrics(self, state: ExecutionState, worker: str = "") -> SubtaskMetrics:
        """Return the metrics of this subtask on a worker. From any thread; figures may be a batch apart."""
        return subtask_metrics(
            self,
            self.deployment,
            state,
            worker=worker,
            records=(self.records_in, self.records_out),
            times=(self.clock.now_ms(), self.clock.monotonic()),
            source=self.input,
            operators=self._chain.operators,
            edges=self._edges,
            # Copies: the lists grow in the worker's thread.
            partitions=list(self._partitions),
            groups=list(self._metric_groups),
        )

    def log_fields(self, operator: str | None) -> TaskFields:
        """Return the fields of a line that was logged in a step, a coroutine or a thread of this task."""
        d = self.deployment
        if operator is None:
            # Outside the loops of steps, a task knows its step in its own thread only.
            operator = self._chain.step if get_ident() == self.worker.thread else d.vertex.name
        return TaskFields(d.job or d.job_name, operator, d.subtask, d.vertex.parallelism, d.attempt)

    def at_rest_s(self) -> tuple[float, float]:
        """Return the seconds parked on blocked output, and on empty input, including the current wait."""
        return at_rest_s(self, self.clock.monotonic())

    def records_to_sinks(self) -> int:
        """Return the number of records written by the sinks of the chain."""
        return records_to_sinks(self._chain.operators)

    def latencies(self) -> dict[str, Histogram]:
        """Return latency quantiles by sink of the chain."""
        return latencies(self._chain.operators)
