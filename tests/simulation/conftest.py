"""Small jobs of every shape, and what must come of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.testing import run_pipeline
from sluiceway.windows import TumblingEventTimeWindows


@dataclass(frozen=True)
class Shape:
    """A job.

    ``build`` makes the pipeline, and what its results come to. ``essence`` is what every run must agree on.
    """

    name: str
    build: Callable[[], tuple[sw.Pipeline, Sequence[Any]]]
    essence: Callable[[Sequence[Any]], Any] = Counter

    def expected(self) -> Counter[Any]:
        """What comes of it without any simulation."""
        flow, results = self.build()
        run_pipeline(flow)
        assert len(results) > 20
        return self.essence(results)


LINES = ["to be or not to be", "be that as it may", "it may be so"] * 12


def word_count() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("words")
    words = flow.from_collection(LINES).flat_map(str.split)
    return flow, words.key_by(lambda word: word).count().collect()


def windows() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("windows")
    readings = [(f"sensor-{i % 5}", i * 100 + i * 37 % 500, i) for i in range(150)]
    strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness(500)
    timed = flow.from_collection(readings).assign_timestamps_and_watermarks(
        strategy.with_timestamp_assigner(lambda reading: reading[1])
    )
    sums = (
        timed.key_by(lambda reading: reading[0])
        .window(TumblingEventTimeWindows.of(1000))
        .reduce(lambda a, b: (a[0], max(a[1], b[1]), a[2] + b[2]))
    )
    return flow, sums.collect()


def union() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("union")
    one = flow.from_collection(range(80)).map(lambda n: (n % 7, n))
    other = flow.from_collection(range(80, 120)).map(lambda n: (n % 7, n))
    sums = one.union(other).rebalance().key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    return flow, sums.collect()


def last_of_each(results: Sequence[tuple[int, int]]) -> Counter[Any]:
    """Of running sums of positive numbers the order is open, but not how many there are, nor the last."""
    last: dict[int, int] = {}
    for key, total in results:
        last[key] = max(last.get(key, 0), total)
    return Counter({**last, "results": len(results)})


def iteration() -> tuple[sw.Pipeline, Sequence[Any]]:
    flow = sw.Pipeline("loop")
    loop = flow.from_collection(range(1, 40)).iterate()
    less = loop.rebalance().map(lambda n: n - 7)
    loop.close_with(less.filter(lambda n: n > 0))
    return flow, less.filter(lambda n: n <= 0).collect()


SHAPES = [Shape("words", word_count), Shape("windows", windows), Shape("union", union, last_of_each)]
SHAPES.append(Shape("iteration", iteration))


@pytest.fixture(params=[shape.name for shape in SHAPES])
def shape(request: pytest.FixtureRequest) -> Shape:
    return next(shape for shape in SHAPES if shape.name == request.param)
