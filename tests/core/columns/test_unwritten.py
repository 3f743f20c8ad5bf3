"""Positions that have changed since they were written, against sets of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sluiceway.columns.aggregation.unwritten import Unwritten

positions = st.lists(st.integers(0, 9) | st.integers(60, 150), max_size=5)
steps = st.lists(st.tuples(st.sampled_from(["add", "discard", "written", "all", "keep"]), positions), max_size=12)


@given(steps)
@example([("add", [4]), ("written", []), ("keep", [1, 3]), ("add", [3])])
def test_positions_are_those_of_a_set(steps: list[Any]) -> None:
    """Calls in the order of slices: a position is noted when it is new, and when it changes."""
    unwritten, changed, size = Unwritten(), set(), 0
    for name, places in steps:
        at = np.array(places, np.int64)
        if name in ("add", "discard"):
            new = set(range(size, max([size, *(place + 1 for place in places)])))
            size += len(new)
            unwritten.add(np.array(sorted(new | set(places)), np.int64), size)
            changed |= new | set(places)
            if name == "discard":
                unwritten.discard(at, size)
                changed -= set(places)
        elif name == "written":
            unwritten.clear()
            changed = set()
        elif name == "all":
            unwritten.all()
            changed = set(range(size))
        else:
            kept = sorted({place for place in places if place < size})
            unwritten.keep(np.array(kept, np.int64), size)
            changed = {number for number, place in enumerate(kept) if place in changed}
            size = len(kept)
        assert unwritten.positions(size).tolist() == sorted(changed)


def test_what_was_never_written_takes_no_memory() -> None:
    unwritten = Unwritten()
    unwritten.add(np.arange(10), 10)
    assert unwritten.nbytes == 0
    unwritten.clear()
    unwritten.add(np.array([3]), 10)
    assert unwritten.nbytes > 0
