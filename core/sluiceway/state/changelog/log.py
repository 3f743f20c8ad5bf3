"""What has changed, as bytes, and what comes of many such changes one after the other."""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from sluiceway.errors import CorruptStreamError, StateError
from sluiceway.serializers import Block, Row, decode_blocks, encode_rows, rows_of
from sluiceway.state import KeyedSnapshot, StateMeta, TableKind

__all__ = ["Change", "ChangeLog", "Dropped", "Gone", "Item", "fold", "items_of", "snapshot_of"]

_VERSION: Final = 1


class Change(msgspec.Struct, array_like=True, frozen=True):
    """What has changed between two moments.

    Attributes:
        version: of this layout.
        whole: whether it is all there is, and what went before does not matter.
        tables: pickled: all tables; what follows refers to them by index.
        dropped: namespaces that are gone, by table; this comes first.
        gone: keys that are gone, by table and namespace; then this.
        groups: by key group what was set, as :func:`sluiceway.serializers.encode_rows` has it.
    """

    version: int
    whole: bool
    tables: bytes
    dropped: list[tuple[int, bytes]]
    gone: list[tuple[int, bytes, list[bytes]]]
    groups: dict[int, bytes]

    @classmethod
    def of(
        cls,
        tables: bytes,
        dropped: list[tuple[int, bytes]],
        gone: list[tuple[int, bytes, list[bytes]]],
        groups: dict[int, bytes],
        *,
        whole: bool,
    ) -> Change:
        """A new one."""
        return cls(_VERSION, whole, tables, dropped, gone, groups)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed."""
        return not (self.whole or self.dropped or self.gone or self.groups)

    def metas(self) -> tuple[StateMeta, ...]:
        """The tables."""
        found: tuple[StateMeta, ...] = _Tables(io.BytesIO(self.tables)).load()
        return found


class _Tables(pickle.Unpickler):
    """Brings descriptions of tables back, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ((StateMeta.__module__, "StateMeta"), (TableKind.__module__, "TableKind")):
            return super().find_class(module, name)
        raise CorruptStreamError(f"{module}.{name} does not belong into the description of a table of state")


encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Change).decode


def decode(data: bytes) -> Change:
    """A change. Raises CorruptStreamError."""
    try:
        change = _decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStreamError(f"these {len(data)} bytes are no change of state: {error}") from error
    if change.version != _VERSION:
        raise CorruptStreamError(
            f"a change of state of layout {change.version} cannot be read: this version knows layout {_VERSION}"
        )
    return change


class Gone(NamedTuple):
    """Keys of a namespace that are gone, all of them encoded."""

    namespace: bytes
    keys: Sequence[bytes]


class Dropped(NamedTuple):
    """A namespace that is gone, encoded."""

    namespace: bytes


Item: TypeAlias = "Row | Block | Gone | Dropped"


def items_of(change: Change) -> Iterator[tuple[int, int, Item]]:
    """What is in a change, in the order in which it is to be done: table, key group or -1, what."""
    for table, namespace in change.dropped:
        yield table, -1, Dropped(namespace)
    for table, namespace, keys in change.gone:
        yield table, -1, Gone(namespace, keys)
    for group, data in change.groups.items():
        rows, blocks = decode_blocks(data)
        for row in rows:
            yield row.table, group, row
        for block in blocks:
            yield block.table, group, block


def fold(items: Iterable[tuple[int, Item]]) -> list[tuple[int, Row]]:
    """What is left of what was done to one table: its rows, with their key groups."""
    found: dict[bytes, dict[bytes, tuple[int, Row]]] = defaultdict(dict)
    for group, item in items:
        if isinstance(item, Dropped):
            found.pop(item.namespace, None)
        elif isinstance(item, Gone):
            rows = found[item.namespace]
            for key in item.keys:
                rows.pop(key, None)
        else:
            for row in rows_of(item) if isinstance(item, Block) else (item,):
                found[row.namespace][row.key] = (group, row)
    return [kept for rows in found.values() for kept in rows.values()]


class ChangeLog(Mapping[int, bytes]):
    """The ``groups`` of a snapshot of the changelog backend, which restores from the changes themselves.

    Args:
        records: changes, the first one whole unless it is not to be read.
        latest: the one that was taken with this snapshot; None: nothing has changed.

    Raises:
        StateError: reading it, as it does not begin with a whole change.
    """

    def __init__(self, records: Sequence[bytes], latest: bytes | None = None) -> None:
        self.records = tuple(records)
        self.latest = latest
        self._groups: dict[int, bytes] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangeLog, (self.records, self.latest)

    def __getitem__(self, group: int) -> bytes:
        return self._folded()[group]

    def __iter__(self) -> Iterator[int]:
        return iter(self._folded())

    def __len__(self) -> int:
        return len(self._folded())

    def changes(self) -> list[Change]:
        """What is to be done one after the other, from the last whole change on. Raises StateError."""
        found: list[Change] = []
        for change in map(decode, self.records):
            if change.whole:
                found.clear()
            found.append(change)
        if not found or not found[0].whole:
            raise StateError("this log of changes has lost its beginning: there is nothing to add the changes to")
        return found

    def _folded(self) -> dict[int, bytes]:
        if self._groups is None:
            changes = self.changes()
            by_name: dict[str, list[tuple[int, Item]]] = defaultdict(list)
            for change in changes:
                names = [meta.name for meta in change.metas()]
                for table, group, item in items_of(change):
                    by_name[names[table]].append((group, item))
            places = {meta.name: place for place, meta in enumerate(changes[-1].metas())}
            rows: dict[int, list[Row]] = defaultdict(list)
            for name, items in by_name.items():
                for group, row in fold(items):
                    rows[group].append(row._replace(table=places[name]))
            self._groups = {group: encode_rows(found) for group, found in rows.items()}
        return self._groups


def snapshot_of(records: Sequence[bytes]) -> KeyedSnapshot:
    """The state that has come of changes, the first of them whole. Raises StateError, CorruptStreamError."""
    log = ChangeLog(records)
    return KeyedSnapshot(log.changes()[-1].metas(), log)
