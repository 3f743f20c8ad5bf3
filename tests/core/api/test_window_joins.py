"""How joins in windows are written, and what is said of those that cannot be."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.windows import CountTrigger, EventTimeSessionWindows, GlobalWindows, TumblingEventTimeWindows

Pair = tuple[str, int]
TENS = TumblingEventTimeWindows(10)


@pytest.fixture
def flow() -> sw.Pipeline:
    return sw.Pipeline("shop")


def pairs(flow: sw.Pipeline) -> sw.DataStream[Pair]:
    return flow.from_collection([("k", 1)], timestamp=lambda p: p[1])


def name(pair: Pair) -> str:
    return pair[0]


def number(pair: Pair) -> int:
    return pair[1]


def both(left: Any, right: Any) -> Any:
    return left, right


@pytest.fixture(params=["join", "co_group"])
def begun(request: pytest.FixtureRequest, flow: sw.Pipeline) -> Any:
    return getattr(pairs(flow), request.param)(pairs(flow))


def windowed(begun: Any) -> Any:
    return begun.where(name).equal_to(name).window(TENS)


# ---- the graph ------------------------------------------------------------------------------------------------


def counted(lefts: Sequence[Pair], rights: Sequence[Pair]) -> Iterator[int]:
    yield len(lefts)


def together(left: Pair, right: Pair) -> str:
    return left[0]


class Strings(sw.FlatJoinFunction[Pair, Pair, str]):
    def join(self, left: Pair, right: Pair) -> list[str]:
        return []


class Grouped(sw.CoGroupFunction[Pair, Pair, bytes]):
    def co_group(self, lefts: Sequence[Pair], rights: Sequence[Pair]) -> list[bytes]:
        return []


def test_types_are_known_on_both_sides(flow: sw.Pipeline) -> None:
    joined = pairs(flow).join(pairs(flow)).where(name).equal_to(name).window(TENS)
    grouped = pairs(flow).co_group(pairs(flow)).where(name).equal_to(name).window(TENS)
    results: list[tuple[sw.DataStream[Any], type]] = [
        (joined.apply(together), str),
        (joined.apply(Strings()), str),
        (grouped.apply(counted), int),
        (grouped.apply(Grouped()), bytes),
    ]
    for stream, output in results:
        window = stream._inputs[0].upstream
        assert window.output_type is output
        for ref in window.inputs:
            assert ref.upstream.step.wanted_types() == [Pair, Pair]


def test_steps_are_named_after_what_they_do(flow: sw.Pipeline) -> None:
    windowed(pairs(flow).join(pairs(flow))).apply(together).print()
    windowed(pairs(flow).co_group(pairs(flow))).apply(lambda lefts, rights: None).print()
    names = [node.name for node in flow.graph().nodes]
    assert names[2:5] == ["join.left", "join.right", "TumblingEventTimeWindows(10ms).join(together)"]
    assert names[8:11] == ["co_group.left", "co_group.right", "TumblingEventTimeWindows(10ms).co_group"]


def test_streams_that_are_keyed_are_exchanged_once(flow: sw.Pipeline) -> None:
    windowed(pairs(flow).key_by(number).join(pairs(flow).rebalance())).apply(both).print()
    travels = [edge.partitioner.name for edge in flow.graph().edges]
    assert travels == ["forward", "rebalance", "hash", "hash", "forward"]


def test_a_clash_of_types_is_found(flow: sw.Pipeline) -> None:
    flow.from_collection([1]).returns(int).join(pairs(flow)).where(name).equal_to(name).window(TENS).apply(
        both
    ).print()
    assert [f.code for f in flow.check() if "takes tuple[str, int]" in f.message] == ["type-clash"]


def test_what_goes_to_workers_can_be_pickled(flow: sw.Pipeline) -> None:
    for begun in (pairs(flow).join(pairs(flow)), pairs(flow).co_group(pairs(flow))):
        windowed(begun).apply(counted).print()
    for node in flow.graph().nodes:
        if node.step.kind in ("tag", "window"):
            pickle.loads(pickle.dumps((node.step.function, node.step.keys)))


class Numbered(sw.JoinFunction[Pair, Pair, Pair]):
    """Numbers the pairs of a key, over all its windows; has what cannot be copied once it is open."""

    def open(self, context: sw.RuntimeContext) -> None:
        self.seen = context.get_state(sw.ValueStateDescriptor("seen", int, default=0))
        self.lock = threading.Lock()

    def join(self, left: Pair, right: Pair) -> Pair:
        with self.lock:
            self.seen.update(self.seen.value() + 1)
        return left[0], self.seen.value()


def test_two_window_joins_with_one_function_object_have_a_copy_each(flow: sw.Pipeline) -> None:
    numbered = Numbered()
    seen = [windowed(pairs(flow).join(pairs(flow))).apply(numbered).collect() for _ in range(2)]
    flow.run()
    assert [list(numbers) for numbers in seen] == [[("k", 1)], [("k", 1)]]


def test_a_window_join_runs_again_though_its_function_was_open(flow: sw.Pipeline) -> None:
    seen = windowed(pairs(flow).join(pairs(flow))).apply(Numbered()).collect()
    for options in ({}, {"checkpoint_interval": "1s"}):
        flow.run(**options)
        assert list(seen) == [("k", 1)]


def test_settings_do_not_change_what_they_are_called_on(begun: Any) -> None:
    before = windowed(begun)
    tag = sw.OutputTag[Any]("late")
    after = before.trigger(CountTrigger(2)).allowed_lateness(5).side_output_late_data(tag)
    steps = [w.apply(both)._inputs[0].upstream.step for w in (before, after)]
    assert [(s.trigger is None, s.allowed_lateness_ms, s.late_tag) for s in steps] == [
        (True, 0, None),
        (False, 5, tag),
    ]


# ---- what cannot be --------------------------------------------------------------------------------------------


def test_everything_has_its_turn(begun: Any) -> None:
    keyed = begun.where(name)
    for step, word, first in [
        (begun, "equal_to", r"where\(key\) and equal_to\(key\)"),
        (begun, "apply", r"where\(key\) and equal_to\(key\)"),
        (keyed, "window", r"equal_to\(key\)"),
        (keyed.equal_to(name), "apply", r"window\(assigner\), as in window\(TumblingEventTimeWindows"),
        (keyed.equal_to(name), "trigger", r"window\(assigner\)"),
    ]:
        with pytest.raises(AttributeError, match=rf"{type(step).__name__} has no {word}\(\) yet: call {first}"):
            getattr(step, word)
    with pytest.raises(AttributeError, match="Did you mean 'where'"):
        begun.were  # noqa: B018
    windowed = keyed.equal_to(name).window(TumblingEventTimeWindows("1s"))
    with pytest.raises(
        AttributeError, match=r"has no print\(\): say first .*, as in apply\(fn\)\.print\(\.\.\.\)"
    ):
        windowed.print()


@pytest.mark.parametrize("word", ["join", "co_group"])
def test_both_streams_must_be_streams_of_one_pipeline(flow: sw.Pipeline, word: str) -> None:
    with pytest.raises(
        sw.GraphError, match=rf"^{word}\(\) at .*one stream belongs to pipeline 'shop', the other to"
    ):
        getattr(pairs(flow), word)(pairs(sw.Pipeline("other")))
    with pytest.raises(TypeError, match=rf"^{word}\(\) at \S+ takes streams, not 5 \(int\)"):
        getattr(pairs(flow), word)(5)


def test_keys_must_be_keys_that_can_meet(begun: Any) -> None:
    with pytest.raises(
        sw.GraphError, match=r"^equal_to\(\) at \S+: the keys of the first stream are str, those of the"
    ):
        begun.where(name).equal_to(number)
    with pytest.raises(TypeError, match=r"where\(\) at \S+ takes a callable or a KeySelector, not 'name' \(str\)"):
        begun.where("name")
    with pytest.raises(TypeError, match=r"equal_to\(\) at \S+ calls its function with 1 argument"):
        begun.where(name).equal_to(both)


def test_windows_must_be_windows(begun: Any) -> None:
    with pytest.raises(TypeError, match=r"window\(\) at \S+ takes a WindowAssigner"):
        begun.where(name).equal_to(name).window("10s")
    with pytest.raises(sw.GraphError, match=r"GlobalWindows.* never evaluate a window by themselves"):
        begun.where(name).equal_to(name).window(GlobalWindows.create()).apply(both)
    with pytest.raises(TypeError, match=r"trigger\(\) at \S+ takes a Trigger"):
        windowed(begun).trigger(5)
    with pytest.raises(sw.ConfigurationError, match="allowed_lateness"):
        windowed(begun).allowed_lateness("soon")
    begun.where(name).equal_to(name).window(EventTimeSessionWindows.with_gap(5)).trigger(CountTrigger(2)).apply(
        both
    )


def test_functions_must_fit(flow: sw.Pipeline) -> None:
    join: Any = windowed(pairs(flow).join(pairs(flow)))
    group: Any = windowed(pairs(flow).co_group(pairs(flow)))
    with pytest.raises(
        TypeError, match=r"takes a callable or a JoinFunction or a FlatJoinFunction; Grouped is a CoGroup"
    ):
        join.apply(Grouped())
    with pytest.raises(TypeError, match=r"takes a callable or a CoGroupFunction; Strings is a FlatJoinFunction"):
        group.apply(Strings())
    for windows in (join, group):
        with pytest.raises(TypeError, match=r"apply\(\) at \S+ calls its function with 2 arguments, but name"):
            windows.apply(name)
