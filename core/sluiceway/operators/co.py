"""Functions of two connected streams at work: co-map, co-flat-map and co-process, keyed and not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sluiceway.elements import Batch
from sluiceway.faults import record_loop
from sluiceway.functions import Function, TimeDomain
from sluiceway.operators.base import Operator, OperatorContext
from sluiceway.operators.context import OperatorRuntimeContext
from sluiceway.operators.fused import close_all
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.processcontext import ProcessContext, Results, wrong_result
from sluiceway.operators.timed import KeyedTimerService, TimedKeyedOperator
from sluiceway.operators.twoinputs import TwoInputOperator
from sluiceway.steps import CoFlatMapStep, CoMapStep, ConnectedStep
from sluiceway.timers import Timer

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


class _WithoutKeys(_ConnectedOperator):
    """Base of those without keyed state."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._function = context.node.step.function
        self._opened: list[Function] = []

    def open(self) -> None:
        """Open the function."""
        if isinstance(self._function, Function):
            self._opened.append(self._function)
            self._function.open(OperatorRuntimeContext(self.context, None))

    def close(self) -> None:
        """Close the function."""
        close_all(self._opened)


def _called(fn: Any, method: str | None) -> Callable[..., Any]:
    called: Callable[..., Any] = fn if method is None else getattr(fn, method)
    return called


def _nothing(timestamp: int, ctx: ProcessContext) -> None:
    """Stands in where a function has no ``on_timer``."""


# ---- map ---------------------------------------------------------------------------------------------------


class CoMapOperator(_WithoutKeys):
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


class CoFlatMapOperator(_WithoutKeys):
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
            # A generator runs in the line after it, while the key is still the record's.
            returned = call(value)
            values.extend(returned)
            if stamps is not None:
                made.extend([stamps[index]] * (len(values) - len(made)))


# ---- process -----------------------------------------------------------------------------------------------


class _ProcessingOperator(_ConnectedOperator):
    """Base of the co-process operators."""

    def _without_key(
        self, call: Callable[..., Iterable[Any] | None], ctx: ProcessContext, batch: Batch[Any]
    ) -> None:
        """Call the function for each record, which has no key."""
        results = Results()
        self._unkeyed_loop(call, ctx, batch, results)
        self._give(ctx, results, stamped=batch.timestamps is not None)

    def _give(self, ctx: ProcessContext, results: Results, *, stamped: bool) -> None:
        if ctx.sides:
            ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=stamped))

    @record_loop
    def _unkeyed_loop(
        self, call: Callable[..., Iterable[Any] | None], ctx: ProcessContext, batch: Batch[Any], results: Results
    ) -> None:
        values, made, stamps = results.values, results.stamps, batch.timestamps
        ctx.stamp = None
        for index, value in enumerate(batch.values):
            timestamp = None
            if stamps is not None:
                timestamp = ctx.stamp = stamps[index]
            returned = call(value, ctx)
            if returned is None:
                continue
            try:
                values.extend(returned)
            except TypeError:
                if isinstance(returned, Iterable):
                    raise
                raise wrong_result(self.step_name, returned) from None
            if timestamp is not None:
                made.extend([timestamp] * (len(values) - len(made)))


class CoProcessOperator(_WithoutKeys, _ProcessingOperator):
    """Runs a process function of two streams."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = ProcessContext(self)

    def process1(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the first input."""
        self._without_key(self._call1, self._ctx, batch)

    def process2(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the second input."""
        self._without_key(self._call2, self._ctx, batch)


class KeyedCoProcessOperator(_ProcessingOperator, TimedKeyedOperator):
    """Runs a process function of two keyed streams, its state and timers bound to the record's key."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = ProcessContext(self, KeyedTimerService(self))
        self._on_timer: Callable[..., Iterable[Any] | None] = getattr(self._fn, "on_timer", _nothing)

    def process1(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the first input."""
        self._run(self._call1, self._key, batch)

    def process2(self, batch: Batch[Any]) -> None:
        """Call the function for each record of the second input."""
        self._run(self._call2, self._key2, batch)

    def _run(self, call: Callable[..., Iterable[Any] | None], key_of: Any, batch: Batch[Any]) -> None:
        results = Results()
        try:
            self._loop(call, key_of, batch, results)
        finally:
            self.store.clear_current_key()
        self._give(self._ctx, results, stamped=batch.timestamps is not None)

    @record_loop
    def _loop(
        self, call: Callable[..., Iterable[Any] | None], key_of: Any, batch: Batch[Any], results: Results
    ) -> None:
        ctx, values, made, store = self._ctx, results.values, results.stamps, self.store
        keys, stamps = batch.keys, batch.timestamps
        ctx.stamp = None
        for index, value in enumerate(batch.values):
            key = key_of(value) if keys is None else keys[index]
            store.current_key = ctx.key = key
            timestamp = None
            if stamps is not None:
                timestamp = ctx.stamp = stamps[index]
            returned = call(value, ctx)
            if returned is None:
                continue
            try:
                # A generator runs here, while the key is still the record's.
                values.extend(returned)
            except TypeError:
                if isinstance(returned, Iterable):
                    raise
                raise wrong_result(self.step_name, returned) from None
            if timestamp is not None:
                made.extend([timestamp] * (len(values) - len(made)))

    def fire(self, domain: TimeDomain, timers: Iterator[Timer]) -> None:
        """Call the function for each timer."""
        results = Results()
        self._ctx.domain = domain
        event_time = domain is TimeDomain.EVENT_TIME
        try:
            self._timer_loop(event_time, timers, results)
        finally:
            self._ctx.fires_at = None
            self.store.clear_current_key()
        self._give(self._ctx, results, stamped=event_time)

    @record_loop
    def _timer_loop(self, event_time: bool, timers: Iterator[Timer], results: Results) -> None:
        call, ctx, values, store = self._on_timer, self._ctx, results.values, self.store
        for timestamp, key, _ in timers:
            store.current_key = ctx.key = key
            ctx.stamp, ctx.fires_at = (timestamp, None) if event_time else (None, timestamp)
            returned = call(timestamp, ctx)
            if returned is None:
                continue
            if not isinstance(returned, Iterable):
                raise wrong_result(self.step_name, returned)
            values.extend(returned)
            if event_time:
                results.stamps.extend([timestamp] * (len(values) - len(results.stamps)))
