"""The files connector keeps the contracts, in every format."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from sluiceway.connector import Sink, Source
from sluiceway.testing.conformance.sink import SinkConformance
from sluiceway.testing.conformance.source import SourceConformance
from sluiceway.testing.drivers import drive_source
from sluiceway_files import FilesSink, FilesSource

LINES = [f"line {i} of {'x' * (i % 7)}" for i in range(60)]
ROWS = [{"id": i, "text": 'with "quotes",\nand lines' if i % 5 == 0 else f"text {i}"} for i in range(40)]


class _InDirectory:
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "data"
        self.directory.mkdir()
        self.number = 0
        self.fill()

    def fill(self) -> None:
        """Write what a source reads."""


class TestTextSource(_InDirectory, SourceConformance):
    def fill(self) -> None:
        (self.directory / "a.txt").write_text("".join(f"{line}\n" for line in LINES[:20]))
        (self.directory / "b.txt").write_text("\r\n".join(LINES[20:]))

    def make_source(self) -> Source[Any]:
        return FilesSource.text(self.directory)

    def expected(self) -> list[Any]:
        return LINES


class TestTextSourceInSmallParts(TestTextSource):
    """Parts of about a line: some begin in a line, at a line, and have no line of their own."""

    def make_source(self) -> Source[Any]:
        return FilesSource.text(self.directory, split_size=9)


@pytest.mark.parametrize("split_size", range(1, 40))
def test_no_cut_loses_or_repeats_a_line(tmp_path: Path, split_size: int) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\n\nthree and more than that\nx\n" * 3 + "the tail")
    expected = path.read_text().split("\n")
    assert drive_source(FilesSource.text(path, split_size=split_size)) == expected


class TestGzip(_InDirectory, SourceConformance):
    def fill(self) -> None:
        (self.directory / "a.txt.gz").write_bytes(gzip.compress("\n".join(LINES[:20]).encode()))
        (self.directory / "b.txt.bz2").write_bytes(bz2.compress("\n".join(LINES[20:30]).encode()))
        (self.directory / "c.txt.xz").write_bytes(lzma.compress("\n".join(LINES[30:40]).encode()))
        packed = [zstandard.compress(f"{line}\n".encode()) for line in LINES[40:]]
        (self.directory / "d.txt.zst").write_bytes(b"".join(packed))

    def make_source(self) -> Source[Any]:
        return FilesSource.text(self.directory)

    def expected(self) -> list[Any]:
        return LINES


class TestJsonLinesSource(_InDirectory, SourceConformance):
    def fill(self) -> None:
        (self.directory / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:15]) + "\n \n")
        (self.directory / "b.jsonl").write_text("\r\n".join(json.dumps(row) for row in ROWS[15:]))

    def make_source(self) -> Source[Any]:
        return FilesSource.json_lines(str(self.directory / "*.jsonl"), split_size=200)

    def expected(self) -> list[Any]:
        return ROWS


class TestCsvSource(_InDirectory, SourceConformance):
    def fill(self) -> None:
        for name, rows in (("a", ROWS[:15]), ("b", ROWS[15:])):
            with (self.directory / f"{name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, ["id", "text"], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)

    def make_source(self) -> Source[Any]:
        return FilesSource.csv(self.directory)

    def expected(self) -> list[Any]:
        return [{"id": str(row["id"]), "text": row["text"]} for row in ROWS]


class TestParquetSource(_InDirectory, SourceConformance):
    def fill(self) -> None:
        pq.write_table(pa.Table.from_pylist(ROWS[:25]), self.directory / "a.parquet", row_group_size=10)
        pq.write_table(pa.Table.from_pylist(ROWS[25:]), self.directory / "b.parquet")

    def make_source(self) -> Source[Any]:
        return FilesSource.parquet(self.directory)

    def expected(self) -> list[Any]:
        return ROWS


class _FilesSinkConformance(_InDirectory, SinkConformance):
    visible_after_failure = False

    def new_directory(self) -> Path:
        self.number += 1
        self.current = self.directory / str(self.number)
        return self.current

    def files(self) -> list[Path]:
        left = [p for p in self.current.glob("*") if p.name.startswith(".")] if self.current.exists() else []
        assert left == []
        return sorted(self.current.glob("*"), key=lambda p: [int(n) for n in p.name.split(".")[0].split("-")[1:]])


class TestTextSink(_FilesSinkConformance):
    def make_sink(self) -> Sink[Any]:
        return FilesSink.text(self.new_directory())

    def written(self) -> list[Any]:
        return [line for file in self.files() for line in file.read_text().splitlines()]


class TestRollingCompressedTextSink(_FilesSinkConformance):
    visible_after_failure = True  # complete files are

    def make_sink(self) -> Sink[Any]:
        return FilesSink.text(self.new_directory(), roll_size=100, compression="gzip")

    def written(self) -> list[Any]:
        return [line for f in self.files() for line in gzip.decompress(f.read_bytes()).decode().splitlines()]


class TestJsonLinesSink(_FilesSinkConformance):
    def make_sink(self) -> Sink[Any]:
        return FilesSink.json_lines(self.new_directory(), compression="zstd")

    def records(self) -> list[Any]:
        return ROWS

    def written(self) -> list[Any]:
        unpack = zstandard.ZstdDecompressor()
        packed = [unpack.stream_reader(io.BytesIO(f.read_bytes())).read() for f in self.files()]
        return [json.loads(line) for data in packed for line in data.splitlines()]


class TestCsvSink(_FilesSinkConformance):
    def make_sink(self) -> Sink[Any]:
        return FilesSink.csv(self.new_directory())

    def records(self) -> list[Any]:
        return ROWS

    def written(self) -> list[Any]:
        rows = []
        for path in self.files():
            with path.open(newline="") as file:
                rows += [{"id": int(r["id"]), "text": r["text"]} for r in csv.DictReader(file)]
        return rows


class TestParquetSink(_FilesSinkConformance):
    def make_sink(self) -> Sink[Any]:
        return FilesSink.parquet(self.new_directory(), row_group_size=16)

    def records(self) -> list[Any]:
        return ROWS

    def written(self) -> list[Any]:
        return [row for file in self.files() for row in pq.read_table(file).to_pylist()]
