"""The source that reads topics."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import timedelta
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from sluiceway.connector import Boundedness, Enumerator, EnumeratorContext, Reader, ReaderContext, Source
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.name_hints import HintingType
from sluiceway.util.overriding import override
from sluiceway_kafka._arrow import need_pyarrow
from sluiceway_kafka._connection import Connection, check_duration, check_texts, connection_of, failing_with
from sluiceway_kafka._decoders import Deserializer, KeyDeserializer, columns_decoder_of, decoder_of
from sluiceway_kafka._enumerator import Discovered, Found, KafkaEnumerator
from sluiceway_kafka._offset_bounds import EARLIEST, KafkaOffsets, Partition, offsets_of, resolve
from sluiceway_kafka._reader import KafkaReader
from sluiceway_kafka._splits import KafkaSplit

__all__ = ["KafkaSource"]

_log: Final = logging.getLogger("sluiceway_kafka")

_WATCH_MS: Final = 30_000
"""Time between looks for partitions that are gone, of a source without an end that does not look for new ones."""

_UNREACHED: Final = frozenset((KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN))
"""Errors of requests for which no broker was found in time."""

_NO_GROUP: Final = "sluiceway"
"""The client wants a group even where nothing is committed."""


class KafkaSource(Source[Any], metaclass=HintingType):
    """The records of topics of Apache Kafka.

    Each partition is a split with a watermark of its own, read by one subtask; its position is the offset after
    the last record, and is part of checkpoints. The group's committed offsets are never read after the start, and
    no consumer subscribes, so groups do not rebalance. With ``group_id``, the positions of each completed
    checkpoint are committed to that group, for tools that show how far a job is.

    Records come with the timestamps that they have in Kafka.

    A position that is not there any more, a partition that has gone and records that cannot be decoded fail the
    job, the last of them unless the step's ``on_error`` is ``skip``. Nothing is ever reset silently.

    Args:
        bootstrap_servers: ``host:port`` of brokers, several as a list or separated by commas.
        topics: a topic or several.
        pattern: instead of ``topics``: a regular expression that the whole name of a topic matches. Topics of
            Kafka's own, which begin with ``__``, are left out.
        partitions: instead of ``topics``: the partitions to read, by topic: ``{"orders": [0, 1]}``.
        deserializer: ``text`` (UTF-8), ``bytes``, ``json``, ``record`` (a :class:`KafkaRecord`), ``arrow`` or
            :class:`ArrowColumns` (a ``pyarrow.RecordBatch`` for many records), a format with a schema registry
            (:class:`AvroFormat`, :class:`ProtobufFormat`, :class:`JsonSchemaFormat`), or a function that is given
            a KafkaRecord and returns the record.
        key_deserializer: ``text``, ``bytes``, ``json`` or a format. With it records are :class:`KafkaRecord` with
            keys that this has decoded, and values that ``deserializer`` has; missing ones are None.
        type: for ``json``: what a value is to become, such as a dataclass, a msgspec struct or a pydantic model;
            None: plain dicts, lists, strings and numbers.
        start: where to begin, if the job does not go on from a checkpoint: ``earliest``, ``latest``,
            ``committed``, or :class:`KafkaOffsets`.
        stop: where to end: as ``start``, looked up when the job begins; None: the source has no end. A restored
            job keeps the offsets that were looked up; with or without an end, it cannot become the other.
        group_id: the group that offsets are committed to, and that ``committed`` is about; None: neither.
        discovery_interval: time between looks for new partitions, and for new topics that match the pattern: a
            timedelta, ms, or a text such as ``5min``; None: no looks. New partitions are read from their first
            record. A source that stops does not look.
        isolation_level: ``read_committed``: records of transactions come when these are committed;
            ``read_uncommitted``: records of open and of aborted ones come, too.
        timestamps: whether records come with their timestamps. Without them reading takes less time.
        request_timeout: how long requests about topics and offsets may take.
        properties: properties of librdkafka for the consumer, such as ``security.protocol`` and ``client.rack``.

    Raises:
        ConfigurationError: an argument cannot be used.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topics: str | Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        partitions: Mapping[str, Sequence[int]] | None = None,
        deserializer: Deserializer = "text",
        key_deserializer: KeyDeserializer | None = None,
        type: Any = None,  # noqa: A002 - the word for it everywhere here
        start: str | KafkaOffsets = "earliest",
        stop: str | KafkaOffsets | None = None,
        group_id: str | None = None,
        discovery_interval: timedelta | int | str | None = "5min",
        isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed",
        timestamps: bool = True,
        request_timeout: timedelta | int | str = "30s",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._connection = connection_of(bootstrap_servers, properties, request_timeout)
        if sum(each is not None for each in (topics, pattern, partitions)) != 1:
            raise ConfigurationError("KafkaSource takes one of topics, pattern= and partitions=")
        self._topics = _names(topics)
        self._pattern = _pattern(pattern)
        self._partitions = _numbers(partitions)
        self._deserializer = deserializer
        self._decoder = decoder_of(deserializer, type, key_deserializer)
        self._start = offsets_of("start", start)
        self._stop = None if stop is None else offsets_of("stop", stop)
        if self._stop is not None and self._stop.kind == "earliest":
            raise ConfigurationError("stop='earliest' would read nothing")
        if group_id is not None and (not isinstance(group_id, str) or not group_id):
            raise ConfigurationError(f"group_id={group_id!r} must be a name, or None")
        for name, offsets in (("start", self._start), ("stop", self._stop)):
            if offsets is not None and offsets.kind == "committed" and group_id is None:
                raise ConfigurationError(f"{name}='committed' needs group_id=")
            if offsets is not None:
                self._check_given(name, offsets)
        for name in (*self._topics, *self._partitions):
            check_texts(f"the name of topic {name!r:.100}", name)
        check_texts(f"group_id={group_id!r:.100}", group_id)
        self._group_id = group_id
        self._interval_ms: int | None = None
        if discovery_interval is not None:
            self._interval_ms = check_duration("discovery_interval", discovery_interval, 1)
        if self._stop is not None or self._partitions:
            self._interval_ms = None
        if isolation_level not in ("read_committed", "read_uncommitted"):
            raise ConfigurationError(
                f"isolation_level={isolation_level!r} must be 'read_committed' or 'read_uncommitted'"
            )
        self._isolation_level = isolation_level
        self._timestamps = bool(timestamps)

    def __repr__(self) -> str:
        what = self._pattern.pattern if self._pattern else ", ".join(self._topics or self._partitions)
        return f"KafkaSource({what!r} at {self._connection.servers!r})"

    @property
    def name(self) -> str:
        """With the topics, where they are few."""
        return "KafkaSource"

    @property
    def boundedness(self) -> Boundedness:
        """Bounded if it is to stop somewhere."""
        return Boundedness.UNBOUNDED if self._stop is None else Boundedness.BOUNDED

    @property
    def output_type(self) -> Any:
        """As the deserializer says."""
        return self._decoder.output_type

    def in_columns(self) -> tuple[Source[Any], Any]:
        """Return a source of the records as rows in columns, and their schema.

        The columns are those of ``ArrowColumns``; or the fields of the ``type`` that ``json``, or a format with a
        schema registry, has. A record that does not fit into them is one that cannot be decoded.

        Raises:
            ConfigurationError: the columns are not known.
            MissingExtraError: pyarrow is not installed.
            SerializationError: a field has no type in Arrow.
        """
        need_pyarrow()
        source = copy(self)
        source._decoder, schema = columns_decoder_of(self._decoder, self._deserializer)
        return source, schema

    @property
    def gives_timestamps(self) -> bool:
        """Unless they were not wanted."""
        return self._timestamps

    @property
    def rejects_records(self) -> bool:
        """Records that cannot be decoded."""
        return True

    @property
    @override
    def commits_positions(self) -> bool:
        return self._group_id is not None

    @override
    def batch_completed(self, splits: Sequence[KafkaSplit]) -> None:
        """Commit the ends of partitions to the group.

        Raises:
            ConnectorError: the cluster does not commit them.
        """
        ends = [
            TopicPartition(split.topic, split.partition, max(split.position, split.stop))
            for split in splits
            if split.stop is not None
        ]
        if self._group_id is None or not ends:
            return
        consumer = self._connection.consumer(lambda error: None, **{"group.id": self._group_id})
        try:
            with failing_with(f"commit offsets to group {self._group_id!r}", self._connection):
                for each in consumer.commit(offsets=ends, asynchronous=False):
                    if each.error is not None:
                        raise KafkaException(each.error)
        finally:
            consumer.close()

    def create_enumerator(self, context: EnumeratorContext, restored: Any = None) -> Enumerator:
        """Make the enumerator, which asks the cluster when it is started.

        Raises:
            ConfigurationError: the arguments name partitions that the restored state does not have, and the source
                does not look for new ones.
        """
        assert restored is None or isinstance(restored, Discovered)
        if restored is not None:
            restored = self._without_others(restored)
            self._refuse_new(restored)
        look = _Look(self)
        interval_ms = self._interval_ms
        if interval_ms is None and self._stop is None:
            interval_ms = _WATCH_MS
        return KafkaEnumerator(
            context, look, look.close, interval_ms, restored, discovers=self._interval_ms is not None
        )

    @override
    def create_reader(self, context: ReaderContext) -> Reader[Any]:
        settings = {"group.id": self._group_id or _NO_GROUP, "isolation.level": self._isolation_level}
        return KafkaReader(
            context,
            self._connection,
            self._decoder.for_subtask(),
            settings,
            reads=self._reads,
            bounded=self._stop is not None,
            timestamps=self._timestamps,
            commits=self._group_id is not None,
        )

    def _reads(self, partition: Partition) -> bool:
        """Return True for a partition that the arguments name."""
        topic, number = partition
        if self._pattern is not None:
            return _is_matched(self._pattern, topic)
        return topic in self._topics or number in self._partitions.get(topic, ())

    def _check_given(self, name: str, offsets: KafkaOffsets) -> None:
        """Raise ConfigurationError for an offset of a partition that the arguments do not name."""
        other = next((partition for partition, _ in offsets.given if not self._reads(partition)), None)
        if other is not None:
            raise ConfigurationError(
                f"{name}=KafkaOffsets.partitions() has an offset of topic {other[0]!r}, partition {other[1]}, "
                "which the source does not read"
            )

    def _refuse_new(self, restored: Discovered) -> None:
        """Raise ConfigurationError if partitions are named that only a look for new ones would find."""
        if self._interval_ms is not None:
            return
        topics = {topic for topic, _ in restored.known}
        new = [f"topic {name!r}" for name in self._topics if name not in topics]
        new += [
            f"partition {topic}-{number}"
            for topic, numbers in self._partitions.items()
            for number in sorted(numbers)
            if (topic, number) not in restored.known
        ]
        if new:
            raise ConfigurationError(
                f"{self!r} does not look for new partitions, and the restored state does not have "
                f"{', '.join(new)}: read them with another source, whose uid the state does not have, or give "
                "this one another uid"
            )

    def _without_others(self, restored: Discovered) -> Discovered:
        """Return the state of an enumerator without partitions that the source does not read any more."""
        known = frozenset(filter(self._reads, restored.known))
        if known == restored.known:
            return restored
        _log.warning(
            "%r does not name these partitions of the restored state any more: %s. They are not read, and their "
            "positions are dropped%s",
            self,
            ", ".join(f"{topic}-{number}" for topic, number in sorted(restored.known - known)),
            ""
            if self._interval_ms is None
            else ": a source that names them again reads them from their first record",
        )
        names = {topic for topic, _ in known}
        topics = getattr(restored, "topics", {})  # a checkpoint of an earlier version has none
        return Discovered(
            [split for split in restored.pending if self._reads((split.topic, split.partition))],
            known,
            {topic: identity for topic, identity in topics.items() if topic in names},
        )


class _Look:
    """Search for partitions and offsets. Keeps its client between looks."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._connection: Connection = source._connection
        self._admin: AdminClient | None = None

    def __call__(self, known: frozenset[Partition], is_first: bool) -> Found:
        if self._admin is None:
            self._admin = self._connection.admin()
        self._admin.poll(0)  # only that empties its queue of events and log lines
        try:
            return self._find(self._admin, known, is_first)
        finally:
            if self._source._stop is not None:  # no look follows
                self.close()

    def _find(self, admin: AdminClient, known: frozenset[Partition], is_first: bool) -> Found:
        source = self._source
        there, topics = self._there(admin, is_first)
        new = sorted(there - known)
        if not is_first:
            # What was written before this look has found the partition is read, too.
            return Found(there, [KafkaSplit(*partition, EARLIEST) for partition in new], topics)
        for name, offsets in (("start", source._start), ("stop", source._stop)):
            if offsets is not None:
                self._check_there(name, offsets, there)
        # Starts before stops: a stop that was looked up first could lie before the start "latest".
        starts = self._resolve(source._start, new, admin)
        if source._stop is None:
            return Found(there, [KafkaSplit(*partition, starts[partition]) for partition in new], topics)
        stops = self._resolve(source._stop, new, admin)
        splits = [
            KafkaSplit(*partition, starts[partition], stops[partition])
            for partition in new
            # EARLIEST is negative. Partitions with nothing to read up to the stop have no split.
            if stops[partition] > max(starts[partition], 0)
        ]
        return Found(there, splits, topics)

    def close(self) -> None:
        # The client ends when nothing refers to it: it has no close().
        self._admin = None

    def _resolve(
        self, offsets: KafkaOffsets, new: Sequence[Partition], admin: AdminClient
    ) -> dict[Partition, int]:
        source = self._source
        committed = source._isolation_level == "read_committed"
        return resolve(offsets, new, admin, self._connection, group_id=source._group_id, read_committed=committed)

    def _check_there(self, name: str, offsets: KafkaOffsets, there: frozenset[Partition]) -> None:
        missing = next((partition for partition, _ in offsets.given if partition not in there), None)
        if missing is not None:
            raise ConnectorError(
                f"{name}=KafkaOffsets.partitions() has an offset of topic {missing[0]!r}, partition {missing[1]}, "
                f"which does not exist at {self._connection.servers}"
            )

    def _there(self, admin: AdminClient, is_first: bool) -> tuple[frozenset[Partition], dict[str, str]]:
        source = self._source
        timeout_s = self._connection.timeout_s
        names: Sequence[str] = source._topics or tuple(source._partitions)
        if source._pattern is not None:
            with failing_with("list topics", self._connection):
                listed = admin.list_topics(timeout=timeout_s).topics
            names = [name for name in sorted(listed) if _is_matched(source._pattern, name)]
            if not names:
                return frozenset(), {}
        with failing_with("ask for topics", self._connection):
            asked = admin.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s)
        found: set[Partition] = set()
        topics: dict[str, str] = {}
        for name, future in asked.items():
            try:
                described = future.result()
            except KafkaException as error:
                gone = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if gone and (not is_first or source._pattern is not None):
                    continue  # the enumerator finds that known partitions are missing
                servers = self._connection.servers
                advice = "A topic has to be there before the job starts"
                if error.args[0].code() in _UNREACHED:
                    advice = f"No broker answered in {timeout_s:g} s: check that one runs there, and properties="
                raise ConnectorError(
                    f"cannot read topic {name!r} at {servers}: {error.args[0].str()}. {advice}"
                ) from error
            found.update((name, partition.id) for partition in described.partitions)
            identity = described.topic_id
            high, low = identity.get_most_significant_bits(), identity.get_least_significant_bits()
            if high or low:  # brokers older than 2.8 have no ids
                topics[name] = str(identity)
        if not source._partitions:
            return frozenset(found), topics
        wanted = {(name, number) for name, numbers in source._partitions.items() for number in numbers}
        missing = sorted(wanted - found)
        if missing and not is_first:
            return frozenset(wanted & found), topics  # the enumerator says that they are gone
        if missing:
            count = sum(name == missing[0][0] for name, _ in found)
            raise ConnectorError(
                f"topic {missing[0][0]!r} has no partition {missing[0][1]}: it has {count}, from 0 on"
            )
        return frozenset(wanted), topics


def _names(topics: str | Sequence[str] | None) -> tuple[str, ...]:
    if topics is None:
        return ()
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(f"topics={topics!r} must be the name of a topic, or several")
    return tuple(dict.fromkeys(names))


def _pattern(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ConfigurationError(f"pattern={pattern!r} is no regular expression: {error}") from error


def _is_matched(pattern: re.Pattern[str], topic: str) -> bool:
    return not topic.startswith("__") and pattern.fullmatch(topic) is not None


def _numbers(partitions: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    if partitions is None:
        return {}
    numbers = {name: tuple(dict.fromkeys(each)) for name, each in partitions.items()}
    if not numbers or not all(numbers.values()):
        raise ConfigurationError(f"partitions={partitions!r} must name partitions: {{'orders': [0, 1]}}")
    for each in numbers.values():
        for number in each:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ConfigurationError(f"partitions={partitions!r}: {number!r} is no number of a partition")
    return numbers
