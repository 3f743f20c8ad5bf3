"""Values of database rows, and their conversion from and to rows of snapshots."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.keygroups import stable_hash
from sluiceway.serializers import KEY_SERIALIZER, Row
from sluiceway.state import StateMeta, TableKind
from sluiceway_rocksdb._row_keys import BUCKET, PREFIX, decode_bucket, encode_bucket, pack_prefix, row_key

__all__ = ["PLAIN", "changed_bucket", "keys_of", "put_row", "rows_in", "value_of", "with_own_key"]

# First byte of a value. PLAIN: the key is in the row's key as it was. _OWN_KEY: the row's key has only its normal
# form (1 for 1.0), and the key itself comes before the value.
PLAIN: Final = b"\x00"
_OWN_KEY: Final = b"\x01"

_encode: Final = msgspec.msgpack.Encoder().encode
_bins: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def with_own_key(own: bytes, data: bytes) -> bytes:
    """Return a value behind its own key, which the row's key does not tell."""
    return b"%b%b%b%b" % (_OWN_KEY, len(own).to_bytes(4), own, data)


def value_of(data: bytes) -> bytes:
    """Return the value of a row that is no bucket."""
    if data[:1] == PLAIN:
        return data[1:]
    return data[5 + int.from_bytes(data[1:5]) :]


def keys_of(tail: bytes, data: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Return the keys of a row in their own form, with their values."""
    if tail[:1] == BUCKET:
        return decode_bucket(data)
    if data[:1] == PLAIN:
        return ((tail, data[1:]),)
    size = int.from_bytes(data[1:5])
    return ((data[5 : 5 + size], data[5 + size :]),)


def changed_bucket(data: bytes | None, changes: Iterable[tuple[Hashable, bytes, bytes | None]]) -> bytes | None:
    """Return a bucket after changes (key, serialized key, new value or None); None if it is empty then."""
    kept = [(KEY_SERIALIZER.loads(own), own, value) for own, value in decode_bucket(data)] if data else []
    for key, own, value in changes:
        at = next((i for i, (known, _, _) in enumerate(kept) if known == key), None)
        if at is not None:
            # The key that came first stays, as in a dict.
            own = kept.pop(at)[1]
        if value is not None:
            kept.append((key, own, value))
    return encode_bucket([(own, value) for _, own, value in kept]) if kept else None


def rows_in(place: bytes, data: bytes, metas: tuple[StateMeta, ...]) -> Iterator[Row]:
    """Yield the rows of a snapshot for a row of the database."""
    table = int.from_bytes(place[2:4])
    end = PREFIX + int.from_bytes(place[4:8])
    is_map = metas[table].kind is TableKind.MAP
    for own, value in keys_of(place[end:], data):
        yield Row(table, place[PREFIX:end], own, _bins(value) if is_map else value)


def put_row(group: int, table: int, meta: StateMeta, row: Row, operator: str) -> tuple[bytes, bytes, bytes]:
    """Return a row of a snapshot as key, own key in a bucket, and value of a database row.

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
        return place, b"", PLAIN + value
    return place, b"", with_own_key(row.key, value)
