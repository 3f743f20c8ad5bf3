"""Streams in columns: equal to the same program on records, at any batch size and parallelism."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import narwhals as nw
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.compute
import pytest

from sluiceway import OutputTag, Pipeline, WatermarkStrategy
from sluiceway.config.settings import Settings
from sluiceway.connector.lib import CollectionSource
from sluiceway.elements import Columns
from sluiceway.errors import FunctionContractError, GraphError
from sluiceway.table import TableStream, agg, col, lit, when
from sluiceway.util.flink_names import ELSEWHERE
from sluiceway.windows import TumblingEventTimeWindows


@dataclass
class Order:
    user: str
    price: float
    count: int
    note: str | None = None


_ORDERS = [Order(f"u{n % 7}", n / 4, n, None if n % 3 else f"n{n}") for n in range(500)]
_BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness("1s")


def _table() -> Any:
    return pa.Table.from_pylist([{**vars(o), "at": o.count * 10} for o in _ORDERS])


def _program(stream: TableStream) -> TableStream:
    return (
        stream.with_columns(total=col("price") * col("count"))
        .filter(col("total") > 100, col("count") % 2 == 0)
        .select("user", "total", size=when(col("total") > 5000).then(lit("big")).otherwise(lit("small")))
    )


_WANTED = [
    {"user": o.user, "total": o.price * o.count, "size": "big" if o.price * o.count > 5000 else "small"}
    for o in _ORDERS
    if o.price * o.count > 100 and o.count % 2 == 0
]


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"chaining": False}, {"parallelism": 3}])
def test_expressions_give_what_functions_of_records_give(options: dict[str, Any]) -> None:
    rows = _program(Pipeline().table(_table())).to_arrow(**options).to_pylist()
    order = {"key": lambda row: row["total"]}
    assert sorted(rows, **order) == sorted(_WANTED, **order)


def test_a_table_that_was_looked_at_goes_on_to_a_sink() -> None:
    flow = Pipeline()
    table = flow.table(pa.table({"k": [1, 2]}))
    assert table.to_arrow().num_rows == 2
    rows = table.filter(col("k") > 1).collect()
    flow.run()
    assert rows == [{"k": 2}]


def test_columns_travel_between_workers() -> None:
    rows = _program(Pipeline().table(_table()).rebalance()).rebalance().select("total").to_arrow(workers=2)
    assert sorted(rows["total"].to_pylist()) == sorted(row["total"] for row in _WANTED)


def test_records_become_columns_and_records_again() -> None:
    flow = Pipeline()
    orders = flow.from_collection(_ORDERS).to_columns()
    assert orders.schema.field("note").nullable
    assert not orders.schema.field("price").nullable
    seen = orders.to_records(Order).collect()
    flow.run(batch_size=7)
    assert seen == _ORDERS


def test_late_records_become_columns_of_their_type() -> None:
    late = OutputTag[Order]("late")
    flow = Pipeline()
    stamped = flow.from_collection(_ORDERS).assign_timestamps_and_watermarks(_BOUNDED)
    windows = stamped.key_by(lambda order: order.user).window(TumblingEventTimeWindows("1s"))
    kept = windows.side_output_late_data(late).reduce(lambda one, other: one)
    assert kept.get_side_output(late).to_columns().schema == flow.from_collection(_ORDERS).to_columns().schema


@dataclass
class Place:
    city: str
    code: int | None


@dataclass
class Person:
    name: str
    home: Place
    others: list[Place]


def test_records_in_records_become_structs_and_records_again() -> None:
    people = [
        Person("ann", Place("Bern", 3000), [Place("Rome", None)]),
        Person("bob", Place("Oslo", None), []),
    ]
    table = Pipeline().from_collection(people).to_columns()
    rows = table.to_arrow().to_pylist()
    home, others = {"city": "Bern", "code": 3000}, [{"city": "Rome", "code": None}]
    assert rows[0] == {"name": "ann", "home": home, "others": others}
    assert table.to_records(Person).take(2) == people
    assert table.unnest("home").select("city").to_arrow()["city"].to_pylist() == ["Bern", "Oslo"]


class Total(NamedTuple):
    user: str
    total: float


def test_a_function_gets_objects_of_the_class_that_it_is_annotated_with() -> None:
    def shown(total: Total) -> str:
        assert type(total) is Total
        return f"{total.user}:{total.total}"

    flow = Pipeline()
    texts = _program(flow.table(_table())).map(shown).collect()
    flow.run()
    assert texts == [f"{row['user']}:{row['total']}" for row in _WANTED]


def test_a_row_that_is_changed_is_no_other_consumers_row() -> None:
    def change(row: dict[str, Any]) -> None:
        row["user"] = "changed"

    flow = Pipeline()
    table = flow.table(_table()).select("user")
    table.to_records().map(change).print()
    other = table.collect()
    flow.run()
    assert {row["user"] for row in other} == {f"u{n}" for n in range(7)}


def test_event_time_from_a_column_drives_windows_of_records() -> None:
    results = []
    for in_columns in (True, False):
        flow = Pipeline()
        if in_columns:
            strategy = _BOUNDED.with_timestamp_column("at")
            stream: Any = flow.table(_table(), watermark_strategy=strategy).filter(col("count") > 10).to_records()
        else:
            strategy = _BOUNDED.with_timestamp_assigner(lambda row: row["at"])
            rows = flow.from_collection(_table().to_pylist(), watermark_strategy=strategy)
            stream = rows.filter(lambda row: row["count"] > 10)
        seen = stream.key_by(lambda row: row["user"]).window(TumblingEventTimeWindows.of("1s")).count().collect()
        flow.run()
        results.append(sorted(seen))
    assert results[0] == results[1] != []


def test_lists_and_structs_become_rows_and_columns() -> None:
    table = pa.table({"k": [1, 2, 3], "of": [[1, 2], [], None], "at": [{"x": 1, "y": 2}, None, {"x": 3, "y": 4}]})
    exploded = Pipeline().table(table).explode("of").select("k", "of").to_arrow().to_pylist()
    assert exploded == [{"k": 1, "of": 1}, {"k": 1, "of": 2}]
    nested = Pipeline().table(table).unnest("at").drop("of").rename({"k": "key"}).to_arrow().to_pylist()
    assert nested == [{"key": 1, "x": 1, "y": 2}, {"key": 2, "x": None, "y": None}, {"key": 3, "x": 3, "y": 4}]


def test_a_null_list_may_have_elements_and_a_table_may_be_a_slice() -> None:
    # As pyarrow.compute.if_else() and Polars make them.
    offsets, numbers = pa.array([0, 2, 4, 4, 5], pa.int32()), pa.array([1, 2, 3, 4, 5])
    lists = pa.ListArray.from_arrays(offsets, numbers, mask=pa.array([False, True, False, False]))
    table = pa.table({"k": ["a", "b", "c", "d"], "of": lists})
    wanted = [{"k": "a", "of": 1}, {"k": "a", "of": 2}, {"k": "d", "of": 5}]
    assert Pipeline().table(table).explode("of").to_arrow().to_pylist() == wanted
    assert Pipeline().table(table.slice(1)).explode("of").to_arrow(batch_size=1).to_pylist() == wanted[2:]


def test_a_function_of_batches_gets_the_frame_that_it_asks_for() -> None:

    def doubled(frame: pd.DataFrame) -> pd.DataFrame:
        assert isinstance(frame, pd.DataFrame)
        return frame.assign(twice=frame["count"] * 2)

    out = Pipeline().table(_table()).select("count").map_batches(doubled).to_arrow()
    assert out["twice"].to_pylist() == [o.count * 2 for o in _ORDERS]


_TEXT_OF_NONE = pa.array(pd.array([None], "Int64").astype(str)).to_pylist()[0]
"""Text that pandas makes of an integer that is missing; from version 3 on, it is missing as well."""

_NULLABLE = pa.table(
    {
        "whole": pa.array([1, None, 2**53 + 1, 7]),
        "small": pa.array([1, None, 255, 0], pa.uint8()),
        "flag": [True, None, False, None],
        "text": ["a", None, "", "b"],
        "day": pa.array([0, None, 1, 2], pa.date32()),
        "price": pa.array([Decimal("1.50"), None, Decimal("0.10"), None], pa.decimal128(9, 2)),
        "tags": pa.array([["x"], None, [], [None]], pa.list_(pa.string())),
        "kind": pa.array(["x", None, "y", "x"]).dictionary_encode(),
        "at": pa.array([1, None, 2, 3], pa.timestamp("us", "Europe/Berlin")),
        "number": [1.5, None, -0.0, 2.0],
    }
)


def test_types_of_a_pandas_frame_do_not_depend_on_the_rows_of_a_batch() -> None:
    def same(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    def seen(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"text": frame["whole"].astype(str).astype("string"), "not": ~frame["flag"]})

    # As a pandas frame with an index leaves it in the metadata.
    indexed = pa.Table.from_pandas(_NULLABLE.select(["text", "number"]).to_pandas().set_index("text"))
    for table, fn, wanted in (
        (_NULLABLE, same, _NULLABLE.to_pylist()),
        (indexed, same, indexed.to_pylist()),
        (
            _NULLABLE,
            seen,
            [
                {"text": "1", "not": False},
                {"text": _TEXT_OF_NONE, "not": None},
                {"text": str(2**53 + 1), "not": True},
                {"text": "7", "not": None},
            ],
        ),
    ):
        batches = [part for row in range(4) for part in table.slice(row, 1).to_batches()]
        for rows in (
            Pipeline().table(table),
            Pipeline().from_collection(batches).to_columns(table.schema),
        ):
            mapped = rows.map_batches(fn)
            if fn is same:
                assert mapped.schema.equals(rows.schema)
            assert mapped.to_arrow().to_pylist() == wanted


def test_a_function_of_batches_that_wants_a_frame_is_told_of_the_annotation() -> None:
    with pytest.raises(GraphError, match=r"no attribute 'n'.*RecordBatch: for a frame annotate its argument"):
        Pipeline().table(pa.table({"n": [1]})).map_batches(lambda rows: rows[rows.n > 1])


def test_a_batch_of_other_types_than_declared_is_no_other_values() -> None:
    numbers = pa.table({"n": [1, 5]})
    flags = Pipeline().table(numbers).map_batches(lambda data: data, pa.schema([("n", pa.bool_())]))
    with pytest.raises(FunctionContractError, match="column 'n' is int64, whose cast to bool could change values"):
        flags.to_arrow()
    wider = Pipeline().table(numbers).map_batches(lambda data: data, pa.schema([("n", pa.float64())]))
    assert wider.to_arrow().to_pylist() == [{"n": 1.0}, {"n": 5.0}]


def test_a_column_without_a_type_in_no_rows_is_refused() -> None:
    def shouted(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"loud": [text.upper() for text in frame["user"]]}, dtype=object)

    rows = Pipeline().table(_table())
    with pytest.raises(GraphError, match=r"'loud' with the type null for no rows.*map_batches\(fn, pyarrow"):
        rows.map_batches(shouted)
    given = rows.map_batches(shouted, pa.schema([("loud", pa.string())]))
    assert given.to_arrow()["loud"].to_pylist() == [o.user.upper() for o in _ORDERS]
    nothing = Pipeline().table(pa.table({"n": pa.nulls(2)})).map_batches(lambda data: data)
    assert nothing.to_arrow().to_pylist() == [{"n": None}] * 2


def test_texts_as_views_become_plain_ones() -> None:
    # Frames of Polars have views, for which Arrow lacks kernels.
    def as_views(table: pa.Table) -> pa.Table:
        codes, texts = (
            pa.array([n % 2 for n in range(len(table))], pa.uint32()),
            pa.array(["x", "y"], pa.string_view()),
        )
        user = table["user"].cast(pa.string_view())
        return pa.table({"user": user, "code": pa.DictionaryArray.from_arrays(codes, texts)})

    def as_batch(table: pa.Table) -> pa.RecordBatch:
        views = as_views(table)
        return pa.RecordBatch.from_arrays([c.combine_chunks() for c in views.columns], views.schema.names)

    wanted = sorted(o.user for o in _ORDERS if int(o.user[1:]) < 3)
    flow = Pipeline()
    for views in (
        flow.table(_table()).map_batches(as_views),
        flow.table(_table().slice(0, 0)).map_batches(as_batch).union(flow.table(as_batch(_table()))),
        flow.table(as_views(_table())),
    ):
        assert views.schema.types == [pa.string(), pa.dictionary(pa.uint32(), pa.string())]
        found = (
            views.filter(col("user") < "u3").key_by("user", "code").running(n=agg.count()).to_arrow(parallelism=2)
        )
        assert sorted(found["user"].to_pylist()) == wanted


_VIEWS = pa.schema(
    [
        ("text", pa.string_view()),
        ("raw", pa.binary_view()),
        ("texts", pa.list_(pa.string_view())),
        ("pair", pa.list_(pa.string_view(), 2)),
        ("by", pa.map_(pa.string(), pa.string_view())),
    ]
)
_SEEN = {"text": "x", "raw": b"y", "texts": ["z"], "pair": ["a", "b"], "by": [("k", "v")]}


class _OfViews(CollectionSource[Any]):
    """Source that declares views, as one of a plugin may, and has them."""

    def in_columns(self) -> Any:
        return self, _VIEWS


@pytest.mark.parametrize("parallelism", [1, 2])
def test_views_that_sources_and_schemas_declare_become_plain_types(parallelism: int) -> None:
    rows = pa.RecordBatch.from_pylist([_SEEN] * 3, _VIEWS)
    flow = Pipeline()
    for stream in (
        flow.table(_OfViews(Columns(rows))),
        flow.from_collection([_SEEN] * 3).to_columns(_VIEWS),
        flow.from_collection([rows]).to_columns(_VIEWS),
        flow.table(pa.table({"n": [1]})).map_batches(lambda data: rows.slice(0, 3 * len(data)), _VIEWS),
    ):
        assert not any("view" in str(kind) for kind in stream.schema.types)
        keyed = stream.filter(col("text") == "x").key_by("text", "raw").running(n=agg.count())
        found = keyed.to_arrow(parallelism=parallelism).to_pylist()
        assert found == [_SEEN | {"n": n} for n in (1, 2, 3)]


class Reading(NamedTuple):
    room: str
    degrees: float


class Rooms(TypedDict):
    reading: Reading
    floor: int


class Known(NamedTuple):
    """Row with a map in a list, and a time of nanoseconds."""

    at: dt.datetime
    maps: list[dict[str, Reading]]
    plain: dict  # type: ignore[type-arg]


_FINE = pa.table(
    {
        "at": pa.array([1_000, None], pa.timestamp("ns", "UTC")),
        "maps": pa.array(
            [[[("a", {"room": "x", "degrees": 1.5})], None], None],
            pa.list_(pa.map_(pa.string(), pa.struct([("room", pa.string()), ("degrees", pa.float64())]))),
        ),
        "plain": pa.array([[("k", 2_000)], []], pa.map_(pa.string(), pa.duration("ns"))),
    }
)


def test_functions_take_typed_dicts() -> None:
    rows = pa.table({"floor": [1], "reading": [{"room": "x", "degrees": 1.5}], "more": [None]})

    def upstairs(rooms: Rooms) -> Rooms:
        assert rooms == {"reading": Reading("x", 1.5), "floor": 1}
        return {"reading": rooms["reading"], "floor": rooms["floor"] + 1}

    found = Pipeline().table(rows).map(upstairs).to_columns(Rooms).to_arrow().to_pylist()
    assert found == [{"reading": {"room": "x", "degrees": 1.5}, "floor": 2}]


def test_records_have_dicts_for_maps_and_times_of_python() -> None:
    at = dt.datetime(1970, 1, 1, microsecond=1, tzinfo=dt.UTC)
    plain = {"k": dt.timedelta(microseconds=2)}
    (first, second) = Pipeline().table(_FINE).to_records().execute_and_collect()
    assert first == {"at": at, "maps": [{"a": {"room": "x", "degrees": 1.5}}, None], "plain": plain}
    assert type(first["at"]) is dt.datetime
    assert second == {"at": None, "maps": None, "plain": {}}
    (known,) = Pipeline().table(_FINE.slice(0, 1)).to_records(Known).execute_and_collect()
    assert known == Known(at, [{"a": Reading("x", 1.5)}, None], plain)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([1], pa.time64("ns")), "column 'x' has time64[ns], finer than microseconds"),
        (pa.array([[1_001]], pa.list_(pa.timestamp("ns"))), "col('x').dt.truncate(\"1us\")"),
        (
            pa.array([[[("k", 1), ("k", 2)]]], pa.list_(pa.map_(pa.string(), pa.int8()))),
            "column 'x' has list<item: map<string, int8>>: a map has a key twice",
        ),
        (pa.array([10**15], pa.timestamp("s")), "a value that Python has none for, whose years are 1 to 9999"),
        (pa.array([b"\xff\xfe"]).view(pa.string()), "column 'x' has string, and a text that is not UTF-8: "),
    ],
)
def test_values_that_python_does_not_have_are_refused_with_their_column(column: Any, says: str) -> None:
    with pytest.raises(FunctionContractError) as raised:
        list(Pipeline().table(pa.table({"x": column})).to_records().execute_and_collect())
    assert says in str(raised.value)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_run_end_encoded_columns_become_plain_ones(parallelism: int) -> None:
    encode: Any = pyarrow.compute.run_end_encode
    runs = pa.table({"k": encode(pa.array(["a", "a", None])), "n": encode(pa.chunked_array([[1, 1], [2]]))})
    (batch,) = runs.combine_chunks().to_batches()
    flow = Pipeline()
    for stream in (
        flow.table(runs),
        flow.table(batch),
        flow.from_collection([batch]).to_columns(runs.schema),
        flow.table(pa.table({"n": [1]})).map_batches(lambda data: runs.slice(0, 3 * len(data)), runs.schema),
    ):
        assert stream.schema.types == [pa.string(), pa.int64()]
        totals = stream.filter(col("n") > 0).key_by("k").aggregate(n=agg.sum("n"))
        found = sorted(totals.to_arrow(parallelism=parallelism).to_pylist(), key=lambda row: str(row["k"]))
        assert found == [{"k": None, "n": 2}, {"k": "a", "n": 2}]


def test_metadata_of_tables_from_outside_is_not_taken_for_the_engines_own() -> None:
    metadata = {"sluiceway.aggregates": "7", "of": "the user"}
    table = pa.table({"user": ["a", "b", "a"], "price": [1, 2, 3]}).replace_schema_metadata(metadata)
    batch = table.to_batches()[0]

    class Source(CollectionSource[Any]):
        def in_columns(self) -> Any:
            return self, table.schema

    flow = Pipeline()
    for rows in (
        flow.table(table),
        flow.table(Source(Columns(batch))),
        flow.from_collection([batch]).to_columns(table.schema),
        flow.table(pa.table({"n": [1]})).map_batches(lambda data: table.slice(0, 3 * len(data))),
    ):
        assert rows.to_arrow().to_pylist() == table.to_pylist()
        totals = rows.key_by("user").aggregate(total=agg.sum("price"))
        for options in ({}, {"parallelism": 2}):
            found = totals.to_arrow(**options).to_pylist()
            assert sorted(found, key=lambda row: row["user"]) == [
                {"user": "a", "total": 4},
                {"user": "b", "total": 2},
            ]


@pytest.mark.parametrize("first", [True, False])
def test_a_union_is_nullable_where_one_stream_is(first: bool) -> None:
    nullable = pa.schema([("a", pa.int64()), ("b", pa.int32())])
    never = pa.schema([pa.field("a", pa.int64(), nullable=False), *list(nullable)[1:]])
    flow = Pipeline()
    some = flow.table(pa.table({"a": [1, None], "b": [2, 3]}, schema=nullable))
    all_ = flow.table(pa.table({"a": [4], "b": [5]}, schema=never))
    one, other = (some, all_) if first else (all_, some)
    both = one.union(other)
    assert both.schema == nullable
    rows = both.to_arrow()
    assert rows.schema == nullable
    assert sorted(rows["b"].to_pylist()) == [2, 3, 5]
    assert all_.union(all_).schema == never
    queried = flow.sql("SELECT * FROM one UNION ALL SELECT * FROM other", one=one, other=other)
    assert queried.schema == nullable


def test_union_takes_streams_of_the_same_columns_alone() -> None:
    flow = Pipeline()
    one, other = flow.table(_table()).select("user"), flow.table(_table()).select("user")
    assert one.union(other).to_arrow().num_rows == 2 * len(_ORDERS)
    with pytest.raises(GraphError, match="count: int64"):
        one.union(flow.table(_table()).select("count"))


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"parallelism": 2}])
def test_a_lookup_adds_the_columns_of_a_table(options: dict[str, Any]) -> None:
    users = pd.DataFrame({"user": ["u1", "u3"], "country": ["CH", "FR"]})
    rows = Pipeline().table(_table()).select("user", "count")
    inner = rows.lookup(users, on="user").to_arrow(**options).to_pylist()
    countries = {"u1": "CH", "u3": "FR"}
    wanted = [{"user": o.user, "count": o.count, "country": countries.get(o.user)} for o in _ORDERS]
    order = {"key": lambda row: row["count"]}
    assert sorted(inner, **order) == [row for row in wanted if row["country"]]
    left = rows.lookup(users, on="user", how="left").to_arrow(**options).to_pylist()
    assert sorted(left, **order) == wanted
    with pytest.raises(GraphError, match="occurs twice"):
        rows.lookup(pd.concat([users, users]), on="user")


def test_a_lookup_compares_values() -> None:
    encoded = pa.table({"k": pa.array(["a", "b", None]).dictionary_encode()})
    others = pa.table({"k": pa.array(["b", "c"]).dictionary_encode(), "v": [1, 2]})
    assert Pipeline().table(encoded).lookup(others, on="k").to_arrow().to_pylist() == [{"k": "b", "v": 1}]
    zeros = pa.table({"k": [0.0, -0.0, 1.0]})
    found = Pipeline().table(zeros).lookup(pa.table({"k": [-0.0], "v": [1]}), on="k").to_arrow()
    assert found["v"].to_pylist() == [1, 1]
    with pytest.raises(GraphError, match="a value of column 'k' occurs twice"):
        Pipeline().table(zeros).lookup(pa.table({"k": [0.0, -0.0], "v": [1, 2]}), on="k")
    unknown = pa.table({"k": [None, None, 1.0, None], "v": [1, 2, 3, 4]})
    assert Pipeline().table(zeros).lookup(unknown, on="k").to_arrow().to_pylist() == [{"k": 1.0, "v": 3}]
    lists = pa.table({"k": [[1]]})
    with pytest.raises(GraphError, match=r"column 'k' has list<item: int64>, by which rows cannot be found"):
        Pipeline().table(lists).lookup(lists.append_column("v", pa.array([1])), on="k")


def _with_small_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    words = pa.array([f"w{n}" for n in batch.column("n").to_pylist()]).dictionary_encode()
    small = pa.DictionaryArray.from_arrays(words.indices.cast(pa.int8()), words.dictionary)
    return pa.RecordBatch.from_arrays([small], schema=_SMALL)


_SMALL = pa.schema([("word", pa.dictionary(pa.int8(), pa.string()))])


def test_batches_whose_dictionaries_do_not_fit_into_one_go_on_apart() -> None:
    numbers = Pipeline(parallelism=2).table(pa.table({"n": range(1000)}))
    words = numbers.map_batches(_with_small_dictionaries, _SMALL).rebalance()
    found = words.map_batches(lambda batch: batch, _SMALL).to_arrow(batch_size=2)
    assert sorted(found.column("word").to_pylist()) == sorted(f"w{n}" for n in range(1000))


def test_a_column_that_does_not_fit_into_one_batch_is_named() -> None:
    parts = [_with_small_dictionaries(pa.record_batch({"n": range(n, n + 100)})) for n in (0, 100)]
    said = (
        r"table\(\) at .*test_table_stream.py:\d+: column 'word' of type dictionary<.*> cannot have 200 rows in "
        r"one batch: .* requires a larger index type\. Cast the column to .* int32, or make smaller"
    )
    with pytest.raises(GraphError, match=said):
        Pipeline().table(pa.Table.from_batches(parts))


def test_more_text_than_fits_into_a_usual_array_enters_as_large_strings() -> None:
    text = pa.py_buffer(np.zeros(1 << 31, np.uint8))  # not a page of it is touched
    offsets = pa.py_buffer(np.array([0, 1, 1 << 31]))
    rows = pa.table({"n": [1, 2], "text": pa.Array.from_buffers(pa.large_string(), 2, [None, offsets, text])})
    assert Pipeline().table(rows).schema.field("text").type == pa.large_string()
    assert Pipeline().table(rows.slice(0, 1)).schema.field("text").type == pa.string()


def test_a_null_struct_may_have_a_field_that_is_not_nullable() -> None:
    """Tables of Spark's have such columns, in which the field is null, too."""
    field = pa.field("n", pa.int64(), nullable=False)
    mask = pa.array([False, True])
    structs = pa.StructArray.from_arrays([pa.array([1, None])], fields=[field], mask=mask)
    rows = pa.table({"text": pa.array(["a", "b"], pa.large_string()), "of": structs})
    found = Pipeline().table(rows).to_arrow()
    assert found.schema.field("of").type == structs.type
    assert found.to_pylist() == [{"text": "a", "of": {"n": 1}}, {"text": "b", "of": None}]


def test_a_table_with_two_columns_of_a_name_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(GraphError, match="columns must have different names; twice: 'a'"):
        Pipeline().table(table)
    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(GraphError, match="the frame has no columns of Arrow: Duplicate column names"):
        Pipeline().table(pd.concat([frame, frame], axis=1))


def test_a_frame_with_values_of_several_types_in_a_column_is_refused() -> None:
    flow = Pipeline()
    mixed = pd.DataFrame({"price": [1, "a"]})
    with pytest.raises(GraphError, match=r"^table\(\) at .*: the frame has no columns of Arrow: .*column price"):
        flow.table(mixed)
    with pytest.raises(GraphError, match=r"^sql\(\) at .*: the frame has no columns of Arrow: .*column price"):
        flow.sql("SELECT user FROM rows", rows=flow.table(_table()), prices=mixed)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda t: t.select("usr"), "no column 'usr'; did you mean 'user'"),
        (lambda t: t.filter(col("pric") > 1), "no column 'pric'; did you mean 'price'"),
        (lambda t: t.filter(col("price").sum() > 1), "sum.. combines many rows"),
        (lambda t: t.with_columns(x=col("price").shift(1)), "shift.. looks at other rows"),
        (lambda t: t.select(x=col("user").str.to_time()), "str.to_time.. without a format takes it from the rows"),
        (lambda t: t.filter(col("count") > when(col("user").str.to_date().is_null()).then(1)), "without a format"),
        (lambda t: t.with_columns(x=col("price").sum().over("user")), "sum.. combines many rows"),
        (lambda t: t.select(col("price") * col("user")), "double, string"),
        (lambda t: t.select(lit(1)), "only constants"),
        (lambda t: t.filter(col("count") == 2**64 - 1), r"too large .* lit\(\"18446744073709551615\"\)\.cast"),
        (lambda t: t.select("user", "user"), "unique column names, got: .user. 2 times;"),
        (lambda t: t.map_batches(lambda _: pa.table({"a": [1]})), "the function returned 1 rows for none"),
        (lambda t: t.map_batches(lambda rows: rows.to_pydict()), r"returned \{'user': .*\(dict\); it must return"),
        (lambda t: t.map_batches(lambda rows: rows, int), "schema=: int has no named and typed fields"),
        (lambda t: t.explode("user"), "string, and no lists"),
        (lambda t: t.to_records(Total), "field 'total'"),
        (lambda t: t.assign_timestamps_and_watermarks(_BOUNDED.with_timestamp_column("user")), "string"),
    ],
)
def test_mistakes_are_told_before_anything_runs(wrong: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says) as told:
        wrong(Pipeline().table(_table()))
    assert "test_table_stream.py:" in str(told.value)


def test_a_record_that_does_not_fit_is_named_with_its_column() -> None:
    flow = Pipeline()
    flow.from_collection([{"a": 1}, {"a": "x"}]).to_columns(pa.schema([("a", pa.int64())])).print()
    with pytest.raises(FunctionContractError, match=r"\{'a': 'x'\}.*column 'a' of type int64"):
        flow.run()


@pytest.mark.parametrize(
    ("failing", "step", "column"),
    [
        (lambda t: t.select("price", n=col("user").cast(nw.Int64())), "select", "n"),
        (lambda t: t.with_columns(col("count") + 1, col("user").cast(nw.Int64())), "with_columns", "user"),
        (lambda t: t.filter(col("price") > 1, col("user").cast(nw.Int64()) > 1), "filter", "user"),
    ],
)
def test_an_expression_that_fails_is_named_by_its_column(failing: Any, step: str, column: str) -> None:
    message = rf"{step}\(\) of step '{step}', column '{column}': Failed to parse string: 'u"
    with pytest.raises(FunctionContractError, match=message):
        failing(Pipeline().table(_table())).to_arrow()


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}])
def test_expressions_that_arrow_computes_of_rows_alone_are_taken(options: dict[str, Any]) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "at": [5, 6]})

    def rows() -> TableStream:
        return Pipeline().table(table, watermark_strategy=_BOUNDED.with_timestamp_column("at"))

    together = rows().select(r=nw.struct("a", "b"))
    assert together.schema.field("r").type == pa.struct([("a", pa.int64()), ("b", pa.string())])
    assert together.to_arrow(**options)["r"].to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert rows().with_columns(r=nw.struct("a")).to_arrow(**options)["r"].to_pylist() == [{"a": 1}, {"a": 2}]
    assert rows().select("b", r=lit([1, 2])).to_arrow(**options)["r"].to_pylist() == [[1, 2]] * 2
    chosen = rows().select(r=when(col("a") > 1).then(lit([1])))
    assert chosen.to_arrow(**options)["r"].to_pylist() == [None, [1]]
    assert rows().filter(lit(True)).to_arrow(**options) == table
    assert rows().filter(lit(False)).to_arrow(**options).num_rows == 0
    assert rows().filter(lit(True), col("a") > 1).to_arrow(**options)["a"].to_pylist() == [2]
    with pytest.raises(GraphError, match="only constants are selected"):
        rows().select(r=lit([1, 2]))


def test_a_row_without_an_event_time_is_an_error() -> None:
    table = pa.table({"at": [1, None]})
    flow = Pipeline()
    flow.table(table, watermark_strategy=_BOUNDED.with_timestamp_column("at")).print()
    with pytest.raises(FunctionContractError, match="column 'at' gives the event time and is null in 1 of 2"):
        flow.run()


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"batch_size": 2, "parallelism": 2}])
def test_record_batches_without_a_hint_become_their_rows(options: dict[str, Any]) -> None:
    schema = pa.schema([("a", pa.int64())])

    def made(number: int) -> Any:
        return {"a": number} if number % 3 == 0 else pa.record_batch([[number, number]], schema=schema)

    flow = Pipeline()
    rows = flow.generate(made, count=6, timestamp=lambda _: 5).to_columns(schema).to_arrow(**options)
    assert sorted(rows["a"].to_pylist()) == [0, 1, 1, 2, 2, 3, 4, 4, 5, 5]
    flow = Pipeline()
    other = flow.generate(made, count=6).to_columns(pa.schema([("a", pa.int32())]))
    with pytest.raises(FunctionContractError, match="expects record batches with the columns a: int32"):
        other.to_arrow(**options)


def test_a_source_of_records_says_how_it_becomes_columns() -> None:
    with pytest.raises(TypeError, match="to_columns"):
        Pipeline().table(CollectionSource([1, 2]))


def test_a_plan_has_the_columns_of_each_step() -> None:
    flow = Pipeline()
    _program(flow.table(_table())).print()
    assert "gives columns user: string, total: double, size: string" in str(flow.explain())


def test_rows_with_unions_are_refused_where_arrow_computes_nothing_with_them() -> None:
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])], ["i", "s"]
    )
    table = pa.table(
        {"k": ["a", "b"], "n": [1, 2], "u": union, "deep": pa.StructArray.from_arrays([union], ["in"])}
    )
    stream = Pipeline().table(table)
    why = r"\(\) at .*: column 'u' is sparse_union<i: int64=0, s: string=1>; .*drop\(\) it"
    refused: dict[str, Any] = {
        "select": lambda: stream.select("k"),
        "with_columns": lambda: stream.with_columns(m=col("n") + 1),
        "filter": lambda: stream.filter(col("n") > 1),
        "rename": lambda: stream.rename({"n": "m"}),
        "lookup": lambda: stream.lookup(pa.table({"k": ["a"], "x": [1]}), on="k"),
    }
    for method, call in refused.items():
        with pytest.raises(GraphError, match=method + why):
            call()
    with pytest.raises(GraphError, match=r"column 'deep' is struct<in: sparse_union<.*drop\(\) it"):
        stream.drop("u").filter(col("n") > 1)
    assert stream.drop("u", "deep").filter(col("n") > 1).to_arrow().to_pylist() == [{"k": "b", "n": 2}]
    assert Pipeline().table(table).drop("deep").to_arrow()["u"].to_pylist() == [1, "b"]


@pytest.mark.parametrize("join", ["interval", "asof"])
def test_joins_refuse_rows_with_unions(join: str) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])], ["i"])
    table = pa.table({"k": ["a"], "u": union, "at": pa.array([1], pa.timestamp("ms"))})
    flow = Pipeline()
    strategy = _BOUNDED.with_timestamp_column("at")
    one = flow.table(table, watermark_strategy=strategy).key_by("k")
    other = flow.table(table, watermark_strategy=strategy).drop("u").key_by("k")
    for left, right, side in ((one, other, "left"), (other, one, "right")):
        with pytest.raises(
            GraphError, match=rf"{join}_join\(\) at .*: {side} column 'u' .*sparse_union<i: int64=0>"
        ):
            left.asof_join(right, suffix="_r") if join == "asof" else left.interval_join(right, 0, 1, suffix="_r")


@pytest.mark.parametrize(
    "end",
    [
        lambda rows: rows.collect(),
        lambda rows: rows.print().set_parallelism(1),
        lambda rows: rows.map(dict).set_parallelism(1).collect(),
        lambda rows: rows.flat_map(list).set_parallelism(1).collect(),
    ],
    ids=["collect", "print", "map", "flat_map"],
)
def test_a_stream_of_one_subtask_keeps_its_order_through_conversions(end: Any) -> None:
    flow = Pipeline()
    rows = flow.table(pa.table({"n": [1]})).set_parallelism(1).filter(col("n") > 0).set_parallelism(1)
    end(rows)
    nodes = flow.graph(Settings(parallelism=3)).nodes
    (conversion,) = (node for node in nodes if node.name == "to_records")
    assert conversion.parallelism_given
    assert {node.parallelism for node in nodes} == {1}


def test_conversions_are_done_in_as_many_subtasks_as_what_they_are_for() -> None:
    flow = Pipeline()
    rows = flow.table(pa.table({"n": [1]})).set_parallelism(1)
    rows.map(dict).set_parallelism(2).collect()
    rows.map(dict).collect()
    found = [node for node in flow.graph(Settings(parallelism=3)).nodes if node.name == "to_records"]
    assert [(node.parallelism, node.parallelism_given) for node in found] == [(2, True), (3, False)]


def test_rows_of_one_subtask_come_to_the_program_in_their_order() -> None:
    table = pa.table({"n": list(range(40))})
    rows = Pipeline().from_collection(table.to_batches(max_chunksize=1)).set_parallelism(1)
    found = rows.to_columns(table.schema).set_parallelism(1).to_arrow(parallelism=3, workers=2, batch_size=1)
    assert found["n"].to_pylist() == list(range(40))


# ---- names of Flink's Table API, and of data frames ------------------------------------------------------------


def _answer(owner: Any, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    return str(caught.value)


def _owners() -> dict[str, Any]:
    table = Pipeline().table(_table())
    keyed = table.key_by("user")
    windowed = keyed.window(TumblingEventTimeWindows("1s"))
    return {
        "TableStream": table,
        "KeyedTable": keyed,
        "WindowedTable": windowed,
        "OverTable": keyed.over(rows=2),
        "agg": agg,
    }


@pytest.mark.parametrize("kind", ["TableStream", "KeyedTable", "WindowedTable", "OverTable", "agg"])
def test_names_of_other_libraries_are_not_there_and_are_answered(kind: str) -> None:
    owner = _owners()[kind]
    for name, hint in ELSEWHERE[kind].items():
        assert _answer(owner, name).endswith(f"; {hint}")


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("TableStream", "where", r"use filter\(\)$"),
        ("TableStream", "distinct", r"use key_by\(\*columns\)\.distinct\(\)$"),
        ("TableStream", "sum", r"use key_by\(\.\.\.\)\.aggregate\(name=agg\.sum\(column\)\) for one row per key"),
        ("TableStream", "join", r"key_by\(\.\.\.\)\.interval_join\(.*lookup\(rows, on=column\)"),
        ("TableStream", "over", r"over\(\): key_by\(\) first"),
        ("TableStream", "process", r"works on records, so call to_records\(\) first"),
        ("KeyedTable", "select", r"use aggregate\(name=agg\.sum\(column\)\)"),
        ("KeyedTable", "filter", r"call it before key_by\(\.\.\.\)$"),
        ("WindowedTable", "trigger", r"to_records\(\)\.key_by\(\.\.\.\)\.window\(\.\.\.\)\.trigger\(\.\.\.\)$"),
        ("agg", "avg", r"use mean\(column\)$"),
    ],
)
def test_a_name_of_another_library_says_what_to_use(kind: str, name: str, hint: str) -> None:
    assert re.search(hint, _answer(_owners()[kind], name))


def test_an_import_of_a_name_of_flink_s_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'Tumble' from 'sluiceway\.table'; use key_by"):
        exec("from sluiceway.table import Tumble")


def test_polars_is_given_parts_of_columns_of_lists_of_one_size() -> None:
    pair = pa.list_(pa.int64(), 2)
    pairs = pa.array([[1, 2], None, [3, 4], [5, 6], None], pair)
    rows = pa.table({"pair": pairs, "in": pa.StructArray.from_arrays([pairs], ["pair"])})

    def same(frame: polars.DataFrame) -> polars.DataFrame:
        return frame

    parts = [batch.slice(start, 3) for batch in rows.to_batches() for start in (0, 3)]
    stream = Pipeline().from_collection(parts).to_columns(rows.schema).map_batches(same, rows.schema)
    assert stream.to_arrow(batch_size=1).to_pylist() == rows.to_pylist()


def test_columns_that_polars_does_not_have_are_refused() -> None:
    def same(frame: polars.DataFrame) -> polars.DataFrame:
        return frame

    rows = Pipeline().table(pa.table({"wide": pa.array([], pa.decimal256(50, 2))}))
    with pytest.raises(GraphError, match=r"Polars has no frame .*; the columns are wide: decimal256\(50, 2\)"):
        rows.map_batches(same)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_structs_are_made_of_batches_of_any_size(size: int) -> None:
    table = pa.table({"i": [1, None, 3], "s": ["a", "b", None]})
    flow = Pipeline()
    rows = flow.from_collection(table.to_batches(max_chunksize=size)).to_columns(table.schema)
    made = rows.with_columns(both=nw.struct("i", "s")).filter(nw.struct("i", "s").struct.field("s") != "b")
    assert made.select("both").to_arrow(batch_size=1).to_pylist() == [{"both": {"i": 1, "s": "a"}}]


def test_rows_beside_one_that_fails_are_kept_where_structs_are_made() -> None:
    rows = Pipeline().table(pa.table({"k": ["a", "b", "c"], "text": ["1", "two", "3"]}))
    made = rows.select(both=nw.struct("k", col("text").cast(nw.Int64()))).on_error("skip")
    assert [row["both"]["k"] for row in made.to_arrow().to_pylist()] == ["a", "c"]
