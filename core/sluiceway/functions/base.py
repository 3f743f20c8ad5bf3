"""What all functions have in common: life cycle, runtime context, side-output tags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sluiceway.metrics import MetricGroup
from sluiceway.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from sluiceway.util.name_hints import Hinting

__all__ = ["Function", "FunctionObject", "OutputTag", "RuntimeContext"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class OutputTag(Generic[T]):
    """Names a side output. Two tags with one name are the same side output.

    Attributes:
        name: unique within the operator.
        type: the type of its records, if it is to be checked along the graph.
    """

    name: str
    type: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"the name of an OutputTag is a str, not {self.name!r:.60}")
        if not self.name:
            raise ValueError("an OutputTag needs a name")


class RuntimeContext(Hinting, ABC):
    """Where a function finds out about its subtask, its state and its metrics.

    State handles are asked for in :meth:`Function.open` and kept; they always speak of the current key.
    """

    @property
    @abstractmethod
    def job_name(self) -> str:
        """The pipeline's name."""

    @property
    @abstractmethod
    def operator_name(self) -> str:
        """The step's name."""

    @property
    @abstractmethod
    def index_of_this_subtask(self) -> int:
        """From 0 to parallelism - 1."""

    @property
    @abstractmethod
    def number_of_parallel_subtasks(self) -> int:
        """The step's parallelism."""

    @property
    @abstractmethod
    def max_number_of_parallel_subtasks(self) -> int:
        """The step's max parallelism: its number of key groups."""

    @property
    @abstractmethod
    def attempt_number(self) -> int:
        """0 for the first run of the subtask, one more after each restart."""

    @property
    @abstractmethod
    def metrics(self) -> MetricGroup:
        """The function's own counters, gauges and histograms."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Keyed value state. Raises StateError in a step that is not keyed; so do the other four."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Keyed list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """Keyed map state."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Keyed reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """Keyed aggregating state."""


class FunctionObject:
    """Base of all that a step may be given in place of a callable. Each subtask has an object of its own."""


class Function(FunctionObject):
    """Base of the function objects that are called from the task's thread."""

    def open(self, context: RuntimeContext) -> None:
        """Prepare: called once, before the first record."""

    def close(self) -> None:
        """Tidy up: called exactly once if :meth:`open` was called, also after failure and cancel."""
