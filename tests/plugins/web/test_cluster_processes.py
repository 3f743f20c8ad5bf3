"""REST API of a cluster: logs, configuration and end, of real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENT_S, until
from plugins.web.browser import Tab
from plugins.web.conftest import Page

from sluiceway_web import _answers as a

PROGRAM = """
import logging
import select
from pathlib import Path
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

def tell(n):
    logging.getLogger("flow").warning("number %d: <b>&amp;</b>", n)
    print("printed", n)
    return n

def wait(n):
    while n == 2 and not Path({go!r}).exists():
        select.select([], [], [], 0.01)
    return n

flow = sw.Pipeline("talk")
flow.from_collection(range(3)).map(tell).map(wait).sink(DiscardSink())
"""


class Cluster:
    """A cluster with a job, and its web interface.

    Args:
        place: its directory.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.page: Any = None
        self.servers: list[subprocess.Popen[str]] = []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sluiceway", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        home = {"SLUICEWAY_HOME": str(self.place / "home"), "TMPDIR": str(self.place)}
        return {**os.environ, **home, "SLUICEWAY_NETWORK_BUFFERS": "256", "OTHER_SECRET": "hush-hush"}

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments), cwd=self.place, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, *options: str) -> Page:
        process = subprocess.Popen(
            self.command("web", "--web-address", "0", *options),
            cwd=self.place,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.servers.append(process)
        assert process.stdout is not None
        link = re.search(r"http://\S+", process.stdout.readline())
        assert link is not None
        return Page(link[0], process)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    (made.place / "talk.py").write_text(PROGRAM.format(go=str(made.place / "go")))
    made("cluster", "start", "--workers", "1", "--slots", "3")
    try:
        made("submit", "talk.py")
        made.page = made.serve()
        yield made
    finally:
        (made.place / "go").touch()
        subprocess.run(made.command("cluster", "stop"), env=made.environment, capture_output=True)
        for server in made.servers:
            server.terminate()
            server.communicate(timeout=PATIENT_S)
        until(lambda: not list(made.place.glob("sluiceway-*")))


FILE = "/taskmanagers/worker-1/logs/worker-1.jsonl"


def test_log_files(cluster: Cluster) -> None:
    page: Page = cluster.page
    page.until("/taskmanagers", lambda told: [worker["freeSlots"] for worker in told["taskmanagers"]] == [2])
    [file] = page.until("/taskmanagers/worker-1/logs", lambda told: told["logs"])["logs"]
    assert (file["name"], file["process"]) == ("worker-1.jsonl", "worker-1")
    told = msgspec.convert(page.get("/v1/jobmanager/logs"), a.LogList).logs
    assert [each.name for each in told] == ["jobmanager.jsonl", "worker-1.jsonl"]

    def content() -> bytes | None:
        body = page.request("GET", FILE)[2]
        return body if body.count(b"printed") == 3 else None

    lines = [json.loads(line) for line in until(content).splitlines()]
    assert next(line["message"] for line in lines if line["logger"] == "flow") == "number 0: <b>&amp;</b>"
    status, headers, text = page.request("GET", "/taskmanagers/worker-1/log")
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert re.search(rb"WARNING flow \[talk-1 map\(tell\) 1/1\] number 2: <b>", text)
    # Also that a worker has been in one call for long is written there.
    output = page.request("GET", "/taskmanagers/worker-1/stdout")[2].splitlines()
    assert [line for line in output if line.startswith(b"printed ")] == [b"printed 0", b"printed 1", b"printed 2"]
    assert b"submitted; needs 1 slot" in page.request("GET", "/jobmanager/log")[2]


def test_ranges_of_a_log_file(cluster: Cluster) -> None:
    page: Page = cluster.page
    path = cluster.place / "home" / "logs" / "ranges.jsonl"  # nobody else writes to it
    file = f"/jobmanager/logs/{path.name}"
    whole = "".join(f'{{"message": "number {n}"}}\n' for n in range(10)).encode()
    path.write_bytes(whole)
    for query, wanted, offset in (
        ("", whole, 0),
        ("?offset=10&size=5", whole[10:15], 10),
        ("?size=7", whole[-7:], len(whole) - 7),
        (f"?offset={len(whole) + 5}", b"", len(whole)),
    ):
        status, headers, body = page.request("GET", file + query)
        assert (status, body, headers["x-log-offset"]) == (200, wanted, str(offset))
        assert headers["x-log-size"] == str(len(whole))
    for given, wanted, told in (
        ("bytes=3-9", whole[3:10], f"bytes 3-9/{len(whole)}"),
        ("bytes=-4", whole[-4:], f"bytes {len(whole) - 4}-{len(whole) - 1}/{len(whole)}"),
        ("bytes=5-", whole[5:], f"bytes 5-{len(whole) - 1}/{len(whole)}"),
    ):
        status, headers, body = page.request("GET", file, Range=given)
        assert (status, body, headers["content-range"]) == (206, wanted, told)
    for given in ("bytes=", "bytes=9-3", "lines=1-2", "bytes=1-2,4-5", f"bytes={len(whole)}-"):
        assert page.request("GET", file, Range=given)[0] == 416
    assert page.request("GET", file + "?offset=-1")[0] == 400
    path.unlink()


@pytest.mark.parametrize(
    "name",
    [
        "..%2Fcluster.json",
        "%2E%2E%2Fcluster.json",
        "..%2F..%2F..%2Fetc%2Fpasswd",
        "%2Fetc%2Fpasswd",
        "link.jsonl",
        "pipe.jsonl",
        "folder.jsonl",
        "worker-1.jsonl%00.txt",
        "jobmanager.jsonl",  # it is not a file of the worker
    ],
)
def test_nothing_but_log_files_is_read(cluster: Cluster, name: str) -> None:
    logs = cluster.place / "home" / "logs"
    if not (logs / "link.jsonl").is_symlink():
        (logs / "link.jsonl").symlink_to(logs.parent / "cluster.json")
        os.mkfifo(logs / "pipe.jsonl")
        (logs / "folder.jsonl").mkdir()
    for process in ("taskmanagers/worker-1", *(["jobmanager"] if not name.startswith("jobm") else [])):
        status, _, body = cluster.page.request("GET", f"/{process}/logs/{name}")
        assert status in (400, 404), body
        assert b"secret" not in body
    names = [file["name"] for file in cluster.page.get("/jobmanager/logs")["logs"]]
    assert names == ["jobmanager.jsonl", "worker-1.jsonl"]


def test_configuration_with_origins(cluster: Cluster) -> None:
    told = {entry["key"]: (entry["value"], entry["origin"]) for entry in cluster.page.get("/jobmanager/config")}
    assert told["workers"] == ("1", "--workers")
    assert told["slots"] == ("3", "--slots")
    assert told["network-buffers"] == ("256", "SLUICEWAY_NETWORK_BUFFERS")
    assert told["transport"] == ("shm", "default")
    assert told["job-store"] == (str(cluster.place / "home" / "jobs"), "default")
    environment = cluster.page.get("/jobmanager/environment")
    assert environment["jvm"]["options"] == [sys.executable]
    assert environment["variables"]["SLUICEWAY_NETWORK_BUFFERS"] == "256"
    assert all(name.startswith("SLUICEWAY_") for name in environment["variables"])
    assert "hush-hush" not in json.dumps(environment)
    secret = json.loads((cluster.place / "home" / "cluster.json").read_text())["secret"]
    for path in ("/jobmanager/environment", "/jobmanager/config", "/overview", "/taskmanagers"):
        assert secret.encode() not in cluster.page.request("GET", path)[2]


def serious(page: Any) -> list[str]:
    """What axe finds, where it is installed."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        return []
    found = Axe().run(page).response["violations"]
    return [node["html"] for v in found if v["impact"] in ("serious", "critical") for node in v["nodes"]]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_the_pages_of_the_cluster(cluster: Cluster, chromium: Any, scheme: str, width: int) -> None:
    tab = Tab(chromium, scheme, width)
    page = tab.page
    page.goto(cluster.page.link)
    page.get_by_role("link", name="Cluster").click()
    row = page.get_by_role("row", name=re.compile("^Log of worker-1"))
    row.get_by_text(re.compile(r"^[\d.]+ MiB$")).first.wait_for()
    row.get_by_role("img", name="CPU of worker-1").wait_for()  # after two figures
    page.get_by_role("link", name="Threads of worker-1").press("Enter")
    tab.wait("runs map(wait) (1/1) of talk-1")
    page.get_by_role("combobox", name="Process").select_option("jobmanager")
    page.locator("pre", has_text="dispatcher").first.wait_for(state="attached")
    page.get_by_role("link", name="Logs").click()
    page.get_by_role("combobox", name="Log").select_option("worker-1.jsonl")
    page.locator(".line", has_text="number 0: <b>&amp;</b>").wait_for()
    assert serious(page) == []
    page.get_by_role("searchbox", name="Search").fill("NUMBER 2")
    page.wait_for_function("document.querySelectorAll('.log .line').length === 1")
    page.get_by_role("combobox", name="Level").select_option("ERROR")
    page.wait_for_function("document.querySelectorAll('.log .line').length === 0")
    page.get_by_role("link", name="Configuration").click()
    page.get_by_role("cell", name="--workers").wait_for()
    page.get_by_role("cell", name="SLUICEWAY_NETWORK_BUFFERS").first.wait_for()
    assert page.get_by_role("button", name="End cluster").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.problems == []
    assert tab.hosts == {f"127.0.0.1:{cluster.page.port}"}
    tab.context.close()


def test_a_line_that_is_longer_than_what_is_read_at_once_hides_none_behind_it(cluster: Cluster, tab: Tab) -> None:
    def line(level: str, message: str) -> str:
        told = {"time": "2025-03-01T12:00:00+00:00", "level": level, "logger": "flow", "message": message}
        return json.dumps(told) + "\n"

    file = cluster.place / "home" / "logs" / "long.jsonl"
    file.write_text(line("INFO", "in front"))
    page = tab.page
    page.goto(cluster.page.link)
    page.get_by_role("link", name="Cluster").click()
    page.get_by_role("link", name="Logs").click()
    page.get_by_role("combobox", name="Log").select_option("long.jsonl")
    page.locator(".line", has_text="in front").wait_for()
    with file.open("a") as more:
        more.write(line("INFO", "x" * 300_000) + line("ERROR", "behind it"))
    page.locator(".line", has_text="behind it").wait_for()
    assert tab.problems == []
    file.unlink()


def test_the_cluster_is_ended(cluster: Cluster) -> None:
    """The last test of this module."""
    reader = cluster.serve("--web-read-only")
    assert reader.request("DELETE", "/cluster")[0] == 403
    reader.process.terminate()
    reader.process.communicate(timeout=PATIENT_S)
    page: Page = cluster.page
    assert page.request("DELETE", "/cluster", token=False)[0] == 401
    cookie = f"sluiceway-{page.port}={page.token}"
    foreign = page.request("DELETE", "/cluster", token=False, Cookie=cookie, Sec_Fetch_Site="cross-site")
    assert foreign[0] == 403
    assert page.get("/overview")["taskmanagers"] == 1
    pid = json.loads((cluster.place / "home" / "cluster.json").read_text())["pid"]
    (cluster.place / "go").touch()
    assert page.request("DELETE", "/cluster")[0] == 202
    end = time.monotonic() + PATIENT_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.05)  # polls
    assert page.request("DELETE", "/cluster")[0] == 503


ENDLESS = """
import sluiceway as sw
flow = sw.Pipeline("endless")
flow.generate(rate=100).rebalance().map(abs).for_each(bool)
"""


def test_the_workers_of_a_job_that_runs_by_itself(show: Callable[..., Page]) -> None:
    page = show(ENDLESS, "--workers", "2")
    told = page.until(
        "/live/cluster?once",
        lambda told: len(told["processes"]) == 3 and all(p["figures"] for p in told["processes"]),
    )
    assert [p["name"] for p in told["processes"]] == ["jobmanager", "worker-1", "worker-2"]
    assert len({p["pid"] for p in told["processes"]} - {0}) == 3
    assert sum(p["tasks"] for p in told["processes"]) > 0
    page.end()


def test_a_job_in_one_process_has_no_workers(show: Callable[..., Page]) -> None:
    page = show(ENDLESS)
    (process,) = page.until("/live/cluster?once", lambda told: told["processes"][0]["tasks"])["processes"]
    assert (process["name"], process["pid"]) == ("jobmanager", page.process.pid)
    page.end()
