"""Files, and then a topic of Kafka, as one source."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from effort import diagonal

import sluiceway as sw
from sluiceway.connector import Boundedness
from sluiceway.testing import FailOnce, NumberFiles
from sluiceway_files import FilesSource

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from sluiceway_kafka import KafkaOffsets, KafkaSource

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]


@pytest.mark.parametrize(("workers", "parallelism"), diagonal([0, 2], [3, 1]))
def test_a_topic_follows_files_over_failures(
    kafka_topics: Any, workers: int, parallelism: int, tmp_path: Path
) -> None:
    (tmp_path / "past").mkdir()
    for number in range(6):
        lines = "".join(f"{n}\n" for n in range(number * 500, (number + 1) * 500))
        (tmp_path / "past" / f"{number}.txt").write_text(lines)
    topic = kafka_topics.make(2)
    for partition in (0, 1):
        # The topic has what was in the files, too: the function begins behind it.
        values = range(2000 + partition, 6000, 2)
        kafka_topics.write(topic, map(str, values), partition=partition, timestamps=values)
    servers = kafka_topics.servers
    source = sw.HybridSource(
        FilesSource.text(tmp_path / "past", split_size=400),
        lambda switch: KafkaSource(servers, topic, start=KafkaOffsets.timestamp(3000), stop="latest"),
        boundedness=Boundedness.BOUNDED,
    )
    out = NumberFiles(tmp_path / "out")
    flow = sw.Pipeline("hybrid", parallelism=parallelism)
    at = (1500, 2999, 3000, random.Random(parallelism).randrange(3001, 6000))
    flow.source(source).map(int).map(FailOnce(tmp_path, at=at)).sink(out)
    result = flow.run(workers=workers, checkpoint_interval="20ms", batch_size=50, restart="fixed-delay:9:2ms")
    assert result.metrics.restarts
    report = out.report(6000)
    assert (report.received, report.lost, report.duplicates) == (6000, 0, 0), report
