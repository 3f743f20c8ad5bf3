"""Size of the state in a checkpoint, by step and state."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluiceway.checkpoint import StateReader, load_metadata, split_location
from sluiceway.checkpoint.native_files import opened_rows
from sluiceway.checkpoint.offline_reader import Decoder, kind_in_columns
from sluiceway.columns.state_names import BY_KEY, KEYS
from sluiceway.errors import choose
from sluiceway.plugins import PluginManager, default_manager
from sluiceway.serializers import KEY_SERIALIZER, decode_rows
from sluiceway.state import VOID_NAMESPACE, StateMeta

__all__ = ["StateSize", "state_sizes"]

_BY_ITSELF: Final = KEY_SERIALIZER.dumps(VOID_NAMESPACE)
"""Namespace of keys in columns that are in the state each by itself."""

_DECODER: Final = Decoder(trusted=False)
_NO_KEY: Final = KEY_SERIALIZER.dumps(None)


@dataclass(frozen=True, slots=True)
class StateSize:
    """Size of one keyed state.

    Attributes:
        uid: uid of the step.
        state: name of the state.
        kind: ``value``, ``list``, ``map``, ``reducing`` or ``aggregating``; of steps in columns ``aggregates``,
            ``rows`` or ``progress``.
        keys: number of keys; of ``rows`` that of rows, of ``aggregates`` each key once for each slice of a window.
        entries: number of values: entries of a map and namespaces such as windows count one by one, a list is one.
        size: bytes of all keys, namespaces and values as they are serialized, without compression.
        largest_key: key with most bytes; None: there is no key, or many keys are in one block.
        largest_size: bytes of that key.
        subtask_sizes: bytes by subtask that wrote them.
    """

    uid: str
    state: str
    kind: str
    keys: int
    entries: int
    size: int
    largest_key: Any
    largest_size: int
    subtask_sizes: dict[int, int]


@dataclass(slots=True)
class _Sum:
    keys: int = 0
    entries: int = 0
    size: int = 0
    largest_key: bytes = b""
    largest_size: int = -1
    subtask_sizes: dict[int, int] = field(default_factory=dict)


def state_sizes(
    location: str | os.PathLike[str], *, uid: str | None = None, manager: PluginManager | None = None
) -> list[StateSize]:
    """Measure the keyed state in a checkpoint or savepoint; the largest state comes first.

    All of it is read, one key group after the other. Nothing is unpickled that could run code.

    Args:
        location: path or URL of the checkpoint's directory.
        uid: uid of one step; None: all steps.
        manager: plugin manager for storages and state backends; None: the default one.

    Raises:
        CheckpointError: the directory has no complete checkpoint, or it is damaged; names the file.
        UnknownNameError: no step has that uid; lists the existing ones.
        MissingExtraError: the library of the state backend that wrote the files is not installed.
    """
    sums: dict[tuple[str, str, str], _Sum] = {}
    for step, subtask, meta, keys, in_columns in _groups(os.fspath(location), uid, manager or default_manager()):
        found = sums.setdefault((step, meta.name, in_columns or meta.declared or meta.kind.value), _Sum())
        if not in_columns:
            found.keys += len(keys)
        for key, (entries, size) in keys.items():
            found.entries += entries
            if in_columns:
                found.keys += entries
                # A block has the state of many keys, none of which has a size of its own.
                key = _NO_KEY
            found.size += size
            found.subtask_sizes[subtask] = found.subtask_sizes.get(subtask, 0) + size
            if size > found.largest_size:
                found.largest_key, found.largest_size = key, size
    sizes = [
        StateSize(
            uid=step,
            state=state,
            kind=kind,
            keys=s.keys,
            entries=s.entries,
            size=s.size,
            largest_key=_DECODER.key(s.largest_key) if s.keys else None,
            largest_size=max(s.largest_size, 0),
            subtask_sizes=s.subtask_sizes,
        )
        for (step, state, kind), s in sums.items()
    ]
    return sorted(sizes, key=lambda each: (-each.size, each.uid, each.state))


def _groups(
    location: str, uid: str | None, manager: PluginManager
) -> Iterator[tuple[str, int, StateMeta, dict[bytes, tuple[int, int]], str]]:
    """Yield uid, subtask and state with entries and bytes by key, and its kind in columns, for each key group."""
    place, directory = split_location(location)
    storage = manager.checkpoint_storage(place)
    metadata = load_metadata(storage, directory)
    reader, open_backend = StateReader(storage, directory), manager.services().state_backend
    keyed = [
        (vertex, subtask.index, operator.uid, operator.keyed)
        for vertex, subtask, operator in metadata.operators()
        if operator.keyed is not None
    ]
    if uid is not None and uid not in {step for _, _, step, _ in keyed}:
        known = {step for _, _, step, _ in keyed}
        raise choose("step with the uid", uid, known, "and keyed state in the checkpoint")
    for vertex, subtask, step, entry in keyed:
        if uid not in (None, step):
            continue
        kept = reader.keyed(step, entry)
        with opened_rows(kept, open_backend, step, subtask, vertex.max_parallelism) as snapshot:
            for meta in snapshot.tables:
                # So that an empty state is listed, too.
                yield step, subtask, meta, {}, kind_in_columns(vertex, step, meta.name)
            kinds = [kind_in_columns(vertex, step, meta.name) for meta in snapshot.tables]
            packed = {place for place, meta in enumerate(snapshot.tables) if meta.name in BY_KEY.keys() - {KEYS}}
            for group in sorted(snapshot.groups):
                for table, keys in _by_key(snapshot.groups[group], kinds, packed).items():
                    yield step, subtask, snapshot.tables[table], keys, kinds[table]


def _by_key(
    group: bytes, in_columns: Sequence[str], packed: Collection[int]
) -> dict[int, dict[bytes, tuple[int, int]]]:
    """Return, by table, entries and bytes of each key of a key group; the rows of blocks are entries.

    Args:
        group: rows of the key group.
        in_columns: kinds of the tables.
        packed: the tables in which a key by itself may have several rows.
    """
    tables: dict[int, dict[bytes, tuple[int, int]]] = {}
    for row in decode_rows(group):
        values = row.value if isinstance(row.value, list) else [row.value]
        size = len(row.namespace) + len(row.key) + sum(map(len, values))
        keys = tables.setdefault(row.table, {})
        entries, before = keys.get(row.key, (0, 0))
        if row.table in packed and row.namespace == _BY_ITSELF and in_columns[row.table]:
            count = sum(map(_packed_rows, values))
        elif in_columns[row.table] == "aggregates" and row.namespace == _BY_ITSELF:
            count = 1
        elif in_columns[row.table] in ("aggregates", "rows"):
            count = sum(map(_rows_of, values))
        else:
            count = len(values)
        keys[row.key] = entries + count, before + size
    return tables


def _packed_rows(value: bytes) -> int:
    """Return the number of rows of a key by itself."""
    from sluiceway.columns.aggregation.keyed import unpack  # it imports pyarrow

    found = _DECODER.any(value)
    try:
        return sum(1 for _ in unpack(found)) if isinstance(found, bytes) else 0
    except ValueError:
        return 0


def _rows_of(value: bytes) -> int:
    """Return the number of rows of a block."""
    from sluiceway.columns.ipc import decode  # it imports pyarrow

    block = _DECODER.any(value)
    try:
        return decode(block).num_rows if isinstance(block, bytes) else 0
    except ValueError:  # sizes are those of damaged state, too
        return 0
