"""Running reductions and aggregates per key, at the speed of a loop over a dict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sluiceway.elements import Batch
from sluiceway.errors import StateError
from sluiceway.faults import MISSING, record_loop
from sluiceway.functions import KeySelector, ReduceFunction
from sluiceway.keyedstate import KeyedStateStore
from sluiceway.keygroups import stable_hash
from sluiceway.operators.base import Operator, OperatorContext, OperatorSnapshot
from sluiceway.operators.opened import Opened
from sluiceway.state import BackendContext, KeyedStateBackend, ValueStateDescriptor
from sluiceway.steps import KeyedAggregateStep

__all__ = ["KeyedAggregateOperator", "KeyedOperator", "KeyedReduceOperator"]


class KeyedOperator(Operator):
    """Base of the operators with state per key.

    Keys come with the batch where the sender had to compute them, else they are computed here.
    """

    store: KeyedStateStore

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        key: Any = getattr(step, "key", None)
        self._fn: Any = step.function
        self._key: Callable[[Any], Any] = key.get_key if isinstance(key, KeySelector) else key
        self._opened = Opened()
        self._backend: KeyedStateBackend | None = None

    @property
    def backend(self) -> KeyedStateBackend:
        """The keyed backend, once the state is initialised."""
        if self._backend is None:
            raise StateError(f"step {self.step_name!r} has no state yet")
        return self._backend

    def initialize_state(self, restored: Sequence[OperatorSnapshot]) -> None:
        """Make the backend and load the own key groups."""
        context = self.context
        self._backend = context.state_backend.create_keyed(
            BackendContext(
                operator=context.node.uid,
                subtask=context.subtask,
                key_groups=context.key_groups,
                max_parallelism=context.node.max_parallelism,
            )
        )
        keyed = [s.keyed for s in restored if s.keyed is not None]
        if keyed:
            self._backend.restore(keyed)
        self.store = KeyedStateStore(self._backend, context.clock)

    def open(self) -> None:
        """Open the function."""
        self._opened.open(self._fn, self.context, self.store)

    def snapshot(self) -> OperatorSnapshot:
        """All keyed state as of now."""
        self.store.before_snapshot()
        return OperatorSnapshot(self.context.node.uid, keyed=self.backend.snapshot())

    def close(self) -> None:
        """Close the function and the backend."""
        try:
            self._opened.close()
        finally:
            if self._backend is not None:
                self._backend.close()


class KeyedReduceOperator(KeyedOperator):
    """``state = reduce(state, value)``; emits the new state for every record."""

    def open(self) -> None:
        """Bind the table."""
        super().open()
        self._entries = self.backend.table(ValueStateDescriptor("reduce")).entries()
        self._reduce: Callable[[Any, Any], Any] = (
            self._fn.reduce if isinstance(self._fn, ReduceFunction) else self._fn
        )

    def process(self, batch: Batch[Any]) -> None:
        """Reduce the batch, record by record."""
        out: list[Any] = []
        if batch.keys is None:
            self._loop(batch.values, out)
        else:
            self._loop_with_keys(batch.values, batch.keys, out)
        self.output.emit(Batch(out, batch.timestamps))

    @record_loop
    def _loop(self, values: list[Any], out: list[Any]) -> None:
        key_of, reduce, entries, missing = self._key, self._reduce, self._entries, MISSING
        get = entries.get
        for value in values:
            key = key_of(value)
            try:
                reduced = get(key, missing)
            except TypeError:
                stable_hash(key)  # says which key is unhashable
                raise
            if reduced is missing:
                stable_hash(key)
                reduced = value
            else:
                reduced = reduce(reduced, value)
            entries[key] = reduced
            out.append(reduced)

    @record_loop
    def _loop_with_keys(self, values: list[Any], keys: list[Any], out: list[Any]) -> None:
        reduce, entries, missing = self._reduce, self._entries, MISSING
        get = entries.get
        for key, value in zip(keys, values, strict=True):
            reduced = get(key, missing)
            reduced = value if reduced is missing else reduce(reduced, value)
            entries[key] = reduced
            out.append(reduced)


class KeyedAggregateOperator(KeyedOperator):
    """``state = add(value, state)``; emits the result, or key and result, for every record."""

    def open(self) -> None:
        """Bind the table."""
        super().open()
        self._entries = self.backend.table(ValueStateDescriptor("aggregate")).entries()
        step = self.context.node.step
        assert isinstance(step, KeyedAggregateStep)
        self._with_key = step.with_key

    def process(self, batch: Batch[Any]) -> None:
        """Aggregate the batch, record by record."""
        out: list[Any] = []
        keys: list[Any] = []
        self._loop(batch.values, batch.keys, keys, out)
        if self._with_key:
            out = list(zip(batch.keys or keys, out, strict=True))
        self.output.emit(Batch(out, batch.timestamps))

    @record_loop
    def _loop(self, values: list[Any], given: list[Any] | None, keys: list[Any], out: list[Any]) -> None:
        function, entries, missing = self._fn, self._entries, MISSING
        create, add, result, key_of = function.create_accumulator, function.add, function.get_result, self._key
        get = entries.get
        given_keys = iter(given) if given is not None else None
        for value in values:
            if given_keys is None:
                key = key_of(value)
                keys.append(key)
            else:
                key = next(given_keys)
            try:
                accumulator = get(key, missing)
            except TypeError:
                stable_hash(key)  # says which key is unhashable
                raise
            if accumulator is missing:
                stable_hash(key)
                accumulator = create()
            accumulator = entries[key] = add(value, accumulator)
            out.append(result(accumulator))
