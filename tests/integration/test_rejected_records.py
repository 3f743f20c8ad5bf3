"""Records that a source cannot decode: they fail the job or become dead letters; and news of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.api.replay import replaying
from sluiceway.clock import SystemClock
from sluiceway.config.settings import Settings
from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    SimpleReader,
    Source,
    Wait,
)


class _Split:
    split_id = "all"

    def __init__(self, at: int) -> None:
        self.at = at


class _Texts(Source[int]):
    """Whole numbers, from texts some of which are none."""

    def __init__(self, texts: Sequence[str], rejects: bool = True) -> None:
        self.texts = list(texts)
        self.rejects = rejects

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    @property
    def rejects_records(self) -> bool:
        return self.rejects

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, [_Split(0)] if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _Reader(context, self.texts)


COMPLETED: list[int] = []


class _Reader(SimpleReader[int]):
    def __init__(self, context: ReaderContext, texts: list[str]) -> None:
        super().__init__(context)
        self._texts = texts
        self._at = 0
        self._bad: list[tuple[Any, Exception, int | None]] = []
        self._ends = 0.0

    def open_split(self, split: _Split) -> None:
        self._at = split.at

    def close_split(self) -> None:
        pass

    def position(self) -> _Split:
        return _Split(self._at)

    def read(self, limit: int) -> Poll[int]:
        if self._at == len(self._texts):
            return self._after_a_checkpoint()
        numbers = []
        for text in self._texts[self._at : self._at + 2]:
            self._at += 1
            try:
                numbers.append(int(text))
            except ValueError as error:
                self._bad.append((text, error, None))
        return numbers or Wait(until=0.0)

    def rejected(self) -> Sequence[tuple[Any, Exception, int | None]]:
        bad, self._bad = self._bad, []
        return bad

    def checkpoint_completed(self, splits: Sequence[_Split]) -> None:
        COMPLETED.extend(split.at for split in splits)

    def _after_a_checkpoint(self) -> Poll[int]:
        return END_OF_INPUT


class _WaitsForCheckpoint(_Texts):
    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _PatientReader(context, self.texts)


class _PatientReader(_Reader):
    def _after_a_checkpoint(self) -> Poll[int]:
        clock = SystemClock()
        if len(self._texts) in COMPLETED:
            return END_OF_INPUT
        return Wait(until=clock.monotonic() + 0.001)


def test_a_rejected_record_fails_the_job_with_its_error() -> None:
    flow = sw.Pipeline("numbers")
    flow.source(_Texts(["1", "two", "3"])).collect()
    with pytest.raises(ValueError, match="two"):
        flow.run()


@pytest.mark.parametrize("texts", [["1", "two", "3"], ["one", "two", "3", "1"], ["1", "3", "five", "six"], ["no"]])
def test_rejected_records_become_dead_letters(texts: list[str]) -> None:
    flow = sw.Pipeline("numbers")
    numbers = flow.source(_Texts(texts)).on_error("skip")
    letters, taken = numbers.dead_letters().collect(), numbers.collect()
    flow.run()
    assert sorted(taken) == sorted(int(text) for text in texts if text.isdigit())
    assert [letter.value() for letter in letters] == [text for text in texts if not text.isdigit()]
    assert all("invalid literal" in letter.error for letter in letters)


def test_rejected_records_become_dead_letters_with_event_time() -> None:
    flow = sw.Pipeline("numbers")
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda number: number)
    numbers = flow.source(_Texts(["1", "two", "3"]), watermark_strategy=strategy).on_error("skip")
    letters, taken = numbers.dead_letters().collect(), numbers.collect()
    flow.run()
    assert taken == [1, 3]
    assert [letter.value() for letter in letters] == ["two"]


def test_what_a_source_could_not_decode_cannot_be_replayed() -> None:
    flow = sw.Pipeline("numbers")
    numbers = flow.source(_Texts(["1", "two"])).on_error("skip")
    letters, taken = numbers.dead_letters().collect(), numbers.collect()
    flow.run()
    assert (list(taken), len(letters)) == ([1], 1)
    with pytest.raises(sw.errors.GraphError, match="could not decode the records that it skipped"):
        replaying(flow, list(letters), Settings())


def test_of_a_source_that_assigns_timestamps_what_was_decoded_can_be_replayed() -> None:
    flow = sw.Pipeline("numbers")
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: 60 // n)
    numbers = flow.source(_Texts(["1", "two", "0"]), watermark_strategy=strategy).on_error("skip")
    letters, taken = numbers.dead_letters().collect(), numbers.collect()
    flow.run()
    undecoded, unstamped = sorted(letters, key=lambda letter: not letter.undecoded)
    assert (undecoded.value(), undecoded.replayable) == ("two", False)
    assert (unstamped.value(), unstamped.replayable, list(taken)) == (0, True, [1])
    with pytest.raises(sw.errors.GraphError, match="could not decode the records that it skipped"):
        replaying(flow, [undecoded, unstamped], Settings())
    assert replaying(flow, [unstamped], Settings())


def test_a_limit_of_dead_letters_is_kept() -> None:
    flow = sw.Pipeline("numbers")
    flow.source(_Texts(["1", "two", "three"])).on_error("skip", max=1).print()
    with pytest.raises(ValueError, match="three"):
        flow.run()


def test_a_source_that_rejects_nothing_cannot_skip() -> None:
    with pytest.raises(sw.errors.GraphError, match="cannot skip records"):
        sw.Pipeline("numbers").source(_Texts(["1"], rejects=False)).on_error("skip")


def test_readers_are_told_of_completed_checkpoints(tmp_path: Path) -> None:
    COMPLETED.clear()
    flow = sw.Pipeline("numbers")
    taken = flow.source(_WaitsForCheckpoint(["1", "2", "3"])).collect()
    flow.run(checkpoint_interval="10ms", checkpoints=str(tmp_path))
    assert taken == [1, 2, 3]
    assert sorted(COMPLETED) == COMPLETED
    assert 3 in COMPLETED
