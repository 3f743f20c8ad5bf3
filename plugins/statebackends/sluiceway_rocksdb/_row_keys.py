"""Keys of rows in the database.

A row's key is: key group (2 bytes), table (2 bytes), length of the namespace (4 bytes), namespace, key; numbers
with the highest byte first, so that rows of a key group, of a table in it, and of a namespace in that are
neighbours.

Equal keys must meet in one row, whatever their types. Plain ones (text, bytes, numbers, None, scalars of numpy
that equal one of these, tuples of them) are brought into one form. Of others there is only the hash: their rows
are buckets, of all keys with that hash.
"""

from __future__ import annotations

from collections.abc import Hashable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import msgspec

from sluiceway.errors import CorruptStreamError
from sluiceway.serializers import KEY_SERIALIZER

__all__ = [
    "BUCKET",
    "PREFIX",
    "RowKey",
    "decode_bucket",
    "encode_bucket",
    "normal_bytes",
    "normal_namespace",
    "pack_prefix",
    "plain_tails",
    "row_key",
    "upper",
]

BUCKET: Final = b"\xc1"  # the one byte that msgpack never begins with
PREFIX: Final = 8

_encode: Final = msgspec.msgpack.Encoder().encode
_OTHER: Final = object()
_SMALL: Final = 2**63
_PLAIN: Final = (str, bytes, int, float, complex, Decimal, Fraction, tuple)
_HASHES: Final = frozenset(cls.__hash__ for cls in _PLAIN)
_LIKE_PYTHON: Final = "biufcSU"
"""Kinds of numpy's scalars that equal numbers, texts and bytes of Python."""

RowKey = tuple[bytes, bytes | None]
"""Bytes behind the prefix; and the key as it is, where that does not say it."""


def pack_prefix(group: int, table: int, namespace: bytes) -> bytes:
    """Return the prefix of the row keys of a namespace in a key group."""
    return b"%b%b%b%b" % (group.to_bytes(2), table.to_bytes(2), len(namespace).to_bytes(4), namespace)


def upper(prefix: bytes) -> bytes:
    """Return the least key that is greater than all that begin with ``prefix``."""
    # No overflow: a prefix begins with a key group, of which there are at most 2**15.
    return (int.from_bytes(prefix) + 1).to_bytes(len(prefix))


def row_key(key: Hashable, hashed: int) -> RowKey:
    """Return the part of a row's key for a key with that stable hash."""
    cls = type(key)
    if cls is str or cls is bytes or key is None or (cls is int and -_SMALL <= key < _SMALL):  # type: ignore[operator]
        try:
            return _encode(key), None
        except UnicodeEncodeError:  # half a surrogate pair
            return BUCKET + hashed.to_bytes(4), KEY_SERIALIZER.dumps(key)
    plain = normal(key)
    if plain is _OTHER:
        return BUCKET + hashed.to_bytes(4), KEY_SERIALIZER.dumps(key)
    data = _encode(plain)
    own = KEY_SERIALIZER.dumps(key)
    return data, None if own == data else own


def plain_tails(keys: list[Any]) -> list[bytes] | None:
    """Return the :func:`row_key` of each of many keys that are all texts or all integers, else None."""
    kinds = set(map(type, keys))
    if kinds == {str} or (kinds == {int} and max(keys) < _SMALL):
        try:
            return list(map(_encode, keys))
        except (UnicodeEncodeError, OverflowError):
            pass
    return None


def normal(key: Any) -> Any:
    """Return the form that all keys equal to this one share; ``_OTHER`` if none is known."""
    # Scalars of numpy equal Python's, mostly without being of their classes. Times do not: an item may be an int.
    if type(key).__module__ == "numpy" and hasattr(key, "dtype") and key.dtype.kind in _LIKE_PYTHON:
        key = key.item()
    # A subclass with a hash of its own may have an equality of its own.
    if isinstance(key, _PLAIN) and type(key).__hash__ not in _HASHES:
        return _OTHER
    if isinstance(key, str):
        try:
            key.encode()
        except UnicodeEncodeError:
            return _OTHER
        return str(key) if type(key) is str else str.__str__(key)
    if key is None or isinstance(key, bytes):
        return key if key is None else bytes(key)
    if isinstance(key, tuple):
        parts = [normal(part) for part in key]
        return _OTHER if any(part is _OTHER for part in parts) else tuple(parts)
    if isinstance(key, _PLAIN) or hasattr(key, "__index__"):
        return _number(key)
    return _OTHER


def normal_bytes(namespace: Hashable) -> bytes:
    """Return a namespace as the database has it: the same bytes for equal ones, as far as they are plain."""
    plain = normal(namespace)
    return KEY_SERIALIZER.dumps(namespace if plain is _OTHER else plain)


def normal_namespace(data: bytes) -> bytes:
    """Return :func:`normal_bytes` of an encoded namespace, which may be that of an equal one of another type."""
    return data if KEY_SERIALIZER.is_pickled(data) else normal_bytes(KEY_SERIALIZER.loads(data))


def _number(key: Any) -> Any:
    if isinstance(key, complex):
        if key.imag:
            return _OTHER
        key = key.real
    # int first, the form of 1, 1.0, True and Decimal(1). Integers that msgpack lacks become the float that equals
    # them, if one does.
    for kind in (int, float):
        try:
            found = kind(key)
            if found == key and (kind is float or -_SMALL <= found < _SMALL):
                return found
        except (TypeError, ValueError, OverflowError):
            continue
    return _OTHER


def encode_bucket(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Return the value of a bucket of keys and values."""
    return _encode(entries)


_bucket: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])


def decode_bucket(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of a bucket. Raises CorruptStreamError."""
    try:
        return _bucket.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptStreamError(f"a bucket of {len(data)} bytes cannot be read: {error}") from error
