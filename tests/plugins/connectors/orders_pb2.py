"""What protoc makes of this, but independent of protobuf's version:

syntax = "proto3";
package shop;
message Customer { string name = 1; }
message Order { int64 id = 1; string product = 2; Customer customer = 3; message Note { string text = 1; } }
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.internal import builder

__all__ = ["DESCRIPTOR", "Customer", "Note", "Order"]

Customer: Any
Order: Any

_TEXT, _INT64, _MESSAGE = (
    FieldDescriptorProto.TYPE_STRING, FieldDescriptorProto.TYPE_INT64, FieldDescriptorProto.TYPE_MESSAGE
)  # fmt: skip


def _field(message: Any, number: int, name: str, kind: Any, type_name: str | None = None) -> None:
    label = FieldDescriptorProto.LABEL_OPTIONAL
    message.field.add(name=name, number=number, label=label, type=kind, type_name=type_name)


_file = FileDescriptorProto(name="tests/orders.proto", package="shop", syntax="proto3")
_customer = _file.message_type.add(name="Customer")
_field(_customer, 1, "name", _TEXT)
_order = _file.message_type.add(name="Order")
_field(_order, 1, "id", _INT64)
_field(_order, 2, "product", _TEXT)
_field(_order, 3, "customer", _MESSAGE, ".shop.Customer")
_field(_order.nested_type.add(name="Note"), 1, "text", _TEXT)

# As in files of protoc.
DESCRIPTOR = Default().AddSerializedFile(_file.SerializeToString())
builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, __name__, globals())
Note = globals()["Order"].Note
