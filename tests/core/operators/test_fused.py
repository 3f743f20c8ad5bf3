"""Fused loops do what the steps say, and know the record when one of them fails."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.faults import MISSING, locate
from sluiceway.operators.fused import generate
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
