"""Conformance suite for state backends.

In a plugin's tests::

    from sluiceway.testing.conformance.state_backend import StateBackendConformance

    class TestMyBackend(StateBackendConformance):
        def make_backend(self):
            return MyStateBackend()
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

import pytest

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
from sluiceway.state.ttl import StateTtlConfig
from sluiceway.testing.conformance._state_in_place import InPlaceTests
from sluiceway.testing.conformance._state_snapshots import SnapshotTests
from sluiceway.testing.conformance._state_suite import KEYS, VALUE
from sluiceway.testing.conformance._state_tables import TableTests

__all__ = ["StateBackendConformance"]


class _Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return (0, 0)

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class StateBackendConformance(TableTests, SnapshotTests, InPlaceTests):
    """Suite of state backends.

    Subclass it, give it a name that pytest collects, and implement :meth:`make_backend`.

    Attributes:
        max_parallelism: key groups of the backends that the tests make.
        big_value_bytes: size of the largest value that is tried.
        can_rescale: whether a snapshot can be restored at another parallelism than it was taken at.
        examples: how many random histories are compared with plain dicts; 0 for none.
    """

    # -- handles ---------------------------------------------------------------------------------------------

    def test_the_five_kinds_of_state_work_over_it(self) -> None:
        backend = self.keyed()
        for round_ in (1, 2):
            if round_ == 2:
                backend = self.keyed(restore=[backend.snapshot()])
            store = KeyedStateStore(backend)
            value = store.value_state(ValueStateDescriptor("value", int, default=0))
            items = store.list_state(ListStateDescriptor("list", str))
            mapping = store.map_state(MapStateDescriptor("map", int, key_type=str))
            total = store.reducing_state(ReducingStateDescriptor("sum", int, reduce=lambda a, b: a + b))
            mean = store.aggregating_state(AggregatingStateDescriptor("mean", tuple[int, int], aggregate=_Mean()))
            for number, key in enumerate(KEYS):
                store.current_key = key
                value.update(value.value() + 1)
                items.add(f"round {round_}")
                mapping.put(f"round {round_}", number)
                total.add(number)
                mean.add(round_)
            for number, key in enumerate(KEYS):
                store.current_key = key
                assert value.value() == round_
                assert items.get() == ["round 1", "round 2"][:round_]
                assert dict(mapping.items()) == {f"round {i + 1}": number for i in range(round_)}
                assert total.get() == number * round_
                assert mean.get() == (1 if round_ == 1 else 1.5)

    def test_what_has_expired_is_not_seen_again_after_a_restore(self) -> None:
        ttl = StateTtlConfig(10, cleanup_full_snapshot=True)
        value = ValueStateDescriptor("value", int, ttl=ttl)
        items = ListStateDescriptor("list", str, ttl=ttl)
        mapping = MapStateDescriptor("map", int, key_type=str, ttl=ttl)
        untyped = ValueStateDescriptor("untyped", ttl=ttl)
        clock = VirtualClock(1_000)
        backend = self.keyed()
        for name in ("old", "new"):
            store = KeyedStateStore(backend, clock)
            handles = (store.list_state(items), store.map_state(mapping))
            for number, key in enumerate(KEYS):
                store.current_key = key
                handles[0].add(name)
                handles[1].put(name, number)
                if name == "old" or number % 2:
                    store.value_state(value).update(number)
                    store.value_state(untyped).update((name, number))
            store.before_snapshot()
            backend = self.keyed(restore=[backend.snapshot()])
            clock.advance(9)
        store = KeyedStateStore(backend, clock)
        for number, key in enumerate(KEYS):
            store.current_key = key
            assert store.list_state(items).get() == ["new"]
            assert dict(store.map_state(mapping).items()) == {"new": number}
            assert store.value_state(value).value() == (number if number % 2 else None)
            assert store.value_state(untyped).value() == (("new", number) if number % 2 else None)
        clock.advance(1)
        store.before_snapshot()
        assert backend.snapshot().groups == {}, "a snapshot of nothing but expired state is empty"

    def test_a_time_to_live_that_comes_or_goes_is_refused(self) -> None:
        ttl = StateTtlConfig(10)
        for before, after, message in ((ttl, None, "declares none"), (None, ttl, "declares one")):
            backend = self.keyed()
            backend.table(ValueStateDescriptor("a", int, ttl=before)).entries()
            with pytest.raises(StateError, match=rf"'a'.*time to live.*{message}"):
                self.keyed(restore=[backend.snapshot()]).table(ValueStateDescriptor("a", int, ttl=after))

    # -- closing ---------------------------------------------------------------------------------------------

    def test_closing_twice_is_harmless(self) -> None:
        backend = self.keyed()
        backend.table(VALUE).entries()["a"] = 1
        snapshot = backend.snapshot()
        backend.close()
        backend.close()
        assert dict(self.keyed(restore=[snapshot]).table(VALUE).entries()) == {"a": 1}

    def test_two_backends_share_nothing(self) -> None:
        backend = self.make_backend()
        own = KeyGroupRange(0, self.max_parallelism)
        contexts = (BackendContext(name, 0, own, self.max_parallelism) for name in ("one", "two"))
        one, two = (backend.create_keyed(context) for context in contexts)
        self._open += [one, two]
        one.table(VALUE).entries()["a"] = 1
        assert two.table(VALUE).entries().get("a") is None
        one.close()
        two.table(VALUE).entries()["a"] = 2
        assert two.table(VALUE).entries()["a"] == 2

    # -- random histories ------------------------------------------------------------------------------------

    def test_random_histories_end_like_those_of_plain_dicts(self) -> None:
        if self.examples:
            from sluiceway.testing.conformance._state_machine import run

            run(self)
