"""Programs that are submitted over the REST API and from the page, to a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import PATIENT_S, until
from plugins.web.browser import Tab
from plugins.web.conftest import Page
from plugins.web.test_security import OPTIONS, TOKEN, serving
from starlette.requests import Request

from sluiceway_web import _answers as a
from sluiceway_web import _programs
from sluiceway_web._ids import job_id
from sluiceway_web._program_directory import ProgramDirectory

pytest.importorskip("python_multipart", reason='not installed: pip install "sluiceway[web]"')

ALLOWED = replace(OPTIONS, submit=True)

PROGRAM = """
import sys
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

flow = sw.Pipeline("words" + "".join(sys.argv[1:]))
numbers = flow.from_collection(range(10)).map(abs).set_description("Its sign is dropped")
numbers.key_by(lambda n: n).count().sink(DiscardSink())
other = sw.Pipeline("other")
other.from_collection([1]).sink(DiscardSink())
"""


def form(name: str, content: bytes) -> tuple[bytes, dict[str, str]]:
    edge = "edge-of-parts"
    head = f'--{edge}\r\nContent-Disposition: form-data; name="jarfile"; filename="{name}"\r\n\r\n'
    return head.encode() + content + f"\r\n--{edge}--\r\n".encode(), {
        "Content_Type": f"multipart/form-data; boundary={edge}"
    }


class Cluster(Page):
    """Client of the web interface of a cluster."""

    def upload(self, name: str, content: bytes) -> str:
        body, headers = form(name, content)
        status, _, told = self.request("POST", "/jars/upload", body, **headers)
        assert status == 200, told
        return str(msgspec.json.decode(told, type=a.JarUploaded).filename)

    def run(self, program: str, **asked: Any) -> tuple[int, Any]:
        status, _, told = self.request("POST", f"/jars/{program}/run", json.dumps(asked).encode())
        return status, json.loads(told)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@contextmanager
def cluster_in(place: Path, *more: str) -> Iterator[Cluster]:
    """Run a cluster of one worker that takes programs, with the web interface, in a directory."""
    temporary = place / "tmp"
    temporary.mkdir()
    environ = {**os.environ, "SLUICEWAY_HOME": str(place / "home"), "TMPDIR": str(temporary)}
    options = ["--foreground", "--workers", "1", "--web", "0", "--web-submit", *more]
    command = [sys.executable, "-m", "sluiceway", "cluster", "start", *options]
    process = subprocess.Popen(
        command, cwd=place, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    link = re.search(r"http://\S+", process.stderr.readline())
    assert link is not None
    found = Cluster(link[0], process)
    until(lambda: found.request("GET", "/overview")[0] == 200)  # the job manager is being started
    yield found
    process.terminate()
    process.communicate(timeout=PATIENT_S)
    # The web server ends with the cluster, and removes what it has kept.
    until(lambda: not list(temporary.glob("sluiceway-programs-*")))


def test_a_program(cluster: Cluster) -> None:
    assert cluster.get("/config")["features"]["web-submit"] is True
    program = cluster.upload("words.py", PROGRAM.encode())
    [kept] = msgspec.convert(cluster.get("/v1/jars"), a.Jars).files
    assert (kept.id, kept.name) == (program, "words.py")
    plan = msgspec.convert(cluster.get(f"/jars/{program}/plan?parallelism=3")["plan"], a.JobPlan)
    assert [node.parallelism for node in plan.nodes] == [3, 3]
    assert plan.nodes[0].description.endswith("\nmap(abs): Its sign is dropped")
    assert plan.nodes[1].inputs[0].id == plan.nodes[0].id
    assert cluster.get("/jobs")["jobs"] == []
    status, told = cluster.run(program, programArgsList=["-a", "b"], flinkConfiguration={"parallelism": "2"})
    assert (status, told["job"]) == (200, "words-ab-1")
    cluster.until(f"/jobs/{told['jobid']}", lambda job: job["state"] == "FINISHED")
    assert [v["parallelism"] for v in cluster.get("/jobs/words-ab-1")["vertices"]] == [2, 2]
    assert cluster.run(program, entryClass="other")[1]["job"] == "other-2"
    assert cluster.request("DELETE", f"/jars/{program}")[0] == 200
    assert cluster.get("/jars")["files"] == []
    assert cluster.run(program)[0] == 404


_KILLED = """
import os, signal
from sluiceway_web._program_directory import ProgramDirectory

print(ProgramDirectory().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_directory_of_a_server_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    command = [sys.executable, "-c", _KILLED]
    told = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    left = Path(told.stdout.strip())
    assert left.parent == tmp_path
    assert left.is_dir()
    running = ProgramDirectory()
    with serving(OPTIONS) as served:
        assert served.trusted("/overview") == 200
        assert left.is_dir()
    with serving(ALLOWED) as served:
        assert served.trusted("/overview") == 200
        assert not left.exists()
        assert running.path.is_dir()
    running.remove()
    assert list(tmp_path.iterdir()) == []


def test_uploads_at_the_same_time_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_make_one = threading.Barrier(2)

    class Slow(ProgramDirectory):
        def __init__(self) -> None:
            with suppress(threading.BrokenBarrierError):
                both_make_one.wait(0.2)
            super().__init__()

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(_programs, "ProgramDirectory", Slow)

    def request(name: str) -> Request:
        body, headers = form(name, b"")
        content_type = headers["Content_Type"].encode()
        scope = {"type": "http", "method": "POST", "headers": [(b"content-type", content_type)]}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        return Request(scope, receive)

    async def both() -> None:
        programs = _programs.Programs()
        first, second = await asyncio.gather(*map(programs.upload, map(request, ("a.py", "b.py"))))
        assert first.place.parent == second.place.parent
        await programs.close()

    asyncio.run(both())
    assert list(tmp_path.iterdir()) == []


def test_a_wheel(cluster: Cluster) -> None:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr("acme/__init__.py", "")
        wheel.writestr("acme/lib.py", "def double(n):\n    return 2 * n\n")
        wheel.writestr("acme/flows.py", PROGRAM.replace("abs", "lib.double") + "\n")
        text = "from acme import lib\n" + PROGRAM.replace("map(abs)", "map(lambda n: lib.double(n))")
        wheel.writestr("acme/jobs.py", text)
    program = cluster.upload("acme-1.0-py3-none-any.whl", file.getvalue())
    status, told = cluster.run(program)
    assert (status, "needs an entry class" in told["errors"][0]) == (400, True)
    status, told = cluster.run(program, entryClass="acme.jobs:flow")
    assert status == 200, told
    job = cluster.until(f"/jobs/{told['jobid']}", lambda job: job["state"] not in ("CREATED", "RUNNING"))
    assert job["state"] == "FINISHED", cluster.get(f"/jobs/{told['jobid']}/exceptions")
    cluster.request("DELETE", f"/jars/{program}")


@pytest.mark.parametrize(
    ("source", "asked", "text"),
    [
        ("import sluiceway as sw\n1 / 0\n", {}, "ZeroDivisionError: division by zero"),
        ("import sluiceway as sw\nflows = sw.Pipeline('p')\n", {}, "name it like that, or call it 'flow'"),
        (PROGRAM, {"entryClass": "--help"}, "is no NAME"),
        (PROGRAM, {"entryClass": "../x"}, "is no NAME"),
        (PROGRAM, {"entryClass": "a:b"}, "alone, not"),
        (PROGRAM, {"savepointPath": "/nowhere"}, "/nowhere"),
        (PROGRAM, {"programArgs": "'"}, "cannot be split"),
        (PROGRAM, {"programArgsList": ["\0"]}, "cannot be used"),
        (PROGRAM, {"flinkConfiguration": {"nothing": "1"}}, "'nothing' is no option"),
        (PROGRAM, {"flinkConfiguration": {"workers": "9"}}, "is an option of the cluster"),
        (PROGRAM, {"flinkConfiguration": {"checkpoint-interval": "often"}}, "often"),
        (PROGRAM, {"claimMode": "CLAIM"}, "not supported"),
        (PROGRAM, {"jobId": "0" * 32}, "not supported"),
        (PROGRAM, {"parallel": 3}, "unknown field `parallel`"),
        (PROGRAM, {"parallelism": "3"}, "not valid"),
    ],
)
def test_what_cannot_be_submitted(cluster: Cluster, source: str, asked: dict[str, Any], text: str) -> None:
    jobs = len(cluster.get("/jobs")["jobs"])
    program = cluster.upload("wrong.py", source.encode())
    status, told = cluster.run(program, **asked)
    assert (status, text in told["errors"][0]) == (400, True), told
    assert "sluiceway-programs-" not in told["errors"][0]
    assert len(cluster.get("/jobs")["jobs"]) == jobs
    cluster.request("DELETE", f"/jars/{program}")


def test_the_page(cluster: Cluster, chromium: Any, tmp_path: Path) -> None:
    (tmp_path / "paged.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    tab = Tab(chromium, "light", 1280)
    tab.page.goto(cluster.link)
    tab.page.get_by_label("Program").set_input_files(tmp_path / "broken.py")
    tab.page.get_by_role("button", name="Submit broken.py").click()
    tab.wait("ZeroDivisionError: division by zero")
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="not installed: axe-playwright-python"
    )
    violations = axe.Axe().run(tab.page).response["violations"]
    assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []
    tab.page.get_by_role("button", name="Delete broken.py").click()
    tab.wait("No program is uploaded.")
    tab.page.get_by_label("Program").set_input_files(tmp_path / "paged.py")
    tab.page.get_by_role("textbox", name="Arguments").fill("-paged")
    tab.page.get_by_role("button", name="Submit paged.py").click()
    tab.page.get_by_role("heading", name="words-paged").wait_for()
    assert [problem for problem in tab.problems if "400" not in problem] == []
    tab.context.close()


# ---- with a server alone ----------------------------------------------------------------------------------------


def test_programs_are_refused_unless_they_are_allowed() -> None:
    body, headers = form("words.py", PROGRAM.encode())
    with serving() as served:
        for method, path in (
            ("GET", "/jars"),
            ("POST", "/jars/upload"),
            ("POST", "/jars/x/run"),
            ("DELETE", "/jars/x"),
        ):
            status, _, told = served.ask(path, method, body, Authorization=f"Bearer {TOKEN}", **headers)
            assert (status, "takes no programs" in json.loads(told)["errors"][0]) == (404, True)
        _, _, told = served.ask("/config", Authorization=f"Bearer {TOKEN}")
        assert json.loads(told)["features"]["web-submit"] is False


def test_uploads_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    import sluiceway_web._security as security

    monkeypatch.setattr(_programs, "_MOST_KEPT", 2)
    monkeypatch.setattr(_programs, "LONGEST_UPLOAD", 100_000)
    monkeypatch.setattr(security, "LONGEST_UPLOAD", 1 << 60)  # the header may lie
    native = BytesIO()
    with zipfile.ZipFile(native, "w") as wheel:
        wheel.writestr("acme/fast.so", "")
    with serving(ALLOWED) as served:

        def upload(name: str, content: bytes) -> tuple[int, str]:
            body, headers = form(name, content)
            status, _, told = served.ask("/jars/upload", "POST", body, Authorization=f"Bearer {TOKEN}", **headers)
            return status, (json.loads(told).get("errors") or [""])[0]

        for name in (
            "flow.jar",
            "../flow.py",
            "a/b.py",
            ".py",
            "-x.py",
            "x.py ",
            "ü.py",
            "x" * 200 + ".py",
            "x.py\\0",
        ):
            status, text = upload(name, b"")
            assert (status, "is no program" in text) == (400, True), (name, status, text)
        assert "is no wheel" in upload("x.whl", b"PK")[1]
        assert "has native code" in upload("x.whl", native.getvalue())[1]
        assert upload("x.py", b"x" * 100_001)[0] == 413
        for body in (b"", b"x", b"--edge-of-parts\r\n\r\n"):
            _, headers = form("", b"")
            answer = served.ask("/jars/upload", "POST", body, Authorization=f"Bearer {TOKEN}", **headers)
            assert answer[0] == 400
        assert [upload("x.py", b"")[0] for _ in range(3)] == [200, 200, 409]
        # A plan runs the program: another site may not ask for one.
        own = {"Cookie": f"sluiceway-{served.port}={TOKEN}"}
        [first, _] = json.loads(served.ask("/jars", **own)[2])["files"]
        for path in (f"/jars/{first['id']}/plan", f"/v1/jars/{first['id']}/plan"):
            assert served.ask(path, **own)[0] == 403
        for path in (f"/jars/{first['id']}", "/jars/none", "/jars/..%2f..%2fetc"):
            assert served.trusted(path, "DELETE") == (200 if first["id"] in path else 404)


def test_the_job_of_a_name_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: Any) -> str:
        return "printed by the program\ndaily sales-1\n"

    monkeypatch.setattr(_programs.Programs, "run", run)
    body, headers = form("sales.py", b"")
    with serving(ALLOWED) as served:
        own = {"Authorization": f"Bearer {TOKEN}"}
        program = json.loads(served.ask("/jars/upload", "POST", body, **own, **headers)[2])["filename"]
        status, _, told = served.ask(f"/jars/{program}/run", "POST", b"{}", **own)
    assert status == 200, told
    assert msgspec.json.decode(told, type=a.JarRun) == a.JarRun(job_id("", "daily sales-1"), "daily sales-1")


def test_a_program_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    source = f"import os\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\nwhile True:\n    print('x' * 1000)\n"
    body, headers = form("endless.py", source.encode())
    with serving(ALLOWED) as served:
        own = {"Authorization": f"Bearer {TOKEN}"}
        program = json.loads(served.ask("/jars/upload", "POST", body, **own, **headers)[2])["filename"]
        for seconds in (3, 15, 75):  # a busy machine needs more of them to start the program
            monkeypatch.setattr(_programs, "_PATIENCE_S", float(seconds))
            status, _, told = served.ask(f"/jars/{program}/plan", "POST", b"{}", **own)
            assert status == 400
            assert f"has not made its pipeline within {seconds} seconds" in json.loads(told)["errors"][0]
            if marker.exists() and marker.stat().st_size:  # it may be ended between open() and write(), too
                break
    assert not Path(f"/proc/{marker.read_text()}").exists()
