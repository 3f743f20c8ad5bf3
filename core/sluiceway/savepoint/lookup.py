"""State of one key, read from a checkpoint or queried from its running task."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sluiceway.checkpoint import StateReader, load_metadata, split_location
from sluiceway.checkpoint.metadata import CheckpointMetadata
from sluiceway.checkpoint.native_files import opened_rows
from sluiceway.checkpoint.offline_reader import Decoder, StateRow, content_of, kind_in_columns
from sluiceway.errors import CheckpointError, ConfigurationError, StateQueryError, choose
from sluiceway.keygroups import key_group
from sluiceway.operators.keyed_state.queries import as_key, key_candidates, key_of_json, missing_key
from sluiceway.plugins import PluginManager, default_manager
from sluiceway.serializers import Row, decode_rows
from sluiceway.state import StateMeta, TableKind

if TYPE_CHECKING:
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.messages.workers import FoundState

__all__ = ["KeyValue", "find_last_state", "find_live_state", "find_state", "is_place"]

_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class KeyValue:
    """Value of a key in a namespace of a state.

    Attributes:
        uid: uid of the step.
        state: name of the state.
        kind: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``.
        key: the key.
        namespace: the namespace, such as a window; ``()`` for state of the key alone.
        value: the value; a list for list state; a dict, or the requested entry, for map state (pairs, if its keys
            are objects that cannot be those of a dict); the accumulator for aggregating state. An
            :class:`~sluiceway.checkpoint.offline_reader.Opaque` if reading it needs the job's classes.
        touched_ms: time of last access in ms since the epoch, for state with a time to live; the latest of the
            entries for lists and maps.
    """

    uid: str
    state: str
    kind: str
    key: Any
    namespace: Any
    value: Any
    touched_ms: int | None = None


def is_place(source: str) -> bool:
    """Return whether a text is the location of a checkpoint, not a job of the cluster."""
    return "/" in source or "://" in source or os.path.isdir(source)


def find_state(
    location: str,
    uid: str,
    state: str,
    key: str,
    *,
    namespace: str | None = None,
    map_key: str | None = None,
    trusted: bool = False,
    manager: PluginManager | None = None,
) -> list[KeyValue]:
    """Return the state of a key in a checkpoint or savepoint. Only the key's key group is read.

    Args:
        location: path or URL of the checkpoint's directory.
        uid: uid of the step.
        state: name of the state.
        key: the key; parsed as JSON first, then taken as text, until one has state.
        namespace: the namespace as JSON, such as a window; None: all namespaces.
        map_key: the only entry of a map to return; as JSON or as text.
        trusted: whether to unpickle values of classes, which can run any code.
        manager: plugin manager for storages and state backends; None: the default one.

    Raises:
        CheckpointError: the directory has no complete checkpoint, or it is damaged; names the file.
        UnknownNameError: the step or state does not exist; lists the existing ones.
        StateQueryError: the key has no such state; names some that have.
    """
    manager = manager or default_manager()
    place, directory = split_location(location)
    storage = manager.checkpoint_storage(place)
    metadata = load_metadata(storage, directory)
    reader, decoder = StateReader(storage, directory), Decoder(trusted)
    most = _max_parallelism(metadata, uid, state)
    wanted = None if namespace is None else _namespace(namespace)
    kinds = {kind_in_columns(vertex, uid, state) for vertex in metadata.vertices} - {""}
    if kinds:
        rows_in_columns = content_of(
            reader, metadata, open_backend=manager.services().state_backend, uid=uid, state=state
        )
        return _in_columns(rows_in_columns, kinds.pop(), uid, state, key, wanted, map_key)
    for candidate in key_candidates(key):
        rows = _rows(reader, metadata, manager, uid, state, {key_group(candidate, most)})
        found = [(meta, row) for meta, row in rows if decoder.key(row.key) == candidate]
        found = [(meta, row) for meta, row in found if wanted in (None, decoder.key(row.namespace))]
        if found:
            values = []
            for meta, row in found:
                data = row.value if isinstance(row.value, list) else [row.value]
                values.append(_value(uid, meta, decoder, row.namespace, row.key, data, map_key))
            return values
    others: list[Any] = []
    # Only for the message: some keys that have state.
    for _, row in _rows(reader, metadata, manager, uid, state, None):
        others.append(decoder.key(row.key))
        if len(others) == _KEYS:
            break
    raise missing_key(key, state, uid, others)


def _in_columns(
    rows: Iterator[StateRow], kind: str, uid: str, state: str, key: str, wanted: Any, map_key: str | None
) -> list[KeyValue]:
    """Return what a key has in the state of a step in columns. All of it is read."""
    if kind == "rows":
        raise StateQueryError(
            f"state {state!r} of step {uid!r} has rows, not values of keys: show them with 'sluiceway state show' "
            "or 'sluiceway state export'"
        )
    if map_key is not None:
        raise StateQueryError(f"state {state!r} of step {uid!r} is not a map: it has no entry {map_key!r}")
    candidates = key_candidates(key)
    found: list[KeyValue] = []
    others: list[Any] = []
    for row in rows:
        if row.key in candidates and wanted in (None, row.namespace):
            found.append(KeyValue(uid, state, kind, row.key, row.namespace, row.value))
        elif len(others) < _KEYS:
            others.append(row.key)
    if not found:
        raise missing_key(key, state, uid, others)
    return found


def find_last_state(
    client: ClusterClient,
    job: str,
    uid: str,
    state: str,
    key: str,
    *,
    namespace: str | None = None,
    map_key: str | None = None,
    trusted: bool = False,
    manager: PluginManager | None = None,
) -> tuple[str, list[KeyValue]]:
    """Return the state of a key in the last completed checkpoint of a job of the cluster.

    Args:
        client: client of the cluster.
        job: id of the job.
        uid: as for :func:`find_state`, like the following ones.
        state: name of the state.
        key: the key.
        namespace: the namespace.
        map_key: the only entry of a map to return.
        trusted: whether to unpickle.
        manager: plugin manager.

    Returns:
        the location of the checkpoint, and the result of :func:`find_state` there.

    Raises:
        SluicewayError: the job has no checkpoint, or as :func:`find_state`.
    """
    place = client.latest_checkpoint(job)
    while True:
        try:
            return place, find_state(
                place, uid, state, key, namespace=namespace, map_key=map_key, trusted=trusted, manager=manager
            )
        except CheckpointError:
            # A newer checkpoint may have completed meanwhile, and this one been deleted.
            before, place = place, client.latest_checkpoint(job)
            if place == before:
                raise


def find_live_state(
    client: ClusterClient,
    job: str,
    uid: str,
    state: str,
    key: str,
    *,
    namespace: str | None = None,
    map_key: str | None = None,
    trusted: bool = False,
    within_s: float = 10.0,
) -> list[KeyValue]:
    """Return the current state of a key in a running job of the cluster. The task answers between two batches.

    Args:
        client: client of the cluster.
        job: id of the job.
        uid: uid of the step.
        state: name of the state.
        key: the key as JSON or as text, according to the declared type of the keys if there is one.
        namespace: the namespace as JSON, such as a window; None: all namespaces.
        map_key: the only entry of a map to return.
        trusted: whether to unpickle values of classes, which can run any code.
        within_s: seconds to wait for the answer.

    Raises:
        SluicewayError: the step, state or key does not exist (lists existing ones), or the task did not answer.
    """
    if namespace is not None:
        _namespace(namespace)
    found: FoundState = client.live_state(job, uid, state, key, namespace=namespace or "", within_s=within_s)
    meta = StateMeta(
        found.name,
        TableKind(found.kind),
        found.serializer,
        found.version,
        found.type,
        found.expires,
        found.declared,
    )
    decoder = Decoder(trusted)
    return [_value(uid, meta, decoder, held.namespace, held.key, held.values, map_key) for held in found.values]


def _namespace(text: str) -> Any:
    try:
        return key_of_json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"the namespace {text!r} is not valid JSON ({error}): a window is [0, 60000]"
        ) from None


def _max_parallelism(metadata: CheckpointMetadata, uid: str, state: str) -> int:
    states: dict[str, tuple[int, set[str]]] = {}
    for vertex, _, operator in metadata.operators():
        if operator.keyed is not None:
            names = states.setdefault(operator.uid, (vertex.max_parallelism, set()))[1]
            names.update(table.name for table in operator.keyed.tables)
    if uid not in states:
        raise choose("step with the uid", uid, states, "and keyed state in the checkpoint")
    most, names = states[uid]
    if state not in names:
        raise choose("keyed state", state, names, f"of step {uid!r} in the checkpoint")
    return most


def _rows(
    reader: StateReader,
    metadata: CheckpointMetadata,
    manager: PluginManager,
    uid: str,
    state: str,
    groups: set[int] | None,
) -> Iterator[tuple[StateMeta, Row]]:
    open_backend = manager.services().state_backend
    for vertex, subtask, operator in metadata.operators(uid):
        if operator.keyed is None:
            continue
        kept = reader.keyed(uid, operator.keyed)
        with opened_rows(kept, open_backend, uid, subtask.index, vertex.max_parallelism) as snapshot:
            for group in sorted(snapshot.groups if groups is None else groups & snapshot.groups.keys()):
                for row in decode_rows(snapshot.groups[group]):
                    meta = snapshot.tables[row.table]
                    if meta.name == state:
                        yield meta, row


def _value(
    uid: str,
    meta: StateMeta,
    decoder: Decoder,
    namespace: bytes,
    key: bytes,
    data: Sequence[bytes],
    map_key: str | None,
) -> KeyValue:
    kind = meta.declared or meta.kind.value
    parts = [decoder.value(meta, part) for part in data]
    touched = max((t for _, _, t in parts if t is not None), default=None)
    value: Any = parts[0][1]
    if meta.kind is TableKind.MAP:
        entries = [(as_key(name), part) for name, part, _ in parts]
        value = _as_dict(entries) if map_key is None else _entry(entries, map_key, meta.name)
    elif map_key is not None:
        raise StateQueryError(
            f"state {meta.name!r} of step {uid!r} is {kind} state, not a map: it has no entry {map_key!r}"
        )
    return KeyValue(uid, meta.name, kind, decoder.key(key), decoder.key(namespace), value, touched)


def _as_dict(entries: list[tuple[Any, Any]]) -> Any:
    """Return the entries of a map as a dict, or as they are if the dict would not have all of them."""
    try:
        found = dict(entries)
    except TypeError:  # a key of a class, whose fields are a dict
        return entries
    # Entries that cannot be read have None as their key, all of them.
    return found if len(found) == len(entries) else entries


def _entry(entries: list[tuple[Any, Any]], text: str, state: str) -> Any:
    candidates = key_candidates(text)
    with suppress(ValueError, RecursionError):
        candidates.append(json.loads(text))  # the fields of a class
    for candidate in candidates:
        for name, value in entries:
            if name == candidate:
                return value
    names = [str(name) for name, _ in entries]
    some = ", ".join(map(repr, get_close_matches(text, names, n=3) or names[:3]))
    raise StateQueryError(f"the map {state!r} of this key has no entry {text!r}; others are {some}")
