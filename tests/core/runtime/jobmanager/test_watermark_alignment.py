"""Watermark alignment: the coordinator, a reader's part, and both in jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.connector import END_OF_INPUT, Poll, Reader
from sluiceway.elements import MAX_WATERMARK, Batch
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.runtime.jobmanager.watermark_alignment import AlignmentCoordinator
from sluiceway.runtime.task.source_watermarks import SourceTime
from sluiceway.runtime.task.watermark_alignment import AlignedReader
from sluiceway.testing import EOF, PAUSE, PipelineHarness, TestSource, run_pipeline


def aligned(drift: int, *, group: str = "g", update: int = 1000) -> WatermarkStrategy[Any]:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: v)
    return strategy.with_watermark_alignment(group, drift, update)


def marks(harness: PipelineHarness) -> dict[str, list[int | None]]:
    """The watermarks of each source's subtasks."""
    found: dict[str, list[int | None]] = {}
    for s in harness.metrics().subtasks:
        found.setdefault(s.vertex.split(" ")[0], []).append(s.watermark)
    return found


# ---- the coordinator ---------------------------------------------------------------------------------------


class Announced(list[tuple[str, int | None]]):
    def __call__(self, attempt_id: str, mark: int | None) -> None:
        self.append((attempt_id, mark))

    def take(self) -> list[tuple[str, int | None]]:
        taken = list(self)
        self.clear()
        return taken


def test_everybody_hears_where_the_slowest_is_when_that_changes() -> None:
    said = Announced()
    coordinator = AlignmentCoordinator(said)
    coordinator.report("g", "a", 50)
    assert said.take() == [("a", 50)]
    coordinator.report("g", "b", 20)
    assert said.take() == [("a", 20), ("b", 20)]
    coordinator.report("g", "a", 90)
    assert said.take() == []
    coordinator.report("g", "b", 60)
    assert said.take() == [("a", 60), ("b", 60)]
    coordinator.report("g", "c", 70)
    assert said.take() == [("c", 60)]


def test_who_does_not_count_or_has_left_holds_nobody() -> None:
    said = Announced()
    coordinator = AlignmentCoordinator(said)
    coordinator.report("g", "a", 50)
    coordinator.report("g", "b", 20)
    coordinator.report("g", "b", None)
    assert said.take()[-2:] == [("a", 50), ("b", 50)]
    coordinator.report("g", "b", 30)
    said.take()
    coordinator.leave("b")
    assert said.take() == [("a", 50)]
    coordinator.report("g", "a", None)
    assert said.take() == [("a", None)]
    coordinator.leave("a")
    coordinator.leave("nobody")
    assert said.take() == []


def test_groups_do_not_know_each_other() -> None:
    said = Announced()
    coordinator = AlignmentCoordinator(said)
    coordinator.report("g", "a", 50)
    coordinator.report("h", "b", 20)
    assert said.take() == [("a", 50), ("b", 20)]


# ---- a reader ----------------------------------------------------------------------------------------------


class Stub(Reader[int]):
    """Only pauses, or cannot."""

    def __init__(self, *, can: bool) -> None:
        self.can = can
        self.told: list[Collection[str]] = []

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def no_more_splits(self) -> None: ...

    def poll(self, limit: int) -> Poll[int]:
        return END_OF_INPUT

    def snapshot(self) -> list[Any]:
        return []

    def close(self) -> None: ...

    def pause_splits(self, split_ids: Collection[str]) -> bool:
        self.told.append(split_ids)
        return self.can


def member(*, can: bool, **highest: int) -> tuple[AlignedReader, SourceTime, Stub, list[int | None]]:
    strategy = aligned(100)
    assert strategy.alignment is not None
    time = SourceTime(strategy, "src", VirtualClock(), Settings(auto_watermark_interval_ms=0))
    time.add(highest)
    for split, value in highest.items():
        time.take(Batch([value]), split)
    reader, sent = Stub(can=can), list[int | None]()
    return AlignedReader(strategy.alignment, time, reader, VirtualClock(), sent.append), time, reader, sent


def test_a_reader_reports_where_it_is_and_that_it_leaves() -> None:
    reader, time, _, sent = member(can=False, a=11)
    assert reader.may_read()
    assert reader.again_at is None
    time.take(Batch([21]), "a")
    assert reader.may_read()
    assert (sent, reader.again_at) == ([10], 1.0)
    reader.leave()
    reader.leave()
    assert sent == [10, None]


def test_a_reader_without_a_split_is_not_waited_for_unless_it_has_the_next_one_soon() -> None:
    strategy, clock = aligned(100), VirtualClock()
    assert strategy.alignment is not None
    time = SourceTime(strategy, "src", clock, Settings(auto_watermark_interval_ms=0))
    sent: list[int | None] = []
    reader = AlignedReader(strategy.alignment, time, Stub(can=True), clock, sent.append)
    time.add("a")
    time.take(Batch([11]), "a")
    assert reader.may_read()
    time.remove("a")
    assert reader.may_read()
    assert (sent, reader.again_at) == ([10], 1.0)
    time.add("b")
    time.take(Batch([21]), "b")
    clock.advance(1000)
    assert reader.may_read()
    assert sent == [10, 20]
    time.remove("b")
    clock.advance(1000)
    assert reader.may_read()
    assert sent == [10, 20, None]
    time.add("c")
    time.take(Batch([31]), "c")
    assert reader.may_read()
    assert sent == [10, 20, None, 30]


def test_a_reader_that_cannot_pause_splits_pauses_when_the_slowest_of_them_is_ahead() -> None:
    reader, time, _, _ = member(can=False, a=500, b=51)
    reader.announced(0)
    assert reader.may_read()
    assert time.paused == frozenset()
    reader.announced(-51)
    assert not reader.may_read()
    assert time.paused == {"a", "b"}
    assert reader.drift_ms == 101
    reader.announced(-50)
    assert reader.may_read()
    assert time.paused == frozenset()
    reader.announced(-1000)
    assert not reader.may_read()
    reader.announced(None)
    assert reader.may_read()
    assert reader.drift_ms is None


def test_a_reader_that_can_is_told_which_splits_are_to_pause() -> None:
    reader, time, stub, _ = member(can=True, a=500, b=51)
    reader.announced(0)
    assert reader.may_read()
    reader.announced(10)
    assert reader.may_read()
    assert time.paused == {"a"}
    reader.announced(-1000)
    assert reader.may_read()
    reader.announced(None)
    assert reader.may_read()
    assert stub.told == [{"a"}, {"a", "b"}, set()]


def test_a_reader_that_does_not_say_its_splits_is_paused_as_a_whole() -> None:
    reader, time, stub, _ = member(can=True)
    time.take(Batch([500]), None)
    reader.announced(0)
    assert not reader.may_read()
    assert stub.told == []


# ---- in jobs -----------------------------------------------------------------------------------------------


def two(fast: Iterable[Any], slow: TestSource, drift: int, group_of_slow: str = "g") -> sw.Pipeline:
    flow = sw.Pipeline()
    flow.source(TestSource(fast), watermark_strategy=aligned(drift)).name("fast").collect()
    strategy = aligned(drift, group=group_of_slow)
    flow.source(slow, watermark_strategy=strategy).name("slow").collect()
    return flow


OPTIONS: dict[str, Any] = {"auto_watermark_interval": 0, "batch_size": 1}


def test_a_source_that_runs_ahead_waits_for_the_others() -> None:
    slow = TestSource([10, 20, PAUSE, 500, PAUSE, EOF])
    with PipelineHarness(two([*range(10, 1000, 10), EOF], slow, 100), **OPTIONS) as harness:
        harness.advance(5000)
        # The first one above 19 + 100.
        assert marks(harness) == {"fast": [129], "slow": [19]}
        slow.resume()
        harness.advance(5000)
        assert marks(harness) == {"fast": [609], "slow": [499]}
        slow.resume()
        harness.advance(5000)
        assert harness.ended


def test_another_group_is_no_reason_to_wait() -> None:
    slow = TestSource([10, PAUSE, EOF])
    with PipelineHarness(two([*range(10, 1000, 10), EOF], slow, 100, "h"), **OPTIONS) as harness:
        harness.advance(1000)
        assert marks(harness) == {"fast": [MAX_WATERMARK], "slow": [9]}
        slow.resume()
        harness.run_to_end()


@pytest.mark.parametrize("idleness", [500, 10_000])
def test_an_idle_source_is_not_waited_for(idleness: int) -> None:
    flow = sw.Pipeline()
    slow = TestSource([10, PAUSE, EOF])
    fast = flow.source(TestSource([*range(10, 1000, 10), EOF]), watermark_strategy=aligned(100)).name("fast")
    fast.collect()
    flow.source(slow, watermark_strategy=aligned(100).with_idleness(idleness)).name("slow").collect()
    with PipelineHarness(flow, **OPTIONS) as harness:
        harness.advance(idleness - 1)
        assert marks(harness)["fast"] == [119]
        harness.advance(1)
        assert marks(harness)["fast"] == [MAX_WATERMARK]
        slow.resume()
        harness.run_to_end()


def test_a_source_without_a_watermark_is_not_waited_for() -> None:
    slow = TestSource([PAUSE, 10, EOF])
    with PipelineHarness(two([*range(10, 1000, 10), EOF], slow, 100), **OPTIONS) as harness:
        harness.run()
        assert marks(harness) == {"fast": [MAX_WATERMARK], "slow": [None]}
        slow.resume()
        harness.run_to_end()


def test_who_waits_is_not_idle() -> None:
    flow = sw.Pipeline()
    slow = TestSource([10, PAUSE, 20, PAUSE, EOF])
    strategy = aligned(100).with_idleness(500)
    numbers = [*range(10, 200, 10), PAUSE, EOF]
    source = TestSource(numbers)
    flow.source(source, watermark_strategy=strategy).name("fast").collect()
    flow.source(slow, watermark_strategy=aligned(100)).name("slow").collect()
    with PipelineHarness(flow, **OPTIONS) as harness:
        harness.advance(60_000)
        assert marks(harness) == {"fast": [119], "slow": [9]}
        slow.resume()
        harness.advance(60_000)
        assert marks(harness) == {"fast": [129], "slow": [19]}
        slow.resume()
        harness.advance(60_000)
        source.resume()
        harness.run_to_end()


def test_subtasks_of_one_source_wait_for_each_other_too() -> None:
    flow = sw.Pipeline(parallelism=2)
    source = TestSource([*range(10, 1000, 10), EOF], [10, PAUSE, EOF])
    flow.source(source, watermark_strategy=aligned(100)).name("both").collect()
    with PipelineHarness(flow, **OPTIONS) as harness:
        harness.advance(5000)
        assert marks(harness) == {"both": [119, 9]}
        source.resume()
        harness.run_to_end()


def test_the_slowest_reports_at_the_interval() -> None:
    flow = sw.Pipeline()
    slow = TestSource([10, PAUSE, 50, PAUSE, EOF])
    fast = TestSource([*range(10, 1000, 10), EOF])
    flow.source(fast, watermark_strategy=aligned(100, update=3000)).name("fast").collect()
    flow.source(slow, watermark_strategy=aligned(100, update=3000)).name("slow").collect()
    with PipelineHarness(flow, **OPTIONS) as harness:
        harness.run()
        slow.resume()
        harness.advance(2999)
        assert marks(harness) == {"fast": [119], "slow": [49]}
        harness.advance(1)
        assert marks(harness) == {"fast": [159], "slow": [49]}
        slow.resume()
        harness.run_to_end()


def test_of_a_reader_that_can_pause_splits_only_the_splits_ahead_pause() -> None:
    def program(parallelism: int) -> sw.Pipeline:
        # The odd numbers run ahead of the even ones.
        assigner = lambda n: n if n % 2 == 0 else n * 50  # noqa: E731
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
        strategy = strategy.with_watermark_alignment("g", 500)
        flow = sw.Pipeline()
        numbers = flow.generate(count=40, watermark_strategy=strategy).uid("numbers").set_parallelism(parallelism)
        numbers.for_each(seen.append)
        return flow

    seen: list[int] = []
    with PipelineHarness(program(2), **OPTIONS) as harness:
        harness.run_once()
        snapshot = harness.snapshot()
    with PipelineHarness(program(1), restored=snapshot, **OPTIONS) as harness:
        harness.run_to_end()
    # In turns as far as the drift lets them; then the even ones to their end, then the rest.
    assert seen == [*range(13), *range(14, 40, 2), *range(13, 40, 2)]


@settings(max_examples=30, deadline=None)
@given(
    scripts=st.lists(st.lists(st.integers(0, 300), max_size=15).map(sorted), min_size=1, max_size=3),
    drift=st.integers(0, 100),
    update=st.integers(1, 500),
    together=st.booleans(),
    idleness=st.none() | st.integers(1, 2000),
)
def test_no_group_comes_to_a_standstill_and_no_record_is_lost(
    scripts: list[list[int]], drift: int, update: int, together: bool, idleness: int | None
) -> None:
    flow = sw.Pipeline()
    strategy = aligned(drift, update=update)
    if idleness is not None:
        strategy = strategy.with_idleness(idleness)
    sources = [TestSource(*([*s, EOF] for s in scripts))] if together else [TestSource([*s, EOF]) for s in scripts]
    results = [
        flow.source(source, watermark_strategy=strategy).set_parallelism(len(scripts) if together else 1).collect()
        for source in sources
    ]
    run_pipeline(flow, **OPTIONS)
    assert sorted(v for r in results for v in r) == sorted(v for s in scripts for v in s)


def test_a_failing_member_does_not_hide_its_error() -> None:
    from sluiceway.testing import ABORT

    slow = TestSource([10, PAUSE, ABORT(ValueError("broken"))])
    with PipelineHarness(two([*range(10, 1000, 10), EOF], slow, 100), **OPTIONS) as harness:
        harness.advance(1000)
        slow.resume()
        with pytest.raises(ValueError, match="broken"):
            harness.run_to_end()
