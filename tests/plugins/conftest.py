"""Topics of a Kafka broker, where one can be had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def kafka_topics(kafka_broker: Any) -> Iterator[Any]:
    """Makes, fills and reads topics of the broker."""
    pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
    from tests.plugins.connectors.kafkatopics import Topics

    topics = Topics(kafka_broker.bootstrap_servers)
    yield topics
    topics.close()
