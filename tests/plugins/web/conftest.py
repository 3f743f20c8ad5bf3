"""A pipeline that runs with ``--web``, and a client of its REST API."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from patience import PATIENT_S
from plugins.web.browser import Tab, browser

pytest.importorskip("starlette", reason='not installed: pip install "sluiceway[web]"')
pytest.importorskip("uvicorn", reason='not installed: pip install "sluiceway[web]"')


_STARTED = {"show", "cluster", "running", "chromium"}
"""Fixtures that start a job, a cluster or a browser."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of running jobs and clusters; those of a server without one are tests like others."""
    if _STARTED.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.web)


class Page:
    """Client of the web interface.

    Args:
        link: with the token.
        process: the run.
    """

    def __init__(self, link: str, process: subprocess.Popen[str]) -> None:
        parts = urlsplit(link)
        self.link = link
        self.host, self.port = parts.hostname or "", parts.port or 0
        self.token = parts.query.removeprefix("token=")
        self.process = process

    def request(
        self, method: str, path: str, body: bytes | None = None, token: bool = True, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            named["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str, status: int = 200) -> Any:
        found, _, body = self.request("GET", path)
        assert found == status, body
        return json.loads(body)

    def until(self, path: str, holds: Callable[[Any], object]) -> Any:
        """Ask until the answer is as wanted."""
        end = time.monotonic() + 2 * PATIENT_S
        while True:
            answer = self.get(path)
            if holds(answer):
                return answer
            assert time.monotonic() < end, answer
            time.sleep(0.1)  # polls

    def end(self) -> str:
        """Cancel the job as Ctrl-C does, and return what the run has written to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=2 * PATIENT_S)[1]


@contextmanager
def runs(place: Path) -> Iterator[Callable[..., Page]]:
    """Give a function that runs a program with ``--web`` in a directory, and end what it has started."""
    started: list[Page] = []

    def begin(program: str, *options: str) -> Page:
        (place / "flow.py").write_text(program)
        command = [sys.executable, "-m", "sluiceway", "run", "--web", "--web-address", "0", *options, "flow.py"]
        process = subprocess.Popen(
            command,
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SLUICEWAY_HOME": str(place / "home")},
        )
        assert process.stderr is not None
        said, link = "", None
        while link is None:
            line = process.stderr.readline()
            if not line:
                pytest.fail(said)  # it has ended, or will never write a link
            said += line
            link = re.search(r"http://\S+", line)
        started.append(Page(link[0], process))
        return started[-1]

    try:
        yield begin
    finally:
        for page in started:
            page.process.kill() if page.process.poll() is None else None
            page.process.communicate()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Headless Chromium.

    No longer than a module: as long as it runs, this process has an event loop that other tests would stumble on.
    """
    with browser() as found:
        yield found


@pytest.fixture
def tab(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """A tab, of the scheme and width of its parameter."""
    found = Tab(chromium, *getattr(request, "param", ("light", 1280)))
    yield found
    found.context.close()


@pytest.fixture
def show(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Run a program with ``--web``."""
    with runs(tmp_path) as begin:
        yield begin
