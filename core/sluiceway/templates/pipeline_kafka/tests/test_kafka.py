"""The pipeline against a broker of its own; skipped, with the reason, where none can be started."""

from __future__ import annotations

from pathlib import Path

from sluiceway.testing.kafka import KafkaCluster

from mypipeline.pipeline import build
from mypipeline.sample import check, create_topics, produce


def test_nothing_is_lost_or_doubled(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    brokers = kafka_broker.bootstrap_servers
    create_topics(brokers, "views", "counts")
    produce(brokers, "views", 2_000, seed=1)
    build(brokers, "views", "counts", stop="latest").run(checkpoint_interval="1s", checkpoints=tmp_path)
    result = check(brokers, "views", "counts")
    assert (result["views"], result["missing"], result["doubled"], result["wrong"]) == (2_000, 0, 0, 0)
    assert result["counts"] > 0
