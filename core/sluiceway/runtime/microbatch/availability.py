"""Check for new input of idle readers, so that no empty batch is planned."""

from __future__ import annotations

from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Source, Wait
from sluiceway.runtime.microbatch.batch_log import BatchRead
from sluiceway.runtime.microbatch.batch_reader import LiveReader

__all__ = ["AvailabilityCheck"]


class AvailabilityCheck:
    """Probing readers in the driver, opened at the positions of idle readers.

    Records that they read are discarded.

    Args:
        source: the source.
        readers: number of its readers.
        clock: real time.
    """

    def __init__(self, source: Source[Any], readers: int, clock: Clock) -> None:
        self._source = source
        self._readers = readers
        self._clock = clock
        self._open: dict[int, tuple[str, LiveReader]] = {}

    def sees(self, reader: int, state: BatchRead) -> bool:
        """Return whether a reader has records, also such as cannot be decoded, has reached its end, or fails.

        Args:
            reader: number of the reader.
            state: its state after the last batch, with unfinished splits.
        """
        try:
            live = self._at(reader, state).reader
            # Readers may wait until what they have rejected is taken.
            return not isinstance(live.poll(1), Wait) or bool(live.rejected())
        except Exception:
            return True  # a batch that runs the reader reports the error

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
