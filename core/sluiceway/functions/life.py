"""Function objects as they were before they were opened, of which other runs and other subtasks get copies."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any, Final, TypeVar

from sluiceway.functions.base import FunctionObject

__all__ = ["called_by", "note_closed", "note_opened", "unopened"]

F = TypeVar("F")

_BEFORE: Final = "__sluiceway_before__"
"""Attribute of a function object with its :class:`_Before`. In the object: no table could forget it in time."""


class _Absent:
    """Value of an attribute that did not exist. The class itself is used, which copies to itself."""


class _Before:
    """Attributes before the object was opened.

    Attributes:
        values: by name; :class:`_Absent` for one that was bound since.
        whole: whether these are all, as while the object is open; else those that have another value since.
    """

    __slots__ = ("values", "whole")

    def __init__(self, values: dict[str, Any], *, whole: bool) -> None:
        self.values = values
        self.whole = whole


def called_by(function: object) -> object:
    """Return the user's object that a function object of an API calls; another one itself.

    Two steps, or two runs, that call one object mix up its state, whichever objects of ours are between.
    """
    called = getattr(function, "__sluiceway_called__", function)
    return called if isinstance(called, FunctionObject) else function


def note_opened(function: object) -> None:
    """Note the attributes of an object that ``initialize_state()`` or ``open()`` is about to be called of."""
    attributes = _attributes_of(function)
    if attributes is not None:
        attributes[_BEFORE] = _Before(_values_before(attributes), whole=True)


def note_closed(function: object) -> None:
    """Keep what was noted of those attributes that the run has changed; a program may change the others."""
    attributes = _attributes_of(function)
    before = None if attributes is None else attributes.get(_BEFORE)
    if attributes is None or before is None or not before.whole:
        return
    was = before.values
    changed = {name: old for name, old in was.items() if attributes.get(name, _Absent) is not old}
    bound = {name: _Absent for name in attributes if name not in was and name != _BEFORE}
    attributes[_BEFORE] = _Before({**changed, **bound}, whole=False)


def unopened(function: F) -> F:
    """Return an object with the attributes of before it was opened; the object itself if it never was.

    Handles of state, locks and connections that ``open()`` has bound belong to a run. A copy for another run or
    another subtask must not have them: many can neither be copied nor pickled, and some hold all state of the job.
    """
    attributes = _attributes_of(function)
    if attributes is None or _BEFORE not in attributes:
        return function
    cls = type(function)
    try:
        made = object.__new__(cls)
    except TypeError:  # a subclass of a built-in type: it has parts that are no attributes
        return function
    made.__dict__.update(_values_before(attributes))
    for base in cls.__mro__:
        for member in vars(base).values():
            if type(member) is MemberDescriptorType and member.__objclass__ is base:
                try:
                    member.__set__(made, member.__get__(function))
                except AttributeError:  # it has no value
                    continue
    return made


def _values_before(attributes: dict[str, Any]) -> dict[str, Any]:
    attributes = dict(attributes)
    before = attributes.pop(_BEFORE, None)
    if before is None:
        return attributes
    merged = before.values if before.whole else {**attributes, **before.values}
    return {name: value for name, value in merged.items() if value is not _Absent}


def _attributes_of(function: object) -> dict[str, Any] | None:
    attributes = getattr(function, "__dict__", None)
    return attributes if type(attributes) is dict else None
