"""Pages about splits, keys, state and dead letters, in headless Chromium, while a job runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from plugins.web.browser import Tab
from plugins.web.conftest import Page
from plugins.web.test_diagnosis_of_jobs import HEAD, SKEW, SLOW_STEP
from plugins.web.test_splits import PROGRAM as SPLITS
from plugins.web.test_state import KEPT
from plugins.web.test_state import PROGRAM as VISITS

narrow_and_wide = pytest.mark.parametrize(
    "tab", [("dark", 400), pytest.param(("light", 1280), marks=pytest.mark.slow)], indirect=True
)


def fits(tab: Tab) -> bool:
    """Wide tables scroll by themselves: the page does not."""
    return bool(tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@narrow_and_wide
def test_the_split_that_holds_back_event_time(show: Callable[..., Page], tab: Tab) -> None:
    web = show(SPLITS.replace("STALLED", "73"))
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="planted").click()
    tab.page.get_by_role("link", name="Event time").click()
    tab.wait("Event time is held back by split 'events-73'")
    tab.wait("200 splits, 0 idle, 0 without a watermark. The slowest 20 are shown.")
    row = tab.page.get_by_role("row").filter(has_text="holds back event time")
    assert "events-73" in (row.text_content() or "")
    assert tab.problems == []
    assert fits(tab)
    web.end()


@narrow_and_wide
def test_hottest_keys_are_counted_with_the_keyboard(show: Callable[..., Page], tab: Tab) -> None:
    web = show(HEAD + SKEW, "--workers", "1")
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="planted").click()
    tab.page.locator("table").get_by_role("link", name="map(pause)").click()
    tab.wait("Busy by subtask")
    tab.page.get_by_role("button", name="Count keys").press("Enter")
    tab.page.get_by_role("row").filter(has=tab.page.locator("code", has_text="0")).first.wait_for()
    tab.page.get_by_role("button", name="Stop counting").wait_for()
    assert tab.problems == []
    assert fits(tab)
    web.end()


@narrow_and_wide
def test_state_and_dead_letters(show: Callable[..., Page], tab: Tab) -> None:
    web = show(VISITS, *KEPT)
    web.until("/jobs/visits/dead-letters", lambda told: told["total"] == 10)
    # The page reads the last checkpoint when it is asked to: one that has all the state.
    web.until("/jobs/visits/checkpoints", lambda told: told["latest"]["completed"])
    web.until("/jobs/visits/state", lambda told: told["states"] and told["states"][0]["size"] > 9_800)
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="visits").click()
    tab.page.get_by_role("link", name="State", exact=True).click()
    tab.page.get_by_role("button", name="Measure").click()
    tab.page.get_by_role("row").filter(has_text="seen").filter(has_text="crawler").filter(
        has_text="process(Pages)"
    ).wait_for()
    assert tab.page.get_by_role("combobox", name="Step").locator("option").all_inner_texts() == ["process(Pages)"]
    tab.page.get_by_role("combobox", name="State").fill("seen")
    tab.page.get_by_role("textbox", name="Key").fill("ann")
    tab.page.get_by_role("textbox", name="Key").press("Enter")
    tab.page.get_by_role("row").filter(has_text="/page/10").wait_for()
    assert fits(tab)
    tab.page.get_by_role("link", name="Lost records").click()
    tab.page.get_by_text("10 in").wait_for()
    tab.page.locator("summary", has_text="ValueError: no page").first.press("Enter")
    tab.page.locator("pre", has_text="Traceback").or_(tab.page.locator("pre", has_text="no page")).first.wait_for()
    tab.wait("sluiceway dlq replay")
    assert tab.problems == []
    assert fits(tab)
    web.end()


@narrow_and_wide
def test_the_sentence_about_a_slow_job_leads_to_the_task_and_its_function(
    show: Callable[..., Page], tab: Tab
) -> None:
    web = show(HEAD + SLOW_STEP, "--workers", "1")
    tab.page.goto(web.link)
    tab.page.get_by_role("link", name="planted").click()
    sentence = tab.page.locator(".finding.cause")
    function = sentence.get_by_role("link", name="pause (flow.py:").first
    function.wait_for()
    assert fits(tab)
    sentence.get_by_role("link", name="map(pause)").first.click()
    tab.page.get_by_role("heading", name="map(pause)").wait_for()
    # At once: the sentence is rendered anew each second, and its links may be others then.
    function.press("Enter")
    # The page of the task that is left has labels with "task" in them, too, but nothing to choose from.
    tasks = tab.page.get_by_role("combobox", name="Task")
    tasks.wait_for()
    assert tasks.locator("option:checked").inner_text() == "map(pause)"
    tab.page.get_by_role("button", name="pause (flow.py").first.wait_for()
    assert tab.problems == []
    web.end()
