"""What Apache Spark computes, as a source: with a real session on this machine."""

from __future__ import annotations

import datetime as dt
import re
import weakref
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import cloudpickle
import msgspec
import pytest

import sluiceway as sw
from sluiceway.errors import ConfigurationError, ConnectorError
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import SourceDriver, drive_source

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pa = pytest.importorskip("pyarrow")

from sluiceway_spark import SparkSource  # noqa: E402 - where there is no Spark, this says so in another way

pytestmark = pytest.mark.spark


@dataclass
class Word:
    id: int
    word: str


class Pair(NamedTuple):
    id: int
    word: str


class Half(msgspec.Struct):
    word: str
    number: int = 7


def words(session: Any) -> Any:
    return session.range(0, 100, 1, 4).selectExpr("id", "concat('w', id % 10) AS word")


def of_session(make: Any, **options: Any) -> SparkSource:
    return SparkSource.query(make, **options)


EXPECTED = [{"id": n, "word": f"w{n % 10}"} for n in range(100)]


@pytest.mark.usefixtures("spark")
class TestConformance(SourceConformance):
    ordered = False
    max_positions = 5

    @pytest.fixture(autouse=True)
    def _staging(self, tmp_path: Path) -> None:
        self.staging = str(tmp_path)

    def make_source(self) -> SparkSource:
        return of_session(words, staging=self.staging)

    def expected(self) -> list[Any]:
        return EXPECTED


@pytest.mark.usefixtures("spark")
class TestConformanceOfBatches(SourceConformance):
    ordered = False
    max_positions = 5
    limit_factor = 7

    @pytest.fixture(autouse=True)
    def _staging(self, tmp_path: Path) -> None:
        self.staging = str(tmp_path)

    def make_source(self) -> SparkSource:
        return of_session(words, records="arrow", staging=self.staging)

    def expected(self) -> list[Any]:
        # Batches of 7 rows, of 4 partitions with 25.
        rows = [EXPECTED[p * 25 + b : p * 25 + min(b + 7, 25)] for p in range(4) for b in range(0, 25, 7)]
        return [pa.RecordBatch.from_pylist(some) for some in rows]

    def identity(self, record: Any) -> Any:
        return repr(record.to_pylist())


def sorted_rows(records: list[Any]) -> list[Any]:
    return sorted(records, key=lambda r: r["id"] if isinstance(r, dict) else r)


def test_rows_become_what_was_asked_for(spark: Any) -> None:
    assert sorted_rows(drive_source(of_session(words))) == EXPECTED
    assert sorted(drive_source(of_session(words, records=tuple)))[:2] == [(0, "w0"), (1, "w1")]
    assert sorted(drive_source(of_session(words, records=Pair)))[3] == Pair(3, "w3")
    found = drive_source(of_session(words, records=Word))
    assert sorted(found, key=lambda w: w.id)[99] == Word(99, "w9")
    halves = drive_source(of_session(words, records=Half))
    assert (len(halves), {h.number for h in halves}) == (100, {7})


UTC = dt.UTC
BERLIN = ZoneInfo("Europe/Berlin")
# By the type's name in SQL: an expression, and what it is in a record of a session in Berlin.
VALUES: dict[str, tuple[str, Any]] = {
    "BOOLEAN": ("true", True),
    "TINYINT": ("-7Y", -7),
    "SMALLINT": ("-7S", -7),
    "INT": ("-7", -7),
    "BIGINT": ("9007199254740993", 9007199254740993),
    "FLOAT": ("1.5F", 1.5),
    "DOUBLE": ("1.5D", 1.5),
    "DECIMAL": ("CAST(2.50 AS DECIMAL(38, 18))", Decimal("2.5")),
    "STRING": ("'ä'", "ä"),
    "BINARY": ("X'00ff'", b"\x00\xff"),
    "DATE": ("DATE'0001-01-02'", dt.date(1, 1, 2)),
    "TIMESTAMP": (
        "TIMESTAMP'2026-07-01 10:00:00.000001Z'",
        dt.datetime(2026, 7, 1, 12, 0, 0, 1, BERLIN),
    ),
    "TIMESTAMP_NTZ": ("TIMESTAMP_NTZ'2026-07-01 10:00:00'", dt.datetime(2026, 7, 1, 10)),
    "INTERVAL DAY TO SECOND": (
        "INTERVAL '1 02:03:04.5' DAY TO SECOND",
        dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5),
    ),
    "ARRAY": ("array(1, NULL)", [1, None]),
    "STRUCT": ("named_struct('x', 1, 'y', NULL)", {"x": 1, "y": None}),
    "MAP": ("map('k', map(1, NULL, 2, array(3)), 'none', NULL)", {"k": {1: None, 2: [3]}, "none": None}),
    "VARIANT": (
        """parse_json('{"a": [1, 2.5, null, true], "b": {"c": "x"}}')""",
        {"a": [1, Decimal("2.5"), None, True], "b": {"c": "x"}},
    ),
    "VOID": ("NULL", None),
}


def test_a_database_is_read_by_jdbc_in_several_tasks(spark: Any) -> None:
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", "/dev/null")
    url = "jdbc:derby:memory:shop"
    spark.range(20).write.jdbc(f"{url};create=true", "numbers")

    def numbers(session: Any) -> Any:
        return session.read.jdbc(url, "numbers", column="id", lowerBound=0, upperBound=20, numPartitions=4)

    assert numbers(spark).rdd.getNumPartitions() == 4
    assert sorted(row["id"] for row in drive_source(SparkSource.query(numbers))) == list(range(20))


@pytest.mark.pysparks
@pytest.mark.parametrize("zone", [BERLIN, dt.timezone(dt.timedelta(hours=2), "UTC+2")], ids=str)
def test_each_type_of_spark_has_its_value(spark: Any, zone: dt.tzinfo) -> None:
    """The value, nothing, and both in an array in a struct in a map."""
    columns = [
        f"IF(id = 0, {value}, NULL) AS `{name}`, map('m', named_struct('s', array({value}, NULL))) AS `in {name}`"
        for name, (value, _) in VALUES.items()
    ]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", str(zone))
    try:
        found = drive_source(SparkSource.sql(f"SELECT id, {', '.join(columns)} FROM range(2)"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    row, nothing = sorted_rows(found)
    for name, (_, expected) in VALUES.items():
        assert (name, row[name], type(row[name])) == (name, expected, type(expected))
        assert (name, nothing[name]) == (name, None)
        assert (name, row[f"in {name}"]) == (name, {"m": {"s": [expected, None]}})
    assert row["TIMESTAMP"].tzinfo == row["in TIMESTAMP"]["m"]["s"][0].tzinfo == zone
    assert row["TIMESTAMP_NTZ"].tzinfo is None


def test_the_documents_name_each_type() -> None:
    page = Path(__file__).parents[4] / "docs" / "howto" / "connectors.md"
    named = re.findall(r"^\| ((?:`[^`|]+`(?:, )?)+) \|", page.read_text(), re.MULTILINE)
    types = {name for cell in named for name in re.findall(r"`([^`]+)`", cell)}
    assert types >= {*VALUES, "TIME", "INTERVAL YEAR TO MONTH", "INTERVAL", "GEOMETRY", "GEOGRAPHY"}


@dataclass
class Counted:
    id: int
    counts: dict[str, int | None]


def test_maps_are_dicts_in_fields_of_a_type_and_their_keys_can_be_looked_up(spark: Any) -> None:
    def make(session: Any) -> Any:
        return session.sql("SELECT 1L AS id, map('a', 1, 'b', NULL) AS counts")

    assert drive_source(of_session(make, records=Counted)) == [Counted(1, {"a": 1, "b": None})]
    keys = "map(named_struct('x', 1, 'y', array(2)), 'a') AS s, map(array(1, 2), 'b') AS l"
    [row] = drive_source(of_session(lambda session: session.sql(f"SELECT {keys}")))
    assert row == {"s": {(1, (2,)): "a"}, "l": {(1, 2): "b"}}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1 AS x, 2 AS x", "two columns are called 'x', and a record would have one of them: rename or drop one"),
        ("array(named_struct('x', 1, 'x', 2)) AS a", r"two columns are called 'a\[\].x'"),
        (
            "map('k', INTERVAL '1-2' YEAR TO MONTH) AS m",
            "column 'm.value' is interval year to month, which has no",
        ),
        ("make_interval(1) AS i", "column 'i' is interval, which has no value in a record: cast it in the query"),
    ],
)
def test_columns_that_no_record_can_have_are_refused(spark: Any, columns: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot read the query .*: {message}"):
        drive_source(SparkSource.sql(f"SELECT {columns}"))


def test_dataframes_tables_statements_and_paths_are_read(spark: Any, tmp_path: Path) -> None:
    words(spark).write.saveAsTable("words_of_ours")
    words(spark).write.csv(str(tmp_path / "csv"), header=True)
    words(spark).createOrReplaceTempView("words_in_view")
    sources = [
        SparkSource.dataframe(words(spark)),
        SparkSource.table("words_of_ours"),
        SparkSource.sql("SELECT * FROM words_in_view WHERE id >= 0"),
        SparkSource.of(table="words_in_view"),
    ]
    for source in sources:
        assert sorted_rows(drive_source(source)) == EXPECTED
    from_csv = drive_source(SparkSource.path(str(tmp_path / "csv"), "csv", reader_options={"header": True}))
    assert sorted(from_csv, key=lambda r: int(r["id"]))[11] == {"id": "11", "word": "w1"}


@pytest.mark.pysparks
def test_a_pipeline_counts_what_spark_has_made(spark: Any) -> None:
    flow = sw.Pipeline("counts")
    counts = flow.source(of_session(words, records=Word)).key_by(lambda w: w.word).count()
    result: dict[str, int] = {}
    with counts.execute_and_collect(parallelism=2) as rows:
        for word, count in rows:
            result[word] = max(count, result.get(word, 0))
    assert result == {f"w{n}": 10 for n in range(10)}


def test_worker_processes_read_too(spark: Any) -> None:
    flow = sw.Pipeline("counts")
    counts = flow.source(of_session(words, records=tuple)).key_by(lambda w: w[1]).count()
    result: dict[str, int] = {}
    with counts.execute_and_collect(workers=2) as rows:
        for word, count in rows:
            result[word] = max(count, result.get(word, 0))
    assert result == {f"w{n}": 10 for n in range(10)}


def test_nothing_is_computed_again_for_a_restore(spark: Any, tmp_path: Path) -> None:
    # Rows that are new each time they are computed.
    def make(session: Any) -> Any:
        return session.range(0, 60, 1, 3).selectExpr("id", "uuid() AS unlike").repartition(3)

    source = of_session(make, staging=str(tmp_path))
    with SourceDriver(source, limit=5) as driver:
        before, at = list(driver.run(most=20)), driver.snapshot()
    with SourceDriver(source, limit=5, restored=at) as again:
        rest = again.run()
    assert len(before) + len(rest) == 60
    assert {r["id"] for r in (*before, *rest)} == set(range(60))
    [run] = tmp_path.iterdir()  # both used the same
    assert run.name.startswith("staged-")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (words, True),
        (lambda s: s.read.parquet("words.parquet").where("id > 3"), True),
        (lambda s: words(s).repartition(3), False),
        (lambda s: words(s).orderBy("word"), False),
        (lambda s: s.range(9).selectExpr("id", "rand() AS r"), False),
        (lambda s: words(s).mapInArrow(lambda batches: batches, "id long, word string"), False),
    ],
)
def test_what_reading_again_would_give_the_same_is_given_early(
    spark: Any, make: Any, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluiceway_spark.connector.dataframes import fingerprint_of, is_repeatable

    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "words.parquet"
    words(spark).write.parquet(str(path))
    reader = type(spark.read)
    parquet = reader.parquet
    monkeypatch.setattr(reader, "parquet", lambda self, name: parquet(self, str(tmp_path / "run" / name)))
    frame = make(spark)
    assert is_repeatable(frame) is expected
    assert fingerprint_of(frame) == fingerprint_of(make(spark))


def test_a_task_that_spark_cancels_has_staged_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees the end of its input, as if that were all."""
    for name, given in (("is_repeatable", True), ("fingerprint_of", "the same")):
        monkeypatch.setattr(f"sluiceway_spark.connector.enumerator.{name}", lambda frame, given=given: given)
    sleeps = [600_000, 0]

    def make(session: Any) -> Any:
        sleep = f"reflect('java.lang.Thread', 'sleep', {sleeps.pop(0)}L)"
        return session.range(0, 20, 1, 2).selectExpr("id", f"IF(id >= 10, {sleep}, '') AS slept")

    source = of_session(make, staging=str(tmp_path))
    with SourceDriver(source, limit=5) as driver:
        before, at = list(driver.run(most=5)), driver.snapshot()
    with SourceDriver(source, restored=at) as again:
        rest = again.run()
    assert sorted(row["id"] for row in (*before, *rest)) == list(range(20))


def test_a_table_that_has_changed_is_not_gone_on_with(spark: Any, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    words(spark).write.parquet(table)
    source = SparkSource.path(table, staging=str(tmp_path / "staging"))
    with SourceDriver(source, limit=5) as driver:
        taken = len(driver.run(most=20))
        driver._driver.enumerator._complete = False  # type: ignore[attr-defined] - as it is while Spark computes
        at = driver.snapshot()
    with SourceDriver(source, restored=at) as again:
        assert len(again.run()) == 100 - taken
    words(spark).write.mode("append").parquet(table)
    with SourceDriver(source, restored=at) as again:  # noqa: SIM117 - it is this that must raise
        with pytest.raises(ConnectorError, match="has changed since the checkpoint"):
            again.run()


def test_what_is_staged_and_gone_is_said(spark: Any, tmp_path: Path) -> None:
    source = of_session(words, staging=str(tmp_path / "a"))
    with SourceDriver(source, limit=5) as driver:
        driver.run(most=20)
        at = driver.snapshot()
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(ConnectorError, match=r"is gone: a job that is to go on .* needs staging="):
        SourceDriver(source, restored=at)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.table("nowhere"), r"cannot read the query .*: .*nowhere.* cannot be found"),
        (lambda s: s.range(3).selectExpr("assert_true(id < 2) AS x"), r"Spark cannot compute the query"),
        (
            lambda s: s.read.format("delta").load("orders"),
            r"source: delta.* The session has to have the package of this format from its start, by spark.jars",
        ),
    ],
)
def test_what_spark_says_is_told_without_its_stack(spark: Any, make: Any, message: str) -> None:
    with pytest.raises(ConnectorError, match=message) as caught:
        drive_source(of_session(make))
    assert "\tat " not in str(caught.value)


def test_rows_that_do_not_fit_their_type_are_told(spark: Any) -> None:
    def make(session: Any) -> Any:
        return session.sql("SELECT 'x' AS id, 'y' AS word")

    with pytest.raises(ConnectorError, match=r"a row of the query make is no Word: Expected `int`, got `str`"):
        drive_source(of_session(make, records=Word))
    with pytest.raises(ConnectorError, match=r"has no column 'word' for Word; it has 'id'"):
        drive_source(of_session(lambda s: s.range(3), records=Word))


def test_a_dataframe_stays_in_its_process(spark: Any) -> None:
    from sluiceway_spark.connector import dataframes

    pickled = cloudpickle.dumps(SparkSource.dataframe(spark.range(3)))
    dataframes._given.clear()
    with pytest.raises(ConnectorError, match=r"in another process .* give SparkSource.query a function"):
        drive_source(cloudpickle.loads(pickled))


class StandIn:
    """DataFrame, as far as a source looks at it before it reads."""

    def mapInArrow(self) -> None:
        raise AssertionError("nothing is read")


def test_a_dataframe_lasts_as_long_as_the_sources_of_it() -> None:
    frame = StandIn()
    last = weakref.ref(frame)
    source = SparkSource.dataframe(frame)
    copied = cloudpickle.loads(cloudpickle.dumps(source))
    del frame, source
    assert copied._frame.open() is last()
    del copied
    assert last() is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparkSource("words"), r"is made by SparkSource.dataframe, .query, .sql, .table or .path"),
        (lambda: SparkSource.dataframe("words"), r"takes a DataFrame of Spark's, not 'words'"),
        (lambda: SparkSource.query("words"), r"takes a function of a session, not 'words'"),
        (lambda: SparkSource.table(""), r"SparkSource.table takes a text"),
        (lambda: SparkSource.table("t", records=int), r"records=<class 'int'> must be dict, tuple, 'arrow'"),
        (lambda: SparkSource.table("t", staging="s3://b/x"), r"staging='s3://b/x' must be a directory"),
        (lambda: SparkSource.table("t", conf={"ui": 1}), r"conf=: 'ui' is no setting of Spark's"),
        (lambda: SparkSource.table("t", master="local", remote="sc://x"), r"do not go together"),
        (lambda: SparkSource.of(table="t", sql="SELECT 1"), r"takes one of table=, sql= and path="),
    ],
)
def test_arguments_that_cannot_be_used_are_told(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
