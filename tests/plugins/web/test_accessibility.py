"""The pages for everybody: axe, in light and dark; by keyboard alone; behind a proxy, below a path."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from plugins.web.browser import Tab
from plugins.web.conftest import Page, runs

# Event time, metrics of functions, late records, and one failure: every page has something to show.
PROGRAM = """
import os
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.windows import TumblingEventTimeWindows

def numbers(ended):
    now = 1_700_000_000_000
    yield from ((n, now + n % 50_000 * 1000) for n in range(100_000))
    ended.wait()

def once(pair):
    if pair[0] == 900 and not os.path.exists("failed"):
        open("failed", "w").close()
        raise ValueError("the first time")
    return pair

strategy = sw.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair: pair[1])
flow = sw.Pipeline("numbers")
pairs = flow.from_function(numbers, blocking=True, watermark_strategy=strategy).uid("numbers")
pairs = pairs.rebalance().map(once).uid("once").key_by(lambda p: p[0] % 10)
pairs.window(TumblingEventTimeWindows("10s")).count().uid("count").sink(DiscardSink())
"""
_OPTIONS = ("--restart", "fixed-delay:3:100ms", "--checkpoint-interval", "200ms", "--checkpoints", "kept")

_FOCUSABLE = "a[href], button:not([disabled]), input, select, summary, [tabindex='0']"
# Elements of a page that runs come and go while it is walked through: later walks reach those of the earlier ones.
_MOST_WALKS = 10


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with runs(tmp_path_factory.mktemp("web")) as show:
        page = show(PROGRAM, *_OPTIONS)
        page.until("/jobs/numbers/exceptions", lambda told: told["exceptionHistory"]["entries"])
        page.until("/jobs/numbers/checkpoints", lambda told: told["latest"]["completed"])
        yield page
        page.end()


def places(page: Any) -> list[str]:
    """The fragments of all pages of the job and of its process."""
    tabs = page.locator("nav.tabs a")
    tabs.first.wait_for()
    found = [tabs.nth(i).get_attribute("href") for i in range(tabs.count())]
    assert len(found) >= 8
    cluster = [f"#/cluster{tab}" for tab in ("", "/logs", "/threads/jobmanager", "/configuration")]
    return ["#/", *found, "#/job/numbers/task/0", *cluster]


def open_tab(chromium: Any, link: str, scheme: str = "light") -> Any:
    tab = Tab(chromium, scheme, 1280)
    tab.page.goto(link)
    tab.page.get_by_role("link", name="numbers").click()
    return tab


_GO = """place => new Promise(done => {
    if (window.location.hash === place) return done();
    window.addEventListener("hashchange", () => setTimeout(done), { once: true });
    window.location.hash = place;
})"""


def go(page: Any, place: str) -> None:
    # The page that is left has a heading, too: it is rendered anew when the event has been handled.
    page.evaluate(_GO, place)
    page.locator("main h1").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(running: Page, chromium: Any, scheme: str) -> None:
    axe_of = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="not installed: axe-playwright-python"
    )
    axe = axe_of.Axe()
    tab = open_tab(chromium, running.link, scheme)
    # What does not depend on colours was found in light.
    options = {} if scheme == "light" else {"runOnly": ["color-contrast"]}
    found = []
    for place in places(tab.page):
        go(tab.page, place)
        for violation in axe.run(tab.page, options=options).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                found += [(place, violation["id"], node["html"][:200]) for node in violation["nodes"]]
    assert found == []
    tab.context.close()


def unreached(page: Any) -> list[str]:
    """Return what can have the focus, but has had it in no walk."""
    found: list[str] = page.evaluate(
        f"""[...document.querySelectorAll("{_FOCUSABLE}")]
        .filter(e => e.getClientRects().length && !window.reached.has(e)).map(e => e.outerHTML.slice(0, 200))"""
    )
    return found


def walk_by_tab(page: Any) -> None:
    """Press Tab until the focus leaves the page. Each element that has it shows that."""
    page.evaluate("document.activeElement.blur()")
    for _ in range(page.locator(_FOCUSABLE).count() + 5):
        page.keyboard.press("Tab")
        shown = page.evaluate(
            "(() => { const e = document.activeElement; if (e === document.body) return null;"
            " window.reached.add(e);"
            " return getComputedStyle(e).outlineStyle !== 'none' || e.closest('svg') !== null; })()"
        )
        if shown is None:
            break
        assert shown, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")


def test_everything_can_be_reached_with_the_keyboard(running: Page, chromium: Any) -> None:
    tab = open_tab(chromium, running.link)
    page = tab.page
    page.evaluate("window.reached = new WeakSet()")
    for place in places(page)[:4]:
        go(page, place)
        for _ in range(_MOST_WALKS):
            walk_by_tab(page)
            if not (left := unreached(page)):
                break
        assert left == [], place
    tab.context.close()


@contextmanager
def proxy(port: int, prefix: str, strips: bool) -> Iterator[tuple[str, list[str]]]:
    """A reverse proxy that offers a server below a path. Gives its address, and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            path = self.path.removeprefix(prefix) if strips else self.path
            length = int(self.headers.get("content-length", 0))
            body = self.rfile.read(length)
            upstream = http.client.HTTPConnection("127.0.0.1", port)
            headers = {n: v for n, v in self.headers.items() if n.lower() not in ("host", "connection")}
            try:
                upstream.request(self.command, path or "/", body, headers | {"Host": "inside.example"})
                answer = upstream.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while part := answer.read1(65_536):
                    self.wfile.write(part)
                    self.wfile.flush()
            except OSError:
                pass  # the browser, or the server, is gone
            finally:
                upstream.close()

        do_PATCH = do_POST = do_GET

        def log_message(self, *told: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_behind_a_proxy_below_a_path(show: Callable[..., Page], chromium: Any, tmp_path: Path) -> None:
    root = "/tools/jobs"
    (tmp_path / "failed").touch()  # a job that restarts takes no checkpoint
    web = show(PROGRAM, *_OPTIONS, "--web-root-path", root, "--web-behind-proxy")
    for strips in (True, False):
        with proxy(web.port, root, strips) as (address, asked):
            tab = open_tab(chromium, f"http://{address}{root}/?token={web.token}")
            tab.wait("records in")
            tab.page.get_by_role("link", name="Flame graph", exact=True).click()
            tab.page.get_by_role("button", name="Take checkpoint").click()
            tab.wait("is complete.")
            assert tab.problems == []
            assert tab.hosts == {address}
            assert any(path.startswith(f"{root}/live/") for path in asked)  # the stream goes through it, too
            assert [path for path in asked if not path.startswith(f"{root}/")] == []
            tab.context.close()
    web.end()
