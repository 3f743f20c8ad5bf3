"""Batches are planned where there is something to do, also where a split never ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluiceway.connector import (
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleEnumerator,
    Source,
    Wait,
)
from sluiceway.storage import CheckpointStorage


@dataclass(frozen=True, slots=True)
class Place:
    """A split: a file that grows, and how many bytes of it were read."""

    file: str
    at: int = 0

    @property
    def split_id(self) -> str:
        return self.file


class Growing(Source[int]):
    """The bytes of files, as they come."""

    boundedness = Boundedness.UNBOUNDED

    def __init__(self, *files: Path) -> None:
        self.files = files

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        return SimpleEnumerator(context, [Place(str(f)) for f in self.files] if restored is None else restored)

    def create_reader(self, context: ReaderContext) -> Reader[int]:
        return _GrowingReader(context)


class _GrowingReader(Reader[int]):
    def __init__(self, context: ReaderContext) -> None:
        self._context = context
        self._places: dict[str, Place] = {}

    def start(self) -> None:
        self._context.request_split()

    def add_splits(self, splits: Sequence[Place]) -> None:
        self._places.update((split.file, split) for split in splits)
        self._context.request_split()

    def no_more_splits(self) -> None:
        pass

    def poll(self, limit: int) -> Poll[int]:
        for name, place in self._places.items():
            found = list(Path(name).read_bytes()[place.at : place.at + limit])
            if found:
                self.current_split_id = name
                self._places[name] = Place(name, place.at + len(found))
                return found
        return Wait()

    def snapshot(self) -> list[Place]:
        return list(self._places.values())

    def close(self) -> None:
        pass


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b"]
    for file in made:
        file.touch()
    return made


def test_nothing_is_planned_until_something_comes(
    drive: Any, storage: CheckpointStorage, files: list[Path]
) -> None:
    driver = drive(Growing(*files), storage, 2)
    assert driver.run_batch(looks=True)  # nobody knows yet
    assert driver.given == []
    while driver.run_batch(looks=True):  # readers are told things
        assert driver.batch < 5
    before = driver.batch
    assert not driver.run_batch(looks=True)
    for content in (b"\1\2\3", b"\1\2\3\4"):
        files[1].write_bytes(content)
        assert driver.run_batch(looks=True)  # and what was looked at is not lost
        assert driver.given == list(content)
        driver.run_batch(looks=True)
        assert not driver.run_batch(looks=True)
    driver.restart()
    assert not driver.run_batch(looks=True)
    files[0].write_bytes(b"\5")
    assert driver.run_batch(looks=True)
    assert driver.given == [1, 2, 3, 4, 5]
    assert driver.batch >= before + 3
    driver.close()


def test_one_can_be_had_all_the_same(drive: Any, storage: CheckpointStorage, files: list[Path]) -> None:
    driver = drive(Growing(*files), storage, 2)
    while driver.run_batch(looks=True):
        pass
    assert driver.run_batch(always=True)
    assert driver.given == []
    driver.close()


def test_a_reader_that_fails_is_left_to_fail_in_a_batch(
    drive: Any, storage: CheckpointStorage, files: list[Path]
) -> None:
    driver = drive(Growing(files[0]), storage, 1)
    while driver.run_batch(looks=True):
        pass
    files[0].unlink()
    with pytest.raises(FileNotFoundError):
        driver.run_batch(looks=True)
    driver.close()


def test_silence_is_told_for_how_long_there_was_nothing(
    drive: Any, storage: CheckpointStorage, files: list[Path]
) -> None:
    driver = drive(Growing(*files), storage, 1)
    while driver.run_batch(looks=True):
        pass
    files[0].write_bytes(b"\1")
    assert driver.run_batch(looks=True)
    plan = driver.files.plan(driver.batch)
    assert plan is not None
    # What is planned with several splits counts alone the time in which none of them had anything.
    assert 0 < plan.still_ms <= plan.since_ms
    [work] = driver.planner.work(driver.batch)
    assert work.silent_ms == plan.still_ms
    driver.restart()
    files[0].write_bytes(b"\1\2")
    assert driver.run_batch(looks=True)
    plan = driver.files.plan(driver.batch)
    assert plan is not None
    assert plan.since_ms == 0  # a driver that begins anew does not know
    driver.close()
