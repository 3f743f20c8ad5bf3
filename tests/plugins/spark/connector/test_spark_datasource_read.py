"""Sources as Spark's format ``sluiceway``: from plain PySpark, with a real session on this machine."""

from __future__ import annotations

import json
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway_spark.session.pyspark_version import FORMAT, too_old

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif(too_old(FORMAT) is not None, reason=f"format 'sluiceway': {too_old(FORMAT)}"),
]

MODULE = '''
import os
from dataclasses import dataclass

from sluiceway.connector import END_OF_INPUT, Wait
from sluiceway.connector.lib.collection import CollectionSource
from sluiceway.connector.lib.function import FunctionSource
from sluiceway.connector.lib.generator import GeneratorSource
from sluiceway_files import FilesSource


@dataclass
class Word:
    word: str
    length: int


def words(count):
    words = [Word("x" * (i % 7), i) for i in range(count)]
    return CollectionSource(words, timestamp=lambda word: word.length * 1000)


def lines(path, split_size=100, watch=None):
    return FilesSource.text(path, split_size=split_size, watch=watch)


def numbers(count=None, rate=None):
    return GeneratorSource(count=count, rate=rate)


def loose():
    return CollectionSource([{"a": 1, "b": "x"}, {"a": 2}], output_type=dict)


def called(count):
    return FunctionSource(lambda: iter(range(count)), output_type=int)


class Rejecting(CollectionSource):
    """Goes on only when the record that it cannot decode was taken."""

    def create_reader(self, context):
        reader, bad = super().create_reader(context), [(b"x", ValueError("no number"), None)]
        poll = reader.poll
        reader.poll = lambda limit: Wait(until=0.0) if bad else poll(limit)

        def rejected():
            taken = list(bad)
            bad.clear()
            return taken

        reader.rejected = rejected
        return reader


def rejecting():
    return Rejecting([1, 2], output_type=int)


class Parts(FilesSource):
    """Files, of which a reader refuses to have two at a time."""

    def create_reader(self, context):
        reader = super().create_reader(context)
        add = reader.add_splits

        def add_splits(splits):
            assert len(splits) == 1 and not reader.snapshot()
            add(splits)

        reader.add_splits = add_splits
        return reader


def parts(path):
    return Parts.text(path, split_size=100)


class Stopping(Parts):
    """Files, of which a reader reads one part."""

    def create_reader(self, context):
        reader = super().create_reader(context)
        poll = reader.poll

        def until_a_part_is_read(limit):
            is_read = reader.current_split_id is not None and not reader.snapshot()
            return END_OF_INPUT if is_read else poll(limit)

        reader.poll = until_a_part_is_read
        return reader


def stopping(path):
    return Stopping.text(path, split_size=100)


def flaky(count, marker):
    """Numbers, and a failure in the middle of the first attempt that comes to read 70."""

    def number(n):
        if n == 70 and not os.path.exists(marker):
            open(marker, "w").close()
            raise OSError("the cable was pulled")
        return n

    return GeneratorSource(number, count, output_type=int)
'''


@pytest.fixture(autouse=True)
def _nothing_leaks() -> None:
    """In place of the check of that name: Spark keeps connections for calling the functions of foreachBatch."""


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from sluiceway_spark import SessionConf, register

    place = tmp_path_factory.mktemp("modules")
    (place / "sources_for_spark.py").write_text(MODULE)
    conf = {"spark.sql.shuffle.partitions": 2, "spark.local.dir": str(tmp_path_factory.mktemp("spark"))}
    session = SessionConf.of("local[2,3]", None, conf).session()  # a task may fail twice
    sys.path.append(str(place))
    try:
        register(session)
        yield session
    finally:
        sys.path.remove(str(place))
        session.stop()


def options(source: str, **others: Any) -> dict[str, str]:
    named = {name.replace("__", "."): str(value) for name, value in others.items()}
    return {"source": f"sources_for_spark:{source}", **named}


class Stream:
    """A query into memory that the test stops and starts again."""

    def __init__(self, spark: Any, place: Path) -> None:
        self._spark = spark
        self._place = place
        self._name = f"t{uuid.uuid4().hex}"
        self.batches: list[list[Any]] = []

    def read(self, source: str, **others: Any) -> Any:
        given = options(source, positions=self._place / "positions", **others)
        return self._spark.readStream.format("sluiceway").options(**given).load()

    def run(self, frame: Any, *, take: Callable[[Any, int], None] | None = None, **trigger: Any) -> Any:
        trigger = trigger or {"availableNow": True}
        write = frame.writeStream.foreachBatch(take or self._take).trigger(**trigger)
        return write.option("checkpointLocation", str(self._place / "checkpoints")).start()

    def _take(self, frame: Any, batch: int) -> None:
        rows = [tuple(row) for row in frame.collect()]
        del self.batches[batch:]  # what comes again takes the place of what came before
        self.batches.append(rows)

    @property
    def rows(self) -> list[Any]:
        return [row for batch in self.batches for row in batch]

    def to_the_end(self, frame: Any, **how: Any) -> None:
        query = self.run(frame, **how)
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()


@pytest.fixture
def stream(spark: Any, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def forget_last(place: Path) -> None:
    """As if the driver had been killed before Spark noted that it was done with the last batch."""
    last = max((place / "checkpoints/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


# -- tables ----------------------------------------------------------------------------------------------------


@pytest.mark.pysparks
def test_a_source_that_ends_is_a_table(spark: Any) -> None:
    frame = spark.read.format("sluiceway").options(**options("words", source__count=100, timestamp="at")).load()
    assert frame.schema.simpleString() == "struct<word:string,length:bigint,at:timestamp>"
    assert frame.rdd.getNumPartitions() == 2
    rows = frame.selectExpr("word", "length", "unix_millis(at)").collect()
    assert sorted(tuple(row) for row in rows) == sorted(("x" * (i % 7), i, i * 1000) for i in range(100))
    assert frame.where("length < 10").count() == 10
    assert len(frame.limit(3).collect()) == 3


def test_files_are_read_by_parts(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"line {i}\n" for i in range(200)))
    given = options("lines", source__path=json.dumps(str(tmp_path / "in.txt")), parallelism=3)
    frame = spark.read.format("sluiceway").options(**given).load()
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row.value for row in frame.collect()) == sorted(f"line {i}" for i in range(200))


def test_a_reader_has_its_splits_one_by_one(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"line {i}\n" for i in range(200)))
    given = options("parts", source__path=json.dumps(str(tmp_path / "in.txt")))
    rows = spark.read.format("sluiceway").options(**given).load().collect()
    assert sorted(row.value for row in rows) == sorted(f"line {i}" for i in range(200))


def test_splits_that_no_reader_reads_are_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"line {i}\n" for i in range(200)))
    frames = [
        spark.read.format("sluiceway")
        .options(**options("stopping", source__path=json.dumps(str(tmp_path / "in.txt")), parallelism=readers))
        .load()
        for readers in (1, 2)
    ]
    assert 0 < frames[0].count() < 200
    with pytest.raises(pyspark.errors.PySparkException, match="returned END_OF_INPUT before no_more_splits"):
        frames[1].count()


def test_a_connector_by_its_name_and_a_schema_of_ones_own(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"a": 1, "b": "x"}\n{"a": 2, "b": null}\n')
    frame = (
        spark.read.format("sluiceway")
        .schema("b string, a int")
        .option("source", "files")
        .option("source.paths", str(tmp_path / "in.json"))
        .option("source.format", "json_lines")
        .load()
    )
    assert {row.a: row.b for row in frame.collect()} == {1: "x", 2: None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "sources_for_spark:nobody"}, "module 'sources_for_spark' has no 'nobody'"),
        ({"source": "sources_for_spark:numbers"}, "does not end: read it with spark.readStream"),
        ({"source": "sources_for_spark:loose"}, "does not tell the columns: say them with .schema"),
        ({"source": "sources_for_spark:numbers", "paralellism": "2"}, "did you mean parallelism?"),
        ({"source": "sources_for_spark:rejecting"}, "no number"),
    ],
)
def test_what_is_wrong_is_told(spark: Any, given: dict[str, str], message: str) -> None:
    with pytest.raises(pyspark.errors.PySparkException) as caught:
        spark.read.format("sluiceway").options(**given).load().collect()
    assert message in str(caught.value)


# -- streams ---------------------------------------------------------------------------------------------------


def test_a_stream_stops_and_goes_on_and_repeats(stream: Stream, tmp_path: Path) -> None:
    frame = stream.read("numbers", source__count=250, maxRecords=20)
    query = stream.run(frame, processingTime="0 seconds")
    try:
        while len(stream.batches) < 2 and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    before = [list(batch) for batch in stream.batches]
    assert 0 < len(stream.rows) < 250
    stream.to_the_end(frame)
    assert sorted(stream.rows) == [(n,) for n in range(250)]
    assert stream.batches[: len(before)] == before
    offsets = sorted((tmp_path / "checkpoints/offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert last["batch"] == len(offsets)
    assert last["from"]["lane-0-of-2"]["next"] > 200
    # The driver dies before Spark notes that it was done with the last batch.
    done = [list(batch) for batch in stream.batches]
    forget_last(tmp_path)
    stream.to_the_end(frame)
    assert stream.batches == done


def test_a_task_that_fails_is_tried_again(stream: Stream, tmp_path: Path) -> None:
    marker = tmp_path / "failed"
    stream.to_the_end(stream.read("flaky", source__count=150, source__marker=json.dumps(str(marker))))
    assert marker.exists()
    assert sorted(stream.rows) == [(n,) for n in range(150)]


def test_numbers_that_come_with_time_are_read_up_to_now(stream: Stream) -> None:
    frame = stream.read("numbers", source__rate=500)
    stream.to_the_end(frame)
    first = len(stream.rows)
    stream.to_the_end(frame)
    for lane in (0, 1):
        mine = [n for (n,) in stream.rows if n % 2 == lane]
        assert mine == list(range(lane, lane + 2 * len(mine), 2))
    assert len(stream.rows) > first > 0


def test_what_nobody_reads_is_passed_over(stream: Stream) -> None:
    taken: list[int] = []

    def take(frame: Any, batch: int) -> None:
        if batch != 1:
            taken.extend(row.value for row in frame.limit(5).collect())

    stream.to_the_end(stream.read("numbers", source__count=100, maxRecords=20, parallelism=1), take=take)
    assert taken == [0, 1, 2, 3, 4, 40, 41, 42, 43, 44, 60, 61, 62, 63, 64, 80, 81, 82, 83, 84]


def test_a_function_is_called_once(stream: Stream) -> None:
    stream.to_the_end(stream.read("called", source__count=90, maxRecords=25))
    assert stream.rows == [(n,) for n in range(90)]
    assert len(stream.batches) == 4


def test_a_socket_stays_connected(spark: Any, stream: Stream, tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(PATIENT_S)
    go_on = threading.Event()
    connections: list[socket.socket] = []

    def serve() -> None:
        connection, _ = server.accept()
        connections.append(connection)
        with connection:
            connection.sendall(b"".join(b"%d\n" % n for n in range(50)))
            go_on.wait(PATIENT_S)
            connection.sendall(b"".join(b"%d\n" % n for n in range(50, 100)))

    thread = threading.Thread(target=serve)
    thread.start()
    given = {"source": "socket", "source.host": "127.0.0.1", "source.port": str(server.getsockname()[1])}
    frame = spark.readStream.format("sluiceway").options(**given, positions=str(tmp_path / "positions")).load()
    query = stream.run(frame, processingTime="0 seconds")
    try:
        while len(stream.rows) < 50 and query.isActive:
            query.awaitTermination(1)
        go_on.set()
        while len(stream.rows) < 100 and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
        go_on.set()
        thread.join()
        server.close()
    assert stream.rows == [(str(n),) for n in range(100)]
    assert len(connections) == 1


def test_a_stream_begins_before_there_is_anything_to_read(stream: Stream, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    given = {"source__path": json.dumps(str(tmp_path / "in" / "*.txt")), "source__watch": "10ms"}
    frame = stream.read("lines", **given)
    stream.to_the_end(frame)
    assert stream.batches == [[]]
    forget_last(tmp_path)
    query = stream.run(frame, processingTime="0 seconds")
    try:
        (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
        while len(stream.rows) < 2 and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert sorted(stream.rows) == [("one",), ("two",)]


def test_a_stream_needs_a_place_for_its_positions(spark: Any, tmp_path: Path) -> None:
    frame = spark.readStream.format("sluiceway").options(**options("numbers")).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(pyspark.errors.PySparkException) as caught:
        query.awaitTermination(120)
    assert "option positions is missing: a directory or URL" in str(caught.value)
