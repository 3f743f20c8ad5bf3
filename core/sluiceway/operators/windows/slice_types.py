"""Types of the operators that store windows in slices."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final, NamedTuple, TypeAlias

from sluiceway.elements import MAX_WATERMARK

__all__ = ["END_OF_TIME", "NEVER", "Entries", "Item", "Partial"]

END_OF_TIME: Final = 2 * MAX_WATERMARK
"""End of time, for the maximum watermark: windows that reach beyond it are over, too."""

NEVER: Final = END_OF_TIME + 1
"""Time that is never reached."""

Entries: TypeAlias = MutableMapping[Any, Any]
"""Accumulators by key."""

Item: TypeAlias = tuple[Any, Any]
"""Pair of key and accumulator."""


class Partial(NamedTuple):
    """Partial result that a producer has made of some records of one key and one slice.

    Attributes:
        key: key of the records.
        accumulator: accumulator of these records alone.
    """

    key: Any
    accumulator: Any
