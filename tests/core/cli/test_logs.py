"""``sluiceway logs``, and the logs of workers on the terminal of whoever runs a job on them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from patience import PATIENT_S

TALKS = """
    import logging
    import sluiceway as sw

    log = logging.getLogger("mine")

    def talk(value):
        log.debug("debug %s", value)
        log.info("info %s", value)
        log.warning("warning %s", value)
        print("printed", value)
        return value

    flow = sw.Pipeline("talks", parallelism=2)
    flow.from_collection([1, 2]).rebalance().map(talk).name("talker").key_by(lambda v: v).count().print()
"""
FAILS = """
    import sluiceway as sw

    def boom(value):
        raise ValueError("no good")

    flow = sw.Pipeline("fails")
    flow.from_collection([1, 2]).map(boom).print()
"""


@pytest.fixture(autouse=True)
def programs(place: Path) -> None:
    (place / "talks.py").write_text(dedent(TALKS))
    (place / "fails.py").write_text(dedent(FAILS))


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_logs_of_a_cluster_are_put_together_filtered_and_kept(cluster: Any, place: Path) -> None:
    nothing = cluster("logs")
    assert (nothing.returncode, nothing.stdout) == (3, "")
    assert nothing.stderr == "error: no cluster has logged anything: start one with sluiceway cluster start\n"

    cluster("cluster", "start", "--workers", "2", "--slots", "1")
    assert cluster("submit", "talks.py", "--log-level", "debug").stdout == "talks-1\n"
    # Following a job ends with the job.
    told = lines(cluster("logs", "talks-1", "--follow", "--json"))
    # What is found in one look is ordered by time; a look reads one file after the other.
    for process in {line["process"] for line in told}:
        times = [line["time"] for line in told if line["process"] == process]
        assert times == sorted(times)
    assert {line["job"] for line in told} == {"talks-1"}
    mine = [line for line in told if line["logger"] == "mine" and line["message"].endswith("1")]
    assert [line["message"] for line in mine] == ["debug 1", "info 1", "warning 1"]
    where = mine[0]
    assert (where["operator"], where["parallelism"], where["attempt"]) == ("talker", 2, 0)
    assert where["subtask"] in (0, 1)
    assert where["process"] in ("worker-1", "worker-2")
    printed = [line for line in told if line["message"] == "printed 1"]
    assert [(line["level"], line["operator"], line["process"]) for line in printed] == [
        ("STDOUT", "talker", where["process"])
    ]
    assert told[-1]["message"] == "is finished, was running"

    assert cluster("submit", "fails.py").stdout == "fails-2\n"
    failed = lines(cluster("logs", "fails-2", "--follow", "--json"))[-1]
    assert (failed["level"], failed["message"], failed["process"]) == ("ERROR", "failed", "jobmanager")
    assert "ValueError: no good" in failed["traceback"]

    assert cluster("submit", "talks.py").stdout == "talks-3\n"
    second = lines(cluster("logs", "talks-3", "-f", "--json", "--operator", "talker"))
    assert {line["message"].partition(" ")[0] for line in second} == {"info", "warning", "printed"}, "no debug"
    loud = lines(cluster("logs", "talks-3", "--level", "warning", "--json", "--operator", "talker"))
    assert {line["level"] for line in loud} == {"WARNING"}
    one = lines(cluster("logs", where["process"], "--json"))
    assert {line["process"] for line in one} == {where["process"]}
    text = cluster("logs", "--last", "1", "talks-1").stdout
    assert text.endswith("INFO    [jobmanager, talks-1] sluiceway.jobs: is finished, was running\n")

    wrong = cluster("logs", "nobody")
    assert wrong.returncode == 2
    assert (
        "nobody called 'nobody' has logged anything; there are talks-1, fails-2, talks-3, jobmanager"
        in wrong.stderr
    )

    assert cluster("cluster", "stop").returncode == 0
    assert lines(cluster("logs", "talks-1", "--json"))[: len(told)] == told, "they are still there"
    assert not (place / "home" / "cluster.json").exists()
    cluster("cluster", "start")
    assert "talks" not in cluster("logs").stdout
    assert (place / "home" / "logs.1" / "jobmanager.jsonl").exists()


def test_following_a_job_ends_if_its_last_line_was_rotated_away(cluster: Any, place: Path) -> None:
    cluster("cluster", "start", "--workers", "1")
    assert cluster("submit", "talks.py").stdout == "talks-1\n"
    assert lines(cluster("logs", "talks-1", "--follow", "--json"))[-1]["message"] == "is finished, was running"
    log = place / "home" / "logs" / "jobmanager.jsonl"
    kept = [line for line in log.read_text().splitlines(keepends=True) if "is finished" not in line]
    log.write_text("".join(kept))
    told = lines(cluster("logs", "talks-1", "--follow", "--json"))
    assert "is running, was created" in [line["message"] for line in told]
    assert "is finished, was running" not in [line["message"] for line in told]


def test_a_job_is_told_from_a_worker_with_its_name(cluster: Any, place: Path) -> None:
    (place / "worker.py").write_text(dedent(TALKS).replace('"talks", parallelism=2', '"worker"'))
    cluster("cluster", "start", "--workers", "1")
    assert cluster("submit", "worker.py").stdout == "worker-1\n"
    cluster.comes_to_be("worker-1", "finished")
    of_job = cluster("logs", "worker-1", "--json")
    assert (
        of_job.stderr
        == "'worker-1' is a job and a process: this is the log of the job; --process shows the other\n"
    )
    assert {line.get("job") for line in lines(of_job)} == {"worker-1"}
    of_process = cluster("logs", "worker-1", "--process", "--json")
    assert of_process.stderr == ""
    assert {line["process"] for line in lines(of_process)} == {"worker-1"}
    followed = lines(cluster("logs", "worker-1", "--follow", "--json"))
    assert followed[-1]["message"].startswith("is finished")


def test_workers_of_a_run_log_to_its_stderr_and_print_to_its_stdout(start: Any) -> None:
    process = start("run", "--workers", "2", "-q", "--log-format", "json", "talks.py")
    out, err = process.communicate(timeout=PATIENT_S)
    assert process.returncode == 0
    told = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    mine = {line["message"]: line for line in told if line["logger"] == "mine"}
    assert "warning 1" in mine
    assert "info 1" not in mine
    assert mine["warning 1"]["job"] == "talks"
    assert mine["warning 1"]["operator"] == "talker"
    assert mine["warning 1"]["process"] in ("worker-1", "worker-2")
    assert "printed 1" in out
    _, err = start("run", "--workers", "2", "-q", "--log-level", "info", "talks.py").communicate(timeout=PATIENT_S)
    assert "'talker' " in err
    assert "mine: info 1" in err
    assert "debug" not in err
