"""Reader of a hybrid source: it has the reader of one source at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sluiceway.connector import END_OF_INPUT, Poll, Reader, ReaderContext, Wait
from sluiceway.connector.lib.hybrid.messages import Began, Finished, Inner, NoMore, Part, Ready, split_id_of
from sluiceway.connector.lib.hybrid.sequence import SourceSequence
from sluiceway.connector.products import checked
from sluiceway.util.overriding import override

__all__ = ["HybridReader"]

T_co = TypeVar("T_co", covariant=True)

_GAUGE: Final = "currentSourceIndex"


class HybridReader(Reader[T_co]):
    """Reader that has one reader at a time: that of the source being read.

    Args:
        context: given by the runtime.
        sources: the sources.
    """

    def __init__(self, context: ReaderContext, sources: SourceSequence[T_co]) -> None:
        self._context = context
        self._sources = sources
        # When the sources began; empty until the enumerator tells.
        self._times: tuple[int, ...] = ()
        # The source that is read, or the next one to be read.
        self._index = 0
        self._reader: Reader[T_co] | None = None
        self._waiting: dict[int, list[Any]] = {}
        self._paused: frozenset[str] = frozenset()
        # Splits of the source being read, until the reader has named one of its records, or has named none.
        self._unnamed: list[str] = []
        self._finished_ids: list[str] = []
        self._rejected: list[tuple[Any, Exception, int | None]] = []
        context.metrics.gauge(_GAUGE, lambda: self._index)

    def add_splits(self, splits: Sequence[Part]) -> None:
        """Give the splits of the source being read to its reader, and keep others until that is read."""
        for part in splits:
            self._waiting.setdefault(part.index, []).append(part.split)
        if self._reader is not None:
            self._give(self._reader)

    def no_more_splits(self) -> None:
        """Note that the last source has no more splits."""
        if self._reader is not None:
            self._reader.no_more_splits()

    def handle_event(self, event: Began | NoMore | Inner) -> None:
        """Note what the enumerator says of the current source."""
        if isinstance(event, Began):
            self._times = event.times
        elif self._reader is not None and event.index == self._index:
            if isinstance(event, NoMore):
                self._reader.no_more_splits()
            else:
                self._reader.handle_event(event.event)

    def poll(self, limit: int) -> Poll[T_co]:
        """Read on in the source being read, or begin with the next one."""
        while True:
            reader = self._reader or self._open()
            if reader is None:
                return Wait()
            result = reader.poll(limit)
            if result is END_OF_INPUT:
                self._finished_ids += [split_id_of(self._index, name) for name in ("", *self._unnamed)]
                if self._index == len(self._sources) - 1:
                    return END_OF_INPUT
                self._leave(reader)
            else:
                if not isinstance(result, Wait):
                    self._name(reader.current_split_id)
                return result

    @override
    def finished_splits(self) -> Sequence[str]:
        if self._reader is not None:
            self._note_finished(self._reader)
        if not self._finished_ids:
            return ()
        finished, self._finished_ids = self._finished_ids, []
        return finished

    def waiting_splits(self) -> Collection[str]:
        """Return those of the source being read, and all of later ones."""
        waiting = [
            split_id_of(index, split.split_id) for index, splits in self._waiting.items() for split in splits
        ]
        if self._reader is not None:
            waiting += [split_id_of(self._index, name) for name in self._reader.waiting_splits()]
        return waiting

    @override
    def pause_splits(self, split_ids: Collection[str]) -> bool:
        self._paused = frozenset(split_ids)
        return self._reader is None or self._pause(self._reader)

    @override
    def rejected(self) -> Sequence[tuple[Any, Exception, int | None]]:
        rejected, self._rejected = self._rejected, []
        return rejected if self._reader is None else [*rejected, *self._reader.rejected()]

    @override
    def snapshot(self) -> list[Any]:
        current = [] if self._reader is None else self._reader.snapshot()
        waiting = [Part(index, split) for index, splits in self._waiting.items() for split in splits]
        return [Part(self._index, split) for split in current] + waiting

    @override
    def checkpoint_completed(self, splits: Sequence[Part]) -> None:
        if self._reader is not None:
            self._reader.checkpoint_completed([part.split for part in splits if part.index == self._index])

    @override
    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    # ---- inside ----------------------------------------------------------------------------------------------

    def _open(self) -> Reader[T_co] | None:
        """Create the reader of the next source that is to be read; None: it has not begun."""
        current = len(self._times) - 1
        while self._index < current and self._index not in self._waiting:
            self._index += 1
        if self._index > current:
            return None
        index = self._index
        source = self._sources.at(self._times[: index + 1])
        context = replace(
            self._context,
            # What is left of an earlier source is here; its enumerator is gone.
            request_split=self._context.request_split if index == current else _nothing,
            send_event=lambda event: self._context.send_event(Inner(index, event)),
        )
        # Before start(): close() then frees what a failed call has opened.
        reader = self._reader = checked(source.create_reader(context), Reader, source, "create_reader")
        if index == current:
            self._context.send_event(Ready(index))
        reader.start()
        self._give(reader)
        if index < current:
            reader.no_more_splits()
        return reader

    def _give(self, reader: Reader[T_co]) -> None:
        if splits := self._waiting.pop(self._index, None):
            self._unnamed += [split.split_id for split in splits]
            reader.add_splits(splits)
            if self._paused:
                self._pause(reader)

    def _pause(self, reader: Reader[T_co]) -> bool:
        prefix = split_id_of(self._index, "")
        return reader.pause_splits({id_.removeprefix(prefix) for id_ in self._paused if id_.startswith(prefix)})

    def _name(self, split_id: str | None) -> None:
        """Name the split of the records that were read.

        A reader of which some records have no split has one watermark for all its splits: those of a source that
        names none get a split of their own, so that later sources keep theirs.
        """
        if split_id is None:
            self._finished_ids += [split_id_of(self._index, each) for each in self._unnamed]
        self._unnamed.clear()
        self.current_split_id = split_id_of(self._index, split_id or "")

    def _note_finished(self, reader: Reader[T_co]) -> None:
        self._finished_ids += [split_id_of(self._index, name) for name in reader.finished_splits()]

    def _leave(self, reader: Reader[T_co]) -> None:
        """Close the reader of a source that was read to its end, and report that."""
        self._note_finished(reader)
        self._unnamed.clear()
        self._rejected += reader.rejected()
        # First: close() does not repeat a close() that has failed.
        self._reader = None
        reader.close()
        metrics = self._context.metrics
        for name in [name for name in metrics.gauges if name != _GAUGE]:
            metrics.remove_gauge(name)
        self._index += 1
        if self._index == len(self._times):
            self._context.send_event(Finished(self._index - 1))


def _nothing() -> None: ...
