"""The state backends that come with Sluiceway: each goes on from what another has left."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.checkpoint import StateReader, write_subtask
from sluiceway.keygroups import KeyGroupRange, key_group
from sluiceway.operators import OperatorSnapshot
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    MapStateDescriptor,
    StateBackend,
    ValueStateDescriptor,
)
from sluiceway_filestate._backend import FilesystemStateBackend
from sluiceway_filesystem._local import LocalStorage
from sluiceway_memory._backend import MemoryStateBackend
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions

GROUPS = 12
UNTYPED = ValueStateDescriptor("untyped")
TYPED = ValueStateDescriptor("typed", tuple[int, str])
MAPS = MapStateDescriptor("maps", list[int], key_type=str)

MAKE: dict[str, Callable[[str], StateBackend]] = {
    "memory": lambda place: MemoryStateBackend(),
    "filesystem": lambda place: FilesystemStateBackend(place),
    "rocksdb": lambda place: RocksDBStateBackend(RocksDBOptions(place, cache=1)),
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(), max_size=6)
    | st.binary(max_size=6)
)
keys = st.recursive(scalars, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=4)
namespaces = st.sampled_from([(), ("window", 10), 3])
values = st.recursive(scalars, lambda parts: st.lists(parts, max_size=3), max_leaves=5)
contents = st.lists(
    st.tuples(
        keys, namespaces, values, st.tuples(st.integers(-5, 2**40), st.text(max_size=4)), st.text(max_size=3)
    ),
    max_size=30,
)


def subtasks(name: str, place: str, parallelism: int, kept: list[KeyedSnapshot]) -> list[KeyedStateBackend]:
    made = []
    for subtask in range(parallelism):
        own = KeyGroupRange.of_subtask(subtask, parallelism, GROUPS)
        backend = MAKE[name](place).create_keyed(BackendContext("uid-7", subtask, own, GROUPS))
        backend.restore(kept)
        made.append(backend)
    return made


def saved(backend: KeyedStateBackend, storage: LocalStorage, directory: str, subtask: int) -> KeyedSnapshot:
    """Its state, by way of a savepoint."""
    taken = [OperatorSnapshot("uid-7", keyed=backend.snapshot())]
    [operator] = write_subtask(storage, directory, f"0-{subtask}", subtask, taken, canonical=True).operators
    assert operator.keyed is not None
    return StateReader(storage, directory).keyed("uid-7", operator.keyed)


def found_in(backends: list[KeyedStateBackend]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for backend in backends:
        for descriptor in (UNTYPED, TYPED):
            table = backend.table(descriptor)
            for namespace in table.namespaces():
                for key, value in table.entries(namespace).items():
                    assert (descriptor.name, key, namespace) not in found
                    found[descriptor.name, key, namespace] = value
        table = backend.table(MAPS)
        for namespace in table.namespaces():
            for key in table.keys(namespace):
                found["maps", key, namespace] = list(table.mapping(key, namespace).items())
    return found


@pytest.mark.parametrize(("one", "other"), list(permutations(MAKE, 2)))
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 2), (3, 1)])
@settings(
    max_examples=4,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=contents, data=st.integers(0, 10**9))
def test_state_goes_on_in_another_backend(
    one: str, other: str, before: int, after: int, content: list[Any], data: int, tmp_path: Path
) -> None:
    storage, directory = LocalStorage(str(tmp_path / "savepoints")), f"sp-{data}-{len(content)}"
    place, model = str(tmp_path / "places"), dict[Any, Any]()
    first = subtasks(one, place, before, [])
    for key, namespace, value, typed, name in content:
        owner = first[key_group(key, GROUPS) * before // GROUPS]
        owner.table(UNTYPED).entries(namespace)[key] = model["untyped", key, namespace] = value
        owner.table(TYPED).entries(namespace)[key] = model["typed", key, namespace] = typed
        entries = owner.table(MAPS).mapping(key, namespace)
        entries[name] = [*entries.get(name, []), typed[0]]
        model["maps", key, namespace] = list(entries.items())
    kept = [saved(backend, storage, directory, i) for i, backend in enumerate(first)]
    second = subtasks(other, place, after, kept)
    found = found_in(second)
    for backend in (*first, *second):
        backend.close()
    assert found == model
    assert {place: repr(value) for place, value in found.items()} == {p: repr(v) for p, v in model.items()}
