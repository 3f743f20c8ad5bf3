"""The built-in sources: what the conformance suites don't say."""

from __future__ import annotations

import itertools
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from sluiceway.clock import VirtualClock
from sluiceway.connector import END_OF_INPUT, Boundedness, Source, Wait
from sluiceway.connector.lib import CollectionSource, FunctionSource, GeneratorSource
from sluiceway.errors import ConfigurationError, ConnectorError, FunctionContractError
from sluiceway.record_errors import locate
from sluiceway.testing.drivers import SourceDriver, drive_source

# ---- collections -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[3, 1, 2], (3, 1, 2), range(3), deque([3, 1, 2]), []])
def test_any_sequence_will_do(values: Any) -> None:
    assert drive_source(CollectionSource(values), limit=2) == list(values)


def test_readers_get_consecutive_parts() -> None:
    with SourceDriver(CollectionSource(range(10)), 3) as driver:
        driver.run()
        assert driver.records == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    with SourceDriver(CollectionSource([1]), 3) as driver:
        assert driver.run() == [1]


def test_later_changes_to_a_list_do_not_show() -> None:
    values = [1, 2, 3]
    source = CollectionSource(values)
    values.clear()
    assert drive_source(source) == [1, 2, 3]
    assert drive_source(source) == [1, 2, 3]


def test_the_type_is_that_of_all_elements() -> None:
    assert CollectionSource(["a", "b"]).output_type is str
    assert CollectionSource(range(0)).output_type is int
    assert CollectionSource([1, "b"]).output_type is None
    assert CollectionSource([]).output_type is None
    assert CollectionSource([1, "b"], output_type=object).output_type is object


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            (i for i in range(3)),
            "a collection of records must be a list, a tuple, a range or another sequence, not generator. "
            "list(...) makes one; for records that are produced while the job runs, use "
            "Pipeline.from_function(fn), where fn() returns the iterable",
        ),
        (
            {1, 2},
            "a collection of records must be a list, a tuple, a range or another sequence, not set. list(...)",
        ),
        (
            pd.DataFrame({"n": [1]}),
            "a collection of records must be a list, a tuple, a range or another sequence, not DataFrame. "
            '.to_dict("records") gives its rows as dicts; Pipeline.table() reads it as a stream in columns',
        ),
        (
            pa.table({"n": [1]}),
            "a collection of records must be a list, a tuple, a range or another sequence, not Table. "
            ".to_pylist() gives its rows as dicts",
        ),
        (
            {"a": 1},
            "a collection of records must be a list, a tuple, a range or another sequence, not dict. "
            "list(values.items()) gives its pairs, and [values] is the mapping as a single record",
        ),
        (
            "to be",
            "a collection of records is expected, not one str: ['to be'] for a single record, list('to be') for "
            "one per character",
        ),
    ],
)
def test_what_is_no_sequence_is_refused(values: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CollectionSource(values)
    assert str(caught.value).startswith(message)


def test_timestamps_come_from_the_function() -> None:
    with SourceDriver(CollectionSource([5, 6, 7], timestamp=lambda v: v * 1000), limit=2) as driver:
        assert driver.run() == [5, 6, 7]
        assert driver.timestamps == [[5000, 6000, 7000]]


def test_a_timestamp_that_is_no_int_is_an_error() -> None:
    source = CollectionSource(["a"], timestamp=lambda v: 1.5)
    with pytest.raises(FunctionContractError) as caught:
        drive_source(source)
    assert str(caught.value) == (
        "timestamp= must return milliseconds since the epoch as an int, or an aware datetime; for 'a' it returned "
        "1.5 (float); it is not a whole number of milliseconds: round it with int()"
    )


def test_the_record_whose_timestamp_fails_can_be_told() -> None:
    with pytest.raises(KeyError) as caught:
        drive_source(CollectionSource([{"at": 1}, {"when": 2}], timestamp=lambda v: v["at"]))
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert fault.value == {"when": 2}


# ---- numbers ---------------------------------------------------------------------------------------------------


def test_readers_share_the_numbers_lane_by_lane() -> None:
    with SourceDriver(GeneratorSource(lambda i: i * i, 7), 3) as driver:
        driver.run()
        assert driver.records == [[0, 9, 36], [1, 16], [4, 25]]


def test_without_a_count_it_does_not_end() -> None:
    source = GeneratorSource()
    assert source.boundedness is Boundedness.UNBOUNDED
    assert source.output_type is int
    with SourceDriver(source, limit=10_000) as driver:
        assert driver.run(most=100_000) == list(range(100_000))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_rate_is_that_of_all_readers_together(parallelism: int) -> None:
    clock = VirtualClock()
    with SourceDriver(GeneratorSource(count=50, rate=10), parallelism, clock=clock) as driver:
        for number in range(50):
            assert driver.poll()
            assert len(driver.all_records()) == number + 1
            assert clock.now_ms() == number * 100
        assert not driver.poll()
        assert sorted(driver.all_records()) == list(range(50))


def test_at_a_high_rate_records_come_together() -> None:
    clock = VirtualClock()
    with SourceDriver(GeneratorSource(count=100_000, rate=50_000), limit=1_000, clock=clock) as driver:
        assert driver.run() == list(range(100_000))
        assert 1_990 <= clock.now_ms() <= 2_010
        assert driver.largest == 50


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 7, 1e5])
def test_no_rate_makes_it_wait_for_what_is_there(rate: float) -> None:
    """A due time computed in floats must not be just missed for ever."""
    clock = VirtualClock()
    with SourceDriver(GeneratorSource(count=200, rate=rate), clock=clock) as driver:
        assert len(driver.run()) == 200
        assert clock.monotonic() == pytest.approx(199 / rate, abs=0.3)


def test_who_was_held_up_catches_up_for_one_second() -> None:
    clock = VirtualClock()
    with SourceDriver(GeneratorSource(rate=100), clock=clock, limit=100_000) as driver:
        driver.poll()
        clock.advance(3_600_000)
        driver.poll()
        assert driver.largest == 101
        before = clock.now_ms()
        driver.run(most=202)
        assert clock.now_ms() - before == 1000


def test_another_reader_goes_on_with_the_schedule() -> None:
    """As readers of micro-batches do, of which each may be in another process."""
    clock = VirtualClock()
    restored, got = None, 0
    for _ in range(20):
        with SourceDriver(
            GeneratorSource(rate=10_000), 2, clock=clock, restored=restored, limit=100_000
        ) as driver:
            clock.advance(400)
            driver.poll()
            driver.poll()
            got += len(driver.all_records())
            restored = driver.snapshot()
    assert got == pytest.approx(10_000 * 0.4 * 19, rel=0.01), "in the first there was no schedule yet"
    clock.advance(3_600_000)
    with SourceDriver(GeneratorSource(rate=10_000), 2, clock=clock, restored=restored, limit=100_000) as driver:
        driver.poll()
        driver.poll()
        assert len(driver.all_records()) == pytest.approx(10_000, rel=0.01)
        restored = driver.snapshot()
    back = VirtualClock()
    with SourceDriver(GeneratorSource(rate=10), 2, clock=back, restored=restored) as driver:
        driver.run(most=10)
        assert back.now_ms() < 2_000, "a clock that was set back does not stop it"


def test_another_reader_gives_no_record_before_it_is_due() -> None:
    clock = VirtualClock()
    restored = None
    for number in range(5):
        with SourceDriver(GeneratorSource(rate=1), clock=clock, restored=restored) as driver:
            driver.poll()
            assert (clock.now_ms(), driver.all_records()) == (1000 * number, [number])
            restored = driver.snapshot()
        clock.advance(250)


def test_an_unbounded_reader_reads_all_the_lanes_it_is_given() -> None:
    with SourceDriver(GeneratorSource(), 3, limit=1) as driver:
        driver.run(most=6)
        snapshot = driver.snapshot()
        before = driver.all_records()
    with SourceDriver(GeneratorSource(), 1, limit=1, restored=snapshot) as driver:
        assert sorted(before + driver.run(most=24)) == list(range(30))


@pytest.mark.parametrize(
    ("before", "after", "end"), [(None, 20, 20), (None, 4, 6), (50, 20, 20), (20, 50, 20), (20, None, 20)]
)
def test_a_restored_reader_ends_at_the_smaller_count(before: int | None, after: int | None, end: int) -> None:
    with SourceDriver(GeneratorSource(count=before), 3, limit=1) as driver:
        driver.run(most=6)
        snapshot = driver.snapshot()
        read = driver.all_records()
    with SourceDriver(GeneratorSource(count=after), 2, limit=1, restored=snapshot) as driver:
        assert sorted(read + driver.run(most=100)) == list(range(end))


def test_the_users_exception_names_the_number() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        drive_source(GeneratorSource(lambda i: 1 / (i - 17), 50))
    assert caught.value.__notes__ == ["record: number 17 of GeneratorSource"]


def test_stop_iteration_is_not_taken_for_the_end() -> None:
    texts = iter(["a", "b"])
    with pytest.raises(FunctionContractError, match=r"the function raised StopIteration for number 2\. It must"):
        drive_source(GeneratorSource(lambda i: next(texts), 5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": -1}, "count=-1 must be a whole number from 0 on, or None for no end"),
        ({"count": 1.5}, "count=1.5 must be a whole number from 0 on, or None for no end"),
        ({"rate": 0}, "rate=0 must be above 0 records per second, or None for no limit"),
        (
            {"function": 100},
            "function= must be callable with a number, not 100; for plain numbers, GeneratorSource(",
        ),
    ],
)
def test_generator_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        GeneratorSource(**options)
    assert str(caught.value).startswith(message)


def test_no_numbers_at_all() -> None:
    assert drive_source(GeneratorSource(count=0), 2) == []


# ---- functions -------------------------------------------------------------------------------------------------


def test_whatever_iterable_the_function_returns_is_read() -> None:
    assert drive_source(FunctionSource(lambda: {"a": 1, "b": 2})) == ["a", "b"]
    assert drive_source(FunctionSource(lambda: map(str, range(3)))) == ["0", "1", "2"]


def test_one_reader_reads_it() -> None:
    assert FunctionSource(list).max_readers == 1
    assert FunctionSource(list, bounded=False).boundedness is Boundedness.UNBOUNDED


def test_a_slow_iterator_gives_what_it_has() -> None:
    clock = VirtualClock()

    def slow() -> Iterator[int]:
        for number in range(3):
            clock.advance(1000)
            yield number

    with SourceDriver(FunctionSource(slow), clock=clock) as driver:
        assert driver.run() == [0, 1, 2]
        assert driver.largest == 1


def test_a_generator_that_raises_fails_with_its_own_traceback() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("the sensor is off")

    with pytest.raises(RuntimeError, match="the sensor is off") as caught:
        drive_source(FunctionSource(broken))
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "broken"


def test_a_job_that_ends_early_closes_the_generator() -> None:
    closed = []

    def endless() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    with SourceDriver(FunctionSource(endless)) as driver:
        driver.poll()
        assert not closed
    assert closed == [True]


def test_a_function_that_cannot_repeat_itself_cannot_be_restored() -> None:
    records = iter(range(10))
    source = FunctionSource(lambda: records)
    with SourceDriver(source, limit=4) as driver:
        driver.run(most=8)
        snapshot = driver.snapshot()
    with (
        SourceDriver(source, restored=snapshot) as driver,
        pytest.raises(
            ConnectorError, match=r"ended after 2 records; the position to restore is after record 8\. It"
        ),
    ):
        driver.run()


def test_passing_over_many_records_gives_others_a_turn() -> None:
    source: Source[int] = FunctionSource(lambda: iter(range(10_000)))
    with SourceDriver(source, limit=1000) as driver:
        before = driver.run(most=5000)
        snapshot = driver.snapshot()
    with SourceDriver(source, limit=1000, restored=snapshot) as driver:
        driver._deliver()
        first = driver._reader(0).poll(1000)
        assert isinstance(first, Wait)
        assert before + driver.run() == list(range(10_000))
        assert driver._reader(0).poll(10) is END_OF_INPUT


async def _coroutine() -> list[int]:
    return []


async def _async_generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            [1, 2],
            "FunctionSource needs a function that returns an iterable, not list: pass the generator function",
        ),
        (
            (i for i in []),
            "FunctionSource needs a function that returns an iterable, not generator: pass the gene",
        ),
        (_coroutine, "FunctionSource cannot run _coroutine(), which is async: pass a plain function"),
        (_async_generator, "FunctionSource cannot run _async_generator(), which is async: pass a plain function"),
    ],
)
def test_what_cannot_be_called_for_records_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FunctionSource(function)
    assert str(caught.value).startswith(message)


def test_a_function_that_returns_no_iterable_is_an_error() -> None:
    def answer() -> Any:
        return 42

    with pytest.raises(FunctionContractError) as caught:
        drive_source(FunctionSource(answer))
    assert str(caught.value).endswith("answer() must return an iterable of records; it returned 42 (int)")
