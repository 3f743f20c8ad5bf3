"""What every state backend must do, as tests.

In a plugin's tests::

    from sluiceway.testing.conformance.state_backend import StateBackendConformance

    class TestMyBackend(StateBackendConformance):
        def make_backend(self):
            return MyStateBackend()
"""

# ruff: noqa: D102 - the names of the tests say it

from __future__ import annotations

from sluiceway.functions import AggregateFunction
from sluiceway.keyedstate import KeyedStateStore
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import (
    AggregatingStateDescriptor,
    BackendContext,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
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


class StateBackendConformance(TableTests, SnapshotTests):
    """Subclass it, give it a name that pytest collects, and implement :meth:`make_backend`.

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
