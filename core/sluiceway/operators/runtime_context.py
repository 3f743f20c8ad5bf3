"""Runtime context of user functions."""

from __future__ import annotations

from typing import Any, NoReturn

from sluiceway.errors import MisusedStateError
from sluiceway.functions import RuntimeContext
from sluiceway.metrics import MetricGroup
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from sluiceway.util.overriding import override

__all__ = ["OperatorRuntimeContext"]


class OperatorRuntimeContext(RuntimeContext):
    """View of an operator's context for the user's function.

    Args:
        context: the operator's context.
        store: its keyed state, or None where the step is not keyed.
    """

    def __init__(self, context: OperatorContext, store: KeyedStateStore | None) -> None:
        self._context = context
        self._store = store

    @property
    @override
    def job_name(self) -> str:
        return self._context.job_name

    @property
    @override
    def operator_name(self) -> str:
        return self._context.node.name

    @property
    @override
    def index_of_this_subtask(self) -> int:
        return self._context.subtask

    @property
    @override
    def number_of_parallel_subtasks(self) -> int:
        return self._context.node.parallelism

    @property
    @override
    def max_number_of_parallel_subtasks(self) -> int:
        return self._context.node.max_parallelism

    @property
    @override
    def attempt_number(self) -> int:
        return self._context.attempt

    @property
    @override
    def metrics(self) -> MetricGroup:
        return self._context.metrics

    @override
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        return self._keyed(descriptor).value_state(descriptor)

    @override
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._keyed(descriptor).list_state(descriptor)

    @override
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        return self._keyed(descriptor).map_state(descriptor)

    @override
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        return self._keyed(descriptor).reducing_state(descriptor)

    @override
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        return self._keyed(descriptor).aggregating_state(descriptor)

    def _keyed(self, descriptor: StateDescriptor) -> KeyedStateStore:
        if self._store is None:
            self._refuse(descriptor)
        return self._store

    def _refuse(self, descriptor: StateDescriptor) -> NoReturn:
        node = self._context.node
        lacks = "its input is not keyed: put key_by(...) before it"
        if node.step.kind.startswith("co_"):
            lacks = "not both of its inputs are keyed: call key_by(key1, key2) on what connect() returned"
        raise MisusedStateError(f"step {node.name!r} asks for keyed state {descriptor.name!r} but {lacks}")
