"""What is kept of micro-batches: of sources that cannot be read again, and of batches that are over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.connector.lib.collection import CollectionSource
from sluiceway.connector.lib.function import FunctionSource
from sluiceway.errors import CheckpointError
from sluiceway.runtime.microbatch import planner
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.planner import BatchPlanner
from sluiceway.runtime.microbatch.spooled_source import SpooledSource

Drive = Callable[..., Any]
QUICK = BatchLimits(records=10, wait_s=0.05, linger_s=0.01, time_s=2.0)


def values_of(got: list[Any]) -> list[Any]:
    return [value for values, _, _ in got[:-1:3] for value in values]


# -- sources that cannot be read again --------------------------------------------------------------------------


def test_what_cannot_be_read_again_is_stored(drive: Drive, storage: CheckpointStorage) -> None:
    calls: list[int] = []

    def records() -> Iterator[int]:
        calls.append(1)
        yield from range(35)

    driver = drive(FunctionSource(records), storage, 1)
    assert isinstance(driver.planner.source, SpooledSource)
    assert driver.run_batch()
    work = driver.planner.work(1)[0]
    first, _ = driver.attempt(work)
    assert values_of(first) == list(range(10))
    while driver.run_batch():
        pass
    assert driver.given == list(range(35))
    assert len(calls) == 1  # by one reader, that stayed open
    driver.close()


def test_stored_records_go_with_their_batches(
    drive: Drive, storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "_KEPT", 3)
    driver = drive(FunctionSource(lambda: iter(range(100))), storage, 1)
    while driver.run_batch():
        names = [file.name for file in storage.files("run")]
        stored = [name for name in names if "/stored/" in name]
        assert len(stored) <= 5
        assert len(names) - len(stored) <= 2 * 5
    assert driver.batch == 10
    assert driver.given == list(range(100))
    driver.close()


def test_a_stored_source_goes_on_where_its_last_plan_was(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(FunctionSource(lambda: iter(range(35))), storage, 1)
    driver.run_batch()
    driver.planner.plan(2)
    driver.restart()
    while driver.run_batch():
        driver.restart()
    assert driver.given == list(range(35))
    driver.close()


# -- files ------------------------------------------------------------------------------------------------------


def test_files_of_old_batches_go(
    drive: Drive, storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "_KEPT", 3)
    driver = drive(CollectionSource(range(200)), storage)
    while driver.run_batch():
        pass
    assert driver.batch == 10
    numbers = {int(file.name.split("/")[1]) for file in storage.files("run")}
    assert numbers == set(range(7, 11))
    driver.close()


def test_missing_files_are_named(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(CollectionSource(range(90)), storage)
    driver.run_batch()
    driver.run_batch()
    driver.close()
    storage.delete(["run/2/1"])
    driver.restart()
    with pytest.raises(CheckpointError, match=r"the record of reader 1 in batch 2 is not in .*positions/run: a"):
        driver.planner.plan(3)
    storage.delete(["run/2/plan"])
    driver.restart()
    with pytest.raises(CheckpointError, match=r"the plan of batch 2 is not in .*positions/run"):
        driver.planner.plan(3)
    driver.close()


def test_what_nobody_wanted_to_read_to_its_end_is_read_in_the_driver(
    drive: Drive, storage: CheckpointStorage
) -> None:
    driver = drive(CollectionSource(range(40)), storage, 2)
    driver.planner = BatchPlanner(driver.source, driver.files, 2, limits=QUICK, reads_what_is_left=True)
    assert driver.planner.plan(1) is not None
    first, second = driver.planner.work(1)
    driver.attempt(first, most=1)  # and nobody the second, as with limit(3)
    assert driver.planner.plan(2) is not None
    driver.batch = 2
    assert values_of(driver.attempt(driver.planner.work(2)[0])[0]) == list(range(10, 20))
    assert values_of(driver.attempt(driver.planner.work(2)[1])[0]) == list(range(30, 40))
    assert values_of(driver.attempt(second)[0]) == list(range(20, 30))
    driver.close()


def test_a_file_of_another_kind_is_told_of(drive: Drive, storage: CheckpointStorage) -> None:
    storage.write("run/1/plan", [b"something else"])
    driver = drive(CollectionSource(range(90)), storage)
    with pytest.raises(CheckpointError, match=r"run/1/plan is no file of a batch that this version can read"):
        driver.planner.plan(1)
    driver.close()


def test_positions_are_said_in_words_of_json(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(CollectionSource(range(40)), storage)
    driver.run_batch()
    driver.planner.plan(2)
    assert driver.planner.positions(2) == {
        "slice-0": {"index": 0, "start": 10, "stop": 20},
        "slice-1": {"index": 1, "start": 30, "stop": 40},
    }
    driver.close()


# -- the number of readers --------------------------------------------------------------------------------------


def test_a_run_keeps_its_number_of_readers(drive: Drive, storage: CheckpointStorage) -> None:
    files = drive(CollectionSource(range(40)), storage).files
    assert files.readers(3) == 3
    assert files.readers(5) == 3
    storage.write("run/readers", [b"some"])
    with pytest.raises(CheckpointError, match=r"run/readers is damaged: it is no number of readers"):
        files.readers(5)


def test_a_number_of_readers_that_was_not_noted_is_found(drive: Drive, storage: CheckpointStorage) -> None:
    driver = drive(CollectionSource(range(90)), storage, 3)
    assert driver.run_batch()
    assert driver.run_batch()
    assert driver.planner.plan(3) is not None  # and nobody has read it
    driver.close()
    assert driver.files.readers(2) == 3
