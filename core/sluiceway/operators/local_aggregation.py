"""Local aggregation: records of a window are combined per key before they are sent to the window's step.

A producer folds its records of one key and one slice into a partial result, and sends that instead of the
records. The window's step merges it. Partial results are buffered no longer than records in a result partition, so
they are in no state and in no checkpoint.

The results are the same as without it:

- A record that may be late is sent unchanged, behind the watermark that preceded it: the window's step decides.
- A watermark that arrives while partial results are buffered is sent behind them. It makes none of their records
  late, and the windows that it evaluates get all the records that they would have got.
- What cannot be merged exactly, such as floats, ends the combining on its edge before the record goes out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from operator import gt, length_hint, lt
from typing import Any

from sluiceway.config.settings import Settings
from sluiceway.elements import MIN_WATERMARK, ROWS_PER_RECORD, Batch, Element, Watermark, WatermarkStatus
from sluiceway.functions import ReduceFunction
from sluiceway.network.partitioners import HashPartitioner
from sluiceway.network.result_partition import ResultPartition
from sluiceway.operators.combiner_base import CombinerBase
from sluiceway.operators.folds import begin_of
from sluiceway.operators.windows.slice_choice import can_merge, slices_of
from sluiceway.operators.windows.slice_types import Partial
from sluiceway.record_errors import MISSING
from sluiceway.steps import WindowContents, WindowStep
from sluiceway.steps.columns import ColumnWindowStep
from sluiceway.streamgraph import PartitionerSpec, StreamNode
from sluiceway.util.overriding import override

__all__ = ["Combiner", "CombiningPartition", "combined_step", "combining_partition"]

_Key = Callable[[Any], Any]
_Route = Callable[[Any], int]
_Fold = Callable[[dict[Any, Any], list[int], Iterable[Any], _Key, _Route], None]


def combined_step(
    partitioner: PartitionerSpec, consumer: StreamNode, settings: Settings
) -> WindowStep | ColumnWindowStep | None:
    """Return the window step whose records may be combined on this edge; None: they may not.

    Args:
        partitioner: partitioner of the edge.
        consumer: the step at its other end.
        settings: options of the run. With unaligned checkpoints nothing is combined: in-flight data is
            redistributed by the keys of its records, and a partial result is no record.
    """
    step = consumer.step
    if (
        settings.local_aggregation == "off"
        or settings.checkpoint_unaligned
        or partitioner.name != "hash"
        # Each of these handles single records.
        or consumer.skips_errors
    ):
        return None
    if isinstance(step, ColumnWindowStep):
        from sluiceway.operators.columns.combining import combines_columns  # where columns are used

        return step if combines_columns(step, consumer.name) else None
    return step if isinstance(step, WindowStep) and _combines(step, settings) else None


def _combines(step: WindowStep, settings: Settings) -> bool:
    if (
        # Late records are handled one by one with allowed lateness or a side output, and a function of all
        # elements receives each.
        not step.event_time
        or step.allowed_lateness_ms
        or step.late_tag is not None
        or step.contents is WindowContents.ELEMENTS
        or slices_of(step) is None
    ):
        return False
    # Built-in functions combine exactly in any order. A user's function may not be associative, so only the option
    # "all" combines it.
    if getattr(step.fn, "combines", None) is not None:
        return True
    return settings.local_aggregation == "all" and can_merge(step.fn)


class Combiner(CombinerBase):
    """Partial results on one edge, by slice and key.

    Args:
        step: the window step at the consumer's end of the edge.
        key_of: returns a record's key.
        route: returns the index of a key's consumer; raises what the partitioner would raise.
        consumers: number of consumers.
    """

    def __init__(self, step: WindowStep, key_of: _Key, route: _Route, consumers: int) -> None:
        super().__init__()
        slices = slices_of(step)
        assert slices is not None
        self._slices = slices
        self._key_of = key_of
        self._route = route
        self._consumers = consumers
        self._fold, self._finish = _fold_of(step)
        # By start of a slice: accumulators by key, and the consumers of the keys in the same order.
        self._parts: dict[int, tuple[dict[Any, Any], list[int]]] = {}

    @override
    def add(self, batch: Batch[Any], watermark: int) -> Batch[Any] | None:
        # The window operator reports records without timestamps, with the step's name.
        stamps = batch.timestamps
        if stamps is None:
            self.stop()
            return batch
        slices = self._slices
        # Records of a slice whose first window has ended go unchanged: the consumer decides for each whether it is
        # late. Most batches are within one open slice, and are folded in one call.
        low, high = batch.span()
        first, late = slices.start_of(low), watermark > MIN_WATERMARK
        if high < first + slices.width and not (late and slices.first_end(first) - 1 <= watermark):
            self.records += len(batch.values)
            done = self._add_to(first, batch.values)
            # None: all are folded. Else the rest is sent as it is, in order.
            return None if done is None else Batch(batch.values[done:], stamps[done:])
        shares: dict[int, tuple[list[Any], list[int]]] = {}
        for value, stamp in zip(batch.values, stamps, strict=True):
            start = slices.start_of(stamp)
            if start not in shares:
                shares[start] = ([], [])
            shares[start][0].append(value)
            shares[start][1].append(stamp)
        left: tuple[list[Any], list[int]] = ([], [])
        for start, (values, times) in shares.items():
            done = 0
            if not self.is_off and not (late and slices.first_end(start) - 1 <= watermark):
                self.records += len(values)
                done = self._add_to(start, values)
            if done is not None:
                left[0].extend(values[done:])
                left[1].extend(times[done:])
        return Batch(*left) if left[0] else None

    @override
    def take(self) -> list[tuple[int, Batch[Any]]]:
        found: list[tuple[list[Any], list[int]]] = [([], []) for _ in range(self._consumers)]
        for start, (entries, routes) in self._parts.items():
            # Partial results carry the start of their slice as timestamp, by which the window's step finds the
            # slice.
            made = list(map(Partial, entries, self._finish(list(entries.values()))))
            if self._consumers == 1:
                shares = [made]
            else:
                shares = [[] for _ in found]
                for partial, route in zip(made, routes, strict=True):
                    shares[route].append(partial)
            for (values, stamps), share in zip(found, shares, strict=True):
                values += share
                stamps += [start] * len(share)
        self._judge()
        self._parts = {}
        return [(index, Batch(*share)) for index, share in enumerate(found) if share[0]]

    # ---- inside ------------------------------------------------------------------------------------------------

    def _add_to(self, start: int, values: list[Any]) -> int | None:
        """Fold records into a slice; return the index of the first one that cannot be folded, or None."""
        part = self._parts.get(start)
        if part is None:
            part = self._parts[start] = ({}, [])
        entries, routes = part
        before = len(entries)
        left = iter(values)
        try:
            self._fold(entries, routes, left, self._key_of, self._route)
        except Exception:
            # Any error is raised again by the partitioner or the window's step, which know the record. The
            # length left in the iterator tells which one: those before it are folded and must not be sent again.
            self.stop()
            return len(values) - length_hint(left) - 1
        finally:
            self.waiting += len(entries) - before
        return None


class _UnfitError(Exception):
    """A value cannot be merged exactly."""


def _fold_of(step: WindowStep) -> tuple[_Fold, Callable[[list[Any]], list[Any]]]:
    """Return the loop over records, and the function that turns its results into the step's accumulators."""
    fn: Any = step.fn
    combines = getattr(fn, "combines", None)
    if combines is None:
        # A copy of the function, as two subtasks must not share an object with attributes.
        return _merging(copy.deepcopy(fn), step.contents is WindowContents.AGGREGATED), list
    kind, of = combines
    if kind == "count":
        return _count, list
    finish = list if step.contents is WindowContents.REDUCED else _in_tuples
    return (_summing(of) if kind == "sum" else _best(of, lt if kind == "min" else gt)), finish


def _in_tuples(values: list[Any]) -> list[Any]:
    return [(value,) for value in values]


def _count(entries: dict[Any, Any], routes: list[int], values: Iterable[Any], key_of: _Key, route: _Route) -> None:
    get = entries.get
    for value in values:
        key = key_of(value)
        held = get(key)
        if held is None:
            routes.append(route(key))
            entries[key] = 1
        else:
            entries[key] = held + 1


def _summing(of: Callable[[Any], Any] | None) -> _Fold:
    def fold(
        entries: dict[Any, Any], routes: list[int], values: Iterable[Any], key_of: _Key, route: _Route
    ) -> None:
        get = entries.get
        for value in values:
            key = key_of(value)
            number = value if of is None else of(value)
            # Sums of floats depend on the order of the additions, which combining changes.
            if type(number) is not int and type(number) is not bool:
                raise _UnfitError
            held = get(key)
            if held is None:
                routes.append(route(key))
                entries[key] = number
            else:
                entries[key] = held + number

    return fold


def _best(of: Callable[[Any], Any] | None, better: Callable[[Any, Any], bool]) -> _Fold:
    def fold(
        entries: dict[Any, Any], routes: list[int], values: Iterable[Any], key_of: _Key, route: _Route
    ) -> None:
        get = entries.get
        for value in values:
            key = key_of(value)
            made = value if of is None else of(value)
            kind = type(made)
            # Values of these types have one extreme in whichever order they are compared; NaN has no place in any
            # order.
            if kind is not int and kind is not str and not (kind is float and made == made):
                raise _UnfitError
            held = get(key)
            if held is None:
                routes.append(route(key))
                entries[key] = made
            elif better(made, held):
                entries[key] = made

    return fold


def _merging(fn: Any, aggregates: bool) -> _Fold:
    if aggregates:
        first, add = fn.create_accumulator, fn.add
    else:
        reduce, begin = (fn.reduce if isinstance(fn, ReduceFunction) else fn), begin_of(fn)

    def fold(
        entries: dict[Any, Any], routes: list[int], values: Iterable[Any], key_of: _Key, route: _Route
    ) -> None:
        get, missing = entries.get, MISSING
        for value in values:
            key = key_of(value)
            held = get(key, missing)
            # `routes` has one entry per key of `entries`: the calls that may raise come before both changes.
            if held is missing:
                to = route(key)
                entries[key] = add(value, first()) if aggregates else begin(value)
                routes.append(to)
            else:
                entries[key] = add(value, held) if aggregates else reduce(held, value)

    return fold


class CombiningPartition(ResultPartition):
    """Result partition that combines records before they are sent.

    Partial results, and a watermark behind them, are buffered while the task has more to do, for
    :attr:`CombinerBase.longest_s` at most or for :attr:`CombinerBase.batches`, whatever the buffer timeout is.

    Args:
        partitioner: partitioner, set up for this subtask.
        senders: senders of the channels, one per consumer.
        buffer_timeout_ms: as for :class:`ResultPartition`.
        full: as for :class:`ResultPartition`.
        combiner: combines the records.
    """

    def __init__(
        self,
        partitioner: HashPartitioner,
        senders: Sequence[Any],
        buffer_timeout_ms: int,
        full: int,
        combiner: CombinerBase,
    ) -> None:
        super().__init__(partitioner, senders, buffer_timeout_ms, full)
        self._combiner = combiner
        self._watermark = MIN_WATERMARK
        self._held: Watermark | None = None
        self._batches = 0
        self._idle_until = 0.0

    @override
    def waiting(self) -> int:
        return len(self._senders) if len(self._combiner) or self._held is not None else super().waiting()

    def emit(self, batch: Batch[Any], now: float) -> None:
        """Combine a batch with the partial results; send what cannot be combined."""
        combiner = self._combiner
        if combiner.rests(len(batch.values)):
            if len(combiner):
                self._release()
            super().emit(batch, now)
            return
        left = combiner.add(batch, self._watermark)
        # Partial results first: records of a key in a slice keep their order.
        if left is not None:
            self._release()
            super().emit(left, now)
        elif combiner.full:
            self._release()
        else:
            self._batches += 1
            self._idle_until = now + combiner.idle_s
            # On a busy machine few batches come in that time, and combining them would not pay.
            if self._due is None or self._due > now + combiner.longest_s or self._batches <= combiner.batches:
                self._due = now + combiner.longest_s

    def idle(self) -> None:
        """Send the partial results, as the task has nothing to do; or set their deadline, if they are to wait."""
        if len(self._combiner):
            if self._combiner.idle_s and self._due is not None:
                self._due = min(self._due, self._idle_until)
                return
            self._release()
        super().idle()

    def control(self, element: Element) -> None:
        """Send a control element behind everything emitted before it; a watermark may be buffered as well."""
        if type(element) is Watermark:
            self._watermark = element.timestamp
            if len(self._combiner):
                self._held = element
                return
        elif type(element) is WatermarkStatus and not element.active:
            # From now on consumers depend on other producers, too: a record may be late by watermarks that are
            # unknown here.
            self._combiner.stop()
        super().control(element)

    @override
    def flush(self) -> None:
        self._release()
        super().flush()

    def _release(self) -> None:
        """Send the partial results, then the watermark that was buffered behind them."""
        # Records that were buffered unchanged before combining began are older than the partial results.
        super().flush()
        if len(self._combiner):
            for index, batch in self._combiner.take():
                full = self._full if batch.columns is None else self._full * ROWS_PER_RECORD
                for start in range(0, len(batch), full):
                    self._give(index, batch.part(start, start + full))
        self._batches = 0
        held, self._held = self._held, None
        if held is not None:
            super().control(held)


def combining_partition(
    partitioner: HashPartitioner,
    senders: Sequence[Any],
    buffer_timeout_ms: int,
    full: int,
    step: WindowStep | ColumnWindowStep,
    step_name: str,
    max_parallelism: int,
) -> CombiningPartition:
    """Return the result partition of an edge whose records are combined.

    Args:
        partitioner: as for :class:`CombiningPartition`, as the next three.
        senders: senders of the channels.
        buffer_timeout_ms: longest time that records are buffered.
        full: records that make a full batch.
        step: the window step at the consumer's end of the edge.
        step_name: name of a step, for messages.
        max_parallelism: number of key groups of the consumer.
    """
    combiner: CombinerBase
    if isinstance(step, ColumnWindowStep):
        from sluiceway.operators.columns.combining import ColumnCombiner  # where columns are used

        combiner = ColumnCombiner(step, step_name, len(senders), max_parallelism)
    else:
        combiner = Combiner(step, partitioner.key, partitioner.route, len(senders))
    return CombiningPartition(partitioner, senders, buffer_timeout_ms, full, combiner)
