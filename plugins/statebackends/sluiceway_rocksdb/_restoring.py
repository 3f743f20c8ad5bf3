"""From snapshots into a new database: the files of one as they are, of the others row by row."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluiceway.errors import CorruptStreamError, StateError
from sluiceway.serializers import decode_rows
from sluiceway.state import KeyedSnapshot, NativeState, StateMeta
from sluiceway_rocksdb._database import Database, rows_of
from sluiceway_rocksdb._keys import encode_bucket
from sluiceway_rocksdb._places import new_place
from sluiceway_rocksdb._rows import put_row
from sluiceway_rocksdb._snapshots import FORMAT

if TYPE_CHECKING:
    from sluiceway_rocksdb._backend import RocksDBKeyedBackend

__all__ = ["restore"]


def restore(backend: RocksDBKeyedBackend, snapshots: list[KeyedSnapshot]) -> None:
    """Load the key groups of a backend.

    Raises:
        StateError: the snapshots disagree, or are in the format of another backend.
        CorruptStreamError: rows are damaged.
    """
    start, end = backend.key_groups
    seen: set[int] = set()
    # The files of the one with the most of the own key groups serve as they are; its tables come first for that.
    snapshots.sort(key=lambda snapshot: -_shared(backend, snapshot.native))
    indices = [tuple(backend.register(meta) for meta in snapshot.tables) for snapshot in snapshots]
    first = snapshots[0].native if snapshots else None
    for snapshot, index in zip(snapshots, indices, strict=True):
        native = snapshot.native
        if native is None or native.format != FORMAT:
            groups = [group for group in snapshot.groups if start <= group < end]
            _once(backend, seen, groups)
            for group in groups:
                _put_rows(backend, group, snapshot.groups[group], snapshot.tables, index)
            continue
        theirs = native.key_groups
        groups = list(range(max(start, theirs.start), min(end, theirs.end)))
        if not groups:
            continue
        _once(backend, seen, groups)
        if native is first:
            _adopt(backend, native)
        else:
            _copy(backend, native, groups, index)


def _shared(backend: RocksDBKeyedBackend, native: NativeState | None) -> int:
    """How many of the own key groups are in files."""
    if native is None or native.format != FORMAT:
        return 0
    (start, end), (first, last) = backend.key_groups, native.key_groups
    return max(min(end, last) - max(start, first), 0)


def _once(backend: RocksDBKeyedBackend, seen: set[int], groups: list[int]) -> None:
    twice = next((group for group in groups if group in seen), None)
    if twice is not None:
        raise StateError(f"two snapshots of operator {backend.operator!r} hold key group {twice}")
    seen.update(groups)


def _put_rows(
    backend: RocksDBKeyedBackend, group: int, data: bytes, metas: tuple[StateMeta, ...], index: tuple[int, ...]
) -> None:
    buckets: dict[bytes, list[tuple[bytes, bytes]]] = {}

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for row in decode_rows(data):
            if not 0 <= row.table < len(metas):
                raise CorruptStreamError(
                    f"key group {group} of operator {backend.operator!r} has a row of table {row.table}, there "
                    f"are {len(metas)} tables"
                )
            place, own, value = put_row(group, index[row.table], metas[row.table], row, backend.operator)
            if own:
                buckets.setdefault(place, []).append((own, value))
            else:
                yield place, value
        for place, entries in buckets.items():
            yield place, encode_bucket(entries)

    backend.database.write(rows())


def _fetch(native: NativeState, directory: str) -> None:
    """Have the files in a directory: those that never change shared, the others as copies."""
    os.makedirs(directory)
    for file in native.files:
        path = os.path.join(directory, file.name)
        native.fetch(file.name, path)
        if not file.identity:
            shutil.copyfile(path, path + ".copy")
            os.replace(path + ".copy", path)


def _adopt(backend: RocksDBKeyedBackend, native: NativeState) -> None:
    _fetch(native, backend.place.path)
    backend.adopted = {file.name: file.identity for file in native.files if file.identity}
    (start, end), (first, last) = backend.key_groups, native.key_groups
    for begin, stop in ((first, min(start, last)), (max(end, first), last)):
        if begin < stop:  # somebody else's; they go for good when files are merged
            backend.database.delete_range(begin.to_bytes(2), stop.to_bytes(2))


def _copy(backend: RocksDBKeyedBackend, native: NativeState, groups: list[int], index: tuple[int, ...]) -> None:
    place = new_place(backend.options.directory, "restore")
    try:
        _fetch(native, place.path)
        reader = Database.read_only(place.path, backend.options)
        try:

            def rows() -> Iterator[tuple[bytes, bytes]]:
                for group in groups:
                    for key, value in rows_of(reader, group.to_bytes(2)):
                        yield key[:2] + index[int.from_bytes(key[2:4])].to_bytes(2) + key[4:], value

            backend.database.write(rows())
        finally:
            reader.close()
    finally:
        place.remove()
