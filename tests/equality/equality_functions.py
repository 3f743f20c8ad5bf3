"""What the steps of random pipelines call. Nothing here depends on who is faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sluiceway as sw

PRIME = 10_007


class Rec(NamedTuple):
    key: int
    value: int


def key_of(record: Rec) -> int:
    return record.key


def mixed(*values: int) -> int:
    """A number that tells these, and their order."""
    result = 7
    for value in values:
        result = (result * 31 + value) % PRIME
    return result


class Stamp(sw.ProcessFunction[Rec, tuple[Rec, Any]]):
    """Puts the event time to a record, so that it is compared, too."""

    def process_element(self, value: Rec, ctx: sw.ProcessFunction.Context) -> list[tuple[Rec, Any]]:
        return [(value, ctx.timestamp())]


# ---- where the order of a key's records is promised --------------------------------------------------------


class Running(sw.AggregateFunction[Rec, tuple[int, list[int]], Rec]):
    """The last three values."""

    def create_accumulator(self) -> tuple[int, list[int]]:
        return 0, []

    def add(self, value: Rec, accumulator: tuple[int, list[int]]) -> tuple[int, list[int]]:
        return value.key, [*accumulator[1], value.value][-3:]

    def get_result(self, accumulator: tuple[int, list[int]]) -> Rec:
        return Rec(accumulator[0], mixed(*accumulator[1]))


class EachNth(sw.FilterFunction[Rec]):
    """Filter that keeps each nth record of a key."""

    def __init__(self, n: int) -> None:
        self.n = n

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))

    def filter(self, value: Rec) -> bool:
        self.count.update(count := self.count.value() + 1)
        return count % self.n == 0


def is_another(record: Rec, last: int | None) -> tuple[bool, int]:
    """Return whether the value differs from that of the record before, and the value as the new state."""
    return record.value != last, record.value


class Remember(sw.KeyedProcessFunction[int, Rec, Rec]):
    """Has state of several kinds, and tells it."""

    def __init__(self, odd: sw.OutputTag[Rec]) -> None:
        self.odd = odd

    def open(self, context: sw.RuntimeContext) -> None:
        self.count = context.get_state(sw.ValueStateDescriptor("count", int, default=0))
        self.last = context.get_list_state(sw.ListStateDescriptor("last", int))
        self.by_rest = context.get_map_state(sw.MapStateDescriptor("by rest", int, key_type=int))
        self.total = context.get_reducing_state(
            sw.ReducingStateDescriptor("total", int, reduce=lambda a, b: a + b)
        )

    def process_element(self, value: Rec, ctx: sw.KeyedProcessFunction.Context) -> Iterator[Rec]:
        count, rest = self.count.value() + 1, value.value % 3
        self.count.update(count)
        self.total.add(value.value)
        self.by_rest.put(rest, (self.by_rest.get(rest) or 0) + count)
        if count % 7 == 0:
            self.last.clear()
        self.last.add(value.value)
        told = Rec(
            value.key,
            mixed(count, *self.last.get(), *sum(sorted(self.by_rest.items()), ()), self.total.get() or 0),
        )
        if value.value % 2:
            ctx.output(self.odd, told)
        else:
            yield told


class FirstOfEach(sw.FlatMapFunction[Rec, Rec]):
    """Passes on what its key has not had yet."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_map_state(sw.MapStateDescriptor("seen", bool, key_type=int))

    def flat_map(self, value: Rec) -> list[Rec]:
        if self.seen.contains(value.value):
            return []
        self.seen.put(value.value, True)
        return [value]


# ---- by event time: whatever order records come in, as long as none is late ----------------------------------


class InTime(sw.KeyedProcessFunction[int, Rec, Rec]):
    """Holds records until a while after their time, and tells those of one time together."""

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def open(self, context: sw.RuntimeContext) -> None:
        self.held = context.get_map_state(sw.MapStateDescriptor("held", list, key_type=int))

    def process_element(self, value: Rec, ctx: sw.KeyedProcessFunction.Context) -> None:
        at = ctx.timestamp()
        assert at is not None
        self.held.put(at, [*(self.held.get(at) or []), value.value])
        ctx.timer_service().register_event_time_timer(at + self.delay)
        # One that is taken back again must not fire.
        ctx.timer_service().register_event_time_timer(at + self.delay + 100_000)
        ctx.timer_service().delete_event_time_timer(at + self.delay + 100_000)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterator[Rec]:
        values = self.held.get(timestamp - self.delay)
        self.held.remove(timestamp - self.delay)
        yield Rec(ctx.get_current_key(), mixed(*sorted(values)))


class BothInTime(sw.KeyedCoProcessFunction[int, Rec, Rec, Rec]):
    """The same for two streams, which share the state."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.held = context.get_map_state(sw.MapStateDescriptor("held", list, key_type=int))

    def process_element1(self, value: Rec, ctx: sw.KeyedProcessFunction.Context) -> None:
        self._hold(1, value, ctx)

    def process_element2(self, value: Rec, ctx: sw.KeyedProcessFunction.Context) -> None:
        self._hold(2, value, ctx)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterator[Rec]:
        values = self.held.get(timestamp)
        self.held.remove(timestamp)
        yield Rec(ctx.get_current_key(), mixed(*sum(sorted(values), ())))

    def _hold(self, side: int, value: Rec, ctx: sw.KeyedProcessFunction.Context) -> None:
        at = ctx.timestamp()
        assert at is not None
        self.held.put(at, [*(self.held.get(at) or []), (side, value.value)])
        ctx.timer_service().register_event_time_timer(at)


RULES = sw.MapStateDescriptor("rules", list, key_type=int)


class ByRules(sw.KeyedBroadcastProcessFunction[int, Rec, Rec, Rec]):
    """Adds the latest rule at the time of a record, of those for its rest: waits until all of them are there."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.held = context.get_map_state(sw.MapStateDescriptor("held", list, key_type=int))

    def process_broadcast_element(self, value: Rec, ctx: sw.KeyedBroadcastProcessFunction.Context) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rest = value.key % 3
        rules.put(rest, sorted([*rules.get(rest, []), (ctx.timestamp(), value.value)]))

    def process_element(self, value: Rec, ctx: sw.KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        at = ctx.timestamp()
        assert at is not None
        self.held.put(at, [*(self.held.get(at) or []), value.value])
        ctx.timer_service().register_event_time_timer(at)

    def on_timer(self, timestamp: int, ctx: sw.KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Rec]:
        key = ctx.get_current_key()
        rules = ctx.get_broadcast_state(RULES).get(key % 3, [])
        in_force = [rule for rule in rules if rule[0] <= timestamp]
        for value in sorted(self.held.get(timestamp)):
            yield Rec(key, mixed(value, in_force[-1][1] if in_force else 0))
        self.held.remove(timestamp)


class AtTheEnd(sw.KeyedProcessFunction[int, Rec, Rec]):
    """Counts until a timer in processing time fires that is centuries away: when the input has ended."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.sum = context.get_state(sw.ValueStateDescriptor("sum", int, default=0))

    def process_element(self, value: Rec, ctx: sw.KeyedProcessFunction.Context) -> None:
        self.sum.update(self.sum.value() + value.value)
        ctx.timer_service().register_processing_time_timer(10**13)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> list[Rec]:
        return [Rec(ctx.get_current_key(), self.sum.value())]


# ---- windows ---------------------------------------------------------------------------------------------------


class Total(sw.AggregateFunction[Rec, tuple[int, int, int], Rec]):
    """Sum and number."""

    def create_accumulator(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def add(self, value: Rec, accumulator: tuple[int, int, int]) -> tuple[int, int, int]:
        return value.key, accumulator[1] + value.value, accumulator[2] + 1

    def get_result(self, accumulator: tuple[int, int, int]) -> Rec:
        return Rec(accumulator[0], mixed(accumulator[1], accumulator[2]))

    def merge(
        self, accumulator1: tuple[int, int, int], accumulator2: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        key = max(accumulator1[0], accumulator2[0])
        return key, accumulator1[1] + accumulator2[1], accumulator1[2] + accumulator2[2]


class Whole(sw.ProcessWindowFunction[int, Rec, Rec]):
    """All that is in a window, and how many of the key's windows there have been."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.windows = sw.ValueStateDescriptor("windows", int, default=0)

    def process(self, key: int, ctx: sw.ProcessWindowFunction.Context, elements: Sequence[Rec]) -> Iterator[Rec]:
        windows = ctx.global_state().get_state(self.windows)
        windows.update(windows.value() + 1)
        values = sorted(record.value for record in elements)
        yield Rec(key, mixed(ctx.window().start, ctx.window().end, windows.value(), *values))


def whole(key: int, window: Any, elements: Sequence[Rec]) -> list[Rec]:
    return [Rec(key, mixed(window.start, window.end, *sorted(record.value for record in elements)))]


def whole_of_all(window: Any, elements: Sequence[Rec]) -> list[Rec]:
    return [Rec(window.start % 5, mixed(window.start, *sum(sorted(map(tuple, elements)), ())))]


def in_order(key: int, window: Any, elements: Sequence[Rec]) -> list[Rec]:
    return [Rec(key, mixed(*[record.value for record in elements]))]


class Grouped(sw.CoGroupFunction[Rec, Rec, Rec]):
    """What two streams have in a window."""

    def co_group(self, lefts: Sequence[Rec], rights: Sequence[Rec]) -> list[Rec]:
        key = (lefts or rights)[0].key
        values = [*sorted(r.value for r in lefts), -1, *sorted(r.value for r in rights)]
        return [Rec(key, mixed(*values))]


class Latest(sw.WatermarkGenerator[Any]):
    """A watermark behind every record that is the latest so far, by so much."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.latest = -1

    def on_event(self, value: Any, timestamp: int, output: sw.WatermarkOutput) -> None:
        if timestamp > self.latest:
            self.latest = timestamp
            output.emit_watermark(timestamp - self.behind)

    def on_periodic_emit(self, output: sw.WatermarkOutput) -> None:
        pass
