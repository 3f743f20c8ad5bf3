"""Looking whether readers that had nothing in a batch have something by now: a batch is planned only then."""

from __future__ import annotations

from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Source, Wait
from sluiceway.runtime.microbatch.batch_log import BatchRead
from sluiceway.runtime.microbatch.batch_reader import LiveReader

__all__ = ["AvailabilityCheck"]


class AvailabilityCheck:
    """Readers of the driver's own, where others stopped. What they read is thrown away.

    Args:
        source: the source.
        readers: how many it has.
        clock: real time.
    """

    def __init__(self, source: Source[Any], readers: int, clock: Clock) -> None:
        self._source = source
        self._readers = readers
        self._clock = clock
        self._open: dict[int, tuple[str, LiveReader]] = {}

    def sees(self, reader: int, state: BatchRead) -> bool:
        """Whether a reader that has left this has something to read, or to say; one that fails has.

        Args:
            reader: its number.
            state: of the last batch, with splits that are being read.
        """
        try:
            return not isinstance(self._at(reader, state).reader.poll(1), Wait)
        except Exception:
            return True  # it is told when a batch fails with it

    def close(self) -> None:
        """Close all readers."""
        while self._open:
            self._open.popitem()[1][1].close()

    def _at(self, reader: int, state: BatchRead) -> LiveReader:
        found = self._open.get(reader)
        if found is not None and found[0] == state.token:
            return found[1]
        self.forget(reader)
        splits = state.splits[: len(state.splits) - state.queued]
        live = LiveReader(self._source, reader, self._readers, self._clock, splits)
        self._open[reader] = (state.token, live)
        return live

    def forget(self, reader: int) -> None:
        """Close a reader, if it is open."""
        found = self._open.pop(reader, None)
        if found is not None:
            found[1].close()
