"""Contract of sources, as connectors implement it.

A source is an *enumerator* (one per job: discovers splits and assigns them) and *readers* (one per subtask: read
splits, and know their positions). None of their methods may block: one without data returns what to wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from sluiceway.clock import Clock
from sluiceway.connector.waits import Wait
from sluiceway.elements import Batch
from sluiceway.errors import ConnectorError
from sluiceway.metrics import MetricGroup
from sluiceway.util.overriding import override

__all__ = [
    "END_OF_INPUT",
    "Alternatives",
    "Boundedness",
    "Comparison",
    "EndOfInput",
    "Enumerator",
    "EnumeratorContext",
    "Poll",
    "Reader",
    "ReaderContext",
    "SimpleEnumerator",
    "SimpleReader",
    "Source",
    "Split",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Boundedness(Enum):
    """Boundedness of a source, which may or may not end by itself."""

    BOUNDED = "bounded"
    UNBOUNDED = "unbounded"


class Split(Protocol):
    """Part of a source that one reader reads: picklable, with the position from which to continue."""

    @property
    def split_id(self) -> str:
        """Name of the split among all splits of the source, whatever its position."""


class EndOfInput(Enum):
    """Type of :data:`END_OF_INPUT`."""

    END_OF_INPUT = "end of input"


END_OF_INPUT: Final = EndOfInput.END_OF_INPUT
"""Result of a reader's poll when no record follows."""

Comparison: TypeAlias = tuple[str, str, Any]
"""Column, operator (``= != < <= > >= in``) and value, a tuple for ``in``. None of them holds for null."""

Alternatives: TypeAlias = tuple[tuple[Comparison, ...], ...]
"""Conjunctions of comparisons, of which one holds."""

Poll: TypeAlias = list[T] | Batch[T] | Wait | EndOfInput
"""Result of a reader's poll: records (at least one; the list is given away), a wait, or the end."""


def _refuse_event(event: Any) -> None:
    raise ConnectorError(
        "this engine passes no events between readers and enumerators: a source that sends them declares it with "
        "uses_events, and is then refused before it runs"
    )


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """Context of a reader.

    Attributes:
        subtask: index of the reader.
        parallelism: number of readers.
        clock: the runtime's clock.
        wake: makes the runtime poll the reader soon; may be called from any thread.
        request_split: asks the enumerator for one more split.
        metrics: the reader's own metrics.
        send_event: sends the enumerator a picklable object for :meth:`Enumerator.handle_event`, behind earlier
            requests. For sources with :attr:`Source.uses_events`.
    """

    subtask: int
    parallelism: int
    clock: Clock
    wake: Callable[[], None]
    request_split: Callable[[], None]
    metrics: MetricGroup
    send_event: Callable[[Any], None] = _refuse_event


class Reader(ABC, Generic[T_co]):
    """Reader of the splits assigned to one subtask. All calls come from the task's thread.

    Call order: :meth:`start`; then :meth:`add_splits`, :meth:`no_more_splits`, :meth:`poll` and
    :meth:`snapshot` in any order; :meth:`close` exactly once, also after failure and cancel.

    A reader that names the split of its records has watermarks per split: then it must implement
    :meth:`finished_splits`, too. The splits of any other have one watermark together.

    Attributes:
        current_split_id: the split that all records of the last :meth:`poll` are from; None: unknown.
    """

    current_split_id: str | None = None

    def start(self) -> None:
        """Open what is needed. Splits come later."""

    @abstractmethod
    def add_splits(self, splits: Sequence[Any]) -> None:
        """Take splits to read, each from the position inside it."""

    @abstractmethod
    def no_more_splits(self) -> None:
        """Note that no split will be added: return :data:`END_OF_INPUT` when all splits are read."""

    def handle_event(self, event: Any) -> None:
        """Handle what the enumerator sent with :meth:`EnumeratorContext.send_event`, in order with its splits."""

    @abstractmethod
    def poll(self, limit: int) -> Poll[T_co]:
        """Return the available records, at once.

        Args:
            limit: largest number of records to return, roughly; never many times that, as memory depends on it.

        Returns:
            a non-empty list or batch, which the caller owns; or a :class:`Wait`; or :data:`END_OF_INPUT`.

        Raises:
            ConnectorError: the input cannot be read; the job fails with it.
        """

    def finished_splits(self) -> Sequence[str]:
        """Return the ids of the splits that were read to their end since the last call.

        A reader that names the split of its records reports the end of each: until then it holds the watermark
        back.
        """
        return ()

    def waiting_splits(self) -> Collection[str]:
        """Return the ids of the splits that wait until this reader has read others: they are not idle."""
        return ()

    def pause_splits(self, split_ids: Collection[str]) -> bool:
        """Return no records of these splits until the next call, which names all that are to pause from then on.

        Called where sources wait for one another (watermark alignment).

        Returns:
            whether the reader does it; False, always, from a reader that cannot: it is then paused as a whole.
        """
        return False

    def rejected(self) -> Sequence[tuple[Any, Exception, int | None]]:
        """Return the records that could not be decoded since the last call.

        Called after each :meth:`poll`. The step's ``on_error`` decides: the job fails with the exception, or the
        record becomes a dead letter. The source must declare :attr:`Source.rejects_records`.

        Returns:
            for each record its content as a dead letter, the exception, and its event time (ms) or None.
        """
        return ()

    @abstractmethod
    def snapshot(self) -> list[Any]:
        """Return the splits that are not read to their end, each with the position after the last polled record.

        Another reader that is assigned them, at any parallelism, loses and repeats no record. Empty when the
        reader has reached its end: a job restored from it reads nothing again.
        """

    def checkpoint_completed(self, splits: Sequence[Any]) -> None:
        """Handle the completion of a checkpoint, for example by publishing its positions for monitoring.

        What is published here is lost or late after a failure; nothing may depend on it. Must not block.

        Args:
            splits: what :meth:`snapshot` returned for that checkpoint.
        """

    @abstractmethod
    def close(self) -> None:
        """Free files, sockets and threads: all of them, after any call, also before :meth:`start` or a split."""


class EnumeratorContext(ABC):
    """Context of an enumerator: from its own thread only, except :meth:`wake`."""

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """Number of readers."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """Clock of the runtime."""

    @abstractmethod
    def assign(self, reader: int, splits: Sequence[Any]) -> None:
        """Give splits to a reader."""

    @abstractmethod
    def no_more_splits(self, reader: int) -> None:
        """Tell a reader that it will get no more splits."""

    def send_event(self, reader: int, event: Any) -> None:
        """Send a picklable object to a reader, for :meth:`Reader.handle_event`; dropped unless the reader runs.

        A reader that restarts receives no earlier event: send what it has to know in
        :meth:`Enumerator.add_reader`. For sources with :attr:`Source.uses_events`.
        """
        _refuse_event(event)

    def call_async(self, work: Callable[[], Callable[[], None]]) -> None:
        """Call what may block in another thread, and in the enumerator's thread the function that it returns.

        Several are called one after the other, and :meth:`Enumerator.close` comes behind them if there was a
        :meth:`Enumerator.first_search`. An exception fails the job. A runtime without threads calls both at once.
        """
        work()()

    @abstractmethod
    def wake(self, after_s: float = 0.0) -> None:
        """Have :meth:`Enumerator.run` called again, after a delay in seconds. From any thread."""


class Enumerator(ABC):
    """Discovery and assignment of the splits of a source. One per job and source, beside the job master.

    Call order: :meth:`start`, or what :meth:`first_search` returns; then :meth:`add_reader` for each reader when
    it has started and :meth:`handle_split_request`; :meth:`close` once.
    """

    @property
    def assigns_to_any(self) -> bool:
        """True if any reader may read any split, in any order, as where whoever requests one gets the next one.

        Micro-batches assign splits ahead. Those that their reader has not begun are then moved to idle readers.
        """
        return False

    def start(self) -> None:
        """Find the first splits."""

    def first_search(self) -> Callable[[], Callable[[], None]] | None:
        """Return the part of :meth:`start` that may block, for the runtime to call it in another thread.

        It changes no field, and returns a function that does, which the enumerator's thread calls. Until then no
        other method is called. :meth:`close` of such an enumerator may block, too: another thread calls it.

        Returns:
            None: :meth:`start` does not block, or has to be called as a whole.
        """
        return None

    def add_reader(self, reader: int) -> None:
        """Handle a reader that is ready to receive splits."""

    @abstractmethod
    def handle_split_request(self, reader: int) -> None:
        """Handle a reader's request for one more split."""

    def handle_event(self, reader: int, event: Any) -> None:
        """Handle what a running reader sent with :attr:`ReaderContext.send_event`."""

    @abstractmethod
    def add_splits_back(self, splits: Sequence[Any], reader: int) -> None:
        """Take back splits of a failed reader, at these positions, to assign them again, to any reader."""

    def run(self) -> None:
        """Search for new splits; called after :meth:`EnumeratorContext.wake`."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the splits that are not assigned yet, and what was discovered: picklable, and not None."""

    def close(self) -> None:
        """Free what was opened."""


class SimpleEnumerator(Enumerator):
    """Enumerator of a list of splits, which assigns one at a request until none is left.

    Args:
        context: given by the runtime.
        splits: the splits, assigned in this order.
    """

    def __init__(self, context: EnumeratorContext, splits: Iterable[Any]) -> None:
        self._context = context
        self._pending: list[Any] = list(splits)

    @property
    def assigns_to_any(self) -> bool:
        """True, unless a subclass answers requests in another way."""
        return type(self).handle_split_request is SimpleEnumerator.handle_split_request

    def handle_split_request(self, reader: int) -> None:
        """Give the next split, or say that there is none."""
        if self._pending:
            self._context.assign(reader, [self._pending.pop(0)])
        else:
            self._context.no_more_splits(reader)

    def add_splits_back(self, splits: Sequence[Any], reader: int) -> None:
        """Put the splits at the head of the list."""
        self._pending[:0] = splits

    @override
    def snapshot(self) -> Any:
        return list(self._pending)


class SimpleReader(Reader[T_co]):
    """Reader of one split after the other, which asks for the next when it has read one.

    A subclass opens, reads and closes a split. At most one split is open at any time; each has its
    own watermark.

    Args:
        context: given by the runtime.
    """

    def __init__(self, context: ReaderContext) -> None:
        self.context = context
        self._waiting: list[Any] = []
        self._finished_ids: list[str] = []
        self._is_open = False
        self._no_more = False

    @abstractmethod
    def open_split(self, split: Any) -> None:
        """Begin with ``split``, at the position inside it."""

    @abstractmethod
    def read(self, limit: int) -> Poll[T_co]:
        """Return what :meth:`Reader.poll` does, of the open split; :data:`END_OF_INPUT` at its end."""

    @abstractmethod
    def position(self) -> Any:
        """Return the open split with the position after the last record returned; None if it is finished."""

    @abstractmethod
    def close_split(self) -> None:
        """Free what the open split uses. Comes exactly once after :meth:`open_split`, also if that failed."""

    def start(self) -> None:
        """Ask for the first split."""
        self.context.request_split()

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Take splits, to be read in this order."""
        self._waiting.extend(splits)

    def no_more_splits(self) -> None:
        """End when those at hand are read."""
        self._no_more = True

    def poll(self, limit: int) -> Poll[T_co]:
        """Read on in the open split, or begin with the next one."""
        while True:
            if not self._is_open:
                if not self._waiting:
                    return END_OF_INPUT if self._no_more else Wait()
                # Before open_split(): close() then frees what a failed call has opened.
                self._is_open = True
                split = self._waiting.pop(0)
                self.current_split_id = split.split_id
                self.open_split(split)
            result = self.read(limit)
            if result is not END_OF_INPUT:
                return result
            self._leave()
            if self.current_split_id is not None:
                self._finished_ids.append(self.current_split_id)
            if not self._waiting and not self._no_more:
                self.context.request_split()

    @override
    def finished_splits(self) -> Sequence[str]:
        if not self._finished_ids:
            return ()
        finished, self._finished_ids = self._finished_ids, []
        return finished

    def waiting_splits(self) -> Collection[str]:
        """Return the splits not begun while another one is open."""
        return [split.split_id for split in self._waiting] if self._is_open else ()

    def snapshot(self) -> list[Any]:
        """Return the open split at its position, then those not begun."""
        current = self.position() if self._is_open else None
        return ([] if current is None else [current]) + self._waiting

    def close(self) -> None:
        """Close the open split."""
        if self._is_open:
            self._leave()

    def _leave(self) -> None:
        # First: close() does not repeat a close_split() that has failed.
        self._is_open = False
        self.close_split()


class Source(ABC, Generic[T_co]):
    """Description of where records come from, which opens nothing by itself.

    It can be pickled with cloudpickle, and the result is the same source. Every record is read once, whatever the
    number of readers.
    """

    @property
    @abstractmethod
    def boundedness(self) -> Boundedness:
        """Boundedness of the source."""

    @property
    def name(self) -> str:
        """Name in plans."""
        return type(self).__name__

    @property
    def output_type(self) -> Any:
        """Type of its records, or None if it is not known."""
        return None

    def in_columns(self) -> tuple[Source[Any], Any] | None:
        """Return a source of the same rows in columns, and their ``pyarrow.Schema``; None if it has records alone.

        The reader of that source returns batches made by :meth:`~sluiceway.elements.Batch.of_columns`, of up to
        ``limit * ROWS_PER_RECORD`` rows. Called by ``Pipeline.table()``; it may look at what is to be read.

        Raises:
            ConnectorError: the schema cannot be found out.
        """
        return None

    def pushed(
        self, columns: frozenset[str] | None, conditions: Alternatives | None
    ) -> tuple[Source[Any], Any] | None:
        """Return a source that reads less, and the ``pyarrow.Schema`` of what it reads; None if it cannot.

        Called for a source in columns when the graph is made, with what the steps behind it need. Positions of
        readers have to mean the same as before, because a checkpoint may be restored with other steps.

        Args:
            columns: names of the columns that are read behind the source, and others; None: all of them.
            conditions: what is true of each row that counts: the source may leave out other rows, and need not.
                None: each row counts.
        """
        return None

    @property
    def max_readers(self) -> int | None:
        """Largest number of readers that can share the work, at least 1, or None for any number.

        The plan refuses a higher parallelism; the default parallelism is limited to it.
        """
        return None

    @property
    def seekable(self) -> bool:
        """True if a reader can start at any position that another one has reached, as often as needed.

        False for what cannot be read again, such as a socket, and where all records before
        the position have to be read again. Engines that open readers for each batch then keep one open, and
        store its records.
        """
        return True

    @property
    def gives_timestamps(self) -> bool:
        """True if its records may have timestamps, so that windows of event time need no others.

        False for a source that never has any: a job with such windows behind it, and no
        step in between that assigns timestamps, is refused.
        """
        return True

    @property
    def rejects_records(self) -> bool:
        """True if its readers may return :meth:`Reader.rejected` records, which its step can then skip."""
        return False

    @property
    def commits_positions(self) -> bool:
        """True if its readers commit positions outside when a checkpoint is complete, as to a group of Kafka.

        Engines that tell them of none say so: ``Feature.COMMITTED_POSITIONS``.
        """
        return False

    def batch_completed(self, splits: Sequence[Any]) -> None:
        """Handle that splits have ended and all output of them is committed, for example by publishing their ends.

        Called where :meth:`Reader.checkpoint_completed` may not be, and only if :attr:`commits_positions`: behind
        a batch job without checkpoints, once, in the program; and behind a micro-batch in which splits have ended,
        at times twice, while other readers go on. May block for seconds.

        Args:
            splits: each was read to its end; with the position where it was begun, or was then in a micro-batch.
        """

    @property
    def uses_events(self) -> bool:
        """True if its readers and its enumerator send each other events.

        Engines that read each split by itself refuse such a source: ``Feature.SOURCE_EVENTS``.
        """
        return False

    @property
    def needs_program(self) -> bool:
        """True if its enumerator works only in the process of the program, as with an existing session.

        Engines that discover splits in another process refuse such a source: ``Feature.PROGRAM_SOURCES``.
        """
        return False

    @abstractmethod
    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Make the enumerator; ``restored`` is what an earlier one's snapshot returned, or None."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> Reader[T_co]:
        """Make the reader of one subtask."""
