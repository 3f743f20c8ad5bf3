"""Files of the RocksDB state backend: in storages, restored at any parallelism, damaged."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluiceway.checkpoint import StateReader, shared_files, write_subtask
from sluiceway.errors import CheckpointError, StateError
from sluiceway.keygroups import KeyGroupRange, key_group
from sluiceway.operators import OperatorSnapshot
from sluiceway.state import KeyedSnapshot, MapStateDescriptor, ValueStateDescriptor
from sluiceway_filesystem._local import LocalStorage
from sluiceway_rocksdb._backend import RocksDBKeyedBackend

VALUE = ValueStateDescriptor("value")
COUNT = ValueStateDescriptor("count", int)
MAP = MapStateDescriptor("map")
ALL = KeyGroupRange(0, 8)

Make = Callable[..., RocksDBKeyedBackend]


def stored(snapshot: KeyedSnapshot, storage: LocalStorage, id_: int, known: Any = None) -> Any:
    directory = f"run/chk-{id_}"
    return write_subtask(storage, directory, "0-3", 3, [OperatorSnapshot("uid-7", keyed=snapshot)], known=known)


def loaded(storage: LocalStorage, id_: int, entry: Any) -> KeyedSnapshot:
    [operator] = entry.operators
    keyed = StateReader(storage, f"run/chk-{id_}").keyed("uid-7", operator.keyed)
    copied: KeyedSnapshot = pickle.loads(pickle.dumps(keyed))
    return copied


def test_checkpoints_are_incremental_and_links(make: Make, tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "checkpoints"))
    backend = make()
    entries = backend.table(COUNT).entries()
    for i in range(20_000):
        entries[f"key{i}"] = i
    first = stored(backend.snapshot(), storage, 1)
    for i in range(10):
        entries[f"key{i}"] = -1
    second = stored(backend.snapshot(), storage, 2, shared_files(first))
    assert second.written < 20_000 < 100_000 < second.size
    assert first.written == first.size
    shared = tmp_path / "checkpoints/run/shared"
    names = sorted(p.name for p in shared.iterdir())
    assert len(names) == len({*shared_files(first), *shared_files(second)})
    assert any(p.stat().st_nlink > 1 for p in shared.iterdir()), "the database's own files, not copies of them"
    backend.close()
    assert len(list(tmp_path.glob("databases/*/*"))) == 0

    # Restored, it goes on from these files, and need not store them again.
    again = make(restore=[loaded(storage, 2, second)])
    now = again.table(COUNT).entries()
    assert (now["key0"], now["key19999"], len(now)) == (-1, 19_999, 20_000)
    now["new"] = 1
    third = stored(again.snapshot(), storage, 3, shared_files(second))
    assert third.written < 20_000
    assert make(restore=[loaded(storage, 1, first)]).table(COUNT).entries()["key0"] == 0
    assert make(restore=[loaded(storage, 3, third)]).table(COUNT).entries()["new"] == 1


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_files_in_a_storage_are_dealt_out_by_key_group(make: Make, tmp_path: Path, parallelism: int) -> None:
    storage = LocalStorage(str(tmp_path / "checkpoints"))
    kept = []
    for subtask in range(2):
        groups = KeyGroupRange.of_subtask(subtask, 2, 8)
        backend = make(groups)
        names = [VALUE, COUNT, MAP] if subtask else [MAP, COUNT, VALUE]
        tables = {descriptor.name: backend.table(descriptor) for descriptor in names}
        for i in range(200):
            if groups.start <= key_group(i, 8) < groups.end:
                tables["count"].entries("w")[i] = i
                tables["value"].entries()[i] = [i]
                tables["map"].mapping(i).update({"b": i, "a": i})
        kept.append(loaded(storage, subtask, stored(backend.snapshot(), storage, subtask)))
    found: dict[Any, Any] = {}
    for subtask in range(parallelism):
        backend = make(KeyGroupRange.of_subtask(subtask, parallelism, 8), kept)
        assert list(backend.table(COUNT).namespaces()) == ["w"]
        counts, values, maps = (
            backend.table(COUNT).entries("w"),
            backend.table(VALUE).entries(),
            backend.table(MAP),
        )
        for i in counts:
            assert i not in found
            found[i] = counts[i], values[i], list(maps.mapping(i).items())
    assert found == {i: (i, [i], [("b", i), ("a", i)]) for i in range(200)}


def test_files_serve_where_key_groups_are_cut(make: Make, tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "checkpoints"))
    backend = make()
    keys = [f"key{i}" for i in range(20_000)]
    backend.table(COUNT).entries().update(dict.fromkeys(keys, 1))
    first = stored(backend.snapshot(), storage, 1)
    for groups in (KeyGroupRange(0, 3), KeyGroupRange(3, 5), KeyGroupRange(5, 8)):
        own = {key: 1 for key in keys if groups.start <= key_group(key, 8) < groups.end}
        part = make(groups, [loaded(storage, 1, first)])
        entries = part.table(COUNT).entries()
        assert dict(entries) == own
        key = next(iter(own))
        del entries[key], own[key]
        snapshot = part.snapshot()
        assert set(snapshot.groups) == set(range(*groups))
        second = stored(snapshot, storage, 2, shared_files(first))
        assert second.written < first.size / 4, "the files of the first are shared"
        again = make(groups, [loaded(storage, 2, second)])
        again.store.database._db.compact_range(None, None)
        assert dict(again.table(COUNT).entries()) == own
        # All groups again: what its files had of the others must not come back.
        rest = make(ALL, [loaded(storage, 1, first)])
        gone = next(key for key in keys if key_group(key, 8) not in range(*groups))
        del rest.table(COUNT).entries()[gone]
        taken = rest.snapshot()
        others = KeyedSnapshot(taken.tables, {g: taken.groups[g] for g in taken.groups if g not in range(*groups)})
        whole = dict(make(ALL, [others, loaded(storage, 2, second)]).table(COUNT).entries())
        assert whole == {other: 1 for other in keys if other not in (key, gone)}


def test_a_database_that_is_damaged_is_named(make: Make, tmp_path: Path) -> None:
    backend = make(cache=1, block_cache=1)
    entries = backend.table(COUNT).entries()
    entries.update({f"key{i}": i for i in range(20_000)})
    backend._write_back(backend._all())
    backend.store.database._db.flush(True)
    for path in Path(backend.store.place.path).glob("*.sst"):
        with path.open("r+b") as file:
            file.seek(0)
            file.write(b"\xff" * (path.stat().st_size - 2_000))
    message = rf"cannot read its database in {backend.store.place.path}: .*[Cc]orrupt"
    with pytest.raises(StateError, match=message):
        [entries[f"key{i}"] for i in range(20_000)]
    with pytest.raises(StateError, match=message):
        backend.table(COUNT).working([f"key{i}" for i in range(20_000)])
    with pytest.raises(StateError, match=message):
        dict(entries)


def test_a_database_that_takes_no_deletion_is_named(make: Make) -> None:
    database = make().store.database
    database._db.close()
    with pytest.raises(StateError, match=rf"cannot write to {database.path}: .*closed"):
        database.delete_range(b"a", b"b")


def test_a_damaged_file_is_named(make: Make, tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "checkpoints"))
    backend = make()
    backend.table(COUNT).entries()["a"] = 1
    entry = stored(backend.snapshot(), storage, 1)
    [path] = (tmp_path / "checkpoints/run/shared").iterdir()
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{path.name} is damaged"):
        make(restore=[loaded(storage, 1, entry)])


def test_rows_and_files_of_two_subtasks_may_be_mixed(make: Make, tmp_path: Path) -> None:
    one, two = make(KeyGroupRange(0, 4)), make(KeyGroupRange(4, 8))
    for i in range(100):
        backend = one if key_group(i, 8) < 4 else two
        backend.table(COUNT).entries()[i] = i
    first, second = one.snapshot(), two.snapshot()
    rows = KeyedSnapshot(second.tables, dict(second.groups))
    assert dict(make(restore=[first, rows]).table(COUNT).entries()) == {i: i for i in range(100)}
