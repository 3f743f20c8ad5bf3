"""Keyed state that knows what has changed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import CorruptStreamError, StateError
from sluiceway.keygroups import KeyGroupRange, key_group
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    MapStateDescriptor,
    StateBackend,
    ValueStateDescriptor,
)
from sluiceway.state.changelog import ChangeLog, ChangelogStateBackend, snapshot_of
from sluiceway.testing.conformance.state_backend import StateBackendConformance
from sluiceway_memory._backend import MemoryStateBackend

VALUE = ValueStateDescriptor("value")
MAP = MapStateDescriptor("map")
TIMERS = ValueStateDescriptor("timers")
CONTEXT = BackendContext("uid-7", 0, KeyGroupRange(0, 8), 8)


class TestChangelog(StateBackendConformance):
    def make_backend(self) -> StateBackend:
        return ChangelogStateBackend()


def keyed(owner: ChangelogStateBackend | None = None, records: list[bytes] | None = None) -> KeyedStateBackend:
    backend = (owner or ChangelogStateBackend(keep=False)).create_keyed(CONTEXT)
    if records is not None:
        backend.restore([snapshot_of(records)])
    return backend


def latest(backend: KeyedStateBackend) -> bytes | None:
    log = backend.snapshot().groups
    assert type(log) is ChangeLog
    return log.latest


def contents(backend: KeyedStateBackend) -> tuple[dict[Any, Any], dict[Any, Any], dict[Any, Any]]:
    values, maps, timers = backend.table(VALUE), backend.table(MAP), backend.table(TIMERS)
    return (
        {(n, k): v for n in values.namespaces() for k, v in values.entries(n).items()},
        {(n, k): list(maps.mapping(k, n).items()) for n in maps.namespaces() for k in maps.keys(n)},
        dict(timers.entries()),
    )


def test_tables_that_are_asked_for_in_another_order_keep_their_rows() -> None:
    owner = ChangelogStateBackend()
    backend = owner.create_keyed(CONTEXT)
    backend.table(VALUE).entries()["a"] = 1
    backend.table(TIMERS).entries()["a"] = 2
    for _ in range(2):
        snapshot = backend.snapshot()
        backend = owner.create_keyed(CONTEXT)
        backend.restore([snapshot])
        timers, values = backend.table(TIMERS), backend.table(VALUE)
        assert (dict(values.entries()), dict(timers.entries())) == ({"a": 1}, {"a": 2})


KEYS = st.sampled_from(["a", "b", 1, None, ("p", 1)])
SPACES = st.sampled_from([(), "w", ("w", 2)])
VALUES = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, SPACES, VALUES),
    st.tuples(st.just("pop"), KEYS, SPACES),
    st.tuples(st.just("append"), KEYS, SPACES),
    st.tuples(
        st.just("work"), st.lists(KEYS, max_size=3), SPACES, VALUES, st.sampled_from(["all", "first", "del"])
    ),
    st.tuples(st.just("entry"), KEYS, SPACES, st.sampled_from("xy"), VALUES),
    st.tuples(st.just("no entry"), KEYS, SPACES, st.sampled_from("xy")),
    st.tuples(st.just("clear"), SPACES),
    st.tuples(st.just("drop"), SPACES),
    st.tuples(st.just("timer"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("no timer"), KEYS),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("whole")),
    st.tuples(st.just("begin anew")),
)


@examples(50, 150)
@given(st.lists(STEPS, max_size=40))
def test_changes_one_after_the_other_are_what_is_there(steps: list[Any]) -> None:
    """Against a memory backend that is given the same to do; timers are set aside as operators do it."""
    owner = ChangelogStateBackend(keep=False)
    mine, timers, log = keyed(owner), dict[Any, Any](), list[bytes]()
    model = MemoryStateBackend().create_keyed(CONTEXT)

    def take(*, whole: bool = False) -> None:
        owner.whole = whole
        taken = mine.table(TIMERS).set_aside(lambda: {key: list(at) for key, at in timers.items()})
        change = latest(mine)
        taken()
        if whole:
            log.clear()
        if change is not None:
            log.append(change)
        values, maps, _ = contents(model)
        assert contents(keyed(records=log)) == (values, maps, timers)
        rows = MemoryStateBackend().create_keyed(CONTEXT)
        rows.restore([pickle.loads(pickle.dumps(snapshot_of(log)))])
        assert contents(rows) == (values, maps, timers)

    def do(backend: KeyedStateBackend, what: str, *args: Any) -> None:
        values, maps = backend.table(VALUE), backend.table(MAP)
        if what == "put":
            values.entries(args[1])[args[0]] = args[2] if args[2] is None else pickle.loads(pickle.dumps(args[2]))
        elif what == "pop":
            values.entries(args[1]).pop(args[0], None)
        elif what == "append":
            found = values.entries(args[1]).get(args[0])
            if isinstance(found, list):
                found.append(7)
                values.entries(args[1])[args[0]] = found
        elif what == "work":
            keys, namespace, value, how = args
            entries = values.working(keys, namespace)
            for key in keys[:1] if how == "first" else keys:
                if how != "del":
                    entries[key] = pickle.loads(pickle.dumps(value))
                elif key in entries:
                    del entries[key]
        elif what == "entry":
            maps.mapping(args[0], args[1])[args[2]] = args[3]
        elif what == "no entry":
            maps.mapping(args[0], args[1]).pop(args[2], None)
        elif what == "clear":
            values.entries(args[0]).clear()
        elif what == "drop":
            values.drop(args[0])
            maps.drop(args[0])

    for step in steps:
        match step:
            case ("timer", key, at):
                timers[key] = [*timers.get(key, []), at]
            case ("no timer", key):
                timers.pop(key, None)
            case ("snapshot",):
                take()
            case ("whole",):
                take(whole=True)
            case ("begin anew",):
                take()
                mine = keyed(owner, log)
                mine.table(TIMERS).entries().clear()
                assert _with_timers(mine, timers) is None
            case _:
                do(mine, *step)
                do(model, *step)
    take()


def test_a_loop_over_a_batch_records_what_it_assigned() -> None:
    backend = keyed()
    table = backend.table(VALUE)
    kept = table.entries()
    kept["a"] = kept["b"] = 1
    log = [latest(backend)]
    entries = table.working(["a", "c", float("nan")])  # no record can have that key, and none is assigned
    entries["a"], entries["c"] = 2, 3
    table.entries()
    kept["b"] = 4
    log.append(latest(backend))
    assert latest(backend) is None
    records = [record for record in log if record is not None]
    assert contents(keyed(records=records))[0] == {((), "a"): 2, ((), "c"): 3, ((), "b"): 4}


def _with_timers(backend: KeyedStateBackend, timers: dict[Any, Any]) -> bytes | None:
    taken = backend.table(TIMERS).set_aside(lambda: {key: list(at) for key, at in timers.items()})
    try:
        return latest(backend)
    finally:
        taken()


WAYS: dict[str, Callable[[Any], Any]] = {
    "[]": lambda entries: entries.__setitem__("k", 2),
    "del": lambda entries: entries.__delitem__("k"),
    "pop": lambda entries: entries.pop("k"),
    "popitem": lambda entries: entries.popitem(),
    "setdefault": lambda entries: entries.setdefault("new", 1),
    "update": lambda entries: entries.update({"k": 3}, more=1),
    "|=": lambda entries: entries.__ior__({"k": 3}),
    "clear": lambda entries: entries.clear(),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_change_a_dict_is_seen(way: str) -> None:
    backend = keyed()
    entries = backend.table(VALUE).entries()
    entries["k"] = 1
    log = [latest(backend)]
    assert log[0] is not None
    WAYS[way](entries)
    change = latest(backend)
    assert change is not None
    assert dict(keyed(records=[log[0], change]).table(VALUE).entries()) == dict(entries)


def test_what_has_not_changed_is_not_written_again() -> None:
    backend = keyed()
    entries = backend.table(VALUE).entries()
    entries.update((n, n) for n in range(10_000))
    whole = latest(backend)
    entries[7] = 8
    backend.table(VALUE).entries("window")["k"] = 1
    change = latest(backend)
    assert whole is not None
    assert change is not None
    assert len(change) < 1_000 < len(whole)
    assert latest(backend) is None
    backend.table(VALUE).drop("window")
    assert latest(backend) is not None
    backend.table(VALUE).entries("never written")["k"] = 1
    backend.table(VALUE).drop("never written")
    assert latest(backend) is None
    entries.get(8), entries[9], list(entries), 10 in entries
    assert latest(backend) is None, "to read it is no change"


def test_timers_that_stay_are_not_written_again_also_after_a_restore() -> None:
    timers = {n: [(True, n, ())] for n in range(1_000)}
    backend = keyed()
    whole = _with_timers(backend, timers)
    assert whole is not None
    del timers[5]
    change = _with_timers(backend, timers)
    assert change is not None
    assert len(change) < 1_000 < len(whole)
    backend = keyed(records=[whole, change])
    assert dict(backend.table(TIMERS).entries()) == timers
    backend.table(TIMERS).entries().clear()
    assert _with_timers(backend, timers) is None


def test_changes_without_their_beginning_are_refused() -> None:
    backend = keyed()
    backend.table(VALUE).entries()["k"] = 1
    latest(backend)
    backend.table(VALUE).entries()["k"] = 2
    change = latest(backend)
    assert change is not None
    with pytest.raises(StateError, match="does not begin with a whole record"):
        snapshot_of([change])
    with pytest.raises(CorruptStreamError, match="no change record"):
        snapshot_of([b"nonsense"])


def test_state_of_a_changed_type_is_written_anew() -> None:
    backend = keyed()
    backend.table(ValueStateDescriptor("a", int)).entries().update(x=1, y=2)
    log = [latest(backend)]
    wider = ValueStateDescriptor("a", float)
    assert log[0] is not None
    again = keyed(records=[log[0]])
    again.table(wider).entries()["y"] = 2.5
    change = latest(again)
    assert change is not None
    assert dict(keyed(records=[log[0], change]).table(wider).entries()) == {"x": 1.0, "y": 2.5}


def test_forms_of_one_state_stay_apart_until_it_is_asked_for() -> None:
    def part(groups: KeyGroupRange, restored: KeyedSnapshot | None = None) -> KeyedStateBackend:
        backend = ChangelogStateBackend().create_keyed(BackendContext("uid-7", 0, groups, 8))
        if restored is not None:
            backend.restore([restored])
        return backend

    parts, keys = (KeyGroupRange(0, 4), KeyGroupRange(4, 8)), [f"k{i}" for i in range(8)]
    narrow, wide, other = (
        ValueStateDescriptor("a", int),
        ValueStateDescriptor("a", float),
        ValueStateDescriptor("b", int),
    )
    snapshots = []
    for groups in parts:
        backend = part(groups)
        backend.table(narrow).entries().update(
            {key: i for i, key in enumerate(keys) if groups.start <= key_group(key, 8) < groups.end}
        )
        snapshots.append(backend.snapshot())
    asking, other_part = (part(groups, taken) for groups, taken in zip(parts, snapshots, strict=True))
    asking.table(wide)
    whole = ChangelogStateBackend().create_keyed(CONTEXT)
    whole.restore([asking.snapshot(), other_part.snapshot()])
    whole.table(other).entries()["k"] = 5
    first = whole.snapshot()
    assert [meta.name for meta in first.tables] == ["b", "a", "a"]
    whole.table(other).entries()["k"] = 6
    second = whole.snapshot()
    for restored in (second, KeyedSnapshot(second.tables, dict(second.groups))):
        again = ChangelogStateBackend().create_keyed(CONTEXT)
        again.restore([restored])
        assert dict(again.table(other).entries()) == {"k": 6}
        found = dict(again.table(wide).entries())
        assert found == {key: float(i) for i, key in enumerate(keys)}
        assert {*map(type, found.values())} == {float}
        assert [meta.name for meta in again.snapshot().tables] == ["b", "a"]
