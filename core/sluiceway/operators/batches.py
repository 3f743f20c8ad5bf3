"""Process functions of batches, keyed and not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, MisusedStateError
from sluiceway.functions import (
    BatchProcessFunction,
    KeyedBatchProcessFunction,
    OutputTag,
    TimerService,
)
from sluiceway.isolation import extend_isolated
from sluiceway.keygroups import check_key
from sluiceway.operators.base import Operator
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed_state import BulkState, KeyedStateStore
from sluiceway.operators.process import KeyedProcessOperator
from sluiceway.operators.process_base import FunctionOperator
from sluiceway.operators.results import is_one_record
from sluiceway.operators.timer_service import KeyedTimerService
from sluiceway.record_errors import record_loop
from sluiceway.util.overriding import override

__all__ = ["BatchProcessOperator", "KeyedBatchProcessOperator"]

_STABLE: Final = frozenset({str, bytes, int, bool, type(None)})
"""Types of keys whose hash needs no check. Floats do, as NaN cannot be a key."""


class _Context(BatchProcessFunction.Context):
    """Context of a batch function; one object for all batches."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._timestamps: list[int] | None = None
        self._count = 0
        self._sides: list[tuple[str, Batch[Any]]] = []

    def begin(self, batch: Batch[Any]) -> None:
        self._timestamps = batch.timestamps
        self._count = len(batch.values)

    @property
    def timestamps(self) -> Sequence[int] | None:
        return self._timestamps

    def current_processing_time(self) -> int:
        return self._operator.context.clock.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def output(self, tag: OutputTag[Any], values: Iterable[Any] | Batch[Any]) -> None:
        if not isinstance(tag, OutputTag):
            raise FunctionContractError(f"ctx.output(tag, values) needs an OutputTag first, not {tag!r:.100}")
        batch = self.batch_of(values, f"emitted to side output {tag.name!r}", aside=True)
        if batch.values:
            self._sides.append((tag.name, batch))

    def emit_sides(self) -> None:
        sides, self._sides = self._sides, []
        for name, batch in sides:
            self._operator.output.side(name, batch)

    def returned(self, given: Any) -> Batch[Any] | None:
        """Return the batch of a function's return value."""
        if given is None:
            return None
        values: list[Any] | None = None
        if type(given) is list:
            values = []
            self._operator.extend(values, given)  # from here, since references to the list are counted
        return self.batch_of(given if values is None else values, "returned", isolated=values is not None)

    def batch_of(self, given: Any, what: str, *, isolated: bool = False, aside: bool = False) -> Batch[Any]:
        """Return a batch of results, with the timestamps of the records where the function set none."""
        said = f"the batch function of step {self._operator.step_name!r} {what}"
        if isinstance(given, Batch):
            values, timestamps = self._records(given.values, aside=aside), given.timestamps
            if timestamps is not None and len(timestamps) != len(values):
                raise FunctionContractError(
                    f"{said} a Batch of {len(values)} records with {len(timestamps)} timestamps: pass one each"
                )
            return Batch(values, None if timestamps is None else list(timestamps))
        if not isinstance(given, Iterable) or is_one_record(given):
            raise FunctionContractError(
                f"{said} {given!r:.100} ({type(given).__name__}); it takes an iterable of records, or a Batch"
            )
        values = list(given) if isolated else self._records(given, aside=aside)
        if self._timestamps is not None and values and len(values) != self._count:
            raise FunctionContractError(
                f"{said} {len(values)} records for {self._count}, so their timestamps are not known: return a "
                "Batch(values, timestamps)"
            )
        return Batch(values, self._timestamps if values else None)

    def _records(self, given: Iterable[Any], *, aside: bool) -> list[Any]:
        values: list[Any] = []
        # The type hint that `extend` trusts is not that of side outputs.
        extend = extend_isolated if aside and not self._operator.shares else self._operator.extend
        extend(values, given)
        return values


class BatchProcessOperator(FunctionOperator):
    """Operator of process functions of batches on a stream without keys."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._ctx = _Context(self)

    @override
    def process(self, batch: Batch[Any]) -> None:
        ctx = self._ctx
        ctx.begin(batch)
        made = self._made(batch.values, ctx)
        ctx.emit_sides()
        if made is not None and made.values:
            self.output.emit(made)

    @record_loop
    def _made(self, values: list[Any], ctx: _Context) -> Batch[Any] | None:
        # By itself, so that a message names this step and no other one in the chain.
        # In no local variable here: records that the function keeps are found by counting references.
        return ctx.returned(self._fn.process_batch(values, ctx))


class _KeyedContext(_Context, KeyedBatchProcessFunction.Context):
    """Context of a keyed batch function."""

    def __init__(self, operator: KeyedBatchProcessOperator) -> None:
        super().__init__(operator)
        self._timers = KeyedTimerService(operator)
        self.store: KeyedStateStore
        self.key_list: list[Any] = []

    @property
    def keys(self) -> Sequence[Any]:
        return self.key_list

    def bulk(self, state: Any) -> Any:
        if not isinstance(state, BulkState) or not state.belongs_to(self.store):
            raise FunctionContractError(
                f"ctx.bulk(state) in step {self._operator.step_name!r} needs a state handle that its function got "
                f"in open(), not {state!r:.100}"
            )
        return state.bulk()

    def set_current_key(self, key: Any) -> None:
        self.store.current_key = key

    def timer_service(self) -> TimerService:
        if not hasattr(self.store, "current_key"):
            raise MisusedStateError(
                f"step {self._operator.step_name!r} asks for timers without a current key: "
                "call ctx.set_current_key(key) first"
            )
        return self._timers


class KeyedBatchProcessOperator(KeyedProcessOperator):
    """Operator of keyed process functions of batches. Timers fire one by one, as for other functions."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        if isinstance(self._fn, KeyedBatchProcessFunction):
            self._on_timer = self._fn.on_timer
        self._batch_ctx = _KeyedContext(self)

    @override
    def open(self) -> None:
        self._batch_ctx.store = self.store
        super().open()

    @override
    def process(self, batch: Batch[Any]) -> None:
        ctx = self._batch_ctx
        keys = batch.keys
        if keys is None:
            keys = self._keys_of(batch.values)
        ctx.begin(batch)
        ctx.key_list = keys
        try:
            made = self._made(batch.values, ctx)
        finally:
            self.store.clear_current_key()
        ctx.emit_sides()
        if made is not None and made.values:
            self.output.emit(made)

    @record_loop
    def _made(self, values: list[Any], ctx: _KeyedContext) -> Batch[Any] | None:
        # The generator runs here, while there may be a current key.
        return ctx.returned(self._fn.process_batch(values, ctx))

    def _keys_of(self, values: list[Any]) -> list[Any]:
        try:
            keys = list(map(self._key, values))
        except Exception:
            self._find_fault(values)
            raise
        if len(keys) < len(values):
            self._find_fault(values)  # a StopIteration, which map() takes for the end
        if not _STABLE.issuperset(map(type, keys)):
            self._check(values, keys)
        return keys

    @record_loop
    def _find_fault(self, values: list[Any]) -> None:
        """Repeat the failing computation record by record, so that the error names the record."""
        key_of = self._key
        for value in values:
            key_of(value)

    @record_loop
    def _check(self, values: list[Any], keys: list[Any]) -> None:
        for value, key in zip(values, keys, strict=True):  # noqa: B007 - a fault names the value
            check_key(key)
