"""Topics in columns: the rows and positions of records, whatever makes a batch; rows as JSON; crashes."""

from __future__ import annotations

import json
import os
import pickle
import signal
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.elements import Columns
from sluiceway.errors import ConfigurationError, ConnectorError, RejectedRecordError, SerializationError
from sluiceway.testing.drivers import SinkDriver
from sluiceway.windows import TumblingEventTimeWindows

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')

import pyarrow as pa

from sluiceway.table import agg, col
from sluiceway_kafka import ArrowColumns, AvroFormat, KafkaSink, KafkaSource
from sluiceway_kafka._encoders import encoder_of

NOWHERE = "127.0.0.1:1"


@dataclass
class Place:
    city: str
    zip: int | None = None


@dataclass
class Order:
    id: int
    user: str
    price: float = 1.5
    at: datetime | None = None
    place: Place | None = None


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("user", pa.string()), ("price", pa.float64())])


def order(number: int) -> bytes:
    return json.dumps({"id": number, "user": f"u{number % 7}", "price": number / 4, "more": 1}).encode()


# ---- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        ({"deserializer": "arrow"}, ["key", "value", "topic", "partition", "offset", "timestamp"]),
        ({"deserializer": ArrowColumns(SCHEMA, columns=["offset", "value"])}, ["offset", "id", "user", "price"]),
        ({"deserializer": "json", "type": Order}, ["id", "user", "price", "at", "place"]),
        ({"deserializer": AvroFormat("http://127.0.0.1:1", type=Order)}, ["id", "user", "price", "at", "place"]),
    ],
)
def test_the_deserializer_says_what_columns_there_are(arguments: dict[str, Any], columns: list[str]) -> None:
    rows = sw.Pipeline().table(KafkaSource(NOWHERE, "t", **arguments))
    assert rows.schema.names == columns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "records of deserializer='text' have no columns. 'arrow', ArrowColumns"),
        ({"deserializer": "json"}, "the columns of 'json' are not known: give type=, a class"),
        ({"deserializer": "json", "type": dict}, "the columns of <class 'dict'> are not known"),
        ({"deserializer": lambda record: 1}, "records of deserializer='a function' have no columns"),
        ({"deserializer": "json", "key_deserializer": "text", "type": Order}, "takes no key_deserializer="),
    ],
)
def test_columns_that_are_not_known_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sw.Pipeline().table(KafkaSource(NOWHERE, "t", **arguments))


def test_a_schema_as_type_is_an_error_that_says_where_it_goes() -> None:
    with pytest.raises(ConfigurationError, match=r"deserializer=ArrowColumns\(schema\) takes a schema"):
        KafkaSource(NOWHERE, "t", deserializer="json", type=SCHEMA)


# ---- rows to messages -------------------------------------------------------------------------------------------

DEEP = pa.struct([("m", pa.map_(pa.string(), pa.binary()))])
ROWS = pa.RecordBatch.from_arrays(
    [
        pa.array(["a", None, "ü"]),
        pa.array([1, 2, None], pa.uint8()),
        pa.array([0.5, float("nan"), -0.0], pa.float32()),
        pa.array([1, None, 86_400_000_000_000], pa.timestamp("us")),
        pa.array([date(2026, 1, 2)] * 3),
        pa.array([Decimal("1.10"), None, Decimal(2)], pa.decimal128(9, 2)),
        pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        pa.array([[{"m": [("x", b"y")]}], None, [None]], pa.list_(DEEP)),
        pa.array(["d", "d", None]).dictionary_encode(),
        pa.array([True, False, None]),
        pa.array([datetime(2026, 1, 2, tzinfo=UTC)] * 3, pa.timestamp("ns", "UTC")),
    ],
    names=["text", "small", "single", "at", "class", "price", "by", "deep", "f0", "is", "exact"],
)  # fmt: skip


def encoder(**options: Any) -> Any:
    wanted: dict[str, Any] = {
        "key": None, "key_serializer": None, "headers": None, "partition": None, "timestamp": None, **options,
    }  # fmt: skip
    return pickle.loads(cloudpickle.dumps(encoder_of("t", "json", **wanted)))


def test_rows_are_encoded_as_their_dicts_are() -> None:
    dicts = ROWS.to_pylist()
    for row in dicts:
        row["by"] = None if row["by"] is None else dict(row["by"])
        for item in row["deep"] or []:
            if item is not None:
                item["m"] = dict(item["m"])
        row["exact"] = datetime(2026, 1, 2, tzinfo=UTC)
    made = encoder(key="text").encode(Columns(ROWS), [5, 1, 7])
    assert made == encoder(key="text").encode(dicts, [5, 1, 7])
    assert [message[2] for message in made] == ["a", None, "ü"]
    assert [message[4] for message in made] == [5, 1, 7]
    assert json.loads(made[0][1])["by"] == {"k": 1}


@pytest.mark.parametrize("at", [-1, 0])
@pytest.mark.parametrize("records", [Columns(ROWS.select(["text", "small"])), [{"small": n} for n in (1, 2, 3)]])
def test_event_times_that_kafka_has_no_timestamp_for_are_refused(records: Any, at: int) -> None:
    """The client would take 0 for the time of writing, and brokers have no negative ones."""
    with pytest.raises(
        RejectedRecordError, match=rf"the event time {at} ms is not after 1970.*timestamp="
    ) as caught:
        encoder().encode(records, [5, at, 7])
    [note] = caught.value.__notes__
    assert "'small': 2" in note
    given = encoder(timestamp=lambda row: row["small"] or 0).encode(records, [5, at, 7])
    assert [message[4] for message in given][:2] == [1, 2]


def test_a_negative_timestamp_of_a_function_is_refused() -> None:
    with pytest.raises(RejectedRecordError, match=r"timestamp= has returned -3, and Kafka has no times") as caught:
        encoder(timestamp=lambda row: row["at"]).encode([{"at": 0}, {"at": -3}], None)
    assert caught.value.__notes__ == ["record: {'at': -3}"]


def test_functions_and_serialized_keys_see_rows() -> None:
    rows = Columns(ROWS.select(["text", "small"]))
    by_function = encoder(key=lambda row: row["text"], headers=lambda row: {"h": row["text"]}).encode(rows, None)
    assert by_function == encoder(key="text", headers=lambda row: {"h": row["text"]}).encode(list(rows), None)
    assert [m[2] for m in encoder(key="small", key_serializer="json").encode(rows, None)] == [b"1", b"2", None]
    assert [m[2] for m in encoder(key="small", key_serializer="json").encode(list(rows), None)] == [
        b"1",
        b"2",
        None,
    ]


def test_nanoseconds_inside_of_other_values_are_times_too() -> None:
    """By itself, Arrow makes objects of pandas of them, if it is installed, and an error if it is not."""
    at, nanoseconds = datetime(2026, 1, 2, 3, 4, 5, 6), pa.timestamp("ns")
    struct = pa.struct([("at", nanoseconds), ("by", pa.map_(pa.string(), pa.list_(nanoseconds)))])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([{"at": at, "by": [("k", [at, None])]}, None], struct)], names=["of"]
    )
    shown = "2026-01-02T03:04:05.000006"
    assert [json.loads(message[1]) for message in encoder().encode(Columns(rows), None)] == [
        {"of": {"at": shown, "by": {"k": [shown, None]}}},
        {"of": None},
    ]
    twice = pa.RecordBatch.from_arrays([pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8()))], ["m"])
    with pytest.raises(RejectedRecordError, match=r"KafkaSink: column 'm' has .*: a map has a key twice"):
        encoder().encode(Columns(twice), None)


def test_keys_and_times_that_cannot_be_written_are_named() -> None:
    with pytest.raises(ConnectorError, match="key='txt': there is no column 'txt'; did you mean 'text'"):
        encoder(key="txt").encode(Columns(ROWS), None)
    with pytest.raises(ConnectorError, match="key='txt' is no field of a dict"):
        encoder(key="txt").encode(ROWS.to_pylist(), None)
    with pytest.raises(ConnectorError, match="key='small' is a column of uint8, and a key is text or bytes"):
        encoder(key="small").encode(Columns(ROWS), None)
    fine = pa.RecordBatch.from_arrays([pa.array([1], pa.timestamp("ns"))], names=["at"])
    with pytest.raises(ConnectorError, match=r"column 'at' has timestamp\[ns\], finer than microseconds"):
        encoder().encode(Columns(fine), None)
    odd = pa.RecordBatch.from_arrays([pa.array([[(True, 1)]], pa.map_(pa.bool_(), pa.int64()))], names=["gap"])
    with pytest.raises(RejectedRecordError, match="written as JSON: JSON has nothing for bool") as caught:
        encoder().encode(Columns(odd), None)
    assert "record: {'gap'" in str(caught.value.__notes__)


@pytest.mark.parametrize(
    ("value", "reason"),
    [("a\ud800", "surrogates not allowed"), ({"a": object()}, "JSON has nothing for object")],
    ids=["text", "object"],
)
def test_a_record_that_json_does_not_have_is_rejected(value: Any, reason: str) -> None:
    with pytest.raises(RejectedRecordError, match=f"cannot be written as JSON: .*{reason}") as caught:
        encoder().encode(["fine", value], None)
    assert f"record: {value!r}" in caught.value.__notes__


# ---- topics -----------------------------------------------------------------------------------------------------

BAD = [
    None,
    b"null",
    b'{"id":"1","user":"x"}',
    b'{"id":1',
    b'{"user":"x"}',
    b'{"id":99999999999999999999,"user":"x"}',
]


@pytest.fixture(scope="module")
def mixed(kafka_topics: Any) -> str:
    """A topic with 300 orders in each of two partitions, and bad values between the first of them."""
    name: str = kafka_topics.make(2)
    for partition in range(2):
        values: list[Any] = [order(partition * 1000 + i) for i in range(300)]
        for at, bad in enumerate(BAD):
            values.insert(3 * at, bad)
        kafka_topics.write(name, values, partition=partition, timestamps=range(1000, 1000 + len(values)))
    return name


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 2}])
@pytest.mark.parametrize("form", [ArrowColumns(SCHEMA), "json"])
def test_rows_are_the_records_at_any_size_of_batches(
    kafka_topics: Any, mixed: str, form: Any, options: dict[str, Any]
) -> None:
    typed = {"type": Order} if form == "json" else {}
    flow = sw.Pipeline()
    rows = flow.table(KafkaSource(kafka_topics.servers, mixed, deserializer=form, stop="latest", **typed))
    rows = rows.on_error("skip")
    found = rows.select("id", "user", "price").to_arrow(**options).to_pylist()
    wanted = [json.loads(order(p * 1000 + i)) for p in range(2) for i in range(300)]
    assert sorted(found, key=lambda row: row["id"]) == [
        {name: row[name] for name in ("id", "user", "price")} for row in wanted
    ]


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
def test_a_value_that_does_not_fit_fails_the_job_with_its_place(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    kafka_topics.write(name, [b'{"id":1,"user":"a"}', b'{"id":18446744073709551615,"user":"a"}'])
    source = KafkaSource(kafka_topics.servers, name, deserializer="json", type=Order, stop="latest")
    with pytest.raises(SerializationError) as caught:
        sw.Pipeline().table(source).to_arrow()
    told = f"{caught.value} {caught.value.__notes__}"
    assert "column 'id' of type int64" in told
    assert f"topic {name!r}, partition 0, offset 1" in told


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
@pytest.mark.parametrize("from_column", [True, False])
@pytest.mark.parametrize("size", [1, 1024])
def test_windows_in_a_job_that_fails_are_exact(
    kafka_topics: Any, tmp_path: Path, size: int, from_column: bool
) -> None:
    """Event time of the column, or of Kafka: each partition has a watermark of its own, so no row is late."""
    name, counted = kafka_topics.make(2), kafka_topics.make(2)
    for partition, first in ((0, 0), (1, 500_000)):  # one partition is far ahead of the other
        stamps = [1_000_000 + first + 100 * i - 90 * (i % 3) for i in range(1000)]
        values = [json.dumps({"part": str(partition), "at": at}).encode() for at in stamps]
        kafka_topics.write(name, values, partition=partition, timestamps=None if from_column else stamps)
    failed = tmp_path / "failed"

    def once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows["at"][-1].as_py() > 1_550_000 and not failed.exists():
            failed.touch()
            raise OSError("once")
        return rows

    schema = pa.schema([("part", pa.string()), ("at", pa.int64())])
    in_time = sw.WatermarkStrategy.for_bounded_out_of_orderness("200ms")
    if from_column:
        in_time = in_time.with_timestamp_column("at")
    flow = sw.Pipeline("columns")
    source = KafkaSource(kafka_topics.servers, name, deserializer=ArrowColumns(schema), stop="latest")
    rows = flow.table(source, watermark_strategy=in_time).map_batches(once)
    counts = rows.key_by("part").window(TumblingEventTimeWindows("10s")).aggregate(n=agg.count())
    counts.select("part", "n").sink(
        KafkaSink(
            kafka_topics.servers, counted, serializer="json", key="part",
            guarantee="exactly-once", transactional_id_prefix=counted,
        )
    )  # fmt: skip
    flow.run(
        batch_size=size, checkpoint_interval="50ms", checkpoints=tmp_path / "kept", restart="fixed-delay:5:10ms"
    )
    assert failed.exists()
    totals: Counter[str] = Counter()
    for message in kafka_topics.read(counted):
        row = json.loads(message.value())
        assert message.key() == row["part"].encode()
        totals[row["part"]] += row["n"]
    assert totals == {"0": 1000, "1": 1000}


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
def test_a_killed_worker_loses_and_doubles_no_row(kafka_topics: Any, tmp_path: Path) -> None:
    name, out = kafka_topics.make(4), kafka_topics.make(2)
    for partition in range(4):
        kafka_topics.write(name, [order(partition * 10_000 + i) for i in range(5_000)], partition=partition)
    killed = tmp_path / "killed"

    def kill_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows["id"][-1].as_py() % 10_000 > 3_000 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    flow = sw.Pipeline("killed", parallelism=2)
    source = KafkaSource(kafka_topics.servers, name, deserializer=ArrowColumns(SCHEMA), stop="latest")
    rows = flow.table(source).map_batches(kill_once).filter(col("id") >= 0)
    rows.sink(
        KafkaSink(
            kafka_topics.servers, out, serializer="json", key="user",
            guarantee="exactly-once", transactional_id_prefix=out,
        )
    )  # fmt: skip
    flow.run(
        workers=2, batch_size=8, checkpoint_interval="100ms", checkpoints=tmp_path / "kept",
        restart="fixed-delay:5:10ms",
    )  # fmt: skip
    assert killed.exists()
    found = Counter(json.loads(value)["id"] for value in kafka_topics.values(out))
    assert found == Counter(p * 10_000 + i for p in range(4) for i in range(5_000))


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
def test_rows_are_written_with_their_times_and_keys(kafka_topics: Any) -> None:
    out = kafka_topics.make()
    rows = ROWS.select(["text", "small"])
    with SinkDriver(KafkaSink(kafka_topics.servers, out, serializer="json", key="text")) as driver:
        driver.writer().write(Columns(rows), [5_000, 6_000, 7_000])
        driver.finish()
    found = [(m.key(), json.loads(m.value()), m.timestamp()[1]) for m in kafka_topics.read(out)]
    keys = [None if text is None else text.encode() for text in rows["text"].to_pylist()]
    assert found == list(zip(keys, rows.to_pylist(), [5_000, 6_000, 7_000], strict=True))
    assert msgspec.json.decode(kafka_topics.values(out)[0]) == {"text": "a", "small": 1}
