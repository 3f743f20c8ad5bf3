"""Flame graphs of the REST API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plugins.web.conftest import Page

PROGRAM = """
import time
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink

def nap(value):
    time.sleep(0.002)
    return value

def burn(value):
    sum(range(50_000))
    return value

flow = sw.Pipeline("planted", parallelism=2)
numbers = flow.generate().uid("numbers")
numbers.rebalance().map(burn).uid("burn").rebalance().map(nap).uid("nap").sink(DiscardSink()).uid("end")
"""


def functions(node: Any) -> set[str]:
    found, nodes = set(), [node]
    while nodes:
        at = nodes.pop()
        found.add(at["name"].partition(" (")[0])
        nodes += at["children"]
    return found


@pytest.mark.parametrize("arguments", [(), ("--workers", "1")])
def test_functions_of_a_job_and_its_tasks(show: Callable[..., Page], arguments: tuple[str, ...]) -> None:
    web = show(PROGRAM, *arguments)
    ids = {v["name"].partition("(")[2].partition(")")[0]: v["id"] for v in web.get("/jobs/planted")["vertices"]}
    path = f"/jobs/planted/vertices/{ids['nap']}/flamegraph"
    napping = web.until(path, lambda told: told.get("data") and "nap" in functions(told["data"]))
    assert napping["data"]["name"] == "root"
    assert napping["endTimestamp"] > 1_700_000_000_000
    assert "burn" not in functions(napping["data"])
    off = web.until(path + "?type=OFF_CPU", lambda told: told.get("data") and told["data"]["value"])
    on = web.get(path + "?type=on_cpu")
    assert off["data"]["value"] > on["data"]["value"]
    whole = web.until("/jobs/planted/flamegraph", lambda told: "burn" in functions(told["data"]))
    assert whole["data"]["value"] >= napping["data"]["value"]
    # Of all samples, as those of the last minute change from one request to the next.
    first = web.get(path + "?subtaskindex=0&from=0")
    second = web.get(path + "?subtaskindex=1&from=0")
    assert functions(first["data"]) | functions(second["data"]) <= functions(web.get(path + "?from=0")["data"])
    assert web.get(f"{path}?from=1000&to=2000") == {}, "nothing was sampled then"
    for wrong, status in (("type=other", 400), ("subtaskindex=x", 400), ("subtaskindex=2", 404), ("from=-1", 400)):
        web.get(f"{path}?{wrong}", status)
    web.get("/jobs/other/flamegraph", 404)
    web.end()
