"""The memory state backend."""

import gc
import weakref
from copy import deepcopy
from dataclasses import dataclass

import pytest

from sluiceway.errors import SerializationError, StateError
from sluiceway.keygroups import KeyGroupRange, key_group
from sluiceway.serializers import decode_block, decode_blocks, serializer_for
from sluiceway.state import BackendContext, KeyedSnapshot, MapStateDescriptor, ValueStateDescriptor
from sluiceway.testing.conformance.state_backend import StateBackendConformance
from sluiceway_memory import sluiceway_state_backends
from sluiceway_memory._backend import MemoryStateBackend


class TestMemoryStateBackend(StateBackendConformance):
    big_value_bytes = 32 << 20

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


ODD = {"a list": [1], "of more than 64 bits": 2**70, "a lone surrogate": "\ud800", "a set in a tuple": (1, {2})}


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_value_or_key_among_many_plain_ones(odd):
    plain = {f"key {i}": (f"value {i}", i) for i in range(300)}
    for state in ({**plain, "odd": ODD[odd]}, {"odd": ODD[odd], **plain}):
        backend, again = keyed(), keyed()
        backend.table(ValueStateDescriptor("a")).entries().update(state)
        again.restore([backend.snapshot()])
        assert again.table(ValueStateDescriptor("a")).entries() == state
    for key in (2**70, "\ud800", (1, (2, 3))):
        backend, again = keyed(), keyed()
        backend.table(ValueStateDescriptor("a")).entries().update({**plain, key: 1})
        again.restore([backend.snapshot()])
        assert again.table(ValueStateDescriptor("a")).entries() == {**plain, key: 1}


def test_keys_that_come_and_go_between_snapshots():
    """What is known of the keys from the snapshot before is used for those that stay."""
    backend = keyed()
    entries = backend.table(ValueStateDescriptor("a")).entries()
    entries.update((key, key) for key in range(20_000))
    for change in (
        lambda: entries.update((key, (key, "new")) for key in range(20_000)),
        lambda: entries.pop(19_999),
        lambda: entries.pop(3),
        lambda: entries.update({"another": 1}),
        lambda: entries.clear(),
        lambda: entries.update(one=1),
    ):
        change()
        again = keyed()
        again.restore([backend.snapshot()])
        assert again.table(ValueStateDescriptor("a")).entries() == entries


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_rests_while_a_snapshot_is_made(enabled):
    """It would look at all state again and again, in the thread of the task maybe."""
    backend, seen = keyed(), []
    backend.table(ValueStateDescriptor("a")).entries().update(k=Slow(1), l=Slow(2))
    other = keyed()
    other.table(ValueStateDescriptor("a")).entries()["k"] = [1]
    snapshot, within = backend.snapshot(), other.snapshot()
    Slow.meanwhile[:] = [lambda: seen.append(gc.isenabled()), lambda: dict(within.groups)]
    if not enabled:
        gc.disable()
    try:
        dict(snapshot.groups)
        assert seen == [False], "not before the last of those that are being made at once is"
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    broken = keyed()
    broken.table(ValueStateDescriptor("a")).entries()["k"] = lambda: None
    with pytest.raises(SerializationError):
        dict(broken.snapshot().groups)
    assert gc.isenabled()


def test_the_garbage_collector_goes_on_after_a_restore():
    backend, again, broken = keyed(), keyed(), keyed()
    backend.table(ValueStateDescriptor("a")).entries()["k"] = [1]
    snapshot = backend.snapshot()
    for target in (again, broken):
        target.restore([snapshot])
    assert again.table(ValueStateDescriptor("a")).entries() == {"k": [1]}
    assert gc.isenabled()
    # Nobody but a test gets at it.
    [(meta, [(group, row)])] = broken._unclaimed.items()
    broken._unclaimed[meta] = [(group, row._replace(value=b"?"))]
    with pytest.raises(StateError, match="state 'a' of operator 'uid-7' cannot be restored"):
        broken.table(ValueStateDescriptor("a"))
    assert gc.isenabled()


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
    entries = table.entries("closed")
    backend.close()
    assert [ref() is None for ref in alive] == [True, True], "though ended operators still refer to their tables"
    assert entries == {}


def test_a_closed_backend_says_so():
    backend = keyed()
    backend.close()
    with pytest.raises(StateError, match="state of operator 'uid-7' is closed"):
        backend.table(ValueStateDescriptor("a"))


@dataclass
class Basket:
    owner: str
    items: list[int]


def taken_apart(snapshot):
    """How many keys there are in blocks, and in rows."""
    found = [decode_blocks(data) for data in snapshot.groups.values()]
    in_blocks = sum(len(decode_block(b, serializer_for(Basket))[0]) for _, blocks in found for b in blocks)
    return in_blocks, sum(len(rows) for rows, _ in found)


BASKETS = ValueStateDescriptor("baskets", Basket)


def test_values_of_a_declared_type_that_can_be_changed_are_in_blocks_too():
    backend, again = keyed(), keyed()
    backend.table(BASKETS).entries().update((n, Basket(f"owner {n}", [n])) for n in range(2_000))
    snapshot = backend.snapshot()
    assert taken_apart(snapshot) == (2_000, 0)
    again.restore([snapshot])
    assert again.table(BASKETS).entries() == backend.table(BASKETS).entries()


def test_what_was_handed_out_since_is_in_a_row_as_it_was():
    backend, again = keyed(), keyed()
    entries = backend.table(BASKETS).entries()
    entries.update((n, Basket(f"owner {n}", [n])) for n in range(2_000))
    entries[5] = Basket("no list", (1,))  # not of the type: those of its key group are rows
    snapshot = backend.snapshot()
    for n in range(0, 2_000, 10):
        entries[n].items.append(-1)
    group = sum(key_group(n, 128) == key_group(5, 128) for n in range(2_000))
    in_blocks, in_rows = taken_apart(snapshot)
    assert in_blocks + in_rows == 2_000
    assert 200 < in_rows <= 200 + group
    again.restore([snapshot])
    wanted = {n: Basket(f"owner {n}", [n]) for n in range(2_000)} | {5: Basket("no list", (1,))}
    assert again.table(BASKETS).entries() == wanted
