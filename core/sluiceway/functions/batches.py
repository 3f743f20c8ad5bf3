"""Process functions that take a batch of records at a time, so that they can be vectorised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Generic, TypeVar, overload

from sluiceway.elements import Batch
from sluiceway.functions.base import Function, OutputTag
from sluiceway.functions.process import KeyedProcessFunction, TimerService
from sluiceway.state import AggregatingState, ListState, MapState, ReducingState, ValueState

__all__ = ["BatchProcessFunction", "KeyedBatchProcessFunction"]

K = TypeVar("K")
V = TypeVar("V")
M = TypeVar("M")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class BatchProcessFunction(Function, ABC, Generic[IN, OUT]):
    """A process function that is called once for each batch of records.

    How many records make a batch depends on the load, so a result must not depend on where a batch ends.

    What it returns is either an iterable of results (it may be a generator), or a
    :class:`~sluiceway.elements.Batch` of results with timestamps of their own. Of an iterable, each result has
    the timestamp of the record in the same place, so where the records have timestamps there must be as many.
    """

    class Context(ABC):
        """What is known while a batch is processed."""

        @property
        @abstractmethod
        def timestamps(self) -> Sequence[int] | None:
            """The event time of each record in ms, or None where the job uses none. Not to be changed."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """The runtime's wall clock, ms since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """The task's watermark in ms."""

        @abstractmethod
        def output(self, tag: OutputTag[Any], values: Iterable[Any] | Batch[Any]) -> None:
            """Emit several records to the side output ``tag``; their timestamps are as for results.

            Raises:
                FunctionContractError: ``tag`` is no OutputTag, ``values`` no iterable, or there are not as many
                    as there are timestamps for.
            """

    @abstractmethod
    def process_batch(
        self, values: Sequence[IN], ctx: BatchProcessFunction.Context
    ) -> Iterable[OUT] | Batch[OUT] | None:
        """The records that a batch gives rise to, or None.

        Args:
            values: the records in their order, at least one. Not to be changed, nor kept.
            ctx: their timestamps, and side outputs.
        """


class KeyedBatchProcessFunction(Function, ABC, Generic[K, IN, OUT]):
    """A process function with state per key that is called once for each batch of records, of any keys.

    As for :class:`BatchProcessFunction`; records of one key come in their order. State is declared in ``open``
    as for other functions, and used in one of two ways:

    - ``ctx.bulk(handle)`` is the state of all keys as one mapping, at the speed of a dict with a state backend
      in memory;
    - after ``ctx.set_current_key(key)``, handles and timers are those of that key.

    A key may have state and timers only where it is one of ``ctx.keys``, now or before: other subtasks see to
    the others.
    """

    class Context(BatchProcessFunction.Context):
        """What is known while a batch of a keyed stream is processed."""

        @property
        @abstractmethod
        def keys(self) -> Sequence[Any]:
            """The key of each record. Not to be changed."""

        @overload
        def bulk(self, state: ValueState[V]) -> MutableMapping[Any, V]: ...
        @overload
        def bulk(self, state: ListState[V]) -> MutableMapping[Any, list[V]]: ...
        @overload
        def bulk(self, state: ReducingState[V]) -> MutableMapping[Any, V]: ...
        @overload
        def bulk(self, state: MapState[M, V]) -> Mapping[Any, MutableMapping[M, V]]: ...
        @overload
        def bulk(self, state: AggregatingState[Any, Any]) -> MutableMapping[Any, Any]: ...
        @abstractmethod
        def bulk(self, state: Any) -> Any:
            """The state of every key: a live mapping from key to value, which may be kept until ``close``.

            A key without state is not in it; for a value state, no default steps in. An aggregating state has
            its accumulators here. A list or another value that was changed in place must be assigned again.
            For a map state, ``bulk(state)[key]`` is the live mapping of a key, empty where there is none.

            Raises:
                StateError: a list or map state with a time to live, for which there is no such view.
                FunctionContractError: ``state`` is no handle of this function's.
            """

        @abstractmethod
        def set_current_key(self, key: Any) -> None:
            """Until the next call, or the end of the batch, handles and timers are those of ``key``."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Time, and the timers of the current key. Raises StateError before :meth:`set_current_key`."""

    @abstractmethod
    def process_batch(
        self, values: Sequence[IN], ctx: KeyedBatchProcessFunction.Context
    ) -> Iterable[OUT] | Batch[OUT] | None:
        """The records that a batch gives rise to, or None.

        Args:
            values: the records in their order, at least one. Not to be changed, nor kept.
            ctx: their keys and timestamps, state, timers and side outputs.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """A timer has fired, as for :meth:`KeyedProcessFunction.on_timer`: its key is the current one."""
