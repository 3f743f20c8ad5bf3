"""Slicing of input batches, by the records that the chain makes of them."""

from __future__ import annotations

__all__ = ["InputSlicer"]

_MUCH = 2
"""A step may make this many batches of one before its input is cut into smaller parts."""
_FIRST = 16
"""Records of the first part: nobody knows yet how long they take."""
_LONG_S = 0.1
"""A step that takes longer has its input cut, so that other tasks and messages have their turn."""


class InputSlicer:
    """Learns how many records a chain can be given at a time.

    Args:
        batch_size: of a full batch.

    Attributes:
        size: records that it may be given now.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self.size = min(_FIRST, batch_size)

    def learn(self, size: int, made: int, took: float) -> None:
        """``size`` records have made that many, and have taken that many seconds."""
        if size > 1 and (made > _MUCH * self._batch_size or took > _LONG_S):
            share = min(self._batch_size / made if made else 1.0, _LONG_S / took if took else 1.0)
            self.size = max(1, int(size * share))
        elif self.size < _MUCH * self._batch_size and made < self._batch_size and took < _LONG_S / 4:
            self.size *= 2
