"""What rows of Arrow batches become, without Spark."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import ConnectorError
from sluiceway_spark.conversion.arrow_to_records import converter

ROWS = [{"id": 1, "word": "to", "at": 0.5}, {"id": 2, "word": None, "at": 1.5}]
BATCH = pa.RecordBatch.from_pylist(ROWS)


class Pair(NamedTuple):
    id: int
    word: str | None


class Struct(msgspec.Struct):
    id: int
    word: str | None = "none"


class ByName(msgspec.Struct, kw_only=True):
    word: str | None
    id: int


class Renamed(msgspec.Struct, rename={"number": "id"}):
    number: int


@dataclass
class Record:
    id: int
    word: str | None
    more: list[int] = field(default_factory=list)


@dataclass
class Backwards:
    word: str | None
    id: float


@dataclass
class Strict:
    id: int
    word: str


@dataclass
class OwnInit:
    id: int

    def __post_init__(self) -> None:
        self.id *= 10


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (dict, ROWS),
        (tuple, [(1, "to", 0.5), (2, None, 1.5)]),
        (Pair, [Pair(1, "to"), Pair(2, None)]),
        (Struct, [Struct(1, "to"), Struct(2, None)]),
        (ByName, [ByName(id=1, word="to"), ByName(id=2, word=None)]),
        (Renamed, [Renamed(1), Renamed(2)]),
        (Record, [Record(1, "to"), Record(2, None)]),
        (Backwards, [Backwards("to", 1.0), Backwards(None, 2.0)]),
        (OwnInit, [OwnInit(1), OwnInit(2)]),
    ],
)
def test_rows_become_what_was_asked_for(records: Any, expected: list[Any]) -> None:
    found = converter(records, BATCH.schema, "the table")(BATCH)
    assert found == expected
    assert [type(record) for record in found] == [type(record) for record in expected]
    assert converter(records, BATCH.schema, "the table")(BATCH.slice(0, 0)) == []
    if records is Backwards:
        assert all(type(record.id) is float for record in found)


@pytest.mark.parametrize(
    "records", [Strict, type("Strict", (msgspec.Struct,), {"__annotations__": {"word": str}})]
)
def test_none_is_found_where_there_must_be_something(records: Any) -> None:
    make = converter(records, BATCH.schema, "the table")
    assert len(make(BATCH.slice(0, 1))) == 1
    with pytest.raises(ConnectorError, match="a row of the table is no Strict: Expected `str`, got `null`"):
        make(BATCH)


def test_other_types_are_found() -> None:
    texts = pa.RecordBatch.from_pylist([{"id": "x", "word": "y"}])
    with pytest.raises(ConnectorError, match="a row of the table is no Strict: Expected `int`, got `str`"):
        converter(Strict, texts.schema, "the table")(texts)


def test_columns_may_have_any_name() -> None:
    names = ["a'b", 'c"d', "{e}", "f\\n\n", "lambda"]
    batch = pa.RecordBatch.from_arrays([pa.array([n]) for n in range(5)], names=names)
    assert converter(dict, batch.schema, "t")(batch) == [dict(zip(names, range(5), strict=True))]


NAIVE = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29))


@given(st.lists(NAIVE | st.none(), max_size=5), st.sampled_from([None, "UTC", "Europe/Amsterdam", "+02:00"]))
def test_times_are_those_of_arrow(times: list[Any], zone: str | None) -> None:
    column = pa.array(times, pa.timestamp("us", zone))
    batch = pa.RecordBatch.from_arrays([column], names=["at"])
    found = [row[0] for row in converter(tuple, batch.schema, "t")(batch)]
    expected = column.to_pylist()
    assert found == expected
    assert [t and t.utcoffset() for t in found] == [t and t.utcoffset() for t in expected]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("us", "+02:00")])
@pytest.mark.parametrize("records", [dict, tuple])
@pytest.mark.parametrize("instant", [-(10**17), 4 * 10**17])
def test_a_year_that_python_has_not_is_an_error_with_the_column(kind: Any, records: Any, instant: int) -> None:
    column = pa.array([None, 0, instant], pa.int64()).cast(kind)
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), column], names=["n", "at"])
    with pytest.raises(ConnectorError, match=r"^column 'at' has timestamp\[us.*\], .*years are 1 to 9999: "):
        converter(records, batch.schema, "t")(batch)


def test_a_text_that_is_not_utf_8_is_an_error_with_the_column() -> None:
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    batch = pa.RecordBatch.from_arrays([texts], names=["text"])
    with pytest.raises(ConnectorError, match=r"^column 'text' has a text that is not UTF-8: .*Cast it to BINARY"):
        converter(dict, batch.schema, "t")(batch)


@pytest.mark.parametrize(
    ("zone", "hours"),
    [
        ("GMT+8", 8),
        ("UTC-03:30", -3.5),
        ("+0800", 8),
        ("-3", -3),
        ("+08:00:00", 8),
        ("Z", 0),
        ("PST", -8),
        ("JST", 9),
    ],
)
def test_a_session_may_have_a_zone_that_python_does_not_know(zone: str, hours: float) -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    kind, utc = pa.timestamp("us", zone), pa.timestamp("us", "UTC")
    nested = pa.struct([("x", pa.list_(utc))]), pa.struct([("x", pa.list_(kind))])
    columns = [
        pa.array([noon, None], utc).cast(kind),
        pa.array([{"x": [noon]}, None], nested[0]).cast(nested[1]),
        pa.array([[(noon, noon)], None], pa.map_(utc, utc)).cast(pa.map_(kind, kind)),
    ]
    batch = pa.RecordBatch.from_arrays(columns, ["at", "within", "by"])
    found, nothing = converter(tuple, batch.schema, "t")(batch)
    assert found == (noon, {"x": [noon]}, {noon: noon})
    assert nothing == (None, None, None)
    there = [found[0], *found[1]["x"], *found[2], *found[2].values()]
    assert [at.utcoffset() for at in there] == [dt.timedelta(hours=hours)] * 4


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none()), st.lists(st.floats(allow_nan=False) | st.none()))
def test_numbers_are_those_of_arrow(integers: list[Any], floats: list[Any]) -> None:
    for column in (pa.array(integers, pa.int64()), pa.array(floats, pa.float64())):
        batch = pa.RecordBatch.from_arrays([column], names=["n"])
        assert [row[0] for row in converter(tuple, batch.schema, "t")(batch)] == column.to_pylist()
