"""Tests of a state backend's tables."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import StateError
from sluiceway.state import VOID_NAMESPACE, MapStateDescriptor, ValueStateDescriptor
from sluiceway.testing.conformance._state_suite import KEYS, MAP, VALUE, StateBackendSuite

__all__ = ["TableTests"]


class TableTests(StateBackendSuite):
    """Entries, mappings, namespaces, names."""

    # -- value tables ----------------------------------------------------------------------------------------

    def test_entries_are_a_mapping_of_keys(self) -> None:
        entries = self.keyed().table(VALUE).entries()
        assert entries.get("a") is None
        assert entries.get("a", 7) == 7
        assert "a" not in entries
        assert len(entries) == 0
        entries["a"] = 1
        entries["b"] = 2
        entries["a"] = 3
        assert dict(entries) == {"a": 3, "b": 2}
        assert entries["a"] == 3
        assert len(entries) == 2
        del entries["a"]
        assert "a" not in entries
        assert entries.pop("b") == 2
        assert entries.pop("b", None) is None
        assert entries.setdefault("c", 5) == 5
        entries.update({"c": 6, "d": 7})
        assert sorted(entries.items()) == [("c", 6), ("d", 7)]
        with pytest.raises(KeyError):
            entries["missing"]
        with pytest.raises(KeyError):
            del entries["missing"]

    def test_keys_are_removed_whether_they_are_there_or_not(self) -> None:
        backend = self.keyed()
        table, model = backend.table(VALUE), dict[Any, Any]()
        table.entries("other").update({"a": 1, "b": 2})
        for round_ in range(12):
            batch = KEYS[round_ * 7 :: 3]
            table.entries().update(dict.fromkeys(batch, round_))
            model |= dict.fromkeys(batch, round_)
            if round_ % 3 == 1:
                taken, frozen = backend.snapshot(), dict(model)
            gone = [*KEYS[round_ * 5 :: 4], "never there", *KEYS[:2], KEYS[0]]
            table.remove(gone)
            model = {key: value for key, value in model.items() if key not in gone}
            assert dict(table.entries()) == model
            assert table.read(KEYS) == model
            assert table.entries().get(KEYS[0]) is None
            if round_ % 3 == 2:
                restored = self.keyed(restore=[taken])
                assert dict(restored.table(VALUE).entries()) == frozen
                taken.release()
        table.remove(KEYS)
        table.remove(["a", "none"], "other")
        assert dict(table.entries()) == {}
        assert list(table.namespaces()) == ["other"]
        assert dict(table.entries("other")) == {"b": 2}

    def test_entries_are_live_and_can_be_bound_once(self) -> None:
        table = self.keyed().table(VALUE)
        get, entries = table.entries().get, table.entries()
        table.entries()["a"] = 1
        assert get("a") == 1
        entries["a"] = 2
        assert get("a") == table.entries()["a"] == 2

    def test_a_batch_can_be_worked_on(self) -> None:
        backend = self.keyed()
        table, model = backend.table(VALUE), dict[Any, Any]()
        other = table.entries("other")
        other["a"] = "other"
        snapshot, frozen = backend.snapshot(), dict(model)
        for round_ in range(12):
            batch = KEYS[round_ * 7 :: 3] + KEYS[:5] + KEYS[:2]
            entries = table.working(batch)
            for key in batch:
                assert entries.get(key, "none") == model.get(key, "none")
                entries[key] = model[key] = [*model.get(key, []), round_]
            if round_ % 3 == 1:
                again = self.keyed(restore=[snapshot]).table(VALUE)
                assert dict(again.entries()) == frozen
                snapshot.release()
                snapshot, frozen = backend.snapshot(), dict(model)
            assert table.read(KEYS) == model
            if round_ % 4 == 2:
                table.working(KEYS)  # what is not assigned stays as it is
                del table.entries()[KEYS[0]], model[KEYS[0]]
            if round_ % 4 == 3:
                assert dict(table.entries()) == model
        snapshot.release()
        assert dict(table.entries()) == model
        assert dict(self.keyed(restore=[backend.snapshot()]).table(VALUE).entries()) == model
        assert dict(other) == {"a": "other"}
        assert dict(table.working(["a"], "other")).get("a") == "other"
        assert table.read(["a", "none"], "other") == {"a": "other"}

    def test_reading_creates_nothing(self) -> None:
        backend = self.keyed()
        value, mapping = backend.table(VALUE), backend.table(MAP)
        value.entries().get("a")
        value.entries("namespace").get("a")
        mapping.mapping("a").get("b")
        list(mapping.mapping("a", "namespace").items())
        assert list(value.namespaces()) == list(value.keys()) == []
        assert list(mapping.namespaces()) == list(mapping.keys()) == []
        assert backend.snapshot().groups == {}

    def test_a_changed_value_is_seen_once_it_is_assigned(self) -> None:
        entries = self.keyed().table(VALUE).entries()
        entries["a"] = [1]
        value = entries["a"]
        value.append(2)
        entries["a"] = value
        assert entries["a"] == [1, 2]

    def test_none_is_a_value_like_others(self) -> None:
        backend = self.keyed()
        backend.table(VALUE).entries()["a"] = None
        backend.table(MAP).mapping("a")["b"] = None
        again = self.keyed(restore=[backend.snapshot()])
        for one in (backend, again):
            assert "a" in one.table(VALUE).entries()
            assert one.table(VALUE).entries().get("a", 1) is None
            assert dict(one.table(MAP).mapping("a")) == {"b": None}

    def test_every_type_of_key(self) -> None:
        backend = self.keyed()
        entries, table = backend.table(VALUE).entries(), backend.table(MAP)
        for i, key in enumerate(KEYS):
            entries[key] = i
            table.mapping(key)[key] = i
        again = self.keyed(restore=[backend.snapshot()])
        restored, maps = again.table(VALUE).entries(), again.table(MAP)
        assert dict(restored) == dict(entries)
        for key in restored:
            assert [type(k) for k in KEYS if k == key and type(k) is type(key)], "keys keep their types"
        for key in KEYS:
            assert dict(maps.mapping(key)) == dict(table.mapping(key))

    def test_equal_keys_of_different_types_are_one_key(self) -> None:
        entries = self.keyed().table(VALUE).entries()
        entries[1] = "a"
        assert entries[1.0] == entries[True] == "a"
        entries[1.0] = "b"
        assert dict(entries) == {1: "b"}

    # -- map tables ------------------------------------------------------------------------------------------

    def test_a_mapping_belongs_to_a_key(self) -> None:
        table = self.keyed().table(MAP)
        a, b = table.mapping("a"), table.mapping("b")
        a["x"] = 1
        a["y"] = 2
        b["x"] = 3
        a["x"] = 4
        assert dict(a) == {"x": 4, "y": 2}
        assert dict(b) == {"x": 3}
        assert "y" in a
        assert "y" not in b
        assert len(a) == 2
        assert a.get("z", 9) == 9
        assert a.pop("x") == 4
        assert a.pop("x", None) is None
        assert list(a.items()) == [("y", 2)]
        with pytest.raises(KeyError):
            a["x"]
        with pytest.raises(KeyError):
            del a["x"]
        assert sorted(table.keys()) == ["a", "b"]

    def test_mappings_are_live(self) -> None:
        table = self.keyed().table(MAP)
        early, late = table.mapping("a"), table.mapping("a")
        early["x"] = 1
        assert late["x"] == 1
        late.clear()
        assert dict(early) == {}
        early["y"] = 2
        assert dict(late) == dict(table.mapping("a")) == {"y": 2}

    def test_a_mapping_without_entries_is_no_state(self) -> None:
        backend = self.keyed()
        table = backend.table(MAP)
        for key in "abc":
            table.mapping(key)["x"] = 1
        table.mapping("a").clear()
        del table.mapping("b")["x"]
        table.mapping("c").pop("x")
        assert list(table.keys()) == list(table.namespaces()) == []
        assert backend.snapshot().groups == {}

    def test_entries_of_a_mapping_keep_their_order(self) -> None:
        backend = self.keyed()
        mapping = backend.table(MAP).mapping("a")
        names = [f"n{i * 7919 % 100}" for i in range(100)]
        for i, name in enumerate(names):
            mapping[name] = i
        mapping[names[0]] = "again, at its place"
        del mapping[names[1]]
        mapping[names[1]] = "now the last"
        expected = [names[0], *names[2:], names[1]]
        assert list(mapping) == list(mapping.keys()) == [name for name, _ in mapping.items()] == expected
        again = self.keyed(restore=[backend.snapshot()])
        assert list(again.table(MAP).mapping("a").items()) == list(mapping.items())

    # -- namespaces ------------------------------------------------------------------------------------------

    def test_namespaces_are_apart_and_can_be_dropped(self) -> None:
        backend = self.keyed()
        table = backend.table(VALUE)
        spaces: list[Any] = [VOID_NAMESPACE, "window", ("window", 1), 10, 20]
        for i, namespace in enumerate(spaces):
            table.entries(namespace)["a"] = i
        table.entries(10)["b"] = 5
        assert [table.entries(namespace)["a"] for namespace in spaces] == list(range(5))
        assert set(table.namespaces()) == set(spaces)
        assert set(table.keys(10)) == {"a", "b"}
        table.drop(10)
        table.drop("never seen")
        assert set(table.namespaces()) == set(spaces) - {10}
        assert list(table.keys(10)) == []
        assert table.entries(10).get("a") is None
        table.entries(10)["c"] = 1
        assert dict(table.entries(10)) == {"c": 1}
        del table.entries(20)["a"]
        assert 20 not in set(table.namespaces())

    def test_namespaces_of_mappings_are_apart_and_can_be_dropped(self) -> None:
        table = self.keyed().table(MAP)
        table.mapping("a")["x"] = 0
        table.mapping("a", "w")["x"] = 1
        table.mapping("b", "w")["y"] = 2
        assert dict(table.mapping("a")) == {"x": 0}
        assert dict(table.mapping("a", "w")) == {"x": 1}
        assert sorted(table.keys("w")) == ["a", "b"]
        table.drop("w")
        assert list(table.keys("w")) == []
        assert dict(table.mapping("a", "w")) == {}
        assert dict(table.mapping("a")) == {"x": 0}

    def test_dropped_namespaces_are_not_in_a_snapshot_others_are(self) -> None:
        backend = self.keyed()
        table = backend.table(VALUE)
        for namespace in ("gone", ("kept", 1)):
            for key in "abc":
                table.entries(namespace)[key] = f"{key} {namespace}"
        table.drop("gone")
        restored = self.keyed(restore=[backend.snapshot()]).table(VALUE)
        assert list(restored.namespaces()) == [("kept", 1)]
        assert dict(restored.entries(("kept", 1))) == dict(table.entries(("kept", 1)))

    def test_tables_can_be_changed_while_keys_are_walked(self) -> None:
        table = self.keyed().table(VALUE)
        for namespace in range(3):
            for key in "abc":
                table.entries(namespace)[key] = 1
        for name in table.namespaces():
            for key in table.keys(name):
                del table.entries(name)[key]
                table.entries("other")[key] = 2
        assert list(table.namespaces()) == ["other"]

    def test_keys_are_visited_while_tables_are_changed(self) -> None:
        backend = self.keyed()
        table = backend.table(VALUE)
        entries = table.entries("w")
        entries.update(dict.fromkeys(range(500), 1))
        snapshot = backend.snapshot()
        seen = set()
        for key in table.visit_keys("w"):
            seen.add(key)
            if key < 500:
                entries.pop(key, None) if key % 2 else entries.update({key: 2})
                entries[key + 1000] = 3
        assert seen >= set(range(500))
        assert set(entries) == {*range(0, 500, 2), *range(1000, 1500)}
        assert set(self.keyed(restore=[snapshot]).table(VALUE).visit_keys("w")) == set(range(500))
        assert list(table.visit_keys("never seen")) == []

    def test_a_visit_of_keys_ends_when_their_namespace_is_dropped(self) -> None:
        table = self.keyed().table(MAP)
        for key in range(500):
            table.mapping(key, "w")["x"] = key
        visit = table.visit_keys("w")
        assert next(visit) in range(500)
        table.drop("w")
        assert set(visit) <= set(range(500))
        assert list(table.namespaces()) == []

    # -- many tables -----------------------------------------------------------------------------------------

    def test_many_tables_do_not_mix(self) -> None:
        backend = self.keyed()
        for i in range(50):
            backend.table(ValueStateDescriptor(f"value{i}")).entries()["k"] = i
            backend.table(MapStateDescriptor(f"map{i}")).mapping("k")["e"] = i
        again = self.keyed(restore=[backend.snapshot()])
        for i in reversed(range(50)):
            assert again.table(ValueStateDescriptor(f"value{i}")).entries()["k"] == i
            assert again.table(MapStateDescriptor(f"map{i}")).mapping("k")["e"] == i

    def test_a_name_finds_its_table_again(self) -> None:
        backend = self.keyed()
        backend.table(ValueStateDescriptor("a", int)).entries()["k"] = 1
        assert backend.table(ValueStateDescriptor("a", int)).entries()["k"] == 1

    def test_a_name_cannot_be_two_kinds_or_types(self) -> None:
        backend = self.keyed()
        backend.table(ValueStateDescriptor("a", int))
        with pytest.raises(StateError, match=r"'a'.*\bint\b.*\bstr\b"):
            backend.table(ValueStateDescriptor("a", str))
        with pytest.raises(StateError, match=r"'a'.*value table.*map table"):
            backend.table(MapStateDescriptor("a", int, key_type=int))
        backend.table(ValueStateDescriptor("b"))
        with pytest.raises(StateError, match=r"'b'.*value table.*map table"):
            backend.table(MapStateDescriptor("b"))
