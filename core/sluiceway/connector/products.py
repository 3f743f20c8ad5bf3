"""Check of what a connector creates, which is code of users and third parties."""

from __future__ import annotations

from typing import TypeVar

from sluiceway.errors import PluginError

__all__ = ["checked"]

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
