"""Stream partitioned by key, with state and running results per key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from sluiceway.api.arguments import check_function, is_field
from sluiceway.api.joins import AsOfJoin, IntervalJoin, asof_join, check_same_keys
from sluiceway.api.location import caller_location
from sluiceway.api.reductions import (
    BestBy,
    Count,
    Extreme,
    ExtremeField,
    ExtremeOf,
    SumField,
    SumOf,
    SumValues,
)
from sluiceway.api.stateful import filter_with_state, flat_map_with_state, map_with_state
from sluiceway.api.stream import DataStream
from sluiceway.api.windowed import WindowedStream, in_counts
from sluiceway.errors import GraphError
from sluiceway.functions import (
    AggregateFunction,
    BatchProcessFunction,
    CheckpointedFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBatchProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from sluiceway.graph import InputRef
from sluiceway.state.ttl import StateTtlConfig
from sluiceway.steps import (
    KeyedAggregateStep,
    KeyedBatchProcessStep,
    KeyedBranchStep,
    KeyedCountStep,
    KeyedFilterStep,
    KeyedFlatMapStep,
    KeyedMapStep,
    KeyedProcessStep,
    KeyedReduceStep,
)

if TYPE_CHECKING:
    from sluiceway.api.program import Program
    from sluiceway.windows.base import WindowAssigner

__all__ = ["KeyedStream"]

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S")


class KeyedStream(DataStream[T], Generic[T, K]):
    """Records of type ``T``, those with equal keys of type ``K`` in one place and in order.

    Keys are for the next step: what that, or :meth:`union`, returns is a plain stream. ``rebalance()`` and the
    other ways of travelling raise GraphError here, as they would undo the partitioning by key.

    The running aggregations emit a result for every record that comes in. A *field* is an index (tuples,
    lists), a key (mappings) or an attribute (dataclasses and other objects).
    """

    def __init__(
        self,
        pipeline: Program,
        inputs: tuple[InputRef, ...],
        made_by: str,
        key: Callable[[T], K] | KeySelector[T, K],
    ) -> None:
        super().__init__(pipeline, inputs, made_by)
        self._key = key

    # ---- record by record, with state per key ----------------------------------------------------------------

    def map(self, fn: Callable[[T], R] | MapFunction[T, R]) -> DataStream[R]:
        """As :meth:`DataStream.map`; a function object with an ``open`` may have state per key."""
        # Without open() there can be no state: a plain step can be fused with its neighbours.
        return self._then(KeyedMapStep(fn, self._key), "map") if _opens(fn, MapFunction) else super().map(fn)

    def flat_map(self, fn: Callable[[T], Iterable[R]] | FlatMapFunction[T, R]) -> DataStream[R]:
        """As :meth:`DataStream.flat_map`; a function object with an ``open`` may have state per key."""
        if _opens(fn, FlatMapFunction):
            return self._then(KeyedFlatMapStep(fn, self._key), "flat_map")
        return super().flat_map(fn)

    def filter(self, fn: Callable[[T], object] | FilterFunction[T]) -> DataStream[T]:
        """As :meth:`DataStream.filter`; a function object with an ``open`` may have state per key."""
        if _opens(fn, FilterFunction):
            return self._then(KeyedFilterStep(fn, self._key), "filter")
        return super().filter(fn)

    def branch(self, fn: Callable[[T], object] | FilterFunction[T]) -> tuple[DataStream[T], DataStream[T]]:
        """As :meth:`DataStream.branch`; a function object with an ``open`` may have state per key."""
        return self._split(KeyedBranchStep(fn, self._key)) if _opens(fn, FilterFunction) else super().branch(fn)

    def map_with_state(
        self, fn: Callable[[T, S | None], tuple[R, S | None]], *, ttl: StateTtlConfig | None = None
    ) -> DataStream[R]:
        """Emit one result for each record, of a plain function that is given the state of the record's key.

        Args:
            fn: called as ``fn(record, state)``, with None as the state of a key that has none. Returns a pair: the
                result, and the new state, None to remove it. Its hints declare the types of both.
            ttl: time to live of the state; None: it stays until it is removed.

        Raises:
            TypeError: ``fn`` cannot be called so, or ``ttl`` is no StateTtlConfig.
        """
        return self._then(KeyedMapStep(map_with_state(fn, ttl), self._key), "map_with_state", "map_with_state")

    def flat_map_with_state(
        self, fn: Callable[[T, S | None], tuple[Iterable[R], S | None]], *, ttl: StateTtlConfig | None = None
    ) -> DataStream[R]:
        """Emit any number of results for each record, of a plain function that is given the state of the key.

        Args:
            fn: as for :meth:`map_with_state`; returns a pair of an iterable of results, and the new state.
            ttl: time to live of the state; None: it stays until it is removed.

        Raises:
            TypeError: ``fn`` cannot be called so, or ``ttl`` is no StateTtlConfig.
        """
        step = KeyedFlatMapStep(flat_map_with_state(fn, ttl), self._key)
        return self._then(step, "flat_map_with_state", "flat_map_with_state")

    def filter_with_state(
        self, fn: Callable[[T, S | None], tuple[object, S | None]], *, ttl: StateTtlConfig | None = None
    ) -> DataStream[T]:
        """Keep the records for which a plain function that is given the state of the record's key says so.

        Args:
            fn: as for :meth:`map_with_state`; returns a pair: True to keep the record, and the new state.
            ttl: time to live of the state; None: it stays until it is removed.

        Raises:
            TypeError: ``fn`` cannot be called so, or ``ttl`` is no StateTtlConfig.
        """
        step = KeyedFilterStep(filter_with_state(fn, ttl), self._key)
        return self._then(step, "filter_with_state", "filter_with_state")

    # ---- running results -------------------------------------------------------------------------------------

    def reduce(self, fn: Callable[[T, T], T] | ReduceFunction[T]) -> DataStream[T]:
        """Emit ``fn(reduced so far, value)`` for each record; the first of a key is emitted as it is."""
        check_function("reduce", fn, (ReduceFunction,), 2)
        return self._then(KeyedReduceStep(fn, self._key), "reduce")

    def aggregate(self, fn: AggregateFunction[T, Any, R]) -> DataStream[R]:
        """Add each record to the key's accumulator, and emit the result."""
        check_function("aggregate", fn, (AggregateFunction,), 1, objects_only=True)
        return self._then(KeyedAggregateStep(fn, self._key), "aggregate")

    def count(self) -> DataStream[tuple[K, int]]:
        """Emit ``(key, number of records so far)`` for each record."""
        return self._then(KeyedCountStep(Count(), self._key, with_key=True), "count", "count")

    @overload
    def sum(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def sum(self, field: Callable[[T], V]) -> DataStream[tuple[K, V]]: ...
    def sum(self, field: Any = None) -> Any:
        """Emit the running sum for each record.

        Args:
            field: none: the records are numbers. An index or name: emits a copy of the key's first record with
                the sum in that field. A callable: emits ``(key, sum of field(value))``.
        """
        if field is None:
            return self._then(KeyedReduceStep(SumValues(), self._key), "sum", "sum")
        if is_field("sum", field):
            return self._then(KeyedReduceStep(SumField(field), self._key), "sum", f"sum({field})")
        return self._then(KeyedAggregateStep(SumOf(field), self._key, with_key=True), "sum", "sum")

    @overload
    def min(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def min(self, field: Callable[[T], V]) -> DataStream[tuple[K, V]]: ...
    def min(self, field: Any = None) -> Any:
        """Emit the smallest value so far for each record; ``field`` as for :meth:`sum`."""
        return self._extreme("min", field)

    @overload
    def max(self, field: int | str | None = None) -> DataStream[T]: ...
    @overload
    def max(self, field: Callable[[T], V]) -> DataStream[tuple[K, V]]: ...
    def max(self, field: Any = None) -> Any:
        """Emit the largest value so far for each record; ``field`` as for :meth:`sum`."""
        return self._extreme("max", field)

    def min_by(self, field: int | str | Callable[[T], Any], *, first: bool = True) -> DataStream[T]:
        """Emit, for each record, the whole record in which ``field`` is smallest so far.

        Args:
            field: an index, a name, or a callable that computes what to compare.
            first: of records that are equal in it, whether the earliest or the latest one counts.
        """
        return self._best("min", field, first)

    def max_by(self, field: int | str | Callable[[T], Any], *, first: bool = True) -> DataStream[T]:
        """Emit, for each record, the whole record in which ``field`` is largest so far.

        Arguments are those of :meth:`min_by`.
        """
        return self._best("max", field, first)

    def process(
        self,
        fn: KeyedProcessFunction[K, T, R]
        | ProcessFunction[T, R]
        | KeyedBatchProcessFunction[K, T, R]
        | BatchProcessFunction[T, R]
        | Callable[[T, KeyedProcessFunction.Context], Iterable[R] | None],
    ) -> DataStream[R]:
        """Apply a process function with state per key, which may emit to side outputs, too: ``fn(value, ctx)``.

        State is asked for in the function object's ``open``; it always speaks of the record's key, which
        ``ctx.get_current_key()`` gives. A KeyedBatchProcessFunction takes many records at a time.
        """
        batchwise = (KeyedBatchProcessFunction, BatchProcessFunction)
        check_function("process", fn, (KeyedProcessFunction, ProcessFunction, *batchwise), 2)
        if isinstance(fn, batchwise):
            return self._then(KeyedBatchProcessStep(fn, self._key), "process")
        # A ProcessFunction may stand here as well: its context is a keyed one.
        step = KeyedProcessStep(fn, self._key)  # type: ignore[arg-type]
        return self._then(step, "process")

    def interval_join(self, other: KeyedStream[V, K]) -> IntervalJoin[T, V]:
        """Join each record with those of ``other`` that have its key and are near it in event time.

        Say how near with ``between``: ``orders.interval_join(payments).between(0, "15min").apply(paid)``.

        Raises:
            GraphError: ``other`` is not keyed, or belongs to another pipeline.
            TypeError: ``other`` is no stream.
        """
        return IntervalJoin(self, self._keyed_other("interval_join", other))

    def asof_join(
        self,
        other: KeyedStream[V, K],
        *,
        tolerance: timedelta | int | str | None = None,
        how: Literal["left", "inner"] = "left",
    ) -> AsOfJoin[T, V]:
        """Join each record with the latest one of ``other`` that has its key and is not later in event time.

        That is what was valid at the record's time: the price of the moment, the address of the day. A record
        is joined when the watermark has come to it, so that what comes out does not depend on which stream was
        faster. Of records of ``other`` with one key and timestamp, the one that came last counts. Results have
        the timestamp of this stream's record.

        A record that the watermark has passed when it comes is late: it goes to a side output if there is one
        for it, else it is dropped and counted in the metric ``numLateRecordsDropped``. A late record of
        ``other`` counts for all that is joined after it.

        Of ``other``, what is superseded as of the watermark is forgotten; the latest record of each key is kept
        for good, unless there is a ``tolerance``.

        Args:
            other: the stream to look up in.
            tolerance: how much older the record of ``other`` may be: a timedelta, ms, or a text (``"1h"``);
                None: any age.
            how: ``left``: a record for which there is none is joined with None; ``inner``: it is left out.

        Raises:
            GraphError: ``other`` is not keyed, or belongs to another pipeline.
            TypeError: ``other`` is no stream.
            ConfigurationError: ``tolerance`` is no duration or negative, or ``how`` is something else.
        """
        return asof_join(self, self._keyed_other("asof_join", other), tolerance, how)

    # ---- windows ------------------------------------------------------------------------------------------

    def window(self, assigner: WindowAssigner) -> WindowedStream[T, K]:
        """Cut the stream into windows, per key. What is returned says what to make of a window, and when.

        Args:
            assigner: says to which windows a record belongs: one of :mod:`sluiceway.windows`, or your own.

        Raises:
            TypeError: not a WindowAssigner.
        """
        return WindowedStream(self, self._key, assigner)

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[T, K]:
        """Cut the stream into windows of ``size`` records, per key.

        Args:
            size: how many records. Those that are left at the end are in no window.
            slide: None: windows end to end. Else a window is evaluated with every ``slide`` records, and has
                the last ``size`` in it, or as many as there are.

        Raises:
            TypeError: not an int.
            ValueError: less than 1.
        """
        counted: WindowedStream[T, K] = in_counts("count_window", self.window, size, slide)
        return counted

    # ---- inside -------------------------------------------------------------------------------------------

    def _keyed_other(self, word: str, stream: object) -> KeyedStream[Any, Any]:
        """Return the other stream of a join, after a look at its key."""
        other = self._others(word, stream)
        if not isinstance(other, KeyedStream):
            raise GraphError(
                f"{word}() at {caller_location()}: the other stream is not keyed; call key_by(...) on it, with "
                "keys that equal those of the first stream where records belong together"
            )
        check_same_keys(word, self._key, other._key)
        return other

    def _extreme(self, word: str, field: Any) -> DataStream[Any]:
        if field is None:
            return self._then(KeyedReduceStep(Extreme(word), self._key), word, word)
        if is_field(word, field):
            return self._then(KeyedReduceStep(ExtremeField(word, field), self._key), word, f"{word}({field})")
        return self._then(KeyedAggregateStep(ExtremeOf(word, field), self._key, with_key=True), word, word)

    def _best(self, word: str, field: Any, first: bool) -> DataStream[T]:
        by = f"{word}_by"
        name = f"{by}({field})" if is_field(by, field) else by
        return self._then(KeyedReduceStep(BestBy(word, field, first), self._key), by, name)


def _opens(fn: object, kind: type[Function]) -> bool:
    """Return whether it is a function object of that kind, which may use state."""
    return isinstance(fn, kind) and (type(fn).open is not Function.open or isinstance(fn, CheckpointedFunction))
