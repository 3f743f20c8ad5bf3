"""Driver of a source's enumerator, without the delivery of what it assigns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Enumerator, EnumeratorContext, Source
from sluiceway.connector.products import check_splits, checked
from sluiceway.errors import ConnectorError
from sluiceway.util.overriding import override

__all__ = ["EnumeratorDriver"]


class EnumeratorDriver(EnumeratorContext):
    """Enumerator of one source, from :meth:`start` to :meth:`close`, and the context that it is given.

    A subclass delivers splits: the job master sends them to its tasks, micro-batches keep them for the next plan.
    Before the start and after the end, all calls are harmless. One thread, but for :meth:`wake`.

    Args:
        source: the source.
        parallelism: number of readers.
        clock: for the enumerator.
        restored: what an earlier enumerator's snapshot returned, or None.
        no_more: readers that an earlier enumerator has told that no splits will come.

    Attributes:
        enumerator: between :meth:`start` and :meth:`close`; else None.
        no_more: readers that were told that no splits will come.
    """

    def __init__(
        self,
        source: Source[Any],
        parallelism: int,
        clock: Clock,
        *,
        restored: Any = None,
        no_more: Collection[int] = (),
    ) -> None:
        self.source = source
        self.no_more: set[int] = set(no_more)
        self._parallelism = parallelism
        self._clock = clock
        self._restored = restored
        self.enumerator: Enumerator | None = None

    # ---- for the enumerator ----------------------------------------------------------------------------------

    @property
    @override
    def parallelism(self) -> int:
        return self._parallelism

    @property
    @override
    def clock(self) -> Clock:
        return self._clock

    def assign(self, reader: int, splits: Sequence[Any]) -> None:
        """Deliver splits to a reader.

        Raises:
            ConnectorError: the source has no such reader, or that reader was told that no splits will come.
            PluginError: an object that is no split.
        """
        if splits:
            self._check(reader)
            check_splits(splits, self.source)
            self.deliver(reader, splits)

    def no_more_splits(self, reader: int) -> None:
        """Notify a reader that no splits will come; harmless a second time.

        Raises:
            ConnectorError: the source has no such reader.
        """
        if reader not in self.no_more:
            self._check(reader)
            self.no_more.add(reader)
            self.deliver_end(reader)

    @abstractmethod
    def deliver(self, reader: int, splits: Sequence[Any]) -> None:
        """Deliver splits, at least one, to a reader."""

    @abstractmethod
    def deliver_end(self, reader: int) -> None:
        """Notify a reader, once, that no splits will come."""

    # ---- for the runtime -------------------------------------------------------------------------------------

    def start(self, readers: Iterable[int] = ()) -> None:
        """Create and start the enumerator, and add readers that are up already."""
        self.enumerator = self.create()
        self.enumerator.start()
        for reader in readers:
            self.add_reader(reader)

    def create(self) -> Enumerator:
        """Create the enumerator, without starting it."""
        try:
            enumerator = self.source.create_enumerator(self, self._restored)
        except (AttributeError, TypeError) as error:
            if self._restored is not None:
                error.add_note(
                    "the snapshot that the job goes on from has an enumerator's state of type "
                    f"{type(self._restored).__name__} under the uid of this source: give this source another uid "
                    "if it is another one than that of the snapshot"
                )
            raise
        return checked(enumerator, Enumerator, self.source, "create_enumerator")

    def add_reader(self, reader: int) -> None:
        """Notify the enumerator of a reader that has started."""
        if self.enumerator is not None:
            self.enumerator.add_reader(reader)

    def request(self, reader: int) -> None:
        """Have the enumerator answer a reader's request for a split."""
        if self.enumerator is not None:
            self.enumerator.handle_split_request(reader)

    def event_received(self, reader: int, event: Any) -> None:
        """Have the enumerator handle an event of a reader."""
        if self.enumerator is not None:
            self.enumerator.handle_event(reader, event)

    def add_splits_back(self, splits: list[Any], reader: int) -> None:
        """Return splits to the enumerator that a reader has lost."""
        self.no_more.discard(reader)
        if self.enumerator is not None and splits:
            self.enumerator.add_splits_back(splits, reader)

    def run(self) -> None:
        """Run the enumerator, which has asked for it with :meth:`wake`."""
        if self.enumerator is not None:
            self.enumerator.run()

    def snapshot(self) -> Any:
        """Return the enumerator's state: what it has not assigned. None before the start.

        Raises:
            ConnectorError: the enumerator returns None, so that it would start anew after a restore.
        """
        if self.enumerator is None:
            return None
        state = self.enumerator.snapshot()
        if state is None:
            raise ConnectorError(
                f"the enumerator of {self.source.name} returned None from snapshot(), which stands for a job "
                "without a checkpoint: return the splits that are not assigned, as a list that may be empty"
            )
        return state

    def close(self) -> None:
        """Close the enumerator, once."""
        enumerator, self.enumerator = self.enumerator, None
        if enumerator is not None:
            enumerator.close()

    def _check(self, reader: int) -> None:
        if not 0 <= reader < self._parallelism:
            raise ConnectorError(
                f"the enumerator of {self.source.name} has something for reader {reader}; readers are numbered "
                f"from 0 to {self._parallelism - 1}"
            )
        if reader in self.no_more:
            raise ConnectorError(
                f"the enumerator of {self.source.name} has something for reader {reader}, which it has told that "
                "there are no more splits"
            )
