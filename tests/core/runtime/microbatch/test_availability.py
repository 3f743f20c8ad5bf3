"""Batches are planned where there is something to do, also where a split never ends."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.runtime.microbatch.planner import PlanWhen
from sluiceway.testing import ABORT, TestSource


def test_nothing_is_planned_until_something_comes(drive: Any, storage: CheckpointStorage) -> None:
    source = TestSource([], [])
    driver = drive(source, storage, 2)
    assert driver.run_batch(when=PlanWhen.NEWS)  # nobody knows yet
    assert driver.given == []
    while driver.run_batch(when=PlanWhen.NEWS):  # readers are told things
        assert driver.batch < 5
    before = driver.batch
    assert not driver.run_batch(when=PlanWhen.NEWS)
    for news in ([1, 2, 3], [4]):
        source.put(*news, script=1)
        assert driver.run_batch(when=PlanWhen.NEWS)  # and what was looked at is not lost
        assert driver.given[-len(news) :] == news
        driver.run_batch(when=PlanWhen.NEWS)
        assert not driver.run_batch(when=PlanWhen.NEWS)
    driver.restart()
    assert not driver.run_batch(when=PlanWhen.NEWS)
    source.put(5)
    assert driver.run_batch(when=PlanWhen.NEWS)
    assert driver.given == [1, 2, 3, 4, 5]
    assert driver.batch >= before + 3
    driver.close()


def test_one_can_be_had_all_the_same(drive: Any, storage: CheckpointStorage) -> None:
    driver = drive(TestSource([], []), storage, 2)
    while driver.run_batch(when=PlanWhen.NEWS):
        pass
    assert driver.run_batch(when=PlanWhen.ALWAYS)
    assert driver.given == []
    driver.close()


def test_a_reader_that_fails_is_left_to_fail_in_a_batch(drive: Any, storage: CheckpointStorage) -> None:
    source = TestSource([])
    driver = drive(source, storage, 1)
    while driver.run_batch(when=PlanWhen.NEWS):
        pass
    source.put(ABORT(FileNotFoundError("gone")))
    with pytest.raises(FileNotFoundError, match="gone"):
        driver.run_batch(when=PlanWhen.NEWS)
    driver.close()


def test_silence_is_told_for_how_long_there_was_nothing(drive: Any, storage: CheckpointStorage) -> None:
    source = TestSource([], [])
    driver = drive(source, storage, 1)
    while driver.run_batch(when=PlanWhen.NEWS):
        pass
    source.put(1)
    assert driver.run_batch(when=PlanWhen.NEWS)
    plan = driver.files.plan(driver.batch)
    assert plan is not None
    # What is planned with several splits counts alone the time in which none of them had anything.
    assert 0 < plan.still_ms <= plan.since_ms
    [work] = driver.planner.work(driver.batch)
    assert work.silent_ms == plan.still_ms
    driver.restart()
    source.put(2)
    assert driver.run_batch(when=PlanWhen.NEWS)
    plan = driver.files.plan(driver.batch)
    assert plan is not None
    assert plan.since_ms == 0  # a driver that begins anew does not know
    driver.close()
