"""Common parts of all functions: life cycle, runtime context, side-output tags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

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
    """Name of a side output. Two tags with one name are the same side output.

    Attributes:
        name: unique within the operator.
        type: the type of its records, checked along the graph; optional.
    """

    name: str
    type: Any = None

    _made: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"the name of an OutputTag is a str, not {self.name!r:.60}")
        if not self.name:
            raise ValueError("an OutputTag needs a name")
        OutputTag._made = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Unpickling calls no __post_init__.
        vars(self).update(state)
        OutputTag._made = True


class _EngineTag(OutputTag[Any]):
    """Tag that is not counted among those of the program, neither when it is made nor when it is unpickled."""

    def __post_init__(self) -> None:
        """Count nothing."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def engine_tag(name: str, type: Any = None) -> OutputTag[Any]:  # noqa: A002
    """Return a tag that no function emits to, so that results need not be searched for it."""
    return _EngineTag(name, type)


def output_tags_exist() -> bool:
    """Return whether a program has made an :class:`OutputTag` in this process, or sent one here.

    If not, no function can yield one, and results need not be searched for them.
    """
    return OutputTag._made


def note_output_tags() -> None:
    """Note that a program has made an :class:`OutputTag`, though perhaps in another process."""
    OutputTag._made = True


class RuntimeContext(Hinting, ABC):
    """Access of a function to its subtask, its state and its metrics.

    Ask for state handles in :meth:`Function.open` and keep them; they always refer to the current key.
    """

    @property
    @abstractmethod
    def job_name(self) -> str:
        """Name of the pipeline."""

    @property
    @abstractmethod
    def operator_name(self) -> str:
        """Name of the step."""

    @property
    @abstractmethod
    def index_of_this_subtask(self) -> int:
        """Index of the subtask, from 0 to parallelism - 1."""

    @property
    @abstractmethod
    def number_of_parallel_subtasks(self) -> int:
        """Parallelism of the step."""

    @property
    @abstractmethod
    def max_number_of_parallel_subtasks(self) -> int:
        """Max parallelism of the step: its number of key groups."""

    @property
    @abstractmethod
    def attempt_number(self) -> int:
        """Number of the attempt: 0 for the first run of the subtask, one more after each restart."""

    @property
    @abstractmethod
    def metrics(self) -> MetricGroup:
        """Counters, gauges and histograms of the function."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return keyed value state. Raises StateError in a step without keys, like the other four."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return keyed list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[K, T]) -> MapState[K, T]:
        """Return keyed map state."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return keyed reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[T, V]) -> AggregatingState[T, V]:
        """Return keyed aggregating state."""


class FunctionObject:
    """Base of all objects that a step accepts in place of a callable. Each subtask has an object of its own."""


class Function(FunctionObject):
    """Base of the function objects that are called from the task's thread."""

    def open(self, context: RuntimeContext) -> None:
        """Prepare: called once, before the first record."""

    def close(self) -> None:
        """Clean up: called exactly once if :meth:`open` was called, also after failure and cancel."""
