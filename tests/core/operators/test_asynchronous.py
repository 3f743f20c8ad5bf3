"""The asynchronous step by itself, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.elements import Batch, LatencyMarker, Watermark, WatermarkStatus
from sluiceway.errors import FunctionContractError, StateError
from sluiceway.testing import OperatorHarness, every_way

Item = tuple[str, int]


async def after(value: Item) -> str:
    """Give the name of the item after so many ms."""
    await asyncio.sleep(value[1] / 1000)
    return value[0]


def harness(fn: Any = after, **options: Any) -> OperatorHarness:
    step = {
        "timeout": None,
        **{k: options.pop(k) for k in ("timeout", "capacity", "ordered", "retry") if k in options},
    }
    return OperatorHarness(lambda stream: stream.async_map(fn, **step), **options)


def kinds(op: OperatorHarness) -> list[Any]:
    """What came out: records by their values, watermarks as numbers."""
    out: list[Any] = []
    for element in op.elements:
        if isinstance(element, Batch):
            out += element.values
        else:
            out.append(element.timestamp if isinstance(element, Watermark) else element)
    return out


# ---- order ---------------------------------------------------------------------------------------------------


def test_ordered_results_wait_for_those_before_them() -> None:
    with harness() as op:
        assert op.process_batch([("slow", 30), ("quick", 10), ("middle", 20)]) == []
        assert op.advance(29) == []
        assert op.advance(1) == ["slow", "quick", "middle"]


def test_unordered_results_come_as_they_are_ready() -> None:
    with harness(ordered=False) as op:
        op.process_batch([("slow", 30), ("quick", 10), ("middle", 20)])
        assert [op.advance(10), op.advance(10), op.advance(10)] == [["quick"], ["middle"], ["slow"]]


def test_what_is_ready_at_once_comes_at_once() -> None:
    async def double(value: int) -> int:
        return 2 * value

    with harness(double) as op:
        assert op.process_batch([1, 2, 3]) == [2, 4, 6]
        assert op.process_watermark(7) == []
        assert kinds(op) == [2, 4, 6, 7]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_watermark_keeps_its_place(ordered: bool) -> None:
    with harness(ordered=ordered) as op:
        op.process(("before", 30), timestamp=1)
        op.process(("too", 10), timestamp=2)
        op.process_watermark(5)
        op.process(("after", 0), timestamp=6)
        op.process_watermark(10)
        assert op.advance(20) == ([] if ordered else ["too"])
        op.advance(10)
        first = ["before", "too"] if ordered else ["too", "before"]
        assert kinds(op) == [*first, 5, "after", 10]
        assert sorted(op.records, key=lambda r: str(r[1])) == [("before", 1), ("too", 2), ("after", 6)]


@pytest.mark.parametrize("ordered", [True, False])
def test_statuses_and_markers_keep_their_place_too(ordered: bool) -> None:
    marker = LatencyMarker(0.0, "source", 0)
    with harness(ordered=ordered) as op:
        op.process(("a", 10))
        op.process_element(marker)
        op.process_element(WatermarkStatus(active=False))
        assert kinds(op) == []
        op.advance(10)
        assert kinds(op) == ["a", marker, WatermarkStatus(active=False)]


def test_records_without_and_with_timestamps_may_be_under_way_together() -> None:
    with harness() as op:
        op.process(("none", 10))
        op.process(("one", 5), timestamp=1)
        op.process(("two", 5), timestamp=2)
        op.process(("none again", 5))
        op.advance(10)
        assert op.records == [("none", None), ("one", 1), ("two", 2), ("none again", None)]


@settings(max_examples=60, deadline=None)
@given(
    items=st.lists(st.one_of(st.integers(0, 20), st.just("mark")), max_size=25),
    capacity=st.integers(1, 6),
    ordered=st.booleans(),
)
def test_like_a_model(items: list[Any], capacity: int, ordered: bool) -> None:
    """Whatever the delays: in order everything is in order, else the records between two watermarks are a set."""
    with harness(ordered=ordered, capacity=capacity) as op:
        for number, item in enumerate(items):
            while op.blocked:
                op.advance(1)
            if item == "mark":
                op.process_watermark(number)
            else:
                op.process((number, item), timestamp=number)
        op.finish()
        out = kinds(op)
        assert all(isinstance(n, int) for n in out)
        if ordered:
            assert out == list(range(len(items)))
            return
        wanted: list[set[Any]] = [set()]
        for number, item in enumerate(items):
            if item == "mark":
                wanted += [{number}, set()]
            else:
                wanted[-1].add(number)
        for part in wanted:
            assert set(out[: len(part)]) == part
            out = out[len(part) :]
        assert out == []


# ---- capacity ------------------------------------------------------------------------------------------------


def test_no_more_than_the_capacity_is_under_way() -> None:
    under_way = most = 0

    async def count(value: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return value

    with harness(count, capacity=3) as op:
        op.process_batch(list(range(10)))
        assert op.blocked
        op.advance(20)
        assert op.values == [0, 1, 2, 3, 4, 5]
        op.finish()
        assert op.values == list(range(10))
        assert most == 3


def test_a_result_that_waits_for_its_turn_takes_room() -> None:
    with harness(capacity=2) as op:
        op.process_batch([("slow", 50), ("quick", 1)])
        op.advance(10)
        assert op.blocked
        with pytest.raises(AssertionError, match=r"step 'async_map\(after\)' can take no more"):
            op.process(("next", 1))
        op.advance(40)
        assert not op.blocked
        assert op.process(("next", 0)) == ["next"]


def test_two_in_one_chain_do_not_block_each_other_for_ever() -> None:
    with OperatorHarness(
        lambda s: s.async_map(again, timeout=None, capacity=2).async_map(after, timeout=None, capacity=1)
    ) as op:
        op.process_batch([("a", 5), ("b", 5), ("c", 5), ("d", 5)])
        op.finish()
        assert op.values == ["a", "b", "c", "d"]


async def again(value: Item) -> Item:
    await asyncio.sleep(value[1] / 1000)
    return value


# ---- time ----------------------------------------------------------------------------------------------------


def notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def test_a_record_whose_time_is_up_fails_the_job_and_is_named() -> None:
    with harness(timeout="20ms") as op:
        op.process(("quick", 5), timestamp=1)
        op.process(("slow", 1000), timestamp=2)
        assert op.advance(19) == ["quick"]
        with pytest.raises(
            TimeoutError, match=r"'async_map\(after\)' has got no result within 20 ms: allow"
        ) as caught:
            op.advance(5)
        assert "record: ('slow', 1000)" in notes(caught.value)
        assert "timestamp: 2 ms" in notes(caught.value)


class Lookup(sw.AsyncFunction[Item, str]):
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def open(self, context: sw.RuntimeContext) -> None:
        await asyncio.sleep(0.001)
        self.events.append(f"open {context.index_of_this_subtask}")

    async def async_invoke(self, value: Item) -> list[str]:
        try:
            await asyncio.sleep(value[1] / 1000)
        except asyncio.CancelledError:
            self.events.append(f"cancelled {value[0]}")
            raise
        return [value[0]] * 2

    def timeout(self, value: Item) -> Iterable[str]:
        return [f"no {value[0]}"]

    async def close(self) -> None:
        await asyncio.sleep(0.001)
        self.events.append("close")


def test_timeout_may_have_other_results() -> None:
    fn = Lookup()
    with harness(fn, timeout=20) as op:
        op.process_batch([("slow", 1000), ("quick", 5)], timestamps=[1, 2])
        assert op.advance(20) == ["no slow", "quick", "quick"]
        assert op.records == [("no slow", 1), ("quick", 2), ("quick", 2)]
        assert fn.events == ["open 0", "cancelled slow"]
    assert fn.events[-1] == "close"


def test_timeout_as_it_is_fails_the_job() -> None:
    class Plain(sw.AsyncFunction[Item, str]):
        async def async_invoke(self, value: Item) -> list[str]:
            await asyncio.sleep(1)
            return []

    with harness(Plain(), timeout=20) as op:
        op.process(("slow", 0))
        with pytest.raises(TimeoutError, match=r"Plain\.async_invoke\(\) has given no result in time") as caught:
            op.advance(20)
        assert "record: ('slow', 0)" in notes(caught.value)


def test_the_time_begins_when_the_call_does() -> None:
    with harness(capacity=1, timeout=20) as op:
        op.process_batch([("a", 15), ("b", 15), ("c", 15)])
        op.finish()
        assert op.values == ["a", "b", "c"]


def test_a_call_that_ends_after_its_time_changes_nothing() -> None:
    class Stubborn(Lookup):
        async def async_invoke(self, value: Item) -> list[str]:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await asyncio.sleep(0.005)
            return ["too late"]

    with harness(Stubborn(), timeout=20) as op:
        op.process(("a", 0))
        op.advance(100)
        assert op.values == ["no a"]


# ---- attempts ------------------------------------------------------------------------------------------------


class Flaky:
    """Fails so many times for each record."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError, takes: int = 0) -> None:
        self.failures = failures
        self.error = error
        self.takes = takes
        self.calls: list[tuple[Any, int]] = []
        self.clock: Callable[[], int] = lambda: 0

    async def __call__(self, value: Any) -> Any:
        self.calls.append((value, self.clock()))
        await asyncio.sleep(self.takes / 1000)
        if sum(v == value for v, _ in self.calls) <= self.failures:
            raise self.error(f"no answer for {value}")
        return value


def test_a_fixed_delay_between_attempts() -> None:
    fn = Flaky(2)
    with harness(fn, retry=sw.AsyncRetryStrategy.fixed_delay(2, "10ms")) as op:
        fn.clock = op.clock.now_ms
        op.process("a")
        assert op.advance(19) == []
        assert op.advance(1) == ["a"]
        assert fn.calls == [("a", 0), ("a", 10), ("a", 20)]


def test_an_exponential_backoff_up_to_its_maximum() -> None:
    fn = Flaky(5)
    retry = sw.AsyncRetryStrategy.exponential_backoff(9, 10, "45ms", 2)
    with harness(fn, retry=retry) as op:
        fn.clock = op.clock.now_ms
        op.process("a")
        op.finish()
        assert [at for _, at in fn.calls] == [0, 10, 30, 70, 115, 160]
        assert op.values == ["a"]


def test_the_last_attempt_says_which_it_was() -> None:
    with harness(Flaky(3), retry=sw.AsyncRetryStrategy.fixed_delay(2, 10)) as op:
        op.process("a", timestamp=7)
        with pytest.raises(ConnectionError, match="no answer for a") as caught:
            op.advance(20)
        assert "in attempt 3" in notes(caught.value)
        assert "record: 'a'" in notes(caught.value)


@pytest.mark.parametrize(
    ("if_exception", "tried"),
    [(OSError, 2), ((ValueError, OSError), 2), (ValueError, 1), (None, 1), (lambda e: "answer" in str(e), 2)],
)
def test_which_exceptions_are_worth_another_attempt(if_exception: Any, tried: int) -> None:
    fn = Flaky(9, takes=1)
    with harness(fn, retry=sw.AsyncRetryStrategy.fixed_delay(1, 10, if_exception=if_exception)) as op:
        op.process("a")
        with pytest.raises(ConnectionError):
            op.advance(20)
        assert len(fn.calls) == tried


def test_a_result_may_be_worth_another_attempt() -> None:
    answers = iter([None, None, "there"])

    async def ask(value: str) -> str | None:
        return next(answers)

    retry = sw.AsyncRetryStrategy.fixed_delay(5, 10, if_result=lambda answer: answer is None)
    with harness(ask, retry=retry) as op:
        op.process("a")
        op.finish()
        assert op.values == ["there"]


def test_when_there_may_be_no_further_attempt_the_result_is_taken_as_it_is() -> None:
    class Empty(sw.AsyncFunction[str, str]):
        calls = 0

        async def async_invoke(self, value: str) -> list[str]:
            self.calls += 1
            return []

    fn = Empty()
    retry = sw.AsyncRetryStrategy.fixed_delay(2, 10, if_result=lambda found: found == [])
    with harness(fn, retry=retry) as op:
        op.process("a")
        assert op.finish() == []
        assert fn.calls == 3


def test_the_time_covers_all_attempts() -> None:
    fn = Flaky(9, takes=3)
    with harness(fn, timeout=20, retry=sw.AsyncRetryStrategy.fixed_delay(9, 5)) as op:
        op.process("a")
        with pytest.raises(TimeoutError, match="no result within 20 ms"):
            op.advance(100)
        assert len(fn.calls) == 3


def test_after_its_time_a_record_is_not_tried_again() -> None:
    class Refused(Lookup):
        calls = 0

        async def async_invoke(self, value: Item) -> list[str]:
            self.calls += 1
            raise ConnectionError("refused")

    fn = Refused()
    with harness(fn, timeout=25, retry=sw.AsyncRetryStrategy.fixed_delay(9, 10)) as op:
        op.process(("a", 0))
        assert op.advance(25) == ["no a"]
        op.advance(100)
        assert (fn.calls, op.values) == (3, ["no a"])


def test_a_record_that_waits_for_its_next_attempt_keeps_its_place() -> None:
    fn = Flaky(1)
    with harness(fn, retry=sw.AsyncRetryStrategy.fixed_delay(1, 10)) as op:
        op.process("a")
        op.advance(5)
        op.process("b")
        assert op.advance(4) == []
        assert op.advance(1) == ["a"]
        assert op.advance(5) == ["b"]


class Counted:
    """Record whose references are counted."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow


def test_records_that_are_done_are_not_kept_for_a_slow_one() -> None:
    async def answer(record: Counted) -> None:
        if record.slow:
            await asyncio.sleep(1_000_000)

    held: WeakSet[Counted] = WeakSet()
    with harness(answer, timeout="1h", capacity=10, ordered=False) as op:
        op.process(Counted(slow=True))
        for _ in range(500):
            record = Counted(slow=False)
            held.add(record)
            op.process(record)
        del record
        assert len(op.records) == 500
        assert len(held) <= 2 * 10


def test_records_whose_time_is_up_are_not_kept_for_their_next_attempt() -> None:
    class Failing(sw.AsyncFunction[Counted, None]):
        async def async_invoke(self, value: Counted) -> list[None]:
            raise ValueError

        def timeout(self, value: Counted) -> list[None]:
            return []

    held: WeakSet[Counted] = WeakSet()
    retry = sw.AsyncRetryStrategy.fixed_delay(9, 3_600_000)
    with harness(Failing(), timeout=20, capacity=10, retry=retry) as op:
        for _ in range(10):
            record = Counted(slow=False)
            held.add(record)
            op.process(record)
        del record
        assert len(held) == 10
        op.advance(20)
        assert len(held) == 0


def test_a_strategy_of_ones_own() -> None:
    class Thrice(sw.AsyncRetryStrategy):
        def can_retry(self, current_attempts: int) -> bool:
            return current_attempts < 3

        def get_backoff_time_millis(self, current_attempts: int) -> int:
            return current_attempts

    fn = Flaky(2)
    with harness(fn, retry=Thrice()) as op:
        op.process("a")
        assert op.finish() == ["a"]
        assert len(fn.calls) == 3


def test_a_predicate_that_fails_names_the_record() -> None:
    async def ask(value: int) -> int:
        return value

    retry = sw.AsyncRetryStrategy.fixed_delay(1, 10, if_result=lambda answer: 1 / answer)
    with harness(ask, retry=retry) as op, pytest.raises(ZeroDivisionError) as caught:
        op.process(0)
    assert "record: 0" in notes(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda s: s.fixed_delay(0, 10), ValueError, "max_attempts must be a whole number of at least 1, not 0"),
        (lambda s: s.fixed_delay(2, 0), ValueError, "delay must be at least 1 ms, not 0"),
        (lambda s: s.fixed_delay(2, "soon"), ValueError, "delay: 'soon' is not a duration"),
        (lambda s: s.fixed_delay(2, 10, if_result=3), TypeError, r"if_result takes a function, not 3 \(int\)"),
        (lambda s: s.exponential_backoff(2, 10, 5), ValueError, r"max_retry_delay \(5 ms\) must not be less"),
        (lambda s: s.exponential_backoff(2, 1, 5, 0.5), ValueError, "multiplier must be at least 1, not 0.5"),
    ],
)
def test_strategies_that_cannot_be(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(sw.AsyncRetryStrategy)


# ---- failures ------------------------------------------------------------------------------------------------


def test_a_failure_names_the_record_and_shows_the_users_own_lines() -> None:
    async def fail(value: int) -> int:
        await asyncio.sleep(0.01)
        return 1 // value

    with harness(fail) as op:
        op.process_batch([1, 0, 2], timestamps=[5, 6, 7])
        with pytest.raises(ZeroDivisionError) as caught:
            op.advance(10)
    text = notes(caught.value)
    assert "in step 'async_map(fail)', subtask 1 of 1" in text
    assert "record: 0" in text
    assert "timestamp: 6 ms" in text
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "fail"


def test_what_cannot_be_iterated_over_is_refused() -> None:
    class One(sw.AsyncFunction[int, int]):
        async def async_invoke(self, value: int) -> Any:
            return value

    with (
        harness(One()) as op,
        pytest.raises(FunctionContractError, match=r"returned 3 \(int\); async_invoke") as caught,
    ):
        op.process(3)
    assert "record: 3" in notes(caught.value)


def test_none_is_no_result() -> None:
    class Even(sw.AsyncFunction[int, int]):
        async def async_invoke(self, value: int) -> Iterable[int] | None:
            return (n for n in (value, value)) if value % 2 == 0 else None

    with harness(Even()) as op:
        assert op.process_batch([1, 2, 3, 4]) == [2, 2, 4, 4]


def test_a_coroutine_that_is_cancelled_by_somebody_else() -> None:
    async def cancelled(value: int) -> int:
        raise asyncio.CancelledError

    with (
        harness(cancelled) as op,
        pytest.raises(FunctionContractError, match="was cancelled, and not by") as caught,
    ):
        op.process(3)
    assert "record: 3" in notes(caught.value)


def test_a_failing_open_names_the_step() -> None:
    class Broken(Lookup):
        async def open(self, context: sw.RuntimeContext) -> None:
            raise ConnectionError("no data base")

    fn = Broken()
    with pytest.raises(ConnectionError, match="no data base") as caught:
        harness(fn)
    assert "in step 'async_map(" in notes(caught.value)
    assert fn.events == ["close"]


def test_there_is_no_keyed_state() -> None:
    class Keyed(Lookup):
        async def open(self, context: sw.RuntimeContext) -> None:
            context.get_state(sw.ValueStateDescriptor("seen"))

    with pytest.raises(StateError, match="asks for keyed state 'seen' but its input is not keyed"):
        harness(Keyed())


def test_closing_cancels_what_is_under_way() -> None:
    fn = Lookup()
    with harness(fn, parallelism=1) as op:
        op.process_batch([("a", 50), ("b", 50)])
    assert fn.events == ["open 0", "cancelled a", "cancelled b", "close"]


# ---- snapshots -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_records_under_way_are_taken_again_after_a_restore(ordered: bool, parallelism: int) -> None:
    items = [(f"r{n}", 10 * n) for n in range(10)]
    with harness(ordered=ordered, capacity=4) as op:
        op.process_batch(items, timestamps=list(range(10)))
        op.advance(15)
        assert op.values == ["r0", "r1"]
        snapshot = op.snapshot()
    with harness(ordered=ordered, capacity=4, parallelism=parallelism, restored=snapshot) as op:
        op.finish()
        rest = [(f"r{n}", n) for n in range(2, 10)]
        assert op.records == rest if parallelism == 1 and ordered else sorted(op.records) == rest


def test_results_that_wait_behind_a_watermark_are_asked_for_again() -> None:
    with harness(ordered=False) as op:
        op.process(("slow", 50), timestamp=1)
        op.process_watermark(5)
        op.process(("quick", 10), timestamp=6)
        op.advance(20)
        snapshot = op.snapshot()
    assert [record for s in snapshot.operators for record in s.pending] == [(("slow", 50), 1), (("quick", 10), 6)]


def test_with_the_same_parallelism_each_subtask_keeps_its_own_order() -> None:
    with harness(parallelism=2) as op:
        op.process_batch([(f"r{n}", 50) for n in range(8)])
        snapshot = op.snapshot()
    assert [[value[0] for value, _ in s.pending] for s in snapshot.operators] == [
        ["r0", "r2", "r4", "r6"],
        ["r1", "r3", "r5", "r7"],
    ]
    with harness(parallelism=2, restored=snapshot) as op:
        again = op.snapshot()
    assert [s.pending for s in again.operators] == [s.pending for s in snapshot.operators]


@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_in_every_way(capacity: int) -> None:
    def late(fn: Any) -> Any:
        return lambda s: s.map(lambda v: v + 1).async_map(fn, timeout="10s", capacity=capacity).map(lambda v: -v)

    async def wait(value: int) -> int:
        await asyncio.sleep((7 * value % 5) / 1000)
        return value * 10

    expected = [-10 * (n + 1) for n in range(12)]
    assert every_way(late(wait), range(12), timestamps=range(12)) == expected
