"""The Kafka connector keeps the contracts, against a real broker."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sluiceway.connector import Sink, Source
from sluiceway.testing.conformance.committing import CommittingSinkConformance
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.conformance.source import SourceConformance

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from sluiceway_kafka import KafkaSink, KafkaSource

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

_prefixes = itertools.count()


class TestOnePartition(SourceConformance):
    max_positions = 6

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _filled(cls, kafka_topics: Any) -> None:
        cls.topics = kafka_topics
        cls.topic = kafka_topics.make()
        kafka_topics.write(cls.topic, map(str, range(30)))

    def make_source(self) -> Source[Any]:
        return KafkaSource(self.topics.servers, self.topic, stop="latest")

    def expected(self) -> list[Any]:
        return [str(number) for number in range(30)]


class TestPartitionsWithGaps(SourceConformance):
    """Markers and aborted records at the beginning, in between and at the end, and an empty partition."""

    ordered = False
    max_positions = 6

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _filled(cls, kafka_topics: Any) -> None:
        cls.topics = kafka_topics
        cls.topic = topic = kafka_topics.make(3)
        kafka_topics.write_in_transaction(topic, ["never"], commit=False)
        kafka_topics.write_in_transaction(topic, map(str, range(10)), commit=True)
        kafka_topics.write_in_transaction(topic, ["never"], commit=False)
        kafka_topics.write_in_transaction(topic, map(str, range(10, 13)), commit=True)
        kafka_topics.write_in_transaction(topic, ["never", "ever"], commit=False)
        kafka_topics.write_in_transaction(topic, map(str, range(13, 30)), commit=True, partition=2)

    def make_source(self) -> Source[Any]:
        return KafkaSource(self.topics.servers, self.topic, stop="latest")

    def expected(self) -> list[Any]:
        return [str(number) for number in range(30)]


class _Written:
    @pytest.fixture(autouse=True)
    def _topics(self, kafka_topics: Any) -> None:
        self.topics = kafka_topics
        self.topic = ""

    def records(self) -> list[Any]:
        return [f"record {i}" for i in range(60)]

    def written(self) -> list[Any]:
        return self.topics.values(self.topic)  # type: ignore[no-any-return]


class TestAtLeastOnce(_Written, SinkConformance):
    def make_sink(self) -> Sink[Any]:
        self.topic = self.topics.make()
        return KafkaSink(self.topics.servers, self.topic)


class TestExactlyOnce(_Written, CommittingSinkConformance):
    visible_after_failure = False

    def make_sink(self) -> Sink[Any]:
        self.topic = self.topics.make()
        return KafkaSink(
            self.topics.servers,
            self.topic,
            guarantee="exactly-once",
            transactional_id_prefix=f"conformance{next(_prefixes)}",
        )
