"""Slicing of input batches, by the records that the chain makes of them."""

from __future__ import annotations

__all__ = ["InputSlicer"]

_MUCH = 2
"""Batches that a step may make of one before its input is cut into smaller parts."""
_FIRST = 16
"""Records of the first part, before the duration of a record is known."""
_LONG_S = 0.1
"""Longest step in seconds: beyond it the input is cut, so that other tasks and messages get a turn."""
_STEPS_OF_A_SIZE = 16
"""Steps of one size, neither long nor short, after which one of another size is compared with them."""


class InputSlicer:
    """Estimator of the number of records that a chain processes in one step.

    A part of a step's duration may be that of a call for each batch, as of a service, however few records it has.
    Smaller parts do not shorten it, and so a step may take up to twice that long.

    Args:
        batch_size: records of a full batch.

    Attributes:
        size: largest number of records of the next step.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self.size = min(_FIRST, batch_size)
        # The records and the duration of a step that later ones are compared with.
        self._seen = 0, 0.0
        # Seconds of a step that do not depend on its records, as far as is known.
        self._fixed_s = 0.0
        # Steps until the next comparison, and the size to return to after it; 0: there is none.
        self._steps_left = 0
        self._size_before = 0

    def learn(self, size: int, made: int, took: float) -> None:
        """Record that ``size`` records have made ``made`` records and taken ``took`` seconds."""
        self._compare(size, took)
        if self._size_before:
            self.size, self._size_before = self._size_before, 0
            return
        fixed = min(self._fixed_s, took)
        spent, longest = took - fixed, max(_LONG_S - fixed, fixed)
        if size > 1 and (made > _MUCH * self._batch_size or spent > longest):
            share = min(self._batch_size / made if made else 1.0, longest / spent if spent else 1.0)
            self.size = max(1, int(size * share))
        elif spent < longest / 4:
            # Twice as much then stays within both limits.
            if self.size < _MUCH * self._batch_size and made < self._batch_size:
                self.size *= 2
        elif self._steps_left:
            self._steps_left -= 1
        else:
            # Measured under load, the records may have been blamed for what is fixed: that would last.
            self._steps_left, self._size_before = _STEPS_OF_A_SIZE, self.size
            self.size = size // 2 or 2

    def _compare(self, size: int, took: float) -> None:
        """Estimate the part of the duration that does not depend on the records, from steps of unlike sizes."""
        before, lasted = self._seen
        if size == before:
            took = min(took, lasted)
        elif before:
            if before < 2 * size and size < 2 * before:
                return
            of_each = (took - lasted) / (size - before)
            self._fixed_s = took - min(max(of_each, 0.0) * size, took)
        self._seen = size, took
