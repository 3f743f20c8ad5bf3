"""State that results from the records of a change log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain

import msgspec

from sluiceway.serializers import KEY_SERIALIZER, Block, Row, rows_of
from sluiceway.state.changelog.record import ANY_GROUP, ChangeRecord, Dropped, Item, Removed

__all__ = ["ChangeFold", "plain_key"]

_Where = tuple[int, bytes]
"""Table and namespace."""


class _PickledKey(msgspec.Struct, frozen=True):
    """A key of another type than plain ones, told apart by its bytes."""

    data: bytes


def plain_key(data: bytes) -> Hashable:
    """Return a key that is compared without the classes of the job: decoded if it is plain, else as its bytes."""
    if KEY_SERIALIZER.is_pickled(data):
        return _PickledKey(data)
    key: Hashable = KEY_SERIALIZER.loads(data)
    return key


class ChangeFold:
    """Result of changes that are added one after the other, by key group.

    Keys and namespaces are compared decoded: equal ones can have different bytes.

    Args:
        decode_key: decodes a key; :func:`plain_key` where the classes of the job must not be loaded.

    Attributes:
        whole: whether a whole record was added: then a database below the log does not count at all.
        dropped: table and namespace of each namespace that was dropped at some time. What a database below the
            log has of it does not count.
    """

    def __init__(self, decode_key: Callable[[bytes], Hashable] = KEY_SERIALIZER.loads) -> None:
        self._loads = decode_key
        self.whole = False
        self.dropped: set[_Where] = set()
        self._namespaces: dict[bytes, bytes] = {}
        self._first: dict[Hashable, bytes] = {}
        self._groups: defaultdict[int, dict[_Where, dict[Hashable, Row | None]]] = defaultdict(dict)

    def add(
        self,
        record: ChangeRecord,
        wanted: Callable[[int], bool] = lambda group: True,
        tables: Sequence[int] | None = None,
    ) -> None:
        """Apply a record.

        Args:
            record: the record after those that were added before.
            wanted: tells whether a key group is of interest; changes of others are skipped.
            tables: index of each of the record's tables in the result; None: the same.

        Raises:
            CorruptStreamError: rows of a key group are damaged.
        """
        if record.whole:
            self.whole = True
            self.dropped.clear()
            self._groups.clear()
        for group, item in record.items(wanted):
            self.apply(group, item if tables is None else item._replace(table=tables[item.table]))

    def apply(self, group: int, item: Item) -> None:
        """Apply one change of a key group; ANY_GROUP stands for all groups."""
        loads = self._loads
        if isinstance(item, Dropped):
            self.dropped.add(where := (item.table, self._same(item.namespace)))
            for namespaces in self._groups.values():
                namespaces.pop(where, None)
        elif isinstance(item, Removed):
            where = item.table, self._same(item.namespace)
            keys = list(map(loads, item.keys))
            if group != ANY_GROUP:
                # None hides what a database below the log has under the key.
                self._groups[group].setdefault(where, {}).update(dict.fromkeys(keys))
                return
            for namespaces in self._groups.values():
                entries = namespaces.get(where, {})
                # The groups of the keys are not known: mark the keys in whichever group has them.
                entries.update({key: None for key in keys if key in entries})
        else:
            namespaces = self._groups[group]
            for row in rows_of(item) if isinstance(item, Block) else (item,):
                namespaces.setdefault((row.table, self._same(row.namespace)), {})[loads(row.key)] = row

    def _same(self, namespace: bytes) -> bytes:
        """Return the bytes that equal namespaces go by: those that came first."""
        found = self._namespaces.get(namespace)
        if found is None:
            found = self._first.setdefault(self._loads(namespace), namespace)
            self._namespaces[namespace] = found
        return found

    def groups(self) -> Iterator[int]:
        """Yield the key groups that have rows."""
        return (group for group in self._groups if next(self.rows(group), None) is not None)

    def rows(self, group: int, below: Iterator[Row] | Sequence[Row] = ()) -> Iterator[Row]:
        """Yield the rows of a key group.

        Args:
            group: the key group.
            below: its rows in the database below the log, which count where no change has replaced them.
        """
        namespaces = self._groups.get(group, {})
        for row in () if self.whole else below:
            where = (row.table, self._same(row.namespace))
            if where in self.dropped:
                continue
            if where not in namespaces or self._loads(row.key) not in namespaces[where]:
                yield row
        for row_or_none in chain.from_iterable(entries.values() for entries in namespaces.values()):
            if row_or_none is not None:
                yield row_or_none

    def changes(self, group: int) -> Iterator[tuple[int, bytes, Hashable, Row | None]]:
        """Yield table, namespace, key and row of each change of a key group; the row of a removed key is None."""
        for (table, namespace), entries in self._groups.get(group, {}).items():
            for key, row in entries.items():
                yield table, namespace, key, row
