"""Records that joins lend to their function."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluiceway.operators.joins.base import Lender, Run


def pair(left: list[int], right: list[int]) -> list[int]:
    left.append(1)
    return left


@pytest.mark.parametrize(("in_memory", "read"), [(True, 100), (False, 1)])
def test_a_restored_state_is_read_where_it_is_in_memory_alone(in_memory: bool, read: int) -> None:
    """It may be far larger than memory: one run says that there are some."""
    taken = []

    def runs() -> Iterator[Run]:
        for at in range(100):
            taken.append(at)
            yield [(at, at)]

    Lender(pair, shares=False).look_at_restored(runs(), in_memory=in_memory)
    assert len(taken) == read


@pytest.mark.parametrize("in_memory", [True, False])
def test_restored_records_that_can_be_changed_are_copied(in_memory: bool) -> None:
    lender = Lender(pair, shares=False)
    lender.look_at_restored([[(1, [0])]], in_memory=in_memory)
    kept = [0]
    assert lender.call(kept, [2]) == [0, 1]
    assert kept == [0]


@pytest.mark.parametrize("in_memory", [True, False])
def test_nothing_is_copied_where_nothing_was_restored(in_memory: bool) -> None:
    lender = Lender(pair, shares=False)
    lender.look_at_restored([], in_memory=in_memory)
    kept = [0]
    assert lender.call(kept, [2]) is kept
