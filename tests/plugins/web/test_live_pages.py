"""Live pages: made once for all clients, and streamed as the fields that have changed."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from patience import PATIENT_S
from plugins.web import test_security
from plugins.web.test_security import JOB, OPTIONS, TOKEN, Fixed, Served, serving

import sluiceway_web._sampler as sampler
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.infos import ClusterInfo, FailureInfo, JobDescription, OptionInfo, StepInfo, VertexInfo
from sluiceway_web._page_cache import PageCache, PageFields

FAILED = FailureInfo(5, "words", 0, 0, "", "broken", "Traceback\n" + "a line of it\n" * 1000, 1, 0)


class Running(Fixed):
    """Monitor of one job with a vertex, an option and a failure; each reading has more records."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def cluster(self, *, figures: bool = False) -> ClusterInfo:
        self.read += 1
        task = SubtaskMetrics("words", 0, "running", records_in=self.read, busy_s=0.1 * self.read)
        told = {JOB.job: JobMetrics("words", "running", float(self.read), self.read, 0, (task,))}
        job = msgspec.structs.replace(JOB, failures=[FAILED])
        return ClusterInfo(1, 1, 1, 2, 1, 2, "shm", [job], [], told)

    def describe(self, job: str) -> JobDescription:
        vertex = VertexInfo(0, "words", "words", 1, 128, [StepInfo("words", "words", "source", False)], "default")
        return JobDescription(vertices=[vertex], options=[OptionInfo("seed", "7", False)])


@contextmanager
def stream(served: Served) -> Iterator[Iterator[dict[str, Any]]]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENT_S)
    connection.request("GET", "/live/job?job=words-1", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    try:
        lines = iter(answer.fp.readline, b"")
        yield (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))
    finally:
        answer.close()
        connection.close()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(test_security, "Fixed", Running)
    monkeypatch.setattr(sampler, "PERIOD_S", 0.01)  # each event is a reading of its own
    with serving(OPTIONS) as found:
        yield found


def test_later_events_have_what_has_changed(served: Served) -> None:
    with stream(served) as events:
        first, second, third = next(events), next(events), next(events)
    assert first["options"] == [{"name": "seed", "value": "7", "default": False}]
    assert first["failures"][0]["traceback"] == FAILED.traceback
    assert not {"options", "failures", "history", "edges"} & second.keys()
    assert second["vertices"][0]["records_in"] > first["vertices"][0]["records_in"]
    history = [*first["history"], *second["more_history"], *third["more_history"]]
    assert second["more_history"]
    assert third["more_history"]
    times = [point[0] for point in history]
    assert times == sorted(set(times)), "each point once, one vertex"


def test_the_history_goes_on_when_the_clock_is_set_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns
    with stream(served) as events:
        history = next(events)["history"]
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 3600 * 10**9)
        for _ in range(3):
            history += next(events)["more_history"]
    times = [point[0] for point in history]
    assert len(times) >= 4
    assert times == sorted(set(times))


def test_events_together_are_the_page(served: Served) -> None:
    with stream(served) as events:
        page = next(events) | next(events)
    status, _, body = served.ask("/live/job?job=words-1&once", Authorization=f"Bearer {TOKEN}")
    assert status == 200
    assert page.keys() - {"more_history"} == json.loads(body).keys()


def test_a_page_is_made_once_for_all_who_ask() -> None:
    made = 0

    async def make() -> dict[str, Any]:
        nonlocal made
        made += 1
        page = {"now": made, "history": [[1, 0]]}
        await asyncio.sleep(0)
        return page

    async def ask() -> None:
        cache = PageCache(lambda: 3600.0)
        pages = await asyncio.gather(*(cache.get("job", make) for _ in range(5)), cache.get("other", make))
        assert made == 2
        assert len({id(page) for page in pages[:5]}) == 1
        assert await cache.get("job", make) is pages[0]
        cache.clear()
        assert await cache.get("job", make) is not pages[0]
        assert json.loads(pages[0].whole()) == {"now": 1, "history": [[1, 0]]}

    asyncio.run(ask())


def test_an_error_is_for_all_who_wait_and_not_kept() -> None:
    async def fail() -> dict[str, Any]:
        await asyncio.sleep(0)
        raise LookupError("no job")

    async def answer() -> dict[str, Any]:
        return {"now": 1}

    async def ask() -> PageFields:
        cache = PageCache(lambda: 3600.0)
        found = await asyncio.gather(cache.get("job", fail), cache.get("job", fail), return_exceptions=True)
        assert [type(each) for each in found] == [LookupError, LookupError]
        return await cache.get("job", answer)

    assert asyncio.run(ask()).whole() == b'{"now":1}'
