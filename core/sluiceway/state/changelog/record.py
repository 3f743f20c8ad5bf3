"""Records of a change log: what changed in the tables of one operator between two snapshots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.serializers import Block, Row, decode_blocks
from sluiceway.state import StateMeta, TableKind

__all__ = ["ANY_GROUP", "ChangeRecord", "Dropped", "Item", "Removed", "TableInfo", "places_of"]

ANY_GROUP: Final = -1
"""Stands for the key group of a namespace, and of keys where a record of an earlier layout does not have it."""


class TableInfo(msgspec.Struct, array_like=True, frozen=True):
    """Description of one table; the attributes are those of StateMeta."""

    name: str
    kind: str
    serializer: str
    version: int
    type_name: str
    expires: bool
    declared: str
    ttl_ms: int | None
    schema: Any

    @classmethod
    def of(cls, meta: StateMeta) -> TableInfo:
        """Return the description of a table."""
        return cls(
            meta.name,
            meta.kind.value,
            meta.serializer,
            meta.version,
            meta.type_name,
            meta.expires,
            meta.declared,
            meta.ttl_ms,
            meta.schema,
        )

    def meta(self) -> StateMeta:
        """Return the table as snapshots describe it. Raises CorruptStreamError."""
        try:
            kind = TableKind(self.kind)
        except ValueError:
            raise CorruptStreamError(
                f"table {self.name!r} of a change record has the kind {self.kind!r}"
            ) from None
        return StateMeta(
            self.name,
            kind,
            self.serializer,
            self.version,
            self.type_name,
            self.expires,
            self.declared,
            self.ttl_ms,
            self.schema,
        )


def places_of(tables: Sequence[TableInfo], latest: Sequence[TableInfo]) -> list[int]:
    """Return the index of each table of a record among those of the latest one, which has all of them.

    Forms of one table keep their order for as long as there are several.
    """
    places = {table: place for place, table in enumerate(_numbered(latest))}
    return [places[table] for table in _numbered(tables)]


def _numbered(tables: Sequence[TableInfo]) -> list[tuple[str, int]]:
    """Return the names of tables, numbered among equal ones."""
    numbers: defaultdict[str, count[int]] = defaultdict(count)
    return [(table.name, next(numbers[table.name])) for table in tables]


class Removed(NamedTuple):
    """Removal of keys from a namespace; all encoded."""

    table: int
    namespace: bytes
    keys: Sequence[bytes]


class Dropped(NamedTuple):
    """Removal of a namespace, encoded."""

    table: int
    namespace: bytes


Item: TypeAlias = "Row | Block | Removed | Dropped"
"""One change; a row or block is written over what its keys had."""


class ChangeRecord(msgspec.Struct, array_like=True, frozen=True):
    """Changes between two snapshots; see sluiceway.state.changelog.format for the layout and the order.

    Attributes:
        whole: whether it holds all state, so that earlier records are obsolete.
        tables: the tables by index; empty: those of the snapshot that the log belongs to.
        dropped: table and namespace of each namespace that was dropped.
        removed: by key group, table, namespace and keys of what was removed.
        written: by key group, rows of what was written.
    """

    whole: bool
    tables: tuple[TableInfo, ...] = ()
    dropped: Sequence[Dropped] = ()
    removed: dict[int, list[Removed]] = {}
    written: dict[int, bytes] = {}

    @property
    def is_empty(self) -> bool:
        """True if applying the record changes nothing."""
        return not (self.whole or self.dropped or self.removed or self.written)

    def metas(self) -> tuple[StateMeta, ...]:
        """Return the tables as snapshots describe them. Raises CorruptStreamError."""
        return tuple(table.meta() for table in self.tables)

    def items(self, wanted: Callable[[int], bool] = lambda group: True) -> Iterator[tuple[int, Item]]:
        """Yield the changes in the order in which they apply, each with its key group or ANY_GROUP.

        Args:
            wanted: tells whether a key group is of interest; changes of others are skipped, and not decoded.

        Raises:
            CorruptStreamError: rows of a key group are damaged.
        """
        for dropped in self.dropped:
            yield ANY_GROUP, dropped
        for group, removed in self.removed.items():
            if group == ANY_GROUP or wanted(group):
                for keys in removed:
                    yield group, keys
        for group, data in self.written.items():
            if not wanted(group):
                continue
            rows, blocks = decode_blocks(data)
            for row in rows:
                yield group, row
            for block in blocks:
                yield group, block
