"""``run --history``, ``run --web-stay``, and ``web --history``: jobs that have ended."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from patience import PATIENT_S

from sluiceway.monitoring.job_history import JobHistory

WORDS = """
flow = sw.Pipeline("words")
flow.from_collection(["a", "b", "a"]).key_by(lambda w: w).count().print()
"""
FAILS = """
flow = sw.Pipeline("fails")
flow.from_collection([1, 0]).map(lambda n: 1 // n).print()
"""


def get(web: Any) -> Callable[..., Any]:
    line = web.stdout.readline() if web.stdout is not None else ""
    link = re.search(r"(http://\S+)\?token=(\S+)", line) or pytest.fail(line)

    def ask(path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(
            link[1] + path, headers={"Authorization": f"Bearer {link[2]}"}, method=method
        )
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    return ask


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_run_leaves_a_record(
    sluiceway: Callable[..., Result], write: Callable[..., Path], tmp_path: Path, workers: str
) -> None:
    write("flow.py", WORDS)
    done = sluiceway("run", "--history", "kept/jobs", "--workers", workers, "flow.py")
    assert done.exit_code == 0, done.stderr
    history = JobHistory("kept/jobs")
    [file] = history.files()
    record = history.read(file)
    assert (record.info.name, record.info.status, record.info.records_in) == ("words", "finished", 3)
    assert re.fullmatch(r"words-\d{8}-\d{6}-\d{3}", record.info.job)
    assert record.info.submitted_ms <= record.info.ended_ms
    assert record.info.tasks == {"finished": len(record.description.executions)}
    assert record.description.metrics is not None
    assert record.description.metrics.records_in == 3
    assert {option.name: option.value for option in record.description.options}["workers"] == workers


def test_a_failed_run_leaves_its_failure(sluiceway: Callable[..., Result], write: Callable[..., Path]) -> None:
    write("flow.py", FAILS)
    assert sluiceway("run", "--history", "kept", "flow.py").exit_code == 1
    history = JobHistory("kept")
    record = history.read(history.files()[0])
    assert record.info.status == "failed"
    assert "ZeroDivisionError" in record.info.failure
    assert "flow.py" in record.info.failures[-1].traceback


def test_one_that_does_not_begin_leaves_none(sluiceway: Callable[..., Result], write: Callable[..., Path]) -> None:
    write("flow.py", WORDS)
    assert sluiceway("run", "--history", "kept", "--take", "1", "flow.py").exit_code == 2
    assert JobHistory("kept").files() == []
    Path("file").touch()
    refused = sluiceway("run", "--history", "file/jobs", "flow.py")
    assert refused.exit_code == 2
    assert "--history file/jobs cannot be made: Not a directory" in refused.stderr


def test_the_pages_of_ended_jobs(
    sluiceway: Callable[..., Result], write: Callable[..., Path], start: Callable[..., Any]
) -> None:
    pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')
    write("flow.py", WORDS)
    write("fails.py", FAILS)
    sluiceway("run", "--history", "kept", "flow.py")
    sluiceway("run", "--history", "kept", "fails.py")
    web = start("web", "--history", "kept", "--web-address", "0")
    ask = get(web)
    fails, words = sorted(ask("jobs/overview")["jobs"], key=lambda job: job["name"])
    assert (words["state"], words["tasks"]["finished"], words["tasks"]["total"]) == ("FINISHED", 2, 2)
    assert fails["state"] == "FAILED"
    details = ask(f"jobs/{words['jid']}")
    assert [v["metrics"]["read-records"] for v in details["vertices"]] == [3, 3]
    vertex = details["vertices"][1]["id"]
    figures = ask(f"jobs/{words['jid']}/vertices/{vertex}/metrics?get=0.numRecordsIn")
    assert figures == [{"id": "0.numRecordsIn", "value": "3"}]
    assert "ZeroDivisionError" in ask(f"jobs/{fails['jid']}/exceptions")["root-exception"]
    assert ask("config")["features"]["web-cancel"] is False
    assert ask(f"jobs/{words['jid']}?mode=cancel", "PATCH")[0] == 403
    assert ask(f"jobs/{words['jid']}/vertices/{vertex}/flamegraph") == {}
    assert ask(f"live/job?job={words['job']}&once")["findings"][0]["text"] == "The job is finished."
    assert ask("jobs/other")[0] == 404
    web.send_signal(signal.SIGTERM)
    web.communicate(timeout=PATIENT_S)


def test_a_cluster_knows_jobs_of_the_job_managers_before_it(cluster: Any, write: Callable[..., Path]) -> None:
    write("flow.py", WORDS)
    assert cluster("cluster", "start", "--workers", "1", "--job-store", "store").returncode == 0
    cluster("submit", "flow.py")
    cluster.comes_to_be("words-1", "finished")
    before = cluster.json("top", "words-1")
    assert cluster("cluster", "stop").returncode == 0
    assert "no cluster is running" in cluster("why-slow", "words-1").stderr
    record = JobHistory("store/history").find("words-1")
    assert (record.info.status, record.info.records_in) == ("finished", 3)
    assert cluster("cluster", "start", "--workers", "1", "--job-store", "store").returncode == 0
    assert cluster("why-slow", "words-1").stdout == "The job is finished.\n"
    assert cluster.json("top", "words-1") == before


def test_the_server_ends_when_nobody_looks(start: Callable[..., Any], write: Callable[..., Path]) -> None:
    pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')
    write("kept/x.txt", "")
    web = start("web", "--history", "kept", "--web-address", "0", "--idle-timeout", "500ms")
    assert web.communicate(timeout=PATIENT_S)[0].startswith("web interface: http://127.0.0.1:")
    assert web.returncode == 0


def test_pages_that_stay(start: Callable[..., Any], write: Callable[..., Path]) -> None:
    pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')
    write("flow.py", WORDS)
    run = start("run", "--web", "--web-stay", "--web-address", "0", "--no-progress", "flow.py")
    lines = [run.stderr.readline() for _ in range(3)]
    assert "Ctrl-C ends the web interface" in lines[2]
    link = re.search(r"(http://\S+)\?token=(\S+)", lines[0])
    assert link is not None
    request = urllib.request.Request(link[1] + "jobs/words", headers={"Authorization": f"Bearer {link[2]}"})
    with urllib.request.urlopen(request) as answer:
        job = json.load(answer)
    assert (job["state"], job["vertices"][0]["metrics"]["read-records"]) == ("FINISHED", 3)
    assert job["end-time"] >= job["start-time"]
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=PATIENT_S)
    assert (run.returncode, err) == (0, "")
    assert len(out.splitlines()) == 3


def test_the_error_and_the_record_of_a_job_are_there_while_its_pages_stay(
    start: Callable[..., Any], write: Callable[..., Path]
) -> None:
    pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')
    write("flow.py", FAILS)
    run = start("run", "--quiet", "--web", "--web-stay", "--web-address", "0", "--history", "kept", "flow.py")
    lines = [run.stderr.readline()]
    while not lines[-1].startswith("record: "):
        lines.append(run.stderr.readline())
    assert any(line.startswith("ZeroDivisionError") for line in lines)
    [name] = [path.name.removesuffix(".job.json") for path in Path("kept").iterdir()]
    record = JobHistory("kept").find(name)
    assert record is not None
    assert (record.info.status, "ZeroDivisionError" in record.info.failure) == ("failed", True)
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=PATIENT_S)
    assert (run.returncode, err) == (1, "")


def test_sigterm_to_a_running_job_ends_its_pages_too(
    start: Callable[..., Any], write: Callable[..., Path]
) -> None:
    pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')
    write("flow.py", 'flow = sw.Pipeline("endless")\nflow.generate(lambda n: n, rate=100).print()\n')
    run = start("run", "--web", "--web-stay", "--web-address", "0", "--no-progress", "flow.py")
    assert run.stdout.readline() == "0\n"
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=PATIENT_S)
    assert run.returncode == 143
    assert "Ctrl-C ends the web interface" not in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["web", "--history", "none"], "there is no directory 'none'"),
        (["web", "--idle-timeout", "soon"], "--idle-timeout"),
        (["run", "--web-stay", "flow.py"], "--web-stay goes with --web"),
    ],
)
def test_wrong_options(
    sluiceway: Callable[..., Result], write: Callable[..., Path], arguments: list[str], text: str
) -> None:
    pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')
    write("flow.py", WORDS)
    result = sluiceway(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr
