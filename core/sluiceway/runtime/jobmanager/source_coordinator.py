"""Source coordinators: the enumerator of each source, beside the job master."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Source
from sluiceway.runtime.source.enumerator_driver import EnumeratorDriver

__all__ = ["SourceCoordinator"]


class SourceCoordinator(EnumeratorDriver):
    """Runs one source's enumerator and carries splits to its readers. Job master's thread, except :meth:`wake`.

    Which reader has which splits is in the readers' snapshots; the enumerator keeps those that nobody has.

    Args:
        source: the source.
        parallelism: number of readers.
        clock: the runtime's clock.
        assign: carries splits to a reader.
        no_more: tells a reader that no splits will come.
        post: has something run in the job master's thread, after a delay in seconds; from any thread.
        restored: what an earlier enumerator's snapshot returned, or None.
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int,
        clock: Clock,
        *,
        assign: Callable[[int, Sequence[Any]], None],
        no_more: Callable[[int], None],
        post: Callable[[Callable[[], None], float], object],
        restored: Any = None,
    ) -> None:
        super().__init__(source, parallelism, clock, restored=restored)
        self._assign = assign
        self._end = no_more
        self._post = post
        self._readers: set[int] = set()
        # For readers that have not come up.
        self._early: dict[int, list[Any]] = {}
        self._early_ends: set[int] = set()
        # Per reader, what it was given since the last checkpoint, and between earlier ones that are not complete.
        self._assigned: dict[int, list[Any]] = {}
        self._sealed: dict[int, dict[int, list[Any]]] = {}

    def deliver(self, reader: int, splits: Sequence[Any]) -> None:
        """Carry splits to a reader, as soon as it has come up."""
        self._assigned.setdefault(reader, []).extend(splits)
        if reader in self._readers:
            self._assign(reader, splits)
        else:
            # An enumerator that finds splits by itself does not know that a reader is about to begin anew.
            self._early.setdefault(reader, []).extend(splits)

    def deliver_end(self, reader: int) -> None:
        """Tell a reader, as soon as it has come up."""
        if reader in self._readers:
            self._end(reader)
        else:
            self._early_ends.add(reader)

    def wake(self, after_s: float = 0.0) -> None:
        """Run the enumerator soon. From any thread."""
        self._post(self.run, after_s)

    def reader_ready(self, reader: int) -> None:
        """A reader has come up."""
        if self.enumerator is not None and reader not in self._readers:
            self._readers.add(reader)
            early = self._early.pop(reader, None)
            if early is not None:
                self._assign(reader, early)
            if reader in self._early_ends:
                self._early_ends.discard(reader)
                self._end(reader)
            self.add_reader(reader)

    def reader_failed(self, reader: int) -> None:
        """A reader begins anew: what it was given since the last complete checkpoint is to be read again."""
        self._readers.discard(reader)
        self._early_ends.discard(reader)
        self._early.pop(reader, None)  # which is among what it was given
        given = (*self._sealed.values(), self._assigned)
        self.add_splits_back([split for assigned in given for split in assigned.pop(reader, ())], reader)

    def split_requested(self, reader: int) -> None:
        """A reader wants a split."""
        self.reader_ready(reader)
        self.request(reader)

    def checkpoint(self, checkpoint_id: int) -> Any:
        """The enumerator's state for a checkpoint, in which the readers have what they were given until now.

        Raises:
            ConnectorError: as for :meth:`snapshot`.
        """
        state = self.snapshot()
        if self._assigned:  # nothing is kept of checkpoints between which nothing was handed out
            self._sealed[checkpoint_id], self._assigned = self._assigned, {}
        return state

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """What readers were given before that checkpoint is in it."""
        self._sealed = {id_: given for id_, given in self._sealed.items() if id_ > checkpoint_id}
