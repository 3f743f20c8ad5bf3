"""Four lambdas in a row over whole numbers: what a step costs beside the call of its function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sluiceway as sw
from benchmarks.harness import BY_HAND, FUNCTIONS, Comparison, Emit, Job, Loop, Plan, Row, compare

__all__ = ["measure"]

STEPS: tuple[Callable[[int], int], ...] = (lambda x: x + 1, lambda x: x * 3, lambda x: x - 2, lambda x: x ^ 5)


def measure(plan: Plan) -> Iterator[Row]:
    numbers = range(plan.size(6_000_000, 5_000))

    def chain(flow: sw.Pipeline) -> sw.DataStream[int]:
        first, second, third, fourth = STEPS
        return flow.from_collection(numbers).map(first).map(second).map(third).map(fourth)

    yield from compare(
        Comparison(
            "chain of four lambdas",
            len(numbers),
            Job(chain),
            {FUNCTIONS: Loop(_with_functions, numbers), BY_HAND: Loop(_by_hand, numbers)},
            aim=0.9,
            floor=0.8,
        ),
        plan,
    )


def _with_functions(numbers: range, emit: Emit) -> None:
    first, second, third, fourth = STEPS
    for number in numbers:
        emit(fourth(third(second(first(number)))))


def _by_hand(numbers: range, emit: Emit) -> None:
    for number in numbers:
        emit(((number + 1) * 3 - 2) ^ 5)
