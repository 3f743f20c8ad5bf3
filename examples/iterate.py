"""Halve even numbers and triple odd ones until they are 1: a loop, closed by feedback.

Run it::

    sluiceway run examples/iterate.py
    python examples/iterate.py [--assert]
"""

import sys
from typing import NamedTuple

import sluiceway as sw


class Walk(NamedTuple):
    """A number on its way to 1."""

    start: int
    now: int
    steps: int


def step(walk: Walk) -> Walk:
    """One step of the Collatz sequence."""
    now = walk.now // 2 if walk.now % 2 == 0 else 3 * walk.now + 1
    return Walk(walk.start, now, walk.steps + 1)


flow = sw.Pipeline("collatz")
loop = flow.from_sequence(2, 30).map(lambda n: Walk(n, n, 0)).iterate()
walked = loop.map(step)
# What is not there yet goes round again. The pipeline ends when the loop is empty.
loop.close_with(walked.filter(lambda walk: walk.now != 1))
arrived = walked.filter(lambda walk: walk.now == 1).map(lambda walk: (walk.start, walk.steps))
arrived.print()
seen = arrived.collect()

if __name__ == "__main__":
    flow.run()
    if "--assert" in sys.argv:
        steps = dict(seen)
        assert sorted(steps) == list(range(2, 31))
        assert (steps[2], steps[9], steps[27], steps[30]) == (1, 19, 111, 18)
