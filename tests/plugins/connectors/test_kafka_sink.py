"""KafkaSink against a real broker: transactions that are lost, proven, refused; keys, headers, timestamps."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ConfigurationError, ConnectorError, RejectedRecordError, SuppressRestartsError
from sluiceway.testing.drivers import SinkDriver, drive_sink
from sluiceway.testing.kafka import KafkaCluster

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from sluiceway_kafka import KafkaSink
from sluiceway_kafka._connection import connection_of
from sluiceway_kafka._coordinator import Coordinator

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(60)]

_prefixes = itertools.count()


def exactly_once(topics: Any, topic: str, prefix: str = "", **options: Any) -> KafkaSink:
    prefix = prefix or f"sink{next(_prefixes)}"
    return KafkaSink(topics.servers, topic, guarantee="exactly-once", transactional_id_prefix=prefix, **options)


def fence(topics: Any, transactional_id: str) -> None:
    coordinator = Coordinator(connection_of(topics.servers, None, "30s"))
    try:
        coordinator.fence(transactional_id)
    finally:
        coordinator.close()


def test_a_transaction_that_was_aborted_meanwhile_is_an_error(kafka_topics: Any) -> None:
    sink = exactly_once(kafka_topics, kafka_topics.make(), "aborted")
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["never"])
        kept = driver.checkpoint()
    fence(kafka_topics, "aborted-0-0")
    with (
        pytest.raises(ConnectorError, match="records of a checkpoint are lost") as caught,
        SinkDriver(sink, checkpoints=True, restored=kept),
    ):
        pass
    assert isinstance(caught.value, SuppressRestartsError)


def test_a_transaction_that_was_committed_is_proven_by_its_marker(kafka_topics: Any) -> None:
    topic = kafka_topics.make()
    sink = exactly_once(kafka_topics, topic, "proven")
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["once"])
        kept = driver.checkpoint()
        driver.complete()
    fence(kafka_topics, "proven-0-0")  # the coordinator knows nothing of the transaction any more
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        driver.write(["twice"])
        driver.finish()
    # Another attempt has overwritten the marker, and names the first one among its ancestors.
    fence(kafka_topics, "proven-0-0")
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        driver.finish()
    assert kafka_topics.values(topic) == ["once", "twice"]


@pytest.mark.parametrize("restores", [False, True])
def test_a_later_transaction_is_no_proof_that_an_earlier_one_was_committed(
    kafka_topics: Any, restores: bool
) -> None:
    topic = kafka_topics.make()
    sink = exactly_once(kafka_topics, topic, f"earlier{restores}")
    with SinkDriver(sink, checkpoints=True) as driver:
        for value in ("lost", "later"):  # no checkpoint is complete before both are written
            driver.write([value])
            kept = driver.checkpoint()
        fence(kafka_topics, f"earlier{restores}-0-0")  # as brokers do after the timeout
        with pytest.raises(ConnectorError, match=r"lost: transaction 1 of 'earlier.*-0-0' is not open any more"):
            SinkDriver(sink, checkpoints=True, restored=kept) if restores else driver.complete()
    assert kafka_topics.values(topic) == []


def test_a_run_that_was_not_restored_keeps_the_proof_of_the_one_before(kafka_topics: Any) -> None:
    topic = kafka_topics.make()
    sink = exactly_once(kafka_topics, topic)
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["once"])
        kept = driver.checkpoint()
        driver.complete()
    for value in ("other", "another"):
        with SinkDriver(sink, checkpoints=True) as driver:
            driver.write([value])
            driver.finish()
    with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
        driver.finish()
    assert kafka_topics.values(topic) == ["once", "other", "another"]


def test_a_coordinator_that_does_not_answer_is_waited_for_no_longer_than_said(
    kafka_topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafka.future import Future  # not before the coordinator, which ignores the warnings of the package

    async def never(*_: Any, **__: Any) -> None:
        await Future()

    coordinator = Coordinator(connection_of(kafka_topics.servers, None, "30s"))
    try:
        monkeypatch.setattr(coordinator._admin, "_find_coordinator_ids", never)
        with pytest.raises(ConnectorError, match=r"cannot end the transaction of 'x'.* within 0\.1 s: no answer"):
            coordinator.end("x", 1, 1, commit=False, version=2, patience_s=0.1)
    finally:
        coordinator.close()


def test_a_timeout_that_brokers_refuse_is_named(kafka_topics: Any) -> None:
    """For a prefix that the brokers know as for a new one."""
    topic = kafka_topics.make()
    long, short = (exactly_once(kafka_topics, topic, "long", transaction_timeout=each) for each in ("1h", "1min"))

    def open_(sink: KafkaSink) -> None:
        with SinkDriver(sink, checkpoints=True):
            pass

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"transaction_timeout=3600000 ms is more than the brokers"):
            open_(long)
        open_(short)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_refused_record_fails_the_checkpoint(kafka_topics: Any, guarantee: str) -> None:
    """The topic takes less than the client does: the broker refuses the record after it was sent."""
    topic = kafka_topics.make(**{"max.message.bytes": "1000"})
    sink = (
        exactly_once(kafka_topics, topic)
        if guarantee == "exactly-once"
        else KafkaSink(kafka_topics.servers, topic)
    )
    with pytest.raises(RejectedRecordError, match=f"not written to topic '{topic}'"):
        _write_large(sink)


def _write_large(sink: KafkaSink) -> None:
    with SinkDriver(sink, checkpoints=True) as driver:
        driver.write(["small", "large" * 1000])
        driver.checkpoint()
        driver.finish()


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_topic_that_is_not_there_is_named(kafka_topics: Any, guarantee: str) -> None:
    options: dict[str, Any] = {"properties": {"topic.metadata.propagation.max.ms": 100}}
    if guarantee == "exactly-once":
        sink = exactly_once(kafka_topics, "no-such", **options)
    else:
        sink = KafkaSink(kafka_topics.servers, "no-such", **options)
    with pytest.raises(ConnectorError, match=r"to topic 'no-such' at .*PART\)\. A topic has to be there before"):
        drive_sink(sink, ["value"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition": lambda _: "first"}, "partition 'first' at .*: 'str' object cannot be"),
        ({"partition": lambda _: 99}, "partition 99 at .*_UNKNOWN_PARTITION"),
        ({"key": lambda _: 5}, "a bytes-like object is required"),
        ({"headers": lambda _: {"h": 1}}, "expected header value"),
        ({"headers": lambda _: {b"h": b"1"}}, r"the name b'h': names of headers are str"),
        ({"headers": lambda _: [("cut\0here", b"1")]}, r"the name 'cut\\x00here': .* without null characters"),
        ({"headers": lambda _: [("\ud800", b"1")]}, r"the name '\\ud800': .* can be encoded in UTF-8"),
        ({"headers": lambda _: [("h", b"1", 2)]}, r"has returned \[\('h', b'1', 2\)\]: it takes a mapping, pairs"),
        ({"headers": lambda _: 5}, "has returned 5: it takes a mapping, pairs"),
    ],
    ids=[
        "partition of another type",
        "unknown partition",
        "key",
        "header value",
        "header of bytes",
        "cut header",
        "header not of UTF-8",
        "triples as headers",
        "number as headers",
    ],
)
def test_what_functions_return_and_the_client_refuses(
    kafka_topics: Any, arguments: dict[str, Any], message: str
) -> None:
    sink = KafkaSink(kafka_topics.servers, kafka_topics.make(), **arguments)
    with pytest.raises(RejectedRecordError, match=message):
        drive_sink(sink, ["value"])


def test_what_functions_make_of_a_record(kafka_topics: Any) -> None:
    topics = {"even": kafka_topics.make(2), "odd": kafka_topics.make(2)}
    sink = KafkaSink(
        kafka_topics.servers,
        lambda number: topics["odd" if number % 2 else "even"],
        serializer="json",
        key=lambda number: f"k{number}",
        headers=lambda number: {"h": str(number)} if number else None,
        partition=lambda number: number // 2,
        timestamp=lambda number: 1000 + number,
    )
    drive_sink(sink, [0, 1, 2, 3])
    for name, expected in (("even", [0, 2]), ("odd", [1, 3])):
        for number, message in zip(expected, kafka_topics.read(topics[name]), strict=True):
            assert (message.value(), message.key()) == (str(number).encode(), f"k{number}".encode())
            assert message.headers() == ([("h", str(number).encode())] if number else None)
            assert (message.partition(), message.timestamp()[1]) == (number // 2, 1000 + number)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.timeout(120)
def test_brokers_with_an_older_transaction_version(kafka_topics: Any, tmp_path: Path, version: int) -> None:
    """EndTxn 5 would leave the id stuck with version 0; the restore proves its commit by the marker there."""
    with KafkaCluster(root=tmp_path, features={"transaction.version": version}) as cluster:
        topics = type(kafka_topics)(cluster.bootstrap_servers)
        topic = topics.make()
        sink = exactly_once(topics, topic)
        with SinkDriver(sink, checkpoints=True) as driver:
            driver.write(["a"])
            driver.checkpoint()
            driver.complete()
            driver.write(["b"])
            kept = driver.checkpoint()
            driver.write(["never"])
        for written in ([], ["c"]):
            with SinkDriver(sink, checkpoints=True, restored=kept) as driver:
                assert topics.values(topic) == ["a", "b"]
                if written:
                    driver.write(written)
                driver.finish()
        assert topics.values(topic) == ["a", "b", "c"]
        # Without a higher epoch of EndTxn 5, ending a transaction of another process fences its producer.
        zombie = SinkDriver(sink, checkpoints=True, restored=kept)
        zombie.write(["zombie 1"])
        stored = zombie.checkpoint()
        with SinkDriver(sink, checkpoints=True, restored=stored) as driver:
            driver.write(["d"])
            for step in (zombie.checkpoint, zombie.finish):
                with pytest.raises(ConnectorError, match=r"fenced.*transactional_id_prefix"):
                    _write_and(zombie, step)
            zombie.close()
            driver.finish()
        assert topics.values(topic) == ["a", "b", "c", "zombie 1", "d"]
        del topics


def _write_and(driver: SinkDriver, step: Any) -> None:
    driver.write(["zombie 2"])
    step()


def test_a_coordinator_logs_its_connections_at_debug_alone(
    kafka_topics: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[int]:
        caplog.clear()
        Coordinator(connection_of(kafka_topics.servers, None, "30s")).close()
        return [record.levelno for record in caplog.records if record.name.startswith("kafka.")]

    caplog.set_level(logging.INFO)
    assert logged() == []
    caplog.set_level(logging.DEBUG, "kafka")
    assert logging.INFO in logged()
