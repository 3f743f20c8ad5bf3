"""Options and columns of reading our sources from plain PySpark: what needs no Spark."""

from __future__ import annotations

import datetime as dt
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from typing_extensions import TypeAliasType

from sluiceway.connector.lib import HybridSource
from sluiceway.connector.lib.collection import CollectionSource
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway.elements import MAX_WATERMARK, MIN_WATERMARK, Batch
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway_files import FilesSource
from sluiceway_spark.datasource.read_options import SourceTold
from sluiceway_spark.datasource.records_to_rows import Tables, arrow_schema_of

pa = pytest.importorskip("pyarrow")

UTC = pa.timestamp("us", "UTC")


@dataclass
class Click:
    user: str
    at: dt.datetime
    price: Decimal | None
    tags: list[str]


class Pair(NamedTuple):
    word: str
    count: int


class Half(msgspec.Struct):
    word: str
    share: float = 0.5


@dataclass
class Came:
    user: str


@dataclass
class Reply:
    text: str
    replies: list[Reply]


class Went(NamedTuple):
    user: str


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (str, {"value": pa.string()}),
        (int, {"value": pa.int64()}),
        (float, {"value": pa.float64()}),
        (bool, {"value": pa.bool_()}),
        (bytes, {"value": pa.binary()}),
        (dt.datetime, {"value": UTC}),
        (Decimal, {"value": pa.decimal128(38, 18)}),
        (str | None, {"value": pa.string()}),
        (list[int], {"value": pa.list_(pa.int64())}),
        (tuple[str, int], {"_1": pa.string(), "_2": pa.int64()}),
        (Pair, {"word": pa.string(), "count": pa.int64()}),
        (TypeAliasType("Clicks", Pair | None), {"word": pa.string(), "count": pa.int64()}),
        (list[TypeAliasType("Count", int)], {"value": pa.list_(pa.int64())}),
        (Half, {"word": pa.string(), "share": pa.float64()}),
        (
            Click,
            {"user": pa.string(), "at": UTC, "price": pa.decimal128(38, 18), "tags": pa.list_(pa.string())},
        ),
    ],
)
def test_columns_are_told_by_the_type_of_records(kind: Any, columns: Mapping[str, Any]) -> None:
    assert arrow_schema_of(kind, None, "source x") == pa.schema(list(columns.items()))
    assert arrow_schema_of(kind, "when", "source x") == pa.schema([*columns.items(), ("when", UTC)])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (None, "does not say what its records are"),
        (dict, "says that its records are dict"),
        (dict[str, int], "says that its records are dict"),
        (Any, "says that its records are Any"),
    ],
)
def test_types_that_do_not_tell_columns_need_a_schema(kind: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"source x {said}.*say them with .schema"):
        arrow_schema_of(kind, None, "source x")


def test_a_type_that_holds_itself_is_refused_with_the_field() -> None:
    with pytest.raises(ConfigurationError, match=r"Reply\.replies holds values of its own type, to any depth"):
        arrow_schema_of(list[Reply], None, "source x")


def test_the_column_for_event_times_has_a_name_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="option timestamp='Word': source x has a column of that name"):
        arrow_schema_of(Pair, "Word", "source x")


def table(kind: Any, records: Any, schema: Any = None, timestamp: str | None = None) -> Any:
    schema = schema or arrow_schema_of(kind, timestamp, "source x")
    made = Tables(schema, kind, timestamp, "source x").of(records)
    assert made.schema == schema
    return made.to_pylist()


def test_records_become_rows() -> None:
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert table(str, ["a", "b"]) == [{"value": "a"}, {"value": "b"}]
    assert table(str | None, ["a", None]) == [{"value": "a"}, {"value": None}]
    assert table(Pair, [Pair("a", 1)]) == [{"word": "a", "count": 1}]
    assert table(tuple[str, int], [("a", 1)]) == [{"_1": "a", "_2": 1}]
    assert table(Click, [Click("u", at, None, ["x"])]) == [{"user": "u", "at": at, "price": None, "tags": ["x"]}]


def test_event_times_have_a_column() -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=dt.UTC)
    stamp = int(at.timestamp() * 1000)
    schema = pa.schema([("when", UTC), ("value", pa.int64())])
    assert table(int, Batch([7], [stamp]), schema, "when") == [{"when": at, "value": 7}]
    assert table(int, Batch([7]), timestamp="when") == [{"value": 7, "when": None}]


def test_records_without_a_type_go_by_the_schema_that_is_given() -> None:
    words = pa.schema([("word", pa.string()), ("count", pa.int32())])
    assert table(None, [{"word": "a", "count": 1}, {"word": "b"}], words) == [
        {"word": "a", "count": 1},
        {"word": "b", "count": None},
    ]
    assert table(None, ["a"], pa.schema([("word", pa.string())])) == [{"word": "a"}]
    assert table(None, [{"word": "a"}], pa.schema([("word", pa.string())])) == [{"word": "a"}]


@pytest.mark.parametrize(
    ("kind", "records"),
    [
        (Mapping[str, str], [{"user": "ann"}, {"user": "bob"}]),
        (Came | Went, [Came("ann"), Went("bob")]),
        (Came | Went | None, [Went("ann"), Came("bob")]),
    ],
    ids=["mapping", "two types", "two types or none"],
)
def test_a_record_with_one_column_is_a_row_if_its_type_is_one(kind: Any, records: Any) -> None:
    schema = pa.schema([("user", pa.string())])
    assert table(kind, records, schema) == [{"user": "ann"}, {"user": "bob"}]


def test_a_record_that_does_not_fit_is_shown() -> None:
    with pytest.raises(ConnectorError, match="source x: column 'value' is int64, which 'b' is not"):
        table(int, [1, "b"])
    with pytest.raises(ConnectorError, match="source x: column 'count' is int64, which 'many' is not, of Pair"):
        table(Pair, [Pair("a", 1), Pair("a", "many")])  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [1.5, Decimal("1.5")], ids=repr)
def test_no_fraction_is_cut_off(fraction: Any) -> None:
    with pytest.raises(ConnectorError, match=re.escape(f"column 'value' is int64, which {fraction!r} is not")):
        table(int, [1, fraction, None])
    with pytest.raises(ConnectorError, match=re.escape(f"which {fraction!r} is not, of Pair(")):
        table(Pair, [Pair("a", 1), Pair("a", fraction)])
    with pytest.raises(ConnectorError, match=re.escape(f"which [1, {fraction!r}] is not")):
        table(list[int], [[1], [1, fraction]])
    assert table(int, [1, 2.0, Decimal(3), None]) == [{"value": n} for n in (1, 2, 3, None)]


def test_no_time_of_the_day_is_cut_off() -> None:
    midnight, noon = (dt.datetime(2025, 1, 1, hour) for hour in (0, 12))
    with pytest.raises(ConnectorError, match=r"column 'value' is date32\[day\], which .*12, 0\) is not"):
        table(dt.date, [midnight.date(), noon])
    assert table(dt.date, [midnight, None]) == [{"value": midnight.date()}, {"value": None}]


def test_a_record_without_a_value_for_what_is_not_null_is_shown() -> None:
    value = pa.schema([pa.field("value", pa.int64(), nullable=False)])
    with pytest.raises(ConnectorError, match="source x: column 'value' is NOT NULL, and has no value in None"):
        table(int, [1, None], value)
    parts = pa.schema([("n", pa.int64()), ("parts", pa.list_(pa.field("element", pa.int64(), nullable=False)))])
    with pytest.raises(ConnectorError, match=r"column 'parts\[\]' is NOT NULL, and has no value in .*None\]}"):
        table(None, [{"n": None, "parts": None}, {"n": 1, "parts": [2, None]}], parts)
    timed = value.append(pa.field("when", UTC, nullable=False))
    with pytest.raises(ConnectorError, match="column 'when' is NOT NULL, and has no value in 7"):
        table(int, Batch([7]), timed, "when")
    with pytest.raises(ConnectorError, match=r"column 'parts\[\]' is NOT NULL"):
        table(None, Batch.of_columns(pa.record_batch({"n": [1], "parts": [[None]]})), parts)


@pytest.mark.parametrize("stamps", [list, lambda stamps: array("q", stamps)], ids=["list", "array"])
def test_an_event_time_that_is_no_timestamp_of_sparks_is_null(stamps: Any) -> None:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    times = [MIN_WATERMARK, first - 1, first, last, last + 1, MAX_WATERMARK]
    rows = table(int, Batch(list(range(6)), stamps(times)), timestamp="when")
    year_1, year_9999 = dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999000, dt.UTC)
    assert [row["when"] for row in rows] == [None, None, year_1, year_9999, None, None]


def test_a_column_may_differ_from_that_of_event_times_in_case_alone() -> None:
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    records = Batch([{"at": None}], [int(at.timestamp() * 1000)])
    assert table(dict, records, pa.schema([("at", UTC), ("AT", UTC)]), "AT") == [{"at": None, "AT": at}]
    with pytest.raises(ConnectorError, match="'at', the columns are AT"):
        table(dict, records, pa.schema([("at", UTC), ("AT", UTC)]), "at")


def test_a_record_with_a_field_of_the_name_of_the_event_time_is_refused() -> None:
    schema = pa.schema([("word", pa.string()), ("at", UTC)])
    with pytest.raises(ConnectorError, match=r"beside 'at' for event times: \{.*\} has 'at', the columns are wor"):
        table(dict, Batch([{"word": "a", "at": None}]), schema, "at")


@pytest.mark.parametrize(
    ("timestamp", "fields", "message"),
    [
        ("when", {"value": pa.int64()}, "option timestamp='when' is none of the columns value"),
        ("value", {"value": pa.int64(), "b": UTC}, "option timestamp='value': the column is int64, not timestamp"),
        ("value", {"value": UTC}, "there is no column for the records"),
    ],
)
def test_a_schema_that_does_not_go_with_the_options(timestamp: str, fields: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Tables(pa.schema(list(fields.items())), int, timestamp, "source x")


# -- options ------------------------------------------------------------------------------------------------


def endless() -> GeneratorSource[int]:
    return GeneratorSource()


def numbers(count: int = 10) -> CollectionSource[int]:
    return CollectionSource(range(count))


HERE = "sluiceway_files:FilesSource"


def told(**options: str) -> SourceTold:
    return SourceTold.of({name.replace("__", "."): value for name, value in options.items()}, 4)


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this module found by a name, as Spark's Python processes would."""
    import sys

    monkeypatch.setitem(sys.modules, "sources_of_a_test", sys.modules[__name__])


def hybrid() -> HybridSource[int]:
    return HybridSource(CollectionSource([1]), CollectionSource([2]))


def test_a_function_makes_the_source() -> None:
    made = told(source="sources_of_a_test:numbers", source__count="7", maxRecords="5", maxWait="0.25")
    assert repr(made.source) == "CollectionSource(7 elements)"
    assert made.readers == 4
    assert (made.limits.records, made.limits.wait_s) == (5, 0.25)


def test_a_connector_is_known_by_its_name(tmp_path: Path) -> None:
    made = told(source="files", source__paths=str(tmp_path), source__format="text", parallelism="3")
    assert isinstance(made.source, FilesSource)
    assert made.readers == 3


def test_there_are_no_more_readers_than_the_source_has() -> None:
    made = told(source="socket", source__host="127.0.0.1", source__port="9")
    assert made.readers == 1
    with pytest.raises(ConfigurationError, match=r"option parallelism=2: source \w+ has at most 1 readers"):
        told(source="socket", source__host="127.0.0.1", source__port="9", parallelism="2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option source says what to read"),
        ({"source": "nothing_of_the_kind:x"}, "nothing_of_the_kind"),
        ({"source": "sources_of_a_test:nobody"}, "has no 'nobody'"),
        ({"source": "sources_of_a_test:HERE"}, "no function that makes one"),
        (
            {"source": "sources_of_a_test:hybrid"},
            "HybridSource .* send each other events, which Spark's data sources",
        ),
        ({"source": "sources_of_a_test:told"}, "option source says what to read"),
        ({"source": "sources_of_a_test:numbers", "source__size": "7"}, "size"),
        (
            {"source": "sources_of_a_test:numbers", "postions": "x"},
            "no option 'postions' .* did you mean positions?",
        ),
        ({"source": "sources_of_a_test:numbers", "path": "x"}, r"call load\(\) without a path, and give 'x' to"),
        ({"source": "sources_of_a_test:numbers", "parallelism": "0"}, "option parallelism='0' must be a whole"),
        (
            {"source": "sources_of_a_test:numbers", "maxRecords": "many"},
            "option maxRecords='many' must be a whole",
        ),
        ({"source": "sources_of_a_test:numbers", "maxTime": "-1"}, "option maxTime='-1' must be a number of sec"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        told(**options)


def test_what_does_not_end_is_a_stream() -> None:
    options = {"source": "sources_of_a_test:endless"}
    with pytest.raises(ConfigurationError, match=r"does not end: read it with spark\.readStream"):
        told(**options).check_batch(options)
    options = {"source": "sources_of_a_test:numbers", "maxTime": "3"}
    with pytest.raises(ConfigurationError, match=r"option maxTime is for spark\.readStream"):
        told(**options).check_batch(options)


def test_a_stream_has_a_place_for_its_positions(tmp_path: Path) -> None:
    made = told(source="sources_of_a_test:numbers", positions=str(tmp_path / "p"))
    assert made.place() == str(tmp_path / "p")
    assert told(source="sources_of_a_test:numbers", positions="s3://b/p").place() == "s3://b/p"
    with pytest.raises(ConfigurationError, match="option positions is missing: a directory or URL"):
        told(source="sources_of_a_test:numbers").place()


def test_a_null_struct_whose_fields_take_no_null_fits_in_columns() -> None:
    kind = pa.struct([pa.field("n", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("s", kind), pa.field("t", pa.timestamp("us", "UTC"))])
    rows = [{"s": {"n": 1}, "t": None}, {"s": None, "t": None}]
    numbers = pa.array([1, None], pa.int64())  # as Spark has it: null where the struct is
    structs = pa.StructArray.from_arrays([numbers], fields=list(kind), mask=pa.array([False, True]))
    batch = pa.record_batch({"s": structs, "t": pa.nulls(2, pa.timestamp("us", "Asia/Tokyo"))})
    assert table(None, Batch.of_columns(batch), schema) == rows
    assert table(None, [batch], schema) == rows
    lacking = pa.RecordBatch.from_pylist([{"s": {"n": None}, "t": None}])
    with pytest.raises(ConnectorError, match=r"source x: column 's\.n' is NOT NULL"):
        table(None, [lacking], schema)
