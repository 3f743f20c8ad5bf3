"""Bounds of a Kafka source: the offsets at which it starts and stops to read partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.util.name_hints import HintingType
from sluiceway_kafka._connection import Connection, failing_with

__all__ = ["EARLIEST", "KafkaOffsets", "Partition", "offsets_of", "resolve"]

Partition: TypeAlias = tuple[str, int]

EARLIEST: Final = -2
"""Stands for the first record that is there when reading begins."""

_MOVED: Final = frozenset(
    (
        # A broker that has not heard yet of a topic that others know answers so, too.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
)
"""Errors of requests that are answered a little later, which the client does not send again."""

_PAUSE_S: Final = 0.1
_LARGEST: Final = 2**63 - 1
"""Largest offset and timestamp of Kafka."""

_Fallback = Literal["earliest", "latest", "fail"]


@dataclass(frozen=True, slots=True)
class KafkaOffsets(metaclass=HintingType):
    """Positions in partitions. Made by its class methods.

    Attributes:
        kind: ``earliest``, ``latest``, ``committed``, ``timestamp`` or ``partitions``.
        fallback: for partitions without a committed offset, or without one given.
        at_ms: for ``timestamp``: ms since the epoch.
        given: for ``partitions``: offsets by topic and number of the partition.
    """

    kind: Literal["earliest", "latest", "committed", "timestamp", "partitions"]
    fallback: _Fallback = "fail"
    at_ms: int = 0
    given: tuple[tuple[Partition, int], ...] = ()

    @classmethod
    def earliest(cls) -> KafkaOffsets:
        """Begin at the first record that is there."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> KafkaOffsets:
        """Behind the last record that is there; for read_committed, behind the last that is committed."""
        return cls("latest")

    @classmethod
    def committed(cls, fallback: _Fallback = "earliest") -> KafkaOffsets:
        """Begin at the offsets that the group has committed.

        Args:
            fallback: where partitions without a committed offset begin; ``fail``: they fail the job.

        Raises:
            ConfigurationError: there is no such fallback.
        """
        return cls("committed", _check_fallback(fallback))

    @classmethod
    def timestamp(cls, at: datetime | int) -> KafkaOffsets:
        """Begin at the first record with a timestamp at or after ``at``; behind the last one if there is none.

        Args:
            at: an aware datetime, or ms since the epoch.

        Raises:
            ConfigurationError: it is neither, before 1970, or more than Kafka has.
        """
        if isinstance(at, datetime) and at.tzinfo is not None:
            at = round(at.timestamp() * 1000)
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= _LARGEST:
            raise ConfigurationError(
                f"timestamp({at!r:.100}): give an aware datetime, or ms since the epoch, from 0 to {_LARGEST}"
            )
        return cls("timestamp", at_ms=at)

    @classmethod
    def partitions(cls, offsets: Mapping[Partition, int], fallback: _Fallback = "fail") -> KafkaOffsets:
        """Begin at an offset for each partition.

        Args:
            offsets: by topic and number of the partition: ``{("orders", 0): 1500}``.
            fallback: where other partitions begin; ``fail``: they fail the job.

        Raises:
            ConfigurationError: one of them cannot be used.
        """
        given = []
        for partition, offset in offsets.items():
            is_partition = isinstance(partition, tuple) and len(partition) == 2
            if not is_partition or not isinstance(partition[0], str) or not isinstance(partition[1], int):
                raise ConfigurationError(f"partitions({{{partition!r}: ...}}): a key is (topic, number)")
            if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _LARGEST:
                raise ConfigurationError(
                    f"partitions({{{partition!r}: {offset!r:.100}}}): an offset is from 0 to {_LARGEST}"
                )
            given.append((partition, offset))
        return cls("partitions", _check_fallback(fallback), given=tuple(sorted(given)))


def _check_fallback(fallback: Any) -> Any:
    if fallback not in ("earliest", "latest", "fail"):
        raise ConfigurationError(f"fallback={fallback!r} must be 'earliest', 'latest' or 'fail'")
    return fallback


def offsets_of(name: str, value: Any) -> KafkaOffsets:
    """Return the offsets that an argument stands for.

    Raises:
        ConfigurationError: it stands for none.
    """
    if isinstance(value, KafkaOffsets):
        return value
    if value == "earliest":
        return KafkaOffsets.earliest()
    if value == "latest":
        return KafkaOffsets.latest()
    if value == "committed":
        return KafkaOffsets.committed()
    raise ConfigurationError(
        f"{name}={value!r} must be 'earliest', 'latest', 'committed' or KafkaOffsets, such as "
        "KafkaOffsets.timestamp(...)"
    )


def resolve(
    offsets: KafkaOffsets,
    partitions: Sequence[Partition],
    admin: AdminClient,
    connection: Connection,
    *,
    group_id: str | None,
    read_committed: bool,
) -> dict[Partition, int]:
    """Find the offsets of partitions. Blocks.

    Returns:
        the offset of each partition; :data:`EARLIEST` where reading begins with what is there by then.

    Raises:
        ConnectorError: the cluster cannot be asked, or a partition has no offset and none to fall back on.
    """
    if not partitions:
        return {}
    found: dict[Partition, int] = {}
    match offsets.kind:
        case "earliest":
            return dict.fromkeys(partitions, EARLIEST)
        case "latest":
            return _listed(partitions, OffsetSpec.latest(), admin, connection, read_committed)
        case "timestamp":
            at = _listed(partitions, OffsetSpec.for_timestamp(offsets.at_ms), admin, connection, read_committed)
            # The offset is -1 where no record is that late.
            found = {partition: offset for partition, offset in at.items() if offset >= 0}
            past = [partition for partition in partitions if partition not in found]
            return found | _listed(past, OffsetSpec.latest(), admin, connection, read_committed)
        case "committed":
            assert group_id is not None
            found = _committed(partitions, admin, connection, group_id)
        case "partitions":
            given = dict(offsets.given)
            found = {partition: given[partition] for partition in partitions if partition in given}
    missing = [partition for partition in partitions if partition not in found]
    if not missing:
        return found
    if offsets.fallback == "fail":
        topic, number = missing[0]
        kind = f"committed by group {group_id!r}" if offsets.kind == "committed" else "given"
        raise ConnectorError(
            f"no offset of topic {topic!r}, partition {number} is {kind}: say where such partitions begin with "
            "fallback='earliest' or fallback='latest'"
        )
    rest = KafkaOffsets(offsets.fallback)
    return found | resolve(rest, missing, admin, connection, group_id=group_id, read_committed=read_committed)


def _listed(
    partitions: Sequence[Partition], spec: OffsetSpec, admin: AdminClient, connection: Connection, committed: bool
) -> dict[Partition, int]:
    if not partitions:
        return {}
    # The end is the last stable offset then: what follows belongs to transactions that are open.
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED

    def ask() -> dict[Partition, int]:
        asked = admin.list_offsets(
            {TopicPartition(*partition): spec for partition in partitions},
            isolation_level=level,
            request_timeout=connection.timeout_s,
        )
        return {(tp.topic, tp.partition): future.result().offset for tp, future in asked.items()}

    return _answered("list offsets", connection, ask)


def _committed(
    partitions: Sequence[Partition], admin: AdminClient, connection: Connection, group_id: str
) -> dict[Partition, int]:
    def ask() -> dict[Partition, int]:
        request = ConsumerGroupTopicPartitions(group_id, [TopicPartition(*each) for each in partitions])
        (future,) = admin.list_consumer_group_offsets([request], request_timeout=connection.timeout_s).values()
        found: dict[Partition, int] = {}
        for tp in future.result().topic_partitions:
            if tp.error is not None:
                raise KafkaException(tp.error)
            if tp.offset >= 0:  # it is negative where none was committed
                found[tp.topic, tp.partition] = tp.offset
        return found

    return _answered(f"list the offsets of group {group_id!r}", connection, ask)


def _answered(doing: str, connection: Connection, ask: Callable[[], dict[Partition, int]]) -> dict[Partition, int]:
    """Return the answer to a request, which is sent again while leaders and coordinators move, or have just begun.

    Raises:
        ConnectorError: they refuse it, or move for longer than requests may take.
    """
    deadline = time.monotonic() + connection.timeout_s
    with failing_with(doing, connection):
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in _MOVED or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)
