"""Process functions, keyed and not, with side outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, StateError
from sluiceway.faults import record_loop
from sluiceway.functions import (
    Function,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    TimeDomain,
    TimerService,
)
from sluiceway.operators.base import Operator, OperatorContext
from sluiceway.operators.context import OperatorRuntimeContext
from sluiceway.operators.fused import close_all
from sluiceway.operators.timed import KeyedTimerService, TimedKeyedOperator
from sluiceway.steps import ProcessStep
from sluiceway.timers import Timer

__all__ = ["KeyedProcessOperator", "ProcessOperator"]


class _Context(KeyedProcessFunction.OnTimerContext):
    """One object for all records; the loop sets what changes."""

    def __init__(self, operator: Operator, timers: TimerService | None = None) -> None:
        self._operator = operator
        self._timers = timers
        self.stamp: int | None = None
        self.key: Any = None
        self.domain = TimeDomain.EVENT_TIME
        self.sides: dict[str, tuple[list[Any], list[int | None]]] = {}

    def timestamp(self) -> int | None:
        return self.stamp

    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def get_current_key(self) -> Any:
        return self.key

    def timer_service(self) -> TimerService:
        if self._timers is None:
            raise StateError(
                f"step {self._operator.step_name!r} asks for timers but its input is not keyed: "
                "put key_by(...) before it"
            )
        return self._timers

    def time_domain(self) -> TimeDomain:
        return self.domain

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if not isinstance(tag, OutputTag):
            raise FunctionContractError(f"ctx.output(tag, value) needs an OutputTag first, not {tag!r:.100}")
        values, stamps = self.sides.setdefault(tag.name, ([], []))
        values.append(value)
        stamps.append(self.stamp)

    def emit_sides(self, operator: Operator) -> None:
        sides, self.sides = self.sides, {}
        for name, (values, stamps) in sides.items():
            stamped = [s for s in stamps if s is not None]
            operator.output.side(name, Batch(values, stamped if len(stamped) == len(values) else None))


class _Results:
    """Collects what a process function gave, with the timestamp of the record that it was given."""

    __slots__ = ("stamps", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.stamps: list[int] = []

    def batch(self, *, stamped: bool) -> Batch[Any]:
        return Batch(self.values, self.stamps if stamped else None)


def _wrong_result(step: str, returned: Any) -> FunctionContractError:
    return FunctionContractError(
        f"the process function of step {step!r} returned {returned!r:.100} ({type(returned).__name__}); "
        "it must yield its results, or return an iterable of them, or None"
    )


class ProcessOperator(Operator):
    """Runs a process function on a stream without keys."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, ProcessStep)
        self._fn = step.fn
        self._call: Callable[[Any, _Context], Iterable[Any] | None] = (
            step.fn.process_element if isinstance(step.fn, ProcessFunction) else step.fn
        )
        self._opened: list[Function] = []
        self._ctx = _Context(self)

    def open(self) -> None:
        """Open the function."""
        if isinstance(self._fn, Function):
            self._opened.append(self._fn)
            self._fn.open(OperatorRuntimeContext(self.context, None))

    def process(self, batch: Batch[Any]) -> None:
        """Call the function for each record."""
        results = _Results()
        self._loop(batch, results)
        if self._ctx.sides:
            self._ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=batch.timestamps is not None))

    @record_loop
    def _loop(self, batch: Batch[Any], results: _Results) -> None:
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
                raise _wrong_result(self.step_name, returned) from None
            if timestamp is not None:
                results.stamps.extend([timestamp] * (len(values) - len(results.stamps)))

    def close(self) -> None:
        """Close the function."""
        close_all(self._opened)


class KeyedProcessOperator(TimedKeyedOperator):
    """Runs a keyed process function, its state bound to the record's key."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._call: Callable[[Any, _Context], Iterable[Any] | None] = (
            self._fn.process_element if isinstance(self._fn, KeyedProcessFunction | ProcessFunction) else self._fn
        )
        self._ctx = _Context(self, KeyedTimerService(self))
        self._on_timer: Callable[[int, _Context], Iterable[Any] | None] = (
            self._fn.on_timer if isinstance(self._fn, KeyedProcessFunction) else lambda timestamp, ctx: None
        )

    def process(self, batch: Batch[Any]) -> None:
        """Call the function for each record."""
        results = _Results()
        try:
            self._loop(batch, results)
        finally:
            self.store.clear_current_key()
        if self._ctx.sides:
            self._ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=batch.timestamps is not None))

    @record_loop
    def _loop(self, batch: Batch[Any], results: _Results) -> None:
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
                raise _wrong_result(self.step_name, returned) from None
            if timestamp is not None:
                results.stamps.extend([timestamp] * (len(values) - len(results.stamps)))

    def fire(self, domain: TimeDomain, timers: Iterator[Timer]) -> None:
        """Call the function for each timer."""
        results = _Results()
        self._ctx.domain = domain
        event_time = domain is TimeDomain.EVENT_TIME
        try:
            self._timer_loop(event_time, timers, results)
        finally:
            self.store.clear_current_key()
        if self._ctx.sides:
            self._ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=event_time))

    @record_loop
    def _timer_loop(self, event_time: bool, timers: Iterator[Timer], results: _Results) -> None:
        call, ctx, values, store = self._on_timer, self._ctx, results.values, self.store
        for timestamp, key, _ in timers:
            store.current_key = ctx.key = key
            ctx.stamp = timestamp if event_time else None
            returned = call(timestamp, ctx)
            if returned is None:
                continue
            if not isinstance(returned, Iterable):
                raise _wrong_result(self.step_name, returned)
            values.extend(returned)
            if event_time:
                results.stamps.extend([timestamp] * (len(values) - len(results.stamps)))
