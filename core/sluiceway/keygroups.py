"""Key groups: a hash of keys that is the same in every process, and the subtask of each group.

A key is encoded to bytes so that equal keys have equal encodings; the hash is the CRC-32 of these bytes,
put through the 32-bit finaliser of MurmurHash3 so that every bit counts in a modulus. Encodings are part of
what a checkpoint relies on: changing one breaks the restore of every checkpoint taken before.

=============================  ======================================================================
key                            encoding
=============================  ======================================================================
``str``                        ``s`` + UTF-8 (lone surrogates as three bytes)
any finite number              ``n`` + 8 bytes little-endian: its residue modulo 2**61 - 1, for p/q that
                               of p * q**-1; a complex number with an imaginary part: ``c`` + both
infinity                       ``n`` + 8 bytes, a constant for each sign
``bytes``                      ``b`` + the bytes
``None``                       ``0``
``tuple``, also named          ``t`` + for each part 4 bytes little-endian length + its encoding
``frozenset``                  ``f`` + the same for the parts' encodings in sorted order
dataclass, msgspec Struct      ``d`` + the same for the class's qualified name and the compared fields
``Enum``                       ``e`` + the same for the class's qualified name and the name of the member
``datetime``, ``date``, ...    a letter each + 9 bytes signed: microseconds (days for a date)
``UUID``, IP addresses         ``u`` or ``i`` + their bytes
=============================  ======================================================================

Modules are left out of class names on purpose: the same class is ``__main__.Point`` in the process that was
started on its file and ``jobs.Point`` in one that imported it.
"""

from __future__ import annotations

import datetime as dt
import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from functools import cache
from itertools import filterfalse, repeat
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

from sluiceway.errors import UnstableKeyError

__all__ = [
    "KeyGroupRange",
    "SubtaskCache",
    "check_key",
    "encoded",
    "in_key_groups",
    "key_group",
    "key_groups",
    "register_key_type",
    "stable_hash",
    "subtask_for_key_group",
    "unstable_type",
]

T = TypeVar("T")

CACHE_LIMIT: Final = 1 << 16
"""Keys that a cache holds before it starts afresh: what bounds memory where keys never end."""


class KeyGroupRange(NamedTuple):
    """Key groups ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int

    @classmethod
    def of_subtask(cls, subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
        """Return the contiguous range that a subtask owns."""
        start = -(-subtask * max_parallelism // parallelism)
        end = -(-(subtask + 1) * max_parallelism // parallelism)
        return cls(start, end)


def subtask_for_key_group(group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group."""
    return group * parallelism // max_parallelism


def key_group(key: Hashable, max_parallelism: int) -> int:
    """Return the key group of ``key``, from 0 to ``max_parallelism - 1``. Raises UnstableKeyError."""
    return stable_hash(key) % max_parallelism


def key_groups(keys: Sequence[Hashable], max_parallelism: int) -> Sequence[int]:
    """Return the key groups of many keys, in less time than one by one. Raises UnstableKeyError."""
    array = _groups_of_many(keys, max_parallelism)
    if array is None:
        return [stable_hash(key) % max_parallelism for key in keys]
    groups: list[int] = array.tolist()
    return groups


def in_key_groups(keys: Sequence[Hashable], max_parallelism: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Many keys in the order of their key groups, those of one in the order in which they are.

    Returns:
        the index of each, and for each group that has any, in the order of their first keys: the group, and where
        its keys are in that list, from and to. Raises UnstableKeyError.
    """
    array = _groups_of_many(keys, max_parallelism)
    if array is None:
        groups = [stable_hash(key) % max_parallelism for key in keys]
        order = sorted(range(len(keys)), key=groups.__getitem__)
        sizes = sorted(Counter(groups).items())
    else:
        np = _numpy_module()
        order = array.argsort(kind="stable").tolist()
        sizes = [(group, size) for group, size in enumerate(np.bincount(array).tolist()) if size]
    shares, start = [], 0
    for group, size in sizes:
        shares.append((group, start, start + size))
        start += size
    shares.sort(key=lambda share: order[share[1]])
    return order, shares


def _groups_of_many(keys: Sequence[Hashable], max_parallelism: int) -> Any:
    """Return an array with the key groups of keys of one type; None: it is not of use here."""
    kinds = set(map(type, keys))
    if len(keys) < _MANY or len(kinds) > 1 or not kinds <= {str, int} or (np := _numpy_module()) is None:
        return None
    plain: Sequence[Any] = keys
    try:
        if kinds == {str}:
            encoded, start = map(str.encode, plain), _STR
        else:
            encoded, start = (np.array(plain, "<i8") % _MODULUS).view("V8").tolist(), _NUMBER
        h = np.fromiter(map(crc32, encoded, repeat(start)), np.uint32, len(keys))
    except (OverflowError, UnicodeEncodeError):  # of more than 64 bits, lone surrogates
        return None
    h ^= h >> 16
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> 13
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> 16
    return (h % np.uint32(max_parallelism)).astype(np.uint16 if max_parallelism <= 1 << 16 else np.uint32)


class SubtaskCache(dict[Any, int]):
    """``cache[key]`` is the subtask that owns ``key``, computed at most once while it stays in the cache.

    ``cache[key]`` raises UnstableKeyError for a key without a stable hash, TypeError for an unhashable one
    (:func:`stable_hash` then has the message for people). Not for use from several threads.

    Args:
        parallelism: number of subtasks to choose from.
        max_parallelism: number of key groups.
        limit: number of keys at which the cache is emptied and starts afresh.

    Attributes:
        misses: number of keys that were not in the cache; whoever reads it may set it to 0.
    """

    __slots__ = ("limit", "max_parallelism", "misses", "parallelism")

    def __init__(self, parallelism: int, max_parallelism: int, limit: int = CACHE_LIMIT) -> None:
        super().__init__()
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.limit = limit
        self.misses = 0

    def learn(self, keys: Sequence[Any]) -> bool:
        """Compute the subtasks of those keys that are not in the cache, all at once: several times as fast.

        Returns:
            whether that goes with these keys: they are strings, or whole numbers. Raises nothing.
        """
        try:
            new = set(keys)
        except Exception:  # a key without a hash: cache[key] says which
            return False
        if len(self) + len(new) > self.limit:
            if len(new) > self.limit:
                return False
            self.clear()
        computed = list(filterfalse(self.__contains__, new))
        if len(computed) < _MANY:
            return True
        groups = _groups_of_many(computed, self.max_parallelism)
        if groups is None:
            return False
        subtasks = groups.astype("int64") * self.parallelism // self.max_parallelism
        self.update(zip(computed, subtasks.tolist(), strict=True))
        self.misses += len(computed)
        return True

    def __missing__(self, key: Any) -> int:
        self.misses += 1
        group = stable_hash(key) % self.max_parallelism
        if len(self) >= self.limit:
            self.clear()
        subtask = self[key] = subtask_for_key_group(group, self.parallelism, self.max_parallelism)
        return subtask


# ---- the hash ---------------------------------------------------------------------------------------------

_STR: Final = crc32(b"s")
_NUMBER: Final = crc32(b"n")
_MANY: Final = 64


def stable_hash(key: Hashable) -> int:
    """Return a 32-bit hash of ``key`` that is the same in every process, on every platform, in every run.

    Keys that are equal have the same hash, whatever their types: ``1``, ``1.0``, ``True``, ``Decimal(1)``;
    a tuple and an equal named tuple; aware datetimes of one instant.

    Other types take part by a method ``__stable_key__()`` that returns a key of the types in the table above,
    equal for equal objects, or by :func:`register_key_type`.

    Raises:
        UnstableKeyError: the key, or a part of it, is unhashable, NaN, hashed by its address, or hashed by
            code of its own of which nothing is known.
    """
    cls = type(key)
    if cls is str:
        h = crc32(key.encode("utf-8", "surrogatepass"), _STR)  # type: ignore[attr-defined]
    else:
        try:
            h = crc32((_ENCODERS.get(cls) or _encoder(cls))(key))
        except _UnstablePartError as unstable:
            raise unstable.error(key) from None
    h ^= h >> 16
    h = h * 0x85EBCA6B & 0xFFFFFFFF
    h ^= h >> 13
    h = h * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


_ALWAYS_STABLE: Final = frozenset({str, int, bytes, bool, type(None)})


def check_key(key: Hashable) -> None:
    """Raise what :func:`stable_hash` raises for ``key``; without the hash where the type says enough.

    Raises:
        UnstableKeyError: the key has no stable hash.
    """
    kind = type(key)
    if kind in _ALWAYS_STABLE or (kind is tuple and _ALWAYS_STABLE.issuperset(map(type, key))):  # type: ignore[call-overload]
        return
    stable_hash(key)


def register_key_type(cls: type[T], stable_key: Callable[[T], Hashable]) -> None:
    """Make objects of a class usable as keys, where the class cannot be given a ``__stable_key__`` method.

    Must be called in every process of the job, so do it where the module that uses the class is imported.

    Args:
        cls: the class; its subclasses are meant too.
        stable_key: from an object to a key of types that are known already; equal for equal objects.
    """
    _REGISTERED[cls] = stable_key
    _ENCODERS.clear()  # subclasses may have been resolved in another way before


@cache
def _numpy_module() -> Any:
    """Numpy, or None where it is not installed."""
    try:
        import numpy as np
    except ImportError:
        return None
    return np


class _UnstablePartError(Exception):
    """Raised by encoders for the part of a key that has no stable hash."""

    def __init__(self, part: Any, reason: str, instead: str) -> None:
        self.part = part
        self.reason = reason
        self.instead = instead

    def error(self, key: Any) -> UnstableKeyError:
        inside = "" if self.part is key else f", because of its part {_short(self.part)}"
        return UnstableKeyError(
            f"{_short(key)} ({type(key).__qualname__}) cannot be a key{inside}: {self.reason}. {self.instead}"
        )


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


def _short(value: Any) -> str:
    return _REPR.repr(value)


def encoded(key: Hashable) -> bytes:
    """Return the encoding of a key, which is what is hashed. Raises UnstableKeyError as stable_hash() does."""
    try:
        return _encode(key)
    except _UnstablePartError as unstable:
        raise unstable.error(key) from None


# ---- encoders: one per type; equal keys, equal bytes --------------------------------------------------------

_Encoder = Callable[[Any], bytes]

_MODULUS: Final = (1 << 61) - 1  # a prime; chosen here and not taken from sys.hash_info, which differs by build
_INFINITY: Final = b"n\xff\xff\xff\xff\xff\xff\xff\x7f"
_MINUS_INFINITY: Final = b"n\xff\xff\xff\xff\xff\xff\xff\xff"


def _encode(part: Any) -> bytes:
    cls = type(part)
    return (_ENCODERS.get(cls) or _encoder(cls))(part)


def _framed(tag: bytes, parts: Iterable[bytes]) -> bytes:
    pieces = [tag]
    for part in parts:
        pieces += (len(part).to_bytes(4, "little"), part)
    return b"".join(pieces)


def _str(key: str) -> bytes:
    return b"s" + key.encode("utf-8", "surrogatepass")


def _int(key: int) -> bytes:
    return b"n" + (key % _MODULUS).to_bytes(8, "little")


def _ratio(numerator: int, denominator: int) -> bytes:
    if denominator % _MODULUS == 0:  # only a Fraction can do that: no inverse, so leave the denominator out
        return _int(numerator)
    return _int(numerator * pow(denominator, -1, _MODULUS))


def _float(key: float) -> bytes:
    if key.is_integer():
        return _int(int(key))
    if key != key:
        raise _nan(key)
    if key in (float("inf"), float("-inf")):
        return _INFINITY if key > 0 else _MINUS_INFINITY
    return _ratio(*key.as_integer_ratio())


def _decimal(key: Any) -> bytes:
    if key.is_nan():
        raise _nan(key)
    if key.is_infinite():
        return _INFINITY if key > 0 else _MINUS_INFINITY
    sign, digits, exponent = key.as_tuple()
    value = 0
    for digit in digits:
        value = (value * 10 + digit) % _MODULUS
    # By modular power: int(Decimal("1e999999")) would be a number of a million digits.
    value *= pow(10, exponent, _MODULUS)
    return _int(-value if sign else value)


def _complex(key: complex) -> bytes:
    if key.imag == 0:
        return _float(key.real)
    return _framed(b"c", (_float(key.real), _float(key.imag)))


def _nan(key: Any) -> _UnstablePartError:
    return _UnstablePartError(
        key,
        "NaN is not equal to itself, so every record would have a key of its own",
        "Use None for a missing number, or filter such records out before key_by().",
    )


def _tuple(key: tuple[Any, ...]) -> bytes:
    return _framed(b"t", map(_encode, key))


def _frozenset(key: frozenset[Any]) -> bytes:
    return _framed(b"f", sorted(map(_encode, key)))


def _enum(key: Enum) -> bytes:
    # A combination of flags may have no name.
    name = str(key.value) if isinstance(key, Flag) else key.name
    return _framed(b"e", (_str(type(key).__qualname__), _str(name)))


_MICROSECOND: Final = dt.timedelta(microseconds=1)
_MIDNIGHT: Final = dt.datetime(1970, 1, 1)
_MIDNIGHT_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def _signed(tag: bytes, number: int) -> bytes:
    return tag + number.to_bytes(9, "little", signed=True)


def _datetime(key: dt.datetime) -> bytes:
    key = key.replace(fold=0)  # equality within one zone does not look at it
    if key.utcoffset() is None:
        return _signed(b"l", (key.replace(tzinfo=None) - _MIDNIGHT) // _MICROSECOND)
    return _signed(b"z", (key - _MIDNIGHT_UTC) // _MICROSECOND)


def _time(key: dt.time) -> bytes:
    offset = key.replace(fold=0).utcoffset()
    since_midnight = dt.timedelta(0, key.second, key.microsecond, 0, key.minute, key.hour)
    if offset is None:
        return _signed(b"m", since_midnight // _MICROSECOND)
    return _signed(b"o", (since_midnight - offset) // _MICROSECOND)


_BUILTIN: Final[dict[type, _Encoder]] = {
    str: _str,
    int: _int,
    bool: _int,
    float: _float,
    complex: _complex,
    bytes: lambda key: b"b" + key,
    type(None): lambda key: b"0",
    tuple: _tuple,
    frozenset: _frozenset,
    dt.datetime: _datetime,
    dt.date: lambda key: _signed(b"y", key.toordinal()),
    dt.time: _time,
    dt.timedelta: lambda key: _signed(b"r", key // _MICROSECOND),
}

# Types of modules that need not be imported for everybody, by module and name.
_BY_NAME: Final[dict[tuple[str, str], _Encoder]] = {
    ("decimal", "Decimal"): _decimal,
    ("fractions", "Fraction"): lambda key: _ratio(key.numerator, key.denominator),
    ("uuid", "UUID"): lambda key: b"u" + key.bytes,
    ("ipaddress", "IPv4Address"): lambda key: b"i" + key.packed,
    ("ipaddress", "IPv6Address"): lambda key: b"i" + key.packed + (key.scope_id or "").encode(),
}

_REGISTERED: Final[dict[type, Callable[[Any], Hashable]]] = {}
_ENCODERS: Final[dict[type, _Encoder]] = dict(_BUILTIN)


# ---- finding the encoder of a class that is met for the first time -------------------------------------------


def _encoder(cls: type) -> _Encoder:
    """The encoder for ``cls``, kept for next time; for a class without a stable hash, one that says so."""
    encoder = _ENCODERS[cls] = _own_key(cls) or _known_type(cls) or _by_fields(cls) or _refusal(cls)
    return encoder


def _own_key(cls: type) -> _Encoder | None:
    for base in cls.__mro__:
        if (stable_key := _REGISTERED.get(base)) is not None:
            return lambda key: _encode(stable_key(key))
    if (method := getattr(cls, "__stable_key__", None)) is not None:
        return lambda key: _encode(method(key))
    return None


def _known_type(cls: type) -> _Encoder | None:
    if cls.__module__ == "numpy":  # its scalars equal Python's and hash like them
        names = {base.__qualname__ for base in cls.__mro__}
        # timedelta64 calls itself a number; equal ones of different units would differ here.
        return _numpy if names & _NUMPY and "timedelta64" not in names else None
    for base in cls.__mro__:
        encoder = _BUILTIN.get(base) or _BY_NAME.get((base.__module__, base.__qualname__))
        # A subclass with a hash of its own has an equality of its own.
        if encoder is not None and cls.__hash__ is base.__hash__:
            return encoder
    if issubclass(cls, Enum) and cls.__hash__ is Enum.__hash__:
        return _enum
    return None


_NUMPY: Final = frozenset({"number", "bool", "bool_", "str_", "bytes_"})


def _numpy(key: Any) -> bytes:
    item = key.item()
    if type(item) is type(key):  # longdouble: there is no Python number that holds it
        raise _UnstablePartError(key, "its precision differs between platforms", "Use float(key).")
    return _encode(item)


def _by_fields(cls: type) -> _Encoder | None:
    if (config := getattr(cls, "__struct_config__", None)) is not None:  # a msgspec Struct
        own_hash = next(base for base in cls.__mro__ if "__hash__" in vars(base))
        if not (config.frozen and config.eq and own_hash.__module__.startswith("msgspec")):
            return None
        names: tuple[str, ...] = cls.__struct_fields__  # type: ignore[attr-defined]
        head = _str(cls.__qualname__)
        return lambda key: _framed(b"d", (head, *(_encode(getattr(key, name)) for name in names)))
    params = getattr(cls, "__dataclass_params__", None)
    if params is None or not is_dataclass(cls) or not params.frozen or cls.__hash__ in (None, object.__hash__):
        return None
    return _dataclass_encoder(cls)


def _dataclass_encoder(cls: Any) -> _Encoder:
    names = [f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
    head = _str(cls.__qualname__)

    def encode(key: Any) -> bytes:
        values = tuple(getattr(key, name) for name in names)
        encoded = _framed(b"d", (head, *map(_encode, values)))
        # Asked of the hash itself: whether the method was generated cannot be seen.
        if hash(key) != hash(values):
            raise _refused(key)
        return encoded

    return encode


def _refusal(cls: type) -> _Encoder:
    def encode(key: Any) -> bytes:
        raise _refused(key)

    return encode


_INSTEAD: Final[dict[type, str]] = {
    list: "Use tuple(key).",
    bytearray: "Use bytes(key).",
    memoryview: "Use bytes(key).",
    set: "Use frozenset(key).",
    dict: "Use tuple(sorted(key.items())), or the one entry that the records belong together by.",
}

_OWN: Final = (
    "Use a tuple of what makes two of them equal, make the class a frozen dataclass, or give it a method "
    "__stable_key__() that returns such a tuple (sluiceway.keygroups.register_key_type() does it for a class "
    "that is not yours)."
)


def _refused(key: Any) -> _UnstablePartError:
    return _UnstablePartError(key, *_why_refused(type(key)))


def _why_refused(cls: Any) -> tuple[str, str]:
    """Why objects of a class cannot be keys, and what to do instead."""
    name = cls.__qualname__
    if issubclass(cls, (type, FunctionType, BuiltinFunctionType)):
        return "it is hashed by its address", "Use its name: key.__qualname__."
    if (config := getattr(cls, "__struct_config__", None)) is not None and not config.frozen:
        return f"{name} is not hashable", "Make it a Struct with frozen=True."
    if cls.__hash__ is None:
        if is_dataclass(cls):
            instead = "Make it @dataclass(frozen=True)."
        else:
            instead = next((text for known, text in _INSTEAD.items() if issubclass(cls, known)), _OWN)
        return f"{name} is not hashable", instead
    if cls.__module__ == "numpy":
        return "numpy does not hash it the same way everywhere", "Use key.item()."
    if cls.__hash__ is object.__hash__:
        return f"{name} is hashed by its address, which differs in every process", _OWN
    if cls in _INSTEAD:
        return f"{name} has no stable hash", _INSTEAD[cls]
    return f"{name} has a __hash__ of its own, which may differ in every process", _OWN


def unstable_type(cls: Any) -> str | None:
    """Why no object of a class can be a key, and what to do instead; None if some or all can.

    For judging type hints: an object that says for itself what it is may still be refused by
    :func:`stable_hash`.
    """
    if _own_key(cls) or _known_type(cls) or _by_fields(cls):
        return None
    if cls.__hash__ not in (None, object.__hash__):
        return None
    return "{}. {}".format(*_why_refused(cls))
