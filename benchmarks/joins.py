"""Interval join of two streams that come a little out of order: who is near whom, by key."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator

import sluiceway as sw
from benchmarks.harness import FUNCTIONS, Comparison, Emit, Job, Loop, Plan, Row, compare

__all__ = ["measure"]

Event = tuple[int, int]

KEYS = 1000
NEAR_MS = 1000
OUT_OF_ORDER_MS = 50


def key_of(event: Event) -> int:
    return event[0]


def time_of(event: Event) -> int:
    return event[1]


def distance(left: Event, right: Event) -> Event:
    return (left[0], right[1] - left[1])


def measure(plan: Plan) -> Iterator[Row]:
    lefts, rights = (_events(plan.size(200_000, 300), seed) for seed in (1, 2))
    yield from compare(
        Comparison(
            "interval join, two matches per record",
            len(lefts) + len(rights),
            Job(lambda flow: _joined(flow, lefts, rights)),
            {FUNCTIONS: Loop(_loop, lefts, rights)},
            in_order=False,
        ),
        plan,
    )


def _events(count: int, seed: int) -> list[Event]:
    """One per ms on average, each up to 50 ms late."""
    drawn = random.Random(seed)
    return [(drawn.randrange(KEYS), ms - drawn.randrange(OUT_OF_ORDER_MS)) for ms in range(count)]


def _joined(flow: sw.Pipeline, lefts: list[Event], rights: list[Event]) -> sw.DataStream[Event]:
    in_time = sw.WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDER_MS).with_timestamp_assigner(time_of)
    left, right = (
        flow.from_collection(events).assign_timestamps_and_watermarks(in_time).key_by(key_of)
        for events in (lefts, rights)
    )
    return left.interval_join(right).between(-NEAR_MS, NEAR_MS).apply(distance)


def _loop(lefts: list[Event], rights: list[Event], emit: Emit) -> None:
    """Keeps of each key what is near enough to what may still come, and looks at all of it."""
    left_of: defaultdict[int, deque[Event]] = defaultdict(deque)
    right_of: defaultdict[int, deque[Event]] = defaultdict(deque)
    latest = 0
    for left, right in zip(lefts, rights, strict=True):
        latest = max(latest, time_of(left), time_of(right))
        oldest = latest - OUT_OF_ORDER_MS - NEAR_MS
        key, time = key_of(left), time_of(left)
        left_of[key].append(left)
        others = right_of[key]
        while others and time_of(others[0]) < oldest - OUT_OF_ORDER_MS:
            others.popleft()
        for other in others:
            if -NEAR_MS <= time_of(other) - time <= NEAR_MS:
                emit(distance(left, other))
        key, time = key_of(right), time_of(right)
        right_of[key].append(right)
        others = left_of[key]
        while others and time_of(others[0]) < oldest - OUT_OF_ORDER_MS:
            others.popleft()
        for other in others:
            if -NEAR_MS <= time - time_of(other) <= NEAR_MS:
                emit(distance(other, right))
