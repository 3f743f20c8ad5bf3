"""Map state as a mapping, list state as a list: what Python has for them, beside Flink's methods."""

from collections.abc import MutableMapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.clock import VirtualClock
from sluiceway.functions import BroadcastState
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.state import ListStateDescriptor, MapStateDescriptor
from sluiceway.state.ttl import StateTtlConfig


@pytest.fixture(params=[None, StateTtlConfig("1h")], ids=["kept", "expiring"])
def ttl(request):
    return request.param


@pytest.fixture
def store(backend):
    return KeyedStateStore(backend, VirtualClock())


def test_map_state_is_a_mapping(store, ttl):
    state = store.map_state(MapStateDescriptor("m", ttl=ttl))
    store.current_key = "k"
    assert isinstance(state, MutableMapping)
    assert not state
    assert len(state) == 0
    state["a"] = 1
    state.update({"b": 2}, c=3)
    state.update([("d", 4)])
    assert state["a"] == 1
    assert "b" in state
    assert "z" not in state
    assert list(state) == ["a", "b", "c", "d"]
    assert len(state) == 4
    assert state
    assert dict(state) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert state == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert dict(state.items()) == dict(zip(state.keys(), state.values(), strict=True))
    assert len(state.items()) == 4
    assert ("a", 1) in state.items()
    del state["a"]
    with pytest.raises(KeyError):
        del state["a"]
    with pytest.raises(KeyError):
        state["a"]
    assert state.pop("b") == 2
    assert state.pop("b", None) is None
    assert state.setdefault("c", 9) == 3
    assert state.setdefault("e", 9) == 9
    assert state.get("z", 5) == 5
    store.current_key = "other"
    assert not state
    assert "c" not in state


WORDS = st.sampled_from(["set", "del", "pop", "clear", "get"])
CALLS = st.lists(st.tuples(WORDS, st.integers(0, 4), st.integers()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CALLS)
def test_map_state_does_what_a_dict_does(new_backend, calls):
    store = KeyedStateStore(new_backend())
    state, model = store.map_state(MapStateDescriptor("m")), {}
    store.current_key = "k"
    for word, key, value in calls:
        for mapping in (state, model):
            if word == "set":
                mapping[key] = value
            elif word == "del" and key in mapping:
                del mapping[key]
            elif word == "pop":
                mapping.pop(key, None)
            elif word == "clear":
                mapping.clear()
        assert (state.get(key), len(state), list(state.items())) == (model.get(key), len(model), [*model.items()])


def test_a_value_of_none_is_an_entry(store):
    state = store.map_state(MapStateDescriptor("m"))
    store.current_key = "k"
    state["a"] = None
    assert state["a"] is None
    assert "a" in state
    assert len(state) == 1


def test_list_state_is_iterable(store, ttl):
    state = store.list_state(ListStateDescriptor("l", ttl=ttl))
    store.current_key = "k"
    assert not state
    assert list(state) == []
    state.append(1)
    state.extend([2, 3])
    assert list(state) == [1, 2, 3]
    assert len(state) == 3
    assert state[0] == 1
    assert state[-1] == 3
    assert state[1:] == [2, 3]
    assert 2 in state
    assert 9 not in state
    with pytest.raises(IndexError):
        state[3]
    store.current_key = "other"
    assert len(state) == 0


def test_what_has_expired_is_not_counted(backend):
    clock = VirtualClock()
    store = KeyedStateStore(backend, clock)
    ttl = StateTtlConfig("1s")
    items, entries = (
        store.list_state(ListStateDescriptor("l", ttl=ttl)),
        store.map_state(MapStateDescriptor("m", ttl=ttl)),
    )
    store.current_key = "k"
    items.append(1)
    entries["a"] = 1
    clock.advance(600)
    items.append(2)
    entries["b"] = 2
    clock.advance(600)
    assert (len(items), list(items)) == (1, [2])
    assert (len(entries), list(entries), "a" in entries) == (1, ["b"], False)


def test_broadcast_state_is_a_mutable_mapping():
    assert issubclass(BroadcastState, MutableMapping)
