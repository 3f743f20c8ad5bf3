"""``python docs/screenshot.py``: draws the pictures of the web interface, from a job that runs. Needs Chromium."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ASSETS = Path(__file__).parent / "assets"
NAME = "web-{}.png"
SIZE = {"width": 1290, "height": 690}

PROGRAM = """
import random
import time

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink, GeneratorSource
from sluiceway.windows import TumblingEventTimeWindows

ITEMS = ("tea", "coffee", "cocoa", "water", "juice", "milk")


def order(number):
    dice = random.Random(number)
    return {"item": dice.choice(ITEMS), "amount": dice.randrange(1, 9), "at": int(time.time() * 1000)}


def valid(order):
    return order["amount"] > 0


def add_price(order):
    time.sleep(0.002)  # asks another system
    return order | {"price": 3 * order["amount"]}


def item(order):
    return order["item"]


def time_of(order):
    return order["at"]


def add(one, other):
    return one | {"price": one["price"] + other["price"]}


strategy = sw.WatermarkStrategy.for_bounded_out_of_orderness("1s").with_timestamp_assigner(time_of)
flow = sw.Pipeline("orders")
orders = flow.source(GeneratorSource(order), watermark_strategy=strategy).name("orders")
priced = orders.rebalance().filter(valid).name("valid").rebalance().map(add_price).name("add price")
totals = priced.key_by(item).window(TumblingEventTimeWindows.of("5s")).reduce(add).name("totals")
totals.sink(DiscardSink()).name("warehouse")
"""


def main() -> None:
    """Run the job, and take a picture of its page in light and in dark."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as place:
        Path(place, "orders.py").write_text(PROGRAM)
        options = [
            "--workers",
            "3",
            "--parallelism",
            "2",
            "--checkpoints",
            "kept",
            "--checkpoint-interval",
            "5s",
            "--checkpoint-unaligned",
        ]
        job = subprocess.Popen(
            [sys.executable, "-m", "sluiceway", "run", "--web", "--web-address", "0", *options, "orders.py"],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SLUICEWAY_HOME": f"{place}/home"},
        )
        try:
            assert job.stderr is not None
            link = re.search(r"http://\S+", job.stderr.readline())
            assert link is not None, job.stderr.read()
            with sync_playwright() as driver:
                chromium = driver.chromium.launch(
                    executable_path=browser, args=["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]
                )
                pages = {scheme: _open(chromium, scheme, link[0]) for scheme in ("light", "dark")}
                for scheme, page in pages.items():
                    page.screenshot(path=ASSETS / NAME.format(scheme))
                chromium.close()
        finally:
            job.send_signal(signal.SIGINT)
            job.communicate()


def _open(chromium: Any, scheme: str, link: str) -> Any:
    """Open the page of the job, and wait until it says what limits the job."""
    page = chromium.new_context(color_scheme=scheme, viewport=SIZE).new_page()
    page.set_default_timeout(60_000)
    page.goto(link)
    page.get_by_role("link", name="orders").click()
    page.get_by_text("Slow because").first.wait_for()
    page.wait_for_timeout(8_000)  # the rates of the first second are those of a start
    return page


if __name__ == "__main__":
    main()
