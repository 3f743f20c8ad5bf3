"""The files source: what the conformance suite doesn't say."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import arrowpipe
import fsspec
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import PATIENT_S

from sluiceway import Pipeline
from sluiceway.connector import Wait
from sluiceway.elements import Batch
from sluiceway.errors import (
    ConfigurationError,
    ConnectorError,
    FunctionContractError,
    GraphError,
    IncompatibleStateError,
    MissingExtraError,
    UnknownNameError,
)
from sluiceway.testing.drivers import SourceDriver, SourceSnapshot, drive_source
from sluiceway_files import FilesSource
from sluiceway_files._blocks import FileReplacedError, FileShortenedError
from sluiceway_files._compression import compressing, decompressing, of_name
from sluiceway_files._splits import FileSplit

assert arrowpipe.OPEN


@dataclass
class Order:
    user: str
    amount: int
    day: date | None = None


class Pair(NamedTuple):
    name: str
    number: float


class Shop(msgspec.Struct):
    user: str
    amount: int


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.makedirs("/box")
    yield filesystem
    filesystem.rm("/box", recursive=True)


# ---- finding files ---------------------------------------------------------------------------------------------


def test_links_to_files_are_read_and_what_is_no_file_is_not(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (tmp_path / "elsewhere.txt").write_text("linked\n")
    (place / "a.txt").write_text("one\n")
    (place / "b.txt").symlink_to(tmp_path / "elsewhere.txt")
    (place / "loop.txt").symlink_to(place)
    os.mkfifo(place / "pipe.txt")
    assert drive_source(FilesSource.text(place)) == ["one", "linked"]
    assert drive_source(FilesSource.text(f"{place}/*.txt")) == ["one", "linked"]
    (tmp_path / "link").symlink_to(place)
    assert drive_source(FilesSource.text(tmp_path / "link")) == ["one", "linked"]
    assert drive_source(FilesSource.text(f"{tmp_path}/link/*.txt")) == ["one", "linked"]
    (place / "gone.txt").symlink_to(place / "nothing")
    with pytest.raises(ConnectorError, match=r"gone.txt: No such file"):
        drive_source(FilesSource.text(f"{place}/*.txt"))


def test_directories_globs_and_paths_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b/.hidden.txt", "b/_SUCCESS", ".git/x.txt", "c.log", "b/d/3.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    assert drive_source(FilesSource.text(tmp_path)) == ["a.txt", "b/1.txt", "b/2.txt", "b/d/3.txt", "c.log"]
    assert drive_source(FilesSource.text(f"{tmp_path}/*.*")) == ["a.txt", "c.log"]
    assert drive_source(FilesSource.text(f"{tmp_path}/**/*.txt")) == ["a.txt", "b/1.txt", "b/2.txt", "b/d/3.txt"]
    assert drive_source(FilesSource.text(f"{tmp_path}/**/_S*")) == ["b/_SUCCESS"]
    (tmp_path / "p" / "_day=1").mkdir(parents=True)
    (tmp_path / "p" / "_day=1" / "x.txt").write_text("of a partition")
    assert drive_source(FilesSource.text(f"{tmp_path}/p")) == ["of a partition"]
    assert drive_source(FilesSource.text([tmp_path / "c.log", tmp_path / "b", f"{tmp_path}/b/1.txt"])) == [
        "c.log",
        "b/1.txt",
        "b/2.txt",
        "b/d/3.txt",
    ]
    assert drive_source(FilesSource.text(tmp_path / "b/.hidden.txt")) == ["b/.hidden.txt"]


def test_a_name_with_the_signs_of_a_glob_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("literally")
    (tmp_path / "a1.txt").write_text("as a glob")
    assert drive_source(FilesSource.text(tmp_path / "a[1].txt")) == ["literally"]
    (tmp_path / "a::b #?.txt").write_text("odd")
    assert drive_source(FilesSource.text(tmp_path / "a::b #?.txt")) == ["odd"]


def test_relative_paths_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert drive_source(FilesSource.text(["a.txt"])) == ["here"]
    assert drive_source(FilesSource.text("~/a.txt")) == ["here"]


def test_other_filesystems(memory: Any) -> None:
    memory.pipe("/box/a.txt", b"one\ntwo")
    memory.pipe("/box/b.txt.gz", gzip.compress(b"three"))
    assert drive_source(FilesSource.text("memory://box")) == ["one", "two", "three"]
    assert drive_source(FilesSource.text("memory://box/*.txt", split_size=2)) == ["one", "two"]
    with pytest.raises(ConnectorError, match=r"^no file matches memory:///box/\*\.csv$"):
        drive_source(FilesSource.text("memory://box/*.csv"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}/no.txt", "there is no file {}/no.txt"),
        ("{}/no/where.txt", "there is no file {}/no/where.txt; not even the directory {}/no"),
        ("{}/*.csv", "no file matches {}/*.csv"),
        ("{}/empty", "there is no file in the directory {}/empty"),
        ("nosuch://a/b", "'nosuch://a/b' cannot be opened: Protocol not known: nosuch"),
    ],
)
def test_a_path_that_stands_for_nothing_is_an_error(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").write_text("x")
    with pytest.raises(ConnectorError) as caught:
        drive_source(FilesSource.text(path.replace("{}", str(tmp_path))))
    assert str(caught.value) == message.replace("{}", str(tmp_path))


def test_a_url_is_taken_as_it_is_and_the_error_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a b.txt"
    path.write_text("one\n")
    assert drive_source(FilesSource.text(f"file://{path}")) == ["one"]
    with pytest.raises(ConnectorError, match=rf"there is no file .*%20b\.txt; .* and {path} is there: give that$"):
        drive_source(FilesSource.text(path.as_uri()))
    path.rename(tmp_path / "a%20b.txt")
    assert drive_source(FilesSource.text(path.as_uri())) == ["one"]


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("x")

    def refuse(*args: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.open", refuse)
    with pytest.raises(ConnectorError) as caught:
        drive_source(FilesSource.text(path))
    assert str(caught.value) == f"cannot read {path}: Permission denied"


@pytest.mark.parametrize("pattern", ["", "/*/*.txt", "/**/*.txt"], ids=["directory", "glob", "deep glob"])
def test_a_directory_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """Its files would be missing without a word. What is hidden is left out in any case."""
    for name in ("open", "secret", "_hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"{name}\n")
    refused = {str(tmp_path / "_hidden")}
    ls = LocalFileSystem.ls

    def listed(self: LocalFileSystem, path: str, detail: bool = False, **options: Any) -> Any:
        if path.rstrip("/") in refused:
            raise PermissionError(13, "Permission denied", path)
        return ls(self, path, detail, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", listed)
    source = FilesSource.text(f"{tmp_path}{pattern}")
    assert drive_source(source) == ["open", "secret"]
    refused.add(str(tmp_path / "secret"))
    with pytest.raises(ConnectorError, match=rf"^cannot look into {tmp_path}/secret/?: Permission denied$"):
        drive_source(source)


def test_a_file_that_went_away_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    with SourceDriver(FilesSource.text(path)) as driver:
        path.unlink()
        with pytest.raises(ConnectorError, match=rf"^cannot read {path}: No such file or directory$"):
            driver.run()


# ---- text ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(alphabet="ab\n\r\u20ac", max_size=80),
    split_size=st.integers(1, 40),
    chunk=st.integers(1, 30),
    parallelism=st.integers(1, 3),
)
def test_any_cuts_and_chunks_give_every_line_once(
    tmp_path: Path, text: str, split_size: int, chunk: int, parallelism: int
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    parts = text.split("\n")
    expected = [p.removesuffix("\r") for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluiceway_files._blocks._CHUNK", chunk)
        got = drive_source(FilesSource.text(path, split_size=split_size), parallelism, limit=3)
    assert (got if parallelism == 1 else sorted(got)) == (expected if parallelism == 1 else sorted(expected))


@pytest.mark.parametrize("chunk", [1, 5, 7, 1000])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_any_position_can_be_restored_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, suffix: str
) -> None:
    """A position taken with one size of chunk must hold with another."""
    text = "one\ntwo\n\nthree\nfour, longer\nfive\nsix"
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    source = FilesSource.text(path, split_size=12)
    positions = []
    with SourceDriver(source, limit=1) as driver:
        positions.append(([], driver.snapshot()))
        while driver.poll():
            positions.append((driver.all_records(), driver.snapshot()))
    monkeypatch.setattr("sluiceway_files._blocks._CHUNK", chunk)
    for before, snapshot in positions:
        with SourceDriver(source, restored=snapshot) as driver:
            assert sorted(before + driver.run()) == sorted(text.split("\n"))
            again = driver.snapshot()
        with SourceDriver(source, restored=again) as driver:
            assert driver.run() == []


class Rows(SourceDriver):
    """Driver that takes rows of columns, too."""

    def _take(self, index: int, result: Any) -> None:
        self.records[index] += list(result.values if isinstance(result, Batch) else result)


@pytest.mark.parametrize("kind", ["text", "csv", "csv in columns"])
def test_a_long_way_to_the_position_gives_others_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "a.gz"
    lines = [f"line {i}" for i in range(2000)]
    path.write_bytes(gzip.compress("\n".join(["head", *lines] if kind != "text" else lines).encode()))
    monkeypatch.setattr("sluiceway_files._blocks._CHUNK", 1000)
    monkeypatch.setattr("sluiceway_files._csv_columns._ColumnsReader.chunk", 1000)
    monkeypatch.setattr("sluiceway_files._csv_columns.ROWS_PER_RECORD", 1)
    source: Any = FilesSource.text(path) if kind == "text" else FilesSource.csv(path)
    if kind == "csv in columns":
        source, _ = source.in_columns()
    with Rows(source, limit=37) as driver:
        before = driver.run(most=1450)
        snapshot = driver.snapshot()
    with Rows(source, restored=snapshot) as driver:
        driver._deliver()
        assert isinstance(driver._reader(0).poll(10), Wait)
        snapshot = driver.snapshot()  # on the way there
    with Rows(source, restored=snapshot) as driver:
        rows = before + driver.run()
    assert [row if kind == "text" else row["head"] for row in rows] == lines


def test_lines_without_records_give_others_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluiceway_files._blocks._CHUNK", 1000)
    (tmp_path / "a.jsonl").write_text("\n" * 5000 + "7\n")
    with SourceDriver(FilesSource.json_lines(tmp_path / "a.jsonl")) as driver:
        driver._deliver()
        assert isinstance(driver._reader(0).poll(10), Wait)
        assert driver.run() == [7]


class Remembering(MemoryFileSystem):
    """Keeps listings, as the file systems of object stores do."""

    protocol = "remembering"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("remembering://", "memory://")))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        if path not in self.dircache:
            self.dircache[path] = super().ls(path, detail=True, **options)
        found = self.dircache[path]
        return found if detail else [each["name"] for each in found]

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        return fsspec.AbstractFileSystem.find(self, path, *arguments, **options)  # by ls(), as theirs is

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()


def test_a_later_run_sees_new_files(memory: Any) -> None:
    fsspec.register_implementation("remembering", Remembering, clobber=True)
    memory.pipe("/box/a.txt", b"one")
    source = FilesSource.text("remembering://box/*.txt")
    assert drive_source(source) == ["one"]
    memory.pipe("/box/b.txt", b"two")
    assert drive_source(source) == ["one", "two"]


def test_models_of_pydantic_are_refused(tmp_path: Path) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        number: int

    for make in (FilesSource.json_lines, FilesSource.csv, FilesSource.parquet):
        with pytest.raises(ConfigurationError, match="type=Order: files are not decoded to models of pydantic"):
            make(tmp_path, type=Order)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    assert drive_source(FilesSource.text(tmp_path)) == ["one", "two", "one", "two"]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [("replace", ["ok", "b\ufffd", "end"]), ("ignore", ["ok", "b", "end"]), ("skip", ["ok", "end"])],
)
def test_undecodable_bytes_are_handled_by_policy(tmp_path: Path, errors: Any, expected: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ok\nb\xff\nend")
    with SourceDriver(FilesSource.text(path, errors=errors)) as driver:
        assert driver.run() == expected
        assert driver.metrics[0].counter("records_skipped").value == (errors == "skip")
    with pytest.raises(ConnectorError, match=rf"^{path}, line 2: byte 0xff at position 1 is not utf-8"):
        drive_source(FilesSource.text(path))


def test_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\u4f60\u597d\r\n\u4e16\u754c", encoding="gb18030", newline="")
    assert drive_source(FilesSource.text(tmp_path, encoding="gb18030")) == ["\u4f60\u597d", "\u4e16\u754c"]


def test_a_line_longer_than_allowed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("short\n" + "x" * 200)
    with pytest.raises(ConnectorError, match=rf"^{path}: a line is longer than max_line_length=100 bytes"):
        drive_source(FilesSource.text(path, max_line_length=100))


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    assert drive_source(FilesSource.text(tmp_path)) == []
    (tmp_path / "a.txt").write_text("\n")
    assert drive_source(FilesSource.text(tmp_path)) == [""]


# ---- compression -----------------------------------------------------------------------------------------------


def test_all_frames_of_a_file_are_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    frames = [zstandard.ZstdCompressor().compress(part) for part in (b"one\nt", b"", b"wo\n")]
    (tmp_path / "a.zst").write_bytes(skipped.join(frames) + skipped)
    assert drive_source(FilesSource.text(tmp_path)) == ["one", "two"]


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
@pytest.mark.parametrize("lines", [10, 100_000])
def test_all_streams_of_a_file_are_read(tmp_path: Path, name: str, lines: int) -> None:
    parts = ["".join(f"{number}\n" for number in range(begin, begin + lines)) for begin in (0, lines)]
    (tmp_path / name).write_bytes(b"".join(packed(name, part.encode()) for part in parts))
    assert drive_source(FilesSource.text(tmp_path)) == "".join(parts).splitlines()


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
@pytest.mark.parametrize("place", [0.0, 0.5])
@pytest.mark.parametrize("lines", [10, 100_000])
def test_damage_of_a_further_stream_is_an_error(tmp_path: Path, name: str, place: float, lines: int) -> None:
    stream = packed(name, "".join(f"{number}\n" for number in range(lines)).encode())
    damaged = bytearray(stream)
    damaged[int(len(stream) * place)] ^= 0xFF
    path = tmp_path / name
    path.write_bytes(stream + damaged)
    with pytest.raises(ConnectorError, match=rf"^cannot read {path}: "):
        drive_source(FilesSource.text(path))


def packed(name: str, data: bytes) -> bytes:
    raw = io.BytesIO()
    with compressing(raw, of_name(name)) as file:
        file.write(data)
    return raw.getvalue()


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
def test_an_empty_file_has_no_lines_with_any_compression(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / f"b{name}").write_bytes(packed(name, b"one\n"))
    assert drive_source(FilesSource.text(tmp_path)) == ["one"]


def test_xz_has_zeros_between_streams(tmp_path: Path) -> None:
    (tmp_path / "a.xz").write_bytes(bytes(4).join([packed("a.xz", b"one\n"), packed("a.xz", b"two\n"), b""]))
    assert drive_source(FilesSource.text(tmp_path)) == ["one", "two"]


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
def test_a_file_that_is_mostly_air_takes_little_memory(name: str) -> None:
    data = io.BytesIO(packed(name, bytes(1 << 26)))
    tracemalloc.start()
    try:
        file = decompressing(data, of_name(name))
        assert file.read(1000) == bytes(1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


def test_the_suffix_can_be_overruled(tmp_path: Path) -> None:
    (tmp_path / "packed.dat").write_bytes(gzip.compress(b"one"))
    (tmp_path / "plain.gz").write_bytes(b"two")
    assert drive_source(FilesSource.text(tmp_path / "packed.dat", compression="gzip")) == ["one"]
    assert drive_source(FilesSource.text(tmp_path / "plain.gz", compression=None)) == ["two"]


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
@pytest.mark.parametrize("data", [b"this is not compressed at all, is it", bytes(4096)], ids=["text", "zeros"])
def test_damaged_files_are_errors(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ConnectorError, match=rf"^cannot read {path}: \w"):
        drive_source(FilesSource.text(path))


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
@pytest.mark.parametrize("lines", [1, 1_000, 100_000])
def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path, name: str, lines: int) -> None:
    data = "".join(f"{number}\n" for number in range(lines)).encode()
    path = tmp_path / name
    with path.open("wb") as raw:
        file = compressing(raw, of_name(name))
        file.write(data)
        file.close()
    whole = path.read_bytes()
    assert drive_source(FilesSource.text(path)) == data.decode().splitlines()
    path.write_bytes(whole[:-2])
    with pytest.raises(ConnectorError, match=rf"^cannot read {path}: Compressed file ended before the end"):
        drive_source(FilesSource.text(path))


def test_without_zstandard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    message = r"^files compressed with zstd need zstandard: pip install .*\[zstd\].$"
    with pytest.raises(MissingExtraError, match=message):
        FilesSource.text(tmp_path, compression="zstd")
    (tmp_path / "a.zst").write_bytes(b"")
    with pytest.raises(MissingExtraError, match=message):
        drive_source(FilesSource.text(tmp_path))


# ---- JSON lines ------------------------------------------------------------------------------------------------


def test_json_values_can_be_given_a_type(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"user": "ann", "amount": 3, "day": "2024-05-06"}\n{"user": "bob", "amount": 4}\n')
    source = FilesSource.json_lines(path, type=Order)
    assert source.output_type is Order
    assert drive_source(source) == [Order("ann", 3, date(2024, 5, 6)), Order("bob", 4)]


@pytest.mark.parametrize(
    ("text", "of_type", "line", "reason"),
    [
        ('{"a": 1}\n\n{"a": 2\n{"a": 3}\n', None, 3, "Input data was truncated, in b'{\"a\": 2'"),
        ('{"user": "ann", "amount": 1}\n{"user": "bob", "amount": "2"}\n', Order, 2, r"Expected `int`, got `str`"),
        ("1\n2 3\n4\n", None, 2, "JSON is malformed: trailing characters"),
        ('{"a":\n1}\n', None, 1, "Input data was truncated"),
        ("1\n\ufeff2\n", None, 2, "JSON is malformed: invalid character"),
        ("1\n" + "[" * 3000 + "]" * 3000, None, 2, "maximum recursion depth exceeded"),
    ],
)
def test_what_is_not_json_is_an_error_in_its_line(
    tmp_path: Path, text: str, of_type: Any, line: int, reason: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ConnectorError) as caught:
        drive_source(FilesSource.json_lines(path, type=of_type))
    assert str(caught.value).startswith(f"{path}, line {line}: {reason}")
    assert str(caught.value).endswith("on_error='skip' leaves such lines out")


def test_or_it_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n"\xff"\n' + b"[" * 3000 + b"]" * 3000 + b'\n{"a": 4}')
    with SourceDriver(FilesSource.json_lines(path, on_error="skip")) as driver:
        assert driver.run() == [{"a": 1}, {"a": 4}]
        assert driver.metrics[0].counter("records_skipped").value == 3


@pytest.mark.parametrize("form", ["json_lines", "text", "csv"])
@pytest.mark.parametrize("most", [1, 7, 100])
def test_records_are_counted_as_skipped_once_wherever_another_reader_goes_on(
    tmp_path: Path, form: str, most: int
) -> None:
    wrong = {"json_lines": b"{\n", "text": b"\xff\n", "csv": b"1,2\n"}[form]
    (tmp_path / "numbers").write_bytes(b"".join(wrong if i % 3 == 0 else b"%d\n" % i for i in range(300)))
    source: FilesSource[Any]
    if form == "text":
        source = FilesSource.text(tmp_path, errors="skip")
    elif form == "csv":
        source = FilesSource.csv(tmp_path, type=tuple[int], header=False, on_error="skip")
    else:
        source = FilesSource.json_lines(tmp_path, type=int, on_error="skip")
    snapshot, records, skipped = None, [], 0.0
    for _ in range(4):
        with SourceDriver(source, restored=snapshot, limit=most) as driver:
            records += driver.run(most=most)
            snapshot = driver.snapshot()
            skipped += driver.metrics[0].read().get("records_skipped", 0)
    with SourceDriver(source, restored=snapshot) as driver:
        records += driver.run()
        skipped += driver.metrics[0].read().get("records_skipped", 0)
    assert (len(records), skipped) == (200, 100)


@pytest.mark.parametrize("chunk", [8, 16, 24, 1000])
@pytest.mark.parametrize(
    "text", ['{"a":1}{"a":2}\n\n{"a":3}\n', '{"a":3}\n{"a":\n2}\n{"a":1} {"a":2}\n', '\n1 2\n{"a":3}\n']
)
def test_each_line_is_judged_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, chunk: int
) -> None:
    """Two values in a line make up for a blank one in the number of values, and for a value over two lines."""
    monkeypatch.setattr("sluiceway_files._blocks._CHUNK", chunk)
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    assert drive_source(FilesSource.json_lines(path, on_error="skip")) == [{"a": 3}]


@pytest.mark.parametrize("split_size", range(1, 60))
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_line_in_a_later_part_is_counted_from_the_start_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_size: int, chunk: int
) -> None:
    monkeypatch.setattr("sluiceway_files._lined._CHUNK", chunk)
    monkeypatch.setattr("sluiceway_files._blocks._CHUNK", max(chunk, 5))
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n\n{"a": 3}\n{"a": 3}\noops\n{"a": 4}\n')
    with pytest.raises(ConnectorError, match=rf"^{path}, line 6: JSON is malformed"):
        drive_source(FilesSource.json_lines(path, split_size=split_size))
    path.write_bytes(b"a\nbc\n\nd\n\xff\nlast")
    with pytest.raises(ConnectorError, match=rf"^{path}, line 5: byte 0xff"):
        drive_source(FilesSource.text(path, split_size=split_size))


# ---- CSV -------------------------------------------------------------------------------------------------------


def test_csv_rows_are_dicts_by_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbfuser,note\r\nann,"a ""b"", c"\r\n\r\nbob,"two\r\nlines"\r\n')
    (tmp_path / "b.csv").write_text("note,user\nx,cid")
    source = FilesSource.csv(tmp_path)
    assert source.output_type == dict[str, str]
    assert drive_source(source) == [
        {"user": "ann", "note": 'a "b", c'},
        {"user": "bob", "note": "two\r\nlines"},
        {"note": "x", "user": "cid"},
    ]


def test_csv_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("ann;'3;4'\nbob;5\n")
    options: dict[str, Any] = {"delimiter": ";", "quotechar": "'"}
    assert drive_source(FilesSource.csv(path, header=False, **options)) == [("ann", "3;4"), ("bob", "5")]
    named = FilesSource.csv(path, header=["user", "amount"], **options)
    assert drive_source(named) == [{"user": "ann", "amount": "3;4"}, {"user": "bob", "amount": "5"}]


@pytest.mark.parametrize(
    ("of_type", "first"),
    [
        (Order, Order("ann", 3, date(2024, 5, 6))),
        (dict[str, str], {"user": "ann", "amount": "3", "day": "2024-05-06"}),
        (tuple[str, int, date], ("ann", 3, date(2024, 5, 6))),
        (Shop, Shop("ann", 3)),
    ],
)
def test_csv_rows_can_be_given_a_type(tmp_path: Path, of_type: Any, first: Any) -> None:
    path = tmp_path / "a.csv"
    path.write_text("user,amount,day\nann,3,2024-05-06\n")
    assert drive_source(FilesSource.csv(path, type=of_type)) == [first]


@dataclass
class Optionals:
    n: int | None
    price: float | None
    note: str | None
    day: date | None


class OptionalPair(NamedTuple):
    n: int | None
    note: str | None


@pytest.mark.parametrize(
    ("of_type", "header", "records"),
    [
        (Optionals, True, [Optionals(None, None, "", None), Optionals(1, 2.5, "x", date(2026, 1, 2))]),
        (dict[str, float | None], True, None),
        (OptionalPair, ["n", "note"], [OptionalPair(None, ""), OptionalPair(1, "x")]),
        (tuple[int | None, str], False, [(None, ""), (1, "x")]),
    ],
)
def test_an_empty_csv_field_is_none_where_it_cannot_be_text(
    tmp_path: Path, of_type: Any, header: Any, records: Any
) -> None:
    path = tmp_path / "a.csv"
    rows = [",", "1,x"]
    if of_type is Optionals:
        rows = ["n,price,note,day", ",,,", "1,2.5,x,2026-01-02"]
    elif records is None:
        rows, records = ["a,b", ",2.5", "1,"], [{"a": None, "b": 2.5}, {"a": 1.0, "b": None}]
    path.write_text("\n".join(rows))
    assert drive_source(FilesSource.csv(path, type=of_type, header=header)) == records


def test_csv_rows_without_names_can_be_named_tuples(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("ann,1.5\n")
    assert drive_source(FilesSource.csv(path, header=False, type=Pair)) == [Pair("ann", 1.5)]


@pytest.mark.parametrize("text", ["note,n\n7,8\n", "b,note,n\nx,7,8\n"])
def test_named_tuples_have_the_fields_that_the_header_names(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    source = FilesSource.csv(path, type=OptionalPair)
    assert drive_source(source) == [OptionalPair(8, "7")]
    assert Pipeline().table(source).to_arrow().to_pylist() == [{"n": 8, "note": "7"}]


@pytest.mark.parametrize(
    ("text", "of_type", "line", "reason"),
    [
        ("user,amount\nann,1\nbob\n", None, 3, "1 fields where there are 2 columns"),
        ('user,amount\n"ann\nann",1\nbob,2,3\n', None, 4, "3 fields where there are 2 columns"),
        ('user,amount\nann,1\nbob,"2" x\n', None, 3, "',' expected after '\"'"),
        ('user,amount\nann,1\nbob,"2\n', None, 3, "unexpected end of data"),
        (
            "user,amount\nann,1\nbob,2\rcy,3\n",
            None,
            3,
            "a carriage return is neither in quotes nor followed by a line feed: rows end with a line feed, or "
            "with both",
        ),
        ("user,amount\nann,one\n", Shop, 2, "Expected `int`, got `str` - at `$.amount`"),
    ],
)
def test_a_row_that_is_wrong_is_an_error_in_its_line(
    tmp_path: Path, text: str, of_type: Any, line: int, reason: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ConnectorError) as caught:
        drive_source(FilesSource.csv(path, type=of_type))
    assert str(caught.value) == f"{path}, line {line}: {reason}. on_error='skip' leaves such rows out"
    with SourceDriver(FilesSource.csv(path, type=of_type, on_error="skip")) as driver:
        assert len(driver.run()) == (0 if of_type else 1)
        assert driver.metrics[0].counter("records_skipped").value == 1


def test_a_header_that_is_no_row_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\r1,2\r")
    with pytest.raises(ConnectorError, match=rf"^{path}, line 1: the header cannot be read: a carriage return is"):
        drive_source(FilesSource.csv(path))


@dataclass
class Checked:
    a: int

    def __post_init__(self) -> None:
        if self.a == 2:
            next(iter(()))


def test_a_stop_iteration_of_the_type_does_not_end_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n2\n3\n")
    flow = Pipeline()
    flow.source(FilesSource.csv(path, type=Checked)).print()
    with pytest.raises(FunctionContractError, match="raised StopIteration"):
        flow.run()


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(ConnectorError, match=rf"^{path}: two columns have the same name: a, b, a$"):
        drive_source(FilesSource.csv(path))


def test_csv_that_cannot_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,2\n3,\xff\n")
    with pytest.raises(ConnectorError) as caught:
        drive_source(FilesSource.csv(path))
    assert str(caught.value) == (
        f"{path}, line 3: byte 0xff is not utf-8 (invalid start byte). Set encoding=, or errors='replace' or "
        f"'ignore'"
    )
    assert drive_source(FilesSource.csv(path, errors="ignore"))[-1] == {"a": "3", "b": ""}
    assert drive_source(FilesSource.csv(path, encoding="latin-1"))[-1] == {"a": "3", "b": "\u00ff"}


def test_csv_files_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "b.csv").write_text("a,b\n")
    assert drive_source(FilesSource.csv(tmp_path)) == []


def test_csv_positions_hold_whatever_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv.gz"
    rows = [{"id": str(i), "text": f"a\n{'b' * i}\n" if i % 3 else ""} for i in range(20)]
    text = "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows)
    path.write_bytes(gzip.compress(text.encode()))
    source = FilesSource.csv(path)
    positions = []
    with SourceDriver(source, limit=1) as driver:
        while driver.poll():
            positions.append((driver.all_records(), driver.snapshot()))
    for chunk in (1, 9, 50):
        monkeypatch.setattr("sluiceway_files._blocks._CHUNK", chunk)
        for before, snapshot in positions:
            with SourceDriver(source, restored=snapshot) as driver:
                assert before + driver.run() == rows


# ---- Parquet ---------------------------------------------------------------------------------------------------


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    pq.write_table(table, tmp_path / "a.parquet")
    for columns in (None, ["b", "a"]):
        with pytest.raises(ConnectorError, match=r"a\.parquet has several columns 'a'"):
            drive_source(FilesSource.parquet(tmp_path, columns=columns))
    assert drive_source(FilesSource.parquet(tmp_path, columns=["b"])) == [{"b": 3}]
    with pytest.raises(GraphError, match=r"columns must have different names; twice: 'a'"):
        Pipeline("two").table(FilesSource.parquet(tmp_path))
    with pytest.raises(ConfigurationError, match=r"header=\['a', 'b', 'a'\] has two columns of the same name"):
        FilesSource.csv(tmp_path, header=["a", "b", "a"])


def test_parquet_columns_and_types(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"user": "ann", "amount": 3, "x": None}, {"user": "bob", "amount": None, "x": 1.5}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert drive_source(FilesSource.parquet(path)) == rows
    assert drive_source(FilesSource.parquet(path, columns=["amount"])) == [{"amount": 3}, {"amount": None}]
    with SourceDriver(FilesSource.parquet(path, type=Shop, on_error="skip")) as driver:
        assert driver.run() == [Shop("ann", 3)]
        assert driver.metrics[0].counter("records_skipped").value == 1
    with pytest.raises(ConnectorError) as caught:
        drive_source(FilesSource.parquet(path, type=Shop))
    assert str(caught.value) == (
        f"{path}, row group 0, row 2: Expected `int`, got `null` - at `$.amount`. on_error='skip' leaves "
        "such rows out"
    )
    with pytest.raises(ConnectorError, match=rf"^{path} has no column 'colour'; it has 'user', 'amount', 'x'$"):
        drive_source(FilesSource.parquet(path, columns=["colour"]))


def test_times_of_int96_are_read_whatever_their_year(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [{"at": datetime(year, 1, 1, 12, 0, 0, 1)} for year in (1, 1600, 2026, 9999)]
    written = pa.Table.from_pylist(rows, pa.schema([("at", pa.timestamp("us"))]))
    pq.write_table(written, path, use_deprecated_int96_timestamps=True)
    source = FilesSource.parquet(path)
    assert drive_source(source) == rows
    assert Pipeline().table(source).to_arrow().to_pylist() == rows


def test_what_is_not_parquet_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(ConnectorError, match=rf"^cannot read {path}: "):
        drive_source(FilesSource.parquet(path))
    path.write_bytes(b"")
    with pytest.raises(ConnectorError, match=rf"^cannot read {path}: "):
        drive_source(FilesSource.parquet(path))


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"^Parquet files need pyarrow: pip install .*\[arrow\].$"):
        FilesSource.parquet("a.parquet")


# ---- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("text", {"paths": []}, "files need a path, a glob or a list of them, not []"),
        ("text", {"paths": ""}, "files need a path, a glob or a list of them, not ''"),
        (
            "text",
            {"compression": "rar"},
            "compression='rar' must be one of 'infer', 'gzip', 'bz2', 'xz', 'zstd', or",
        ),
        ("text", {"split_size": 0}, "split_size=0 must be a number of bytes, at least 1, or None"),
        (
            "text",
            {"encoding": "utf-16"},
            "lines that end with '\\n' cannot be told apart in bytes of encoding='utf-16'",
        ),
        ("text", {"encoding": "cp037"}, "files in encoding='cp037' cannot be read by lines: store them as utf-8"),
        ("text", {"errors": "panic"}, "errors='panic' must be one of 'strict', 'replace', 'ignore', 'skip'"),
        ("text", {"max_line_length": 0}, "max_line_length=0 must be a number of bytes, at least 1"),
        ("json_lines", {"on_error": "ask"}, "on_error='ask' must be 'fail' or 'skip'"),
        ("csv", {"delimiter": ",,"}, "delimiter=',,' must be one character"),
        ("csv", {"quotechar": ""}, "quotechar='' must be one character"),
        ("csv", {"errors": "skip"}, "errors='skip' must be 'strict', 'replace' or 'ignore'"),
        ("parquet", {"on_error": "ask"}, "on_error='ask' must be 'fail' or 'skip'"),
    ],
)
def test_options_that_cannot_work_are_refused(form: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FilesSource.of(**{"paths": "a", "format": form, **options})
    assert str(caught.value).startswith(message)


def test_by_the_name_of_the_format(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    assert drive_source(FilesSource.of(tmp_path)) == ["1"]
    assert drive_source(FilesSource.of(tmp_path, "json_lines")) == [1]
    with pytest.raises(
        UnknownNameError, match=r"there is no file format 'jsonlines'. Did you mean 'json_lines'\?"
    ):
        FilesSource.of(tmp_path, "jsonlines")
    with pytest.raises(ConfigurationError, match=r"FilesSource is made by FilesSource.text, .csv, .json_lines or"):
        FilesSource(tmp_path)


def test_importing_the_plugin_imports_none_of_its_code() -> None:
    code = (
        "import sys, sluiceway_files as f\n"
        "(offer,) = f.sluiceway_connectors()\n"
        "assert offer.name == 'files'\n"
        "assert 'fsspec' not in sys.modules and 'sluiceway.connector' not in sys.modules\n"
        "connector = offer.load()\n"
        "assert connector.source('a').name == 'FilesSource' and connector.sink('a').name == 'FilesSink'\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=PATIENT_S)


@dataclass
class Row:
    n: int


LINES = 100_000
SHORTENED: list[tuple[str, Any]] = [
    ("text", FilesSource.text),
    ("csv", lambda path: FilesSource.csv(path, header=["n"], type=Row)),
    ("json", FilesSource.json_lines),
]


def _restored(split: FileSplit) -> SourceSnapshot:
    return SourceSnapshot(pickle.dumps([]), (pickle.dumps([split]),))


@pytest.mark.parametrize("left", [0, 1_000, 300_001])
@pytest.mark.parametrize("source", [source for _, source in SHORTENED], ids=[name for name, _ in SHORTENED])
def test_a_file_that_is_shortened_while_it_is_read_fails(source: Any, left: int, tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n}\n" for n in range(LINES)))
    size = path.stat().st_size
    with SourceDriver(source(str(path)), limit=1000) as driver:
        assert len(driver.run(most=1)) >= 1
        os.truncate(path, left)
        with pytest.raises(FileShortenedError) as caught:
            driver.run()
    assert f"numbers.txt was shortened while it was read: it had {size} bytes, has {left} now" in str(caught.value)


def test_a_file_that_is_shorter_than_what_was_read_of_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n:06}\n" for n in range(LINES)))
    with SourceDriver(FilesSource.text(str(path)), limit=1000) as driver:
        driver.run(most=60_000)
        snapshot = driver.snapshot()
    os.truncate(path, 100)
    with (
        SourceDriver(FilesSource.text(str(path)), restored=snapshot) as driver,
        pytest.raises(FileShortenedError, match=r"it had \d+ bytes, has 100 now, and was read up to byte \d+"),
    ):
        driver.run()


def _numbers_in_columns(path: str) -> Any:
    in_columns = FilesSource.csv(path, header=["n"], type=Row).in_columns()
    assert in_columns is not None
    return in_columns[0]


@pytest.mark.parametrize(
    "source",
    [*(source for _, source in SHORTENED), _numbers_in_columns],
    ids=[*(name for name, _ in SHORTENED), "csv in columns"],
)
def test_a_file_with_fewer_lines_than_were_read_of_its_first_block_fails(source: Any, tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("1\n2\n3\n")
    left = FileSplit(0, str(path), offset=0, skip=10)
    says = r"numbers.txt was shortened or replaced since it was read: 10 \w+ after byte 0 were read, and it has 3 "
    with (
        SourceDriver(source(str(path)), restored=_restored(left)) as driver,
        pytest.raises(FileShortenedError, match=says),
    ):
        driver.run()


def _lines(numbers: range) -> bytes:
    return b"".join(b"%d\n" % (1000 + n) for n in numbers)


def _parquet(numbers: range) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": numbers}), out, row_group_size=200)
    return out.getvalue()


@pytest.mark.parametrize(
    ("source", "content", "says"),
    [
        *(
            (source, _lines, "edited since it was read: the 20 lines after byte 0 are not")
            for _, source in SHORTENED
        ),
        (FilesSource.parquet, _parquet, "since it was listed: it has another footer now"),
    ],
    ids=[*(name for name, _ in SHORTENED), "parquet"],
)
def test_a_file_that_another_one_has_replaced_fails_where_its_reading_was_begun(
    source: Any, content: Any, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "numbers.txt"
    path.write_bytes(content(range(300)))
    with SourceDriver(source(str(path)), limit=20) as driver:
        assert len(driver.run(most=20)) == 20
        begun = driver.snapshot()
    with SourceDriver(source(str(path)), restored=begun) as driver:
        assert len(driver.run()) == 280
    path.write_bytes(content(range(5, 305)))
    with (
        SourceDriver(source(str(path)), restored=begun) as driver,
        pytest.raises(FileReplacedError, match=f"numbers.txt was replaced .*{says}"),
    ):
        driver.run()


@pytest.mark.parametrize("source", [source for _, source in SHORTENED], ids=[name for name, _ in SHORTENED])
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_file_that_another_one_has_replaced_fails_where_all_lines_of_a_block_were_read(
    source: Any, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway_files._blocks._CHUNK", 2_000)
    path = tmp_path / "numbers.txt"
    path.write_bytes(_lines(range(2_000)))
    with SourceDriver(source(str(path)), limit=400) as driver:
        assert len(driver.run(most=400 * blocks)) == 400 * blocks
        begun = driver.snapshot()
    (split,) = (split for splits in begun.splits() for split in splits)
    assert (split.offset, split.skip) == (2_000 * blocks, 0)
    path.write_bytes(_lines(range(400 * blocks)) + b"corrected\n" + _lines(range(400 * blocks + 1, 3_000)))
    with SourceDriver(FilesSource.text(str(path)), restored=begun) as driver:
        assert len(driver.run()) == 3_000 - 400 * blocks
    path.write_bytes(_lines(range(5, 2_005)))
    with (
        SourceDriver(source(str(path)), restored=begun) as driver,
        pytest.raises(FileReplacedError, match=r"numbers.txt was replaced .*: the bytes before byte \d+, up to"),
    ):
        driver.run()


def test_lines_behind_the_position_may_be_corrected(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_bytes(_lines(range(100)))
    with SourceDriver(FilesSource.text(path), limit=20) as driver:
        driver.run(most=20)
        begun = driver.snapshot()
    path.write_bytes(_lines(range(20)) + b"corrected\n" + _lines(range(21, 150)))
    with SourceDriver(FilesSource.text(path), restored=begun) as driver:
        assert driver.run() == ["corrected", *_lines(range(21, 150)).decode().split()]


def test_a_split_of_an_earlier_version_knows_nothing_of_what_was_read() -> None:
    split = FileSplit(0, "numbers.txt", offset=7, skip=3)
    old = FileSplit.__new__(FileSplit)
    old.__setstate__([0, "numbers.txt", 0, None, 7, 3, 0])
    assert old == split
    known = replace(split, seen=5, size=9, tail=7)
    assert pickle.loads(pickle.dumps(known)) == known


PARTS: list[tuple[str, Any, Any]] = [
    ("text", partial(FilesSource.text, split_size=100), _lines),
    ("json", partial(FilesSource.json_lines, split_size=100), _lines),
    ("parquet", FilesSource.parquet, _parquet),
]
parts = pytest.mark.parametrize(
    ("source", "content"), [(source, content) for _, source, content in PARTS], ids=[name for name, _, _ in PARTS]
)


@parts
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("more", [0, 700])
def test_a_file_that_is_replaced_while_parts_of_it_are_left_to_read_fails(
    source: Any, content: Any, restored: bool, more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway_files._parquet._LARGE_RUN", 1)
    path = tmp_path / "numbers.txt"
    path.write_bytes(content(range(600)))
    driver = SourceDriver(source(str(path)), limit=1000)
    with driver:
        assert 0 < len(driver.run(most=1)) < 600
        beside = tmp_path / ".beside"
        beside.write_bytes(content(range(5, 605 + more)))
        beside.rename(path)
        if restored:
            snapshot = driver.snapshot()
            driver.close()
            driver = SourceDriver(source(str(path)), limit=1000, restored=snapshot)
        with driver, pytest.raises(FileReplacedError, match=r"numbers.txt was replaced .*since it was listed"):
            driver.run()


@parts
def test_a_file_of_several_parts_that_is_written_again_with_the_same_content_is_the_same(
    source: Any, content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway_files._parquet._LARGE_RUN", 1)
    path = tmp_path / "numbers.txt"
    path.write_bytes(content(range(600)))
    with SourceDriver(source(str(path)), limit=1000) as driver:
        driver.run(most=1)
        path.write_bytes(content(range(600)))
        assert len(driver.run()) == 600


def test_a_file_of_several_parts_may_grow_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_bytes(_lines(range(600)))
    with SourceDriver(FilesSource.text(path, split_size=100), limit=1000) as driver:
        driver.run(most=1)
        with path.open("ab") as file:
            file.write(_lines(range(600, 700)))
        assert driver.run() == _lines(range(700)).decode().split()


def test_a_file_that_is_overwritten_while_its_last_parts_are_read_fails(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_bytes(_lines(range(LINES)) + b"the last line\n")
    source = FilesSource.text(path, split_size=path.stat().st_size // 2)
    with SourceDriver(source, 2, limit=1000) as driver:
        while not all(driver.records):
            driver.poll()
        path.write_bytes(_lines(range(LINES)) + b"another line\nof another day\n")
        with pytest.raises(FileReplacedError, match=r"numbers.txt was replaced .* it is read in several parts"):
            driver.run()


@pytest.mark.parametrize("source", [source for _, source in SHORTENED], ids=[name for name, _ in SHORTENED])
def test_a_whole_file_that_is_shortened_before_a_restore_fails(source: Any, tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_bytes(_lines(range(100)))
    with SourceDriver(source(str(path)), limit=20) as driver:
        driver.run(most=20)
        begun = driver.snapshot()
    path.write_bytes(_lines(range(60)))
    with (
        SourceDriver(source(str(path)), restored=begun) as driver,
        pytest.raises(FileShortenedError, match=r"numbers.txt was shortened while it was read: it had \d+ bytes"),
    ):
        driver.run()


def test_a_whole_file_that_was_not_begun_may_be_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_bytes(_lines(range(100)))
    with SourceDriver(FilesSource.text(path)) as driver:
        path.write_bytes(_lines(range(60)))
        assert len(driver.run()) == 60


def test_a_remote_file_that_is_gone_is_said_to_be() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/gone/a.txt", b"1\n")
    memory.pipe_file("/gone/b.txt", b"2\n")
    with SourceDriver(FilesSource.text("memory://gone")) as driver:
        driver.run(most=1)
        memory.rm("/gone", recursive=True)
        with pytest.raises(ConnectorError, match=r"cannot read memory:///gone/b.txt: No such file or directory"):
            driver.run()


def test_a_remote_file_that_ends_before_the_position_fails() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/shortened/numbers.txt", b"1\n2\n3\n")
    source = FilesSource.text("memory://shortened/numbers.txt")
    left = FileSplit(0, "/shortened/numbers.txt", offset=600, line=200)
    says = "memory://.*numbers.txt was shortened .* it had 600 bytes, has 6 now, and was read up to byte 600"
    with SourceDriver(source, restored=_restored(left)) as driver, pytest.raises(FileShortenedError, match=says):
        driver.run()
    memory.rm("/shortened", recursive=True)


@pytest.mark.parametrize(
    ("left", "says"),
    [
        ({"start": 2, "end": 3}, "it had 3 row groups at least, and has 2 now"),
        ({"start": 0, "offset": 2, "skip": 1}, "it had 3 row groups at least, and has 2 now"),
        ({"start": 1, "end": 2, "offset": 1, "skip": 9}, "of row group 1, 9 rows were read, and it has 3 now"),
    ],
)
def test_a_parquet_file_with_fewer_row_groups_or_rows_than_before_fails(
    left: dict[str, int], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "numbers.parquet"
    pq.write_table(pa.table({"n": range(6)}), path, row_group_size=3)
    restored = _restored(FileSplit(0, str(path), **left))
    with (
        SourceDriver(FilesSource.parquet(path), restored=restored) as driver,
        pytest.raises(FileShortenedError, match=rf"numbers.parquet was shortened or replaced since .* {says}"),
    ):
        driver.run()


def test_a_checkpoint_of_a_source_with_more_paths_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("1\n")
    restored = _restored(FileSplit(1, str(path)))
    says = r"numbers.txt is left to read, of path number 2 of the source, which has 1 now\. Give it as many paths"
    with (
        SourceDriver(FilesSource.text(path), restored=restored) as driver,
        pytest.raises(IncompatibleStateError, match=says),
    ):
        driver.run()


def test_a_compressed_file_that_is_shorter_than_what_was_read_of_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt.gz"
    path.write_bytes(gzip.compress("".join(f"{n:06}\n" for n in range(LINES)).encode()))
    with SourceDriver(FilesSource.text(str(path)), limit=1000) as driver:
        driver.run(most=60_000)
        snapshot = driver.snapshot()
    path.write_bytes(gzip.compress(b"1\n2\n"))
    with (
        SourceDriver(FilesSource.text(str(path)), restored=snapshot) as driver,
        pytest.raises(FileShortenedError, match=r"it was read up to byte \d+, and ends at byte 4 now"),
    ):
        driver.run()


def test_a_part_that_is_no_more_fails(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n:06}\n" for n in range(LINES)))
    source = FilesSource.text(str(path), split_size=100_000)
    with SourceDriver(source, limit=1000) as driver:
        driver.run(most=1)
        os.truncate(path, 300_000)
        with pytest.raises(FileShortenedError, match=r"numbers.txt was shortened while it was read: it had"):
            driver.run()


def test_a_file_may_grow_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n:06}\n" for n in range(LINES)))
    with SourceDriver(FilesSource.text(str(path)), limit=1000) as driver:
        driver.run(most=1)
        with path.open("a") as file:
            file.write("more\n")
        assert len(driver.run()) == LINES + 1
