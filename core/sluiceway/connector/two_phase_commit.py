"""Base classes of sinks with exactly-once results: by transactions, or by idempotent writes."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from sluiceway.connector.sinks import CommittingSinkWriter, DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.util.overriding import override

__all__ = ["IdempotentSink", "TwoPhaseCommitSink"]

T = TypeVar("T")
X = TypeVar("X")


class TwoPhaseCommitSink(Sink[T], ABC, Generic[T, X]):
    """A sink that writes in transactions, each of which is committed when the checkpoint that ends it is complete.

    So what readers of the other side see is exactly-once, as long as transactions that were pre-committed can be
    committed after a restart, from another process. Where a job has no checkpoints, the last transaction is
    committed at the end of the input.

    Every subtask works on a copy of its own of the object, made before :meth:`open`. A transaction is what
    :meth:`begin_transaction` returns: a handle that can be pickled, such as a name.

    Call order: :meth:`open`; after a restart :meth:`recover_and_commit` and :meth:`recover_and_abort` for what the
    checkpoint knows of; then :meth:`abort_unknown`; :meth:`begin_transaction`, :meth:`write` any number of times,
    :meth:`pre_commit` at the barrier, and at once the next :meth:`begin_transaction`; :meth:`commit` when the
    checkpoint is complete; :meth:`close` once. All calls from the task's thread: the methods may block, but hold
    up everything else that the process does.
    """

    @property
    @override
    def guarantee(self) -> DeliveryGuarantee:
        return DeliveryGuarantee.EXACTLY_ONCE

    def open(self, context: WriterContext) -> None:
        """Connect to the external system."""

    @abstractmethod
    def begin_transaction(self) -> X:
        """Begin one, and return its handle, which no other transaction may ever have had, of any attempt."""

    @abstractmethod
    def write(self, transaction: X, values: Sequence[T], timestamps: Sequence[int] | None) -> None:
        """Write records in the transaction. The lists stay the caller's.

        Args:
            transaction: the one that was begun last.
            values: the records.
            timestamps: their event times in ms, or None.
        """

    def pre_commit(self, transaction: X) -> None:
        """Prepare the transaction so that :meth:`commit` cannot fail; nothing more is written in it."""

    @abstractmethod
    def commit(self, transaction: X) -> None:
        """Make visible what was written. May be called again after a restart, and must then be harmless.

        An exception fails the job, which tries again with :meth:`recover_and_commit`.
        """

    @abstractmethod
    def abort(self, transaction: X) -> None:
        """Undo what was written; it was not committed and will not be."""

    def recover_and_commit(self, transaction: X) -> None:
        """Commit a transaction of an earlier attempt; it may have been committed already."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: X) -> None:
        """Abort a transaction of an earlier attempt, which may not exist any more."""
        self.abort(transaction)

    def abort_unknown(self) -> None:
        """Undo what earlier attempts of this subtask have left and no checkpoint includes.

        After a restart from checkpoint n that is, if anything, the transaction that was begun after checkpoint
        n + 1 had been taken and before that was complete.
        """

    def close(self) -> None:
        """Free what was opened. Transactions that were pre-committed stay as they are."""

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[T]:
        return _TransactionWriter(copy.deepcopy(self), context)


class _TransactionWriter(CommittingSinkWriter[Any]):
    """Checkpoints keep pairs ``(is it to be committed, transaction)``: the others are open at the time."""

    def __init__(self, sink: TwoPhaseCommitSink[Any, Any], context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._open: list[Any] = []
        self._opened = False

    def open(self) -> None:
        self._opened = True
        self._sink.open(self._context)

    def recover(self, committables: Sequence[Any]) -> None:
        ready = [transaction for to_be_committed, transaction in committables if to_be_committed]
        for transaction in ready:
            self._sink.recover_and_commit(transaction)
        for to_be_committed, transaction in committables:
            # What was open at one checkpoint may have been ended by the next one, if that was given up.
            if not to_be_committed and transaction not in ready:
                self._sink.recover_and_abort(transaction)
        self._sink.abort_unknown()
        self._open.append(self._sink.begin_transaction())

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self._sink.write(self._open[-1], values, timestamps)

    def prepare_commit(self, checkpoint_id: int) -> list[Any]:
        transaction = self._open[-1]
        self._sink.pre_commit(transaction)
        self._open[-1] = self._sink.begin_transaction()
        # The next transaction is open when the checkpoint is taken: after a failure it has to be aborted.
        return [(True, transaction), (False, self._open[-1])]

    def commit(self, committables: Sequence[Any]) -> None:
        for to_be_committed, transaction in committables:
            if to_be_committed:
                self._sink.commit(transaction)

    def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        try:
            if self._open:
                self._sink.abort(self._open.pop())
        finally:
            self._sink.close()


class IdempotentSink(Sink[T], ABC):
    """A sink that writes each record under a key, so that writing it again changes nothing.

    What was written since the last checkpoint is written again after a restart, in the same order for each key if
    the pipeline is deterministic; until then readers may see values of a moment before or after.

    Every subtask works on a copy of its own of the object, made before :meth:`open`. Call order: :meth:`open`,
    then :meth:`key_of` and :meth:`upsert` alternately, :meth:`close` once. All calls from the task's thread: the
    methods may block, but hold up everything else that the process does.

    Attributes:
        most: how many keys are held at the most before they are written.
    """

    most: int = 1000

    @property
    def guarantee(self) -> DeliveryGuarantee:
        """Idempotent."""
        return DeliveryGuarantee.IDEMPOTENT

    def open(self, context: WriterContext) -> None:
        """Connect to the external system."""

    @abstractmethod
    def key_of(self, value: T) -> Hashable:
        """Return the key under which a record is written. It must depend on the record alone."""

    @abstractmethod
    def upsert(self, entries: Mapping[Any, T]) -> None:
        """Write records by key, replacing those under these keys; durably, when it returns.

        Called at every checkpoint, when input runs dry, and when there are :attr:`most` of them. Of several
        records with one key only the last is passed.
        """

    def close(self) -> None:
        """Free what was opened."""

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[T]:
        return _UpsertWriter(copy.deepcopy(self), context)


class _UpsertWriter(SinkWriter[Any]):
    def __init__(self, sink: IdempotentSink[Any], context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        self._entries: dict[Any, Any] = {}
        self._opened = False

    def open(self) -> None:
        self._opened = True
        self._sink.open(self._context)

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        entries, key_of, most = self._entries, self._sink.key_of, self._sink.most
        for value in values:
            key = key_of(value)
            entries.pop(key, None)  # the order is that of the last write
            entries[key] = value
            if len(entries) >= most:
                self.flush()
                entries = self._entries

    def flush(self) -> None:
        if self._entries:
            entries, self._entries = self._entries, {}
            self._sink.upsert(entries)

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self._sink.close()
