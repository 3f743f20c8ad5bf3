"""KafkaSink when the epochs of its producers reach their limit, and brokers give new producer ids."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

from sluiceway.testing.drivers import SinkDriver
from sluiceway.testing.kafka import KafkaCluster

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import Producer

from sluiceway_kafka import KafkaSink
from sluiceway_kafka._connection import connection_of
from sluiceway_kafka._coordinator import Coordinator

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(PATIENT_S)]

_LIMIT = 2**15 - 2
"""The last epoch of a producer id."""


def _set_epochs(topics: Any, epochs: dict[str, int]) -> None:
    """Have the coordinator find other epochs when it starts: by prefix of the transactional id.

    A transactional id reaches the limit after some ten thousand transactions; its record in the coordinator's log
    is written anew instead. Brokers take records for that log from tools of administration alone.
    """
    newest = {message.key(): message for message in topics.read("__transaction_state") if message.value()}
    producer = Producer({"bootstrap.servers": topics.servers, "client.id": "__admin_client"})
    for key, message in newest.items():
        transactional_id = key[4:].decode()  # behind version and length
        for prefix, epoch in epochs.items():
            if transactional_id.startswith(f"{prefix}-"):
                value = bytearray(message.value())
                struct.pack_into(">h", value, 10, epoch)  # behind version and producer id
                producer.produce("__transaction_state", bytes(value), key, message.partition())
    assert producer.flush(60) == 0


def _producers(servers: str) -> dict[str, tuple[int, int]]:
    coordinator = Coordinator(connection_of(servers, None, "30s"))
    try:
        known = coordinator.describe(each.transactional_id for each in coordinator.list(""))
    finally:
        coordinator.close()
    return {name: (each.producer_id, each.epoch) for name, each in known.items()}


@pytest.mark.parametrize("version", [2, 0])
def test_transactions_at_the_last_epochs(kafka_topics: Any, tmp_path: Path, version: int) -> None:
    """They are committed by their attempt, by the next one, and proven by the one after that."""
    with KafkaCluster(root=tmp_path, features={"transaction.version": version}) as cluster:
        topics = type(kafka_topics)(cluster.bootstrap_servers)
        epochs = {f"epoch{epoch}": epoch for epoch in (_LIMIT - 2, _LIMIT - 1, _LIMIT)}
        sinks, kept, names = {}, {}, {}
        for prefix in epochs:
            names[prefix] = topics.make()
            sinks[prefix] = KafkaSink(
                topics.servers, names[prefix], guarantee="exactly-once", transactional_id_prefix=prefix
            )
            with SinkDriver(sinks[prefix], checkpoints=True) as driver:
                driver.write(["a"])
                kept[prefix] = driver.checkpoint()
                driver.complete()
        _set_epochs(topics, epochs)
        cluster.stop()
        cluster.start()
        cluster.wait()
        before: dict[str, tuple[int, int]] = {}

        def loaded() -> bool:  # the broker answers before its coordinator has read its log
            before.update(_producers(cluster.bootstrap_servers))
            return all(f"{prefix}-0-{slot}" in before for prefix in epochs for slot in range(2))

        until(loaded)
        assert {before[f"{prefix}-0-0"][1] for prefix in epochs} == set(epochs.values())

        seen: set[int] = set()
        for prefix, sink in sinks.items():
            with SinkDriver(sink, checkpoints=True, restored=kept[prefix]) as driver:
                for value in ("b", "c"):
                    driver.write([value])
                    seen.update(each.epoch for each in driver.checkpoint()[0])
                    driver.complete()
                driver.write(["d"])
                last = driver.checkpoint()
                seen.update(each.epoch for each in last[0])
                driver.write(["never"])
                driver.flush()
            for value in ("e", "f"):
                with SinkDriver(sink, checkpoints=True, restored=last) as driver:
                    driver.write([value])
                    driver.finish()
            assert topics.values(names[prefix]) == ["a", "b", "c", "d", "e", "f"]
        assert {_LIMIT, 0} <= seen
        after = _producers(cluster.bootstrap_servers)
        assert all(after[name][0] != producer for name, (producer, _) in before.items())
        del topics
