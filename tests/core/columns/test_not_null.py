"""Nulls in columns that are NOT NULL, and in parts of them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluiceway.columns.not_null import cast, checked_cast, has_required, null_in

NUMBER = pa.int64()
LIST = pa.list_(pa.field("element", NUMBER, nullable=False))
MAP = pa.map_(pa.string(), pa.field("value", NUMBER, nullable=False))


@pytest.mark.parametrize(
    ("kind", "values", "row", "path"),
    [
        (LIST, [[1], None, [], [2, None]], 3, "x[]"),
        (MAP, [[("a", 1)], None, [("b", None)]], 2, "x.value"),
        (pa.struct([("z", NUMBER), pa.field("y", NUMBER, nullable=False)]), [{"y": 1}, None, {"z": 1}], 2, "x.y"),
        (pa.list_(pa.struct([("y", LIST)])), [None, [{"y": None}], [{"y": [1]}, {"y": [None]}]], 2, "x[].y[]"),
    ],
)
def test_the_first_null_within_a_column_is_found(kind: Any, values: list[Any], row: int, path: str) -> None:
    field, column = pa.field("x", kind), pa.array(values, kind)
    assert has_required(field)
    assert null_in(column, field) == (row, path)
    assert null_in(column.slice(1), field) == (row - 1, path)
    assert null_in(column.slice(0, row), field) is None


def test_a_null_in_place_of_a_column_is_found_if_the_column_takes_none() -> None:
    column = pa.array([1, None], NUMBER)
    assert null_in(column, pa.field("x", NUMBER, nullable=False)) == (1, "x")
    assert not has_required(pa.field("x", pa.list_(NUMBER)))


def test_a_null_in_place_of_a_struct_is_none_in_its_fields_that_take_none() -> None:
    y = pa.field("y", NUMBER, nullable=False)
    inner = pa.StructArray.from_arrays([pa.array([None, 2, 3])], fields=[y], mask=pa.array([True, False, False]))
    lists = pa.ListArray.from_arrays([0, 2, 3], inner)
    kind = pa.struct([y, pa.field("z", lists.type)])
    outer = pa.StructArray.from_arrays(
        [pa.array([1, None]), lists], fields=list(kind), mask=pa.array([False, True])
    )
    wanted = pa.schema([("x", kind), ("t", pa.timestamp("us", "UTC"))])
    given = pa.record_batch({"x": outer, "t": pa.nulls(2, pa.timestamp("us", "Europe/Berlin"))})
    made = cast(given, wanted)
    assert made.schema.equals(wanted)
    assert made.column("x").to_pylist() == [{"y": 1, "z": [None, {"y": 2}]}, None]
    assert null_in(made.column("x"), wanted.field("x")) is None


@pytest.mark.parametrize("of", [pa.Table.from_batches, lambda batches: batches[0]], ids=["table", "batch"])
def test_a_cast_refuses_nulls_in_what_is_not_null_and_no_others(of: Any) -> None:
    inner = pa.field("w", pa.struct([pa.field("t", pa.string(), nullable=False)]), nullable=False)
    kind = pa.struct([pa.field("y", NUMBER, nullable=False), pa.field("z", pa.list_(NUMBER)), inner])
    narrow = pa.struct([("y", pa.int8()), ("z", pa.list_(pa.int8())), ("w", pa.struct([("t", pa.string())]))])
    for given in (pa.nulls(2, kind), pa.nulls(2, narrow)):  # with nulls in all fields, too
        wanted = pa.schema([("x", kind)], {"a": "b"})
        made = checked_cast(of([pa.record_batch({"x": given})]), wanted)
        made.validate(full=True)
        assert made.schema.equals(wanted, check_metadata=True)
        assert made.column("x").to_pylist() == [None, None]
        pq.write_table(made if isinstance(made, pa.Table) else pa.table(made), io.BytesIO())
    rows = of([pa.record_batch({"x": pa.array([{"y": 1, "z": [1, None]}, {"z": None}], _nullable(kind))})])
    with pytest.raises(ValueError, match=r"^column 'x\.y' is NOT NULL, and has a null$"):
        checked_cast(rows, wanted)
    with pytest.raises(ValueError, match=r"^column 'x' is NOT NULL, and has a null$"):
        checked_cast(of([pa.record_batch({"x": given})]), pa.schema([pa.field("x", kind, nullable=False)]))


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    "around",
    [
        lambda structs: pa.ListArray.from_arrays([0, 1, 3], structs),
        lambda structs: pa.LargeListArray.from_arrays([0, 1, 3], structs, mask=pa.array([True, False])),
        lambda structs: pa.FixedSizeListArray.from_arrays(structs.slice(0, 2), 1),
        lambda structs: pa.MapArray.from_arrays([0, 1, 3], pa.array(["a", "b", "c"]), structs),
        lambda structs: pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 0, 3], structs)], ["l"]),
        lambda structs: pa.ListArray.from_arrays([0, 1, 2], pa.ListArray.from_arrays([0, 1, 3], structs)),
        lambda _: pa.ListArray.from_arrays([0, 1, 3], pa.array([None, 2, 3]), LIST, mask=pa.array([True, False])),
    ],
)
def test_a_cast_fills_what_is_not_null_within_lists_and_maps(around: Any, start: int) -> None:
    column = around(pa.nulls(3, pa.struct([pa.field("y", NUMBER, nullable=False)]))).slice(start)
    made = checked_cast(pa.table({"x": column}), pa.schema([("x", column.type)], {"a": "b"}))
    made.validate(full=True)
    assert made.column("x").to_pylist() == column.to_pylist()
    pq.write_table(made, io.BytesIO())


def _nullable(kind: Any) -> Any:
    return pa.struct([field.with_nullable(True) for field in kind])
