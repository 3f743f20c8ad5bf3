"""The files sink: what the conformance suite doesn't say."""

from __future__ import annotations

import errno
import gzip
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluiceway.connector import DeliveryGuarantee
from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError, UnknownNameError
from sluiceway.testing.drivers import SinkDriver, drive_sink, drive_source
from sluiceway_files import FilesSink, FilesSource


@dataclass
class Order:
    user: str
    amount: int


class Pair(NamedTuple):
    name: str
    number: int


class Shop(msgspec.Struct):
    name: str


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# ---- files -----------------------------------------------------------------------------------------------------


def test_each_subtask_writes_a_file_and_none_without_records(tmp_path: Path) -> None:
    drive_sink(FilesSink.text(tmp_path / "a" / "b"), ["x", "y"], 3, batch_size=1)
    assert names(tmp_path / "a" / "b") == ["part-0-0.txt", "part-1-0.txt"]
    assert (tmp_path / "a" / "b" / "part-1-0.txt").read_text() == "y\n"


def test_a_file_is_hidden_until_it_is_complete(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path)) as driver:
        driver.write(["x"])
        driver.flush()
        assert names(tmp_path) == [".part-0-0.txt.in-progress"]
        assert (tmp_path / ".part-0-0.txt.in-progress").read_text() == "x\n"
        driver.finish()
        assert names(tmp_path) == ["part-0-0.txt"]


def test_a_pause_in_the_input_is_not_its_end(tmp_path: Path) -> None:
    """A job that fails just after a flush must not look like one that has ended."""
    with SinkDriver(FilesSink.text(tmp_path)) as driver:
        driver.write(["x"])
        driver.flush()
    assert names(tmp_path) == []


def test_large_enough_files_are_followed_by_others(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.text(tmp_path, roll_size=10, compression="gzip")) as driver:
        for line in ("12345678", "1234567890", "1", "2"):
            driver.write([line])
        assert names(tmp_path) == [".part-0-1.txt.gz.in-progress", "part-0-0.txt.gz"]
    assert names(tmp_path) == ["part-0-0.txt.gz"]  # complete files stay when a job fails
    assert gzip.decompress((tmp_path / "part-0-0.txt.gz").read_bytes()) == b"12345678\n1234567890\n"


def test_the_same_records_make_the_same_compressed_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        drive_sink(FilesSink.text(tmp_path / name, compression="gzip"), ["x", "y"])
    assert (tmp_path / "a/part-0-0.txt.gz").read_bytes() == (tmp_path / "b/part-0-0.txt.gz").read_bytes()


def test_files_of_an_earlier_run_are_not_touched(tmp_path: Path) -> None:
    drive_sink(FilesSink.text(tmp_path), ["first"])
    with pytest.raises(ConnectorError) as caught:
        drive_sink(FilesSink.text(tmp_path), ["second"])
    assert str(caught.value) == (
        f"{tmp_path} already holds part-0-0.txt from an earlier run. Take another directory, or append=True to "
        "write beside it"
    )
    for _ in range(10):
        drive_sink(FilesSink.text(tmp_path, append=True), ["more"])
    assert len(names(tmp_path)) == 11
    assert "part-0-10.txt" in names(tmp_path)
    assert (tmp_path / "part-0-0.txt").read_text() == "first\n"
    # What is only similar is none of its business.
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "apart-0-0.txt").touch()
    (tmp_path / "x" / "part-0.txt").touch()
    (tmp_path / "x" / ".part-0-0.txt.in-progress").write_text("left by a crash, longer than what comes now")
    drive_sink(FilesSink.text(tmp_path / "x"), ["new"])
    assert (tmp_path / "x" / "part-0-0.txt").read_text() == "new\n"


@pytest.mark.parametrize("suffix", ["", "-of-an-attempt"])
def test_files_of_more_subtasks_than_now_are_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"part-3-0{suffix}.txt").touch()
    with pytest.raises(ConnectorError, match=rf"already holds part-3-0{suffix}\.txt from an earlier run"):
        drive_sink(FilesSink.text(tmp_path), ["second"], parallelism=2)
    drive_sink(FilesSink.text(tmp_path, append=True), ["second"], parallelism=2)


def test_other_filesystems() -> None:
    filesystem = fsspec.filesystem("memory")
    try:
        drive_sink(FilesSink.json_lines("memory://sink/a", compression="zstd"), [{"n": i} for i in range(5)], 2)
        assert filesystem.find("/sink") == ["/sink/a/part-0-0.jsonl.zst"]
        assert drive_source(FilesSource.json_lines("memory://sink/a")) == [{"n": i} for i in range(5)]
        with SinkDriver(FilesSink.text("memory://sink/b")) as driver:
            driver.write(["x"])
        assert filesystem.find("/sink/b") == []
    finally:
        filesystem.rm("/sink", recursive=True)


def test_an_object_store_has_no_directory_before_the_first_file(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = fsspec.filesystem("memory")
    monkeypatch.setattr(type(filesystem), "makedirs", lambda *_, **__: None)
    try:
        with SinkDriver(FilesSink.text("memory://bucket/new"), 2, checkpoints=True) as driver:
            driver.write(["x"], subtask=1)
            kept = driver.checkpoint()
        with SinkDriver(FilesSink.text("memory://bucket/new"), 2, checkpoints=True, restored=kept) as driver:
            driver.finish()
        assert [filesystem.cat(name) for name in filesystem.find("/bucket")] == [b"x\n"]
    finally:
        filesystem.rm("/bucket", recursive=True)


def test_a_file_in_the_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("")
    with pytest.raises(ConnectorError) as caught:
        drive_sink(FilesSink.text(tmp_path / "out.txt"), ["x"])
    assert str(caught.value) == (
        f"cannot write to {tmp_path}/out.txt: it is a file; FilesSink writes into a directory"
    )
    with pytest.raises(ConnectorError, match=rf"^cannot write to {tmp_path}/out.txt/deeper: Not a directory$"):
        drive_sink(FilesSink.text(tmp_path / "out.txt" / "deeper"), ["x"])


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.local import LocalFileOpener

    def full(self: Any, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFileOpener, "write", full)
    with pytest.raises(ConnectorError) as caught:
        drive_sink(FilesSink.text(tmp_path), ["x"])
    assert str(caught.value) == f"cannot write {tmp_path}/part-0-0.txt: No space left on device"
    assert names(tmp_path) == []


def test_it_promises_exactly_once(tmp_path: Path) -> None:
    assert FilesSink.text(tmp_path).guarantee is DeliveryGuarantee.EXACTLY_ONCE


# ---- text ------------------------------------------------------------------------------------------------------


def test_text_and_encoding_can_be_chosen(tmp_path: Path) -> None:
    drive_sink(FilesSink.text(tmp_path, to_text=lambda r: f"<{r}>", encoding="latin-1"), ["\u00e9", 1])
    assert (tmp_path / "part-0-0.txt").read_bytes() == b"<\xe9>\n<1>\n"


def test_text_that_cannot_be_written_names_the_record(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(FilesSink.text(tmp_path, encoding="ascii"), ["a", "\u20ac2"])
    assert str(caught.value) == f"{tmp_path}/part-0-0.txt: ascii has no '\u20ac', in '\u20ac2'. Set encoding="
    with pytest.raises(ConnectorError, match="to_text= must give str; for 5 it gave int"):
        drive_sink(FilesSink.text(tmp_path, to_text=lambda r: r), ["a", 5])


@pytest.mark.parametrize("error", [KeyError, OSError, TypeError, EOFError])
def test_what_the_users_function_raises_comes_as_it_is(tmp_path: Path, error: type[Exception]) -> None:
    def fussy(record: int) -> str:
        if record == 2:
            raise error("not two")
        return str(record)

    with pytest.raises(error, match="not two") as caught:
        drive_sink(FilesSink.text(tmp_path, to_text=fussy), [1, 2, 3])
    assert caught.value.__notes__ == ["record: 2"]
    assert names(tmp_path) == []


# ---- JSON lines ------------------------------------------------------------------------------------------------


def test_json_of_everything_that_has_json(tmp_path: Path) -> None:
    drive_sink(FilesSink.json_lines(tmp_path), [{"a": [1, None]}, Order("ann", 3), ("x", 1.5), "\u20ac"])
    assert (tmp_path / "part-0-0.jsonl").read_text() == (
        '{"a":[1,null]}\n{"user":"ann","amount":3}\n["x",1.5]\n"\u20ac"\n'
    )


def test_what_has_no_json_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(FilesSink.json_lines(tmp_path), [1, {"a": 1j}])
    assert str(caught.value).startswith(f"{tmp_path}/part-0-0.jsonl: {{'a': 1j}} cannot be written as JSON (")
    assert str(caught.value).endswith(
        "). A map before the sink can make it of dicts, lists, strings, numbers and dataclasses"
    )


# ---- CSV -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "options", "text"),
    [
        ([{"a": 1, "b": 'x "y"'}, {"b": "z,", "a": None}], {}, 'a,b\n1,"x ""y"""\n,"z,"\n'),
        ([Order("ann", 3)], {}, "user,amount\nann,3\n"),
        ([Pair("a", 1), ("b", 2)], {}, "name,number\na,1\nb,2\n"),
        ([Shop("s")], {}, "name\ns\n"),
        ([("a", 1), ["b", 2]], {}, "a,1\nb,2\n"),
        ([("a", 1)], {"columns": ["x", "y"]}, "x,y\na,1\n"),
        ([{"y": 1, "x": 2}], {"columns": ["x", "y"], "header": False}, "2,1\n"),
        ([("a;", "'")], {"delimiter": ";", "quotechar": "'"}, "'a;';''''\n"),
    ],
)
def test_csv_rows(tmp_path: Path, records: list[Any], options: dict[str, Any], text: str) -> None:
    drive_sink(FilesSink.csv(tmp_path, **options), records)
    assert (tmp_path / "part-0-0.csv").read_text() == text


def test_csv_has_what_a_reader_takes_for_the_end_of_a_line_in_quotes(tmp_path: Path) -> None:
    rows = [{"t": text, "n": str(n)} for n, text in enumerate(["a\rb", "\r", "a\r\n", "\n", '"\r"', "a\\", "ü"])]
    drive_sink(FilesSink.csv(tmp_path), rows)
    assert (tmp_path / "part-0-0.csv").read_bytes().startswith(b't,n\n"a\rb",0\n"\r",1\n"a\r\n",2\n"\n",3\n')
    assert drive_source(FilesSource.csv(tmp_path)) == rows


def test_every_csv_file_has_the_header(tmp_path: Path) -> None:
    drive_sink(FilesSink.csv(tmp_path, roll_size=5), [{"a": 1}, {"a": 2}, {"a": 333}], batch_size=1)
    assert [(tmp_path / name).read_text() for name in names(tmp_path)] == ["a\n1\n2\n", "a\n333\n"]


@pytest.mark.parametrize(
    ("records", "options", "message"),
    [
        (
            [{"a": 1}, {"a": 1, "b": 2}],
            {},
            "{'a': 1, 'b': 2} has the fields a, b, the file has a columns. columns= says which",
        ),
        (
            [("a", 1), {"x": 1}],
            {},
            "{'x': 1} has the fields x, the file has no named columns. columns= says which",
        ),
        ([("a", 1), ("b",)], {}, "('b',) has 1 fields, the file has 2 columns"),
        ([("a", 1)], {"columns": ["x"]}, "('a', 1) has 2 fields, the file has 1 columns"),
        (["text"], {}, "'text' (str) is no row: a dict, a tuple, a list or a dataclass is"),
        ([5], {}, "5 (int) is no row: a dict, a tuple, a list or a dataclass is"),
        ([("\u20ac",)], {"encoding": "ascii"}, "ascii has no '\u20ac'. Set encoding="),
    ],
)
def test_what_is_no_row_of_the_file_is_an_error(
    tmp_path: Path, records: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(FilesSink.csv(tmp_path, **options), records)
    assert str(caught.value) == f"{tmp_path}/part-0-0.csv: {message}"


# ---- Parquet ---------------------------------------------------------------------------------------------------


def test_parquet_rows_groups_and_schema(tmp_path: Path) -> None:
    schema = pa.schema([("user", pa.string()), ("amount", pa.int16())])
    records = [Order("ann", 3), {"user": "bob", "amount": None}, {"user": "cid"}, Order("dan", 4), Order("eve", 5)]
    drive_sink(FilesSink.parquet(tmp_path, schema=schema, row_group_size=2, codec="zstd"), records, batch_size=3)
    opened = pq.ParquetFile(tmp_path / "part-0-0.parquet")
    assert opened.schema_arrow.field("amount").type == pa.int16()
    assert [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)] == [2, 2, 1]
    assert opened.metadata.row_group(0).column(0).compression == "ZSTD"
    assert opened.read().to_pylist()[1:3] == [{"user": "bob", "amount": None}, {"user": "cid", "amount": None}]


def test_parquet_files_roll_at_the_end_of_a_row_group(tmp_path: Path) -> None:
    sink = FilesSink.parquet(tmp_path, row_group_size=10, roll_size=100)
    drive_sink(sink, [{"n": i} for i in range(45)], batch_size=5)
    assert [pq.read_metadata(tmp_path / name).num_rows for name in names(tmp_path)] == [20, 20, 5]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"n": 1}, {"n": "two"}], "rows cannot be written as columns ("),
        ([{"n": 1}, {"m": 2}], "no column for the fields m; the columns are n. schema= says which there are"),
        (
            [{"n": 1}, {"n": 2}, {"n": 2.5}],
            "rows cannot be written as columns (2.5 is no whole number). schema= says",
        ),
        (
            [{"at": date(2026, 1, 2)}, {"at": datetime(2026, 1, 2, 12)}],
            "rows cannot be written as columns (datetime.datetime(2026, 1, 2, 12, 0) has a time of the day",
        ),
        ([("a", 1)], "('a', 1) (tuple) has no named fields; Parquet takes dicts, dataclasses and named tuples"),
    ],
)
def test_what_is_no_row_of_the_parquet_file_is_an_error(tmp_path: Path, records: list[Any], message: str) -> None:
    with pytest.raises(ConnectorError) as caught:
        drive_sink(FilesSink.parquet(tmp_path, row_group_size=2), records)
    assert str(caught.value).startswith(f"{tmp_path}/part-0-0.parquet: {message}")
    assert names(tmp_path) == []


def test_a_parquet_file_that_a_failure_interrupts_is_removed(tmp_path: Path) -> None:
    with SinkDriver(FilesSink.parquet(tmp_path, row_group_size=2)) as driver:
        driver.write([{"n": i} for i in range(5)])
    assert names(tmp_path) == []


# ---- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("text", {"directory": ""}, "files need a path, a glob or a list of them, not ['']"),
        ("text", {"compression": "rar"}, "compression='rar' must be one of 'gzip', 'bz2', 'xz', 'zstd', or None"),
        ("text", {"roll_size": 0}, "roll_size=0 must be a number of bytes, at least 1, or None"),
        ("text", {"to_text": "json"}, "to_text='json' must be a function from a record to str"),
        ("text", {"encoding": "klingon"}, "encoding='klingon' is not a text encoding that Python knows"),
        ("csv", {"delimiter": ""}, "delimiter='' must be one character"),
        ("parquet", {"row_group_size": 0}, "row_group_size=0 must be a number of rows, at least 1"),
        ("parquet", {"codec": "rar"}, "codec='rar' must be one of"),
    ],
)
def test_options_that_cannot_work_are_refused(form: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FilesSink.of(**{"directory": "a", "format": form, **options})
    assert str(caught.value).startswith(message)


def test_by_the_name_of_the_format(tmp_path: Path) -> None:
    drive_sink(FilesSink.of(tmp_path, "csv", header=False), [(1, 2)])
    assert names(tmp_path) == ["part-0-0.csv"]
    with pytest.raises(UnknownNameError, match=r"there is no file format 'avro'\. Known: 'csv', 'json_lines', 'p"):
        FilesSink.of(tmp_path, "avro")
    with pytest.raises(
        ConfigurationError, match=r"FilesSink is made by FilesSink.text, .csv, .json_lines or .par"
    ):
        FilesSink(tmp_path)


def test_missing_libraries_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"need zstandard: pip install .*\[zstd\].$"):
        FilesSink.text(tmp_path, compression="zstd")
    with pytest.raises(MissingExtraError, match=r"need pyarrow: pip install .*\[arrow\].$"):
        FilesSink.parquet(tmp_path)
