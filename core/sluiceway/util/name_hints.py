"""Errors for names that a class or module does not have, with what to use in their place.

The classes ask for it in ``__getattr__``, that is, when a name was not found.
"""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from sluiceway.util.flink_names import ELSEWHERE

__all__ = ["Hinting", "HintingType", "hint_for", "refuse", "refuse_in_module", "similar", "snake"]


def hint_for(owner: str, name: str) -> str | None:
    """Return what to use in place of ``name``, which ``owner`` has not got; None if it is no known name.

    Args:
        owner: a key of :data:`.ELSEWHERE`.
        name: as in Flink's Python API, or in its Java API (``getIndexOfThisSubtask``).
    """
    known = ELSEWHERE.get(owner, {})
    return known.get(name) or known.get(snake(name))


def similar(name: str, names: list[str]) -> str | None:
    """Return the one of ``names`` that is meant, very likely: a slip of the keyboard, or Java's spelling."""
    from difflib import get_close_matches

    if (pythonic := snake(name)) in names:
        return pythonic
    # With the usual cutoff of 0.6, "split" is taken for "print".
    close = get_close_matches(name, names, n=1, cutoff=0.75)
    return close[0] if close else None


def refuse(given: object, name: str, *owners: str) -> NoReturn:
    """Raise for an attribute ``name`` that ``given`` has not got. For ``__getattr__``.

    Args:
        given: an object, or a class.
        name: of the attribute.
        owners: keys of :data:`.ELSEWHERE`, asked in this order.

    Raises:
        AttributeError: with what to use instead, if that is known.
    """
    kind = given if isinstance(given, type) else type(given)
    said = f"{kind.__name__} has no attribute {name!r}"
    if not name.startswith("_"):
        public = [n for n in dir(kind) if not n.startswith("_")]
        hint = next((found for owner in owners if (found := hint_for(owner, name))), None)
        if hint:
            said = f"{kind.__name__} has no {name}; {hint}"
        elif meant := similar(name, public):
            said += f". Did you mean {meant!r}?"
        else:
            said += f". It has: {', '.join(public)}"
    # Without these two, Python would add a suggestion of its own, which knows nothing of Flink.
    raise AttributeError(said, name=None, obj=None)


def refuse_in_module(
    module: str, name: str, known: Sequence[str], hint: str | None = None, *, depth: int = 2
) -> NoReturn:
    """Raise for a name that a module has not got. For ``__getattr__`` of modules.

    Args:
        module: name of the module.
        name: of the attribute.
        known: the public names of the module.
        hint: what to use instead, where the table does not say.
        depth: how many calls this is away from the code that asks.

    Raises:
        ImportError: the code that asks says ``from module import name``: of an AttributeError Python would drop
            the message.
        AttributeError: it asks otherwise.
    """
    said = f"module {module!r} has no attribute {name!r}"
    if not name.startswith("_"):
        hint = hint or hint_for("", name)
        meant = None if hint else similar(name, list(known))
        said += f"; {hint}" if hint else f". Did you mean {meant!r}?" if meant else ""
        from dis import opmap  # this module is imported with every class that asks it, these two seldom

        frame = sys._getframe(depth)
        if frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
            raise ImportError(f"cannot import name {name!r} from {module!r}{said.partition(repr(name))[2]}")
    raise AttributeError(said, name=None, obj=None)


def _owners(kind: type) -> list[str]:
    return [base.__name__ for base in kind.__mro__ if base.__name__ in ELSEWHERE]


class Hinting:
    """Base of classes whose objects explain names of Flink's methods that they lack."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would take it for leave to call anything

        def __getattr__(self, name: str) -> NoReturn:
            refuse(self, name, *_owners(type(self)))


class HintingType(ABCMeta):
    """Metaclass of classes that explain Flink's static methods, as in ``StateTtlConfig.new_builder``."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            refuse(cls, name, *_owners(cls))


def snake(name: str) -> str:
    """Return a name of Java's in Python's spelling: ``onTimer`` as ``on_timer``."""
    return "".join(f"_{letter.lower()}" if letter.isupper() and i else letter for i, letter in enumerate(name))
