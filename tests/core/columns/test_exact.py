"""Values that a column cannot hold whole are refused, and not cut off."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluiceway import Pipeline
from sluiceway.columns.exact import exact_array
from sluiceway.errors import FunctionContractError

_NOON = dt.datetime(2025, 1, 1, 12)
_FINE = dt.datetime(2025, 1, 1, 12, 0, 0, 1234)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int64()),
        (-0.25, pa.int8()),
        (Decimal("1.5"), pa.int64()),
        (_NOON, pa.date32()),
        (_NOON, pa.date64()),
        (1.5, pa.dictionary(pa.int8(), pa.int64())),
        ([1, None, 1.5], pa.list_(pa.int64())),
        ({"a": {"b": 1.5}}, pa.struct([("a", pa.struct([("b", pa.int64())]))])),
        ({"x": 1.5}, pa.map_(pa.string(), pa.int64())),
        ([("x", _NOON)], pa.map_(pa.string(), pa.date32())),
        (7, pa.date32()),
        (7, pa.time32("s")),
        ([7], pa.list_(pa.time64("us"))),
        (dt.time(12, tzinfo=dt.UTC), pa.time64("us")),
        ("ab", pa.list_(pa.string())),
        (["ab"], pa.large_list(pa.list_(pa.string()))),
        ({"tags": "ab"}, pa.struct([("tags", pa.list_(pa.string()))])),
    ],
)
def test_a_loss_is_an_error(value: Any, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"no whole number|time of the day|list of its characters|is a number"):
        exact_array([None, value], kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2.0, pa.int64()),
        (dt.datetime(2025, 1, 1), pa.date32()),
        (dt.date(2025, 1, 1), pa.date64()),
        (dt.time(12, 1), pa.time32("s")),
        (_NOON, pa.timestamp("s")),
        (_FINE, pa.timestamp("ms")),
        (_FINE, pa.timestamp("ns")),
        (7, pa.timestamp("ms")),
        ([], pa.list_(pa.int64())),
        (("ab", None), pa.list_(pa.string())),
        ({}, pa.struct([("a", pa.int64())])),
        ({"x": 1}, pa.map_(pa.string(), pa.int64())),
    ],
)
def test_what_fits_is_as_pyarrow_has_it(value: Any, kind: Any) -> None:
    assert exact_array([None, value], kind).equals(pa.array([None, value], kind))


@dataclass
class _Order:
    n: int


def test_a_fraction_fails_the_job_with_the_record() -> None:
    flow = Pipeline()
    with pytest.raises(FunctionContractError, match=r"_Order\(n=1.5\).*column 'n' of type int64: 1.5 is no whole"):
        flow.from_collection([_Order(1), _Order(1.5)]).to_columns(_Order).to_arrow()  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [1, 10])
def test_mappings_and_objects_may_be_mixed(batch_size: int) -> None:
    flow = Pipeline()
    records: list[Any] = [{"n": 1}, _Order(2), {}]
    rows = flow.from_collection(records).to_columns(pa.schema([("n", pa.int64())])).to_arrow(batch_size=batch_size)
    assert rows.to_pylist() == [{"n": 1}, {"n": 2}, {"n": None}]


@dataclass
class _Part:
    n: int
    note: str | None = None


@dataclass
class _Whole:
    part: _Part | None
    parts: list[_Part]
    sizes: dict[str, int]
    tags: list[str | None]


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (_Whole(_Part(None), [], {}, []), "part.n"),  # type: ignore[arg-type]
        (_Whole(None, [_Part(1), None], {}, []), r"parts\[\]"),  # type: ignore[list-item]
        (_Whole(None, [_Part(1), _Part(None)], {}, []), r"parts\[\].n"),  # type: ignore[arg-type]
        (_Whole(None, [], {"a": 1, "b": None}, []), r"sizes\[\]"),  # type: ignore[dict-item]
    ],
)
def test_null_inside_of_a_column_fails_the_job_with_the_record(record: _Whole, place: str) -> None:
    good = _Whole(None, [_Part(1)], {"a": 1}, [None, "x"])
    kept = Pipeline().from_collection([good, good]).to_columns(_Whole).to_arrow()
    assert kept.num_rows == 2
    flow = Pipeline()
    message = (
        rf"column '{place}' may not be null, and is in _Whole\(part={'None' if record.part is None else '_P'}"
    )
    with pytest.raises(FunctionContractError, match=message):
        flow.from_collection([good, record, good]).to_columns(_Whole).to_arrow()


def test_a_function_returns_null_structs_with_fields_that_are_not_null() -> None:
    kind = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    rows = pa.table(
        {"of": pa.nulls(2, kind), "view": pa.array(["a", None], pa.string_view())}
    )  # of.a is null, too
    stream = Pipeline().table(rows)
    assert stream.map_batches(lambda rows: rows, schema=stream.schema).to_arrow().to_pylist() == rows.to_pylist()
    required = stream.schema.set(0, stream.schema.field(0).with_nullable(False))
    refused = stream.map_batches(lambda rows: rows, schema=required)
    with pytest.raises(FunctionContractError, match="column 'of' is NOT NULL, and has a null"):
        refused.to_arrow()
