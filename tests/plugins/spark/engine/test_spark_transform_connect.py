"""Pipelines in a session of Spark Connect, in a process of its own: which run, and which are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pytest.importorskip("grpc_status", reason='Spark Connect is not installed: pip install "pyspark[connect]"')

from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

PROGRAM = """
import sys

import sluiceway as sw
from sluiceway.connector.lib import CollectionSource
from sluiceway.errors import ConfigurationError
from sluiceway_spark import SessionConf, SparkSource, transform

place, streams = sys.argv[1], sys.argv[2] == "streams"
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


def words(source, **options):
    counts = sw.Pipeline("words").source(source).map(lambda row: row[0]).key_by(lambda word: word).count()
    with counts.execute_and_collect(engine="spark", **options) as counted:
        return sorted(dict(counted).items())


frame = spark.range(30).selectExpr("concat('k', id % 3) AS word", "id AS n")
print("batch", highest(transform(frame, totals, "word string, n long", parallelism=2)))
rows = SparkSource.dataframe(frame, records=tuple)
print("job", words(rows))
for options in [{"hosted": True, "workers": 1}, {"checkpoints": f"{place}/runs"}][: 1 + streams]:
    try:
        words(CollectionSource([("a",)]), **options)
    except ConfigurationError as error:
        print("refused", error)
try:
    transform(frame, lambda rows: rows.map(lambda row: {"x": 1 / (row["n"] - 7)}), "x double").collect()
except Exception as error:
    print("failed", type(error).__name__, "record: {'word': 'k1', 'n': 7}" in str(error))
if streams:
    frame.write.parquet(f"{place}/in")
    stream = spark.readStream.schema(frame.schema).parquet(f"{place}/in")
    writer = transform(stream, totals, "word string, n long").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{place}/kept").trigger(availableNow=True)
    writer.start(f"{place}/out").awaitTermination()
    print("stream", highest(spark.read.parquet(f"{place}/out")))
spark.stop()
"""


@pytest.mark.pysparks
def test_transforms_and_batch_jobs_run_and_what_needs_a_context_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    streams = too_old(MICRO_BATCHES) is None
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path), "streams" if streams else ""]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    for kind in ("batch", "stream") if streams else ("batch",):
        assert f"{kind} [('k0', 135), ('k1', 145), ('k2', 155)]" in run.stdout
    assert "job [('k0', 10), ('k1', 10), ('k2', 10)]" in run.stdout
    told = (
        "a classic session of Spark, which has a Spark context, and the one of this program is of Spark Connect: "
    )
    assert f"refused --hosted needs {told}" in run.stdout
    assert (f"refused micro-batches need {told}" in run.stdout) is streams
    assert not (tmp_path / "runs").exists()
    assert "failed PythonException True" in run.stdout
