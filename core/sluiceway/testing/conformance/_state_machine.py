"""Random histories of a state backend against plain dicts; needs hypothesis."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

try:
    from hypothesis import HealthCheck, settings
    from hypothesis import strategies as st
    from hypothesis.stateful import (
        RuleBasedStateMachine,
        precondition,
        rule,
        run_state_machine_as_test,
    )
except ImportError as error:
    from sluiceway.util.install_hints import install_command

    raise ImportError(f"the conformance suites need hypothesis: {install_command('hypothesis')}") from error

from sluiceway.state import KeyedSnapshot, KeyedStateBackend, MapStateDescriptor, StateTable, ValueStateDescriptor
from sluiceway.testing.conformance._state_suite import StateBackendSuite

_VALUES = ValueStateDescriptor("values")
_MAPS = MapStateDescriptor("maps")

_keys = st.sampled_from(["a", "b", "c", "", 0, 1, None, ("p", 1)])
_namespaces = st.sampled_from([(), "w", ("w", 2)])
_names = st.sampled_from(["x", "y", 3])
_values = st.none() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2)


def run(suite: StateBackendSuite) -> None:
    """Compare ``suite.examples`` histories."""
    run_state_machine_as_test(
        lambda: _Histories(suite),  # type: ignore[arg-type]  # it takes functions, too
        settings=settings(
            max_examples=suite.examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class _Histories(RuleBasedStateMachine):
    """Steps on the backends of some subtasks and on plain dicts.

    Args:
        suite: makes the backends.
    """

    def __init__(self, suite: StateBackendSuite) -> None:
        super().__init__()
        self.suite = suite
        # (key, namespace) -> value, and -> entries: the obvious model
        self.values: dict[tuple[Any, Any], Any] = {}
        self.maps: dict[tuple[Any, Any], dict[Any, Any]] = {}
        self.backends: list[KeyedStateBackend] = suite.subtasks(1)
        # Snapshots that nobody has read yet, with the model as it was.
        self.taken: list[tuple[list[KeyedSnapshot], Any]] = []

    def value_table(self, key: Any) -> StateTable:
        return self.backends[self.suite.owner(key, len(self.backends))].table(_VALUES)

    def map_table(self, key: Any) -> StateTable:
        return self.backends[self.suite.owner(key, len(self.backends))].table(_MAPS)

    @rule(key=_keys, namespace=_namespaces, value=_values)
    def put(self, key: Any, namespace: Any, value: Any) -> None:
        self.value_table(key).entries(namespace)[key] = value
        self.values[key, namespace] = deepcopy(value)

    @rule(key=_keys, namespace=_namespaces)
    def remove(self, key: Any, namespace: Any) -> None:
        removed = self.value_table(key).entries(namespace).pop(key, "none")
        assert removed == self.values.pop((key, namespace), "none")

    @rule(keys=st.lists(_keys, max_size=4), namespace=_namespaces)
    def remove_several(self, keys: list[Any], namespace: Any) -> None:
        for key in keys:
            self.value_table(key).remove([key, key], namespace)
            self.values.pop((key, namespace), None)

    @rule(
        keys=st.lists(_keys, min_size=1, max_size=5),
        namespace=_namespaces,
        value=_values,
        assigned=st.booleans(),
    )
    def work_on_a_batch(self, keys: list[Any], namespace: Any, value: Any, assigned: bool) -> None:
        # Only keys of one subtask can be in a batch.
        own = [
            key
            for key in keys
            if self.suite.owner(key, len(self.backends)) == self.suite.owner(keys[0], len(self.backends))
        ]
        entries = self.value_table(keys[0]).working(own, namespace)
        for key in own:
            assert entries.get(key, "none") == self.values.get((key, namespace), "none")
            if assigned or key == own[0]:
                entries[key] = deepcopy(value)
                self.values[key, namespace] = deepcopy(value)

    @rule(key=_keys, namespace=_namespaces, name=_names, value=_values)
    def put_entry(self, key: Any, namespace: Any, name: Any, value: Any) -> None:
        self.map_table(key).mapping(key, namespace)[name] = value
        self.maps.setdefault((key, namespace), {})[name] = deepcopy(value)

    @rule(key=_keys, namespace=_namespaces, name=_names)
    def remove_entry(self, key: Any, namespace: Any, name: Any) -> None:
        self.map_table(key).mapping(key, namespace).pop(name, None)
        entries = self.maps.get((key, namespace), {})
        entries.pop(name, None)
        if not entries:
            self.maps.pop((key, namespace), None)

    @rule(key=_keys, namespace=_namespaces)
    def clear_entries(self, key: Any, namespace: Any) -> None:
        self.map_table(key).mapping(key, namespace).clear()
        self.maps.pop((key, namespace), None)

    @rule(namespace=_namespaces)
    def drop(self, namespace: Any) -> None:
        for backend in self.backends:
            backend.table(_VALUES).drop(namespace)
            backend.table(_MAPS).drop(namespace)
        self.values = {place: value for place, value in self.values.items() if place[1] != namespace}
        self.maps = {place: value for place, value in self.maps.items() if place[1] != namespace}

    @rule(key=_keys, namespace=_namespaces, number=st.integers(0, 3))
    def change_in_place(self, key: Any, namespace: Any, number: int) -> None:
        entries = self.value_table(key).entries(namespace)
        value = entries.get(key)
        if isinstance(value, list):
            value.append(number)
            entries[key] = value
            self.values[key, namespace] = [*self.values[key, namespace], number]

    @rule(key=_keys, namespace=_namespaces, name=_names, number=st.integers(0, 3))
    def change_entry_in_place(self, key: Any, namespace: Any, name: Any, number: int) -> None:
        mapping = self.map_table(key).mapping(key, namespace)
        value = mapping.get(name)
        if isinstance(value, list):
            value.append(number)
            mapping[name] = value
            self.maps[key, namespace][name] = [*self.maps[key, namespace][name], number]

    @rule()
    def take_a_snapshot(self) -> None:
        model = deepcopy((self.values, self.maps))
        self.taken.append(([backend.snapshot() for backend in self.backends], model))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def read_a_snapshot(self, data: st.DataObject) -> None:
        snapshots, model = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        parallelism = data.draw(st.integers(1, 2)) if self.suite.can_rescale else len(snapshots)
        backends = self.suite.subtasks(parallelism, snapshots)
        found = _contents(backends)
        for backend in backends:
            backend.close()
        for snapshot in snapshots:
            snapshot.release()
        assert found == (model[0], {place: list(entries.items()) for place, entries in model[1].items()})

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_a_snapshot_up(self, data: st.DataObject) -> None:
        snapshots, _ = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        for snapshot in snapshots:
            snapshot.release()

    @rule(parallelism=st.integers(1, 4))
    def restore(self, parallelism: int) -> None:
        old = self.backends
        snapshots = [backend.snapshot() for backend in old]
        self.backends = self.suite.subtasks(parallelism if self.suite.can_rescale else len(old), snapshots)
        for backend in old:
            backend.close()

    @rule(key=_keys, namespace=_namespaces)
    def look(self, key: Any, namespace: Any) -> None:
        found = self.value_table(key).entries(namespace).get(key, "none")
        assert found == self.values.get((key, namespace), "none")

    @rule(key=_keys, namespace=_namespaces, name=_names)
    def look_at_an_entry(self, key: Any, namespace: Any, name: Any) -> None:
        found = self.map_table(key).mapping(key, namespace).get(name, "none")
        assert found == self.maps.get((key, namespace), {}).get(name, "none")

    @rule()
    def look_at_all(self) -> None:
        """Compare all tables; not after each step, as a backend may take the chance to tidy up."""
        self.same_as_model()

    def same_as_model(self) -> None:
        values, maps = _contents(self.backends)
        assert values == self.values
        assert maps == {place: list(entries.items()) for place, entries in self.maps.items()}

    def teardown(self) -> None:
        try:
            self.same_as_model()
        finally:
            self.close()

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        for snapshots, _ in self.taken:
            for snapshot in snapshots:
                snapshot.release()


def _contents(backends: list[KeyedStateBackend]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the values, and the entries of maps in their order, by key and namespace."""
    values: dict[tuple[Any, Any], Any] = {}
    maps: dict[tuple[Any, Any], list[tuple[Any, Any]]] = {}
    for backend in backends:
        table = backend.table(_VALUES)
        for namespace in table.namespaces():
            keys = set(table.keys(namespace))
            assert keys, "a namespace without keys holds no state"
            assert keys == set(table.entries(namespace))
            assert keys <= set(table.visit_keys(namespace))
            values.update({(key, namespace): table.entries(namespace)[key] for key in keys})
        table = backend.table(_MAPS)
        for namespace in table.namespaces():
            for key in table.keys(namespace):
                maps[key, namespace] = list(table.mapping(key, namespace).items())
    return values, maps
