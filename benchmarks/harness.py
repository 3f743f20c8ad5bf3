"""How things are measured: in interleaved pairs, after a check that both sides give the same."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Comparison", "Plan", "Row", "compare", "timed"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for.

    Attributes:
        runs: how often each thing is measured.
        quick: small sizes, to see that everything works; the figures mean nothing.
        seconds: how long back-pressure is looked at.
    """

    runs: int = 5
    quick: bool = False
    seconds: float = 30.0

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was measured.
        unit: of the values: ``x loop`` is a ratio to the plain loop's speed, ``x speed`` to that of the other way
            that the name tells: more is better; of others, less is.
        values: one per run; none if it could not be measured.
        aim: what the median should reach, or None if nobody has promised anything.
        floor: what it must reach, or None.
        note: what else there is to say.
        details: more figures, for the JSON file.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    aim: float | None = None
    floor: float | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def verdict(self) -> str:
        """Whether aim and floor are reached; empty where there are none."""
        if not self.values or self.aim is None:
            return ""
        if self._reaches(self.aim):
            return "reached"
        return "missed" if self.floor is None or not self._reaches(self.floor) else "above floor"

    def _reaches(self, bound: float) -> bool:
        return self.median >= bound if self.unit in ("x loop", "x speed") else self.median <= bound


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same work twice.

    Attributes:
        name: what the row is called.
        records: how many records go in.
        loop: the work as a plain Python loop; returns its results.
        ours: the work as a pipeline; returns its results.
        in_order: whether results must come in the same order; else only as many of each are compared.
        aim: ratio of speeds to reach, or None.
        floor: ratio of speeds that must be reached, or None.
    """

    name: str
    records: int
    loop: Callable[[], Sequence[Any]]
    ours: Callable[[], Sequence[Any]]
    in_order: bool = True
    aim: float | None = None
    floor: float | None = None


def compare(comparison: Comparison, plan: Plan) -> Row:
    """Measure both sides in turn; a value is the loop's time over ours.

    Raises:
        RuntimeError: the two sides do not give the same results, so there is nothing to compare.
    """
    _check_same(comparison)
    loop, ours = [], []
    for _ in range(plan.runs):
        loop.append(timed(comparison.loop))
        ours.append(timed(comparison.ours))
    walls = [a.wall / b.wall for a, b in zip(loop, ours, strict=True)]
    cpus = [a.cpu / b.cpu for a, b in zip(loop, ours, strict=True)]
    speeds = [comparison.records / statistics.median(t.wall for t in side) for side in (ours, loop)]
    stolen = 1 - sum(t.cpu for t in loop + ours) / sum(t.wall for t in loop + ours)
    note = "{} records/s, the loop {}".format(*map(_short, speeds))
    if stolen > 0.1:
        note += f"; {stolen:.0%} of the time went elsewhere, by processor time {statistics.median(cpus):.2f}"
    return Row(
        comparison.name,
        "x loop",
        tuple(walls),
        aim=comparison.aim,
        floor=comparison.floor,
        note=note,
        details={
            "records": comparison.records,
            "loop_s": [t.wall for t in loop],
            "ours_s": [t.wall for t in ours],
            "ratios_by_cpu_time": cpus,
        },
    )


def _check_same(comparison: Comparison) -> None:
    expected, got = comparison.loop(), comparison.ours()
    if not comparison.in_order:
        expected, got = sorted(expected), sorted(got)
    if got == expected:
        return
    where = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
    if where is None:
        difference = f"{len(got)} results instead of {len(expected)}"
    else:
        difference = f"result {where} is {got[where]!r} instead of {expected[where]!r}"
    raise RuntimeError(f"{comparison.name}: the pipeline and the plain loop differ: {difference}")


@dataclass(frozen=True, slots=True)
class Time:
    wall: float
    cpu: float


def timed(work: Callable[[], Sequence[Any]]) -> Time:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    results = work()
    taken = Time(time.perf_counter() - wall, time.process_time() - cpu)
    del results  # freed before the other side's turn, outside of both sides' time
    return taken


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
