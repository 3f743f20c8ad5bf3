"""Operators of map, flat_map and filter on a keyed stream, for function objects that may have state per key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluiceway.elements import Batch
from sluiceway.isolation import ATOMS
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed import KeyedOperator, checking
from sluiceway.record_errors import record_loop
from sluiceway.steps import KeyedFilterStep, KeyedFlatMapStep

__all__ = ["KeyedRecordOperator"]


class KeyedRecordOperator(KeyedOperator):
    """Operator that calls the function for each record with the record's key as the current one."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert step.method is not None
        self._call: Callable[[Any], Any] = getattr(self._fn, step.method)
        # Senders pass records on that have no usable key, for this step to skip them.
        if self._dead.skipping:
            self._key = checking(self._key)
        self._run = (
            self._filter
            if isinstance(step, KeyedFilterStep)
            else self._flat_map
            if isinstance(step, KeyedFlatMapStep)
            else self._map
        )

    def process(self, batch: Batch[Any]) -> None:
        """Call the function for each record, and emit the results of the batch."""
        values: list[Any] = []
        stamps: list[int] = []
        try:
            self._run(batch, values, stamps)
        finally:
            self.store.clear_current_key()
        if values:
            self.output.emit(Batch(values, None if batch.timestamps is None else stamps))
        self._dead.give(self.output)

    @record_loop
    def _map(self, batch: Batch[Any], values: list[Any], made: list[int]) -> None:
        call, store, key_of, keys, stamps = self._call, self.store, self._key, batch.keys, batch.timestamps
        atoms, isolate = ATOMS, self.isolate
        for index, value in enumerate(batch.values):
            timestamp = None if stamps is None else stamps[index]
            try:
                key = key_of(value) if keys is None else keys[index]
                store.current_key = key
                result = call(value)
                if type(result) not in atoms:
                    result = isolate(result, 2 if result is value else 0)
                values.append(result)
            except Exception as error:
                if not self._skips(error, batch, index):
                    raise
                continue
            if timestamp is not None:
                made.append(timestamp)

    @record_loop
    def _flat_map(self, batch: Batch[Any], values: list[Any], made: list[int]) -> None:
        call, store, key_of, keys, stamps = self._call, self.store, self._key, batch.keys, batch.timestamps
        extend = self.extend
        for index, value in enumerate(batch.values):
            before, timestamp = len(values), None if stamps is None else stamps[index]
            try:
                key = key_of(value) if keys is None else keys[index]
                store.current_key = key
                returned = call(value)
                # The generator runs here, while the current key is still the record's.
                extend(values, returned)
            except Exception as error:
                # What a generator has yielded before it raised is taken back.
                del values[before:]
                if not self._skips(error, batch, index):
                    raise
                continue
            if timestamp is not None:
                made.extend([timestamp] * (len(values) - before))

    @record_loop
    def _filter(self, batch: Batch[Any], values: list[Any], made: list[int]) -> None:
        call, store, key_of, keys, stamps = self._call, self.store, self._key, batch.keys, batch.timestamps
        atoms, isolate = ATOMS, self.isolate
        for index, value in enumerate(batch.values):
            timestamp = None if stamps is None else stamps[index]
            try:
                key = key_of(value) if keys is None else keys[index]
                store.current_key = key
                if not call(value):
                    continue
                if type(value) not in atoms:
                    value = isolate(value, 1)
            except Exception as error:
                if not self._skips(error, batch, index):
                    raise
                continue
            values.append(value)
            if timestamp is not None:
                made.append(timestamp)
