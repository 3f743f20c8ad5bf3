"""The RocksDB state backend."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, NamedTuple

import pytest

import sluiceway_rocksdb._backend
import sluiceway_rocksdb._database
import sluiceway_rocksdb._local_directories
import sluiceway_rocksdb._row_values
import sluiceway_rocksdb._table
from sluiceway import StateTtlConfig
from sluiceway.errors import SerializationError, StateError
from sluiceway.functions import KeyedProcessFunction, RuntimeContext
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import (
    VOID_NAMESPACE,
    KeyedSnapshot,
    MapStateDescriptor,
    StateBackend,
    StateDescriptor,
    ValueStateDescriptor,
)
from sluiceway.testing import OperatorHarness
from sluiceway.testing.conformance.state_backend import StateBackendConformance
from sluiceway_rocksdb._backend import RocksDBKeyedBackend, RocksDBStateBackend
from sluiceway_rocksdb._namespace_cache import CachedEntries
from sluiceway_rocksdb._options import RocksDBOptions


class TestRocksDB(StateBackendConformance):
    examples = 3
    big_value_bytes = 32 << 20

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def make_backend(self) -> StateBackend:
        return RocksDBStateBackend(RocksDBOptions(str(self.directory)))


class TestRocksDBWithHardlyAnyMemory(TestRocksDB):
    examples = 20
    big_value_bytes = 4 << 20

    @pytest.fixture(autouse=True)
    def _tight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sluiceway_rocksdb._backend, "_LEAST", 2)

    def make_backend(self) -> StateBackend:
        return RocksDBStateBackend(RocksDBOptions(str(self.directory), cache=1, write_buffer=1 << 16))


# tests/plugins/statebackends/test_rocksdb_changes.py compares with it, too.
@pytest.mark.slow
class TestRocksDBWithoutFilesOfChanges(TestRocksDBWithHardlyAnyMemory):
    def make_backend(self) -> StateBackend:
        return RocksDBStateBackend(RocksDBOptions(str(self.directory), cache=1, changes=0))


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestRocksDBManyHistories(TestRocksDBWithHardlyAnyMemory):
    examples = 300


# -- helpers --------------------------------------------------------------------------------------------------

VALUE = ValueStateDescriptor("value")
COUNT = ValueStateDescriptor("count", int)
MAP = MapStateDescriptor("map")
ALL = KeyGroupRange(0, 8)


Make = Callable[..., RocksDBKeyedBackend]


def in_memory(backend: RocksDBKeyedBackend) -> int:
    every = [e for table in backend._tables.values() for e in table.hot.values()]
    return sum(len(e.young) + len(e.clean) for e in every)


def restored_of(make: Make, snapshot: KeyedSnapshot, namespace: str) -> dict[Any, Any]:
    return dict(make(restore=[snapshot]).table(COUNT).entries(namespace))


# -- memory ---------------------------------------------------------------------------------------------------


def test_state_is_larger_than_memory(make: Make) -> None:
    backend = make(cache=50_000)
    entries = backend.table(COUNT).entries()
    most = 0
    for i in range(20_000):
        entries[f"key{i}"] = i
        most = max(most, in_memory(backend))
    assert 20 < most < 400
    for i in range(0, 20_000, 7):
        assert entries[f"key{i}"] == i
        most = max(most, in_memory(backend))
    assert most < 400
    assert len(entries) == 20_000
    assert sum(entries.values()) == sum(range(20_000))


@pytest.mark.parametrize(
    "order",
    [list, reversed, lambda keys: Random(7).sample(keys, len(keys))],
    ids=["in order", "backwards", "at random"],
)
def test_a_window_asks_after_each_removed_key_whether_any_is_left(
    make: Make, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    walks = 0
    walk = CachedEntries.walk

    def counted(self: CachedEntries, decode: Any) -> Any:
        nonlocal walks
        walks += 1
        return walk(self, decode)

    backend = make()
    entries = backend.table(COUNT).entries()
    keys = [f"key{i}" for i in range(30_000)]
    entries.update(dict.fromkeys(keys, 1))
    backend.snapshot().release()
    entries.update(dict.fromkeys(keys, 2))  # nothing is logged any more
    monkeypatch.setattr(CachedEntries, "walk", counted)
    for key in order(keys):
        assert entries
        del entries[key]
    assert not entries
    assert walks < 50


class Visits(KeyedProcessFunction[int, int, int]):
    """Notes that a key was there, for an hour."""

    def __init__(self, note: Any) -> None:
        self._note = note
        self.descriptor = ValueStateDescriptor("seen", type(note), ttl=StateTtlConfig("1h"))

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(self.descriptor)

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        self.seen.update(self._note)


@pytest.mark.parametrize("note", [True, [1]], ids=["value", "object that is lent"])
def test_state_beyond_memory_expires_without_all_keys_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, note: Any
) -> None:
    read = 0  # rows

    def counted(*arguments: Any) -> Iterator[Any]:
        nonlocal read
        for row in rows_of(*arguments):
            read += 1
            yield row

    rows_of = sluiceway_rocksdb._database.rows_of
    monkeypatch.setattr(sluiceway_rocksdb._database, "rows_of", counted)
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("SLUICEWAY_ROCKSDB_CACHE", "50000")
    with OperatorHarness(
        lambda s: s.key_by(lambda n: n).process(Visits(note)), state_backend="rocksdb"
    ) as harness:
        harness.process_batch(range(10_000))
        harness.advance(3_600_000)
        most = 0
        for i in range(500):
            before = read
            harness.process_batch([-1] * 20)  # 100 keys are checked
            # One part in each key group that is come to, of which each has about 80 keys.
            most = max(most, read - before)
            if i == 250:
                harness.process_batch(range(20_000, 20_100))
        assert most < 1_000
        snapshot = harness.snapshot()
    with OperatorHarness(lambda s: s.key_by(lambda n: n).process(Visits(note)), restored=snapshot) as harness:
        [subtask] = harness._subtasks
        table = subtask.operators[0].backend.table(Visits(note).descriptor)
        assert set(table.keys()) == {-1, *range(20_000, 20_100)}


def test_a_batch_gets_what_it_lacks_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make(cache=1)
    table = backend.table(COUNT)
    assert table.reads_ahead
    keys = [f"key{i}" for i in range(100)]
    table.entries().update(dict.fromkeys(keys, 1))
    calls: list[int] = []
    get_all = backend.store.database.get_all
    monkeypatch.setattr(
        backend.store.database, "get_all", lambda places: calls.append(len(places)) or get_all(places)
    )
    entries = table.working([*keys, "new", keys[0]])
    assert type(entries) is dict, "what is there is looked up at the speed of a dict"
    assert {key: entries.get(key) for key in [*keys, "new"]} == {**dict.fromkeys(keys, 1), "new": None}
    assert len(calls) == 1
    assert calls[0] > 30


def test_what_is_whole_in_memory_is_not_looked_up_in_the_database(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make()
    table = backend.table(COUNT)
    table.entries("w").update({f"key{i}": i for i in range(100)})
    dict(backend.snapshot().groups)
    del table.entries("w")["key5"]
    for name in ("get", "get_all", "rows"):
        monkeypatch.setattr(backend.store.database, name, lambda *args: pytest.fail("it is in memory"))
    assert table.entries("w").get("new") is None
    assert "key5" not in table.entries("w")
    table.working([f"key{i}" for i in range(90, 110)], "w")["key100"] = 100
    assert dict(table.entries("w")) == {f"key{i}": i for i in range(101) if i != 5}
    monkeypatch.undo()
    assert restored_of(make, backend.snapshot(), "w") == {f"key{i}": i for i in range(101) if i != 5}


def test_what_was_whole_in_memory_is_looked_up_again_when_some_was_forgotten(make: Make) -> None:
    backend = make(cache=1)
    table = backend.table(COUNT)
    table.entries("w").update({f"key{i}": i for i in range(50)})
    dict(backend.snapshot().groups)
    table.entries("other").update({f"key{i}": -i for i in range(500)})
    assert table.entries("w").get("key7") == 7
    assert dict(table.entries("w")) == {f"key{i}": i for i in range(50)}


def test_large_values_take_the_place_of_many(make: Make) -> None:
    backend = make(cache=1_000_000)
    entries = backend.table(ValueStateDescriptor("v", bytes)).entries()
    most = 0
    for i in range(300):
        entries[i] = bytes(100_000)
        most = max(most, in_memory(backend))
    assert most < 130, "the limit for objects of any size is 64, and it is looked at now and then"
    assert len(entries[0]) == 100_000


def test_large_values_are_assigned_as_they_are_read(make: Make) -> None:
    backend = make(cache=1_000_000)
    entries = backend.table(ValueStateDescriptor("v", bytes)).entries()
    most = behind = 0

    def values() -> Iterator[tuple[int, bytes]]:
        nonlocal most, behind
        assigned = 0
        for i in range(300):
            yield i, bytes(100_000)
            while assigned <= i and assigned in entries:
                assigned += 1
            behind = max(behind, i - assigned)
            most = max(most, in_memory(backend))

    entries.update(values())
    assert max(most, in_memory(backend)) + behind < 260, "at most 130 each, as where they are assigned one by one"
    assert len(entries) == 300
    assert all(entries[i] == bytes(100_000) for i in (0, 299))


def test_many_namespaces_share_the_memory(make: Make) -> None:
    backend = make(cache=50_000)
    table = backend.table(COUNT)
    most = 0
    for namespace in range(300):
        for key in range(10):
            table.entries(namespace)[key] = namespace
        most = max(most, in_memory(backend))
    assert most < 1_000
    assert sorted(table.namespaces()) == list(range(300))  # type: ignore[type-var]
    for namespace in range(0, 300, 2):
        table.drop(namespace)
    assert sorted(table.namespaces()) == list(range(1, 300, 2))  # type: ignore[type-var]
    assert all(dict(table.entries(n)) == dict.fromkeys(range(10), n) for n in range(1, 300, 2))
    assert dict(table.entries(0)) == {}


def test_a_mapping_that_was_handed_out_stays_good_when_its_objects_are_written_back(make: Make) -> None:
    backend = make(cache=1)
    table = backend.table(COUNT)
    first = table.entries("first")
    first["k"] = 1
    for i in range(1_000):
        table.entries(i)[i] = i
    assert table.entries("first") is first
    first["k"] += 1
    for i in range(1_000):
        table.entries(i)[i] += 1
    assert first["k"] == table.entries("first")["k"] == 2
    assert table.entries(5)[5] == 6


def test_nothing_is_on_the_disk_before_it_has_to_be(make: Make, tmp_path: Path) -> None:
    backend = make()
    table = backend.table(COUNT)
    for i in range(100):
        table.entries(i)["k"] = i
        table.drop(i)
    assert not (tmp_path / "databases").exists()
    assert backend.snapshot().groups == {}
    assert not (tmp_path / "databases").exists()


# -- keys -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    x: float
    y: Any = None


class Text(str):
    pass


class Host(NamedTuple):
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Host) and other.name.lower() == self.name.lower()

    def __hash__(self) -> int:
        return hash(self.name.lower())

    def __stable_key__(self) -> str:
        return self.name.lower()


class Degrees(float):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Degrees) and float(other) % 360 == float(self) % 360

    def __hash__(self) -> int:
        return hash(float(self) % 360)

    def __stable_key__(self) -> float:
        return float(self) % 360


EQUAL: list[tuple[Any, ...]] = [
    (1, 1.0, True, Decimal(1), Fraction(1), 1 + 0j),
    (0, 0.0, -0.0, False),
    ("a", Text("a")),
    ((1, "x"), (1.0, "x"), (True, Text("x"))),
    (Place(1), Place(1.0)),
    (frozenset({1, 2, 3}), frozenset({3, 2, 1.0})),
    (2**70, float(2**70), Decimal(2**70)),
    (0.5, Fraction(1, 2), Decimal("0.5")),
    ("\ud800",),
    (None,),
    (2**60,),  # as far as key groups go, the same as 0.5
    (b"a",),
    ((),),
    (-1,),
    (Host("a.example"), Host("A.example")),
    ((Degrees(20), "x"), (Degrees(380), "x")),
]


def test_equal_keys_meet_in_one_row_whatever_their_types(make: Make) -> None:
    backend = make(cache=1)
    entries = backend.table(COUNT).entries()
    for rounds in range(1, 4):
        for number, keys in enumerate(EQUAL):
            for key in keys:
                entries[key] = entries.get(key, 100 * number) + 1
                backend._write_back(backend._all())
            assert entries[keys[0]] == 100 * number + rounds * len(keys)
    assert len(list(entries)) == len(entries) == len(EQUAL)
    again = make(restore=[backend.snapshot()]).table(COUNT).entries()
    assert [again[keys[-1]] for keys in EQUAL] == [entries[keys[0]] for keys in EQUAL]
    assert all(type(key) in [type(k) for keys in EQUAL if key in keys for k in keys] for key in again)
    for keys in EQUAL:
        assert entries.pop(keys[-1]) == again.pop(keys[0])
        backend._write_back(backend._all())
    assert list(entries) == list(again) == []
    assert backend.snapshot().groups == {}


def test_scalars_of_numpy_meet_what_they_equal_in_one_row() -> None:
    np = pytest.importorskip("numpy")
    equal = [
        (np.float32(0), -0.0, np.bool_(False), 0),
        (1.5, np.float16(1.5), np.float32(1.5), np.complex64(1.5)),
        (np.complex64(2 + 1j), 2 + 1j),
        (np.str_("a"), "a"),
        (b"a", np.bytes_(b"a")),
        ((np.float32(2), np.str_("b")), (2, "b")),
        (np.float32("inf"), float("inf")),
        (np.int64(3), 3.0, np.uint8(3)),
    ]
    for keys in equal:
        assert len({sluiceway_rocksdb._row_keys.row_key(key, 5)[0] for key in keys}) == 1, keys


def test_keys_of_one_hash_do_not_mix(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sluiceway_rocksdb._table, sluiceway_rocksdb._row_values):
        monkeypatch.setattr(module, "stable_hash", lambda key: 5)
    backend = make(cache=1)
    entries = backend.table(COUNT).entries()
    keys = [Place(i) for i in range(20)]
    for _ in range(2):
        for key in keys:
            entries[key] = entries.get(key, 0) + 1
            backend._write_back(backend._all())
    assert dict(entries) == dict.fromkeys(keys, 2)
    del entries[keys[3]]
    backend._write_back(backend._all())
    assert set(entries) == set(keys) - {keys[3]}
    again = make(restore=[KeyedSnapshot(s.tables, dict(s.groups)) for s in [backend.snapshot()]])
    assert dict(again.table(COUNT).entries()) == dict(entries)


def test_a_key_of_another_subtask_is_found_when_it_is_written(make: Make) -> None:
    backend = make(KeyGroupRange(0, 1))
    entries = backend.table(COUNT).entries()
    for key in range(100):
        entries[key] = 1
    with pytest.raises(StateError, match=r"state 'count' of operator 'uid-7' holds key \d+ of key group \d+, but"):
        dict(backend.snapshot().groups)


# -- snapshots ------------------------------------------------------------------------------------------------


def restored(make: Make, snapshot: KeyedSnapshot, descriptor: StateDescriptor = VALUE) -> dict[Any, Any]:
    return dict(make(restore=[snapshot]).table(descriptor).entries())


def test_a_snapshot_may_be_made_while_processing_goes_on(make: Make) -> None:
    backend = make(cache=200_000)
    table = backend.table(VALUE)
    entries, maps = table.entries(), backend.table(MAP)
    keys = [f"key{i}" for i in range(2_000)]
    for key in keys:
        entries[key] = [0]
        maps.mapping(key)["n"] = [0]
    for round_ in range(1, 4):
        snapshot = backend.snapshot()
        taken: list[Any] = []
        reader = Thread(target=lambda s=snapshot, t=taken: t.append(dict(s.groups)))
        reader.start()
        for key in keys:
            value = entries[key]
            value.append(round_)
            entries[key] = value
            inner = maps.mapping(key)["n"]
            inner.append(round_)
            maps.mapping(key)["n"] = inner
        reader.join()
        again = make(restore=[KeyedSnapshot(snapshot.tables, taken[0])])
        assert dict(again.table(VALUE).entries()) == {key: list(range(round_)) for key in keys}
        assert dict(again.table(MAP).mapping("key7")) == {"n": list(range(round_))}
        assert entries["key7"] == list(range(round_ + 1))
        snapshot.release()


def test_the_task_only_waits_for_a_snapshot_when_it_must_write(make: Make) -> None:
    backend = make(cache=1 << 20)
    entries = backend.table(COUNT).entries()
    for i in range(1_000):
        entries[i] = i
    snapshot = backend.snapshot()
    pending = backend._pending
    assert pending is not None
    for i in range(1_000):
        entries[i] += 1
    assert len(entries) == 1_000
    assert pending.state == "open"
    for i in range(20_000):
        entries[i] = -1
    assert pending.state == "done"
    assert restored(make, snapshot, COUNT) == {i: i for i in range(1_000)}
    assert set(entries.values()) == {-1}


def test_what_was_deleted_or_dropped_after_a_snapshot_is_in_it_and_gone(make: Make) -> None:
    for finish_first in (False, True):
        backend = make()
        table = backend.table(VALUE)
        for namespace in ("dropped", "again", "kept"):
            for key in "abc":
                table.entries(namespace)[key] = [namespace]
        stored = backend.snapshot()
        stored.groups.get(0)
        snapshot = backend.snapshot()
        if finish_first:
            dict(snapshot.groups)
        table.drop("dropped")
        table.drop("again")
        table.entries("again")["x"] = 1
        del table.entries("kept")["a"]
        assert sorted(map(str, table.namespaces())) == ["again", "kept"]
        assert dict(table.entries("again")) == {"x": 1}
        assert dict(table.entries("kept")) == {"b": ["kept"], "c": ["kept"]}
        last = backend.snapshot()
        then = make(restore=[snapshot]).table(VALUE)
        assert {n: dict(then.entries(n)) for n in then.namespaces()} == {
            n: {key: [n] for key in "abc"} for n in ("dropped", "again", "kept")
        }
        now = make(restore=[last]).table(VALUE)
        assert {n: dict(now.entries(n)) for n in now.namespaces()} == {
            "again": {"x": 1},
            "kept": {"b": ["kept"], "c": ["kept"]},
        }


def test_what_a_snapshot_alone_has_is_not_forgotten(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluiceway_rocksdb._backend, "_LEAST", 2)
    backend = make(cache=1)
    table = backend.table(COUNT)
    backend.table(MAP).mapping("a")["x"] = 1
    table.working(["a"])["a"] = 1
    snapshot = backend.snapshot()
    for _ in range(2):
        assert table.entries()["a"] == 1
        assert dict(backend.table(MAP).mapping("a")) == {"x": 1}  # for both there is no room
    assert list(table.namespaces()) == [VOID_NAMESPACE]
    snapshot.release()
    assert restored(make, backend.snapshot(), COUNT) == {"a": 1}


def test_a_snapshot_that_is_given_up_loses_nothing(make: Make) -> None:
    backend = make()
    entries = backend.table(VALUE).entries()
    entries.update(a=[1], b=[1], c=[1])
    snapshot = backend.snapshot()
    entries["a"] = [2]
    del entries["b"]
    snapshot.release()
    snapshot.release()
    with pytest.raises(StateError, match="of operator 'uid-7' was given up or released"):
        dict(snapshot.groups)
    assert dict(entries) == {"a": [2], "c": [1]}
    assert restored(make, backend.snapshot()) == {"a": [2], "c": [1]}


def test_what_was_removed_while_a_snapshot_was_there_that_is_given_up_stays_removed(make: Make) -> None:
    backend = make()
    entries = backend.table(VALUE).entries()
    entries.update(a=[1], b=[2])
    snapshot = backend.snapshot()
    assert entries["a"] == [1]
    del entries["a"]
    snapshot.release()
    assert ("a" in entries, len(entries), dict(entries)) == (False, 1, {"b": [2]})
    assert dict(backend.table(VALUE).working(["a", "b"])) == {"b": [2]}


def test_a_snapshot_that_fails_loses_nothing(make: Make) -> None:
    backend = make()
    entries = backend.table(VALUE).entries()
    entries.update({i: [i] for i in range(100)})
    entries["bad"] = lambda: None
    snapshot = backend.snapshot()
    with pytest.raises(SerializationError, match="state 'value' of operator 'uid-7', key 'bad'"):
        dict(snapshot.groups)
    entries["bad"] = "good"
    assert restored(make, backend.snapshot()) == {**{i: [i] for i in range(100)}, "bad": "good"}


def test_what_a_snapshot_that_failed_has_written_goes_with_its_namespace(make: Make) -> None:
    backend = make(cache=64 << 20)
    table = backend.table(VALUE)
    table.entries("dropped").update({i: [i] for i in range(20_000)})
    table.entries("kept")["good"] = 1
    table.entries("kept")["bad"] = lambda: None
    snapshot = backend.snapshot()
    with pytest.raises(SerializationError, match="key 'bad'"):
        dict(snapshot.groups)
    del table.entries("kept")["bad"]
    table.drop("dropped")
    assert list(table.namespaces()) == ["kept"]
    assert list(make(restore=[backend.snapshot()]).table(VALUE).namespaces()) == ["kept"]


def test_a_snapshot_outlives_its_backend(make: Make, tmp_path: Path) -> None:
    backend = make()
    backend.table(COUNT).entries()["a"] = 1
    snapshot = backend.snapshot()
    backend.close()
    assert restored(make, snapshot, COUNT) == {"a": 1}


def test_a_directory_goes_also_when_it_is_collected_while_another_is_made(tmp_path: Path) -> None:
    old = sluiceway_rocksdb._local_directories.new_place(str(tmp_path), "old")
    root = Path(old.path).parent
    assert root.exists()
    with sluiceway_rocksdb._local_directories._guard:
        del old  # as garbage is, in the thread that holds it
    sluiceway_rocksdb._local_directories.new_place(str(tmp_path), "new").remove()
    assert not list(tmp_path.iterdir())


def test_directories_go_with_what_they_are_for(make: Make, tmp_path: Path) -> None:
    backend = make(changes=0)
    backend.table(COUNT).entries()["a"] = 1
    one, two = backend.snapshot(), backend.snapshot()
    dict(one.groups), dict(two.groups)
    [root] = (tmp_path / "databases").iterdir()
    assert sorted(p.name.split("-")[0] for p in root.iterdir()) == [
        "database",
        "owner.lock",
        "snapshot",
        "snapshot",
    ]
    one.release()
    assert sorted(p.name.split("-")[0] for p in root.iterdir()) == ["database", "owner.lock", "snapshot"]
    del two
    gc.collect()
    backend.close()
    gc.collect()
    assert list((tmp_path / "databases").iterdir()) == []


def test_what_a_killed_process_has_left_is_removed(make: Make, tmp_path: Path) -> None:
    code = """
import os, signal, sys
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, ValueStateDescriptor
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions
context = BackendContext("u", 0, KeyGroupRange(0, 8), 8)
keyed = RocksDBStateBackend(RocksDBOptions(sys.argv[1])).create_keyed(context)
keyed.table(ValueStateDescriptor("a")).entries()["k"] = 1
dict(keyed.snapshot().groups)
os.kill(os.getpid(), signal.SIGKILL)
"""
    directory = tmp_path / "databases"
    assert subprocess.run([sys.executable, "-c", code, str(directory)]).returncode == -9
    [left] = directory.iterdir()
    other = tmp_path / "databases" / "somebody-elses"
    other.mkdir()
    backend = make()
    backend.table(COUNT).entries()["a"] = 1
    dict(backend.snapshot().groups)
    assert not left.exists()
    assert other.exists()


FULL_DISK = """
import resource, signal, sys
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, ValueStateDescriptor
from sluiceway_rocksdb._backend import RocksDBStateBackend
from sluiceway_rocksdb._options import RocksDBOptions
backend = RocksDBStateBackend(RocksDBOptions(sys.argv[1], compression="none"))
keyed = backend.create_keyed(BackendContext("u", 0, KeyGroupRange(0, 8), 8))
entries = keyed.table(ValueStateDescriptor("a")).entries()
entries["k"] = "small"
print(len(keyed.snapshot().groups))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
entries.update({i: "x" * 5000 for i in range(100)})
try:
    dict(keyed.snapshot().groups)
except Exception as error:
    print(type(error).__name__, error)
print(len(entries), entries["k"], {len(entries[i]) for i in range(100)})
keyed.close()
"""


def test_a_snapshot_on_a_full_disk_fails_and_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "databases")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, failed, kept = done.stdout.splitlines()
    assert first == "1"
    assert failed.startswith("StateError state backend 'rocksdb' cannot ")
    assert str(tmp_path / "databases") in failed
    assert failed.endswith("File too large")
    assert kept == "101 small {5000}"
    assert list((tmp_path / "databases").iterdir()) == []
