"""Windows of event time: sums per user, of two million events out of order, of ten thousand users.

Events come up to 5 s late, 25,000 to the second of event time. The loops do what a program would that has nothing
else to do: they keep a dict of sums per open window, and emit a window's sums when no event that belongs to it can
come any more. The loop for sliding windows keeps one dict for each slide, as the pipeline does, not for each
window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from random import Random
from typing import Any

import sluiceway as sw
from benchmarks.harness import BY_HAND, FUNCTIONS, Comparison, Emit, Job, Loop, Plan, Row, compare, timed
from sluiceway.windows import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)

__all__ = [
    "LATE_MS",
    "WINDOW_MS",
    "SumOfAmounts",
    "events_of",
    "measure",
    "time_of",
    "tumbling_by_hand",
    "user_of",
]

Event = tuple[int, int, int]  # user, amount, event time in ms

USERS = 10_000
LATE_MS = 5_000
PER_SECOND = 25_000
WINDOW_MS = 10_000
IN_SESSIONS = 8
"""One event in so many goes into sessions, which take longer: each user has about ten open at any time."""
SLIDING_MS, SLIDE_MS = 60_000, 10_000
GAP_MS = 1_000
START = 1_700_000_000_000


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


def amount_of(event: Event) -> int:
    return event[1]


class SumOfUser(sw.AggregateFunction[Event, tuple[int, int], tuple[int, int]]):
    """Emits what the built-in ``sum(amount_of)`` does: the key and the sum."""

    def create_accumulator(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, value: Event, accumulator: tuple[int, int]) -> tuple[int, int]:
        return (value[0], accumulator[1] + value[1])

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator


def measure(plan: Plan) -> Iterator[Row]:
    events = events_of(plan.size(2_000_000, 20_000))
    fewer = events[: len(events) // IN_SESSIONS]
    sums = SumOfAmounts()
    tumbling: WindowAssigner = TumblingEventTimeWindows.of("10s")
    sliding: WindowAssigner = SlidingEventTimeWindows.of("60s", "10s")
    sessions: WindowAssigner = EventTimeSessionWindows.with_gap("1s")
    kinds: Any = (
        ("tumbling windows of 10 s", tumbling, tumbling_with_functions, tumbling_by_hand, events, (0.6, 0.5)),
        (
            "sliding windows of 60 s by 10 s",
            sliding,
            _sliding_with_functions,
            _sliding_by_hand,
            events,
            (None, None),
        ),
        (
            "session windows with a gap of 1 s",
            sessions,
            _sessions_with_functions,
            _sessions_by_hand,
            fewer,
            (None, None),
        ),
    )
    for name, windows, functions, by_hand, given, (aim, floor) in kinds:
        yield from compare(
            Comparison(
                f"{name}, sums",
                len(given),
                Job(lambda flow, windows=windows, given=given: _windowed(flow, given, windows).aggregate(sums)),
                {FUNCTIONS: Loop(functions, given), BY_HAND: Loop(by_hand, given)},
                in_order=False,
                aim=aim,
                floor=floor,
            ),
            plan,
        )
    yield _built_in(events, plan)
    yield _cost_of_sliding(events, plan)


def _windowed(
    flow: sw.Pipeline, events: list[Event], windows: WindowAssigner
) -> sw.WindowedStream[Event, int, Any]:
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(LATE_MS).with_timestamp_assigner(time_of)
    stream = flow.from_collection(events).assign_timestamps_and_watermarks(strategy)
    return stream.key_by(user_of).window(windows)


def _built_in(events: list[Event], plan: Plan) -> Row:
    """The built-in sum beside an aggregate function that does the same."""
    windows = TumblingEventTimeWindows.of("10s")
    (row,) = compare(
        Comparison(
            "tumbling windows of 10 s, built-in sum()",
            len(events),
            Job(lambda flow: _windowed(flow, events, windows).sum(amount_of)),
            {
                "an aggregate function written for it": Job(
                    lambda flow: _windowed(flow, events, windows).aggregate(SumOfUser())
                )
            },
            in_order=False,
        ),
        plan,
    )
    return row


def _cost_of_sliding(events: list[Event], plan: Plan) -> Row:
    tumbling, sliding = (
        Job(lambda flow, windows=windows: _windowed(flow, events, windows).aggregate(SumOfAmounts()))
        for windows in (TumblingEventTimeWindows.of("10s"), SlidingEventTimeWindows.of("60s", "1s"))
    )
    if sum(sliding.results()) != 60 * sum(amount for _, amount, _ in events):
        raise RuntimeError("sliding windows: every event must count in 60 windows")
    ratios = []
    for _ in range(plan.runs):
        one, other = timed(tumbling.run), timed(sliding.run)
        ratios.append(other.cpu / one.cpu)
    return Row(
        "sliding windows of 60 s by 1 s, sums: cost",
        "x tumbling",
        tuple(ratios),
        aim=3.0,
        note="processor time, against that of the tumbling windows",
        details={"records": len(events)},
    )


def events_of(count: int) -> list[Event]:
    random = Random(1)
    return [
        (
            random.randrange(USERS),
            random.randrange(1, 1_000),
            START + i * 1_000 // PER_SECOND - random.randrange(LATE_MS),
        )
        for i in range(count)
    ]


# ---- tumbling ---------------------------------------------------------------------------------------------------


def tumbling_by_hand(events: Iterable[Event], emit: Emit) -> None:
    windows: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    highest, next_end = 0, 0
    for user, amount, time in events:
        if time > highest:
            highest = time
            if highest - LATE_MS > next_end:
                for start in sorted(s for s in windows if s + WINDOW_MS < highest - LATE_MS):
                    for result in windows.pop(start).values():
                        emit(result)
                next_end = min(windows, default=time - time % WINDOW_MS) + WINDOW_MS
        windows[time - time % WINDOW_MS][user] += amount
    for start in sorted(windows):
        for result in windows[start].values():
            emit(result)


def tumbling_with_functions(events: Iterable[Event], emit: Emit) -> None:
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
                    for accumulator in windows.pop(start).values():
                        emit(result(accumulator))
                next_end = min(windows, default=time - time % WINDOW_MS) + WINDOW_MS
        start = time - time % WINDOW_MS
        window = windows.get(start)
        if window is None:
            window = windows[start] = {}
        user = user_of(event)
        sum_so_far = window.get(user)
        window[user] = add(event, create() if sum_so_far is None else sum_so_far)
    for start in sorted(windows):
        for accumulator in windows[start].values():
            emit(result(accumulator))


# ---- sliding ----------------------------------------------------------------------------------------------------


def _sliding_by_hand(events: Iterable[Event], emit: Emit) -> None:
    slices: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    highest, next_end = 0, 0

    def fire(end: int) -> None:
        totals: defaultdict[int, int] = defaultdict(int)
        for start in range(end - SLIDING_MS, end, SLIDE_MS):
            if start in slices:
                for user, amount in slices[start].items():
                    totals[user] += amount
        slices.pop(end - SLIDING_MS, None)
        for total in totals.values():
            emit(total)

    for user, amount, time in events:
        if time > highest:
            highest = time
            while next_end and highest - LATE_MS > next_end:
                fire(next_end)
                next_end += SLIDE_MS
        start = time - time % SLIDE_MS
        slices[start][user] += amount
        if not next_end:
            next_end = start - SLIDING_MS
    while slices:
        fire(next_end)
        next_end += SLIDE_MS


def _sliding_with_functions(events: Iterable[Event], emit: Emit) -> None:
    sums = SumOfAmounts()
    create, add, merge, result = sums.create_accumulator, sums.add, sums.merge, sums.get_result
    slices: dict[int, dict[int, int]] = {}
    highest, next_end = 0, 0

    def fire(end: int) -> None:
        totals: dict[int, int] = {}
        for start in range(end - SLIDING_MS, end, SLIDE_MS):
            for user, accumulator in slices.get(start, {}).items():
                so_far = totals.get(user)
                totals[user] = accumulator if so_far is None else merge(so_far, accumulator)
        slices.pop(end - SLIDING_MS, None)
        for accumulator in totals.values():
            emit(result(accumulator))

    for event in events:
        time = time_of(event)
        if time > highest:
            highest = time
            while next_end and highest - LATE_MS > next_end:
                fire(next_end)
                next_end += SLIDE_MS
        start = time - time % SLIDE_MS
        in_slice = slices.get(start)
        if in_slice is None:
            in_slice = slices[start] = {}
            if not next_end:
                next_end = start - SLIDING_MS
        user = user_of(event)
        so_far = in_slice.get(user)
        in_slice[user] = add(event, create() if so_far is None else so_far)
    while slices:
        fire(next_end)
        next_end += SLIDE_MS


# ---- sessions ---------------------------------------------------------------------------------------------------

# The open sessions of a user, each [start, end, sum], are so few that looking through all of them is the fastest.
# One that has grown or was merged leaves its old end in the heap, which is then none of an open session.


def _sessions_by_hand(events: Iterable[Event], emit: Emit) -> None:
    sessions: defaultdict[int, list[list[int]]] = defaultdict(list)
    ends: list[tuple[int, int]] = []
    highest = 0
    for user, amount, time in events:
        if time > highest:
            highest = time
            while ends and ends[0][0] < highest - LATE_MS:
                end, whose = heappop(ends)
                of_user = sessions[whose]
                for session in of_user:
                    if session[1] == end:
                        of_user.remove(session)
                        emit(session[2])
                        break
        of_user = sessions[user]
        start, end = time, time + GAP_MS
        for session in [s for s in of_user if s[0] <= end and start <= s[1]]:
            of_user.remove(session)
            start, end = min(start, session[0]), max(end, session[1])
            amount += session[2]
        of_user.append([start, end, amount])
        heappush(ends, (end, user))
    for of_user in sessions.values():
        for session in of_user:
            emit(session[2])


def _sessions_with_functions(events: Iterable[Event], emit: Emit) -> None:
    sums = SumOfAmounts()
    create, add, merge, result = sums.create_accumulator, sums.add, sums.merge, sums.get_result
    sessions: defaultdict[int, list[list[int]]] = defaultdict(list)
    ends: list[tuple[int, int]] = []
    highest = 0
    for event in events:
        time = time_of(event)
        if time > highest:
            highest = time
            while ends and ends[0][0] < highest - LATE_MS:
                end, whose = heappop(ends)
                of_user = sessions[whose]
                for session in of_user:
                    if session[1] == end:
                        of_user.remove(session)
                        emit(result(session[2]))
                        break
        user = user_of(event)
        of_user = sessions[user]
        start, end = time, time + GAP_MS
        accumulator = None
        for session in [s for s in of_user if s[0] <= end and start <= s[1]]:
            of_user.remove(session)
            start, end = min(start, session[0]), max(end, session[1])
            accumulator = session[2] if accumulator is None else merge(accumulator, session[2])
        of_user.append([start, end, add(event, create() if accumulator is None else accumulator)])
        heappush(ends, (end, user))
    for of_user in sessions.values():
        for session in of_user:
            emit(result(session[2]))
