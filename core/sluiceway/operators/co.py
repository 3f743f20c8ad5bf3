"""Operators of functions of two connected streams: co-map, co-flat-map and co-process, keyed and not."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from sluiceway.elements import Batch
from sluiceway.isolation import ATOMS
from sluiceway.keygroups import check_key
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.process_base import FunctionOperator, KeyedProcessOperatorBase, ProcessOperatorBase
from sluiceway.operators.process_context import ProcessContext, Results
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.operators.two_inputs import TwoInputOperator
from sluiceway.record_errors import record_loop
from sluiceway.steps import CoFlatMapStep, CoMapStep, ConnectedStep
from sluiceway.util.overriding import override

__all__ = ["CoProcessOperator", "KeyedCoProcessOperator", "make_co_operator"]


def make_co_operator(context: OperatorContext) -> Operator:
    """Return the operator of a connected step: one with keyed state if both inputs are keyed."""
    step = context.node.step
    if isinstance(step, CoMapStep):
        return KeyedCoMapOperator(context) if step.keyed else CoMapOperator(context)
    if isinstance(step, CoFlatMapStep):
        return KeyedCoFlatMapOperator(context) if step.keyed else CoFlatMapOperator(context)
    return KeyedCoProcessOperator(context) if step.keyed else CoProcessOperator(context)


class _ConnectedOperator(TwoInputOperator):
    """Base of the operators of connected streams: the functions for the records of each input.

    Where records on which a function raises are skipped, other loops run: those called careful.
    """

    _dead: DeadLetters

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ConnectedStep)
        first, second = (_called(*step.function_of(port)) for port in (0, 1))
        self._call1: Callable[..., Any] = first
        self._call2: Callable[..., Any] = second

    def _reading(self, port: int) -> None:
        """Note the input whose records the next loop processes."""
        # Dead letters name their input, so that a replay feeds each record to the right one.
        self._dead.input = port

    def _emit(self, results: Results, batch: Batch[Any]) -> None:
        """Emit the results of a batch, and the dead letters of it."""
        if results.values:
            self.output.emit(results.batch(stamped=batch.timestamps is not None))
        self._dead.give(self.output)


def _called(fn: Any, method: str | None) -> Callable[..., Any]:
    called: Callable[..., Any] = fn if method is None else getattr(fn, method)
    return called


# ---- map ---------------------------------------------------------------------------------------------------


class CoMapOperator(_ConnectedOperator, FunctionOperator):
    """Operator that emits one record for each record of either input."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._dead = DeadLetters(context)

    @override
    def process1(self, batch: Batch[Any]) -> None:
        self._reading(0)
        self._map(self._call1, batch)

    @override
    def process2(self, batch: Batch[Any]) -> None:
        self._reading(1)
        self._map(self._call2, batch)

    def _map(self, call: Callable[[Any], Any], batch: Batch[Any]) -> None:
        if not self._dead.skipping:
            self.output.emit(Batch(self._loop(call, batch.values), batch.timestamps))
            return
        results = Results()
        # As a flat map with one result each: steps that skip need not be as fast.
        self._careful_loop(lambda value: (call(value),), batch, results)
        self._emit(results, batch)

    @record_loop
    def _loop(self, call: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        out: list[Any] = []
        atoms, isolate = ATOMS, self.isolate
        for value in values:
            # A function that returns its argument: the loop's variable and the batch hold it, too.
            made = call(value)
            out.append(made if type(made) in atoms else isolate(made, 2 if made is value else 0))
        return out

    @record_loop
    def _careful_loop(self, call: Callable[[Any], Iterable[Any]], batch: Batch[Any], results: Results) -> None:
        values, made, stamps = results.values, results.stamps, batch.timestamps
        extend = self.extend
        for index, value in enumerate(batch.values):
            before, timestamp = len(values), None if stamps is None else stamps[index]
            try:
                returned = call(value)
                extend(values, returned)
            except Exception as error:
                # What a generator has yielded before it raised is taken back.
                del values[before:]
                if not self._dead.take(error, value, timestamp):
                    raise
                continue
            if timestamp is not None:
                made.extend([timestamp] * (len(values) - before))


class _KeyedConnectedOperator(_ConnectedOperator, KeyedOperator):
    """Base of map and flat map with state per key, which differ in :meth:`_map`."""

    @override
    def process1(self, batch: Batch[Any]) -> None:
        self._reading(0)
        self._map(self._call1, self._key, batch)

    @override
    def process2(self, batch: Batch[Any]) -> None:
        self._reading(1)
        self._map(self._call2, self._key2, batch)

    @abstractmethod
    def _map(self, call: Callable[[Any], Any], key_of: Callable[[Any], Any], batch: Batch[Any]) -> None:
        """Call the function for each record of a batch and emit the results."""

    def _key_of(self, value: Any) -> Any:
        return (self._key2 if self._dead.input else self._key)(value)

    def _carefully(
        self, call: Callable[[Any], Iterable[Any]], key_of: Callable[[Any], Any], batch: Batch[Any]
    ) -> None:
        results = Results()
        try:
            self._careful_loop(call, key_of, batch, results)
        finally:
            self.store.clear_current_key()
        self._emit(results, batch)

    @record_loop
    def _careful_loop(
        self,
        call: Callable[[Any], Iterable[Any]],
        key_of: Callable[[Any], Any],
        batch: Batch[Any],
        results: Results,
    ) -> None:
        values, made, store = results.values, results.stamps, self.store
        keys, stamps = batch.keys, batch.timestamps
        extend = self.extend
        for index, value in enumerate(batch.values):
            before = len(values)
            try:
                if keys is None:
                    key = key_of(value)
                    check_key(key)  # senders pass records on that have no usable key, for this step to skip them
                else:
                    key = keys[index]
                store.current_key = key
                returned = call(value)
                extend(values, returned)
            except Exception as error:
                del values[before:]
                if not self._skips(error, batch, index):
                    raise
                continue
            if stamps is not None:
                made.extend([stamps[index]] * (len(values) - before))


class KeyedCoMapOperator(_KeyedConnectedOperator):
    """Operator that emits one record for each record of either input, with state per key."""

    def _map(self, call: Callable[[Any], Any], key_of: Callable[[Any], Any], batch: Batch[Any]) -> None:
        if self._dead.skipping:
            self._carefully(lambda value: (call(value),), key_of, batch)
            return
        out: list[Any] = []
        try:
            self._loop(call, key_of, batch, out)
        finally:
            self.store.clear_current_key()
        self.output.emit(Batch(out, batch.timestamps))

    @record_loop
    def _loop(
        self, call: Callable[[Any], Any], key_of: Callable[[Any], Any], batch: Batch[Any], out: list[Any]
    ) -> None:
        store, keys = self.store, batch.keys
        atoms, isolate = ATOMS, self.isolate
        for index, value in enumerate(batch.values):
            key = key_of(value) if keys is None else keys[index]
            store.current_key = key
            made = call(value)
            out.append(made if type(made) in atoms else isolate(made, 2 if made is value else 0))


# ---- flat map ----------------------------------------------------------------------------------------------


class CoFlatMapOperator(CoMapOperator):
    """Operator that emits any number of records for each record of either input."""

    def _map(self, call: Callable[[Any], Iterable[Any]], batch: Batch[Any]) -> None:
        results = Results()
        if self._dead.skipping:
            self._careful_loop(call, batch, results)
        else:
            self._flat_loop(call, batch, results)
        self._emit(results, batch)

    @record_loop
    def _flat_loop(self, call: Callable[[Any], Iterable[Any]], batch: Batch[Any], results: Results) -> None:
        values, made, stamps = results.values, results.stamps, batch.timestamps
        extend = self.extend
        for index, value in enumerate(batch.values):
            returned = call(value)
            extend(values, returned)
            if stamps is not None:
                made.extend([stamps[index]] * (len(values) - len(made)))


class KeyedCoFlatMapOperator(_KeyedConnectedOperator):
    """Operator that emits any number of records for each record of either input, with state per key."""

    def _map(self, call: Callable[[Any], Iterable[Any]], key_of: Callable[[Any], Any], batch: Batch[Any]) -> None:
        if self._dead.skipping:
            self._carefully(call, key_of, batch)
            return
        results = Results()
        try:
            self._loop(call, key_of, batch, results)
        finally:
            self.store.clear_current_key()
        self._emit(results, batch)

    @record_loop
    def _loop(
        self,
        call: Callable[[Any], Iterable[Any]],
        key_of: Callable[[Any], Any],
        batch: Batch[Any],
        results: Results,
    ) -> None:
        values, made, store = results.values, results.stamps, self.store
        keys, stamps = batch.keys, batch.timestamps
        extend = self.extend
        for index, value in enumerate(batch.values):
            key = key_of(value) if keys is None else keys[index]
            store.current_key = key
            returned = call(value)
            extend(values, returned)  # a generator runs here, while the key is still the record's
            if stamps is not None:
                made.extend([stamps[index]] * (len(values) - len(made)))


# ---- process -----------------------------------------------------------------------------------------------


class CoProcessOperator(_ConnectedOperator, FunctionOperator, ProcessOperatorBase):
    """Operator of process functions of two streams."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = ProcessContext(self)

    @override
    def process1(self, batch: Batch[Any]) -> None:
        self._reading(0)
        self._without_keys(self._call1, self._ctx, batch)

    @override
    def process2(self, batch: Batch[Any]) -> None:
        self._reading(1)
        self._without_keys(self._call2, self._ctx, batch)


class KeyedCoProcessOperator(_ConnectedOperator, KeyedProcessOperatorBase):
    """Operator of process functions of two keyed streams, with state and timers bound to the record's key."""

    def _key_of(self, value: Any) -> Any:
        return (self._key2 if self._dead.input else self._key)(value)

    @override
    def process1(self, batch: Batch[Any]) -> None:
        self._reading(0)
        self._with_keys(self._call1, self._key, batch)

    @override
    def process2(self, batch: Batch[Any]) -> None:
        self._reading(1)
        self._with_keys(self._call2, self._key2, batch)
