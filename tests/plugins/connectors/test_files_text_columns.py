"""CSV and JSON lines in columns: the rows of the record form, from any position, at any size of batches."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrowpipe import OPEN
from hypothesis import given
from hypothesis import strategies as st

from sluiceway import Pipeline
from sluiceway.columns.record_conversion import Encoder
from sluiceway.columns.schemas import schema_of
from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.elements import Batch
from sluiceway.errors import ConnectorError
from sluiceway.metrics import MetricGroup
from sluiceway.table import col
from sluiceway_files import FilesSink, FilesSource, _blocks
from sluiceway_files._splits import FileSplit, OpenFile

assert OPEN


class Inner(msgspec.Struct):
    x: int
    y: str = "y"


@dataclass
class Order:
    n: int
    user: str
    price: float
    paid: bool
    at: dt.datetime
    note: str | None = None
    count: int | None = None
    day: dt.date | None = None


class Nested(msgspec.Struct):
    n: int
    inner: Inner
    tags: list[str]
    more: Inner | None = None
    size: int | None = 5


@dataclass
class Deep:
    inner: Shallow
    by: dict[str, int] | None = None


@dataclass
class Shallow:
    x: int
    y: str = "y"


class Pair(NamedTuple):
    a: int
    b: float


class Loose(TypedDict):
    a: str
    b: NotRequired[int | None]


class Bounded(msgspec.Struct, forbid_unknown_fields=True):
    a: str
    b: int | None = None


LINES = [
    '{"n":1,"user":"ä","price":1.5,"paid":true,"at":"2024-01-01T00:00:00Z"}',
    '{"n":2,"user":"\\u0041","price":2,"paid":false,"at":"2024-01-01T00:00:00.12345+01:00","note":null,"count":3}',
    '{"n":3,"user":"","price":1e3,"paid":false,"at":"2024-01-01 00:00:00Z","day":"2024-02-29","z":[{}]}',
]
ODD_LINES = [
    "",
    "  ",
    '{"n":4,"user":"u","price":2,"paid":true,"at":"2024-01-01T00:00:00"}',
    '{"n":4.0,"user":"u","price":2,"paid":true,"at":1704067200}',
    '{"n":4,"n":5,"user":"u","price":2,"paid":true,"at":"2024-01-01T00:00:00.1234567Z"}',
]
BAD_LINES = [
    "null",
    '{"n":1} null {"n":2}',
    LINES[0] + LINES[1],
    '{"n":4,"user":"u","price":NaN,"paid":true,"at":"2024-01-01T00:00:00Z"}',
    '{"n":4,"user":"u","paid":true,"at":"2024-01-01T00:00:00Z"}',
    '{"n":4,"user":null,"price":2,"paid":true,"at":"2024-01-01T00:00:00Z"}',
    '{"n":4,"user":"u","price":2,"paid":true,"at":"2024-01-01"}',
    '{"n":99999999999999999999,"user":"u","price":2,"paid":true,"at":"2024-01-01T00:00:00Z"}',
    '{"n":4,"user":"\udcff","price":2,"paid":true,"at":"2024-01-01T00:00:00Z"}',
    "[" * 2000,
]
NESTED = [
    '{"n":1,"inner":{"x":1},"tags":[]}',
    '{"n":1,"inner":{"x":1,"y":"z"},"tags":["a","b"],"more":{"x":2,"y":"w"},"size":1}',
    '{"n":1,"inner":{"x":1,"y":"z"},"tags":["a"],"more":null,"size":null}',
    '{"n":1,"inner":{"x":1,"y":"z"},"tags":["a",null],"size":1}',
]
FIELDS = ["n", "user", "price", "paid", "at", "note", "count", "day", "extra"]
CELLS = [
    ["1", "ä", "1.5", "true", "2024-01-01T00:00:00Z", "", "null", "2024-02-29", "e"],
    ["-2", "", "2", "0", "2024-01-01T00:00:00.5+02:00", "null", "7", "NULL", ""],
    ["0", " s ", "1e3", "FALSE", "2024-01-01 00:00:00Z", "x", "null", "null", "-"],
    ["4", "", "2.5", "1", "2024-01-01T00:00:00Z", "", "", "", ""],
]
ODD_CELLS = [
    ["1.0", "u", "nan", "True", "2024-01-01T00:00:00", "x", "1e2", "null", ""],
    ["1", 'a "quoted"\nname', "1.5", "1", "1704067200", "x,y", "1", "null", ""],
]
BAD_CELLS = [
    ["1", "u"],
    ["x", "u", "1.5", "true", "2024-01-01T00:00:00Z", "", "null", "2024-02-29", "e"],
    ["1", "u", "1e999", "true", "2024-01-01T00:00:00Z", "", "null", "2024-02-29", "e"],
    ["1", "u", "1", "true", "2024-01-01", "", "", "2024-02-29", "e"],
    ["", "u", "1", "true", "2024-01-01T00:00:00Z", "", "", "2024-02-29", "e"],
    ["1", "u", "", "true", "2024-01-01T00:00:00Z", "", "", "2024-02-29", "e"],
    ["1", "u\rv", "1", "true", "2024-01-01T00:00:00Z", "", "null", "2024-02-29", "e"],
]


def _cell(text: str) -> str:
    return '"{}"'.format(text.replace('"', '""')) if any(sign in text for sign in ',"\n') else text


def _csv(rows: list[list[str]], end: str = "\n") -> str:
    return "".join(f"{','.join(map(_cell, row))}{end}" for row in rows)


def _rows(
    source: FilesSource[Any], data: bytes, limits: Callable[[], int], *, restart: bool = False
) -> tuple[list[Any], float]:
    """Return the records or rows of a source, and the number of those left out; restarts after each read."""
    form = source._format
    metrics = MetricGroup()
    rows: list[Any] = []
    split: FileSplit | None = FileSplit(0, "in")
    while split is not None:
        reader = form.read(OpenFile(io.BytesIO(data), None, "in", metrics), split)
        while True:
            found = reader.read(limits())
            if found is END_OF_INPUT:
                split = None
                break
            if isinstance(found, Wait):
                continue
            rows += [found.columns] if isinstance(found, Batch) else found
            split = reader.position()
            if restart:
                break
        reader.close()
    return rows, metrics.read().get("records_skipped", 0)


def _same(make: Callable[..., FilesSource[Any]], of: Any, data: bytes, limits: Any = lambda: 3, **how: Any) -> int:
    """Check that rows in columns are those of the record form, whether read in one go or in pieces."""
    source = make("in", type=of, on_error="skip", **how)
    found = source.in_columns()
    assert found is not None
    in_columns, schema = found
    records, skipped = _rows(source, data, limits)
    encoder = Encoder(schema, "")
    wanted = []
    for record in records:
        try:
            plain = msgspec.to_builtins(record) if isinstance(record, msgspec.Struct) else record
            wanted += encoder.encode([plain]).to_pylist()
        except Exception:
            skipped += 1
    for restart in (False, True):
        batches, left_out = _rows(in_columns, data, limits, restart=restart)  # type: ignore[arg-type]
        rows = pa.Table.from_batches(batches, schema).to_pylist()
        assert repr(rows) == repr(wanted)
        assert left_out >= skipped if restart else left_out == skipped
    return len(wanted)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway_files._csv_columns._ColumnsReader.chunk", 700)
    monkeypatch.setattr("sluiceway_files._lined_columns.COLUMNS_CHUNK", 700)
    monkeypatch.setattr("sluiceway_files._lined_columns.ROWS_PER_RECORD", 1)
    monkeypatch.setattr("sluiceway_files._csv_columns.ROWS_PER_RECORD", 1)
    assert _blocks.COLUMNS_CHUNK >= 1 << 20


SCHEMA = pa.schema(
    [
        pa.field("n", pa.int16(), nullable=False),
        ("user", pa.dictionary(pa.int32(), pa.string())),
        ("price", pa.float32()),
        ("at", pa.timestamp("ms", "UTC")),
        ("count", pa.decimal128(9, 2)),
    ]
)


@given(
    st.lists(st.sampled_from(LINES * 6 + ODD_LINES + BAD_LINES), max_size=30),
    st.integers(1, 7),
    st.sampled_from(["\n", "\r\n"]),
)
def test_json_lines_are_the_rows_of_the_record_form(lines: list[str], limit: int, end: str) -> None:
    data = end.join(lines).encode("utf-8", "surrogateescape")
    _same(FilesSource.json_lines, Order, data, lambda: limit)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_with_two_objects_does_not_make_up_for_one_without(end: str) -> None:
    first, second, third = LINES
    assert _same(FilesSource.json_lines, Order, end.join([first + second, "", third, ""]).encode()) == 1
    assert _same(FilesSource.json_lines, Order, end.join([first, *second.split(",", 1), third * 2]).encode()) == 1


def test_a_number_above_the_largest_one_does_not_become_infinity() -> None:
    line = LINES[0].replace("1.5", "1.7976931348623159e308")
    assert _same(FilesSource.json_lines, Order, f"{LINES[0]}\n{line}\n".encode()) == 1
    assert _same(FilesSource.csv, Pair, b"1,1.5\n1,%s\n" % (b"9" * 309), header=False) == 1


def test_types_that_arrow_reads_and_types_that_it_does_not() -> None:
    data = "\n".join(NESTED[:2] * 20 + NESTED).encode()
    assert _same(FilesSource.json_lines, Nested, data) == len(NESTED) * 11 - 1
    assert _same(FilesSource.json_lines, SCHEMA, "\n".join(LINES * 9).encode()) == len(LINES) * 9
    two = [
        json.dumps(each) for each in [{"a": "x"}, {"a": "y", "b": 1}, {"a": "z", "b": None}, {"a": "z", "c": 1}]
    ]
    assert _same(FilesSource.json_lines, Loose, "\n".join(two * 30).encode()) == len(two) * 30
    assert _same(FilesSource.json_lines, Bounded, "\n".join(two * 30).encode()) == (len(two) - 1) * 30
    assert _same(FilesSource.json_lines, Pair, b'{"a":1,"b":2}\n[1,2]\n') == 1
    assert _same(FilesSource.json_lines, Order, b"") == 0
    found = FilesSource.json_lines("in", type=Deep).in_columns()
    assert found is not None
    ((rows,), _) = _rows(found[0], b'{"inner":{"x":1},"by":{"a":1}}\n', lambda: 3)  # type: ignore[arg-type]
    assert rows.to_pylist() == [{"inner": {"x": 1, "y": "y"}, "by": [("a", 1)]}]


@given(
    st.lists(st.sampled_from(CELLS * 6 + ODD_CELLS + BAD_CELLS), max_size=30),
    st.integers(1, 7),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
)
def test_csv_has_the_rows_of_the_record_form(rows: list[list[str]], limit: int, end: str) -> None:
    data = _csv([FIELDS, *rows], end)
    _same(FilesSource.csv, Order, data.encode(), lambda: limit)
    _same(FilesSource.csv, SCHEMA, data.removesuffix(end).encode(), lambda: limit)


class Two(TypedDict):
    a: str
    b: str


class Unsorted(TypedDict):
    b: str
    a: str


class Deeper(TypedDict):
    of: Unsorted
    at: Unsorted


def test_the_fields_of_a_typed_dict_are_in_any_order() -> None:
    row = {"a": "A", "b": "B"}
    data = f"{json.dumps(row)}\n".encode()
    assert _same(FilesSource.json_lines, Unsorted, data * 3) == 3
    assert _same(FilesSource.json_lines, pa.schema([("b", pa.string()), ("a", pa.string())]), data * 3) == 3
    deep = json.dumps({"of": row, "at": {"a": "C", "b": "D"}})
    assert _same(FilesSource.json_lines, Deeper, f"{deep}\n".encode() * 3) == 3
    assert _same(FilesSource.csv, Unsorted, _csv([["a", "b"], *[["A", "B"]] * 3]).encode()) == 3


QUOTED = ["x", '"x"', '""', "", '"a, b"', '"a ""b"""', '""""', '" "', '"ä"']
ODDLY_QUOTED = [
    'a"b',
    '"a"b',
    '"a" ',
    ' "a"',
    '"a\nb"',
    '"a\r\nb"',
    '"',
    '"a',
    'a"',
    '"a""',
    '""a"',
    '"a"",',
    '"\r"',
]


@given(
    st.lists(st.lists(st.sampled_from(QUOTED * 8 + ODDLY_QUOTED), min_size=1, max_size=3), max_size=40),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_quoted_csv_has_the_rows_of_the_record_form(rows: list[list[str]], end: str, at_end: bool) -> None:
    data = "".join(f"{','.join(row)}{end}" for row in rows)
    data = data if at_end else data.removesuffix(end)
    _same(FilesSource.csv, Two, data.encode(), header=["a", "b"])


@given(st.text('a",\n\r', max_size=60))
def test_any_quotes_have_the_rows_of_the_record_form(text: str) -> None:
    _same(FilesSource.csv, Two, text.encode(), header=["a", "b"])


@pytest.mark.parametrize("odd", [*ODDLY_QUOTED, '"a"b', 'a"b"', 'a"b"c', '"a\nb","c\nd"', '"a""b"c"'])
def test_one_odd_quote_among_others(odd: str) -> None:
    for after in (",z\n", "\n", ""):
        data = f'"x",y\n{odd}{after}' + ('"q",""\n' if after else "")
        _same(FilesSource.csv, Two, data.encode(), header=["a", "b"])


def test_quoted_csv_is_read_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise AssertionError("by rows")

    source = FilesSource.csv("in", type=Two, header=["a", "b"]).in_columns()
    assert source is not None
    data = "".join(f"{one},{two}\n" for one in QUOTED for two in QUOTED).encode()
    monkeypatch.setattr("sluiceway_files._csv_columns._ColumnsReader._by_rows", none)
    batches, _ = _rows(source[0], data, lambda: 9)  # type: ignore[arg-type]
    assert pa.Table.from_batches(batches).num_rows == len(QUOTED) ** 2


def test_headers_and_encodings_of_csv() -> None:
    latin = _csv([FIELDS, *CELLS * 9]).encode("latin-1")
    assert _same(FilesSource.csv, Order, latin, encoding="latin-1") == len(CELLS) * 9
    pairs = _csv([["1", "2.5"], ["3", "x"], ["4"], ["5", "6", "7"]] * 9 + [["5", "0"]] * 90).encode()
    assert _same(FilesSource.csv, Pair, pairs, header=False) == 99
    assert _same(FilesSource.csv, Pair, b"x,y\n" + pairs) == 99
    assert _same(FilesSource.csv, Loose, b"7;1\n8;null\n" * 99, header=["a", "b"], delimiter=";") == 198
    assert _same(FilesSource.csv, Inner, b"y\n1\n", header=False) == 0
    assert _same(FilesSource.csv, Inner, b"x\n" + b"1\n\n" * 300) == 300
    assert _same(FilesSource.csv, Inner, b"x,y\n" + b'1,"a"\n2,"b ""c"""\n' * 99) == 198
    assert _same(FilesSource.csv, Inner, b"") == _same(FilesSource.csv, Inner, b"x,y\n") == 0


# ---- in jobs -----------------------------------------------------------------------------------------------

ROWS = 2_000


@pytest.fixture
def files(tmp_path: Path) -> Path:
    there = tmp_path / "in"
    there.mkdir()
    for part in range(3):
        rows = [{"x": n, "y": f"u{n % 7}"} for n in range(part * ROWS, (part + 1) * ROWS)]
        text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        if part:
            (there / f"{part}.jsonl").write_bytes(text)
        else:
            (there / "0.jsonl.gz").write_bytes(gzip.compress(text))
        (there / f"{part}.csv").write_text("x,y\n" + "".join(f"{row['x']},{row['y']}\n" for row in rows))
    return there


def _source(kind: str, files: Path) -> FilesSource[Any]:
    if kind == "csv":
        return FilesSource.csv(f"{files}/*.csv", type=Inner)
    return FilesSource.json_lines(f"{files}/*.jsonl*", type=Inner, split_size=20_000)


@pytest.mark.parametrize("kind", ["csv", "json_lines"])
@pytest.mark.parametrize("options", [{"batch_size": 8}, {"parallelism": 3}])
def test_a_job_has_each_row_once(kind: str, files: Path, options: dict[str, Any]) -> None:
    flow = Pipeline()
    rows = flow.table(_source(kind, files))
    assert rows.schema == schema_of(Inner)
    found = rows.filter(col("x") >= 10).to_records().collect()
    flow.run(**options)
    assert sorted(row["x"] for row in found) == list(range(10, 3 * ROWS))
    assert {row["y"] for row in found} == {f"u{n}" for n in range(7)}


@pytest.mark.parametrize("kind", ["csv", "json_lines"])
def test_a_failure_leaves_each_row_once(kind: str, files: Path, tmp_path: Path) -> None:
    failed = tmp_path / "failed"

    def fail_once(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows and rows.column(0)[-1].as_py() > 2 * ROWS and not failed.exists():
            failed.touch()
            raise RuntimeError("planted")
        return rows

    flow = Pipeline(parallelism=2)
    flow.table(_source(kind, files)).map_batches(fail_once).sink(FilesSink.parquet(str(tmp_path / "out")))
    flow.run(
        batch_size=8,
        checkpoints=str(tmp_path / "checkpoints"),
        checkpoint_interval="20ms",
        restart="fixed-delay:3:10ms",
    )
    assert failed.exists()
    found = pq.read_table(tmp_path / "out")["x"].to_pylist()
    assert sorted(found) == list(range(3 * ROWS))


def test_what_does_not_fit_is_told_with_file_and_line(files: Path) -> None:
    (files / "9.csv").write_text('x,y\n1,a\n"2",b\nz,c\n')
    (files / "9.jsonl").write_text('{"x":1}\n{"x":99999999999999999999}\n')
    with pytest.raises(ConnectorError, match=r"9\.csv, line 4: Expected `int`, got `str`.*on_error='skip'"):
        Pipeline().table(FilesSource.csv(f"{files}/9.csv", type=Inner)).to_arrow()
    with pytest.raises(ConnectorError, match=r"9\.jsonl, line 2: .*does not fit into column 'x'"):
        Pipeline().table(FilesSource.json_lines(f"{files}/9.jsonl", type=Inner)).to_arrow()
    with pytest.raises(ConnectorError, match="need type="):
        Pipeline().table(FilesSource.json_lines(str(files)))
    with pytest.raises(ConnectorError, match="names: header="):
        Pipeline().table(FilesSource.csv(str(files), header=False))


def test_csv_without_a_type_is_text(files: Path) -> None:
    rows = Pipeline().table(FilesSource.csv(f"{files}/*.csv"))
    assert rows.schema.types == [pa.string(), pa.string()]
    assert rows.to_arrow().num_rows == 3 * ROWS
    (files / "9.csv").write_text("x,z\n1,a\n")
    with pytest.raises(ConnectorError, match=r"9\.csv has other columns than the first file \(x, y\): x, z"):
        Pipeline().table(FilesSource.csv(f"{files}/*.csv")).to_arrow()


@pytest.mark.parametrize("in_columns", [False, True])
def test_a_csv_field_is_as_long_as_a_line(in_columns: bool, tmp_path: Path) -> None:
    """The csv module stops at 128 KiB by itself."""
    long, lines = "x" * 200_000, "y" * 999 + "\n"
    path = tmp_path / "a.csv"
    path.write_text(f'a,b\n1,{long}\n2,"{lines * 300}"\n3,z\n')
    before = csv.field_size_limit()

    def read(**options: Any) -> list[Any]:
        source = FilesSource.csv(path, **options)
        flow = Pipeline("long")
        if in_columns:
            return flow.table(source).to_arrow()["b"].to_pylist()
        rows = flow.source(source).collect()
        flow.run()
        return [row["b"] for row in rows]

    assert read() == [long, lines * 300, "z"]
    assert read(max_line_length=250_000, on_error="skip") == [long]
    with pytest.raises(ConnectorError, match=r"a\.csv, line \d+: a field is longer than 250000 characters"):
        read(max_line_length=250_000)
    assert csv.field_size_limit() == before


def test_maps_and_nanoseconds_are_read_as_they_were_written(tmp_path: Path) -> None:
    table = pa.table(
        {
            "by": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "at": pa.array([1_000, None, 0], pa.timestamp("ns", "UTC")),
        }
    )
    flow = Pipeline()
    flow.table(table).sink(FilesSink.json_lines(tmp_path / "out"))
    flow.run()
    found = Pipeline().table(FilesSource.json_lines(tmp_path / "out", type=table.schema)).to_arrow()
    assert found.equals(table)


@pytest.mark.parametrize("in_columns", [True, False])
def test_a_schema_goes_to_workers(tmp_path: Path, in_columns: bool) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), ("user", pa.string())])
    (tmp_path / "a.csv").write_text("n,user\n1,ann\n2,bob\n")
    (tmp_path / "a.jsonl").write_text('{"n": 3, "user": "cid"}\n{"n": 4}\n')
    for name in ("csv", "jsonl"):
        read: Any = FilesSource.csv if name == "csv" else FilesSource.json_lines
        source = read(str(tmp_path / f"a.{name}"), type=schema)
        flow = Pipeline(parallelism=2)
        rows: Any = flow.table(source) if in_columns else flow.source(source)
        rows.sink(FilesSink.json_lines(str(tmp_path / name)))
        flow.run(workers=2)
    written = [json.loads(line) for name in ("csv", "jsonl") for line in _lines(tmp_path / name)]
    assert [(row["n"], row.get("user")) for row in written] == [(1, "ann"), (2, "bob"), (3, "cid"), (4, None)]


def _lines(directory: Path) -> list[str]:
    return sorted(line for file in directory.glob("*.jsonl*") for line in file.read_text().splitlines())
