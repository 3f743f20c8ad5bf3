"""Namespaces of blocks that snapshots store apart, so that later checkpoints refer to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from operator import is_
from typing import Any, Final

from sluiceway.keygroups import key_groups
from sluiceway.serializers import KEY_SERIALIZER, Row, encode_rows
from sluiceway.state import SharedRows, TableSchema
from sluiceway.state.heap.entries import Encode, HeapEntries
from sluiceway.state.heap.snapshots import Layer
from sluiceway.util.overriding import override

__all__ = ["SharedNamespace", "shared_namespaces"]

_LEAST: Final = 1 << 17
"""Bytes of a namespace from which on it is stored apart: a file for less costs more than to write it again."""

_MOST: Final = 4096
"""Namespaces of a table that are stored apart, as each has an entry in the metadata of every checkpoint."""


class SharedNamespace(SharedRows):
    """Namespace of a table of blocks as of the snapshot before which it was changed last.

    Args:
        identity: its identity.
        max_parallelism: number of key groups of the job vertex.
        layer: its blocks; nobody changes their dict.
    """

    def __init__(self, identity: str, max_parallelism: int, layer: Layer) -> None:
        self.identity = identity
        self.layer = layer
        self._max_parallelism = max_parallelism
        self._by_group: dict[int, list[Any]] | None = None

    def is_same(self, index: int, entries: HeapEntries) -> bool:
        """Return whether a namespace has the very blocks of this one."""
        # Bytes do not change: the same objects are the same content, and no block is read to know it. They cannot
        # be others in the same place either, as this one keeps them.
        own = self.layer.frozen.values
        return (
            self.layer.index == index
            and len(own) == len(entries)
            and list(own) == list(dict.keys(entries))
            and all(map(is_, own.values(), dict.values(entries)))
        )

    @property
    @override
    def key_groups(self) -> Collection[int]:
        return self._groups().keys()

    def _groups(self) -> Mapping[int, list[Any]]:
        # Two readers at a time find the same.
        found = self._by_group
        if found is None:
            keys, found = list(self.layer.frozen.values), {}
            for key, group in zip(keys, key_groups(keys, self._max_parallelism), strict=True):
                found.setdefault(group, []).append(key)
            self._by_group = found
        return found

    @override
    def rows(self, group: int) -> bytes:
        layer = self.layer
        namespace, values = KEY_SERIALIZER.dumps(layer.namespace), layer.frozen.values
        return encode_rows(
            [
                Row(layer.index, namespace, KEY_SERIALIZER.dumps(key), layer.frozen.encode(values[key]))
                for key in self._groups()[group]
            ]
        )


def shared_namespaces(
    known: Mapping[Hashable, SharedNamespace],
    namespaces: Mapping[Hashable, HeapEntries],
    index: int,
    schema: TableSchema,
    encode: Encode,
    max_parallelism: int,
    new_identity: Callable[[], str],
) -> dict[Hashable, SharedNamespace]:
    """Return the namespaces of a table that a snapshot stores apart: those from before, if they have not changed.

    Args:
        known: those of the snapshot before.
        namespaces: all namespaces.
        index: index of the table.
        schema: schema of the table.
        encode: encodes a block.
        max_parallelism: number of key groups of the job vertex.
        new_identity: makes an identity.
    """
    found: dict[Hashable, SharedNamespace] = {}
    for namespace, entries in namespaces.items():
        before = known.get(namespace)
        if before is not None and before.is_same(index, entries):
            found[namespace] = before
        elif len(found) < _MOST and _is_large(entries):
            layer = Layer.of(index, schema, namespace, dict.copy(entries), encode)
            found[namespace] = SharedNamespace(new_identity(), max_parallelism, layer)
    return found


def _is_large(entries: HeapEntries) -> bool:
    # What is not bytes could be changed in its place, and would still be the same object.
    blocks = list(dict.values(entries))
    return set(map(type, blocks)) == {bytes} and sum(map(len, blocks)) >= _LEAST
