"""Table of one named state: its rows in the database and its namespaces."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from itertools import compress, islice
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from sluiceway.errors import SerializationError, StateError
from sluiceway.keygroups import key_groups, stable_hash
from sluiceway.serializers import KEY_SERIALIZER, MsgspecSerializer, Serializer
from sluiceway.state import VOID_NAMESPACE, StateTable, TableKind, TableSchema
from sluiceway.state.map_view import KeyMapping
from sluiceway_rocksdb._namespace_cache import MISSING, CacheControl, CachedEntries
from sluiceway_rocksdb._row_keys import (
    BUCKET,
    PREFIX,
    decode_bucket,
    encode_bucket,
    normal_bytes,
    pack_prefix,
    plain_tails,
    row_key,
    upper,
)
from sluiceway_rocksdb._row_values import PLAIN, changed_bucket, keys_of, value_of, with_own_key
from sluiceway_rocksdb._store import SubtaskStore

__all__ = ["RocksDBTable", "find_namespaces"]

_encode: Final = msgspec.msgpack.Encoder().encode
_bins: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_PART: Final = 5_000
"""So many objects are serialized in one go."""
_VISITED: Final = 100
"""Rows that are read at a time for a visit of all keys."""
_MANY: Final = 100_000
"""So many namespaces are remembered as being in the database; of more than that, nothing is known."""

_BUCKET: Final = BUCKET[0]
_MISSING_ID: Final = id(MISSING)


class RocksDBTable(StateTable):
    """Table of one named state, which reads ahead.

    Args:
        store: of the subtask.
        cache: to which memory is accounted.
        schema: what is in it.
        index: by which its rows go.
        where: by namespace, the key groups in which the database has rows of it; None: that is not known.
    """

    reads_ahead = True

    def __init__(
        self,
        store: SubtaskStore,
        cache: CacheControl,
        schema: TableSchema,
        index: int,
        where: dict[bytes, set[int]] | None,
    ) -> None:
        self.store = store
        self.cache = cache
        self.schema = schema
        self.index = index
        self.where = where
        self._is_map = schema.meta.kind is TableKind.MAP
        self._most = store.max_parallelism
        self.working_memory = store.options.columns
        self._dumps, self._loads = schema.serializer.dumps, schema.serializer.loads
        # Those with something in memory, and those that somebody may have in his hands.
        self.hot: dict[Hashable, CachedEntries] = {}
        # Weak, but complete: two objects for one namespace would cache its rows apart from each other.
        self._idle: WeakValueDictionary[Hashable, CachedEntries] = WeakValueDictionary()

    # -- the contract --------------------------------------------------------------------------------------------

    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return self._in(namespace, TableKind.VALUE)

    def working(self, keys: Sequence[Any], namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return self._in(namespace, TableKind.VALUE).working(keys)

    def read(self, keys: Sequence[Any], namespace: Hashable = VOID_NAMESPACE) -> dict[Any, Any]:
        return self._in(namespace, TableKind.VALUE).read(keys)

    def remove(self, keys: Iterable[Any], namespace: Hashable = VOID_NAMESPACE) -> None:
        self._in(namespace, TableKind.VALUE).remove(keys)

    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return KeyMapping(self._in(namespace, TableKind.MAP), key)

    def _in(self, namespace: Hashable, kind: TableKind) -> CachedEntries:
        found = self.hot.get(namespace)
        if found is not None and kind is self.schema.meta.kind:
            return found
        meta = self.schema.meta
        if meta.kind is not kind:
            raise StateError(
                f"state {meta.name!r} of operator {self.store.operator!r} is {meta}: it has no {kind.value}s"
            )
        found = self._idle.get(namespace)
        if found is None:
            name = normal_bytes(namespace)
            self.cache.settle_before(self, name)
            groups = None if self.where is None else self.where.get(name)
            found = CachedEntries(self, namespace, name, self.where is None or groups is not None, groups)
            self._idle[namespace] = found
        return found

    def namespaces(self) -> Iterator[Hashable]:
        self.cache.settle_dropped()
        found = [namespace for namespace, entries in self.hot.items() if entries]
        seen = {entries.namespace for entries in self.hot.values()}
        found += [KEY_SERIALIZER.loads(name) for name in self._stored_namespaces() if name not in seen]
        return iter(found)

    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        return iter(list(self._in(namespace, self.schema.meta.kind)))

    def visit_keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        entries = self._in(namespace, self.schema.meta.kind)
        # First those that may be written to the database meanwhile, behind the place where it is read.
        yield from entries.newest_keys()
        if entries.whole:
            return
        for group in self._groups(entries):
            prefix = entries.prefixes[group]
            start: bytes | None = prefix
            while start is not None and not entries.dropped:
                # Read anew for each part: an iterator keeps files that were compacted, and memtables.
                part = list(islice(self.store.database.rows(prefix, start), _VISITED))
                start = part[-1][0] + b"\0" if len(part) == _VISITED else None
                for place, data in part:
                    for own, _ in keys_of(place[len(prefix) :], data):
                        yield KEY_SERIALIZER.loads(own)

    def drop(self, namespace: Hashable) -> None:
        entries = self._in(namespace, self.schema.meta.kind)
        self.hot.pop(namespace, None)
        self._idle.pop(namespace, None)
        self.cache.drop(entries)

    # -- rows ----------------------------------------------------------------------------------------------------

    def heat(self, entries: CachedEntries) -> None:
        """Note that a namespace has objects in memory."""
        if not entries.dropped:
            self.hot[entries.name] = entries

    def cool(self, entries: CachedEntries) -> None:
        """Note that a namespace has no object in memory."""
        self.hot.pop(entries.name, None)
        self._idle[entries.name] = entries
        entries.check = entries.check_clean = 0  # so that the backend hears of the next object

    def encode(self, value: Any) -> bytes:
        """Return a value as the database has it."""
        if self._is_map:
            return _encode([self._dumps(entry) for entry in value.items()])
        return self._dumps(value)

    def encode_of(self, key: Hashable, value: Any) -> bytes:
        """Return the encoding of a value. Raises SerializationError, which names the key."""
        try:
            return self.encode(value)
        except SerializationError as error:
            raise self._named(key, error) from error

    def _named(self, key: Hashable, error: SerializationError) -> SerializationError:
        state, operator = self.schema.meta.name, self.store.operator
        return SerializationError(f"state {state!r} of operator {operator!r}, key {key!r}: {error}")

    def row_value(self, value: Any) -> bytes | list[bytes]:
        """Return a value as a row of a snapshot has it."""
        return [self._dumps(entry) for entry in value.items()] if self._is_map else self._dumps(value)

    def decode(self, data: bytes) -> Any:
        """Return a new object for a value of the database."""
        try:
            if self._is_map:
                return dict(map(self._loads, _bins(data)))
            return self._loads(data)
        except (SerializationError, msgspec.MsgspecError) as error:
            raise StateError(
                f"state {self.schema.meta.name!r} of operator {self.store.operator!r} cannot be read as "
                f"{self.schema.meta}: {error}"
            ) from error

    def load(self, entries: CachedEntries, key: Hashable) -> Any:
        """Return the value of a key from the database, or MISSING."""
        hashed = stable_hash(key)
        tail, _ = row_key(key, hashed)
        data = self.store.database.get(entries.prefixes[hashed % self._most] + tail)
        if data is None:
            return MISSING
        if tail[0] == _BUCKET:
            for own, value in decode_bucket(data):
                if KEY_SERIALIZER.loads(own) == key:
                    return self.decode(value)
            return MISSING
        return self.decode(value_of(data))

    def load_all(self, entries: CachedEntries, keys: list[Any]) -> dict[Any, Any]:
        """Return the values of those keys that the database has."""
        plain = plain_tails(keys)
        if plain is None:
            return {key: value for key in keys if (value := self.load(entries, key)) is not MISSING}
        prefixes = entries.prefixes
        places = [prefixes[group] + tail for group, tail in zip(key_groups(keys, self._most), plain, strict=True)]
        found = self.store.database.get_all(places)
        there = [key for key, data in zip(keys, found, strict=True) if data is not None]
        return dict(
            zip(there, self._decode_all([value_of(data) for data in found if data is not None]), strict=True)
        )

    def _decode_all(self, found: list[bytes]) -> list[Any]:
        serializer = self.schema.serializer
        if not self._is_map and type(serializer) is MsgspecSerializer and len(found) > 1:
            with suppress(SerializationError):  # some are pickled
                # Behind the head of an array32 of msgpack the values are one array: one call of the decoder for
                # all of them.
                return serializer.loads_all(b"\xdd" + len(found).to_bytes(4) + b"".join(found))
        return list(map(self.decode, found))

    def write(
        self, entries: CachedEntries, layer: dict[Any, Any]
    ) -> Iterator[Iterable[tuple[bytes, bytes | None]]]:
        """Yield the rows for a layer of a namespace, many at a time. Safe in any thread."""
        items = iter(layer.items())
        buckets: dict[bytes, list[tuple[Any, bytes, bytes | None]]] = {}
        while part := dict(islice(items, _PART)):
            yield self._plain_rows(entries, part) or self._rows(entries, part, buckets)
        # Last, with all changes of a bucket together: its row is read, changed and written as a whole.
        yield ((place, self._bucket(place, changes)) for place, changes in buckets.items())

    def _plain_rows(
        self, entries: CachedEntries, layer: dict[Any, Any]
    ) -> Iterable[tuple[bytes, bytes | None]] | None:
        """Return the rows of plain keys of one type; None if the keys are something else."""
        keys, values = list(layer), list(layer.values())
        tails = None if self._is_map else plain_tails(keys)
        if tails is None:
            return None
        groups = key_groups(keys, self._most)
        start, end = self.store.key_groups
        there = [value is not MISSING for value in values] if _MISSING_ID in map(id, values) else None
        present = values if there is None else list(compress(values, there))
        try:
            data = self.schema.serializer.dumps_all(present) if present else []
        except SerializationError:
            return None  # which one it is, is told where they are looked at one by one
        # The slow way finds the key and names it.
        if not start <= min(groups) <= max(groups) < end:
            return None
        if entries.groups is not None:
            entries.groups.update(groups)
        kept = tails if there is None else list(compress(tails, there))
        self.cache.measure(len(data), sum(map(len, kept)) + sum(map(len, data)))
        prefixes = entries.prefixes
        places = [prefixes[group] + tail for group, tail in zip(groups, tails, strict=True)]
        rows = map(PLAIN.__add__, data)
        return zip(places, rows if there is None else [next(rows) if is_ else None for is_ in there], strict=True)

    def _rows(
        self,
        entries: CachedEntries,
        layer: dict[Any, Any],
        buckets: dict[bytes, list[tuple[Any, bytes, bytes | None]]],
    ) -> Iterator[tuple[bytes, bytes | None]]:
        start, end = self.store.key_groups
        most, prefixes = self._most, entries.prefixes
        encode = self.encode if self._is_map else self._dumps
        groups, count, size = entries.groups, 0, 0
        for key, value in layer.items():
            hashed = stable_hash(key)
            group = hashed % most
            if not start <= group < end:
                raise self.store.foreign(self.schema.meta.name, key, group)
            if groups is not None:
                groups.add(group)
            tail, own = row_key(key, hashed)
            if value is MISSING:
                data = None
            else:
                try:
                    data = encode(value)
                except SerializationError as error:
                    raise self._named(key, error) from error
                count += 1
                size += len(tail) + len(data)
            if tail[:1] == BUCKET:
                assert own is not None
                buckets.setdefault(prefixes[group] + tail, []).append((key, own, data))
            elif data is None:
                yield prefixes[group] + tail, None
            elif own is None:
                yield prefixes[group] + tail, PLAIN + data
            else:
                yield prefixes[group] + tail, with_own_key(own, data)
        self.cache.measure(count, size)

    def _bucket(self, place: bytes, changes: list[tuple[Any, bytes, bytes | None]]) -> bytes | None:
        return changed_bucket(self.store.database.get(place), changes)

    def stored(self, entries: CachedEntries) -> Iterator[tuple[Any, bytes]]:
        """Yield the keys of a namespace in the database with their values."""
        for group in self._groups(entries):
            prefix = entries.prefixes[group]
            for place, data in self.store.database.rows(prefix):
                for own, value in keys_of(place[len(prefix) :], data):
                    yield KEY_SERIALIZER.loads(own), value

    def _groups(self, entries: CachedEntries) -> list[int]:
        """Return the key groups in which the database may have rows of a namespace."""
        # A copy: a snapshot that is being made in another thread may add some.
        return sorted(range(*self.store.key_groups) if entries.groups is None else entries.groups)

    def delete_rows(self, entries: CachedEntries) -> None:
        """Delete a namespace from the database."""
        groups = range(*self.store.key_groups) if entries.groups is None else tuple(entries.groups)
        for group in groups:
            prefix = entries.prefixes[group]
            self.store.database.delete_range(prefix, upper(prefix))
        if self.where is not None:
            self.where.pop(entries.namespace, None)

    def written(self, entries: CachedEntries) -> None:
        """Note that the database has rows of a namespace."""
        entries.stored = entries.known = True
        if self.where is not None and entries.groups is not None:
            if len(self.where) >= _MANY:
                self.where = None
            else:
                self.where[entries.namespace] = entries.groups

    def _stored_namespaces(self) -> list[bytes]:
        if self.where is not None:
            return [name for name, groups in self.where.items() if self._has_rows(name, groups)]
        return list(find_namespaces(self.store, self.index))

    def _has_rows(self, name: bytes, groups: set[int]) -> bool:
        for group in groups:
            prefix = pack_prefix(group, self.index, name)
            found = self.store.database.first_key(prefix)
            if found is not None and found.startswith(prefix):
                return True
        return False

    def migrate(self, reader: Serializer, index: int) -> None:
        """Rewrite all values that another serializer wrote, or that are under another index."""

        # The iterator shows the database as of its first step, so what is written meanwhile is not read again.
        def rows() -> Iterator[tuple[bytes, bytes | None]]:
            for group in range(*self.store.key_groups):
                start = group.to_bytes(2)
                for place, data in self.store.database.rows(start + index.to_bytes(2)):
                    yield start + self.index.to_bytes(2) + place[4:], self._migrated(place, data, reader)
                    if index != self.index:
                        yield place, None

        self.store.database.write(rows())

    def _migrated(self, place: bytes, data: bytes, reader: Serializer) -> bytes:
        if place[PREFIX + int.from_bytes(place[4:8]) :][:1] == BUCKET:
            return encode_bucket([(own, self._again(value, reader)) for own, value in decode_bucket(data)])
        value = value_of(data)
        # The flag and the key's own form stay before the value.
        return data[: len(data) - len(value)] + self._again(value, reader)

    def _again(self, data: bytes, reader: Serializer) -> bytes:
        try:
            if self._is_map:
                return _encode([self._dumps(reader.loads(entry)) for entry in _bins(data)])
            return self._dumps(reader.loads(data))
        except SerializationError as error:
            raise StateError(
                f"state {self.schema.meta.name!r} of operator {self.store.operator!r} cannot be restored as "
                f"{self.schema.meta}: {error}"
            ) from error


def find_namespaces(store: SubtaskStore, index: int) -> dict[bytes, set[int]]:
    """Return the namespaces of a table in the database with their key groups."""
    found: dict[bytes, set[int]] = {}
    for group in range(*store.key_groups):
        start = group.to_bytes(2) + index.to_bytes(2)
        place = store.database.first_key(start)
        while place is not None and place.startswith(start):
            end = PREFIX + int.from_bytes(place[4:8])
            found.setdefault(place[PREFIX:end], set()).add(group)
            # One seek for each namespace and key group, however many rows it has.
            place = store.database.first_key(upper(place[:end]))
    return found
