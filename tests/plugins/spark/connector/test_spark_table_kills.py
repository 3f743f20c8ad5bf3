"""Process killed around the commit of a checkpoint to a table: nothing is lost or doubled."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest
from patience import PATIENT_S

pyspark = pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')
pq = pytest.importorskip("pyarrow.parquet")

from tests.plugins.spark.lake import conf, jars  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

COUNT = 2000
PROGRAM = """\
import json, os, signal, sys

import pyarrow as pa
import sluiceway as sw
from sluiceway_spark import SessionConf, SparkTableSink
from sluiceway_spark.connector import table_commits

conf, moment, runs, options = json.loads(sys.argv[1])
SessionConf.of("local[2]", None, conf).session()
commits = 0
write, remove = table_commits._write, table_commits.TableCommits._remove


def die(now):
    if now == moment and commits == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def writing(*arguments):
    global commits
    commits += 1
    die("before")
    write(*arguments)
    die("written")


def removing(*arguments):
    remove(*arguments)
    die("removed")


table_commits._write, table_commits.TableCommits._remove = writing, removing
flow = sw.Pipeline("numbers", parallelism=2)
counted = flow.generate(count={count}, rate=100).uid("numbers").key_by(lambda n: n % 10).count().uid("count")
rows = counted.map(lambda pair: dict(key=pair[0], n=pair[1]))
schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
sink = SparkTableSink("delta.`{table}`", schema=schema, format="delta", partition_by="key")
rows.sink(sink).uid("table")
flow.run(**options)
"""


def rows_of(table: Path) -> Counter[tuple[int, int]]:
    """The rows, read without Spark: the files that the log of Delta has added and not removed."""
    files: dict[str, str] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                assert "deletionVector" not in action["add"]
                files[action["add"]["path"]] = action["add"]["partitionValues"]["key"]
            elif "remove" in action:
                del files[action["remove"]["path"]]
    found: Counter[tuple[int, int]] = Counter()
    for path, key in files.items():
        with (table / unquote(path)).open("rb") as file:
            found.update((int(key), n) for n in pq.read_table(file).column("n").to_pylist())
    return found


def test_a_killed_process_goes_on_without_loss_or_double(tmp_path: Path) -> None:
    """Killed before the write, between it and the removal of staged files, and behind both, in one run."""
    settings = conf("delta", jars("delta", tmp_path / "jars"), tmp_path)
    program = tmp_path / "killed_flow.py"
    table = tmp_path / "numbers"
    program.write_text(PROGRAM.replace("{count}", str(COUNT)).replace("{table}", str(table)))
    runs = str(tmp_path / "runs")
    seen = []
    for number, moment in enumerate(("before", "written", "removed", "")):
        options = {"checkpoints": runs, "checkpoint_interval": "1s", "resume": number > 0}
        done = subprocess.run(
            [sys.executable, str(program), json.dumps([settings, moment, runs, options])],
            capture_output=True,
            text=True,
            timeout=2 * PATIENT_S,
            cwd=tmp_path,
        )
        assert done.returncode == (-signal.SIGKILL if moment else 0), done.stderr[-3000:]
        seen.append(sum(rows_of(table).values()))
    assert rows_of(table) == Counter((key, n + 1) for key in range(10) for n in range(COUNT // 10))
    assert 0 < seen[0] < seen[1] < seen[2] < seen[3] == COUNT, "each run was killed in the middle"
    assert list((table / "_sluiceway").iterdir()) == []
