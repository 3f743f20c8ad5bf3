"""Checks of values against the types that descriptors declare, made where a handle writes a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sluiceway.errors import DeclaredTypeError
from sluiceway.record_errors import shown
from sluiceway.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from sluiceway.types import check_against, type_name

__all__ = ["Check", "EntryCheck", "check_of", "entry_check_of"]

Check: TypeAlias = "Callable[[Any], object]"
"""Raises DeclaredTypeError for a value that is not of the declared type."""

EntryCheck: TypeAlias = "Callable[[Any, Any], object]"
"""Likewise, for the key and the value of an entry of a map."""


def check_of(descriptor: StateDescriptor) -> Check | None:
    """Return the check of a value, or of an element of a list; None if the descriptor declares no type."""
    name = descriptor.name
    if isinstance(descriptor, MapStateDescriptor):
        what = f"the values of state {name!r} are declared as"
    elif isinstance(descriptor, ListStateDescriptor):
        what = f"the elements of state {name!r} are declared as"
    else:
        what = f"state {name!r} is declared as"
    return _check(descriptor.type, what, "type=")


def entry_check_of(descriptor: MapStateDescriptor) -> EntryCheck | None:
    """Return the check of an entry; None if the descriptor declares neither type."""
    of_key = _check(descriptor.key_type, f"the keys of state {descriptor.name!r} are declared as", "key_type=")
    of_value = check_of(descriptor)
    if of_key is None or of_value is None:
        if of_key is not None:
            return lambda key, value: of_key(key)
        return None if of_value is None else lambda key, value: of_value(value)

    def check(key: Any, value: Any) -> None:
        of_key(key)
        of_value(value)

    return check


def _check(declared: Any, what: str, argument: str) -> Check | None:
    def refuse(value: Any) -> None:
        raise DeclaredTypeError(
            f"{what} {type_name(declared)}, and {shown(value, 100)} of type {type_name(type(value))} was "
            f"written. Write values of the declared type, declare in {argument} all types that the values "
            f"have, or leave {argument} out: then they are pickled"
        )

    return check_against(declared, refuse)
