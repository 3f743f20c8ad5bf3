"""Base of combiners of local aggregation: it is suspended where it does not pay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

from sluiceway.elements import Batch

__all__ = ["CombinerBase"]

_WORTH_IT: Final = 0.6
"""Partial results per record above which combining costs more than it saves."""


class CombinerBase(ABC):
    """Partial results on one edge, which wait to be sent.

    Attributes:
        most: largest number of buffered partial results, about.
        tried: records after which the benefit of combining is judged.
        rested: records that are sent unchanged before combining is tried again.
        longest_s: longest time in seconds that partial results are buffered, if there are more than ``batches``.
        batches: batches that are combined even if that takes longer, as long as none comes later than that.
        idle_s: longest time in seconds that partial results are buffered while the task has nothing to do.
        records: those combined since the benefit was judged.
        waiting: buffered partial results.
    """

    most: ClassVar[int] = 1 << 14
    tried: ClassVar[int] = 1 << 14
    rested: ClassVar[int] = 1 << 18
    longest_s: ClassVar[float] = 0.05
    batches: ClassVar[int] = 0
    idle_s: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self.records = self.waiting = 0
        self._made = self._resting = 0
        self._off = False

    def __len__(self) -> int:
        return self.waiting

    @property
    def full(self) -> bool:
        """True if no more partial results should be buffered."""
        return self.waiting >= self.most

    @property
    def is_off(self) -> bool:
        """True after :meth:`stop`."""
        return self._off

    def stop(self) -> None:
        """Combine no further records."""
        self._off = True

    def rests(self, records: int) -> bool:
        """Return whether this number of records is to be sent unchanged."""
        if self._off:
            return True
        if self._resting > 0:
            self._resting -= records
            return True
        return False

    @abstractmethod
    def add(self, batch: Batch[Any], watermark: int) -> Batch[Any] | None:
        """Fold a batch, and return those of its records that must be sent unchanged, in order.

        Args:
            batch: the records.
            watermark: the last watermark before them, in ms.
        """

    @abstractmethod
    def take(self) -> list[tuple[int, Batch[Any]]]:
        """Remove and return the partial results by consumer; keys of a slice in the order of their records."""

    def _judge(self) -> None:
        """Note that partial results are taken; suspend combining if nearly each record has a key of its own."""
        self._made += self.waiting
        self.waiting = 0
        if self.records >= self.tried:
            if self._made > _WORTH_IT * self.records:
                self._resting = self.rested
            self.records = self._made = 0
