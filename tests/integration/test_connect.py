"""Two streams in one step: co-map, co-flat-map, co-process, and what they share."""

from __future__ import annotations

import pytest

import sluiceway as sw
from sluiceway.testing import run_pipeline


class Shout(sw.CoMapFunction[int, str, str]):
    def map1(self, value: int) -> str:
        return f"number {value}"

    def map2(self, value: str) -> str:
        return value.upper()


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_co_map_calls_the_method_of_the_stream(parallelism: int) -> None:
    flow = sw.Pipeline("connect", parallelism=parallelism)
    numbers, words = flow.from_collection([1, 2, 3]), flow.from_collection(["a", "b"])
    result = numbers.connect(words).map(Shout()).collect()
    run_pipeline(flow)
    assert sorted(result) == ["A", "B", "number 1", "number 2", "number 3"]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_two_callables_may_stand_in_for_the_object(parallelism: int) -> None:
    flow = sw.Pipeline("connect", parallelism=parallelism)
    numbers, words = flow.from_collection([1, 2, 3]), flow.from_collection(["a", "b"])
    result = numbers.connect(words).map(str, str.upper).collect()
    run_pipeline(flow)
    assert sorted(result) == ["1", "2", "3", "A", "B"]
