"""Reader of partitions: an assigned consumer, positions, and the errors of both."""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from sluiceway.connector import END_OF_INPUT, Poll, Reader, ReaderContext, Wait
from sluiceway.elements import ROWS_PER_RECORD, Batch
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.overriding import override
from sluiceway_kafka._client_log import client_log
from sluiceway_kafka._connection import (
    Connection,
    PositionLostError,
    describe_error,
    failing_with,
    is_refusal,
    refused,
)
from sluiceway_kafka._decoders import Decoder, JoiningDecoder
from sluiceway_kafka._enumerator import CONFIRM_S
from sluiceway_kafka._offset_bounds import EARLIEST, Partition
from sluiceway_kafka._offset_commits import OffsetCommits
from sluiceway_kafka._poll_thread import PollThread
from sluiceway_kafka._records import rejected_record_of
from sluiceway_kafka._registry import RegistryError, SchemaPendingError
from sluiceway_kafka._splits import KafkaSplit
from sluiceway_kafka._statistics import PartitionFigures, Statistics

__all__ = ["KafkaReader"]

_log: Final = logging.getLogger("sluiceway_kafka")
_client_log: Final = client_log()

_PREFETCHED: Final = 30_000
"""Records of all partitions that the client keeps ready; with as many it fetches no more.

With 10,000, a source was 20 % slower than with 30,000 or 100,000.
"""

_FETCHED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one answer of a broker, for all partitions.

What was asked for comes whole, on top of what is ready. With the client's own 50 MB, a million records of ten
bytes in 20 partitions came at once, and took 300 MB.
"""

_ROWS: Final = 16_384
"""Rows of columns that are made of one poll at the most: each is a message of the client's until then."""

_MESSAGES: Final = 1_000_000
"""Messages that the client gives at a time at the most."""

_STATISTICS_MS: Final = 2000
"""Time between statistics of the client, from which lags are."""

_STALLED_S: Final = 60.0
"""After so long without progress, although there is something to read, a partition counts as stalled."""

# Nothing that a record or a position could be wrong about: the client goes on trying.
_PASSING: Final = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        # One answer may be that of a broker that is starting; the statistics say whether it stays so.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )
)

_error, _partition, _topic, _timestamp = Message.error, Message.partition, Message.topic, Message.timestamp


class _Partition:
    """A partition that is read.

    Attributes:
        split: as it was given.
        key: topic and number.
        name: id of the split.
        position: offset of the next record to return.
        queued: how many lists of its messages wait to be returned.
        due: how many messages the reader has taken from the client when it has all that was fetched of this one.
        unfetched: whether there were records to fetch as of the last statistics.
        ended: whether the client has given all that is to be read.
        committed: the offset that was committed to the group last; -1: none was.
        lag: how many offsets there are behind the position, as of the last statistics; -1: that is not known.
        fetched: where the client was in the last statistics.
        moved: when that was not where it had been before, or there was nothing to fetch, in monotonic seconds.
        stalled: whether that is too long ago.
        missing: since when brokers do not know the partition, in monotonic seconds; None: they do.
    """

    __slots__ = (
        "committed",
        "due",
        "ended",
        "fetched",
        "key",
        "lag",
        "missing",
        "moved",
        "name",
        "position",
        "queued",
        "split",
        "stalled",
        "unfetched",
    )

    def __init__(self, split: KafkaSplit) -> None:
        self.split = split
        self.key = (split.topic, split.partition)
        self.queued = 0
        self.due = 0
        self.unfetched = False
        self.ended = False
        self.committed = -1
        self.lag = -1
        self.fetched = -1
        self.moved = 0.0
        self.stalled = False
        self.missing: float | None = None
        self.name = split.split_id
        self.position = split.position


class KafkaReader(Reader[Any]):
    """Reader of the partitions of one subtask.

    Records are taken from the client in the task's thread, without waiting. When none are there, a
    :class:`.PollThread` waits inside the client for the next one, and wakes the task.

    Args:
        context: given by the runtime.
        connection: how to reach the cluster.
        decoder: makes the records.
        settings: properties of the consumer that the source sets.
        reads: returns True for a partition that the source reads. A restored one may be another.
        bounded: whether partitions are read to an end.
        timestamps: whether records come with their timestamps.
        commits: whether offsets are committed to the group.
    """

    def __init__(
        self,
        context: ReaderContext,
        connection: Connection,
        decoder: Decoder,
        settings: dict[str, Any],
        *,
        reads: Callable[[Partition], bool],
        bounded: bool,
        timestamps: bool,
        commits: bool,
    ) -> None:
        self._context = context
        self._connection = connection
        self._decoder = decoder
        self._settings = settings
        self._reads = reads
        self._bounded = bounded
        self._timestamps = timestamps
        self._commits = commits
        self._consumer: Consumer | None = None
        self._poll_thread: PollThread | None = None
        self._partitions: dict[Partition, _Partition] = {}
        self._single_topic: str | None = None
        self._taken = 0
        self._ready: deque[tuple[_Partition, list[Message]]] = deque()
        self._paused: frozenset[str] = frozenset()
        self._finished: list[str] = []
        # Ends of partitions that were read to them, until they are committed: those from before the last snapshot,
        # and those from after it.
        self._ends: dict[Partition, int] = {}
        self._new_ends: dict[Partition, int] = {}
        self._rejected: list[tuple[Any, Exception, int | None]] = []
        self._no_more = False
        self._schema_pending = False
        self._failure: ConnectorError | None = None
        self._statistics: str | None = None
        self._brokers_up = 0
        self._newest_ms = -1
        self._records = context.metrics.counter("recordsConsumed")
        self._bytes = context.metrics.counter("bytesConsumed")
        self._offset_commits = OffsetCommits(settings["group.id"], context.metrics, self._note_committed)
        gauge = context.metrics.gauge
        gauge("pendingRecords", lambda: sum(max(p.lag, 0) for p in list(self._partitions.values())))
        gauge("recordsLagMax", lambda: max((p.lag for p in list(self._partitions.values())), default=0))
        gauge("stalledPartitions", lambda: sum(p.stalled for p in list(self._partitions.values())))
        gauge("assignedPartitions", lambda: len(self._partitions))
        gauge("connectedBrokers", lambda: self._brokers_up)
        gauge("currentFetchEventTimeLag", self._time_lag_ms)

    # ---- the contract ----------------------------------------------------------------------------------------

    @override
    def start(self) -> None:
        self._decoder.start(self._context.wake)
        settings = {
            **self._settings,
            # The last offsets of a partition may be markers or aborted records, which never come: only this event
            # passes them.
            "enable.partition.eof": self._bounded,
            "on_commit": self._offset_commits.on_commit,
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": self._on_statistics,
        }
        # The client's limit of 64 MB counts values alone, and each record needs 330 bytes more.
        own = self._connection.properties
        settings["queued.min.messages"] = own.get("queued.min.messages", _PREFETCHED)
        settings["fetch.max.bytes"] = own.get("fetch.max.bytes", _answer_bytes(own))
        if self._bounded:  # so long the broker waits before it says that a partition is at its end
            settings["fetch.wait.max.ms"] = own.get("fetch.wait.max.ms", 50)
        self._consumer = self._connection.consumer(self._on_error, **settings)

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        """Assign partitions to the consumer.

        Raises:
            ConfigurationError: a restored one is to be read to an end, and the source has none, or conversely.
        """
        assert self._consumer is not None
        assigned = []
        for split in splits:
            partition = _Partition(split)
            if not self._reads(partition.key):
                self._finished.append(partition.name)
                continue
            if (split.stop is None) is self._bounded:
                raise ConfigurationError(
                    f"the state is that of a source {'without' if self._bounded else 'with'} stop=, and partition "
                    f"{partition.name} would go on as it began: keep stop= as it was, or give the source another "
                    "uid, and start= where it is to go on"
                )
            self._partitions[partition.key] = partition
            partition.moved = self._context.clock.monotonic()
            self._watch(partition)
            if split.stop is not None and split.stop <= max(split.position, 0):
                self._end(partition, [], assigned=False)
                continue
            offset = OFFSET_BEGINNING if split.position == EARLIEST else split.position
            assigned.append(TopicPartition(split.topic, split.partition, offset))
        if assigned:
            # The client assigns with the interpreter's lock held: with a thread inside it, that is a deadlock.
            if self._poll_thread is not None:
                self._poll_thread.hold()
            with failing_with("assign partitions", self._connection):
                self._consumer.incremental_assign(assigned)
        self._note_topics()

    def no_more_splits(self) -> None:
        """End when all partitions are read."""
        self._no_more = True

    def poll(self, limit: int) -> Poll[Any]:
        """Return records of one partition."""
        limit = min(limit * ROWS_PER_RECORD, _ROWS) if self._decoder.columns else min(limit, _MESSAGES)
        while True:
            batch = self._next_batch(limit)
            if batch is not None:
                return batch
            if self._rejected:
                return Wait(until=0.0)  # the caller takes them, and comes back
            if self._schema_pending:
                return Wait()  # nothing more is taken from the client meanwhile
            messages = self._fetch(limit)
            if not messages:
                if self._no_more and not self._partitions and not self._ready:
                    return END_OF_INPUT
                return Wait()
            self._sort(messages)

    def finished_splits(self) -> Sequence[str]:
        """Partitions that were read to where the source stops."""
        finished, self._finished = self._finished, []
        return finished

    @override
    def waiting_splits(self) -> Collection[str]:
        """Partitions with records that wait, as for a schema, behind those of others, or to be fetched."""
        taken = self._taken
        return [
            p.name
            for p in self._partitions.values()
            if p.queued or (taken < p.due and max(p.position, 0) < p.fetched) or (p.unfetched and not p.stalled)
        ]

    def rejected(self) -> Sequence[tuple[Any, Exception, int | None]]:
        """Records that could not be decoded."""
        if not self._rejected:
            return ()
        rejected, self._rejected = self._rejected, []
        return rejected

    def pause_splits(self, split_ids: Collection[str]) -> bool:
        """Pause partitions in the client, so that they do not fill its queues."""
        assert self._consumer is not None
        paused = frozenset(split_ids)
        keys = {p.name: TopicPartition(*key) for key, p in self._partitions.items()}
        if self._poll_thread is not None:
            # As in add_splits().
            self._poll_thread.hold()
        with failing_with("pause partitions", self._connection):
            if begin := [keys[name] for name in paused - self._paused if name in keys]:
                self._consumer.pause(begin)
            if end := [keys[name] for name in self._paused - paused if name in keys]:
                self._consumer.resume(end)
        self._paused = paused
        return True

    def snapshot(self) -> list[KafkaSplit]:
        """Return the partitions, each with the offset after the last record that was returned."""
        self._ends.update(self._new_ends)
        self._new_ends.clear()
        return [replace(p.split, position=p.position) for p in self._partitions.values()]

    def checkpoint_completed(self, splits: Sequence[KafkaSplit]) -> None:
        """Commit the positions to the group, and the ends of partitions that were read to them before."""
        if not self._commits or self._consumer is None:
            return
        # A partition that ended after this checkpoint was taken has a position in it.
        positions = dict(self._ends) | {(split.topic, split.partition): split.position for split in splits}
        offsets = [TopicPartition(*key, position) for key, position in positions.items() if position >= 0]
        if not offsets:
            return
        # The client commits with the interpreter's lock held: with a thread inside it, that is a deadlock. So the
        # thread does it when it comes out.
        self._offset_commits.add(offsets)
        if self._poll_thread is None or not self._poll_thread.waiting:
            self._offset_commits.send(self._consumer)

    def close(self) -> None:
        """End the thread and close the consumer."""
        thread, self._poll_thread = self._poll_thread, None
        consumer = self._consumer
        self._ready.clear()
        self._decoder.close()
        try:
            if thread is not None:
                # Before the consumer is closed: the thread has to be out of the client.
                thread.close()
        finally:
            if consumer is not None:
                self._offset_commits.send(consumer)
                self._consumer = None
                consumer.close()

    # ---- taking messages from the client ------------------------------------------------------------------------

    def _fetch(self, limit: int) -> list[Message]:
        consumer = self._consumer
        assert consumer is not None
        if self._failure is not None:
            raise self._failure
        if self._statistics is not None:
            self._look_at_statistics()
        thread = self._poll_thread
        if thread is None:
            commit = partial(self._offset_commits.send, consumer)
            thread = self._poll_thread = PollThread(consumer, self._context.wake, commit)
        # The thread is inside the client; it wakes the task when it has something.
        if thread.waiting:
            return []
        if self._offset_commits.pending:
            self._offset_commits.send(consumer)
        with failing_with("read", self._connection):
            messages = thread.take()
            messages += consumer.consume(limit - len(messages), 0)
        self._taken += len(messages)
        # Without partitions, too: only a poll empties the client's queue of statistics and log lines.
        if not messages and (self._partitions or not self._no_more):
            thread.begin()
        return messages

    def _sort(self, messages: list[Message]) -> None:
        """Put messages into :attr:`_ready`, by partition, and act on those that are events of the client's."""
        if any(map(_error, messages)):
            records: list[Message] = []
            for message in messages:
                error = message.error()
                if error is None:
                    records.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    # Before the event: a partition that has ended takes no more records.
                    self._append(records)
                    records = []
                    self._reached_end(message)
                else:
                    self._on_message_error(message, error)
            self._append(records)
        else:
            self._append(messages)

    def _append(self, messages: list[Message]) -> None:
        if not messages:
            return
        topic = self._single_topic
        # With one topic the calls for its name are spared, and with one partition the grouping.
        if topic is not None:
            numbers = list(map(_partition, messages))
            if numbers.count(numbers[0]) == len(numbers):
                self._add((topic, numbers[0]), messages)
                return
            keys = [(topic, number) for number in numbers]
        else:
            keys = list(zip(map(_topic, messages), map(_partition, messages), strict=True))
        groups: dict[Partition, list[Message]] = {}
        for key, message in zip(keys, messages, strict=True):
            if key in groups:
                groups[key].append(message)
            else:
                groups[key] = [message]
        for key, group in groups.items():
            self._add(key, group)

    def _add(self, key: Partition, messages: list[Message]) -> None:
        partition = self._partitions.get(key)
        if partition is None or partition.ended:
            return  # the client had more of it than the source is to read
        stop = partition.split.stop
        # Not at the client's event, which follows: the topic may be deleted meanwhile.
        if stop is not None and messages[-1].offset() >= stop - 1:
            self._end(partition, [message for message in messages if message.offset() < stop])
        else:
            partition.queued += 1
            self._ready.append((partition, messages))

    def _reached_end(self, message: Message) -> None:
        """Handle the end of a partition, which may be behind records that are not there for this reader."""
        partition = self._partitions.get((message.topic(), message.partition()))
        if partition is None or partition.ended:
            return
        if partition.split.stop is not None and message.offset() >= partition.split.stop:
            self._end(partition, [])

    def _end(self, partition: _Partition, messages: list[Message], *, assigned: bool = True) -> None:
        """Queue the last records of a partition; it is finished when they are returned."""
        if assigned and self._consumer is not None:
            self._consumer.incremental_unassign([TopicPartition(*partition.key)])
        partition.ended = True
        partition.queued += 1
        self._ready.append((partition, messages))

    def _finish(self, partition: _Partition) -> None:
        del self._partitions[partition.key]
        self._unwatch(partition)
        self._finished.append(partition.name)
        self._note_topics()
        if self._commits and partition.split.stop is not None:
            # Behind the last record may be markers and aborted ones.
            self._new_ends[partition.key] = max(partition.position, partition.split.stop)

    def _note_committed(self, key: Partition, offset: int) -> None:
        partition = self._partitions.get(key)
        if partition is not None:
            partition.committed = offset
        elif self._ends.get(key) == offset:
            del self._ends[key]

    # ---- giving records ---------------------------------------------------------------------------------------

    def _next_batch(self, limit: int) -> Batch[Any] | None:
        """Decode the next messages of a partition that is not paused; None: there are none."""
        paused, ready = self._paused, self._ready
        self._schema_pending = False
        # Partitions whose next record waits for a schema: what follows it waits, too.
        waiting: list[_Partition] = []
        index = 0
        while index < len(ready):
            partition, messages = ready[index]
            if partition.name in paused or partition in waiting:
                index += 1
                continue
            try:
                batch, taken = self._decode(partition, messages[:limit]) if messages else (None, 0)
            except SchemaPendingError:  # they stay; other partitions go on
                self._schema_pending = True
                waiting.append(partition)
                index += 1
                continue
            del ready[index]
            # The rest keeps its place, so that records of a partition stay in order.
            if len(messages) > taken:
                ready.insert(index, (partition, messages[taken:]))
            else:
                partition.queued -= 1
            if partition.ended and not partition.queued:
                self._finish(partition)
            if batch is not None:
                self.current_split_id = partition.name
                return batch
        return None

    def _decode(self, partition: _Partition, messages: list[Message]) -> tuple[Batch[Any] | None, int]:
        """Decode the first messages; return their batch, if any is left of it, and how many they are.

        Raises:
            SchemaPendingError: the first message has to wait for a schema.
        """
        stamps = _stamps(messages) if self._timestamps else None
        if stamps is not None and min(stamps) < 0:
            # Timestamps of a batch are those of all its records. Others must not lose theirs for one without it.
            messages = messages[: _count_alike(stamps)]
        taken = len(messages)
        try:
            values, left = self._decoder.decode(messages), messages
        except RegistryError:
            raise
        except Exception as error:
            # Something in the batch is wrong, or has to wait. Only now each record is looked at by itself.
            if self._decoder.joins:
                values, left, taken = self._decode_parts(messages, error)
            else:
                values, left, taken = self._decode_each(messages)
        # Behind rejected records, too: they were read.
        partition.position = messages[taken - 1].offset() + 1
        self._records.inc(taken)
        self._bytes.inc(sum(map(len, messages[:taken])))
        if not values:
            return None, taken
        if stamps is not None and len(left) < len(stamps):
            stamps = _stamps(left)
        return self._batch(values, stamps), taken

    def _batch(self, values: list[Any], stamps: list[int] | None) -> Batch[Any]:
        """Return the batch of decoded values, whose timestamps all are there or all are missing."""
        columns = self._decoder.columns
        if stamps is None or stamps[0] < 0:
            return Batch.of_columns(values[0]) if columns else Batch(values)
        self._newest_ms = stamps[-1]
        if columns:
            return Batch.of_columns(values[0], array("q", stamps))
        return Batch(values, [max(stamps)] if self._decoder.joins else stamps)

    def _decode_each(self, messages: list[Message]) -> tuple[list[Any], list[Message], int]:
        """Decode messages up to one that has to wait for a schema.

        Returns:
            values, the messages of which they were made, and how many messages were decoded or rejected.

        Raises:
            SchemaPendingError: it is the first one.
        """
        values: list[Any] = []
        left: list[Message] = []
        rejected: list[tuple[Any, Exception, int | None]] = []
        for message in messages:
            try:
                values.append(self._decoder.decode_one(message))
            except RegistryError:
                raise
            except SchemaPendingError:
                # What is in front of it is returned. With all of it to be decoded again, a batch with more schemas
                # than the cache has room for would never be.
                if not left and not rejected:
                    raise
                break
            except Exception as error:
                rejected.append(_rejected(message, error))
            else:
                left.append(message)
        self._rejected += rejected
        return values, left, len(left) + len(rejected)

    def _decode_parts(self, messages: list[Message], error: Exception) -> tuple[list[Any], list[Message], int]:
        """Decode messages as :meth:`_decode_each` does, after all of them together have failed."""
        # By halves: a call for one message costs as much as one for a hundred.
        decoder = self._decoder
        assert isinstance(decoder, JoiningDecoder)
        values: list[Any] = []
        left: list[Message] = []
        rejected: list[tuple[Any, Exception, int | None]] = []
        parts: list[tuple[list[Message], Exception | None]] = [(messages, error)]
        while parts:
            part, failure = parts.pop()
            if failure is None:
                try:
                    values += decoder.decode(part)
                except RegistryError:
                    raise
                except Exception as raised:
                    failure = raised
                else:
                    left += part
            if failure is None:
                continue
            if len(part) > 1:
                half = len(part) // 2
                parts += [(part[half:], None), (part[:half], None)]
            elif not isinstance(failure, SchemaPendingError):
                rejected.append(_rejected(part[0], failure))
            elif left or rejected:
                break
            else:
                raise failure
        self._rejected += rejected
        return decoder.join(values), left, len(left) + len(rejected)

    def _note_topics(self) -> None:
        topics = {topic for topic, _ in self._partitions}
        self._single_topic = topics.pop() if len(topics) == 1 else None

    # ---- metrics ----------------------------------------------------------------------------------------------

    def _watch(self, partition: _Partition) -> None:
        """Have the offsets of a partition among the metrics."""
        gauge, name = self._context.metrics.gauge, f"{partition.key[0]}.{partition.key[1]}"
        gauge(f"currentOffset.{name}", lambda: partition.position)
        gauge(f"recordsLag.{name}", lambda: partition.lag)
        if self._commits:
            gauge(f"committedOffset.{name}", lambda: partition.committed)

    def _unwatch(self, partition: _Partition) -> None:
        """Remove the metrics of a partition that is read no more."""
        for name in ("currentOffset", "recordsLag", "committedOffset"):
            self._context.metrics.remove_gauge(f"{name}.{partition.key[0]}.{partition.key[1]}")

    def _time_lag_ms(self) -> float:
        """Return how old the newest record with a timestamp is by now; -1: there was none."""
        return -1 if self._newest_ms < 0 else max(self._context.clock.now_ms() - self._newest_ms, 0)

    def _on_statistics(self, text: str) -> None:
        """Keep statistics for the task's thread; called in whichever thread is inside the client."""
        self._statistics = text
        self._context.wake()

    def _look_at_statistics(self) -> None:
        """Find how far partitions are behind, and which make no progress."""
        assert self._statistics is not None
        figures = msgspec.json.decode(self._statistics, type=Statistics)
        self._statistics = None
        self._brokers_up = sum(b.state == "UP" and b.nodeid >= 0 for b in figures.brokers.values())
        now = self._context.clock.monotonic()
        committed_only = self._settings["isolation.level"] == "read_committed"
        for key, partition in self._partitions.items():
            topic = figures.topics.get(key[0])
            found = None if topic is None else topic.partitions.get(str(key[1]))
            if found is None:
                continue
            self._look_for(partition, found, now)
            end = found.ls_offset if committed_only else found.hi_offset
            if end < 0:
                continue
            # The client has one queue for all partitions, and fetchq_cnt is its length. What was fetched by now is
            # among these messages. Not by the lag: behind the last record may be markers, for which nothing comes.
            in_queue = self._taken + found.fetchq_cnt
            moves = found.next_offset != partition.fetched
            partition.due = in_queue if moves else min(partition.due, in_queue)
            # Behind markers and aborted records the client is further than the last record says.
            has_all = self._taken >= partition.due and not partition.queued
            at = max(partition.position, found.lo_offset, found.next_offset if has_all else 0)
            partition.lag = max(end - at, 0)
            partition.unfetched = found.next_offset < end
            if moves or found.next_offset >= end or found.fetchq_cnt:
                partition.fetched, partition.moved, partition.stalled = found.next_offset, now, False
            elif partition.name in self._paused:
                partition.moved = now
            elif not partition.stalled and now - partition.moved >= _STALLED_S:
                partition.stalled = True
                _log.warning(
                    "topic %r, partition %d gives no records, although there are %d behind offset %d (state %s "
                    "of its fetcher, for %d s)",
                    *(*key, partition.lag, at, found.fetch_state, now - partition.moved),
                )

    def _look_for(self, partition: _Partition, found: PartitionFigures, now: float) -> None:
        """Fail for a partition that brokers do not know for a while. One that starts may not know it at first.

        The enumerator looks, too, but not where a source stops.
        """
        if not found.unknown or partition.ended:
            partition.missing = None
        elif partition.missing is None:
            partition.missing = now
        elif now - partition.missing >= CONFIRM_S:
            raise PositionLostError(
                f"partition {partition.key[1]} of topic {partition.key[0]!r} is not there any more: the topic "
                "was deleted, or created again with fewer partitions, before it was read from offset "
                f"{partition.position} on"
            )

    # ---- what goes wrong --------------------------------------------------------------------------------------

    def _on_error(self, error: KafkaError) -> None:
        """Take an event of the client that is about no partition, in whichever thread is inside the client."""
        if is_refusal(error):
            self._failure = refused("read", self._connection, error)
            self._context.wake()
        elif error.fatal():
            self._failure = ConnectorError(f"cannot read from {self._connection.servers}: {describe_error(error)}")
            self._context.wake()
        elif error.code() == KafkaError._BAD_MSG:
            # A broker answers with a record as a whole, whatever the limits: the client would ask for it for ever.
            self._failure = ConnectorError(
                f"cannot read from {self._connection.servers}: {describe_error(error)}. A record is larger than "
                "receive.message.max.bytes in properties allows, or what listens there is no broker of Kafka"
            )
            self._context.wake()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            _client_log.warning("no broker of %s can be reached; trying again", self._connection.servers)
        else:
            _client_log.info("reading from %s: %s", self._connection.servers, describe_error(error))

    def _on_message_error(self, message: Message, error: KafkaError) -> None:
        where = f"topic {message.topic()!r}, partition {message.partition()}"
        partition = self._partitions.get((message.topic(), message.partition()))
        if message.partition() >= 0 and (partition is None or partition.ended):
            return
        code = error.code()
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            at = "" if partition is None else f" at offset {partition.position}"
            raise PositionLostError(
                f"cannot read {where}{at}: that offset is not there (any more). The records were deleted before "
                "they were read, as retention.ms and retention.bytes of the topic say, or the topic was made "
                "anew. Nothing is skipped silently: to go on without them, give the source another uid and "
                f"start=. ({describe_error(error)})"
            )
        if code in _PASSING:
            _client_log.warning("reading %s: %s; trying again", where, describe_error(error))
            return
        raise ConnectorError(f"cannot read {where} at {self._connection.servers}: {describe_error(error)}")


def _answer_bytes(properties: Mapping[str, Any]) -> int:
    """Return the most bytes of a broker's answer, within the limits that the client sets for it."""

    def number(name: str, default: int) -> int:
        try:
            return int(properties.get(name, default))
        except (TypeError, ValueError):  # the client refuses it, with the reason
            return default

    queued = number("queued.max.messages.kbytes", 65_536) * 1024
    return max(min(_FETCHED_BYTES, queued), number("message.max.bytes", 1_000_000))


def _stamps(messages: Sequence[Message]) -> list[int]:
    """Return the timestamps of messages in ms; -1 for one that has none."""
    return [ms if kind else -1 for kind, ms in map(_timestamp, messages)]


def _count_alike(stamps: Sequence[int]) -> int:
    """Return how many of the first timestamps are there, if the first one is, or are missing."""
    missing = stamps[0] < 0
    return next((index for index, stamp in enumerate(stamps) if (stamp < 0) != missing), len(stamps))


def _rejected(message: Message, error: Exception) -> tuple[Any, Exception, int | None]:
    """Return what :meth:`KafkaReader.rejected` says of a message that cannot be decoded."""
    record = rejected_record_of(message)
    error.add_note(
        f"topic {record.topic!r}, partition {record.partition}, offset {record.offset}: on_error('skip') on the "
        "source's step leaves such records out"
    )
    return record, error, record.timestamp
