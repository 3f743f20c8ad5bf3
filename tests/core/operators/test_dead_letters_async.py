"""Asynchronous steps that skip records on which their function raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.functions import DEAD_LETTERS
from sluiceway.testing import OperatorHarness


async def after(value: int) -> int:
    """Give the number back after so many ms, or raise."""
    await asyncio.sleep(abs(value) / 1000)
    if value < 0:
        raise ValueError(value)
    return value


class Several(sw.AsyncFunction[int, int]):
    """The same, with two results, and others for records whose time is up."""

    async def async_invoke(self, value: int) -> Any:
        await after(value)
        return 5 if value == 5 else [value, value]

    async def timeout(self, value: int) -> list[int]:
        if value == 90:
            raise KeyError(value)
        return [0]


def harness(fn: Any = after, most: int | None = None, restored: Any = None, **options: Any) -> OperatorHarness:
    given = {"timeout": None, **options}
    return OperatorHarness(lambda s: s.async_map(fn, **given).on_error("skip", max=most), restored=restored)


def dead(op: OperatorHarness) -> list[tuple[Any, int | None]]:
    return [(letter.value(), letter.timestamp) for letter in op.side_output(DEAD_LETTERS)]


@settings(max_examples=40)
@given(
    values=st.lists(st.integers(-40, 40).filter(bool), max_size=15),
    ordered=st.booleans(),
    capacity=st.integers(1, 6),
    several=st.booleans(),
)
def test_the_others_give_what_they_give(values: list[int], ordered: bool, capacity: int, several: bool) -> None:
    values = [value for value in values if value != 5]
    with harness(Several() if several else after, ordered=ordered, capacity=capacity) as op:
        got = op.process_batch(values, range(len(values))) if values else []
        got += op.advance(5_000)
        fine = [value for value in values if value > 0 for _ in range(1 + several)]
        skipped = [(value, stamp) for stamp, value in enumerate(values) if value < 0]
        assert (got if ordered else sorted(got)) == (fine if ordered else sorted(fine))
        assert (dead(op) if ordered else sorted(dead(op))) == (skipped if ordered else sorted(skipped))


def test_a_skipped_record_keeps_its_turn_and_is_under_way_until_then() -> None:
    with harness() as op:
        op.process_batch([30, -10])
        op.advance(20)
        assert dead(op) == [], "in its turn, so that a checkpoint has either the record or its letter"
        snapshot = op.snapshot()
        assert op.advance(10) == [30]
        assert dead(op) == [(-10, None)]
    with harness(restored=snapshot) as op:
        assert op.advance(50) == [30]
        assert dead(op) == [(-10, None)]


def test_letters_keep_their_event_times_beside_one_without() -> None:
    with harness() as op:
        op.process_batch([-10, -9], [5, 6])
        op.process_batch([-8])
        op.process_batch([-7], [9])
        op.advance(20)
        letters = [(letter.value(), stamp) for letter, stamp in op.side_records(DEAD_LETTERS)]
        assert letters == [(-10, 5), (-9, 6), (-8, None), (-7, 9)]


@pytest.mark.parametrize("ordered", [True, False])
def test_time_that_is_up(ordered: bool) -> None:
    with harness(timeout=20, ordered=ordered) as op:
        op.process_batch([50, 10, 60])
        assert op.advance(100) == [10]
        assert dead(op) == [(50, None), (60, None)]
        (first, _) = op.side_output(DEAD_LETTERS)
        assert "got no result within 20 ms" in first.error
    with harness(Several(), timeout=20, ordered=ordered) as op:
        op.process_batch([50, 90])
        assert op.advance(100) == [0]
        assert dead(op) == [(90, None)]


def test_after_the_last_attempt() -> None:
    class Twice(sw.AsyncRetryStrategy):
        def can_retry(self, current_attempts: int) -> bool:
            return current_attempts < 2

        def get_backoff_time_millis(self, current_attempts: int) -> int:
            return 5

        def retry_on_exception(self, error: BaseException) -> bool:
            return True

        def retry_on_result(self, result: Any) -> bool:
            return False

    with harness(retry=Twice()) as op:
        op.process_batch([-10, 3])
        op.advance(100)
        (letter,) = op.side_output(DEAD_LETTERS)
        assert letter.error == "ValueError: -10\nin attempt 2"
        assert letter.traceback.splitlines()[1].endswith("in after")


def test_time_that_is_up_while_a_record_waits_for_its_retry() -> None:
    retry = sw.AsyncRetryStrategy.fixed_delay(3, 300)
    with harness(timeout=20, retry=retry) as op:
        op.process_batch([-1, 2])
        assert op.advance(25) == [2], "no call is in flight whose end would emit what is behind it"
        assert dead(op) == [(-1, None)]


def test_results_of_no_use_and_coroutines_that_are_cancelled() -> None:
    async def cancelled(value: int) -> int:
        raise asyncio.CancelledError

    with harness(Several()) as op:
        op.process_batch([5, 1])
        assert op.advance(100) == [1, 1]
        assert "returned 5 (int)" in op.side_output(DEAD_LETTERS)[0].error
    with harness(cancelled) as op:
        op.process(1)
        op.advance(10)
        assert "was cancelled, and not by the job" in op.side_output(DEAD_LETTERS)[0].error


def test_too_many() -> None:
    with harness(most=1) as op:
        op.process_batch([-1, -2])
        with pytest.raises(ValueError, match="-2") as failed:
            op.advance(10)
        assert "skips at most 1 records" in failed.value.__notes__[0]


def test_in_a_job() -> None:
    flow = sw.Pipeline()
    numbers = flow.from_collection([1, -2, 3, -4]).async_map(after, timeout="1s").on_error("skip", max=1)
    numbers.print()
    with pytest.raises(ValueError, match="-4") as failed:
        flow.run()
    assert "record: -4" in failed.value.__notes__
