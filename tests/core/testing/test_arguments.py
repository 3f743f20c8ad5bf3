"""Arguments of the testing tools that cannot be: each error names the tool, the value and what is wanted."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.testing import (
    EOF,
    CollectingSink,
    OperatorHarness,
    PipelineHarness,
    SinkDriver,
    SourceDriver,
    TestSource,
    drive_sink,
    drive_source,
)


def _flow() -> sw.Pipeline:
    flow = sw.Pipeline("test")
    flow.from_collection([1]).collect()
    return flow


def _source() -> TestSource:
    return TestSource([1, EOF])


@pytest.mark.parametrize(
    "call",
    [
        lambda n: SourceDriver(_source(), n),
        lambda n: SinkDriver(CollectingSink(), n),
        lambda n: drive_source(_source(), n),
        lambda n: drive_source(_source(), limit=n),
        lambda n: drive_sink(CollectingSink(), [1], n),
        lambda n: drive_sink(CollectingSink(), [1], batch_size=n),
    ],
)
def test_numbers_that_drivers_cannot_have(call: Callable[[Any], Any]) -> None:
    for number in (0, -1):
        with pytest.raises(ValueError, match=rf"the .* of (a S|drive_s).* must be at least 1, not {number}$"):
            call(number)
    for wrong in ("2", 1.5, None, True):
        with pytest.raises(TypeError, match=rf"the .* of (a S|drive_s).* takes an int, not {wrong!r}"):
            call(wrong)


@pytest.mark.parametrize("given", [[1], CollectingSink(), None])
def test_only_a_source_is_driven_as_one(given: Any) -> None:
    with pytest.raises(TypeError, match=r"a SourceDriver takes an object of .*Source, and was given"):
        drive_source(given)


@pytest.mark.parametrize("given", [[], _source(), None])
def test_only_a_sink_is_driven_as_one(given: Any) -> None:
    with pytest.raises(TypeError, match=r"a SinkDriver takes an object of .*Sink, and was given"):
        drive_sink(given, [1])


def test_drivers_take_objects_not_classes() -> None:
    source: Any = TestSource
    sink: Any = CollectingSink
    with pytest.raises(TypeError, match=r"SourceDriver was given the class TestSource; .* TestSource\(\.\.\.\)"):
        drive_source(source)
    with pytest.raises(TypeError, match=r"SinkDriver was given the class CollectingSink"):
        drive_sink(sink, [1])


def test_times_that_a_clock_cannot_have() -> None:
    begin: Any
    for begin in ("x", None, 1.5, datetime.now(UTC)):
        with pytest.raises(TypeError, match=r"start_ms is a whole number of ms, and .* was given"):
            PipelineHarness(_flow(), start_ms=begin)
    step: Any
    for step in ("x", None, 1.5, timedelta(1)):
        with (
            PipelineHarness(_flow()) as job,
            pytest.raises(TypeError, match=r"to go on by is a whole"),
        ):
            job.advance(step)
        with (
            OperatorHarness(lambda numbers: numbers.map(str)) as operator,
            pytest.raises(TypeError, match=r"to go on by is"),
        ):
            operator.advance(step)
    with PipelineHarness(_flow()) as job, pytest.raises(ValueError, match=r"cannot go back \(-1 ms\)"):
        job.advance(-1)
