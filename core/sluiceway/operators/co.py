"""Functions of two connected streams at work: co-map, co-flat-map and co-process, keyed and not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sluiceway.elements import Batch
from sluiceway.faults import record_loop
from sluiceway.operators.base import Operator, OperatorContext
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.processcontext import ProcessContext, Results
from sluiceway.operators.processing import FunctionOperator, KeyedProcessingOperator, ProcessingOperator
from sluiceway.operators.twoinputs import TwoInputOperator
from sluiceway.steps import CoFlatMapStep, CoMapStep, ConnectedStep

__all__ = ["CoProcessOperator", "KeyedCoProcessOperator", "make_co_operator"]


def make_co_operator(context: OperatorContext) -> Operator:
    """The operator of a connected step: one with keyed state if both inputs are keyed."""
    step = context.node.step
    if isinstance(step, CoMapStep):
        return KeyedCoMapOperator(context) if step.keyed else CoMapOperator(context)
    if isinstance(step, CoFlatMapStep):
        return KeyedCoFlatMapOperator(context) if step.keyed else CoFlatMapOperator(context)
    return KeyedCoProcessOperator(context) if step.keyed else CoProcessOperator(context)


class _ConnectedOperator(TwoInputOperator):
    """Base of all here: what is called for the records of each input."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ConnectedStep)
        first, second = (_called(*step.function_of(port)) for port in (0, 1))
        self._call1: Callable[..., Any] = first
        self._call2: Callable[..., Any] = second


def _called(fn: Any, method: str | None) -> Callable[..., Any]:
    called: Callable[..., Any] = fn if method is None else getattr(fn, method)
    return called


# ---- map ---------------------------------------------------------------------------------------------------


class CoMapOperator(_ConnectedOperator, FunctionOperator):
    """One record out for each one of either input."""

    def process1(self, batch: Batch[Any]) -> None:
        """Map a batch of the first input."""
        self.output.emit(Batch(self._loop(self._call1, batch.values), batch.timestamps))

    def process2(self, batch: Batch[Any]) -> None:
        """Map a batch of the second input."""
        self.output.emit(Batch(self._loop(self._call2, batch.values), batch.timestamps))

    @record_loop
    def _loop(self, call: Callable[[Any], Any], values: list[Any]) -> list[Any]:
        out: list[Any] = []
        for value in values:
            out.append(call(value))
        return out


class KeyedCoMapOperator(_ConnectedOperator, KeyedOperator):
    """The same, with state per key."""

    def process1(self, batch: Batch[Any]) -> None:
        """Map a batch of the first input."""
        self._map(self._call1, self._key, batch)

    def process2(self, batch: Batch[Any]) -> None:
        """Map a batch of the second input."""
        self._map(self._call2, self._key2, batch)

    def _map(self, call: Callable[[Any], Any], key_of: Callable[[Any], Any], batch: Batch[Any]) -> None:
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
        for index, value in enumerate(batch.values):
            key = key_of(value) if keys is None else keys[index]
            store.current_key = key
            out.append(call(value))


# ---- flat map ----------------------------------------------------------------------------------------------


class CoFlatMapOperator(_ConnectedOperator, FunctionOperator):
    """Any number of records out for each one of either input."""

    def process1(self, batch: Batch[Any]) -> None:
        """Map a batch of the first input."""
        self._map(self._call1, batch)

    def process2(self, batch: Batch[Any]) -> None:
        """Map a batch of the second input."""
        self._map(self._call2, batch)

    def _map(self, call: Callable[[Any], Iterable[Any]], batch: Batch[Any]) -> None:
        results = Results()
        self._loop(call, batch, results)
        if results.values:
            self.output.emit(results.batch(stamped=batch.timestamps is not None))

    @record_loop
    def _loop(self, call: Callable[[Any], Iterable[Any]], batch: Batch[Any], results: Results) -> None:
        values, made, stamps = results.values, results.stamps, batch.timestamps
        for index, value in enumerate(batch.values):
            returned = call(value)
            values.extend(returned)
            if stamps is not None:
                made.extend([stamps[index]] * (len(values) - len(made)))


class KeyedCoFlatMapOperator(_ConnectedOperator, KeyedOperator):
    """The same, with state per key."""

    def process1(self, batch: Batch[Any]) -> None:
        """Map a batch of the first input."""
        self._map(self._call1, self._key, batch)

    def process2(self, batch: Batch[Any]) -> None:
        """Map a batch of the second input."""
        self._map(self._call2, self._key2, batch)

    def _map(self, call: Callable[[Any], Iterable[Any]], key_of: Callable[[Any], Any], batch: Batch[Any]) -> None:
        results = Results()
        try:
            self._loop(call, key_of, batch, results)
        finally:
            self.store.clear_current_key()
        if results.values:
            self.output.emit(results.batch(stamped=batch.timestamps is not None))

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
        for index, value in enumerate(batch.values):
            key = key_of(value) if keys is None else keys[index]
            store.current_key = key
            returned = call(value)
            values.extend(returned)  # a generator runs here, while the key is still the record's
            if stamps is not None:
                made.extend([stamps[index]] * (len(values) - len(made)))


# ---- process -----------------------------------------------------------------------------------------------


class CoProcessOperator(_ConnectedOperator, FunctionOperator, ProcessingOperator):
    """Runs a process function of two streams."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = ProcessContext(self)

    def process1(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the first input."""
        self._without_keys(self._call1, self._ctx, batch)

    def process2(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the second input."""
        self._without_keys(self._call2, self._ctx, batch)


class KeyedCoProcessOperator(_ConnectedOperator, KeyedProcessingOperator):
    """Runs a process function of two keyed streams, its state and timers bound to the record's key."""

    def process1(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the first input."""
        self._with_keys(self._call1, self._key, batch)

    def process2(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the second input."""
        self._with_keys(self._call2, self._key2, batch)
