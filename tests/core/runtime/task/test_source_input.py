"""What a task hears from its source."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from sluiceway.clock import VirtualClock
from sluiceway.config.settings import Settings
from sluiceway.connector import END_OF_INPUT, Poll, Reader, Wait
from sluiceway.connector.lib import CollectionSource
from sluiceway.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Batch,
    EndOfData,
    EndOfPartition,
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
) -> SourceInput:
    source = SourceInput(
        CollectionSource([0]),
        lambda: reader,
        VirtualClock(),
        uid="source",
        subtask=0,
        settings=Settings(auto_watermark_interval_ms=0),
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
