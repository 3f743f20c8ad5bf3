"""Views to try the pipeline with, and a consumer that compares the counts with them.

``python -m mypipeline.sample produce`` writes views, ``python -m mypipeline.sample check`` compares.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mypipeline.pipeline import COUNTS, LATENESS_MS, VIEWS, servers

__all__ = ["check", "create_topics", "produce", "records"]

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
PAGES = ("/", "/about", "/docs", "/download", "/prices")
PARTITIONS = 4


def create_topics(brokers: str, *names: str) -> None:
    """Create topics, unless they exist."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    try:
        admin.list_topics(timeout=10)
    except KafkaException as error:
        sys.exit(
            f"no broker answers at {brokers} ({error.args[0].str()}). Start one with 'python -m sluiceway.testing."
            "kafka', or set KAFKA_BOOTSTRAP_SERVERS to yours"
        )
    for name, created in admin.create_topics([NewTopic(name, PARTITIONS) for name in names]).items():
        try:
            created.result(60)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                sys.exit(f"topic {name} cannot be created: {error.args[0].str()}")


def produce(brokers: str, topic: str, count: int, seed: int | None = None) -> None:
    """Write views of ten minutes, in the order of their times but for LATENESS_MS.

    The minutes follow those that are in the topic, or begin yesterday: brokers refuse times in the future, and
    views of minutes that are over would not be counted.
    """
    lots = random.Random(seed)
    start_ms = max((at_ms for _, at_ms, _ in records(brokers, topic)), default=int(time.time() * 1000) - DAY_MS)
    producer = Producer({"bootstrap.servers": brokers})
    for number in range(count):
        view = {"user": f"user{lots.randrange(100)}", "page": lots.choice(PAGES)}
        at_ms = start_ms + number * 10 * MINUTE_MS // count - lots.randrange(LATENESS_MS)
        producer.produce(topic, json.dumps(view), partition=number % PARTITIONS, timestamp=at_ms)
        producer.poll(0)
    if producer.flush(60):
        sys.exit(f"views could not be written to {brokers}")


def records(brokers: str, topic: str) -> Iterator[tuple[int, int, Any]]:
    """Partition, timestamp and value of each committed record that is there."""
    settings = {"bootstrap.servers": brokers, "group.id": "my-pipeline-sample", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    try:
        left = set(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        while left:
            message = consumer.poll(30)
            if message is None:
                sys.exit(f"{brokers} does not answer")
            error = message.error()
            if error is None:
                yield message.partition(), message.timestamp()[1], json.loads(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            else:
                sys.exit(error.str())
    finally:
        consumer.close()


def check(brokers: str, views: str, counts: str) -> dict[str, int]:
    """Count what is missing, doubled and wrong among the counts. Minutes that are not over are not missing."""
    expected = Counter[tuple[str, int]]()
    newest = dict.fromkeys(range(PARTITIONS), 0)
    for partition, at_ms, view in records(brokers, views):
        expected[view["page"], at_ms // MINUTE_MS] += 1
        newest[partition] = max(newest[partition], at_ms)
    watermark = min(newest.values()) - LATENESS_MS
    due = {key for key in expected if (key[1] + 1) * MINUTE_MS <= watermark}
    found = Counter[tuple[str, int]]()
    wrong = 0
    for _, _, count in records(brokers, counts):
        key = count["page"], count["minute"]
        found[key] += 1
        wrong += count["views"] != expected[key]
    return {
        "views": expected.total(),
        "counts": found.total(),
        "missing": len(due - found.keys()),
        "doubled": found.total() - len(found),
        "wrong": wrong,
    }


def main() -> None:
    if sys.argv[1:] not in (["produce"], ["check"]):
        sys.exit("usage: python -m mypipeline.sample produce|check")
    create_topics(servers(), VIEWS, COUNTS)
    if sys.argv[1] == "produce":
        produce(servers(), VIEWS, 10_000)
        print(f"10000 views written to {VIEWS} at {servers()}")
    else:
        result = check(servers(), VIEWS, COUNTS)
        print(", ".join(f"{name} {count}" for name, count in result.items()))
        sys.exit(any(result[name] for name in ("missing", "doubled", "wrong")))


if __name__ == "__main__":
    main()
