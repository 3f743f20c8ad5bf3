"""Bases of the operators of process functions: the loops that call them for records and for timers.

They have no ``process()``: it differs by the number of inputs, and for a broadcast stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, TypeAlias

from sluiceway.elements import Batch
from sluiceway.functions import TimeDomain
from sluiceway.functions.base import output_tags_exist
from sluiceway.functions.timers import handles_timers
from sluiceway.isolation import unchangeable_type
from sluiceway.keygroups import check_key
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed_timers import TimedKeyedOperator
from sluiceway.operators.opened_functions import Opened
from sluiceway.operators.process_context import ProcessContext, Results, Sides
from sluiceway.operators.results import check_results
from sluiceway.operators.skipped_records import DeadLetters
from sluiceway.operators.tagged import take_tagged
from sluiceway.operators.timer_queue import Timer
from sluiceway.operators.timer_service import KeyedTimerService
from sluiceway.record_errors import record_loop
from sluiceway.types import element_type, return_type
from sluiceway.util.overriding import override

__all__ = ["Called", "FunctionOperator", "KeyedProcessOperatorBase", "ProcessOperatorBase"]

Called: TypeAlias = Callable[[Any, Any], Iterable[Any] | None]
"""A process function, with a record, or a timer's timestamp, and its context."""


class FunctionOperator(Operator):
    """Base of the operators with one function and no state by key."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._fn: Any = context.node.step.function
        self._opened = Opened()

    @override
    def open(self) -> None:
        self._opened.open(self._fn, self.context)

    @override
    def close(self) -> None:
        self._opened.close()


class ProcessOperatorBase(Operator):
    """Base of the operators that call process functions, for records without a key.

    Where records on which the function raises are skipped, other loops run, which can take back what the
    function has emitted for such a record.
    """

    _dead: DeadLetters

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._dead = DeadLetters(context)
        # The type hint says nothing of the records that a function yields with a tag.
        if self.trusts and output_tags_exist():
            self.distrust()

    def _without_keys(self, call: Called, ctx: ProcessContext, batch: Batch[Any]) -> None:
        """Call a function for each record, which has no key."""
        results = Results()
        if self._dead.skipping:
            self._careful_unkeyed_loop(call, ctx, batch, results)
        else:
            self._unkeyed_loop(call, ctx, batch, results)
        self._give(ctx, results, stamped=batch.timestamps is not None)
        self._dead.give(self.output)

    def _give(self, ctx: ProcessContext, results: Results, *, stamped: bool) -> None:
        take_tagged(results, ctx.sides, stamped=stamped)
        if ctx.sides:
            ctx.emit_sides(self)
        if results.values:
            self.output.emit(results.batch(stamped=stamped))

    @property
    def _said(self) -> str:
        return f"the process function of step {self.step_name!r}"

    @record_loop
    def _unkeyed_loop(self, call: Called, ctx: ProcessContext, batch: Batch[Any], results: Results) -> None:
        values, made, stamps = results.values, results.stamps, batch.timestamps
        kind: type = list
        extend = self.extend
        ctx.stamp = None
        for index, value in enumerate(batch.values):
            timestamp = None
            if stamps is not None:
                timestamp = ctx.stamp = stamps[index]
            returned = call(value, ctx)
            if returned is None:
                continue
            if type(returned) is not kind:
                kind = check_results(self._said, returned)
            extend(values, returned)
            if timestamp is not None:
                made.extend([timestamp] * (len(values) - len(made)))

    @record_loop
    def _careful_unkeyed_loop(
        self, call: Called, ctx: ProcessContext, batch: Batch[Any], results: Results
    ) -> None:
        values, made, stamps = results.values, results.stamps, batch.timestamps
        kind: type = list
        extend = self.extend
        kept: Sides = {}
        ctx.stamp = timestamp = None
        for index, value in enumerate(batch.values):
            before = len(values)
            try:
                if stamps is not None:
                    timestamp = ctx.stamp = stamps[index]
                returned = call(value, ctx)
                if returned is not None:
                    if type(returned) is not kind:
                        kind = check_results(self._said, returned)
                    extend(values, returned)
            except Exception as error:
                # Nothing is emitted for a skipped record, neither what it had yielded nor what it had put aside.
                del values[before:]
                ctx.sides = {}
                if not self._dead.take(error, value, timestamp):
                    raise
                continue
            if ctx.sides:
                _keep(ctx, kept)
            if timestamp is not None and len(values) > before:
                made.extend([timestamp] * (len(values) - before))
        ctx.sides = kept


def _keep(ctx: ProcessContext, kept: Sides) -> None:
    """Keep the side-output records of the function: its record was processed without an error."""
    sides, ctx.sides = ctx.sides, {}
    for name, (values, stamps) in sides.items():
        to = kept.setdefault(name, ([], []))
        to[0].extend(values)
        to[1].extend(stamps)


class KeyedProcessOperatorBase(ProcessOperatorBase, TimedKeyedOperator):
    """Base of the operators that call keyed process functions, and their ``on_timer`` if they have one."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = ProcessContext(self, KeyedTimerService(self))
        self._on_timer: Called = getattr(self._fn, "on_timer", _nothing)
        # The type hint of the step is that of process_element() alone.
        if self.trusts and handles_timers(self._fn):
            returned = return_type(self._fn, "on_timer")
            if returned is not type(None) and not unchangeable_type(element_type(returned)):
                self.distrust()

    def _with_keys(self, call: Called, key_of: Callable[[Any], Any], batch: Batch[Any]) -> None:
        """Call a function for each record, its state and timers bound to the record's key."""
        results = Results()
        try:
            if self._dead.skipping:
                self._careful_keyed_loop(call, key_of, batch, results)
            else:
                self._keyed_loop(call, key_of, batch, results)
        finally:
            self.store.clear_current_key()
        self._give(self._ctx, results, stamped=batch.timestamps is not None)
        self._dead.give(self.output)

    @record_loop
    def _keyed_loop(self, call: Called, key_of: Callable[[Any], Any], batch: Batch[Any], results: Results) -> None:
        ctx, values, made, store = self._ctx, results.values, results.stamps, self.store
        unknown = batch.keys is None
        kind: type = list
        extend = self.extend
        keys: Iterable[Any] = repeat(None) if batch.keys is None else batch.keys
        stamps: Iterable[int | None] = repeat(None) if batch.timestamps is None else batch.timestamps
        # Not strict: repeat() has no end.
        for value, key, timestamp in zip(batch.values, keys, stamps, strict=False):
            if unknown:
                key = key_of(value)
            store.current_key = ctx.key = key
            ctx.stamp = timestamp
            returned = call(value, ctx)
            if returned is None:
                continue
            if type(returned) is not kind:
                kind = check_results(self._said, returned)
            extend(values, returned)  # the generator runs here, while the current key is still the record's
            if timestamp is not None:
                added = len(values) - len(made)
                if added == 1:
                    made.append(timestamp)
                elif added:
                    made.extend([timestamp] * added)
        if unknown and batch.values:
            # A function without state and timers would accept any key here, where one subtask has all keys, and
            # senders refuse some as soon as there are two. The last key of a batch shows the usual mistake, a
            # key function that returns lists; a check of each costs as much as a short function. So a key that
            # cannot be hashed passes among others that can.
            check_key(key)

    @record_loop
    def _careful_keyed_loop(
        self, call: Called, key_of: Callable[[Any], Any], batch: Batch[Any], results: Results
    ) -> None:
        ctx, values, made, store = self._ctx, results.values, results.stamps, self.store
        keys, stamps = batch.keys, batch.timestamps
        kind: type = list
        extend = self.extend
        kept: Sides = {}
        ctx.stamp = timestamp = None
        for index, value in enumerate(batch.values):
            before = len(values)
            try:
                if keys is None:
                    key = key_of(value)
                    check_key(key)  # senders pass records on that have no usable key, for this step to skip them
                else:
                    key = keys[index]
                store.current_key = ctx.key = key
                if stamps is not None:
                    timestamp = ctx.stamp = stamps[index]
                returned = call(value, ctx)
                if returned is not None:
                    if type(returned) is not kind:
                        kind = check_results(self._said, returned)
                    extend(values, returned)
            except Exception as error:
                del values[before:]
                ctx.sides = {}
                if not self._skips(error, batch, index):
                    raise
                continue
            if ctx.sides:
                _keep(ctx, kept)
            if timestamp is not None and len(values) > before:
                made.extend([timestamp] * (len(values) - before))
        ctx.sides = kept

    @override
    def fire(self, domain: TimeDomain, timers: Iterator[Timer]) -> None:
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
        stamps = results.stamps
        kind: type = list
        extend = self.extend
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
            if type(returned) is not kind:
                kind = check_results(self._said, returned)
            extend(values, returned)
            if event_time:
                made = len(values) - len(stamps)
                if made == 1:
                    stamps.append(timestamp)
                else:
                    stamps.extend([timestamp] * made)


def _nothing(timestamp: int, ctx: ProcessContext) -> None:
    """Do nothing; for functions without ``on_timer``."""
