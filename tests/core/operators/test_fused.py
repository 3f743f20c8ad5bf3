"""Fused loops do what the steps say, and know the record when one of them fails."""

from __future__ import annotations

import gc
import linecache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.functions import MapFunction
from sluiceway.operators.fused_loops import called_function, generate
from sluiceway.record_errors import MISSING, locate
from sluiceway.steps import FilterStep, FlatMapStep, MapStep, Step

STEPS: list[tuple[str, Step]] = [
    ("add", MapStep(lambda v: v + 1)),
    ("double", MapStep(lambda v: v * 2)),
    ("even", FilterStep(lambda v: v % 2 == 0)),
    ("big", FilterStep(lambda v: v > 3)),
    ("twice", FlatMapStep(lambda v: [v, v])),
    ("upto", FlatMapStep(lambda v: range(v % 3))),
    ("none", FlatMapStep(lambda v: ())),
]


def model(steps: list[Step], values: list[int], stamps: list[int]) -> list[tuple[int, int]]:
    records = list(zip(values, stamps, strict=True))
    for step in steps:
        function: Any = step.function
        if isinstance(step, MapStep):
            records = [(function(v), t) for v, t in records]
        elif isinstance(step, FilterStep):
            records = [(v, t) for v, t in records if function(v)]
        else:
            records = [(made, t) for v, t in records for made in function(v)]
    return records


@given(st.lists(st.sampled_from(STEPS), max_size=6), st.lists(st.integers(-20, 20), max_size=20))
def test_a_loop_equals_the_steps_one_after_the_other(chosen: list[tuple[str, Step]], values: list[int]) -> None:
    steps = [s for _, s in chosen]
    names = [n for n, _ in chosen]
    functions = [s.function for s in steps]
    stamps = list(range(len(values)))
    expected = model(steps, values, stamps)

    out: list[int] = []
    generate(steps, names, stamped=False)(values, None, out, None, *functions)
    assert out == [v for v, _ in expected]

    out, out_stamps = [], []
    generate(steps, names, stamped=True)(values, stamps, out, out_stamps, *functions)
    assert list(zip(out, out_stamps, strict=True)) == expected


def test_a_failure_is_traced_to_its_step_and_value() -> None:
    steps: list[Step] = [
        MapStep(lambda v: v * 10),
        FlatMapStep(lambda v: [v, v + 1]),
        MapStep(lambda v: 1 // (v - 21)),
    ]
    loop = generate(steps, ["tenfold", "both", "divide"], stamped=True)
    with pytest.raises(ZeroDivisionError) as caught:
        loop([1, 2, 3], [100, 200, 300], [], [], *(s.function for s in steps))
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert (fault.step, fault.value, fault.timestamp) == ("divide", 21, 200)
    assert not fault.innermost


def test_a_lazy_flat_map_fails_in_its_own_step() -> None:
    steps: list[Step] = [FlatMapStep(lambda v: (1 // w for w in [v])), MapStep(lambda v: v)]
    loop = generate(steps, ["lazy", "after"], stamped=False)
    with pytest.raises(ZeroDivisionError) as caught:
        loop([0], None, [], None, *(s.function for s in steps))
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert (fault.step, fault.value) == ("lazy", 0)


def test_what_cannot_be_iterated_over_is_the_loops_own_failure() -> None:
    loop = generate([FlatMapStep(lambda v: v)], ["wrong"], stamped=False)
    with pytest.raises(TypeError) as caught:
        loop([5], None, [], None, lambda v: v)
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert fault.innermost
    assert fault.returned == 5
    assert fault.timestamp is MISSING


def test_a_debugger_can_show_the_loop() -> None:
    loop = generate([MapStep(str)], ["show"], stamped=False)
    assert "f0(v0)" in "".join(linecache.getlines(loop.__code__.co_filename))


# ---- maps whose result is the argument of the next call -------------------------------------------------------


def _rebinds(v: int) -> int:
    v = v - 3
    return 6 // v


class _Divides(MapFunction[int, int]):
    def map(self, value: int) -> int:
        return 6 // (value - 3)


def _keeps_in_cell(v: int) -> int:
    return next(6 // (v - 3) for _ in [0])


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize(
    "failing",
    [
        pytest.param(lambda v: 6 // (v - 3), id="lambda"),
        pytest.param(_rebinds, id="rebinds its argument"),
        pytest.param(_Divides(), id="map function"),
        pytest.param(_keeps_in_cell, id="argument in a cell"),
        pytest.param((6).__mod__, id="built in"),
        pytest.param(lambda *v: 6 // (v[0] - 3), id="any number of arguments"),
        pytest.param(lambda v, by=3: 6 // (v - by), id="with a default"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_the_record_of_a_call_that_is_an_argument_is_known(failing: Any, place: int, stamped: bool) -> None:
    fails_at = 0 if failing == (6).__mod__ else 3
    steps: list[Step] = [MapStep(lambda v: v)] * 3
    steps.insert(place, MapStep(failing))
    names = [f"step {i}" for i in range(4)]
    values = [fails_at + 1, fails_at, fails_at + 2]
    loop = generate(steps, names, stamped=stamped)
    with pytest.raises(ZeroDivisionError) as caught:
        loop(values, [100, 200, 300], [], [], *map(called_function, steps))
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert (fault.step, fault.value) == (f"step {place}", fails_at)
    assert fault.timestamp == (200 if stamped else MISSING)


@pytest.mark.parametrize("forget", ["one", "other"])
def test_loops_of_the_same_text_know_their_own_steps(forget: str) -> None:
    steps: list[Step] = [MapStep(lambda v: 1 // v)]
    loops = {name: generate(steps, [name], stamped=False) for name in ("one", "other")}
    for name, loop in loops.items():
        with pytest.raises(ZeroDivisionError) as caught:
            loop([0], None, [], None, *map(called_function, steps))
        fault = locate(caught.value.__traceback__)
        assert fault is not None
        assert fault.step == name
    del loops[forget], caught, loop
    gc.collect()
    ((name, loop),) = loops.items()
    with pytest.raises(ZeroDivisionError) as caught:
        loop([0], None, [], None, *map(called_function, steps))
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert fault.step == name


def test_the_record_of_a_filter_that_fails_is_what_the_map_before_it_returned() -> None:
    steps: list[Step] = [MapStep(lambda v: v - 2), FilterStep(lambda v: 1 // v), MapStep(str)]
    loop = generate(steps, ["less", "divide", "show"], stamped=False)
    with pytest.raises(ZeroDivisionError) as caught:
        loop([1, 2], None, [], None, *map(called_function, steps))
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert (fault.step, fault.value) == ("divide", 0)


def test_the_record_of_a_function_that_takes_no_argument_is_known() -> None:
    steps: list[Step] = [MapStep(lambda v: v), MapStep(lambda: None)]  # type: ignore[arg-type,misc]
    loop = generate(steps, ["one", "two"], stamped=False)
    with pytest.raises(TypeError) as caught:
        loop([1], None, [], None, *map(called_function, steps))
    fault = locate(caught.value.__traceback__)
    assert fault is not None
    assert (fault.step, fault.value) == ("two", 1)


def test_more_maps_than_parentheses_nest() -> None:
    steps: list[Step] = [MapStep(lambda v: v + 1)] * 450
    out: list[int] = []
    loop = generate(steps, ["add"] * 450, stamped=False)
    loop([0, 1], None, out, None, *map(called_function, steps))
    assert out == [450, 451]
