"""Jobs over the RocksDB state backend."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from traceback import format_exception
from typing import Any, NoReturn

import pytest

import sluiceway as sw
import sluiceway_rocksdb._backend
from sluiceway.errors import StateError
from sluiceway_rocksdb._table import RocksDBTable


@pytest.fixture(autouse=True)
def _hardly_any_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_DIRECTORY", str(tmp_path / "databases"))
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_CACHE", "1")
    monkeypatch.setattr(sluiceway_rocksdb._backend, "_LEAST", 50)


class Total(sw.AggregateFunction[tuple[Any, int], tuple[Any, int], tuple[Any, int]]):
    def create_accumulator(self) -> tuple[Any, int]:
        return (None, 0)

    def add(self, value: tuple[Any, int], accumulator: tuple[Any, int]) -> tuple[Any, int]:
        if value[1] < 0:
            raise ValueError("negative")
        return value[0], accumulator[1] + value[1]

    def get_result(self, accumulator: tuple[Any, int]) -> tuple[Any, int]:
        return accumulator


@pytest.mark.parametrize("parallelism", [1, 2])  # keys are found by the operator; by the sender
@pytest.mark.parametrize("kind", ["reduce", "aggregate"])
def test_running_results_are_those_of_a_dict(kind: str, parallelism: int) -> None:
    random = Random(parallelism)
    words: list[Any] = [f"word{random.randrange(700)}" for _ in range(6_000)]
    words += [random.randrange(100) for _ in range(1_000)] + [None, ("a", 1), 2**70, "\ud800", "word1"]
    flow = sw.Pipeline("counts")
    results: dict[Any, int] = {}
    pairs = flow.from_collection([(word, 1) for word in words]).key_by(lambda pair: pair[0])
    totals = pairs.reduce(lambda a, b: (a[0], a[1] + b[1])) if kind == "reduce" else pairs.aggregate(Total())
    totals.for_each(lambda pair: results.update([pair]))
    flow.run(state_backend="rocksdb", parallelism=parallelism, batch_size=100, max_parallelism=16)
    assert results == Counter(words)


def test_records_that_fail_are_skipped_and_change_nothing() -> None:
    flow = sw.Pipeline("skips")
    results: list[tuple[str, int]] = []
    values: list[Any] = [("a", 1), ("b", 2), ("a", -1), ([], 5), ("a", 3), None, ("b", -1), ("c", 1)]
    pairs = flow.from_collection(values).key_by(lambda pair: pair[0])
    pairs.aggregate(Total()).on_error("skip").for_each(results.append)
    flow.run(state_backend="rocksdb", parallelism=1)
    assert results == [("a", 1), ("b", 2), ("a", 4), ("c", 1)]


@pytest.mark.parametrize(("key", "message"), [([], "is not hashable"), (object(), "by its address")])
def test_a_key_that_cannot_be_one_is_named_with_its_record(key: Any, message: str) -> None:
    flow = sw.Pipeline("keys")
    pairs = flow.from_collection([("a", 1), (key, 2), ("a", 3)]).key_by(lambda pair: pair[0])
    pairs.reduce(lambda a, b: b).for_each(print)
    with pytest.raises(Exception, match=message) as caught:
        flow.run(state_backend="rocksdb", parallelism=1)
    assert ", 2)" in "".join(format_exception(caught.value))


def test_an_error_of_the_backend_ends_the_job_where_keys_are_looked_up_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def working(self: RocksDBTable, keys: object, namespace: object = None) -> NoReturn:
        monkeypatch.undo()  # it would succeed the next time
        raise StateError("the database is gone")

    monkeypatch.setattr(RocksDBTable, "working", working)
    flow = sw.Pipeline("gone")
    flow.from_collection([("a", 1), ("b", 2)]).key_by(lambda pair: pair[0]).reduce(lambda a, b: b).print()
    with pytest.raises(StateError, match="the database is gone"):
        flow.run(state_backend="rocksdb", parallelism=1)
