"""The writer with transactions that survive the process.

What is written between two checkpoints goes through one producer with a transactional id of its own. At the
barrier the producer is flushed, and a marker, an offset of a group of the sink's, becomes part of the transaction.
The transactional id, the producer's id and its epoch go into the checkpoint: whoever has them can commit, in any
process. When the checkpoint is complete, the transaction is committed. After a failure those that the checkpoint
does not name are aborted, then those that it names are committed. A coordinator that knows nothing of a named one
any more is no proof that it was committed; the marker is. An attempt that replaces the marker of another one names
what that proves, whether it was restored from it or not.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sluiceway.connector import CommittingSinkWriter, Wait, WriterContext
from sluiceway.errors import ConnectorError
from sluiceway_kafka._connection import Connection, PositionLostError, describe_error, failing_with
from sluiceway_kafka._coordinator import Coordinator, timeout_refused
from sluiceway_kafka._encoders import Encoder
from sluiceway_kafka._producer import Flusher, Outbox
from sluiceway_kafka._writers import count_written

__all__ = ["Committable", "TransactionalWriter", "marker_group"]

_log: Final = logging.getLogger("sluiceway_kafka")

_SLOTS: Final = 3
"""Transactional ids of a subtask at first: one is written to, one is to be committed, one is made ready."""

_CLOSING_S: Final = 2.0
"""Time that a close may wait for the abort of the open transaction."""

_MOST_ANCESTORS: Final = 32
"""Number of earlier attempts that a marker names: a broker takes 4096 bytes by default."""

_MOVED: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
)
_PAUSE_S: Final = 0.05

Ancestors = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Committable:
    """A transaction in a checkpoint.

    Attributes:
        transactional_id: its transactional id; empty: nothing was written, and there is nothing to commit.
        producer_id: that of its producer.
        epoch: that of its producer.
        number: its number among those of the attempt that has written it, from 1.
        attempt: names that attempt.
        ancestors: earlier attempts, each with the number of its last transaction that is known to be committed.
        group: the group that holds the marker.
        topic: the topic that the marker is an offset of.
        parallelism: number of subtasks of that attempt; 0: not known, as in checkpoints of earlier versions.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    number: int
    attempt: str
    ancestors: Ancestors
    group: str
    topic: str
    parallelism: int = 0


@dataclass(slots=True)
class _Transaction:
    """A producer that is ready for one transaction.

    Attributes:
        slot: number of its transactional id.
        transactional_id: the id.
        outbox: the producer.
        producer_id: its id.
        epoch: its epoch.
        topic: the topic that was written to last; empty: the transaction has not begun.
        began: when it began, in monotonic seconds.
    """

    slot: int
    transactional_id: str
    outbox: Outbox
    producer_id: int
    epoch: int
    topic: str = ""
    began: float = 0.0


def marker_group(prefix: str, subtask: int) -> str:
    """Return the group that holds the markers of a subtask."""
    return f"{prefix}-{subtask}"


class TransactionalWriter(CommittingSinkWriter[Any]):
    """Writer of each checkpoint's records in one transaction.

    Args:
        context: given by the runtime.
        connection: how to reach the cluster.
        encoder: makes messages of records.
        settings: properties of the producer that the sink sets.
        prefix: what transactional ids begin with.
        timeout_ms: after which brokers abort a transaction.
    """

    def __init__(
        self,
        context: WriterContext,
        connection: Connection,
        encoder: Encoder,
        settings: Mapping[str, Any],
        *,
        prefix: str,
        timeout_ms: int,
    ) -> None:
        self._context = context
        self._connection = connection
        self._encoder = encoder
        self._settings = settings
        self._prefix = prefix
        self._timeout_ms = timeout_ms
        self._group = marker_group(prefix, context.subtask)
        self._flusher = Flusher(context.wake, context.clock)
        self._coordinator: Coordinator | None = None
        self._group_metadata: Any = None
        self._version = 0
        self._attempt = secrets.token_hex(6)
        self._ancestors: Ancestors = ()
        # Topics whose marker is this attempt's, or will be with the next commit.
        self._marked: set[str] = set()
        self._number = 0
        self._free = list(range(_SLOTS))
        self._slots = _SLOTS
        self._current: _Transaction | None = None
        self._next: Future[_Transaction] | None = None
        self._prepared: dict[int, _Transaction] = {}
        self._thread: ThreadPoolExecutor | None = None

    # ---- the contract ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Reach the cluster."""
        self._coordinator = Coordinator(self._connection)
        self._version = self._coordinator.transaction_version()
        self._thread = ThreadPoolExecutor(1, "sluiceway-kafka-transactions")
        # Its group is never joined: it stands for the group where offsets become part of a transaction.
        consumer = self._connection.consumer(_ignore, **{"group.id": self._group})
        try:
            self._group_metadata = consumer.consumer_group_metadata()
        finally:
            consumer.close()

    def recover(self, committables: Sequence[Committable]) -> None:
        """Abort what no checkpoint knows of, then commit what the restored one names."""
        assert self._coordinator is not None
        named = [each for each in committables if each.transactional_id]
        names = {each.transactional_id for each in named}
        aborted = []
        # Before anything is committed: an open transaction of a dead attempt holds the marker, which cannot be
        # read then, and its producer may still write.
        for transactional_id, state in sorted(self._own_ids(committables).items()):
            if transactional_id not in names:
                self._coordinator.fence(transactional_id, self._timeout_ms)
                if state == "Ongoing":
                    aborted.append(transactional_id)
        if aborted:
            _log.warning(
                "aborted open transactions of earlier attempts, which the restored checkpoint does not name: %s. "
                "Their records are written again",
                ", ".join(aborted),
            )
        self._end(named, restoring=True)
        if named:
            _log.info(
                "committed the transactions of the restored checkpoint: %s",
                ", ".join(f"{each.transactional_id} (number {each.number})" for each in named),
            )
        # Attempts that the marker may name as proof, those that were committed just now included. The markers of
        # other groups stay as they are.
        for each in committables:
            if each.group == self._group:
                self._ancestors = _joined(self._ancestors, (*each.ancestors, (each.attempt, each.number)))
        self._make_next()
        self._advance()

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Give records to the client, in the running transaction."""
        current = self._current
        assert current is not None
        messages = self._encoder.encode(values, timestamps)
        if not current.topic:
            with failing_with("begin a transaction", self._connection):
                current.outbox.producer.begin_transaction()
            current.began = self._context.clock.monotonic()
        current.topic = messages[-1][0]
        current.outbox.send(messages)
        current.outbox.serve()
        count_written(self._context, messages)

    def blocked(self) -> Wait | None:
        """Return a wait for room in the client, or after a flush for all acknowledgements; None: none is due."""
        if self._current is None:
            return None
        if self._flusher.poll_is_due():
            self._current.outbox.serve()
            self._serve_next()
        return self._flusher.blocked(self._current.outbox)

    def flush(self) -> None:
        """Send everything, and wait for the acknowledgements."""
        assert self._current is not None
        if self._current.topic:
            self._flusher.begin(self._current.outbox)
        else:
            self._current.outbox.serve()
        self._serve_next()

    def _serve_next(self) -> None:
        # While brokers are away, log lines fill the queue of each client. Only a poll empties it.
        ready = self._ready()
        if ready is not None:
            ready.outbox.serve()

    def prepare_commit(self, checkpoint_id: int) -> list[Committable]:
        """Make the marker part of the transaction, and go on with the next producer."""
        current = self._current
        assert current is not None
        if not current.topic:
            # Brokers know nothing of a transaction without records: committing it would fail.
            return [self._committable("", -1, -1, "")]
        current.outbox.check()
        self._take_over_marker(current.topic)
        self._number += 1
        marker = TopicPartition(current.topic, 0, self._number, _written(self._attempt, self._ancestors))
        try:
            # After the flush: only this call tells that a record of the transaction was refused meanwhile.
            current.outbox.producer.send_offsets_to_transaction(
                [marker], self._group_metadata, self._connection.timeout_s
            )
        except (KafkaException, SystemError) as error:
            current.outbox.fail(error)
        current.outbox.check()
        committable = self._committable(
            current.transactional_id, current.producer_id, current.epoch, current.topic
        )
        self._prepared[self._number] = current
        self._context.metrics.histogram("transactionOpen").observe(self._context.clock.monotonic() - current.began)
        self._advance()
        return [committable]

    def commit(self, committables: Sequence[Committable]) -> None:
        """Commit transactions of this attempt, and make their ids available again."""
        began = self._context.clock.monotonic()
        mine = [each for each in committables if each.transactional_id]
        if not mine:
            return
        self._end(mine)
        for each in mine:
            done = self._prepared.pop(each.number, None) if each.attempt == self._attempt else None
            # Only transactions of this attempt have a producer and a slot here.
            if done is not None:
                self._release(done)
        self._context.metrics.histogram("transactionCommit").observe(self._context.clock.monotonic() - began)

    def close(self) -> None:
        """Abort the open transaction if that is quick; leave those that are prepared as they are."""
        self._flusher.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(cancel_futures=True)
        current, self._current = self._current, None
        ready, self._next = self._ready(), None
        if current is not None and current.topic and self._coordinator is not None:
            self._abort(current)
        for each in (current, ready, *self._prepared.values()):
            if each is not None:
                each.outbox.close()
        self._prepared.clear()
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.close()

    # ---- producers -------------------------------------------------------------------------------------------

    def _own_ids(self, committables: Sequence[Committable]) -> dict[str, str]:
        """Return the ids that this subtask clears up, those of earlier subtasks among them, with their states.

        An earlier prefix is known from its committables, of which every subtask has had one. They are distributed
        by the same rule as the ids here: the subtask of before modulo the parallelism. With fewer subtasks before
        than now, some have none and do not know the prefix: the first one clears up in their place. No committable
        names such ids: they are of an attempt with more subtasks that has not completed a checkpoint.
        """
        assert self._coordinator is not None
        before = {
            each.group.rpartition("-")[0]: getattr(each, "parallelism", 0) or self._context.parallelism
            for each in committables
        }
        own: dict[str, str] = {}
        for prefix in {self._prefix, *before}:
            knowing = self._context.parallelism if prefix == self._prefix else before[prefix]
            form = re.compile(re.escape(prefix) + r"-(\d+)-\d+")
            for each in self._coordinator.list(f"{prefix}-"):
                match = form.fullmatch(each.transactional_id)
                if match is None:
                    continue
                owner = int(match[1]) % self._context.parallelism
                if (owner if owner < knowing else 0) == self._context.subtask:
                    own[each.transactional_id] = each.state
        return own

    def _make_next(self) -> None:
        """Make a producer ready, in the thread."""
        assert self._thread is not None
        if not self._free:  # checkpoints that were given up leave theirs prepared until the next one is complete
            self._free.append(self._slots)
            self._slots += 1
        slot = self._free.pop(0)
        # Ahead of time: init_transactions() takes 60 to 75 ms, for which the barrier would wait.
        self._next = self._thread.submit(self._make, slot)

    def _make(self, slot: int) -> _Transaction:
        # A new producer for each transaction. The client's own commits leave the epoch as it is, so a commit that
        # is sent again would hit the next, open transaction of the same producer.
        transactional_id = f"{self._prefix}-{self._context.subtask}-{slot}"
        settings = {
            **self._settings,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": self._timeout_ms,
        }
        outbox = Outbox(self._connection, settings, self._context.wake)
        try:
            try:
                outbox.producer.init_transactions(self._connection.timeout_s)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                    raise timeout_refused(self._timeout_ms) from error
                raise ConnectorError(
                    f"cannot begin with transactional id {transactional_id!r} at {self._connection.servers}: "
                    f"{describe_error(error)}"
                ) from error
            assert self._coordinator is not None
            # The client does not tell its producer's id and epoch; the coordinator does.
            known = self._coordinator.describe([transactional_id]).get(transactional_id)
            if known is None:
                raise ConnectorError(f"the brokers do not know transactional id {transactional_id!r} any more")
            return _Transaction(slot, transactional_id, outbox, known.producer_id, known.epoch)
        except BaseException:
            outbox.close()
            raise

    def _ready(self) -> _Transaction | None:
        """Return the producer that was made ahead of time; None: it is not ready."""
        made = self._next
        if made is None or not made.done() or made.cancelled() or made.exception() is not None:
            return None
        return made.result()

    def _advance(self) -> None:
        """Go on with the producer that is ready, and have another one made."""
        assert self._next is not None
        self._current = None
        self._current = self._next.result()
        self._make_next()

    def _release(self, done: _Transaction) -> None:
        assert self._thread is not None
        self._free.append(done.slot)
        self._thread.submit(done.outbox.close)

    def _abort(self, current: _Transaction) -> None:
        """Abort, so that readers of read_committed need not wait for the timeout."""
        assert self._coordinator is not None
        try:
            self._coordinator.end(
                current.transactional_id,
                current.producer_id,
                current.epoch,
                commit=False,
                version=self._version,
                patience_s=_CLOSING_S,
            )
        except ConnectorError as error:
            _log.warning("%s; the brokers abort it after %d ms", error, self._timeout_ms)

    # ---- commits ---------------------------------------------------------------------------------------------

    def _end(self, committables: Sequence[Committable], *, restoring: bool = False) -> None:
        """Commit; what is not open any more must have been committed before.

        Args:
            committables: what to commit.
            restoring: whether their ids may hold later transactions, of an attempt that has committed them, has
                restarted with the ids, and has died before its first checkpoint. Those are aborted.

        Raises:
            PositionLostError: nothing proves that.
        """
        assert self._coordinator is not None
        # In the order of their numbers, and none behind one that is lost: the marker, which has the number of the
        # last commit, would be a proof for that one, too.
        for each in sorted(committables, key=lambda c: c.number):
            reason = self._coordinator.end(
                each.transactional_id, each.producer_id, each.epoch, commit=True, version=self._version
            )
            if reason and restoring:
                self._coordinator.fence(each.transactional_id, self._timeout_ms)
            if reason and not self._is_proven(each):
                raise PositionLostError(
                    f"records of a checkpoint are lost: transaction {each.number} of {each.transactional_id!r} "
                    f"is not open any more ({reason}), and group {each.group!r} has no proof that it was "
                    "committed. Brokers abort a transaction that is open for longer than transaction_timeout "
                    f"({self._timeout_ms} ms): it has to be longer than the checkpoint interval and the longest "
                    "time that the job is down. Another run with the same transactional_id_prefix, which was not "
                    "restored from this checkpoint, aborts it, too"
                )

    def _is_proven(self, committable: Committable) -> bool:
        # Also while the marker of the next transaction, which is committed only after this one, waits for that.
        marker = self._marker(committable.group, committable.topic, "read_uncommitted")
        if marker is None:
            return False
        attempt, number, ancestors = marker
        # A later transaction of the same attempt, or of an attempt that goes on from it, was committed: this one
        # was before.
        if attempt == committable.attempt:
            return number >= committable.number
        return dict(ancestors).get(committable.attempt, 0) >= committable.number

    def _take_over_marker(self, topic: str) -> None:
        """Make what the marker of a topic proves part of this attempt's, before its first one replaces it.

        The attempt that has set it may be of a job that this one was not restored from, and its savepoints be
        restored later.
        """
        if topic in self._marked:
            return
        marker = self._marker(self._group, topic, "read_committed")
        self._marked.add(topic)
        if marker is not None:
            attempt, number, ancestors = marker
            self._ancestors = _joined((*ancestors, (attempt, number)), self._ancestors)

    def _marker(self, group: str, topic: str, isolation: str) -> tuple[str, int, Ancestors] | None:
        """Return the last marker that was committed: the attempt, its number, and the attempts before.

        Args:
            group: the group that holds it.
            topic: the topic that it is an offset of.
            isolation: ``read_committed``: a transaction that holds the next one is waited for.
        """
        with failing_with(f"read the marker of group {group!r}", self._connection):
            consumer = self._connection.consumer(_ignore, **{"group.id": group, "isolation.level": isolation})
            try:
                found = _committed(consumer, TopicPartition(topic, 0), self._connection.timeout_s)
            finally:
                consumer.close()
        if found.offset < 0 or not found.metadata:
            return None
        return _read(found.metadata, found.offset)

    def _committable(self, transactional_id: str, producer_id: int, epoch: int, topic: str) -> Committable:
        return Committable(
            transactional_id,
            producer_id,
            epoch,
            self._number,
            self._attempt,
            self._ancestors,
            self._group,
            topic,
            self._context.parallelism,
        )


def _committed(consumer: Consumer, at: TopicPartition, timeout_s: float) -> TopicPartition:
    """Return the offset that a group has committed. While its coordinator moves, the client asks only once."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            (found,) = consumer.committed([at], timeout_s)
            if found.error is None:
                return found
            raise KafkaException(found.error)
        except KafkaException as error:
            if error.args[0].code() not in _MOVED or time.monotonic() > deadline:
                raise
        consumer.poll(_PAUSE_S)


def _joined(earlier: Ancestors, later: Ancestors) -> Ancestors:
    """Return the last attempts of both, each with the higher of its numbers."""
    known = dict(earlier)
    for attempt, number in later:
        known[attempt] = max(number, known.pop(attempt, 0))
    return tuple(known.items())[-_MOST_ANCESTORS:]


def _written(attempt: str, ancestors: Ancestors) -> str:
    return " ".join([attempt, *(f"{each}:{number}" for each, number in ancestors)])


def _read(metadata: str, offset: int) -> tuple[str, int, Ancestors] | None:
    attempt, *others = metadata.split(" ")
    try:
        pairs = [other.split(":") for other in others]
        return attempt, offset, tuple((each, int(number)) for each, number in pairs)
    except ValueError:
        return None


def _ignore(error: KafkaError) -> None:
    """Errors show in requests."""
