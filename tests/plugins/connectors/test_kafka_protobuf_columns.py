"""Messages of Protobuf from Kafka as rows in columns."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

import sluiceway as sw
from sluiceway.errors import ConfigurationError, SerializationError

pytest.importorskip("confluent_kafka", reason='not installed: pip install "sluiceway[kafka]"')
pytest.importorskip("narwhals", reason='not installed: pip install "sluiceway[columns]"')
pytest.importorskip("google.type", reason='not installed: pip install "sluiceway[kafka-registry]"')

import cloudpickle
import pyarrow as pa
from confluent_kafka import Message
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessages
from google.protobuf.text_format import Merge

from sluiceway_kafka import KafkaSource, ProtobufFormat
from sluiceway_kafka._encoders import FormatWriter

_FILE = """
name: "shop.proto" package: "shop" syntax: "proto3"
enum_type { name: "Color" value { name: "RED" number: 0 } value { name: "BLUE" number: 2 } }
message_type {
  name: "Item"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "count" number: 2 type: TYPE_UINT32 label: LABEL_OPTIONAL }
}
message_type {
  name: "Order"
  field { name: "id" number: 1 type: TYPE_SFIXED64 label: LABEL_OPTIONAL }
  field { name: "big" number: 2 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "ratio" number: 3 type: TYPE_FLOAT label: LABEL_OPTIONAL }
  field { name: "raw" number: 4 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "color" number: 5 type: TYPE_ENUM type_name: ".shop.Color" label: LABEL_OPTIONAL }
  field { name: "first" number: 6 type: TYPE_MESSAGE type_name: ".shop.Item" label: LABEL_OPTIONAL }
  field { name: "items" number: 7 type: TYPE_MESSAGE type_name: ".shop.Item" label: LABEL_REPEATED }
  field { name: "tags" number: 8 type: TYPE_STRING label: LABEL_REPEATED }
  field { name: "note" number: 9 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 1 proto3_optional: true }
  field { name: "card" number: 10 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "cash" number: 11 type: TYPE_BOOL label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "stock" number: 12 type: TYPE_MESSAGE type_name: ".shop.Order.StockEntry" label: LABEL_REPEATED }
  field { name: "named" number: 13 type: TYPE_MESSAGE type_name: ".shop.Order.NamedEntry" label: LABEL_REPEATED }
  field { name: "colors" number: 14 type: TYPE_ENUM type_name: ".shop.Color" label: LABEL_REPEATED }
  oneof_decl { name: "paid" }
  oneof_decl { name: "_note" }
  nested_type {
    name: "StockEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  }
  nested_type {
    name: "NamedEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".shop.Item" label: LABEL_OPTIONAL }
  }
}
message_type {
  name: "Tree"
  field { name: "children" number: 1 type: TYPE_MESSAGE type_name: ".shop.Tree" label: LABEL_REPEATED }
}
message_type { name: "Nothing" }
"""
CLASSES = GetMessages([Merge(_FILE, FileDescriptorProto())], DescriptorPool())
Order, Item = CLASSES["shop.Order"], CLASSES["shop.Item"]
ITEM = pa.struct([("name", pa.string()), ("count", pa.uint32())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("big", pa.uint64(), False),
        pa.field("ratio", pa.float32(), False),
        pa.field("raw", pa.binary(), False),
        pa.field("color", pa.string(), False),
        ("first", ITEM),
        pa.field("items", pa.list_(ITEM), False),
        pa.field("tags", pa.list_(pa.string()), False),
        ("note", pa.string()),
        ("card", pa.string()),
        ("cash", pa.bool_()),
        pa.field("stock", pa.map_(pa.string(), pa.int32()), False),
        pa.field("named", pa.map_(pa.int32(), ITEM), False),
        pa.field("colors", pa.list_(pa.string()), False),
    ]
)
FULL = Order(
    id=-(2**63), big=2**64 - 1, ratio=0.5, raw=b"\x00\xff", color=2, first=Item(name="lamp"), tags=["a", ""],
    items=[Item(name="x", count=3), Item()], note="", cash=False, stock={"b": -1, "a": 2},
    named={7: Item(name="seven")}, colors=[0, 2, 9],
)  # fmt: skip
ROW = {
    "id": -(2**63), "big": 2**64 - 1, "ratio": 0.5, "raw": b"\x00\xff", "color": "BLUE",
    "first": {"name": "lamp", "count": 0}, "tags": ["a", ""],
    "items": [{"name": "x", "count": 3}, {"name": "", "count": 0}], "note": "", "card": None, "cash": False,
    "stock": [("a", 2), ("b", -1)], "named": [(7, {"name": "seven", "count": 0})], "colors": ["RED", "BLUE", "9"],
}  # fmt: skip
EMPTY = {
    "id": 0, "big": 0, "ratio": 0.0, "raw": b"", "color": "RED", "first": None, "tags": [], "items": [],
    "note": None, "card": None, "cash": None, "stock": [], "named": [], "colors": [],
}  # fmt: skip


def sent(value: bytes | None) -> Any:
    return Message(topic="t", partition=0, offset=0, value=value)


@pytest.fixture
def registry() -> str:
    return f"mock://{uuid.uuid4().hex}"


def encoded(registry: str, message: Any) -> bytes:
    found = FormatWriter(ProtobufFormat(registry, type=type(message)), "value").of("orders")(message)
    assert found is not None
    return found


def decoder(registry: str) -> Any:
    source, schema = KafkaSource(
        "127.0.0.1:1", "t", deserializer=ProtobufFormat(registry, type=Order)
    ).in_columns()
    assert schema == SCHEMA
    return source._decoder.for_subtask()


def rows(decoder: Any, values: Sequence[bytes | None], each: int) -> list[Any]:
    decoder.start()
    try:
        parts: list[Any] = []
        for start in range(0, len(values), each):
            parts += decoder.decode([sent(value) for value in values[start : start + each]])
        (data,) = decoder.join(parts)
    finally:
        decoder.close()
    assert data.schema == SCHEMA
    found: list[Any] = data.to_pylist()
    return [row | {"stock": sorted(row["stock"])} for row in found]


@pytest.mark.parametrize("each", [1, 2, 5])
def test_rows_are_those_of_the_messages(registry: str, each: int) -> None:
    values = [encoded(registry, message) for message in (FULL, Order(), FULL, Order(), FULL)]
    assert rows(decoder(registry), values, each) == [ROW, EMPTY, ROW, EMPTY, ROW]


@pytest.mark.parametrize("bad", ["cut", "other", "none", "bytes"])
def test_what_is_no_message_is_rejected_and_those_beside_it_are_not(registry: str, bad: str) -> None:
    good = encoded(registry, FULL)
    wrong = {"cut": good[:-1], "other": encoded(registry, Item(name="x")), "none": None, "bytes": b"\xff"}[bad]
    made = decoder(registry)
    made.start()
    try:
        with pytest.raises(SerializationError):
            made.decode([sent(wrong)])
    finally:
        made.close()
    assert rows(decoder(registry), [good], 1) == [ROW]


def test_the_plan_has_the_columns() -> None:
    source = KafkaSource("127.0.0.1:1", "t", deserializer=ProtobufFormat("http://127.0.0.1:1", type=Order))
    assert sw.Pipeline().table(source).schema == SCHEMA


@pytest.mark.parametrize(
    ("name", "message"),
    [("Tree", "field 'shop.Tree.children' holds messages of type shop.Tree, in which"), ("Nothing", "no fields")],
)
def test_messages_without_columns_are_refused(name: str, message: str) -> None:
    format_ = ProtobufFormat("http://127.0.0.1:1", type=CLASSES[f"shop.{name}"])
    with pytest.raises(ConfigurationError, match=message):
        sw.Pipeline().table(KafkaSource("127.0.0.1:1", "t", deserializer=format_))


def test_it_travels_with_the_job(registry: str) -> None:
    from tests.plugins.connectors import orders_pb2

    format_ = ProtobufFormat(registry, type=orders_pb2.Order)
    source, schema = KafkaSource("127.0.0.1:1", "t", deserializer=format_).in_columns()
    again = cloudpickle.loads(cloudpickle.dumps(source))._decoder.for_subtask()
    again.start()
    try:
        message = orders_pb2.Order(id=5, customer=orders_pb2.Customer(name="ann"))
        (data,) = again.decode([sent(encoded(registry, message))])
    finally:
        again.close()
    assert data.schema == schema
    assert (
        data.to_pylist() == [{"id": 5, "product": None, "customer": {"name": "ann"}}] or data["id"][0].as_py() == 5
    )
