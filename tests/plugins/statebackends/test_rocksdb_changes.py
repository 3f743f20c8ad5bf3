"""Snapshots of the RocksDB state backend that are files of changes, with a database below them and without."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from effort import first

import sluiceway_rocksdb._backend
import sluiceway_rocksdb._change_files
from sluiceway.errors import CorruptStreamError, SerializationError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.serializers import KEY_SERIALIZER
from sluiceway.state import KeyedSnapshot, MapStateDescriptor, NativeState, ValueStateDescriptor
from sluiceway.state.changelog.format import encode_record
from sluiceway.state.changelog.record import ChangeRecord, Dropped
from sluiceway_rocksdb._backend import RocksDBKeyedBackend
from sluiceway_rocksdb._change_files import is_of_log

VALUE = ValueStateDescriptor("value")
COUNT = ValueStateDescriptor("count", int)
MAP = MapStateDescriptor("map")

Make = Callable[..., RocksDBKeyedBackend]


class Place:
    """A key that is no plain one."""

    def __init__(self, name: int) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __stable_key__(self) -> int:
        return self.name


@pytest.fixture(autouse=True)
def _several_files_also_of_small_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluiceway_rocksdb._change_files, "_SMALL", 0)


def files(snapshot: KeyedSnapshot) -> tuple[int, int]:
    """How many of a snapshot's files are files of changes, and how many of the database."""
    assert isinstance(snapshot.native, NativeState)
    names = [file.name for file in snapshot.native.files]
    return sum(map(is_of_log, names)), sum(not is_of_log(name) for name in names)


def rows_alone(snapshot: KeyedSnapshot) -> KeyedSnapshot:
    return KeyedSnapshot(snapshot.tables, dict(snapshot.groups))


def counts(backend: RocksDBKeyedBackend, namespace: Any = "w") -> dict[Any, Any]:
    return dict(backend.table(COUNT).entries(namespace))


def test_what_is_in_memory_is_in_files_of_changes_and_no_database_is_made(make: Make, tmp_path: Path) -> None:
    backend = make()
    entries = backend.table(COUNT).entries("w")
    entries.update({f"key{i}": i for i in range(1_000)})
    first = backend.snapshot()
    assert files(first) == (1, 0)
    entries["key0"] = -1
    second = backend.snapshot()
    assert files(second) == (2, 0)
    assert first.native is not None
    assert second.native is not None
    assert (first.native.format, second.native.format) == ("rocksdb 3", "rocksdb 3")
    assert first.native.files == second.native.files[:1], "the same file, which need not be stored again"
    assert second.native.files[1].size < 100 < 5_000 < first.native.files[0].size
    assert backend.snapshot().native.files == second.native.files, "nothing has changed"  # type: ignore[union-attr]
    [root] = (tmp_path / "databases").iterdir()
    assert not list(root.glob("database*"))
    assert counts(make(restore=[first]))["key0"] == 0
    restored = counts(make(restore=[second]))
    assert (restored.pop("key0"), restored) == (-1, {f"key{i}": i for i in range(1, 1_000)})


def test_changes_are_on_top_of_a_database_once_there_is_one(make: Make) -> None:
    backend = make(cache_entries=64)
    entries = backend.table(COUNT).entries("w")
    entries.update({f"key{i}": i for i in range(1_000)})
    first = backend.snapshot()
    assert files(first)[0] == 0
    assert files(first)[1] > 1
    entries["key0"] = -1
    del entries["key1"]
    second = backend.snapshot()
    assert files(second) == (1, files(first)[1])
    first.release()  # its directory stays for as long as the second one is there
    expected = {f"key{i}": i for i in range(2, 1_000)} | {"key0": -1}
    assert counts(make(restore=[second])) == expected
    assert counts(make(restore=[rows_alone(second)])) == expected
    # What is written back because there is no room is in no file of changes: the next one is the database.
    entries.update({f"more{i}": i for i in range(1_000)})
    third = backend.snapshot()
    assert files(third)[0] == 0
    assert counts(make(restore=[third])) == expected | {f"more{i}": i for i in range(1_000)}


def test_a_snapshot_after_a_migration_is_not_on_top_of_one_before_it(make: Make) -> None:
    was = ValueStateDescriptor("price", int)
    now = ValueStateDescriptor("price", float, migrate=lambda cents: cents / 100)
    first = make()
    first.table(was).entries()["k"] = 1250
    second = make(restore=[first.snapshot()])
    assert files(second.snapshot())[0] == 0, "the state was not asked for yet"
    assert second.table(now).entries()["k"] == 12.5
    assert make(restore=[second.snapshot()]).table(now).entries()["k"] == 12.5


def test_there_are_only_so_many_files(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make(changes=3)
    entries = backend.table(COUNT).entries("w")
    entries.update(dict.fromkeys(range(100), 0))
    found = []
    for i in range(7):
        entries[0] = i
        found.append(files(backend.snapshot()))
    assert found == [(1, 0), (2, 0), (3, 0), (1, 0), (2, 0), (3, 0), (1, 0)]
    # Nor of little state.
    monkeypatch.setattr(sluiceway_rocksdb._change_files, "_SMALL", 100)
    backend = make()
    entries = backend.table(COUNT).entries("w")
    found = []
    for i in range(98, 103):
        entries.update(dict.fromkeys(range(i), i))
        found.append(files(backend.snapshot())[0])
    assert found == [1, 1, 1, 2, 3]
    assert counts(backend) == dict.fromkeys(range(102), 102)
    monkeypatch.setattr(sluiceway_rocksdb._change_files, "_SMALL", 0)
    # Nor do they have many times what there is.
    monkeypatch.setattr(sluiceway_rocksdb._change_files, "_FEW", 0)
    backend = make()
    entries = backend.table(COUNT).entries("w")
    found = []
    for value in range(5):
        entries.update(dict.fromkeys(range(100), value))
        found.append(files(backend.snapshot())[0])
    assert found == [1, 2, 1, 2, 1]
    assert counts(backend) == dict.fromkeys(range(100), 4)


def test_none_are_wanted(make: Make) -> None:
    backend = make(changes=0)
    entries = backend.table(COUNT).entries("w")
    for value in range(2):
        entries["a"] = value
        snapshot = backend.snapshot()
        assert files(snapshot)[0] == 0
        assert snapshot.native is not None
        assert snapshot.native.format == "rocksdb 1"


@pytest.mark.parametrize("below", [False, True], ids=["alone", "on a database"])
def test_what_is_gone_stays_gone(make: Make, below: bool) -> None:
    backend = make(cache_entries=64)
    counted, maps = backend.table(COUNT), backend.table(MAP)
    for i in range(200 if below else 10):
        counted.entries("w")[i] = i
        counted.entries("x")[i] = i
        counted.entries("y")[Place(i)] = i
    maps.mapping("a")["b"] = 1
    first = backend.snapshot()
    assert bool(files(first)[1]) is below
    del counted.entries("w")[7]
    del counted.entries("y")[Place(3)]
    counted.entries("y")[Place(4)] = -4
    counted.drop("x")
    counted.entries("x")["again"] = 1
    maps.mapping("a").clear()
    second = backend.snapshot()
    assert files(second)[0] == (1 if below else 2)
    number = 200 if below else 10
    for snapshots in ([second], [rows_alone(second)]):
        for groups in (KeyGroupRange(0, 8), None):
            if groups is None:
                parts = [make(KeyGroupRange(a, b), snapshots) for a, b in ((0, 3), (3, 8))]
            else:
                parts = [make(groups, snapshots)]
            found = {name: {k: v for part in parts for k, v in counts(part, name).items()} for name in "wxy"}
            assert found["w"] == {i: i for i in range(number) if i != 7}
            assert found["x"] == {"again": 1}
            assert found["y"] == {Place(i): -4 if i == 4 else i for i in range(number) if i != 3}
            assert not [key for part in parts for key in part.table(MAP).keys()]  # noqa: SIM118
            if groups is None:
                together = make(restore=[part.snapshot() for part in parts])
                assert counts(together, "y") == found["y"]


def test_equal_keys_are_one_whatever_their_types(make: Make) -> None:
    backend = make()
    entries = backend.table(VALUE).entries()
    found = []
    for key, value in ((1, "int"), (1.0, "float"), (True, "bool"), (1, "again")):
        entries[key] = value
        found.append(backend.snapshot())
    del entries[1.0]
    found.append(backend.snapshot())
    expected: list[dict[Any, Any]] = [{1: "int"}, {1: "float"}, {1: "bool"}, {1: "again"}, {}]
    for snapshot, values in zip(found, expected, strict=True):
        for same in (snapshot, rows_alone(snapshot)):
            assert dict(make(restore=[same]).table(VALUE).entries()) == values


def test_a_snapshot_that_is_given_up_or_fails_is_made_up_for_by_the_next(make: Make) -> None:
    backend = make()
    entries = backend.table(VALUE).entries()
    entries.update(a=1, b=2)
    assert files(backend.snapshot()) == (1, 0)
    entries["c"] = 3
    del entries["a"]
    backend.snapshot().release()
    entries["d"] = lambda: None
    failing = backend.snapshot()
    with pytest.raises(SerializationError, match="state 'value' of operator 'uid-7', key 'd'"):
        files(failing)
    with pytest.raises(StateError, match="given up or released"):
        files(failing)
    entries["d"] = 4
    last = backend.snapshot()
    assert files(last) == (1, 0)
    assert dict(make(restore=[last]).table(VALUE).entries()) == dict(entries) == {"b": 2, "c": 3, "d": 4}


def test_directories_go_with_what_they_are_for(make: Make, tmp_path: Path) -> None:
    backend = make()
    backend.table(COUNT).entries()["a"] = 1
    one, two = backend.snapshot(), backend.snapshot()
    assert files(one) == files(two) == (1, 0)
    [root] = (tmp_path / "databases").iterdir()
    assert sorted(p.name.split("-")[0] for p in root.iterdir()) == ["changes", "owner.lock"]
    one.release()
    backend.close()
    assert [p.name.split("-")[0] for p in root.glob("changes*")] == ["changes"], "the second one needs it"
    two.release()
    assert list((tmp_path / "databases").iterdir()) == []


def test_changes_that_cannot_be_written_are_an_error_and_not_lost(make: Make, tmp_path: Path) -> None:
    backend = make()
    entries = backend.table(COUNT).entries()
    entries["a"] = 1
    first = backend.snapshot()
    files(first)
    [directory] = (tmp_path / "databases").glob("*/changes-*")
    (directory / "changes-000001").mkdir()  # in the way
    entries["b"] = 2
    with pytest.raises(StateError, match=rf"cannot write changes to {directory}/changes-000001: Is a directory"):
        files(backend.snapshot())
    last = backend.snapshot()
    assert dict(make(restore=[last]).table(COUNT).entries()) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x93 nonsense", "file changes-000000 of operator 'uid-7': 10 bytes are no change record"),
        (b"SWC\x09 later", "file changes-000000 of operator 'uid-7': a change record of layout 9 cannot be read"),
        (
            encode_record(ChangeRecord(False, (), [Dropped(7, KEY_SERIALIZER.dumps("w"))])),
            "operator 'uid-7' has a row of table 7, there are 1 tables",
        ),
    ],
)
def test_changes_that_cannot_be_read_are_named(make: Make, data: bytes, message: str) -> None:
    backend = make()
    backend.table(COUNT).entries()["a"] = 1
    snapshot = backend.snapshot()
    assert snapshot.native is not None
    [file] = snapshot.native.files
    Path(snapshot.native.local_path(file.name)).write_bytes(data)
    with pytest.raises(CorruptStreamError, match=message):
        make(restore=[snapshot])


def test_changes_that_are_gone_from_the_disk_are_named(make: Make) -> None:
    backend = make()
    backend.table(COUNT).entries()["a"] = 1
    snapshot = backend.snapshot()
    assert snapshot.native is not None
    [file] = snapshot.native.files
    path = Path(snapshot.native.local_path(file.name))
    path.unlink()
    with pytest.raises(StateError, match=f"cannot read changes from {path}: No such file"):
        rows_alone(snapshot)


# -- random histories -----------------------------------------------------------------------------------------


class History:
    """Two tables in three namespaces beside what they should hold, and snapshots made in other threads."""

    def __init__(self, make: Make, seed: int) -> None:
        self.make = make
        self.random = random.Random(seed)
        self.options = {"cache": 1, "changes": self.random.choice([0, 1, 3, 32, 32])}
        self.backend = make(**self.options)
        self.model: dict[tuple[str, int], dict[Any, Any]] = {}
        self.taken: tuple[KeyedSnapshot, dict[Any, Any]] | None = None
        self.threads: list[threading.Thread] = []

    def run(self) -> None:
        for step in range(self.random.randrange(20, 120)):
            self.step(step)
        self.join()
        last = self.backend.snapshot()
        assert self.found(self.make(restore=[last])) == self.expected()
        assert self.found(self.make(restore=[rows_alone(last)])) == self.expected()
        assert self.found(self.backend) == self.expected()

    def step(self, step: int) -> None:
        r = self.random
        name, namespace = r.choice("ab"), r.randrange(3)
        table = self.backend.table(ValueStateDescriptor(name))
        model = self.model.setdefault((name, namespace), {})
        keys = [self.key(20 * (1 + namespace * namespace)) for _ in range(r.randrange(1, 25))]
        entries = table.entries(namespace)
        match r.choice(["get", "set", "set", "work", "work", "pop", "drop", "look", "take", "take", "use"]):
            case "get":
                assert [entries.get(key) for key in keys] == [model.get(key) for key in keys]
            case "set":
                self.change(entries, model, keys, step)
            case "work":
                self.change(table.working(keys, namespace), model, [k for k in keys if r.random() < 0.7], step)
            case "pop":
                assert [entries.pop(key, None) for key in keys] == [model.pop(key, None) for key in keys]
            case "drop" if r.random() < 0.3:
                table.drop(namespace)
                model.clear()
            case "look" if r.random() < 0.2:
                assert self.found(self.backend) == self.expected()
            case "take" if self.taken is None:
                snapshot = self.backend.snapshot()
                self.taken = snapshot, self.expected()
                if r.random() < 0.5:
                    self.threads.append(threading.Thread(target=lambda: snapshot.native and snapshot.native.files))
                    self.threads[-1].start()
            case "use" if self.taken is not None:
                self.use(*self.taken)
                self.taken = None

    def change(self, entries: Any, model: dict[Any, Any], keys: list[Any], step: int) -> None:
        for key in keys:
            known = entries.get(key)
            assert known == model.get(key)
            if known is not None and self.random.random() < 0.5:
                known.append(step)  # in place
                entries[key] = known
            else:
                entries[key] = [step]
            model[key] = list(entries[key])

    def use(self, snapshot: KeyedSnapshot, expected: dict[Any, Any]) -> None:
        what = self.random.choice(["release", "rows", "cut", "files", "go on"])
        if what == "release":
            snapshot.release()
            return
        if what == "cut":
            parts = [self.make(KeyGroupRange(a, b), [snapshot], **self.options) for a, b in ((0, 3), (3, 8))]
            found: dict[Any, Any] = {}
            for part in parts:
                for where, values in self.found(part).items():
                    found.setdefault(where, {}).update(values)
            assert found == expected
            restored = self.make(restore=[part.snapshot() for part in parts])
        else:
            restored = self.make(restore=[rows_alone(snapshot) if what == "rows" else snapshot], **self.options)
        assert self.found(restored) == expected
        if what == "go on":
            self.join()
            self.backend.close()
            self.backend = restored
            self.model = {w: {k: list(v) for k, v in values.items()} for w, values in expected.items()}

    def key(self, most: int) -> Any:
        i = self.random.randrange(most)
        return self.random.choice([i, i, float(i), f"key{i}", Place(i)])

    def found(self, backend: RocksDBKeyedBackend) -> dict[Any, Any]:
        tables = {name: backend.table(ValueStateDescriptor(name)) for name in "ab"}
        found = {(n, ns): dict(table.entries(ns)) for n, table in tables.items() for ns in table.namespaces()}
        return {where: values for where, values in found.items() if values}

    def expected(self) -> dict[Any, Any]:
        return {w: {k: list(v) for k, v in values.items()} for w, values in self.model.items() if values}

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


@pytest.fixture
def _small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(request.node.name)
    monkeypatch.setattr(sluiceway_rocksdb._backend, "_LEAST", r.choice([2, 8, 16, 64, 400]))
    monkeypatch.setattr(sluiceway_rocksdb._change_files, "_FEW", r.choice([0, 5, 50, 20_000]))


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("seed", first(8, range(20)))
def test_some_histories(make: Make, seed: int) -> None:
    History(make, seed).run()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("seed", range(20, 400))
def test_many_histories(make: Make, seed: int) -> None:
    History(make, seed).run()


@pytest.mark.parametrize("below", [False, True])
def test_equal_namespaces_of_different_types_are_one(
    make: Make, monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    """With a database below the changes and without, restored from files and from rows."""
    first = make(changes=0 if below else 10)
    first.table(COUNT).entries(1.0).update(a=1, b=2, c=3)
    first.table(COUNT).entries(2.0).update(d=4)
    snapshot = first.snapshot()
    second = make()
    second.restore([snapshot])
    entries = second.table(COUNT).entries(1)
    assert dict(entries) == {"a": 1, "b": 2, "c": 3}
    entries.pop("a")
    entries["b"] = 5
    second.table(COUNT).drop(2)
    for again in (second.snapshot(), rows_alone(second.snapshot())):
        third = make()
        third.restore([again])
        assert counts(third, 1.0) == {"b": 5, "c": 3}
        assert counts(third, 2.0) == {}
        assert list(third.table(COUNT).namespaces()) == [1]
