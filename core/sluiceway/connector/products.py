"""Checks of what a connector creates and returns, which is code of users and third parties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sluiceway.errors import PluginError

__all__ = ["checked", "listed"]

T = TypeVar("T")


def checked(made: T, kind: type, connector: object, method: str) -> T:
    """Return what a method of a source or a sink has created.

    Raises:
        PluginError: it is of another kind, as None of a method without ``return``; no restart helps.
    """
    if isinstance(made, kind):
        return made
    what = "None" if made is None else f"an object of type {type(made).__name__}"
    raise PluginError(
        f"{type(connector).__name__}.{method}() returned {what}; it must return a {kind.__name__} "
        f"(sluiceway.connector.{kind.__name__})"
    )


def listed(returned: Any, owner: object, method: str, of_what: str) -> Sequence[Any]:
    """Return what a method of a reader or a writer has returned for a checkpoint, as a sequence.

    Raises:
        PluginError: it is no collection, as None of a method without ``return``, or it is a text or a mapping,
            whose parts would stand in the checkpoint in place of the whole; no restart helps.
    """
    if isinstance(returned, (list, tuple)):
        return returned
    if isinstance(returned, Iterable) and not isinstance(returned, (str, bytes, bytearray, Mapping)):
        return list(returned)
    what = "None" if returned is None else f"an object of type {type(returned).__name__}"
    raise PluginError(f"{type(owner).__name__}.{method}() returned {what}; it must return a list of {of_what}")
