"""Subtask stepped by its caller instead of the worker loop."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from sluiceway.clock import Clock
from sluiceway.connector import Reader, ReaderContext, Wait
from sluiceway.connector.products import checked
from sluiceway.elements import MIN_WATERMARK, Batch, Element, EndOfData, EndOfPartition, Watermark
from sluiceway.engine import Services
from sluiceway.errors import JobCancelledError, StateError, UnknownNameError
from sluiceway.metrics import MetricGroup
from sluiceway.metrics.registry import counters_by_step, read_by_step
from sluiceway.network.result_partition import ResultPartition
from sluiceway.operators import (
    OperatorContext,
    OperatorSnapshot,
    TimestampsOperator,
)
from sluiceway.partitioner import Partitioner
from sluiceway.persisted import persisted
from sluiceway.runtime.failures.explanation import stand_in
from sluiceway.runtime.loop.async_calls import EventLoop
from sluiceway.runtime.loop.lazy_event_loop import LazyEventLoop
from sluiceway.runtime.loop.poller import Poller, SelectorPoller
from sluiceway.runtime.stepped.plan import SteppedPlan
from sluiceway.runtime.stepped.stepped_channels import QueueTransport
from sluiceway.runtime.task.channels import EdgeOutput, open_gate, open_partition, open_source, operator_context
from sluiceway.runtime.task.gate_input import GateInput
from sluiceway.runtime.task.metrics import records_to_sinks
from sluiceway.runtime.task.operator_chain import Blocked, OperatorChain
from sluiceway.runtime.task.source_input import SourceInput
from sluiceway.serializers.byvalue import dumps_with_classes
from sluiceway.serializers.program_classes import using
from sluiceway.state import StateBackend
from sluiceway.steps import AsyncStep, SourceStep
from sluiceway.streamgraph import StreamNode

__all__ = ["Position", "SteppedTask"]

_NAP_S: Final = 0.05
"""Longest wait for a source in seconds, before its caller is asked again whether to continue."""


@persisted("SubtaskPosition")
@dataclass(frozen=True, slots=True)
class Position:
    """Position of a subtask in its channels, beyond its state, for a successor.

    Attributes:
        ended: whether it has come to its end.
        watermarks: what its gate has heard of event time, as the gate's valve keeps it; None for a source.
        over: the senders that have come to their end.
        seqs: place of what is taken next of each channel out, in the order of the channels. Only its order counts:
            earlier versions counted how often something was taken.
        times: what event time is made from, pickled; empty: nothing.
    """

    ended: bool = False
    watermarks: Any = None
    over: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    times: bytes = b""


class SteppedTask:
    """Subtask of a vertex, stepped by its caller without transport and threads.

    Call order: :meth:`open`; then :meth:`feed` or :meth:`read`, :meth:`settle`, :meth:`take`, :meth:`snapshot`,
    :meth:`completed` as wanted; :meth:`close` once in any case. From one thread, except :meth:`wake` and
    :meth:`cancel`.

    Whatever a method has to wait for it waits for in the calling thread: a sink that takes no more, coroutines.
    What a user's function raises comes out of the method that gave rise to it, with the notes that a job adds;
    then only :meth:`close` is left.

    Args:
        plan: the job.
        vertex: id of the vertex.
        subtask: index of the subtask.
        state_backend: makes keyed state.
        clock: processing time.
        services: for partitioners of plugins; None where the job has none.
        attempt: number of the attempt.
        own: whether to work on copies of function objects, so that several subtasks can be made of one plan, and
            one of them several times; False: on those of the plan.
        event_loop: where coroutines run; None: in a thread of its own.
        reader: makes the reader of a source; None: the source does.
        calls_clock: for the deadlines of coroutines, if ``clock`` stands still; None: they have that.

    Attributes:
        ended: whether the input has ended and all of it was processed.
        records_in: records read or fed.
        records_out: records given to other subtasks.
        splits_wanted: how many splits a source's reader has asked for that it was not given.
        no_more: whether a source's reader was told that no splits will come.
    """

    def __init__(
        self,
        plan: SteppedPlan,
        vertex: int,
        subtask: int,
        *,
        state_backend: StateBackend,
        clock: Clock,
        services: Services | None = None,
        attempt: int = 0,
        own: bool = True,
        event_loop: EventLoop | None = None,
        reader: Callable[[ReaderContext], Reader[Any]] | None = None,
        calls_clock: Clock | None = None,
    ) -> None:
        self.plan = plan
        self.vertex = plan.graph.vertex(vertex)
        self.subtask = subtask
        self.clock = clock
        self.ended = False
        self.records_in = 0
        self.records_out = 0
        self.splits_wanted = 0
        self.no_more = False
        self.started = 0.0
        self._deployment = plan.deployment(vertex, subtask, attempt)
        self._state_backend = state_backend
        self._services = services
        self._own = own
        self._event_loop = event_loop or LazyEventLoop()
        self._create_reader = reader
        self._calls_clock = calls_clock or clock
        self._transport = QueueTransport(plan, vertex, subtask)
        self._poller: Poller | None = None
        self._woken = False
        self._cancelled = False
        self._now_ms: int | None = None
        self._metrics: list[tuple[str, MetricGroup]] = []
        self._partitions: list[ResultPartition] = []
        self._chain = OperatorChain(self.vertex.name, self.vertex.nodes, self.vertex.inner_edges, subtask)
        self._closed = False
        self.input: GateInput | SourceInput

    # ---- life -----------------------------------------------------------------------------------------------

    def open(self, restored: Sequence[OperatorSnapshot] = (), position: Position | None = None) -> None:
        """Initialise the state, and open the functions, the source's reader or the sink's writer.

        Args:
            restored: the state to go on with; empty for a first start.
            position: where the subtask was that has left that state; None: at the beginning.
        """
        with self._explaining():
            self._deployment = msgspec.structs.replace(self._deployment, restored=tuple(restored))
            self._build()
            self._chain.open(restored)
            if position is not None and position.ended and isinstance(self.input, SourceInput):
                self.input.end()
            else:
                self.input.open()
            # Timers that are due by now were not part of earlier output: they fire when the subtask continues.
            self._now_ms = None if position is None else MIN_WATERMARK
            try:
                self._free()
                if position is not None:
                    self._go_on_from(position)
            finally:
                self._now_ms = None

    def _build(self) -> None:
        d = self._deployment
        step = self.vertex.head.step
        if isinstance(step, SourceStep):
            self.input = open_source(d, step, self.clock, self._make_reader, float, lambda *told: None)
        else:
            gate = open_gate(d, self._transport, lambda gate, channel: gate.wake(channel))
            self._gate = gate
            self.input = GateInput(gate)
        outside: dict[int, list[tuple[str | None, EdgeOutput]]] = {}
        for output in d.outputs:
            services: Any = self._services or _WithoutPlugins()
            partition = open_partition(d, output, self._transport, services, lambda: None)
            self._partitions.append(partition)
            outside.setdefault(output.node, []).append((output.tag, EdgeOutput(self, partition)))
        self._chain.build(self._context, outside, copy=self._own)

    def _context(self, node: StreamNode) -> OperatorContext:
        clock = self._calls_clock if isinstance(node.step, AsyncStep) else self.clock
        context = operator_context(
            self._deployment, node, clock, self._state_backend, self.wake, float, self._event_loop.calls
        )
        self._metrics.append((node.name, context.metrics))
        return context

    def _make_reader(self) -> Reader[Any]:
        step = self.vertex.head.step
        assert isinstance(step, SourceStep)
        metrics = MetricGroup()
        self._metrics.append((self.vertex.head.name, metrics))
        context = ReaderContext(
            subtask=self.subtask,
            parallelism=self.vertex.parallelism,
            clock=self.clock,
            wake=self.wake,
            request_split=self._want_split,
            metrics=metrics,
        )
        create = self._create_reader or step.source.create_reader
        return checked(create(context), Reader, step.source, "create_reader")

    def _go_on_from(self, position: Position) -> None:
        for outbox, seq in zip(self._transport.outboxes, position.seqs, strict=True):
            outbox.seq = seq
        self.ended = position.ended
        if position.ended:
            return
        source, *others = pickle.loads(position.times) if position.times else [None]
        if isinstance(self.input, GateInput):
            self._gate.valve.restore(position.watermarks)
        else:
            self.input.go_on_in_time(source)
        if self.input.watermark > MIN_WATERMARK:
            # Timers due by then have fired; now the operators get the present time again.
            self._chain.control(Watermark(self.input.watermark))
            self._free()
        for operator, kept in zip(self._chain.operators, others, strict=False):
            if kept is not None:
                operator.go_on_in_time(kept)
                self._free()
        # Last, as the last end finishes the operators.
        for sender in position.over:
            self._feed(sender, [EndOfData(), EndOfPartition()])

    def position(self) -> Position:
        """Return the position; with :meth:`snapshot` it is all that a successor needs.

        Raises:
            StateError: a watermark generator cannot be pickled.
        """
        seqs = tuple(outbox.seq for outbox in self._transport.outboxes)
        if isinstance(self.input, SourceInput):
            return Position(self.ended, seqs=seqs, times=self._times(self.input.kept_time()))
        over = tuple(sender for sender, inbox in self._transport.inboxes.items() if inbox.ended)
        return Position(self.ended, self._gate.valve.snapshot(), over, seqs, self._times(None))

    def _times(self, source: Any) -> bytes:
        kept = [source, *(operator.kept_time() for operator in self._chain.operators)]
        if all(each is None for each in kept):
            return b""
        try:
            return dumps_with_classes(kept)
        except Exception as error:
            raise StateError(
                f"a watermark generator of {self.vertex.name!r} cannot be kept from one batch to the next, as it "
                f"cannot be pickled: {error}"
            ) from error

    def close(self) -> None:
        """Close functions and state, the reader or the writer. Harmless a second time.

        Raises:
            Exception: what a function has raised in closing; everything else is closed, too.
        """
        if self._closed:
            return
        self._closed = True
        others: list[tuple[str, Callable[[], None]]] = []
        # open() may have failed before.
        if hasattr(self, "input"):
            others.append((self.vertex.head.name, self.input.close))
        others.append((self.vertex.head.name, self._event_loop.close))
        if self._poller is not None:
            others.append((self.vertex.head.name, self._poller.close))
        cause = self._chain.close(None, others)
        if cause is not None:
            raise cause

    # ---- in -------------------------------------------------------------------------------------------------

    def feed(self, sender: int, elements: Iterable[Element]) -> None:
        """Process elements of a sender; watermarks, idleness and ends are merged over all senders.

        Behind the last sender's EndOfData everything is finished: see :attr:`ended`.

        Raises:
            ValueError: nobody of that number sends to this subtask.
        """
        with self._explaining():
            self._feed(sender, elements)

    def _feed(self, sender: int, elements: Iterable[Element]) -> None:
        inbox = self._transport.inboxes.get(sender)
        if inbox is None:
            raise ValueError(
                f"sender {sender} does not send to {self.vertex.name!r}, subtask {self.subtask + 1}: its senders "
                f"are {', '.join(map(str, sorted(self._transport.inboxes))) or 'none, it reads a source'}"
            )
        come = list(elements)
        inbox.ended = inbox.ended or any(type(element) is EndOfPartition for element in come)
        inbox.put(come)
        while not isinstance(element := self.input.read(), Wait):
            self._take_in(element)
        self._free()

    def read(self, limit: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Read from the source.

        Args:
            limit: about how many records to read; watermarks behind them belong to them.
            until: asked before each batch and a few times a second: whether that is enough.

        Returns:
            whether the input has ended, and all of it was processed.
        """
        source = self.input
        assert isinstance(source, SourceInput), f"{self.vertex.name!r} reads no source: feed it"
        most, until_records = self.plan.settings.batch_size, self.records_in + limit
        with self._explaining():
            while not self.ended:
                if not source.reads_ahead and (self.records_in >= until_records or until()):
                    break
                source.limit = max(1, min(most, until_records - self.records_in))
                element = source.read()
                if not isinstance(element, Wait):
                    self._take_in(element)
                    continue
                self._idle()
                if until():
                    break
                now = self.clock.monotonic()
                self._sleep(replace(element, until=min(now + _NAP_S, element.until or now + _NAP_S)), None)
            self._free()
        return self.ended

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Add splits to the source's reader."""
        assert isinstance(self.input, SourceInput)
        self.splits_wanted = 0
        with self._explaining():
            self.input.add_splits(splits)

    def no_more_splits(self) -> None:
        """Notify the source's reader that no splits will come."""
        assert isinstance(self.input, SourceInput)
        self.splits_wanted, self.no_more = 0, True
        with self._explaining():
            self.input.call_reader(lambda reader: reader.no_more_splits())

    def were_silent(self, split_ids: Iterable[str], ms: int) -> None:
        """Add time to that for which some splits of the source's reader have given no record."""
        assert isinstance(self.input, SourceInput)
        self.input.were_silent(split_ids, ms)

    def _want_split(self) -> None:
        if not self.no_more:
            self.splits_wanted += 1

    def _take_in(self, element: Element) -> None:
        # What is due comes before the element, as in a task.
        self._free()
        if type(element) is Batch:
            self.records_in += len(element.values)
            self._chain.process(element, self.input.port)
        elif type(element) is EndOfData:
            self._finish()
        elif type(element) is not EndOfPartition:
            self._chain.control(element)

    def _finish(self) -> None:
        """Finish the operators, then send the ends."""
        self._chain.start_finish()
        while self._chain.finishing:
            self._free()
            wait = self._chain.finish_next()
            if wait is not None:
                self._sleep(wait, None)
        self._free()
        for partition in self._partitions:
            partition.control(EndOfData())
            partition.control(EndOfPartition())
        self.ended = True

    # ---- between --------------------------------------------------------------------------------------------

    def settle(self, now_ms: int | None = None) -> None:
        """Do everything that is due, and wait for results in flight: the input is empty for now.

        Args:
            now_ms: processing time, ms since the epoch; None: the clock's.
        """
        with self._explaining():
            self._now_ms = now_ms
            try:
                self._settle()
            finally:
                self._now_ms = None

    def _settle(self) -> None:
        self._drain()
        for operator in self._chain.operators:
            # Each generator is asked when what the ones before it have made due is done.
            if not isinstance(operator, TimestampsOperator):
                continue
            self._chain.step = operator.step_name
            operator.ask()
            self._drain()
        self._idle()

    def _drain(self) -> None:
        while True:
            self._free()
            wait = self._chain.draining()
            if wait is None:
                return
            self._sleep(wait, None)

    def _idle(self) -> None:
        self._chain.flush()
        self._free()

    def _free(self) -> None:
        """Do everything that is due, and wait until every operator accepts input."""
        while (pending := self._chain.poll(self._now_ms)) is not None:
            if isinstance(pending, Blocked):
                self._sleep(pending.wait, pending.depth)
            else:
                pending()

    @property
    def due_ms(self) -> int | None:
        """Return the time of the next work without input, ms since the epoch; None: none."""
        # The interval of watermark generators is no reason to begin: settle() asks them anyway. Idleness is.
        times = [
            timed.idle_at if isinstance(timed, TimestampsOperator) else timed.next_processing_time()
            for timed in self._chain.timed
        ]
        if isinstance(self.input, SourceInput) and (idle_at := self.input.idle_at) is not None:
            times.append(self.clock.now_ms() + round((idle_at - self.clock.monotonic()) * 1000))
        return min((at for at in times if at is not None), default=None)

    # ---- out ------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Return the number of records for :meth:`take`, without those buffered for a full batch."""
        return sum(outbox.records for outbox in self._transport.outboxes)

    def take(self, least: int = 0) -> list[tuple[int, int, int, int, list[Element]]]:
        """Return output since the last call: stage, target, sender, place in the channel, elements.

        Columns of more than some megabytes come as several parts, at places that follow each other.

        Args:
            least: only of channels with so many records or more; 0: everything, what waits for company included.
        """
        if not least:
            for partition in self._partitions:
                partition.flush()
        boxes = [o for o in self._transport.outboxes if o.elements and o.records >= least]
        return [part for box in boxes for part in box.take()]

    def snapshot(self, checkpoint_id: int) -> list[OperatorSnapshot]:
        """Return the current state of every step, with the committables of a sink.

        What was given out and not taken is not in it: take it first, and keep it.
        """
        with self._explaining():
            if self._closed:
                raise StateError(f"{self.vertex.name!r}, subtask {self.subtask + 1}, was closed and has no state")
            while (wait := self._chain.prepare_snapshot()) is not None:
                self._sleep(wait, None)
            return self._chain.snapshot(checkpoint_id, drained=self.ended, splits=self.input.snapshot)

    def completed(self, checkpoint_id: int) -> None:
        """Handle the completion of a checkpoint: sinks commit, and functions are notified."""
        with self._explaining():
            self._chain.notify_checkpoint_completed(checkpoint_id)
            if isinstance(self.input, SourceInput):
                self.input.checkpoint_completed(checkpoint_id)

    @property
    def watermark(self) -> int:
        """Watermark of the input, in ms."""
        return self.input.watermark

    @property
    def records_to_sinks(self) -> int:
        """Number of records written by the sink."""
        return records_to_sinks(self._chain.operators)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the functions' own metrics, by step and name."""
        return read_by_step(self._metrics)

    def counters(self) -> dict[str, dict[str, int]]:
        """Return the functions' own counters, by step and name: those of :meth:`metrics` that can be added up."""
        return counters_by_step(self._metrics)

    # ---- waiting --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """End a wait of this subtask. From any thread."""
        self._woken = True
        if self._poller is not None:
            self._poller.wake()

    def cancel(self) -> None:
        """Cancel: any further wait raises JobCancelledError. From any thread."""
        self._cancelled = True
        self.wake()

    def _sleep(self, wait: Wait, depth: int | None) -> None:
        """Wait for ``wait``, until a timer of the last ``depth`` operators is due, or for less."""
        if self._poller is None:
            self._poller = SelectorPoller()
        if self._cancelled:
            raise JobCancelledError(f"job {self.plan.graph.job_name!r} was cancelled")
        if self._woken:  # only now: whoever has woken it before could not know the poller
            self._woken = False
            return
        if wait.fileno is not None:
            self._poller.watch(self, wait, lambda: None)
        limits = [] if wait.until is None else [wait.until - self.clock.monotonic()]
        if (in_s := self._chain.seconds_to_timer(self._calls_clock, depth)) is not None:
            limits.append(in_s)
        self._poller.poll(max(0.0, min(limits)) if limits else None)
        self._woken = False
        self._poller.forget(self)

    # ---- errors ---------------------------------------------------------------------------------------------

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        classes = self.plan.classes
        try:
            with nullcontext() if classes is None else using(classes):
                yield
        except Exception as error:
            explained = self._chain.explain(error)
            if explained is error:
                raise
            raise explained from error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            raise self._chain.explain(stand_in(error, self._chain.step)) from error


class _WithoutPlugins:
    """Services without plugins."""

    def partitioner(self, name: str) -> Partitioner:
        raise UnknownNameError(f"there is no partitioner {name!r} where there are no plugins")
