"""Discovery of state that a function visibly uses, without calling it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, Final

from sluiceway.state import StateDescriptor

__all__ = ["may_ask_for", "visible_descriptors"]

# Shorter texts would match names by chance.
_PART: Final = 3


def visible_descriptors(function: object) -> Iterator[StateDescriptor]:
    """Return descriptors in attributes of a function object or its class, or in names of its ``open``."""
    places: list[dict[str, Any]] = [dict(vars(c)) for c in reversed(type(function).__mro__)]
    places.append(dict(getattr(function, "__dict__", {})))
    with suppress(AttributeError, TypeError, ValueError):
        used = inspect.getclosurevars(type(function).open)  # type: ignore[attr-defined]
        places += [dict(used.nonlocals), dict(used.globals)]
    for place in places:
        yield from (value for value in place.values() if isinstance(value, StateDescriptor))


def may_ask_for(function: object, state: str) -> bool:
    """Return whether the name of a state, or a part of it, is in what a function visibly uses.

    Then it may ask for the state, if not in ``open``, then later.
    """
    if any(descriptor.name == state for descriptor in visible_descriptors(function)):
        return True
    found: set[object] = set()
    for cls in _classes(function):
        for attribute in vars(cls).values():
            _see(attribute, found, with_globals=True)
    _see(function, found, with_globals=True)
    return any(
        # Names may be composed, as in f"{kind}-count": then a constant is at the start or the end.
        text == state or (len(text) >= _PART and (state.startswith(text) or state.endswith(text)))
        for text in found
        if isinstance(text, str)
    )


def _classes(function: object) -> Iterator[type]:
    """Return the object's class, and those of the objects that it has, but not this package's and Python's own."""
    kept = [function, *getattr(function, "__dict__", {}).values()]
    for cls in dict.fromkeys(cls for thing in kept for cls in type(thing).__mro__):
        if cls.__module__.partition(".")[0] not in ("builtins", "sluiceway"):
            yield cls


def _see(thing: object, found: set[object], *, with_globals: bool) -> None:
    """Take the constants in the code of a function, and of functions, classes and texts that it knows by name."""
    # Properties, and static and class methods, have the function inside.
    thing = getattr(thing, "fget", getattr(thing, "__func__", thing))
    if not isinstance(thing, FunctionType):
        return
    _constants(thing.__code__, found)
    if not with_globals:
        return
    # One level deep: of what these functions call, nothing is looked at.
    for name in thing.__code__.co_names:
        known = thing.__globals__.get(name)
        if isinstance(known, type):
            for attribute in vars(known).values():
                _see(attribute, found, with_globals=False)
        elif isinstance(known, str):
            found.add(known)
        elif isinstance(known, StateDescriptor):
            found.add(known.name)
        else:
            _see(known, found, with_globals=False)


def _constants(code: CodeType, found: set[object]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _constants(constant, found)
        elif isinstance(constant, tuple | frozenset):
            found.update(constant)
        else:
            found.add(constant)
