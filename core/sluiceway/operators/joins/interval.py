"""The interval join: records of two streams with one key that are not too far apart in event time.

A record is buffered until the watermark has passed every record of the other input that could match it. The
records of one side lie in the state by slices of time: the namespace is the slice, and under each key there is a
list in order of time. A look-up touches the two or three slices that an interval covers, and finds its place in
them by bisection. Expired records are dropped slice by slice, for all keys at once, without timers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Any, Final, TypeAlias, cast

from sluiceway.elements import Batch, Watermark
from sluiceway.errors import FunctionContractError
from sluiceway.functions import FlatJoinFunction, JoinFunction, OutputTag, ProcessJoinFunction
from sluiceway.functions.base import output_tags_exist
from sluiceway.isolation import isolated
from sluiceway.operators.context import OperatorContext
from sluiceway.operators.joins.base import InputKey, Lender, Results, Run, check_joined, insert, pair_loop
from sluiceway.operators.keyed import KeyedOperator
from sluiceway.operators.late_records import LateRecords
from sluiceway.operators.process_context import Sides
from sluiceway.operators.tagged import take_tagged
from sluiceway.record_errors import record_loop
from sluiceway.state import StateTable, ValueStateDescriptor
from sluiceway.steps import IntervalJoinStep
from sluiceway.util.overriding import override

__all__ = ["IntervalJoinOperator"]

_MOST_SLICES: Final = 64
"""Approximate number of slices into which the retention time of a side is divided."""

_Join: TypeAlias = Callable[[Any, Any, int, Run, Results], None]


class _Side:
    """Buffered records of one input.

    Args:
        table: table of the records.
        width: width of a slice, in ms.
        lower: the lower bound of the distance of a match from a record of this side, in ms.
        upper: the upper bound.
    """

    def __init__(self, table: StateTable, width: int, lower: int, upper: int) -> None:
        self.lower = lower
        self.upper = upper
        # A record at t can have no further match once the watermark has reached t + kept.
        self.kept = max(upper, 0)
        # Records that arrived with a timestamp at the watermark and no time left to wait: visible until the next
        # watermark.
        self.fresh: dict[Any, Run] = {}
        self.slices: dict[int, MutableMapping[Any, Run]] = {}
        self._table = table
        self._width = width
        self._order: list[int] = []
        self._take_over()

    def slice(self, number: int) -> MutableMapping[Any, Run]:
        """Return the records from ``number * width`` on, by key."""
        entries = self.slices.get(number)
        if entries is None:
            entries = self.slices[number] = self._table.entries((self._width, number))
            heappush(self._order, number)
        return entries

    def between(self, first: int, last: int) -> list[Callable[[Any], Run | None]]:
        """Return the look-ups by key of the existing slices from ``first`` to ``last``."""
        slices = self.slices
        if last - first < len(slices):
            return [slices[number].get for number in range(first, last + 1) if number in slices]
        return [slices[number].get for number in sorted(slices) if first <= number <= last]

    def expire(self, watermark: int) -> None:
        """Drop the slices in which no record can have a further match."""
        self.fresh.clear()
        order, width = self._order, self._width
        # By the slice's last ms: all of its records have expired.
        while order and (order[0] + 1) * width - 1 + self.kept <= watermark:
            number = heappop(order)
            del self.slices[number]
            self._table.drop((width, number))

    def _take_over(self) -> None:
        """Find restored slices; the join may have had other bounds, and so other slices, then."""
        for namespace in list(self._table.namespaces()):
            width, number = cast("tuple[int, int]", namespace)
            if width == self._width:
                self.slice(number)
                continue
            for key, run in self._table.entries(namespace).items():
                for timestamp, value in run:
                    entries = self.slice(timestamp // self._width)
                    moved = entries.get(key, [])
                    insert(moved, timestamp, value)
                    entries[key] = moved
            self._table.drop(namespace)


class IntervalJoinOperator(KeyedOperator):
    """Operator of the interval join: port 0 is the left input, port 1 the right one."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        step = context.node.step
        assert isinstance(step, IntervalJoinStep)
        self._step = step
        self._keys = InputKey(self, "left", step.key), InputKey(self, "right", step.right_key)
        self._late = LateRecords(self, step.left_late), LateRecords(self, step.right_late)
        self._ctx = _Context(shares=self.shares)
        # The type hint says nothing of the records that a function yields with a tag.
        if self.trusts and step.gives_many and output_tags_exist():
            self.distrust()
        self._kind: type = list
        self._lender = Lender(_callable(step.fn), shares=self.shares)
        self._joins: tuple[_Join, _Join] = (
            (self._process_left, self._process_right) if step.gives_many else (self._pair_left, self._pair_right)
        )

    def open(self) -> None:
        """Find restored slices, and open the function."""
        super().open()
        lower, upper = self._step.lower, self._step.upper
        # An interval covers two or three slices, and the retention time is not divided into much more than
        # _MOST_SLICES.
        self._width = max(1, (upper - lower + 2) // 2, max(upper, -lower) // _MOST_SLICES)
        # From the right side's view the bounds are mirrored.
        left, right = (self.backend.table(ValueStateDescriptor(f"interval join {s}")) for s in ("left", "right"))
        self._sides = _Side(left, self._width, lower, upper), _Side(right, self._width, -upper, -lower)
        restored = (entries.values() for side in self._sides for entries in side.slices.values())
        self._lender.look_at_restored(chain.from_iterable(restored), in_memory=left.keeps_objects)

    @override
    def receivers(self) -> Sequence[Callable[[Batch[Any]], None]]:
        return self.process, self._process_second

    @override
    def process(self, batch: Batch[Any]) -> None:
        self._take(batch, 0)

    def _process_second(self, batch: Batch[Any]) -> None:
        self._take(batch, 1)

    def advance(self, watermark: Watermark) -> None:
        """Drop expired slices, and emit the watermark."""
        for side in self._sides:
            side.expire(watermark.timestamp)
        self.output.control(watermark)

    # ---- from records to pairs -------------------------------------------------------------------------------

    def _take(self, batch: Batch[Any], port: int) -> None:
        results = Results()
        self._lender.look(batch.values)
        stamps, keys = self._keys[port].stamps(batch), self._keys[port].keys(batch)
        try:
            self._loop(batch.values, stamps, keys, port, results)
        finally:
            self.store.clear_current_key()
        self._late[port].emit()
        if self._step.with_context:
            take_tagged(results, self._ctx.sides, stamped=True)
        if self._ctx.sides:
            self._emit_sides()
        results.emit(self)

    @record_loop
    def _loop(
        self, values: Sequence[Any], stamps: Sequence[int], keys: Sequence[Any], port: int, results: Results
    ) -> None:
        mine, others, join = self._sides[port], self._sides[1 - port], self._joins[port]
        lower, upper, width, watermark = mine.lower, mine.upper, self._width, self.current_watermark
        number = first = last = None
        entries: MutableMapping[Any, Run] = {}
        lookups: list[Callable[[Any], Run | None]] = []
        for value, timestamp, key in zip(values, stamps, keys, strict=True):
            low, high = timestamp + lower, timestamp + upper
            if timestamp <= watermark:
                if timestamp < watermark:
                    self._late[port].add(value, timestamp)
                    continue
                low = self._meet_at_watermark(key, value, port, low, results)
            if timestamp // width != number:
                number = timestamp // width
                entries = mine.slice(number)
            run = entries.get(key)
            if run is None:
                entries[key] = [(timestamp, value)]
            else:
                if run[-1][0] <= timestamp:
                    run.append((timestamp, value))
                else:
                    # Out of order within the slice.
                    insert(run, timestamp, value)
                entries[key] = run  # changed in place: a backend outside memory sees only assignments
            if low // width != first or high // width != last:
                first, last = low // width, high // width
                lookups = others.between(first, last)
            # Each side stores its records before it looks for matches on the other, so each pair is found once: by
            # the later of the two.
            for lookup in lookups:
                found = lookup(key)
                if found is None:
                    continue
                if found[0][0] < low or found[-1][0] > high:
                    found = found[bisect_left(found, (low,)) : bisect_left(found, (high + 1,))]
                if found:
                    join(key, value, timestamp, found, results)

    def _meet_at_watermark(self, key: Any, value: Any, port: int, low: int, results: Results) -> int:
        """Return the first timestamp that a record exactly at the watermark may match.

        Records that expire by the watermark do not match, even before they are dropped.
        """
        mine, others, watermark = self._sides[port], self._sides[1 - port], self.current_watermark
        if others.kept == 0 and low <= watermark and key in others.fresh:
            self._joins[port](key, value, watermark, others.fresh[key], results)
        if mine.kept == 0:
            mine.fresh.setdefault(key, []).append((watermark, value))
        return max(low, watermark - others.kept + 1)

    # ---- from pairs to results -------------------------------------------------------------------------------

    @pair_loop
    def _pair_left(self, key: Any, left: Any, left_stamp: int, run: Run, results: Results) -> None:
        call, add, stamp = self._lender.call, results.values.append, results.stamps.append
        isolate = self.isolate if self._lender.isolates else None
        if self._opened:
            self.store.current_key = key
        for right_stamp, right in run:
            timestamp = left_stamp if left_stamp > right_stamp else right_stamp
            made = call(left, right)
            add(made if isolate is None else isolate(made))
            stamp(timestamp)

    @pair_loop
    def _pair_right(self, key: Any, right: Any, right_stamp: int, run: Run, results: Results) -> None:
        call, add, stamp = self._lender.call, results.values.append, results.stamps.append
        isolate = self.isolate if self._lender.isolates else None
        if self._opened:
            self.store.current_key = key
        for left_stamp, left in run:
            timestamp = left_stamp if left_stamp > right_stamp else right_stamp
            made = call(left, right)
            add(made if isolate is None else isolate(made))
            stamp(timestamp)

    @pair_loop
    def _process_left(self, key: Any, left: Any, left_stamp: int, run: Run, results: Results) -> None:
        self.store.current_key = key
        self._ctx.left = left_stamp
        for right_stamp, right in run:
            self._ctx.right = right_stamp
            timestamp = left_stamp if left_stamp > right_stamp else right_stamp
            self._extend(self._lender.call(left, right, self._ctx), timestamp, results)

    @pair_loop
    def _process_right(self, key: Any, right: Any, right_stamp: int, run: Run, results: Results) -> None:
        self.store.current_key = key
        self._ctx.right = right_stamp
        for left_stamp, left in run:
            self._ctx.left = left_stamp
            timestamp = left_stamp if left_stamp > right_stamp else right_stamp
            self._extend(self._lender.call(left, right, self._ctx), timestamp, results)

    def _extend(self, returned: Iterable[Any] | None, timestamp: int, results: Results) -> None:
        if returned is None:
            return
        if type(returned) is not self._kind:
            self._kind = check_joined(self.step_name, returned)
        self.extend(results.values, returned)
        results.fill_stamps(timestamp)

    def _emit_sides(self) -> None:
        sides, self._ctx.sides = self._ctx.sides, {}
        for name, (values, stamps) in sides.items():
            self.output.side(name, Batch(values, cast("list[int]", stamps)))  # each pair has a timestamp


class _Context(ProcessJoinFunction.Context):
    """Context of the join function; one object for all pairs, whose attributes the loop sets."""

    def __init__(self, *, shares: bool) -> None:
        self._shares = shares
        self.left = 0
        self.right = 0
        self.sides: Sides = {}

    def get_left_timestamp(self) -> int:
        return self.left

    def get_right_timestamp(self) -> int:
        return self.right

    def get_timestamp(self) -> int:
        return max(self.left, self.right)

    def output(self, tag: OutputTag[Any], value: Any) -> None:
        if not isinstance(tag, OutputTag):
            raise FunctionContractError(f"ctx.output(tag, value) needs an OutputTag first, not {tag!r:.100}")
        values, stamps = self.sides.setdefault(tag.name, ([], []))
        values.append(value if self._shares else isolated(value))
        stamps.append(self.get_timestamp())


def _callable(fn: Any) -> Callable[..., Any]:
    """Return the callable for a pair: with a context if it may return many results."""
    if isinstance(fn, ProcessJoinFunction):
        return fn.process_element
    if isinstance(fn, FlatJoinFunction):
        join = fn.join
        return lambda left, right, ctx: join(left, right)
    if isinstance(fn, JoinFunction):
        return fn.join
    called: Callable[..., Any] = fn
    return called
