"""What a task hears from its source."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.connector import END_OF_INPUT, Poll, Reader, Wait
from sluiceway.connector.lib import CollectionSource
from sluiceway.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Batch,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    LatencyMarker,
    Watermark,
    WatermarkStatus,
)
from sluiceway.eventtime import WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from sluiceway.runtime.task.source_input import SourceInput


class Scripted(Reader[int]):
    """Answers as told: what to return, which split that is from, which splits are finished with it."""

    def __init__(self, *answers: tuple[Poll[int], str | None, list[str]]) -> None:
        self.answers = list(answers)
        self.finished: list[str] = []

    def add_splits(self, splits: Sequence[Any]) -> None: ...

    def no_more_splits(self) -> None: ...

    def poll(self, limit: int) -> Poll[int]:
        answer, self.current_split_id, self.finished = self.answers.pop(0)
        return answer

    def finished_splits(self) -> Sequence[str]:
        finished, self.finished = self.finished, []
        return finished

    def snapshot(self) -> list[Any]:
        return []

    def close(self) -> None: ...


class Part:
    def __init__(self, split_id: str) -> None:
        self.split_id = split_id


class Each(WatermarkGenerator[int]):
    """Every record is a watermark."""

    def on_event(self, value: int, timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""


def source_input(
    strategy: WatermarkStrategy[Any] | None,
    reader: Reader[int],
    *splits: str,
    sent: list[int | None] | None = None,
    latency_interval_ms: int = 0,
) -> SourceInput:
    source = SourceInput(
        CollectionSource([0]),
        lambda: reader,
        VirtualClock(),
        uid="source",
        subtask=0,
        settings=Settings(auto_watermark_interval_ms=0, latency_interval_ms=latency_interval_ms),
        strategy=None if strategy is None else strategy.with_timestamp_assigner(lambda v: v),
        report=lambda mark: None if sent is None else sent.append(mark),
    )
    source.open()
    source.add_splits([Part(split) for split in splits])
    return source


def test_what_was_read_still_comes_when_the_source_is_paused() -> None:
    reader = Scripted(([1, 2], "a", []), ([3], "a", []))
    source = source_input(WatermarkStrategy.for_generator(Each), reader, "a")
    assert source.poll() == Batch([1], [1])
    assert source.queued() == 3
    source.paused = True
    assert [source.poll() for _ in range(4)] == [Watermark(1), Batch([2], [2]), Watermark(2), Wait()]
    assert source.queued() == 0
    source.paused = False
    assert source.poll() == Batch([3], [3])


def test_a_split_that_ends_with_its_last_record_is_heard_first_and_then_forgotten() -> None:
    reader = Scripted(([5], "a", ["a"]), ([50], "b", []))
    source = source_input(WatermarkStrategy.for_monotonous_timestamps(), reader, "a", "b")
    assert [source.poll() for _ in range(3)] == [Batch([5], [5]), Batch([50], [50]), Watermark(49)]
    assert source.watermark == 49


def test_a_split_that_has_ended_before_another_s_record_is_forgotten() -> None:
    reader = Scripted(([5], "a", []), ([50], "b", ["a"]))
    source = source_input(WatermarkStrategy.for_monotonous_timestamps(), reader, "a", "b")
    assert [source.poll() for _ in range(3)] == [Batch([5], [5]), Batch([50], [50]), Watermark(49)]


def test_a_split_that_ends_while_the_reader_has_nothing_is_forgotten() -> None:
    reader = Scripted(([50], "b", []), (Wait(), "b", ["a"]))
    source = source_input(WatermarkStrategy.for_monotonous_timestamps(), reader, "a", "b")
    assert [source.poll() for _ in range(2)] == [Batch([50], [50]), Watermark(49)]


def test_the_end() -> None:
    sent: list[int | None] = []
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_watermark_alignment("g", 10)
    reader = Scripted(([5], "a", []), (Wait(), "a", []), (END_OF_INPUT, "a", ["a"]))
    source = source_input(strategy, reader, "a", sent=sent)
    assert [source.poll() for _ in range(3)] == [Batch([5], [5]), Watermark(4), Wait()]
    assert source.drift_ms is None
    source.announced(2)
    assert source.drift_ms == 2
    assert [source.poll() for _ in range(3)] == [Watermark(MAX_WATERMARK), EndOfData(), EndOfPartition()]
    assert sent == [4, None]
    assert source.watermark == MAX_WATERMARK


def test_the_end_of_an_idle_source() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(1)
    reader = Scripted((Wait(), None, []), (Wait(), None, []), (END_OF_INPUT, None, []))
    source = source_input(strategy, reader)
    assert source.poll() == Wait(until=0.001)
    clock: Any = source._clock
    clock.advance(1)
    assert [source.poll() for _ in range(3)] == [
        WatermarkStatus(False),
        WatermarkStatus(True),
        Watermark(MAX_WATERMARK),
    ]


def test_without_a_strategy_records_come_as_they_are_and_time_stands_still() -> None:
    reader = Scripted(([5], "a", ["a"]), (Wait(), "a", []), (END_OF_INPUT, "a", []))
    source = source_input(None, reader, "a")
    assert [source.poll() for _ in range(2)] == [Batch([5]), Wait()]
    assert source.watermark == MIN_WATERMARK
    assert source.poll() == Watermark(MAX_WATERMARK)


class Snapshotted(Scripted):
    """Returns a split of its own for each snapshot, and notes those that are reported as complete."""

    def __init__(self) -> None:
        super().__init__()
        self.completed: list[Any] = []

    def snapshot(self) -> list[Any]:
        return [Part("a")]

    def checkpoint_completed(self, splits: Sequence[Any]) -> None:
        self.completed.extend(splits)


def test_splits_of_a_checkpoint_that_was_aborted_are_not_kept() -> None:
    """Checkpoints may fail for as long as the job runs, where that is tolerated."""
    reader = Snapshotted()
    source = source_input(None, reader)
    aborted = weakref.ref(source.snapshot(1)[0])
    kept = source.snapshot(2)
    source.abort_checkpoint(1)
    assert aborted() is None
    source.checkpoint_completed(2)
    assert reader.completed == list(kept)


# ---- splits and barriers -------------------------------------------------------------------------------------


class Positions(Reader[int]):
    """Reads a number of each split that it has in turn, without end."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.completed: list[Sequence[Any]] = []
        self.more = True
        self.closed = 0

    def add_splits(self, splits: Sequence[Any]) -> None:
        self.positions.update((split.split_id, 0) for split in splits)

    def no_more_splits(self) -> None:
        self.more = False

    def poll(self, limit: int) -> Poll[int]:
        if not self.positions:
            return Wait()
        for split in self.positions:
            self.positions[split] += 1
        return list(self.positions.values())

    def snapshot(self) -> list[Any]:
        return list(self.positions.items())

    def checkpoint_completed(self, splits: Sequence[Any]) -> None:
        self.completed.append(splits)

    def close(self) -> None:
        self.closed += 1


class Watched:
    """An input, the checkpoints that it has announced, and those that have begun ahead of what it has read."""

    def __init__(self, reader: Reader[int], *restored: Part) -> None:
        self.announced: list[int] = []
        self.begun: list[int] = []
        self.input = SourceInput(
            CollectionSource([0]),
            lambda: reader,
            VirtualClock(),
            uid="source",
            subtask=0,
            settings=Settings(),
            restored=restored,
        )
        self.input.watch_checkpoints(
            lambda announcement: self.announced.append(announcement.checkpoint_id),
            lambda barrier: self.begun.append(barrier.checkpoint_id),
            lambda: None,
        )


def test_splits_that_are_assigned_behind_a_barrier_wait_for_the_snapshot() -> None:
    reader = Positions()
    source = Watched(reader).input
    source.add_splits([Part("a")])
    source.open()
    barrier = CheckpointBarrier(1, 0)
    source.start_checkpoint(barrier)
    source.add_splits([Part("b")])
    source.call_reader(lambda r: r.no_more_splits())
    assert reader.positions == {"a": 0}
    assert source.poll() == barrier
    source.add_splits([Part("c")])
    assert source.snapshot(1) == (("a", 0),)
    assert (reader.positions, reader.more) == ({"a": 0}, True)
    source.checkpoint_taken()
    assert (reader.positions, reader.more) == ({"a": 0, "b": 0, "c": 0}, False)


def test_splits_that_are_assigned_between_two_barriers_are_in_the_second_snapshot() -> None:
    reader = Positions()
    source = Watched(reader).input
    source.open()
    first, second = CheckpointBarrier(1, 0), CheckpointBarrier(2, 0)
    source.start_checkpoint(first)
    source.add_splits([Part("a")])
    source.start_checkpoint(second)
    source.add_splits([Part("b")])
    assert source.poll() == first
    assert source.snapshot(1) == ()
    source.checkpoint_taken()
    assert source.poll() == second
    assert source.snapshot(2) == (("a", 0),)
    source.checkpoint_taken()
    assert list(reader.positions) == ["a", "b"]


def test_splits_do_not_wait_for_a_barrier_that_was_aborted() -> None:
    reader = Positions()
    source = Watched(reader).input
    source.open()
    for checkpoint in (1, 2):
        source.start_checkpoint(CheckpointBarrier(checkpoint, 0))
        source.add_splits([Part(f"behind {checkpoint}")])
    source.abort_checkpoint(1)
    assert list(reader.positions) == ["behind 1"]
    assert source.poll() == CheckpointBarrier(2, 0)
    source.checkpoint_taken()
    assert list(reader.positions) == ["behind 1", "behind 2"]


def test_before_the_reader_exists_its_splits_are_the_restored_ones() -> None:
    reader, restored = Positions(), Part("a")
    source = Watched(reader, restored).input
    assert source.snapshot(1) == (restored,)
    source.add_splits([Part("b")])
    source.open()
    assert reader.positions == {"a": 0, "b": 0}
    source.close()
    source.close()
    assert reader.closed == 1


def test_the_reader_is_told_of_complete_checkpoints_alone_with_its_positions_then() -> None:
    reader = Positions()
    source = Watched(reader, Part("a")).input
    source.open()
    for checkpoint in (1, 2, 3):
        source.snapshot(checkpoint)
        assert source.poll() == Batch([checkpoint])
    source.checkpoint_completed(2)
    source.checkpoint_completed(1)
    source.checkpoint_completed(2)
    assert reader.completed == [(("a", 1),)]
    source.checkpoint_completed(3)
    assert reader.completed == [(("a", 1),), (("a", 2),)]


def test_an_unaligned_barrier_begins_ahead_and_one_with_a_timeout_is_announced() -> None:
    reader = Positions()
    watched = Watched(reader)
    source = watched.input
    source.open()
    source.start_checkpoint(CheckpointBarrier(1, 0, aligned_ms=0))
    assert (watched.announced, watched.begun) == ([], [1])
    source.add_splits([Part("a")])
    assert reader.positions == {}, "its snapshot is not taken"
    source.checkpoint_taken()
    assert reader.positions == {"a": 0}
    timed = CheckpointBarrier(2, 0, aligned_ms=50)
    source.start_checkpoint(timed)
    assert (watched.announced, watched.begun) == ([2], [1])
    source.overtake(CheckpointBarrier(1, 0, aligned_ms=0))
    assert watched.begun == [1], "another one is next"
    source.overtake(CheckpointBarrier(2, 0, aligned_ms=0))
    assert watched.begun == [1, 2]
    source.checkpoint_taken()
    assert source.poll() == Batch([1]), "the barrier is not returned as well"
    source.start_checkpoint(CheckpointBarrier(3, 0, aligned_ms=-1))
    assert (watched.announced, watched.begun) == ([2], [1, 2])


def test_an_error_of_restored_splits_says_whose_they_may_be() -> None:
    class Other(Positions):
        def add_splits(self, splits: Sequence[Any]) -> None:
            raise AttributeError("no path")

    with pytest.raises(AttributeError) as failed:
        Watched(Other(), Part("a")).input.open()
    assert "has splits of type Part under the uid 'source'" in failed.value.__notes__[0]

    class Later(Positions):
        def poll(self, limit: int) -> Poll[int]:
            if (read := super().poll(limit)) == [2]:
                raise AttributeError("no path")
            return read

    source = Watched(Later(), Part("a")).input
    source.open()
    source.poll()
    with pytest.raises(AttributeError) as failed:
        source.poll()
    assert not hasattr(failed.value, "__notes__"), "they have been read"


def test_latency_markers_come_at_their_interval_and_limit_waits() -> None:
    reader = Scripted((Wait(until=9.0), None, []), ([1], None, []), (Wait(until=0.015), None, []))
    source = source_input(None, reader, latency_interval_ms=10)
    clock: Any = source._clock
    assert source.poll() == LatencyMarker(0.0, "source", 0)
    assert source.poll() == Wait(until=0.01)
    assert source.poll() == Batch([1])
    clock.advance(10)
    assert source.poll() == LatencyMarker(0.01, "source", 0)
    assert source.poll() == Wait(until=0.015)
