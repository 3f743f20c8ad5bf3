"""Sources over Spark Connect: a server on this machine, and what is said where there is none."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ConfigurationError, ConnectorError, MissingExtraError
from sluiceway_spark import SessionConf
from sluiceway_spark.session import pyspark_version
from sluiceway_spark.session.connect import need_connect

# A process can have a session of one kind only.
READS = """
import json, sys
import sluiceway as sw
from sluiceway.errors import ConnectorError
from sluiceway.testing.drivers import drive_source
from sluiceway_spark import SessionConf, SparkSource

place = sys.argv[1]
given = dict(remote="local[2]", conf={"spark.local.dir": place, "spark.sql.warehouse.dir": place + "/warehouse"})
said = {}

def words(session):
    return session.range(0, 100, 1, 4).selectExpr("id", "concat('w', id % 10) AS word")

if __name__ == "__main__":
    said["query"] = sorted(r["id"] for r in drive_source(SparkSource.query(words, **given)))
    session = SessionConf.of(None, given["remote"], given["conf"]).session()
    said["kind"] = type(session).__module__
    words(session).write.parquet(place + "/words")
    words(session).write.saveAsTable("words")
    said["path"] = sorted(drive_source(SparkSource.path(place + "/words", records=tuple, **given)))[:2]
    said["table"] = len(drive_source(SparkSource.table("words", **given)))
    said["sql"] = drive_source(SparkSource.sql("SELECT count(*) AS n FROM words", **given))
    batches = drive_source(SparkSource.dataframe(words(session), records="arrow"))
    said["dataframe"] = sum(batch.num_rows for batch in batches)
    said["shuffled"] = len(drive_source(SparkSource.dataframe(words(session).orderBy("word"))))
    try:
        drive_source(SparkSource.table("nowhere", **given))
    except ConnectorError as error:
        said["error"] = str(error)
    flow = sw.Pipeline("counts")
    counts = flow.source(SparkSource.query(words, records=tuple, **given)).key_by(lambda w: w[1]).count()
    last = {}
    with counts.execute_and_collect(workers=2) as rows:
        for word, count in rows:
            last[word] = max(count, last.get(word, 0))
    said["workers"] = last
    print(json.dumps(said))
    session.stop()
"""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_sources_read_over_connect(tmp_path: Path) -> None:
    for module in ("pyspark", "grpc", "grpc_status"):
        pytest.importorskip(module, reason='Spark Connect is not installed: pip install "pyspark[connect]"')
    script = tmp_path / "reads.py"
    script.write_text(READS)
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "connect" in said.pop("kind")
    assert "cannot read table nowhere" in said["error"]
    assert "nowhere" in said.pop("error").partition(": ")[2]
    assert said == {
        "query": list(range(100)),
        "path": [[0, "w0"], [1, "w1"]],
        "table": 100,
        "sql": [{"n": 100}],
        "dataframe": 100,
        "shuffled": 100,
        "workers": {f"w{n}": 10 for n in range(10)},
    }


@pytest.fixture
def with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all packages were installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.parametrize(
    ("version", "there", "missing"),
    [
        ("4.0.0", {"grpc"}, "grpcio-status"),
        ("4.0.0", {"grpc", "grpc_status"}, None),
        ("4.1.0", {"grpc", "grpc_status"}, "zstandard"),
    ],
)
def test_missing_packages_are_told(
    monkeypatch: pytest.MonkeyPatch, version: str, there: set[str], missing: str | None
) -> None:
    monkeypatch.setattr(pyspark_version, "installed", lambda: version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in there else None)
    if missing is None:
        need_connect("local[2]")
        return
    with pytest.raises(MissingExtraError, match=rf'needs {missing}: pip install "pyspark\[connect\]"'):
        need_connect("local[2]")


@pytest.mark.usefixtures("with_all")
@pytest.mark.parametrize("remote", ["spark://host:7077", "sc://", "host:15002", "sc://host:x"])
def test_what_is_no_url_of_connect_is_told(remote: str) -> None:
    with pytest.raises(ConfigurationError, match=r"remote='.*' must be a URL such as sc://host:15002"):
        need_connect(remote)


@pytest.mark.usefixtures("with_all")
def test_a_server_that_is_not_there_is_told_at_once(free_port: Callable[[], int]) -> None:
    with pytest.raises(ConnectorError, match=r"no Spark Connect server at 127.0.0.1:\d+: .*refused"):
        need_connect(f"sc://127.0.0.1:{free_port()}/;user_id=ann")


def test_a_master_and_a_remote_do_not_go_together() -> None:
    with pytest.raises(ConfigurationError, match="do not go together"):
        SessionConf.of("local", "sc://host", None)
