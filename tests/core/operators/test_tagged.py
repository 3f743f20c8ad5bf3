"""Pairs of tag and record that functions yield, as in Flink's Python API, are records of side outputs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.testing import OperatorHarness
from sluiceway.windows import CountTrigger, GlobalWindows, TumblingEventTimeWindows

ODD = sw.OutputTag[int]("odd")
ELSEWHERE = SimpleNamespace(tag=ODD)


class Parts(sw.ProcessFunction[int, Any]):
    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        if value < 0:
            raise ValueError(value)
        yield value
        if value % 2:
            yield ODD, value


class KeyedParts(sw.KeyedProcessFunction[int, int, Any]):
    def __init__(self) -> None:
        self.tag = sw.OutputTag[int]("odd")

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value)
        return iter([(self.tag, value)])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield self.tag, -timestamp
        yield timestamp


def by_helper(value: int, ctx: Any) -> list[Any]:
    return helper(value)


def helper(value: int) -> list[Any]:
    return [(ODD, value), value]


def test_pairs_go_to_the_side_output_with_the_timestamp_of_the_record() -> None:
    with OperatorHarness(lambda s: s.process(Parts())) as op:
        op.process_batch([1, 2, 3], [10, 20, 30])
        assert op.records == [(1, 10), (2, 20), (3, 30)]
        assert op.side_output(ODD) == [1, 3]


def test_without_timestamps_too() -> None:
    with OperatorHarness(lambda s: s.process(Parts())) as op:
        op.process_batch([1, 2])
        assert (op.values, op.side_output(ODD)) == ([1, 2], [1])


def test_of_a_record_that_is_skipped_nothing_comes() -> None:
    class Late(Parts):
        def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
            yield ODD, value
            yield from super().process_element(value, ctx)

    with OperatorHarness(lambda s: s.process(Late()).on_error("skip")) as op:
        op.process_batch([1, -1, 2])
        assert (op.values, op.side_output(ODD)) == ([1, 2], [1, 1, 2])


def test_timers_and_keyed_functions() -> None:
    with OperatorHarness(lambda s: s.key_by(lambda n: n).process(KeyedParts())) as op:
        op.process_batch([5, 6], [1, 2])
        op.process_watermark(10)
        assert op.records == [(5, 5), (6, 6)]
        assert op.side_output(ODD) == [5, 6, -5, -6]


def test_plain_callables_and_their_helpers() -> None:
    with OperatorHarness(lambda s: s.process(by_helper)) as op:
        op.process_batch([1, 2])
        assert (op.values, op.side_output(ODD)) == ([1, 2], [1, 2])


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows(10), GlobalWindows.create()])
def test_window_functions(assigner: Any) -> None:
    class Sums(sw.ProcessWindowFunction[str, int, Any]):
        def process(self, key: str, context: Any, elements: Any) -> Iterator[Any]:
            yield sum(elements)
            yield ODD, len(elements)

    def windowed(stream: Any) -> Any:
        made = stream.key_by(lambda n: "all").window(assigner)
        if isinstance(assigner, GlobalWindows):
            made = made.trigger(CountTrigger(3))
        return made.process(Sums())

    with OperatorHarness(windowed) as op:
        op.process_batch([1, 2, 3], [1, 2, 3])
        op.process_watermark(20)
        assert (op.values, op.side_output(ODD)) == ([6], [3])


def test_connected_streams() -> None:
    class Both(sw.CoProcessFunction[int, str, Any]):
        def process_element1(self, value: int, ctx: Any) -> Iterator[Any]:
            yield ODD, value

        def process_element2(self, value: str, ctx: Any) -> Iterator[Any]:
            yield value
            yield ODD, len(value)

    flow = sw.Pipeline()
    made = flow.from_collection([1]).connect(flow.from_collection(["ab"])).process(Both())
    main, side = made.collect(), made.get_side_output(ODD).collect()
    flow.run()
    assert (list(main), sorted(side)) == (["ab"], [1, 2])


@pytest.mark.parametrize("as_object", [True, False])
@pytest.mark.parametrize("batch_size", [1, 100])
def test_interval_joins(as_object: bool, batch_size: int) -> None:
    def parts(left: int, right: int, ctx: Any) -> Iterator[Any]:
        yield left
        yield ODD, right
        ctx.output(ODD, -right)

    class Parts(sw.ProcessJoinFunction[int, int, Any]):
        def process_element(self, left: int, right: int, ctx: Any) -> Iterator[Any]:
            return parts(left, right, ctx)

    strategy = sw.WatermarkStrategy[int].no_watermarks().with_timestamp_assigner(lambda n: n)
    flow = sw.Pipeline()
    lefts, rights = (
        flow.from_collection(numbers).assign_timestamps_and_watermarks(strategy).key_by(lambda n: "all")
        for numbers in ([1, 5], [2, 6])
    )
    joined = lefts.interval_join(rights).between(0, 1)
    made = joined.process(Parts() if as_object else parts)
    main = made.process(lambda value, ctx: [(value, ctx.timestamp())]).collect()
    side = made.get_side_output(ODD).process(lambda value, ctx: [(value, ctx.timestamp())]).collect()
    flow.run(batch_size=batch_size)
    assert sorted(main) == [(1, 2), (5, 6)]
    assert sorted(side) == [(-6, 6), (-2, 2), (2, 2), (6, 6)]


SEEN = sw.OutputTag[Any]("seen")


def test_a_record_with_a_tag_is_not_trusted_for_the_hint_of_the_others() -> None:
    class Seen(sw.ProcessFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.seen: list[int] = []

        def process_element(self, value: int, ctx: Any) -> Iterator[int]:
            self.seen.append(value)
            yield SEEN, self.seen  # type: ignore[misc]

    with OperatorHarness(lambda s: s.process(Seen())) as op:
        op.process_batch([1, 2])
        assert op.side_output(SEEN) == [[1], [1, 2]]


@pytest.mark.parametrize("where", ["open", "process_element"])
def test_nor_is_one_whose_tag_is_the_first_of_its_process(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(sw.ProcessFunction[int, int]):
        def open(self, context: sw.RuntimeContext) -> None:
            self.seen: list[int] = []
            if where == "open":
                self.tag = sw.OutputTag[Any]("seen")

        def process_element(self, value: int, ctx: Any) -> Iterator[int]:
            self.seen.append(value)
            yield self.tag if where == "open" else sw.OutputTag("seen"), self.seen  # type: ignore[misc]

    flow = sw.Pipeline()
    # As in a worker, which learns of the tag by its name.
    side = flow.from_collection([1, 2]).process(Seen()).get_side_output(SEEN).rebalance().map(tuple).collect()
    monkeypatch.setattr(sw.OutputTag, "_made", False)
    flow.run()
    assert list(side) == [(1,), (1, 2)]


def test_a_record_with_a_tag_of_an_interval_join_is_not_trusted_either() -> None:
    seen: list[int] = []

    def note(left: int, right: int, ctx: Any) -> Iterator[int]:
        seen.append(right)
        yield SEEN, seen  # type: ignore[misc]

    flow = sw.Pipeline()
    lefts, rights = (
        flow.from_collection(numbers, timestamp=lambda n: n).key_by(lambda n: "all") for numbers in ([1], [2, 3])
    )
    side = lefts.interval_join(rights).between(0, 5).process(note).get_side_output(SEEN).collect()
    flow.run()
    assert list(side) == [[2], [2, 3]]


def test_other_pairs_stay_what_they_are() -> None:
    def pairs(value: int, ctx: Any) -> list[Any]:
        return [(value, ODD), (ODD, value, value), ("odd", value)]

    with OperatorHarness(lambda s: s.process(pairs)) as op:
        op.process(1)
        assert op.values == [(1, ODD), (ODD, 1, 1), ("odd", 1)]


def test_wherever_a_function_has_its_tag_from() -> None:
    tag = ODD

    def closure(value: int, ctx: Any) -> Any:
        return [(tag, value)]

    def default(value: int, ctx: Any, tag: Any = ODD) -> Any:
        return [(tag, value)]

    def attribute(value: int, ctx: Any) -> Any:
        return [(ELSEWHERE.tag, value)]

    def makes(value: int, ctx: Any) -> Any:
        return [(sw.OutputTag("odd"), value)]

    for function in (closure, default, attribute, makes):
        with OperatorHarness(lambda s, function=function: s.process(function)) as op:
            op.process(1)
            assert (op.values, op.side_output(ODD)) == ([], [1]), function


@pytest.mark.parametrize("where", ["records", "windows"])
def test_the_first_tag_of_a_process_may_be_made_in_a_generator(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sums(sw.ProcessWindowFunction[str, int, Any]):
        def process(self, key: str, context: Any, elements: Any) -> Iterator[Any]:
            yield sw.OutputTag("odd"), sum(elements)

    def makes(value: int, ctx: Any) -> Iterator[Any]:
        yield sw.OutputTag("odd"), value

    def program(stream: Any) -> Any:
        windowed = stream.key_by(lambda n: "all").window(TumblingEventTimeWindows(10))
        return stream.process(makes) if where == "records" else windowed.process(Sums())

    with OperatorHarness(program) as op:
        monkeypatch.setattr(sw.OutputTag, "_made", False)
        op.process(1, 1)
        op.process_watermark(20)
        assert (op.values, op.side_output(ODD)) == ([], [1])


def test_a_program_without_tags_pays_nothing_for_them() -> None:
    """In a process of its own, as this one has made some; one that is sent there counts."""
    code = (
        "import copy, pickle, sys, sluiceway as sw; from sluiceway.functions.base import output_tags_exist\n"
        "from sluiceway.functions import DEAD_LETTERS\n"
        "assert pickle.dumps(DEAD_LETTERS) and not output_tags_exist()\n"
        f"assert pickle.loads({pickle.dumps(ODD)!r}).name == 'odd' and output_tags_exist()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
