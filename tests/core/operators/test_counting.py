"""count() of a keyed stream: as an aggregate that counts, without the calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluiceway as sw
from sluiceway.errors import UnstableKeyError
from sluiceway.testing import OperatorHarness


def key_of(value: Any) -> Any:
    if value == 13:
        raise ValueError("thirteen")
    return value


def model(values: list[Any]) -> list[tuple[Any, int]]:
    counts: defaultdict[Any, int] = defaultdict(int)
    made = []
    for value in values:
        if type(value) is list or value == 13:
            continue
        counts[value] += 1
        made.append((value, counts[value]))
    return made


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.one_of(st.integers(10, 15), st.sampled_from(["a", "b"]), st.just([]))),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 3, 1024]),
)
def test_what_can_be_counted_is_and_the_rest_is_put_aside(
    values: list[Any], parallelism: int, batch_size: int
) -> None:
    flow = sw.Pipeline("counts")
    numbered = flow.from_collection(list(enumerate(values)), timestamp=lambda pair: pair[0])
    # At parallelism 1 the key is computed by the counting step, else before it: then only that can fail.
    if parallelism > 1:
        numbered = numbered.filter(lambda pair: pair[1] != 13 and pair[1] != [])
    counts = numbered.key_by(lambda pair: key_of(pair[1])).count().set_parallelism(parallelism)
    if parallelism == 1:
        counts.on_error("skip")
    dead = counts.dead_letters().collect() if parallelism == 1 else None
    got = counts.collect()
    flow.run(batch_size=batch_size)
    if dead is not None:
        assert got == model(values), "in order"
        assert [letter.value()[1] for letter in dead] == [v for v in values if v == 13 or v == []]
    assert Counter(got) == Counter(model(values))


def test_counts_go_on_after_a_restore_at_another_parallelism() -> None:
    program = lambda s: s.key_by(lambda v: v % 5).count()  # noqa: E731
    with OperatorHarness(program) as before:
        before.process_batch(list(range(12)))
        saved = before.snapshot()
    with OperatorHarness(program, parallelism=3, restored=saved) as after:
        assert sorted(after.process_batch([0, 1, 4, 4])) == [(0, 4), (1, 4), (4, 3), (4, 4)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_key_that_has_no_stable_hash_is_named(parallelism: int) -> None:
    flow = sw.Pipeline("counts")
    flow.from_collection([1, 2]).key_by(lambda v: [v]).count().set_parallelism(parallelism).collect()
    with pytest.raises(UnstableKeyError, match=r"\[1\] \(list\) cannot be a key"):
        flow.run()
