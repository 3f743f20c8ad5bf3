"""Arrow schemas of record types."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, NamedTuple, NotRequired, TypedDict

import pyarrow as pa
import pytest

from sluiceway import Pipeline
from sluiceway.columns.schemas import schema_of
from sluiceway.errors import SerializationError

MONEY = pa.decimal128(12, 2)


class Tax(NamedTuple):
    rate: Annotated[Decimal, pa.decimal128(4, 3)]
    country: Annotated[str, "ISO 3166"] = "de"


@dataclass
class Order:
    total: Annotated[Decimal, MONEY]
    discount: Annotated[Decimal, MONEY] | None = None
    deposit: Annotated[Decimal | None, "in advance", MONEY] = None
    parts: list[Annotated[Decimal, MONEY]] = field(default_factory=list)
    taxes: dict[str, Tax] = field(default_factory=dict)
    count: Annotated[int, pa.int8()] = 1


class Line(TypedDict):
    name: str
    price: NotRequired[Annotated[Decimal, MONEY]]


@dataclass
class Node:
    value: int
    children: dict[str, list[Node]]


def test_an_annotation_names_the_type_of_a_column() -> None:
    tax = pa.struct([pa.field("rate", pa.decimal128(4, 3), False), pa.field("country", pa.string(), False)])
    assert schema_of(Order) == pa.schema(
        [
            pa.field("total", MONEY, False),
            pa.field("discount", MONEY),
            pa.field("deposit", MONEY),
            pa.field("parts", pa.list_(pa.field("item", MONEY, False)), False),
            pa.field("taxes", pa.map_(pa.string(), pa.field("value", tax, False)), False),
            pa.field("count", pa.int8(), False),
        ]
    )
    assert schema_of(Line) == pa.schema([pa.field("name", pa.string(), False), pa.field("price", MONEY, False)])


def test_records_of_annotated_fields_become_columns_and_records_again() -> None:
    tax = Tax(Decimal("0.190"))
    full = Order(Decimal("2.00"), Decimal("0.10"), None, [Decimal("2.00")], {"vat": tax})
    orders = [Order(Decimal("1.50")), full]
    flow = Pipeline("orders")
    again = flow.from_collection(orders).to_columns(Order).to_records(Order).collect()
    flow.run()
    assert again == orders


def test_a_type_without_a_column_is_refused_with_what_to_write() -> None:
    @dataclass
    class Plain:
        total: Decimal

    with pytest.raises(SerializationError) as caught:
        schema_of(Plain)
    assert str(caught.value).endswith(
        "Plain.total: Decimal has no one Arrow type. Give a pyarrow.Schema in place of the class, or annotate the "
        "field, as in Annotated[Decimal, pyarrow.decimal128(12, 2)]"
    )


def test_a_type_that_holds_itself_is_refused_with_the_field() -> None:
    with pytest.raises(SerializationError, match=r"Node\.children: Node holds values of its own type"):
        schema_of(Node)
