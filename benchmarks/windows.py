"""Sums per user in windows of event time: five million events out of order, of ten thousand users.

Events come up to 5 s late, 25,000 to the second of event time. The plain loop does what a program would that
has nothing else to do: it keeps a dict of sums per open window, and gives out a window's sums when no event that
belongs to it can come any more. A second loop calls the functions that the pipeline calls, where the first has
what they do written out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random

import sluiceway as sw
from benchmarks.harness import Comparison, Plan, Row, compare, timed
from sluiceway.windows import SlidingEventTimeWindows, TumblingEventTimeWindows

__all__ = ["measure"]

Event = tuple[int, int, int]  # user, amount, event time in ms

USERS = 10_000
LATE_MS = 5_000
PER_SECOND = 25_000
WINDOW_MS = 10_000


def user_of(event: Event) -> int:
    return event[0]


def time_of(event: Event) -> int:
    return event[2]


class SumOfAmounts(sw.AggregateFunction[Event, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Event, accumulator: int) -> int:
        return accumulator + value[1]

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 + accumulator2


def measure(plan: Plan) -> Iterator[Row]:
    events = _events(plan.size(5_000_000, 20_000))
    tumbling = TumblingEventTimeWindows.of("10s")
    yield compare(
        Comparison(
            "tumbling windows of 10 s, sums",
            len(events),
            loop=lambda: _loop(events),
            ours=lambda: _pipeline(events, tumbling),
            in_order=False,
            aim=0.6,
            floor=0.5,
        ),
        plan,
    )
    yield compare(
        Comparison(
            "tumbling windows of 10 s, sums: the loop calls the functions, too",
            len(events),
            loop=lambda: _loop_with_functions(events),
            ours=lambda: _pipeline(events, tumbling),
            in_order=False,
        ),
        plan,
    )
    yield _cost_of_sliding(events, plan)


def _cost_of_sliding(events: list[Event], plan: Plan) -> Row:
    tumbling, sliding = TumblingEventTimeWindows.of("10s"), SlidingEventTimeWindows.of("60s", "1s")
    in_windows = sum(_pipeline(events, sliding))
    if in_windows != 60 * sum(amount for _, amount, _ in events):
        raise RuntimeError("sliding windows: every event must count in 60 windows")
    ratios = []
    for _ in range(plan.runs):
        one = timed(lambda: _pipeline(events, tumbling))
        other = timed(lambda: _pipeline(events, sliding))
        ratios.append(other.cpu / one.cpu)
    return Row(
        "sliding windows of 60 s by 1 s, sums: cost",
        "x tumbling",
        tuple(ratios),
        aim=3.0,
        note="processor time, against that of the tumbling windows",
        details={"records": len(events)},
    )


def _events(count: int) -> list[Event]:
    random = Random(1)
    start = 1_700_000_000_000
    return [
        (
            random.randrange(USERS),
            random.randrange(1, 1_000),
            start + i * 1_000 // PER_SECOND - random.randrange(LATE_MS),
        )
        for i in range(count)
    ]


def _pipeline(events: list[Event], windows: sw.windows.WindowAssigner) -> Sequence[int]:
    flow = sw.Pipeline("windows")
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(LATE_MS).with_timestamp_assigner(time_of)
    stream = flow.from_collection(events).assign_timestamps_and_watermarks(strategy)
    results = stream.key_by(user_of).window(windows).aggregate(SumOfAmounts()).collect()
    flow.run()
    return results


def _loop(events: list[Event]) -> list[int]:
    results: list[int] = []
    windows: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    highest, next_end = 0, 0
    for user, amount, time in events:
        if time > highest:
            highest = time
            if highest - LATE_MS > next_end:
                for start in sorted(s for s in windows if s + WINDOW_MS < highest - LATE_MS):
                    results.extend(windows.pop(start).values())
                next_end = min(windows, default=time - time % WINDOW_MS) + WINDOW_MS
        windows[time - time % WINDOW_MS][user] += amount
    for start in sorted(windows):
        results.extend(windows[start].values())
    return results


def _loop_with_functions(events: list[Event]) -> list[int]:
    results: list[int] = []
    windows: dict[int, dict[int, int]] = {}
    sums = SumOfAmounts()
    create, add, result = sums.create_accumulator, sums.add, sums.get_result
    highest, next_end = 0, 0
    for event in events:
        time = time_of(event)
        if time > highest:
            highest = time
            if highest - LATE_MS > next_end:
                for start in sorted(s for s in windows if s + WINDOW_MS < highest - LATE_MS):
                    results.extend(map(result, windows.pop(start).values()))
                next_end = min(windows, default=time - time % WINDOW_MS) + WINDOW_MS
        start = time - time % WINDOW_MS
        window = windows.get(start)
        if window is None:
            window = windows[start] = {}
        user = user_of(event)
        accumulator = window.get(user)
        window[user] = add(event, create() if accumulator is None else accumulator)
    for start in sorted(windows):
        results.extend(map(result, windows[start].values()))
    return results
