"""Restore into a new database: the files of one snapshot as they are, the rows of others, then change files."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from sluiceway.errors import CorruptStreamError, StateError
from sluiceway.keygroups import stable_hash
from sluiceway.serializers import KEY_SERIALIZER, decode_rows
from sluiceway.state import KeyedSnapshot, NativeFile, NativeState, StateMeta
from sluiceway.state.changelog.fold import ChangeFold
from sluiceway.state.changelog.format import decode_record
from sluiceway.util.private_files import make_private_directory
from sluiceway_rocksdb._change_files import is_of_log
from sluiceway_rocksdb._database import Database, rows_of
from sluiceway_rocksdb._local_directories import new_place
from sluiceway_rocksdb._row_keys import BUCKET, encode_bucket, normal_namespace, pack_prefix, row_key, upper
from sluiceway_rocksdb._row_values import changed_bucket, put_row
from sluiceway_rocksdb._snapshots import FORMATS
from sluiceway_rocksdb._store import SubtaskStore

__all__ = ["restore"]


class _Normal(dict[bytes, bytes]):
    """Namespaces as the database has them, by the bytes that snapshots have."""

    def __missing__(self, namespace: bytes) -> bytes:
        found = self[namespace] = normal_namespace(namespace)
        return found


def restore(store: SubtaskStore, snapshots: list[KeyedSnapshot]) -> None:
    """Load the key groups of a store.

    Raises:
        StateError: the snapshots disagree, or are in the format of another store.
        CorruptStreamError: rows are damaged.
    """
    start, end = store.key_groups
    seen: set[int] = set()
    # The files of the one with the most of the own key groups serve as they are; its tables come first for that.
    snapshots.sort(key=lambda snapshot: -_shared(store, snapshot.native))
    indices = [store.register_first(snapshot.tables) for snapshot in snapshots[:1]]
    indices += [tuple(store.register(meta) for meta in snapshot.tables) for snapshot in snapshots[1:]]
    first = snapshots[0].native if snapshots else None
    for snapshot, index in zip(snapshots, indices, strict=True):
        native = snapshot.native
        if native is None or native.format not in FORMATS:
            groups = [group for group in snapshot.groups if start <= group < end]
            _once(store, seen, groups)
            for group in groups:
                _put_rows(store, group, snapshot.groups[group], snapshot.tables, index)
            continue
        theirs = native.key_groups
        groups = list(range(max(start, theirs.start), min(end, theirs.end)))
        if not groups:
            continue
        _once(store, seen, groups)
        if native is first:
            _adopt(store, native)
        else:
            _copy(store, native, groups, index)
        _change(store, native, groups, snapshot.tables, index)


def _shared(store: SubtaskStore, native: NativeState | None) -> int:
    """Return how many of the own key groups a snapshot has as files."""
    if native is None or native.format not in FORMATS or not _base(native):
        return 0
    (start, end), (first, last) = store.key_groups, native.key_groups
    return max(min(end, last) - max(start, first), 0)


def _once(store: SubtaskStore, seen: set[int], groups: list[int]) -> None:
    twice = next((group for group in groups if group in seen), None)
    if twice is not None:
        raise StateError(f"two snapshots of operator {store.operator!r} hold key group {twice}")
    seen.update(groups)


def _put_rows(
    store: SubtaskStore, group: int, data: bytes, metas: tuple[StateMeta, ...], index: tuple[int, ...]
) -> None:
    buckets: dict[bytes, list[tuple[bytes, bytes]]] = {}
    normal = _Normal()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for row in decode_rows(data):
            _check_table(store, group, row.table, metas)
            row = row._replace(namespace=normal[row.namespace])
            place, own, value = put_row(group, index[row.table], metas[row.table], row, store.operator)
            if own:
                buckets.setdefault(place, []).append((own, value))
            else:
                yield place, value
        for place, entries in buckets.items():
            yield place, encode_bucket(entries)

    store.database.write(rows())


def _check_table(store: SubtaskStore, group: int, table: int, metas: tuple[StateMeta, ...]) -> None:
    if not 0 <= table < len(metas):
        raise CorruptStreamError(
            f"key group {group} of operator {store.operator!r} has a row of table {table}, there are "
            f"{len(metas)} tables"
        )


def _base(native: NativeState) -> list[NativeFile]:
    """Return the files of the database, without change files."""
    return [file for file in native.files if not is_of_log(file.name)]


def _fetch(native: NativeState, files: list[NativeFile], directory: str) -> None:
    """Fetch files into a directory: immutable ones shared, the others as copies."""
    make_private_directory(directory)
    for file in files:
        path = os.path.join(directory, file.name)
        with _naming(path):
            native.fetch(file.name, path)
            # RocksDB writes on in these files. As a hard link that would change the file in the checkpoint.
            if not file.identity:
                shutil.copyfile(path, path + ".copy")
                os.replace(path + ".copy", path)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the file that is written when the disk is full: the error of a copy may name none."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StateError(
                f"state backend 'rocksdb' cannot write {path}, to restore a checkpoint: {error.strerror}. Make "
                "room, or use another disk (SLUICEWAY_ROCKSDB_DIRECTORY)"
            ) from error
        raise


def _adopt(store: SubtaskStore, native: NativeState) -> None:
    files = _base(native)
    if not files:
        return
    _fetch(native, files, store.place.path)
    store.adopted = {file.name: file.identity for file in files if file.identity}
    (start, end), (first, last) = store.key_groups, native.key_groups
    for begin, stop in ((first, min(start, last)), (max(end, first), last)):
        if begin < stop:  # somebody else's; they go for good when files are merged
            store.database.delete_range(begin.to_bytes(2), stop.to_bytes(2))


def _copy(store: SubtaskStore, native: NativeState, groups: list[int], index: tuple[int, ...]) -> None:
    files = _base(native)
    if not files:
        return
    place = new_place(store.options.directory, "restore")
    try:
        _fetch(native, files, place.path)
        reader = Database.read_only(place.path, store.options)
        try:

            def rows() -> Iterator[tuple[bytes, bytes]]:
                for group in groups:
                    for key, value in rows_of(reader, group.to_bytes(2)):
                        # Only the table's index differs between the two databases.
                        yield key[:2] + index[int.from_bytes(key[2:4])].to_bytes(2) + key[4:], value

            store.database.write(rows())
        finally:
            reader.close()
    finally:
        place.remove()


def _change(
    store: SubtaskStore,
    native: NativeState,
    groups: list[int],
    metas: tuple[StateMeta, ...],
    index: tuple[int, ...],
) -> None:
    """Apply the change files of a snapshot to the database."""
    names = sorted(file.name for file in native.files if is_of_log(file.name))
    if not names:
        return
    changes, own = ChangeFold(), frozenset(groups)
    place = new_place(store.options.directory, "restore")
    try:
        make_private_directory(place.path)
        for name in names:
            path = os.path.join(place.path, name)
            with _naming(path):
                native.fetch(name, path)
            with open(path, "rb") as file:
                data = file.read()
            os.unlink(path)
            try:
                changes.add(decode_record(data), own.__contains__)
            except CorruptStreamError as error:
                raise CorruptStreamError(f"file {name} of operator {store.operator!r}: {error}") from error
    finally:
        place.remove()
    normal = _Normal()
    # Before the rows: a namespace that was dropped may have been used again since.
    for table, namespace in changes.dropped:
        for group in groups:
            _check_table(store, group, table, metas)
            prefix = pack_prefix(group, index[table], normal[namespace])
            store.database.delete_range(prefix, upper(prefix))
    for group in groups:
        store.database.write(_changed_rows(store, group, changes, metas, index, normal))


def _changed_rows(
    store: SubtaskStore,
    group: int,
    changes: ChangeFold,
    metas: tuple[StateMeta, ...],
    index: tuple[int, ...],
    normal: _Normal,
) -> Iterator[tuple[bytes, bytes | None]]:
    buckets: dict[bytes, list[tuple[Hashable, bytes, bytes | None]]] = {}
    for table, namespace, key, row in changes.changes(group):
        _check_table(store, group, table, metas)
        if row is None:
            tail, own = row_key(key, stable_hash(key))
            place, value = pack_prefix(group, index[table], normal[namespace]) + tail, None
            in_bucket = tail[:1] == BUCKET
        else:
            row = row._replace(namespace=normal[row.namespace])
            place, own, value = put_row(group, index[table], metas[table], row, store.operator)
            in_bucket = bool(own)
        if in_bucket:
            buckets.setdefault(place, []).append((key, own or KEY_SERIALIZER.dumps(key), value))
        else:
            yield place, value
    for place, entries in buckets.items():
        yield place, changed_bucket(store.database.get(place), entries)
