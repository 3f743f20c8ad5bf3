"""KafkaSource against a real broker: where it begins and stops, what it says when it cannot go on."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

import sluiceway as sw
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.drivers import SourceDriver

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import Consumer, TopicPartition

from sluiceway_kafka import KafkaOffsets, KafkaRecord, KafkaSource

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(60)]

_groups = itertools.count()


@dataclass
class Order:
    id: int
    item: str


def read(source: KafkaSource, parallelism: int = 1) -> list[Any]:
    with SourceDriver(source, parallelism) as driver:
        return driver.run()


# ---- where it begins and where it stops -----------------------------------------------------------


@pytest.fixture(scope="module")
def ten(kafka_topics: Any) -> Any:
    """A topic with 0 to 9 in partition 0, 10 to 19 in partition 1, a second apart."""
    name = kafka_topics.make(2)
    kafka_topics.write(name, map(str, range(10)), timestamps=range(1_000_000, 1_010_000, 1000))
    kafka_topics.write(name, map(str, range(10, 20)), partition=1, timestamps=range(1_000_000, 1_010_000, 1000))
    return name


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("earliest", "latest", range(20)),
        ("latest", "latest", []),
        (KafkaOffsets.timestamp(1_007_000), "latest", [7, 8, 9, 17, 18, 19]),
        (KafkaOffsets.timestamp(1_007_500), "latest", [8, 9, 18, 19]),
        (KafkaOffsets.timestamp(2_000_000), "latest", []),
        ("earliest", KafkaOffsets.timestamp(1_002_000), [0, 1, 10, 11]),
        (KafkaOffsets.timestamp(1_002_000), KafkaOffsets.timestamp(1_004_000), [2, 3, 12, 13]),
    ],
    ids=["all", "none", "from a record", "from between", "past the end", "up to", "between"],
)
def test_it_reads_between_start_and_stop(
    kafka_topics: Any, ten: str, start: Any, stop: Any, expected: Any
) -> None:
    source = KafkaSource(kafka_topics.servers, ten, start=start, stop=stop)
    assert sorted(map(int, read(source, 2))) == sorted(expected)


def test_it_begins_at_offsets_of_partitions(kafka_topics: Any, ten: str) -> None:
    start = KafkaOffsets.partitions({(ten, 0): 8}, fallback="latest")
    assert read(KafkaSource(kafka_topics.servers, ten, start=start, stop="latest")) == ["8", "9"]
    start = KafkaOffsets.partitions({(ten, 0): 8})
    with pytest.raises(ConnectorError, match=f"no offset of topic '{ten}', partition 1 is given"):
        read(KafkaSource(kafka_topics.servers, ten, start=start, stop="latest"))


def test_it_begins_where_the_group_is(kafka_topics: Any, ten: str) -> None:
    from confluent_kafka import Consumer

    group = f"group{next(_groups)}"
    consumer = Consumer({"bootstrap.servers": kafka_topics.servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(ten, 1, 6)], asynchronous=False)
    consumer.close()
    source = KafkaSource(kafka_topics.servers, ten, start="committed", stop="latest", group_id=group)
    assert sorted(map(int, read(source))) == [*range(10), 16, 17, 18, 19]
    start = KafkaOffsets.committed(fallback="latest")
    source = KafkaSource(kafka_topics.servers, ten, start=start, stop="latest", group_id=group)
    assert sorted(map(int, read(source))) == [16, 17, 18, 19]
    source = KafkaSource(
        kafka_topics.servers, ten, start=KafkaOffsets.committed("fail"), stop="latest", group_id=group
    )
    with pytest.raises(ConnectorError, match=f"partition 0 is committed by group '{group}'"):
        read(source)


def test_it_reads_some_partitions_alone(kafka_topics: Any, ten: str) -> None:
    source = KafkaSource(kafka_topics.servers, partitions={ten: [1]}, stop="latest")
    assert sorted(map(int, read(source))) == list(range(10, 20))
    with pytest.raises(ConnectorError, match=f"topic '{ten}' has no partition 2: it has 2"):
        read(KafkaSource(kafka_topics.servers, partitions={ten: [0, 2]}, stop="latest"))


def test_it_reads_the_topics_that_match_a_pattern(kafka_topics: Any) -> None:
    for number in range(3):
        kafka_topics.write(kafka_topics.make(name=f"pattern-{number}"), [str(number)])
    source = KafkaSource(kafka_topics.servers, pattern=r"pattern-[01]", stop="latest")
    assert sorted(read(source, 2)) == ["0", "1"]


def test_several_topics_keep_their_order(kafka_topics: Any) -> None:
    names = [kafka_topics.make(), kafka_topics.make()]
    for name in names:
        kafka_topics.write(name, [f"{name} {i}" for i in range(500)])
    found = read(KafkaSource(kafka_topics.servers, names, stop="latest"))
    for name in names:
        assert [value for value in found if value.startswith(name)] == [f"{name} {i}" for i in range(500)]


def test_uncommitted_records_come_if_they_are_asked_for(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    kafka_topics.write_in_transaction(name, ["aborted"], commit=False)
    kafka_topics.write(name, ["plain"])
    assert read(KafkaSource(kafka_topics.servers, name, stop="latest")) == ["plain"]
    source = KafkaSource(kafka_topics.servers, name, stop="latest", isolation_level="read_uncommitted")
    assert read(source) == ["aborted", "plain"]


# ---- what records become --------------------------------------------------------------------------


def test_what_deserializers_make(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    kafka_topics.write(name, [("k", '{"id": 1, "item": "tea"}')], timestamps=[1234])
    servers = kafka_topics.servers

    def one(**options: Any) -> Any:
        (value,) = read(KafkaSource(servers, name, stop="latest", **options))
        return value

    assert one() == '{"id": 1, "item": "tea"}'
    assert one(deserializer="bytes") == b'{"id": 1, "item": "tea"}'
    assert one(deserializer="json") == {"id": 1, "item": "tea"}
    assert one(deserializer="json", type=Order) == Order(1, "tea")
    record = KafkaRecord(name, 0, 0, 1234, b"k", b'{"id": 1, "item": "tea"}', ())
    assert one(deserializer="record") == record
    assert one(deserializer=lambda r: (r.key, r.offset)) == (b"k", 0)
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", id=int, item=str)
    assert one(deserializer="json", type=model) == model(id=1, item="tea")


def test_records_have_the_timestamps_of_the_broker(kafka_topics: Any, ten: str) -> None:
    with SourceDriver(KafkaSource(kafka_topics.servers, partitions={ten: [0]}, stop="latest")) as driver:
        driver.run()
        assert driver.timestamps == [list(range(1_000_000, 1_010_000, 1000))]
    source = KafkaSource(kafka_topics.servers, partitions={ten: [0]}, stop="latest", timestamps=False)
    with SourceDriver(source) as driver:
        driver.run()
        assert driver.timestamps == [[]]


def test_what_cannot_be_decoded_fails_with_its_place_or_is_skipped(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    kafka_topics.write(name, ['{"id": 1, "item": "tea"}', "rubbish", None, '{"id": 2, "item": "milk"}'])
    source = KafkaSource(kafka_topics.servers, name, stop="latest", deserializer="json", type=Order)
    flow = sw.Pipeline("orders")
    flow.source(source).collect()
    with pytest.raises(Exception, match="JSON is malformed") as caught:
        flow.run()
    assert any(f"topic '{name}', partition 0, offset 1" in note for note in caught.value.__notes__)

    flow = sw.Pipeline("orders")
    orders = flow.source(source).on_error("skip")
    letters, taken = orders.dead_letters().collect(), orders.collect()
    flow.run()
    assert taken == [Order(1, "tea"), Order(2, "milk")]
    assert [letter.value().offset for letter in letters] == [1, 2]
    assert letters[0].value().value == b"rubbish"
    assert "tombstone" in letters[1].error


# ---- event time -----------------------------------------------------------------------------------


def test_each_partition_has_a_watermark_of_its_own(kafka_topics: Any) -> None:
    """Partition 0 is an hour ahead of partition 1, and nothing is late."""
    name = kafka_topics.make(2)
    kafka_topics.write(name, map(str, range(50)), timestamps=range(3_600_000, 3_650_000, 1000))
    kafka_topics.write(name, map(str, range(50)), partition=1, timestamps=range(0 + 1, 50_001, 1000))
    flow = sw.Pipeline("windows")
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps()
    counts = (
        flow.source(KafkaSource(kafka_topics.servers, name, stop="latest"), watermark_strategy=strategy)
        .key_by(lambda value: 0)
        .window(sw.windows.TumblingEventTimeWindows.of("10s"))
        .count()
        .collect()
    )
    flow.run(batch_size=7)
    assert sum(count if isinstance(count, int) else count[-1] for count in counts) == 100


# ---- checkpoints, groups, metrics -----------------------------------------------------------------


def test_completed_checkpoints_are_committed_to_the_group(kafka_topics: Any, ten: str, tmp_path: Path) -> None:
    group = f"group{next(_groups)}"
    source = KafkaSource(kafka_topics.servers, partitions={ten: [0]}, group_id=group)
    with SourceDriver(source) as driver:
        driver.run(10)
        reader = driver._reader(0)
        reader.checkpoint_completed(reader.snapshot())
        _until(lambda: driver.metrics[0].read()["commitsSucceeded"] == 1, lambda: reader.poll(10))
        assert driver.metrics[0].read()[f"committedOffset.{ten}.0"] == 10
    source = KafkaSource(
        kafka_topics.servers, partitions={ten: [0]}, start="committed", stop="latest", group_id=group
    )
    assert read(source) == []


def test_a_group_with_members_takes_no_offsets(
    kafka_topics: Any, ten: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = f"g{next(_groups)}-members"
    member = Consumer(
        {"bootstrap.servers": kafka_topics.servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    try:
        member.subscribe([ten])
        until(lambda: member.poll(0.1) is not None)
        flow = sw.Pipeline("orders")
        taken = flow.source(KafkaSource(kafka_topics.servers, ten, stop="latest", group_id=group)).collect()
        flow.run(checkpoint_interval="1h")
    finally:
        member.close()
    assert len(taken) == 20
    assert (
        "UNKNOWN_MEMBER_ID); other consumers subscribe with this group: give the source a group_id" in caplog.text
    )


def test_lags_are_among_the_metrics(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    kafka_topics.write_in_transaction(name, map(str, range(30)), commit=True)
    with SourceDriver(KafkaSource(kafka_topics.servers, name), limit=10) as driver:
        driver.run(10)
        figures = driver.metrics[0].read
        assert figures()[f"currentOffset.{name}.0"] == 10
        driver.run(30)
        # The marker of the transaction is behind the last record, and is no record.
        _until(lambda: figures()[f"recordsLag.{name}.0"] == 0, lambda: driver._reader(0).poll(10))
        assert figures()["recordsConsumed"] == 30
        assert figures()["connectedBrokers"] == 1
        assert figures()["pendingRecords"] == 0


def test_metrics_of_partitions_that_are_read_to_their_end_are_removed(kafka_topics: Any) -> None:
    name = kafka_topics.make(2)
    kafka_topics.write(name, ["0"])
    source = KafkaSource(
        kafka_topics.servers,
        name,
        group_id=f"group{next(_groups)}",
        stop=KafkaOffsets.partitions({(name, 0): 1, (name, 1): 1}),
    )
    with SourceDriver(source) as driver:
        assert driver.run(1) == ["0"]
        _until(lambda: len(driver._reader(0).snapshot()) == 1, lambda: driver._reader(0).poll(10))
        figures = driver.metrics[0].read()
        assert {each for each in figures if name in each} == {
            f"{figure}.{name}.1" for figure in ("currentOffset", "recordsLag", "committedOffset")
        }


def _until(reached: Callable[[], bool], step: Callable[[], object]) -> None:
    """Go on with a reader until something is so; the test's own timeout ends what never is."""
    pause = threading.Event()
    while not reached():
        step()
        pause.wait(0.01)


# ---- new partitions -------------------------------------------------------------------------------


def test_new_partitions_are_read_from_their_first_record(kafka_topics: Any) -> None:
    name = kafka_topics.make(1)
    kafka_topics.write(name, ["before"])
    source = KafkaSource(kafka_topics.servers, name, start="latest", discovery_interval="100ms")
    with SourceDriver(source, 2) as driver:
        kafka_topics.add_partitions(name, 3)
        kafka_topics.write(name, ["in 1"], partition=1)
        kafka_topics.write(name, ["in 2"], partition=2)
        kafka_topics.write(name, ["after"])
        assert sorted(driver.run(3)) == ["after", "in 1", "in 2"]
        snapshot = driver.snapshot()
    kafka_topics.write(name, ["later"], partition=2)
    with SourceDriver(source, 1, restored=snapshot) as driver:
        assert driver.run(1) == ["later"]


def test_new_topics_of_a_pattern_are_read(kafka_topics: Any) -> None:
    kafka_topics.write(kafka_topics.make(name="growing-0"), ["0"])
    source = KafkaSource(kafka_topics.servers, pattern="growing-.*", discovery_interval="100ms")
    with SourceDriver(source) as driver:
        assert driver.run(1) == ["0"]
        kafka_topics.write(kafka_topics.make(name="growing-1"), ["1"])
        assert driver.run(2) == ["0", "1"]


# ---- what goes wrong ------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_named(kafka_topics: Any) -> None:
    with pytest.raises(ConnectorError, match=r"cannot read topic 'nowhere' at .*has to be there"):
        read(KafkaSource(kafka_topics.servers, "nowhere", stop="latest"))


def test_brokers_that_cannot_be_reached_are_named(refusing_port: int) -> None:
    source = KafkaSource(f"127.0.0.1:{refusing_port}", "orders", request_timeout="500ms")
    with pytest.raises(
        ConnectorError, match=rf"no broker at 127.0.0.1:{refusing_port} has answered within 500 ms: "
    ):
        read(source)


def test_an_expired_position_is_an_error(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    kafka_topics.write(name, map(str, range(20)))
    source = KafkaSource(kafka_topics.servers, name, stop="latest")
    with SourceDriver(source, limit=5) as driver:
        driver.run(5)
        snapshot = driver.snapshot()
    kafka_topics.delete_records(name, 0, 10)
    with (
        pytest.raises(ConnectorError, match=rf"topic '{name}', partition 0 at offset 5: that offset is not there"),
        SourceDriver(source, restored=snapshot) as driver,
    ):
        driver.run()
    # A source that begins anew takes what is there.
    assert read(KafkaSource(kafka_topics.servers, name, stop="latest")) == [str(i) for i in range(10, 20)]


def test_a_deleted_topic_is_an_error(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    kafka_topics.write(name, ["only"])
    source = KafkaSource(kafka_topics.servers, name, discovery_interval="200ms")
    with SourceDriver(source) as driver:
        assert driver.run(1) == ["only"]
        kafka_topics.delete(name)
        with pytest.raises(ConnectorError, match=f"topic '{name}'"):
            driver.run(2)


@pytest.mark.parametrize("pattern", [False, True], ids=["topics", "pattern"])
def test_a_topic_that_is_made_anew_is_an_error(kafka_topics: Any, pattern: bool) -> None:
    """Its offsets stand for other records: the client would go on behind the first of them."""
    name = kafka_topics.make()
    kafka_topics.write(name, ["only"])
    which: dict[str, Any] = {"pattern": f"{name}.*"} if pattern else {"topics": name}
    source = KafkaSource(kafka_topics.servers, **which, discovery_interval="200ms")
    with SourceDriver(source) as driver:
        assert driver.run(1) == ["only"]
        snapshot = driver.snapshot()
        kafka_topics.delete(name)
        until(lambda: name not in kafka_topics.admin.list_topics(timeout=60).topics)
        kafka_topics.make(name=name)
        kafka_topics.write(name, ["skipped", "read"])
        # The client may ask for the next record of the empty topic before the source has seen that it is another.
        anew = f"topic '{name}' was deleted and created again|offset 1: that offset is not there .* made anew"
        with pytest.raises(ConnectorError, match=anew):
            driver.run(3)
    with (
        pytest.raises(ConnectorError, match=f"topic '{name}' was deleted and created again"),
        SourceDriver(source, restored=snapshot) as driver,
    ):
        driver.run(3)


def test_a_partition_is_finished_with_its_last_record(kafka_topics: Any) -> None:
    """A topic that is deleted right after that does not matter."""
    name = kafka_topics.make()
    kafka_topics.write(name, ["only"])
    with SourceDriver(KafkaSource(kafka_topics.servers, name, stop="latest")) as driver:
        assert driver.run(1) == ["only"]
        assert driver.finished == {f"{name}-0"}


@pytest.mark.slow
@pytest.mark.timeout(PATIENT_S)
def test_a_topic_that_is_deleted_before_the_source_stops_is_an_error(kafka_topics: Any) -> None:
    """The client takes its time to notice; what was read to its end before does not matter."""
    names = [kafka_topics.make(), kafka_topics.make()]
    for name in names:
        kafka_topics.write(name, ["only"])
    stop = KafkaOffsets.partitions({(names[0], 0): 1, (names[1], 0): 2})
    with SourceDriver(KafkaSource(kafka_topics.servers, names, stop=stop)) as driver:
        assert driver.run(2) == ["only", "only"]
        for name in names:
            kafka_topics.delete(name)
        with pytest.raises(ConnectorError, match=rf"partition 0 of topic '{names[1]}' .* read from offset 1 on"):
            driver.run(3)


def test_a_restored_source_that_stops_does_not_read_a_topic_made_anew(kafka_topics: Any) -> None:
    """The new topic has as many records as the old one, so that its offsets alone say nothing."""
    name = kafka_topics.make()
    kafka_topics.write(name, ["a", "b"])
    source = KafkaSource(kafka_topics.servers, name, stop="latest")
    with SourceDriver(source, limit=1) as driver:
        assert driver.run(1) == ["a"]
        snapshot = driver.snapshot()
    with SourceDriver(source, restored=snapshot) as driver:
        assert driver.run() == ["b"]
    kafka_topics.delete(name)
    kafka_topics.make(name=name)
    kafka_topics.write(name, ["c", "d"])
    with (
        pytest.raises(ConnectorError, match=f"topic '{name}' was deleted and created again"),
        SourceDriver(source, restored=snapshot) as driver,
    ):
        driver.run()


@pytest.mark.parametrize("options", [{}, {"partitions": True}], ids=["topics", "partitions"])
def test_so_is_one_without_discovery(
    kafka_topics: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("sluiceway_kafka._source._WATCH_MS", 200)
    name = kafka_topics.make(2)
    kafka_topics.write(name, ["only"])
    which: dict[str, Any] = {"partitions": {name: [0]}} if options else {"topics": name}
    with SourceDriver(KafkaSource(kafka_topics.servers, **which, discovery_interval=None), 2) as driver:
        assert driver.run(1) == ["only"]
        kafka_topics.add_partitions(name, 3)
        kafka_topics.write(name, ["not read"], partition=2)
        kafka_topics.write(name, ["more"])
        assert driver.run(2) == ["only", "more"]
        kafka_topics.delete(name)
        with pytest.raises(ConnectorError, match=rf"partition 0 of topic '{name}' is not there any more"):
            driver.run(3)


def test_an_unknown_property_is_an_error_of_the_configuration(kafka_topics: Any) -> None:
    source = KafkaSource(kafka_topics.servers, "orders", properties={"no.such.thing": "1"})
    with pytest.raises(ConfigurationError, match=r"No such configuration property: \"no.such.thing\""):
        read(source)


def test_secrets_show_nowhere(kafka_topics: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    properties = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": "hush-hush"}
    source = KafkaSource(
        kafka_topics.servers,
        "orders",
        properties={**properties, "security.protocol": "SASL_PLAINTEXT"},
        request_timeout="500ms",
    )
    assert "hush-hush" not in repr(source)
    flow = sw.Pipeline("orders")
    flow.source(source).print()
    assert "hush-hush" not in flow.explain()
    with pytest.raises(ConnectorError) as caught:
        flow.run()
    assert "hush-hush" not in str(caught.value)
    assert "hush-hush" not in caplog.text
