"""What users subclass when a plain callable is not enough, and the context such functions are given.

Everywhere a function object may stand, a callable may too. A function object is opened once per subtask
before its first record, and closed exactly once, also after a failure. All calls come from the task's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
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

__all__ = [
    "AggregateFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedProcessFunction",
    "MapFunction",
    "OutputTag",
    "ProcessFunction",
    "ReduceFunction",
    "RuntimeContext",
    "TimeDomain",
    "TimerService",
]

T = TypeVar("T")
K = TypeVar("K")
IN = TypeVar("IN")
OUT = TypeVar("OUT")
ACC = TypeVar("ACC")


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
        if not self.name:
            raise ValueError("an OutputTag needs a name")


class RuntimeContext(ABC):
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
    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Keyed value state. Raises StateError in a step that is not keyed; so do the other four."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """Keyed list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Keyed map state."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Keyed reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Keyed aggregating state."""


class Function:
    """Base of all function objects."""

    def open(self, context: RuntimeContext) -> None:
        """Prepare: called once, before the first record."""

    def close(self) -> None:
        """Tidy up: called exactly once if :meth:`open` was called, also after failure and cancel."""


class MapFunction(Function, ABC, Generic[IN, OUT]):
    """One record in, one out."""

    @abstractmethod
    def map(self, value: IN) -> OUT:
        """The record that takes the place of ``value``."""


class FlatMapFunction(Function, ABC, Generic[IN, OUT]):
    """One record in, any number out."""

    @abstractmethod
    def flat_map(self, value: IN) -> Iterable[OUT]:
        """The records that take the place of ``value``."""


class FilterFunction(Function, ABC, Generic[T]):
    """Keeps some records."""

    @abstractmethod
    def filter(self, value: T) -> bool:
        """Whether ``value`` goes on."""


class KeySelector(ABC, Generic[IN, K]):
    """Says what a record's key is: the same for the same record, every time, everywhere.

    Shared by all subtasks on both sides of the exchange, so it has neither :meth:`open` nor :meth:`close`.
    """

    @abstractmethod
    def get_key(self, value: IN) -> K:
        """The key of ``value``: hashable, and hashed the same way in every process."""


class ReduceFunction(Function, ABC, Generic[T]):
    """Two records into one of the same type; associative."""

    @abstractmethod
    def reduce(self, value1: T, value2: T) -> T:
        """``value1`` is what was reduced so far, ``value2`` the new record."""


class AggregateFunction(Function, ABC, Generic[IN, ACC, OUT]):
    """Records into an accumulator, an accumulator into a result."""

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """The accumulator of a key without records."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """The accumulator with ``value`` in it; may be the same object, changed."""

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """The result; must not change the accumulator."""

    def merge(self, accumulator1: ACC, accumulator2: ACC) -> ACC:
        """Both accumulators in one; needed only where windows merge."""
        raise NotImplementedError(f"{type(self).__name__} has no merge()")


class TimeDomain(Enum):
    """Which time a timer goes by."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


class TimerService(ABC):
    """Time, and timers of the current key. A timer set twice for one point in time fires once."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The runtime's wall clock, ms since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """How far event time has come, in ms."""

    @abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Have ``on_timer`` called for the current key when the watermark reaches ``timestamp`` (ms).

        One that lies behind the watermark fires with the watermark's next step.
        """

    @abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have ``on_timer`` called for the current key when the wall clock reaches ``timestamp`` (ms).

        When the input ends, those still waiting fire at once.
        """

    @abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take the current key's timer back; harmless if there is none."""

    @abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Take the current key's timer back; harmless if there is none."""


class ProcessFunction(Function, ABC, Generic[IN, OUT]):
    """Any records out for each record in, to the main output and to side outputs."""

    class Context(ABC):
        """What is known while one record is processed."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """The record's event time in ms, or None."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The runtime's wall clock, ms since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The task's watermark in ms."""

        @abstractmethod
        def output(self, tag: OutputTag[Any], value: Any) -> None:
            """Emit ``value`` to the side output ``tag`` with the record's timestamp."""

    @abstractmethod
    def process_element(self, value: IN, ctx: ProcessFunction.Context) -> Iterable[OUT] | None:
        """The records that ``value`` gives rise to (yield them, or return an iterable), or None."""


class KeyedProcessFunction(Function, ABC, Generic[K, IN, OUT]):
    """A process function with state per key."""

    class Context(ProcessFunction.Context):
        """What is known while one record of a keyed stream is processed."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """The record's key."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and the key's timers."""

    class OnTimerContext(Context):
        """What is known while a timer fires. ``timestamp()`` is the timer's."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Which time the timer went by."""

    @abstractmethod
    def process_element(self, value: IN, ctx: KeyedProcessFunction.Context) -> Iterable[OUT] | None:
        """The records that ``value`` gives rise to (yield them, or return an iterable), or None."""

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """A timer of the current key has fired; what it gives rise to, as for a record.

        Args:
            timestamp: when the timer was set to fire, in ms.
            ctx: the key, its timers, and side outputs.
        """
