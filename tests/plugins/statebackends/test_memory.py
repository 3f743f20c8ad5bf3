"""The memory state backend."""

import weakref

import pytest

from sluiceway.errors import StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, MapStateDescriptor, ValueStateDescriptor
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


def test_entries_are_a_real_dict():
    """What lets operators loop at the speed of a dict."""
    assert type(keyed().table(ValueStateDescriptor("a")).entries()) is dict


def test_a_key_of_another_subtask_is_found_at_the_snapshot():
    backend = keyed(0, 1)
    entries = backend.table(ValueStateDescriptor("a")).entries()
    for key in range(100):
        entries[key] = 1
    with pytest.raises(
        StateError, match=r"state 'a' of operator 'uid-7' holds key \d+ of key group \d+, but"
    ) as e:
        backend.snapshot()
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
