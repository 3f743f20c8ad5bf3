"""Figures and thread dumps of the processes of one cluster, whose worker is busy in a function all the time."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import patience
import pytest
from click.testing import CliRunner
from core.cli.conftest import Cluster

from sluiceway.cli.app import app

# The function returns when a file appears, in the worker's working directory, which is that of the cluster.
PROGRAM = """
import select
from pathlib import Path
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

def enrich(value):
    Path({busy!r}).touch()
    while not Path({go!r}).exists():
        select.select([], [], [], 0.01)
    return value

flow = sw.Pipeline("stuck")
flow.from_collection([1]).map(enrich).sink(DiscardSink())
"""


class Stuck(Cluster):
    """The cluster, with its home."""

    home: Path


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stuck]:
    """A cluster whose ``worker-1`` is in a call of a user's function."""
    place = tmp_path_factory.mktemp("stuck")
    busy, go = place / "busy", place / "go"
    (place / "stuck.py").write_text(PROGRAM.format(busy=str(busy), go=str(go)))
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICEWAY_HOME", str(place / "home"))
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", str(place))
        patch.chdir(place)
        cluster = Stuck(lambda *arguments: CliRunner().invoke(app, list(arguments), prog_name="sluiceway"))
        cluster.home = place / "home"
        assert cluster("cluster", "start", "--workers", "1").returncode == 0
        assert cluster("submit", "stuck.py").returncode == 0
        patience.until(busy.exists)
        os.chdir(before)
        yield cluster
        go.touch()
        cluster.ended("stuck-1")
        cluster("cluster", "stop")
        patience.until(lambda: not list(place.glob("sluiceway-*")))


@pytest.fixture(autouse=True)
def home(stuck: Stuck, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster of the module, in place of none."""
    monkeypatch.setenv("SLUICEWAY_HOME", str(stuck.home))


def test_figures_of_all_processes(stuck: Stuck) -> None:
    told = stuck.json("cluster", "status")
    manager, worker = told["processes"]
    assert (manager["process"], worker["process"]) == ("jobmanager", "worker-1")
    assert (manager["pid"], worker["pid"]) == (told["pid"], told["workers"][0]["pid"])
    for figures in (manager, worker):
        assert figures["problem"] == ""
        assert figures["threads"] >= 1
        assert figures["cpu_share"] >= 0
        assert figures["collections"][2] >= 0
        if sys.platform.startswith("linux"):
            assert figures["rss"] > 10 << 20
            assert 0 < figures["open_files"] < figures["most_open_files"]
    lines = stuck("cluster", "status").stdout.splitlines()
    assert lines[1].split()[:5] == ["process", "pid", "slots", "cpu", "memory"]
    assert [line.split()[0] for line in lines[2:4]] == ["jobmanager", "worker-1"]
    assert [line.split()[0] for line in stuck("top", "--once").stdout.splitlines()[-3:]] == [
        "process",
        "jobmanager",
        "worker-1",
    ]


def test_a_worker_in_a_long_call_shows_where_it_is(stuck: Stuck) -> None:
    lines = stuck("thread-dump", "worker-1").stdout.splitlines()
    assert re.match(r"worker-1 \(process \d+\) at .*, \d+ threads", lines[0])
    [runs] = [number for number, line in enumerate(lines) if "runs" in line]
    assert re.fullmatch(r'"MainThread" native id \d+, runs map\(enrich\) \(1/1\) of stuck-1', lines[runs])
    assert "at stuck.enrich (stuck.py:" in lines[runs + 1]
    names = [dump["process"] for dump in stuck.json("thread-dump")]
    assert names == ["jobmanager", "worker-1"]
    [manager] = stuck.json("thread-dump", "jobmanager")
    assert any("dispatcher" in frame for thread in manager["threads"] for frame in thread["frames"])


def test_an_unknown_process(stuck: Stuck) -> None:
    refused = stuck("thread-dump", "worker-2")
    assert refused.returncode == 2
    assert "there is no process 'worker-2'. Did you mean 'worker-1'?" in refused.stderr


@pytest.mark.slow
def test_a_worker_that_cannot_answer(stuck: Stuck) -> None:
    """One that is stopped, as in a call that keeps Python's lock: its figures are those of the system."""
    [worker] = stuck.json("cluster", "status")["workers"]
    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        refused = stuck("thread-dump", "worker-1")
        assert refused.returncode != 0
        assert "worker-1 has not answered within 5 s" in refused.stderr
        figures = patience.until(
            lambda: next((f for f in stuck.json("cluster", "status")["processes"] if f["problem"]), None)
        )
    finally:
        os.kill(worker["pid"], signal.SIGCONT)
    assert (figures["process"], figures["collections"]) == ("worker-1", None)
    if sys.platform.startswith("linux"):
        assert figures["rss"] > 10 << 20
    patience.until(lambda: not any(f["problem"] for f in stuck.json("cluster", "status")["processes"]))


def test_json_of_a_thread_dump(stuck: Stuck) -> None:
    [dump] = json.loads(stuck("thread-dump", "worker-1", "--json").stdout)
    tasks: list[str] = [thread["task"] for thread in dump["threads"]]
    assert tasks[0] == "map(enrich) (1/1) of stuck-1"
    assert set(tasks[1:]) == {""}
    assert "sluiceway-inspector" in [thread["name"] for thread in dump["threads"]]
