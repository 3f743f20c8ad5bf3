"""Runtime context of user functions."""

from __future__ import annotations

from typing import Any, NoReturn

from sluiceway.errors import StateError
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
    def job_name(self) -> str:
        """Name of the pipeline."""
        return self._context.job_name

    @property
    def operator_name(self) -> str:
        """Name of the step."""
        return self._context.node.name

    @property
    def index_of_this_subtask(self) -> int:
        """Index of the subtask, from 0 to parallelism - 1."""
        return self._context.subtask

    @property
    def number_of_parallel_subtasks(self) -> int:
        """Parallelism of the step."""
        return self._context.node.parallelism

    @property
    def max_number_of_parallel_subtasks(self) -> int:
        """Max parallelism of the step."""
        return self._context.node.max_parallelism

    @property
    def attempt_number(self) -> int:
        """Number of the attempt; 0 for the first run of the subtask."""
        return self._context.attempt

    @property
    def metrics(self) -> MetricGroup:
        """Metrics of the function."""
        return self._context.metrics

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Return keyed value state."""
        return self._keyed(descriptor).value_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """Return keyed list state."""
        return self._keyed(descriptor).list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Return keyed map state."""
        return self._keyed(descriptor).map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Return keyed reducing state."""
        return self._keyed(descriptor).reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Return keyed aggregating state."""
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
        raise StateError(f"step {node.name!r} asks for keyed state {descriptor.name!r} but {lacks}")
