"""What every operator is: a step of a chain that takes elements and gives them on."""

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
    """Where an operator's elements go."""

    def emit(self, batch: Batch[Any]) -> None:
        """Take a batch of the main output."""

    def side(self, tag: str, batch: Batch[Any]) -> None:
        """Take a batch of a side output."""

    def control(self, element: Element) -> None:
        """Take a control element, for every output."""


def _as_it_is(value: Any, holders: int = 0) -> Any:
    return value


class Operator(ABC):
    """A step at work in one subtask. From the task's thread only.

    Call order: :meth:`initialize`, :meth:`open`, then :meth:`process`, :meth:`control` and
    :meth:`snapshots`; at the end :meth:`finish`; :meth:`close` once in any case. While :meth:`blocked` says to
    wait, neither this operator nor one before it in the chain is given anything.

    Args:
        context: what the task gives.

    Attributes:
        shares: whether records are handed on as they are, as the option ``object-reuse`` wants it.
        trusts: whether records are handed on as they are because the type hint of the step's results promises that
            they cannot be changed.
        extend: ``extend(out, returned)`` adds what a user's function has returned to a list of results.
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
        """Isolate records from now on: their type hint has promised what does not hold."""
        self.trusts = False
        self._hand_over(free=False)

    @property
    def contexts(self) -> Sequence[OperatorContext]:
        """Those of the steps at work here: one, but for steps that were made into one loop."""
        return (self.context,)

    def checkpointed(self, context: OperatorContext) -> Iterable[object]:
        """What the user gave to a step that may have operator state; looked at after :meth:`initialize_state`."""
        return context.node.step.functions

    def runtime_context(self, context: OperatorContext) -> RuntimeContext:
        """What the functions of a step are given."""
        return OperatorRuntimeContext(context, getattr(self, "store", None))

    def initialize(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Make all state, that of the operator and then that of its functions.

        Args:
            restored: the snapshots of all earlier subtasks, in order; those of other steps are left alone.
        """
        self.initialize_state([s for s in restored if s.uid == self.context.node.uid])
        for context in self.contexts:
            node = context.node
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
        """Make the state, from the snapshots of any number of earlier subtasks."""

    def open(self) -> None:
        """Open the user's function."""

    @abstractmethod
    def process(self, batch: Batch[Any]) -> None:
        """Take a batch and emit what it gives rise to."""

    def receivers(self) -> Sequence[Callable[[Batch[Any]], None]]:
        """What takes the batches of each input, by port."""
        return (self.process,)

    def control(self, element: Element) -> None:
        """Take a control element; on it goes, unless the operator says otherwise."""
        if type(element) is Watermark:
            self.current_watermark = element.timestamp
            self.advance(element)
            return
        if type(element) is LatencyMarker:
            self.record_latency(element)
        self.output.control(element)

    def advance(self, watermark: Watermark) -> None:
        """Event time has come to :attr:`current_watermark`: do what is due, then pass the watermark on."""
        self.output.control(watermark)

    def record_latency(self, marker: LatencyMarker) -> None:
        """Note how long a marker has been under way."""
        elapsed = self.context.clock.monotonic() - marker.emitted_at
        self.context.metrics.histogram("latency").observe(elapsed)

    def blocked(self) -> Wait | None:
        """What to wait for before the next batch, or None. Only operators with an outside have any."""
        return None

    def pending_before_snapshot(self) -> Wait | None:
        """What to wait for, after :meth:`before_barrier`, before state may be taken, or None."""
        return None

    def idle(self) -> None:
        """Input has run dry for now: hand on what was held for company."""

    def draining(self) -> Wait | None:
        """The input has ended: what to wait for before :meth:`finish`, or None."""
        return None

    def finish(self) -> None:
        """No more records: emit what is held."""

    @property
    def has_state(self) -> bool:
        """Whether there is anything in its snapshots, the positions of a source's reader apart."""
        held = any(states.held for states in self._function_states.values())
        return held or (self.context.node.step.stateful and not isinstance(self.context.node.step, SourceStep))

    def before_barrier(self) -> None:
        """A checkpoint is about to be taken: hand to the outside what is held for it. May come several times."""

    def snapshots(self, checkpoint_id: int = 0) -> list[OperatorSnapshot]:
        """All state as of now, one for each of the :attr:`contexts`.

        Args:
            checkpoint_id: what it is taken for; 0: no checkpoint of a coordinator's.
        """
        self.checkpoint_id = checkpoint_id
        for states in self._function_states.values():
            states.prepare(checkpoint_id, self.context.clock.now_ms())
        others = [OperatorSnapshot(context.node.uid) for context in self.contexts[1:]]
        return [
            replace(taken, lists=self._function_states[taken.uid].snapshot())
            for taken in (self.snapshot(), *others)
        ]

    def snapshot(self) -> OperatorSnapshot:
        """The operator's own state as of now."""
        return OperatorSnapshot(self.context.node.uid)

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """A checkpoint that this operator has taken part in is complete."""
        for states in self._function_states.values():
            states.completed(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up; this operator may have taken part or not."""
        for states in self._function_states.values():
            states.aborted(checkpoint_id)

    def kept_time(self) -> Any:
        """What it makes event time from, and no checkpoint has: for who goes on at once elsewhere. Maybe None."""
        return None

    def go_on_in_time(self, kept: Any) -> None:
        """Go on with what :meth:`kept_time` has given, after :meth:`open`."""

    def close(self) -> None:
        """Close the user's function and free what was opened."""


class TimedOperator(Operator):
    """An operator for which time matters: it has timers, or something to do now and then.

    What is due is done a part at a time, so that a burst of timers gives way to mails and to checkpoints. While
    :attr:`has_work` is true, the task calls :meth:`work` and gives the operator nothing else.

    Attributes:
        has_work: whether a part is left.
        interruptible: whether its snapshot is right while a part is left: then a checkpoint need not wait.
    """

    has_work: bool = False
    interruptible: ClassVar[bool] = False

    def work(self) -> None:
        """Do a part of what is left; clear :attr:`has_work` with the last one."""

    def next_processing_time(self) -> int | None:
        """When to be called next, in ms since the epoch; None: not at all."""
        return None

    def on_processing_time(self, now_ms: int) -> None:
        """The wall clock has come to :meth:`next_processing_time`, or passed it."""
