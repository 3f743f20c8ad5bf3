"""State and dead letters of a job that runs, by the REST API: texts that another process has read."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from plugins.web.conftest import Page

from sluiceway.monitoring.state_view import DeadLetters, KeyState, StateSizes

PROGRAM = """
import sluiceway as sw
from sluiceway.connector.lib import DiscardSink


class Visit:
    def __init__(self, page):
        self.page = page


class Pages(sw.KeyedProcessFunction):
    def open(self, context):
        self._seen = context.get_list_state(sw.ListStateDescriptor("seen", str))
        self._last = context.get_state(sw.ValueStateDescriptor("last"))

    def process_element(self, value, ctx):
        self._seen.add(value[1])
        self._last.update(Visit(value[1]))
        yield value[1]


def visits(ended):
    for n in range(1000):
        yield "crawler" if n % 10 else "ann", f"/page/{n}"
    ended.wait()


def number(page):
    n = int(page.rpartition("/")[2])
    if n % 100 == 50:
        raise ValueError(f"no page {n}")
    return n


flow = sw.Pipeline("visits")
visited = flow.from_function(visits, blocking=True).uid("visits").key_by(lambda visit: visit[0])
pages = visited.process(Pages()).uid("pages")
pages.map(number).uid("number").name("number").on_error("skip").sink(DiscardSink())
"""
KEPT = ("--checkpoint-interval", "200ms", "--checkpoints", "kept", "--dead-letters", "letters")


@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.slow), "1"])
def test_state_and_dead_letters_of_a_job(show: Callable[..., Page], workers: str) -> None:
    page = show(PROGRAM, *KEPT, "--workers", workers)
    page.until("/jobs/visits", lambda job: job["vertices"][-1]["metrics"]["read-records"] == 1000)
    page.until("/jobs/visits/checkpoints", lambda told: told["latest"]["completed"])
    told = page.until("/jobs/visits/dead-letters", lambda told: told["total"] == 10)
    letters = msgspec.convert(told, DeadLetters)
    assert letters.steps == {"number": 10}
    assert letters.letters[0].error.startswith("ValueError: no page ")
    assert letters.letters[0].record.startswith("'/page/")
    assert page.get("/jobs/visits/dead-letters?step=other")["letters"] == []

    told = page.until("/jobs/visits/state", lambda told: told["states"] and told["states"][0]["size"] > 9_800)
    sizes = msgspec.convert(told, StateSizes)
    assert {(s.uid, s.state, s.kind, s.keys) for s in sizes.states} >= {
        ("pages", "seen", "list", 2),
        ("pages", "last", "value", 2),
    }
    assert sizes.states[0].largest_key == '"crawler"'

    path = "/jobs/visits/state/key?uid=pages&state=seen&key="
    found = msgspec.convert(page.get(path + "crawler"), KeyState)
    assert "/chk-" in found.place
    assert found.values[0].value.startswith('["/page/1", "/page/2"')
    assert found.values[0].shortened
    # The value of a class is not unpickled: its serializer and its size are told.
    last = page.get("/jobs/visits/state/key?uid=pages&state=last&key=ann")
    assert "pickle" in last["values"][0]["value"]

    refused = page.get(path + "bob", 404)
    assert "the key 'bob' has no state 'seen' in step 'pages'; others are " in refused["errors"][0]
    refused = page.get(path + "ann&live=true", 404)
    assert "this is one job and no cluster" in refused["errors"][0]
    assert page.get("/jobs/visits/state/key?uid=pages", 400)["errors"] == ["The query needs state"]
    assert "limit is a number" in page.get("/jobs/visits/dead-letters?limit=0", 400)["errors"][0]
    page.end()


IN_COLUMNS = """
import pyarrow as pa

import sluiceway as sw
from sluiceway.connector.lib import DiscardSink
from sluiceway.table import agg


def visits(ended):
    for n in range(1000):
        yield {"user": "crawler" if n % 10 else "ann", "size": n}
    ended.wait()


flow = sw.Pipeline("sums")
schema = pa.schema([("user", pa.string()), ("size", pa.int64())])
rows = flow.from_function(visits, blocking=True).to_columns(schema)
rows.key_by("user").running(total=agg.sum("size")).uid("sums").sink(DiscardSink())
"""


def test_state_in_columns_is_told_by_key(show: Callable[..., Page]) -> None:
    page = show(IN_COLUMNS, *KEPT)
    page.until("/jobs/sums/checkpoints", lambda told: told["latest"]["completed"])
    told = page.until("/jobs/sums/state", lambda told: any(s["keys"] == 2 for s in told["states"]))
    found = {(s.uid, s.state, s.kind) for s in msgspec.convert(told, StateSizes).states}
    assert found >= {("sums", "slices in columns", "aggregates"), ("sums", "progress in columns", "progress")}
    path = "/jobs/sums/state/key?uid=sums&state=slices%20in%20columns&key="
    value = page.until(path + "ann", lambda told: '"total": 49500' in told["values"][0]["value"])["values"][0]
    assert value["kind"] == "aggregates"
    assert "the key 'bob' has no state" in page.get(path + "bob", 404)["errors"][0]
    page.end()


def test_what_a_job_does_not_keep_is_refused(show: Callable[..., Page]) -> None:
    page = show(PROGRAM)
    page.until("/jobs/visits", lambda job: job["vertices"])
    assert page.get("/jobs/visits/dead-letters", 404)["errors"] == [
        "Job visits keeps no dead letters: it has no option dead-letters"
    ]
    assert "keeps no checkpoints in files" in page.get("/jobs/visits/state", 404)["errors"][0]
    page.end()
