"""The sketch of frequent keys, against exact counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.runtime.taskmanager.frequent_keys import FrequentKeys


@given(st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=30), st.integers(1, 8))
def test_counts_are_within_their_margin(batches: list[list[int]], kept: int) -> None:
    sketch, exact = FrequentKeys(kept), Counter[int]()
    for batch in batches:
        sketch.add(batch)
        exact.update(batch)
        assert len(sketch) <= 2 * kept + len(set(batch))
    told = dict(sketch.top(1000))
    assert sketch.records == exact.total()
    assert sketch.error * kept <= sketch.records
    for key, count in exact.items():
        assert told.get(key, 0) <= count <= told.get(key, 0) + sketch.error  # type: ignore[call-overload]


def test_a_hot_key_among_very_many_stays_and_memory_does_not_grow() -> None:
    sketch = FrequentKeys(100)
    for start in range(0, 100_000, 500):
        sketch.add([*range(start, start + 500), *["hot"] * 50])
    assert len(sketch) <= 200
    [(key, count)] = sketch.top(1)
    assert key == "hot"
    assert count <= 200 * 50 <= count + sketch.error
