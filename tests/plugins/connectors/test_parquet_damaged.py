"""Parquet files that are damaged: an error that names the file, never fewer rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluiceway import Pipeline
from sluiceway.errors import ConnectorError, RejectedRecordError
from sluiceway.testing.drivers import drive_source
from sluiceway_files import FilesSource

ROWS = pa.table({"number": [1001, 1002, 1003], "word": ["lorem", "ipsum", "dolor"]})
PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False, "store_schema": False}


def _as_records(path: Path) -> Any:
    return drive_source(FilesSource.parquet(path))


def _in_columns(path: Path) -> Any:
    return Pipeline().table(FilesSource.parquet(path)).to_arrow()


def _of_a_table(path: Path) -> Any:
    deltalake = pytest.importorskip("deltalake", reason='not installed: pip install "sluiceway[delta]"')
    from sluiceway_lakehouse import DeltaSource

    table = path.parent / "t"
    deltalake.write_deltalake(table, ROWS)
    (file,) = table.glob("*.parquet")
    path.rename(file)
    with pytest.raises(ConnectorError, match=re.escape(file.name)) as caught:
        drive_source(DeltaSource(table))
    raise type(caught.value)(str(caught.value).replace(f"Delta table {table}, file {file.name}", str(path)))


each_reader = pytest.mark.parametrize("read", [_as_records, _in_columns, _of_a_table])


@pytest.mark.usefixtures("delta_runtime")
@each_reader
def test_a_column_that_ends_early_is_an_error(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(ROWS, path, **PLAIN)
    page = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    data = bytearray(path.read_bytes())
    assert data[page : page + 2] == b"\x15\x00"
    data[page + 1] = 2  # no page of data any more but one of an index, which readers pass over
    path.write_bytes(data)
    message = (
        rf"^cannot read {path}, row group 0: it has 3 rows by the footer of the file, and a column ends after 0"
    )
    with pytest.raises(RejectedRecordError, match=message):
        read(path)


@pytest.mark.usefixtures("delta_runtime")
@each_reader
def test_a_page_that_differs_from_its_checksum_is_an_error(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(ROWS, path, **PLAIN, write_statistics=False, write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"ipsum", b"ipsus"))
    with pytest.raises(ConnectorError, match=rf"^cannot read {path}.*: .*CRC checksum verification failed"):
        read(path)


@pytest.mark.usefixtures("delta_runtime")
@each_reader
def test_a_name_that_is_not_utf8_is_an_error(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(ROWS, path, **PLAIN)
    path.write_bytes(path.read_bytes().replace(b"word", b"\xfford"))
    with pytest.raises(ConnectorError, match=rf"^cannot read {path}: 'utf-8' codec can't decode byte 0xff"):
        read(path)
