"""Layouts of change records that earlier versions wrote; read, never written.

Both are msgpack arrays without a magic number or a checksum of their own, and begin with the layout's version, 1:

- of six, of the changelog backend: version, whole, tables (pickled), dropped, removed, written. ``removed`` is an
  array of table, namespace and keys, without key groups.
- of four, of files of the RocksDB backend: version, dropped, removed, written. ``removed`` maps a key group to an
  array of table, namespace and key.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from typing import Any, Final

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.state import StateMeta, TableKind
from sluiceway.state.changelog.record import ANY_GROUP, ChangeRecord, Dropped, Removed, TableInfo

__all__ = ["decode_earlier"]

_VERSION: Final = 1


class _OfChangelog(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: int
    whole: bool
    tables: bytes
    dropped: list[Dropped]
    removed: list[Removed]
    written: dict[int, bytes]


class _OfRocksDB(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: int
    dropped: list[Dropped]
    removed: dict[int, list[tuple[int, bytes, bytes]]]
    written: dict[int, bytes]


_LAYOUTS: Final = {0x94: msgspec.msgpack.Decoder(_OfRocksDB), 0x96: msgspec.msgpack.Decoder(_OfChangelog)}
"""By the first byte, which is that of a msgpack array of so many."""


class _Tables(pickle.Unpickler):
    """Unpickler of descriptions of tables, which finds no other class."""

    def find_class(self, module: str, name: str) -> Any:
        # The second module is that of records stored before the classes had tags.
        if name in ("StateMeta", "TableKind") and module in ("sluiceway.persisted", "sluiceway.state.tables"):
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):  # by which Python 3.11.0 to 3.11.3 pickle members of enums
            return _table_kind
        raise CorruptStreamError(f"{module}.{name} does not belong into the description of a table of state")


def _table_kind(enum: Any, name: Any) -> TableKind:
    if enum is not TableKind or name not in TableKind.__members__:
        raise CorruptStreamError(f"{name!r} of {enum!r} does not belong into the description of a table of state")
    return TableKind[name]


def decode_earlier(data: bytes) -> ChangeRecord:
    """Return the record of bytes in one of the earlier layouts.

    Raises:
        CorruptStreamError: they are in none of them.
    """
    decoder: Any = _LAYOUTS.get(data[0] if data else 0)
    if decoder is None:
        raise CorruptStreamError(f"{len(data)} bytes are no change record: they begin with {data[:4]!r}")
    try:
        found: _OfChangelog | _OfRocksDB = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStreamError(f"{len(data)} bytes are no change record: {error}") from error
    if found.version != _VERSION:
        raise CorruptStreamError(f"a change record of layout {found.version} of an earlier version cannot be read")
    if isinstance(found, _OfChangelog):
        metas: tuple[StateMeta, ...] = _Tables(io.BytesIO(found.tables)).load()
        removed = {ANY_GROUP: found.removed} if found.removed else {}
        return ChangeRecord(found.whole, tuple(map(TableInfo.of, metas)), found.dropped, removed, found.written)
    return ChangeRecord(False, (), found.dropped, _by_namespace(found.removed), found.written)


def _by_namespace(removed: dict[int, list[tuple[int, bytes, bytes]]]) -> dict[int, list[Removed]]:
    result: dict[int, list[Removed]] = {}
    for group, places in removed.items():
        keys: defaultdict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        for table, namespace, key in places:
            keys[table, namespace].append(key)
        result[group] = [Removed(*where, found) for where, found in keys.items()]
    return result
