"""Records of changes, made from objects on the heap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from sluiceway.keygroups import key_group
from sluiceway.serializers import KEY_SERIALIZER, Block, Row
from sluiceway.state import BackendContext
from sluiceway.state.changelog.record import ChangeRecord, Dropped, Removed, TableInfo
from sluiceway.state.heap.snapshots import HeapSnapshot, Layer

__all__ = ["record_of"]


def record_of(
    context: BackendContext,
    layers: list[Layer],
    removed: Iterable[tuple[int, Hashable, Sequence[Any]]] = (),
    dropped: Iterable[Dropped] = (),
    *,
    tables: tuple[TableInfo, ...] = (),
    encoded: list[tuple[int, Row | Block]] | None = None,
    whole: bool = False,
) -> ChangeRecord:
    """Return a record of changes. Safe in any thread while nobody changes the objects.

    Args:
        context: of the backend.
        layers: what was written.
        removed: table, namespace and keys of what was removed.
        dropped: namespaces that were dropped.
        tables: the tables by index; empty: those of the snapshot that the log belongs to.
        encoded: rows and blocks that were written and are encoded already, with their key groups.
        whole: whether this is all state.

    Raises:
        SerializationError: a value cannot be serialized; names it.
        StateError: a key belongs to another subtask.
    """
    dumps = KEY_SERIALIZER.dumps
    by_group: dict[int, list[Removed]] = {}
    for table, namespace, keys in removed:
        own: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            own[key_group(key, context.max_parallelism)].append(dumps(key))
        for group, some in own.items():
            by_group.setdefault(group, []).append(Removed(table, dumps(namespace), some))
    written = dict(HeapSnapshot(context, layers, encoded or [])) if layers or encoded else {}
    return ChangeRecord(whole, tables, list(dropped), by_group, written)
