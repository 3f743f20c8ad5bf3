"""Checks of the results that a function returns for a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sluiceway.errors import FunctionContractError

__all__ = ["check_results", "is_one_record"]


def check_results(what: str, returned: Any) -> type:
    """Return the type of what a function returned if it is an iterable of results. Once per type.

    Args:
        what: description of the function, for the message.
        returned: not None.

    Returns:
        type of ``returned``.

    Raises:
        FunctionContractError: it cannot be iterated over, or it is one record that would be taken apart.
    """
    kind = type(returned)
    if is_one_record(returned):
        raise FunctionContractError(
            f"{what} returned {returned!r:.100} ({kind.__name__}), which would be taken apart: it must yield its "
            "results, or return a list of them, also where there is but one"
        )
    if not isinstance(returned, Iterable) and not hasattr(kind, "__getitem__"):
        raise FunctionContractError(
            f"{what} returned {returned!r:.100} ({kind.__name__}); it must yield its results, or return an "
            "iterable of them, or None"
        )
    return kind


def is_one_record(given: Any) -> bool:
    """Return whether a value is one record that happens to be iterable: a text, a dict, a NamedTuple, a model."""
    if isinstance(given, tuple):
        return hasattr(given, "_fields")
    return isinstance(given, str | bytes | bytearray | Mapping) or hasattr(type(given), "__pydantic_fields__")
