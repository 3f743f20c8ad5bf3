"""Windows against a model that keeps every record and works each answer out anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.functions import AggregateFunction, OutputTag
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
)

LATE: OutputTag[Any] = OutputTag("late")

Record: TypeAlias = tuple[str, int, int]
"""Key, timestamp, and a number of its own."""

Result: TypeAlias = tuple[str, int, int, tuple[int, ...]]
"""Key, start and end of the window, and the numbers of its records, sorted."""


# ---- the model ------------------------------------------------------------------------------------------


@dataclass
class Model:
    """What windows with the default trigger give for records and watermarks, one after the other."""

    lateness: int
    watermark: int = -(2**63)
    taken: list[tuple[str, TimeWindow, Record]] = field(default_factory=list)
    late: list[Record] = field(default_factory=list)

    def record(self, record: Record) -> list[Result]:
        windows = [w for w in self.windows_of(record) if w.end - 1 + self.lateness > self.watermark]
        if not windows:
            if record[1] + self.lateness <= self.watermark:
                self.late.append(record)
            return []
        for window in windows:
            self.taken.append((record[0], window, record))
        self.rearrange()
        mine = [(key, w) for key, w, r in self.taken if r == record]
        return [self.result(key, w) for key, w in mine if w.end - 1 <= self.watermark]

    def advance(self, watermark: int) -> list[Result]:
        before, self.watermark = self.watermark, watermark
        due = {(key, w) for key, w, _ in self.taken if before < w.end - 1 <= watermark}
        results = [self.result(key, w) for key, w in due]
        self.taken = [entry for entry in self.taken if entry[1].end - 1 + self.lateness > watermark]
        return results

    def result(self, key: str, window: TimeWindow) -> Result:
        numbers = sorted(r[2] for k, w, r in self.taken if (k, w) == (key, window))
        return key, window.start, window.end, tuple(numbers)

    def windows_of(self, record: Record) -> list[TimeWindow]:
        raise NotImplementedError

    def rearrange(self) -> None:
        """Windows that have to become one do so."""


@dataclass
class Fixed(Model):
    """Tumbling and sliding windows, found by trying them all."""

    size: int = 10
    slide: int = 10
    offset: int = 0

    def windows_of(self, record: Record) -> list[TimeWindow]:
        at = record[1]
        starts = [s for s in range(at - self.size + 1, at + 1) if (s - self.offset) % self.slide == 0]
        return [TimeWindow(s, s + self.size) for s in starts]


@dataclass
class Sessions(Model):
    """Session windows, worked out from all records that are in any of the key."""

    gap: int = 5

    def gap_of(self, record: Record) -> int:
        return self.gap

    def windows_of(self, record: Record) -> list[TimeWindow]:
        window = self._with(record[0], record)[record]
        return [window]

    def rearrange(self) -> None:
        for key in {key for key, _, _ in self.taken}:
            arranged = self._with(key, None)
            self.taken = [(k, arranged[r] if k == key else w, r) for k, w, r in self.taken]

    def _with(self, key: str, new: Record | None) -> dict[Record, TimeWindow]:
        records = [r for k, _, r in self.taken if k == key] + ([] if new is None else [new])
        arranged: dict[Record, TimeWindow] = {}
        together: list[Record] = []
        end = 0
        for record in sorted(records, key=lambda r: r[1]):
            if together and record[1] > end:
                together = []
            end = max(end, record[1] + self.gap_of(record)) if together else record[1] + self.gap_of(record)
            together.append(record)
            arranged |= dict.fromkeys(together, TimeWindow(together[0][1], end))
        return arranged


@dataclass
class DynamicSessions(Sessions):
    def gap_of(self, record: Record) -> int:
        return 1 + record[2] % 7


# ---- what is compared with it ---------------------------------------------------------------------------


class Numbers(AggregateFunction[Record, tuple[int, ...], tuple[int, ...]]):
    def create_accumulator(self) -> tuple[int, ...]:
        return ()

    def add(self, value: Record, accumulator: tuple[int, ...]) -> tuple[int, ...]:
        return (*accumulator, value[2])

    def get_result(self, accumulator: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(accumulator))

    def merge(self, accumulator1: tuple[int, ...], accumulator2: tuple[int, ...]) -> tuple[int, ...]:
        return accumulator1 + accumulator2


class Keyed(Numbers):
    """With the key, and so nothing is left to be done by a window function."""

    def get_result(self, accumulator: tuple[Any, ...]) -> Any:
        return accumulator[0], tuple(sorted(accumulator[1:]))

    def add(self, value: Record, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*accumulator, value[2]) if accumulator else (value[0], value[2])

    def merge(self, accumulator1: tuple[Any, ...], accumulator2: tuple[Any, ...]) -> tuple[Any, ...]:
        return accumulator1 + accumulator2[1:]


def labelled(key: str, window: TimeWindow, results: Iterable[tuple[int, ...]]) -> list[Result]:
    return [(key, window.start, window.end, result) for result in results]


def in_order(key: str, window: TimeWindow, elements: Iterable[Record]) -> list[Result]:
    return [(key, window.start, window.end, tuple(sorted(r[2] for r in elements)))]


WAYS: dict[str, Callable[[Any], sw.DataStream[Result]]] = {
    "aggregate": lambda windowed: windowed.aggregate(Numbers(), labelled),
    "aggregate alone": lambda windowed: windowed.aggregate(Keyed()),
    "process": lambda windowed: windowed.process(in_order),
    "evictor": lambda windowed: windowed.evictor(CountEvictor(1000)).aggregate(Numbers(), labelled),
    "asking the trigger": lambda windowed: windowed.trigger(_Asked()).process(in_order),
}


class _Asked(EventTimeTrigger):
    """The default trigger, but not by its type: the operator has to ask it."""


KINDS: dict[str, tuple[Callable[[int], Model], Any]] = {
    "tumbling": (lambda late: Fixed(late, size=10, slide=10, offset=3), TumblingEventTimeWindows(10, 3)),
    "sliding": (lambda late: Fixed(late, size=12, slide=5, offset=-2), SlidingEventTimeWindows(12, 5, -2)),
    "with gaps": (lambda late: Fixed(late, size=4, slide=9), SlidingEventTimeWindows(4, 9)),
    "session": (lambda late: Sessions(late, gap=5), EventTimeSessionWindows.with_gap(5)),
    "dynamic": (
        lambda late: DynamicSessions(late),
        EventTimeSessionWindows.with_dynamic_gap(lambda r: 1 + r[2] % 7),
    ),
}

Step: TypeAlias = list[tuple[str, int]] | int
"""A batch of keys and timestamps, or a watermark's way ahead."""

steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(-25, 40)), min_size=1, max_size=6),
        st.integers(-30, 30),
    ),
    max_size=14,
)


def program(kind: str, way: str, lateness: int) -> Callable[[sw.DataStream[Any]], sw.DataStream[Any]]:
    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        windowed = stream.key_by(lambda r: r[0]).window(KINDS[kind][1]).side_output_late_data(LATE)
        return WAYS[way](windowed.allowed_lateness(lateness)).uid("windows")

    return add


@pytest.mark.parametrize("kind", KINDS)
@examples(20, 40)
@given(
    way=st.sampled_from(sorted(WAYS)),
    given_steps=steps,
    lateness=st.sampled_from([0, 0, 3, 20]),
    parallelism=st.lists(st.integers(1, 3), min_size=1, max_size=15),
    restores=st.booleans(),
)
def test_windows_equal_the_model(
    kind: str, way: str, given_steps: list[Step], lateness: int, parallelism: list[int], restores: bool
) -> None:
    model = KINDS[kind][0](lateness)
    add = program(kind, way, lateness)
    harness = OperatorHarness(add, parallelism=parallelism[0])
    seen = 0
    late: list[Record] = []
    count = 0
    watermark = -(2**63)
    for number, step in enumerate([*given_steps, 2**63 - 1]):
        if isinstance(step, list):
            records = [(key, at, count + i) for i, (key, at) in enumerate(step)]
            count += len(records)
            expected = [result for record in records for result in model.record(record)]
            harness.process_batch(records, [at for _, at, _ in records])
        else:
            watermark = max(watermark, step)
            expected = model.advance(watermark)
            harness.process_watermark(watermark)
        got, seen = harness.records[seen:], len(harness.records)
        if way != "aggregate alone":
            assert sorted(value for value, _ in got) == sorted(expected), f"step {number}: {step}"
        stamped = sorted((value[0], value[-1], stamp) for value, stamp in got)
        assert stamped == sorted((r[0], r[3], r[2] - 1) for r in expected), f"step {number}: {step}"
        if restores:
            seen = 0
            taken = harness.snapshot()
            late += harness.side_output(LATE)
            harness.close()
            harness = OperatorHarness(add, parallelism=parallelism[number % len(parallelism)], restored=taken)
            # The watermark is not in the snapshot: it comes again from the sources.
            assert harness.process_watermark(watermark) == []
    late += harness.side_output(LATE)
    assert sorted(late) == sorted(model.late)
    leftover = harness.snapshot()
    assert all(s.keyed is None or not s.keyed.groups for s in leftover.operators), "something is kept for ever"
    harness.close()


@examples(20, 40)
@given(
    batches=st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=5), max_size=8), size=st.integers(1, 4)
)
def test_count_windows_equal_slices_of_the_stream(batches: list[list[str]], size: int) -> None:
    seen: defaultdict[str, list[int]] = defaultdict(list)
    expected: list[Any] = []
    expected_sliding: list[Any] = []

    def elements(key: str, window: Any, found: list[Any]) -> list[Any]:
        return [(key, [number for _, number in found])]

    count = 0
    with (
        OperatorHarness(lambda s: s.key_by(lambda r: r[0]).count_window(size).process(elements)) as tumbling,
        OperatorHarness(lambda s: s.key_by(lambda r: r[0]).count_window(size, 2).process(elements)) as sliding,
    ):
        for batch in batches:
            records = [(key, count + i) for i, key in enumerate(batch)]
            count += len(records)
            for key, number in records:
                seen[key].append(number)
                if len(seen[key]) % size == 0:
                    expected.append((key, seen[key][-size:]))
                if len(seen[key]) % 2 == 0:
                    expected_sliding.append((key, seen[key][-size:]))
            tumbling.process_batch(records)
            sliding.process_batch(records)
        assert tumbling.values == expected
        assert sliding.values == expected_sliding


@examples(20, 40)
@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=20),
    count=st.integers(1, 3),
    purging=st.booleans(),
    kind=st.sampled_from(["tumbling", "session"]),
)
def test_counting_triggers_in_windows_of_time(
    records: list[tuple[str, int]], count: int, purging: bool, kind: str
) -> None:
    """Before the watermark moves, a count trigger fires with every so many records of a window."""
    trigger = PurgingTrigger(CountTrigger(count)) if purging else CountTrigger(count)
    model = KINDS[kind][0](0)
    contents: defaultdict[Any, list[int]] = defaultdict(list)
    expected: list[Result] = []
    if kind == "session":  # the model has no counts to merge: sessions that do not meet
        records = [(key, at * 100) for key, at in dict.fromkeys(records)]
    for number, (key, at) in enumerate(records):
        (window,) = model.windows_of((key, at, number))
        held = contents[key, window]
        held.append(number)
        contents["count", key, window].append(number)
        if len(contents["count", key, window]) % count == 0:
            expected.append((key, window.start, window.end, tuple(held)))
            if purging:
                held.clear()

    def add(stream: sw.DataStream[Any]) -> sw.DataStream[Any]:
        return stream.key_by(lambda r: r[0]).window(KINDS[kind][1]).trigger(trigger).process(in_order)

    with OperatorHarness(add) as harness:
        harness.process_batch([(key, at, n) for n, (key, at) in enumerate(records)], [at for _, at in records])
        assert harness.values == expected
        assert harness.process_watermark(2**63 - 1) == []
        assert all(s.keyed is None or not s.keyed.groups for s in harness.snapshot().operators)
