"""Random pipelines say the same wherever they run, and keep order where it is promised."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from effort import tries
from equality_engines import IN_PROCESS, ON_SPARK, OTHERS, Engine
from equality_functions import Rec
from equality_programs import KINDS, Found, Order, Origin, Program, Step, differences, found, programs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import sluiceway as sw

IN_PROCESS_AGAIN, WORKERS = OTHERS
BATCH = 15


def outcome(several: Sequence[Program], engine: Engine) -> list[Found]:
    """What comes of programs as one job, which takes less time than a job for each."""
    flow = sw.Pipeline("random")
    leaves = [leaf for program in several for leaf in program.build(flow)]
    is_much = any(len(origin.records) > 2 * BATCH for program in several for origin in program.origins)
    with tempfile.TemporaryDirectory() as place:
        engine.run(flow, Path(place), batch=BATCH, several=is_much)
    return found(leaves)


def check(several: Sequence[Program], engine: Engine) -> None:
    said = differences(outcome(several, IN_PROCESS), outcome(several, engine))
    assert not said, "\n".join([f"{engine} is not as {IN_PROCESS}:", *said])


def runs(examples: int, *, shrink: bool = False) -> settings:
    """Where a run takes seconds, what fails is shown as it is."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate] + ([Phase.shrink] if shrink else [])
    return settings(max_examples=examples, phases=phases, suppress_health_check=list(HealthCheck))


@runs(tries(20, 40), shrink=True)
@given(programs())
def test_subtasks_and_sizes_of_batches_make_no_difference(program: Program) -> None:
    check([program], IN_PROCESS_AGAIN)


@runs(tries(2, 3))
@given(st.lists(programs(), min_size=3, max_size=5))
def test_workers_make_no_difference(several: list[Program]) -> None:
    check(several, WORKERS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", [IN_PROCESS_AGAIN, WORKERS], ids=str)
@given(st.lists(programs(most_steps=12), min_size=3, max_size=5))
@runs(60)
def test_much_larger_pipelines(engine: Engine, several: list[Program]) -> None:
    check(several, engine)


@pytest.mark.parametrize("engine", [engine.parameter for engine in ON_SPARK])
@given(st.lists(programs(), min_size=3, max_size=5))
@runs(5)
def test_spark_makes_no_difference(engine: Engine, several: list[Program]) -> None:
    check(several, engine)


# ---- each kind of step once, so that none is left to chance --------------------------------------------------


DATA = tuple((n * 5 % 7, n * 37 % 91, max(0, 4 * n - n * 13 % 20)) for n in range(60))
PLAIN = tuple((n * 3 % 5, n * 11 % 17, 7 * n) for n in range(40))


def each(kinds: Sequence[str]) -> list[Program]:
    """Two programs for each kind: on a source, and behind what mixes up the order where it can be."""
    origins = Origin(DATA, 20, parallel=False), Origin(PLAIN, 0, parallel=False), Origin(DATA, 20, parallel=True)
    several = []
    for kind in kinds:
        inputs = tuple(range(len(KINDS[kind].fits)))
        several.append(Program(origins[:2], (Step(kind, inputs, 5, 7), Step("map", (2,), 3, 1))))
        if all(fits(origins[2].traits()) for fits in KINDS[kind].fits):
            inputs = tuple(reversed(inputs)) if len(inputs) > 1 else (2,)
            several.append(Program(origins, (Step(kind, (2, *inputs[1:]), 6, 10),)))
    return several


def test_each_kind_of_step_gives_something() -> None:
    for kind in KINDS:
        for program in each([kind]):
            outputs = [one for one in outcome([program], IN_PROCESS) if "origin" not in one.where]
            assert any(one.records for one in outputs), (kind, program.steps)


def shares(engines: Sequence[Engine], kinds: int) -> list[Any]:
    """Parameters for engines with so many kinds each, until all of them have been there."""
    shared = [list(KINDS)[first : first + kinds] for first in range(0, len(KINDS), kinds)]
    return [
        pytest.param(engine, some, marks=engine.marks, id=f"{engine}, from {some[0]}")
        for engine in engines
        for some in shared
    ]


# A job of all kinds is one of hundreds of steps, which is too much for Spark's planning and for its micro-batches.
@pytest.mark.parametrize(("engine", "kinds"), [*shares(OTHERS, len(KINDS)), *shares(ON_SPARK, 4)])
def test_each_kind_of_step(engine: Engine, kinds: Sequence[str]) -> None:
    check(each(kinds), engine)


# ---- the comparison itself ------------------------------------------------------------------------------------


def test_what_is_missing_in_excess_or_in_another_order_is_seen() -> None:
    records = [(Rec(1, 5), 10), (Rec(2, 5), 11), (Rec(1, 6), 12)]

    def said(order: Order, got: list[tuple[Rec, int]]) -> list[str]:
        return differences([Found("stream 3", order, records)], [Found("stream 3", order, got)])

    assert said(Order.ALL, records) == []
    assert said(Order.KEY, [records[1], records[0], records[2]]) == []
    assert "another order" in said(Order.KEY, records[::-1])[0]
    assert said(Order.NONE, records[::-1]) == []
    assert "missing [(Rec(key=2, value=5), 11)]" in said(Order.NONE, [records[0], records[2]])[0]
    assert "in excess" in said(Order.NONE, records * 2)[0]


def test_the_pipelines_that_are_drawn_use_every_kind_of_step() -> None:
    drawn: Counter[str] = Counter()

    @settings(max_examples=150, database=None, phases=[Phase.generate])
    @given(programs(most_steps=12))
    def draw(program: Program) -> None:
        drawn.update(step.kind for step in program.steps)

    for _ in range(20):  # each time others, where examples are drawn by chance: a kind may be rare among the first
        draw()
        if set(drawn) == set(KINDS):
            return
    assert set(drawn) == set(KINDS)
