"""Which options a cluster is started with, and which a job is submitted with: each where it counts, or refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

QUICK = """
    import sluiceway as sw
    flow = sw.Pipeline("quick", parallelism=2)
    flow.from_collection(range(10)).key_by(lambda v: v % 2).count().print()
"""


@pytest.fixture(autouse=True)
def program(place: Path) -> None:
    (place / "quick.py").write_text(dedent(QUICK))


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--workers", "3", "--workers belongs to the start of the cluster: sluiceway cluster start --workers N"),
        ("--transport", "zmq", "sluiceway cluster start --transport NAME"),
        ("--network-buffers", "9", "sluiceway cluster start --network-buffers N"),
        ("--heartbeat-timeout", "1s", "sluiceway cluster start --heartbeat-timeout TIME"),
        ("--engine", "local", "--engine is for sluiceway run"),
        ("--log-format", "json", "sluiceway logs --json"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_submit_refuses_what_belongs_to_the_cluster(
    cluster: Any, option: str, value: str, told: str, first: bool
) -> None:
    refused = cluster("submit", *([option, value, "quick.py"] if first else ["quick.py", option, value]))
    assert refused.returncode == 2
    assert told in refused.stderr


def test_help_of_submit_names_only_what_it_takes(cluster: Any) -> None:
    said = cluster("submit", "--help").stdout
    assert "--parallelism" in said
    assert "--metrics" in said
    for option in ("--workers", "--transport", "--network-buffers", "--heartbeat-timeout", "--engine"):
        assert option not in said


def test_cluster_start_refuses_values_before_anything_starts(
    cluster: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = cluster("cluster", "start", "--workers", "0")
    assert said.returncode == 2
    assert said.stderr == "error: a cluster needs at least one worker, and --workers sets 0\n"
    said = cluster("cluster", "start", "--transport", "pigeon")
    assert "there is no transport 'pigeon'" in said.stderr
    said = cluster("cluster", "start", "--transport", "local")
    assert "works inside one process only" in said.stderr
    monkeypatch.setenv("SLUICEWAY_NETWORK_BUFFERS", "many")
    said = cluster("cluster", "start")
    assert said.stderr == "error: SLUICEWAY_NETWORK_BUFFERS='many' is not a whole number from 2 to 1048576\n"
    assert not (place / "home" / "cluster.json").exists()


def test_a_cluster_takes_its_options_from_flags_environment_and_file(
    cluster: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zmq")
    metrics = place / "metrics.jsonl"
    monkeypatch.setenv("SLUICEWAY_METRICS_FILE", str(metrics))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("SLUICEWAY_PROMETHEUS_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("SLUICEWAY_TRANSPORT", "zmq")
        (place / "sluiceway.toml").write_text("workers = 3\n")
        started = cluster("cluster", "start", "--slots", "1", "--heartbeat-timeout", "20s")
        assert "up to 3 workers of 1 slot, over zmq" in started.stdout, started

        # Refused at once: on a worker it would end the worker, and other jobs with it.
        wrong = cluster("submit", "--state-backend", "none", "quick.py")
        assert "there is no state backend 'none'" in wrong.stderr
        assert "no metrics reporter 'none'" in cluster("submit", "--metrics", "none", "quick.py").stderr
        busy = cluster("submit", "--metrics", "prometheus", "quick.py")
        assert busy.returncode != 0
        assert "metrics reporter 'prometheus'" in busy.stderr  # has no port, or is not installed
        assert cluster.json("list") == []

        job = cluster("submit", "--metrics", "jsonl", "quick.py").stdout.strip()
        assert cluster.ended(job)["status"] == "finished"
        status = cluster.json("cluster", "status")
        assert status["transport"] == "zmq"
        assert (status["max_workers"], [w["slots"] for w in status["workers"]]) == (3, [1, 1])
        last = json.loads(metrics.read_text().splitlines()[-1])
        assert (last["status"], last["records_in"], last["records_out"]) == ("finished", 10, 10)
        assert sum(t["bytes_in"] for t in last["subtasks"]) == sum(t["bytes_out"] for t in last["subtasks"]) > 0
