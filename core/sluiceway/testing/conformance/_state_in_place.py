"""Tests of objects that were read from state and changed in place, without ``update()``.

Whatever the backend does with its memory, the change is kept if it was made before the end of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluiceway.clock import VirtualClock
from sluiceway.functions import AggregateFunction
from sluiceway.operators.keyed_state import KeyedStateStore
from sluiceway.state import (
    AggregatingStateDescriptor,
    KeyedSnapshot,
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from sluiceway.state.ttl import StateTtlConfig
from sluiceway.testing.conformance._state_suite import KEYS, StateBackendSuite

__all__ = ["InPlaceTests"]


@dataclass
class Account:
    """A value of a declared type that can be changed."""

    owner: str
    entries: list[int] = field(default_factory=list)


class _Collect(AggregateFunction[int, list[int], list[int]]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator


_TTL = StateTtlConfig(1_000_000)
_TYPED = ValueStateDescriptor("typed", Account)
_UNTYPED = ValueStateDescriptor("untyped")
_EXPIRING = ValueStateDescriptor("expiring", ttl=_TTL)
_LIST = ListStateDescriptor("list", list[int])
_UNTYPED_LIST = ListStateDescriptor("untyped list")
_EXPIRING_LIST = ListStateDescriptor("expiring list", ttl=_TTL)
_MAP = MapStateDescriptor("map", list[int], key_type=str)
_UNTYPED_MAP = MapStateDescriptor("untyped map")
_EXPIRING_MAP = MapStateDescriptor("expiring map", ttl=_TTL)
_REDUCED = ReducingStateDescriptor("reduced", reduce=lambda old, new: old + new)
_COLLECTED = AggregatingStateDescriptor("collected", aggregate=_Collect())
_DEFAULT = ValueStateDescriptor("default", default=[])
_TYPED_DEFAULT = ValueStateDescriptor("typed default", Account, default=Account("nobody"))
_ALL: tuple[StateDescriptor, ...] = (
    *(_TYPED, _UNTYPED, _EXPIRING, _LIST, _UNTYPED_LIST, _EXPIRING_LIST, _MAP, _UNTYPED_MAP, _EXPIRING_MAP),
    *(_REDUCED, _COLLECTED, _DEFAULT, _TYPED_DEFAULT),
)


class _States:
    """The handles of a function, as its batches use them."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self.store = store = KeyedStateStore(backend, VirtualClock(0))
        self.values = [store.value_state(d) for d in (_UNTYPED, _EXPIRING)]
        self.typed = store.value_state(_TYPED)
        self.lists = [store.list_state(d) for d in (_LIST, _UNTYPED_LIST, _EXPIRING_LIST)]
        self.maps = [store.map_state(d) for d in (_MAP, _UNTYPED_MAP, _EXPIRING_MAP)]
        self.reduced = store.reducing_state(_REDUCED)
        self.collected = store.aggregating_state(_COLLECTED)
        self.default = store.value_state(_DEFAULT)
        self.typed_default = store.value_state(_TYPED_DEFAULT)

    @contextmanager
    def batch(self) -> Iterator[None]:
        yield
        self.store.clear_current_key()

    def fill(self) -> None:
        with self.batch():
            for key in KEYS:
                self.store.current_key = key
                for value in self.values:
                    value.update({"seen": [0]})
                self.typed.update(Account("a", [0]))
                for items in self.lists:
                    items.add_all([[0], [1]])
                for mapping in self.maps:
                    mapping.put_all({"x": [0], "y": [1]})
                self.reduced.add([0])
                self.collected.add(0)

    def change(self, number: int) -> None:
        """Change in place what every kind of state gives out for the current key."""
        for value in self.values:
            value.value()["seen"].append(number)
        self.typed.value().entries.append(number)
        for items in self.lists:
            items.get()[-1].append(number)
        for mapping in self.maps:
            mapping.get("x").append(number)  # type: ignore[union-attr]
            dict(mapping.items())["y"].append(number)
            next(iter(mapping.values())).append(number)
        self.reduced.get().append(number)  # type: ignore[union-attr]
        self.collected.get().append(number)  # type: ignore[union-attr]
        self.default.value().append(number)
        self.typed_default.value().entries.append(number)

    def seen(self) -> list[Any]:
        """Return all that the current key has, as text: nobody changes that."""
        found = [value.value() for value in self.values] + [self.typed.value()]
        found += [items.get() for items in self.lists] + [dict(mapping.items()) for mapping in self.maps]
        found += [self.reduced.get(), self.collected.get(), self.default.value(), self.typed_default.value()]
        return [repr(part) for part in found]

    def all_seen(self) -> dict[Any, list[Any]]:
        found = {}
        with self.batch():
            for key in KEYS:
                self.store.current_key = key
                found[key] = self.seen()
        return found


def _expected(numbers: list[int]) -> list[Any]:
    one, twice = [0, *numbers], [0, *(n for number in numbers for n in (number, number))]
    lists, mapping = [[0], [1, *numbers]], {"x": twice, "y": [1, *numbers]}
    found: list[Any] = [{"seen": one}, {"seen": one}, Account("a", one)]
    found += [lists] * 3 + [mapping] * 3
    found += [one, one, numbers, Account("nobody", numbers)]
    return [repr(part) for part in found]


class InPlaceTests(StateBackendSuite):
    """Objects that are changed in place."""

    def test_objects_that_state_gives_out_may_be_changed_in_place(self) -> None:
        backend = self.keyed()
        states = _States(backend)
        states.fill()
        for number in (1, 2):
            with states.batch():
                for key in KEYS:
                    states.store.current_key = key
                    states.change(number)
            assert states.all_seen() == dict.fromkeys(KEYS, _expected([1, 2][:number]))
        assert _States(self.keyed(restore=[backend.snapshot()])).all_seen() == dict.fromkeys(
            KEYS, _expected([1, 2])
        )

    def test_an_object_is_the_same_throughout_a_batch(self) -> None:
        backend = self.keyed()
        states = _States(backend)
        states.fill()
        with states.batch():
            for number in (1, 2, 3):
                for key in KEYS:
                    states.store.current_key = key
                    states.change(number)
            states.store.current_key = KEYS[0]
            assert states.seen() == _expected([1, 2, 3])
            assert states.values[0].value() is states.store.value_state(_UNTYPED).value()
        assert _States(self.keyed(restore=[backend.snapshot()])).all_seen() == dict.fromkeys(
            KEYS, _expected([1, 2, 3])
        )

    @pytest.mark.parametrize("read", [True, False], ids=["read before", "read after"])
    def test_a_snapshot_is_of_its_moment(self, read: bool) -> None:
        """Objects change in place between the snapshots, and while these are read, before or after."""
        backend = self.keyed()
        states = _States(backend)
        states.fill()
        numbers: list[int] = []
        taken: list[tuple[KeyedSnapshot, list[int]]] = []
        for number in range(1, 5):
            states.store.before_snapshot()
            taken.append((backend.snapshot(), list(numbers)))
            if read:
                dict(taken[-1][0].groups)
            with states.batch():
                for key in KEYS:
                    states.store.current_key = key
                    states.change(number)
            numbers.append(number)
            assert states.all_seen() == dict.fromkeys(KEYS, _expected(numbers))
        for snapshot, then in reversed(taken):
            restored = _States(self.keyed(restore=[snapshot]))
            assert restored.all_seen() == dict.fromkeys(KEYS, _expected(then))
            snapshot.release()

    def test_an_object_given_to_update_may_be_changed_until_the_end_of_the_batch(self) -> None:
        backend = self.keyed()
        states = _States(backend)
        with states.batch():
            given: dict[Any, Any] = {}
            for key in KEYS:
                states.store.current_key = key
                given[key] = {"seen": []}
                states.values[0].update(given[key])
                states.lists[1].add(given[key])
                states.maps[1].put("x", given[key])
            for value in given.values():
                value["seen"].append(1)
        restored = _States(self.keyed(restore=[backend.snapshot()]))
        for key in KEYS:
            restored.store.current_key = key
            assert restored.values[0].value() == {"seen": [1]}
            assert restored.lists[1].get() == [{"seen": [1]}]
            assert restored.maps[1].get("x") == {"seen": [1]}

    def test_what_is_removed_or_replaced_after_a_change_in_place_stays_so(self) -> None:
        def clear(states: _States) -> None:
            everything: list[Any] = [*states.values, *states.lists, *states.maps, states.default]
            for state in everything:
                state.clear()

        def replace(states: _States) -> None:
            states.values[0].update(7)
            states.lists[1].update([7])
            states.maps[1].put("x", 7)
            states.maps[1].remove("y")
            states.default.update(None)

        cases: list[tuple[Callable[[_States], None], list[Any]]] = [
            (clear, [None, [], {}, []]),
            (replace, [7, [7], {"x": 7}, None]),
        ]
        for change, expected in cases:
            backend = self.keyed()
            states = _States(backend)
            states.fill()
            with states.batch():
                for key in KEYS:
                    states.store.current_key = key
                    states.change(1)
                    change(states)
            for seen in (states, _States(self.keyed(restore=[backend.snapshot()]))):
                for key in KEYS:
                    seen.store.current_key = key
                    found = [seen.values[0].value(), seen.lists[1].get(), dict(seen.maps[1].items())]
                    assert [*found, seen.default.value()] == expected
                seen.store.clear_current_key()

    def test_reading_a_default_makes_no_state(self) -> None:
        backend = self.keyed()
        states = _States(backend)
        with states.batch():
            for key in KEYS:
                states.store.current_key = key
                assert states.default.value() == []
                assert states.typed_default.value() == Account("nobody")
        assert backend.snapshot().groups == {}
        assert _DEFAULT.default == []

    def test_a_dropped_namespace_stays_so_after_changes_in_place(self) -> None:
        backend = self.keyed()
        store = KeyedStateStore(backend)
        handles = store.value_state(_UNTYPED, "window"), store.map_state(_UNTYPED_MAP, "window")
        for key in KEYS:
            store.current_key = key
            handles[0].update([0])
            handles[1].put("x", [0])
        store.clear_current_key()
        for key in KEYS:
            store.current_key = key
            handles[0].value().append(1)
            handles[1].get("x").append(1)  # type: ignore[union-attr]
        for descriptor in (_UNTYPED, _UNTYPED_MAP):
            store.table(descriptor).drop("window")
        store.clear_current_key()
        assert backend.snapshot().groups == {}

    def test_the_bulk_view_of_a_handle_may_be_changed_in_place(self) -> None:
        backend = self.keyed()
        states = _States(backend)
        states.fill()
        with states.batch():
            for _key, value in states.values[0].bulk().items():  # type: ignore[attr-defined]
                value["seen"].append(1)
            for mapping in states.maps[1].bulk().values():  # type: ignore[attr-defined]
                mapping["x"].append(1)
        restored = _States(self.keyed(restore=[backend.snapshot()]))
        for key in KEYS:
            restored.store.current_key = key
            assert restored.values[0].value() == {"seen": [0, 1]}
            assert restored.maps[1].get("x") == [0, 1]
