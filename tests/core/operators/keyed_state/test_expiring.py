"""State with a time to live, in virtual time, against a model."""

import pickle
from datetime import timedelta

import pytest
from effort import tries
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import sluiceway as sw
from sluiceway import StateTtlConfig
from sluiceway.clock import VirtualClock
from sluiceway.errors import StateError
from sluiceway.functions import AggregateFunction
from sluiceway.keygroups import KeyGroupRange
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.state import (
    AggregatingStateDescriptor,
    BackendContext,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from sluiceway.testing import OperatorHarness
from sluiceway_memory._backend import MemoryStateBackend

TTL = 10
KINDS = [ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor]
UPDATES = list(StateTtlConfig.UpdateType)
EXPIRED = StateTtlConfig.StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


def add(a, b):
    return a + b


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


@pytest.fixture
def clock():
    return VirtualClock(1_000)


@pytest.fixture
def expiring(new_backend, clock):
    return KeyedStateStore(new_backend(), clock)


# ---- what may be asked for ---------------------------------------------------------------------------------


def test_durations_are_kept_in_ms_and_words_stand_for_members():
    for ttl in (timedelta(minutes=2), 120_000, "2min"):
        config = StateTtlConfig(ttl, "on_read_and_write", "return_expired_if_not_cleaned_up")
        assert config.ttl_ms == config.ttl == 120_000
        assert config.update_type is StateTtlConfig.UpdateType.ON_READ_AND_WRITE
        assert config.state_visibility is EXPIRED
    assert StateTtlConfig(5).update_type is StateTtlConfig.UpdateType.ON_CREATE_AND_WRITE
    assert StateTtlConfig(5).state_visibility is StateTtlConfig.StateVisibility.NEVER_RETURN_EXPIRED


def test_a_descriptor_with_a_time_to_live_can_be_pickled_and_compared():
    descriptor = ValueStateDescriptor("s", int, 7, ttl=StateTtlConfig("1h", cleanup_full_snapshot=True))
    assert pickle.loads(pickle.dumps(descriptor)) == descriptor
    assert descriptor != ValueStateDescriptor("s", int, 7)
    assert descriptor.expires
    assert not ValueStateDescriptor("s", ttl=StateTtlConfig("1h", "disabled")).expires


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StateTtlConfig("soon"), "ttl: 'soon' is not a duration; give a timedelta, ms, or a text"),
        (lambda: StateTtlConfig(0), "ttl must be more than 0"),
        (
            lambda: StateTtlConfig(1, "on_write"),
            "update_type is one of disabled, on_create_and_write, .*'on_write'",
        ),
        (
            lambda: StateTtlConfig(1, state_visibility=3),
            "state_visibility is one of never_return_expired, .*not 3",
        ),
        (lambda: StateTtlConfig(1, cleanup_incrementally=-1), "cleanup_incrementally must be 0 or more, not -1"),
        (lambda: StateTtlConfig(1, cleanup_incrementally=True), "takes a number of keys, not True"),
        (lambda: StateTtlConfig(1, cleanup_full_snapshot=1), "cleanup_full_snapshot takes True or False, not 1"),
        (
            lambda: ReducingStateDescriptor("s", reduce=add, ttl=timedelta(1)),
            r"ReducingStateDescriptor\('s'\): ttl takes a StateTtlConfig, as in ttl=StateTtlConfig",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_two_times_to_live_for_one_state_are_refused(expiring):
    expiring.value_state(ValueStateDescriptor("s", ttl=StateTtlConfig(1)))
    with pytest.raises(StateError, match="'s' is declared twice with different times to live"):
        expiring.value_state(ValueStateDescriptor("s", ttl=StateTtlConfig(2)))


def test_cleanup_in_compaction_needs_a_backend_that_compacts(expiring, new_backend, clock):
    descriptor = ValueStateDescriptor("s", ttl=StateTtlConfig(1, cleanup_in_compaction=True))
    with pytest.raises(
        StateError, match="'s' has cleanup_in_compaction, which this state backend does not support"
    ):
        expiring.value_state(descriptor)
    backend = new_backend()
    type(backend).expires_in_compaction = True
    try:
        KeyedStateStore(backend, clock).value_state(descriptor)
    finally:
        type(backend).expires_in_compaction = False


def test_a_store_without_a_clock_has_no_state_that_expires(store):
    with pytest.raises(StateError, match="'s' has a time to live, but there is no clock"):
        store.value_state(ValueStateDescriptor("s", ttl=StateTtlConfig(1)))


# ---- what goes away, and when ------------------------------------------------------------------------------


def test_state_expires_when_the_time_has_passed_and_not_before(expiring, clock, backend):
    state = expiring.value_state(ValueStateDescriptor("s", int, 7, ttl=StateTtlConfig(TTL)))
    expiring.current_key = "a"
    state.update(1)
    clock.advance(TTL - 1)
    assert state.value() == 1
    clock.advance(1)
    assert state.value() == 7


def test_state_without_a_time_to_live_costs_nothing_more(expiring, store):
    plain, also = (type(s.value_state(ValueStateDescriptor("s"))) for s in (expiring, store))
    assert plain is also
    state = expiring.value_state(ValueStateDescriptor("d", ttl=StateTtlConfig(1, "disabled")))
    expiring.current_key = "a"
    state.update(1)
    assert expiring._backend.table(ValueStateDescriptor("d")).entries()["a"] == 1, "no time is kept"


def test_each_key_is_cleaned_up_without_being_read(clock):
    """Incremental cleanup: accesses to one key remove the others, in every namespace and of every kind."""
    backend = keyed()
    store = KeyedStateStore(backend, clock)
    ttl = StateTtlConfig(TTL, cleanup_incrementally=5)
    descriptors = [kind("s" + kind.__name__, ttl=ttl) for kind in KINDS]
    states = [
        store.value_state(descriptors[0], "n"),
        store.list_state(descriptors[1], "n"),
        store.map_state(descriptors[2], "n"),
    ]
    for key in range(100):
        store.current_key = key
        states[0].update(key)
        states[1].add(key)
        states[2].put("e", key)
    clock.advance(TTL)
    store.current_key = "other"
    for _ in range(100):
        states[0].value()
        states[1].get()
        states[2].get("e")
    assert [list(backend.table(d).keys("n")) for d in descriptors] == [[], [], []]


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_keys_are_looked_at_again_when_one_may_have_expired_and_not_before(clock, kind):
    backend = keyed()
    store = KeyedStateStore(backend, clock)
    descriptor = KINDS[["value", "list", "map"].index(kind)](
        "s", ttl=StateTtlConfig(TTL, cleanup_incrementally=10)
    )
    state = getattr(store, f"{kind}_state")(descriptor)
    table = backend.table(descriptor)
    walks = []
    listed, table.keys = table.keys, lambda namespace: walks.append(clock.now_ms()) or listed(namespace)

    def write(keys):
        for key in keys:
            store.current_key = key
            state.put(1, 1) if kind == "map" else state.add(1) if kind == "list" else state.update(1)

    def read(times=100):
        store.current_key = "other"
        for _ in range(times):
            state.get(1) if kind == "map" else state.get() if kind == "list" else state.value()

    start = clock.now_ms()
    write(range(50))
    read()
    clock.advance(5)
    write(range(40, 90))
    read()
    assert set(walks) == {start}, "one look at those that were new"
    clock.advance(5)
    read()
    left = range(50, 90) if kind == "list" else range(40, 90)
    assert {k for k in listed(()) if k in range(90)} >= set(left)
    assert not set(listed(())) & set(range(40))
    clock.advance(5)
    read()
    assert list(listed(())) == []
    assert set(walks) == {start, start + 10, start + 15}


def test_no_more_is_cleaned_up_than_was_asked_for(expiring, clock):
    state = expiring.value_state(ValueStateDescriptor("s", ttl=StateTtlConfig(TTL, cleanup_incrementally=0)))
    for key in range(100):
        expiring.current_key = key
        state.update(key)
    clock.advance(TTL)
    for _ in range(1000):
        assert state.value() is None
    assert len(expiring._backend.tables["s"].entries()) == 99


def test_a_list_loses_its_old_elements_alone(expiring, clock):
    state = expiring.list_state(ListStateDescriptor("s", ttl=StateTtlConfig(TTL)))
    expiring.current_key = "a"
    state.add("old")
    clock.advance(TTL - 1)
    state.add_all(["new", "newer"])
    assert state.get() == ["old", "new", "newer"]
    clock.advance(1)
    assert state.get() == ["new", "newer"]
    assert len(expiring._backend.tables["s"].entries()["a"]) == 2, "what has expired is gone"


@pytest.mark.parametrize("element", [int, lambda n: [n]], ids=["atoms", "lists"])
def test_a_list_that_is_only_added_to_loses_its_old_elements(expiring, clock, element):
    """Also in the batch in which they are added, in which a backend that stores no objects has lent the list."""
    state = expiring.list_state(ListStateDescriptor("s", ttl=StateTtlConfig(TTL)))
    for n in range(900):
        expiring.current_key = n % 3
        state.add(element(n))
        clock.advance(1)
        if n % 30 == 29:
            expiring.clear_current_key()
    held = expiring._backend.tables["s"].entries()
    assert sum(map(len, held.values())) < 100


def test_an_element_may_be_changed_after_others_of_its_list_were_cleaned_up(expiring, clock):
    state = expiring.list_state(ListStateDescriptor("s", ttl=StateTtlConfig(TTL, cleanup_incrementally=64)))
    expiring.current_key = "a"
    state.add(["old"])
    state.add(["older"])
    clock.advance(TTL // 2)
    state.add(["new"])
    expiring.clear_current_key()
    clock.advance(TTL - TTL // 2 - 1)
    expiring.current_key = "a"
    new = state.get()[-1]
    clock.advance(1)
    expiring.current_key = "b"
    for _ in range(9):
        state.get()
    new.append("changed")
    expiring.clear_current_key()
    assert [value for _, value in expiring._backend.tables["s"].entries()["a"]] == [["new", "changed"]]


def test_a_map_may_be_read_while_it_is_walked(expiring, clock):
    ttl = StateTtlConfig(TTL, "on_read_and_write", cleanup_incrementally=50)
    state = expiring.map_state(MapStateDescriptor("s", ttl=ttl))
    expiring.current_key = "a"
    state.put_all({i: i for i in range(10)})
    clock.advance(TTL - 1)
    state.put_all({i: i for i in range(10, 20)})
    clock.advance(1)
    seen = []
    for i, _ in state.items():
        assert state.contains(i)
        clock.advance(1)
        seen.append(i)
    assert seen == list(range(10, 20))


def test_reading_a_map_brings_no_dead_entry_back_to_life(expiring, clock):
    state = expiring.map_state(MapStateDescriptor("s", ttl=StateTtlConfig(TTL, "on_read_and_write")))
    expiring.current_key = "a"
    state.put("old", 1)
    clock.advance(1)
    state.put("new", 2)
    clock.advance(TTL - 1)
    assert list(state.items()) == [("new", 2)]
    clock.advance(1)
    assert list(state.keys()) == ["new"], "it has been read since"
    clock.advance(TTL)
    assert list(state.values()) == []


def test_a_snapshot_leaves_out_what_has_expired_if_asked(clock):
    for full in (True, False):
        ttl = StateTtlConfig(TTL, state_visibility=EXPIRED, cleanup_full_snapshot=full, cleanup_incrementally=0)
        descriptor = ValueStateDescriptor("s", ttl=ttl)
        backend = keyed()
        store = KeyedStateStore(backend, clock)
        state = store.value_state(descriptor)
        for key in ("a", "b"):
            store.current_key = key
            state.update(key)
            clock.advance(TTL - 1)
        store.before_snapshot()
        again = KeyedStateStore(keyed(backend.snapshot()), clock)
        state = again.value_state(descriptor)
        again.current_key = "a"
        assert state.value() == (None if full else "a"), "expired, and maybe not cleaned up"
        again.current_key = "b"
        assert state.value() == "b"


def test_time_goes_on_while_the_job_is_down(clock):
    descriptor = MapStateDescriptor("s", int, key_type=str, ttl=StateTtlConfig(TTL))
    backend = keyed()
    store = KeyedStateStore(backend, clock)
    store.current_key = "a"
    store.map_state(descriptor).put("old", 1)
    clock.advance(5)
    store.map_state(descriptor).put("new", 2)
    snapshot = backend.snapshot()
    clock.advance(5)
    again = KeyedStateStore(keyed(snapshot), clock)
    again.current_key = "a"
    assert list(again.map_state(descriptor).items()) == [("new", 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_to_live_cannot_come_or_go_but_change(kind, clock):
    def run(ttl, snapshot=None):
        backend = keyed(snapshot)
        backend.table(kind("s", int, ttl=ttl))
        return backend.snapshot()

    lives, timeless = run(StateTtlConfig(1)), run(None)
    run(StateTtlConfig(5, "on_read_and_write"), lives)
    run(StateTtlConfig(5, "disabled"), timeless)
    with pytest.raises(
        StateError, match=r"'s' of operator 'step' .* saved with a time to live, the job declares no"
    ):
        run(None, lives)
    with pytest.raises(StateError, match="saved with no time to live, the job declares one"):
        run(StateTtlConfig(1), timeless)


def keyed(snapshot=None):
    backend = MemoryStateBackend().create_keyed(BackendContext("step", 0, KeyGroupRange(0, 16), 16))
    if snapshot is not None:
        backend.restore([snapshot])
    return backend


# ---- against a model ---------------------------------------------------------------------------------------


class Model:
    """Per key and entry: when it was touched, and the value; a list's elements are entries 0, 1, 2..."""

    def __init__(self, ttl, on_read, returns_expired):
        self.now = 0
        self.ttl, self.on_read, self.returns_expired = ttl, on_read, returns_expired
        self.held = {}

    def read(self, key, chosen=None):
        given = {}
        for name, (touched, value) in list(self.held.get(key, {}).items()):
            if chosen is not None and name not in chosen:
                continue
            dead = self.ttl is not None and touched + self.ttl <= self.now
            if not dead or self.returns_expired:
                given[name] = value
            if dead:
                del self.held[key][name]
            elif self.on_read:
                self.held[key][name] = (self.now, value)
        return given

    def write(self, key, name, value):
        self.held.setdefault(key, {})[name] = (self.now, value)

    def forget(self, key):
        self.held.pop(key, None)

    def restart(self, full):
        if full and self.ttl is not None:
            for entries in self.held.values():
                for name in [n for n, (touched, _) in entries.items() if touched + self.ttl <= self.now]:
                    del entries[name]


_keys = st.sampled_from("ab")
_numbers = st.integers(0, 3)
_names = st.sampled_from("xy")


class Machine(RuleBasedStateMachine):
    @initialize(
        update=st.sampled_from(UPDATES),
        visibility=st.sampled_from(list(StateTtlConfig.StateVisibility)),
        full=st.booleans(),
        size=st.sampled_from([0, 100]),
    )
    def begin(self, update, visibility, full, size):
        if visibility is EXPIRED:
            size = 0  # else what is seen depends on when the cleanup comes by
        self.full = full
        self.ttl = StateTtlConfig(TTL, update, visibility, cleanup_full_snapshot=full, cleanup_incrementally=size)
        self.clock = VirtualClock()
        ttl_ms = TTL if self.ttl.is_enabled else None
        self.models = {
            kind: Model(ttl_ms, self.ttl.updates_on_read, visibility is EXPIRED)
            for kind in ("value", "list", "map", "sum", "mean")
        }
        self.added = 0
        self.make(keyed())

    def make(self, backend):
        self.backend = backend
        self.store = store = KeyedStateStore(backend, self.clock)
        self.value = store.value_state(ValueStateDescriptor("value", int, ttl=self.ttl))
        self.list = store.list_state(ListStateDescriptor("list", ttl=self.ttl))
        self.map = store.map_state(MapStateDescriptor("map", int, key_type=str, ttl=self.ttl))
        self.sum = store.reducing_state(ReducingStateDescriptor("sum", reduce=add, ttl=self.ttl))
        self.mean = store.aggregating_state(AggregatingStateDescriptor("mean", aggregate=Mean(), ttl=self.ttl))

    def at(self, key, kind):
        self.store.current_key = key
        return self.models[kind]

    @rule(ms=st.sampled_from([5, 5, 10, 1]))
    def wait(self, ms):
        self.clock.advance(ms)
        for model in self.models.values():
            model.now += ms

    @rule()
    def restart(self):
        self.store.clear_current_key()
        self.store.before_snapshot()
        self.make(keyed(self.backend.snapshot()))
        for model in self.models.values():
            model.restart(self.full)

    @rule(key=_keys, number=_numbers)
    def set_value(self, key, number):
        self.at(key, "value").write(key, 0, number)
        self.value.update(number)

    @rule(key=_keys)
    def get_value(self, key):
        assert self.at(key, "value").read(key).get(0) == self.value.value()

    @rule(key=_keys, kind=st.sampled_from(["value", "list", "map", "sum", "mean"]))
    def clear(self, key, kind):
        self.at(key, kind).forget(key)
        getattr(self, kind).clear()

    @rule(key=_keys, numbers=st.lists(_numbers, max_size=2))
    def extend_list(self, key, numbers):
        model = self.at(key, "list")
        for number in numbers:
            self.added += 1
            model.write(key, self.added, number)
        self.list.add_all(numbers)

    @rule(key=_keys, numbers=st.lists(_numbers, max_size=2))
    def replace_list(self, key, numbers):
        self.at(key, "list").forget(key)
        for number in numbers:
            self.added += 1
            self.models["list"].write(key, self.added, number)
        self.list.update(numbers)

    @rule(key=_keys)
    def get_list(self, key):
        assert list(self.at(key, "list").read(key).values()) == self.list.get()

    @rule(key=_keys, name=_names, number=_numbers, several=st.booleans())
    def put(self, key, name, number, several):
        self.at(key, "map").write(key, name, number)
        if several:
            self.map.put_all({name: number})
        else:
            self.map.put(name, number)

    @rule(key=_keys, name=_names, how=st.sampled_from(["get", "contains"]))
    def get_entry(self, key, name, how):
        given = self.at(key, "map").read(key, {name})
        assert (
            (given.get(name) == self.map.get(name))
            if how == "get"
            else ((name in given) == self.map.contains(name))
        )

    @rule(key=_keys, name=_names)
    def remove(self, key, name):
        self.at(key, "map").held.get(key, {}).pop(name, None)
        self.map.remove(name)

    @rule(key=_keys, how=st.sampled_from(["items", "keys", "values"]))
    def get_map(self, key, how):
        given = self.at(key, "map").read(key)
        assert list(getattr(given, how)()) == list(getattr(self.map, how)())

    @rule(key=_keys)
    def is_empty(self, key):
        model = self.at(key, "map")
        entries = model.held.get(key, {}).values()
        alive = [t for t, _ in entries if model.returns_expired or not model.ttl or t + model.ttl > model.now]
        assert self.map.is_empty() == (not alive)

    @rule(key=_keys, number=_numbers)
    def add(self, key, number):
        model = self.at(key, "sum")
        model.write(key, 0, model.read(key).get(0, 0) + number)
        self.sum.add(number)
        model = self.models["mean"]
        total, count = model.read(key).get(0, (0, 0))
        model.write(key, 0, (total + number, count + 1))
        self.mean.add(number)

    @rule(key=_keys, kind=st.sampled_from(["sum", "mean"]))
    def get_aggregate(self, key, kind):
        held = self.at(key, kind).read(key).get(0)
        if kind == "mean" and held is not None:
            held = held[0] / held[1]
        assert getattr(self, kind).get() == held


def test_histories_with_a_time_to_live_are_those_of_the_model():
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=tries(25, 100), stateful_step_count=40, deadline=None, database=None),
    )


# ---- in a step ---------------------------------------------------------------------------------------------


class Sessions(sw.KeyedProcessFunction):
    """Counts the records of a key since it was quiet for TTL ms."""

    def open(self, context):
        ttl = StateTtlConfig(TTL, cleanup_full_snapshot=True)
        self.count = context.get_state(ValueStateDescriptor("count", int, 0, ttl=ttl))

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield value, self.count.value()


def test_a_step_forgets_by_the_runtimes_clock_also_when_it_goes_on_at_another_parallelism():
    def program(stream):
        return stream.key_by(str).process(Sessions())

    with OperatorHarness(program, parallelism=2) as harness:
        assert harness.process_batch(["a", "a", "b"])[-1] == ("b", 1)
        harness.advance(TTL - 1)
        assert harness.process("b") == [("b", 2)]
        assert harness.process("a") == [("a", 3)]
        harness.advance(1)
        harness.process("c")
        harness.advance(TTL - 2)
        snapshot = harness.snapshot()
        later = harness.clock.now_ms() + 1
    with OperatorHarness(program, parallelism=3, restored=snapshot, start_ms=later) as harness:
        assert sorted(harness.process_batch(["a", "b", "c"])) == [("a", 1), ("b", 1), ("c", 2)]
        harness.advance(TTL)
        assert sum(len(s.keyed.groups) for s in harness.snapshot().operators) == 0
