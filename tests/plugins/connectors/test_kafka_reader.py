"""Reader of the Kafka source against the broker inside the client: what it makes of unusual records."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.clock import SystemClock
from sluiceway.connector import ReaderContext, Wait
from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.metrics import MetricGroup
from sluiceway.runtime.microbatch.batch_limits import BatchLimits
from sluiceway.runtime.microbatch.batch_log import BatchLog
from sluiceway.runtime.microbatch.batch_reader import BatchReader
from sluiceway.runtime.microbatch.planner import BatchPlanner
from sluiceway.testing.drivers import SourceDriver

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, Message, TopicPartition
from tests.plugins.connectors.kafkamock import MockBroker

from sluiceway_filesystem._local import LocalStorage
from sluiceway_kafka import ArrowColumns, AvroFormat, KafkaSource
from sluiceway_kafka._enumerator import Found
from sluiceway_kafka._formats import FormatWriter
from sluiceway_kafka._offset_bounds import EARLIEST, Partition
from sluiceway_kafka._reader import KafkaReader, _Partition
from sluiceway_kafka._registry import SchemaPendingError
from sluiceway_kafka._splits import KafkaSplit

pytestmark = [pytest.mark.timeout(PATIENT_S)]


class Source(KafkaSource):
    """Source of given splits, which nothing is asked for: the mock broker does not answer an admin client."""

    def __init__(self, broker: MockBroker, *splits: KafkaSplit, **options: Any) -> None:
        super().__init__(broker.servers, [split.topic for split in splits], stop="latest", **options)
        self.splits = splits


class Look:
    def __init__(self, source: Source) -> None:
        self._splits = {(split.topic, split.partition): split for split in source.splits}

    def __call__(self, known: frozenset[Partition], is_first: bool) -> Found:
        new = [split for key, split in self._splits.items() if key not in known]
        return Found(frozenset(self._splits), new, {})

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _no_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway_kafka._source._Look", Look)


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    broker = MockBroker()
    try:
        yield broker
    finally:
        broker.close()


# ---- splits -----------------------------------------------------------------------------------------------------


def test_a_topic_that_is_named_no_more_is_not_read(broker: MockBroker) -> None:
    """Its split is finished: it would hold the watermark back."""
    splits = [KafkaSplit(topic, 0, 0, 3) for topic in ("kept", "left")]
    for split in splits:
        broker.write(split.topic, [f"{split.topic} {number}" for number in range(3)])
    with SourceDriver(Source(broker, *splits)) as driver:
        snapshot = driver.snapshot()
    with SourceDriver(Source(broker, splits[0]), restored=snapshot) as driver:
        assert driver.run() == ["kept 0", "kept 1", "kept 2"]
        assert driver.finished == {"kept-0", "left-0"}
        assert [split for splits in driver.snapshot().splits() for split in splits] == []


def test_a_reader_without_partitions_polls_its_client(broker: MockBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics and log lines would fill the client's queue for as long as the job runs."""
    monkeypatch.setattr("sluiceway_kafka._reader._STATISTICS_MS", 20)
    metrics, woken = MetricGroup(), threading.Event()
    context = ReaderContext(0, 1, SystemClock(), woken.set, lambda: None, metrics)
    reader = Source(broker, KafkaSplit("none", 0, 0)).create_reader(context)
    reader.start()
    try:
        while not metrics.read()["connectedBrokers"]:
            woken.clear()
            assert reader.poll(1) == Wait()
            assert woken.wait(PATIENT_S)
    finally:
        reader.close()


def test_a_batch_may_be_larger_than_what_the_client_gives_at_a_time(broker: MockBroker) -> None:
    broker.write("large", "abc")
    with SourceDriver(Source(broker, KafkaSplit("large", 0, 0, 3)), limit=1_000_001) as driver:
        assert driver.run() == ["a", "b", "c"]


def test_a_record_that_the_client_may_not_receive_fails(broker: MockBroker) -> None:
    """The client would ask for it again and again."""
    broker.write("huge", ["x" * 50_000])
    limits = {"receive.message.max.bytes": 20_000, "fetch.max.bytes": 10_000, "message.max.bytes": 10_000}
    source = Source(broker, KafkaSplit("huge", 0, 0, 1), properties=limits)
    with (
        pytest.raises(ConnectorError, match=r"larger than receive\.message\.max\.bytes in properties"),
        SourceDriver(source) as driver,
    ):
        driver.run()


@pytest.mark.parametrize("stops", [False, True])
def test_a_source_without_an_end_does_not_become_one_with_an_end(broker: MockBroker, stops: bool) -> None:
    """Its partitions would go on as they began: the job would never end, or stop reading without a word."""
    broker.write("ends", "abc")
    begun = Source(broker, KafkaSplit("ends", 0, 1, 3 if stops else None))
    begun._stop = begun._stop if stops else None
    with SourceDriver(begun, limit=1) as driver:
        driver.run(1)
        snapshot = driver.snapshot()
    resumed = Source(broker, KafkaSplit("ends", 0, 1, None if stops else 3))
    resumed._stop = None if stops else resumed._stop
    says = f"source {'with' if stops else 'without'} stop=, and partition ends-0 would go on as it began"
    with pytest.raises(ConfigurationError, match=says), SourceDriver(resumed, restored=snapshot) as driver:
        driver.run(1)


# ---- offsets of the group ---------------------------------------------------------------------------------------


_groups = itertools.count()


@pytest.mark.parametrize(
    ("completed", "expected"),
    [(["middle"], 1), (["end"], 3), (["middle", "end"], 3), (["before"], OFFSET_INVALID)],
    ids=["before the end", "behind the end", "both", "before the partition"],
)
def test_the_end_of_a_partition_is_committed_with_a_later_checkpoint(
    broker: MockBroker, completed: list[str], expected: int
) -> None:
    group = f"group{next(_groups)}"
    topic = f"ended-{group}"
    broker.write(topic, "abcd")
    with SourceDriver(Source(broker, KafkaSplit(topic, 0, 0, 3), group_id=group), limit=1) as driver:
        reader = driver._reader(0)
        snapshots: dict[str, list[KafkaSplit]] = {"before": []}
        driver.run(1)
        snapshots["middle"] = reader.snapshot()
        assert driver.run() == ["a", "b", "c"]
        if "end" in completed:
            snapshots["end"] = reader.snapshot()
        for name in completed:
            reader.checkpoint_completed(snapshots[name])
    assert committed(broker, group, topic) == expected


def test_a_job_that_stops_commits_where_it_did(broker: MockBroker, tmp_path: Path) -> None:
    broker.write("stops", "abc")
    flow = sw.Pipeline("stops")
    records = flow.source(Source(broker, KafkaSplit("stops", 0, 0, 3), group_id="stops")).collect()
    flow.run(checkpoint_interval="1h", checkpoints=tmp_path)
    assert records == ["a", "b", "c"]
    assert committed(broker, "stops", "stops") == 3


def test_a_batch_job_commits_the_ends_of_what_it_was_given(broker: MockBroker) -> None:
    broker.write("given", "abc")
    split = KafkaSplit("given", 0, 1, 3)
    Source(broker, split).batch_completed([split])
    source = Source(broker, split, group_id="given")
    source.batch_completed([])
    assert committed(broker, "given", "given") == OFFSET_INVALID
    source.batch_completed([split])
    assert committed(broker, "given", "given") == 3


def test_micro_batches_commit_where_the_one_before_has_ended(broker: MockBroker, tmp_path: Path) -> None:
    broker.write("batches", "abcdef")
    source = Source(broker, KafkaSplit("batches", 0, 0, 10), group_id="batches")
    files = BatchLog(LocalStorage(str(tmp_path)), "run")
    planner = BatchPlanner(source, files, 1, limits=BatchLimits(records=2, wait_s=PATIENT_S))
    for batch, end in enumerate([OFFSET_INVALID, 2, 4], 1):
        assert planner.plan(batch)
        [work] = planner.work(batch)
        reader = BatchReader(source, work, files)
        reader.start()
        while isinstance(reader.poll(1), (list, Batch)):
            pass
        reader.finish()
        reader.close()
        assert committed(broker, "batches", "batches") == end
    planner.close()


def committed(broker: MockBroker, group: str, topic: str) -> int:
    """Return the offset that a group has in partition 0."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], PATIENT_S)
        offset: int = found.offset
        return offset
    finally:
        consumer.close()


# ---- timestamps -------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(broker: MockBroker) -> KafkaSplit:
    """A topic with records of which some have no timestamp, and some are no JSON."""
    values = ["0", "1", "rubbish", "3", "rubbish", "5", "6"]
    broker.write("timed", values, timestamps=[10, -1, -1, -1, 50, 60, 70])
    return KafkaSplit("timed", 0, 0, len(values))


class Batches(SourceDriver):
    """Driver that keeps batches as they are."""

    def __init__(self, source: KafkaSource, limit: int) -> None:
        self.batches: list[Batch[Any]] = []
        super().__init__(source, limit=limit)

    def _take(self, index: int, result: Any) -> None:
        self.batches.append(result)

    def records_with_times(self) -> list[tuple[Any, int | None]]:
        with self:
            self.run()
            return [
                pair
                for batch in self.batches
                for pair in zip(batch.values, batch.timestamps or [None] * len(batch), strict=True)
            ]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_record_without_a_timestamp_does_not_take_those_of_others(
    broker: MockBroker, timed: KafkaSplit, limit: int
) -> None:
    driver = Batches(Source(broker, timed, deserializer="json", type=int), limit)
    assert driver.records_with_times() == [(0, 10), (1, None), (3, None), (5, 60), (6, 70)]
    assert [(record.timestamp, time) for record, _, time in driver.rejected] == [(None, None), (50, 50)]
    driver = Batches(Source(broker, timed, deserializer="record"), limit)
    assert [record.timestamp for record, _ in driver.records_with_times()] == [10, None, None, None, 50, 60, 70]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_so_it_is_in_rows(broker: MockBroker, timed: KafkaSplit, limit: int) -> None:
    pytest.importorskip("pyarrow", reason='not installed: pip install "sluiceway[arrow]"')
    source = Source(broker, timed, deserializer=ArrowColumns(columns=["offset"]))
    rows = [(row["offset"], time) for row, time in Batches(source.in_columns()[0], limit).records_with_times()]
    assert rows == [(0, 10), (1, None), (2, None), (3, None), (4, 50), (5, 60), (6, 70)]
    times = dict(rows)
    for batch, time in Batches(source, limit).records_with_times():
        assert time == times[batch["offset"].to_pylist()[-1]]


# ---- schemas ----------------------------------------------------------------------------------------------------


@dataclass
class Item:
    name: str


@pytest.mark.parametrize("columns", [False, True], ids=["records", "rows"])
@pytest.mark.parametrize("limit", [3, 100])
def test_a_batch_may_have_more_schemas_than_the_cache(
    broker: MockBroker, registry: Any, monkeypatch: pytest.MonkeyPatch, limit: int, columns: bool
) -> None:
    """Of the two records of each id, the second comes when the cache has forgotten the first."""
    pytest.importorskip("authlib", reason='not installed: pip install "sluiceway[kafka-registry]"')
    pytest.importorskip("fastavro", reason='not installed: pip install "sluiceway[kafka-registry]"')
    pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')
    monkeypatch.setattr("sluiceway_kafka._registry._MOST_SCHEMAS", 3)
    format_ = AvroFormat(registry.url, type=Item)
    encode = FormatWriter(format_, "value").of("items")
    values = []
    for number in range(10):
        values += [encode(Item(str(number))), b"\0" + (1000 + number % 5).to_bytes(4, "big") + b"abc"]
    broker.write("items", values)
    source = Source(broker, KafkaSplit("items", 0, 0, len(values)), deserializer=format_)
    driver = Batches(source.in_columns()[0] if columns else source, limit)
    records = [record for record, _ in driver.records_with_times()]
    assert records == [{"name": str(number)} if columns else Item(str(number)) for number in range(10)]
    assert [record.offset for record, _, _ in driver.rejected] == list(range(1, 20, 2))
    fetched = [each for each in registry.requests if each.startswith("GET /schemas")]
    assert len(fetched) == 11


@pytest.mark.parametrize("limit", [1, 10])
def test_what_follows_a_record_that_waits_for_a_schema_waits_too(broker: MockBroker, limit: int) -> None:
    """Also where the end of another partition came between them, as in a source that stops."""
    waits = {b"B"}

    def decode(messages: list[Message]) -> list[Any]:
        if any(message.value() in waits for message in messages):
            raise SchemaPendingError
        return [message.value() for message in messages]

    context = ReaderContext(0, 1, SystemClock(), lambda: None, lambda: None, MetricGroup())
    reader = Source(broker, KafkaSplit("t", 1, 0, 10)).create_reader(context)
    assert isinstance(reader, KafkaReader)
    reader._decoder.decode = decode  # type: ignore[method-assign]
    reader._decoder.decode_one = lambda message: decode([message])[0]  # type: ignore[method-assign]
    for number in (0, 1):
        reader._partitions["t", number] = _Partition(KafkaSplit("t", number, 0, 10))
    a, b, c = (
        Message(topic="t", partition=1, offset=at, value=value) for at, value in enumerate([b"A", b"B", b"C"])
    )
    end = Message(topic="t", partition=0, offset=0, error=KafkaError(KafkaError._PARTITION_EOF))
    reader._sort([a, b, end, c, Message(topic="t", partition=0, offset=5, value=b"D")])

    def read() -> list[Any]:
        batches = iter(lambda: reader._next_batch(limit), None)
        return [value for batch in batches for value in batch.values]

    assert read() == [b"A", b"D"]
    assert [split.position for split in reader.snapshot()] == [6, 1]
    assert reader.waiting_splits() == ["t-1"]
    waits.clear()
    assert read() == [b"B", b"C"]
    assert [split.position for split in reader.snapshot()] == [6, 3]
    assert reader.waiting_splits() == []


def test_a_partition_waits_while_its_records_are_in_the_client_behind_those_of_another(broker: MockBroker) -> None:
    """It would become idle, and its records come late, where a batch takes longer than the idleness timeout."""
    context = ReaderContext(0, 1, SystemClock(), lambda: None, lambda: None, MetricGroup())
    reader = Source(broker, KafkaSplit("t", 0, 0)).create_reader(context)
    assert isinstance(reader, KafkaReader)
    for number in (0, 1):
        reader._partitions["t", number] = _Partition(KafkaSplit("t", number, 0))
    in_client = [Message(topic="t", partition=at // 4, offset=at % 4, value=b"") for at in range(8)]

    def consume(limit: int, timeout: float) -> list[Message]:
        taken, in_client[:] = in_client[:limit], in_client[limit:]
        return taken

    reader._consumer = SimpleNamespace(consume=consume)  # type: ignore[assignment]

    def look(*fetched: int, end: int = 4, queued: int | None = None) -> list[str]:
        each = {"ls_offset": end, "fetchq_cnt": len(in_client) if queued is None else queued}
        partitions = {str(number): {"next_offset": offset, **each} for number, offset in enumerate(fetched)}
        reader._statistics = json.dumps({"brokers": {}, "topics": {"t": {"partitions": partitions}}})
        reader._look_at_statistics()
        return list(reader.waiting_splits())

    def read(limit: int) -> list[str]:
        reader._sort(reader._fetch(limit))
        while reader._next_batch(limit):
            pass
        return list(reader.waiting_splits())

    assert look(4, 0, queued=4) == ["t-0", "t-1"]  # one is fetched, the other is not yet
    assert look(4, 4) == ["t-0", "t-1"]
    assert read(6) == ["t-1"]
    # Of an empty partition nothing waits, nor of one whose records were returned.
    reader._partitions["t", 2] = _Partition(KafkaSplit("t", 2, EARLIEST))
    assert look(4, 4, 0, end=0) == ["t-1"]
    assert read(2) == []
    assert look(4, 4) == []
    # The client has counted before messages were taken of which the reader knows by now.
    assert look(5, 5, end=5, queued=3) == ["t-0", "t-1"]
    assert look(5, 5, end=5) == []


def test_markers_and_deleted_records_are_no_lag_beside_a_busy_partition(broker: MockBroker) -> None:
    """The client has one queue for all partitions, so that it is never empty here."""
    context = ReaderContext(0, 1, SystemClock(), lambda: None, lambda: None, MetricGroup())
    reader = Source(broker, KafkaSplit("t", 0, 0)).create_reader(context)
    assert isinstance(reader, KafkaReader)
    busy, ended, begun = (_Partition(KafkaSplit("t", number, EARLIEST)) for number in range(3))
    reader._partitions.update({partition.key: partition for partition in (busy, ended, begun)})

    def look(**figures: dict[str, int]) -> list[int]:
        partitions = {number[1:]: {"fetchq_cnt": 4, **each} for number, each in figures.items()}
        reader._statistics = json.dumps({"brokers": {}, "topics": {"t": {"partitions": partitions}}})
        reader._look_at_statistics()
        return [partition.lag for partition in (busy, ended, begun)]

    def read(*messages: tuple[int, int]) -> None:
        taken = [Message(topic="t", partition=number, offset=at, value=b"") for number, at in messages]
        reader._taken += len(taken)
        reader._sort(taken)
        while reader._next_batch(10):
            pass

    # Of the second one's ten offsets the last six are of markers and aborted records; of the third one's thousand
    # the first 900 were deleted.
    figures = {
        "p0": {"ls_offset": 100, "lo_offset": 0, "next_offset": 50},
        "p1": {"ls_offset": 10, "lo_offset": 0, "next_offset": 10},
        "p2": {"ls_offset": 1000, "lo_offset": 900, "next_offset": 900},
    }
    assert look(**figures) == [100, 10, 100]
    read(*((1, at) for at in range(4)))
    figures["p0"]["next_offset"] = 60
    assert look(**figures) == [100, 0, 100]
    read((0, 0))
    figures["p0"] |= {"ls_offset": 120, "next_offset": 70}
    assert look(**figures) == [119, 0, 100]
    figures["p1"] |= {"ls_offset": 30, "next_offset": 30}  # fetched, and perhaps still in the queue
    assert look(**figures) == [119, 26, 100]


# ---- headers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def headed(broker: MockBroker) -> KafkaSplit:
    """A topic with a record whose header has a name that is not UTF-8 between two others."""
    for value, name in ((b"1", b"good"), (b"2", b"\xff\xfe"), (b"3", b"good")):
        broker.write_with_header("headed", value, name)
    return KafkaSplit("headed", 0, 0, 3)


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize(
    "options",
    [{"deserializer": "record"}, {"deserializer": lambda record: record}, {"key_deserializer": "text"}],
    ids=["record", "function", "keys"],
)
def test_a_record_with_a_header_that_cannot_be_read_is_rejected(
    broker: MockBroker, headed: KafkaSplit, options: dict[str, Any], limit: int
) -> None:
    with SourceDriver(Source(broker, headed, **options), limit=limit) as driver:
        assert [record.headers for record in driver.run()] == [(("good", b"of a header"),)] * 2
        ((record, error, _),) = driver.rejected
    assert (record.offset, record.value, record.headers) == (1, b"2", ())
    assert str(error) == "the name of one of its headers is not UTF-8"
    assert "topic 'headed', partition 0, offset 1" in error.__notes__[0]


def test_so_it_is_in_columns(broker: MockBroker, headed: KafkaSplit) -> None:
    pytest.importorskip("pyarrow", reason='not installed: pip install "sluiceway[arrow]"')
    columns = ArrowColumns(columns=["offset", "headers"])
    with SourceDriver(Source(broker, headed, deserializer=columns)) as driver:
        rows = [row for batch in driver.run() for row in batch.to_pylist()]
        assert [record.offset for record, _, _ in driver.rejected] == [1]
    assert rows == [{"offset": offset, "headers": [("good", b"of a header")]} for offset in (0, 2)]


def test_values_do_not_need_headers(broker: MockBroker, headed: KafkaSplit) -> None:
    with SourceDriver(Source(broker, headed)) as driver:
        assert driver.run() == ["1", "2", "3"]
    with SourceDriver(Source(broker, headed, deserializer="json", type=str)) as driver:
        assert driver.run() == []
        assert [record.offset for record, _, _ in driver.rejected] == [0, 1, 2]
