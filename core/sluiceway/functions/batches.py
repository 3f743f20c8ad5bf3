"""Process functions of batches of records, which can be vectorised."""

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
    """Process function that is called once for each batch of records.

    The number of records in a batch depends on the load, so a result must not depend on where a batch ends.

    It returns either an iterable of results (it may be a generator), or a
    :class:`~sluiceway.elements.Batch` of results with timestamps of their own. Of an iterable, each result has
    the timestamp of the record in the same place, so where the records have timestamps there must be as many.
    """

    class Context(ABC):
        """Context of a batch."""

        @property
        @abstractmethod
        def timestamps(self) -> Sequence[int] | None:
            """Event time of each record in ms, or None where the job uses none. Must not be changed."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the current time, ms since the epoch."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the task's watermark in ms."""

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
        """Return the results for a batch, or None.

        Args:
            values: the records in their order, at least one. Must be neither changed nor kept.
            ctx: their timestamps, and side outputs.
        """


class KeyedBatchProcessFunction(Function, ABC, Generic[K, IN, OUT]):
    """Process function with state per key that is called once for each batch of records, of any keys.

    As for :class:`BatchProcessFunction`; records of one key are in their order. State is declared in ``open``
    as for other functions, and used in one of two ways:

    - ``ctx.bulk(handle)`` is the state of all keys as one mapping, at the speed of a dict with a state backend
      in memory;
    - after ``ctx.set_current_key(key)``, handles and timers are those of that key.

    Use state and timers only of a key that is or was one of ``ctx.keys``: others belong to other subtasks.
    """

    class Context(BatchProcessFunction.Context):
        """Context of a batch of a keyed stream."""

        @property
        @abstractmethod
        def keys(self) -> Sequence[Any]:
            """Key of each record. Must not be changed."""

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
            """Return the state of every key as a live mapping from key to value, valid until ``close``.

            A key without state is not in it; for a value state, the default does not apply, and a copy of it that
            a handle has returned is in the mapping from the next batch on. An aggregating state has its
            accumulators here. A list or another value that was changed in place must be assigned again.
            For a map state, ``bulk(state)[key]`` is the live mapping of a key, empty where it has no entries.

            Raises:
                StateError: a list or map state with a time to live, for which there is no such view.
                FunctionContractError: ``state`` is no handle of this function.
            """

        @abstractmethod
        def set_current_key(self, key: Any) -> None:
            """Set the key of handles and timers, until the next call or the end of the batch."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return the timers of the current key. Raises StateError before :meth:`set_current_key`."""

    @abstractmethod
    def process_batch(
        self, values: Sequence[IN], ctx: KeyedBatchProcessFunction.Context
    ) -> Iterable[OUT] | Batch[OUT] | None:
        """Return the results for a batch, or None.

        Args:
            values: the records in their order, at least one. Must be neither changed nor kept.
            ctx: their keys and timestamps, state, timers and side outputs.
        """

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[OUT] | None:
        """Return the results for a timer of the current key, as :meth:`KeyedProcessFunction.on_timer`."""
