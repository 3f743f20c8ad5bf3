from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.elements import Batch
from sluiceway.errors import FunctionContractError, GraphError, UnstableKeyError
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.network.partitioners import HashPartitioner, make_partitioner
from sluiceway.partitioner import Partitioner
from sluiceway.streamgraph import PartitionerSpec


def made(name: str, consumers: int, *, key: Any = None, select: Any = None, seed: int = 7) -> Partitioner:
    def no_plugin(name: str) -> Partitioner:
        raise AssertionError(name)

    partitioner = make_partitioner(PartitionerSpec(name, key, select), 128, no_plugin)
    partitioner.setup(0, consumers, seed)
    return partitioner


def got(partitioner: Partitioner, *batches: Batch[Any]) -> dict[int, list[Any]]:
    out: dict[int, list[Any]] = {}
    for batch in batches:
        parts = partitioner.partition(batch)
        assert len({i for i, _ in parts}) == len(parts)
        for index, part in parts:
            assert part.values
            out.setdefault(index, []).extend(part.values)
    return out


@pytest.mark.parametrize("name", ["rebalance", "rescale"])
@given(sizes=st.lists(st.integers(1, 9), min_size=1), consumers=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_round_robin_deals_evenly_across_batches(name: str, sizes: list[int], consumers: int, seed: int) -> None:
    partitioner = made(name, consumers, seed=seed)
    n = 0
    batches = []
    for size in sizes:
        batches.append(Batch(list(range(n, n + size))))
        n += size
    out = got(partitioner, *batches)
    shares = [len(out.get(i, [])) for i in range(consumers)]
    assert sum(shares) == n
    assert max(shares) - min(shares) <= 1
    assert all(values == sorted(values) for values in out.values())


def test_rebalance_starts_at_random_places() -> None:
    starts = {next(iter(got(made("rebalance", 8, seed=s), Batch([0])))) for s in range(50)}
    assert len(starts) > 4


def test_forward_and_global_keep_the_batch() -> None:
    batch = Batch([1, 2, 3])
    assert list(made("forward", 1).partition(batch)) == [(0, batch)]
    assert list(made("global", 3).partition(batch)) == [(0, batch)]


def test_broadcast_gives_everything_to_all() -> None:
    assert got(made("broadcast", 3), Batch([1, 2])) == {0: [1, 2], 1: [1, 2], 2: [1, 2]}


def test_shuffle_reaches_everybody_and_loses_nobody() -> None:
    out = got(made("shuffle", 4), Batch(list(range(400))))
    assert sorted(v for values in out.values() for v in values) == list(range(400))
    assert sorted(out) == [0, 1, 2, 3]


@given(
    st.lists(st.one_of(st.text(), st.integers(), st.tuples(st.text(), st.integers())), min_size=1),
    st.integers(2, 6),
    st.booleans(),
    st.booleans(),
)
def test_hash_sends_a_key_to_the_owner_of_its_key_group(
    keys: list[Any], consumers: int, stamped: bool, by_reference: bool
) -> None:
    partitioner = made("hash", consumers, key=lambda v: v[0])
    assert isinstance(partitioner, HashPartitioner)
    partitioner.carry_keys(by_reference)
    values = [(key, n) for n, key in enumerate(keys)]
    parts = partitioner.partition(Batch(values, list(range(len(values))) if stamped else None))
    assert sorted(v[1] for _, part in parts for v in part.values) == list(range(len(values)))
    for index, part in parts:
        assert part.keys == ([v[0] for v in part.values] if by_reference else None)
        assert part.timestamps == ([v[1] for v in part.values] if stamped else None)
        assert [v[1] for v in part.values] == sorted(v[1] for v in part.values), "order is kept"
        for value in part.values:
            assert subtask_for_key_group(key_group(value[0], 128), consumers, 128) == index


@pytest.mark.parametrize("kind", [str, int, float, lambda n: "2" if n == 1000 else n])
@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("by_reference", [False, True])
def test_hash_sends_batches_with_many_new_keys_to_the_same_consumers(
    kind: Callable[[int], Any], stamped: bool, by_reference: bool
) -> None:
    partitioner = made("hash", 3, key=lambda v: v[0])
    assert isinstance(partitioner, HashPartitioner)
    partitioner.carry_keys(by_reference)
    values = [(kind(n % 2500), n) for n in range(6000)]
    seen = 0
    for start in range(0, 6000, 600):
        some = values[start : start + 600]
        parts = partitioner.partition(Batch(some, [n for _, n in some] if stamped else None))
        for index, part in parts:
            assert part.values == [v for v in some if subtask_for_key_group(key_group(v[0], 128), 3, 128) == index]
            assert part.keys == ([v[0] for v in part.values] if by_reference else None)
            assert part.timestamps == ([v[1] for v in part.values] if stamped else None)
            seen += len(part.values)
    assert seen == 6000


@pytest.mark.parametrize("bad", [["x"], float("nan")])
def test_hash_says_which_of_many_new_keys_cannot_be_hashed(bad: Any) -> None:
    with pytest.raises(UnstableKeyError, match="cannot be a key"):
        made("hash", 2, key=lambda v: v).partition(Batch([*range(1000), bad, *range(1000)]))


@pytest.mark.parametrize("stamps", [None, [1, 2]])
def test_hash_says_which_key_cannot_be_hashed(stamps: list[int] | None) -> None:
    with pytest.raises(UnstableKeyError, match=r"\['x'\] \(list\) cannot be a key"):
        made("hash", 2, key=lambda v: v).partition(Batch(["a", ["x"]], stamps))
    with pytest.raises(UnstableKeyError, match="NaN"):
        made("hash", 2, key=lambda v: v).partition(Batch(["a", float("nan")], stamps))


def test_hash_passes_on_what_the_key_function_raises() -> None:
    with pytest.raises(TypeError, match="can only concatenate"):
        made("hash", 2, key=lambda v: v + 1).partition(Batch(["a"]))


def test_hash_passes_on_a_type_error_of_the_keys_own_hash() -> None:
    class Sulky(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise TypeError("not today")

        def __stable_key__(self) -> str:
            return "sulky"

    with pytest.raises(TypeError, match="not today"):
        made("hash", 2, key=lambda v: v).partition(Batch([Sulky("a")]))


def test_hash_with_one_consumer_leaves_the_keys_to_it() -> None:
    batch = Batch([3, 1])
    assert list(made("hash", 1, key=lambda v: 1 / 0).partition(batch)) == [(0, batch)]


def test_custom_asks_the_function() -> None:
    out = got(made("custom", 3, key=lambda v: v * 2, select=lambda key, n: key % n), Batch([0, 1, 2, 3]))
    assert out == {0: [0, 3], 1: [2], 2: [1]}


def test_custom_takes_integers_of_other_types() -> None:
    class Index(int):
        __slots__ = ()

    for of_type in (np.int64, np.uint8, Index):
        out = got(made("custom", 3, select=lambda value, n, made=of_type: made(value % n)), Batch([0, 1, 2, 3]))
        assert out == {0: [0, 3], 1: [1], 2: [2]}
        assert {type(route) for route in out} == {int}


@pytest.mark.parametrize("answer", [3, -1, "0", None, 1.0, np.int64(3), np.float64(1)])
def test_custom_refuses_what_is_no_consumer(answer: Any) -> None:
    with pytest.raises(FunctionContractError, match="it must return the index of one of 3 consumers"):
        made("custom", 3, select=lambda key, n: answer).partition(Batch([1]))


def test_custom_without_a_function_is_an_error() -> None:
    with pytest.raises(GraphError, match="needs a function"):
        made("custom", 3)


def of_plugin(answer: Callable[[Batch[Any]], Any], consumers: int) -> Partitioner:
    class Mine(Partitioner):
        name = "mine"

        def partition(self, batch: Batch[Any]) -> Any:
            return answer(batch)

    partitioner = make_partitioner(PartitionerSpec("mine"), 128, lambda name: Mine())
    partitioner.setup(0, consumers, 7)
    return partitioner


def test_another_name_is_a_plugins() -> None:
    batch = Batch([1])
    assert of_plugin(lambda batch: [(2, batch)], 3).partition(batch) == [(2, batch)]


@pytest.mark.parametrize(
    "answer", [None, 5, "ab", [1], [(0,)], [(3, Batch([1]))], [(-1, Batch([1]))], [("0", Batch([1]))], [(0, [1])]]
)
def test_what_a_plugins_partitioner_returns_is_checked(answer: Any) -> None:
    says = r"Mine\.partition\(\) of partitioner 'mine' returned .*: the index of one of 3 consumers"
    with pytest.raises(FunctionContractError, match=says):
        of_plugin(lambda batch: answer, 3).partition(Batch([1]))


def test_shuffle_is_even_enough() -> None:
    counts = Counter({i: len(v) for i, v in got(made("shuffle", 2), Batch(list(range(1000)))).items()})
    assert 400 < counts[0] < 600
