"""Parquet with filters: the rows of a filter after reading, from the row groups that may have some."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway import Pipeline
from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.elements import Batch
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.metrics import MetricGroup
from sluiceway.testing.drivers import SourceDriver, drive_source
from sluiceway_files import FilesSource
from sluiceway_files._splits import FileSplit, OpenFile

FLOATS = st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.5])
TEXTS = st.sampled_from(["", "a", "b"])
VALUES: dict[str, st.SearchStrategy[Any]] = {"n": st.integers(-3, 3), "text": TEXTS, "x": FLOATS}
CELLS = {**VALUES, "x": FLOATS | st.just(float("nan"))}
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("x", pa.float64())])
OPERATORS = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, values: value in values,
    "not in": lambda value, values: value not in values,
}


def _conditions(column: str) -> st.SearchStrategy[tuple[str, str, Any]]:
    single = st.tuples(st.just(column), st.sampled_from([*OPERATORS][:7]), VALUES[column])
    return single | st.tuples(
        st.just(column), st.sampled_from(["in", "not in"]), st.lists(VALUES[column], max_size=3)
    )


ROWS = st.lists(st.fixed_dictionaries({name: st.none() | cells for name, cells in CELLS.items()}), max_size=25)
CONJUNCTIONS = st.lists(st.sampled_from([*VALUES]).flatmap(_conditions), min_size=1, max_size=3)


def _holds(row: dict[str, Any], alternatives: list[list[tuple[str, str, Any]]]) -> bool:
    return any(
        all(row[name] is not None and OPERATORS[op](row[name], value) for name, op, value in conjunction)
        for conjunction in alternatives
    )


def _in_columns(source: FilesSource[Any]) -> Any:
    in_columns = source.in_columns()
    assert in_columns is not None
    return in_columns[0]


def _read(source: Any, limit: int, restored: Sequence[FileSplit] | None = None) -> list[tuple[Any, Any]]:
    """Return the rows, each with the splits that are left after the poll that returned it."""
    rows: list[tuple[Any, Any]] = []
    splits = list(source._plan() if restored is None else restored)
    for number, split in enumerate(splits):
        with Path(split.path).open("rb") as raw:
            reader = source._format.read(OpenFile(raw, None, split.path, MetricGroup()), split)
            while (found := reader.read(limit)) is not END_OF_INPUT:
                if not isinstance(found, Wait):
                    left = (reader.position(), *splits[number + 1 :])
                    values = found.columns.to_pylist() if isinstance(found, Batch) else found
                    rows += [(row, left) for row in values]
            reader.close()
    return rows


@settings(max_examples=100, deadline=None)
@given(
    rows=ROWS,
    filters=CONJUNCTIONS | st.lists(CONJUNCTIONS, min_size=1, max_size=3),
    group=st.integers(1, 10),
    limit=st.integers(1, 5),
    columns=st.sampled_from([None, ["n"], ["x", "n"]]),
    statistics=st.booleans(),
)
def test_rows_are_those_of_a_filter_after_reading(
    rows: list[Any], filters: list[Any], group: int, limit: int, columns: list[str] | None, statistics: bool
) -> None:
    alternatives = filters if isinstance(filters[0], list) else [filters]
    names = columns or SCHEMA.names

    def shown(found: list[dict[str, Any]]) -> str:  # NaN is not equal to itself
        return repr([[row[name] for name in names] for row in found])

    expected = shown([row for row in rows if _holds(row, alternatives)])
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/a.parquet"
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, path, row_group_size=group, write_statistics=statistics)
        source = FilesSource.parquet(path, columns=columns, filters=filters)
        found = drive_source(source, limit=limit)
        assert shown(found) == expected
        assert all(set(row) == set(names) for row in found)
        found = [row for row, _ in _read(_in_columns(source), limit)]
        assert shown(found) == expected


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.parquet"
    rows = pa.table({"n": range(60), "even": [n % 2 == 0 for n in range(60)]})
    pq.write_table(rows, path, row_group_size=20)
    return path


@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_any_position_leads_to_the_rows_after_it(
    numbers: Path, in_columns: bool, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway_files._parquet.ROWS_PER_RECORD", 1)
    for reader in ("_ParquetReader", "_ColumnsReader"):
        monkeypatch.setattr(f"sluiceway_files._parquet.{reader}.rows_at_once", 7)
    source: Any = FilesSource.parquet(
        numbers, columns=["n"], filters=[("even", "=", True), ("n", "not in", [2, 58])]
    )
    if in_columns:
        source = _in_columns(source)
    rows = _read(source, limit)
    assert [row["n"] for row, _ in rows] == [n for n in range(0, 60, 2) if n not in (2, 58)]
    for number, (_, left) in enumerate(rows, 1):
        if number == len(rows) or rows[number][1] != left:  # the last row of its poll
            assert [row for row, _ in _read(source, limit, left)] == [row for row, _ in rows[number:]]
    assert len({left[0].skip for _, left in rows}) >= 3


def test_row_groups_that_statistics_exclude_are_not_read(tmp_path: Path) -> None:
    days = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(60)]
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "n": (pa.int32(), list(range(60))),
        "u": (pa.uint64(), list(range(60))),
        "x": (pa.float32(), [n / 2 for n in range(60)]),
        "text": (pa.string(), [f"{n:02}" for n in range(60)]),
        "word": (pa.dictionary(pa.int32(), pa.string()), [f"{n:02}" for n in range(60)]),
        "raw": (pa.binary(), [b"%02d" % n for n in range(60)]),
        "price": (pa.decimal128(9, 2), [Decimal(n) for n in range(60)]),
        "day": (pa.date32(), [day.date() for day in days]),
        "ms": (pa.timestamp("ms", "UTC"), days),
        "ns": (pa.timestamp("ns"), [day.replace(tzinfo=None) for day in days]),
        "none": (pa.int64(), [None] * 40 + list(range(40, 60))),
        "nested": (pa.struct([("n", pa.int64())]), [{"n": 0}] * 60),
        "nested.n": (pa.int64(), list(range(60))),
    }
    table = pa.table({name: pa.array(values, of) for name, (of, values) in columns.items()})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    pq.write_table(table.slice(0, 0), tmp_path / "b.parquet")

    def groups(*filters: Any) -> list[int]:
        source = FilesSource.parquet(tmp_path, columns=["n"], filters=list(filters))
        planned = [group for split in source._plan() for group in range(split.start, split.end or 0)]
        with SourceDriver(source) as driver:
            found = [row["n"] for row in driver.run()]
        assert {n // 20 for n in found} <= set(planned)
        return planned

    for name, (_, values) in columns.items():
        if name not in ("nested", "nested.n"):
            assert groups((name, "=", values[50])) == [2], name
    assert groups(("nested.n", "=", 50)) == [0, 1, 2]  # whose statistics are these?
    assert groups(("n", "<", 20)) == [0]
    assert groups(("n", "<=", 20)) == [0, 1]
    assert groups(("n", ">", 39)) == [2]
    assert groups(("n", ">=", 39)) == [1, 2]
    assert groups(("n", "in", [1, 59])) == [0, 2]
    assert groups(("n", "in", [])) == []
    assert groups(("none", "!=", 7)) == [2]
    assert groups([("n", "<", 5)], [("text", "=", "45"), ("x", ">", 1.0)]) == [0, 2]
    assert groups(("n", "!=", 5)) == [0, 1, 2]


def test_floats_without_an_order_are_compared_as_in_python(tmp_path: Path) -> None:
    nan = float("nan")
    pq.write_table(pa.table({"x": [1.0, nan], "zero": [0.0, -0.0]}), tmp_path / "a.parquet")
    for condition in (("x", "!=", 1.0), ("x", "not in", [1.0])):  # the statistics know of 1.0 only
        assert (
            repr(drive_source(FilesSource.parquet(tmp_path, filters=[condition], columns=["x"]))) == "[{'x': nan}]"
        )
    for zero in (0, 0.0, -0.0):
        for condition in (("zero", "=", zero), ("zero", "in", [zero])):
            assert len(drive_source(FilesSource.parquet(tmp_path, filters=[condition]))) == 2


def test_nanoseconds_that_no_datetime_has_do_not_hide_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"t": pa.array([999, 1_001], pa.timestamp("ns"))}), tmp_path / "a.parquet")
    one = datetime(1970, 1, 1, microsecond=1)
    for op in (">", "<"):
        assert len(drive_source(FilesSource.parquet(tmp_path, filters=[("t", op, one)], columns=[]))) == 1


def test_a_failure_leaves_each_filtered_row_once(tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    for part in range(3):
        numbers = range(part * 10_000, (part + 1) * 10_000)
        table = pa.table({"n": numbers, "third": [n % 3 for n in numbers]})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=2_000)

    def fail_once(row: dict[str, Any]) -> int:
        if row["n"] > 25_000 and not failed.exists():
            failed.touch()
            raise RuntimeError("planted")
        return int(row["n"])

    flow = Pipeline(parallelism=2)
    taken = [n for n in range(30_000) if n >= 5_000 and n % 3]
    filters = [("n", ">=", 5_000), ("third", "!=", 0)]
    rows = flow.source(FilesSource.parquet(str(tmp_path / "*.parquet"), filters=filters)).map(fail_once)
    found = rows.key_by(lambda n: n % 2).sum(lambda n: n).collect()
    flow.run(
        batch_size=16,
        checkpoints=str(tmp_path / "checkpoints"),
        checkpoint_interval="10ms",
        restart="fixed-delay:3:10ms",
    )
    assert failed.exists()
    sums = {key: max(total for k, total in found if k == key) for key in (0, 1)}
    assert sums == {key: sum(n for n in taken if n % 2 == key) for key in (0, 1)}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([("m", "=", 1)], r"numbers\.parquet has no column 'm' for filters=; it has 'n', 'even'"),
        (
            [("n", "=", "1")],
            r"numbers\.parquet: filters= has '1' for column 'n', which is no value of its type int64",
        ),
        ([("n", ">", 1.5)], "has 1.5 for column 'n'"),
        ([("n", "=", True)], "has True for column 'n'"),
        ([("n", "in", [1, 1 << 70])], "has 1180591620717411303424 for column 'n'"),
        ([("n", "=", date(2024, 1, 1))], "for column 'n'"),
        ([("even", "=", 1)], "has 1 for column 'even'"),
    ],
)
def test_conditions_that_do_not_fit_the_file_are_told(numbers: Path, filters: Any, message: str) -> None:
    source = FilesSource.parquet(numbers, filters=filters)
    with pytest.raises(ConnectorError, match=message):
        Pipeline().table(source)
    with pytest.raises(ConnectorError, match=message):
        drive_source(source)


def test_types_are_not_bent(tmp_path: Path) -> None:
    when = datetime(2024, 1, 1, 5)
    table = pa.table({"day": [when.date()], "utc": [when.replace(tzinfo=UTC)], "list": [[1]], "raw": [b"a"]})
    pq.write_table(table, tmp_path / "a.parquet")
    for name, value in (("day", when), ("utc", when), ("list", [1]), ("raw", "a")):
        with pytest.raises(ConnectorError, match=f"column '{name}'"):
            drive_source(FilesSource.parquet(tmp_path, filters=[(name, "=", value)]))


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([], r"filters=\[\] must be a list"),
        ("n", "filters='n' must be a list"),
        ([[]], r"filters= has \[\], which is no list of"),
        ([("n", "=")], r"filters= has \('n', '='\), which is no \(column"),
        ([("n", "=", 1), [("n", "=", 1)]], "which is no"),
        ([("n", "like", 1)], "operator 'like' for column 'n'; operators are =, ==, !="),
        ([("n", "in", "abc")], "'abc' for 'n' in, which takes a list"),
        ([("n", "=", None)], "None for column 'n': no comparison with it holds"),
        ([("n", "in", [1, float("nan")])], "nan for column 'n'"),
    ],
)
def test_what_is_no_filter_is_refused(filters: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FilesSource.parquet("a.parquet", filters=filters)
