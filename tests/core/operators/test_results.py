"""What functions may give as their results: iterables, and no single record that only happens to be one."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest

import sluiceway as sw
from sluiceway.errors import FunctionContractError
from sluiceway.testing import EOF, TestSource, run_pipeline
from sluiceway.windows import EventTimeTrigger, TumblingEventTimeWindows


class Point(NamedTuple):
    x: int
    y: int


class Model:
    """As pydantic's are: iterable."""

    __pydantic_fields__: ClassVar[dict[str, Any]] = {}

    def __iter__(self) -> Any:
        return iter([("x", 1)])


class OnTimer(sw.KeyedProcessFunction[int, int, Any]):
    def __init__(self, given: Any) -> None:
        self.given = given

    def process_element(self, value: int, ctx: sw.KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(5)

    def on_timer(self, timestamp: int, ctx: sw.KeyedProcessFunction.OnTimerContext) -> Any:
        return self.given


class Both(sw.CoProcessFunction[int, int, Any]):
    def __init__(self, given: Any) -> None:
        self.given = given

    def process_element1(self, value: int, ctx: sw.CoProcessFunction.Context) -> Any:
        return self.given

    def process_element2(self, value: int, ctx: sw.CoProcessFunction.Context) -> Any:
        return None


class Rules(sw.KeyedBroadcastProcessFunction[int, int, int, Any]):
    def __init__(self, given: Any) -> None:
        self.given = given

    def process_element(self, value: int, ctx: sw.KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        return None

    def process_broadcast_element(self, value: int, ctx: sw.KeyedBroadcastProcessFunction.Context) -> Any:
        return self.given


class Asks(sw.AsyncFunction[int, Any]):
    def __init__(self, given: Any) -> None:
        self.given = given

    async def async_invoke(self, value: int) -> Any:
        return self.given


class Pairs(sw.ProcessJoinFunction[int, int, Any]):
    def __init__(self, given: Any) -> None:
        self.given = given

    def process_element(self, left: int, right: int, ctx: sw.ProcessJoinFunction.Context) -> Any:
        return self.given


class Flat(sw.FlatJoinFunction[int, int, Any]):
    def __init__(self, given: Any) -> None:
        self.given = given

    def join(self, left: int, right: int) -> Any:
        return self.given


class Batches(sw.BatchProcessFunction[int, Any]):
    def __init__(self, given: Any) -> None:
        self.given = given

    def process_batch(self, values: list[int], ctx: sw.BatchProcessFunction.Context) -> Any:
        return self.given


def keyed(stream: Any) -> Any:
    return stream.key_by(lambda n: n)


def cut(stream: Any) -> Any:
    return keyed(stream).window(TumblingEventTimeWindows.of(5))


def rules(stream: Any) -> Any:
    return stream.broadcast(sw.MapStateDescriptor("rules"))


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "process": lambda a, given: a.process(lambda n, ctx: given),
    "keyed process": lambda a, given: keyed(a).process(lambda n, ctx: given),
    "timer": lambda a, given: keyed(a).process(OnTimer(given)),
    "co-process": lambda a, given: a.connect(a).process(Both(given)),
    "broadcast": lambda a, given: keyed(a).connect(rules(a)).process(Rules(given)),
    "async": lambda a, given: a.async_map(Asks(given), timeout=1),
    "window": lambda a, given: cut(a).apply(lambda key, window, elements: given),
    "window with a trigger": lambda a, given: (
        cut(a).trigger(EventTimeTrigger.create()).process(lambda key, window, elements: given)
    ),
    "window in slices": lambda a, given: cut(a).reduce(max, lambda key, window, elements: given),
    "interval join": lambda a, given: keyed(a).interval_join(keyed(a)).between(0, 1).process(Pairs(given)),
    "as-of join": lambda a, given: keyed(a).asof_join(keyed(a)).apply(Flat(given)),
    "window join": lambda a, given: (
        a.join(a)
        .where(lambda n: n)
        .equal_to(lambda n: n)
        .window(TumblingEventTimeWindows.of(5))
        .apply(Flat(given))
    ),
    "batches": lambda a, given: a.process(Batches(given)),
}


def results(place: str, given: Any) -> list[Any]:
    flow = sw.Pipeline("results")
    stamped = flow.source(TestSource([1, EOF])).assign_timestamps_and_watermarks(
        sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n: n)
    )
    collected = PLACES[place](stamped, given).name("mine").collect()
    run_pipeline(flow)
    return list(collected)


@pytest.mark.parametrize("given", ["ab", b"ab", bytearray(b"ab"), {"a": 1}, UserDict(a=1), Point(1, 2), Model()])
@pytest.mark.parametrize("place", PLACES)
def test_a_record_is_not_taken_for_its_parts(place: str, given: Any) -> None:
    with pytest.raises(FunctionContractError) as failed:
        results(place, given)
    said = str(failed.value)
    assert "'mine'" in said
    assert f"returned {given!r:.60}" in said
    if place == "batches":
        assert said.endswith("it takes an iterable of records, or a Batch")
    elif place == "async":
        assert "return a list of results, also where there is but one" in said
    else:
        assert said.endswith(
            "which would be taken apart: it must yield its results, or return a list of them, also where there is "
            "but one"
        )
    assert any(note.startswith("in step 'mine'") for note in failed.value.__notes__)


@pytest.mark.parametrize("given", [["a"], ("a",), {"a"}, iter(["a"]), OrderedDict(a=1).keys(), (n for n in "a")])
@pytest.mark.parametrize("place", PLACES)
def test_every_other_iterable_is_one_of_results(place: str, given: Any) -> None:
    assert results(place, given if isinstance(given, list | tuple | set) else list(given) or ["a"]) == ["a"]


def test_a_function_may_return_now_this_and_now_that() -> None:
    flow = sw.Pipeline("results")
    given: list[Any] = [["a"], None, ("b", "c"), iter("d"), [], None, ["e"]]
    collected = flow.from_collection(range(len(given))).process(lambda n, ctx: given[n]).collect()
    run_pipeline(flow)
    assert list(collected) == ["a", "b", "c", "d", "e"]


def test_the_wrong_one_is_found_behind_right_ones() -> None:
    flow = sw.Pipeline("results")
    given: list[Any] = [["a"], ["b"], "cd"]
    flow.from_collection(range(len(given))).process(lambda n, ctx: given[n]).name("mine").collect()
    with pytest.raises(FunctionContractError, match="returned 'cd'") as failed:
        run_pipeline(flow)
    assert "record: 2" in failed.value.__notes__
