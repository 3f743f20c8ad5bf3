"""What the options of the format ``sluiceway`` name, and what rows become. Without Spark."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import pytest

from sluiceway.connector import Sink, Source
from sluiceway.connector.lib import DiscardSink
from sluiceway.errors import ConfigurationError, ConnectorError, UnknownNameError
from sluiceway_files import FilesSink

pa = pytest.importorskip("pyarrow")

from sluiceway_spark.datasource.named_objects import find_object, made_by  # noqa: E402
from sluiceway_spark.datasource.rows_to_records import Rows  # noqa: E402

HERE = __name__


@dataclass
class Word:
    id: int
    word: str


sink = DiscardSink()
number = 7


def make_sink(columns: list[str], limit: int = 0, label: str = "") -> Sink[Any]:
    made = DiscardSink()
    made.told = (columns, limit, label)  # type: ignore[attr-defined]
    return made


def make_nothing() -> None:
    return None


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "shop", sys.modules[HERE])


def table(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def records(rows: Rows, *batches: Any) -> list[tuple[Any, Any]]:
    return [(batch.values, batch.timestamps) for batch in rows.batches(batches)]


WORDS = {"id": [1, 2], "word": ["a", "b"]}


# ---- sinks --------------------------------------------------------------------------------------------------


def test_a_sink_is_an_object_a_function_or_a_connector() -> None:
    assert made_by("sink", "shop:sink", Sink, {}) is sink  # type: ignore[type-abstract]
    arguments = {"columns": '["a", "b"]', "limit": "5", "label": "five"}
    made: Any = made_by("sink", "shop:make_sink", Sink, arguments)  # type: ignore[type-abstract]
    assert made.told == (["a", "b"], 5, "five")
    text: Any = made_by("sink", "sluiceway_files:FilesSink.text", Sink, {"directory": "out"})  # type: ignore[type-abstract]
    named: Any = made_by("sink", "files", Sink, {"directory": "out", "format": "csv"})  # type: ignore[type-abstract]
    assert isinstance(text, FilesSink)
    assert isinstance(named, FilesSink)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "nowhere:sink",
            {},
            r"option sink='nowhere:sink': there is no module 'nowhere' where Spark's Python runs",
        ),
        ("shop:nothing", {}, "module 'shop' has no 'nothing'"),
        ("shop:", {}, "must be like 'package.module:name'"),
        ("shop:number", {}, "is 7: no Sink, and no function"),
        ("shop:make_nothing", {}, "made None, which is no Sink"),
        ("shop:sink", {"a": "1"}, r"is a Sink already: sink\.a is for a function"),
        ("shop:make_sink", {"colums": "1"}, "unexpected keyword argument 'colums'"),
        ("collection", {}, "collection"),
    ],
)
def test_what_is_no_sink_is_named(name: str, arguments: dict[str, str], message: str) -> None:
    with pytest.raises((ConfigurationError, UnknownNameError), match=message):
        made_by("sink", name, Sink, arguments)  # type: ignore[type-abstract]


def test_a_connector_without_a_source_says_so() -> None:
    with pytest.raises(ConfigurationError, match="connector 'sql' has no source"):
        made_by("source", "sql", Source, {})  # type: ignore[type-abstract]


def test_names_with_dots_lead_into_objects() -> None:
    assert find_object("records", "shop:Word.__name__") == "Word"


# ---- rows ---------------------------------------------------------------------------------------------------


def test_rows_are_dicts_unless_there_is_only_a_value() -> None:
    rows = Rows.of(None, None, ["id", "word"])
    assert records(rows, table(**WORDS)) == [([{"id": 1, "word": "a"}, {"id": 2, "word": "b"}], None)]
    assert records(Rows.of(None, None, ["value"]), table(value=[3, None])) == [([3, None], None)]
    assert records(Rows.of("dict", None, ["value"]), table(value=[3])) == [([{"value": 3}], None)]
    assert records(Rows.of("value", None, ["id"]), table(id=[3])) == [([3], None)]


def test_the_only_value_is_what_it_is_in_a_tuple() -> None:
    pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
    marked = pa.field("metadata", pa.binary(), metadata={"variant": "true"})
    variants = pa.array(
        [{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}], pa.struct([pa.field("value", pa.binary()), marked])
    )
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    for column, expected in ((maps, [{"a": 1}, None]), (variants, [1])):
        batch = pa.RecordBatch.from_arrays([column], ["value"])
        assert records(Rows.of("value", None, ["value"]), batch) == [(expected, None)]
        assert records(Rows.of("tuple", None, ["value"]), batch) == [([(value,) for value in expected], None)]


def test_rows_are_what_was_asked_for() -> None:
    columns = ["id", "word"]
    assert records(Rows.of("tuple", None, columns), table(**WORDS)) == [([(1, "a"), (2, "b")], None)]
    assert records(Rows.of("shop:Word", None, columns), table(**WORDS)) == [([Word(1, "a"), Word(2, "b")], None)]
    batch = table(**WORDS)
    assert records(Rows.of("arrow", None, columns), batch) == [([batch], None)]


def test_batches_without_rows_are_passed_over() -> None:
    rows = Rows.of(None, None, ["id", "word"])
    assert records(rows, table(id=[], word=[]), table(**WORDS), table(id=[], word=[]))[0][0][0]["id"] == 1
    assert records(rows) == []


def test_event_times_are_in_a_column() -> None:
    times = pa.array([dt.datetime(1970, 1, 1, 0, 0, 1, 2500), dt.datetime(1970, 1, 1)], pa.timestamp("us"))
    rows = Rows.of(None, "at", ["value", "at"])
    found = records(rows, pa.RecordBatch.from_arrays([pa.array([1, 2]), times], ["value", "at"]))
    assert [list(record) for record in found[0][0]] == [["value", "at"]] * 2
    assert found[0][1] == [1002, 0]
    early = pa.array([-1, -999, -1000, -1001, 0, 999, -62_135_596_799_999_999], pa.timestamp("us", tz="UTC"))
    [(_, stamps)] = records(Rows(dict, "at"), table(at=early))
    assert stamps == [-1, -1, -1, -2, 0, 0, -62_135_596_800_000]
    zoned = pa.array([dt.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("us", tz="Europe/Berlin"))
    rows = Rows.of("value", "at", ["value", "at"])
    assert records(rows, pa.RecordBatch.from_arrays([pa.array([1]), zoned], ["value", "at"])) == [([1], [1000])]
    assert records(Rows.of("tuple", "id", ["id", "word"]), table(**WORDS))[0][1] == [1, 2]


@pytest.mark.parametrize(
    ("told", "timestamp", "columns", "message"),
    [
        ("list", None, ["a"], "option records='list' must be dict, tuple, value, arrow, or a type like"),
        ("shop:number", None, ["a"], "records=7 must be dict"),
        ("value", None, ["a", "b"], "takes one column, and this has a, b"),
        (None, "at", ["a", "b"], "option timestamp='at' is none of the columns a, b"),
    ],
)
def test_what_rows_cannot_become_is_told_at_once(
    told: str | None, timestamp: str | None, columns: list[str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Rows.of(told, timestamp, columns)


def test_rows_without_an_event_time_fail() -> None:
    rows = Rows.of(None, "at", ["at"])
    with pytest.raises(ConnectorError, match="column 'at' is null"):
        records(rows, table(at=[1, None]))
    with pytest.raises(ConnectorError, match="column 'at' is no event time: it is string"):
        records(rows, table(at=["now"]))
    with pytest.raises(ConnectorError, match="the DataFrame has no column 'word' for Word"):
        records(Rows.of("shop:Word", None, ["id"]), table(id=[1]))
