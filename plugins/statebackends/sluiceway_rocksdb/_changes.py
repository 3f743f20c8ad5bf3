"""What has changed since the database was as some directory has it: as bytes, and what many of these come to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.keygroups import key_group
from sluiceway.serializers import KEY_SERIALIZER, Row, decode_blocks, rows_of
from sluiceway.state.heap import HeapSnapshot
from sluiceway.state.heap import Layer as HeapLayer

if TYPE_CHECKING:
    from sluiceway.state import BackendContext
    from sluiceway_rocksdb._entries import Layer

__all__ = ["Changes", "encode_changes"]

_VERSION: Final = 1


class _Change(msgspec.Struct, array_like=True, frozen=True):
    """What has changed between two snapshots; to be done in this order.

    Attributes:
        version: of this layout.
        dropped: namespaces that are gone, by table.
        gone: by key group the keys that are gone, each with table and namespace.
        groups: by key group what was set, as :func:`sluiceway.serializers.encode_rows` has it.
    """

    version: int
    dropped: list[tuple[int, bytes]]
    gone: dict[int, list[tuple[int, bytes, bytes]]]
    groups: dict[int, bytes]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Change).decode


def encode_changes(
    context: BackendContext, layers: list[Layer], dropped: list[tuple[int, bytes]]
) -> tuple[bytes, int]:
    """Changes as bytes, with the number of objects in it. Safe in another thread than the task's.

    Args:
        context: of the backend.
        layers: what is to be set, and what is gone. Nobody changes these objects meanwhile.
        dropped: the namespaces that were dropped before, by table.

    Raises:
        SerializationError: a value cannot be serialized; names it.
        StateError: a key is another subtask's.
    """
    heap, gone = [], defaultdict[int, list[tuple[int, bytes, bytes]]](list)
    for entries, values, keys in layers:
        table = entries.table
        if values:
            heap.append(HeapLayer.of(table.index, table.schema, entries.name, values, table.row_value))
        for key in keys:
            place = (table.index, entries.namespace, KEY_SERIALIZER.dumps(key))
            gone[key_group(key, context.max_parallelism)].append(place)
    groups = dict(HeapSnapshot(context, heap, [])) if heap else {}
    count = len(dropped) + sum(len(layer.values) + len(layer.gone) for layer in layers)
    return _encode(_Change(_VERSION, dropped, gone, groups)), count


class Changes:
    """What comes of changes that are added one after the other.

    Attributes:
        dropped: namespaces that were dropped at some time: what was there before them does not count.
    """

    def __init__(self) -> None:
        self.dropped: set[tuple[int, bytes]] = set()
        self._groups: defaultdict[int, dict[tuple[int, bytes], dict[Hashable, Row | None]]] = defaultdict(dict)

    def add(self, data: bytes, wanted: Callable[[int], bool] = lambda group: True) -> None:
        """Do what was done next.

        Args:
            data: from :func:`encode_changes`.
            wanted: says of a key group whether it is of interest.

        Raises:
            CorruptStreamError: it is something else.
        """
        try:
            change = _decode(data)
        except msgspec.MsgspecError as error:
            raise CorruptStreamError(f"these {len(data)} bytes are no changes of state: {error}") from error
        if change.version != _VERSION:
            raise CorruptStreamError(
                f"changes of state of layout {change.version} cannot be read: this version knows layout {_VERSION}"
            )
        load_key = KEY_SERIALIZER.loads
        for where in change.dropped:
            self.dropped.add(where)
            for namespaces in self._groups.values():
                namespaces.pop(where, None)
        for group, keys in change.gone.items():
            if wanted(group):
                namespaces = self._groups[group]
                for table, namespace, key in keys:
                    namespaces.setdefault((table, namespace), {})[load_key(key)] = None
        for group, encoded in change.groups.items():
            if wanted(group):
                namespaces = self._groups[group]
                rows, blocks = decode_blocks(encoded)
                for row in chain(rows, *map(rows_of, blocks)):
                    namespaces.setdefault((row.table, row.namespace), {})[load_key(row.key)] = row

    def of(self, group: int) -> Iterator[tuple[int, bytes, Hashable, Row | None]]:
        """Table, namespace, key and row of what is now in a key group; None for what is gone."""
        for (table, namespace), entries in self._groups.get(group, {}).items():
            for key, row in entries.items():
                yield table, namespace, key, row

    def over(self, group: int, before: Iterator[Row]) -> Iterator[Row]:
        """The rows of a key group, of which these were there before."""
        namespaces = self._groups.get(group, {})
        for row in before:
            where = (row.table, row.namespace)
            if where in self.dropped:
                continue
            if where not in namespaces or KEY_SERIALIZER.loads(row.key) not in namespaces[where]:
                yield row
        for entries in namespaces.values():
            yield from (row for row in entries.values() if row is not None)
