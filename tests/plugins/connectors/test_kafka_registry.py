"""Formats with a schema registry against a real broker: Apicurio's registry, and one that fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.connector.lib import dead_letter_files, read_dead_letters
from sluiceway.errors import ConnectorError
from sluiceway.testing.drivers import SourceDriver, drive_sink

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
pytest.importorskip("authlib", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("fastavro", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("google.type", reason='not installed: pip install "sluiceway[kafka-registry]"')

from tests.plugins.connectors import orders_pb2

from sluiceway_kafka import (
    AvroFormat,
    JsonSchemaFormat,
    KafkaRecord,
    KafkaSink,
    KafkaSource,
    ProtobufFormat,
    SchemaRegistry,
)
from sluiceway_kafka._formats import FormatWriter, RegistryFormat

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(PATIENT_S)]

ROOT = Path(__file__).parents[3]


@dataclass
class Item:
    name: str
    price: float = 0.0


@dataclass
class Priced:
    name: str
    price: float = 2.5


def written(format_: RegistryFormat, topic: str, *records: Any) -> list[bytes | None]:
    return [FormatWriter(format_, "value").of(topic)(record) for record in records]


# ---- Apicurio --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AvroFormat, JsonSchemaFormat, ProtobufFormat])
@pytest.mark.parametrize("strategy", ["topic", "topic-record"])
def test_records_go_through_a_topic(kafka_topics: Any, apicurio_registry: str, kind: Any, strategy: Any) -> None:
    topic = kafka_topics.make()
    records = [Item(str(number), float(number)) for number in range(50)]
    type_: Any = Item
    if kind is ProtobufFormat:
        type_ = orders_pb2.Order
        records = [
            type_(id=number, product="lamp", customer=orders_pb2.Customer(name="Ann")) for number in range(50)
        ]
    values = kind(apicurio_registry, type=type_, subject_name_strategy=strategy)
    keys = AvroFormat(apicurio_registry, schema='"int"')
    numbered = [*records, None]
    sink = KafkaSink(kafka_topics.servers, topic, serializer=values, key=numbered.index, key_serializer=keys)
    drive_sink(sink, numbered)
    source = KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=values, key_deserializer=keys)
    with SourceDriver(source) as driver:
        found = driver.run()
    assert [(each.key, each.value) for each in found] == list(enumerate(numbered))
    source = KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=values)
    with SourceDriver(source) as driver:
        assert driver.run() == records
        assert [record[0].offset for record in driver.rejected] == [50]
    for data in (b"\0\0\x7f\xff\xffabc", b"\0\0\0\0\0abc"):
        kafka_topics.write(topic, [data])
    with SourceDriver(source) as driver:
        assert driver.run() == records
        assert ["has no schema with id" in str(error) for _, error, _ in driver.rejected] == [False, True, True]


def test_the_example_of_the_page(kafka_topics: Any, apicurio_registry: str, tmp_path: Path) -> None:
    """With two workers; records are written and read by Confluent's serializers."""
    from confluent_kafka.schema_registry import SchemaRegistryClient, avro
    from confluent_kafka.serialization import SerializationContext

    page = (ROOT / "docs" / "howto" / "kafka.md").read_text()
    found = re.search(r'```python title="invoices\.py"\n(.*?)```', page, re.S)
    assert found is not None
    orders, invoices = kafka_topics.make(2), kafka_topics.make()
    program = found[1]
    for there, here in (
        ("localhost:9092", kafka_topics.servers),
        ("http://localhost:8081", apicurio_registry),
        ('"orders", deserializer', f'"{orders}", deserializer'),
        ('"invoices",\n        serializer', f'"{invoices}",\n        serializer'),
    ):
        assert there in program
        program = program.replace(there, here)
    (tmp_path / "invoices.py").write_text(program)
    schema = {
        "type": "record",
        "name": "Purchase",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "product", "type": "string"},
            {"name": "price", "type": "double"},
            {"name": "shop", "type": "string"},
        ],
    }
    with SchemaRegistryClient({"url": apicurio_registry}) as client:
        usual = {"subject.name.strategy.type": "TOPIC"}
        encode = avro.AvroSerializer(client, json.dumps(schema), conf=usual)
        context = SerializationContext(orders, "value")
        for partition in range(2):
            records = [
                {"id": number, "product": "lamp", "price": number / 2, "shop": "online"}
                for number in range(partition, 20, 2)
            ]
            kafka_topics.write(orders, [encode(each, context) for each in records], partition=partition)
        done = subprocess.run(
            [sys.executable, "-m", "sluiceway", "run", "--workers", "2", "--quiet", "invoices.py"],
            cwd=tmp_path,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=PATIENT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        decode = avro.AvroDeserializer(client)
        made = [(decode(each.key(), None), decode(each.value(), None)) for each in kafka_topics.read(invoices)]
    assert sorted(made, key=lambda each: each[0]) == [
        (number, {"order": number, "amount": number / 2, "note": None}) for number in range(20)
    ]


# ---- a registry that fails ----------------------------------------------------------------------------


def test_a_source_waits_for_a_schema_without_stopping_others(kafka_topics: Any, registry: Any) -> None:
    """One partition needs a schema that does not come until all of the other one is read."""
    topic = kafka_topics.make(2)
    known, unknown = AvroFormat(registry.url, type=Item), AvroFormat(registry.url, schema='"string"')
    kafka_topics.write(topic, written(known, topic, *(Item(str(number)) for number in range(30))), partition=0)
    kafka_topics.write(topic, written(unknown, "other", *"abc"), partition=1)
    answer = registry._answer
    rest_is_read = threading.Event()

    def answer_late(handler: Any, body: Any) -> None:
        if handler.path.startswith("/schemas/ids/2"):
            assert rest_is_read.wait(PATIENT_S)
        answer(handler, body)

    registry._answer = answer_late
    format_ = AvroFormat(SchemaRegistry(registry.url, timeout=f"{PATIENT_S}s"))
    source = KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=format_, key_deserializer="text")
    with SourceDriver(source, 2, limit=10) as driver:
        driver.run(30)
        rest_is_read.set()
        records = driver.run()
    assert all(isinstance(record, KafkaRecord) for record in records)
    first = [record.value["name"] for record in records if record.partition == 0]
    assert first == [str(number) for number in range(30)]
    assert [record.value for record in records if record.partition == 1] == ["a", "b", "c"]


def test_a_schema_that_is_pending_keeps_order_and_positions(kafka_topics: Any, registry: Any) -> None:
    """Good records, bad ones and three schemas alternate in one partition; nothing is lost or doubled."""
    topic = kafka_topics.make()
    formats = [
        AvroFormat(registry.url, schema=kind, subject_name_strategy="topic") for kind in ('"string"', '"bytes"')
    ]
    values = []
    for number in range(20):
        text = str(number)
        values += written(formats[0], "text", text)
        values += [b"rubbish"]
        values += written(formats[1], "bytes", text.encode())
    kafka_topics.write(topic, values)
    source = KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=AvroFormat(registry.url))
    with SourceDriver(source, limit=7) as driver:
        found = driver.run()
        assert [record[0].offset for record in driver.rejected] == list(range(1, 60, 3))
    assert found == [each for number in range(20) for each in (str(number), str(number).encode())]
    assert len([each for each in registry.requests if each.startswith("GET /schemas")]) == 2


@pytest.mark.parametrize("action", ["fail", "skip"])
def test_a_registry_that_is_gone_fails_the_job_whatever_happens_to_bad_records(
    kafka_topics: Any, registry: Any, action: Any
) -> None:
    topic = kafka_topics.make()
    kafka_topics.write(topic, written(AvroFormat(registry.url, type=Item), topic, Item("a")))
    registry.close()
    place = SchemaRegistry(registry.url.replace("http://", "http://ann:hush-hush@"), timeout="300ms")
    flow = sw.Pipeline("orders")
    source = KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=AvroFormat(place, type=Item))
    flow.source(source).on_error(action).collect()
    with pytest.raises(
        ConnectorError, match=rf"(?s)schema registry {registry.url}: .*refused.*tried for 0\.3 s"
    ) as a:
        flow.run()
    flow = sw.Pipeline("orders")
    sink = KafkaSink(kafka_topics.servers, topic, serializer=AvroFormat(place, type=Item))
    flow.from_collection([Item("a")]).sink(sink)
    with pytest.raises(
        ConnectorError, match=rf"(?s)schema registry {registry.url}: .*refused.*tried for 0\.3 s"
    ) as b:
        flow.run()
    assert "hush" not in f"{a.value!r}{b.value!r}{flow.explain()}"


@pytest.mark.parametrize("properties", [None, {"ssl.ca.location": "/no/such.pem"}])
@pytest.mark.parametrize("action", ["fail", "skip"])
def test_a_registry_that_cannot_be_used_fails_the_job_whatever_happens_to_bad_records(
    kafka_topics: Any, registry: Any, action: Any, properties: Any
) -> None:
    """Its answers are not those of a registry, or no client can be made for it."""
    topic = kafka_topics.make()
    kafka_topics.write(topic, written(AvroFormat(registry.url, type=Item), topic, Item("a")))
    registry.failure = (200, "[]")
    format_ = AvroFormat(SchemaRegistry(registry.url, properties=properties))
    flow = sw.Pipeline("orders")
    flow.source(KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=format_)).on_error(
        action
    ).collect()
    with pytest.raises(
        ConnectorError, match="refuses its properties" if properties else "not one of a schema reg"
    ):
        flow.run()


def test_bad_records_are_skipped_and_become_dead_letters(kafka_topics: Any) -> None:
    topic = kafka_topics.make()
    format_ = AvroFormat(f"mock://{uuid.uuid4().hex}", type=Item)
    good = written(format_, topic, Item("a"), Item("b"))
    kafka_topics.write(topic, [good[0], b"rubbish", b"\0\0\0\0\x63abc", (good[1] or b"")[:-1], good[1]])
    source = KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=format_)
    flow = sw.Pipeline("orders")
    flow.source(source).collect()
    with pytest.raises(Exception, match="begins with 72 75 62 62 69, not with a zero byte") as caught:
        flow.run()
    assert any(f"topic '{topic}', partition 0, offset 1" in note for note in caught.value.__notes__)
    flow = sw.Pipeline("orders")
    items = flow.source(source).on_error("skip")
    letters, taken = items.dead_letters().collect(), items.collect()
    flow.run()
    assert taken == [Item("a"), Item("b")]
    assert [letter.value().offset for letter in letters] == [1, 2, 3]
    assert "has no schema with id 99" in letters[1].error
    assert "does not fit its Avro schema, id 1" in letters[2].error


@pytest.mark.parametrize("kind", [AvroFormat, JsonSchemaFormat])
@pytest.mark.parametrize("size", [1, 1024])
def test_records_of_a_type_are_columns(
    kafka_topics: Any, registry: Any, tmp_path: Path, kind: Any, size: int
) -> None:
    """The schemas of two formats have to be fetched; bad records are kept, each once."""
    pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')
    topic = kafka_topics.make()
    format_ = kind(registry.url, type=Item)
    other = kind(registry.url, type=Priced, subject_name_strategy="record")
    even, odd = (FormatWriter(each, "value").of(topic) for each in (other, format_))
    values: list[bytes | None] = [
        odd(Item(str(number))) if number % 2 else even(Priced(str(number))) for number in range(300)
    ]
    for at in (1, 153, 255):  # the first before the second schema has been fetched
        values[at:at] = [b"rubbish", None]
    kafka_topics.write(topic, values)
    source = KafkaSource(kafka_topics.servers, topic, stop="latest", deserializer=format_)
    rows = sw.Pipeline("orders").table(source).on_error("skip")
    found = rows.to_arrow(batch_size=size, dead_letters=tmp_path)
    assert found.to_pylist() == [{"name": str(n), "price": 0.0 if n % 2 else 2.5} for n in range(300)]
    letters = list(read_dead_letters(dead_letter_files(tmp_path)))
    assert [letter.value().offset for letter in letters] == [1, 2, 153, 154, 255, 256]
