"""Pipelines between two DataFrames of a session, batch and streaming."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENT_S

import sluiceway as sw
from sluiceway.errors import ConfigurationError, GraphError
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = [{"word": f"k{i % 3}", "at": i * 100, "n": i} for i in range(200)]
DDL = "word string, at long, n long"
STAMPED: Any = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row: row["at"])
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

KEYED_STREAMS = pytest.mark.skipif(too_old(MICRO_BATCHES) is not None, reason=f"streams: {too_old(MICRO_BATCHES)}")

ROOT = Path(__file__).parents[4]
_ATTEMPTS = 10


@dataclass(frozen=True)
class Total:
    """Sum of a key."""

    word: str
    n: int


def added(a: Any, b: Any) -> Any:
    return {"word": a["word"], "at": max(a["at"], b["at"]), "n": a["n"] + b["n"]}


def sums(rows: Any) -> Any:
    return rows.key_by(lambda row: row["word"]).window(TumblingEventTimeWindows.of(1000)).reduce(added)


def totals(rows: Any) -> Any:
    even = rows.filter(lambda row: row["n"] % 2 == 0).map(lambda row: Total(row["word"], row["n"]))
    return even.key_by(lambda total: total.word).reduce(lambda a, b: Total(a.word, a.n + b.n))


def local(build: Any, rows: list[Any] = ROWS) -> list[Any]:
    """Results of the pipeline in one process."""
    flow = sw.Pipeline("local")
    found = build(flow.from_collection(rows, watermark_strategy=STAMPED)).collect()
    flow.run()
    return list(found)


@pytest.fixture(scope="module")
def session(spark: Any) -> Iterator[Any]:
    settings = {PROVIDER: ROCKSDB, "spark.sql.shuffle.partitions": "2"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(scope="module")
def frame(session: Any) -> Any:
    return session.createDataFrame([tuple(row.values()) for row in ROWS], DDL).repartition(3)


def transform(*arguments: Any, **options: Any) -> Any:
    from sluiceway_spark import transform

    return transform(*arguments, **options)


def test_rows_of_a_dataframe_become_rows_of_another(frame: Any) -> None:
    from pyspark.sql.functions import max as highest

    columns = ["word", "at", "n"]
    expected = sorted((row["word"], row["at"], row["n"]) for row in local(sums))
    found = transform(frame, sums, DDL, watermark_strategy=STAMPED)
    assert found.columns == columns
    assert sorted(map(tuple, found.collect())) == expected
    # It is a DataFrame like any other.
    assert found.groupBy("word").agg(highest("n")).count() == 3
    chained = frame.transform(transform, totals, "word string, n long").groupBy("word").agg(highest("n"))
    ends = {row["word"]: sum(r["n"] for r in ROWS if r["word"] == row["word"] and r["n"] % 2 == 0) for row in ROWS}
    assert dict(map(tuple, chained.collect())) == ends


def test_a_window_of_all_and_a_step_behind_it_see_every_partition(frame: Any) -> None:
    def build(rows: Any) -> Any:
        return rows.window_all(TumblingEventTimeWindows.of(5000)).reduce(added).map(lambda row: row["n"])

    found = transform(frame, build, "n long", watermark_strategy=STAMPED)
    assert sorted(row.n for row in found.collect()) == sorted(local(build))


def united_sums(rows: Any) -> Any:
    odd, even = rows.filter(lambda row: row["n"] % 2), rows.filter(lambda row: row["n"] % 2 == 0)
    return sums(odd.union(even.connect(odd).map(dict, dict)).map(dict))


def test_a_union_before_the_keys_has_the_records_of_every_partition(frame: Any) -> None:
    expected = sorted((row["word"], row["at"], row["n"]) for row in local(united_sums))
    found = transform(frame, united_sums, DDL, watermark_strategy=STAMPED)
    assert sorted(map(tuple, found.collect())) == expected


def test_a_step_of_two_streams_behind_keys_is_called_by_these_alone(frame: Any) -> None:
    """It runs in the tasks of the keyed step, and others follow behind a shuffle."""

    def build(rows: Any) -> Any:
        counts = rows.key_by(lambda row: row["word"]).count()
        odd, even = (counts.filter(lambda pair, rest=rest: pair[1] % 2 == rest) for rest in (1, 0))
        return odd.map(tuple).union(even.map(tuple)).map(tuple).key_by(lambda pair: pair[0]).count()

    found = transform(frame, build, "word string, n long")
    assert sorted(map(tuple, found.collect())) == sorted(local(build))


def test_an_empty_dataframe_gives_an_empty_one(session: Any) -> None:
    nothing = session.createDataFrame([], DDL)
    assert transform(nothing, sums, DDL, watermark_strategy=STAMPED).collect() == []
    assert transform(nothing, lambda rows: rows.map(dict), DDL).collect() == []


def test_columns_have_any_name(session: Any, tmp_path: Path) -> None:
    frame = session.sql("SELECT 1L AS `a.b`, 2L AS `c``d`, 3L AS e, 4L AS E")

    def told(rows: Any) -> Any:
        return rows.map(lambda row: {"told": str(row)})

    [row] = transform(frame, told, "told string").collect()
    assert row.told == "{'a.b': 1, 'c`d': 2, 'e': 3, 'E': 4}"
    [row] = transform(frame, lambda rows: told(rows.key_by(lambda row: row["a.b"])), "told string").collect()
    assert row.told == "{'a.b': 1, 'c`d': 2, 'e': 3, 'E': 4}"
    (tmp_path / "rows").write_text('{"a.b": 1, "c`d": 2}')
    stream = session.readStream.schema("`a.b` long, `c``d` long").json(str(tmp_path))
    written = transform(stream, told, "told string").writeStream.format("memory").queryName("any_name")
    query = written.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENT_S)
    assert [row.told for row in session.table("any_name").collect()] == ["{'a.b': 1, 'c`d': 2}"]


def test_event_times_come_from_a_column_and_go_into_one(session: Any) -> None:
    from pyspark.sql.functions import timestamp_millis

    frame = session.createDataFrame([tuple(row.values()) for row in ROWS], DDL)
    frame = frame.withColumn("at", timestamp_millis("at"))
    strategy = sw.WatermarkStrategy.for_monotonous_timestamps()

    def build(rows: Any) -> Any:
        return sums(rows).map(lambda row: {"word": row["word"], "n": row["n"]})

    found = transform(
        frame,
        build,
        "word string, n long, closed timestamp",
        timestamp="at",
        watermark_strategy=strategy,
        result_timestamp="closed",
    )
    expected = sorted((row["word"], row["n"], row["at"] // 1000) for row in local(sums))
    with_second = found.selectExpr("word", "n", "unix_millis(closed) div 1000")
    assert sorted(map(tuple, with_second.collect())) == expected


def test_records_have_the_type_that_is_asked_for(session: Any) -> None:
    frame = session.createDataFrame([("a", 1), ("b", 2)], "word string, n long")
    doubled = transform(frame, lambda rows: rows.map(double), records=Total)  # its hints say the columns
    assert doubled.schema.simpleString() == "struct<word:string,n:bigint>"
    assert sorted(map(tuple, doubled.collect())) == [("a", 2), ("b", 4)]
    words = transform(frame.select("word"), lambda words: words.map(str.upper), "upper string", records="value")
    assert sorted(row.upper for row in words.collect()) == ["A", "B"]


def double(total: Total) -> Total:
    return Total(total.word, 2 * total.n)


def test_a_failing_function_and_a_record_that_does_not_fit_are_named(frame: Any) -> None:
    from pyspark.errors import PythonException

    with pytest.raises(PythonException) as failed:
        transform(frame, lambda rows: rows.map(lambda row: 1 // (150 - row["n"])), "n long").collect()
    assert "ZeroDivisionError" in str(failed.value)
    assert "'n': 150" in str(failed.value)
    with pytest.raises(PythonException) as misfit:
        transform(frame, totals, "word long, n long", name="sums").collect()
    assert "transform 'sums': column 'word' is int64, which 'k" in str(misfit.value)
    with pytest.raises(PythonException) as missing:
        transform(frame, lambda rows: rows.map(lambda row: {"n": None}), "n long not null").collect()
    assert "column 'n' is NOT NULL, and has no value in {'n': None}" in str(missing.value)
    nothing = {"n": {"of": None}}
    with pytest.raises(PythonException) as within:
        transform(frame, lambda rows: rows.map(lambda row: nothing), "n struct<of: long not null>").collect()
    assert "column 'n.of' is NOT NULL, and has no value in {'n': {'of': None}}" in str(within.value)
    assert "sluiceway-failed" not in str(failed.value) + str(misfit.value)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda rows: rows.print(), "build returned a sink"),
        (lambda rows: [rows, rows], "a transform has one result"),
        (lambda rows: (rows.collect(), rows)[1], "a transform has no sink of its own"),
        (lambda rows: sw.Pipeline("other").from_collection([1]), "a stream of another pipeline"),
        (lambda rows: rows.union(rows._pipeline.from_collection([1])), "no source of its own"),
        (lambda rows: None, "build returned None"),
        (
            lambda rows: rows.key_by(lambda row: row["n"]).window(TumblingEventTimeWindows.of(1000)),
            "WindowedStream",
        ),
        (lambda rows: rows, "the columns of the result cannot be told"),
    ],
)
def test_what_cannot_be_is_refused_before_spark_does_anything(frame: Any, build: Any, said: str) -> None:
    with pytest.raises((ConfigurationError, GraphError), match=said):
        transform(frame, build)


def test_a_dataframe_of_a_stopped_session_is_refused(frame: Any) -> None:
    class Stopped:
        mapInArrow = schema = frame.mapInArrow
        sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))

    with pytest.raises(ConfigurationError, match="transform 'totals': the session of the DataFrame was stopped"):
        transform(Stopped(), totals, DDL)


def test_arguments_that_do_not_fit_the_dataframe_are_refused(frame: Any) -> None:
    for options, said in (
        ({"schema": "word strong"}, "strong"),
        ({"schema": DDL, "timestamp": "when"}, "none of the columns of the DataFrame: word, at, n"),
        ({"schema": DDL, "result_timestamp": "at"}, "no timestamp column of the result, which has word string"),
        ({"schema": DDL, "records": "value"}, "takes one column"),
        ({"schema": DDL, "timestamp": "word"}, "timestamp='word': the column is string, not a timestamp or ms"),
        ({"schema": "n long, word string, n int"}, "the result: there are two columns 'n': rename one of them"),
        ({"schema": "n struct<of: struct<a: int, a: int>>"}, "there are two columns 'n.of.a'"),
        ({"schema": ["word", "n"]}, "must be a text such as 'word string, count long'"),
        ({"schema": DDL, "parallelism": "2"}, "parallelism='2' is not a whole number >= 1"),
        ({"schema": DDL, "max_parallelism": 0}, "max_parallelism=0 is not a whole number >= 1"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            transform(frame, totals, **options)
    long = frame.selectExpr("named_struct('of', INTERVAL '1' DAY) AS n")
    for options, said in (
        (
            {"schema": long.schema},
            "transform 'totals': the result: column 'n.of' is interval day, for which",
        ),
        (
            {"schema": DDL, "records": "columns"},
            "the DataFrame of transform 'totals': column 'n.of' is interval",
        ),
    ):
        with pytest.raises(ConfigurationError, match=said):
            transform(long, totals, **options)
    with pytest.raises(ConfigurationError, match="two columns are called 'n'"):
        transform(frame.select("n", "n"), totals, "n long")


@pytest.mark.parametrize("records", [dict, "arrow", "columns"], ids=str)
def test_watermarks_of_rows_without_event_times_are_refused(frame: Any, records: Any) -> None:
    late: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness("1m")
    said = r"name its column with timestamp=, or add with_timestamp_(assigner|column)\("
    with pytest.raises(ConfigurationError, match=said):
        transform(frame, lambda rows: rows, frame.schema, records=records, watermark_strategy=late)
    kept = {row["n"] for row in frame.collect()}
    strategies: list[Any] = [sw.WatermarkStrategy.no_watermarks()]
    strategies += [late.with_timestamp_column("at")] if records == "columns" else []
    for strategy in strategies:
        result = transform(frame, lambda rows: rows, frame.schema, records=records, watermark_strategy=strategy)
        assert {row["n"] for row in result.collect()} == kept


def test_the_page_says_what_works(session: Any, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "spark.md").read_text()
    section = page.partition("\n## Between two DataFrames\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    names: dict[str, Any] = {"spark": session, "__name__": "page"}
    exec(blocks[0], names)
    found = names["spent"].groupBy("customer").sum("price").collect()
    assert sorted(map(tuple, found)) == [("ann", 42.0), ("bob", 5.0)]
    names["orders"].coalesce(1).write.parquet(str(tmp_path / "orders"))
    there = re.sub(r'"(orders|visits|visits-checkpoint)"', lambda name: repr(str(tmp_path / name[1])), blocks[1])
    patiently(lambda: exec(there, names))
    # Bob's order has moved the watermark behind Ann's visit; his own may go on.
    written = session.read.parquet(str(tmp_path / "visits")).collect()
    assert [(row.customer, row.price) for row in written] == [("ann", 42.0)]


@KEYED_STREAMS
def test_the_page_of_notebooks_says_what_works(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    page = (ROOT / "docs" / "howto" / "notebook.md").read_text()
    section = page.partition("\n## With a session of Spark\n")[2].partition("\n## ")[0]
    begin, batch, stream = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "page"}
    exec(begin, names)
    exec(batch.replace("result.groupBy", "shown = result.groupBy"), names)
    assert dict(names["shown"].itertuples(index=False)) == {"attic": 24.0, "cellar": 12.0}
    names["frame"].coalesce(1).write.parquet(str(tmp_path / "readings"))
    there = stream.replace('"readings"', repr(str(tmp_path / "readings")))
    try:
        patiently(lambda: exec(there, names))
    finally:
        for query in session.streams.active:
            query.stop()
    found = sorted(names["found"].itertuples(index=False, name=None))
    assert found == [("attic", 20.0), ("attic", 24.0), ("cellar", 12.0)]


# ---- streaming -------------------------------------------------------------------------------------------------


def patiently(run: Callable[[], object]) -> None:
    """Spark gives the first Python process of a query 10 s to start, which a busy machine may not do."""
    from pyspark.errors import StreamingQueryException

    for attempt in range(_ATTEMPTS):
        try:
            run()
            return
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or attempt == _ATTEMPTS - 1:
                raise


class Days:
    """Directory of files that a query reads one by one, and its checkpoint."""

    def __init__(self, session: Any, place: Path) -> None:
        self.session = session
        self.place = place
        (place / "in").mkdir()

    def write(self, name: str, rows: list[Any]) -> None:
        lines = "".join(f"{row['word']},{row['at']},{row['n']}\n" for row in rows)
        (self.place / f"{name}.new").write_text(lines)
        os.utime(self.place / f"{name}.new", (int(name), int(name)))  # by which Spark reads them in their order
        (self.place / f"{name}.new").rename(self.place / "in" / f"{name}.csv")

    def read(self) -> Any:
        reader = self.session.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return reader.csv(str(self.place / "in"))

    def run(self, result: Any) -> None:
        writer = result.writeStream.format("parquet").option("checkpointLocation", str(self.place / "kept"))
        writer = writer.trigger(availableNow=True)
        patiently(lambda: writer.start(str(self.place / "out")).awaitTermination())

    def found(self) -> list[Any]:
        return sorted(map(tuple, self.session.read.parquet(str(self.place / "out")).collect()))


@pytest.fixture
def days(session: Any, tmp_path: Path) -> Days:
    return Days(session, tmp_path)


@KEYED_STREAMS
def test_a_stream_keeps_its_state_from_query_to_query(days: Days) -> None:
    expected = sorted((row["word"], row["at"], row["n"]) for row in local(sums))
    days.write("1", ROWS[:70])
    days.write("2", ROWS[70:110])
    days.run(transform(days.read(), sums, DDL, watermark_strategy=STAMPED))
    begun = days.found()
    assert begun
    assert all(row in expected for row in begun)  # a window is written when it has closed, and not before
    days.write("3", ROWS[110:])
    # The second one is late, and ends all windows of the others.
    days.write("4", [{"word": "k0", "at": 100, "n": 1}, {"word": "k0", "at": 100_000, "n": 0}])
    days.run(transform(days.read(), sums, DDL, watermark_strategy=STAMPED))
    assert days.found() == expected


@KEYED_STREAMS
def test_a_later_query_has_its_own_functions(days: Days) -> None:
    """Python workers, with the subtasks of the first query, stay for the second one."""

    def told(tag: str) -> Any:
        def build(rows: Any) -> Any:
            return rows.key_by(lambda row: row["word"]).count().map(lambda pair: (tag, *pair))

        return transform(days.read(), build, "tag string, word string, n long")

    days.write("1", ROWS[:70])
    days.run(told("first"))
    days.write("2", ROWS[70:])
    days.run(told("second"))
    expected = local(lambda rows: rows.key_by(lambda row: row["word"]).count())
    begun = [row["word"] for row in ROWS[:70]]
    assert days.found() == sorted(
        ("first" if n <= begun.count(word) else "second", word, n) for word, n in expected
    )


@KEYED_STREAMS
def test_few_key_groups_need_no_parallelism(days: Days) -> None:
    days.write("1", ROWS[:70])
    transform(days.read(), totals, "word string, n long", max_parallelism=2)


@KEYED_STREAMS
def test_a_union_before_the_keys_of_a_stream_has_the_records_of_every_partition(days: Days) -> None:
    expected = sorted((row["word"], row["at"], row["n"]) for row in local(united_sums))
    days.write("1", ROWS[:70])
    days.write("2", ROWS[70:])
    days.write("3", [{"word": "k0", "at": 100_000, "n": 0}])
    frame = days.read().repartition(3)
    days.run(transform(frame, united_sums, DDL, watermark_strategy=STAMPED))
    assert days.found() == expected


@KEYED_STREAMS
def test_a_pipeline_of_some_megabytes_keeps_state_too(days: Days) -> None:
    table = {f"k{n}": "x" * 100 + str(n) for n in range(20_000)}

    def build(rows: Any) -> Any:
        counted = rows.key_by(lambda row: row["word"]).count()
        return counted.map(lambda pair: (table[pair[0]].lstrip("x"), pair[1]))

    days.write("1", ROWS[:70])
    days.write("2", ROWS[70:])
    days.run(transform(days.read(), build, "word string, n long"))
    assert days.found() == sorted(
        (word[1:], n) for word, n in local(lambda r: r.key_by(lambda x: x["word"]).count())
    )


@KEYED_STREAMS
def test_a_checkpoint_belongs_to_the_steps_that_wrote_it(days: Days) -> None:
    from pyspark.errors import StreamingQueryException

    days.write("1", ROWS[:70])
    days.run(transform(days.read(), totals, "word string, n long", max_parallelism=4))
    days.write("2", ROWS[70:])
    with pytest.raises(StreamingQueryException, match="written by a pipeline with other steps"):
        days.run(transform(days.read(), totals, "word string, n long", max_parallelism=8))
    days.run(transform(days.read(), totals, "word string, n long", max_parallelism=4))
    even = [row for row in ROWS if row["n"] % 2 == 0]
    assert max(n for word, n in days.found() if word == "k0") == sum(r["n"] for r in even if r["word"] == "k0")


@KEYED_STREAMS
def test_state_without_a_key_a_store_or_a_version_is_refused_for_streams(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluiceway_spark.session import pyspark_version

    stream = days.read()
    with monkeypatch.context() as patch:
        patch.setattr(pyspark_version, "installed", lambda: "4.1.2")
        with pytest.raises(ConfigurationError, match=r"PySpark 4\.2 or later is needed, and 4\.1\.2 is installed"):
            transform(stream, totals, "word string, n long")
    with pytest.raises(GraphError, match=r"run anew in each partition of each micro-batch"):
        transform(stream, lambda rows: rows.map(Counter()), "n long")
    days.session.conf.set(PROVIDER, "org.example.Other")
    try:
        with pytest.raises(ConfigurationError, match=r"this session has Other.*call spark\.conf\.set\("):
            transform(stream, totals, "word string, n long")
        assert transform(stream, lambda rows: rows.map(dict), DDL).isStreaming  # has no state
    finally:
        days.session.conf.set(PROVIDER, ROCKSDB)


class Counter(sw.MapFunction[Any, int], sw.CheckpointedFunction):
    """Number of a record, in state without a key."""

    def __init__(self) -> None:
        self.seen = 0

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> int:
        self.seen += 1
        return self.seen


def test_timestamps_are_utc(session: Any) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    frame = session.createDataFrame([(at,)], "at timestamp")
    (row,) = (
        transform(frame, lambda rows: rows.map(dict), "at timestamp").selectExpr("unix_seconds(at) s").collect()
    )
    assert row.s == at.timestamp()


LIBRARY = """
def totals(rows):
    return rows.key_by(lambda row: row["word"]).reduce(lambda a, b: {"word": a["word"], "n": a["n"] + b["n"]})
"""
PROGRAM = """
from pyspark.sql import SparkSession
from shipped_library import totals
from sluiceway_spark import transform

spark = SparkSession.builder.getOrCreate()
frame = spark.range(30).selectExpr("concat('k', id % 3) AS word", "id AS n").repartition(2)
result = transform(frame, totals, "word string, n long").groupBy("word").max("n")
print("found", sorted(map(tuple, result.collect())))
spark.stop()
"""


def test_a_submitted_program_takes_its_modules_to_the_executors(spark_cluster: Any, tmp_path: Path) -> None:
    import pyspark

    with zipfile.ZipFile(tmp_path / "library.zip", "w") as library:
        library.writestr("shipped_library.py", LIBRARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    files = ["--py-files", str(tmp_path / "library.zip"), str(tmp_path / "program.py")]
    run = subprocess.run(
        [submit, *files], env=spark_cluster.environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "found [('k0', 135), ('k1', 145), ('k2', 155)]" in run.stdout


def in_columns(rows: Any) -> Any:
    """Sums of windows of what a function of records leaves."""
    from sluiceway.table import agg, col

    kept = rows.filter(col("n") % 2 == 0).map(dict).to_columns(rows.schema)
    return (
        kept.key_by("word").window(TumblingEventTimeWindows.of(5000)).aggregate(n=agg.sum("n"), count=agg.count())
    )


@pytest.mark.parametrize("streams", [False, pytest.param(True, marks=KEYED_STREAMS)], ids=["batch", "stream"])
def test_a_dataframe_enters_and_leaves_in_columns(session: Any, frame: Any, tmp_path: Path, streams: bool) -> None:
    import pyarrow as pa

    strategy: Any = sw.WatermarkStrategy.for_bounded_out_of_orderness("1h").with_timestamp_column("at")
    flow = sw.Pipeline("local")
    expected = in_columns(flow.table(pa.Table.from_pylist(ROWS), watermark_strategy=strategy)).to_arrow()
    options: dict[str, Any] = {"records": "columns", "watermark_strategy": strategy}
    if not streams:
        found = transform(frame, in_columns, **options)
        assert found.dtypes[:3] == [("word", "string"), ("n", "bigint"), ("count", "bigint")]
        got = found.toArrow()
    else:
        late = [*ROWS, {**ROWS[0], "at": ROWS[-1]["at"] + 10**9}]  # behind it no window of the others is open
        (tmp_path / "in").mkdir()
        for number, part in enumerate((late[:100], late[100:]), 1):
            file = tmp_path / "in" / f"{number}.json"
            file.write_text("".join(json.dumps(row) + "\n" for row in part))
            os.utime(file, (number, number))  # by which Spark reads them in their order
        source = session.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        query = transform(source, in_columns, **options).writeStream.format("parquet")
        query = query.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "kept"))
        query.trigger(availableNow=True).start().awaitTermination()
        assert len(list((tmp_path / "kept" / "commits").glob("[0-9]*"))) == 2
        got = session.read.parquet(str(tmp_path / "out")).toArrow()
    order: Any = [("window_start", "ascending"), ("word", "ascending")]
    assert got.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
