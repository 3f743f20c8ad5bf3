"""Head of an iteration: admits records and feedback, and detects when the loop is empty.

After its inputs have ended, a head sends a probe round the loop behind the last record. A task forwards the probe
when all its channels have delivered it, so it returns after every record that was before it. If no record returned
in the meantime, none was left for this head. Records may move from one head to another on their way, one head a
round, so a head is done after as many quiet rounds as there are heads; a probe carries the lowest number of quiet
rounds of all heads that it passed.

The last watermark is admitted when the loop is empty for the first time: no record of a bounded input is late on
its way round. What timers and windows emit for it may return again, so the same quiet is awaited once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from sluiceway.elements import MAX_WATERMARK, Batch, Element, TerminationProbe, Watermark
from sluiceway.errors import StateError
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.record_errors import record_loop

__all__ = ["IterationHeadOperator"]


class IterationHeadOperator(Operator):
    """Operator that passes records on until the loop is empty."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.on_quiet: Callable[[], None] = lambda: None
        # Whether a record has passed since the last probe was sent.
        self._seen = False
        self._probing = False
        self._end_of_time: Watermark | None = None

    def process(self, batch: Batch[Any]) -> None:
        """Send records into the loop."""
        self._seen = True
        # Keys in the batch belong to the edge that it arrived on.
        self.output.emit(Batch(batch.values, batch.timestamps))

    def inputs_ended(self) -> None:
        """Start to probe: no record from outside follows."""
        self._probing = True
        self._send(0)

    def advance(self, watermark: Watermark) -> None:
        """Hold back the last watermark while the loop has records; watermarks of feedback channels are ignored."""
        if watermark.timestamp == MAX_WATERMARK:
            self._end_of_time = watermark
        else:
            self.output.control(watermark)

    def control(self, element: Element) -> None:
        """Process the own probe; drop a probe of another loop, as no record of this one returns to it."""
        if type(element) is not TerminationProbe:
            super().control(element)
        elif element.iteration == self.context.node.uid and self._probing:
            rounds = 0 if self._seen else element.quiet_rounds + 1
            heads = self.context.node.parallelism
            if rounds >= heads and self._end_of_time is not None:
                self.output.control(self._end_of_time)
                self._end_of_time = None
            # The same number of quiet rounds again, for what the last watermark has made others emit.
            if rounds >= 2 * heads:
                self._probing = False
                self.on_quiet()
            else:
                self._send(rounds)

    @record_loop
    def refuse(self, batch: Batch[Any]) -> NoReturn:
        """Raise StateError: a record has returned after the end of the loop."""
        value = batch.values[0]  # noqa: F841 (for the message, by its name)
        raise StateError(
            f"iteration {self.step_name!r} received a record after its end: when the input of a loop has ended "
            "and no record is left in it, pending processing-time timers fire at once, and their results cannot "
            "enter the loop any more. Use event-time timers, or end the input after the timers have fired"
        )

    def _send(self, rounds: int) -> None:
        self._seen = False
        self.output.control(TerminationProbe(self.context.node.uid, rounds))
