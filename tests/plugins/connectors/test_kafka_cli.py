"""``sluiceway kafka transactions`` against a real broker: open transactions are listed, committed, aborted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import KafkaException, Producer

from sluiceway.cli.app import app

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(60)]


def transactions(topics: Any, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["kafka", "transactions", *arguments, "-b", topics.servers])
    return result.exit_code, result.output


def open_transaction(topics: Any, name: str, topic: str, value: str) -> Producer:
    producer = Producer({"bootstrap.servers": topics.servers, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, value)
    assert producer.flush(60) == 0
    return producer


def test_open_transactions_are_listed_and_ended(kafka_topics: Any) -> None:
    topic = kafka_topics.make()
    producers = [open_transaction(kafka_topics, f"cli-{name}", topic, name) for name in ("a", "b")]
    code, listed = transactions(kafka_topics, "list", "--prefix", "cli-")
    assert code == 0
    heading, first, second = listed.splitlines()
    assert heading.split() == ["ID", "STATE", "PRODUCER", "EPOCH", "STARTED", "TIMEOUT", "PARTITIONS"]
    assert first.startswith("cli-a  Ongoing")
    assert first.endswith(f"{topic}-0")
    assert second.startswith("cli-b  Ongoing")
    assert transactions(kafka_topics, "commit", "cli-a") == (0, "cli-a: committed\n")
    assert transactions(kafka_topics, "abort", "cli-b") == (0, "cli-b: aborted\n")
    assert kafka_topics.values(topic) == ["a"]
    code, listed = transactions(kafka_topics, "list", "--prefix", "cli-", "--open", "--json")
    assert (code, json.loads(listed)) == (0, [])
    for producer in producers:
        with pytest.raises(KafkaException, match="fenced"):
            producer.close()


def test_what_is_not_open_is_refused(kafka_topics: Any) -> None:
    kafka_topics.write_in_transaction(kafka_topics.make(), ["x"], commit=True)
    code, said = transactions(kafka_topics, "commit", "cli-none")
    assert code == 2
    assert "the cluster has no transactional id 'cli-none'" in said
    name = json.loads(transactions(kafka_topics, "list", "--json")[1])[0]["transactional_id"]
    code, said = transactions(kafka_topics, "abort", name)
    assert code == 2
    assert "has no open transaction: it is Complete" in said
