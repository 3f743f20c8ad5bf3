"""Windows in slices against the general operator, and against a dict from window and key to records.

Where they are restored, it is also from each other's snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.functions import AggregateFunction, OutputTag
from sluiceway.operators.windows.sliced_window_operator import SlicedWindowOperator
from sluiceway.operators.windows.window_operator import WindowOperator
from sluiceway.testing import OperatorHarness
from sluiceway.windows import (
    EventTimeTrigger,
    ProcessingTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)

LATE = OutputTag[Any]("late")

Record: TypeAlias = tuple[str, int, int]
"""Key, timestamp, and a number of its own."""

Stamped: TypeAlias = tuple[Any, int | None]


class Numbers(AggregateFunction[Record, list[int], tuple[int, ...]]):
    """Spoils what it is given to merge, as it may."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Record, accumulator: list[int]) -> list[int]:
        accumulator.append(value[2])
        return accumulator

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(sorted(accumulator))

    def merge(self, accumulator1: list[int], accumulator2: list[int]) -> list[int]:
        accumulator1 += accumulator2
        accumulator2.clear()
        return accumulator1


class Sum(AggregateFunction[Record, int, tuple[int, ...]]):
    """Has accumulators that several windows can share."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Record, accumulator: int) -> int:
        return accumulator | 1 << value[2]

    def get_result(self, accumulator: int) -> tuple[int, ...]:
        return tuple(n for n in range(accumulator.bit_length()) if accumulator >> n & 1)

    def merge(self, accumulator1: int, accumulator2: int) -> int:
        return accumulator1 | accumulator2


class AskedForEventTime(EventTimeTrigger):
    """Does what the default trigger does; the general operator takes its word for it alone."""


class AskedForProcessingTime(ProcessingTimeTrigger):
    """The same of processing time."""


Finish: TypeAlias = Callable[[Any], Any]

FINISHES: list[Finish] = [
    lambda windows: windows.aggregate(Numbers()),
    lambda windows: windows.aggregate(Sum()),
    lambda windows: windows.reduce(lambda a, b: (a[0], a[1], f"{a[2]} {b[2]}")).map(
        lambda r: (r[0], tuple(sorted(int(n) for n in str(r[2]).split())))
    ),
    # Not sorted: numbers ascend in the order of arrival, which elements keep.
    lambda windows: windows.process(lambda key, window, elements: [tuple(r[2] for r in elements)]),
]


class Both:
    """The same step twice: in slices, and by the general operator."""

    def __init__(self, windows: WindowAssigner, finish: Finish, lateness: int = 0) -> None:
        asked = AskedForEventTime() if windows.event_time else AskedForProcessingTime()
        self._programs = [
            lambda stream: finish(_cut(stream, windows, lateness)),
            lambda stream: finish(_cut(stream, windows, lateness).trigger(asked)),
        ]
        self._start(1, None)
        for h, kind in zip(self.harnesses, (SlicedWindowOperator, WindowOperator), strict=True):
            assert isinstance(h._subtasks[0].operators[0], kind)
        self.late: list[list[Any]] = [[], []]

    def _start(self, parallelism: int, restored: list[Any] | None, now: int = 0) -> None:
        self.harnesses = [
            OperatorHarness(
                program, parallelism=parallelism, start_ms=now, restored=None if restored is None else restored[i]
            )
            for i, program in enumerate(self._programs)
        ]
        self._seen = [0, 0]

    def do(self, method: str, *args: Any) -> list[Stamped]:
        """Call a method of both harnesses; what comes out, which has to be the same."""
        fresh = []
        for i, h in enumerate(self.harnesses):
            getattr(h, method)(*args)
            fresh.append(sorted(h.records[self._seen[i] :]))
            self._seen[i] = len(h.records)
        assert fresh[0] == fresh[1]
        return fresh[0]

    def restart(self, parallelism: int, order: tuple[int, int] = (0, 1)) -> None:
        """Begin anew with the snapshots that were taken by those in ``order``."""
        snapshots = [self.harnesses[i].snapshot() for i in order]
        now = self.harnesses[0].clock.now_ms()
        self.close()
        self._start(parallelism, snapshots, now)

    def close(self) -> None:
        for late, h in zip(self.late, self.harnesses, strict=True):
            late += h.side_output(LATE)
            h.close()


def _cut(stream: sw.DataStream[Record], windows: WindowAssigner, lateness: int) -> Any:
    cut: Any = stream.key_by(lambda r: r[0]).window(windows)
    return cut.allowed_lateness(lateness).side_output_late_data(LATE) if windows.event_time else cut


class Model:
    """Fixed windows: a dict from end and key to the numbers of the records."""

    def __init__(self, size: int, slide: int, offset: int, lateness: int) -> None:
        self._size, self._slide, self._offset, self._lateness = size, slide, offset, lateness
        self._windows: dict[tuple[int, str], set[int]] = {}
        self._given: set[tuple[int, str]] = set()
        self.watermark = -(2**63)
        self.late: list[Record] = []

    def records(self, records: Iterable[Record]) -> list[Stamped]:
        results: list[Stamped] = []
        for record in records:
            key, at, number = record
            ends = [
                e for e in range(at + 1, at + self._size + 1) if (e - self._offset - self._size) % self._slide == 0
            ]
            live = [(end, key) for end in ends if end - 1 + self._lateness > self.watermark]
            for window in live:
                self._windows.setdefault(window, set()).add(number)
                if window[0] - 1 <= self.watermark:
                    self._given.add(window)
                    results.append(self._result(window))
            if not live:
                self.late.append(record)
        return sorted(results)

    def advance(self, watermark: int) -> list[Stamped]:
        self.watermark = watermark
        due = {window for window in self._windows if window[0] - 1 <= watermark} - self._given
        results = [self._result(window) for window in due]
        over = [window for window in self._windows if window[0] - 1 + self._lateness <= watermark]
        self._given = self._given.union(due).difference(over)
        for window in over:
            del self._windows[window]
        return sorted(results)

    def _result(self, window: tuple[int, str]) -> Stamped:
        return tuple(sorted(self._windows[window])), window[0] - 1


def _numbers(results: list[Stamped]) -> list[Stamped]:
    """Without the keys that reductions give."""
    return sorted((v[1] if v and isinstance(v[0], str) else v, stamp) for v, stamp in results)


@given(st.data())
@examples(40, 150)
def test_event_time(data: st.DataObject) -> None:
    """Any order, batches, late records, restores at any parallelism."""
    slide = data.draw(st.sampled_from([1, 2, 3, 4, 6, 10]), "slide")
    size = data.draw(st.sampled_from([n for n in (slide, 2 * slide, 10, 12, 30) if n >= slide]), "size")
    offset = data.draw(st.integers(1 - slide, slide - 1), "offset")
    lateness = data.draw(st.sampled_from([0, 0, 7]), "lateness") if size == slide else 0
    windows: WindowAssigner = (
        TumblingEventTimeWindows(size, offset) if size == slide else SlidingEventTimeWindows(size, slide, offset)
    )
    both = Both(windows, data.draw(st.sampled_from(FINISHES), "function"), lateness)
    orders = [(0, 1), (0, 0), (1, 1), (1, 0)]
    model = Model(size, slide, offset, lateness)
    watermark = number = 0
    model.advance(watermark)
    both.do("process_watermark", watermark)
    times = st.one_of(st.integers(-25, 30), st.integers(0, 6), st.integers(0, 200))
    for _ in range(data.draw(st.integers(1, 12), "steps")):
        match data.draw(st.sampled_from(["records", "records", "watermark", "restart"])):
            case "records":
                batch: list[Record] = []
                for key, ahead in data.draw(st.lists(st.tuples(st.sampled_from("abcd"), times), max_size=8)):
                    batch.append((key, watermark + ahead, number))
                    number += 1
                if batch:
                    stamps = [record[1] for record in batch]
                    assert _numbers(both.do("process_batch", batch, stamps)) == model.records(batch)
            case "watermark":
                watermark += data.draw(st.sampled_from([1, 2, 5, 10, 50]), "step")
                assert _numbers(both.do("process_watermark", watermark)) == model.advance(watermark)
            case _:
                for parallelism in data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2), "parallelism"):
                    both.restart(parallelism, data.draw(st.sampled_from(orders), "order"))
                assert both.do("process_watermark", watermark) == []
    watermark = 2**63 - 1
    assert _numbers(both.do("process_watermark", watermark)) == model.advance(watermark)
    both.close()
    assert sorted(both.late[0]) == sorted(both.late[1]) == sorted(model.late)


@given(st.data())
@examples(25, 60)
def test_processing_time(data: st.DataObject) -> None:
    slide = data.draw(st.sampled_from([2, 3, 10]), "slide")
    size = data.draw(st.sampled_from([slide, 10, 12]), "size")
    windows: WindowAssigner = (
        TumblingProcessingTimeWindows(size) if size == slide else SlidingProcessingTimeWindows(size, slide)
    )
    both = Both(windows, data.draw(st.sampled_from(FINISHES), "function"))
    number = 0
    for _ in range(data.draw(st.integers(1, 12), "steps")):
        match data.draw(st.sampled_from(["records", "records", "time", "restart"])):
            case "records":
                batch: list[Record] = []
                for key in data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)):
                    batch.append((key, 0, number))
                    number += 1
                assert both.do("process_batch", batch) == []
            case "time":
                step = data.draw(st.sampled_from([1, 2, 5, 30]), "step")
                both.do("advance", step)
            case _:
                orders = [(0, 1), (0, 0), (1, 1), (1, 0)]
                both.restart(
                    data.draw(st.integers(1, 3), "parallelism"), data.draw(st.sampled_from(orders), "order")
                )
    both.do("finish")
    both.close()
