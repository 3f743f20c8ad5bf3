"""Which split the built-in readers' records are from."""

from __future__ import annotations

import pickle

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.connector import END_OF_INPUT, Reader, ReaderContext, Wait
from sluiceway.connector.lib import CollectionSource, GeneratorSource
from sluiceway.connector.lib.generator import _Lane
from sluiceway.metrics import MetricGroup
from sluiceway.testing import SourceDriver, TestSource
from sluiceway.testing.script import EOF


def context() -> ReaderContext:
    return ReaderContext(0, 1, VirtualClock(), lambda: None, lambda: None, MetricGroup())


@pytest.fixture
def lanes() -> Reader[int]:
    reader = GeneratorSource().create_reader(context())
    reader.add_splits([_Lane(0, 2, 0, 6), _Lane(1, 2, 1, 4)])
    return reader


def test_splits_of_each_source() -> None:
    for source, splits in (
        (CollectionSource(range(10)), {"slice-0", "slice-1"}),
        (GeneratorSource(count=10), {"lane-0-of-2", "lane-1-of-2"}),
        (TestSource([1, EOF], [2, EOF]), {"script-0", "script-1"}),
    ):
        with SourceDriver(source, 2, limit=2) as driver:
            driver.run()
        assert driver.splits == driver.finished == splits


def test_splits_that_are_read_one_after_the_other_wait_for_their_turn() -> None:
    source = CollectionSource(range(6))
    with SourceDriver(source, 2) as driver:
        splits = [split for reader in driver.snapshot().splits() for split in reader]
    reader = source.create_reader(context())
    reader.add_splits(splits)
    assert list(reader.waiting_splits()) == []
    assert reader.poll(2) == [0, 1]
    assert (reader.current_split_id, list(reader.waiting_splits())) == ("slice-0", ["slice-1"])
    assert reader.poll(2) == [2]
    assert reader.poll(2) == [3, 4]
    assert (reader.current_split_id, list(reader.waiting_splits())) == ("slice-1", [])
    assert list(reader.finished_splits()) == ["slice-0"]
    assert list(reader.finished_splits()) == []
    assert reader.pause_splits(["slice-1"]) is False
    reader.close()


def test_lanes_take_turns_and_say_whose_it_is(lanes: Reader[int]) -> None:
    seen = []
    while not isinstance(polled := lanes.poll(1), Wait):
        seen.append((lanes.current_split_id, polled, list(lanes.finished_splits())))
    first, second = "lane-0-of-2", "lane-1-of-2"
    assert seen == [
        (first, [0], []),
        (second, [1], []),
        (first, [2], []),
        (second, [3], [second]),
        (first, [4], [first]),
    ]


def test_a_lane_can_pause_while_others_go_on(lanes: Reader[int]) -> None:
    first, second = "lane-0-of-2", "lane-1-of-2"
    assert lanes.pause_splits([first]) is True
    assert [lanes.poll(1), lanes.poll(1)] == [[1], [3]]
    lanes.no_more_splits()
    assert lanes.poll(1) == Wait()
    lanes.pause_splits([second])
    assert lanes.poll(5) == [0, 2, 4]
    assert lanes.poll(5) is END_OF_INPUT


def test_a_lane_of_an_earlier_version_can_be_stored_again() -> None:
    """It had slots, and did not know when its next number was due."""
    earlier = _Lane.__new__(_Lane)
    earlier.__setstate__([1, 2, 5, None])
    assert pickle.loads(pickle.dumps(earlier)) == earlier == _Lane(1, 2, 5, None)
