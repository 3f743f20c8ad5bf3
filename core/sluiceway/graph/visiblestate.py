"""Descriptors of state that a function can be seen to use, without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from sluiceway.state import StateDescriptor

__all__ = ["visible_descriptors"]


def visible_descriptors(function: object) -> Iterator[StateDescriptor]:
    """Those that are attributes of a function object or its class, or that its ``open`` knows by name."""
    places: list[dict[str, Any]] = [dict(vars(c)) for c in reversed(type(function).__mro__)]
    places.append(dict(getattr(function, "__dict__", {})))
    with suppress(AttributeError, TypeError, ValueError):
        used = inspect.getclosurevars(type(function).open)  # type: ignore[attr-defined]
        places += [dict(used.nonlocals), dict(used.globals)]
    for place in places:
        yield from (value for value in place.values() if isinstance(value, StateDescriptor))
