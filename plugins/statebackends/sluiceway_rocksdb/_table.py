"""One named state: how its values are rows, and which namespaces there are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import msgspec

from sluiceway.errors import CorruptStreamError, SerializationError, StateError
from sluiceway.keygroups import stable_hash
from sluiceway.serializers import KEY_SERIALIZER, Row, Serializer
from sluiceway.state import VOID_NAMESPACE, StateMeta, StateTable, TableKind, TableSchema
from sluiceway_rocksdb._entries import MISSING, CachedEntries, KeyMapping
from sluiceway_rocksdb._keys import (
    BUCKET,
    PREFIX,
    decode_bucket,
    encode_bucket,
    normal_bytes,
    pack_prefix,
    row_key,
    upper,
)

if TYPE_CHECKING:
    from sluiceway_rocksdb._backend import RocksDBKeyedBackend

__all__ = ["RocksDBTable", "put_row", "rows_in"]

_encode: Final = msgspec.msgpack.Encoder().encode
_bins: Final = msgspec.msgpack.Decoder(list[bytes]).decode
_MANY: Final = 100_000
"""So many namespaces are remembered as being in the database; of more than that, nothing is known."""

_BUCKET: Final = BUCKET[0]
_PLAIN: Final = b"\x00"
_OWN_KEY: Final = b"\x01"


class RocksDBTable(StateTable):
    """A table.

    Args:
        backend: whose it is.
        schema: what is in it.
        index: by which its rows go.
        where: by namespace, the key groups in which the database has rows of it; None: that is not known.
    """

    def __init__(
        self,
        backend: RocksDBKeyedBackend,
        schema: TableSchema,
        index: int,
        where: dict[bytes, set[int]] | None,
    ) -> None:
        self.backend = backend
        self.schema = schema
        self.index = index
        self.where = where
        self._is_map = schema.meta.kind is TableKind.MAP
        self._most = backend.max_parallelism
        self._dumps, self._loads = schema.serializer.dumps, schema.serializer.loads
        # Those with something in memory, and those that somebody may have in his hands.
        self.hot: dict[Hashable, CachedEntries] = {}
        self._idle: WeakValueDictionary[Hashable, CachedEntries] = WeakValueDictionary()

    # -- the contract --------------------------------------------------------------------------------------------

    def entries(self, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return self._in(namespace, TableKind.VALUE)

    def mapping(self, key: Hashable, namespace: Hashable = VOID_NAMESPACE) -> MutableMapping[Any, Any]:
        return KeyMapping(self._in(namespace, TableKind.MAP), key)

    def _in(self, namespace: Hashable, kind: TableKind) -> CachedEntries:
        found = self.hot.get(namespace)
        if found is not None and kind is self.schema.meta.kind:
            return found
        meta = self.schema.meta
        if meta.kind is not kind:
            raise StateError(
                f"state {meta.name!r} of operator {self.backend.operator!r} is {meta}: it has no {kind.value}s"
            )
        found = self._idle.get(namespace)
        if found is None:
            name = normal_bytes(namespace)
            self.backend.settle_before(self, name)
            groups = None if self.where is None else self.where.get(name)
            found = CachedEntries(self, namespace, name, self.where is None or groups is not None, groups)
            self._idle[namespace] = found
        return found

    def namespaces(self) -> Iterator[Hashable]:
        self.backend.settle_dropped()
        found = [namespace for namespace, entries in self.hot.items() if entries]
        seen = {entries.namespace for entries in self.hot.values()}
        found += [KEY_SERIALIZER.loads(name) for name in self._stored_namespaces() if name not in seen]
        return iter(found)

    def keys(self, namespace: Hashable = VOID_NAMESPACE) -> Iterator[Any]:
        return iter(list(self._in(namespace, self.schema.meta.kind)))

    def drop(self, namespace: Hashable) -> None:
        entries = self.hot.pop(namespace, None) or self._idle.get(namespace)
        if entries is None:
            entries = self._in(namespace, self.schema.meta.kind)
        self._idle.pop(namespace, None)
        self.backend.drop(entries)

    # -- rows ----------------------------------------------------------------------------------------------------

    def heat(self, entries: CachedEntries) -> None:
        """There is something in memory now."""
        if not entries.dropped:
            self.hot[entries.name] = entries

    def cool(self, entries: CachedEntries) -> None:
        """There is nothing in memory any more."""
        self.hot.pop(entries.name, None)
        self._idle[entries.name] = entries
        entries.check = 0  # so that the backend hears of the next object

    def encode(self, value: Any) -> bytes:
        """A value as the database has it."""
        if self._is_map:
            return _encode([self._dumps(entry) for entry in value.items()])
        return self._dumps(value)

    def encode_of(self, key: Hashable, value: Any) -> bytes:
        """The same. Raises SerializationError, which names the key."""
        try:
            return self.encode(value)
        except SerializationError as error:
            raise self._named(key, error) from error

    def _named(self, key: Hashable, error: SerializationError) -> SerializationError:
        state, operator = self.schema.meta.name, self.backend.operator
        return SerializationError(f"state {state!r} of operator {operator!r}, key {key!r}: {error}")

    def decode(self, data: bytes) -> Any:
        """The value again, an object of its own."""
        try:
            if self._is_map:
                return dict(map(self._loads, _bins(data)))
            return self._loads(data)
        except (SerializationError, msgspec.MsgspecError) as error:
            raise StateError(
                f"state {self.schema.meta.name!r} of operator {self.backend.operator!r} cannot be read as "
                f"{self.schema.meta}: {error}"
            ) from error

    def load(self, entries: CachedEntries, key: Hashable) -> Any:
        """The value of a key in the database, or MISSING."""
        hashed = stable_hash(key)
        tail, _ = row_key(key, hashed)
        data = self.backend.database.get(entries.prefix(hashed % self._most) + tail)
        if data is None:
            return MISSING
        if tail[0] == _BUCKET:
            for own, value in decode_bucket(data):
                if KEY_SERIALIZER.loads(own) == key:
                    return self.decode(value)
            return MISSING
        return self.decode(_value_of(data) if data[0] else data[1:])

    def write(self, entries: CachedEntries, layer: dict[Any, Any]) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows for a layer of a namespace. May run in another thread than the task's."""
        start, end = self.backend.key_groups
        most, prefix = self.backend.max_parallelism, entries.prefix
        encode = self.encode if self._is_map else self._dumps
        groups, count, size = entries.groups, 0, 0
        buckets: dict[bytes, list[tuple[Any, bytes, bytes | None]]] = {}
        for key, value in layer.items():
            hashed = stable_hash(key)
            group = hashed % most
            if not start <= group < end:
                raise self.backend.foreign(self.schema.meta.name, key, group)
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
                buckets.setdefault(prefix(group) + tail, []).append((key, own, data))
            elif data is None:
                yield prefix(group) + tail, None
            elif own is None:
                yield prefix(group) + tail, _PLAIN + data
            else:
                yield prefix(group) + tail, b"%b%b%b%b" % (_OWN_KEY, len(own).to_bytes(4), own, data)
        self.backend.measure(count, size)
        for place, changes in buckets.items():
            yield place, self._bucket(place, changes)

    def _bucket(self, place: bytes, changes: list[tuple[Any, bytes, bytes | None]]) -> bytes | None:
        data = self.backend.database.get(place)
        kept = [(KEY_SERIALIZER.loads(own), own, value) for own, value in decode_bucket(data)] if data else []
        for key, own, value in changes:
            at = next((i for i, (known, _, _) in enumerate(kept) if known == key), None)
            if at is not None:
                own = kept.pop(at)[1]
            if value is not None:
                kept.append((key, own, value))
        return encode_bucket([(own, value) for _, own, value in kept]) if kept else None

    def stored(self, entries: CachedEntries) -> Iterator[tuple[Any, bytes]]:
        """The keys of a namespace in the database, with their values."""
        # A copy: a snapshot that is being made in another thread may add some.
        groups = list(range(*self.backend.key_groups) if entries.groups is None else entries.groups)
        groups.sort()
        for group in groups:
            prefix = entries.prefix(group)
            for place, data in self.backend.database.rows(prefix):
                for own, value in _keys_of(place[len(prefix) :], data):
                    yield KEY_SERIALIZER.loads(own), value

    def delete_rows(self, entries: CachedEntries) -> None:
        """Delete a namespace from the database."""
        groups = range(*self.backend.key_groups) if entries.groups is None else tuple(entries.groups)
        for group in groups:
            prefix = entries.prefix(group)
            self.backend.database.delete_range(prefix, upper(prefix))
        if self.where is not None:
            self.where.pop(entries.namespace, None)

    def written(self, entries: CachedEntries) -> None:
        """The database has rows of a namespace now."""
        entries.stored = True
        if self.where is not None and entries.groups is not None:
            if len(self.where) >= _MANY:
                self.where = None
            else:
                self.where[entries.namespace] = entries.groups

    def _stored_namespaces(self) -> list[bytes]:
        if self.where is not None:
            return [name for name, groups in self.where.items() if self._has_rows(name, groups)]
        return list(find_namespaces(self.backend, self.index))

    def _has_rows(self, name: bytes, groups: set[int]) -> bool:
        for group in groups:
            prefix = pack_prefix(group, self.index, name)
            found = self.backend.database.first_key(prefix)
            if found is not None and found.startswith(prefix):
                return True
        return False

    def migrate(self, reader: Serializer) -> None:
        """Write all values again that another serializer has written."""

        def rows() -> Iterator[tuple[bytes, bytes | None]]:
            for group in range(*self.backend.key_groups):
                start = group.to_bytes(2) + self.index.to_bytes(2)
                for place, data in self.backend.database.rows(start):
                    tail = place[PREFIX + int.from_bytes(place[4:8]) :]
                    if tail[:1] == BUCKET:
                        yield (
                            place,
                            encode_bucket([(own, self._again(v, reader)) for own, v in decode_bucket(data)]),
                        )
                    else:
                        value = _value_of(data)
                        yield place, data[: len(data) - len(value)] + self._again(value, reader)

        self.backend.database.write(rows())

    def _again(self, data: bytes, reader: Serializer) -> bytes:
        try:
            if self._is_map:
                return _encode([self._dumps(reader.loads(entry)) for entry in _bins(data)])
            return self._dumps(reader.loads(data))
        except SerializationError as error:
            raise StateError(
                f"state {self.schema.meta.name!r} of operator {self.backend.operator!r} cannot be restored as "
                f"{self.schema.meta}: {error}"
            ) from error


def find_namespaces(backend: RocksDBKeyedBackend, index: int) -> dict[bytes, set[int]]:
    """The namespaces of a table in the database, with their key groups."""
    found: dict[bytes, set[int]] = {}
    for group in range(*backend.key_groups):
        start = group.to_bytes(2) + index.to_bytes(2)
        place = backend.database.first_key(start)
        while place is not None and place.startswith(start):
            end = PREFIX + int.from_bytes(place[4:8])
            found.setdefault(place[PREFIX:end], set()).add(group)
            place = backend.database.first_key(upper(place[:end]))
    return found


def _value_of(data: bytes) -> bytes:
    if data[:1] == _PLAIN:
        return data[1:]
    return data[5 + int.from_bytes(data[1:5]) :]


def _keys_of(tail: bytes, data: bytes) -> Iterable[tuple[bytes, bytes]]:
    """The keys of a row as they are, with their values."""
    if tail[:1] == BUCKET:
        return decode_bucket(data)
    if data[:1] == _PLAIN:
        return ((tail, data[1:]),)
    size = int.from_bytes(data[1:5])
    return ((data[5 : 5 + size], data[5 + size :]),)


def rows_in(place: bytes, data: bytes, metas: tuple[StateMeta, ...]) -> Iterator[Row]:
    """A row of the database as rows of a snapshot."""
    table = int.from_bytes(place[2:4])
    end = PREFIX + int.from_bytes(place[4:8])
    is_map = metas[table].kind is TableKind.MAP
    for own, value in _keys_of(place[end:], data):
        yield Row(table, place[PREFIX:end], own, _bins(value) if is_map else value)


def put_row(group: int, table: int, meta: StateMeta, row: Row, operator: str) -> tuple[bytes, bytes, bytes]:
    """A row of a snapshot as one of the database: key, what stands before the value or is the key, the value.

    Raises:
        CorruptStreamError: it is of the other kind of table.
    """
    if isinstance(row.value, list) is not (meta.kind is TableKind.MAP):
        raise CorruptStreamError(f"a row of state {meta.name!r} of operator {operator!r} is of the other kind")
    value = _encode(row.value) if isinstance(row.value, list) else row.value
    key = KEY_SERIALIZER.loads(row.key)
    tail, own = row_key(key, stable_hash(key))
    place = pack_prefix(group, table, row.namespace) + tail
    if tail[:1] == BUCKET:
        return place, row.key, value
    if own is None:
        return place, b"", _PLAIN + value
    return place, b"", b"%b%b%b%b" % (_OWN_KEY, len(row.key).to_bytes(4), row.key, value)
