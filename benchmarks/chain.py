"""Four lambdas in a row over whole numbers: what a step costs beside the call of its function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import sluiceway as sw
from benchmarks.harness import Comparison, Plan, Row, compare

__all__ = ["measure"]

STEPS: tuple[Callable[[int], int], ...] = (lambda x: x + 1, lambda x: x * 3, lambda x: x - 2, lambda x: x ^ 5)


def measure(plan: Plan) -> Iterator[Row]:
    numbers = range(plan.size(3_000_000, 5_000))
    yield compare(
        Comparison(
            "chain of four lambdas",
            len(numbers),
            loop=lambda: _loop(numbers),
            ours=lambda: _pipeline(numbers),
            aim=0.9,
            floor=0.8,
        ),
        plan,
    )


def _loop(numbers: range) -> list[int]:
    first, second, third, fourth = STEPS
    results: list[int] = []
    for number in numbers:
        results.append(fourth(third(second(first(number)))))
    return results


def _pipeline(numbers: range) -> Sequence[int]:
    first, second, third, fourth = STEPS
    flow = sw.Pipeline("chain")
    results = flow.from_collection(numbers).map(first).map(second).map(third).map(fourth).collect()
    flow.run()
    return results
