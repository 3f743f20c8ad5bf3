"""Words that sliced windows share, and much work in parts, so that other things have their turn in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from itertools import islice
from typing import Any, Final, TypeAlias

from sluiceway.elements import MAX_WATERMARK

__all__ = ["NEVER", "Entries", "Item", "parts"]

NEVER: Final = MAX_WATERMARK + 1
"""A time that does not come."""

Entries: TypeAlias = MutableMapping[Any, Any]
"""Accumulators by key."""

Item: TypeAlias = tuple[Any, Any]
"""A key and its accumulator."""


def parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items, at most ``size`` at a time."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
