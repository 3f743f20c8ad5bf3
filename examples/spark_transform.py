"""A pipeline between two DataFrames of a Spark session: sums of readings in windows of event time.

Run it with PySpark, over a DataFrame and over a stream of files::

    python examples/spark_transform.py [--assert]
    spark-submit examples/spark_transform.py --stream [--assert]
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import sluiceway as sw
from sluiceway.windows import TumblingEventTimeWindows
from sluiceway_spark import transform

COLUMNS = "sensor string, at timestamp, value double"
READINGS = """\
north,2026-01-01T00:00:01Z,1.5
south,2026-01-01T00:00:02Z,4
north,2026-01-01T00:00:09Z,2.5
north,2026-01-01T00:00:12Z,3
south,2026-01-01T00:01:00Z,8
"""
LATE = sw.WatermarkStrategy.for_bounded_out_of_orderness("5s")


def sums(readings: sw.DataStream[dict[str, Any]]) -> sw.DataStream[dict[str, Any]]:
    """Add up the values of each sensor, ten seconds at a time."""
    windows = readings.key_by(lambda reading: reading["sensor"]).window(TumblingEventTimeWindows.of(10_000))
    added = windows.reduce(lambda a, b: {**a, "value": a["value"] + b["value"]})
    return added.map(lambda total: {"sensor": total["sensor"], "total": total["value"]})


def totals(readings: DataFrame) -> DataFrame:
    """Return the sums as a DataFrame; ``until`` is the end of the window."""
    return transform(
        readings,
        sums,
        "sensor string, total double, until timestamp",
        timestamp="at",
        watermark_strategy=LATE,
        result_timestamp="until",
    )


def main(stream: bool) -> list[tuple[str, float]]:
    """Return the sums of the readings, from a DataFrame or from a stream."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the Python that has Sluiceway
    spark = SparkSession.builder.appName("transform").getOrCreate()
    with tempfile.TemporaryDirectory() as place:
        Path(place, "in").mkdir()
        Path(place, "in", "readings.csv").write_text(READINGS)
        if not stream:
            result = totals(spark.read.schema(COLUMNS).csv(f"{place}/in"))
        else:
            spark.conf.set("spark.sql.shuffle.partitions", 2)
            spark.conf.set(
                "spark.sql.streaming.stateStore.providerClass",
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
            )
            writer = totals(spark.readStream.schema(COLUMNS).csv(f"{place}/in")).writeStream.format("parquet")
            writer = writer.option("checkpointLocation", f"{place}/checkpoints").trigger(availableNow=True)
            writer.start(f"{place}/out").awaitTermination()
            result = spark.read.parquet(f"{place}/out")
        found = sorted((row.sensor, row.total) for row in result.collect())
    spark.stop()
    return found


if __name__ == "__main__":
    found = main("--stream" in sys.argv)
    print(*found, sep="\n")
    if "--assert" in sys.argv:
        # The stream's last window is open: rows of its time may still come.
        last = [] if "--stream" in sys.argv else [("south", 8.0)]
        assert found == [("north", 3.0), ("north", 4.0), ("south", 4.0), *last]
