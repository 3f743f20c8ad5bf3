"""From snapshots into a new database: the files of one as they are, of the others row by row, then changes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from sluiceway.errors import CorruptStreamError, StateError
from sluiceway.keygroups import stable_hash
from sluiceway.privatefiles import make_private_directory
from sluiceway.serializers import KEY_SERIALIZER, decode_rows
from sluiceway.state import KeyedSnapshot, NativeFile, NativeState, StateMeta
from sluiceway_rocksdb._changes import Changes
from sluiceway_rocksdb._database import Database, rows_of
from sluiceway_rocksdb._keys import BUCKET, encode_bucket, pack_prefix, row_key, upper
from sluiceway_rocksdb._log import is_of_log
from sluiceway_rocksdb._places import new_place
from sluiceway_rocksdb._rows import changed_bucket, put_row
from sluiceway_rocksdb._snapshots import FORMATS

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
        if native is None or native.format not in FORMATS:
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
        _change(backend, native, groups, snapshot.tables, index)


def _shared(backend: RocksDBKeyedBackend, native: NativeState | None) -> int:
    """How many of the own key groups are in files."""
    if native is None or native.format not in FORMATS or not _base(native):
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
            _check_table(backend, group, row.table, metas)
            place, own, value = put_row(group, index[row.table], metas[row.table], row, backend.operator)
            if own:
                buckets.setdefault(place, []).append((own, value))
            else:
                yield place, value
        for place, entries in buckets.items():
            yield place, encode_bucket(entries)

    backend.database.write(rows())


def _check_table(backend: RocksDBKeyedBackend, group: int, table: int, metas: tuple[StateMeta, ...]) -> None:
    if not 0 <= table < len(metas):
        raise CorruptStreamError(
            f"key group {group} of operator {backend.operator!r} has a row of table {table}, there are "
            f"{len(metas)} tables"
        )


def _base(native: NativeState) -> list[NativeFile]:
    """The files of the database."""
    return [file for file in native.files if not is_of_log(file.name)]


def _fetch(native: NativeState, files: list[NativeFile], directory: str) -> None:
    """Have files in a directory: those that never change shared, the others as copies."""
    make_private_directory(directory)
    for file in files:
        path = os.path.join(directory, file.name)
        native.fetch(file.name, path)
        if not file.identity:
            shutil.copyfile(path, path + ".copy")
            os.replace(path + ".copy", path)


def _adopt(backend: RocksDBKeyedBackend, native: NativeState) -> None:
    files = _base(native)
    if not files:
        return
    _fetch(native, files, backend.place.path)
    backend.adopted = {file.name: file.identity for file in files if file.identity}
    (start, end), (first, last) = backend.key_groups, native.key_groups
    for begin, stop in ((first, min(start, last)), (max(end, first), last)):
        if begin < stop:  # somebody else's; they go for good when files are merged
            backend.database.delete_range(begin.to_bytes(2), stop.to_bytes(2))


def _copy(backend: RocksDBKeyedBackend, native: NativeState, groups: list[int], index: tuple[int, ...]) -> None:
    files = _base(native)
    if not files:
        return
    place = new_place(backend.options.directory, "restore")
    try:
        _fetch(native, files, place.path)
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


def _change(
    backend: RocksDBKeyedBackend,
    native: NativeState,
    groups: list[int],
    metas: tuple[StateMeta, ...],
    index: tuple[int, ...],
) -> None:
    """Do what was changed since the database was as its files have it."""
    names = sorted(file.name for file in native.files if is_of_log(file.name))
    if not names:
        return
    changes, own = Changes(), frozenset(groups)
    place = new_place(backend.options.directory, "restore")
    try:
        make_private_directory(place.path)
        for name in names:
            path = os.path.join(place.path, name)
            native.fetch(name, path)
            with open(path, "rb") as file:
                data = file.read()
            os.unlink(path)
            try:
                changes.add(data, own.__contains__)
            except CorruptStreamError as error:
                raise CorruptStreamError(f"file {name} of operator {backend.operator!r}: {error}") from error
    finally:
        place.remove()
    for table, namespace in changes.dropped:
        for group in groups:
            _check_table(backend, group, table, metas)
            prefix = pack_prefix(group, index[table], namespace)
            backend.database.delete_range(prefix, upper(prefix))
    for group in groups:
        backend.database.write(_changed_rows(backend, group, changes, metas, index))


def _changed_rows(
    backend: RocksDBKeyedBackend,
    group: int,
    changes: Changes,
    metas: tuple[StateMeta, ...],
    index: tuple[int, ...],
) -> Iterator[tuple[bytes, bytes | None]]:
    buckets: dict[bytes, list[tuple[Hashable, bytes, bytes | None]]] = {}
    for table, namespace, key, row in changes.of(group):
        _check_table(backend, group, table, metas)
        if row is None:
            tail, own = row_key(key, stable_hash(key))
            place, value = pack_prefix(group, index[table], namespace) + tail, None
            in_bucket = tail[:1] == BUCKET
        else:
            place, own, value = put_row(group, index[table], metas[table], row, backend.operator)
            in_bucket = bool(own)
        if in_bucket:
            buckets.setdefault(place, []).append((key, own or KEY_SERIALIZER.dumps(key), value))
        else:
            yield place, value
    for place, entries in buckets.items():
        yield place, changed_bucket(backend.database.get(place), entries)
