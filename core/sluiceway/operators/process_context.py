"""Context of process functions, and their results."""

# ruff: noqa: D102 - the methods are those of the contract, documented in sluiceway.functions

from __future__ import annotations

from typing import Any, TypeAlias

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, MisusedStateError
from sluiceway.functions import KeyedProcessFunction, OutputTag, TimeDomain, TimerService
from sluiceway.isolation import ATOMS, isolated
from sluiceway.operators.base import Operator

__all__ = ["ProcessContext", "Results", "Sides"]

Sides: TypeAlias = dict[str, tuple[list[Any], list[int | None]]]
"""Records of side outputs and their timestamps, by the name of the output."""


class ProcessContext(KeyedProcessFunction.OnTimerContext):
    """Context of process functions; one object for all records, whose attributes the loop sets.

    Attributes:
        stamp: the event time of the record or timer, or None.
        fires_at: the time for which a processing-time timer was set; None for records and other timers.
        key: the key of the record or timer.
        domain: the time domain of the timer.
        sides: records emitted to side outputs since the last :meth:`emit_sides`.
    """

    def __init__(self, operator: Operator, timers: TimerService | None = None) -> None:
        self._operator = operator
        self._timers = timers
        self.stamp: int | None = None
        self.fires_at: int | None = None
        self.key: Any = None
        self.domain = TimeDomain.EVENT_TIME
        self.sides: Sides = {}

    def timestamp(self) -> int | None:
        return self.fires_at if self.stamp is None else self.stamp

    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def get_current_key(self) -> Any:
        return self.key

    def timer_service(self) -> TimerService:
        if self._timers is None:
            raise MisusedStateError(
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
        # Not trusted for its type: the type hint of a tag is not checked elsewhere.
        values.append(value if type(value) in ATOMS or self._operator.shares else isolated(value))
        stamps.append(self.stamp)

    def emit_sides(self, operator: Operator) -> None:
        """Emit the records of side outputs."""
        sides, self.sides = self.sides, {}
        for name, (values, stamps) in sides.items():
            # A batch has timestamps for all of its records or for none.
            stamped = [s for s in stamps if s is not None]
            operator.output.side(name, Batch(values, stamped if len(stamped) == len(values) else None))


class Results:
    """Results of a process function, each with the timestamp of its record."""

    __slots__ = ("stamps", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.stamps: list[int] = []

    def batch(self, *, stamped: bool) -> Batch[Any]:
        return Batch(self.values, self.stamps if stamped else None)
