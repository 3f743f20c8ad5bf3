"""Base classes of operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from sluiceway.connector import Wait
from sluiceway.elements import MIN_WATERMARK, Batch, Element, LatencyMarker, Watermark
from sluiceway.functions import RuntimeContext
from sluiceway.isolation import extend_isolated, isolated, unchangeable_type
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.operator_state import FunctionStates
from sluiceway.operators.runtime_context import OperatorRuntimeContext
from sluiceway.operators.snapshot import OperatorSnapshot
from sluiceway.steps import SourceStep

__all__ = ["Operator", "Output", "TimedOperator"]


class Output(Protocol):
    """Output of an operator: receiver of its elements."""

    def emit(self, batch: Batch[Any]) -> None:
        """Receive a batch of the main output."""

    def side(self, tag: str, batch: Batch[Any]) -> None:
        """Receive a batch of a side output."""

    def control(self, element: Element) -> None:
        """Receive a control element, which goes to every output."""


def _as_it_is(value: Any, holders: int = 0) -> Any:
    return value


class Operator(ABC):
    """Base of operators: one step, or several fused ones, in one subtask. From the task's thread only.

    Call order: :meth:`initialize`, :meth:`open`, then :meth:`process`, :meth:`control` and
    :meth:`snapshots`; at the end :meth:`finish`; :meth:`close` once in any case. While :meth:`blocked` returns a
    wait, neither this operator nor one before it in the chain receives an element.

    Args:
        context: context of the operator.

    Attributes:
        shares: True if records are passed on without a copy because of the option ``object-reuse``.
        trusts: True if records are passed on without a copy because the type hint of the step's results promises
            that they cannot be changed.
        extend: ``extend(out, returned)`` appends to a list of results what a user's function has returned.
        isolate: ``isolate(value, holders)`` makes a result of a value that a user's function has returned: see
            :func:`sluiceway.isolation.isolated`.
    """

    def __init__(self, context: OperatorContext) -> None:
        self.context = context
        self.step_name = context.node.name
        self.output: Output
        self._function_states: dict[str, FunctionStates] = {}
        self.current_watermark = MIN_WATERMARK
        self.checkpoint_id = 0
        self.shares = context.settings.object_reuse
        self.trusts = not self.shares and unchangeable_type(context.node.output_type)
        self.extend: Callable[[list[Any], Iterable[Any]], None]
        self.isolate: Callable[..., Any]
        self._hand_over(free=self.shares or self.trusts)

    def _hand_over(self, *, free: bool) -> None:
        self.extend = list.extend if free else extend_isolated
        self.isolate = _as_it_is if free else isolated

    def distrust(self) -> None:
        """Copy records from now on: one did not match the type hint that promised an immutable type."""
        self.trusts = False
        self._hand_over(free=False)

    @property
    def waiting(self) -> int:
        """Number of batches that it has and that are in no snapshot: those of a sink that is blocked."""
        return 0

    @property
    def contexts(self) -> Sequence[OperatorContext]:
        """Contexts of the steps in this operator: one, or several for fused steps."""
        return (self.context,)

    def checkpointed(self, context: OperatorContext) -> Iterable[object]:
        """Return the user's objects of a step that may have operator state; after :meth:`initialize_state`."""
        return context.node.step.functions

    def runtime_context(self, context: OperatorContext) -> RuntimeContext:
        """Return the runtime context for the functions of a step."""
        # Only keyed operators have a store.
        return OperatorRuntimeContext(context, getattr(self, "store", None))

    def initialize(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Initialise the state of the operator, then that of its functions.

        Args:
            restored: the snapshots of all earlier subtasks, in order; those of other steps are ignored.
        """
        self.initialize_state([s for s in restored if s.uid == self.context.node.uid])
        for context in self.contexts:
            node = context.node
            # With the snapshots of all steps: a fused operator has several, each with lists of its own.
            states = FunctionStates(
                node.uid,
                context.subtask,
                node.parallelism,
                self.checkpointed(context),
                self.runtime_context(context),
                restored,
                context.key_groups if node.step.keyed else None,
            )
            self._function_states[node.uid] = states
            states.initialize()

    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Initialise the state from the snapshots of any number of earlier subtasks."""

    def open(self) -> None:
        """Open the user's function."""

    @abstractmethod
    def process(self, batch: Batch[Any]) -> None:
        """Process a batch and emit its results."""

    def receivers(self) -> Sequence[Callable[[Batch[Any]], None]]:
        """Return the functions that process batches, by input port."""
        return (self.process,)

    def control(self, element: Element) -> None:
        """Process a control element; the base emits it unchanged, after :meth:`advance` for a watermark."""
        if type(element) is Watermark:
            self.current_watermark = element.timestamp
            self.advance(element)
            return
        if type(element) is LatencyMarker:
            self.record_latency(element)
        self.output.control(element)

    def advance(self, watermark: Watermark) -> None:
        """Process what is due at :attr:`current_watermark`, then emit the watermark."""
        self.output.control(watermark)

    def record_latency(self, marker: LatencyMarker) -> None:
        """Record the latency of a marker."""
        elapsed = self.context.clock.monotonic() - marker.emitted_at
        self.context.metrics.histogram("latency").observe(elapsed)

    def blocked(self) -> Wait | None:
        """Return a wait that must end before the next batch, or None. For operators with external systems."""
        return None

    def pending_before_snapshot(self) -> Wait | None:
        """Return a wait between :meth:`before_barrier` and :meth:`snapshots`, or None."""
        return None

    def idle(self) -> None:
        """Flush buffered output; called when the input is empty for now."""

    def draining(self) -> Wait | None:
        """Return a wait between the end of the input and :meth:`finish`, or None."""
        return None

    def finish(self) -> None:
        """Emit buffered results; no record follows."""

    def settling(self) -> Wait | None:
        """Return a wait between :meth:`finish` and the end of the operator, or None. Asked until it is None."""
        return None

    @property
    def has_state(self) -> bool:
        """True if snapshots hold state other than the positions of a source's reader."""
        held = any(states.held for states in self._function_states.values())
        return held or (self.context.node.step.stateful and not isinstance(self.context.node.step, SourceStep))

    def before_barrier(self) -> None:
        """Flush to external systems before a checkpoint. May be called several times."""

    def snapshots(self, checkpoint_id: int = 0) -> list[OperatorSnapshot]:
        """Return the current state, one snapshot for each of the :attr:`contexts`.

        Args:
            checkpoint_id: id of the checkpoint; 0: no checkpoint of a coordinator.
        """
        # For operators whose snapshot() depends on the checkpoint, such as a sink's.
        self.checkpoint_id = checkpoint_id
        # snapshot_state() of the functions comes first, as it writes the lists that are copied below.
        for states in self._function_states.values():
            states.prepare(checkpoint_id, self.context.clock.now_ms())
        # Steps that are fused behind the first one have nothing but these lists.
        others = [OperatorSnapshot(context.node.uid) for context in self.contexts[1:]]
        return [
            replace(taken, lists=self._function_states[taken.uid].snapshot())
            for taken in (self.snapshot(), *others)
        ]

    def snapshot(self) -> OperatorSnapshot:
        """Return the operator's own current state."""
        return OperatorSnapshot(self.context.node.uid)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Notify the functions of the completion of a checkpoint that includes this operator."""
        for states in self._function_states.values():
            states.completed(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify the functions of an aborted checkpoint, whether or not this operator took part."""
        for states in self._function_states.values():
            states.aborted(checkpoint_id)

    def kept_time(self) -> Any:
        """Return event-time state that no checkpoint holds, for the successor in a live migration; or None."""
        return None

    def go_on_in_time(self, kept: Any) -> None:
        """Restore event-time state that :meth:`kept_time` has returned, after :meth:`open`."""

    def close(self) -> None:
        """Close the user's function and release resources."""


class TimedOperator(Operator):
    """Base of operators with timers or periodic work.

    Work is done in parts, so that a burst of timers does not delay mails and checkpoints. While
    :attr:`has_work` is true, the task calls :meth:`work` and passes no element to the operator.

    Attributes:
        has_work: True while a part is left.
        interruptible: True if a snapshot is correct while a part is left: then a checkpoint need not wait.
    """

    has_work: bool = False
    interruptible: ClassVar[bool] = False

    def in_processing_time(self, steady_ms: int) -> int:
        """Return the processing time, in ms since the epoch, of a reading of :meth:`Clock.steady_ms`.

        For times that durations lead to, such as timeouts: a step of the wall clock neither ends nor extends them.
        """
        clock = self.context.clock
        return clock.now_ms() + steady_ms - clock.steady_ms()

    def in_steady_time(self, now_ms: int) -> int:
        """Return the reading of :meth:`Clock.steady_ms` at a processing time, in ms since the epoch."""
        clock = self.context.clock
        return clock.steady_ms() + now_ms - clock.now_ms()

    def work(self) -> None:
        """Do one part of the work; clear :attr:`has_work` with the last one."""

    def next_processing_time(self) -> int | None:
        """Return the time of the next :meth:`on_processing_time`, in ms since the epoch; None: no call is due."""
        return None

    def on_processing_time(self, now_ms: int) -> None:
        """Process what is due; call when the clock has reached :meth:`next_processing_time`."""
