"""What the operators that keep windows in slices speak of."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final, TypeAlias

from sluiceway.elements import MAX_WATERMARK

__all__ = ["NEVER", "Entries", "Item"]

NEVER: Final = MAX_WATERMARK + 1
"""A time that does not come."""

Entries: TypeAlias = MutableMapping[Any, Any]
"""Accumulators by key."""

Item: TypeAlias = tuple[Any, Any]
"""A key and its accumulator."""
