"""A task: one attempt of one subtask, as a tasklet with an explicit life cycle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Reader, Wait
from sluiceway.elements import (
    MAX_WATERMARK,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    Watermark,
)
from sluiceway.engine import Services
from sluiceway.errors import StateError
from sluiceway.gates import InputGate
from sluiceway.graph import ExecutionState
from sluiceway.metrics import Histogram, MetricGroup, SubtaskMetrics
from sluiceway.operators import (
    IterationHeadOperator,
    Operator,
    OperatorContext,
    OperatorSnapshot,
    TimedOperator,
    build_operators,
    cut_batch,
    own_copy,
)
from sluiceway.runtime.bursts import Concerned, concerned, interruptible, look_for_barrier, part_of, seconds_to
from sluiceway.runtime.deployment import TaskDeployment
from sluiceway.runtime.eventloop import EventLoop
from sluiceway.runtime.failure import close_each, explain_failure, stand_in
from sluiceway.runtime.inputs import GateInput, SourceInput, TaskInput
from sluiceway.runtime.phases import Phase
from sluiceway.runtime.slices import Slices
from sluiceway.runtime.taskcheckpoints import CheckpointReports, TaskCheckpoints
from sluiceway.runtime.taskinflight import all_again
from sluiceway.runtime.taskmetrics import at_rest_s, latencies, records_to_sinks, subtask_metrics
from sluiceway.runtime.taskoutputs import TaskOutputs
from sluiceway.runtime.wiring import EdgeOutput, open_gate, open_partition, open_source, operator_context
from sluiceway.runtime.worker import Progress, Tasklet, Worker
from sluiceway.state import StateBackend
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamNode
from sluiceway.transport import Transport

__all__ = ["Task"]

ReportState = Callable[[str, ExecutionState, BaseException | None], None]
ReportWatermark = Callable[[str, str, int | None], None]
MakeReader = Callable[["Task"], Callable[[], Reader[Any]]]

_UNTIL_WOKEN = Wait()
_CHECKPOINT = (CheckpointBarrier, CancelCheckpointMarker)
_STEPS_OF_CONSUMERS = 4
"""In a turn. Several producers may send to one consumer, which has to keep up with them all: records that wait
long are in no cache any more when they are processed."""


class Task(Tasklet):
    """Runs a chain: takes an element, passes it down the chain, lets the end out into result partitions.

    Made and run in the worker's thread; :meth:`cancel` comes as a mail. Reports each change of its state.

    Args:
        deployment: what to run.
        worker: who runs it.
        transport: opens its channels.
        state_backend: makes its keyed state.
        services: for plugin partitioners and the clock.
        event_loop: where coroutines run.
        make_reader: for a task with a source: given this task, makes what makes the reader.
        report: told of each state change, with the cause of a failure.
        report_watermark: told how far the reader of an alignment group is.
        reports: the way to the checkpoint coordinator.
    """

    def __init__(
        self,
        deployment: TaskDeployment,
        *,
        worker: Worker,
        transport: Transport,
        state_backend: StateBackend,
        services: Services,
        event_loop: EventLoop,
        make_reader: MakeReader,
        report: ReportState,
        report_watermark: ReportWatermark,
        reports: CheckpointReports,
    ) -> None:
        super().__init__()
        self.deployment = deployment
        self.worker = worker
        self.clock: Clock = services.clock
        self.records_in = 0
        self.records_out = 0
        self.started = 0.0
        self._transport = transport
        self._state_backend = state_backend
        self._services = services
        self._event_loop = event_loop
        self._report = report
        self._report_watermark = report_watermark
        self._phase = Phase.NEW
        self._mails: deque[Callable[[], None]] = deque()
        self._metric_groups: list[tuple[str, MetricGroup]] = []
        self._outputs = TaskOutputs(deployment)
        self._partitions = self._outputs.partitions
        self._edges: list[EdgeOutput] = []
        self._operators: list[Operator] = []
        self._backward: list[Operator] = []
        self._timed: list[TimedOperator] = []
        self._concerned: list[Concerned] = []
        self._unfinished: deque[Operator] = deque()
        self._at = deployment.vertex.head.name
        self._rested = False
        self._slices = Slices(deployment.settings.batch_size)
        self._rest_of_batch: Batch[Any] | None = None
        self.input = self._make_input(make_reader)
        rest = lambda: self._rest_of_batch  # noqa: E731
        self.checkpoints = TaskCheckpoints(
            deployment, self.clock, self.input, self._outputs, self._snapshots, rest, reports
        )

    # ---- wiring: the consumer's end first, then the producer's ----------------------------------------------

    def _make_input(self, make_reader: MakeReader) -> TaskInput:
        d = self.deployment
        step = d.vertex.head.step
        if isinstance(step, SourceStep):
            reader, report = make_reader(self), self._report_watermark
            return open_source(d, step, self.clock, reader, lambda: self.blocked_s, report)
        began = lambda: self.checkpoints.alignment_began()  # noqa: E731 (there are none yet)
        self.steps_a_turn = _STEPS_OF_CONSUMERS
        gate = open_gate(d, self._transport, self._data_came, began, self._urgent_came)
        return GateInput(gate, lambda: all_again(d))

    def connect(self) -> None:
        """Open the outputs and build the chain; every consumer's end is open by now."""
        d = self.deployment
        outside: dict[int, list[tuple[str | None, EdgeOutput]]] = {}
        for output in d.outputs:
            partition = open_partition(d, output, self._transport, self._services, self._credit_came)
            self._partitions.append(partition)
            edge = EdgeOutput(self, partition)
            self._edges.append(edge)
            outside.setdefault(output.node, []).append((output.tag, edge))
        nodes = [own_copy(n, d.subtask) for n in d.vertex.nodes]
        self._operators = build_operators(nodes, d.vertex.inner_edges, self._context, outside)
        self._entry = self._operators[0]
        self._receive = self._entry.receivers()
        self._backward = self._operators[::-1]
        self._concerned = concerned(self._backward)
        # Tail first: what has work left is given nothing else, not even by its neighbour upstream.
        self._timed = [o for o in reversed(self._operators) if isinstance(o, TimedOperator)]
        if isinstance(self._entry, IterationHeadOperator):
            self._entry.on_quiet = self._finish
        self.checkpoints.operators = self._operators

    def _context(self, node: StreamNode) -> OperatorContext:
        backend, wake, calls = self._state_backend, self._wake_from_anywhere, self._event_loop.calls
        context = operator_context(self.deployment, node, self.clock, backend, wake, lambda: self.blocked_s, calls)
        self._metric_groups.append((node.name, context.metrics))
        return context

    @property
    def ended(self) -> bool:
        """Whether it will not run again."""
        return self._phase is Phase.ENDED

    # ---- waking ---------------------------------------------------------------------------------------------

    def _data_came(self, gate: InputGate, channel: int) -> None:
        gate.wake(channel)
        self.worker.wake(self)

    def _urgent_came(self, gate: InputGate, channel: int) -> None:
        self.mail(lambda: gate.take_urgent(channel))

    def _credit_came(self) -> None:
        self.worker.wake(self)

    def _wake_from_anywhere(self) -> None:
        self.worker.mail(lambda: self.worker.wake(self))

    def mail(self, action: Callable[[], None]) -> None:
        """Have ``action`` run in this task, between batches, when every operator is open. Worker's thread."""
        self._mails.append(action)
        self.worker.wake(self)

    def cancel(self) -> None:
        """End without finishing: neither a watermark nor an end of data is sent. Worker's thread."""
        if self._phase is not Phase.ENDED:
            self._end(ExecutionState.CANCELED, None)
            self.worker.wake(self)

    # ---- life -----------------------------------------------------------------------------------------------

    def step(self) -> Progress:
        """Do what the phase says: open, take one element, finish, or wait for the sinks to drain."""
        try:
            match self._phase:
                case Phase.NEW:
                    return self._open()
                case Phase.RUNNING:
                    return self._run()
                case Phase.FINISHING:
                    return self._finish_next()
                case Phase.AWAITING:
                    return self._await_final_checkpoint()
                case Phase.STANDING:
                    return self._stand_still()
                case Phase.DRAINING:
                    return self._drain()
        except BaseException as error:
            if isinstance(error, self.worker.passed_on):
                self._explained(error)
                raise
            self._end(ExecutionState.FAILED, stand_in(error, self._at))
        return Progress.DONE

    def goes_on(self) -> bool:
        """Whether something has come in already."""
        return self.input.ready

    def _open(self) -> Progress:
        d = self.deployment
        self._report(d.attempt_id, ExecutionState.INITIALIZING, None)
        for operator in self._operators:
            self._at = operator.step_name
            operator.initialize(d.restored)
        for operator in reversed(self._operators):
            self._at = operator.step_name
            operator.open()
        self._at = d.vertex.head.name
        if d.drained and isinstance(self.input, SourceInput):
            self.input.end()
        else:
            self.input.open()
        self._phase = Phase.RUNNING
        self._report(d.attempt_id, ExecutionState.RUNNING, None)
        if d.drained:
            # What is restored has done all this before; but who comes after it may have to hear it again.
            self._outputs.send(Watermark(MAX_WATERMARK))
            self._end_output()
        return Progress.AGAIN

    def _run(self) -> Progress:
        progress = self._go_on()
        if progress is not None:
            return progress
        if self._rest_of_batch is not None:
            self._process(self._rest_of_batch)
            return Progress.AGAIN
        if self.checkpoints.barrier is not None:
            return self._take_checkpoint()
        element = self.input.read()
        if type(element) is Batch:
            self.records_in += len(element.values)
            self._process(element)
        elif isinstance(element, Wait):
            if self.checkpoints.hurry:
                return Progress.AGAIN  # it begins with what was just read
            for operator in self._operators:
                operator.idle()
            return self._rest(element, Progress.IDLE)
        elif type(element) is EndOfData:
            self._end_of_data()
        elif isinstance(element, _CHECKPOINT):
            self.checkpoints.came(element)
        elif type(element) is not EndOfPartition:
            self._entry.control(element)
        # An EndOfPartition has nothing to add: a loop may still be full, and who is not a loop has drained.
        return Progress.AGAIN

    def _take_checkpoint(self) -> Progress:
        wait = self.checkpoints.take()
        if self.checkpoints.standing_still:
            self._phase = Phase.STANDING
        return Progress.AGAIN if wait is None else self._rest(wait, Progress.BLOCKED)

    def _stand_still(self) -> Progress:
        """What is done from now on would be done again by who goes on with the savepoint: do nothing."""
        self._wake_up()
        self._read_mails()
        if self.checkpoints.finished:
            self._end_partitions()
        elif not self.checkpoints.standing_still:
            self._phase = Phase.RUNNING
        else:
            return self._rest(_UNTIL_WOKEN, Progress.IDLE, 0)
        return Progress.AGAIN

    def _end_of_data(self) -> None:
        if isinstance(self._entry, IterationHeadOperator):
            self._entry.inputs_ended()
        else:
            self._finish()

    def _finish(self) -> None:
        """Flush the operators head to tail, tell the consumers, then wait until the outside has taken it."""
        self._unfinished.extend(self._operators)
        self._phase = Phase.FINISHING

    def _finish_next(self) -> Progress:
        progress = self._go_on()
        if progress is not None:
            return progress
        while self._unfinished:
            operator = self._unfinished[0]
            self._at = operator.step_name
            wait = operator.draining()
            if wait is not None:
                return self._rest(wait, Progress.IDLE)
            self._unfinished.popleft()
            operator.finish()
            if self._timed:
                # What it has emitted may have to wait in an operator behind it.
                return Progress.AGAIN
        self._end_output()
        return Progress.AGAIN

    def _end_output(self) -> None:
        """No record follows; where checkpoints are taken, one that knows of it does."""
        self._outputs.send(EndOfData())
        if self.deployment.settings.checkpoint_interval_ms:
            self._phase = Phase.AWAITING
            self.checkpoints.input_ended()
        else:
            self._end_partitions()

    def _end_partitions(self) -> None:
        self._outputs.send(EndOfPartition())
        self._phase = Phase.DRAINING

    def _await_final_checkpoint(self) -> Progress:
        """All is done, but not for certain before a checkpoint knows of it: give barriers on until then."""
        self._wake_up()
        self._read_mails()
        if self.checkpoints.attention:
            self.checkpoints.attend(self.started)
        if self.checkpoints.finished:
            self._end_partitions()
        elif self.checkpoints.barrier is not None:
            wait = self.checkpoints.take()
            return Progress.AGAIN if wait is None else self._rest(wait, Progress.BLOCKED, 0)
        else:
            element = self.input.poll()
            if isinstance(element, _CHECKPOINT):
                self.checkpoints.came(element)
            elif isinstance(element, Wait) and not self.checkpoints.hurry:
                return self._rest(_UNTIL_WOKEN, Progress.IDLE, 0)
        return Progress.AGAIN

    def _drain(self) -> Progress:
        self._wake_up()
        if isinstance(self._entry, IterationHeadOperator) and isinstance(self.input, GateInput):
            while not isinstance(element := self.input.poll(), Wait):
                if type(element) is Batch:
                    self._entry.refuse(element)
            if not self.input.loops_ended():
                return self._rest(_UNTIL_WOKEN, Progress.IDLE, 0)
        for operator in self._operators:
            self._at = operator.step_name
            wait = operator.blocked()
            if wait is not None:
                return self._rest(wait, Progress.BLOCKED, 0)
        self._end(ExecutionState.FINISHED, None)
        return Progress.DONE

    def _end(self, state: ExecutionState, cause: BaseException | None) -> None:
        """Close everything once, whatever the reason; an error in closing never hides the first one."""
        self._phase = Phase.ENDED
        if cause is not None:
            cause = self._explained(cause)
        self.worker.forget(self)
        self.checkpoints.close()
        closes = [(o.step_name, o.close) for o in reversed(self._operators)]
        closes.append((self.deployment.vertex.head.name, self.input.close))
        cause = close_each(closes, cause, self._explained, self.worker.passed_on)
        if cause is not None:
            state = ExecutionState.FAILED
            for partition in self._partitions:
                partition.fail(cause)
        for partition in self._partitions:
            if state is ExecutionState.FINISHED:
                partition.close()
            else:
                partition.discard()
        self._rest_of_batch = None
        self._report(self.deployment.attempt_id, state, cause)

    def _explained(self, error: BaseException, step: str = "") -> BaseException:
        d = self.deployment
        return explain_failure(
            error, vertex=d.vertex.name, step=step or self._at, subtask=d.subtask, parallelism=d.vertex.parallelism
        )

    # ---- between two elements -------------------------------------------------------------------------------

    def _wake_up(self) -> None:
        now = self.started = self.clock.monotonic()
        if self._rested:
            self._rested = False
            self.worker.forget(self)
        for partition in self._partitions:
            if partition.due is not None and partition.due <= now:
                partition.flush()

    def _go_on(self) -> Progress | None:
        """Do what is to be done before the next element; None: nothing, and the element may come.

        Read the mails. Then, from the tail of the chain to its head, so that nobody is given what it cannot
        take: go on with work that is left, do what processing time has made due, a part of it at a time.
        """
        self._wake_up()
        if self._mails:
            self._read_mails()
        if self.checkpoints.attention:
            progress = self._attend()
            if progress is not None:
                return progress
        for partition in self._partitions:
            if not partition.available():
                return self._rest(_UNTIL_WOKEN, Progress.BLOCKED, 0)
        for index, operator, timed in self._concerned:
            if timed is not None and (part := part_of(timed, self.clock)) is not None:
                if self._gives_way():
                    return self._take_checkpoint()
                self._at = operator.step_name
                part()
                return Progress.AGAIN
            wait = operator.blocked()
            if wait is not None:
                return self._rest(wait, Progress.BLOCKED, index + 1)
        self._at = self._entry.step_name
        return None

    def _attend(self) -> Progress | None:
        """Take a checkpoint that does not wait for its turn, nor until the output takes more.

        What has begun is brought to its end first, unless it can be left, and nothing has to be processed before:
        what a source has read is in no channel.
        """
        self.checkpoints.attend(self.started)
        if not self.checkpoints.hurry or self._phase is not Phase.RUNNING:
            return None
        held_up: Wait | None = None
        leaves = interruptible(self._timed) and not (self.checkpoints.early and self._process_before(False))
        for operator in self._backward:
            if not leaves and isinstance(operator, TimedOperator) and operator.has_work:
                if held_up is not None:
                    return self._rest(held_up, Progress.BLOCKED, 0)
                self._at = operator.step_name
                operator.work()
                return Progress.AGAIN
            held_up = held_up or operator.blocked()
        if self.checkpoints.early and self._process_before(held_up is None):
            return Progress.AGAIN if held_up is None else self._rest(held_up, Progress.BLOCKED, 0)
        return self._take_checkpoint()

    def _process_before(self, can: bool) -> bool:
        """Whether something has to be processed before state is taken; a part of it is, if it can."""
        self._at = self._entry.step_name
        if isinstance(self.input, GateInput) and self.input.may_rest:
            return False
        if self._rest_of_batch is not None:
            if can:
                self._process(self._rest_of_batch)
            return True
        if not isinstance(self.input, SourceInput) or not self.input.reads_ahead:
            return False
        element = self.input.read_before() if can else None
        if type(element) is Batch:
            self.records_in += len(element.values)
            self._process(element)
        elif element is not None:
            self._entry.control(element)
        return True

    def _gives_way(self) -> bool:
        """Whether the rest of what is due waits for a checkpoint, as nothing comes before its barrier."""
        if self._phase is not Phase.RUNNING or not interruptible(self._timed):
            return False
        if self.checkpoints.barrier is None and self._rest_of_batch is None:
            self._rest_of_batch = look_for_barrier(self.input, self.checkpoints)
            self.records_in += len(self._rest_of_batch.values) if self._rest_of_batch is not None else 0
        return self.checkpoints.barrier is not None

    def _read_mails(self) -> None:
        while self._mails:
            self._mails.popleft()()

    def _rest(self, wait: Wait, progress: Progress, timed: int | None = None) -> Progress:
        """Sleep until what is waited for is there, or time has come for one of the last ``timed`` operators."""
        self._rested = True
        self.worker.wait(self, wait)
        if (in_s := seconds_to(self._backward[:timed], self.clock)) is not None:
            # To the nanosecond: 0.4 + 0.2 is more than 0.6, and would not come when the clock says 0.6.
            self.worker.wait(self, Wait(until=round(self.started + in_s, 9)))
        if self.checkpoints.due is not None:
            self.worker.wait(self, Wait(until=self.checkpoints.due))
        for partition in self._partitions:
            if progress is Progress.IDLE:
                partition.idle()
            if partition.due is not None:
                self.worker.wait(self, Wait(until=partition.due))
        return progress

    def _process(self, batch: Batch[Any]) -> None:
        """Pass a batch down the chain; where the chain makes many records of one, a part at a time."""
        size, slices = len(batch.values), self._slices
        if size > slices.size:
            # Equal parts: a small one at the end costs as many calls as a full one.
            size = -(-size // -(-size // slices.size))
            self._rest_of_batch = cut_batch(batch, size, None)
            batch = cut_batch(batch, 0, size)
        else:
            self._rest_of_batch = None
        before = self.records_out
        self._receive[self.input.port](batch)
        slices.learn(size, self.records_out - before, self.clock.monotonic() - self.started)

    # ---- what others ask ------------------------------------------------------------------------------------

    def snapshot(self) -> list[OperatorSnapshot]:
        """The state of every step as of now. Worker's thread, between steps.

        Raises:
            StateError: the task has ended, and with it its state.
        """
        if self._phase is Phase.ENDED:
            gone = next((o for o in self._operators if o.has_state), None)
            if gone is not None:
                raise StateError(
                    f"step {gone.step_name!r} has finished in subtask {self.deployment.subtask + 1} and its state "
                    "is gone: take a snapshot while all steps with state are running"
                )
            uids = [context.node.uid for operator in self._operators for context in operator.contexts]
            return [OperatorSnapshot(uid) for uid in uids]
        return self._snapshots(0)

    def _snapshots(self, checkpoint_id: int) -> list[OperatorSnapshot]:
        snapshots = []
        for operator in self._operators:
            self._at = operator.step_name
            snapshots += operator.snapshots(checkpoint_id)
        d = self.deployment
        if isinstance(self.input, SourceInput):
            snapshots[0] = OperatorSnapshot(d.vertex.uid, splits=self.input.snapshot())
        where = {"subtask": d.subtask, "parallelism": d.vertex.parallelism, "drained": self.checkpoints.drained}
        return [replace(snapshot, **where) for snapshot in snapshots]  # type: ignore[arg-type]

    def under_way(self) -> int:
        """Elements that the task has been sent or has made, and that are not processed yet."""
        waiting = sum(p.backlog() + p.waiting() for p in self._partitions)
        working = sum(o.has_work for o in self._timed)
        return (
            self.input.queued()
            + self.input.looked_at()
            + len(self._mails)
            + waiting
            + working
            + (self._rest_of_batch is not None)
        )

    def metrics(self, state: ExecutionState) -> SubtaskMetrics:
        """The figures of this subtask. From any thread; they may be a batch apart."""
        return subtask_metrics(
            self,
            self.deployment,
            state,
            records=(self.records_in, self.records_out),
            times=(self.clock.now_ms(), self.clock.monotonic()),
            source=self.input,
            operators=self._operators,
            edges=self._edges,
            partitions=list(self._partitions),
            groups=list(self._metric_groups),
        )

    def at_rest_s(self) -> tuple[float, float]:
        """Seconds at rest because the output was blocked, and for want of input, with the rest that lasts."""
        return at_rest_s(self, self.clock.monotonic())

    def records_to_sinks(self) -> int:
        """Records written by the sinks of the chain."""
        return records_to_sinks(self._operators)

    def latencies(self) -> dict[str, Histogram]:
        """Per sink of the chain, how long latency markers took."""
        return latencies(self._operators)
