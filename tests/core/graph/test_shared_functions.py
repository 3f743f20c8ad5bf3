"""One function object given to two steps: each has state of its own."""

import threading
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import GraphError
from sluiceway.functions import KeyedProcessFunction, MapFunction, RuntimeContext
from sluiceway.state import ValueStateDescriptor


class Numbered(KeyedProcessFunction[str, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.seen.update(self.seen.value() + 1)
        yield (*value, self.seen.value())


def test_each_step_has_state_of_its_own() -> None:
    flow = sw.Pipeline("twice")
    numbered = Numbered()
    words = flow.from_collection([("a",), ("b",), ("a",)])
    first = words.key_by(lambda v: v[0]).process(numbered).uid("first")
    second = first.filter(lambda v: v[1] > 1).key_by(lambda v: v[0]).process(numbered).uid("second")
    out = second.collect()
    flow.run()
    assert out == [("a", 2, 1)]


class Locked(MapFunction[int, int]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def map(self, value: int) -> int:
        return value


def test_one_that_cannot_be_copied_is_refused_where_it_is_shared() -> None:
    flow = sw.Pipeline("twice")
    locked = Locked()
    flow.from_collection([1]).map(locked).map(locked).collect()
    with pytest.raises(GraphError, match="has the same Locked object as another step, and it cannot be copied"):
        flow.run()


def test_one_that_cannot_be_copied_may_be_used_once() -> None:
    flow = sw.Pipeline("once")
    out = flow.from_collection([1]).map(Locked()).collect()
    flow.run()
    assert out == [1]
