"""Comparison harness: the same work several ways, in turn, after a check that all ways give the same results.

A pipeline is measured with its results discarded, and so are the loops beside it: to keep millions of results
takes longer than many a loop, and would hide the difference. A :class:`Loop` therefore exists once in source and
twice as code: with a list behind its ``emit`` for the check, and with each ``emit(result)`` reduced to ``result``
for the measured runs.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import statistics
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

__all__ = [
    "BY_HAND",
    "FUNCTIONS",
    "Comparison",
    "Emit",
    "Job",
    "Loop",
    "Plan",
    "Row",
    "Side",
    "Way",
    "compare",
    "timed",
]

FUNCTIONS = "a loop that calls the same functions"
BY_HAND = "a loop written out by hand"

Emit = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Selection and repetitions of a run.

    Attributes:
        runs: how often each thing is measured.
        quick: small sizes, to see that everything works; the figures mean nothing.
        seconds: how long back-pressure is looked at.
        peers: directory for the peers' jars and programs, or None to leave out those that need one.
    """

    runs: int = 5
    quick: bool = False
    seconds: float = 30.0
    peers: str | None = None

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was measured.
        unit: of the values: ``x loop`` is a ratio to the plain loop's speed, ``x speed`` to that of the other way
            that the name or ``against`` tells: more is better; of others, less is.
        values: one per run; none if it could not be measured.
        aim: what the median should reach, or None if nobody has promised anything.
        floor: what it must reach, or None.
        note: what else there is to say.
        details: more figures, for the JSON file.
        against: the other side of a ratio, where the name does not tell.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    aim: float | None = None
    floor: float | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    against: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}, against {self.against}" if self.against else self.name

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Verdict on aim and floor; empty if there are none."""
        if not self.values or self.aim is None:
            return ""
        if self._reaches(self.aim):
            return "reached"
        return "missed" if self.floor is None or not self._reaches(self.floor) else "above floor"

    def _reaches(self, bound: float) -> bool:
        return self.median >= bound if self.unit in ("x loop", "x speed") else self.median <= bound


# ---- the sides of a comparison --------------------------------------------------------------------------------


class Side(Protocol):
    """One way to do the work."""

    def results(self) -> Sequence[Any]:
        """Do the work and return its results, for the check."""

    def run(self) -> object:
        """Do the work and discard its results, for the measurement."""


@dataclass(frozen=True, slots=True)
class Way:
    """Side made of two callables."""

    results: Callable[[], Sequence[Any]]
    run: Callable[[], Any]


class Loop:
    """Plain Python loop; it calls ``emit``, its last argument, with each result.

    Args:
        function: a function of a module, without a closure.
        arguments: what it is called with, before ``emit``.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments
        self._discarding = discarding(function)

    def results(self) -> Sequence[Any]:
        results: list[Any] = []
        self._function(*self._arguments, results.append)
        return results

    def count(self) -> int:
        """Number of results."""
        counter = itertools.count()
        self._function(*self._arguments, lambda _: next(counter))
        return next(counter)

    def run(self) -> None:
        self._discarding(*self._arguments, None)


def discarding(function: Callable[..., None]) -> Callable[..., None]:
    """Return the same function with every statement ``emit(result)`` reduced to ``result``.

    Raises:
        ValueError: the function uses ``emit`` in another way, and would still call it.
    """
    if function.__code__.co_freevars:
        raise ValueError(f"{function.__qualname__} has a closure: it cannot be compiled again")
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tree = ast.fix_missing_locations(_Discarding().visit(tree))
    if any(isinstance(node, ast.Name) and node.id == "emit" for node in ast.walk(tree)):
        raise ValueError(f"{function.__qualname__} must use emit in statements emit(result) only")
    namespace: dict[str, Any] = {}
    exec(compile(tree, inspect.getsourcefile(function) or "<loop>", "exec"), function.__globals__, namespace)
    made: Callable[..., None] = namespace[function.__name__]
    return made


class _Discarding(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "emit":
            (result,) = call.args
            return ast.copy_location(ast.Expr(self.visit(result)), node)
        return self.generic_visit(node)


class Job:
    """Pipeline of one source to be built anew for each run.

    Args:
        build: adds everything but the sink to a pipeline, and returns the last stream.
        parallelism: of the pipeline.
        final: what the results come to, where later ones replace earlier ones.
    """

    def __init__(
        self,
        build: Callable[[sw.Pipeline], sw.DataStream[Any]],
        parallelism: int = 1,
        final: Callable[[Sequence[Any]], Sequence[Any]] = list,
    ) -> None:
        self._build = build
        self._parallelism = parallelism
        self._final = final

    def results(self) -> Sequence[Any]:
        flow = sw.Pipeline("benchmark", parallelism=self._parallelism)
        results = self._build(flow).collect()
        flow.run()
        return self._final(results)

    def run(self) -> None:
        flow = sw.Pipeline("benchmark", parallelism=self._parallelism)
        self._build(flow).sink(DiscardSink())
        flow.run()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same work several ways.

    Attributes:
        name: what the rows are called.
        records: how many records go in.
        ours: the work as a pipeline.
        against: the other ways by their names; a row is made for each.
        in_order: whether results must come in the same order; else only as many of each are compared.
        aim: ratio of speeds to reach, or None; for the first of the other ways.
        floor: ratio of speeds that must be reached, or None.
    """

    name: str
    records: int
    ours: Side
    against: Mapping[str, Side]
    in_order: bool = True
    aim: float | None = None
    floor: float | None = None


def compare(comparison: Comparison, plan: Plan) -> list[Row]:
    """Measure all sides in turn; a value is the other side's time over ours.

    Raises:
        RuntimeError: a side does not give the same results, so there is nothing to compare.
    """
    _check_same(comparison)
    others: dict[str, list[Time]] = {name: [] for name in comparison.against}
    ours: list[Time] = []
    for _ in range(plan.runs):
        for name, side in comparison.against.items():
            others[name].append(timed(side.run))
        ours.append(timed(comparison.ours.run))
    return [
        _row(comparison, name, times, ours, first=number == 0)
        for number, (name, times) in enumerate(others.items())
    ]


def _row(comparison: Comparison, name: str, loop: Sequence[Time], ours: Sequence[Time], *, first: bool) -> Row:
    walls = [a.wall / b.wall for a, b in zip(loop, ours, strict=True)]
    cpus = [a.cpu / b.cpu for a, b in zip(loop, ours, strict=True)]
    speed, its = (comparison.records / statistics.median(t.wall for t in side) for side in (ours, loop))
    note = f"{short(speed)} records/s, {1e9 / speed:.0f} ns each; the loop {1e9 / its:.0f} ns"
    if first and (stolen := 1 - sum(t.cpu for t in ours) / sum(t.wall for t in ours)) > 0.1:
        note += f"; {stolen:.0%} of the time went elsewhere, by processor time {statistics.median(cpus):.2f}"
    return Row(
        comparison.name,
        "x loop",
        tuple(walls),
        aim=comparison.aim if first else None,
        floor=comparison.floor if first else None,
        note=note,
        details={
            "records": comparison.records,
            "ns_per_record": 1e9 / speed,
            "loop_s": [t.wall for t in loop],
            "ours_s": [t.wall for t in ours],
            "ratios_by_cpu_time": cpus,
        },
        against=name,
    )


def _check_same(comparison: Comparison) -> None:
    got = comparison.ours.results()
    for name, side in comparison.against.items():
        check_same(f"{comparison.name}: the pipeline and {name}", side.results(), got, comparison.in_order)


def check_same(names: str, expected: Sequence[Any], got: Sequence[Any], in_order: bool = True) -> None:
    """Raise RuntimeError with the first difference unless both are equal."""
    if not in_order:
        expected, got = sorted(expected), sorted(got)
    if list(got) == list(expected):
        return
    where = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if where is None:
        difference = f"{len(got)} results instead of {len(expected)}"
    else:
        difference = f"result {where} is {got[where]!r} instead of {expected[where]!r}"
    raise RuntimeError(f"{names} differ: {difference}")


@dataclass(frozen=True, slots=True)
class Time:
    wall: float
    cpu: float


def timed(work: Callable[[], Any]) -> Time:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    results = work()
    taken = Time(time.perf_counter() - wall, time.process_time() - cpu)
    del results  # freed before the other side's turn, outside of both sides' time
    return taken


def short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
