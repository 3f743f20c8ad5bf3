"""Timers, 400,000 of them and every one another, set and fired: against a loop over a heap.

Each record sets a timer up to a minute ahead; event time moves on with the records. The loop keeps a set beside
the heap, because setting a timer twice is setting it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import sluiceway as sw
from benchmarks.harness import BY_HAND, Comparison, Emit, Job, Loop, Plan, Row, Side, compare
from sluiceway.operators.timer_queue import TimerQueue

__all__ = ["measure"]

Record = tuple[int, int, int]  # key, event time in ms, when the timer is due
Timer = tuple[int, int]

PER_SECOND = 10_000
AHEAD_MS = 60_000
BATCH = 1024
AT_LEAST_PER_SECOND = 300_000


def key_of(record: Record) -> int:
    return record[0]


def time_of(record: Record) -> int:
    return record[1]


class SetTimer(sw.KeyedProcessFunction[int, Record, Timer]):
    def process_element(self, value: Record, ctx: sw.KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value[2])

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Iterable[Timer]:
        return ((timestamp, ctx.get_current_key()),)


def measure(plan: Plan) -> Iterator[Row]:
    records = _records(plan.size(400_000, 3_000))
    yield from _both("timers of the queue", records, Loop(_queue, records), plan)
    function = Job(lambda flow: _fired(flow, records))
    yield from _both("timers of a keyed process function", records, function, plan)


def _both(name: str, records: list[Record], ours: Side, plan: Plan) -> list[Row]:
    heap = {BY_HAND: Loop(_loop, records)}
    (row,) = compare(Comparison(name, len(records), ours, heap, in_order=False), plan)
    each = tuple(seconds / len(records) * 1e6 for seconds in row.details["ours_s"])
    return [
        row,
        replace(
            row,
            name=f"{name}: each",
            unit="us",
            values=each,
            aim=1e6 / AT_LEAST_PER_SECOND,
            details={},
            against="",
        ),
    ]


def _records(count: int) -> list[Record]:
    random = Random(1)
    keys = list(range(count))
    random.shuffle(keys)
    times = (1_700_000_000_000 + i * 1_000 // PER_SECOND for i in range(count))
    return [(key, time, time + random.randrange(1, AHEAD_MS)) for key, time in zip(keys, times, strict=True)]


def _fired(flow: sw.Pipeline, records: list[Record]) -> sw.DataStream[Timer]:
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(time_of)
    stream = flow.from_collection(records).assign_timestamps_and_watermarks(strategy)
    return stream.key_by(key_of).process(SetTimer())


def _queue(records: list[Record], emit: Emit) -> None:
    queue = TimerQueue()
    for first in range(0, len(records), BATCH):
        for key, _, due in records[first : first + BATCH]:
            queue.register(due, key, ())
        for timestamp, key, _ in queue.due(records[min(first + BATCH, len(records)) - 1][1]):
            emit((timestamp, key))
    for timestamp, key, _ in queue.due(2**63):
        emit((timestamp, key))


def _loop(records: list[Record], emit: Emit) -> None:
    heap: list[Timer] = []
    known: set[Timer] = set()
    for first in range(0, len(records), BATCH):
        for key, _, due in records[first : first + BATCH]:
            timer = (due, key)
            if timer not in known:
                known.add(timer)
                heappush(heap, timer)
        now = records[min(first + BATCH, len(records)) - 1][1]
        while heap and heap[0][0] <= now:
            timer = heappop(heap)
            known.remove(timer)
            emit(timer)
    while heap:
        emit(heappop(heap))
