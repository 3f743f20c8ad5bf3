"""The state backend: the conformance suite, and what is its own."""

from __future__ import annotations

import pytest
from sluiceway.errors import StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import BackendContext, KeyedStateBackend, MapStateDescriptor, ValueStateDescriptor
from sluiceway.testing.conformance.state_backend import StateBackendConformance

from sluiceway_sqlite import SqliteStateBackend


class TestSqliteStateBackend(StateBackendConformance):
    def make_backend(self) -> SqliteStateBackend:
        return SqliteStateBackend()


def keyed(end: int = 128) -> KeyedStateBackend:
    return SqliteStateBackend().create_keyed(BackendContext("uid-7", 3, KeyGroupRange(0, end), 128))


def test_more_keys_than_a_page() -> None:
    backend = keyed()
    entries = backend.table(ValueStateDescriptor("a", int)).entries()
    for n in range(1700):
        entries[f"key {n}"] = n
    assert dict(entries) == {f"key {n}": n for n in range(1700)}
    backend.close()


def test_a_key_keeps_the_form_it_came_in() -> None:
    backend = keyed()
    entries = backend.table(ValueStateDescriptor("a")).entries()
    entries[1] = "one"
    entries[1.0] = "one again"
    assert list(map(repr, entries)) == ["1"]
    mapping = backend.table(MapStateDescriptor("m")).mapping("key")
    mapping[True] = "yes"
    mapping[1] = "still"
    assert list(map(repr, mapping.items())) == ["(True, 'still')"]
    backend.close()


def test_a_key_of_another_subtask_is_found_at_the_snapshot() -> None:
    backend = keyed(end=1)
    entries = backend.table(ValueStateDescriptor("a")).entries()
    for key in range(100):
        entries[key] = 1
    with pytest.raises(
        StateError, match="subtask 3 owns the groups 0 to 0: a key selector must give the same key"
    ):
        backend.snapshot()
    backend.close()


def test_the_wrong_accessor_names_the_table() -> None:
    backend = keyed()
    with pytest.raises(StateError, match="state 'a' of operator 'uid-7' is a value table and has no maps"):
        backend.table(ValueStateDescriptor("a")).mapping("k")
    with pytest.raises(StateError, match="state 'm' of operator 'uid-7' is a map table and has no values"):
        backend.table(MapStateDescriptor("m")).entries()
    backend.close()


def test_a_closed_backend_says_so() -> None:
    backend = keyed()
    backend.close()
    with pytest.raises(StateError, match="the state of operator 'uid-7' is closed"):
        backend.snapshot()
