"""Pipelines from Kafka to Kafka on Spark: as a batch job, in micro-batches and on workers of ours."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

import sluiceway as sw
from sluiceway.config.settings import Settings
from sluiceway.engine import JobStatus
from sluiceway.windows import TumblingEventTimeWindows

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import Consumer, TopicPartition

from sluiceway_kafka import KafkaSink, KafkaSource
from sluiceway_spark.structured import streaming_query

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.usefixtures("spark"),
    pytest.mark.timeout(600),
]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """py4j keeps the connections by which Spark calls this process until the JVM collects its garbage."""


_prefixes = itertools.count()
_RECORDS = 400
_LATE = sw.WatermarkStrategy.for_bounded_out_of_orderness("1s")


class FailsOnce:
    """Raises at one value, when there is no file that says that it did."""

    def __init__(self, note: Path, value: str) -> None:
        self.note = str(note)
        self.value = value

    def __call__(self, value: str) -> str:
        if value == self.value and not Path(self.note).exists():
            Path(self.note).touch()
            raise ValueError(f"at {value}")
        return value


def filled(topics: Any) -> str:
    topic = topics.make(3)
    for partition in range(3):
        numbers = range(partition, _RECORDS, 3)
        topics.write(topic, map(str, numbers), partition=partition, timestamps=(1000 + n * 10 for n in numbers))
    return str(topic)


def windows(topics: Any, source: str, to: str, function: Any = str, stop: Any = "latest") -> sw.Pipeline:
    """Count numbers by their last digit in windows of event time, one watermark a partition."""
    flow = sw.Pipeline("windows", parallelism=2)
    read = flow.source(KafkaSource(topics.servers, source, stop=stop), watermark_strategy=_LATE).uid("numbers")
    keyed = read.map(function).uid("function").key_by(lambda value: value[-1])
    counts = keyed.window(TumblingEventTimeWindows.of("1s")).count().uid("counts")
    counts.map(lambda pair: f"{pair[0]} {pair[1]}").sink(
        KafkaSink(
            topics.servers,
            to,
            guarantee="exactly-once",
            transactional_id_prefix=f"spark{next(_prefixes)}",
        )
    ).uid("totals")
    return flow


def expected() -> Counter[str]:
    found = Counter(((1000 + n * 10) // 1000, str(n)[-1]) for n in range(_RECORDS))
    return Counter(f"{digit} {count}" for (_, digit), count in found.items())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"checkpoint_interval": "100ms"},
        {"engine": "spark"},
        {"engine": "spark", "checkpoint_interval": "100ms"},
        {"engine": "spark", "hosted": True, "workers": 2, "checkpoint_interval": "100ms"},
    ],
    ids=["process", "checkpoints", "batch", "micro-batches", "hosted"],
)
def test_a_topic_to_a_topic(options: dict[str, Any], kafka_topics: Any, tmp_path: Path) -> None:
    source, to = filled(kafka_topics), kafka_topics.make(2)
    if "checkpoint_interval" in options:
        options = {**options, "checkpoints": str(tmp_path)}
    result = windows(kafka_topics, source, to).run(**options)
    assert result.status is JobStatus.FINISHED
    assert Counter(kafka_topics.values(to)) == expected()


@pytest.mark.parametrize("hosted", [False, True], ids=["micro-batches", "hosted"])
def test_a_failure_in_the_middle_doubles_nothing(hosted: bool, kafka_topics: Any, tmp_path: Path) -> None:
    source, to = filled(kafka_topics), kafka_topics.make(2)
    options: dict[str, Any] = {"hosted": True, "workers": 2} if hosted else {}
    flow = windows(kafka_topics, source, to, FailsOnce(tmp_path / "failed", "399"))
    result = flow.run(
        engine="spark",
        checkpoints=str(tmp_path / "runs"),
        checkpoint_interval="100ms",
        restart="fixed-delay:2:10ms",
        **options,
    )
    assert [str(failure.cause) for failure in result.failures] == ["at 399"]
    assert Counter(kafka_topics.values(to)) == expected()


def test_micro_batches_go_on_in_a_later_run(kafka_topics: Any, tmp_path: Path) -> None:
    """Offsets are the positions of micro-batches: the later run reads what the first has not."""
    source, to = filled(kafka_topics), kafka_topics.make(2)
    runs = str(tmp_path / "runs")
    function = FailsOnce(tmp_path / "failed", "399")
    flow = windows(kafka_topics, source, to, function)
    with pytest.raises(ValueError, match="at 399"):
        flow.run(engine="spark", checkpoints=runs, checkpoint_interval="100ms", restart="none")
    result = flow.run(engine="spark", from_checkpoint=runs, checkpoint_interval="100ms")
    assert result.status is JobStatus.FINISHED
    assert Counter(kafka_topics.values(to)) == expected()


def to_list(topics: Any, topic: str, group: str, stop: str | None) -> tuple[sw.Pipeline, Any]:
    flow = sw.Pipeline(group, parallelism=2)
    source = KafkaSource(topics.servers, topic, start="committed", stop=stop, group_id=group)
    return flow, flow.source(source).uid("numbers").collect()


def committed(topics: Any, topic: str, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": topics.servers, "group.id": group})
    try:
        found = consumer.committed([TopicPartition(topic, partition) for partition in range(3)], timeout=60)
    finally:
        consumer.close()
    return [partition.offset for partition in found]


def test_a_batch_job_begins_where_the_last_one_ended(kafka_topics: Any) -> None:
    """Its readers are notified of no checkpoint, so the ends are committed behind its output."""
    topic = filled(kafka_topics)
    flow, seen = to_list(kafka_topics, topic, f"{topic}-jobs", "latest")
    flow.run(engine="spark")
    assert len(seen) == _RECORDS
    kafka_topics.write(topic, ["new"], partition=1)
    flow, seen = to_list(kafka_topics, topic, f"{topic}-jobs", "latest")
    flow.run(engine="spark")
    assert list(seen) == ["new"]
    assert committed(kafka_topics, topic, f"{topic}-jobs") == [134, 134, 133]


@pytest.mark.parametrize("saves", [False, True], ids=["ended", "with a savepoint"])
def test_the_last_micro_batch_of_a_run_that_is_stopped_is_committed(
    saves: bool, kafka_topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming_query, "_COMMITTED_S", PATIENT_S)  # machines are slow at times
    topic = filled(kafka_topics)
    flow, seen = to_list(kafka_topics, topic, f"{topic}-run", None)
    job = flow.prepare(Settings(engine="spark", checkpoints=str(tmp_path), checkpoint_interval_ms=100))
    ended = threading.Event()

    def stop_when_all_is_read() -> None:
        until(lambda: len(seen) == _RECORDS or ended.is_set())
        if saves:
            job.savepoint(str(tmp_path), lambda location, problem: None, stop=True)
        else:
            job.stop()

    stopping = threading.Thread(target=stop_when_all_is_read)
    stopping.start()
    try:
        job.run()
    finally:
        ended.set()
        stopping.join()
    assert len(seen) == _RECORDS
    assert committed(kafka_topics, topic, f"{topic}-run") == [134, 133, 133]


def test_micro_batches_that_reach_the_stop_of_a_source_commit_it(
    kafka_topics: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming_query, "_COMMITTED_S", PATIENT_S)  # machines are slow at times
    topic = filled(kafka_topics)
    flow, seen = to_list(kafka_topics, topic, f"{topic}-stop", "latest")
    flow.run(engine="spark", checkpoints=str(tmp_path))
    assert len(seen) == _RECORDS
    assert committed(kafka_topics, topic, f"{topic}-stop") == [134, 133, 133]
