"""Operators that split a stream in two by a predicate, keyed and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.elements import Batch
from sluiceway.functions import FilterFunction
from sluiceway.isolation import ATOMS
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed import KeyedOperator, checking
from sluiceway.operators.process_base import FunctionOperator
from sluiceway.operators.process_context import Results
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.record_errors import record_loop
from sluiceway.steps import REST
from sluiceway.util.overriding import override

__all__ = ["BranchOperator", "KeyedBranchOperator"]


class _BranchOperatorBase(Operator):
    """Base of the operators that emit a record to the main output or to the side output :data:`REST`."""

    _dead: DeadLetters

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        fn: Any = context.node.step.function
        self._test: Callable[[Any], object] = fn.filter if isinstance(fn, FilterFunction) else fn
        # The type hint that is trusted may be that of the main output alone, as by a TypeGuard.
        if self.trusts:
            self.distrust()

    def _emit(self, batch: Batch[Any], chosen: Results, rest: Results) -> None:
        stamped = batch.timestamps is not None
        if rest.values:
            self.output.side(REST.name, rest.batch(stamped=stamped))
        if chosen.values:
            self.output.emit(chosen.batch(stamped=stamped))
        self._dead.give(self.output)


class BranchOperator(_BranchOperatorBase, FunctionOperator):
    """Operator on a stream without keys."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._dead = DeadLetters(context)

    @override
    def process(self, batch: Batch[Any]) -> None:
        chosen, rest = Results(), Results()
        self._split(batch, chosen, rest)
        self._emit(batch, chosen, rest)

    @record_loop
    def _split(self, batch: Batch[Any], chosen: Results, rest: Results) -> None:
        test, stamps, atoms, isolate = self._test, batch.timestamps, ATOMS, self.isolate
        for index, value in enumerate(batch.values):
            timestamp = None if stamps is None else stamps[index]
            try:
                to = chosen if test(value) else rest
                if type(value) not in atoms:
                    value = isolate(value, 1)
            except Exception as error:
                if not self._dead.take(error, value, timestamp):
                    raise
                continue
            to.values.append(value)
            if timestamp is not None:
                to.stamps.append(timestamp)


class KeyedBranchOperator(_BranchOperatorBase, KeyedOperator):
    """Operator on a keyed stream, whose function object may have state per key."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        # Senders pass records on that have no usable key, for this step to skip them.
        if self._dead.skipping:
            self._key = checking(self._key)

    @override
    def process(self, batch: Batch[Any]) -> None:
        chosen, rest = Results(), Results()
        try:
            self._split(batch, chosen, rest)
        finally:
            self.store.clear_current_key()
        self._emit(batch, chosen, rest)

    @record_loop
    def _split(self, batch: Batch[Any], chosen: Results, rest: Results) -> None:
        test, store, key_of, keys, stamps = self._test, self.store, self._key, batch.keys, batch.timestamps
        atoms, isolate = ATOMS, self.isolate
        for index, value in enumerate(batch.values):
            timestamp = None if stamps is None else stamps[index]
            try:
                key = key_of(value) if keys is None else keys[index]
                store.current_key = key
                to = chosen if test(value) else rest
                if type(value) not in atoms:
                    value = isolate(value, 1)
            except Exception as error:
                if not self._skips(error, batch, index):
                    raise
                continue
            to.values.append(value)
            if timestamp is not None:
                to.stamps.append(timestamp)
