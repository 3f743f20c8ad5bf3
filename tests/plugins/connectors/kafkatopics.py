"""Topics for the tests of the Kafka connector: they are made, filled and read without it.

It only tells the states of transactions, which the client does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from patience import until

from sluiceway_kafka._connection import connection_of
from sluiceway_kafka._coordinator import Coordinator


class Topics:
    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.make()  # its connections are there now

    def close(self) -> None:
        """End the client, which would look for its broker as long as the process lives."""
        del self.admin

    def make(self, partitions: int = 1, name: str = "", **configuration: str) -> str:
        name = name or f"t{uuid.uuid4().hex[:10]}"
        self.admin.create_topics([NewTopic(name, partitions, config=configuration)])[name].result(60)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(name, total)])[name].result(60)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(60)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        at = TopicPartition(name, partition, before)
        self.admin.delete_records([at])[at].result(60)

    def write(
        self, name: str, values: Iterable[Any], *, partition: int = 0, timestamps: Iterable[int] | None = None
    ) -> None:
        """Write values, bytes or texts or (key, value), without a transaction."""
        producer = Producer({"bootstrap.servers": self.servers})
        stamps = iter(timestamps) if timestamps is not None else None
        for value in values:
            key, value = value if isinstance(value, tuple) else (None, value)
            producer.produce(name, value, key, partition, timestamp=next(stamps) if stamps else 0)
        assert producer.flush(60) == 0
        producer.close()

    def write_in_transaction(self, name: str, values: Iterable[str], *, commit: bool, partition: int = 0) -> None:
        """Write values in a transaction, and wait until its end, which comes later, is in the partition."""
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(60)
        producer.begin_transaction()
        offsets = []
        for value in values:
            producer.produce(
                name, value, None, partition, on_delivery=lambda _, message: offsets.append(message.offset())
            )
        producer.flush(60)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        producer.close()
        until(lambda: self.stable_offset(name, partition) > max(offsets))

    def stable_offset(self, name: str, partition: int) -> int:
        """Return where records of transactions that have not ended begin."""
        return self._end(name, partition, IsolationLevel.READ_COMMITTED)

    def _end(self, name: str, partition: int, isolation: IsolationLevel) -> int:
        at = TopicPartition(name, partition)
        asked = self.admin.list_offsets({at: OffsetSpec.latest()}, isolation_level=isolation)
        offset: int = asked[at].result(60).offset
        return offset

    def _see_ended(self, name: str, partitions: Iterable[int]) -> None:
        """Wait until transactions whose end is decided have ended in the partitions, too, a little later."""
        every = IsolationLevel.READ_UNCOMMITTED
        if all(self.stable_offset(name, number) == self._end(name, number, every) for number in partitions):
            return
        coordinator = Coordinator(connection_of(self.servers, None, "60s"))
        try:
            until(lambda: not any(each.state.startswith("Prepare") for each in coordinator.list("")))
        finally:
            coordinator.close()

    def read(self, name: str, *, isolation: str = "read_committed") -> list[Message]:
        """All records that are there now, partition by partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "tests",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        numbers = self.admin.list_topics(name, timeout=60).topics[name].partitions
        if isolation == "read_committed":
            self._see_ended(name, numbers)
        consumer.assign([TopicPartition(name, number, 0) for number in numbers])
        found: dict[int, list[Message]] = {number: [] for number in sorted(numbers)}
        ended: set[int] = set()
        while len(ended) < len(numbers):
            for message in consumer.consume(1000, 1.0):
                error = message.error()
                if error is None:
                    found[message.partition()].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise AssertionError(error)
        consumer.close()
        return [message for messages in found.values() for message in messages]

    def values(self, name: str, **options: Any) -> list[str]:
        return [message.value().decode() for message in self.read(name, **options)]
