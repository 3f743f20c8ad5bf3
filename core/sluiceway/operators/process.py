"""Process functions, keyed and not, with side outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sluiceway.elements import Batch
from sluiceway.faults import record_loop
from sluiceway.functions import Function, KeyedProcessFunction, ProcessFunction, TimeDomain
from sluiceway.operators.base import Operator, OperatorContext
from sluiceway.operators.context import OperatorRuntimeContext
from sluiceway.operators.fused import close_all
from sluiceway.operators.processcontext import ProcessContext, Results, wrong_result
from sluiceway.operators.timed import KeyedTimerService, TimedKeyedOperator
from sluiceway.steps import ProcessStep
from sluiceway.timers import Timer

__all__ = ["KeyedProcessOperator", "ProcessOperator"]


class ProcessOperator(Operator):
    """Runs a process function on a stream without keys."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ProcessStep)
        self._fn = step.fn
        self._call: Callable[[Any, ProcessContext], Iterable[Any] | None] = (
            step.fn.process_element if isinstance(step.fn, ProcessFunction) else step.fn
        )
        self._opened: list[Function] = []
        self._ctx = ProcessContext(self)

    def open(self) -> None:
        """Open the function."""
        if isinstance(self._fn, Function):
            self._opened.append(self._fn)
            self._fn.open(OperatorRuntimeContext(self.context, None))

    def process(self, batch: Batch[Any]) -> None:
        """Call the function for each record."""
        results = Results()
        self._loop(batch, results)
        if self._ctx.sides:
            self._ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=batch.timestamps is not None))

    @record_loop
    def _loop(self, batch: Batch[Any], results: Results) -> None:
        call, ctx, values = self._call, self._ctx, results.values
        stamps = batch.timestamps
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
                results.stamps.extend([timestamp] * (len(values) - len(results.stamps)))

    def close(self) -> None:
        """Close the function."""
        close_all(self._opened)


class KeyedProcessOperator(TimedKeyedOperator):
    """Runs a keyed process function, its state bound to the record's key."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._call: Callable[[Any, ProcessContext], Iterable[Any] | None] = (
            self._fn.process_element if isinstance(self._fn, KeyedProcessFunction | ProcessFunction) else self._fn
        )
        self._ctx = ProcessContext(self, KeyedTimerService(self))
        self._on_timer: Callable[[int, ProcessContext], Iterable[Any] | None] = (
            self._fn.on_timer if isinstance(self._fn, KeyedProcessFunction) else lambda timestamp, ctx: None
        )

    def process(self, batch: Batch[Any]) -> None:
        """Call the function for each record."""
        results = Results()
        try:
            self._loop(batch, results)
        finally:
            self.store.clear_current_key()
        if self._ctx.sides:
            self._ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=batch.timestamps is not None))

    @record_loop
    def _loop(self, batch: Batch[Any], results: Results) -> None:
        call, ctx, values, store = self._call, self._ctx, results.values, self.store
        key_of, keys, stamps = self._key, batch.keys, batch.timestamps
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
                results.stamps.extend([timestamp] * (len(values) - len(results.stamps)))

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
        if self._ctx.sides:
            self._ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=event_time))

    @record_loop
    def _timer_loop(self, event_time: bool, timers: Iterator[Timer], results: Results) -> None:
        call, ctx, values, store = self._on_timer, self._ctx, results.values, self.store
        stamps = results.stamps
        ctx.stamp = None
        for timestamp, key, _ in timers:
            store.current_key = ctx.key = key
            if event_time:
                ctx.stamp = timestamp
            else:
                ctx.fires_at = timestamp
            returned = call(timestamp, ctx)
            if returned is None:
                continue
            try:
                values.extend(returned)
            except TypeError:
                if isinstance(returned, Iterable):
                    raise
                raise wrong_result(self.step_name, returned) from None
            if event_time:
                made = len(values) - len(stamps)
                if made == 1:
                    stamps.append(timestamp)
                else:
                    stamps.extend([timestamp] * made)
