"""Reader of streams of the format ``sluiceway``, called as Spark calls it, without Spark."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = pytest.mark.skipif(
    too_old(MICRO_BATCHES) is not None, reason=f"format 'sluiceway': {too_old(MICRO_BATCHES)}"
)


class Query:
    """Query of Spark over lines of files: its log, and the rows that it was given."""

    def __init__(self, place: Path) -> None:
        self.rows: list[str] = []
        self.log: list[tuple[Any, Any]] = []
        self._options = {
            "source": "files",
            "source.paths": str(place / "in" / "*.txt"),
            "positions": str(place / "positions"),
            "maxRecords": "20",
            "maxWait": "0.05",
        }

    def start(self, parallelism: int) -> Any:
        from pyspark.sql.types import StringType, StructType

        from sluiceway_spark.datasource.read_options import SourceTold
        from sluiceway_spark.datasource.stream_reader import SourceStreamReader

        told = SourceTold.of(self._options, parallelism)
        return SourceStreamReader(told, StructType().add("value", StringType()), ())

    def batch(self, reader: Any) -> bool:
        """Run a batch; False: there is none for now."""
        start = self.log[-1][1] if self.log else reader.initialOffset()
        end = json.loads(json.dumps(reader.latestOffset(start, None)))
        if self.log and end == start:
            return False
        self.log.append((start, end))
        self.repeat(reader)
        return True

    def repeat(self, reader: Any) -> None:
        """Run the newest batch of the log."""
        start, end = self.log[-1]
        if len(self.log) == 1:
            start = reader.initialOffset()
        for partition in reader.partitions(start, end):
            for rows in pickle.loads(pickle.dumps(reader)).read(partition):
                self.rows += rows.column(0).to_pylist()
        reader.commit(end)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    (tmp_path / "in").mkdir()
    return Query(tmp_path)


def write_lines(place: Path, files: int, lines: int) -> list[str]:
    written = [[f"{file}-{line}" for line in range(lines)] for file in range(files)]
    for file, each in enumerate(written):
        (place / f"in/{file}.txt").write_text("\n".join(each) + "\n")
    return sorted(line for each in written for line in each)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
@pytest.mark.parametrize("noted", [True, False], ids=["noted", "earlier version"])
def test_a_stream_keeps_its_number_of_readers(
    query: Query, tmp_path: Path, before: int, after: int, noted: bool
) -> None:
    lines = write_lines(tmp_path, files=4, lines=100)
    reader = query.start(before)
    assert query.batch(reader)
    assert query.batch(reader)
    reader.stop()
    if not noted:
        for file in (tmp_path / "positions").glob("*/readers"):
            file.unlink()
    reader = query.start(after)
    while query.batch(reader):
        pass
    reader.stop()
    assert sorted(query.rows) == lines
