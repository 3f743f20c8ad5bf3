"""Names on Spark's own pages, and executors that run another Python: with real Spark."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S

from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

pytest.importorskip("pyspark", reason='Spark is not installed: pip install "sluiceway[spark]"')

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = """
import json, sys, urllib.request
from pyspark.sql import SparkSession
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

flow = sw.Pipeline("words")
words = flow.from_collection(["to", "be", "or", "not"]).name("lines")
words.key_by(lambda word: word).map(str.upper).name("shout").sink(DiscardSink()).name("nowhere")
for options in json.loads(sys.argv[1]):
    flow.run(engine="spark", **options)
session = SparkSession.active()
session.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
url = f"{session.sparkContext.uiWebUrl}/api/v1/applications"
[application] = json.load(urllib.request.urlopen(url))
jobs = json.load(urllib.request.urlopen(f"{url}/{application['id']}/jobs"))
stages = json.load(urllib.request.urlopen(f"{url}/{application['id']}/stages"))
plans = json.load(urllib.request.urlopen(f"{url}/{application['id']}/sql?planDescription=true"))
print("found", json.dumps([
    application["name"],
    [job.get("description") for job in jobs],
    [stage.get("description") for stage in stages if stage["status"] != "SKIPPED"],  # those never run
    [plan["planDescription"] for plan in plans],
]))
"""


def run(tmp_path: Path, ways: list[dict[str, Any]], program: str = PROGRAM, **environment: str) -> Any:
    (tmp_path / "program.py").write_text(program)
    return subprocess.run(
        [sys.executable, "program.py", json.dumps(ways)],
        cwd=tmp_path,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENT_S,
    )


@pytest.mark.parametrize("named", [None, "mine"])
def test_pages_name_the_pipeline_and_its_steps(tmp_path: Path, named: str | None) -> None:
    """The pages of a local master, too, where the configuration turns them on."""
    conf = ["spark.ui.enabled true", "spark.ui.port 0", *([f"spark.app.name {named}"] if named else [])]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(conf))
    ways: list[dict[str, Any]] = [{"parallelism": 2}]
    if named is None:
        ways.append({"hosted": True, "workers": 2, "parallelism": 2})
        if too_old(MICRO_BATCHES) is None:
            ways.append({"checkpoints": str(tmp_path / "kept"), "parallelism": 2})
    done = run(tmp_path, ways)
    assert done.returncode == 0, done.stderr
    application, jobs, stages, plans = json.loads(done.stdout.partition("found ")[2])
    assert application == (named or "words")
    assert jobs
    assert all(text and text.startswith("sluiceway: words: ") for text in jobs), jobs
    assert all(text and text.startswith("sluiceway: words: ") for text in stages), stages
    assert any("lines" in text and "shout" in text and "nowhere" in text for text in jobs)
    assert any("MapInArrow" in plan and "shout" in plan for plan in plans)
    if named is None:
        assert "sluiceway: words: 2 workers" in jobs
        assert too_old(MICRO_BATCHES) is not None or any("micro-batch 0" in text for text in jobs)


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
import sluiceway as sw

SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
flow = sw.Pipeline("words")
flow.from_collection(["to", "be"]).map(str.upper).collect()
flow.run(engine="spark")
"""


def test_a_session_whose_executors_run_another_python_is_told_which(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    done = run(tmp_path, [], OWN_SESSION, PYSPARK_PYTHON=bare, SPARK_LOCAL_IP="127.0.0.1")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigurationError: Spark's executors run '" in last
    assert f"'{bare}', a Python without module " in last
    assert f"and this program runs {sys.executable}, Python 3." in last
    assert "have PYSPARK_PYTHON, or spark.pyspark.python, name a Python 3." in last


FLOW = """
import sluiceway as sw

flow = sw.Pipeline("words")
flow.from_collection(["to", "be"]).map(str.upper).print()
"""


def test_a_progress_line_is_erased_before_what_spark_writes_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sluiceway", "run", "--engine", "spark", "flow.py"],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    text = b""
    with suppress(OSError):  # by which Linux says that nobody has the other end any more
        while data := os.read(terminal, 65_536):
            text += data
    os.close(terminal)
    assert process.wait(PATIENT_S) == 0, text
    assert text.count(b"starting Spark") > 1
    assert b"Setting default log level" in text
    assert not re.search(rb"starting Spark[^\r\n\x1b]", text), text
