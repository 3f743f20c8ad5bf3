"""Local aggregation: what it changes, which is no result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from effort import diagonal, examples
from hypothesis import example, given
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.elements import Batch, CheckpointBarrier, EndOfData, Watermark, WatermarkStatus
from sluiceway.network.partitioners import HashPartitioner
from sluiceway.operators.local_aggregation import Combiner, CombiningPartition, combining_partition
from sluiceway.operators.windows.slice_types import Partial
from sluiceway.steps import WindowStep
from sluiceway.testing import every_way
from sluiceway.windows import CountTrigger, SlidingEventTimeWindows, TumblingEventTimeWindows
from sluiceway_files import FilesSink

Event = tuple[Any, Any, int]
"""Key, value and time."""


def key_of(event: Event) -> Any:
    return event[0]


def value_of(event: Event) -> Any:
    return event[1]


def time_of(event: Event) -> int:
    return event[2]


class Mean(sw.AggregateFunction[Event, tuple[Any, int], Fraction]):
    def create_accumulator(self) -> tuple[Any, int]:
        return 0, 0

    def add(self, value: Event, accumulator: tuple[Any, int]) -> tuple[Any, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[Any, int]) -> Fraction:
        return Fraction(accumulator[0]) / accumulator[1]

    def merge(self, accumulator1: tuple[Any, int], accumulator2: tuple[Any, int]) -> tuple[Any, int]:
        return accumulator1[0] + accumulator2[0], accumulator1[1] + accumulator2[1]


class Listed(sw.AggregateFunction[Event, list[Any], list[Any]]):
    """Keeps the order of records, in an accumulator that it changes in place."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Event, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator

    def merge(self, accumulator1: list[Any], accumulator2: list[Any]) -> list[Any]:
        accumulator1.extend(accumulator2)
        return accumulator1


HOW: dict[str, Callable[[Any], Any]] = {
    "count": lambda windows: windows.count(),
    "sum": lambda windows: windows.sum(value_of),
    "min": lambda windows: windows.min(value_of),
    "max": lambda windows: windows.max(value_of),
    "mean": lambda windows: windows.aggregate(Mean()),
    "listed": lambda windows: windows.aggregate(Listed(), lambda key, window, lists: [(key, lists[0])]),
    "reduce": lambda windows: windows.reduce(lambda one, other: (*one[:1], one[1] + other[1], one[2])),
}
ASSIGNERS = [
    TumblingEventTimeWindows("10ms"),
    TumblingEventTimeWindows("10ms", "3ms"),
    SlidingEventTimeWindows("20ms", "5ms"),
    SlidingEventTimeWindows("15ms", "10ms"),
]


def results(
    events: list[Event], assigner: Any, how: str, parallelism: int, **options: Any
) -> tuple[dict[Any, list[str]], int]:
    """The results of each key in their order, and how many records were late."""
    flow = sw.Pipeline("windows", parallelism=parallelism)
    strategy = (
        sw.WatermarkStrategy[Any].for_bounded_out_of_orderness("2ms").with_timestamp_assigner(lambda e: e[2])
    )
    stream = flow.from_collection(events).assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    made = HOW[how](stream.key_by(key_of).window(assigner)).collect()
    metrics = flow.run(**options).metrics
    by_key: dict[Any, list[str]] = {}
    for result in made:
        # By their looks: True is no 1.
        by_key.setdefault(result[0] if isinstance(result, tuple) else None, []).append(repr(result))
    late = sum(s.user.get("numLateRecordsDropped", 0) for s in metrics.subtasks)
    return {key: (found if key is not None else sorted(found)) for key, found in by_key.items()}, late


numbers = st.integers(-3, 3)
values = st.one_of(
    st.lists(numbers, min_size=1),
    st.lists(st.one_of(numbers, st.booleans()), min_size=1),
    st.lists(st.one_of(numbers, st.floats(allow_nan=True, allow_infinity=False, width=16)), min_size=1),
)


@examples(25, 60)
@given(
    values=values,
    steps=st.lists(st.integers(-9, 12), min_size=1, max_size=6),
    keys=st.sampled_from(["ab", "abcdefgh", [1, 1.0, True, 2], [("a", 1), None, "x"]]),
    assigner=st.sampled_from(ASSIGNERS),
    how=st.sampled_from(["count", "sum", "min", "max"]),
    parallelism=st.integers(2, 3),
    batch_size=st.sampled_from([1, 3, 16, 1024]),
    interval=st.sampled_from([0, 200]),
)
@example([1] * 30, [12, -9, 12], "ab", ASSIGNERS[0], "sum", 2, 1, 0)
@example([0.1, 0.2, 0.3] * 10, [1], "ab", ASSIGNERS[0], "sum", 2, 16, 200)
def test_results_late_records_and_their_order_are_the_same(
    values: list[Any],
    steps: list[int],
    keys: Any,
    assigner: Any,
    how: str,
    parallelism: int,
    batch_size: int,
    interval: int,
) -> None:
    events: list[Event] = []
    time = 0
    for index in range(max(30, len(values))):
        time = max(0, time + steps[index % len(steps)])
        events.append((keys[index % len(keys)], values[index % len(values)], time))
    ways = [
        results(
            events,
            assigner,
            how,
            parallelism,
            batch_size=batch_size,
            auto_watermark_interval=interval,
            local_aggregation=which,
        )
        for which in ("exact", "off")
    ]
    assert ways[0] == ways[1]


@examples(8, 30)
@given(
    steps=st.lists(st.integers(-9, 12), min_size=1, max_size=6),
    assigner=st.sampled_from(ASSIGNERS),
    how=st.sampled_from(["mean", "listed", "reduce"]),
    batch_size=st.sampled_from([1, 3, 16, 1024]),
)
def test_functions_that_merge_give_the_same_where_all_are_asked_for(
    steps: list[int], assigner: Any, how: str, batch_size: int
) -> None:
    events = []
    time = 0
    for index in range(60):
        time = max(0, time + steps[index % len(steps)])
        events.append((f"key {index % 5}", index % 7, time))
    ways = [
        results(events, assigner, how, 2, batch_size=batch_size, local_aggregation=which)
        for which in ("all", "off")
    ]
    assert ways[0] == ways[1]


@pytest.mark.parametrize(("assigner", "how"), diagonal([ASSIGNERS[1], ASSIGNERS[2]], ["count", "sum", "min"]))
def test_every_way_of_running_and_restoring_gives_the_same(assigner: Any, how: str) -> None:
    events = [
        (f"key {i % 3}", i % 7, t) for i, t in enumerate([0, 4, 9, 3, 12, 30, 8, 31, 33, 25, 60, 61, 59, 80])
    ]

    def program(stream: sw.DataStream[Event]) -> sw.DataStream[Any]:
        strategy = sw.WatermarkStrategy[Any].for_bounded_out_of_orderness("40ms")
        timed = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(time_of))
        timed.set_parallelism(1)
        results: sw.DataStream[Any] = HOW[how](timed.key_by(key_of).window(assigner))
        return results

    every_way(program, events, ordered=False)


def test_workers_that_take_checkpoints_and_begin_anew_give_the_same(tmp_path: Path) -> None:
    count = 6_000
    marker = tmp_path / "failed"

    def fail_once(number: int) -> int:
        if number == 4_000 and not marker.exists():
            marker.touch()
            raise OSError("once")
        return number

    def counts(**options: Any) -> Counter[Any]:
        flow = sw.Pipeline("workers", parallelism=2)
        strategy = sw.WatermarkStrategy[Any].for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
        numbers = flow.generate(lambda n: n, count=count, rate=10_000 if options else None).map(fail_once)
        timed = numbers.assign_timestamps_and_watermarks(strategy)
        windows = timed.key_by(lambda n: n % 5).window(TumblingEventTimeWindows("100ms"))
        out = tmp_path / ("with" if options else "without")
        summed = windows.sum(lambda n: n).map(str)
        summed.sink(FilesSink.text(out))
        flow.run(**options)
        return Counter(
            line
            for file in out.iterdir()
            if not file.name.startswith((".", "_"))
            for line in file.read_text().splitlines()
        )

    got = counts(workers=2, checkpoint_interval="50ms", restart="fixed-delay:2:10ms")
    assert marker.exists()
    assert got == counts()


# ---- the partition -------------------------------------------------------------------------------------------


class Channel:
    """A sender that notes what it is given."""

    by_reference = True
    bytes_out = 0
    buffers = (0, 0)

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, element: Any) -> None:
        self.sent.append(element)

    def available(self) -> bool:
        return True

    def backlog(self) -> int:
        return 0


def partition(
    how: Callable[[Any], Any] = HOW["sum"], channels: int = 1
) -> tuple[CombiningPartition, list[Channel]]:
    flow = sw.Pipeline("step")
    stream = flow.from_collection([("a", 1, 0)]).key_by(key_of)
    how(stream.window(TumblingEventTimeWindows("10ms"))).collect()
    (step,) = [t.step for t in flow._transformations if isinstance(t.step, WindowStep)]
    hashed = HashPartitioner(key_of, 128)
    hashed.setup(0, channels, 0)
    senders = [Channel() for _ in range(channels)]
    return combining_partition(hashed, senders, 0, 1024, step, "windows", 128), senders


def stamped(*events: Event) -> Batch[Event]:
    return Batch(list(events), [event[2] for event in events])


def test_records_of_several_batches_become_one_partial_result() -> None:
    sends, (channel,) = partition()
    sends.emit(stamped(("a", 1, 1), ("b", 2, 2)), 0.0)
    sends.emit(stamped(("a", 3, 3), ("a", 4, 11)), 0.0)
    assert channel.sent == []
    assert sends.waiting() == 1
    assert sends.due == pytest.approx(0.05)
    sends.idle()
    partials = [Partial("a", (4,)), Partial("b", (2,)), Partial("a", (4,))]
    assert channel.sent == [Batch(partials, [0, 0, 10])]
    assert all(type(value) is Partial for value in channel.sent[0].values)
    assert (sends.waiting(), sends.due) == (0, None)


def test_a_watermark_waits_behind_what_is_combined_and_ahead_of_what_is_late_by_it() -> None:
    sends, (channel,) = partition()
    sends.emit(stamped(("a", 1, 1), ("a", 2, 12)), 0.0)
    sends.control(Watermark(5))
    sends.control(Watermark(10))
    assert channel.sent == []
    sends.emit(stamped(("a", 3, 9), ("a", 5, 13)), 0.0)
    assert channel.sent == [Batch([Partial("a", (1,)), Partial("a", (7,))], [0, 10]), Watermark(10)]
    sends.flush()
    assert channel.sent[2:] == [stamped(("a", 3, 9))]


@pytest.mark.parametrize("element", [EndOfData(), WatermarkStatus(False)])
def test_other_control_elements_wait_for_nothing(element: Any) -> None:
    sends, (channel,) = partition()
    sends.emit(stamped(("a", 1, 1)), 0.0)
    sends.control(Watermark(5))
    sends.control(element)
    assert channel.sent == [Batch([Partial("a", (1,))], [0]), Watermark(5), element]


def test_barriers_come_behind_everything_before_them() -> None:
    sends, (channel,) = partition()
    sends.emit(stamped(("a", 1, 1)), 0.0)
    sends.control(Watermark(5))
    barrier = CheckpointBarrier(1, 0)
    sends.barrier(barrier)
    assert channel.sent == [Batch([Partial("a", (1,))], [0]), Watermark(5), barrier]


def test_a_producer_that_was_idle_combines_nothing_any_more() -> None:
    """Its consumers may have a watermark that it has not heard of."""
    sends, (channel,) = partition()
    sends.control(WatermarkStatus(False))
    sends.control(WatermarkStatus(True))
    sends.emit(stamped(("a", 1, 1)), 0.0)
    sends.flush()
    assert channel.sent[-1] == stamped(("a", 1, 1))


@pytest.mark.parametrize("bad", [0.5, None, "text", Fraction(1, 2)])
def test_what_cannot_be_merged_exactly_goes_as_it_is_from_then_on(bad: Any) -> None:
    sends, (channel,) = partition()
    sends.emit(stamped(("a", 1, 1), ("a", 2, 2), ("a", bad, 3), ("a", 4, 4)), 0.0)
    sends.emit(stamped(("a", 5, 5)), 0.0)
    sends.flush()
    assert channel.sent == [
        Batch([Partial("a", (3,))], [0]),
        stamped(("a", bad, 3), ("a", 4, 4), ("a", 5, 5)),
    ]


def test_extremes_of_floats_are_combined_but_for_nan() -> None:
    sends, (channel,) = partition(HOW["max"])
    nan = float("nan")
    sends.emit(stamped(("a", 1, 1), ("a", 2.5, 2), ("a", nan, 3), ("a", 4, 4)), 0.0)
    sends.flush()
    assert channel.sent == [Batch([Partial("a", (2.5,))], [0]), stamped(("a", nan, 3), ("a", 4, 4))]


def test_keys_without_a_stable_hash_are_left_to_the_partitioner() -> None:
    sends, _ = partition(channels=2)
    with pytest.raises(sw.errors.UnstableKeyError, match="NaN"):
        sends.emit(stamped(("a", 1, 1), (float("nan"), 2, 2)), 0.0)


def test_combining_rests_where_each_record_has_a_key_of_its_own() -> None:
    sends, (channel,) = partition()
    for number in range(40):
        sends.emit(stamped(*((f"{number} {i}", 1, 1) for i in range(1024))), 0.0)
    kinds = [type(batch.values[0]) for batch in channel.sent]
    assert kinds[0] is Partial
    assert kinds[-1] is tuple


def test_what_waits_is_bounded() -> None:
    sends, _ = partition(HOW["count"])
    for number in range(40):
        sends.emit(stamped(*((f"{number % 20} {i % 512} {i // 1024}", 1, 1) for i in range(1024))), 0.0)
        assert len(sends._combiner) < (1 << 14) + 1024


# ---- where it applies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (lambda w: w.sum(value_of), {}, True),
        (lambda w: w.count(), {}, True),
        (lambda w: w.count(), {"local_aggregation": "off"}, False),
        (lambda w: w.count(), {"checkpoint_unaligned": True, "checkpoint_interval": "1h"}, False),
        (lambda w: w.sum(1), {}, False),
        (lambda w: w.aggregate(Mean()), {}, False),
        (lambda w: w.aggregate(Mean()), {"local_aggregation": "all"}, True),
        (lambda w: w.process(lambda key, window, elements: [len(elements)]), {"local_aggregation": "all"}, False),
        (lambda w: w.allowed_lateness("1s").count(), {}, False),
        (lambda w: w.side_output_late_data(sw.OutputTag("late", object)).count(), {}, False),
        (lambda w: w.trigger(CountTrigger(2)).count(), {}, False),
    ],
)
def test_it_applies_where_no_single_record_is_looked_at(
    change: Callable[[Any], Any], options: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    take = Combiner.take

    def counting(self: Combiner) -> Any:
        found = take(self)
        made.append(len(found))
        return found

    monkeypatch.setattr(Combiner, "take", counting)
    flow = sw.Pipeline("applies", parallelism=2)
    strategy = sw.WatermarkStrategy[Any].for_monotonous_timestamps().with_timestamp_assigner(lambda e: e[2])
    stream = flow.from_collection([("a", 1, 1)] * 5).assign_timestamps_and_watermarks(strategy)
    change(stream.key_by(key_of).window(TumblingEventTimeWindows("10ms"))).collect()
    flow.run(**options)
    assert bool(made) is expected


def test_contents_of_sums_of_records_are_the_records_themselves() -> None:
    flow = sw.Pipeline("plain", parallelism=2)
    strategy = sw.WatermarkStrategy[Any].for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    stream = flow.from_collection(list(range(100))).assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    keyed = stream.key_by(lambda n: n % 2).window(TumblingEventTimeWindows("50ms"))
    sums, least = keyed.sum().collect(), keyed.min().collect()
    flow.run()
    assert sorted(sums) == [600, 625, 1850, 1875]
    assert sorted(least) == [0, 1, 50, 51]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda w: w.sum(), True),
        (lambda w: w.min(), True),
        (lambda w: w.max(), True),
        (lambda w: w.max_by(lambda n: -n), False),
    ],
)
def test_extremes_of_the_records_themselves_are_combined(
    change: Callable[[Any], Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded: list[int] = []
    add = Combiner._add_to

    def counting(self: Combiner, start: int, values: list[Any]) -> int | None:
        folded.append(len(values))
        return add(self, start, values)

    monkeypatch.setattr(Combiner, "_add_to", counting)
    flow = sw.Pipeline("themselves", parallelism=2)
    strategy = sw.WatermarkStrategy[Any].for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    stream = flow.from_collection(list(range(100))).assign_timestamps_and_watermarks(strategy)
    change(stream.key_by(lambda n: n % 2).window(TumblingEventTimeWindows("50ms"))).collect()
    flow.run()
    assert bool(folded) is expected
