"""Headless Chromium, and its tabs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from patience import PATIENT_S

__all__ = ["Tab", "browser"]


@contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium. Skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="not installed: pip install playwright")
    where = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if where is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        found = driver.chromium.launch(executable_path=where, args=options)
        yield found
        found.close()


class Tab:
    """Tab of the browser, with what went wrong in it."""

    def __init__(self, browser: Any, scheme: str, width: int) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        self.context.set_default_timeout(PATIENT_S * 1000)
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self.page = self.context.new_page()
        self.page.on("console", lambda told: self.problems.append(told.text) if told.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def open_configured(self, link: str) -> None:
        """Open a link, and wait until the page knows what it may offer: before that, it has no buttons."""
        with self.page.expect_response(lambda response: response.url.endswith("/config")) as configured:
            self.page.goto(link)
        configured.value.finished()

    def wait(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()
