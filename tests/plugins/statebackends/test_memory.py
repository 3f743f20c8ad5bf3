"""The memory state backend."""

import weakref
from copy import deepcopy

import pytest

from sluiceway.errors import SerializationError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, KeyedSnapshot, MapStateDescriptor, ValueStateDescriptor
from sluiceway.testing.conformance.state_backend import StateBackendConformance
from sluiceway_memory import sluiceway_state_backends
from sluiceway_memory._backend import MemoryStateBackend


class TestMemoryStateBackend(StateBackendConformance):
    def make_backend(self):
        return MemoryStateBackend()


def keyed(start=0, end=128):
    return MemoryStateBackend().create_keyed(BackendContext("uid-7", 3, KeyGroupRange(start, end), 128))


def test_the_hook_offers_it():
    [offer] = sluiceway_state_backends()
    assert offer.name == "memory"
    assert offer.load() is MemoryStateBackend


def test_entries_are_looked_up_as_a_dict_is():
    """What lets operators loop at the speed of a dict, but for the time that a snapshot takes."""
    backend = keyed()
    entries = backend.table(ValueStateDescriptor("a")).entries()
    entries.update(a=[1], b=[2])
    names = ("get", "__getitem__", "__setitem__", "__iter__", "items", "pop")
    fast = [getattr(type(entries), name) is getattr(dict, name) for name in names]
    assert fast == [True] * 6
    snapshot, other = backend.snapshot(), backend.snapshot()
    assert type(entries).get is not dict.get
    assert type(entries).__setitem__ is dict.__setitem__
    dict(snapshot.groups)
    assert entries["a"] == [1]
    assert type(entries).get is not dict.get, "the other one is to be read yet"
    other.release()
    assert entries["a"] == [1]
    assert type(entries).get is dict.get


WAYS = {
    "get": lambda entries: entries.get("k"),
    "[]": lambda entries: entries["k"],
    "pop": lambda entries: entries.pop("k"),
    "popitem": lambda entries: entries.popitem()[1],
    "setdefault": lambda entries: entries.setdefault("k", []),
    "items": lambda entries: next(iter(entries.items()))[1],
    "values": lambda entries: next(iter(entries.values())),
    "dict": lambda entries: dict(entries)["k"],
    "copy": lambda entries: entries.copy()["k"],
    "**": lambda entries: {**entries}["k"],
    "|": lambda entries: (entries | {})["k"],
    "update": lambda entries: (other := {}, other.update(entries))[0]["k"],
    "list": lambda entries: list(entries.values()).pop(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_is_changed_after_a_snapshot_is_in_it_as_it_was(way):
    for value in ([1], ("a", [1]), {"x": [1]}):
        backend = keyed()
        entries = backend.table(ValueStateDescriptor("a")).entries()
        entries["k"] = deepcopy(value)
        snapshot = backend.snapshot()
        second = backend.snapshot()
        found = WAYS[way](entries)
        found = found[1] if type(found) is tuple else found["x"] if type(found) is dict else found
        found.append(2)
        for taken in (snapshot, second):
            again = keyed()
            again.restore([taken])
            assert again.table(ValueStateDescriptor("a")).entries() == {"k": value}


class Slow:
    """Something happens while it is pickled."""

    meanwhile = []  # noqa: RUF012

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        while self.meanwhile:
            self.meanwhile.pop()()
        return Slow, (self.number,)


def test_what_is_read_while_it_is_being_changed_is_as_it_was():
    """The reader comes in the middle of the change, as threads do."""

    backend = keyed()
    entries = backend.table(ValueStateDescriptor("a")).entries()
    entries["k"] = Slow(1)
    snapshot = backend.snapshot()
    Slow.meanwhile.append(lambda: setattr(entries["k"], "number", 2))
    groups = dict(snapshot.groups)
    again = keyed()
    again.restore([KeyedSnapshot(snapshot.tables, groups)])
    assert again.table(ValueStateDescriptor("a")).entries()["k"].number == 1
    assert entries["k"].number == 2


def test_a_released_snapshot_cannot_be_read():
    backend = keyed()
    backend.table(ValueStateDescriptor("a")).entries()["k"] = 1
    snapshot = backend.snapshot()
    snapshot.release()
    snapshot.release()
    with pytest.raises(StateError, match="the snapshot of the state of operator 'uid-7' was released"):
        dict(snapshot.groups)


def test_a_value_that_cannot_be_serialized_when_it_is_handed_out_fails_the_snapshot_and_not_the_task():
    backend = keyed()
    entries = backend.table(ValueStateDescriptor("a")).entries()
    entries["k"] = [lambda: None]
    snapshot = backend.snapshot()
    entries["k"].clear()
    with pytest.raises(SerializationError, match="state 'a' of operator 'uid-7', key 'k'"):
        dict(snapshot.groups)
    assert entries["k"] == []


def test_a_key_of_another_subtask_is_found_at_the_snapshot():
    backend = keyed(0, 1)
    entries = backend.table(ValueStateDescriptor("a")).entries()
    for key in range(100):
        entries[key] = 1
    with pytest.raises(
        StateError, match=r"state 'a' of operator 'uid-7' holds key \d+ of key group \d+, but"
    ) as e:
        dict(backend.snapshot().groups)
    assert "subtask 3 owns the groups 0 to 0: a key selector must give the same key" in str(e.value)


def test_the_wrong_accessor_names_the_table():
    backend = keyed()
    with pytest.raises(StateError, match=r"state 'a' of operator 'uid-7' is a value table.*it has no maps"):
        backend.table(ValueStateDescriptor("a")).mapping("k")
    with pytest.raises(StateError, match=r"state 'm' of operator 'uid-7' is a map table.*it has no values"):
        backend.table(MapStateDescriptor("m")).entries()


def test_an_unhashable_entry_leaves_no_empty_mapping_behind():
    table = keyed().table(MapStateDescriptor("m"))
    with pytest.raises(TypeError):
        table.mapping("k")[[1]] = 2
    assert list(table.keys()) == []


def test_what_is_dropped_or_closed_is_freed():
    class Big:
        pass

    backend = keyed()
    table = backend.table(ValueStateDescriptor("a"))
    alive = []
    for namespace in ("dropped", "closed"):
        value = table.entries(namespace)["k"] = Big()
        alive.append(weakref.ref(value))
        del value
    table.drop("dropped")
    assert [ref() is None for ref in alive] == [True, False]
    assert "dropped" not in table._namespaces, "windows come and go: not even an empty dict stays behind"
    del table
    backend.close()
    assert [ref() is None for ref in alive] == [True, True]


def test_a_closed_backend_says_so():
    backend = keyed()
    backend.close()
    with pytest.raises(StateError, match="state of operator 'uid-7' is closed"):
        backend.table(ValueStateDescriptor("a"))
