"""What async_map() takes, and what it says to the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import GraphError
from sluiceway.steps import AsyncStep


async def look_up(value: int) -> str:
    return str(value)


def plain(value: int) -> str:
    return str(value)


async def two(left: int, right: int) -> str:
    return ""


async def several(value: int) -> AsyncIterator[str]:
    yield str(value)


class Good(sw.AsyncFunction[int, str]):
    async def async_invoke(self, value: int) -> list[str]:
        return [str(value)]


class NotAsync(sw.AsyncFunction[int, str]):
    def async_invoke(self, value: int) -> list[str]:  # type: ignore[override]
        return []


class PlainOpen(Good):
    def open(self, context: sw.RuntimeContext) -> None:  # type: ignore[override]
        pass


class Callable_:
    async def __call__(self, value: int) -> str:
        return str(value)


@pytest.fixture
def numbers() -> sw.DataStream[int]:
    return sw.Pipeline("numbers").from_collection([1, 2])


def step_of(stream: sw.DataStream[Any]) -> AsyncStep:
    step = stream._inputs[0].upstream.step
    assert isinstance(step, AsyncStep)
    return step


@pytest.mark.parametrize("fn", [look_up, Good(), Callable_(), partial(two, 1)])
def test_what_it_takes(numbers: sw.DataStream[int], fn: Any) -> None:
    step = step_of(numbers.async_map(fn, timeout="1.5s", capacity=7, ordered=False))
    assert (step.fn, step.timeout_ms, step.capacity, step.ordered, step.retry) == (fn, 1500, 7, False, None)


def test_what_it_takes_unless_told_otherwise(numbers: sw.DataStream[int]) -> None:
    step = step_of(numbers.async_map(look_up, timeout=None))
    assert (step.timeout_ms, step.capacity, step.ordered) == (None, 100, True)


def test_the_type_of_the_results_is_known(numbers: sw.DataStream[int]) -> None:
    flow = numbers._pipeline
    numbers.async_map(look_up, timeout=None).print()
    numbers.async_map(Good(), timeout=None).print()
    steps = [node for node in flow.graph().nodes if isinstance(node.step, AsyncStep)]
    assert [(node.name, node.output_type) for node in steps] == [
        ("async_map(look_up)", str),
        ("async_map(Good)", str),
    ]
    assert {finding.code for finding in flow.check()} == {"unstable-uid"}


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (
            plain,
            r"takes an async function \(async def\) or an AsyncFunction; plain is a plain function: declare it as",
        ),
        (lambda v: v, "<lambda> is a plain function: declare it as 'async def', or use map"),
        (two, r"calls its function with 1 argument, but two\(left: "),
        (several, "was given an async generator; for any number of results give it an AsyncFunction"),
        (NotAsync(), r"NotAsync\.async_invoke is not a coroutine function: declare it as 'async def async_invoke"),
        (PlainOpen(), r"declare PlainOpen\.open as 'async def': it is awaited"),
        (Good, r"was given the class Good; give it an object: Good\(\.\.\.\)"),
        (3, r"takes a callable or an AsyncFunction, not 3 \(int\)"),
    ],
)
def test_what_it_refuses(numbers: sw.DataStream[int], fn: Any, says: str) -> None:
    with pytest.raises(TypeError, match=rf"async_map\(\) at .*test_async\.py:\d+.*{says}"):
        numbers.async_map(fn, timeout="1s")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"timeout": 0}, ValueError, "timeout must be at least 1 ms, not 0; None is for no limit"),
        ({"timeout": "soon"}, ValueError, "timeout: 'soon' is not a duration; None is for no limit"),
        ({"timeout": 1, "capacity": 0}, ValueError, r"async_map\(capacity=\) at .* must be at least 1, not 0"),
        (
            {"timeout": 1, "capacity": "9"},
            TypeError,
            r"async_map\(capacity=\) at .* takes an int, not '9' \(str\)",
        ),
        ({"timeout": 1, "retry": 3}, TypeError, r"retry takes a strategy, as in AsyncRetryStrategy\.fixed_delay"),
        ({"timeout": 1, "ordered": "no"}, TypeError, r"ordered is True or False, not 'no' \(str\)"),
        ({}, TypeError, "timeout"),
    ],
)
def test_options_that_cannot_be(
    numbers: sw.DataStream[int], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        numbers.async_map(look_up, **options)


@pytest.mark.parametrize("step", ["map", "flat_map", "filter", "process"])
def test_other_steps_point_to_it(numbers: sw.DataStream[int], step: str) -> None:
    with pytest.raises(
        TypeError, match=r"it takes a plain function; what has to be awaited goes into async_map\(\)"
    ):
        getattr(numbers, step)(look_up)
    with pytest.raises(TypeError, match="Good is a AsyncFunction"):
        getattr(numbers, step)(Good())


def test_the_names_that_flink_has(numbers: sw.DataStream[int]) -> None:
    retry = sw.AsyncRetryStrategy.fixed_delay(2, "10ms")
    ordered = step_of(sw.AsyncDataStream.ordered_wait(numbers, look_up, "1s", 5, retry))
    unordered = step_of(sw.AsyncDataStream.unordered_wait(numbers, Good(), 1000))
    assert (ordered.ordered, ordered.timeout_ms, ordered.capacity, ordered.retry) == (True, 1000, 5, retry)
    assert (unordered.ordered, unordered.timeout_ms, unordered.capacity) == (False, 1000, 100)
    with pytest.raises(TypeError, match=r"unordered_wait\(\) at .* takes a stream first, not 3 \(int\)"):
        sw.AsyncDataStream.unordered_wait(3, look_up, 1)  # type: ignore[call-overload]
    with pytest.raises(AttributeError, match=r"has no async_wait; use async_map\(\)"):
        numbers.async_wait  # noqa: B018


def test_a_function_object_that_cannot_be_copied_is_refused(numbers: sw.DataStream[int]) -> None:
    class Holds(Good):
        def __init__(self) -> None:
            self.lines = (line for line in ["a generator cannot be copied"])

    numbers.rebalance().async_map(Holds(), timeout=None).set_parallelism(2).print()
    with pytest.raises(
        GraphError, match=r"its Holds cannot be copied .* create what cannot be copied in open\(\)"
    ):
        numbers._pipeline.run()
