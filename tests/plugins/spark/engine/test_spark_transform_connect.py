"""Pipelines between two DataFrames of a session of Spark Connect, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pytest.importorskip("grpc_status", reason='Spark Connect is not installed: pip install "pyspark[connect]"')

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM = """
import sys
from sluiceway_spark import SessionConf, transform

place = sys.argv[1]
spark = SessionConf.of(None, "local[2]", None).session()
spark.conf.set(
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)
spark.conf.set("spark.sql.shuffle.partitions", "2")


def totals(rows):
    return rows.key_by(lambda row: row["word"]).reduce(lambda a, b: {"word": a["word"], "n": a["n"] + b["n"]})


def highest(result):
    return sorted(map(tuple, result.groupBy("word").max("n").collect()))


frame = spark.range(30).selectExpr("concat('k', id % 3) AS word", "id AS n")
print("batch", highest(transform(frame, totals, "word string, n long", parallelism=2)))
frame.write.parquet(f"{place}/in")
stream = spark.readStream.schema(frame.schema).parquet(f"{place}/in")
writer = transform(stream, totals, "word string, n long").writeStream.format("parquet")
writer = writer.option("checkpointLocation", f"{place}/kept").trigger(availableNow=True)
writer.start(f"{place}/out").awaitTermination()
print("stream", highest(spark.read.parquet(f"{place}/out")))
spark.stop()
"""


def test_batch_and_streaming_over_connect(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    for kind in ("batch", "stream"):
        assert f"{kind} [('k0', 135), ('k1', 145), ('k2', 155)]" in run.stdout
