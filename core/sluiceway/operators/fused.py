"""Record-wise steps fused into one generated loop, so that a step costs the call of its function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.isolation import classes_in, separated, unchangeable_type
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.escape_analysis import (
    attributes_read,
    keeps_nothing,
    shares_attributes,
    yields_unchanged,
)
from sluiceway.operators.fused_loops import called_function, generate
from sluiceway.operators.opened_functions import Opened
from sluiceway.operators.skipped_records import DeadLetters, dead_letter_output
from sluiceway.steps import FilterStep, FlatMapStep

__all__ = ["FusedOperator"]

_FIRST_PART: Final = 64
_FEWEST_PARTS: Final = 2


class FusedOperator(Operator):
    """Operator that runs neighbouring record-wise steps in one loop.

    Args:
        contexts: one per step, in order.
    """

    def __init__(self, contexts: Sequence[OperatorContext]) -> None:
        super().__init__(contexts[0])
        self._contexts = contexts
        steps = [c.node.step for c in contexts]
        names = [c.node.name for c in contexts]
        self.step_name = names[0] if len(names) == 1 else " -> ".join(names)
        self._steps = steps
        self._dead = [DeadLetters(c, dead_letter_output(c.node, contexts[-1].node)) for c in contexts]
        self._skipping = [dead.skipping for dead in self._dead]
        takers = [dead.take for dead in self._dead if dead.skipping]
        self._functions: list[Callable[..., Any]] = [*(called_function(step) for step in steps), *takers]
        self._names = names
        self._opened = Opened()
        self._plain: Callable[..., None] | None = None
        self._stamped: Callable[..., None] | None = None
        self.trusts = not self.shares and unchangeable_type(contexts[-1].node.output_type)
        self._separates = False
        self._keeps = [not keeps_nothing(step.function) for step in steps]
        # Steps that may return what other objects than their record have, too, as the class of the record shows.
        self._shared: set[int] = set()
        self._read = [frozenset() if isinstance(s, FilterStep) else attributes_read(s.function) for s in steps]
        for i, before in enumerate(contexts[:-1], 1):
            self._look_at_class(i, before.node.output_type)
        # The first step that is given the records of a batch and may return parts of them.
        self._first = next((i for i, step in enumerate(steps) if not isinstance(step, FilterStep)), 0)
        self._classes: set[type] = set()
        # Later steps that read attributes, until the first record of each has shown of what.
        self._unseen: set[int] = set()
        self._guard()
        for i in range(self._first + 1, len(steps)):
            if self._read[i] and not (self._guarded[i] or self.shares or (self.trusts and i == len(steps) - 1)):
                self._unseen.add(i)
                self._functions[i] = self._looking(i, self._functions[i])
        if self._unseen:
            self._guard()
        self._multiplies = any(isinstance(step, FlatMapStep) for step in steps)
        # Records per part. Unknown before the first batch, as steps may return any number of records for one.
        self._part = _FIRST_PART if self._multiplies else sys.maxsize

    def _guard(self) -> None:
        """Find the steps whose results must be isolated."""
        keeps = [
            not self.shares and (keeps or i in self._shared or i in self._unseen)
            for i, keeps in enumerate(self._keeps)
        ]
        last = len(self._steps) - 1
        ends_in_many = isinstance(self._steps[last], FlatMapStep)
        self._guarded = [
            # Results of one call may share objects, too.
            keep or (not self.shares and i < last and isinstance(step, FlatMapStep))
            for i, (keep, step) in enumerate(zip(keeps, self._steps, strict=True))
        ]
        if self.trusts:
            self._guarded[last] = False
        # Results of a last flat_map that keeps nothing are compared with one another a batch at a time.
        self._separates = ends_in_many and not (self.shares or self.trusts or self._guarded[last])
        self._lazy = not self._separates or yields_unchanged(self._steps[last].function)
        self._plain = self._stamped = None

    def _look_at_class(self, index: int, cls: object) -> None:
        """Note whether a step reads attributes that objects of a class may share."""
        if isinstance(cls, type) and shares_attributes(cls, self._read[index]):
            self._shared.add(index)

    def _look_at_records(self, values: Sequence[Any]) -> None:
        """Check the classes in the first and the last record, of which a step reads attributes."""
        if self._first in self._shared:
            return
        new = (classes_in(values[0]) | classes_in(values[-1])) - self._classes
        if new:
            self._classes |= new
            for cls in new:
                self._look_at_class(self._first, cls)
            if self._first in self._shared:
                self._guard()

    def _looking(self, index: int, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function of a step for the first batch: it checks the classes in its first record."""

        def look(value: Any) -> Any:
            if index in self._unseen:
                self._unseen.remove(index)
                for cls in classes_in(value):
                    self._look_at_class(index, cls)
                self._functions[index] = function
                self._guard()  # the loop that runs isolates the results of this step in any case
            return function(value)

        return look

    def distrust(self) -> None:
        """Copy records from now on."""
        super().distrust()
        self._guard()

    @property
    def contexts(self) -> Sequence[OperatorContext]:
        """Contexts of all steps in the loop."""
        return self._contexts

    def open(self) -> None:
        """Open the functions, last step first."""
        for context in reversed(self._contexts):
            self._opened.open(context.node.step.function, context)

    def process(self, batch: Batch[Any]) -> None:
        """Run the loop over the batch, in parts if steps return many results per record."""
        values, stamps, part = batch.values, batch.timestamps, self._part
        if self._read[self._first] and values:
            self._look_at_records(values)
        parts = round(len(values) / part)
        if parts < _FEWEST_PARTS:
            self._run(batch)
            return
        # Equal parts, so that none is left over that is small.
        part = -(-len(values) // parts)
        for start in range(0, len(values), part):
            end = start + part
            self._run(Batch(values[start:end], None if stamps is None else stamps[start:end]))

    def _run(self, batch: Batch[Any]) -> None:
        out: list[Any] = []
        if batch.timestamps is None:
            if self._plain is None:
                self._plain = self._generate(stamped=False)
            self._plain(batch.values, None, out, None, *self._functions)
            if out:
                self.output.emit(Batch(separated(out) if self._separates else out))
        else:
            if self._stamped is None:
                self._stamped = self._generate(stamped=True)
            stamps: list[int] = []
            self._stamped(batch.values, batch.timestamps, out, stamps, *self._functions)
            if out:
                self.output.emit(Batch(separated(out) if self._separates else out, stamps))
        for dead in self._dead:
            dead.give(self.output)
        if self._multiplies:
            # A much larger batch does not stay in the processor's cache from step to step.
            full = self.context.settings.batch_size
            # A little more than a full batch: a smaller one would be buffered at the output, and copied.
            self._part = max(1, min(full, len(batch.values) * full * 9 // (8 * max(1, len(out))) + 1))

    def _generate(self, *, stamped: bool) -> Callable[..., None]:
        return generate(self._steps, self._names, self._skipping, self._guarded, stamped=stamped, lazy=self._lazy)

    def close(self) -> None:
        """Close the functions that were opened."""
        self._opened.close()
