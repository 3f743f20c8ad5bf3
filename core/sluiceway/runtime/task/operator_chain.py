"""Operator chain: the operators of one subtask, driven as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import msgspec

from sluiceway.clock import Clock
from sluiceway.connector import Wait
from sluiceway.elements import Batch, Element
from sluiceway.errors import StateError
from sluiceway.operators import (
    Operator,
    OperatorContext,
    OperatorSnapshot,
    TimedOperator,
    build_operators,
    own_copy,
)
from sluiceway.operators.build import EdgeOutput
from sluiceway.runtime.failures.explanation import close_each, explain_failure
from sluiceway.streamgraph import StreamEdge, StreamNode

__all__ = ["Blocked", "OperatorChain", "Work"]

Work: TypeAlias = Callable[[], None]
"""One part of an operator's pending work; a checkpoint or a mail may come between two parts."""


class Blocked(msgspec.Struct, frozen=True):
    """Operator that accepts no input yet.

    Attributes:
        wait: event to wait for.
        depth: number of operators from the tail up to and including this one. Their timers may fire meanwhile;
            those further upstream would emit into the blocked operator.
    """

    wait: Wait
    depth: int


class OperatorChain:
    """Operators of one subtask, from :meth:`open` to :meth:`close`.

    Empty until :meth:`build`: every other method is then a no-op. Call order: :meth:`build`, :meth:`open`; then
    :meth:`process` and :meth:`control`, each only after :meth:`poll` has returned None; :meth:`start_finish` and
    :meth:`finish_next` at the end of the input; :meth:`close` once in any case. From the task's thread.

    The chain never waits. Where an operator has to, a method returns the :class:`~sluiceway.connector.Wait`, and
    the caller calls again: a task parks, a stepped task sleeps, a harness lets virtual time pass.

    Args:
        name: name of the chain, for messages.
        nodes: the chained nodes in topological order.
        edges: the edges between them.
        subtask: index of the subtask.

    Attributes:
        operators: head first.
        timed: operators with timers, tail first.
        step: name of the step that is running, which errors and log lines report; between elements the head's.
        parallelism: number of subtasks.
    """

    def __init__(self, name: str, nodes: Sequence[StreamNode], edges: Sequence[StreamEdge], subtask: int) -> None:
        self.operators: list[Operator] = []
        self.timed: list[TimedOperator] = []
        self.step = self._head_step = nodes[0].name
        self.parallelism = nodes[0].parallelism
        self._name = name
        self._nodes = nodes
        self._edges = edges
        self._subtask = subtask
        self._backward: list[Operator] = []
        self._polled: list[tuple[int, Operator, TimedOperator | None]] = []
        self._receivers: Sequence[Callable[[Batch[Any]], None]] = ()
        self._watchers: list[Callable[[Batch[Any], int], None]] = []
        self._unfinished: deque[Operator] = deque()
        # Whether the first of these has finished, and may wait for what it has given away.
        self._settling = False
        self._closed = False

    def build(
        self,
        context: Callable[[StreamNode], OperatorContext],
        outside: Mapping[int, Sequence[tuple[str | None, EdgeOutput]]],
        *,
        copy: bool,
    ) -> None:
        """Create the operators, connected to one another and to the outputs.

        Args:
            context: makes the context of a node.
            outside: per node id, the outputs that leave the chain, each with its side-output tag or None.
            copy: whether to copy the user's function objects, which two subtasks must not share.

        Raises:
            GraphError: a function object cannot be copied, or there is no operator for a step.
        """
        # own_copy() gives subtask 0 the originals.
        nodes = [own_copy(node, 1 if copy else 0) for node in self._nodes]
        self.operators = build_operators(nodes, self._edges, context, outside)
        self._receivers = self.head.receivers()
        self._backward = self.operators[::-1]
        self.timed = [o for o in self._backward if isinstance(o, TimedOperator)]
        # Most operators have neither timers nor external systems, and need no check before each batch.
        for depth, operator in enumerate(self._backward, 1):
            timed = operator if isinstance(operator, TimedOperator) else None
            if timed is not None or type(operator).blocked is not Operator.blocked:
                self._polled.append((depth, operator, timed))

    @property
    def head(self) -> Operator:
        """First operator."""
        return self.operators[0]

    # ---- life -----------------------------------------------------------------------------------------------

    def open(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Initialise state from head to tail, then open the operators from tail to head.

        An operator may emit as soon as it is open, so the operators behind it are opened first.

        Args:
            restored: snapshots of earlier subtasks, in order; each operator picks its own.
        """
        for operator in self.operators:
            self.step = operator.step_name
            operator.initialize(restored)
        for operator in self._backward:
            self.step = operator.step_name
            operator.open()
        self.enter_head()

    def start_finish(self) -> None:
        """Begin to finish the operators: the input has ended. Then call :meth:`finish_next`."""
        # One at a time, head to tail: what an operator emits at its end goes through those behind it before they
        # finish.
        self._unfinished.extend(self.operators)

    @property
    def finishing(self) -> bool:
        """True while an operator is left to finish."""
        return bool(self._unfinished)

    def finish_next(self) -> Wait | None:
        """Finish the next operator, head to tail; or return what it waits for, before that or in it.

        What it emits may leave work in the operators behind it: call :meth:`poll` before the next one.
        """
        operator = self._unfinished[0]
        self.step = operator.step_name
        if not self._settling:
            wait = operator.draining()
            if wait is not None:
                return wait
            operator.finish()
            self._settling = True
        wait = operator.settling()
        if wait is None:
            self._settling = False
            self._unfinished.popleft()
        return wait

    def close(
        self,
        cause: BaseException | None = None,
        others: Iterable[tuple[str, Callable[[], None]]] = (),
        passed_on: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
    ) -> BaseException | None:
        """Close the operators, tail to head, whatever was opened of them.

        Args:
            cause: why the task ends; None: it has finished, or was cancelled.
            others: steps and functions that close what else belongs to the task, called last.
            passed_on: kinds of exceptions that are raised at once.

        Returns:
            the cause, with a note for each error in closing; without a cause the first of those errors, if any.
        """
        self._closed = True
        closes = [(operator.step_name, operator.close) for operator in self._backward]
        return close_each([*closes, *others], cause, self.explain, passed_on)

    # ---- elements -------------------------------------------------------------------------------------------

    def enter_head(self) -> None:
        """Set the head's step as the one that errors and log lines report."""
        self.step = self._head_step

    def process(self, batch: Batch[Any], port: int = 0) -> None:
        """Pass a batch down the chain; ``port`` is the head's input that it belongs to."""
        self._receivers[port](batch)

    def watch(self, look: Callable[[Batch[Any], int], None]) -> Callable[[], None]:
        """Show each batch of the head's input, and its port, to a function before the head takes it.

        Nothing is paid for this while nobody watches: the receivers of the head are exchanged for the time.

        Args:
            look: must not raise, and must not change the batch.

        Returns:
            ends it; harmless twice.
        """
        self._watchers.append(look)
        self._connect_receivers()

        def end() -> None:
            if look in self._watchers:
                self._watchers.remove(look)
                self._connect_receivers()

        return end

    @property
    def watchers(self) -> int:
        """Number of functions that are shown the batches."""
        return len(self._watchers)

    def _connect_receivers(self) -> None:
        receivers = self.head.receivers()
        for look in self._watchers:
            receivers = [_shown(look, port, receive) for port, receive in enumerate(receivers)]
        self._receivers = receivers

    def control(self, element: Element) -> None:
        """Pass a watermark or another control element down the chain."""
        self.operators[0].control(element)

    def flush(self) -> None:
        """Flush buffered output: the input is empty for now."""
        for operator in self.operators:
            self.step = operator.step_name
            operator.idle()
        self.enter_head()

    def draining(self) -> Wait | None:
        """Return the wait of the first operator with results in flight, without finishing it."""
        for operator in self.operators:
            self.step = operator.step_name
            wait = operator.draining()
            if wait is not None:
                return wait
        return None

    # ---- time -----------------------------------------------------------------------------------------------

    def poll(self, now_ms: int | None = None) -> Work | Blocked | None:
        """Return the work or the wait that precedes the head's next element; None: neither.

        Operators are asked from tail to head, so that none is given what it cannot take. :attr:`step` is the step
        in question, or the head's after None.

        Args:
            now_ms: processing time that timers fire up to, ms since the epoch; None: each operator's clock.
        """
        for depth, operator, timed in self._polled:
            self.step = operator.step_name
            if timed is not None:
                if timed.has_work:
                    return partial(self._work, timed)
                due = timed.next_processing_time()
                if due is not None:
                    now = timed.context.clock.now_ms() if now_ms is None else now_ms
                    if due <= now:
                        return partial(self._fire, timed, now)
            wait = operator.blocked()
            if wait is not None:
                return Blocked(wait, depth)
        self.enter_head()
        return None

    def blocked(self) -> Wait | None:
        """Return the wait of the last operator that accepts no input, whatever work is pending; or None."""
        for _, operator, _ in self._polled:
            self.step = operator.step_name
            wait = operator.blocked()
            if wait is not None:
                return wait
        return None

    def begun_work(self) -> tuple[Work | None, Wait | None]:
        """Return the next part of work that has begun, and what an operator behind it waits for.

        Unlike :meth:`poll` this starts nothing: timers of processing time that are due are left alone.
        """
        blocked: Wait | None = None
        # The wait of the operator nearest to the tail counts, and only for work further upstream, which would emit
        # into it.
        for _, operator, timed in self._polled:
            if timed is not None and timed.has_work:
                return partial(self._work, timed), blocked
            if blocked is None:
                self.step = operator.step_name
                blocked = operator.blocked()
        return None, blocked

    @property
    def interruptible(self) -> bool:
        """True if state may be taken while started work is unfinished."""
        return all(operator.interruptible for operator in self.timed if operator.has_work)

    def pending_work(self) -> int:
        """Return the number of operators with work that has begun, and of batches that wait for sinks."""
        return sum(operator.has_work for operator in self.timed) + sum(each.waiting for each in self.operators)

    def next_timer(self, clock: Clock, depth: int | None = None) -> int | None:
        """Return the time of the next processing-time timer, ms since the epoch; None: no timer is set.

        Args:
            clock: only operators with this clock count.
            depth: only this many operators from the tail count; None: all.
        """
        at = [
            operator.next_processing_time()
            for operator in self._backward[:depth]
            if isinstance(operator, TimedOperator) and operator.context.clock is clock
        ]
        return min((each for each in at if each is not None), default=None)

    def seconds_to_timer(self, clock: Clock, depth: int | None = None) -> float | None:
        """Return the seconds until :meth:`next_timer`, 0 if it is due; None: no timer is set."""
        at = self.next_timer(clock, depth)
        return None if at is None else max(0, at - clock.now_ms()) / 1000

    def _work(self, operator: TimedOperator) -> None:
        self.step = operator.step_name
        operator.work()

    def _fire(self, operator: TimedOperator, now_ms: int) -> None:
        self.step = operator.step_name
        operator.on_processing_time(now_ms)

    # ---- checkpoints ----------------------------------------------------------------------------------------

    def prepare_snapshot(self) -> Wait | None:
        """Flush what sinks hold before a snapshot; return what to wait for before calling this again, or None."""
        # All operators flush before the first wait is returned, so that several external systems flush at the same
        # time.
        for operator in self.operators:
            self.step = operator.step_name
            operator.before_barrier()
        for operator in self.operators:
            self.step = operator.step_name
            wait = operator.pending_before_snapshot()
            if wait is not None:
                return wait
        return None

    def snapshot(
        self,
        checkpoint_id: int,
        *,
        drained: bool = False,
        splits: Callable[[int], Sequence[Any] | None] = lambda checkpoint_id: None,
    ) -> list[OperatorSnapshot]:
        """Return the state of every step as of now, head first.

        Args:
            checkpoint_id: the checkpoint that it is taken for; 0: none of a coordinator's.
            drained: whether all input was processed.
            splits: returns the splits of the source's reader for the checkpoint; None: the chain begins with no
                source.

        Raises:
            StateError: the chain was closed, and a step had state.
        """
        # A closed task can still be asked for a snapshot without a checkpoint; without state the answer is known.
        if self._closed:
            return self._empty_snapshots()
        taken: list[OperatorSnapshot] = []
        for operator in self.operators:
            self.step = operator.step_name
            taken += operator.snapshots(checkpoint_id)
        self.enter_head()
        read = splits(checkpoint_id)
        if read is not None:
            taken[0] = OperatorSnapshot(taken[0].uid, splits=tuple(read))
        return [
            replace(each, subtask=self._subtask, parallelism=self.parallelism, drained=drained) for each in taken
        ]

    def _empty_snapshots(self) -> list[OperatorSnapshot]:
        for operator in self.operators:
            if operator.has_state:
                raise StateError(
                    f"step {operator.step_name!r} has finished in subtask {self._subtask + 1} and its state "
                    "is gone: take a snapshot while all steps with state are running"
                )
        return [OperatorSnapshot(context.node.uid) for o in self.operators for context in o.contexts]

    def notify_checkpoint_completed(self, checkpoint_id: int) -> None:
        """Have sinks commit what was ready for this checkpoint, and notify the functions."""
        for operator in self.operators:
            self.step = operator.step_name
            operator.checkpoint_completed(checkpoint_id)
        self.enter_head()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Notify sinks and functions of an aborted checkpoint, whether or not they took part."""
        for operator in self.operators:
            self.step = operator.step_name
            operator.checkpoint_aborted(checkpoint_id)
        self.enter_head()

    # ---- errors ---------------------------------------------------------------------------------------------

    def explain(self, error: BaseException, step: str = "") -> BaseException:
        """Return the error to raise: with notes that name step, subtask and record.

        Args:
            error: raised in this chain or in its input.
            step: name of the step at fault if the traceback does not tell; empty: :attr:`step`.
        """
        return explain_failure(
            error,
            vertex=self._name,
            step=step or self.step,
            subtask=self._subtask,
            parallelism=self.parallelism,
        )


def _shown(
    look: Callable[[Batch[Any], int], None], port: int, receive: Callable[[Batch[Any]], None]
) -> Callable[[Batch[Any]], None]:
    def take(batch: Batch[Any]) -> None:
        look(batch, port)
        receive(batch)

    return take
