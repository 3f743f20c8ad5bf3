"""Sources that cannot be read again: read in the driver, with the records of each batch stored in files."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluiceway.connector import (
    END_OF_INPUT,
    Boundedness,
    Enumerator,
    EnumeratorContext,
    Poll,
    Reader,
    ReaderContext,
    SimpleReader,
    Source,
    Wait,
)
from sluiceway.connector.products import are_records, wrong_poll
from sluiceway.elements import ROWS_PER_RECORD, Batch, Columns
from sluiceway.persisted import persisted
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.batch_log import BatchLog
from sluiceway.runtime.microbatch.batch_reader import LiveReader, raise_rejected
from sluiceway.runtime.microbatch.driven_enumerator import DrivenEnumerator
from sluiceway.serializers.byvalue import dumps_with_classes
from sluiceway.util.overriding import override

__all__ = ["SpooledSource", "SpooledSplit", "readable"]


@persisted("SpooledSplit")
@dataclass(frozen=True, slots=True)
class SpooledSplit:
    """Split of records stored in a file.

    Attributes:
        file: name of the file in the storage.
        count: number of records in the file.
        taken: number of records read.
    """

    file: str
    count: int
    taken: int = 0

    @property
    def split_id(self) -> str:
        """Name of the file."""
        return self.file


@dataclass(frozen=True, slots=True)
class _State:
    """Position of the spooled source.

    Attributes:
        enumerator: snapshot of its enumerator.
        no_more: readers that were notified that no more splits follow.
        readers: splits of each reader, at their positions.
        ended: readers that have reached their end.
    """

    enumerator: Any
    no_more: frozenset[int]
    readers: list[list[Any]]
    ended: frozenset[int]


class SpooledSource(Source[Any]):
    """Source that stores the records of another source in files, and reads the files.

    The other source's readers are open in the driver, as long as this source's enumerator. On a split request the
    records that have arrived are written to a file, which is the split. So each batch can be repeated although the
    source cannot. Records that were received and are in no plan when the driver dies are lost, unless the source
    returns them again.

    Args:
        source: the source to spool.
        files: log whose storage holds the files.
        limits: limits of one file; needed by the enumerator alone.
    """

    def __init__(self, source: Source[Any], files: BatchLog, limits: BatchLimits | None = None) -> None:
        self._source = source
        self._files = files
        self._limits = limits

    @property
    @override
    def name(self) -> str:
        return self._source.name

    @property
    @override
    def boundedness(self) -> Boundedness:
        return self._source.boundedness

    @property
    @override
    def output_type(self) -> Any:
        return self._source.output_type

    @property
    @override
    def max_readers(self) -> int | None:
        return self._source.max_readers

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Return the enumerator that reads the source into files."""
        assert self._limits is not None
        return _StoringEnumerator(context, self._source, self._files, self._limits, restored)

    @override
    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        return _StoredReader(context, self._files)


def readable(source: Source[Any], files: BatchLog) -> Source[Any]:
    """Return the source if it can be read again, else its spooled form."""
    return source if source.seekable else SpooledSource(source, files)


class _StoringEnumerator(Enumerator):
    def __init__(
        self,
        context: EnumeratorContext,
        source: Source[Any],
        files: BatchLog,
        limits: BatchLimits,
        restored: _State | None,
    ) -> None:
        self._context = context
        self._source = source
        self._files = files
        self._limits = limits
        self._restored = restored
        self._splits: DrivenEnumerator | None = None
        self._readers: dict[int, LiveReader] = {}
        self._ended: set[int] = set() if restored is None else set(restored.ended)
        self._asking: set[int] = set()

    def start(self) -> None:
        restored, context = self._restored, self._context
        self._splits = splits = DrivenEnumerator(
            self._source,
            context.parallelism,
            context.clock,
            restored=None if restored is None else restored.enumerator,
            no_more=() if restored is None else restored.no_more,
        )
        splits.start()
        for number in range(context.parallelism):
            if number not in self._ended:
                self._readers[number] = LiveReader(
                    self._source,
                    number,
                    context.parallelism,
                    context.clock,
                    () if restored is None else restored.readers[number],
                    no_more=restored is not None and number in restored.no_more,
                )

    def handle_split_request(self, reader: int) -> None:
        self._asking.add(reader)
        self._serve(reader, 0.0)

    def run(self) -> None:
        for reader in sorted(self._asking):
            self._serve(reader, self._limits.planning_s)

    def add_splits_back(self, splits: Sequence[Any], reader: int) -> None:
        raise AssertionError("readers of batches do not give splits back")

    def snapshot(self) -> Any:
        assert self._splits is not None
        # Splits that the source's enumerator has assigned while another reader was served are in no reader yet.
        assigned = self._splits.peek()
        readers = [
            [*self._readers[number].snapshot(), *assigned.get(number, ())] if number in self._readers else []
            for number in range(self._context.parallelism)
        ]
        return _State(self._splits.snapshot(), frozenset(self._splits.no_more), readers, frozenset(self._ended))

    def close(self) -> None:
        try:
            while self._readers:
                self._readers.popitem()[1].close()
        finally:
            if self._splits is not None:
                self._splits.close()

    def _serve(self, reader: int, patience_s: float) -> None:
        """Assign a file of new records to the reader, notify it of the end, or schedule another attempt."""
        if reader in self._ended:
            self._asking.discard(reader)
            self._context.no_more_splits(reader)
            return
        pieces, ended = self._read(self._readers[reader], reader, patience_s)
        if pieces:
            # Files are complete before they are assigned.
            self._context.assign(reader, [self._stored(piece) for piece in pieces])
        if ended:
            self._ended.add(reader)
            self._readers.pop(reader).close()
            # With records the end comes on the next request, behind the files.
            if not pieces:
                self._context.no_more_splits(reader)
        if pieces or ended:
            self._asking.discard(reader)
        else:
            self._context.wake()

    def _stored(self, piece: Batch[Any]) -> SpooledSplit:
        """Write records to a new file."""
        # A random name: a file that a dead driver has left, and that no plan names, is not written again.
        file = f"{self._files.prefix}/stored/{secrets.token_hex(8)}"
        values: Any = piece.values
        stored = _encoded(values) if type(values) is Columns else values
        self._files.storage.write(file, [dumps_with_classes((stored, piece.timestamps))])
        return SpooledSplit(file, len(piece))

    def _read(self, live: LiveReader, number: int, patience_s: float) -> tuple[list[Batch[Any]], bool]:
        """Return records, in up to two batches of different forms, and whether the input has ended."""
        limits, monotonic = self._limits, self._context.clock.monotonic
        began = monotonic()
        stop = began + limits.time_s
        # Until the first record; from there on the reader lingers for more.
        until = began + patience_s
        pieces: list[Batch[Any]] = []
        count = 0
        while count < limits.records and monotonic() < stop:
            self._give_splits(live, number)
            result = live.reader.poll(limits.records - count)
            raise_rejected(live.reader)
            # Taken so that they do not gather; files have splits of their own.
            live.reader.finished_splits()
            if result is END_OF_INPUT:
                return pieces, True
            if isinstance(result, Wait):
                if live.asked and self._give_splits(live, number):
                    continue
                is_over = result.until is not None and result.until <= monotonic()
                if not is_over and not live.waiter.sleep(result, min(stop, until)):
                    break
                continue
            if not are_records(result):
                raise wrong_poll(result, self._source)
            batch = result if isinstance(result, Batch) else Batch(result)
            stamps = batch.timestamps
            # Files of their own: columns, as such a batch has thousands of rows, and records of another form, as a
            # file has event times of all its records or of none. All go into this plan, which has the position of
            # the source's reader behind them.
            if batch.columns is not None or (pieces and (pieces[0].timestamps is None) != (stamps is None)):
                pieces.append(batch)
                break
            if not pieces:
                until = monotonic() + limits.linger_s
                pieces.append(Batch([], None if stamps is None else []))
            pieces[0].values += batch.values
            if pieces[0].timestamps is not None:
                pieces[0].timestamps += stamps or ()
            count += len(batch)
        return pieces, False

    def _give_splits(self, live: LiveReader, number: int) -> bool:
        """Pass splits, or their end, from the source's own enumerator to this reader; return whether it did."""
        assert self._splits is not None
        self._splits.step()
        while live.asked:
            live.asked -= 1
            self._splits.request(number, again=True)
        return live.give(self._splits.take_for(number), no_more=number in self._splits.no_more)


class _StoredReader(SimpleReader[Any]):
    def __init__(self, context: ReaderContext, files: BatchLog) -> None:
        super().__init__(context)
        self._files = files
        self._split: SpooledSplit | None = None
        self._values: Any = []  # a list, or Columns
        self._stamps: Any = None

    def open_split(self, split: SpooledSplit) -> None:
        self._split = split
        values, self._stamps = self._files.unpickled(self._files.storage.read(split.file))
        self._values = _decoded(values) if type(values) is bytes else values

    def read(self, limit: int) -> Poll[Any]:
        split = self._split
        assert split is not None
        if split.taken >= split.count:
            return END_OF_INPUT
        most = limit * ROWS_PER_RECORD if type(self._values) is Columns else limit
        end = min(split.taken + most, split.count)
        values = self._values[split.taken : end]
        stamps = None if self._stamps is None else self._stamps[split.taken : end]
        self._split = replace(split, taken=end)
        return values if type(values) is list and stamps is None else Batch(values, stamps)

    def position(self) -> SpooledSplit | None:
        return self._split if self._split is not None and self._split.taken < self._split.count else None

    def close_split(self) -> None:
        self._values, self._stamps = [], None


def _encoded(rows: Columns) -> bytes:
    from sluiceway.columns.ipc import encode  # where columns are used, and pyarrow is installed

    return bytes(encode(rows.data))  # pickled, a slice would have all rows that it is of


def _decoded(stored: bytes) -> Any:
    from sluiceway.columns.ipc import decode

    return Columns(decode(stored))
