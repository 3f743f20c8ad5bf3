"""The other side of sinks in simulations: it keeps what is committed, and is strict."""

from __future__ import annotations

import copy
import pickle
from collections import Counter

import pytest

from sluiceway.testing import InjectedError
from sluiceway.testing.simulation import Outside

ME = ("out", 0)


def test_what_is_committed_is_there_and_nothing_else() -> None:
    outside = Outside()
    one, other = outside.begin(ME), outside.begin(("out", 1))
    outside.write(one, [1, 2])
    outside.write(other, [3])
    assert outside.records == []
    outside.pre_commit(one)
    outside.commit(one, again=False)
    outside.abort(other)
    outside.commit(one, again=True)
    assert outside.records == [1, 2]
    assert outside.counts() == Counter([1, 2])


def test_sinks_reach_it_wherever_they_are_copied_to() -> None:
    outside = Outside()
    for sink in (outside.sink(), copy.deepcopy(outside.sink()), pickle.loads(pickle.dumps(outside.sink()))):
        transaction = sink.begin_transaction()
        sink.write(transaction, [7], None)
        sink.pre_commit(transaction)
        sink.commit(transaction)
    assert outside.records == [7, 7, 7]


def test_promises_that_are_broken_are_told() -> None:
    outside = Outside()
    number = outside.begin(ME)
    with pytest.raises(AssertionError, match=r"transaction 1 of 'out' \[0\], which is open, is to be committed"):
        outside.commit(number, again=True)
    outside.pre_commit(number)
    with pytest.raises(AssertionError, match="which is pre-committed, is to be written to"):
        outside.write(number, [1])
    outside.commit(number, again=False)
    with pytest.raises(AssertionError, match="which is committed, is to be committed"):
        outside.commit(number, again=False)
    with pytest.raises(AssertionError, match="which is committed, is to be aborted"):
        outside.abort(number)
    other = outside.begin(ME)
    outside.abort_all_of(ME)
    with pytest.raises(AssertionError, match=r"transaction 2 .* which is aborted, is to be pre-committed"):
        outside.pre_commit(other)


def test_commits_fail_before_or_after_they_are_done() -> None:
    outside = Outside(seed=1, fails=1.0)
    for _ in range(20):
        number = outside.begin(ME)
        outside.write(number, [number])
        outside.pre_commit(number)
        with pytest.raises(InjectedError, match="it was committed: transaction"):
            outside.commit(number, again=False)
    assert outside.failed == 20
    assert 2 < len(outside.records) < 18
    assert len(set(outside.records)) == len(outside.records)
