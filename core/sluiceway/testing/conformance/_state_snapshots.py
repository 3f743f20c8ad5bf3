"""Tests of a state backend's snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from sluiceway.errors import CorruptStreamError, StateError, UnstableKeyError
from sluiceway.keygroups import key_group
from sluiceway.serializers import KEY_SERIALIZER, decode_rows, encode_rows
from sluiceway.state import (
    KeyedSnapshot,
    KeyedStateBackend,
    MapStateDescriptor,
    StateMeta,
    TableKind,
    ValueStateDescriptor,
)
from sluiceway.testing.conformance._state_suite import KEYS, MAP, VALUE, Position, StateBackendSuite

__all__ = ["SnapshotTests"]


class SnapshotTests(StateBackendSuite):
    """Taking snapshots, restoring them, at any parallelism."""

    # -- snapshots -------------------------------------------------------------------------------------------

    def test_later_changes_do_not_show_in_a_snapshot(self) -> None:
        backend = self.keyed()
        entries, maps = backend.table(VALUE).entries(), backend.table(MAP)
        entries["list"] = [1]
        entries["changed"] = "old"
        entries["deleted"] = 1
        maps.mapping("k")["x"] = [1]
        snapshot = backend.snapshot()
        entries["list"].append(2)
        entries["changed"] = "new"
        del entries["deleted"]
        entries["added"] = 1
        maps.mapping("k")["x"].append(2)
        maps.mapping("k")["y"] = 1
        again = self.keyed(restore=[snapshot])
        assert dict(again.table(VALUE).entries()) == {"list": [1], "changed": "old", "deleted": 1}
        assert dict(again.table(MAP).mapping("k")) == {"x": [1]}

    def test_a_snapshot_changes_nothing_and_can_be_repeated(self) -> None:
        backend = self.keyed()
        table = backend.table(VALUE)
        get, entries = table.entries().get, table.entries()
        entries["a"] = 1
        first = backend.snapshot()
        assert get("a") == 1
        entries["a"] = 2
        assert get("a") == 2
        second = backend.snapshot()
        for snapshot, value in ((first, 1), (second, 2), (first, 1)):
            assert self.keyed(restore=[snapshot]).table(VALUE).entries()["a"] == value

    def test_a_snapshot_is_read_by_another_thread_while_state_changes(self) -> None:
        backend = self.keyed()
        entries, maps = backend.table(VALUE).entries(), backend.table(MAP)
        keys = [f"key{i}" for i in range(500)]
        for key in keys:
            entries[key] = [0]
            maps.mapping(key)["x"] = [0]
        for round_ in range(1, 4):
            snapshot = backend.snapshot()
            groups: dict[int, bytes] = {}
            reader = Thread(target=lambda taken=snapshot, into=groups: into.update(taken.groups))
            reader.start()
            for key in keys:
                value = entries[key]
                value.append(round_)
                entries[key] = value
                mapping = maps.mapping(key)
                inner = mapping["x"]
                inner.append(round_)
                mapping["x"] = inner
            reader.join()
            snapshot.release()
            snapshot.release()
            again = self.keyed(restore=[KeyedSnapshot(snapshot.tables, groups)])
            assert dict(again.table(VALUE).entries()) == {key: list(range(round_)) for key in keys}
            assert dict(again.table(MAP).mapping("key7")) == {"x": list(range(round_))}
            assert entries["key7"] == list(range(round_ + 1))

    def test_a_snapshot_is_read_while_its_backend_is_closed(self) -> None:
        for _ in range(5):
            backend = self.keyed()
            backend.table(VALUE).entries().update({f"key{i}": [i] for i in range(300)})
            backend.table(MAP).mapping("k")["x"] = 1
            snapshot = backend.snapshot()
            groups: dict[int, bytes] = {}
            reader = Thread(target=lambda taken=snapshot, into=groups: into.update(taken.groups))
            reader.start()
            backend.close()
            reader.join()
            snapshot.release()
            again = self.keyed(restore=[KeyedSnapshot(snapshot.tables, groups)])
            assert dict(again.table(VALUE).entries()) == {f"key{i}": [i] for i in range(300)}
            assert dict(again.table(MAP).mapping("k")) == {"x": 1}

    def test_a_snapshot_that_nobody_reads_changes_nothing(self) -> None:
        backend = self.keyed()
        entries = backend.table(VALUE).entries()
        entries.update(a=[1], b=[1], c=[1])
        snapshot = backend.snapshot()
        entries["a"] = [2]
        del entries["b"]
        snapshot.release()
        assert entries.get("c") == [1]
        assert dict(entries) == {"a": [2], "c": [1]}
        assert dict(self.keyed(restore=[backend.snapshot()]).table(VALUE).entries()) == {"a": [2], "c": [1]}

    def test_what_is_set_aside_is_in_the_next_snapshot_and_in_no_other(self) -> None:
        backend = self.keyed()
        table = backend.table(VALUE)
        given: dict[Any, Any] = {key: (True, place) for place, key in enumerate(KEYS)}
        taken = table.set_aside(lambda: dict(given))
        snapshot = backend.snapshot()
        taken()
        assert list(table.keys()) == []
        again = self.keyed(restore=[snapshot])
        assert dict(again.table(VALUE).entries()) == given
        assert dict(self.keyed(restore=[backend.snapshot()]).table(VALUE).entries()) == {}

    def test_a_snapshot_is_organised_by_key_group(self) -> None:
        backend = self.keyed()
        table = backend.table(ValueStateDescriptor("number", int))
        for key in KEYS:
            table.entries(("in", 1))[key] = 5
        snapshot = backend.snapshot()
        assert [(meta.name, meta.kind, meta.type_name) for meta in snapshot.tables] == [
            ("number", TableKind.VALUE, "int")
        ]
        found = []
        for group, data in snapshot.groups.items():
            rows = decode_rows(data)
            assert rows, "groups without state are absent"
            for row in rows:
                assert snapshot.tables[row.table].name == "number"
                assert KEY_SERIALIZER.loads(row.namespace) == ("in", 1)
                found.append(KEY_SERIALIZER.loads(row.key))
                assert key_group(found[-1], self.max_parallelism) == group
        assert len(found) == len(set(KEYS))
        assert set(found) == set(KEYS)

    def test_an_empty_backend_can_be_snapshot_and_restored(self) -> None:
        snapshot = self.keyed().snapshot()
        assert dict(snapshot.groups) == {}
        assert list(self.keyed(restore=[snapshot]).table(VALUE).keys()) == []
        assert list(self.keyed(restore=[]).table(VALUE).keys()) == []

    def test_values_of_all_sorts_and_sizes_come_back_as_they_were(self) -> None:
        values: dict[str, Any] = {
            "big": bytes(range(256)) * (self.big_value_bytes // 256),
            "long": "ü" * 100_000,
            "many": list(range(100_000)),
            "number": 2**200,
            "nested": {"a": [(1, 2.5), {3}], "b": {None: Position(1, 2)}},
            "tuple": (1, [2]),
        }
        backend = self.keyed()
        backend.table(VALUE).entries().update(values)
        backend.table(MAP).mapping("k").update(values)
        again = self.keyed(restore=[backend.snapshot()])
        assert dict(again.table(VALUE).entries()) == values
        assert dict(again.table(MAP).mapping("k")) == values

    def test_declared_types_come_back_as_they_were(self) -> None:
        declared: list[tuple[Any, Any]] = [
            (int, 5),
            (int, 2**80),
            (float, 1),
            (str, "x"),
            (tuple[str, int], ("x", 1)),
            (list[Position], [Position(1, 2)]),
            (dict[str, list[int]], {"x": [1]}),
            (Position, Position(3, 4)),
        ]
        backend = self.keyed()
        for i, (hint, value) in enumerate(declared):
            backend.table(ValueStateDescriptor(f"v{i}", hint)).entries()["k"] = value
            backend.table(MapStateDescriptor(f"m{i}", hint, key_type=str)).mapping("k")["e"] = value
        again = self.keyed(restore=[backend.snapshot()])
        for i, (hint, value) in enumerate(declared):
            found = again.table(ValueStateDescriptor(f"v{i}", hint)).entries()["k"]
            entry = again.table(MapStateDescriptor(f"m{i}", hint, key_type=str)).mapping("k")["e"]
            assert (found, type(found)) == (entry, type(entry)) == (value, type(value))

    def test_a_value_that_cannot_be_serialized_is_named(self) -> None:
        backend = self.keyed()
        with pytest.raises(Exception, match=r"'value'.*'k'"):  # noqa: PT012 - some backends find out at once
            backend.table(VALUE).entries()["k"] = lambda: None
            dict(backend.snapshot().groups)

    def test_a_key_without_a_stable_hash_gets_into_no_snapshot(self) -> None:
        class Unstable:
            pass

        backend = self.keyed()
        with pytest.raises(UnstableKeyError, match="Unstable"):  # noqa: PT012 - some backends find out at once
            backend.table(VALUE).entries()[Unstable()] = 1
            dict(backend.snapshot().groups)

    # -- restoring -------------------------------------------------------------------------------------------

    def test_every_key_lands_exactly_once_on_its_owner(self) -> None:
        self._need_rescaling()
        snapshots = self._filled(3)
        for parallelism in (3, 1, 2, 5, 16, 4, 1, 3):
            backends = self.subtasks(parallelism, snapshots)
            self._check_filled(backends)
            snapshots = [backend.snapshot() for backend in backends]

    def test_restoring_at_the_same_parallelism(self) -> None:
        self._check_filled(self.subtasks(3, self._filled(3)))

    def test_order_of_mappings_survives_rescaling(self) -> None:
        self._need_rescaling()
        backend = self.keyed()
        for key in KEYS:
            backend.table(MAP).mapping(key).update({3: "c", 1: "a", 2: "b"})
        backends = self.subtasks(4, [backend.snapshot()])
        for key in KEYS:
            mapping = backends[self.owner(key, 4)].table(MAP).mapping(key)
            assert list(mapping.items()) == [(3, "c"), (1, "a"), (2, "b")]

    def _need_rescaling(self) -> None:
        if not self.can_rescale:
            pytest.skip("this backend cannot rescale")

    def _filled(self, parallelism: int) -> list[KeyedSnapshot]:
        backends = self.subtasks(parallelism)
        for i, key in enumerate(KEYS):
            backend = backends[self.owner(key, parallelism)]
            backend.table(VALUE).entries()[key] = i
            backend.table(VALUE).entries(("w", i % 3))[key] = [i]
            backend.table(MAP).mapping(key).update({"i": i, "twice": 2 * i})
        return [backend.snapshot() for backend in backends]

    def _check_filled(self, backends: list[KeyedStateBackend]) -> None:
        seen: list[Any] = []
        for subtask, backend in enumerate(backends):
            values, maps = backend.table(VALUE), backend.table(MAP)
            for key in values.keys():  # noqa: SIM118 - a table is no dict
                assert self.owner(key, len(backends)) == subtask
                seen.append(key)
                i = KEYS.index(key)
                assert values.entries()[key] == i
                assert values.entries(("w", i % 3))[key] == [i]
                assert dict(maps.mapping(key)) == {"i": i, "twice": 2 * i}
            assert set(maps.keys()) == set(values.keys())
        assert len(seen) == len(set(seen))
        assert set(seen) == set(KEYS)

    def test_restored_state_goes_on(self) -> None:
        backend = self.keyed()
        backend.table(VALUE).entries().update({"a": 1, "b": 2})
        backend = self.keyed(restore=[backend.snapshot()])
        entries = backend.table(VALUE).entries()
        entries["a"] += 10
        del entries["b"]
        entries["c"] = 3
        assert dict(self.keyed(restore=[backend.snapshot()]).table(VALUE).entries()) == {"a": 11, "c": 3}

    def test_a_table_that_nobody_asks_for_is_kept(self) -> None:
        backend = self.keyed()
        backend.table(ValueStateDescriptor("early", int)).entries()["a"] = 1
        backend.table(MapStateDescriptor("late", int, key_type=str)).mapping("a", "w")["x"] = 2
        backend = self.keyed(restore=[backend.snapshot()])
        backend.table(ValueStateDescriptor("new", int)).entries()["a"] = 3
        backend = self.keyed(restore=[backend.snapshot()])
        assert backend.table(ValueStateDescriptor("early", int)).entries()["a"] == 1
        assert dict(backend.table(MapStateDescriptor("late", int, key_type=str)).mapping("a", "w")) == {"x": 2}
        assert backend.table(ValueStateDescriptor("new", int)).entries()["a"] == 3

    def test_restoring_too_late_is_an_error(self) -> None:
        backend = self.keyed()
        backend.table(VALUE).entries()["a"] = 1
        with pytest.raises(StateError):
            backend.restore([backend.snapshot()])

    def test_another_type_is_refused_with_both_types(self) -> None:
        backend = self.keyed()
        backend.table(ValueStateDescriptor("a", int)).entries()["k"] = 1
        snapshot = backend.snapshot()
        with pytest.raises(StateError, match=r"'a'.*\bint\b.*\bstr\b"):
            self.keyed(restore=[snapshot]).table(ValueStateDescriptor("a", str))
        with pytest.raises(StateError, match=r"'a'.*value table.*map table"):
            self.keyed(restore=[snapshot]).table(MapStateDescriptor("a", int, key_type=str))
        with pytest.raises(StateError, match=r"'a'.*\bint\b.*no declared type"):
            self.keyed(restore=[snapshot]).table(ValueStateDescriptor("a"))
        backend = self.keyed()
        backend.table(ValueStateDescriptor("b")).entries()["k"] = {}
        with pytest.raises(StateError, match=r"'b'.*value table.*map table"):
            self.keyed(restore=[backend.snapshot()]).table(MapStateDescriptor("b"))

    def test_an_unknown_serializer_or_version_is_refused(self) -> None:
        backend = self.keyed()
        descriptor = ValueStateDescriptor("a", int)
        backend.table(descriptor).entries()["k"] = 1
        snapshot = backend.snapshot()
        for meta, message in (
            (replace(snapshot.tables[0], serializer="quipu"), "'a'.*'quipu'"),
            (replace(snapshot.tables[0], version=99), "'a'.*version 99"),
        ):
            with pytest.raises(StateError, match=message):
                self.keyed(restore=[KeyedSnapshot((meta,), snapshot.groups)]).table(descriptor)

    def test_snapshots_that_disagree_are_refused(self) -> None:
        meta = StateMeta("a", TableKind.VALUE, "pickle", 1)
        with pytest.raises(StateError, match=r"disagree.*'a'"):
            self.keyed(restore=[KeyedSnapshot((meta,), {}), KeyedSnapshot((replace(meta, version=2),), {})])

    def test_a_key_group_that_comes_twice_is_refused(self) -> None:
        backend = self.keyed()
        backend.table(VALUE).entries()["a"] = 1
        snapshot = backend.snapshot()
        with pytest.raises(StateError, match="key group"):
            self.keyed(restore=[snapshot, snapshot])

    def test_damaged_rows_are_refused(self) -> None:
        backend = self.keyed()
        backend.table(VALUE).entries()["a"] = 1
        snapshot = backend.snapshot()
        [(group, data)] = snapshot.groups.items()
        # Cut short; with a bit changed; empty; of a table that is not there; with a value of no bytes.
        damaged: list[Mapping[int, bytes]] = [
            {group: data[:-1]},
            {group: data[:-1] + bytes([data[-1] ^ 1])},
            {group: b""},
            {group: encode_rows([decode_rows(data)[0]._replace(table=1)])},
            {group: encode_rows([decode_rows(data)[0]._replace(value=[b""])])},
        ]
        for groups in damaged:
            with pytest.raises(CorruptStreamError):
                self.keyed(restore=[KeyedSnapshot(snapshot.tables, groups)]).table(VALUE)
