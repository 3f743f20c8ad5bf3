"""Sketch of the keys that occur most, in bounded memory.

The algorithm is that of Misra and Gries ("Finding repeated elements", 1982) in its batched form: counters are
reduced only when there are twice as many as are wanted, all by the value of the first one that goes (Anderson,
Bevan, Lang, Liberty, Rhodes and Thaler, "A high-performance algorithm for identifying frequent items in data
streams", IMC 2017). So a batch is one call that counts in C, and nothing else, nearly always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final

__all__ = ["FrequentKeys"]

_KEPT: Final = 1024


class FrequentKeys:
    """Counter of keys that drops rare ones. Not thread-safe.

    A key has occurred at least as often as it says, and at most ``error`` times more. ``error`` is at most the
    number of all records divided by ``kept``, so no key with a larger share is missing.

    Args:
        kept: number of counters that stay when there are too many.

    Attributes:
        records: number of all keys that were counted.
        error: by how much the number of a key may be too low.
    """

    def __init__(self, kept: int = _KEPT) -> None:
        self.records = 0
        self.error = 0
        self._kept = kept
        self._counts: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, keys: Sequence[Hashable]) -> None:
        """Count the keys of a batch. Raises TypeError if one is unhashable."""
        self._counts.update(keys)
        self.records += len(keys)
        if len(self._counts) > 2 * self._kept:
            self._reduce()

    def top(self, number: int) -> list[tuple[Hashable, int]]:
        """Return the keys that have occurred most, with how often at least; most first."""
        return self._counts.most_common(number)

    def _reduce(self) -> None:
        cut = sorted(self._counts.values(), reverse=True)[self._kept]
        self._counts = Counter({key: count - cut for key, count in self._counts.items() if count > cut})
        self.error += cut
