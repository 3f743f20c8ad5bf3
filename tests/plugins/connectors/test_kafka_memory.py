"""Memory of a job whose sink blocks while a million records wait in Kafka."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import Producer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(PATIENT_S)]

RECORDS = 1_000_000
PARTITIONS = 20
PROGRAM = Path(__file__).with_name("kafkamemory.py")


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_sink_that_blocks_bounds_what_is_read_ahead(kafka_topics: Any, tmp_path: Path) -> None:
    """Small records cost most: the client counts their bytes, and needs thirty times as many."""
    topic = kafka_topics.make(PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka_topics.servers})
    for number in range(RECORDS // 1000):
        batch: list[dict[str, Any]] = [{"value": b"x" * 10} for _ in range(1000)]
        while producer.produce_batch(topic, batch, partition=number % PARTITIONS) < len(batch):
            batch = [each for each in batch if each.pop("_error", None) is not None]
            producer.poll(0.1)
    assert producer.flush(PATIENT_S) == 0
    producer.close()
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(
            [sys.executable, str(PROGRAM), kafka_topics.servers, topic, str(PARTITIONS)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "blocked\n", (tmp_path / "log").read_text()
        sizes = [resident_mb(job.pid)]

        def steady() -> bool:
            sizes.append(resident_mb(job.pid))
            return len(sizes) > 6 and max(sizes[-6:]) - min(sizes[-6:]) < 1

        until(steady, step_s=0.5)
        assert max(sizes) < 150, sizes
        assert job.poll() is None
    finally:
        job.kill()
        job.communicate()
