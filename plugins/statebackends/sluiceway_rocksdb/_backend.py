"""The RocksDB state backend: tables behind a bounded cache, over one database per subtask."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

from sluiceway.errors import StateError
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    StateDescriptor,
    StateTable,
    TableSchema,
)
from sluiceway.util.overriding import override
from sluiceway_rocksdb._change_files import ChangeFiles
from sluiceway_rocksdb._namespace_cache import MISSING, CachedEntries, Layer, NamespaceRows
from sluiceway_rocksdb._options import RocksDBOptions
from sluiceway_rocksdb._restore import restore
from sluiceway_rocksdb._snapshots import DONE, FAILED, OPEN, SnapshotFiles, SnapshotRows, SubtaskSnapshot
from sluiceway_rocksdb._store import SubtaskStore
from sluiceway_rocksdb._table import RocksDBTable, find_namespaces

__all__ = ["RocksDBKeyedBackend", "RocksDBStateBackend"]

_OBJECT: Final = 250
"""Bytes that an entry of a dict takes, with its key and value, besides what they are serialized."""

_LEAST: Final = 64
"""So many objects may be in memory, however large they are."""

_STEP: Final = 4_000
"""So many objects are written back in one go, at the most: the task waits for it."""

_AT_ONCE: Final = 50_000
"""So many objects are put to others in one go: that is a copy of pointers, and takes milliseconds."""


class RocksDBStateBackend(StateBackend):
    """State backend with databases on the local disk.

    Args:
        options: None: what the environment says.

    Raises:
        ConfigurationError: a variable of the environment has a value that cannot be used.
    """

    def __init__(self, options: RocksDBOptions | None = None) -> None:
        self._options = options or RocksDBOptions.from_environment()

    @override
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        return RocksDBKeyedBackend(context, self._options)


class RocksDBKeyedBackend(KeyedStateBackend):
    """Keyed backend of one subtask.

    Args:
        context: context of the subtask.
        options: options of all databases.

    Attributes:
        store: the database of the subtask.
    """

    def __init__(self, context: BackendContext, options: RocksDBOptions) -> None:
        self.store = SubtaskStore(context, options)
        self._options = options
        self._operator = context.operator
        self._tables: dict[str, RocksDBTable] = {}
        self._pending: SubtaskSnapshot | None = None
        self._doomed: list[CachedEntries] = []
        # To which the next snapshot may add changes, if it knows of all that the database was given since.
        self._log: ChangeFiles | None = None
        self._dropped: list[tuple[int, bytes]] = []  # since the last snapshot
        self._average = 64.0  # bytes of a serialized key with its value
        self._may_restore = True
        self._restored = False
        self._closed = False

    # -- the contract --------------------------------------------------------------------------------------------

    def table(self, descriptor: StateDescriptor) -> StateTable:
        self._check_open()
        self._may_restore = False
        schema = TableSchema.of(descriptor)
        table = self._tables.get(descriptor.name)
        if table is not None:
            table.schema.check_same(schema.meta, self._operator)
            return table
        indices = self.store.indices_of(descriptor.name)
        if indices:
            table = self._restored_table(schema, indices)
        else:
            table = RocksDBTable(self.store, self, schema, self.store.register(schema.meta), {})
        self._tables[descriptor.name] = table
        return table

    def _restored_table(self, schema: TableSchema, indices: list[int]) -> RocksDBTable:
        """Return a table of what was restored, maybe in several forms: all rows go to the first of the indices."""
        # All are looked at before one is changed.
        readers = [schema.reader_for(self.store.metas[index], self._operator) for index in indices]
        first = indices[0]
        table = RocksDBTable(self.store, self, schema, first, None)
        for index, reader in zip(indices, readers, strict=True):
            if reader is not schema.serializer or (index != first and find_namespaces(self.store, index)):
                # The last snapshot has the rows, and the tables, as they were; none may go on from its files.
                self.settle()
                table.migrate(reader, index)
                self._log = None
            self.store.metas[index] = schema.meta
        table.where = find_namespaces(self.store, first)
        return table

    def snapshot(self) -> KeyedSnapshot:
        self._check_open()
        self.settle()
        metas, every = tuple(self.store.metas), self._all()
        changed = sum(len(entries.young) for entries in every)
        dirty = changed + sum(len(entries.logged) for entries in every)
        log, most = self._log, self._options.changes
        dropped, self._dropped = self._dropped, []
        # Way of this snapshot: one more file behind those of the last, a first file with everything, or (log is
        # None) all changes to the database and a checkpoint of that.
        everything = log is None or not log.takes(changed, dirty, most)
        if everything:
            self._log, dropped = None, []
            # If there is no database, then all there is, is in these layers.
            empty = not self.store.is_open and not self._restored
            log = ChangeFiles(self._options.directory, None) if empty and most else None
            if empty and not dirty:
                return KeyedSnapshot(metas, {})
        if log is None:
            layers = [Layer(e, layer) for e in every if (layer := e.set_aside())]
        else:
            found = [entries.hand_over(everything=everything) for entries in every]
            layers = [layer for layer in found if layer.values or layer.gone]
        taken = self._pending = SubtaskSnapshot(self.store, self.measure, layers, metas, log, dropped)
        return KeyedSnapshot(metas, SnapshotRows(taken), SnapshotFiles(taken), taken.release)

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        self._check_open()
        if not self._may_restore:
            raise StateError(f"operator {self._operator!r}: state is restored once, before it is used")
        self._may_restore = False
        self._restored = True
        restore(self.store, list(snapshots))

    def close(self) -> None:
        if self._closed:
            return
        try:
            # Its reader may not have come yet, and needs the database.
            if self._pending is not None and self._pending.state is OPEN:
                self._pending.finish()
        except Exception:
            pass  # whoever reads the snapshot is told
        finally:
            self._closed = True
            self.store.mark_closed()
            self._tables.clear()
            self._doomed.clear()
            if self._pending is not None:
                self._pending.settled()
            self._pending = self._log = None
            self.store.close()

    # -- for tables ----------------------------------------------------------------------------------------------

    def measure(self, count: int, size: int) -> None:
        """Note that so many objects took so many bytes."""
        if count:
            # Moving average: a thousand objects count as much as all before them, a single one 1/64.
            weight = max(count / (count + 1000), 1 / 64)
            self._average += (size / count - self._average) * weight

    def make_room(self, entries: CachedEntries, more: int = 0) -> None:
        """Write back and forget objects if a namespace has grown too much, or will by so many."""
        if entries.dropped:
            entries.check = entries.check_clean = 1 << 62
            return
        entries.table.heat(entries)
        # A sample, the object that was assigned last: nothing else is encoded before it is written.
        if entries.young:
            key = next(reversed(entries.young))
            if (value := entries.young[key]) is not MISSING:
                self.measure(1, len(entries.table.encode_of(key, value)))
        entries_of_cache = self._options.cache_entries or int(self._options.cache / (2 * self._average + _OBJECT))
        limit = max(_LEAST, entries_of_cache)
        step = max(min(_STEP, limit // 16), 1)
        most_young = limit - limit // 8  # the longer they stay, the more changes are written at once
        every = self._all()
        young = more + sum(len(e.young) + len(e.logged) for e in every)
        if young > most_young:
            self.settle_if_done()
            # While a snapshot is being made there may be some more, rather than that the task waits for it.
            if self._pending is None or young > limit:
                self._write_back(every, young - most_young + step)
                young = more + sum(len(e.young) + len(e.logged) for e in every)
        clean, most_clean = sum(len(e.clean) for e in every), max(limit - young, 0)
        if clean > most_clean:
            clean -= _forget(every, min(clean - most_clean + step, 4 * step))
        # Growth until the next call: a fair part of half the free room, and no more than doubling the layer, so
        # that the cost of a call is spread over many assignments.
        room = max((limit - young - clean) // (2 * len(every)), step)
        entries.check = len(entries.young) + more + min(room, max(len(entries.young), 16))
        entries.check_clean = len(entries.clean) + min(room, max(len(entries.clean), 16))
        if entries.is_cool:
            entries.table.cool(entries)

    def _write_back(self, every: list[CachedEntries], most: int | None = None) -> None:
        """Write back the oldest logged and young objects, so many at the most, and make them clean."""
        self.settle()
        left = sum(len(e.young) + len(e.logged) for e in every) if most is None else most
        for entries in every:
            if left > 0 and entries.logged:
                left -= self._write_layer(entries, entries.logged, left)
        for entries in every:
            if left > 0 and entries.young:
                self._log = None  # what the database is given now would be in no file of changes
                left -= self._write_layer(entries, entries.young, left)
                if not entries.young:
                    entries.begin({})
                entries.size = len(entries.young)

    def _write_layer(self, entries: CachedEntries, layer: dict[Any, Any], most: int) -> int:
        """Write the oldest objects of a layer. Return their number."""
        part = dict(islice(layer.items(), most))
        self.store.database.write(chain.from_iterable(entries.table.write(entries, part)))
        if len(part) == len(layer):
            layer.clear()
        else:
            for key in part:
                del layer[key]
        count = len(part)
        _thaw(entries, part)
        return count

    def drop(self, entries: CachedEntries) -> None:
        """Drop a namespace."""
        pending = entries.frozen is not None
        if entries.known and (self._log is not None or self._pending is not None):
            self._dropped.append((entries.table.index, entries.namespace))
        entries.dropped = True
        entries.frozen = None
        entries.begin({})
        entries.clean, entries.logged, entries.known = {}, {}, False
        pending = pending and self._pending is not None and self._pending.in_database
        if not entries.stored and not pending:
            return
        entries.stored = False
        if self._pending is not None:
            self.settle_if_done()
        if self._pending is not None:
            self._doomed.append(entries)  # the snapshot has to get it first
        else:
            entries.table.delete_rows(entries)

    def settle_before(self, table: NamespaceRows, namespace: bytes) -> None:
        """Delete what was dropped of a namespace that is used again."""
        if any(entries.table is table and entries.namespace == namespace for entries in self._doomed):
            self.settle()

    def settle_dropped(self) -> None:
        """Delete all namespaces that were dropped."""
        if self._doomed:
            self.settle()

    def settle_if_done(self) -> None:
        """Settle the last snapshot if it is written or has failed."""
        pending = self._pending
        if pending is not None and pending.state is not OPEN:
            self.settle()

    def settle(self) -> None:
        """Settle the last snapshot, so that the database may be written to."""
        pending = self._pending
        if pending is None:
            return
        if pending.state is OPEN:
            try:
                pending.finish()
            except StateError:
                # Failed or released: the reader of the snapshot gets the error, and the values are put back below.
                if pending.state is OPEN:
                    raise
        self._pending = None
        for entries, values, gone in pending.layers:
            if entries.dropped:
                continue
            entries.check = entries.check_clean = 0
            if not pending.in_database:
                entries.logging_is_over(gone, done=pending.state is DONE)
                continue
            entries.frozen = None
            if pending.state is DONE:
                _thaw(entries, values)
                continue
            if pending.state is FAILED:
                entries.table.written(entries)  # in part, maybe
            # Not written: the values are dirty again, under what was assigned since.
            merged = {**values, **entries.young}
            if not entries.stored:  # then there is nothing that would have to be removed
                merged = {key: value for key, value in merged.items() if value is not MISSING}
                entries.clean = {}
            entries.begin(merged)
        log = pending.settled()
        self._log = log if self._options.changes else None
        doomed, self._doomed = self._doomed, []
        for entries in doomed:
            entries.table.delete_rows(entries)

    def _all(self) -> list[CachedEntries]:
        return [entries for table in self._tables.values() for entries in table.hot.values()]

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"the state of operator {self._operator!r} is closed")


def _thaw(entries: CachedEntries, layer: dict[Any, Any]) -> None:
    """Make a layer clean after it was written to the database. Removed keys in it do no harm."""
    entries.table.written(entries)
    clean = entries.clean
    if len(layer) <= max(len(clean), _AT_ONCE):
        clean.update(layer)
        return
    # The task waits for this, so of the older ones only the latest are kept.
    for key in islice(reversed(clean), 4 * _STEP):
        layer.setdefault(key, clean[key])
    entries.whole = entries.whole and len(clean) <= 4 * _STEP
    entries.clean = layer


def _forget(every: list[CachedEntries], most: int) -> int:
    """Forget the objects that have been clean for longest. Return their number."""
    left = most
    for entries in every:
        if left <= 0:
            break
        clean = entries.clean
        if clean and entries.stored:
            entries.whole = False
        if len(clean) <= left:
            left -= len(clean)
            entries.clean = {}
            if entries.is_cool:
                entries.table.cool(entries)
        else:
            for key in list(islice(clean, left)):
                del clean[key]
            left = 0
    return most - left
