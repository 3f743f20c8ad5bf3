"""How joins are written, and what is said of those that cannot be."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.steps import AsOfJoinStep, IntervalJoinStep

Pair = tuple[str, int]
TAG = sw.OutputTag[Any]("late")


@pytest.fixture
def flow() -> sw.Pipeline:
    return sw.Pipeline("shop")


def keyed(flow: sw.Pipeline) -> sw.KeyedStream[Pair, str]:
    return flow.from_collection([("k", 1)], timestamp=lambda p: p[1]).key_by(lambda p: p[0])


def both(left: Any, right: Any) -> Any:
    return left, right


def with_context(left: Any, right: Any, ctx: Any) -> Any:
    return [(left, right)]


def step_of(stream: sw.DataStream[Any]) -> Any:
    return stream._inputs[0].upstream.step


# ---- what is written is what is meant -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower", "upper", "ms"),
    [
        (-5, 5, (-5, 5)),
        ("-1.5s", "2min", (-1500, 120_000)),
        (timedelta(seconds=-3), timedelta(seconds=-1), (-3000, -1000)),
        (" -1s", 0, (-1000, 0)),
    ],
)
def test_bounds_may_be_written_in_several_ways(flow: sw.Pipeline, lower: Any, upper: Any, ms: Any) -> None:
    step = step_of(keyed(flow).interval_join(keyed(flow)).between(lower, upper).apply(both))
    assert isinstance(step, IntervalJoinStep)
    assert (step.lower, step.upper) == ms


def test_bounds_may_be_exclusive(flow: sw.Pipeline) -> None:
    near = keyed(flow).interval_join(keyed(flow)).between(-5, 5)
    bounds = [
        (step.lower, step.upper)
        for step in (
            step_of(join.apply(both))
            for join in (
                near.lower_bound_exclusive(),
                near.upper_bound_exclusive(),
                near.upper_bound_exclusive().lower_bound_exclusive(),
                near,  # what went before has not changed it
            )
        )
    ]
    assert bounds == [(-4, 5), (-5, 4), (-4, 4), (-5, 5)]


def test_an_as_of_join_says_how(flow: sw.Pipeline) -> None:
    step = step_of(keyed(flow).asof_join(keyed(flow)).apply(both))
    assert isinstance(step, AsOfJoinStep)
    assert (step.tolerance, step.how, step.left_late) == (None, "left", None)
    join = keyed(flow).asof_join(keyed(flow), tolerance="1h", how="inner").side_output_left_late_data(TAG)
    step = step_of(join.apply(both))
    assert (step.tolerance, step.how, step.left_late) == (3_600_000, "inner", TAG)


class Watch(sw.ProcessJoinFunction[Pair, Pair, str]):
    def process_element(self, left: Pair, right: Pair, ctx: sw.ProcessJoinFunction.Context) -> list[str]:
        return []


def strings(left: Pair, right: Pair) -> str:
    return ""


class Strings(sw.FlatJoinFunction[Pair, Pair, str]):
    def join(self, left: Pair, right: Pair) -> list[str]:
        return []


def test_the_type_of_the_results_is_that_of_the_function(flow: sw.Pipeline) -> None:
    near = keyed(flow).interval_join(keyed(flow)).between(-5, 5)
    joined = [near.apply(strings), near.apply(Strings()), near.process(Watch())]
    joined += [keyed(flow).asof_join(keyed(flow)).apply(fn) for fn in (strings, Strings())]
    assert [step_of(stream).output_type(None, None) for stream in joined] == [str] * 5
    assert [step_of(stream).wanted_types(1) for stream in joined] == [[Pair]] * 5


# ---- what is not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["interval_join", "asof_join"])
def test_both_streams_must_be_keyed(flow: sw.Pipeline, word: str) -> None:
    plain = flow.from_collection([1])
    with pytest.raises(AttributeError, match=rf"DataStream has no {word}\(\).*call key_by\(...\) first"):
        getattr(plain, word)
    with pytest.raises(
        sw.GraphError, match=rf"^{word}\(\) at \S+:\d+: the other stream is not keyed; call key_by"
    ):
        getattr(keyed(flow), word)(plain)
    with pytest.raises(TypeError, match=rf"^{word}\(\) at \S+:\d+ takes streams, not 5 \(int\)"):
        getattr(keyed(flow), word)(5)


@pytest.mark.parametrize("word", ["interval_join", "asof_join"])
def test_both_streams_must_be_of_one_pipeline(flow: sw.Pipeline, word: str) -> None:
    with pytest.raises(
        sw.GraphError, match=rf"^{word}\(\) at .*one stream belongs to pipeline 'shop', the other to"
    ):
        getattr(keyed(flow), word)(keyed(sw.Pipeline("other")))


def by_number(pair: Pair) -> int:
    return pair[1]


def by_name(pair: Pair) -> str:
    return pair[0]


def by_decimal(pair: Pair) -> Decimal:
    return Decimal(pair[1])


def by_either(pair: Pair) -> float | str:
    return pair[0]


@pytest.mark.parametrize("word", ["interval_join", "asof_join"])
def test_keys_must_be_able_to_meet(flow: sw.Pipeline, word: str) -> None:
    pairs = flow.from_collection([("k", 1)])
    with pytest.raises(
        sw.GraphError,
        match=rf"^{word}\(\) at \S+: the keys of the first stream are str, those of the other int, so no two",
    ):
        getattr(pairs.key_by(by_name), word)(pairs.key_by(by_number))
    for key in (by_either, lambda pair: pair[1]):
        getattr(pairs.key_by(by_name), word)(pairs.key_by(key))
    for key in (by_either, by_decimal):
        getattr(pairs.key_by(by_number), word)(pairs.key_by(key))


def test_keys_that_are_numbers_of_two_types_are_no_finding(flow: sw.Pipeline) -> None:
    left, right = (flow.from_collection([("k", 1)], timestamp=lambda p: p[1]) for _ in range(2))
    left.key_by(by_number).asof_join(right.key_by(by_decimal)).apply(both).print()
    assert "key-type-clash" not in [finding.code for finding in flow.check()]


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        (5, 4, "the lower bound is above the upper one"),
        ("1s", 0, "the lower bound is above the upper one"),
        ("soon", 4, "'soon' is not a duration; give a timedelta, ms, or a text such as '10s'"),
        (0, 1.5, "1.5 is not a duration"),
        (0, True, "True is not a duration"),
        (timedelta(microseconds=-1), 0, "is not a whole number of milliseconds"),
    ],
)
def test_bounds_that_are_none(flow: sw.Pipeline, lower: Any, upper: Any, message: str) -> None:
    join = keyed(flow).interval_join(keyed(flow))
    call = re.escape(f"between({lower!r}, {upper!r})")
    with pytest.raises(sw.ConfigurationError, match=rf"^{call} at \S+test_joins.py:\d+: .*{re.escape(message)}"):
        join.between(lower, upper)


def test_exclusive_bounds_with_nothing_between_them(flow: sw.Pipeline) -> None:
    join = keyed(flow).interval_join(keyed(flow)).between(0, 1).lower_bound_exclusive().upper_bound_exclusive()
    with pytest.raises(
        sw.ConfigurationError, match=r"between 0 ms and 1 ms there is nothing if bounds are exclusive"
    ):
        join.apply(both)


def test_bounds_come_first(flow: sw.Pipeline) -> None:
    join: Any = keyed(flow).interval_join(keyed(flow))
    for word in ("apply", "process"):
        with pytest.raises(
            AttributeError, match=rf"IntervalJoin has no {word}\(\) yet: call between\(lower, upper\)"
        ):
            getattr(join, word)
    with pytest.raises(AttributeError, match=r"Did you mean 'between'\?"):
        join.betwen  # noqa: B018


def test_joins_are_no_streams_yet(flow: sw.Pipeline) -> None:
    joins: list[Any] = [
        keyed(flow).interval_join(keyed(flow)).between(0, 1),
        keyed(flow).asof_join(keyed(flow)),
    ]
    for join in joins:
        with pytest.raises(
            AttributeError, match=r"has no map\(\): say first .*, as in apply\(fn\)\.map\(\.\.\.\)"
        ):
            join.map(str)
        with pytest.raises(AttributeError, match=r"Did you mean 'apply'\?"):
            join.aply  # noqa: B018


def test_functions_of_the_wrong_kind(flow: sw.Pipeline) -> None:
    near: Any = keyed(flow).interval_join(keyed(flow)).between(0, 1)
    asof: Any = keyed(flow).asof_join(keyed(flow))
    with pytest.raises(TypeError, match=r"calls its function with 3 arguments, but both.*; use apply\(fn\) for a"):
        near.process(both)
    with pytest.raises(
        TypeError, match=r"takes a callable or a ProcessJoinFunction; Strings is a FlatJoinFunction.*; use"
    ):
        near.process(Strings())
    with pytest.raises(TypeError, match=r"takes a callable or a ProcessJoinFunction, not 5 \(int\)$"):
        near.process(5)
    with pytest.raises(
        TypeError, match=r"takes a callable or a JoinFunction or a FlatJoinFunction; Watch is a Process"
    ):
        near.apply(Watch())
    for join in (near, asof):
        with pytest.raises(TypeError, match=r"apply\(\) at \S+ was given the class Strings; give it an object"):
            join.apply(Strings)
        with pytest.raises(
            TypeError, match=r"apply\(\) at \S+ calls its function with 2 arguments, but with_context"
        ):
            join.apply(with_context)


def test_tags_that_are_none(flow: sw.Pipeline) -> None:
    near: Any = keyed(flow).interval_join(keyed(flow)).between(0, 1)
    asof: Any = keyed(flow).asof_join(keyed(flow))
    for join, word in [(near, "left"), (near, "right"), (asof, "left")]:
        with pytest.raises(
            TypeError, match=rf"^side_output_{word}_late_data\(\) at \S+ takes an OutputTag, as in"
        ):
            getattr(join, f"side_output_{word}_late_data")("late")


def test_an_as_of_join_that_cannot_be(flow: sw.Pipeline) -> None:
    left, right = keyed(flow), keyed(flow)
    with pytest.raises(
        sw.ConfigurationError, match=r"^asof_join\(how='outer'\) at \S+: how is 'left' or 'inner'$"
    ):
        left.asof_join(right, how="outer")  # type: ignore[arg-type]
    with pytest.raises(sw.ConfigurationError, match=r"^asof_join\(tolerance='-1s'\) at \S+: '-1s' is not"):
        left.asof_join(right, tolerance="-1s")
    with pytest.raises(sw.ConfigurationError, match=r"^asof_join\(tolerance='long'\) at \S+: 'long' is not"):
        left.asof_join(right, tolerance="long")


def test_late_records_have_the_type_of_their_input(flow: sw.Pipeline) -> None:
    def pair(value: Pair) -> Pair:
        return value

    def number(value: Pair) -> int:
        return value[1]

    def text(value: str) -> str:
        return value

    left, right = sw.OutputTag[Any]("left"), sw.OutputTag[Any]("right")
    pairs, numbers = keyed(flow).map(pair), keyed(flow).map(number)
    near = pairs.key_by(lambda p: p[0]).interval_join(numbers.key_by(str)).between(0, 5)
    joined = near.side_output_left_late_data(left).side_output_right_late_data(right).apply(both)
    as_of = (
        pairs.key_by(lambda p: p[0]).asof_join(numbers.key_by(str)).side_output_left_late_data(left).apply(both)
    )
    for late in (joined.get_side_output(left), joined.get_side_output(right), as_of.get_side_output(left)):
        late.map(text).print()
    clashes = [f.message.split(" of ")[0] for f in flow.check() if f.code == "type-clash"]
    assert clashes == ["side output 'left'", "side output 'right'", "side output 'left'"]
