"""Values to bytes and back, for state and for the wire.

A serializer belongs to a type: ``serializer_for(Order)`` chooses the first known format that keeps values of
that type exactly. Formats of plugins are asked first, then msgspec (for types that say what is in them), then
pickle, which takes anything. Snapshots name the serializer and its version, so that they can be read, or be
refused with a reason, later.
"""

from __future__ import annotations

import datetime as dt
import pickle
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from sluiceway.errors import CorruptStreamError, SerializationError, choose
from sluiceway.types import type_name

__all__ = [
    "KEY_SERIALIZER",
    "KeySerializer",
    "MsgspecSerializer",
    "PickleSerializer",
    "Row",
    "Serializer",
    "decode_rows",
    "encode_rows",
    "register_serializer",
    "serializer_by_name",
    "serializer_for",
]


class Serializer(ABC):
    """Turns values of one type into bytes and back, keeping their types exactly.

    Instances are stateless: they may be shared, and called from any thread.

    Attributes:
        name: what snapshots and plans call the format; unique.
        version: of the format; higher when the bytes for a value change.
    """

    name: str
    version: int = 1

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """The bytes of ``value``. Raises SerializationError."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """The value that :meth:`dumps` was given. Raises SerializationError for anything else."""

    def for_type(self, type_hint: Any) -> Serializer | None:
        """A serializer of this format for values of a type, or None where it would not keep them exactly.

        Asked of the object that was registered. The default takes any type.
        """
        return self

    def reader_for(self, version: int) -> Serializer | None:
        """What reads values that an older or newer ``version`` wrote, or None where nothing can."""
        return self if version == self.version else None

    def __repr__(self) -> str:
        return f"<serializer {self.name} {self.version}>"


class PickleSerializer(Serializer):
    """Anything that pickle takes. Never to be fed bytes from a peer that has not proved who it is."""

    name = "pickle"

    def dumps(self, value: Any) -> bytes:
        """Pickle ``value``, in a protocol that every supported Python reads."""
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:
            if str(error).startswith("Can't pickle <class "):
                by_value = _with_its_classes(value)
                if by_value is not None:
                    return by_value
            kind = type_name(type(value))
            raise SerializationError(
                f"a value of type {kind} cannot be pickled: {error}. Keep plain data, or give the class "
                "__getstate__() and define it at the top of a module that can be imported"
            ) from error

    def loads(self, data: bytes) -> Any:
        """Unpickle."""
        try:
            return pickle.loads(data)
        except Exception as error:
            raise SerializationError(f"{len(data)} bytes cannot be unpickled: {error!r}") from error


def _with_its_classes(value: Any) -> bytes | None:
    """Pickle together with classes that cannot be imported, as those of a script in another process; or None."""
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(value, protocol=5))
    except Exception:  # the error of plain pickle says it better
        return None


_PICKLE: Final = PickleSerializer()
_PICKLED: Final = b"\xc1"  # the one byte that msgpack never begins with


class MsgspecSerializer(Serializer):
    """Values of a declared type as msgpack: compact, fast, and readable without the job's code.

    A value that is not exactly of the declared type, or that msgpack cannot hold as it is (an integer of more
    than 64 bits, a datetime with a zone other than UTC), is pickled, behind a byte that says so: nothing that
    was put in comes out changed.

    Args:
        type_hint: the type of the values; by default the JSON-like ones: None, bool, int, float, str, bytes,
            and lists and dicts of these.

    Raises:
        TypeError: msgpack would not keep values of this type.
    """

    name = "msgspec"

    def __init__(self, type_hint: Any = Any) -> None:
        exact = _exactly(type_hint)
        if exact is None:
            raise TypeError(f"msgpack does not keep values of type {type_name(type_hint)} as they are")
        self._is_exact = _predicate(exact)
        self._decode = msgspec.msgpack.Decoder(type_hint).decode
        self._type_hint = type_hint

    def dumps(self, value: Any) -> bytes:
        """Encode ``value``."""
        try:
            if self._is_exact(value):
                return _encode_msgpack(value)
        except (OverflowError, UnicodeEncodeError, RecursionError, AttributeError, TypeError):
            pass
        return _PICKLED + _PICKLE.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Decode, checking against the declared type."""
        if data[:1] == _PICKLED:
            return _PICKLE.loads(data[1:])
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            wanted = type_name(self._type_hint)
            raise SerializationError(f"{len(data)} bytes cannot be read as {wanted}: {error}") from error

    def for_type(self, type_hint: Any) -> Serializer | None:
        """A serializer for ``type_hint``, if it says what is in it and msgpack keeps all of that."""
        if type_hint is None or type_hint is Any or type_hint is object:
            return None
        try:
            return MsgspecSerializer(type_hint)
        except Exception:  # hints are the user's: whatever they do, there still is pickle
            return None


class KeySerializer(Serializer):
    """Keys and namespaces, of which no type is declared: numbers, strings, bytes, None and tuples of these.

    Anything else is pickled, behind a byte that says so.
    """

    name = "key"

    def dumps(self, value: Any) -> bytes:
        """Encode a key."""
        try:
            if _is_plain_key(value):
                return _encode_msgpack(value)
        except (OverflowError, UnicodeEncodeError, RecursionError):
            pass
        return _PICKLED + _PICKLE.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Decode a key."""
        if data[:1] == _PICKLED:
            return _PICKLE.loads(data[1:])
        try:
            value = msgspec.msgpack.decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            raise SerializationError(f"{len(data)} bytes cannot be read as a key: {error}") from error
        return _as_tuples(value) if type(value) is list else value


KEY_SERIALIZER: Final = KeySerializer()
"""What every backend uses for the keys and namespaces in snapshots."""


# ---- which serializer ---------------------------------------------------------------------------------------

_FORMATS: Final[dict[str, Serializer]] = {}  # asked in this order; msgspec and pickle come after all of them


def register_serializer(serializer: Serializer) -> None:
    """Have a format asked before the built-in ones. Call it in every process, before a job is made.

    Raises:
        ValueError: another format goes by that name.
    """
    known = _known_formats().get(serializer.name, serializer)
    if type(known) is not type(serializer):
        raise ValueError(f"there is another serializer {serializer.name!r} already: {type(known).__qualname__}")
    if serializer.name not in _BUILTIN:
        _FORMATS[serializer.name] = serializer


def serializer_for(type_hint: Any) -> Serializer:
    """The serializer for values of a declared type; None, Any and object declare nothing and are pickled."""
    for known in _known_formats().values():
        if (serializer := known.for_type(type_hint)) is not None:
            return serializer
    raise AssertionError("pickle takes everything")


def serializer_by_name(name: str) -> Serializer:
    """The registered format; ``for_type`` makes a serializer of it. Raises UnknownNameError."""
    known = _known_formats()
    if name not in known:
        raise choose("serializer", name, known)
    return known[name]


def _known_formats() -> dict[str, Serializer]:
    return {**_FORMATS, **_BUILTIN}


# ---- rows of a snapshot -------------------------------------------------------------------------------------


class Row(NamedTuple):
    """The state of one key in one namespace of one table.

    Attributes:
        table: index into :attr:`KeyedSnapshot.tables <sluiceway.state.KeyedSnapshot>`.
        namespace: encoded by :data:`KEY_SERIALIZER`.
        key: encoded by :data:`KEY_SERIALIZER`.
        value: by the table's serializer: for a value table the value; for a map table a list with a pair
            ``(key, value)`` for each entry, in order.
    """

    table: int
    namespace: bytes
    key: bytes
    value: bytes | list[bytes]


_MAGIC: Final = b"SWR\x01"  # the last byte is the version of the layout
_decode_row_list = msgspec.msgpack.Decoder(list[Row]).decode


def encode_rows(rows: Iterable[Row]) -> bytes:
    """The rows of one key group as bytes.

    Layout: ``SWR`` and a byte for the version, 1; the CRC-32 of what follows, 4 bytes little-endian; a msgpack
    array of rows, each an array of table (int), namespace (bin), key (bin) and value (bin, or array of bin).
    """
    body = _encode_msgpack(rows if isinstance(rows, list) else list(rows))
    return b"".join((_MAGIC, crc32(body).to_bytes(4, "little"), body))


def decode_rows(data: bytes) -> list[Row]:
    """The rows that :func:`encode_rows` was given. Raises CorruptStreamError."""
    if data[:3] != _MAGIC[:3] or len(data) < 8:
        raise CorruptStreamError(f"these {len(data)} bytes are no state rows: they begin with {data[:4]!r}")
    if data[3:4] != _MAGIC[3:]:
        raise CorruptStreamError(f"state rows of layout {data[3]} cannot be read: this version knows layout 1")
    body = memoryview(data)[8:]
    written, found = int.from_bytes(data[4:8], "little"), crc32(body)
    if written != found:
        raise CorruptStreamError(
            f"state rows are damaged: checksum {found:08x} of {len(body)} bytes, {written:08x} was written"
        )
    try:
        return _decode_row_list(body)
    except msgspec.MsgspecError as error:  # a writer's mistake: the checksum is right
        raise CorruptStreamError(f"state rows are not what their layout says: {error}") from error


# ---- what msgpack keeps exactly ------------------------------------------------------------------------------
#
# A check is a set of types, where looking at the type is enough, or a predicate. Sets are what makes long lists
# of scalars cheap to check.

_Check = frozenset[type] | Callable[[Any], bool]

_encode_msgpack = msgspec.msgpack.Encoder().encode
_JSON_SCALARS: Final = frozenset({NoneType, bool, int, float, str, bytes})


def _predicate(check: _Check) -> Callable[[Any], bool]:
    if isinstance(check, frozenset):
        return lambda value: type(value) in check
    return check


def _every(check: _Check) -> Callable[[Iterable[Any]], bool]:
    if isinstance(check, frozenset):
        return lambda values: check.issuperset(map(type, values))
    return lambda values: all(map(check, values))


def _is_json_like(value: Any) -> bool:
    cls = type(value)
    if cls in _JSON_SCALARS:
        return True
    if cls is list:
        return all(map(_is_json_like, value))
    return cls is dict and _JSON_SCALARS.issuperset(map(type, value)) and all(map(_is_json_like, value.values()))


def _is_plain_key(value: Any) -> bool:
    cls = type(value)
    return cls in _JSON_SCALARS or (cls is tuple and all(map(_is_plain_key, value)))


def _as_tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple([_as_tuples(part) if type(part) is list else part for part in value])


def _exactly(hint: Any, outer: tuple[Any, ...] = ()) -> _Check | None:
    """How to see that a value of type ``hint`` survives msgpack unchanged; None if that cannot be said."""
    if hint is Any or hint is object:
        return _is_json_like
    if hint is None:
        return frozenset({NoneType})
    if isinstance(hint, typing.NewType):
        return _exactly(hint.__supertype__, outer)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        return _any_of([_exactly(arg, outer) for arg in args])
    if origin is typing.Literal:
        allowed = {(type(arg), arg) for arg in args}
        return lambda value: type(value) in (str, int, NoneType) and (type(value), value) in allowed
    kind = origin or hint
    if kind in (list, set, frozenset, tuple, dict):
        return _container(kind, args, outer)
    if not isinstance(hint, type) or hint in outer:  # a type within itself: not worth the trouble
        return None
    return _class(hint, (*outer, hint))


def _any_of(checks: list[_Check | None]) -> _Check | None:
    known = [check for check in checks if check is not None]
    if len(known) < len(checks):
        return None
    types = frozenset[type]().union(*(check for check in known if isinstance(check, frozenset)))
    predicates = [check for check in known if not isinstance(check, frozenset)]
    if not predicates:
        return types
    return lambda value: type(value) in types or any(check(value) for check in predicates)


def _container(kind: Any, args: tuple[Any, ...], outer: tuple[Any, ...]) -> _Check | None:
    if kind is tuple and args and args[-1] is not Ellipsis:
        return _row_of(tuple, args, outer)
    if kind is dict:
        hints: tuple[Any, ...] = args or (Any, Any)
        keys, values = _exactly(hints[0], outer), _exactly(hints[1], outer)
        if keys is None or values is None:
            return None
        every_key, every_value = _every(keys), _every(values)
        return lambda value: type(value) is dict and every_key(value) and every_value(value.values())
    if kind is tuple and not args:
        return None  # a bare ``tuple`` and ``tuple[()]`` look alike
    element = _exactly(args[0] if args else Any, outer)
    if element is None:
        return None
    every = _every(element)
    return lambda value: type(value) is kind and every(value)


def _row_of(cls: Any, hints: Iterable[Any], outer: tuple[Any, ...]) -> _Check | None:
    checks = [_exactly(hint, outer) for hint in hints]
    if None in checks:
        return None
    predicates = [_predicate(check) for check in checks if check is not None]

    def check(value: Any) -> bool:
        return (
            type(value) is cls
            and len(value) == len(predicates)
            and all(predicate(part) for predicate, part in zip(predicates, value, strict=True))
        )

    return check


def _class(cls: Any, outer: tuple[Any, ...]) -> _Check | None:
    module = cls.__module__
    if cls in _JSON_SCALARS or cls in (NoneType, dt.date, dt.timedelta):
        return frozenset({cls})
    if (module, cls.__qualname__) in (("decimal", "Decimal"), ("uuid", "UUID")):
        return frozenset({cls})
    if cls is dt.datetime or cls is dt.time:
        return lambda value: type(value) is cls and value.tzinfo in (None, dt.UTC) and not value.fold
    if issubclass(cls, Enum):
        kinds = {type(member.value) for member in cls}
        return frozenset({cls}) if kinds in ({int}, {str}) and not issubclass(cls, Flag) else None
    if issubclass(cls, tuple):
        hints = typing.get_type_hints(cls)
        names = getattr(cls, "_fields", ())
        if cls.__bases__ != (tuple,) or set(names) != set(hints):
            return None
        return _row_of(cls, [hints[name] for name in names], outer)
    if hasattr(cls, "__post_init__") or cls.__reduce_ex__ is not object.__reduce_ex__:
        return None  # making one again is more than filling in its fields
    if issubclass(cls, msgspec.Struct):
        simple = cls.__reduce__ is msgspec.Struct.__reduce__ and not getattr(cls, "__parameters__", ())
        return _fields(cls, cls.__struct_fields__, outer) if simple else None
    if is_dataclass(cls) and _is_simple_dataclass(cls):
        return _fields(cls, tuple(f.name for f in fields(cls)), outer)
    return None


def _is_simple_dataclass(cls: Any) -> bool:
    return (
        cls.__reduce__ is object.__reduce__
        and all(is_dataclass(base) for base in cls.__mro__[:-1])
        and all(f.init for f in fields(cls))
    )


def _fields(cls: Any, names: tuple[str, ...], outer: tuple[Any, ...]) -> _Check | None:
    hints = typing.get_type_hints(cls)
    checks = [(name, _exactly(hints[name], outer)) for name in names]
    if any(check is None for _, check in checks):
        return None
    predicates = [(name, _predicate(check)) for name, check in checks if check is not None]

    has_dict = cls.__dictoffset__ != 0 and is_dataclass(cls)

    def check(value: Any) -> bool:
        if type(value) is not cls or (has_dict and len(vars(value)) != len(names)):
            return False  # attributes besides the fields would be lost
        return all(predicate(getattr(value, name)) for name, predicate in predicates)

    return check


_BUILTIN: Final[dict[str, Serializer]] = {"msgspec": MsgspecSerializer(), "pickle": _PICKLE}
