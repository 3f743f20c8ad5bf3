"""The five kinds of keyed state, over a backend that is a pair of dicts."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from sluiceway.errors import StateError, UnstableKeyError
from sluiceway.functions import AggregateFunction, ReduceFunction
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)


def add(a, b):
    return a + b


class Adding(ReduceFunction[int]):
    def reduce(self, value1, value2):
        return value1 + value2


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


def all_five(store):
    """A handle of each kind with something that reads it and something that writes it."""
    value = store.value_state(ValueStateDescriptor("value"))
    items = store.list_state(ListStateDescriptor("list"))
    mapping = store.map_state(MapStateDescriptor("map"))
    total = store.reducing_state(ReducingStateDescriptor("reducing", reduce=add))
    mean = store.aggregating_state(AggregatingStateDescriptor("aggregating", aggregate=Mean()))
    return [
        ("value", value, value.value, lambda: value.update(1)),
        ("list", items, items.get, lambda: items.add(1)),
        ("map", mapping, lambda: list(mapping.items()), lambda: mapping.put("a", 1)),
        ("reducing", total, total.get, lambda: total.add(1)),
        ("aggregating", mean, mean.get, lambda: mean.add(1)),
    ]


# ---- each kind ---------------------------------------------------------------------------------------------


def test_value_state(store):
    state = store.value_state(ValueStateDescriptor("s", int | None, default=7))
    store.current_key = "a"
    assert state.value() == 7
    state.update(1)
    store.current_key = "b"
    assert state.value() == 7
    state.update(None)
    assert state.value() is None, "None is a value"
    store.current_key = "a"
    assert state.value() == 1
    state.clear()
    state.clear()
    assert state.value() == 7


def test_state_is_not_taken_for_what_it_holds(store):
    for state, method in (
        (store.value_state(ValueStateDescriptor("seen", bool)), "value"),
        (store.reducing_state(ReducingStateDescriptor("sum", reduce=add)), "get"),
    ):
        with pytest.raises(TypeError, match=rf"State is neither true nor false: call {method}\(\)"):
            bool(state)
        with pytest.raises(AttributeError):
            state.value = 5


def test_a_default_that_can_change_is_each_keys_own(store, backend):
    default = {"seen": []}
    state = store.value_state(ValueStateDescriptor("s", default=default))
    for key in ("a", "b"):
        store.current_key = key
        value = state.value()
        assert value == {"seen": []}
        value["seen"].append(key)
    assert default == {"seen": []}
    for key in ("a", "b"):
        store.current_key = key
        assert state.value() == {"seen": [key]}
    store.clear_current_key()
    for key in ("a", "b"):
        store.current_key = key
        assert state.value() == {"seen": [key]}, "what was changed in place is kept"
    store.current_key = "c"
    state.value()
    store.clear_current_key()
    assert dict(backend.tables["s"].entries()) == {"a": {"seen": ["a"]}, "b": {"seen": ["b"]}}


def test_what_was_changed_in_place_is_kept_while_the_program_handles_an_exception(new_backend):
    """As where ``run()`` is called in an ``except`` block, such as without the state that another run refused."""
    try:
        raise LookupError("of the program")
    except LookupError:
        backend = new_backend()
        store = KeyedStateStore(backend)
        state = store.value_state(ValueStateDescriptor("s", default={"seen": []}))
        store.current_key = "a"
        state.value()["seen"].append(1)
        store.clear_current_key()
        assert dict(backend.tables["s"].entries()) == {"a": {"seen": [1]}}
        store.current_key = "b"
        state.value()["seen"].append(2)
        try:
            raise ValueError("of a function")
        except ValueError:
            store.clear_current_key()
        assert dict(backend.tables["s"].entries()) == {"a": {"seen": [1]}}, "another error must not hide this one"


def test_list_state(store, backend):
    state = store.list_state(ListStateDescriptor("s"))
    entries = backend.tables["s"].entries()
    store.current_key = "a"
    assert state.get() == []
    state.add_all([])
    assert len(entries) == 0, "no list is kept where it would be empty"
    state.update([])
    assert len(entries) == 0
    state.add(1)
    state.add_all(iter([2, 3]))
    store.current_key = "b"
    state.update(x for x in [9])
    state.update([8, 7])
    store.current_key = "a"
    assert state.get() == [1, 2, 3]
    state.get().append(4)
    assert state.get() == [1, 2, 3], "what get() gives is a list of its own"
    state.update([])
    assert state.get() == []
    assert dict(entries.data) == {"b": [8, 7]}
    store.current_key = "b"
    state.clear()
    assert len(entries) == 0


def test_a_given_list_is_not_kept(store):
    state = store.list_state(ListStateDescriptor("s"))
    store.current_key = "a"
    for put in (state.update, state.add_all):
        given = [1]
        state.clear()
        put(given)
        given.append(2)
        assert state.get() == [1]


def test_map_state(store):
    state = store.map_state(MapStateDescriptor("s", int, key_type=str))
    store.current_key = "a"
    assert state.is_empty()
    assert state.get("x") is None
    assert state.get("x", 5) == 5
    assert not state.contains("x")
    state.put("x", 1)
    state.put_all({"y": 2, "z": 3})
    state.put("x", 4)
    store.current_key = "b"
    assert state.is_empty()
    state.put_all({"x": 9})
    store.current_key = "a"
    assert state.contains("x")
    assert list(state.items()) == [("x", 4), ("y", 2), ("z", 3)]
    assert list(state.keys()) == ["x", "y", "z"]
    assert list(state.values()) == [4, 2, 3]
    state.remove("y")
    state.remove("never there")
    assert list(state.keys()) == ["x", "z"]
    state.clear()
    assert state.is_empty()
    store.current_key = "b"
    assert state.get("x") == 9


def test_a_mapping_is_looked_for_once_per_key(store, backend):
    state = store.map_state(MapStateDescriptor("s"))
    for key in ("a", "b", "a"):
        store.current_key = key
        state.put("x", 1)
        state.get("x")
        list(state.items())
    assert backend.tables["s"].mappings_made == 3


@pytest.mark.parametrize("reduce", [add, Adding()], ids=["callable", "object"])
def test_reducing_state(store, reduce):
    state = store.reducing_state(ReducingStateDescriptor("s", int, reduce=reduce))
    store.current_key = "a"
    assert state.get() is None
    state.add(1)
    assert state.get() == 1
    state.add(2)
    store.current_key = "b"
    state.add(10)
    store.current_key = "a"
    assert state.get() == 3
    state.clear()
    assert state.get() is None


def test_a_reduction_to_none_is_a_value(store):
    state = store.reducing_state(ReducingStateDescriptor("s", reduce=lambda a, b: None if a else b))
    store.current_key = "a"
    state.add(1)
    state.add(2)
    assert state.get() is None
    state.add(3)
    assert state.get() == 3


def test_aggregating_state(store):
    state = store.aggregating_state(AggregatingStateDescriptor("s", tuple[int, int], aggregate=Mean()))
    store.current_key = "a"
    assert state.get() is None
    state.add(1)
    state.add(4)
    store.current_key = "b"
    state.add(7)
    assert state.get() == 7
    store.current_key = "a"
    assert state.get() == 2.5
    state.clear()
    assert state.get() is None


def test_namespaces_are_apart(store):
    a, b = (store.value_state(ValueStateDescriptor("s", default=0), namespace=n) for n in ("a", "b"))
    m, n = (store.map_state(MapStateDescriptor("m"), namespace=n) for n in ("a", "b"))
    store.current_key = 1
    a.update("in a")
    m.put("x", "in a")
    assert (a.value(), b.value(), m.get("x"), n.get("x")) == ("in a", 0, "in a", None)


def test_the_same_descriptor_gives_an_equivalent_handle(store):
    store.current_key = "a"
    first, second = all_five(store), all_five(store)
    for (_, _, _, write), (_, handle, read, _) in zip(first, second, strict=True):
        write()
        assert read() in (1, [1], [("a", 1)])
        handle.clear()
    for _, _, read, _ in first:
        assert read() in (None, [])


# ---- against a model ---------------------------------------------------------------------------------------


class Kinds(RuleBasedStateMachine):
    keys = st.sampled_from(["a", "b", 1])
    numbers = st.integers(0, 3)

    def __init__(self, backend):
        super().__init__()
        self.store = KeyedStateStore(backend)
        self.value = self.store.value_state(ValueStateDescriptor("value", default=-1))
        self.items = self.store.list_state(ListStateDescriptor("list"))
        self.mapping = self.store.map_state(MapStateDescriptor("map"))
        self.total = self.store.reducing_state(ReducingStateDescriptor("sum", reduce=add))
        self.values, self.lists, self.maps, self.sums = {}, {}, {}, {}
        self.key = self.store.current_key = "a"

    @rule(key=keys)
    def go_to(self, key):
        self.key = self.store.current_key = key

    @rule(n=numbers)
    def update(self, n):
        self.value.update(n)
        self.values[self.key] = n

    @rule(some=st.lists(numbers, max_size=2), replace_it=st.booleans())
    def extend(self, some, replace_it):
        if replace_it:
            self.items.update(some)
            self.lists[self.key] = list(some)
        else:
            self.items.add_all(some)
            self.lists.setdefault(self.key, []).extend(some)

    @rule(name=numbers, n=numbers)
    def put(self, name, n):
        self.mapping.put(name, n)
        self.maps.setdefault(self.key, {})[name] = n

    @rule(name=numbers)
    def remove(self, name):
        self.mapping.remove(name)
        self.maps.get(self.key, {}).pop(name, None)

    @rule(n=numbers)
    def add_to_sum(self, n):
        self.total.add(n)
        self.sums[self.key] = self.sums.get(self.key, 0) + n

    @rule(kind=st.integers(0, 3))
    def clear(self, kind):
        (self.value, self.items, self.mapping, self.total)[kind].clear()
        (self.values, self.lists, self.maps, self.sums)[kind].pop(self.key, None)

    @invariant()
    def agrees(self):
        for key in ("a", "b", 1):
            self.store.current_key = key
            assert self.value.value() == self.values.get(key, -1)
            assert self.items.get() == self.lists.get(key, [])
            assert list(self.mapping.items()) == list(self.maps.get(key, {}).items())
            assert self.mapping.is_empty() == (not self.maps.get(key))
            assert self.total.get() == self.sums.get(key)
        self.store.current_key = self.key


def test_the_kinds_agree_with_pythons_own_collections(new_backend):
    run_state_machine_as_test(
        lambda: Kinds(new_backend()), settings=settings(max_examples=50, stateful_step_count=20, deadline=None)
    )


# ---- the current key ---------------------------------------------------------------------------------------


def test_state_without_a_current_key_is_an_error_that_names_the_state(store):
    for cleared in (False, True):
        if cleared:
            store.current_key = "a"
            store.clear_current_key()
            store.clear_current_key()
        for name, handle, read, write in all_five(store):
            for use in (read, write, handle.clear):
                with pytest.raises(StateError, match=f"^keyed state '{name}' is used without a current key.*open"):
                    use()


def test_an_unhashable_key_is_an_error_that_names_the_key(store):
    for _, handle, read, write in all_five(store):
        store.current_key = "another"
        write()
        store.current_key = ["x"]
        for use in (read, write, handle.clear):
            with pytest.raises(UnstableKeyError, match=r"^\['x'\] \(list\) cannot be a key"):
                use()


def test_an_unhashable_key_is_found_where_the_backend_does_not_look(store, backend):
    state = store.map_state(MapStateDescriptor("map"))
    backend.tables["map"].mapping = lambda key, namespace: {}
    store.current_key = ["x"]
    with pytest.raises(UnstableKeyError, match=r"^\['x'\] \(list\) cannot be a key"):
        state.get("a")


class ByAddress:
    pass


def test_every_key_of_a_mapping_is_checked(store):
    state = store.map_state(MapStateDescriptor("map"))
    for put in (lambda: state.put("x", 1), lambda: state.put_all({"x": 1})):
        store.current_key = "a"
        put()
        store.current_key = ByAddress()
        with pytest.raises(UnstableKeyError, match="hashed by its address"):
            put()


def test_a_key_without_a_stable_hash_is_refused_when_it_would_get_state(store, backend):
    store.current_key = ByAddress()
    mapping = store.map_state(MapStateDescriptor("map"))
    for _, _, read, write in all_five(store):
        read()
        with pytest.raises(UnstableKeyError, match="hashed by its address"):
            write()
    with pytest.raises(UnstableKeyError, match="hashed by its address"):
        mapping.put_all({"a": 1})
    with pytest.raises(UnstableKeyError, match="hashed by its address"):
        store.list_state(ListStateDescriptor("list")).update([1])
    for table in backend.tables.values():
        assert all(not entries.data for entries in [*table.spaces.values(), *table.maps.values()])


def test_a_known_key_is_not_hashed_again(store, backend):
    class Counted(str):
        __slots__ = ()
        asked = 0

        def __stable_key__(self):
            Counted.asked += 1
            return str(self)

    five = all_five(store)
    for i in range(3):
        for name, _, _, write in five:
            store.current_key = Counted("a")  # another object, the same key
            Counted.asked = 0
            write()
            assert Counted.asked == (1 if i == 0 else 0), name
            write()
            assert Counted.asked == (1 if i == 0 else 0), name
    state = store.map_state(MapStateDescriptor("fresh"))
    store.current_key = Counted("a")
    Counted.asked = 0
    for _ in range(3):
        state.put("x", 1)
        state.clear()
    assert Counted.asked == 1


# ---- the user's own errors go their way -------------------------------------------------------------------


def test_errors_of_the_users_functions_are_not_touched(store):
    def broken(*_):
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise TypeError("mine") from cause

    class Broken(Mean):
        add = broken

    total = store.reducing_state(ReducingStateDescriptor("sum", reduce=broken))
    mean = store.aggregating_state(AggregatingStateDescriptor("mean", aggregate=Broken()))
    store.current_key = "a"
    total.add(1)
    for use in (total.add, mean.add):
        with pytest.raises(TypeError, match="mine") as caught:
            use(1)
        assert isinstance(caught.value.__cause__, KeyError)
        assert caught.traceback[-1].name == "broken"
    items = store.list_state(ListStateDescriptor("list"))
    for use in (items.add_all, items.update):
        with pytest.raises(TypeError, match="'int' object is not iterable"):
            use(5)


def test_an_error_of_the_keys_own_comparison_is_not_hidden(store):
    class Sulky:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            raise TypeError("do not compare me")

        def __stable_key__(self):
            return 1

    state = store.value_state(ValueStateDescriptor("s"))
    store.current_key = Sulky()
    state.update(1)
    store.current_key = Sulky()
    with pytest.raises(TypeError, match="do not compare me"):
        state.value()


def test_an_unhashable_entry_of_a_mapping_is_the_users_error(store):
    state = store.map_state(MapStateDescriptor("s"))
    store.current_key = "a"
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        state.put([1], 2)
