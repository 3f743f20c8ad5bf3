"""Accumulators that several windows share must not be changed by a user's ``merge()`` in one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any, Final

__all__ = ["merge_of_copies", "own", "unchangeable"]

_ATOMS: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, Decimal, Fraction, date, datetime, time, timedelta}
)
_FLAT: Final[dict[type, Any]] = {list: list.copy, dict: dict.copy, set: set.copy}


def unchangeable(values: Collection[Any]) -> bool:
    """Whether none of the values can be changed in place, as far as can be told from their types."""
    others = {kind for kind in set(map(type, values)) if kind not in _ATOMS}
    if not others:
        return True
    if not all(issubclass(kind, tuple) for kind in others):
        return False
    return unchangeable(list(chain.from_iterable(value for value in values if type(value) in others)))


def own(value: Any) -> Any:
    """A copy that shares nothing with ``value`` that could be changed in place."""
    kind = type(value)
    if kind in _ATOMS:
        return value
    flat = _FLAT.get(kind)
    if flat is not None:
        parts = chain(value, value.values()) if kind is dict else value
        if _ATOMS.issuperset(map(type, parts)):
            copied: Any = flat(value)
            return copied
    return deepcopy(value)


def merge_of_copies(merge: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``merge``, given copies of its arguments, which it may change."""
    return lambda older, newer: merge(own(older), own(newer))
