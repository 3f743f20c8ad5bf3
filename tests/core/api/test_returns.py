"""``returns()``: records of another type than the declared one fail the job, whatever runs the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.windows import TumblingEventTimeWindows


class Base:
    pass


class Derived(Base):
    pass


def words(value: Any) -> Any:
    return "three" if value == 3 else value


class Passing(sw.KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield words(value)


def by_parity(value: int) -> int:
    return value % 2


STEPS: dict[str, Callable[[sw.DataStream[Any]], sw.DataStream[Any]]] = {
    "source": lambda s: s,
    "map": lambda s: s.map(words),
    "filter": lambda s: s.map(words).filter(lambda v: True),
    "flat_map": lambda s: s.flat_map(lambda v: [words(v)]),
    "keyed map": lambda s: s.key_by(by_parity).map(words),
    "process": lambda s: s.key_by(by_parity).process(Passing()),
    "reduce": lambda s: s.key_by(lambda v: v).reduce(lambda a, b: a).map(words),
    "window": lambda s: s.key_by(by_parity).window(TumblingEventTimeWindows.of("1s")).reduce(lambda a, b: "three"),
    "connected": lambda s: s.connect(s).map(words, words),
}
OPTIONS: list[dict[str, Any]] = [{}, {"parallelism": 2}, {"batch_size": 1}, {"chaining": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", STEPS)
def test_a_record_of_another_type_fails_the_job(kind: str, options: dict[str, Any]) -> None:
    flow = sw.Pipeline("p")
    given = [1, 2, "three", 4] if kind == "source" else [1, 2, 3, 4]
    step = STEPS[kind](flow.from_collection(given, timestamp=lambda v: 0)).name("the step")
    # In between, where neighbours would be one loop.
    collected = step.returns(int).map(str).filter(bool).collect()
    with pytest.raises(
        sw.DeclaredTypeError,
        match=r"^step 'the step' \(.*test_returns.py:\d+\) is declared by returns\(\) to emit int, and 'three' of "
        r"type str was emitted\. Correct",
    ):
        flow.run(**options)
    assert not [v for v in collected if v == "three"]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("declared", "values"),
    [
        (float, [1, 2.5, True]),
        (Base, [Base(), Derived()]),
        (int | str | None, [1, "a", None]),
        (list[int], [[1], ["not looked at"]]),
        (tuple[int, str], [(1, "a")]),
        (Any, [1, "a"]),
        (None, [1, "a"]),
    ],
    ids=["float", "class", "union", "list", "tuple", "Any", "nothing"],
)
def test_records_of_the_type_pass(declared: Any, values: list[Any], options: dict[str, Any]) -> None:
    flow = sw.Pipeline("p")
    kinds = flow.from_collection(values).map(lambda v: v).returns(declared).map(type).collect()
    flow.run(**options)
    assert sorted(map(str, kinds)) == sorted(str(type(v)) for v in values)


def test_an_annotation_stays_a_hint() -> None:
    def wrong(value: int) -> int:
        return words(value)  # type: ignore[no-any-return]

    flow = sw.Pipeline("p")
    found = flow.from_collection([1, 3]).map(wrong).filter(lambda v: True).collect()
    flow.run()
    assert list(found) == [1, "three"]


def test_the_annotation_of_a_window_join_stays_a_hint() -> None:
    def wrong(a: int, b: int) -> int:
        return words(a)  # type: ignore[no-any-return]

    flow = sw.Pipeline("p")
    left = flow.from_collection([3], timestamp=lambda v: 0)
    right = flow.from_collection([3], timestamp=lambda v: 0)
    joined = left.join(right).where(by_parity).equal_to(by_parity).window(TumblingEventTimeWindows.of("1s"))
    found = joined.apply(wrong).collect()
    flow.run()
    assert list(found) == ["three"]
