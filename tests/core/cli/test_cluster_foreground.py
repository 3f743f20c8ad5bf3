"""A cluster in the foreground, as service managers and containers run it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENT_S, until

COUNTING = """
    import logging
    import sluiceway as sw
    from sluiceway_files import FilesSink

    def told(value):
        if value == 0:
            logging.getLogger("own").warning("the first one")
        return value

    flow = sw.Pipeline("counting")
    counts = flow.generate(rate=2000).map(told).key_by(lambda v: v % 10).count().uid("counts")
    counts.sink(FilesSink.json_lines("out")).uid("out")
"""


def up(cluster: Any, process: Any) -> dict[str, Any]:
    def look() -> Any:
        assert process.poll() is None, process.communicate()
        told = cluster("cluster", "status", "--json")
        return json.loads(told.stdout) if told.returncode == 0 else None

    return dict(cluster.until(look))


def written(place: Path) -> dict[int, list[int]]:
    counts: dict[int, list[int]] = {}
    for file in (place / "out").glob("part-*"):
        for line in file.read_text().splitlines():
            key, count = json.loads(line)
            counts.setdefault(key, []).append(count)
    return {key: sorted(seen) for key, seen in counts.items()}


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_while_it_starts_leaves_nothing(number: int, start: Any, place: Path) -> None:
    temporary = place / "temporary"
    temporary.mkdir()
    process = start("cluster", "start", "--foreground", "--workers", "1", TMPDIR=str(temporary))
    until(lambda: list(temporary.glob("sluiceway-*")), step_s=0.001)
    process.send_signal(number)
    said = process.communicate(timeout=PATIENT_S)[1]
    assert process.returncode == 0, said
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_it_in_order_and_its_jobs_go_on_with_the_next(
    number: int, cluster: Any, start: Any, write: Any, place: Path
) -> None:
    write("job.py", COUNTING, head="")
    first = start("cluster", "start", "--foreground", "--workers", "1")
    told = up(cluster, first)
    assert told["pid"] == first.pid, "what was started is the job manager itself"
    second = start("cluster", "start", "--foreground")
    assert f"a cluster is running already (process {first.pid})" in second.communicate(timeout=PATIENT_S)[1]
    assert second.returncode == 2
    job = cluster("submit", "--checkpoint-interval", "50ms", "job.py").stdout.strip()
    cluster.until(lambda: written(place))
    workers = [os.pidfd_open(worker["pid"]) for worker in cluster.json("cluster", "status")["workers"]]
    assert len(workers) == 1
    first.send_signal(number)
    _, said = first.communicate(timeout=PATIENT_S)
    assert first.returncode == 0, said
    for worker in workers:
        assert select.select([worker], [], [], 0)[0], "it has waited for its workers"
        os.close(worker)
    assert f"cluster started (process {first.pid}), with up to 1 worker of 2 slots, over shm" in said
    assert "the first one" in said, "what functions log is there, too"
    assert said.splitlines()[-1].endswith("cluster stopped")
    assert not list(place.glob("sluiceway-*"))

    again = start("cluster", "start", "--foreground", "--workers", "1", "--log-format", "json")
    up(cluster, again)
    before = sum(map(len, written(place).values()))
    cluster.until(lambda: sum(map(len, written(place).values())) > before)
    assert cluster.json("list")[0]["job"] == job
    cluster("cancel", job)
    cluster.ended(job)
    assert cluster("cluster", "stop").returncode == 0
    _, said = again.communicate(timeout=PATIENT_S)
    assert again.returncode == 0, said
    lines = [json.loads(line) for line in said.splitlines()]
    assert any(line["message"].startswith("goes on from") for line in lines), said
    for seen in written(place).values():
        assert seen == list(range(1, len(seen) + 1)), "nothing is lost, and nothing is there twice"


def test_an_ignored_ctrl_c_stays_ignored(cluster: Any, start: Any) -> None:
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell has it for: command &
    try:
        process = start("cluster", "start", "--foreground")
    finally:
        signal.signal(signal.SIGINT, old)
    up(cluster, process)
    process.send_signal(signal.SIGINT)
    assert cluster("cluster", "status").returncode == 0
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=PATIENT_S)[1]
    assert process.returncode == 0, "the second signal would have been 143"
    assert said.splitlines()[-1].endswith("cluster stopped")


def test_it_tells_a_service_manager_when_it_is_ready(cluster: Any, start: Any, place: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(place / "notify"))
        sock.settimeout(PATIENT_S)
        process = start("cluster", "start", "--foreground", NOTIFY_SOCKET=str(place / "notify"))
        assert sock.recv(100) == b"READY=1"
        assert cluster.json("cluster", "status")["pid"] == process.pid
        process.send_signal(signal.SIGTERM)
        assert sock.recv(100) == b"STOPPING=1"
        process.communicate(timeout=PATIENT_S)
        assert process.returncode == 0


def test_what_keeps_it_from_starting_is_told(cluster: Any, start: Any, place: Path) -> None:
    (place / "store").write_text("a file")
    process = start("cluster", "start", "--foreground", "--job-store", "store")
    _, said = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 3, said
    assert said.startswith("error: ")
    assert str(place / "store") in said
    assert cluster("cluster", "status").returncode == 3
    told = cluster("cluster", "start", "--log-format", "json")
    assert told.returncode == 2
    assert "--log-format goes with --foreground" in told.stderr
