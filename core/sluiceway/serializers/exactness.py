"""Checks of whether msgpack keeps values of a type exactly.

A check is a set of types, where a test of the type is enough, or a function. Both judge many values at once,
field by field, so that the interpreter does next to nothing per value.
"""

from __future__ import annotations

import datetime as dt
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum, Flag
from itertools import chain
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Final
from uuid import UUID, SafeUUID

import msgspec

from sluiceway.errors import SerializationError
from sluiceway.serializers.models import is_pydantic, is_simple_model
from sluiceway.types import type_name, unaliased

__all__ = ["JSON_SCALARS", "Every", "every_exact", "is_plain_key"]

Every = Callable[[Collection[Any]], bool]
"""Check whether all of these values survive. May raise AttributeError for a value that lacks a field."""

_Check = frozenset[type] | Every

JSON_SCALARS: Final = frozenset({NoneType, bool, int, float, str, bytes})

_LIMITS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")
_BARE: Final[Mapping[Any, type]] = {list: list, set: list, frozenset: list, tuple: list, dict: dict}
"""Types of collections as msgpack has them, whatever is in them."""

_WITH_MODELS: Final = object()


def every_exact(hint: Any, *, models: bool = False) -> Every | None:
    """Return a check of whether values of type ``hint`` survive msgpack unchanged; None if that cannot be known.

    Args:
        hint: the type.
        models: True if the writer and reader of the values support pydantic models.
    """
    check = _exactly(hint, (_WITH_MODELS,) if models else ())
    return None if check is None else _every(check)


def is_plain_key(value: Any) -> bool:
    """Return whether a key is a scalar, or a tuple of plain keys."""
    cls = type(value)
    return cls in JSON_SCALARS or (cls is tuple and all(map(is_plain_key, value)))


def _every(check: _Check) -> Every:
    if isinstance(check, frozenset):
        return lambda values: check.issuperset(map(type, values))
    return check


def _every_in(check: _Check) -> Callable[[Iterable[Iterable[Any]]], bool]:
    """Return the check of the content of each of several containers."""
    if isinstance(check, frozenset):
        return lambda containers: check.issuperset(map(type, chain.from_iterable(containers)))
    return lambda containers: check(list(chain.from_iterable(containers)))


def _is_json_like(value: Any) -> bool:
    cls = type(value)
    if cls in JSON_SCALARS:
        return True
    if cls is list:
        return all(map(_is_json_like, value))
    return cls is dict and JSON_SCALARS.issuperset(map(type, value)) and all(map(_is_json_like, value.values()))


def _exactly(hint: Any, outer: tuple[Any, ...] = ()) -> _Check | None:
    if hint is Any or hint is object:
        return lambda values: all(map(_is_json_like, values))
    if hint is None:
        return frozenset({NoneType})
    if (plain := unaliased(hint)) is not hint:
        return None if hint in outer else _exactly(plain, (*outer, hint))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _annotated(args[0], args[1:], outer)
    if origin in (typing.Union, UnionType):
        return _any_of([_exactly(arg, outer) for arg in args])
    if origin is typing.Literal:
        return _literal(args)
    kind = origin or hint
    if kind in (list, set, frozenset, tuple, dict):
        return _container(kind, args, outer)
    if not isinstance(hint, type) or hint in outer:  # a type within itself: not worth the trouble
        return None
    return _class(hint, (*outer, hint))


def _literal(args: tuple[Any, ...]) -> _Check:
    plain = frozenset({str, int, NoneType})
    # With their types, as 1 equals True.
    allowed = {(type(arg), arg) for arg in args}
    return lambda values: (
        plain.issuperset(map(type, values)) and allowed.issuperset(zip(map(type, values), values, strict=True))
    )


def _annotated(plain: Any, extras: tuple[Any, ...], outer: tuple[Any, ...]) -> _Check | None:
    check = _exactly(plain, outer)
    limits = [extra for extra in extras if isinstance(extra, msgspec.Meta) and _is_limit(extra)]
    if check is None or not limits:
        return check
    # Decoders refuse what is beyond the limits, constructors do not: such values exist, and cannot be read back.
    bare: Any = _BARE.get(typing.get_origin(plain) or plain, plain)
    read = msgspec.msgpack.Decoder(list[Annotated[bare, *limits]]).decode
    write, every_plain = msgspec.msgpack.Encoder().encode, _every(check)

    def every(values: Collection[Any]) -> bool:
        if not every_plain(values):
            return False
        try:
            read(write(list(values)))
        except msgspec.ValidationError:
            return False
        return True

    return every


def _is_limit(meta: msgspec.Meta) -> bool:
    return any(getattr(meta, name) is not None for name in _LIMITS)


def _any_of(checks: list[_Check | None]) -> _Check | None:
    known = [check for check in checks if check is not None]
    if len(known) < len(checks):
        return None
    types = frozenset[type]().union(*(check for check in known if isinstance(check, frozenset)))
    others = [check for check in known if not isinstance(check, frozenset)]
    if not others:
        return types

    def every(values: Collection[Any]) -> bool:
        rest = [value for value in values if type(value) not in types]
        if len(others) == 1:
            return others[0](rest)
        return all(any(check((value,)) for check in others) for value in rest)

    return every


def _container(kind: Any, args: tuple[Any, ...], outer: tuple[Any, ...]) -> _Check | None:
    if kind is tuple and args and args[-1] is not Ellipsis:
        return _row_of(tuple, args, outer)
    only = {kind}
    if kind is dict:
        hints: tuple[Any, ...] = args or (Any, Any)
        keys, inside = _exactly(hints[0], outer), _exactly(hints[1], outer)
        if keys is None or inside is None:
            return None
        every_key, every_value = _every_in(keys), _every_in(inside)
        return lambda values: (
            only.issuperset(map(type, values)) and every_key(values) and every_value(map(dict.values, values))
        )
    if kind is tuple and not args:
        return None  # a bare ``tuple`` and ``tuple[()]`` look alike
    element = _exactly(args[0] if args else Any, outer)
    if element is None:
        return None
    every = _every_in(element)
    return lambda values: only.issuperset(map(type, values)) and every(values)


def _row_of(cls: Any, hints: Iterable[Any], outer: tuple[Any, ...]) -> _Check | None:
    checks = [_exactly(hint, outer) for hint in hints]
    if None in checks:
        return None
    columns = [_every(check) for check in checks if check is not None]
    types, lengths = {cls}, {len(columns)}

    def every(values: Collection[Any]) -> bool:
        if not types.issuperset(map(type, values)) or not lengths.issuperset(map(len, values)):
            return False
        # Not strict: without values there are no columns.
        return all(check(column) for check, column in zip(columns, zip(*values, strict=True), strict=False))

    return every


def _class(cls: Any, outer: tuple[Any, ...]) -> _Check | None:
    if cls in JSON_SCALARS or cls in (NoneType, dt.date, dt.timedelta):
        return frozenset({cls})
    if cls is Decimal:
        return frozenset({cls})
    if cls is UUID:
        # What is known of how one was made is no part of what msgpack writes.
        safe, unknown, types = attrgetter("is_safe"), {SafeUUID.unknown}, {cls}
        return lambda values: types.issuperset(map(type, values)) and unknown.issuperset(map(safe, values))
    if cls is dt.datetime or cls is dt.time:
        return _clock_times(cls)
    if issubclass(cls, Enum):
        kinds = {type(member.value) for member in cls}
        return frozenset({cls}) if kinds in ({int}, {str}) and not issubclass(cls, Flag) else None
    if issubclass(cls, tuple):
        hints = typing.get_type_hints(cls, include_extras=True)
        names = getattr(cls, "_fields", ())
        if cls.__bases__ != (tuple,) or set(names) != set(hints):
            return None
        return _row_of(cls, [hints[name] for name in names], outer)
    if is_pydantic(cls):
        return _model(cls, outer) if _WITH_MODELS in outer and is_simple_model(cls) else None
    if hasattr(cls, "__post_init__") or cls.__reduce_ex__ is not object.__reduce_ex__:
        return None  # making one again is more than filling in its fields
    if issubclass(cls, msgspec.Struct):
        simple = cls.__reduce__ is msgspec.Struct.__reduce__ and not getattr(cls, "__parameters__", ())
        return _struct(cls, outer) if simple else None
    if is_dataclass(cls) and _is_simple_dataclass(cls):
        return _fields(cls, tuple(f.name for f in fields(cls)), outer)
    return None


def _clock_times(cls: Any) -> _Check:
    zone, fold, types = attrgetter("tzinfo"), attrgetter("fold"), {cls}
    # By identity: a zone of the same offset under another name equals UTC.
    zones, folds = {id(None), id(dt.UTC)}, {0}
    return lambda values: (
        types.issuperset(map(type, values))
        and zones.issuperset(map(id, map(zone, values)))
        and folds.issuperset(map(fold, values))
    )


def _struct(cls: Any, outer: tuple[Any, ...]) -> _Check | None:
    every = _fields(cls, cls.__struct_fields__, outer)
    if every is None:
        return None
    if cls.__struct_config__.omit_defaults and not all(f.required for f in msgspec.structs.fields(cls)):
        return lambda values: not values  # a field that is not written would take another default later
    return _without_attributes(cls, _every(every)) if cls.__dictoffset__ else every


def _without_attributes(cls: Any, every: Every) -> Every:
    """Return a check of structs that refuses attributes besides the fields: pickle would lose them, too.

    Those that a descriptor of the class keeps, as ``functools.cached_property``, are made again when they are
    asked for.
    """
    types = {cls}

    def checked(values: Collection[Any]) -> bool:
        if not types.issuperset(map(type, values)):
            return False
        names = dict.fromkeys(chain.from_iterable(map(vars, values)))
        if lost := [name for name in names if not hasattr(cls, name)]:
            raise SerializationError(
                f"a value of type {type_name(cls)} has attributes besides its fields, which neither msgpack nor "
                f"pickle keeps of a struct: {', '.join(lost)}. Declare them as fields"
            )
        return every(values)

    return checked


def _is_simple_dataclass(cls: Any) -> bool:
    return (
        cls.__reduce__ is object.__reduce__
        and all(is_dataclass(base) for base in cls.__mro__[:-1])
        and all(f.init for f in fields(cls))
    )


def _model(cls: Any, outer: tuple[Any, ...]) -> _Check | None:
    every = _fields(cls, tuple(cls.model_fields), outer)
    size, extra = len(cls.model_fields), attrgetter("__pydantic_extra__")
    return every and (
        lambda values: (
            _every(every)(values)
            and all(len(vars(value)) == size for value in values)
            and all(more is None for more in map(extra, values))
        )
    )


def _fields(cls: Any, names: tuple[str, ...], outer: tuple[Any, ...]) -> _Check | None:
    hints = typing.get_type_hints(cls, include_extras=True)
    checks = [(name, _exactly(hints[name], outer)) for name in names]
    if any(check is None for _, check in checks):
        return None
    columns = [(attrgetter(name), _every(check)) for name, check in checks if check is not None]
    types = {cls}
    # Attributes besides the fields would be lost.
    sizes = {len(names)} if cls.__dictoffset__ != 0 and is_dataclass(cls) else None

    def every(values: Collection[Any]) -> bool:
        if not types.issuperset(map(type, values)):
            return False
        if sizes is not None and not sizes.issuperset(map(len, map(vars, values))):
            return False
        return all(check(list(map(field, values))) for field, check in columns)

    return every
