"""Enumerator of a hybrid source: it switches when all readers have read a source to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sluiceway.clock import Clock
from sluiceway.connector import Enumerator, EnumeratorContext
from sluiceway.connector.lib.hybrid.messages import Began, Finished, HybridState, Inner, NoMore, Part, Ready
from sluiceway.connector.lib.hybrid.sequence import SourceSequence
from sluiceway.connector.products import checked
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override

__all__ = ["HybridEnumerator"]


class _Context(EnumeratorContext):
    """Context of the enumerator of one of the sources."""

    def __init__(self, owner: HybridEnumerator, context: EnumeratorContext, index: int) -> None:
        self._owner = owner
        self._context = context
        self._index = index

    @property
    @override
    def parallelism(self) -> int:
        return self._context.parallelism

    @property
    @override
    def clock(self) -> Clock:
        return self._context.clock

    @override
    def assign(self, reader: int, splits: Sequence[Any]) -> None:
        self._context.assign(reader, [Part(self._index, split) for split in splits])

    @override
    def no_more_splits(self, reader: int) -> None:
        self._owner.no_more_splits(reader, self._index)

    @override
    def send_event(self, reader: int, event: Any) -> None:
        self._context.send_event(reader, Inner(self._index, event))

    @override
    def call_async(self, work: Callable[[], Callable[[], None]]) -> None:
        self._context.call_async(work)

    @override
    def wake(self, after_s: float = 0.0) -> None:
        self._context.wake(after_s)


class HybridEnumerator(Enumerator):
    """Enumerator that has one enumerator at a time: that of the source being read.

    A reader that restarts may be restored from before a switch. It then reads what it had of earlier sources by
    itself, from its snapshot and from the splits that are returned here, before it goes on with the current one.

    Args:
        context: given by the runtime.
        sources: the sources.
        restored: what an earlier enumerator kept, or None.
    """

    def __init__(
        self, context: EnumeratorContext, sources: SourceSequence[Any], restored: HybridState | None
    ) -> None:
        self._context = context
        self._sources = sources
        self._times = (context.clock.now_ms(),) if restored is None else restored.times
        # By reader: splits of earlier sources.
        self._returned: dict[int, list[Part]] = {}
        for number, part in enumerate(() if restored is None else restored.returned):
            self._returned.setdefault(number % context.parallelism, []).append(part)
        self._readers: set[int] = set()
        # Readers that have come to the current source, that get no more splits of it, and that have read it.
        self._ready: set[int] = set()
        self._told: set[int] = set()
        self._finished: set[int] = set()
        # Whether the first search of the source that is switched to is under way.
        self._searching = False
        self._current = self._create(None if restored is None else restored.current)

    @property
    def _index(self) -> int:
        return len(self._times) - 1

    def _create(self, restored: Any) -> Enumerator:
        source = self._sources.at(self._times)
        most, readers = source.max_readers, self._context.parallelism
        if most is not None and readers > most:
            raise ConfigurationError(
                f"HybridSource: {source!r:.200} can be read by at most {most} readers, and the parallelism of the "
                f"step is {readers}: set it to {most}"
            )
        context = _Context(self, self._context, self._index)
        return checked(source.create_enumerator(context, restored), Enumerator, source, "create_enumerator")

    def first_search(self) -> Callable[[], Callable[[], None]]:
        """Return the first search of the current source, in another thread in any case, as its close() may be."""
        search = self._current.first_search()
        return search or (lambda: self._current.start)

    def start(self) -> None:
        """Make the first search in the calling thread."""
        self.first_search()()()

    @override
    def add_reader(self, reader: int) -> None:
        self._readers.add(reader)
        if reader in self._ready:  # that was an earlier attempt
            for readers in (self._ready, self._told, self._finished):
                readers.discard(reader)
        if not self._searching:
            self._begin(reader)

    @override
    def handle_split_request(self, reader: int) -> None:
        if not self._searching:
            self._current.handle_split_request(reader)

    def handle_event(self, reader: int, event: Ready | Finished | Inner) -> None:
        """Note that a reader has come to the current source or has read it, or pass an event to its enumerator."""
        if self._searching or event.index != self._index:
            return  # of a reader that is still with an earlier source
        if isinstance(event, Ready):
            self._ready.add(reader)
            if reader in self._told:
                self._tell(reader)
            self._current.add_reader(reader)
        elif isinstance(event, Inner):
            self._current.handle_event(reader, event.event)
        else:
            self._finished.add(reader)
            if len(self._finished) == self._context.parallelism:
                self._switch()

    def add_splits_back(self, splits: Sequence[Part], reader: int) -> None:
        """Return the splits of the current source to its enumerator, and keep earlier ones for the reader."""
        self._finished.discard(reader)
        self._told.discard(reader)
        current = [part.split for part in splits if part.index == self._index]
        if current:
            self._current.add_splits_back(current, reader)
        if earlier := [part for part in splits if part.index != self._index]:
            self._returned.setdefault(reader, []).extend(earlier)

    def run(self) -> None:
        """Run the enumerator of the current source, if that has begun."""
        if not self._searching:
            self._current.run()

    @override
    def snapshot(self) -> Any:
        current = None
        # Until its first search has ended, nothing is assigned, and a restored job searches anew.
        if not self._searching and (current := self._current.snapshot()) is None:
            raise ConnectorError(
                f"the enumerator of {self._sources.at(self._times).name} returned None from snapshot(), which "
                "stands for a source that has not begun: return the splits that are not assigned, as a list"
            )
        returned = tuple(part for parts in self._returned.values() for part in parts)
        return HybridState(self._times, current, returned)

    def close(self) -> None:
        """Close the current enumerator."""
        self._current.close()

    def no_more_splits(self, reader: int, index: int) -> None:
        """Notify a reader that no more splits of a source will come."""
        if index == self._index and reader not in self._told:
            self._told.add(reader)
            if reader in self._ready:
                self._tell(reader)

    def _tell(self, reader: int) -> None:
        if self._index == len(self._sources) - 1:
            self._context.no_more_splits(reader)
        else:
            self._context.send_event(reader, NoMore(self._index))

    def _begin(self, reader: int) -> None:
        """Have a reader read what it has of earlier sources, and then the current one."""
        self._context.assign(reader, self._returned.pop(reader, ()))
        self._context.send_event(reader, Began(self._times))

    def _switch(self) -> None:
        for readers in (self._ready, self._told, self._finished):
            readers.clear()
        ended = self._current
        self._times += (self._context.clock.now_ms(),)
        self._current = self._create(None)
        self._searching = True
        search = self._current.first_search()
        start = self._current.start

        def work() -> Callable[[], None]:
            ended.close()
            found = start if search is None else search()
            return lambda: self._switched(found)

        self._context.call_async(work)

    def _switched(self, take: Callable[[], None]) -> None:
        """Begin with the source that was switched to, of which the first search has ended."""
        self._searching = False
        take()
        for reader in sorted(self._readers):
            self._begin(reader)
