"""Slicing of input batches, by the records that the chain makes of them."""

from __future__ import annotations

__all__ = ["InputSlicer"]

_MUCH = 2
"""Batches that a step may make of one before its input is cut into smaller parts."""
_FIRST = 16
"""Records of the first part, before the duration of a record is known."""
_LONG_S = 0.1
"""Longest step in seconds: beyond it the input is cut, so that other tasks and messages get a turn."""


class InputSlicer:
    """Estimator of the number of records that a chain processes in one step.

    Args:
        batch_size: records of a full batch.

    Attributes:
        size: largest number of records of the next step.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self.size = min(_FIRST, batch_size)

    def learn(self, size: int, made: int, took: float) -> None:
        """Record that ``size`` records have made ``made`` records and taken ``took`` seconds."""
        if size > 1 and (made > _MUCH * self._batch_size or took > _LONG_S):
            share = min(self._batch_size / made if made else 1.0, _LONG_S / took if took else 1.0)
            self.size = max(1, int(size * share))
        # Twice as much then stays within both limits.
        elif self.size < _MUCH * self._batch_size and made < self._batch_size and took < _LONG_S / 4:
            self.size *= 2
