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
from typing import Any, Final

from sluiceway.config.settings import Settings
from sluiceway.elements import MIN_WATERMARK, Batch, Element, Watermark, WatermarkStatus
from sluiceway.functions import AggregateFunction, ReduceFunction
from sluiceway.network.partitioners import HashPartitioner
from sluiceway.network.result_partition import ResultPartition
from sluiceway.operators.windows.factory import slices_of
from sluiceway.operators.windows.slice_types import Partial
from sluiceway.record_errors import MISSING
from sluiceway.steps import WindowContents, WindowStep
from sluiceway.streamgraph import PartitionerSpec, StreamNode
from sluiceway.util.overriding import override

__all__ = ["Combiner", "CombiningPartition", "combined_step"]

_Key = Callable[[Any], Any]
_Route = Callable[[Any], int]
_Fold = Callable[[dict[Any, Any], list[int], Iterable[Any], _Key, _Route], None]

_MOST: Final = 1 << 14
"""Largest number of buffered partial results."""
_TRIED: Final = 1 << 14
"""Records after which the benefit of combining is judged."""
_RESTED: Final = 1 << 18
"""Records that are sent unchanged before combining is tried again."""
_LONGEST_S: Final = 0.05
"""Longest time in seconds that partial results are buffered."""
_WORTH_IT: Final = 0.6
"""Partial results per record above which combining costs more than it saves."""


def combined_step(partitioner: PartitionerSpec, consumer: StreamNode, settings: Settings) -> WindowStep | None:
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
        or not isinstance(step, WindowStep)
        or not step.event_time
        # Each of these handles single records.
        or consumer.skips_errors
        or step.allowed_lateness_ms
        or step.late_tag is not None
        or step.contents is WindowContents.ELEMENTS
        or slices_of(step) is None
    ):
        return None
    # Built-in functions combine exactly in any order. A user's function may not be associative, so only the option
    # "all" combines it.
    if getattr(step.fn, "combines", None) is not None:
        return step
    return step if settings.local_aggregation == "all" and _merges(step.fn) else None


def _merges(fn: object) -> bool:
    return not isinstance(fn, AggregateFunction) or type(fn).merge is not AggregateFunction.merge


class Combiner:
    """Partial results on one edge, by slice and key.

    Args:
        step: the window step at the consumer's end of the edge.
        key_of: returns a record's key.
        route: returns the index of a key's consumer; raises what the partitioner would raise.
        consumers: number of consumers.
    """

    def __init__(self, step: WindowStep, key_of: _Key, route: _Route, consumers: int) -> None:
        slices = slices_of(step)
        assert slices is not None
        self._slices = slices
        self._key_of = key_of
        self._route = route
        self._consumers = consumers
        self._fold, self._finish = _fold_of(step)
        # By start of a slice: accumulators by key, and the consumers of the keys in the same order.
        self._parts: dict[int, tuple[dict[Any, Any], list[int]]] = {}
        self._records = self._made = self._waiting = 0
        self._resting = 0
        self._off = False

    def __len__(self) -> int:
        return self._waiting

    @property
    def full(self) -> bool:
        """True if no more partial results should be buffered."""
        return self._waiting >= _MOST

    def stop(self) -> None:
        """Combine no further records."""
        self._off = True

    def rests(self, records: int) -> bool:
        """Return whether this number of records is to be sent unchanged."""
        if self._off:
            return True
        if self._resting > 0:
            self._resting -= records
            return True
        return False

    def add(self, batch: Batch[Any], watermark: int) -> Batch[Any] | None:
        """Fold a batch, and return those of its records that must be sent unchanged, in order.

        Args:
            batch: the records.
            watermark: the last watermark before them, in ms.
        """
        # The window operator reports records without timestamps, with the step's name.
        stamps = batch.timestamps
        if stamps is None:
            self._off = True
            return batch
        slices = self._slices
        # Records of a slice whose first window has ended go unchanged: the consumer decides for each whether it is
        # late. Most batches are within one open slice, and are folded in one call.
        low, high = batch.span()
        first, late = slices.start_of(low), watermark > MIN_WATERMARK
        if high < first + slices.width and not (late and slices.first_end(first) - 1 <= watermark):
            self._records += len(batch.values)
            done = self._add_to(first, batch.values)
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
            if not self._off and not (late and slices.first_end(start) - 1 <= watermark):
                self._records += len(values)
                done = self._add_to(start, values)
            if done is not None:
                left[0].extend(values[done:])
                left[1].extend(times[done:])
        return Batch(*left) if left[0] else None

    def take(self) -> list[tuple[int, Batch[Any]]]:
        """Remove and return the partial results by consumer; keys of a slice in the order of their records."""
        found: list[tuple[list[Any], list[int]]] = [([], []) for _ in range(self._consumers)]
        for start, (entries, routes) in self._parts.items():
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
        self._waiting = 0
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
            self._off = True
            return len(values) - length_hint(left) - 1
        finally:
            self._waiting += len(entries) - before
        return None

    def _judge(self) -> None:
        """Suspend combining if nearly each record has a key of its own."""
        self._made += self._waiting
        if self._records >= _TRIED:
            if self._made > _WORTH_IT * self._records:
                self._resting = _RESTED
            self._records = self._made = 0


class _UnfitError(Exception):
    """A value cannot be merged exactly."""


def _fold_of(step: WindowStep) -> tuple[_Fold, Callable[[list[Any]], list[Any]]]:
    """Return the loop over records, and the function that turns its results into the step's accumulators."""
    fn: Any = step.fn
    combines = getattr(fn, "combines", None)
    if combines is None:
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
        reduce = fn.reduce if isinstance(fn, ReduceFunction) else fn

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
                entries[key] = add(value, first()) if aggregates else value
                routes.append(to)
            else:
                entries[key] = add(value, held) if aggregates else reduce(held, value)

    return fold


class CombiningPartition(ResultPartition):
    """Result partition that combines records before they are sent.

    Partial results, and a watermark behind them, are buffered while the task has more to do, for 50 ms at
    most, whatever the buffer timeout is.

    Args:
        partitioner: partitioner, set up for this subtask.
        senders: senders of the channels, one per consumer.
        buffer_timeout_ms: as for :class:`ResultPartition`.
        full: as for :class:`ResultPartition`.
        step: the window step at the consumer's end of the edge.
    """

    def __init__(
        self,
        partitioner: HashPartitioner,
        senders: Sequence[Any],
        buffer_timeout_ms: int,
        full: int,
        step: WindowStep,
    ) -> None:
        super().__init__(partitioner, senders, buffer_timeout_ms, full)
        self._combiner = Combiner(step, partitioner.key, partitioner.route, len(senders))
        self._watermark = MIN_WATERMARK
        self._held: Watermark | None = None

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
        elif self._due is None or self._due > now + _LONGEST_S:
            self._due = now + _LONGEST_S

    def idle(self) -> None:
        """Send the partial results: the task has nothing to do, so no record follows that could be combined."""
        if len(self._combiner):
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
        super().flush()
        if len(self._combiner):
            for index, batch in self._combiner.take():
                values, stamps, full = batch.values, batch.timestamps, self._full
                assert stamps is not None
                for start in range(0, len(values), full):
                    self._give(index, Batch(values[start : start + full], stamps[start : start + full]))
        held, self._held = self._held, None
        if held is not None:
            super().control(held)
