"""The format of the change log, and the layouts that earlier versions wrote."""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluiceway.errors import CorruptStreamError
from sluiceway.keygroups import KeyGroupRange, key_group
from sluiceway.serializers import KEY_SERIALIZER, Row, encode_rows
from sluiceway.state import (
    BackendContext,
    KeyedStateBackend,
    MapStateDescriptor,
    StateMeta,
    TableKind,
    TableSchema,
    ValueStateDescriptor,
)
from sluiceway.state.changelog import ChangelogStateBackend, snapshot_of
from sluiceway.state.changelog.fold import ChangeFold, plain_key
from sluiceway.state.changelog.format import decode_record, encode_record
from sluiceway.state.changelog.record import ChangeRecord, Dropped, Removed, TableInfo
from sluiceway_memory._backend import MemoryStateBackend

CONTEXT = BackendContext("uid-7", 0, KeyGroupRange(0, 8), 8)
META = StateMeta("counts", TableKind.VALUE, "pickle", 1, "int", True, "list", 5_000, ["list", ["int"]])
VALUE = ValueStateDescriptor("value")

dumps = KEY_SERIALIZER.dumps
VOID = dumps(())


def row(key: Hashable, value: bytes = b"v", table: int = 0) -> Row:
    return Row(table, VOID, dumps(key), value)


RECORD = ChangeRecord(
    True,
    (TableInfo.of(META),),
    [Dropped(0, dumps("w"))],
    {3: [Removed(0, VOID, [dumps("a"), dumps(1)])]},
    {2: encode_rows([row("b")])},
)


def test_a_record_is_read_as_it_was_written() -> None:
    found = decode_record(encode_record(RECORD))
    assert found == RECORD
    assert found.metas() == (META,)
    assert [(found.metas()[0].declared, found.metas()[0].ttl_ms)] == [("list", 5_000)]


def test_the_header_is_as_documented() -> None:
    data = encode_record(RECORD)
    assert data[:4] == b"SWC\x01"
    assert len(msgspec.msgpack.decode(data[8:], strict=False)) == 5


def test_no_damage_goes_unnoticed() -> None:
    data = encode_record(RECORD)
    for place in range(len(data)):
        for flipped in (1, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= flipped
            with pytest.raises(CorruptStreamError):
                decode_record(bytes(damaged))
        with pytest.raises(CorruptStreamError):
            decode_record(data[:place])
    with pytest.raises(CorruptStreamError):
        decode_record(data + b"\0")


def test_a_later_layout_is_named() -> None:
    data = bytearray(encode_record(RECORD))
    data[3] = 9
    with pytest.raises(CorruptStreamError, match="layout 9"):
        decode_record(bytes(data))


def test_a_table_of_an_unknown_kind_is_named() -> None:
    table = msgspec.structs.replace(TableInfo.of(META), kind="graph")
    with pytest.raises(CorruptStreamError, match=r"'counts'.*'graph'"):
        ChangeRecord(True, (table,)).metas()


# ---- applying records ---------------------------------------------------------------------------------------


def fold_of(*records: ChangeRecord) -> ChangeFold:
    fold = ChangeFold()
    for record in records:
        fold.add(record)
    return fold


def test_dropped_comes_before_removed_and_written() -> None:
    before = ChangeRecord(True, (), [], {}, {0: encode_rows([row("a"), row("b")])})
    after = ChangeRecord(
        False,
        (),
        [Dropped(0, VOID)],
        {0: [Removed(0, VOID, [dumps("c")])]},
        {0: encode_rows([row("c")])},
    )
    assert list(fold_of(before, after).rows(0)) == [row("c")]
    assert list(fold_of(before, after, after).rows(0)) == [row("c")], "applied twice it is as applied once"


def test_rows_below_the_log_count_where_nothing_has_replaced_them() -> None:
    change = ChangeRecord(
        False,
        (),
        [Dropped(1, VOID)],
        {0: [Removed(0, VOID, [dumps("a")])]},
        {0: encode_rows([row("b")])},
    )
    below = [row("a", b"old"), row("b", b"old"), row("c", b"old"), row("d", b"old", table=1)]
    assert list(fold_of(change).rows(0, below)) == [row("c", b"old"), row("b")]
    assert list(fold_of(ChangeRecord(True), change).rows(0, below)) == [row("b")]


def test_other_key_groups_are_skipped_without_reading_their_rows() -> None:
    fold = ChangeFold()
    fold.add(ChangeRecord(True, (), [], {}, {0: encode_rows([row("a")]), 1: b"not read"}), {0}.__contains__)
    assert list(fold.groups()) == [0]
    with pytest.raises(CorruptStreamError):
        fold.add(ChangeRecord(True, (), [], {}, {1: b"not read"}))


def test_keys_of_classes_are_told_apart_without_loading_them() -> None:
    key = b"\xc1" + b"cnowhere_to_be_found\nKey\n."
    before = ChangeRecord(True, (), [], {}, {0: encode_rows([Row(0, VOID, key, b"v"), row("a")])})
    fold = ChangeFold(plain_key)
    fold.add(before)
    fold.add(ChangeRecord(False, (), [], {0: [Removed(0, VOID, [key])]}))
    assert list(fold.rows(0)) == [row("a")]


def keyed() -> KeyedStateBackend:
    return ChangelogStateBackend(keep=False).create_keyed(CONTEXT)


def latest(backend: KeyedStateBackend) -> bytes:
    found = backend.snapshot().groups.latest  # type: ignore[attr-defined]
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("same", [1.0, True])
def test_a_key_that_is_removed_by_an_equal_one_of_another_type_is_gone(same: Any) -> None:
    backend = keyed()
    entries = backend.table(VALUE).entries()
    entries.update({1: "one", 2: "two"})
    log = [latest(backend)]
    del entries[same]
    log.append(latest(backend))
    restored = MemoryStateBackend().create_keyed(CONTEXT)
    restored.restore([pickle.loads(pickle.dumps(snapshot_of(log)))])
    assert dict(restored.table(VALUE).entries()) == {2: "two"}


@dataclass
class Reading:
    number: int
    tags: list[str]
    place: tuple[int, str]


def test_tables_of_declared_types_are_known_again_after_a_restore() -> None:
    """Else the first snapshot after each restore would be a whole one."""
    declared = [
        ValueStateDescriptor("reading", Reading),
        ValueStateDescriptor("pair", tuple[int, str]),
        MapStateDescriptor("by name", key_type=str, type=Reading),
    ]
    backend = keyed()
    for descriptor in declared[:2]:
        backend.table(descriptor).entries()["k"] = (
            Reading(1, ["a"], (1, "b")) if descriptor.name == "reading" else (1, "b")
        )
    backend.table(declared[2]).mapping("k")["x"] = Reading(2, [], (2, "c"))
    record = latest(backend)
    assert decode_record(record).metas() == tuple(TableSchema.of(descriptor).meta for descriptor in declared)
    again = keyed()
    again.restore([snapshot_of([record])])
    for descriptor in declared:
        again.table(descriptor)
    assert again.snapshot().groups.latest is None  # type: ignore[attr-defined]


# ---- what earlier versions wrote ----------------------------------------------------------------------------


GROUP = key_group("a", 8)
ROWS = {GROUP: encode_rows([row("a")])}


def test_files_of_changes_of_earlier_rocksdb_backends_are_read() -> None:
    data = msgspec.msgpack.encode(
        [1, [(0, dumps("w"))], {3: [(0, VOID, dumps("b")), (0, VOID, dumps("c"))]}, ROWS]
    )
    assert decode_record(data) == ChangeRecord(
        False, (), [Dropped(0, dumps("w"))], {3: [Removed(0, VOID, [dumps("b"), dumps("c")])]}, ROWS
    )


class _ByName(pickle.Pickler):
    """Pickles members of enums as Python 3.11.0 to 3.11.3 do, whatever Python this is."""

    def reducer_override(self, value: Any) -> Any:
        return (getattr, (type(value), value.name)) if isinstance(value, TableKind) else NotImplemented


class _Foreign:
    def __reduce__(self) -> Any:
        return getattr, (StateMeta, "mro")


def test_tables_that_an_early_python_has_pickled_are_read() -> None:
    file = io.BytesIO()
    _ByName(file, 5).dump((META,))
    assert b"getattr" in file.getvalue()
    stored = decode_record(msgspec.msgpack.encode([1, True, file.getvalue(), [], [], ROWS]))
    assert tuple(stored.metas()) == (META,)
    foreign = pickle.dumps((_Foreign(),))
    with pytest.raises(CorruptStreamError, match=r"'mro' of <class .*StateMeta'> does not belong into"):
        decode_record(msgspec.msgpack.encode([1, True, foreign, [], [], ROWS]))


def test_logs_of_earlier_changelog_backends_are_read() -> None:
    metas = pickle.dumps((META,))
    whole = msgspec.msgpack.encode([1, True, metas, [], [], ROWS])
    gone = msgspec.msgpack.encode([1, False, metas, [(0, dumps("w"))], [(0, VOID, [dumps("a")])], {}])
    snapshot = snapshot_of([whole])
    assert snapshot.tables == (META,)
    assert dict(snapshot.groups) == ROWS
    assert dict(snapshot_of([whole, gone]).groups) == {}
    assert dict(snapshot_of([whole, gone, whole]).groups) == ROWS


def test_tables_of_earlier_logs_are_described_without_running_anything(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "was here",)

    data = msgspec.msgpack.encode([1, True, pickle.dumps((Evil(),)), [], [], {}])
    with pytest.raises(CorruptStreamError, match="touch does not belong"):
        decode_record(data)
    assert not (tmp_path / "was here").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        msgspec.msgpack.encode([2, [], {}, {}]),
        msgspec.msgpack.encode([1, [], {}, "no rows"]),
        msgspec.msgpack.encode([2, True, b"", [], [], {}]),
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptStreamError):
        decode_record(data)
