"""Changelog state backend: tables as dicts that record what changed since the last snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from sluiceway.errors import StateError
from sluiceway.serializers import KEY_SERIALIZER, Block, Row, Serializer
from sluiceway.state import (
    VOID_NAMESPACE,
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    StateBackend,
    StateDescriptor,
    StateMeta,
    StateTable,
    TableKind,
    TableSchema,
)
from sluiceway.state.changelog.encoding import record_of
from sluiceway.state.changelog.entries import RecordingEntries, TrackedEntries
from sluiceway.state.changelog.fold import ChangeFold, plain_key
from sluiceway.state.changelog.format import encode_record
from sluiceway.state.changelog.log import ChangeLog
from sluiceway.state.changelog.record import ANY_GROUP, ChangeRecord, Dropped, Removed, TableInfo, places_of
from sluiceway.state.heap.backend import HeapKeyedBackend, HeapTable
from sluiceway.state.heap.entries import HeapEntries
from sluiceway.state.heap.snapshots import Layer
from sluiceway.util.overriding import override

__all__ = ["ChangelogKeyedBackend", "ChangelogStateBackend"]

_ABSENT: Final[Any] = object()
_MOST: Final = 32
_MORE: Final = 1 << 16
"""A log of more changes than that, or of so many bytes more than when it was whole, is begun anew."""


class ChangelogStateBackend(StateBackend):
    """State backend on the heap whose snapshots cost in proportion to what has changed.

    The ``groups`` of its snapshots are a :class:`ChangeLog`, whose ``latest`` is what has changed.

    Args:
        keep: True if each snapshot has all changes so far, so that it can be restored by itself. Otherwise the
            taker of the snapshots keeps the ``latest`` of each, and decides when a snapshot is to be whole.

    Attributes:
        whole: True if the next snapshots are to have all state, not only what has changed.
    """

    def __init__(self, *, keep: bool = True) -> None:
        self.keep = keep
        self.whole = False

    @override
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        return ChangelogKeyedBackend(context, self)


class _ChangelogTable(HeapTable):
    keeps_objects = False  # a change in place would not be in the log
    reads_ahead = True  # keys are recorded at once, which costs less than one by one

    def __init__(self, schema: TableSchema, operator: str) -> None:
        super().__init__(schema, operator)
        # Namespaces that the log has, and those of them that were dropped since.
        self._logged: set[Hashable] = set()
        self._dropped: set[Hashable] = set()
        # What the log has of the void namespace, where that comes from set_aside().
        self._logged_aside: dict[Any, Any] | None = None

    def make_entries(self) -> HeapEntries:
        return TrackedEntries()

    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> dict[Any, Any]:
        found = super().entries(namespace)
        assert isinstance(found, RecordingEntries)
        found.settle()
        return found

    def working(self, keys: Sequence[Any], namespace: Hashable = VOID_NAMESPACE) -> dict[Any, Any]:
        found = self._in(namespace, TableKind.VALUE)
        assert isinstance(found, RecordingEntries)
        return found.working(keys)

    def drop(self, namespace: Hashable) -> None:
        super().drop(namespace)
        if namespace in self._logged:
            self._logged.discard(namespace)
            self._dropped.add(namespace)

    def load(self, kept: Iterable[Any], reader: Serializer) -> None:
        """Apply the items of a log, which count as logged."""
        # In runs between removals, which apply to what was loaded before them.
        run: list[Row | Block] = []
        for item in kept:
            if not isinstance(item, Removed | Dropped):
                run.append(item)
                continue
            super().load(run, reader)
            run.clear()
            self._forget(item)
        super().load(run, reader)
        for entries in self._tracked().values():
            entries.changed.clear()
        self._logged = set(self._namespaces)

    def _forget(self, item: Removed | Dropped) -> None:
        namespace = KEY_SERIALIZER.loads(item.namespace)
        if isinstance(item, Dropped):
            self._namespaces.pop(namespace, None)
            return
        entries: dict[Any, Any] = self._namespaces.get(namespace) or {}
        for key in item.keys:
            dict.pop(entries, KEY_SERIALIZER.loads(key), None)

    def _tracked(self) -> dict[Hashable, TrackedEntries]:
        namespaces: dict[Hashable, Any] = self._namespaces
        for entries in namespaces.values():
            entries.settle()
        return namespaces

    # -- what has changed ------------------------------------------------------------------------------------

    def all(self, index: int) -> list[Layer]:
        """Return all entries as layers."""
        found: dict[Hashable, Any] = {name: entries for name, entries in self._namespaces.items() if entries}
        if self._make_aside is not None:
            found[VOID_NAMESPACE] = {**found.get(VOID_NAMESPACE, {}), **self._make_aside()}
        return [self._layer(index, namespace, values) for namespace, values in found.items() if values]

    def changes(self, index: int) -> tuple[list[Layer], list[tuple[Hashable, list[Any]]], list[Hashable]]:
        """Return what was set, removed keys and dropped namespaces since :meth:`logged`."""
        layers: list[Layer] = []
        gone: list[tuple[Hashable, list[Any]]] = []
        # What set_aside() brings is compared with what it brought last: there is no assignment to record.
        aside = self._make_aside is not None or bool(self._logged_aside)
        for namespace, entries in self._tracked().items():
            if aside and namespace == VOID_NAMESPACE:
                continue
            if entries.changed:
                present = {key: entries[key] for key in entries.changed if key in entries}
                if present:
                    layers.append(self._layer(index, namespace, present))
                # Keys that came and went since the last snapshot are in no record.
                if namespace in self._logged and len(present) < len(entries.changed):
                    gone.append((namespace, [key for key in entries.changed if key not in entries]))
        if aside:
            present, lost = self._changes_aside()
            if present:
                layers.append(self._layer(index, VOID_NAMESPACE, present))
            if lost:
                gone.append((VOID_NAMESPACE, lost))
        return layers, gone, list(self._dropped)

    def _changes_aside(self) -> tuple[dict[Any, Any], list[Any]]:
        entries = self._tracked().get(VOID_NAMESPACE)
        changed = set() if entries is None else entries.changed
        known = self._logged_aside
        if known is None:
            known = {}
            if entries is not None and entries.before is not None:
                # The operator has taken over what was restored and cleared the table; the log still has it.
                known, changed = entries.before, changed - entries.before.keys()
        new = self._aside_now()
        present = {key: value for key, value in new.items() if key in changed or known.get(key, _ABSENT) != value}
        # Kept for logged(), so that the entries are made once.
        self._new_aside = new
        return present, [key for key in known.keys() | changed if key not in new]

    def _aside_now(self) -> dict[Any, Any]:
        make = self._make_aside
        return {**self._namespaces.get(VOID_NAMESPACE, {}), **(make() if make is not None else {})}

    def logged(self, layers: list[Layer], *, whole: bool) -> None:
        """Note that the log has all changes up to now."""
        if whole:
            self._logged.clear()
            if self._make_aside is not None or self._logged_aside is not None:
                self._logged_aside = self._aside_now()
        elif self._make_aside is not None or self._logged_aside:
            self._logged_aside = self._new_aside
        self._logged.update(layer.namespace for layer in layers)
        self._dropped.clear()
        for entries in self._tracked().values():
            entries.changed.clear()
            entries.before = None

    def _layer(self, index: int, namespace: Hashable, values: dict[Any, Any]) -> Layer:
        return Layer.of(index, self.schema, namespace, values, self.encode)


class ChangelogKeyedBackend(HeapKeyedBackend):
    """Keyed backend with a change log.

    Args:
        context: context of the subtask.
        owner: the backend that it belongs to.
    """

    def __init__(self, context: BackendContext, owner: ChangelogStateBackend) -> None:
        super().__init__(context)
        self._owner = owner
        self._records: list[bytes] = []
        # Tables of the last of these records, by which rows are assigned to tables in the next restore.
        self._recorded: tuple[StateMeta, ...] = ()
        # Whether a log has what is here, so that the next change can go on from it.
        self._is_logged = False
        self._known_infos: tuple[tuple[StateMeta, ...], tuple[TableInfo, ...]] = ((), ())

    def make_table(self, schema: TableSchema) -> HeapTable:
        """Return a table that records changes."""
        return _ChangelogTable(schema, self._context.operator)

    def table(self, descriptor: StateDescriptor) -> StateTable:
        """Return the table for a descriptor."""
        forms = self._forms(descriptor.name)
        table = super().table(descriptor)
        if any(meta != TableSchema.of(descriptor).meta for meta in forms):
            self._is_logged = False  # its values will be written in another way from now on
        return table

    def restore(self, snapshots: Iterable[KeyedSnapshot]) -> None:
        """Load snapshots; a change log is read without making rows of it first."""
        listed = list(snapshots)
        log = listed[0].groups if len(listed) == 1 else None
        changes = log.changes() if type(log) is ChangeLog and log.records else []
        if not changes or changes[-1].metas() != listed[0].tables or not self._may_restore:
            super().restore(listed)
            return
        self._check_open()
        self._may_restore = False
        own, self._is_logged = self._context.key_groups, True
        metas = changes[-1].metas()
        by_place: dict[int, list[Any]] = defaultdict(list)
        for change in changes:
            places = places_of(change.tables, changes[-1].tables)
            for group, item in change.items():
                if group == ANY_GROUP or own.start <= group < own.end:
                    by_place[places[item.table]].append((group, item))
                else:
                    # The log holds key groups of other subtasks: the next record has to be whole.
                    self._is_logged = False
        for place, meta in enumerate(metas):
            self._unclaimed.setdefault(meta, []).extend(by_place[place])
        if self._owner.keep and type(log) is ChangeLog:
            self._records, self._recorded = list(log.records), metas

    def snapshot(self) -> KeyedSnapshot:
        """Return all state as of now; what has changed is encoded at once."""
        self._check_open()
        whole = not self._is_logged or (self._has_grown() if self._owner.keep else self._owner.whole)
        metas = (
            *(table.schema.meta for table in self._tables.values()),
            *self._unclaimed,
        )
        change, layers = self._all(metas) if whole else self._changes(metas)
        # With the records kept, the snapshot must have the tables of the last one, also where only their order
        # has changed.
        changed = not change.is_empty or (self._owner.keep and metas != self._recorded)
        latest = encode_record(change) if changed else None
        for table, taken in zip(self._tables.values(), layers, strict=True):
            assert isinstance(table, _ChangelogTable)
            table.logged(taken, whole=whole)
        self._is_logged = True
        if self._owner.keep and latest is not None:
            self._records, self._recorded = [latest] if whole else [*self._records, latest], metas
        records = self._records if self._owner.keep or latest is None else [latest]
        return KeyedSnapshot(metas, ChangeLog(records, latest))

    def _has_grown(self) -> bool:
        rest = self._records[1:]
        return len(rest) >= _MOST or sum(map(len, rest)) > len(self._records[0]) + _MORE

    def _all(self, metas: tuple[StateMeta, ...]) -> tuple[ChangeRecord, list[list[Layer]]]:
        layers = [self._own(table).all(index) for index, table in enumerate(self._tables.values())]
        kept: list[tuple[int, Row | Block]] = []
        for index, (meta, unclaimed) in enumerate(list(self._unclaimed.items()), len(self._tables)):
            # Of a restored log only what is left is written; removals have been applied then.
            fold = ChangeFold(plain_key)
            for group, item in unclaimed:
                fold.apply(group, item._replace(table=index))
            rows = [(group, row) for group in fold.groups() for row in fold.rows(group)]
            self._unclaimed[meta] = list(rows)
            kept += rows
        flat = [layer for some in layers for layer in some]
        return record_of(self._context, flat, tables=self._infos(metas), encoded=kept, whole=True), layers

    def _changes(self, metas: tuple[StateMeta, ...]) -> tuple[ChangeRecord, list[list[Layer]]]:
        layers: list[list[Layer]] = []
        dropped: list[Dropped] = []
        removed: list[tuple[int, Hashable, list[Any]]] = []
        for index, table in enumerate(self._tables.values()):
            set_, lost, lost_namespaces = self._own(table).changes(index)
            layers.append(set_)
            dropped += [Dropped(index, KEY_SERIALIZER.dumps(namespace)) for namespace in lost_namespaces]
            removed += [(index, namespace, keys) for namespace, keys in lost]
        flat = [layer for some in layers for layer in some]
        return record_of(self._context, flat, removed, dropped, tables=self._infos(metas)), layers

    def _infos(self, metas: tuple[StateMeta, ...]) -> tuple[TableInfo, ...]:
        if self._known_infos[0] != metas:
            self._known_infos = (metas, tuple(map(TableInfo.of, metas)))
        return self._known_infos[1]

    def _own(self, table: HeapTable) -> _ChangelogTable:
        if not isinstance(table, _ChangelogTable):
            raise StateError(f"{type(table).__name__} does not know what has changed")
        return table
