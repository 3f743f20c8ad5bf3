"""Check of whether a user's object can be sent to another process, and of the part that prevents it."""

from __future__ import annotations

import inspect
import pickle
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sluiceway.functions.life import unopened
from sluiceway.serializers.byvalue import dumps_by_value
from sluiceway.util.trial_pickling import trial

__all__ = ["Obstacle", "find_obstacle"]

_MAX_DEPTH: Final = 8


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Object that cannot be pickled.

    Attributes:
        path: path to it from the function: ``variable 'client'``, ``attribute 'lock'``; may be empty.
        type_name: the type of the object at the end of the path.
        reason: the pickler's error.
    """

    path: tuple[str, ...]
    type_name: str
    reason: str

    def __str__(self) -> str:
        where = " of ".join(reversed(self.path))
        what = f"{where} ({self.type_name})" if where else f"its {self.type_name}"
        return f"{what} cannot be pickled: {self.reason}"


def find_obstacle(value: object) -> Obstacle | None:
    """Try to pickle ``value``; say what is in the way, as deep inside it as that can be found."""
    value = unopened(value)
    error = _try(value)
    if error is None:
        return None
    path: list[str] = []
    seen = {id(value)}
    # Into the first part that fails by itself, until no part of what is left does.
    while len(path) < _MAX_DEPTH and not _refuses(value):
        for label, part in _parts(value):
            if id(part) in seen:
                continue
            seen.add(id(part))
            inner = _try(part)
            if inner is not None:
                path.append(label)
                value, error = part, inner
                break
        else:
            break
    reason = str(error) or type(error).__name__
    return Obstacle(
        tuple(path), type(value).__qualname__.rpartition("<locals>.")[2], reason.splitlines()[0].rstrip(".")
    )


def _try(value: object) -> BaseException | None:
    try:
        with trial():
            dumps_by_value(value)
    except Exception as error:  # a __reduce__ of anybody's may raise anything
        return error
    return None


def _refuses(value: Any) -> bool:
    """Return whether an object itself forbids pickling, as SparkContext does: its own reason says more."""
    own = {name for cls in type(value).__mro__[:-1] for name in cls.__dict__}
    if own.isdisjoint(("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")):
        return False
    try:
        with trial():
            value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:
        return True
    return False


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the objects inside an object that a pickler would pickle."""
    if isinstance(value, types.MethodType):
        yield "object", value.__self__
        return
    if isinstance(value, types.FunctionType):
        yield from _function_parts(value)
        return
    if isinstance(value, dict):
        yield from ((f"entry {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index}", part) for index, part in enumerate(value))
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict):
        yield from ((f"attribute {name!r}", part) for name, part in state.items())
    for name in ("func", "args", "keywords"):
        if not isinstance(value, type) and hasattr(value, "func"):
            yield f"partial's {name}", getattr(value, name, None)


def _function_parts(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    try:
        used = inspect.getclosurevars(fn)
    except (TypeError, ValueError):  # an empty cell: a variable that has no value yet
        return
    yield from ((f"variable {name!r}", part) for name, part in used.nonlocals.items())
    yield from ((f"variable {name!r}", part) for name, part in used.globals.items())
    yield from ((f"default {index}", part) for index, part in enumerate(fn.__defaults__ or ()))
    yield from ((f"default {name!r}", part) for name, part in (fn.__kwdefaults__ or {}).items())
