"""Sequences are checked rightly."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.connector.lib import GeneratorSource, SequenceChecker, SequenceCheckSink
from sluiceway.errors import ConfigurationError
from sluiceway.testing.drivers import SinkDriver, SourceDriver, drive_sink


def test_a_whole_sequence_is_fine() -> None:
    checker = SequenceChecker(lanes=3)
    with (
        SourceDriver(GeneratorSource(count=1000), 3, limit=7) as source,
        SinkDriver(SequenceCheckSink(checker), 2) as sink,
    ):
        seen = [0, 0, 0]
        turn = 0
        while source.poll():
            for reader, records in enumerate(source.records):
                if len(records) > seen[reader]:
                    sink.write(records[seen[reader] :], subtask=reader % 2)
                    seen[reader] = len(records)
                    turn += 1
    report = checker.report(1000)
    assert report.ok
    assert (report.received, report.lost, report.duplicates, report.out_of_order) == (1000, 0, 0, 0)
    assert sum(s.received for s in report.subtasks.values()) == 1000
    assert turn > 10


def test_what_is_wrong_is_counted_by_kind_and_subtask() -> None:
    checker = SequenceChecker()
    checker.check([0, 1, 5, 4], subtask=0)
    checker.check([5, 6, 2], subtask=1)
    report = checker.report(10)
    assert not report.ok
    assert (report.received, report.lost, report.duplicates, report.out_of_order) == (7, 4, 1, 2)
    assert report.examples == {"lost": [3, 7, 8, 9], "duplicates": [5], "out_of_order": [4, 2]}
    assert (report.subtasks[0].duplicates, report.subtasks[0].out_of_order) == (0, 1)
    assert (report.subtasks[1].duplicates, report.subtasks[1].out_of_order) == (1, 1)
    assert str(report) == (
        "7 received; 4 lost (3, 7, 8, 9, ...); 1 duplicates (5, ...); 2 out of order (4, 2, ...); "
        "subtask 0: 4 received, 0 duplicates, 1 out of order; subtask 1: 3 received, 1 duplicates, 1 out of order"
    )


def test_without_a_count_the_largest_number_is_the_last() -> None:
    checker = SequenceChecker()
    assert checker.report().ok
    assert checker.report(3).lost == 3
    checker.check([0, 2])
    assert (checker.report().lost, checker.report(5).lost) == (1, 3)


@given(st.lists(st.integers(0, 40)), st.integers(1, 3), st.integers(0, 50))
def test_it_agrees_with_a_model(numbers: list[int], lanes: int, count: int) -> None:
    checker = SequenceChecker(lanes)
    half = len(numbers) // 2
    checker.check(numbers[:half])
    checker.check(numbers[half:])
    report = checker.report(count)
    assert report.lost == len(set(range(count)) - set(numbers))
    assert report.duplicates == len(numbers) - len(set(numbers))
    firsts = list(dict.fromkeys(numbers))
    wrong = [n for i, n in enumerate(firsts) if any(m > n and m % lanes == n % lanes for m in firsts[:i])]
    assert report.out_of_order == len(wrong)


def test_the_number_can_be_part_of_a_record() -> None:
    checker = SequenceChecker()
    drive_sink(SequenceCheckSink(checker, number=lambda r: r["n"]), [{"n": i} for i in range(10)])
    assert checker.report(10).ok


def test_large_numbers_in_any_order() -> None:
    numbers = list(range(50_000))
    random.Random(1).shuffle(numbers)
    checker = SequenceChecker(lanes=50_000)
    checker.check(numbers)
    assert checker.report(50_000).ok


@pytest.mark.parametrize("number", [-1, "1", 1.0, True])
def test_what_is_no_number_of_a_sequence_is_an_error(number: object) -> None:
    with pytest.raises(ValueError, match=r"the numbers of a sequence are 0, 1, 2, \.\.\.; "):
        SequenceChecker().check([number])  # type: ignore[list-item]


def test_a_copy_in_this_process_is_the_same_checker() -> None:
    checker = SequenceChecker()
    pickle.loads(pickle.dumps(checker)).check([0])
    assert checker.report().received == 1
    with pytest.raises(ConfigurationError, match="lanes=0 must be at least 1"):
        SequenceChecker(0)
