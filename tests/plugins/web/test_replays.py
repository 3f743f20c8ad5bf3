"""Dead letters that are replayed over the REST API and from the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import until
from plugins.web.browser import Tab
from plugins.web.conftest import Page
from plugins.web.test_programs import Cluster, cluster
from plugins.web.test_security import OPTIONS, TOKEN, serving

__all__ = ["cluster"]

# Its first run skips two records of one step and one of another.
PROGRAM = """
import sys
from pathlib import Path
import sluiceway as sw

MENDED = False


def rooms(ended):
    yield from ["attic 31", "cellar 12,5", "cellar warm", "hall 0"]
    ended.wait()


def parse(line):
    room, degrees = line.split()
    return room, float(degrees.replace(",", ".") if MENDED else degrees)


def inverse(reading):
    return reading[0], 1 / (reading[1] + (1 if MENDED else 0))


flow = sw.Pipeline("rooms")
lines = flow.from_function(rooms, blocking=True).uid("rooms").map(parse).name("parse").uid("parse")
lines.map(inverse).name("inverse").uid("inverse").map(str).uid("text").print(*sys.argv[1:])
"""
MENDED = PROGRAM.replace("MENDED = False", "MENDED = True")
KEPT = ("--on-error", "skip", "--dead-letters", "letters")
REPLAY = "/jobs/rooms/dead-letters/replay"


def letters(page: Page) -> Any:
    return page.get("/jobs/rooms/dead-letters")


def replay(page: Page, path: str = REPLAY, **asked: Any) -> Any:
    """Replay, and return the result when it is complete."""
    status, _, told = page.request("POST", path, json.dumps(asked).encode())
    assert status == 202, told
    number = json.loads(told)["request-id"]
    done = page.until(f"{path}/{number}", lambda answer: answer["status"]["id"] == "COMPLETED")
    return done["operation"]


@pytest.mark.slow
def test_a_replay_with_the_program_of_the_job(show: Callable[..., Page], tmp_path: Path) -> None:
    checkpoints = ("--checkpoint-interval", "200ms", "--checkpoints", "kept")
    page = show(PROGRAM, *KEPT, *checkpoints, "--parallelism", "2")
    page.until("/jobs/rooms/dead-letters", lambda told: told["total"] == 3)
    assert letters(page)["steps"] == {"parse": 2, "inverse": 1}
    assert page.get("/config")["replay"] == "program"
    # Nothing was mended: what fails again is kept again, and once.
    failed = replay(page)
    assert failed["summary"] == "3 dead letters replayed and deleted; 3 failed again and were put aside again."
    assert failed["output"] == ""
    assert letters(page)["total"] == 3
    (tmp_path / "flow.py").write_text(MENDED)
    told = replay(page, step="inverse", delete=False)
    assert told["summary"] == "1 dead letter replayed; they are still there, as --delete was not given."
    assert told["output"] in ("1> ('hall', 1.0)\n", "2> ('hall', 1.0)\n")  # with the parallelism of the run
    assert letters(page)["total"] == 3
    told = replay(page)
    assert sorted(line[3:] for line in told["output"].splitlines()) == [
        "('cellar', 0.07407407407407407)",
        "('hall', 1.0)",
    ]
    [left] = letters(page)["letters"]
    assert (left["record"], left["error"]) == (
        "'cellar warm'",
        "ValueError: could not convert string to float: 'warm'",
    )
    # Its checkpoints are not those of the job, which would resume from them.
    assert len(list((tmp_path / "kept").iterdir())) == 1

    (tmp_path / "flow.py").write_text("1 / 0\n")
    assert "ZeroDivisionError: division by zero" in replay(page)["failure-cause"]["stack-trace"]
    assert letters(page)["total"] == 1
    assert "there are no dead letters of step 'none'" in replay_failure(page, tmp_path, step="none")
    page.get(f"{REPLAY}/none", 404)
    for body, text in (
        (b'{"program": "x"}', "names a program"),
        (b'{"steps": ""}', "unknown field"),
        (b"[", "not valid"),
    ):
        status, _, told = page.request("POST", REPLAY, body)
        assert (status, text in json.loads(told)["errors"][0]) == (400, True)
    page.end()


def replay_failure(page: Page, place: Path, **asked: Any) -> str:
    (place / "flow.py").write_text(MENDED)
    return str(replay(page, **asked)["failure-cause"]["stack-trace"])


@pytest.mark.slow
def test_one_replay_at_a_time(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(PROGRAM, *KEPT)
    page.until("/jobs/rooms/dead-letters", lambda told: told["total"] == 3)
    waiting = "import time\nPath('begun').touch()\nwhile not Path('go').exists():\n    time.sleep(0.01)\n"
    (tmp_path / "flow.py").write_text(MENDED + waiting)
    status, _, told = page.request("POST", REPLAY, b"{}")
    assert status == 202
    until((tmp_path / "begun").exists)
    refused, _, error = page.request("POST", REPLAY, b"{}")
    assert (refused, "are being replayed already" in json.loads(error)["errors"][0]) == (409, True)
    under_way = page.get(f"{REPLAY}/{json.loads(told)['request-id']}")
    assert under_way == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    (tmp_path / "go").touch()
    page.until("/jobs/rooms/dead-letters", lambda told: told["total"] == 1)
    page.end()


@pytest.mark.slow
def test_a_replay_ends_with_its_server(show: Callable[..., Page], tmp_path: Path) -> None:
    page = show(PROGRAM, *KEPT)
    page.until("/jobs/rooms/dead-letters", lambda told: told["total"] == 3)
    endless = (
        "import os, time\nPath('new').write_text(str(os.getpid()))\nos.rename('new', 'pid')\ntime.sleep(1e6)\n"
    )
    (tmp_path / "flow.py").write_text(MENDED + endless)
    assert page.request("POST", REPLAY, b"{}")[0] == 202
    until((tmp_path / "pid").exists)
    process = Path("/proc", (tmp_path / "pid").read_text())
    page.end()
    until(lambda: not process.exists())
    assert len(list((tmp_path / "letters").iterdir())) > 0


@pytest.fixture
def tab(tab: Tab) -> Tab:
    tab.page.on("dialog", lambda dialog: dialog.accept())
    return tab


def no_violations(tab: Tab) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="not installed: axe-playwright-python"
    )
    violations = axe.Axe().run(tab.page).response["violations"]
    assert [v["id"] for v in violations if v["impact"] in ("serious", "critical")] == []


@pytest.mark.parametrize(
    "tab", [("dark", 400), pytest.param(("light", 1280), marks=pytest.mark.slow)], indirect=True
)
def test_a_replay_from_the_page(show: Callable[..., Page], tab: Tab, tmp_path: Path) -> None:
    web = show(PROGRAM, *KEPT)
    web.until("/jobs/rooms/dead-letters", lambda told: told["total"] == 3)
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="rooms").click()
    tab.page.get_by_role("link", name="Lost records").click()
    (tmp_path / "flow.py").write_text("1 / 0\n")
    tab.page.get_by_role("button", name="Replay 3").click()
    tab.wait("The replay failed, and the dead letters are still there.")
    tab.wait("ZeroDivisionError: division by zero")
    (tmp_path / "flow.py").write_text(MENDED)
    tab.page.get_by_role("combobox", name="Step").select_option("inverse")
    tab.page.get_by_label("Keep them afterwards").check()
    tab.page.get_by_role("button", name="Replay 1 of inverse").press("Enter")
    tab.wait("1 dead letter replayed; they are still there")
    tab.page.get_by_label("Output of the replay").get_by_text("('hall', 1.0)").wait_for()
    tab.page.get_by_role("combobox", name="Step").select_option("")
    tab.page.get_by_label("Keep them afterwards").uncheck()
    no_violations(tab)
    tab.page.get_by_role("button", name="Replay 3").click()
    tab.wait("3 dead letters replayed and deleted; 1 failed again and was put aside again.")
    tab.page.get_by_text("1 in").wait_for()
    assert tab.page.get_by_text("were put aside since").count() == 0, "the others were deleted"
    tab.page.locator("summary", has_text="could not convert string to float: 'warm'").wait_for()
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.problems == []
    web.end()


def test_read_only_pages_replay_nothing(show: Callable[..., Page], tab: Tab) -> None:
    web = show(PROGRAM, *KEPT, "--web-read-only")
    web.until("/jobs/rooms/dead-letters", lambda told: told["total"] == 3)
    tab.open_configured(web.link)
    tab.page.get_by_role("link", name="rooms").click()
    tab.page.get_by_role("link", name="Lost records").click()
    tab.wait("sluiceway dlq replay")
    assert tab.page.get_by_role("button", name="Replay").count() == 0
    assert web.request("POST", REPLAY, b"{}")[0] == 403
    web.end()


@pytest.mark.slow
def test_a_replay_with_an_uploaded_program(cluster: Cluster, chromium: Any, tmp_path: Path) -> None:
    place = tmp_path / "letters"
    broken = cluster.upload("rooms.py", PROGRAM.encode())
    options = {"on-error": "skip", "dead-letters": str(place)}
    status, told = cluster.run(broken, flinkConfiguration=options, programArgs="first")
    assert status == 200, told
    job = f"/jobs/{told['job']}"
    cluster.until(f"{job}/dead-letters", lambda told: told["total"] == 3)
    assert cluster.get("/config")["replay"] == "upload"
    path = f"{job}/dead-letters/replay"
    status, _, refused = cluster.request("POST", path, b"{}")
    assert (status, "needs program" in json.loads(refused)["errors"][0]) == (400, True)
    assert cluster.request("POST", path, b'{"program": "none"}')[0] == 404
    failed = replay(cluster, path, program=broken, entryClass="other")["failure-cause"]["stack-trace"]
    assert "no 'other'" in failed or "'other'" in failed
    assert "sluiceway-programs-" not in failed
    cluster.request("DELETE", f"/jars/{broken}")

    tab = Tab(chromium, "light", 1280)
    tab.page.on("dialog", lambda dialog: dialog.accept())
    tab.page.goto(cluster.link)
    (tmp_path / "mended.py").write_text(MENDED)
    tab.page.get_by_label("Program").set_input_files(tmp_path / "mended.py")
    tab.page.get_by_role("button", name="Submit mended.py").wait_for()
    tab.page.get_by_role("link", name=told["job"]).click()
    tab.page.get_by_role("link", name="Lost records").click()
    tab.page.get_by_role("textbox", name="Arguments").fill("again")
    no_violations(tab)
    tab.page.get_by_role("button", name="Replay 3").click()
    tab.wait("3 dead letters replayed and deleted; 1 failed again and was put aside again.")
    tab.page.get_by_label("Output of the replay").get_by_text("again> ('hall', 1.0)").wait_for()
    tab.page.get_by_text("1 in").wait_for()
    assert tab.problems == []
    tab.context.close()
    cluster.request("PATCH", job)
    cluster.until(job, lambda found: found["state"] == "CANCELED")


def test_who_may_replay() -> None:
    path = "/jobs/words-1/dead-letters/replay"
    with serving(replace(OPTIONS, target="flow.py")) as served:
        cookie = {"Cookie": f"sluiceway-{served.port}={TOKEN}"}
        assert served.ask(path, "POST", b"{}")[0] == 401
        assert served.ask(path, "POST", b"{}", **cookie, Origin="http://evil.example")[0] == 403
        assert served.ask(path, "POST", b"{}", **cookie)[0] == 403
        assert served.trusted(path, "POST") == 404  # it keeps no dead letters
        assert served.trusted("/jobs/none/dead-letters/replay", "POST") == 404
    with serving(replace(OPTIONS, target="flow.py", read_only=True)) as served:
        assert served.trusted(path, "POST") == 403
