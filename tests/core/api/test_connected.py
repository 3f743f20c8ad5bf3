"""connect(), broadcast(descriptor), and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import GraphError
from sluiceway.steps import BroadcastProcessStep, CoMapStep, CoProcessStep, PerInput

HERE = r"at \S*test_connected\.py:\d+"
RULES = sw.MapStateDescriptor("rules", int, key_type=str)


class Mapped(sw.CoMapFunction[Any, Any, Any]):
    def map1(self, value: Any) -> Any: ...

    def map2(self, value: Any) -> Any: ...


class Processed(sw.CoProcessFunction[Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any: ...

    def process_element2(self, value: Any, ctx: Any) -> Any: ...


class KeyedProcessed(sw.KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any: ...

    def process_element2(self, value: Any, ctx: Any) -> Any: ...


class LookedUp(sw.BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any: ...


class KeyedLookedUp(sw.KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any: ...


class Plain(sw.ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any: ...


def same(value: Any) -> Any:
    return value


def emit(value: Any, ctx: Any) -> Any:
    return [value]


async def later(value: Any) -> Any: ...


@pytest.fixture
def flow() -> sw.Pipeline:
    return sw.Pipeline("connected")


def step_of(stream: Any) -> Any:
    return stream._inputs[0].upstream.step


def refs_of(stream: Any) -> list[Any]:
    return [(ref.port, ref.partitioner and ref.partitioner.name) for ref in stream._inputs[0].upstream.inputs]


# ---- connect ---------------------------------------------------------------------------------------------------


def test_each_stream_has_an_input_of_its_own(flow: sw.Pipeline) -> None:
    a, b, c, d = (flow.from_collection([n]) for n in range(4))
    made = a.union(b).connect(c.union(d).rebalance()).map(same, str)
    assert refs_of(made) == [(0, None), (0, None), (1, "rebalance"), (1, "rebalance")]
    assert step_of(made) == CoMapStep(PerInput(same, str))


def test_keyed_streams_stay_keyed(flow: sw.Pipeline) -> None:
    a, b = flow.from_collection([1]), flow.from_collection([2])
    for connected in (a.key_by(same).connect(b.key_by(str)), a.connect(b).key_by(same, str)):
        made = connected.process(KeyedProcessed())
        assert refs_of(made) == [(0, "hash"), (1, "hash")]
        step = step_of(made)
        assert isinstance(step, CoProcessStep)
        assert step.keys == (same, str)


def test_key_by_takes_the_place_of_earlier_keys(flow: sw.Pipeline) -> None:
    a, b = flow.from_collection([1]), flow.from_collection([2])
    made = a.key_by(str).connect(b.key_by(str)).key_by(same, same).map(Mapped())
    assert step_of(made).keys == (same, same)
    assert [ref.partitioner.key for ref in made._inputs[0].upstream.inputs] == [same, same]


def test_one_key_alone_partitions_and_no_more(flow: sw.Pipeline) -> None:
    a, b = flow.from_collection([1]), flow.from_collection([2])
    made = a.key_by(same).connect(b).map(Mapped())
    assert refs_of(made) == [(0, "hash"), (1, None)]
    assert not step_of(made).keyed


def test_what_a_co_process_step_emits_aside_can_be_taken(flow: sw.Pipeline) -> None:
    tag = sw.OutputTag("late", int)
    made = flow.from_collection([1]).connect(flow.from_collection([2])).process(Processed())
    assert made.get_side_output(tag)._inputs[0].tag is tag


def test_plain_broadcast_is_a_partitioner_as_ever(flow: sw.Pipeline) -> None:
    a, b = flow.from_collection([1]), flow.from_collection([2])
    assert refs_of(a.connect(b.broadcast()).map(same, same)) == [(0, None), (1, "broadcast")]


REFUSED: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (lambda a, b: a.connect(3), TypeError, rf"connect\(\) {HERE} takes streams, not 3 \(int\)"),
    (lambda a, b: a.connect(b).key_by(same, "user"), TypeError, r"key_by\('user'\) .* takes a callable"),
    (
        lambda a, b: a.connect(b).map(same),
        TypeError,
        rf"map\(\) {HERE} was given one callable for two streams: give it one for each, map\(fn1, fn2\), or a",
    ),
    (
        lambda a, b: a.connect(b).map(Mapped(), Mapped()),
        TypeError,
        rf"map\(\) {HERE}: Mapped has a method for each of both streams, so give it alone: map\(function\)",
    ),
    (
        lambda a, b: a.connect(b).flat_map(same, same, same),
        TypeError,
        rf"flat_map\(\) {HERE} takes a CoFlatMapFunction, or two callables, one per stream; it was given 3",
    ),
    (lambda a, b: a.connect(b).map(), TypeError, r"one per stream; it was given 0 arguments"),
    (
        lambda a, b: a.connect(b).flat_map(Mapped()),
        TypeError,
        rf"flat_map\(\) {HERE} takes a CoFlatMapFunction; Mapped is a CoMapFunction, for connect\(other\)\.map",
    ),
    (lambda a, b: a.connect(b).map(Mapped), TypeError, r"was given the class Mapped; give it an object"),
    (lambda a, b: a.connect(b).map(3), TypeError, r"takes a CoMapFunction, not 3 \(int\)"),
    (lambda a, b: a.connect(b).map(same, later), TypeError, r"was given the async function later"),
    (
        lambda a, b: a.connect(b).process(emit, same),
        TypeError,
        rf"process\(\) {HERE} calls its function with 2 arguments, but same\(value",
    ),
    (
        lambda a, b: a.connect(b).process(Plain()),
        TypeError,
        r"takes a CoProcessFunction or a KeyedCoProcessFunction; Plain is a ProcessFunction$",
    ),
    (
        lambda a, b: a.connect(b).process(LookedUp()),
        TypeError,
        r"LookedUp is a BroadcastProcessFunction, for connect\(other\.broadcast\(descriptor\)\)\.process\(\)",
    ),
    (
        lambda a, b: a.process(Processed()),
        TypeError,
        r"; Processed is a CoProcessFunction, for connect\(other\)\.process\(\)$",
    ),
    (
        lambda a, b: a.key_by(same).process(KeyedProcessed()),
        TypeError,
        r"KeyedProcessed is a KeyedCoProcessFunction, for connect\(other\)\.process\(\) of keyed streams$",
    ),
    (
        lambda a, b: a.connect(b).process(KeyedProcessed()),
        GraphError,
        rf"process\(\) {HERE}: KeyedProcessed is a KeyedCoProcessFunction, but the streams are not keyed: call "
        r"key_by\(key1, key2\) before process\(\), or make it a CoProcessFunction",
    ),
    (
        lambda a, b: a.key_by(same).connect(b).process(KeyedProcessed()),
        GraphError,
        r"but the second stream is not keyed",
    ),
    (
        lambda a, b: a.connect(b.key_by(same)).process(KeyedProcessed()),
        GraphError,
        r"but the first stream is not keyed",
    ),
    (
        lambda a, b: a.connect(b).filter(same),
        AttributeError,
        r"ConnectedStreams has no attribute 'filter'.*flat_map",
    ),
    # ---- broadcast
    (
        lambda a, b: a.broadcast("rules"),
        TypeError,
        rf"broadcast\(\) {HERE} takes MapStateDescriptors, not 'rules' \(str\)",
    ),
    (
        lambda a, b: a.broadcast(RULES, sw.ValueStateDescriptor("x")),
        TypeError,
        r"takes MapStateDescriptors, not ValueStateDescriptor",
    ),
    (
        lambda a, b: a.broadcast(RULES, sw.MapStateDescriptor("rules")),
        GraphError,
        r"was given two descriptors for state 'rules': give each its own name",
    ),
    (
        lambda a, b: a.broadcast(sw.MapStateDescriptor("x", ttl=sw.StateTtlConfig(timedelta(hours=1)))),
        GraphError,
        r"state 'x' has a time to live, which broadcast state cannot have, .*: leave out ttl=",
    ),
    (
        lambda a, b: a.broadcast(RULES).map(same),
        AttributeError,
        r"BroadcastStream has no map\(\): connect the other stream with it, as in stream\.connect\(",
    ),
    (lambda a, b: a.broadcast(RULES).connect(b), AttributeError, r"BroadcastStream has no connect\(\)"),
    (lambda a, b: a.broadcast(RULES).nonsense(b), AttributeError, r"BroadcastStream has no attribute 'nonsense'"),
    (
        lambda a, b: a.connect(b.broadcast(RULES)).map(same),
        AttributeError,
        r"BroadcastConnectedStream has no map\(\): call process\(\.\.\.\) first",
    ),
    (
        lambda a, b: a.connect(b.broadcast(RULES)).process(emit),
        TypeError,
        rf"process\(\) {HERE} takes a BroadcastProcessFunction or a KeyedBroadcastProcessFunction, not <",
    ),
    (
        lambda a, b: a.connect(b.broadcast(RULES)).process(Processed()),
        TypeError,
        r"Processed is a CoProcessFunction, for connect\(other\)\.process\(\)",
    ),
    (
        lambda a, b: a.connect(b.broadcast(RULES)).process(KeyedLookedUp()),
        GraphError,
        rf"process\(\) {HERE}: KeyedLookedUp is a KeyedBroadcastProcessFunction, but the stream is not keyed: "
        r"call key_by\(\.\.\.\) before connect\(\), or make it a BroadcastProcessFunction",
    ),
    (
        lambda a, b: a.key_by(same).connect(b.broadcast(RULES)).process(LookedUp()),
        GraphError,
        r"LookedUp is a BroadcastProcessFunction, but the stream is keyed: make it a KeyedBroadcast",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED)
def test_what_is_refused(
    flow: sw.Pipeline, call: Callable[[Any, Any], Any], kind: type[Exception], message: str
) -> None:
    a, b = flow.from_collection([1]), flow.from_collection([2])
    with pytest.raises(kind, match=message):
        call(a, b)


@pytest.mark.parametrize("broadcast", [False, True])
def test_streams_of_different_pipelines_cannot_meet(flow: sw.Pipeline, broadcast: bool) -> None:
    other: Any = sw.Pipeline("elsewhere").from_collection([1])
    with pytest.raises(
        GraphError, match=rf"connect\(\) {HERE}: one stream belongs to pipeline 'connected', the oth"
    ):
        flow.from_collection([1]).connect(other.broadcast(RULES) if broadcast else other)


def test_keys_of_types_that_can_never_be_equal_are_found_by_check(flow: sw.Pipeline) -> None:
    def user(value: int) -> str: ...

    def number(value: int) -> int: ...

    flow.from_collection([1]).connect(flow.from_collection([2])).key_by(user, number).map(Mapped()).print()
    messages = [f.message for f in flow.check() if f.code == "key-type-clash"]
    assert len(messages) == 1
    assert "user, which returns str, and its second by" in messages[0]


def test_broadcast_steps_take_a_stream_keyed_or_not(flow: sw.Pipeline) -> None:
    a, b = flow.from_collection([1]), flow.from_collection([2])
    plain = a.connect(b.broadcast(RULES)).process(LookedUp())
    keyed = a.key_by(same).connect(b.broadcast(RULES)).process(KeyedLookedUp())
    assert refs_of(plain) == [(0, None), (1, "broadcast")]
    assert refs_of(keyed) == [(0, "hash"), (1, "broadcast")]
    assert isinstance(step_of(keyed), BroadcastProcessStep)
    assert step_of(keyed).keys == (same, None)
    assert step_of(keyed).descriptors == (RULES,)
    keyed.print()
    plain.print()
    assert [f for f in flow.check() if f.code != "unstable-uid"] == []


def test_they_say_what_they_are(flow: sw.Pipeline) -> None:
    a, b = flow.from_collection([1]), flow.from_collection([2])
    assert repr(a.connect(b)).startswith("<ConnectedStreams of <DataStream of source() from")
    assert repr(b.broadcast(RULES)).endswith(" for 'rules'>")
    assert repr(a.connect(b.broadcast(RULES))).startswith("<BroadcastConnectedStream of <DataStream")
