"""``sluiceway web``, ``why-slow`` and ``why-late`` over a running cluster, and ``run --web``."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from patience import PATIENT_S, until

from sluiceway.entrypoint.webserver import WebProcess
from sluiceway.errors import MissingExtraError
from sluiceway.monitoring.web_server import WebOptions
from sluiceway.util.engine_processes import engine_command

pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')

ENDLESS = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink, GeneratorSource

flow = sw.Pipeline("endless")
flow.source(GeneratorSource(lambda n: n)).sink(DiscardSink())
"""

SLOW = """
import time
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink, GeneratorSource

def enrich(value):
    time.sleep(0.002)
    return value

flow = sw.Pipeline("words")
enriched = flow.source(GeneratorSource(lambda n: n)).rebalance().map(enrich)
enriched.key_by(lambda n: "hot" if n % 4 else n).count().sink(DiscardSink())
"""


def test_a_cluster(cluster: Any, place: Path, start: Callable[..., Any]) -> None:
    (place / "slow.py").write_text(SLOW)
    assert cluster("cluster", "start", "--workers", "1").returncode == 0
    cluster("submit", "slow.py")
    slow = ("busy-task", "slow-consumer")
    # Of a machine that is busy elsewhere, that is said.
    assert cluster.until(lambda: cluster.json("why-slow", "words", "--over", "1")["findings"][0]["kind"] in slow)
    where = "samples are in enrich (slow.py:6)"
    told = cluster.until(lambda: where in (t := cluster("why-slow", "words-1").stdout) and t)
    assert "'map(enrich)'" in told
    assert cluster("why-late", "words-1").stdout == "No task has a watermark: the job does not use event time.\n"
    assert cluster("flamegraph", "words", "-o", "words.svg", "--seconds", "1").returncode == 0
    assert "enrich (slow.py:6)" in (place / "words.svg").read_text()
    asked = ("flamegraph", "words-1", "--seconds", "1", "--task", "map(enrich)")
    lines = cluster(*asked, "--format", "folded", "--cpu", "off").stdout.splitlines()
    # A busy machine may take the task off its processor anywhere, as between two batches.
    assert any("map(enrich)" in line and "enrich (slow.py:6)" in line for line in lines)
    assert not any("the worker's loop" in line or "connector.lib.generator" in line for line in lines)
    assert json.loads(cluster(*asked, "--format", "json").stdout)["name"] == "root"
    unknown = cluster("flamegraph", "words-1", "--task", "other")
    assert (unknown.returncode, "there is no task 'other'" in unknown.stderr) == (2, True)
    [counted] = cluster.until(
        lambda: (t := cluster.json("hot-keys", "words", "--seconds", "0.5"))[0]["keys"] and t
    )
    assert counted["keys"][0]["key"] == "'hot'"
    shown = cluster("hot-keys", "words-1", "--step", "count", "--seconds", "0.5", "--limit", "1").stdout
    assert re.match(
        r"count: [\d,]+ records in [\d.]+ s, 1 subtask, skew 0 %\nKEY +SUBTASK +RECORDS +SHARE\n'hot' +1 ", shown
    )
    unknown = cluster("hot-keys", "words-1", "--step", "other")
    assert (unknown.returncode, "there is no step 'other'" in unknown.stderr) == (2, True)
    assert cluster("why-lost", "words").stdout.startswith("No record was dropped")
    assert [f["kind"] for f in cluster.json("why-lost", "words-1")["findings"]] == ["no-losses"]
    wrong = cluster("why-slow", "other")
    assert (wrong.returncode, "there is no job 'other'" in wrong.stderr) == (2, True)
    web = start("web", "--web-address", "0")
    link = re.search(r"(http://\S+)\?token=(\S+)", web.stdout.readline())
    assert link is not None
    request = urllib.request.Request(link[1] + "jobs/overview", headers={"Authorization": f"Bearer {link[2]}"})
    with urllib.request.urlopen(request) as answer:
        [job] = json.load(answer)["jobs"]
    assert (job["job"], job["state"]) == ("words-1", "RUNNING")
    for path, status in (("jobs/words-1", 200), ("jobs/words-1/checkpoints", 200), ("taskmanagers", 200)):
        request = urllib.request.Request(link[1] + path, headers={"Authorization": f"Bearer {link[2]}"})
        with urllib.request.urlopen(request) as answer:
            assert answer.status == status
    cluster("cancel", "words-1")
    cluster.comes_to_be("words-1", "canceled")
    assert cluster("why-slow", "words-1").stdout == "The job is canceled.\n"
    web.send_signal(signal.SIGTERM)
    web.communicate(timeout=PATIENT_S)


def test_without_a_cluster(
    sluiceway: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_HOME", str(tmp_path / "home"))
    for command in (["web"], ["why-slow", "x"], ["why-late", "x"], ["why-lost", "x"]):
        result = sluiceway(*command)
        assert "no cluster is running" in str(result.stderr or result.exception)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--web-address", "8081"], "--web-address goes with --web"),
        (["--web", "--web-address", "here"], "is no address"),
        (["--web", "--web-address", "::1"], "give [HOST]:PORT, as in [::1]:8081"),
        (["--web", "--web-root-path", "proxy"], "give one such as /proxy/8081"),
        (["--web", "--web-root-path", "/a b"], "'/a b' is no path of a URL"),
        (["--web", "--web-address", "0.0.0.0:0"], "give --web-certificate and --web-key"),
        (["--web", "--web-certificate", "none.pem"], "there is no file 'none.pem'"),
    ],
)
def test_wrong_options(
    sluiceway: Callable[..., Result], write: Callable[..., Path], arguments: list[str], text: str
) -> None:
    write("flow.py", "flow = sw.Pipeline('p')\nflow.from_collection([1]).print()\n")
    result = sluiceway("run", *arguments, "flow.py")
    assert result.exit_code == 2
    assert text in result.stderr


def test_a_bounded_job_ends_with_its_pages(start: Callable[..., Any], write: Callable[..., Path]) -> None:
    write("flow.py", "flow = sw.Pipeline('p')\nflow.from_collection([1]).print()\n")
    done = start("run", "--web", "--web-address", "0", "--json", "flow.py")
    out, err = done.communicate(timeout=PATIENT_S)
    assert (done.returncode, out) == (0, "1\n")
    assert json.loads(err.splitlines()[0])["event"] == "web"


def answered(link: str, path: str) -> Any:
    parts = re.fullmatch(r"(http://\S+)\?token=(\S+)", link)
    assert parts is not None, link
    request = urllib.request.Request(parts[1] + path, headers={"Authorization": f"Bearer {parts[2]}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def is_gone(link: str) -> bool:
    try:
        answered(link, "overview")
    except (urllib.error.URLError, ConnectionError):
        return True
    return False


def test_a_cluster_with_pages(cluster: Any, write: Callable[..., Path]) -> None:
    write("flow.py", "flow = sw.Pipeline('p')\nflow.from_collection([1]).print()\n")
    started = cluster("cluster", "start", "--workers", "1", "--web", "0", "--web-token-file", "token")
    assert started.returncode == 0, started.stderr
    link = re.search(r"^web interface: (\S+)$", started.stdout, re.M)
    assert link is not None, started.stdout
    assert answered(link[1], "overview")["jobs-finished"] == 0
    assert link[1].endswith("token=" + Path("token").read_text().strip())
    assert Path("token").stat().st_mode & 0o077 == 0
    cluster("submit", "flow.py")
    cluster.comes_to_be("p-1", "finished")
    cluster.until(lambda: answered(link[1], "overview")["jobs-finished"] == 1)
    assert f"web interface: {link[1]}\n" in cluster("cluster", "status").stdout
    assert cluster("cluster", "stop").returncode == 0
    cluster.until(lambda: is_gone(link[1]))
    # The same token again.
    again = cluster("cluster", "start", "--workers", "1", "--web-token-file", "token", "--web")
    assert re.search(r"token=(\S+)", again.stdout)[1] == Path("token").read_text().strip()  # type: ignore[index]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_before_the_job_has_started(
    start: Callable[..., Any], place: Path, number: signal.Signals
) -> None:
    (place / "flow.py").write_text(ENDLESS)
    temporary = place / "temporary"
    temporary.mkdir()
    run = start("run", "--web", "--web-address", "0", "flow.py", TMPDIR=str(temporary))
    until(lambda: list(temporary.iterdir()))
    run.send_signal(number)
    run.communicate(timeout=PATIENT_S)
    assert run.returncode == 128 + number
    assert list(temporary.iterdir()) == []


def test_a_cluster_in_the_foreground_with_pages(start: Callable[..., Any], place: Path) -> None:
    process = start(
        "cluster", "start", "--foreground", "--workers", "1", "--web", "0", SLUICEWAY_HOME=str(place / "home")
    )
    link = re.search(r"web interface: (\S+)", process.stderr.readline())
    assert link is not None
    while True:  # until the job manager is up, the pages say so
        try:
            if answered(link[1], "overview")["jobs-running"] == 0:
                break
        except urllib.error.HTTPError:
            pass
        time.sleep(0.05)  # polls
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENT_S)
    while not is_gone(link[1]):
        time.sleep(0.05)  # polls


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--web-read-only"], "--web-read-only goes with --web"),
        (["--web", "1", "--web-address", "2"], "name two addresses"),
        (["--web", "here"], "is no address"),
        (["--web", "--web-token-file", "open"], "others than you may read or write --web-token-file open"),
        (["--web", "--web-token-file", "short"], "does not have 16 to 512 letters"),
        (["--web", "--web-token-file", "none/token"], "cannot be made: No such file or directory"),
    ],
)
def test_wrong_options_of_a_cluster(cluster: Any, place: Path, arguments: list[str], text: str) -> None:
    (place / "open").write_text("x" * 20)
    (place / "open").chmod(0o644)
    (place / "short").write_text("x")
    (place / "short").chmod(0o600)
    refused = cluster("cluster", "start", *arguments)
    assert (refused.returncode, text in refused.stderr) == (2, True), refused.stderr
    assert "no cluster is running" in cluster("cluster", "status").stderr


@pytest.mark.parametrize("told", [b"", WebProcess.of(None, WebOptions(port=0, token="t" * 16)).encode()])
def test_the_server_of_a_command_that_was_ended_ends_without_a_word(told: bytes) -> None:
    process = subprocess.Popen(
        engine_command("sluiceway.entrypoint.webserver"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()  # before it has started: nobody reads its answer
    _, stderr = process.communicate(told)
    assert (process.returncode, stderr) == (0, b"")


def test_nothing_is_started_without_the_library(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(plugins: object) -> None:
        raise MissingExtraError("web server 'web' needs starlette")

    monkeypatch.setattr("sluiceway.entrypoint.webserver.make_server", missing)
    refused = cluster("cluster", "start", "--web")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "needs starlette" in refused.stderr
    assert "no cluster is running" in cluster("cluster", "status").stderr


def test_a_cluster_whose_pages_cannot_be_served(cluster: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = cluster("cluster", "start", "--workers", "1", "--web", f"127.0.0.1:{port}")
    assert refused.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert "the cluster was started without it" in refused.stderr
