"""What SparkSink writes, as far as no session is needed: Parquet and ORC, read back by pyarrow."""

from __future__ import annotations

import datetime as dt
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict

import cloudpickle
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import sluiceway as sw
from sluiceway.connector import Sink
from sluiceway.errors import ConfigurationError, ConnectorError, SuppressRestartsError
from sluiceway.testing.conformance.committing import CommittingSinkConformance
from sluiceway.testing.drivers import SinkDriver, drive_sink
from sluiceway_spark import SparkSink


def columns(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


WORDS = columns(id=pa.int64(), word=pa.string())


@dataclass
class Word:
    id: int
    word: str | None = None


class Pair(NamedTuple):
    id: int
    word: str


class Half(msgspec.Struct):
    word: str
    number: int = msgspec.field(name="id", default=7)


class Typed(TypedDict):
    id: int
    word: str


def rows_in(place: Path, form: str = "parquet") -> list[Any]:
    """As Spark finds them: hidden names are none, and directories are columns."""
    if not place.exists():
        return []
    found: Any = ds.dataset(place, format=form, partitioning="hive", ignore_prefixes=["_", "."])  # type: ignore
    return found.to_table().to_pylist() if found.files else []


def files_in(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


# ---- the conformance suites ------------------------------------------------------------------------------------


class _InDirectory:
    form = "parquet"
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.directory, self.made = tmp_path, 0

    def make_sink(self) -> Sink[Any]:
        self.made += 1
        self.place = self.directory / str(self.made)
        return SparkSink.path(self.place, schema=WORDS, format=self.form, **self.options)

    def records(self) -> list[Any]:
        return [{"id": n, "word": f"w{n % 3}"} for n in range(24)]

    def written(self) -> list[Any]:
        return rows_in(self.place, self.form)

    def identity(self, record: Any) -> Any:
        return record["id"], record["word"]


class TestParquet(_InDirectory, CommittingSinkConformance):
    visible_after_failure = False


class TestOrc(_InDirectory, CommittingSinkConformance):
    form = "orc"


class TestPartitioned(_InDirectory, CommittingSinkConformance):
    ordered = False
    options: ClassVar[dict[str, Any]] = {"partition_by": "word"}


class TestManySmallFiles(_InDirectory, CommittingSinkConformance):
    ordered = False
    options: ClassVar[dict[str, Any]] = {"row_group_size": 1, "file_size": 1}


class TestOverwriting(_InDirectory, CommittingSinkConformance):
    options: ClassVar[dict[str, Any]] = {"mode": "overwrite"}


# ---- records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "records"),
    [
        (None, [Word(1, "to"), Word(2)]),
        (None, [Pair(1, "to"), Pair(2, None)]),  # type: ignore[arg-type]
        (WORDS, [(1, "to"), (2, None)]),
        (WORDS, [[1, "to"], [2, None]]),
        (WORDS, [{"word": "to", "id": 1}, {"id": 2}]),
        (Word, [{"word": "to", "id": 1}, {"id": 2, "word": None}]),
        (Typed, [{"word": "to", "id": 1}, {"id": 2, "word": None}]),
        (WORDS, [Half("to", 1), Half(None, 2)]),  # type: ignore[arg-type]
        (WORDS, [Word(1, "to"), (2, None)]),
        (None, [pa.RecordBatch.from_pylist([{"id": 1, "word": "to"}, {"id": 2, "word": None}], schema=WORDS)]),
        (
            WORDS,
            [pa.table({"word": pa.array(["to", None]).dictionary_encode(), "id": pa.array([1, 2], pa.int8())})],
        ),
    ],
)
def test_rows_of_all_kinds(tmp_path: Path, schema: Any, records: list[Any]) -> None:
    drive_sink(SparkSink.path(tmp_path / "out", schema=schema), records)
    assert rows_in(tmp_path / "out") == [{"id": 1, "word": "to"}, {"id": 2, "word": None}]
    [file] = files_in(tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / file).equals(WORDS)


def test_a_struct_has_the_columns_that_it_is_encoded_with(tmp_path: Path) -> None:
    drive_sink(SparkSink.path(tmp_path / "out"), [Half("to", 1)])
    assert rows_in(tmp_path / "out") == [{"word": "to", "id": 1}]


class Inner(NamedTuple):
    x: int
    y: list[float]


@dataclass
class Everything:
    flag: bool
    price: Decimal
    day: dt.date
    at: dt.datetime
    raw: bytes
    inner: Inner | None
    words: list[Word]
    counts: dict[str, int]
    small: Annotated[int, pa.int16()]
    side: Literal["left", "right"]
    several: tuple[int, ...]


def test_values_of_all_kinds(tmp_path: Path) -> None:
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.timezone(dt.timedelta(hours=2)))
    full = Everything(
        True, Decimal("2.50"), at.date(), at, b"\0", Inner(1, [0.5]), [Word(1)], {"k": 2}, 3, "left", (4,)
    )
    empty = Everything(False, Decimal(0), at.date(), at.replace(tzinfo=None), b"", None, [], {}, 0, "right", ())
    drive_sink(SparkSink.path(tmp_path / "out"), [full, empty])
    first, second = rows_in(tmp_path / "out")
    assert first == {
        "flag": True,
        "price": Decimal("2.5"),
        "day": at.date(),
        "at": at,
        "raw": b"\0",
        "inner": {"x": 1, "y": [0.5]},
        "words": [{"id": 1, "word": None}],
        "counts": [("k", 2)],
        "small": 3,
        "side": "left",
        "several": [4],
    }
    assert (second["inner"], second["words"], second["counts"]) == (None, [], [])
    assert second["at"] == at.replace(tzinfo=dt.UTC)
    [file] = files_in(tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / file).field("small").type == pa.int16()


def test_times_are_cut_to_what_spark_has(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"at": pa.array([1_234_567_891], pa.timestamp("ns", "UTC"))})
    drive_sink(SparkSink.path(tmp_path / "out"), [batch])
    [row] = rows_in(tmp_path / "out")
    assert row["at"].microsecond == 234_567


@pytest.mark.parametrize(
    ("schema", "records", "message"),
    [
        (None, [{"id": 1}], r"a dict does not say which columns .* Give schema= a pyarrow.Schema, a StructType"),
        (None, [(1, "to")], r"a tuple does not say which columns there are"),
        (WORDS, ["to"], r"'to' \(str\) is no row: a dict, a tuple, a dataclass"),
        (WORDS, [{"id": 1, "size": 2}], r"has 'size', the columns are id, word"),
        (WORDS, [defaultdict(int, id=1, size=2)], r"has 'size', the columns are id, word"),
        (WORDS, [(1, "to", "be")], r"\(1, 'to', 'be'\) has 3 fields, there are 2 columns: id, word"),
        (WORDS, [Inner(1, [])], r"Inner has the fields x, y, the columns are id, word"),
        (WORDS, [(1, "to"), ("two", "be")], r"'id' is int64, which 'two' is not, of \('two', 'be'\)"),
        (WORDS, [(1, "to"), (2.5, "be")], r"'id' is int64, which 2.5 is not, of \(2.5, 'be'\)"),
        (WORDS, [(1 << 70, "to")], r"column 'id' is int64, which 1180591620717411303424 is not"),
        (WORDS, [pa.record_batch({"n": [1]})], r"an Arrow batch has the columns n, the columns are id, word"),
        (WORDS, [pa.record_batch({"id": ["x"], "word": ["y"]})], r"an Arrow batch does not fit the schema: .*'x'"),
        (None, [pa.record_batch({"n": pa.nulls(1)})], r"column 'n' is null, for which Spark has no type"),
    ],
)
def test_rows_that_do_not_fit_are_told(tmp_path: Path, schema: Any, records: list[Any], message: str) -> None:
    with pytest.raises((ConnectorError, ConfigurationError), match=message):
        drive_sink(SparkSink.path(tmp_path / "out", schema=schema), records)
    assert files_in(tmp_path / "out") == []


# ---- directories of partitions ---------------------------------------------------------------------------------


def test_partitions_are_named_as_spark_names_them(tmp_path: Path) -> None:
    schema = columns(day=pa.date32(), n=pa.int64(), word=pa.string(), on=pa.bool_())
    day = dt.date(2026, 1, 2)
    rows = [(day, 1, "a/b=c", True), (None, 2, "", False), (day, 3, "ü [x]", None), (day, 4, "a/b=c", True)]
    sink = SparkSink.path(tmp_path / "out", schema=schema, partition_by=["day", "word", "on"])
    drive_sink(sink, rows)
    none = "__HIVE_DEFAULT_PARTITION__"
    found = {str(Path(name).parent): pq.read_table(tmp_path / "out" / name, partitioning=None).to_pylist()
             for name in files_in(tmp_path / "out")}  # fmt: skip
    assert found == {
        "day=2026-01-02/word=a%2Fb%3Dc/on=true": [{"n": 1}, {"n": 4}],
        f"day={none}/word={none}/on=false": [{"n": 2}],
        f"day=2026-01-02/word=ü %5Bx%5D/on={none}": [{"n": 3}],
    }


def test_more_partitions_than_files_can_be_open(tmp_path: Path) -> None:
    sink = SparkSink.path(tmp_path / "out", schema=WORDS, partition_by="id")
    drive_sink(sink, [(n % 200, f"w{n}") for n in range(1000)], batch_size=1000)
    rows = rows_in(tmp_path / "out")
    assert sorted((r["id"], r["word"]) for r in rows) == sorted((n % 200, f"w{n}") for n in range(1000))
    assert len({Path(name).parent for name in files_in(tmp_path / "out")}) == 200


def test_large_files_are_followed_by_others(tmp_path: Path) -> None:
    sink = SparkSink.path(tmp_path / "out", schema=WORDS, row_group_size=10, file_size=1)
    drive_sink(sink, [(n, "w") for n in range(35)], batch_size=5)
    # A row group is what was held when it was enough: at the end of the input here.
    assert sum(pq.read_metadata(tmp_path / "out" / name).num_rows for name in files_in(tmp_path / "out")) == 35
    with SinkDriver(SparkSink.path(tmp_path / "b", schema=WORDS, row_group_size=10, file_size=1)) as driver:
        for n in range(3):
            driver.write([pa.record_batch({"id": list(range(10)), "word": [str(n)] * 10}, schema=WORDS)])
        driver.finish()
    assert len(files_in(tmp_path / "b")) == 3


@pytest.mark.parametrize("partition_by", ["", "word"])
def test_memory_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition_by: str) -> None:
    from sluiceway_spark.connector import sink_writer

    monkeypatch.setattr(sink_writer, "_BYTES_HELD", 20_000)
    sink = SparkSink.path(tmp_path / "out", schema=WORDS, partition_by=partition_by or ())
    with SinkDriver(sink) as driver:
        for n in range(20):
            driver.write([pa.record_batch({"id": list(range(1000)), "word": [str(n % 2)] * 1000}, schema=WORDS)])
            held = [one.file.held for one in driver.writer()._open.values()]  # type: ignore[attr-defined]
            assert sum(held) <= 20_000
        driver.finish()
    files = [pq.read_metadata(tmp_path / "out" / name) for name in files_in(tmp_path / "out")]
    assert sum(file.num_rows for file in files) == 20_000
    assert all(file.num_row_groups > 1 for file in files)


# ---- what is there already -------------------------------------------------------------------------------------


def test_what_is_there_is_not_touched_unless_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    drive_sink(SparkSink.path(out, schema=WORDS), [(1, "to")])
    with pytest.raises(
        ConnectorError, match=r"there is part-.* already. Take another path, or mode='append'"
    ) as e:
        drive_sink(SparkSink.path(out, schema=WORDS), [(2, "be")])
    assert isinstance(e.value, SuppressRestartsError)
    drive_sink(SparkSink.path(out, schema=WORDS, mode="append"), [(2, "be")])
    assert sorted(r["id"] for r in rows_in(out)) == [1, 2]
    drive_sink(SparkSink.path(out, schema=WORDS, mode="overwrite"), [(3, "or")])
    assert rows_in(out) == [{"id": 3, "word": "or"}]


def test_one_description_can_be_run_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = SparkSink.path(out, schema=WORDS, mode="overwrite")
    drive_sink(sink, [(n, "to") for n in range(9)], 3, batch_size=1)
    drive_sink(sink, [(n, "be") for n in range(4)], 2, batch_size=1)
    assert sorted(r["word"] for r in rows_in(out)) == ["be"] * 4
    with pytest.raises(ConnectorError, match="already"):
        drive_sink(SparkSink.path(out, schema=WORDS), [(1, "x")])


def test_overwriting_waits_for_the_first_commit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    drive_sink(SparkSink.path(out, schema=WORDS, partition_by="word"), [(1, "to"), (2, "be")])
    for mark in ("_SUCCESS", "._SUCCESS.crc"):  # as Spark leaves them
        (out / mark).touch()
    before = files_in(out)
    sink = SparkSink.path(out, schema=WORDS, partition_by="word", mode="overwrite")
    with SinkDriver(sink, 2, checkpoints=True) as driver:
        driver.write([(3, "or")], subtask=1)
        kept = driver.checkpoint()
    assert files_in(out) == sorted([*before, *(n for n in files_in(out) if n.endswith(".staged"))])
    with SinkDriver(sink, 2, checkpoints=True, restored=kept) as driver:
        assert rows_in(out) == [{"id": 3, "word": "or"}]
        driver.write([(4, "not")])
        driver.finish()
    assert sorted(r["id"] for r in rows_in(out)) == [3, 4]
    assert sorted(os.listdir(out)) == ["word=not", "word=or"]


def test_subtasks_that_end_early_are_not_overwritten_by_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    drive_sink(SparkSink.path(out, schema=WORDS), [(1, "old")])
    sink = SparkSink.path(out, schema=WORDS, mode="overwrite")
    with SinkDriver(sink, 2) as driver:
        driver.write([(2, "new")], subtask=1)
        writer = driver.writer(1)
        writer.finish()
        writer.commit(writer.prepare_commit(0))  # type: ignore[attr-defined]
        late = driver.writer(0)
        late.open()  # as if it were only now
        late.commit(late.prepare_commit(0))  # type: ignore[attr-defined]
    assert rows_in(out) == [{"id": 2, "word": "new"}]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"partition_by": "word"}, {}, r"is partitioned by word; partition_by= says nothing"),
        ({}, {"partition_by": "word"}, r"is partitioned by nothing; partition_by= says word"),
        (
            {},
            {"schema": columns(id=pa.string(), word=pa.string())},
            r"'id' is string, but in .* int64",
        ),
        ({}, {"schema": columns(id=pa.int64())}, r"column 'word' is not there, but in .* string"),
        ({}, {"schema": None}, r"column 'x' is int64, but in .* not there|column 'id' is not there, but"),
    ],
)
def test_what_spark_could_not_read_together_is_refused(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], message: str
) -> None:
    out = tmp_path / "out"
    drive_sink(SparkSink.path(out, **{"schema": WORDS, **before}), [(1, "to")])
    sink = SparkSink.path(out, **{"schema": WORDS, "mode": "append", **after})
    with pytest.raises(ConnectorError, match=message):
        drive_sink(sink, [Inner(1, [2.0])] if "schema" in after and after["schema"] is None else [])
    assert len(files_in(out)) == 1


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(ConnectorError, match=r"cannot write to .*/out: it is a file; a table is a directory"):
        drive_sink(SparkSink.path(tmp_path / "out", schema=WORDS), [])


def test_no_rows_at_all_still_have_columns(tmp_path: Path) -> None:
    drive_sink(SparkSink.path(tmp_path / "out", schema=WORDS), [], 2)
    [file] = files_in(tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / file).equals(WORDS)


# ---- commits ---------------------------------------------------------------------------------------------------


def test_a_commit_finds_out_that_its_file_is_gone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with SinkDriver(SparkSink.path(out, schema=WORDS), checkpoints=True) as driver:
        driver.write([(1, "to")])
        driver.checkpoint()
        for path in out.iterdir():
            path.unlink()
        with pytest.raises(ConnectorError, match=r"cannot commit .*: neither it nor .* is there any more"):
            driver.complete()


def test_nothing_hidden_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = SparkSink.path(out, schema=WORDS, row_group_size=1, file_size=1)
    with SinkDriver(sink, 3, checkpoints=True) as driver:
        driver.write([(1, "to")], subtask=2)
        driver.writer(2).finish()  # a file that is written, and in no checkpoint
        assert len(files_in(out)) == 1
    assert files_in(out) == []
    with SinkDriver(sink, 3, checkpoints=True) as driver:
        driver.write([(1, "to")], subtask=2)
        driver.checkpoint()  # which nobody goes on from
    assert len(files_in(out)) == 1
    with SinkDriver(sink, 2, checkpoints=True):
        assert files_in(out) == []


def test_files_tell_checkpoint_and_subtask(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with SinkDriver(SparkSink.path(out, schema=WORDS, codec="gzip"), 2, checkpoints=True) as driver:
        for n in range(2):
            driver.write([(n, "w")], subtask=n)
            driver.checkpoint()
            driver.complete()
        assert [name[:17] for name in files_in(out)] == ["part-00000-000001", "part-00001-000002"]
        assert all(name.endswith(".gz.parquet") for name in files_in(out))


def test_other_filesystems_are_written_to() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    sink = SparkSink.path("memory://tables/words", schema=WORDS, partition_by="word")
    try:
        with SinkDriver(sink, 2, checkpoints=True) as driver:
            driver.write([(1, "to")], subtask=1)
            kept = driver.checkpoint()
            assert [n for n in memory.find("/tables") if "/." not in n] == []
        with SinkDriver(sink, 2, checkpoints=True, restored=kept) as driver:
            driver.write([(2, "be")])
            driver.finish()
        names = memory.find("/tables/words")
        assert sorted(name.split("/")[3] for name in names) == ["word=be", "word=to"]
        with pytest.raises(ConnectorError, match=r"there is word=be/part-.* already"):
            drive_sink(SparkSink.path("memory://tables/words", schema=WORDS), [])
        drive_sink(
            SparkSink.path("memory://tables/words", schema=WORDS, partition_by="word", mode="overwrite"),
            [(3, "or")],
        )
        assert [name.split("/")[3] for name in memory.find("/tables/words")] == ["word=or"]
    finally:
        memory.rm("/tables", recursive=True)


def test_an_object_store_has_no_directory_before_the_first_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "makedirs", lambda *_, **__: None)
    try:
        with SinkDriver(SparkSink.path("memory://bucket/words", schema=WORDS), 2, checkpoints=True) as driver:
            driver.write([(1, "to")], subtask=1)
            driver.finish()
        assert [name.split("-")[1] for name in memory.find("/bucket/words")] == ["00000", "00001"]
    finally:
        memory.rm("/bucket", recursive=True)


@pytest.mark.parametrize("options", [{}, {"checkpoint_interval": "20ms"}, {"workers": 2}])
def test_a_pipeline_writes_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    flow = sw.Pipeline("squares", parallelism=2)
    squares = flow.from_sequence(1, 100).rebalance().map(lambda n: Pair(n, str(n * n)))
    squares.sink("spark", path=tmp_path / "out")
    flow.run(**options)
    assert sorted((r["id"], r["word"]) for r in rows_in(tmp_path / "out")) == [
        (n, str(n * n)) for n in range(1, 101)
    ]
    assert [name for name in files_in(tmp_path / "out") if name.startswith(".")] == []


def test_a_relative_path_is_that_of_the_process_that_wrote_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = cloudpickle.dumps(SparkSink.path("out", schema=WORDS))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    drive_sink(cloudpickle.loads(pickled), [(1, "to")])
    assert rows_in(tmp_path / "out") == [{"id": 1, "word": "to"}]
    drive_sink(SparkSink.path((tmp_path / "an url").as_uri(), schema=WORDS), [(1, "to")])
    assert rows_in(tmp_path / "an url") == [{"id": 1, "word": "to"}]


class Untold(NamedTuple):
    x: object


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparkSink("words"), r"is made by SparkSink.path or SparkSink.table"),  # type: ignore[arg-type]
        (lambda: SparkSink.path(""), r"SparkSink.path takes a path, not ''"),
        (lambda: SparkSink.of(path="a", table="b"), r"takes one of path= and table="),
        (lambda: SparkSink.of(), r"takes one of path= and table="),
        (lambda: SparkSink.path("t", format="csv"), r"'parquet' or 'orc'. FilesSink writes CSV and JSON lines"),
        (lambda: SparkSink.path("t", mode="add"), r"mode 'add'"),
        (lambda: SparkSink.path("t", codec="bz2"), r"codec of parquet files 'bz2'"),
        (lambda: SparkSink.path("t", row_group_size=0), r"row_group_size=0 must be a number of rows"),
        (lambda: SparkSink.path("t", file_size=0), r"file_size=0 must be a number of bytes"),
        (
            lambda: SparkSink.path("t", schema="id long"),
            r"schema='id long' must be a pyarrow.Schema, a StructType",
        ),
        (lambda: SparkSink.path("t", schema=int), r"schema=<class 'int'> must be a pyarrow.Schema"),
        (lambda: SparkSink.path("t", schema=Untold), r"Untold.x is object, for which no column type is known"),
        (lambda: SparkSink.path("t", schema=columns()), r"a schema without columns"),
        (lambda: SparkSink.path("t", schema=columns(a=pa.int8(), A=pa.int8())), r"two columns 'a'"),
        (lambda: SparkSink.path("t", schema=columns(a=pa.time64("us"))), r"'a' is time64.*no type"),
        (lambda: SparkSink.path("t", schema=WORDS, partition_by="day"), r"has 'day', the columns are id, word"),
        (lambda: SparkSink.path("t", schema=WORDS, partition_by=["id", "id"]), r"has 'id' twice"),
        (lambda: SparkSink.path("t", schema=WORDS, partition_by=["id", "word"]), r"has all columns"),
        (
            lambda: SparkSink.path("t", schema=columns(a=pa.float64(), b=pa.int8()), partition_by="a"),
            r"has 'a', which is double; integers, strings, booleans and dates can be directories",
        ),
        (lambda: SparkSink.path("t", partition_by=[1]), r"partition_by=\[1\] must be names of columns"),  # type: ignore[list-item]
    ],
)
def test_arguments_that_cannot_be_used_are_told(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


class LooksUp:
    """Stands for a table that is looked up where a job is sent to workers, by a session."""

    def resolve(self) -> Any:
        raise ConnectorError("there is no such table")


def test_what_is_wrong_with_a_table_is_told_before_workers_get_anything() -> None:
    sink = SparkSink.path("t", schema=WORDS)
    sink._resolved = LooksUp().resolve  # type: ignore[method-assign]
    flow = sw.Pipeline("t")
    flow.from_collection([(1, "to")]).sink(sink)
    with pytest.raises(ConnectorError, match=r"^there is no such table$"):
        flow.run(workers=1)
