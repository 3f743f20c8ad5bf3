"""The REST API over a job that runs: every answer has its type and is what the job did."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENT_S, until
from plugins.web.conftest import Page

from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.infos import ClusterInfo, ExecutionInfo, JobDescription, RescaleInfo, WorkerInfo
from sluiceway.monitoring.split_diagnosis import SourceSplits
from sluiceway_web import _answers as a
from sluiceway_web._app import API
from sluiceway_web._openapi import document
from sluiceway_web._shapes import subtask_answer

# Reads 1,000 records and then waits; ends when a file appears.
PROGRAM = """
import sluiceway as sw
from pathlib import Path
from sluiceway.connector.lib import DiscardSink

def numbers(ended):
    yield from range(1000)
    while not (Path("go").exists() or ended.wait(0.05)):
        pass

flow = sw.Pipeline("numbers", parallelism=2)
counts = flow.from_function(numbers, blocking=True).uid("numbers").rebalance().map(abs).uid("abs")
counts.key_by(lambda n: n % 10).count().uid("count").sink(DiscardSink()).uid("sink")
"""

JOB = "/jobs/numbers"
ANSWERS: dict[str, Any] = {
    "/config": a.WebConfig,
    "/overview": a.Overview,
    "/jobs": a.JobIds,
    "/jobs/overview": a.JobsOverview,
    "/jobs/metrics": list[a.Metric],
    "/jobs/metrics?get=numRecordsIn": list[a.AggregatedMetric],
    "/applications/overview": a.Applications,
    "/applications/numbers": a.ApplicationDetails,
    "/applications/numbers/exceptions": a.ApplicationExceptions,
    JOB: a.JobDetails,
    f"{JOB}/plan": dict[str, a.JobPlan],
    f"{JOB}/status": a.JobStatusAnswer,
    f"{JOB}/config": dict[str, Any],
    f"{JOB}/exceptions": a.Exceptions,
    f"{JOB}/metrics": list[a.Metric],
    f"{JOB}/metrics?get=uptime": list[a.Metric],
    f"{JOB}/diagnosis": a.DiagnosisAnswer,
    f"{JOB}/micro-batches": a.MicroBatches,
    f"{JOB}/flamegraph": a.FlameGraph,
    f"{JOB}/resource-requirements": dict[str, a.VertexRequirements],
    f"{JOB}/checkpoints": a.Checkpoints,
    f"{JOB}/checkpoints/config": a.CheckpointConfig,
    "/taskmanagers": a.TaskManagers,
    "/taskmanagers/metrics": list[a.Metric],
    "/taskmanagers/metrics?get=process.rss,Status.JVM.CPU.Load": list[a.AggregatedMetric],
    "/jobmanager/thread-dump": a.ThreadDumpAnswer,
    "/jobmanager/logs": a.LogList,
    "/jobmanager/config": list[a.ConfigEntry],
    "/jobmanager/environment": dict[str, Any],
    "/jobmanager/metrics": list[a.Metric],
    "/jobmanager/metrics?get=numRunningJobs": list[a.Metric],
}
OF_VERTEX: dict[str, Any] = {
    "": a.VertexDetails,
    "/subtasktimes": a.VertexTimes,
    "/taskmanagers": dict[str, Any],
    "/backpressure": a.Backpressure,
    "/flamegraph?type=FULL": a.FlameGraph,
    "/watermarks": list[a.WatermarkMetric],
    "/splits": SourceSplits,
    "/metrics": list[a.Metric],
    "/metrics?get=0.numRecordsIn": list[a.Metric],
    "/accumulators": dict[str, Any],
    "/subtasks/metrics": list[a.Metric],
    "/subtasks/metrics?get=numRecordsIn,busyTimeMsPerSecond": list[a.AggregatedMetric],
    "/subtasks/accumulators": dict[str, Any],
    "/subtasks/0": a.SubtaskAnswer,
    "/subtasks/0/metrics": list[a.Metric],
    "/subtasks/0/attempts/0": a.SubtaskAnswer,
}


def read_all(details: Any) -> bool:
    return [v["metrics"]["read-records"] for v in details["vertices"]] == [1000, 1000, 1000]


def test_counts_of_checkpoints_are_of_those_that_are_kept(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(PROGRAM, "--checkpoint-interval", "10ms", "--checkpoints", "kept")
    told = page.until(f"{JOB}/checkpoints", lambda told: told["history"] and told["history"][0]["id"] > 40)
    counts = told["counts"]
    assert counts["total"] == len(told["history"]) < 40
    assert counts["total"] == counts["in-progress"] + counts["completed"] + counts["failed"]
    page.end()


@pytest.mark.parametrize("workers", [0, 2])
def test_every_answer(show: Callable[..., Page], workers: int, tmp_path: Path) -> None:
    page = show(PROGRAM, "--workers", str(workers), "--checkpoint-interval", "200ms", "--checkpoints", "kept")
    details = page.until(JOB, read_all)
    kept = page.until(f"{JOB}/checkpoints", lambda told: told["latest"]["completed"])
    for prefix in ("", "/v1"):
        for path, kind in ANSWERS.items():
            msgspec.convert(page.get(prefix + path), kind)
        for vertex in details["vertices"]:
            for path, kind in OF_VERTEX.items():
                msgspec.convert(page.get(f"{prefix}{JOB}/vertices/{vertex['id']}{path}"), kind)
    # Flink's dashboard shows no subtasks without these.
    known = {"min", "max", "avg", "sum", "median", "p25", "p75", "p95"}
    for about in ("", "/taskmanagers"):
        vertex = page.get(f"{JOB}/vertices/{details['vertices'][1]['id']}{about}")
        totals = (vertex if "aggregated" in vertex else vertex["taskmanagers"][0])["aggregated"]
        assert totals["status-duration"].keys() == {"CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING"}
        assert totals["metrics"]["accumulated-busy-time"].keys() == known
        assert totals["duration"].keys() == known
    # One and the same job by its id and by its name.
    assert page.get(f"/jobs/{details['jid']}")["job"] == "numbers"
    number = kept["latest"]["completed"]["id"]
    # The last 32 are kept, which is six seconds: it is there still, or the machine was held up.
    status, _, body = page.request("GET", f"{JOB}/checkpoints/details/{number}")
    if status == 200:
        one = msgspec.json.decode(body, type=a.CheckpointDetails)
        assert (one.status, one.num_acknowledged_subtasks) == ("COMPLETED", one.num_subtasks)
    vertex = details["vertices"][-1]["id"]

    def part_of_the_newest() -> bytes | None:
        newest = page.get(f"{JOB}/checkpoints")["latest"]["completed"]
        status, _, body = page.request("GET", f"{JOB}/checkpoints/details/{newest['id']}/subtasks/{vertex}")
        return body if status == 200 else None

    assert len(msgspec.json.decode(until(part_of_the_newest), type=a.VertexCheckpoint).subtasks) == 2
    page.until("/jobs/overview", lambda told: [j["tasks"]["running"] for j in told["jobs"]] == [5])
    assert [w["id"] for w in page.get("/taskmanagers")["taskmanagers"]] == (
        ["worker-1", "worker-2"] if workers else ["local"]
    )
    for worker in ["worker-1", "worker-2"] if workers else ["local"]:
        about = f"/taskmanagers/{worker}"
        process = msgspec.convert(page.get(about), a.TaskManager).process
        assert process is not None
        names = [metric["id"] for metric in page.get(f"{about}/metrics")]
        assert {"Status.JVM.CPU.Load", "Status.JVM.Memory.Heap.Used", "process.gcPauseMs"} <= set(names)
        [rss] = page.get(f"{about}/metrics?get=Status.JVM.Memory.Heap.Used,none")
        assert float(rss["value"]) > 10 << 20
        dump = msgspec.convert(page.get(f"{about}/thread-dump"), a.ThreadDumpAnswer)
        assert (dump.threadInfos[0].threadName, dump.pid) == ("MainThread", process.pid)
        assert "\tat sluiceway." in dump.threadInfos[0].stringifiedThreadInfo
    (tmp_path / "go").touch()
    assert page.process.wait(PATIENT_S) == 0


def test_the_plan_is_that_of_the_job(show: Callable[..., Page]) -> None:
    page = show(PROGRAM.replace('.uid("abs")', '.uid("abs").set_description("Without their signs")'))
    details = page.get(JOB)
    names = [node["description"] for node in details["plan"]["nodes"]]
    assert [name.partition("(")[0] for name in names] == ["source", "map", "count -> sink"]
    assert [node["parallelism"] for node in details["plan"]["nodes"]] == [1, 2, 2]
    by_id = {node["id"]: name for node, name in zip(details["plan"]["nodes"], names, strict=True)}
    assert names[1] == "map(abs)\nmap(abs): Without their signs"
    steps = [step for vertex in page.get("/live/job?job=numbers&once")["vertices"] for step in vertex["steps"]]
    assert [step["description"] for step in steps] == [None, "Without their signs", None, None]
    edges = [
        (by_id[i["id"]], n["description"], i["ship_strategy"])
        for n in details["plan"]["nodes"]
        for i in n["inputs"]
    ]
    assert edges == [(names[0], names[1], "rebalance"), (names[1], names[2], "hash by lambda")]
    page.end()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/jobs/other", 404, "Job other not found"),
        ("/jobs/00000000000000000000000000000000/checkpoints", 404, "not found"),
        (f"{JOB}/vertices/other", 404, "has no vertex other"),
        (f"{JOB}/vertices/numbers/subtasks/7", 404, "has no subtask 7"),
        (f"{JOB}/vertices/numbers/subtasks/x", 400, "is a number"),
        (f"{JOB}/vertices/numbers/subtasks/0/attempts/9", 404, "has no attempt 9"),
        (f"{JOB}/checkpoints/details/77", 404, "Could not find checkpoint 77"),
        (f"{JOB}/checkpoints/details/x", 404, "Could not find checkpoint x"),
        (f"{JOB}/exceptions?maxExceptions=x", 400, "must be a number"),
        (f"{JOB}/savepoints/00", 404, "no operation 00"),
        (f"{JOB}/rescales/details/00", 404, "no rescale 00 among its last 16"),
        ("/taskmanagers/other", 404, "no worker other"),
        ("/taskmanagers/other/metrics", 404, "no worker other"),
        ("/taskmanagers/other/thread-dump", 404, "no worker other"),
        ("/taskmanagers/other/logs", 404, "no worker other"),
        ("/taskmanagers/local/log", 404, "local has no log file: it logs to stderr"),
        ("/jobmanager/stdout", 404, "jobmanager has no log file"),
        ("/jobmanager/logs/flow.py", 404, "no log file flow.py"),
        ("/taskmanagers/local/metrics?get=" + "a," * 200, 400, "At most 200 metrics"),
        ("/nothing", 404, "nothing at /nothing"),
        ("/live/other", 404, "no page other"),
        ("/live/job?job=other", 404, "Job other not found"),
        ("/static/../_app.py", 404, "nothing at"),
    ],
)
def test_errors_have_a_status_and_a_message(running: Page, path: str, status: int, text: str) -> None:
    [message] = running.get(path, status)["errors"]
    assert text in message


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One job for tests that change nothing."""
    import os
    import re
    import subprocess
    import sys

    place = tmp_path_factory.mktemp("web")
    (place / "flow.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-m", "sluiceway", "run", "--web", "--web-address", "0", "flow.py"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SLUICEWAY_HOME": str(place / "home")},
    )
    assert process.stderr is not None
    link = next(found for line in process.stderr if (found := re.search(r"http://\S+", line)))
    page = Page(link[0], process)
    page.until(JOB, read_all)
    yield page
    page.end()


ENDLESS = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

flow = sw.Pipeline("numbers", max_parallelism=8)
counts = flow.generate(rate=500).uid("numbers").key_by(lambda n: n % 10).count().uid("count")
counts.sink(DiscardSink()).uid("sink")
"""


def test_a_job_is_rescaled(show: Callable[..., Page]) -> None:
    page = show(ENDLESS, "--checkpoint-interval", "200ms")
    path = f"{JOB}/resource-requirements"
    page.until(JOB, lambda job: job["vertices"][-1]["metrics"]["read-records"])

    def put(body: Any, status: int) -> str:
        found, _, told = page.request("PUT", path, json.dumps(body).encode())
        assert found == status, told
        return "" if status == 200 else str(json.loads(told)["errors"][0])

    assert page.get("/config")["features"]["web-rescale"] is True
    before = page.get(path)
    assert {v["parallelism"]["upperBound"] for v in before.values()} == {1}
    wanted = {vertex: {"parallelism": {"lowerBound": 1, "upperBound": 3}} for vertex in before}
    put(wanted, 200)
    page.until(path, lambda told: told == wanted)
    page.until(JOB, lambda job: {v["status"] for v in job["vertices"]} == {"RUNNING"})
    assert "has no vertex other" in put({"other": {"parallelism": {"lowerBound": 1, "upperBound": 3}}}, 400)
    assert "bounds" in put({"count": {"parallelism": {"lowerBound": 3, "upperBound": 2}}}, 400)
    assert "at most 2147483647" in put({"count": {"parallelism": {"lowerBound": 1, "upperBound": 10**30}}}, 400)
    assert "not valid" in put({"count": {"parallelism": 3}}, 400)
    assert "Name vertices" in put({}, 400)
    too_many = put({"count": {"parallelism": {"lowerBound": 1, "upperBound": 9}}}, 409)
    assert "divided into 8 key groups" in too_many

    status, _, told = page.request("POST", f"{JOB}/rescale", b'{"parallelism": 2, "steps": {"numbers": 1}}')
    assert status == 202
    request = json.loads(told)["request-id"]
    done = page.until(f"{JOB}/rescale/{request}", lambda told: told["status"]["id"] == "COMPLETED")
    assert done["operation"]["rescale"]["after"] == {"numbers": 1, "count": 2}
    for body in (b"{}", b'{"parallelism": 0}', b'{"steps": {"count": -1}}', b'{"parallel": 2}'):
        assert page.request("POST", f"{JOB}/rescale", body)[0] == 400
    rescales = page.until("/live/job?job=numbers&once", lambda told: len(told["rescales"]) == 2)["rescales"]
    assert [r["status"] for r in rescales] == ["completed", "completed"]
    assert [change[1:] for change in rescales[0]["changes"]] == [[3, 1], [3, 2]]
    rescales_are_told(page)
    # A page of another site may not, and a read-only server does not.
    asked = page.request("PUT", path, b"{}", token=False, Cookie=f"sluiceway-{page.port}={page.token}")
    assert asked[0] == 403
    page.end()
    page = show(ENDLESS, "--web-read-only")
    assert page.get("/config")["features"]["web-rescale"] is False
    assert page.request("PUT", path, json.dumps(wanted).encode())[0] == 403
    page.end()


def rescales_are_told(page: Page) -> None:
    """Compare the history with what the job has been asked for: 1 to 3, then 3 to 1 and 2."""
    second, first = msgspec.convert(page.get(f"{JOB}/rescales/history"), list[a.Rescale])
    assert [second.terminal_state, second.terminated_reason] == ["COMPLETED", "SUCCEEDED"]
    wanted = {v.job_vertex_name.partition("(")[0]: v for v in second.vertices.values()}
    assert {(v.pre_rescale_parallelism, v.post_rescale_parallelism) for v in first.vertices.values()} == {(1, 3)}
    assert sorted(v.post_rescale_parallelism for v in wanted.values() if v.post_rescale_parallelism) == [1, 2]
    assert set(second.vertices) <= {v["id"] for v in page.get(JOB)["vertices"]}
    told = msgspec.convert(page.get(f"{JOB}/rescales/overview"), a.RescalesOverview)
    assert (told.rescales_counts.completed, told.rescales_counts.failed) == (2, 0)
    assert (told.latest.completed, told.latest.failed) == (second, None)
    details = msgspec.convert(page.get(f"{JOB}/rescales/details/{first.rescale_uuid}"), a.Rescale)
    states = details.scheduler_states or []
    assert [state.state for state in states] == ["Executing", "Restarting"]
    assert states[1].duration_in_millis == details.stopped_in_millis > 0
    assert states[1].leave_timestamp_in_millis == details.end_timestamp_in_millis
    summary = msgspec.convert(page.get(f"{JOB}/rescales/summary"), a.RescalesSummary)
    assert summary.failed_rescales_duration_stats_in_millis["max"] == 0
    assert summary.completed_rescales_duration_stats_in_millis["max"] >= details.stopped_in_millis
    assert msgspec.convert(page.get(f"{JOB}/rescales/config"), a.RescaleConfig).rescale_history_max == 16


def test_wrong_methods_are_refused(running: Page) -> None:
    for method, path in (("POST", "/overview"), ("DELETE", JOB), ("DELETE", f"{JOB}/resource-requirements")):
        status, _, body = running.request(method, path)
        assert (status, "not allowed" in json.loads(body)["errors"][0]) == (405, True)


def test_metrics(running: Page) -> None:
    values = running.get(f"{JOB}/vertices/count/metrics?get=0.numRecordsIn,1.numRecordsIn,none")
    assert sum(int(v["value"]) for v in values) == 1000
    [aggregated] = running.get(f"{JOB}/vertices/count/subtasks/metrics?get=numRecordsIn")
    assert aggregated["sum"] == 1000
    shares = running.get(f"{JOB}/vertices/abs/backpressure")["subtasks"]
    for subtask in shares:
        total = sum(subtask[name] for name in ("ratio", "busyRatio", "idleRatio", "waitingRatio"))
        assert total == pytest.approx(1)


def test_the_live_page_of_a_job(running: Page) -> None:
    page = running.get("/live/job?job=numbers&once")
    assert [v["records_in"] for v in page["vertices"]] == [1000, 1000, 1000]
    assert page["findings"]
    jobs = running.get("/live/jobs?once")["jobs"]
    assert [(j["job"], j["state"], j["records-in"]) for j in jobs] == [("numbers", "RUNNING", 1000)]


def test_events_come_again_and_again(running: Page) -> None:
    import http.client

    connection = http.client.HTTPConnection(running.host, running.port, timeout=PATIENT_S)
    connection.request("GET", "/live/jobs", headers={"Authorization": f"Bearer {running.token}"})
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    events = []
    while len(events) < 3:
        line = answer.fp.readline()
        if line.startswith(b"data: "):
            events.append(json.loads(line[6:]))
    connection.close()
    assert [e["jobs"][0]["job"] for e in events] == ["numbers"] * 3
    assert events[0]["now"] < events[1]["now"] < events[2]["now"]


def test_cancel(show: Callable[..., Page]) -> None:
    page = show(PROGRAM)
    status, _, _ = page.request("PATCH", f"{JOB}?mode=cancel")
    assert status == 202
    assert "numbers: canceled" in page.process.communicate(timeout=PATIENT_S)[1]


def test_a_savepoint_and_a_stop_with_one(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(PROGRAM)
    page.until(JOB, read_all)
    for path, body in (("savepoints", {"target-directory": "saved"}), ("stop", {"targetDirectory": "saved"})):
        status, _, told = page.request("POST", f"{JOB}/{path}", json.dumps(body).encode())
        assert status == 202
        request = json.loads(told)["request-id"]
        if path == "savepoints":
            done = page.until(f"{JOB}/savepoints/{request}", lambda answer: answer["status"]["id"] == "COMPLETED")
            assert Path(tmp_path, done["operation"]["location"]).is_dir()
    assert page.process.wait(PATIENT_S) == 0
    assert len(list((tmp_path / "saved").iterdir())) == 2


def test_an_operation_with_an_id_of_the_client_is_done_once(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(PROGRAM)
    page.until(JOB, read_all)
    trigger = "0123456789abcdef0123456789ABCDEF"
    body = json.dumps({"target-directory": "saved", "triggerId": trigger}).encode()
    for _ in range(2):
        status, _, told = page.request("POST", f"{JOB}/savepoints", body)
        assert (status, json.loads(told)) == (202, {"request-id": trigger.lower()})
        page.until(f"{JOB}/savepoints/{trigger.lower()}", lambda answer: answer["status"]["id"] == "COMPLETED")
    assert len(list((tmp_path / "saved").iterdir())) == 1
    for wrong in ({"triggerId": "1"}, {"triggerId": 1}, {"formatType": "AVRO"}):
        assert page.request("POST", f"{JOB}/savepoints", json.dumps(wrong).encode())[0] == 400
    page.end()


def test_a_checkpoint_on_demand(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(PROGRAM, "--checkpoint-interval", "1h", "--checkpoints", "kept")
    page.until(JOB, read_all)
    status, _, told = page.request("POST", f"{JOB}/checkpoints", b'{"checkpointType": "CONFIGURED"}')
    assert status == 202
    request = json.loads(told)["request-id"]
    done = page.until(f"{JOB}/checkpoints/{request}", lambda answer: answer["status"]["id"] == "COMPLETED")
    assert done["operation"]["checkpointId"] >= 1
    assert page.get(f"{JOB}/checkpoints")["latest"]["completed"]["id"] == done["operation"]["checkpointId"]
    status, _, told = page.request("POST", f"{JOB}/checkpoints", b'{"checkpointType": "FULL"}')
    assert (status, "CONFIGURED is" in json.loads(told)["errors"][0]) == (400, True)
    page.end()


def test_a_savepoint_that_fails_says_why(show: Callable[..., Page]) -> None:
    page = show(PROGRAM)
    page.until(JOB, read_all)
    status, _, told = page.request("POST", f"{JOB}/savepoints", b"{}")
    assert status == 202
    request = json.loads(told)["request-id"]
    done = page.until(f"{JOB}/savepoints/{request}", lambda answer: answer["status"]["id"] == "COMPLETED")
    assert "failure-cause" in done["operation"]
    for body in (b"[", b"[]", b'{"target-directory": 3}', b'{"target-directory": "\xff"}', b"[" * 50_000):
        status, _, told = page.request("POST", f"{JOB}/savepoints", body)
        assert (status, "not valid" in json.loads(told)["errors"][0]) == (400, True)
    page.end()


FAILS = PROGRAM.replace("map(abs)", "map(lambda n: n if n < 900 else 1 // 0)")


def test_failures_and_restarts(show: Callable[..., Page]) -> None:
    page = show(FAILS, "--restart", "fixed-delay:1000:300ms")
    told = page.until(f"{JOB}/exceptions", lambda told: len(told["exceptionHistory"]["entries"]) >= 2)
    entry = told["exceptionHistory"]["entries"][0]
    assert entry["exceptionName"] == "ZeroDivisionError"
    assert "1 // 0" in entry["stacktrace"]
    page.until("/jobs/overview", lambda told: told["jobs"][0]["restarts"] >= 2)
    one = page.get(f"{JOB}/exceptions?maxExceptions=1")["exceptionHistory"]
    assert (len(one["entries"]), one["truncated"]) == (1, True)
    page.end()


def test_the_openapi_document_has_every_route() -> None:
    made = document(API)
    paths = {p.replace("{rest}", "{rest:path}") for p in made["paths"]}
    assert paths == {route.path for route in API if not route.path.startswith("/v1")}
    assert made["components"]["schemas"]["JobDetails"]["properties"]["start-time"] == {"type": "integer"}


def test_states_of_one_millisecond_are_in_the_order_in_which_they_were_entered() -> None:
    entered = {"created": 1000, "scheduled": 1000, "deploying": 1000, "initializing": 1000, "running": 1400}
    execution = ExecutionInfo(1, 0, 0, "finished", {**entered, "finished": 2000})
    assert subtask_answer(execution, None).status_duration == {
        "CREATED": 0,
        "SCHEDULED": 0,
        "DEPLOYING": 0,
        "INITIALIZING": 400,
        "RUNNING": 600,
    }


def test_tasks_that_share_a_slot_leave_the_others_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.web import test_security

    class Sharing(test_security.Fixed):
        def cluster(self, *, figures: bool = False) -> ClusterInfo:
            tasks = [
                SubtaskMetrics(name, 0, "running", vertex_id=number, worker="worker-1")
                for number, name in enumerate(("source", "sink"))
            ]
            job = test_security.JOB
            told = {job.job: JobMetrics("words", "running", 1.0, 0, 0, tuple(tasks))}
            worker = WorkerInfo("worker-1", 7, 2, 0.0, free_slots=1)
            return ClusterInfo(1, 1, 1, 2, 1, 2, "shm", [job], [worker], told)

    monkeypatch.setattr(test_security, "Fixed", Sharing)
    with test_security.serving() as served:
        status, _, body = served.ask("/taskmanagers", Authorization=f"Bearer {test_security.TOKEN}")
    assert status == 200, body
    [told] = msgspec.json.decode(body, type=a.TaskManagers).taskmanagers
    assert (told.slotsNumber, told.freeSlots) == (2, 1)


def test_rescales_that_failed_or_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.web import test_security

    class Rescaled(test_security.Fixed):
        def describe(self, job: str) -> JobDescription:
            failed = RescaleInfo(1000, 1900, "failed", "no slots", {"count": 1}, {"count": 2}, 7, 300)
            return JobDescription(
                rescales=[failed, RescaleInfo(2000, 0, "in_progress", "", {"count": 1}, {"count": 3})]
            )

    monkeypatch.setattr(test_security, "Fixed", Rescaled)
    with test_security.serving() as served:

        def get(path: str, type_: Any) -> Any:
            bearer = f"Bearer {test_security.TOKEN}"
            status, _, body = served.ask(f"/jobs/{test_security.JOB.job}/rescales/{path}", Authorization=bearer)
            assert status == 200, body
            return msgspec.json.decode(body, type=type_)

        running, failed = get("history", list[a.Rescale])
        [vertex] = failed.vertices.values()
        assert (vertex.desired_parallelism, vertex.post_rescale_parallelism) == (2, 1), "it has the one before"
        assert (failed.terminal_state, failed.terminated_reason, failed.reason) == (
            "FAILED",
            "EXCEPTION_OCCURRED",
            "no slots",
        )
        [vertex] = running.vertices.values()
        assert (vertex.desired_parallelism, vertex.post_rescale_parallelism) == (3, None)
        assert (running.terminal_state, running.end_timestamp_in_millis) == (None, None)
        states = get(f"details/{failed.rescale_uuid}", a.Rescale).scheduler_states
        assert [(s.state, s.duration_in_millis, s.stringified_exception) for s in states] == [
            ("Executing", 600, None),
            ("Restarting", 300, "no slots"),
        ]
        counts = get("overview", a.RescalesOverview).rescales_counts
        assert (counts.in_progress, counts.completed, counts.failed) == (1, 0, 1)
        assert get("summary", a.RescalesSummary).failed_rescales_duration_stats_in_millis["max"] == 900
