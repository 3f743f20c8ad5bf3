"""Formats with a schema registry, without a broker: what they write and read, and say when they cannot."""

from __future__ import annotations

import enum
import json
import logging
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENT_S

from sluiceway.errors import (
    ConfigurationError,
    ConnectorError,
    RejectedRecordError,
    SerializationError,
    SuppressRestartsError,
)
from sluiceway.serializers.byvalue import dumps_by_value

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("authlib", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("cachetools", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("fastavro", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("google.protobuf", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("google.type", reason='not installed: pip install "sluiceway[kafka-registry]"')
pytest.importorskip("jsonschema", reason='not installed: pip install "sluiceway[kafka-registry]"')

from confluent_kafka import Message
from pydantic import BaseModel
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
from sluiceway_kafka._decoders import decoder_of
from sluiceway_kafka._derived_schemas import avro_schema_of, json_schema_of
from sluiceway_kafka._encoders import encoder_of
from sluiceway_kafka._formats import FormatWriter, RegistryFormat
from sluiceway_kafka._registry import RegistryError, SchemaPendingError


class Colour(enum.Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass
class Item:
    name: str
    price: float = 0.0


@dataclass
class Order:
    id: int
    item: Item
    at: datetime
    colour: Colour = Colour.RED
    note: str | None = None
    tags: list[str] = field(default_factory=list)
    gift: Item | None = None


class OrderStruct(msgspec.Struct):
    id: int
    item: Item
    at: datetime
    colour: Colour = Colour.RED
    note: str | None = None
    tags: list[str] = []
    gift: Item | None = None


class OrderModel(BaseModel):
    id: int
    item: Item
    at: datetime
    colour: Colour = Colour.RED
    note: str | None = None
    tags: list[str] = []
    gift: Item | None = None


VALUES: dict[str, Any] = {
    "id": 7,
    "item": Item("lamp", 2.5),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    "tags": ["a", "b"],
    "gift": Item("bulb"),
}
MESSAGE = orders_pb2.Order(id=7, product="lamp", customer=orders_pb2.Customer(name="Ann"))


def written(format_: RegistryFormat, record: Any, topic: str = "orders", field: str = "value") -> bytes:
    data = FormatWriter(format_, field).of(topic)(record)
    assert data is not None
    return data


def read(format_: RegistryFormat, data: bytes) -> Any:
    reader = format_.reader(None)
    try:
        return reader.decode(data)
    finally:
        reader.close()


@pytest.fixture
def memory() -> str:
    """A registry in memory."""
    return f"mock://{uuid.uuid4().hex}"


# ---- what is written is read ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AvroFormat, JsonSchemaFormat])
@pytest.mark.parametrize("type_", [Order, OrderStruct, OrderModel])
def test_records_of_a_type_come_back(memory: str, kind: Any, type_: Any) -> None:
    schema = None
    if kind is AvroFormat and type_ is OrderModel:  # none is derived of pydantic's models
        schema = avro_schema_of(Order)
    format_ = kind(memory, type=type_, schema=None if schema is None else schema)
    record = type_(**VALUES)
    data = written(format_, record)
    assert data[:1] == b"\0"
    assert read(kind(memory, type=type_), data) == record


@pytest.mark.parametrize("kind", [AvroFormat, JsonSchemaFormat])
def test_records_without_a_type_are_dicts(memory: str, kind: Any) -> None:
    format_ = kind(memory, schema=avro_schema_of(Item) if kind is AvroFormat else json_schema_of(Item))
    data = written(format_, {"name": "lamp", "price": 2.5})
    assert read(kind(memory), data) == {"name": "lamp", "price": 2.5}
    assert FormatWriter(format_, "value").of("orders")(None) is None


def test_messages_come_back(memory: str) -> None:
    for message in (MESSAGE, orders_pb2.Customer(name="Ann"), orders_pb2.Note(text="note"), orders_pb2.Customer()):
        format_ = ProtobufFormat(memory, type=type(message))
        encode = FormatWriter(format_, "value").of("orders")
        assert encode(message) == encode(message)
        assert read(format_, encode(message) or b"") == message
        assert encode(None) is None
    with pytest.raises(ConnectorError, match="takes Order, not dict"):
        written(ProtobufFormat(memory, type=orders_pb2.Order), {})


def test_a_registry_without_serialised_schemas_takes_any_message_of_the_format(memory: str) -> None:
    from confluent_kafka.schema_registry import Schema

    from sluiceway_kafka._registry import request

    schema = Schema("message Note { string text = 1; }", "PROTOBUF")
    number = request(SchemaRegistry(memory), "register", lambda client: client.register_schema("notes", schema))
    prefix = b"\0" + number.to_bytes(4, "big")
    note = orders_pb2.Note(text="x")
    format_ = ProtobufFormat(memory, type=orders_pb2.Note)
    assert read(format_, prefix + b"\0" + note.SerializeToString()) == note
    assert read(format_, prefix + b"\x04\x02\x81\x01" + note.SerializeToString()) == note
    with pytest.raises(SerializationError, match="is no message of type"):
        read(format_, prefix + b"\0\xff")


def test_they_are_those_of_the_library(memory: str) -> None:
    """Confluent's own serializers and deserializers read and write the same."""
    from confluent_kafka.schema_registry import avro, json_schema, protobuf
    from confluent_kafka.serialization import SerializationContext

    from sluiceway_kafka._registry import request

    context = SerializationContext("orders", "value")
    plain = {"name": "lamp", "price": 2.5}
    avro_schema, json_text = json.dumps(avro_schema_of(Item)), json.dumps(json_schema_of(Item))
    usual = {"subject.name.strategy.type": "TOPIC"}

    def check(client: Any) -> None:
        theirs = avro.AvroSerializer(client, avro_schema, conf=usual)(plain, context)
        assert written(AvroFormat(memory, schema=avro_schema), plain) == theirs
        assert avro.AvroDeserializer(client)(theirs, context) == plain
        data = written(JsonSchemaFormat(memory, schema=json_text), plain)
        assert json_schema.JSONDeserializer(None, schema_registry_client=client)(data, context) == plain
        theirs = json_schema.JSONSerializer(json_text, client, conf=usual)(plain, context)
        assert read(JsonSchemaFormat(memory), theirs) == plain
        data = written(ProtobufFormat(memory, type=orders_pb2.Note), orders_pb2.Note(text="x"))
        decode = protobuf.ProtobufDeserializer(orders_pb2.Note, {"use.deprecated.format": False}, client)
        assert decode(data, context) == orders_pb2.Note(text="x")

    request(SchemaRegistry(memory), "test", check)


def test_avro_has_logical_types(memory: str) -> None:
    schema = {
        "type": "record",
        "name": "Bill",
        "fields": [
            {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        ],
    }

    @dataclass
    class Bill:
        total: Decimal
        day: date

    bill = Bill(Decimal("12.50"), date(2026, 1, 2))
    assert read(AvroFormat(memory, type=Bill), written(AvroFormat(memory, schema=schema), bill)) == bill


def test_a_type_reads_records_of_other_versions_of_its_schema(memory: str) -> None:
    @dataclass
    class Newer:
        name: str
        weight: int = 1

    @dataclass
    class Stricter:
        name: str
        weight: int

    for kind in (AvroFormat, JsonSchemaFormat):
        data = written(kind(memory, type=Item), Item("lamp", 2.5))
        assert read(kind(memory, type=Newer), data) == Newer("lamp")
        with pytest.raises(msgspec.ValidationError, match="missing required field `weight`"):
            read(kind(memory, type=Stricter), data)


def test_avro_is_resolved_to_the_readers_schema(memory: str) -> None:
    data = written(AvroFormat(memory, type=Item), Item("lamp", 2.5))
    wanted = {
        "type": "record",
        "name": "Item",
        "fields": [
            {"name": "title", "aliases": ["name"], "type": "string"},
            {"name": "stock", "type": "long", "default": 3},
        ],
    }
    assert read(AvroFormat(memory, schema=wanted), data) == {"title": "lamp", "stock": 3}


def test_json_is_checked_against_the_schema_where_asked_for(memory: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "title": "N"}
    loose, strict = JsonSchemaFormat(memory, schema=schema), JsonSchemaFormat(memory, schema=schema, validate=True)
    data = written(loose, {"n": 0})
    assert read(loose, data) == {"n": 0}
    for action in (lambda: read(strict, data), lambda: written(strict, {"n": 0})):
        with pytest.raises(SerializationError, match=r"does not fit its JSON Schema: 0 is less than .* at \$\.n"):
            action()
    assert read(strict, written(strict, {"n": 1})) == {"n": 1}


def test_schemas_refer_to_others(memory: str) -> None:
    from confluent_kafka.schema_registry import Schema, SchemaReference

    from sluiceway_kafka._registry import request

    item = {"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]}
    order = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}
    json_item = {"type": "object", "properties": {"name": {"type": "string"}}}
    json_order = {"type": "object", "properties": {"item": {"$ref": "item.json"}}}

    def register(client: Any) -> None:
        for subject, schema, kind, refers in (
            ("item", item, "AVRO", []),
            ("orders-value", order, "AVRO", [SchemaReference("Item", "item", 1)]),
            ("json-item", json_item, "JSON", []),
            ("json-value", json_order, "JSON", [SchemaReference("item.json", "json-item", 1)]),
        ):
            client.register_schema(subject, Schema(json.dumps(schema), kind, refers))

    request(SchemaRegistry(memory), "register", register)
    record = {"item": {"name": "lamp"}}
    newest = AvroFormat(memory, auto_register=False)
    assert read(AvroFormat(memory), written(newest, record)) == record
    newest = JsonSchemaFormat(memory, auto_register=False, validate=True)
    assert read(newest, written(newest, record, "json")) == record
    with pytest.raises(SerializationError, match="1 is not of type 'string'"):
        written(newest, {"item": {"name": 1}}, "json")


@dataclass
class Link:
    number: int
    more: Link | None = None


def test_avro_of_a_type_that_holds_itself_is_read_as_records_and_not_as_columns(memory: str) -> None:
    links = AvroFormat(memory, type=Link)
    assert read(links, written(links, Link(1, Link(2)))) == Link(1, Link(2))
    source = KafkaSource("unreachable:9092", "links", deserializer=links)
    with pytest.raises(SerializationError, match=r"Link\.more: Link holds values of its own type"):
        source.in_columns()


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "trees",
    "fields": [{"name": "more", "type": {"type": "array", "items": {"type": "map", "values": "Tree"}}}],
}
LIST = {"type": "record", "name": "List", "fields": [{"name": "first", "type": "Node"}]}


LOOP = {"type": "record", "name": "Loop", "fields": [{"name": "next", "type": "Loop"}]}


def avro_reader(memory: str, schema: Any) -> tuple[Any, bytes]:
    """Return a reader of Avro, and the prefix of records with a schema that may refer to ``NODE``."""
    from confluent_kafka.schema_registry import Schema, SchemaReference

    from sluiceway_kafka._registry import request

    def register(client: Any) -> int:
        client.register_schema("node", Schema(json.dumps(NODE), "AVRO"))
        refers = [SchemaReference("Node", "node", 1)] if schema is LIST else []
        number: int = client.register_schema("deep", Schema(json.dumps(schema), "AVRO", refers))
        return number

    number = request(SchemaRegistry(memory), "register", register)
    return AvroFormat(memory).reader(None), b"\0" + number.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("schema", "level"),
    [(NODE, b"\x02"), (TREE, b"\x02\x02\0"), (LIST, b"\x02"), (LOOP, b"")],
    ids=["union", "array of maps", "of another subject", "always"],
)
def test_avro_that_nests_without_end_is_a_bad_record(memory: str, schema: Any, level: bytes) -> None:
    """The stack of a process has room for some 4000 levels."""
    reader, prefix = avro_reader(memory, schema)
    with pytest.raises(SerializationError, match="maximum recursion depth exceeded"):
        reader.decode(prefix + level * 100_000 + b"\0")


def _record(name: str, *types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


@pytest.mark.parametrize(
    "schema",
    [
        _array("null"),
        _array({"type": "null"}),
        _array({"type": "fixed", "name": "Nothing", "size": 0}),
        _array(_record("Empty", "null", _record("Inner"))),
        _record("Outer", _record("Inner"), {"type": "map", "values": ["int", _array("Inner")]}),
    ],
    ids=["null", "null as an object", "fixed", "record", "by name, in a map"],
)
def test_avro_arrays_whose_items_take_no_bytes_are_refused(memory: str, schema: Any) -> None:
    """A few bytes can announce so many that they fill the memory."""
    reader, prefix = avro_reader(memory, schema)
    with pytest.raises(SerializationError, match=r"cannot be used.* an array of items that take no bytes"):
        reader.decode(prefix + b"\0")


def test_other_avro_arrays_are_read(memory: str) -> None:
    inner = _record("Inner", "null", ["null", "int"])
    reader, prefix = avro_reader(memory, _record("Outer", _array(["null"]), _array(inner), _array(_array("int"))))
    data = b"\x02\0\0" + b"\x02\0\0" + b"\x02\x02\x08\0\0"
    assert reader.decode(prefix + data) == {"f0": [None], "f1": [{"f0": None, "f1": None}], "f2": [[4]]}


def test_avro_that_nests_a_little_is_read(memory: str) -> None:
    value = None
    for _ in range(100):
        value = {"next": value}
    reader, prefix = avro_reader(memory, NODE)
    assert reader.decode(prefix + b"\x02" * 99 + b"\0") == value
    reader, prefix = avro_reader(memory, LIST)
    assert reader.decode(prefix + b"\x02" * 99 + b"\0") == {"first": value}


# ---- schemas --------------------------------------------------------------------------------------


def test_avro_schemas_are_derived() -> None:
    assert avro_schema_of(Order) == avro_schema_of(OrderStruct) | {"name": "Order"}
    item = {
        "type": "record",
        "name": "Item",
        "fields": [{"name": "name", "type": "string"}, {"name": "price", "type": "double", "default": 0.0}],
    }
    assert avro_schema_of(Order) == {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "item", "type": item},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
            {"name": "gift", "type": ["null", "Item"], "default": None},
        ],
    }
    assert avro_schema_of(dict[str, bytes | None]) == {"type": "map", "values": ["null", "bytes"]}


class Tagged(msgspec.Struct, tag=True):
    n: int


@pytest.mark.parametrize(
    ("type_", "why"),
    [
        (Decimal, r"the type itself is of a type without a clear counterpart \(Decimal\)"),
        (dict[int, str], "without a clear counterpart"),
        (Tagged, "Tagged is tagged or array_like"),
        (OrderModel, r"without a clear counterpart \(Custom\)"),
        (enum.Enum("Size", {"SMALL": "not small"}), "an enum whose values are not names"),
    ],
)
def test_an_avro_schema_that_is_not_clear_is_asked_for(type_: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no Avro schema can be derived of .*{why}.*Give it as schema="):
        avro_schema_of(type_)


def test_json_schemas_are_derived() -> None:
    @dataclass
    class Tree:
        name: str
        children: list[Tree]

    Tree.__annotations__["children"] = list[Tree]
    derived = json_schema_of(Item)
    assert derived["title"] == "Item"
    assert derived["required"] == ["name"]
    assert "$ref" not in derived
    assert json_schema_of(OrderModel)["title"] == "OrderModel"
    assert json_schema_of(Tree)["title"] == "Tree"
    assert json_schema_of(Tree)["$defs"]["Tree"]["type"] == "object"
    with pytest.raises(ConfigurationError, match="Give it as schema="):
        json_schema_of(dict[bytes, complex])


def test_schemas_are_taken_from_files(memory: str, tmp_path: Path) -> None:
    file = tmp_path / "item.avsc"
    file.write_text(json.dumps(avro_schema_of(Item)))
    format_ = AvroFormat(memory, schema=file)
    file.unlink()
    assert read(AvroFormat(memory), written(format_, Item("lamp"))) == {"name": "lamp", "price": 0.0}
    with pytest.raises(ConfigurationError, match=r"item\.avsc cannot be read"):
        AvroFormat(memory, schema=file)
    with pytest.raises(ConfigurationError, match=r"'item\.avsc' is no schema in JSON.*pathlib\.Path"):
        AvroFormat(memory, schema="item.avsc")
    with pytest.raises(ConfigurationError, match="is no JSON"):
        JsonSchemaFormat(memory, schema="{")
    with pytest.raises(ConfigurationError, match="is no Avro schema"):
        AvroFormat(memory, schema='{"type": "recrod"}')
    with pytest.raises(ConfigurationError, match=r"must be a text, a pathlib\.Path of a file, or a dict"):
        AvroFormat(memory, schema=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "key", "value"),
    [
        ("topic", "orders-key", "orders-value"),
        ("record", "Item", "Item"),
        ("topic-record", "orders-Item", "orders-Item"),
    ],
)
def test_subjects_are_named_as_asked_for(registry: Any, strategy: Any, key: str, value: str) -> None:
    for kind in (AvroFormat, JsonSchemaFormat):
        for each in ("key", "value"):
            written(kind(registry.url, type=Item, subject_name_strategy=strategy), Item("a"), "orders", each)
    assert set(registry.subjects()) == {key, value}
    format_ = ProtobufFormat(registry.url, type=orders_pb2.Note, subject_name_strategy=strategy)
    written(format_, orders_pb2.Note(), "notes")
    assert {"topic": "notes-value", "record": "shop.Order.Note", "topic-record": "notes-shop.Order.Note"}[
        strategy
    ] in registry.subjects()


def test_a_strategy_by_record_needs_a_name(memory: str) -> None:
    with pytest.raises(ConfigurationError, match="needs a schema with a name"):
        KafkaSink("a:1", "t", serializer=AvroFormat(memory, schema='"string"', subject_name_strategy="record"))
    with pytest.raises(ConfigurationError, match="subject_name_strategy='topics' must be one of"):
        AvroFormat(memory, subject_name_strategy="topics")  # type: ignore[arg-type]


def test_schemas_that_are_not_registered_are_not_written(registry: Any) -> None:
    for kind in (AvroFormat, JsonSchemaFormat):
        schema = avro_schema_of(Item) if kind is AvroFormat else json_schema_of(Item)
        for given in (schema, None):
            with pytest.raises(ConnectorError, match=r"'orders-value'.*Register it, or use auto_reg") as found:
                written(kind(registry.url, schema=given, auto_register=False), Item("a"))
            assert isinstance(found.value, SuppressRestartsError)
        assert registry.subjects() == {}
        data = written(kind(registry.url, schema=schema), Item("a"))
        assert written(kind(registry.url, schema=schema, auto_register=False), Item("a")) == data
        assert written(kind(registry.url, auto_register=False), Item("a")) == data
        registry._subjects.clear()
    with pytest.raises(ConnectorError, match="Register it, or use auto_register=True"):
        written(ProtobufFormat(registry.url, type=orders_pb2.Order, auto_register=False), MESSAGE)
    with pytest.raises(ConfigurationError, match="AvroFormat needs schema= or type= to write"):
        KafkaSink("a:1", "t", serializer=AvroFormat(registry.url))
    with pytest.raises(ConfigurationError, match="JsonSchemaFormat needs schema= or type= to write"):
        KafkaSink("a:1", "t", serializer=JsonSchemaFormat(registry.url))


def test_a_schema_that_the_registry_refuses_ends_the_job(registry: Any) -> None:
    written(AvroFormat(registry.url, type=Item), Item("a"))
    other = {"type": "record", "name": "incompatible", "fields": []}
    with pytest.raises(ConnectorError, match=r"cannot register .* 'orders-value'.*409") as found:
        written(AvroFormat(registry.url, schema=other), {})
    assert isinstance(found.value, SuppressRestartsError)


def test_a_schema_is_asked_for_once(registry: Any) -> None:
    encode = FormatWriter(AvroFormat(registry.url, type=Item), "value")
    records = [encode.of("orders")(Item(str(number))) or b"" for number in range(5)]
    records += [encode.of("more")(Item(str(number))) or b"" for number in range(5)]
    assert [each.partition("?")[0] for each in registry.requests] == [
        "POST /subjects/orders-value/versions",
        "POST /subjects/more-value/versions",
    ]
    registry.requests.clear()
    reader = AvroFormat(registry.url).reader(None)
    for data in records:
        reader.decode(data)
    for _ in range(3):
        with pytest.raises(SerializationError, match="has no schema with id 99"):
            reader.decode(b"\0\0\0\0\x63")
    assert [each.partition("?")[0] for each in registry.requests] == ["GET /schemas/ids/1", "GET /schemas/ids/99"]


# ---- bad records and bad registries ------------------------------------------------------------------


def test_bad_records_are_bad_records(memory: str) -> None:
    """Each of them raises something that on_error takes, and never an error of the registry."""
    good = {
        AvroFormat(memory, type=Item): written(AvroFormat(memory, type=Item), Item("a")),
        JsonSchemaFormat(memory, type=Item): written(JsonSchemaFormat(memory, type=Item), Item("a"), "json"),
        ProtobufFormat(memory, type=orders_pb2.Order): written(
            ProtobufFormat(memory, type=orders_pb2.Order), MESSAGE, "protobuf"
        ),
    }
    wrong_type = list(good.values())
    for format_, data in good.items():
        reader = format_.reader(None)
        reader.decode(data)
        bad = [b"", b"\0", b"{}abcdef", data[:5], data[:-1], data + b"\xff", b"\0\0\0\x27\x0f" + data[5:]]
        for each in [*bad, *(each for each in wrong_type if each is not data)]:
            with pytest.raises((SerializationError, msgspec.DecodeError)) as found:
                reader.decode(each)
            assert not isinstance(found.value, ConnectorError)
    reader = ProtobufFormat(memory, type=orders_pb2.Order).reader(None)
    customer = written(ProtobufFormat(memory, type=orders_pb2.Customer), orders_pb2.Customer(), "protobuf")
    with pytest.raises(SerializationError, match=r"a message of type shop\.Customer, not shop\.Order"):
        reader.decode(customer)


def closed(registry: Any) -> str:
    """Return the address of a registry that has gone."""
    registry.close()
    return str(registry.url)


def fail_with(status: int, text: str) -> Callable[[Any], str]:
    def failing(registry: Any) -> str:
        registry.failure = (status, text)
        return str(registry.url)

    return failing


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        (closed, r"refused.*It was tried for 0\.2 s"),
        (fail_with(503, '{"error_code": 50301, "message": "away"}'), r"away.*It was tried for 0\.2 s"),
        (fail_with(200, "<html>log in</html>"), "its answer is not one of a schema registry"),
        (fail_with(200, "[]"), "its answer is not one of a schema registry"),
        (fail_with(302, ""), "302"),
        (fail_with(403, '{"error_code": 40301, "message": "no entry"}'), "no entry"),
        (lambda registry: f"{registry.url}/wrong", "HTTP 404"),
    ],
    ids=["gone", "unavailable", "no registry", "list", "moved", "forbidden", "another path"],
)
def test_a_registry_that_does_not_answer_is_no_bad_record(registry: Any, failing: Any, why: str) -> None:
    address = failing(registry)
    user = address.replace("http://", "http://ann:hush-hush@")
    for place in (
        SchemaRegistry(user, timeout="200ms"),
        SchemaRegistry(address, timeout="200ms", properties={"basic.auth.user.info": "ann:hush-hush"}),
    ):
        at = f"at the schema registry {address}"
        with pytest.raises(RegistryError, match=f"(?s)schema with id 1 {at}.*{why}") as a:
            read(AvroFormat(place), b"\0\0\0\0\1abc")
        with pytest.raises(RegistryError, match=f"(?s)orders-value' {at}.*{why}") as b:
            written(AvroFormat(place, type=Item), Item("a"))
        assert "hush" not in f"{a.value!r}{b.value!r}{a.value.__cause__!r}{b.value.__cause__!r}"


@pytest.mark.parametrize("answer", ["[]", "{}", '{"schema": 5}', '{"schema": "1", "references": 5}'])
def test_an_answer_without_a_schema_is_no_bad_record(registry: Any, answer: str) -> None:
    registry.failure = (200, answer)
    for format_ in (AvroFormat(registry.url), ProtobufFormat(registry.url, type=orders_pb2.Order)):
        with pytest.raises(
            RegistryError, match=r"schema with id 1 at .*its answer is not one of a schema registry"
        ):
            read(format_, b"\0\0\0\0\1abc")


@pytest.mark.parametrize(
    ("format_", "options", "schema"),
    [
        (AvroFormat, {}, ""),
        (AvroFormat, {}, "log in"),
        (AvroFormat, {}, '"no-such-type"'),
        (AvroFormat, {}, '{"type": "record"}'),
        (JsonSchemaFormat, {"validate": True}, "log in"),
    ],
)
def test_a_text_that_is_no_schema_is_no_bad_record(
    registry: Any, format_: Any, options: dict[str, Any], schema: str
) -> None:
    registry.failure = (200, json.dumps({"schema": schema, "schemaType": format_.schema_type}))
    with pytest.raises(
        RegistryError,
        match=rf"schema with id 1 at .*{registry.url}: its answer is no .* ?[sS]chema: '{schema}' \(",
    ):
        read(format_(registry.url, **options), b"\0\0\0\0\1{}")


def test_a_registry_that_comes_back_is_used(registry: Any) -> None:
    """Two answers fail, then the registry is there."""
    data = written(AvroFormat(registry.url, type=Item), Item("a"))
    registry.requests.clear()
    answer, failures = registry._answer, iter(range(2))

    def answer_later(handler: Any, body: Any) -> None:
        registry.failure = (
            (503, '{"error_code": 50301, "message": "away"}') if next(failures, None) is not None else None
        )
        answer(handler, body)

    registry._answer = answer_later
    place = SchemaRegistry(registry.url, timeout=f"{PATIENT_S}s")
    assert read(AvroFormat(place, type=Item), data) == Item("a")
    assert len(registry.requests) == 3


@pytest.mark.parametrize(("timeout", "of_request_s"), [("200ms", 10), ("30s", 10), ("90s", 30)])
def test_a_registry_with_more_time_may_take_longer_to_answer(
    registry: Any, monkeypatch: pytest.MonkeyPatch, timeout: str, of_request_s: float
) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    given: list[Any] = []
    make = SchemaRegistryClient.new_client
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda conf: given.append(conf) or make(conf))
    written(AvroFormat(SchemaRegistry(registry.url, timeout=timeout), type=Item), Item("a"))
    assert [each["timeout"] for each in given] == [of_request_s]


def test_credentials_are_sent_and_not_shown(registry: Any, caplog: pytest.LogCaptureFixture) -> None:
    registry.user = "ann@corp:hush/h@sh"
    user = "ann%40corp:hush%2Fh%40sh"
    caplog.set_level(logging.DEBUG)
    shown = []
    for place in (
        SchemaRegistry(registry.url.replace("http://", f"http://{user}@")),
        SchemaRegistry(registry.url, properties={"basic.auth.user.info": registry.user}),
    ):
        format_ = pickle.loads(dumps_by_value(AvroFormat(place, type=Item)))
        assert read(format_, written(format_, Item("a"))) == Item("a")
        source = KafkaSource("a:1", "t", deserializer=format_)
        sink = KafkaSink("a:1", "t", serializer=format_)
        shown += [repr(place), repr(format_), repr(source), repr(sink), str(place.url)]
    with pytest.raises(RegistryError, match="Unauthorized"):
        read(AvroFormat(registry.url), b"\0\0\0\0\1abc")
    assert "hush" not in caplog.text + "".join(shown)
    assert registry.url in repr(place)


@pytest.mark.parametrize(
    ("url", "properties", "why"),
    [
        ("localhost:8081", None, "'localhost:8081' is not the URL of a schema registry, such as http"),
        ("", None, "is not the URL of a schema registry"),
        ([], None, "must be the address of a schema registry"),
        ("http://a:1", {"url": "x"}, "may not hold 'url': use the argument url"),
        ("http://a:b@c:1", {"basic.auth.user.info": "a:b"}, "given both in the url and in"),
        ("http://a:b@c:1,http://a:d@e:1", None, "must have the same credentials"),
    ],
)
def test_what_is_no_registry_is_refused(url: Any, properties: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        SchemaRegistry(url, properties=properties)
    with pytest.raises(ConfigurationError, match="must be a URL or a SchemaRegistry"):
        AvroFormat(None)  # type: ignore[arg-type]


def test_properties_that_the_client_refuses_are_named(registry: Any) -> None:
    place = SchemaRegistry(registry.url, properties={"basic.auth": "hush:hush"})
    with pytest.raises(ConfigurationError, match=r"refuses its properties: Unrecognized properties: basic\.auth"):
        read(AvroFormat(place), b"\0\0\0\0\1abc")
    place = SchemaRegistry(registry.url, properties={"ssl.ca.location": "/no/such.pem"})
    with pytest.raises(
        ConfigurationError, match=r"No such file or directory \(ssl\.ca\.location='/no/such\.pem'\)"
    ):
        written(AvroFormat(place, type=Item), Item("a"))


# ---- without blocking ---------------------------------------------------------------------------------


def test_a_reader_with_wake_does_not_wait(registry: Any) -> None:
    data = written(AvroFormat(registry.url, type=Item), Item("a"))
    woken = threading.Event()
    reader = AvroFormat(registry.url).reader(woken.set)
    registry.gate.clear()
    for _ in range(2):
        with pytest.raises(SchemaPendingError):
            reader.decode(data)
    assert not woken.is_set()
    registry.gate.set()
    assert woken.wait(PATIENT_S)
    assert reader.decode(data) == {"name": "a", "price": 0.0}
    woken.clear()
    with pytest.raises(SchemaPendingError):
        reader.decode(b"\0\0\0\0\x63abc")
    assert woken.wait(PATIENT_S)
    assert reader.decode(data) == {"name": "a", "price": 0.0}
    with pytest.raises(SerializationError, match="has no schema with id 99"):
        reader.decode(b"\0\0\0\0\x63abc")
    reader.close()


def test_a_reader_that_is_closed_ends_its_retries(registry: Any) -> None:
    woken = threading.Event()
    registry.failure = (503, "{}")
    reader = AvroFormat(SchemaRegistry(registry.url, timeout="1h")).reader(woken.set)
    with pytest.raises(SchemaPendingError):
        reader.decode(b"\0\0\0\0\1abc")
    assert registry.asked.wait(PATIENT_S)
    reader.close()
    assert woken.wait(PATIENT_S)
    with pytest.raises(RegistryError, match="the subtask was closed"):
        reader.decode(b"\0\0\0\0\1abc")


# ---- as arguments of sources and sinks ------------------------------------------------------------------


def message(key: bytes | None, value: bytes | None) -> Message:
    return Message(topic="orders", partition=1, offset=5, key=key, value=value, timestamp=(1, 1000))


def test_keys_and_values_are_decoded_separately(memory: str) -> None:
    values, keys = AvroFormat(memory, type=Item), JsonSchemaFormat(memory, schema={"type": "integer"})
    value, key = written(values, Item("a")), written(keys, 3, field="key")
    decoder = pickle.loads(dumps_by_value(decoder_of(values, None, keys)))
    decoder.start()
    assert decoder.output_type is KafkaRecord
    assert decoder.decode([message(key, value), message(None, None)]) == [
        KafkaRecord("orders", 1, 5, 1000, 3, Item("a")),
        KafkaRecord("orders", 1, 5, 1000, None, None),
    ]
    with pytest.raises(SerializationError):
        decoder.decode_one(message(b"x", value))
    with pytest.raises(SerializationError):
        decoder.decode_one(message(key, b"x"))
    decoder.close()
    decoder = decoder_of("bytes", None, "text")
    decoder.start()
    assert decoder.decode_one(message(b"k", b"v")) == KafkaRecord("orders", 1, 5, 1000, "k", b"v")
    decoder = decoder_of(values)
    decoder.start()
    assert decoder.output_type is Item
    assert decoder.decode([message(b"k", value)]) == [Item("a")]
    with pytest.raises(SerializationError, match="it is a tombstone"):
        decoder.decode_one(message(b"k", None))
    decoder.close()


def test_a_function_that_raises_stop_iteration_leaves_no_message_out() -> None:
    def second_is_missing(record: KafkaRecord) -> Any:
        return next(iter(())) if record.key == b"2" else record.key

    decoder = decoder_of(second_is_missing)
    decoder.start()
    with pytest.raises(StopIteration):
        decoder.decode([message(b"1", None), message(b"2", None), message(b"3", None)])
    decoder.close()


def test_keys_and_values_are_encoded_separately(memory: str) -> None:
    values, keys = AvroFormat(memory, type=Item), AvroFormat(memory, schema='"string"')
    fixed: dict[str, Any] = {"headers": None, "partition": None, "timestamp": None}
    encoder = encoder_of("orders", values, key=lambda item: item.name, key_serializer=keys, **fixed)
    encoder = pickle.loads(dumps_by_value(encoder))
    [(topic, value, key, *_)] = encoder.encode([Item("a")], None)
    assert (topic, read(values, value), read(keys, key)) == ("orders", Item("a"), "a")
    encoder = encoder_of(
        lambda item: f"of-{item.name}", values, key=lambda item: item.price or None, key_serializer="json", **fixed
    )
    made = encoder.encode([Item("a", 1.0), Item("b"), Item("a")], None)
    assert [(each[0], read(values, each[1]), each[2]) for each in made] == [
        ("of-a", Item("a", 1.0), b"1.0"),
        ("of-b", Item("b"), None),
        ("of-a", Item("a"), None),
    ]
    with pytest.raises(Exception, match="name") as found:
        encoder_of("orders", values, key=None, **fixed).encode([{"price": 1.0}], None)
    assert "record: {'price': 1.0}" in found.value.__notes__


@pytest.mark.parametrize("timestamps", [None, [7, 8, 9]], ids=["without times", "with times"])
def test_messages_are_the_same_with_and_without_functions_for_each_record(timestamps: list[int] | None) -> None:
    """The key function takes the key out of its record, as it is called before the value is made."""

    def encode(topic: Any, serializer: Any, records: list[Any], key: Any = None, keys: Any = None) -> Any:
        fixed: dict[str, Any] = {"headers": None, "partition": None, "timestamp": None}
        encoder = encoder_of(topic, serializer, key=key, key_serializer=keys, **fixed)
        return encoder.encode(records, timestamps)

    class Text(str): ...

    for topic in ("t", lambda _: "t"):
        stamps = timestamps or [0, 0, 0]
        records = [{"k": 1, "v": "a"}, {"k": None, "v": "b"}, {"k": 3, "v": "c"}]
        assert encode(topic, "json", records, lambda record: record.pop("k"), "json") == [
            ("t", b'{"v":"%s"}' % value, key, -1, stamp, None)
            for value, key, stamp in zip((b"a", b"b", b"c"), (b"1", None, b"3"), stamps, strict=True)
        ]
        for texts in (["a", "", "c"], ["a", Text("b"), "c"]):
            made = encode(topic, "text", texts)
            assert made == [("t", text, None, -1, at, None) for text, at in zip(texts, stamps, strict=True)]
        for wrong in (["a", 5, "c"], [5, 5, 5]):
            with pytest.raises(RejectedRecordError, match="serializer='text' takes str, not int") as found:
                encode(topic, "text", wrong)
            assert found.value.__notes__ == ["record: 5"]
        with pytest.raises(KeyError) as missing:
            encode(topic, "json", [{"k": 1}, {"v": 2}, {"k": 3}], lambda record: str(record["k"]))
        assert missing.value.__notes__ == ["record: {'v': 2}"]


def test_an_error_of_the_registry_names_no_record(registry: Any) -> None:
    format_ = AvroFormat(SchemaRegistry(registry.url, timeout="1ms"), type=Item)
    registry.failure = (503, "{}")
    fixed: dict[str, Any] = {"headers": None, "partition": None, "timestamp": None}
    with pytest.raises(RegistryError) as found:
        encoder_of("orders", format_, key=None, **fixed).encode([Item("a")], None)
    assert not hasattr(found.value, "__notes__")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"deserializer": "AVRO", "type": Item}, "goes with deserializer='json', not .*: give it to the format"),
        ({"deserializer": "record", "key_deserializer": "text"}, "does not go with deserializer='record'"),
        ({"key_deserializer": "record"}, "key_deserializer='record' must be 'text', 'bytes', 'json' or a format"),
        ({"key_deserializer": "txt"}, "key_deserializer.*'txt'.*text"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(memory: str, arguments: Any, why: str) -> None:
    if arguments.get("deserializer") == "AVRO":
        arguments = arguments | {"deserializer": AvroFormat(memory)}
    with pytest.raises(ConfigurationError, match=why):
        KafkaSource("a:1", "t", **arguments)


def test_other_arguments_that_do_not_go_together_are_refused(memory: str) -> None:
    with pytest.raises(ConfigurationError, match="key_serializer= needs key="):
        KafkaSink("a:1", "t", key_serializer="json")
    with pytest.raises(ConfigurationError, match="must be a class that protoc has generated"):
        ProtobufFormat(memory, type=Item)
    with pytest.raises(ConfigurationError, match="cannot be made of decoded values"):
        AvroFormat(memory, type=dict[complex, int] | dict[str, int])


def test_a_missing_extra_is_named() -> None:
    """In another process, where fastavro cannot be imported."""
    program = """
import sys
from importlib.machinery import PathFinder

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fastavro", "authlib"):
            raise ImportError(name)

sys.meta_path.insert(0, Without())
from sluiceway.errors import MissingExtraError
from sluiceway_kafka import AvroFormat, KafkaSource
KafkaSource("a:1", "t", deserializer="json")
try:
    AvroFormat("mock://x")
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("AvroFormat needs authlib, fastavro: "), done.stdout
    assert "[kafka-registry]" in done.stdout
