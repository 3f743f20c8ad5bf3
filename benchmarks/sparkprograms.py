"""Idiomatic programs in Spark's own API, with which ours are compared. Needs PySpark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StatefulProcessor

__all__ = ["PROGRAMS", "SMALL", "run", "text"]

WINDOW_MS = 10_000
Program = Callable[[DataFrame], DataFrame]


def text(spark: SparkSession, directory: Path, together: int) -> DataFrame:
    """The lines of files, so many files in each micro-batch."""
    return spark.readStream.option("maxFilesPerTrigger", together).text(str(directory))


def run(results: DataFrame, mode: str, checkpoints: Path, each: Callable[[DataFrame], None] | None = None) -> None:
    """To the end of the input; ``each`` is called with the results of a micro-batch, else they go nowhere."""
    query = results.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoints))
    query = query.format("noop") if each is None else query.foreachBatch(lambda frame, number: each(frame))
    query.trigger(availableNow=True).start().awaitTermination()


# ---- word count -----------------------------------------------------------------------------------------------


class CountWords(StatefulProcessor):
    """A group for each word, and two calls for its state in each micro-batch."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        before = self.count.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(word=key[0], count=count)

    def close(self) -> None:
        pass


def words_by_state(lines: DataFrame) -> DataFrame:
    words = lines.select(sql.explode(sql.split("value", " ")).alias("word"))
    return words.groupBy("word").transformWithState(CountWords(), "word string, count long", "update", "None")


def _split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        words = [word for line in batch.column(0).to_pylist() for word in line.split()]
        yield pa.RecordBatch.from_arrays([pa.array(words, pa.string())], ["word"])


def words_by_aggregation(lines: DataFrame) -> DataFrame:
    return lines.mapInArrow(_split, "word string").groupBy("word").count()


# ---- sums of windows ------------------------------------------------------------------------------------------


class SumWindows(StatefulProcessor):
    """A group for each key, whose windows end by timers."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sums = handle.getMapState("sums", "start long", "sum long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        sums: dict[int, int] = {}
        for row in rows:
            start = row.ms - row.ms % WINDOW_MS
            sums[start] = sums.get(start, 0) + row.value
        for start, total in sums.items():
            before = self.sums.getValue((start,))
            if before is None:
                self.handle.registerTimer(start + WINDOW_MS)
            self.sums.updateValue((start,), (total + (before[0] if before else 0),))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        start = expiredTimerInfo.getExpiryTimeInMs() - WINDOW_MS
        total = self.sums.getValue((start,))[0]
        self.sums.removeKey((start,))
        yield Row(key=key[0], start=start, sum=total)

    def close(self) -> None:
        pass


def _parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys, values, times = [], [], []
        for line in batch.column(0).to_pylist():
            key, value, time = line.split(",")
            keys.append(key)
            values.append(int(value))
            times.append(int(time))
        yield pa.RecordBatch.from_arrays(
            [pa.array(keys), pa.array(values), pa.array(times)], ["key", "value", "ms"]
        )


def _timed(lines: DataFrame) -> DataFrame:
    parsed = lines.mapInArrow(_parse, "key string, value long, ms long")
    return parsed.withColumn("time", sql.timestamp_millis("ms")).withWatermark("time", "0 seconds")


def _sums_by_state(readings: DataFrame) -> DataFrame:
    sums = readings.groupBy("key")
    return sums.transformWithState(SumWindows(), "key string, start long, sum long", "append", "EventTime")


def _sums_by_aggregation(readings: DataFrame) -> DataFrame:
    window = sql.window("time", f"{WINDOW_MS} milliseconds")
    sums = readings.groupBy(window, "key").agg(sql.sum("value").alias("sum"))
    return sums.select("key", sql.unix_millis("window.start").alias("start"), "sum")


def sums_by_state(lines: DataFrame) -> DataFrame:
    return _sums_by_state(_timed(lines))


def sums_by_aggregation(lines: DataFrame) -> DataFrame:
    return _sums_by_aggregation(_timed(lines))


PROGRAMS: dict[str, dict[str, tuple[Program, str]]] = {
    "word count": {
        "transformWithState": (words_by_state, "update"),
        "mapInArrow, groupBy, count": (words_by_aggregation, "update"),
    },
    "sums of windows": {
        "transformWithState": (sums_by_state, "append"),
        "mapInArrow, groupBy, sum": (sums_by_aggregation, "append"),
    },
}
"""By job, programs over lines with their output mode: the one by key, then the one of Spark's own operators."""


# ---- small micro-batches, of rows with a number in "value" -----------------------------------------------------


class Nothing(StatefulProcessor):
    """The least that ``transformWithState`` can do."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for _ in rows:
            pass
        return iter(())

    def close(self) -> None:
        pass


def nothing(numbers: DataFrame) -> DataFrame:
    """One row per group comes in, and nothing goes out."""
    rows = numbers.where("value % 500 = 0").select((sql.col("value") / 500 % 2).cast("int").alias("target"))
    return rows.groupBy("target").transformWithState(Nothing(), "n long", "append", "None")


def _as_words(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        words = [f"word{number % 100}" for number in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(words, pa.string())], ["word"])


def _as_readings(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        columns = (
            [f"key{number % 100}" for number in numbers],
            [number % 97 for number in numbers],
            [100_000 + number * 2_500 // 1_000 for number in numbers],
        )
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], ["key", "value", "ms"])


def small_words_by_state(numbers: DataFrame) -> DataFrame:
    words = numbers.select("value").mapInArrow(_as_words, "word string")
    return words.groupBy("word").transformWithState(CountWords(), "word string, count long", "update", "None")


def small_words_by_aggregation(numbers: DataFrame) -> DataFrame:
    return numbers.select("value").mapInArrow(_as_words, "word string").groupBy("word").count()


def _small_timed(numbers: DataFrame) -> DataFrame:
    readings = numbers.select("value").mapInArrow(_as_readings, "key string, value long, ms long")
    return readings.withColumn("time", sql.timestamp_millis("ms")).withWatermark("time", "0 seconds")


def small_sums_by_state(numbers: DataFrame) -> DataFrame:
    return _sums_by_state(_small_timed(numbers))


def small_sums_by_aggregation(numbers: DataFrame) -> DataFrame:
    return _sums_by_aggregation(_small_timed(numbers))


SMALL: dict[str, tuple[Program, str]] = {
    "empty transformWithState": (nothing, "append"),
    "word count, transformWithState by key": (small_words_by_state, "update"),
    "word count, mapInArrow and groupBy": (small_words_by_aggregation, "update"),
    "sums of windows, transformWithState by key": (small_sums_by_state, "append"),
    "sums of windows, mapInArrow and groupBy": (small_sums_by_aggregation, "append"),
}
"""By name, programs over 1,000 rows a micro-batch with their output mode."""
