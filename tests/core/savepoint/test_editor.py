"""Savepoints made of others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.checkpoint import StateReader, read_in_flight, read_operators
from sluiceway.errors import DeclaredTypeError, StateError, UnknownNameError
from sluiceway.keygroups import key_group, subtask_for_key_group
from sluiceway.network.channel_state import RECEIVED, EdgeName, InFlight
from sluiceway.operators import OperatorSnapshot
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.operators.keyed_timers import TIMERS
from sluiceway.operators.operator_state import ListMode, ListSnapshot
from sluiceway.savepoint import edit, read, write
from sluiceway.serializers import KEY_SERIALIZER, decode_rows
from sluiceway.state import KeyedSnapshot
from sluiceway_filesystem._local import LocalStorage

pytest.importorskip("pyarrow")

COUNT = sw.ValueStateDescriptor("count", int)
SEEN = sw.ListStateDescriptor("seen", int, ttl=sw.StateTtlConfig("1h"))
PAGES = sw.MapStateDescriptor("pages", int, key_type=str)
KEYS = [f"key {number}" for number in range(20)]

IN_FLIGHT = [
    InFlight(EdgeName("words", "counts"), "hash", 0, consumer, 2, 128, RECEIVED, frames, 5, "msgspec", 1)
    for consumer, frames in enumerate([[b"ab", b"c"], [b"de"]])
]

both = pytest.mark.parametrize("backend", ["memory", "rocksdb"], indirect=True)


@dataclass(frozen=True)
class Shop:
    town: str


class Evil:
    """Must not be unpickled by whoever copies it."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


@pytest.fixture
def old(keyed: Callable[..., KeyedSnapshot], save: Callable[..., str]) -> str:
    """A checkpoint of two subtasks with all sorts of state."""
    parts = []
    for subtask in range(2):

        def fill(store: KeyedStateStore, subtask: int = subtask) -> None:
            for number, key in enumerate(KEYS):
                if subtask_for_key_group(key_group(key, 128), 2, 128) == subtask:
                    store.current_key = key
                    store.value_state(COUNT).update(number)
                    store.list_state(SEEN).add_all([number, 7])
                    store.map_state(PAGES).put_all({"/": number, "/x": 1})
                    store.value_state(sw.ValueStateDescriptor("evil")).update(Evil())
                    store.value_state(TIMERS).update([(True, number, ())])

        offsets = ListSnapshot("offsets", ListMode.SPLIT, "msgspec", 1, "int", subtask, 2, (b"\x05",), "int")
        rules = OperatorSnapshot(
            "rules", lists=(offsets,), broadcast={"a": {1: Evil()}, "b": {2: 3}}, splits=(Evil(),)
        )
        parts.append([OperatorSnapshot("visits", keyed=keyed(fill, subtask, 2)), rules])
    return save(*parts, attachments={"records": b"abc"})


@pytest.fixture
def unaligned(save: Callable[..., str]) -> str:
    """A checkpoint of two subtasks with records in flight from one step to another."""
    parts = [[OperatorSnapshot("words", splits=(5,)), OperatorSnapshot("counts")] for _ in range(2)]
    return save(*parts, in_flight=IN_FLIGHT)


@pytest.fixture
def new(tmp_path: Path) -> Iterator[str]:
    return str(tmp_path / "new")  # type: ignore[return-value]


def contents(location: str) -> dict[tuple[str, str], list[Any]]:
    return {(table.uid, table.name): sorted(table.rows(), key=repr) for table in read(location).tables()}


def counts(location: str) -> dict[str, int]:
    return {row["key"]: row["value"] for row in read(location)["visits"]["count"].rows()}


@both
def test_what_is_not_named_is_copied_unread(old: str, new: str) -> None:
    with edit(old, new):
        pass
    assert contents(new) == contents(old)
    found = read(new)
    assert (found.metadata.kind, found.metadata.job_name) == ("savepoint", "job")
    assert found["visits"].parallelism == 2
    files = found.metadata.files()
    assert all("/" not in file for file in files)
    assert files == {path.name for path in Path(new).iterdir()} - {"metadata.json"}


@both
def test_a_state_is_transformed(old: str, new: str) -> None:
    with edit(old, new) as savepoint:
        left = savepoint.transform("visits", COUNT, lambda key, count: count * 10 if count % 2 else None)
    assert left == 10
    assert counts(new) == {key: number * 10 for number, key in enumerate(KEYS) if number % 2}
    before, after = contents(old), contents(new)
    for name in (("visits", "seen"), ("visits", "pages"), ("visits", "timers"), ("rules", "offsets")):
        assert after[name] == before[name]


def test_lists_and_maps_are_transformed(old: str, new: str) -> None:
    with edit(old, new) as savepoint:
        savepoint.transform("visits", SEEN, lambda key, seen: [*seen, 8] if key == KEYS[3] else seen)
        savepoint.transform("visits", PAGES, lambda key, pages: {**pages, "/new": 5} if key == KEYS[3] else {})
    found = read(new)["visits"]
    mine = [row for row in found["seen"].rows() if row["key"] == KEYS[3]]
    assert [row["value"] for row in mine] == [3, 7, 8]
    assert {row["touched_at"].timestamp() for row in mine} == {5.0}
    assert [(row["map_key"], row["value"]) for row in found["pages"].rows()] == [("/", 3), ("/x", 1), ("/new", 5)]


def test_a_type_is_changed_on_the_way(old: str, new: str) -> None:
    wider = sw.ValueStateDescriptor("count", float)
    with edit(old, new) as savepoint:
        savepoint.transform("visits", wider, lambda key, count: count / 2)
    assert read(new)["visits"]["count"].type == "float"
    assert counts(new) == {key: number / 2 for number, key in enumerate(KEYS)}


@pytest.mark.parametrize(
    ("descriptor", "made", "says"),
    [
        (COUNT, "1", "state 'count' is declared as int, and '1' of type str was written"),
        (SEEN, ["1"], "the elements of state 'seen' are declared as int, and '1' of type str was written"),
        (SEEN, 5, "state 'seen' of operator 'visits' .* returned 5 for key 'key .*'. Return a list, or None"),
        (PAGES, {1: 1}, "the keys of state 'pages' are declared as str, and 1 of type int was written"),
        (PAGES, [1], "state 'pages' of operator 'visits' .* Return a dict, or None"),
    ],
)
def test_results_are_what_the_state_may_hold(old: str, new: str, descriptor: Any, made: Any, says: str) -> None:
    with pytest.raises((DeclaredTypeError, StateError), match=says), edit(old, new) as savepoint:
        savepoint.transform("visits", descriptor, lambda key, value: made)
    assert not Path(new).exists()


def test_lists_are_made_of_any_iterable(tmp_path: Path, new: str) -> None:
    listed = sw.ListStateDescriptor("listed", int)
    with write(str(tmp_path / "old")) as savepoint:
        savepoint.put("op", listed, [("a", 3), ("a", 1), ("b", 5)], key=0, value=1)
    with edit(savepoint.location, new) as savepoint:
        assert savepoint.transform("op", listed, lambda key, held: tuple(n for n in sorted(held) if n < 5)) == 1
    assert [(row.key, row.value) for row in sw.read_state(new)] == [("a", [1, 3])]


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_state_is_replaced(old: str, new: str, kind: str) -> None:
    with edit(old, new, backend=kind) as savepoint:
        savepoint.transform("visits", SEEN, lambda key, seen: seen[:1])
        savepoint.put("visits", sw.ValueStateDescriptor("count", str), [("x", "one")], key=0, value=1)
        savepoint.put("visits", sw.ValueStateDescriptor("count", str), [("y", "two")], key=0, value=1)
        savepoint.put("visits", sw.ValueStateDescriptor("more", int), [("y", 2)], key=0, value=1)
        savepoint.put("fresh", COUNT, [("z", 3)], key=0, value=1)
    assert counts(new) == {"x": "one", "y": "two"}
    found = read(new)
    assert [row["value"] for row in found["visits"]["more"].rows()] == [2]
    assert [row["value"] for row in found["fresh"]["count"].rows()] == [3]
    assert sorted(row["value"] for row in found["visits"]["seen"].rows()) == list(range(20))
    assert found["fresh"].max_parallelism == 128


def test_operators_and_states_are_removed(old: str, new: str) -> None:
    with edit(old, new) as savepoint:
        savepoint.remove("visits", "evil")
        savepoint.remove("visits", "timers")
        savepoint.transform("visits", COUNT, lambda key, count: count)
        savepoint.remove("visits", "pages")
        savepoint.remove("rules", "a")
        savepoint.remove("rules", "offsets")
    assert set(contents(new)) == {("visits", "count"), ("visits", "seen"), ("rules", "b"), ("rules", "splits")}
    with edit(new, new + "er") as savepoint:
        savepoint.remove("rules")
    assert set(contents(new + "er")) == {("visits", "count"), ("visits", "seen")}


def test_an_operator_is_removed_and_made_anew(old: str, new: str) -> None:
    with edit(old, new) as savepoint:
        savepoint.remove("visits")
        savepoint.put("visits", COUNT, [("x", 1)], key=0, value=1)
    assert contents(new)["visits", "count"] == [{"key": "x", "value": 1}]
    assert list(read(new)["visits"].states) == ["count"]


def test_an_operator_gets_another_uid(old: str, new: str) -> None:
    with edit(old, new) as savepoint:
        savepoint.transform("visits", COUNT, lambda key, count: count + 1)
        savepoint.rename("visits", "calls")
        with pytest.raises(StateError, match="'rules' cannot be renamed: another operator has the uid 'calls'"):
            savepoint.rename("rules", "calls")
    assert set(read(new).operators) == {"calls", "rules"}
    [vertex] = read(new).metadata.vertices
    assert [step.uid for step in vertex.steps] == ["calls", "rules"]
    assert vertex.uid == "calls"


def test_a_new_uid_is_none_that_put_knows(old: str, new: str) -> None:
    with edit(old, new) as savepoint:
        savepoint.rename("visits", "calls")
        for put in (
            lambda: savepoint.put("calls", COUNT, [("x", 1)], key=0, value=1),
            lambda: savepoint.put_timers("calls", [("x", 1, "event time")], key=0, at=1, domain="event time"),
        ):
            with pytest.raises(StateError, match="give put\\(\\) its old uid, 'visits'"):
                put()
        savepoint.put("visits", COUNT, [("x", 1)], key=0, value=1)
    assert set(read(new).operators) == {"calls", "rules"}
    assert contents(new)["calls", "count"] == [{"key": "x", "value": 1}]


def test_state_of_a_step_that_had_none_gets_its_new_uid(new: str, save: Callable[..., str]) -> None:
    old = save([OperatorSnapshot("visits")], stateless=["enrich"])
    with edit(old, new) as savepoint:
        savepoint.rename("enrich", "joined")
        savepoint.put("enrich", COUNT, [("x", 1)], key=0, value=1)
    assert contents(new) == {("joined", "count"): [{"key": "x", "value": 1}]}


@pytest.mark.parametrize("state", ["offsets", "a"])
def test_state_without_keys_is_not_changed(old: str, new: str, state: str) -> None:
    offsets = sw.ValueStateDescriptor(state, int)
    with edit(old, new) as savepoint:
        says = f"state '{state}' of operator 'rules' is not kept by key"
        with pytest.raises(StateError, match=says):
            savepoint.transform("rules", offsets, lambda key, value: value)
        with pytest.raises(StateError, match=says):
            savepoint.put("rules", offsets, [("x", 1)], key=0, value=1)
    assert contents(new).keys() == contents(old).keys()


@pytest.mark.parametrize("groups", [None, 7])
def test_records_in_flight_are_copied(unaligned: str, new: str, groups: int | None) -> None:
    with edit(unaligned, new, max_parallelism=groups) as savepoint:
        savepoint.rename("words", "lines")
    assert (read(unaligned).in_flight, read(new).in_flight) == ({"words": 13}, {"lines": 13})
    shutil.rmtree(unaligned)
    found = read_in_flight(LocalStorage(str(Path(new).parent)), "new", read(new).metadata)
    assert {part.edge for part in found} == {EdgeName("lines", "counts")}
    assert [list(part.frames) for part in found] == [[b"ab", b"c"], [b"de"]]
    assert {(part.partitioner, part.consumers, part.max_parallelism) for part in found} == {("hash", 2, 128)}


@pytest.mark.parametrize("uid", ["words", "counts"])
def test_neither_end_of_records_in_flight_is_removed(unaligned: str, new: str, uid: str) -> None:
    says = f"operator '{uid}' cannot be removed: .*/chk-1 is .* in flight from 'words' to 'counts'"
    with pytest.raises(StateError, match=says), edit(unaligned, new) as savepoint:
        savepoint.remove(uid)
    assert not Path(new).exists()


def test_what_is_not_there_is_named(old: str, new: str) -> None:
    savepoint = edit(old, new)
    cuont = sw.ValueStateDescriptor("cuont")
    for wrong in (savepoint.remove, lambda uid: savepoint.transform(uid, COUNT, print)):
        with pytest.raises(
            UnknownNameError, match=r"with the uid 'vists' in the checkpoint\. Did you mean 'visits'\?"
        ):
            wrong("vists")
    with pytest.raises(UnknownNameError, match=r"state 'cuont' of step 'visits'\. Did you mean 'count'\?"):
        savepoint.remove("visits", "cuont")
    with pytest.raises(UnknownNameError, match=r"state 'cuont' of step 'visits'\. Did you mean 'count'\?"):
        savepoint.transform("visits", cuont, print)
    assert not Path(new).exists()


@both
@pytest.mark.parametrize("groups", [7, 512])
def test_key_groups_are_others(old: str, new: str, groups: int) -> None:
    with edit(old, new, max_parallelism=groups) as savepoint:
        savepoint.transform("visits", SEEN, lambda key, seen: seen)
        savepoint.put("fresh", COUNT, [("z", 3)], key=0, value=1)
    expected = contents(old) | {("fresh", "count"): [{"key": "z", "value": 3}]}
    assert contents(new) == expected
    found = read(new)
    assert {operator.max_parallelism for operator in found} == {groups}
    check_groups(new, groups)


def test_a_state_in_two_forms_stays_so_in_other_key_groups(
    keyed: Callable[..., KeyedSnapshot], save: Callable[..., str], new: str
) -> None:
    @dataclass
    class Count:
        n: int

    before = Count(0)

    @dataclass
    class Count:  # type: ignore[no-redef]
        n: int
        note: str = "-"

    keys: list[str] = []
    parts: list[list[OperatorSnapshot]] = []
    for subtask, count in enumerate((before, Count(1))):
        keys.append(next(key for key in KEYS if subtask_for_key_group(key_group(key, 128), 2, 128) == subtask))

        def fill(store: KeyedStateStore, key: str = keys[-1], count: Any = count) -> None:
            store.current_key = key
            store.value_state(sw.ValueStateDescriptor("count", type(count))).update(count)

        parts.append([OperatorSnapshot("visits", keyed=keyed(fill, subtask, 2))])
    with edit(save(*parts), new, max_parallelism=256):
        pass
    found = read(new)["visits"]["count"].to_arrow().to_pylist()
    assert {row["key"]: (row["n"], row["note"]) for row in found} == {keys[0]: (0, None), keys[1]: (1, "-")}
    check_groups(new, 256)


def test_raw_keyed_state_stays_in_its_key_groups(new: str, save: Callable[..., str]) -> None:
    raw = ListSnapshot("raw keyed state", ListMode.RAW_KEYED, "msgspec", 1, "tuple[int, bytes]", 0, 1, (b"x",))
    old = save([OperatorSnapshot("sketch", lists=(raw,))])
    says = r"state of operator 'sketch' cannot .* into 7 .* 128, or remove\('sketch', 'raw keyed state'\)"
    with pytest.raises(StateError, match=says), edit(old, new, max_parallelism=7):
        pass
    assert not Path(new).exists()
    with edit(old, new, max_parallelism=7) as savepoint:
        savepoint.remove("sketch", "raw keyed state")
    assert contents(new) == {}
    with edit(old, new + "er", max_parallelism=128):
        pass
    assert read(new + "er").metadata.vertices[0].subtasks[0].operators[0].lists[0].elements is not None


def check_groups(location: str, count: int) -> None:
    """Every key is in the key group where a job looks for it."""
    reader = StateReader(LocalStorage(str(Path(location).parent)), Path(location).name)
    metadata = read(location).metadata
    for operator in (o for v in metadata.vertices for s in v.subtasks for o in s.operators):
        for group, data in reader.keyed(operator.uid, operator.keyed).groups.items() if operator.keyed else ():
            assert {key_group(KEY_SERIALIZER.loads(row.key), count) for row in decode_rows(data)} == {group}


def test_blocks_of_many_keys_are_divided_anew(new: str, tmp_path: Path) -> None:
    with write(str(tmp_path / "plain")) as savepoint:
        savepoint.put("op", COUNT, [(("k", n), n) for n in range(5_000)], key=0, value=1)
    with edit(savepoint.location, new, max_parallelism=300):
        pass
    rows = {row["key_1"]: row["value"] for row in read(new)["op"]["count"].rows()}
    assert rows == {n: n for n in range(5_000)}
    check_groups(new, 300)


def test_keys_of_classes_are_unpickled_only_where_that_is_allowed(new: str, tmp_path: Path) -> None:
    with write(str(tmp_path / "plain")) as savepoint:
        savepoint.put("op", COUNT, [(Shop("here"), 1)], key=0, value=1)
    with pytest.raises(StateError, match=r"operator 'op' has a key of class Shop, .* allow_pickle=True\)"):
        edit(savepoint.location, new, max_parallelism=3).__exit__(None, None, None)
    assert not Path(new).exists()
    with edit(savepoint.location, new, max_parallelism=3, allow_pickle=True):
        pass
    assert read(new)["op"].max_parallelism == 3


def test_the_old_one_may_be_removed_then(old: str, new: str) -> None:
    with edit(old, new) as savepoint:
        savepoint.transform("visits", COUNT, lambda key, count: count)
        savepoint.remove("rules")
    shutil.rmtree(old)
    metadata = read(new).metadata
    storage = LocalStorage(str(Path(new).parent))
    snapshots = read_operators(storage, "new", metadata)
    assert {snapshot.uid for snapshot in snapshots} == {"visits"}
    assert sum(len(snapshot.keyed.groups) for snapshot in snapshots if snapshot.keyed is not None) > 0
