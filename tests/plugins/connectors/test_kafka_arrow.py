"""Columns of Arrow from Kafka: the same rows whatever makes a batch, exact positions, and bad values left out."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import ConfigurationError, SerializationError
from sluiceway.testing.drivers import SourceDriver
from sluiceway.windows import TumblingEventTimeWindows

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
pytest.importorskip("pyarrow", reason='not installed: pip install "sluiceway[arrow]"')

import pyarrow as pa
from confluent_kafka import Message

from sluiceway_kafka import ArrowColumns, KafkaSource
from sluiceway_kafka._decoders import decoder_of

ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("item", pa.string()), ("price", pa.float64())])

BAD = [
    None,
    b"",
    b"null",  # of pyarrow's reader it ends the process
    b"[1]",
    b"7",
    b"{}",  # id is not nullable
    b'{"id":null}',
    b'{"id":1}{"id":2}',
    b'{"id":1}\nnull',
    b'{"id":1}\n{"id":2}',
    b'{"id":1',
    b'{"id":1.5}',
    b'{"id":"1"}',
    b'{"id":99999999999999999999}',
    b'{"id":1,"item":"\xff"}',
    b'{"id":1,"id":2}',
    b'{"id":1,"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


def messages(values: Sequence[bytes | None], key: bytes | None = None) -> list[Message]:
    return [
        Message(topic="t", partition=1, offset=10 + i, key=key, value=value, timestamp=(1, 1000 + i))
        for i, value in enumerate(values)
    ]


def decoder(columns: Any) -> Any:
    made = pickle.loads(pickle.dumps(decoder_of(columns))).for_subtask()
    made.start()
    return made


def order(number: int) -> bytes:
    return json.dumps({"id": number, "item": f"item {number}", "price": number / 4, "other": [number]}).encode()


# ---- columns ----------------------------------------------------------------------------------------------------


def test_without_a_schema_values_are_bytes() -> None:
    made = decoder("arrow")
    assert made.output_type is pa.RecordBatch
    (batch,) = made.decode(messages([b"a", None], b"k"))
    assert batch.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp"]
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], second["value"]) == (b"k", b"a", None)
    assert (first["topic"], first["partition"], second["offset"]) == ("t", 1, 11)
    assert batch["timestamp"].type == pa.timestamp("ms", "UTC")
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [1000, 1001]


def test_headers_are_a_map() -> None:
    (batch,) = decoder(ArrowColumns(columns=["headers", "offset"])).decode(
        [
            Message(topic="t", partition=0, offset=0, value=b"", headers=[("a", b"1"), ("a", None)]),
            Message(topic="t", partition=0, offset=1, value=b""),
        ]
    )
    assert batch.to_pylist() == [
        {"headers": [("a", b"1"), ("a", None)], "offset": 0},
        {"headers": [], "offset": 1},
    ]


def test_values_become_the_columns_of_a_schema() -> None:
    pretty = b' {\n "item": "two\\nlines",\n "id": 2\n}\n'
    (batch,) = decoder(ArrowColumns(ORDERS)).decode(messages([order(1), pretty]))
    assert batch.schema == ORDERS
    assert batch.to_pylist() == [
        {"id": 1, "item": "item 1", "price": 0.25},
        {"id": 2, "item": "two\nlines", "price": None},
    ]
    (batch,) = decoder(ArrowColumns(ORDERS, columns=["offset", "value", "partition"])).decode(messages([order(1)]))
    assert batch.schema.names == ["offset", "id", "item", "price", "partition"]


@pytest.mark.parametrize("value", BAD, ids=lambda value: repr(value)[:30])
def test_a_value_that_is_not_one_object_of_the_schema_is_refused(value: bytes | None) -> None:
    made = decoder(ArrowColumns(ORDERS))
    for values in ([value], [value, order(1)], [order(1), value]):
        with pytest.raises((ValueError, SerializationError, RecursionError)):
            made.decode(messages(values))


@given(st.lists(st.sampled_from([*map(order, range(5)), *BAD[:-1]]), min_size=1, max_size=6))
def test_a_value_is_refused_whatever_is_beside_it(values: list[bytes | None]) -> None:
    made = decoder(ArrowColumns(ORDERS))
    if set(values) & set(BAD):
        with pytest.raises((ValueError, SerializationError)):
            made.decode(messages(values))
    else:
        (batch,) = made.decode(messages(values))
        assert (
            batch.to_pylist() == made.join([b for m in messages(values) for b in made.decode([m])])[0].to_pylist()
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": dict}, "must be a pyarrow.Schema"),
        ({"schema": pa.schema([])}, "has no columns"),
        ({"schema": pa.schema([("m", pa.map_(pa.string(), pa.int64()))])}, "JSON conversion to map"),
        ({"schema": ORDERS, "columns": ["key"]}, "has to name 'value'"),
        ({"schema": pa.schema([("offset", pa.int64())]), "columns": ["value", "offset"]}, "2 columns 'offset'"),
        ({"columns": []}, "must be names of columns"),
        ({"columns": "key"}, "must be names of columns"),
        ({"columns": ["keys"]}, "no column 'keys'. Did you mean 'key'"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ArrowColumns(**arguments)


def test_arguments_of_the_source_that_do_not_go_with_columns() -> None:
    with pytest.raises(ConfigurationError, match=r"ArrowColumns\(schema\) takes a schema"):
        decoder_of("arrow", ORDERS)
    with pytest.raises(ConfigurationError, match="key_deserializer= does not go with"):
        decoder_of("arrow", None, "text")


# ---- topics -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(kafka_topics: Any) -> str:
    """A topic with 40 orders in each of two partitions, the newest first, and every bad value between them."""
    name: str = kafka_topics.make(2)
    for partition in range(2):
        values = [order(partition * 1000 + i) for i in range(40)]
        for at, bad in enumerate(BAD):
            values.insert(2 * at, bad)
        stamps = range(1_000_000 + len(values), 1_000_000, -1)
        kafka_topics.write(name, values, partition=partition, timestamps=stamps)
    return name


def columns() -> ArrowColumns:
    return ArrowColumns(ORDERS, columns=["value", "partition", "offset", "timestamp"])


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_rows_and_positions_do_not_depend_on_batches(
    kafka_topics: Any, mixed: str, limit: int, readers: int
) -> None:
    source = KafkaSource(kafka_topics.servers, mixed, deserializer=columns(), stop="latest")
    rows: list[dict[str, Any]] = []
    rejected: set[tuple[int, int]] = set()
    with SourceDriver(source, readers, limit=limit) as driver:
        seen = [0] * readers
        while driver.poll():
            (index,) = (i for i in range(readers) if len(driver.records[i]) > seen[i])
            seen[index] += 1
            batch = driver.records[index][-1]
            assert 1 <= batch.num_rows <= limit
            (partition,) = set(batch["partition"].to_pylist())
            newest = max(batch["timestamp"].cast(pa.int64()).to_pylist())
            assert driver.timestamps[index][-1] == newest
            rows += batch.to_pylist()
            behind = {split.partition: split.position for splits in driver.snapshot().splits() for split in splits}
            if partition in behind:  # not at its end
                rejected = {(r.partition, r.offset) for r, _, _ in driver.rejected}
                after = batch["offset"].to_pylist()[-1] + 1
                assert all((partition, offset) in rejected for offset in range(after, behind[partition]))
        rejected = {(r.partition, r.offset) for r, _, _ in driver.rejected}
    for partition in range(2):
        own = [row for row in rows if row["partition"] == partition]
        assert [row["id"] for row in own] == [partition * 1000 + i for i in range(40)]
        offsets = {row["offset"] for row in own}
        assert offsets | {o for p, o in rejected if p == partition} == set(range(40 + len(BAD)))
        assert len(offsets) == 40
    assert all("on_error('skip')" in error.__notes__[0] for _, error, _ in driver.rejected)


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
def test_a_checkpoint_between_batches_is_behind_the_rows(kafka_topics: Any, mixed: str) -> None:
    source = KafkaSource(kafka_topics.servers, mixed, deserializer=columns(), stop="latest")
    ids: list[int] = []
    snapshot = None
    while True:
        with SourceDriver(source, 2, limit=9, restored=snapshot) as driver:
            more = driver.poll()
            ids += [i for batch in driver.all_records() for i in batch["id"].to_pylist()]
            snapshot = driver.snapshot()
        if not more:
            break
    assert sorted(ids) == [*range(40), *range(1000, 1040)]


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
def test_slow_input_is_not_held_back(kafka_topics: Any) -> None:
    name = kafka_topics.make()
    source = KafkaSource(kafka_topics.servers, name, deserializer=ArrowColumns(ORDERS))
    with SourceDriver(source) as driver:
        for number in range(5):
            kafka_topics.write(name, [order(number)])
            assert driver.poll()
            assert driver.records[0][number].to_pylist()[0]["id"] == number


class Rows(sw.BatchProcessFunction[Any, Any]):
    """Rows with their own timestamps."""

    def process_batch(self, values: Sequence[Any], ctx: Any) -> sw.Batch[Any]:
        rows = [row for batch in values for row in batch.to_pylist()]
        return sw.Batch(rows, [int(row["timestamp"].timestamp() * 1000) for row in rows])


@pytest.mark.kafka
@pytest.mark.timeout(PATIENT_S)
@pytest.mark.parametrize("size", [1, 1024])
def test_windows_of_rows_in_a_job_that_fails_are_exact(kafka_topics: Any, tmp_path: Path, size: int) -> None:
    """The watermark of a partition behind a RecordBatch is that behind its rows: none of them is late."""
    name = kafka_topics.make(2)
    for partition, first in ((0, 0), (1, 500_000)):  # one partition is far ahead of the other
        stamps = [1_000_000 + first + 100 * i - 90 * (i % 3) for i in range(1000)]
        values: list[bytes | None] = [order(i) for i in range(1000)]
        values[::100] = [b"not JSON"] * 10
        kafka_topics.write(name, values, partition=partition, timestamps=stamps)
    failed = tmp_path / "failed"

    def once(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 777 and not failed.exists():
            failed.touch()
            raise OSError("once")
        return row

    flow = sw.Pipeline("columns")
    source = KafkaSource(kafka_topics.servers, name, deserializer=columns(), stop="latest")
    in_time = sw.WatermarkStrategy.for_bounded_out_of_orderness("200ms")
    batches = flow.source(source, watermark_strategy=in_time).on_error("skip")
    counts = (
        batches.process(Rows())
        .map(once)
        .key_by(lambda row: row["partition"])
        .window(TumblingEventTimeWindows("10s"))
        .count()
        .collect()
    )
    flow.run(
        batch_size=size, checkpoint_interval="50ms", checkpoints=tmp_path / "kept", restart="fixed-delay:5:10ms"
    )
    assert failed.exists()
    totals = {partition: sum(count for key, count in counts if key == partition) for partition in range(2)}
    assert totals == {0: 990, 1: 990}
