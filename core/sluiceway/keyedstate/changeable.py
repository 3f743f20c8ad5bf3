"""Which values can be changed in place."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Address
from types import FunctionType, NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

__all__ = ["ATOMS", "all_unchangeable", "unchangeable", "unchangeable_type"]

ATOMS: Final = frozenset(
    {
        NoneType,
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        Decimal,
        Fraction,
        dt.date,
        dt.datetime,
        dt.time,
        dt.timedelta,
        dt.timezone,
        range,
        type,
        FunctionType,
        UUID,
        IPv4Address,
        IPv6Address,
    }
)
"""Types whose objects nobody can change."""

_ATOM: Final = 0
_SEQUENCE: Final = 1  # cannot be changed, but maybe its elements
_RECORD: Final = 2  # cannot be changed, but maybe its fields
_OPEN: Final = 3
_KNOWN: Final[dict[type, int]] = {**dict.fromkeys(ATOMS, _ATOM), tuple: _SEQUENCE, frozenset: _SEQUENCE}


def _kind(cls: type) -> int:
    known = _KNOWN.get(cls)
    if known is None:
        known = _KNOWN[cls] = _find_kind(cls)
    return known


def _find_kind(cls: type) -> int:
    if issubclass(cls, Enum):
        return _ATOM
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and not hasattr(cls, "__dict__"):
        return _SEQUENCE
    config = getattr(cls, "__struct_config__", None)  # of msgspec
    if config is not None:
        return _RECORD if config.frozen else _OPEN
    params = getattr(cls, "__dataclass_params__", None)
    return _RECORD if params is not None and params.frozen and is_dataclass(cls) else _OPEN


def unchangeable(value: Any) -> bool:
    """Return whether neither ``value`` nor anything in it can be changed in place, as far as types tell."""
    cls = type(value)
    kind = _kind(cls)
    if kind == _SEQUENCE:
        return all_unchangeable(value)
    if kind == _RECORD:
        names = getattr(cls, "__struct_fields__", None) or [field.name for field in fields(cls)]
        return all(unchangeable(getattr(value, name, None)) for name in names)
    return kind == _ATOM


def all_unchangeable(values: Iterable[Any]) -> bool:
    """Return whether :func:`unchangeable` holds for all of them."""
    return ATOMS.issuperset(map(type, values)) or all(map(unchangeable, values))


def unchangeable_type(hint: Any) -> bool:
    """Return whether a declared type promises that :func:`unchangeable` holds for all of its values."""
    try:
        return _promises(hint)
    except Exception:  # a hint may be any object
        return False


def _promises(hint: Any) -> bool:
    if hint in ATOMS:
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return True
    if origin in (tuple, frozenset, Union, UnionType):
        return all(part in (Ellipsis, None) or _promises(part) for part in parts)
    if not isinstance(hint, type) or hint in (tuple, frozenset):
        return False
    kind = _kind(hint)
    if kind in (_ATOM, _OPEN):
        return kind == _ATOM
    hints = get_type_hints(hint)
    return bool(hints) and all(map(_promises, hints.values()))
