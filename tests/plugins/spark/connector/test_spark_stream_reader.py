"""Reader of streams of the format ``sluiceway``, called as Spark calls it, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
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
        self.options = {
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

        told = SourceTold.of(self.options, parallelism)
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
def query(tmp_path: Path) -> Iterator[Query]:
    from sluiceway_spark.datasource import stream_reader

    (tmp_path / "in").mkdir()
    yield Query(tmp_path)
    stream_reader._readers.close()


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


def test_the_first_batch_may_find_nothing(query: Query, tmp_path: Path) -> None:
    query.options["source.watch"] = "10ms"
    reader = query.start(2)
    assert query.batch(reader)
    assert query.log == [(reader.initialOffset(), reader.initialOffset())]
    reader.stop()
    # The driver dies before Spark notes that it was done with it, and another one repeats it.
    reader = query.start(2)
    query.repeat(reader)
    lines = write_lines(tmp_path, files=2, lines=30)
    while len(query.rows) < len(lines):  # polls
        query.batch(reader)
    reader.stop()
    assert sorted(query.rows) == lines


def test_an_earlier_versions_first_batch_without_records_is_run(query: Query, tmp_path: Path) -> None:
    query.options["source.watch"] = "10ms"
    query.log.append(({"run": "one", "batch": 0}, {"run": "another", "batch": 0}))
    reader = query.start(2)
    query.repeat(reader)
    lines = write_lines(tmp_path, files=2, lines=30)
    while len(query.rows) < len(lines):  # polls
        query.batch(reader)
    reader.stop()
    assert sorted(query.rows) == lines
    assert {end["run"] for _, end in query.log} == {"another"}
