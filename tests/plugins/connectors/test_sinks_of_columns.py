"""Sinks that know their columns: refused where a stream in columns is given, before anything runs."""

from __future__ import annotations

from copy import copy
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluiceway import Pipeline
from sluiceway.connector import Sink
from sluiceway.connector.lib import CollectSink
from sluiceway.errors import ConnectorError, GraphError
from sluiceway.testing import BreakingSink
from sluiceway_files import FilesSink
from sluiceway_kafka import KafkaSink
from sluiceway_sql import SqlSink

ROWS = pa.table({"user": ["ann"], "price": [1.5], "tags": [["a"]]})


def _kafka(**options: Any) -> KafkaSink:
    return KafkaSink("127.0.0.1:1", "orders", **{"serializer": "json", **options})


def _files(**options: Any) -> FilesSink:
    return FilesSink.parquet("out", **options)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (_kafka(key="usr"), "key='usr': there is no column 'usr'; did you mean 'user'"),
        (_kafka(key="price"), "key='price' is a column of double, and a key is text or bytes"),
        (_kafka(serializer="text"), "serializer='text' takes no rows: use serializer='json'"),
        (
            SqlSink("x.db", "orders", ["user", "prise"]),
            "columns=: there is no column 'prise'; did you mean 'price'",
        ),
        (_files(partition_by="usr"), "partition_by='usr': there is no column 'usr'; did you mean 'user'"),
        (_files(partition_by="price"), "partition_by='price' has double; partitions are named after text"),
        (_files(partition_by=["user", "price", "tags"]), "leaves no column to write"),
        (_files(schema=pa.schema([("n", pa.int64())])), "schema=: there is no column 'n'; the columns are user"),
        (
            _files(schema=pa.schema([("tags", pa.int64())])),
            r"schema= has 'tags' with int64, and the column has list<\w+: string>: cast it before",
        ),
        (FilesSink.csv("out"), r"column 'tags' has list<\w+: string>, for which CSV has no text: drop\(\) it"),
        (FilesSink.csv("out", columns=["user", "cost"]), "columns=: there is no column 'cost'"),
        (FilesSink.csv("out", columns=["user", "price"]), "columns= has no 'tags', which the rows have"),
    ],
)
def test_rows_that_a_sink_cannot_write_are_refused_before_the_run(sink: Any, message: str) -> None:
    flow = Pipeline()
    with pytest.raises(GraphError, match=rf"sink\(\) at \S*test_sinks_of_columns.py:\d+: \w+Sink\(.*{message}"):
        flow.table(ROWS).sink(sink)
    assert not flow._transformations[1:]


NOON = datetime(2024, 1, 1, 12)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([5]), pa.bool_()),
        (pa.array([5]), pa.string()),
        (pa.array([NOON]), pa.date32()),
        (pa.array([NOON]), pa.int64()),
        (pa.array([1.239]), pa.decimal128(5, 2)),
        (pa.array([[5]]), pa.list_(pa.bool_())),
    ],
)
def test_a_column_that_would_have_other_values_is_refused_as_records_are(
    tmp_path: Path, column: pa.Array, kind: pa.DataType
) -> None:
    sink = FilesSink.parquet(tmp_path / "out", schema=pa.schema([("a", kind)]))
    with pytest.raises(GraphError) as caught:
        Pipeline().table(pa.table({"a": column})).sink(sink)
    assert str(caught.value).endswith(
        f"schema= has 'a' with {kind}, and the column has {column.type}: cast it before"
    )
    flow = Pipeline()
    flow.from_collection([{"a": column[0].as_py()}]).sink(sink)
    with pytest.raises(ConnectorError):
        flow.run(restart="none")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([[0.1]]), pa.list_(pa.float32())),
        (pa.array([NOON]), pa.timestamp("us", "UTC")),
        (pa.array([5]), pa.int8()),
        (pa.array([5]), pa.float64()),
        (pa.array([[("k", 5)]], pa.map_("string", "int64")), pa.map_("string", "int8")),
    ],
)
def test_a_column_is_converted_as_records_are(tmp_path: Path, column: pa.Array, kind: pa.DataType) -> None:
    flow = Pipeline()
    schema = pa.schema([("a", kind)])
    flow.table(pa.table({"a": column})).sink(FilesSink.parquet(tmp_path / "columns", schema=schema))
    flow.from_collection([{"a": column[0].as_py()}]).sink(FilesSink.parquet(tmp_path / "records", schema=schema))
    flow.run()
    columns, records = (pq.read_table(tmp_path / name) for name in ("columns", "records"))
    assert columns.equals(records)
    assert columns.schema.field("a").type == kind


def test_rows_that_fit_are_written(tmp_path: Path) -> None:
    flow = Pipeline()
    wider = pa.schema([("user", pa.large_string()), ("price", pa.float32())])
    flow.table(ROWS).drop("tags").sink(FilesSink.parquet(tmp_path / "files", schema=wider))
    flow.table(ROWS).drop("tags").sink(FilesSink.parquet(tmp_path / "parts", partition_by="user"))
    flow.table(ROWS).sink(SqlSink(str(tmp_path / "x.db"), "orders", ["price", "user"]))
    flow.run()
    assert len(list((tmp_path / "files").iterdir())) == 1
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["user=ann"]
    assert _kafka(key="user").problems_of_columns(ROWS.schema) == []
    assert _kafka(key="price", key_serializer="json").problems_of_columns(ROWS.schema) == []


def test_a_sink_is_given_the_columns_before_anything_runs() -> None:
    class Told(CollectSink[Any]):
        schema: Any = None

        def for_columns(self, schema: Any) -> Sink[Any]:
            if "x" not in schema.names:
                raise ConnectorError("the table has no such columns")
            told = copy(self)
            told.schema = schema
            return told

    rows = pa.table({"x": [1]})
    sink = Told()
    step = Pipeline("told").table(rows).sink(sink)
    assert sink.schema is None
    assert step is not None
    with pytest.raises(ConnectorError, match="no such columns"):
        Pipeline("told").table(rows.rename_columns(["y"])).sink(sink)
    breaking = BreakingSink(sink, "marks").for_columns(rows.schema)
    assert isinstance(breaking, BreakingSink)
    assert breaking.sink.schema == rows.schema
    assert sink.schema is None
