"""The keyed state of a subtask: tables behind a bounded cache, over one database."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from itertools import chain, islice
from threading import Lock
from typing import Any, Final

from sluiceway.errors import StateError
from sluiceway.state import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    StateDescriptor,
    StateMeta,
    StateTable,
    TableSchema,
)
from sluiceway_rocksdb._database import Database
from sluiceway_rocksdb._entries import MISSING, CachedEntries, Layer
from sluiceway_rocksdb._log import Log
from sluiceway_rocksdb._options import RocksDBOptions
from sluiceway_rocksdb._places import Place, new_place
from sluiceway_rocksdb._restoring import restore
from sluiceway_rocksdb._snapshots import DONE, FAILED, OPEN, Taken, TakenFiles, TakenRows
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
    """Databases on the local disk.

    Args:
        options: None: what the environment says.

    Raises:
        ConfigurationError: a variable of the environment has a value that cannot be used.
    """

    def __init__(self, options: RocksDBOptions | None = None) -> None:
        self._options = options or RocksDBOptions.from_environment()

    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """The keyed backend of one subtask."""
        return RocksDBKeyedBackend(context, self._options)


class RocksDBKeyedBackend(KeyedStateBackend):
    """See the contract.

    Attributes:
        context: of the subtask.
        operator: uid, for messages.
        key_groups: that it has.
        max_parallelism: number of all key groups.
        options: of all databases.
        place: the database's directory.
        adopted: what files that came with a snapshot are called in storages.
    """

    def __init__(self, context: BackendContext, options: RocksDBOptions) -> None:
        self.context = context
        self.options = options
        self.operator = context.operator
        self.key_groups = context.key_groups
        self.max_parallelism = context.max_parallelism
        self.adopted: dict[str, str] = {}
        self._id = secrets.token_hex(8)
        self._place: Place | None = None
        self._database: Database | None = None
        self._opening = Lock()
        self._metas: list[StateMeta] = []
        self._index: dict[str, int] = {}
        self._tables: dict[str, RocksDBTable] = {}
        self._pending: Taken | None = None
        self._doomed: list[CachedEntries] = []
        # To which the next snapshot may add changes, if it knows of all that the database was given since.
        self._log: Log | None = None
        self._dropped: list[tuple[int, bytes]] = []  # since the last snapshot
        self._average = 64.0  # bytes of a serialized key with its value
        self._may_restore = True
        self._restored = False
        self._closed = False

    @property
    def place(self) -> Place:
        """The directory of the database, which may not be there yet."""
        if self._place is None:
            self._place = new_place(self.options.directory, "database")
        return self._place

    @property
    def database(self) -> Database:
        """The database, opened when it is needed first."""
        if self._database is None:
            with self._opening:
                if self._database is None:
                    self._check_open()
                    self._database = Database(self.place.path, self.options)
        return self._database

    def identity(self, name: str) -> str:
        """What a file of the database is called in storages; empty if it may change."""
        return self.adopted.get(name) or (f"{self._id}-{name}" if name.endswith(".sst") else "")

    # -- the contract --------------------------------------------------------------------------------------------

    def table(self, descriptor: StateDescriptor) -> StateTable:
        self._check_open()
        self._may_restore = False
        schema = TableSchema.of(descriptor)
        table = self._tables.get(descriptor.name)
        if table is not None:
            table.schema.check_same(schema.meta, self.operator)
            return table
        index = self._index.get(descriptor.name)
        if index is None:
            index = self.register(schema.meta)
            table = RocksDBTable(self, schema, index, {})
        else:
            reader = schema.reader_for(self._metas[index], self.operator)
            table = RocksDBTable(self, schema, index, find_namespaces(self, index))
            if reader is not schema.serializer:
                table.migrate(reader)
                self._log = None
            self._metas[index] = schema.meta
        self._tables[descriptor.name] = table
        return table

    def snapshot(self) -> KeyedSnapshot:
        self._check_open()
        self.settle()
        metas, every = tuple(self._metas), self._all()
        changed = sum(len(entries.young) for entries in every)
        dirty = changed + sum(len(entries.logged) for entries in every)
        log, most = self._log, self.options.changes
        dropped, self._dropped = self._dropped, []
        everything = log is None or not log.takes(changed, dirty, most)
        if everything:
            self._log, dropped = None, []
            # If there is no database, then all there is, is in these layers.
            empty = self._database is None and not self._restored
            log = Log(self.options.directory, None) if empty and most else None
            if empty and not dirty:
                return KeyedSnapshot(metas, {})
        if log is None:
            layers = [Layer(e, layer) for e in every if (layer := e.set_aside())]
        else:
            found = [entries.hand_over(everything=everything) for entries in every]
            layers = [layer for layer in found if layer.values or layer.gone]
        taken = self._pending = Taken(self, layers, metas, log, dropped)
        return KeyedSnapshot(metas, TakenRows(taken), TakenFiles(taken), taken.release)

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        self._check_open()
        if not self._may_restore:
            raise StateError(f"operator {self.operator!r}: state is restored once, before it is used")
        self._may_restore = False
        self._restored = True
        restore(self, list(snapshots))

    def close(self) -> None:
        if self._closed:
            return
        try:
            if self._pending is not None and self._pending.state is OPEN:
                self._pending.finish()
        except Exception:
            pass  # whoever reads the snapshot is told
        finally:
            self._closed = True
            self._tables.clear()
            self._doomed.clear()
            if self._pending is not None:
                self._pending.settled()
            self._pending = self._log = None
            if self._database is not None:
                self._database.close()
            if self._place is not None:
                self._place.remove()

    # -- for restoring -------------------------------------------------------------------------------------------

    def register(self, meta: StateMeta) -> int:
        """The index of a table. Raises StateError if another one of that name is known."""
        index = self._index.get(meta.name)
        if index is None:
            index = self._index[meta.name] = len(self._metas)
            self._metas.append(meta)
        elif self._metas[index] != meta:
            raise StateError(
                f"the snapshots of operator {self.operator!r} disagree about state {meta.name!r}: one holds "
                f"{self._metas[index]}, another {meta}"
            )
        return index

    # -- for tables ----------------------------------------------------------------------------------------------

    def foreign(self, state: str, key: Any, group: int) -> StateError:
        """The error for a key that another subtask owns."""
        start, end = self.key_groups
        return StateError(
            f"state {state!r} of operator {self.operator!r} holds key {key!r} of key group {group}, but "
            f"subtask {self.context.subtask} owns the groups {start} to {end - 1}: a key selector must give the "
            "same key for the same record every time"
        )

    def measure(self, count: int, size: int) -> None:
        """Learn how large so many entries are."""
        if count:
            weight = max(count / (count + 1000), 1 / 64)
            self._average += (size / count - self._average) * weight

    def make_room(self, entries: CachedEntries, more: int = 0) -> None:
        """A namespace has grown, or will by so many: write back and forget, if it is too much."""
        if entries.dropped:
            entries.check = entries.check_clean = 1 << 62
            return
        entries.table.heat(entries)
        if entries.young:
            key = next(reversed(entries.young))
            if (value := entries.young[key]) is not MISSING:
                self.measure(1, len(entries.table.encode_of(key, value)))
        entries_of_cache = self.options.cache_entries or int(self.options.cache / (2 * self._average + _OBJECT))
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
        room = max((limit - young - clean) // (2 * len(every)), step)
        entries.check = len(entries.young) + more + min(room, max(len(entries.young), 16))
        entries.check_clean = len(entries.clean) + min(room, max(len(entries.clean), 16))
        if entries.is_cool:
            entries.table.cool(entries)

    def _write_back(self, every: list[CachedEntries], most: int | None = None) -> None:
        """Write the oldest of the logged and the young objects, so many at the most: they are clean then."""
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
        """Write the oldest of a layer. Returns how many objects that were."""
        part = dict(islice(layer.items(), most))
        self.database.write(chain.from_iterable(entries.table.write(entries, part)))
        if len(part) == len(layer):
            layer.clear()
        else:
            for key in part:
                del layer[key]
        count = len(part)
        _thaw(entries, part)
        return count

    def drop(self, entries: CachedEntries) -> None:
        """A namespace is to be forgotten."""
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

    def settle_before(self, table: RocksDBTable, namespace: bytes) -> None:
        """A namespace is used again: what was dropped of it has to be gone."""
        if any(entries.table is table and entries.namespace == namespace for entries in self._doomed):
            self.settle()

    def settle_dropped(self) -> None:
        """Have everything gone that was dropped."""
        if self._doomed:
            self.settle()

    def settle_if_done(self) -> None:
        """If the last snapshot is in the database, or will not be, be done with it."""
        pending = self._pending
        if pending is not None and pending.state is not OPEN:
            self.settle()

    def settle(self) -> None:
        """Be done with the last snapshot, so that the database may be written to."""
        pending = self._pending
        if pending is None:
            return
        if pending.state is OPEN:
            try:
                pending.finish()
            except StateError:
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
            merged = {**values, **entries.young}
            if not entries.stored:  # then there is nothing that would have to be removed
                merged = {key: value for key, value in merged.items() if value is not MISSING}
                entries.clean = {}
            entries.begin(merged)
        log = pending.settled()
        self._log = log if self.options.changes else None
        doomed, self._doomed = self._doomed, []
        for entries in doomed:
            entries.table.delete_rows(entries)

    def _all(self) -> list[CachedEntries]:
        return [entries for table in self._tables.values() for entries in table.hot.values()]

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"the state of operator {self.operator!r} is closed")


def _thaw(entries: CachedEntries, layer: dict[Any, Any]) -> None:
    """A layer is in the database now, and nobody else's any more. Removed keys in it do no harm."""
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
    """Forget what has been clean for longest. Returns how many objects that were."""
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
