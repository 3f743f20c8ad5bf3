"""The pages, in headless Chromium, while a job runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import PATIENT_S
from plugins.web.browser import Tab
from plugins.web.conftest import Page

PROGRAM = """
import time
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

def numbers(ended):
    now = 1_700_000_000_000
    yield from ((n, now + n) for n in range(1000))
    ended.wait()

strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
flow = sw.Pipeline("numbers")
pairs = flow.from_function(numbers, blocking=True, watermark_strategy=strategy).uid("numbers")
pairs.rebalance().map(tuple).uid("tuples").key_by(lambda p: p[0] % 10).count().uid("count").sink(DiscardSink())
"""

ENDLESS = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

flow = sw.Pipeline("numbers")
flow.generate(rate=500).key_by(lambda n: n % 10).count().name("count").sink(DiscardSink())
"""

# The character changes the direction of what follows it.
TURNED = """
import sluiceway as sw

def turn(n):
    raise ValueError("left, \\u202eright")

flow = sw.Pipeline("numbers")
flow.from_collection([1]).map(turn).print()
"""

LONG = """
import sluiceway as sw

def fail(n):
    raise ValueError("long" * 500)

flow = sw.Pipeline("long" * 100)
flow.from_collection([1]).map(fail).name("long" * 100).print()
"""

# Busy for as long as anybody looks.
BURNING = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

flow = sw.Pipeline("numbers")
flow.generate().rebalance().map(lambda n: (sum(range(1_000_000)), n)[1]).sink(DiscardSink())
"""


@pytest.mark.parametrize(
    "tab",
    [
        ("dark", 400),
        pytest.param(("light", 1280), marks=pytest.mark.slow),
        pytest.param(("dark", 1280), marks=pytest.mark.slow),
        pytest.param(("light", 400), marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_a_walk_over_all_pages(show: Callable[..., Page], tab: Tab, tmp_path: Path) -> None:
    web = show(PROGRAM, "--checkpoint-interval", "200ms", "--checkpoints", "kept")
    web.until("/jobs/numbers", lambda job: job["vertices"][-1]["metrics"]["read-records"] == 1000)
    tab.page.goto(web.link)
    assert "token" not in tab.page.url
    diagnosis = tab.page.locator("td .summary", has_text=re.compile("."))
    diagnosis.wait_for()
    right = "element => element.getBoundingClientRect().right"
    assert diagnosis.evaluate(right) <= tab.page.evaluate("window.innerWidth"), "seen without scrolling"
    tab.page.get_by_role("link", name="numbers").click()
    tab.wait("1000 records in")
    tab.page.locator(".graph text", has_text="map(tuple)").wait_for()
    assert tab.page.locator(".graph .box").count() == 3
    tab.page.get_by_role("link", name="Event time").click()
    tab.wait("Watermarks behind the clock")
    tab.page.locator("svg.chart polyline").first.wait_for(state="attached")  # it has no height
    tab.page.get_by_role("link", name="Lost records").click()
    tab.wait("The job keeps no dead letters")
    tab.page.get_by_role("link", name="Checkpoints").click()
    tab.wait("A checkpoint is taken every 200 ms.")
    tab.wait("completed")
    tab.page.get_by_role("link", name="Failures").click()
    tab.wait("Nothing has failed.")
    tab.page.get_by_role("link", name="Configuration").click()
    tab.wait("checkpoint-interval")
    tab.page.get_by_role("link", name="Tasks").click()
    tab.page.get_by_role("link", name="map(tuple)").click()
    tab.wait("Its functions have no metrics of their own.")
    tab.page.get_by_role("link", name="Flame graph", exact=True).click()
    tab.page.locator("p", has_text=re.compile("No samples|The wider a function")).wait_for()
    assert tab.problems == []
    assert tab.hosts == {f"127.0.0.1:{web.port}"}
    # Wide tables scroll by themselves: the page does not.
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    web.end()


def test_a_flame_graph(show: Callable[..., Page], tab: Tab) -> None:
    web = show(BURNING)
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="numbers").click()
    tab.page.get_by_role("link", name="Flame graph", exact=True).click()
    bar = tab.page.get_by_role("button", name="<lambda> (flow.py").first
    bar.click()
    tab.page.get_by_role("button", name="Whole graph").click()
    tab.page.get_by_role("combobox").nth(0).select_option("1")
    bar.wait_for()
    tab.page.get_by_role("combobox").nth(1).select_option("on_cpu")
    tab.page.get_by_label("Compare with the time before").check()
    # Samples of the minute before are there if all this has taken as long.
    tab.page.get_by_text(re.compile("Red: more time than before|Nothing is known of the time before")).wait_for()
    assert tab.problems == []
    web.end()


def test_a_job_is_cancelled_with_the_keyboard(show: Callable[..., Page], tab: Tab) -> None:
    web = show(PROGRAM)
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="numbers").press("Enter")
    tab.page.on("dialog", lambda dialog: dialog.accept())
    tab.page.get_by_role("button", name="Cancel").press("Enter")
    assert "numbers: canceled" in web.process.communicate(timeout=PATIENT_S)[1]
    tab.wait("The connection is lost")


def test_a_savepoint_from_the_page(show: Callable[..., Page], tab: Tab) -> None:
    web = show(PROGRAM, "--checkpoint-interval", "200ms", "--checkpoints", "kept")
    web.until("/jobs/numbers", lambda job: job["vertices"][-1]["metrics"]["read-records"] == 1000)
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="numbers").click()
    tab.page.get_by_role("button", name="Take savepoint").click()
    tab.wait("Savepoint: ")
    web.end()


def test_a_job_is_rescaled_from_the_page(show: Callable[..., Page], tab: Tab) -> None:
    web = show(ENDLESS, "--checkpoint-interval", "200ms")
    web.until("/jobs/numbers", lambda job: job["vertices"][-1]["metrics"]["read-records"])
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="numbers").click()
    tab.page.get_by_role("spinbutton", name="Parallelism").fill("3")
    tab.page.get_by_role("button", name="Rescale").click()
    tab.wait("Rescaled: the job was stopped for")
    tab.page.get_by_role("heading", name="Rescales").wait_for()
    tab.page.get_by_text("1 → 3").first.wait_for()
    # In front of the table, a finding or the graph may name the task, and link to other pages.
    tab.page.locator("table").get_by_role("link", name="count").click()
    tab.page.get_by_role("button", name="One subtask less").click()
    tab.wait("The task is being rescaled to 2.")
    tab.wait("parallelism 2")
    # With several subtasks each page says which figures are maxima and which are means.
    tab.page.get_by_role("heading", name="Busy (max)").wait_for()
    tab.page.get_by_role("link", name="Tasks").click()
    tab.wait("Bars are means over the subtasks of a task; (max) is the subtask with most.")
    assert tab.problems == []
    web.end()


def test_names_of_steps_are_text(show: Callable[..., Page], tab: Tab) -> None:
    """A name or a description is whatever a program says: it must not become part of the page."""
    name = "<img src=x onerror=alert(1)>"
    web = show(PROGRAM.replace('.uid("tuples")', f'.uid("tuples").name("{name}").set_description("{name} told")'))
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="numbers").click()
    tab.page.get_by_role("link", name=name).first.click()
    tab.wait(f"{name} told")
    assert tab.page.locator("img").count() == 0
    assert tab.problems == []
    web.end()


def test_text_from_right_to_left_does_not_turn_the_sentences_around_it(
    show: Callable[..., Page], tab: Tab
) -> None:
    web = show(TURNED, "--web-stay")
    tab.page.goto(web.link + "#/job/numbers/failures")
    tab.wait("the job failed")
    left = """(summary, word) => {
      for (const node of summary.childNodes) {
        const at = node.nodeType === Node.TEXT_NODE ? node.data.indexOf(word) : -1;
        if (at < 0) continue;
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + word.length);
        return range.getBoundingClientRect().left;
      }
    }"""
    summary = tab.page.locator("summary")
    assert summary.evaluate(left, "the job") < summary.evaluate(left, "failed")
    assert tab.problems == []
    web.end()


@pytest.mark.parametrize("tab", [("light", 400)], indirect=True)
def test_long_names_and_errors_are_no_wider_than_the_page(show: Callable[..., Page], tab: Tab) -> None:
    web = show(LONG, "--web-stay", "-q")
    web.until("/jobs", lambda told: told["jobs"][0]["status"] == "FAILED")
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="longlong").click()
    tab.page.get_by_role("link", name="Failures").click()
    tab.page.locator("summary", has_text="ValueError: longlong").wait_for()
    # Numbered from 1, as in the notes of the error.
    tab.page.locator("summary", has_text=" [1] on ").wait_for()
    for name in ("Failures", "Graph", "Tasks", "Lost records", "Event time", "Checkpoints"):
        tab.page.get_by_role("link", name=name, exact=True).click()
        tab.page.locator("nav a[aria-current]", has_text=name).wait_for()
        assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
    assert tab.problems == []
    web.end()


def test_a_name_that_needs_quoting_has_its_pages(show: Callable[..., Page], tab: Tab) -> None:
    web = show(PROGRAM.replace('sw.Pipeline("numbers")', 'sw.Pipeline("50% eu/orders")'))
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="50% eu/orders").click()
    tab.page.get_by_role("heading", name="50% eu/orders").wait_for()
    tab.page.get_by_role("link", name="Configuration").click()
    tab.page.get_by_role("heading", name="Defaults").wait_for()
    assert tab.problems == []
    web.end()


def test_read_only_pages_have_no_buttons(show: Callable[..., Page], tab: Tab) -> None:
    web = show(PROGRAM, "--web-read-only")
    tab.open_configured(web.link)
    tab.page.get_by_role("link", name="numbers").click()
    tab.wait("records in")
    assert tab.page.get_by_role("button").count() == 0
    web.end()
