"""The sink that writes topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

from sluiceway.connector import DeliveryGuarantee, Sink, SinkWriter, WriterContext
from sluiceway.errors import ConfigurationError
from sluiceway.util.name_hints import HintingType
from sluiceway.util.overriding import override
from sluiceway_kafka._connection import check_duration, check_texts, connection_of
from sluiceway_kafka._encoders import Headers, Serializer, encoder_of
from sluiceway_kafka._security import check_properties
from sluiceway_kafka._transactions import TransactionalWriter
from sluiceway_kafka._writers import KafkaWriter

__all__ = ["KafkaSink"]

_SILENCE_MS: Final = 60_000
"""Time after which a broker that does not answer counts as gone: the client's, where there are no transactions."""

_GUARANTEES: Final = {
    "none": DeliveryGuarantee.NONE,
    "at-least-once": DeliveryGuarantee.AT_LEAST_ONCE,
    "exactly-once": DeliveryGuarantee.EXACTLY_ONCE,
}


class KafkaSink(Sink[Any], metaclass=HintingType):
    """Sink that writes records to topics of Apache Kafka.

    The guarantee is one of:

    - ``at-least-once``: a checkpoint waits until brokers have acknowledged every record before it. After a
      failure, records since the last checkpoint are written again.
    - ``exactly-once``: records are written in transactions, each of which is committed when its checkpoint is
      complete, by another process if need be. Consumers that read committed records see each of them once. Needs
      checkpoints, ``transactional_id_prefix``, and a ``transaction_timeout`` that is longer than the checkpoint
      interval and the longest time that the job may be down: what is older than that, brokers abort, and the job
      fails with a message that says so. In a job without checkpoints there is one transaction, which is committed
      at the end.
    - ``none``: nothing waits. After a failure, records are lost or repeated.

    The producer is idempotent with all of them: what it sends again is not doubled, and stays in order.

    Records have the event times of the pipeline as their timestamps, where they have any. Those with a key go to
    the partition that clients in Java choose (murmur2), unless ``partition`` or the property ``partitioner`` says
    another one.

    Rows in columns (:class:`~sluiceway.table.TableStream`) are objects with ``serializer="json"``. Any other
    serializer, and arguments that are functions, are given each row as a dict, which takes longer.

    Args:
        bootstrap_servers: ``host:port`` of brokers, several as a list or separated by commas.
        topic: a topic, or a function from a record to one.
        serializer: ``text`` (str), ``bytes``, ``json``, a format with a schema registry (:class:`AvroFormat`,
            :class:`ProtobufFormat`, :class:`JsonSchemaFormat`), or a function from a record to bytes, str or
            None (a tombstone).
        key: a function from a record to its key, or the name of its field or column: bytes, str or None, or what
            ``key_serializer`` takes.
        key_serializer: how keys become bytes, as ``serializer``; None: they are.
        headers: a function from a record to its headers: a mapping or pairs, of str to bytes, str or None; or
            None.
        partition: a function from a record to the number of its partition.
        timestamp: a function from a record to its timestamp in ms, instead of its event time; 0 stands for the
            time of writing. Without it an event time that is not after the epoch (1970-01-01T00:00:00Z) fails the
            job: Kafka has no timestamp for it.
        guarantee: as above.
        transactional_id_prefix: for ``exactly-once``: what the transactional ids begin with. No other sink may
            have the same one, or one that continues it with a hyphen and a number.
        transaction_timeout: for ``exactly-once``: after which brokers abort a transaction: a timedelta, ms, or a
            text. Brokers refuse more than their ``transaction.max.timeout.ms``.
        request_timeout: how long requests about transactions may take.
        properties: properties of librdkafka for the producer, such as ``compression.type``, ``linger.ms`` and
            ``security.protocol``.

    Raises:
        ConfigurationError: an argument cannot be used.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str | Callable[[Any], str],
        *,
        serializer: Serializer = "text",
        key: Callable[[Any], Any] | str | None = None,
        key_serializer: Serializer | None = None,
        headers: Callable[[Any], Headers | None] | None = None,
        partition: Callable[[Any], int] | None = None,
        timestamp: Callable[[Any], int] | None = None,
        guarantee: Literal["none", "at-least-once", "exactly-once"] = "at-least-once",
        transactional_id_prefix: str | None = None,
        transaction_timeout: timedelta | int | str | None = None,
        request_timeout: timedelta | int | str = "30s",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self._connection = connection_of(bootstrap_servers, properties, request_timeout)
        check_texts(f"topic={topic!r:.100}", topic)
        check_texts(f"transactional_id_prefix={transactional_id_prefix!r:.100}", transactional_id_prefix)
        self._encoder = encoder_of(
            topic,
            serializer,
            key=key,
            key_serializer=key_serializer,
            headers=headers,
            partition=partition,
            timestamp=timestamp,
        )
        if guarantee not in _GUARANTEES:
            raise ConfigurationError(f"guarantee={guarantee!r} must be one of {', '.join(map(repr, _GUARANTEES))}")
        self._guarantee = _GUARANTEES[guarantee]
        self._prefix = transactional_id_prefix
        if guarantee == "exactly-once":
            if not isinstance(transactional_id_prefix, str) or not transactional_id_prefix:
                raise ConfigurationError(
                    "guarantee='exactly-once' needs transactional_id_prefix=, a name that no other sink has"
                )
            timeout = "15min" if transaction_timeout is None else transaction_timeout
            self._timeout_ms = check_duration("transaction_timeout", timeout, 1000)
            check_properties(self._connection.properties)
        elif transactional_id_prefix is not None or transaction_timeout is not None:
            raise ConfigurationError(
                "transactional_id_prefix= and transaction_timeout= go with guarantee='exactly-once'"
            )

    def __repr__(self) -> str:
        topic = self._encoder.topic
        return f"KafkaSink({topic if isinstance(topic, str) else '...'!r} at {self._connection.servers!r})"

    @property
    @override
    def guarantee(self) -> DeliveryGuarantee:
        return self._guarantee

    def problems(self, *, checkpoint_interval_ms: int) -> Sequence[str]:
        """Return a warning of a transaction timeout that ends before the next checkpoint."""
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE or checkpoint_interval_ms < self._timeout_ms:
            return ()
        return (
            f"transaction_timeout={self._timeout_ms} ms must be longer than the checkpoint interval "
            f"of {checkpoint_interval_ms} ms: brokers would abort every transaction before its checkpoint is "
            "complete",
        )

    def problems_of_columns(self, schema: Any) -> Sequence[str]:
        """Return why rows have no value or no key."""
        return self._encoder.problems_of_columns(schema)

    @override
    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        settings: dict[str, Any] = {}
        if "partitioner" not in self._connection.properties:
            settings["partitioner"] = "murmur2_random"
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            waits = self._guarantee is DeliveryGuarantee.AT_LEAST_ONCE
            return KafkaWriter(context, self._connection, self._encoder, settings, waits=waits)
        assert self._prefix is not None
        if "socket.timeout.ms" not in self._connection.properties:
            # The client would wait for a silent broker until a transaction is about to time out.
            settings["socket.timeout.ms"] = min(_SILENCE_MS, self._timeout_ms - 100)
        return TransactionalWriter(
            context,
            self._connection,
            self._encoder,
            settings,
            prefix=self._prefix,
            timeout_ms=self._timeout_ms,
        )
