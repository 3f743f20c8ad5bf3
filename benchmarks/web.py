"""Cost of the web interface for a running job, and time of its server to list many jobs.

Throughput is that of one endless job in this process: intervals with a page open, or with samples of the stacks
taken, and intervals without, in the order without, with, with, without, so that a drift of the machine is in both.
A page is a client that reads the stream of live figures of the page of a job; a browser is not measured. The list
of jobs is asked for over HTTP, of a server over the status of a cluster as it comes from a job manager.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

import sluiceway as sw
from benchmarks.harness import Plan, Row
from sluiceway.api.handle import JobHandle
from sluiceway.cli.web_interface import web_interface
from sluiceway.connector.lib import DiscardSink
from sluiceway.metrics import JobMetrics, SubtaskMetrics
from sluiceway.monitoring.infos import CheckpointInfo, ClusterInfo, JobDescription, JobInfo, RescaleInfo
from sluiceway.monitoring.key_samples import KeySample
from sluiceway.monitoring.monitor import Monitor
from sluiceway.monitoring.stack_samples import StackSamples
from sluiceway.monitoring.web_server import WebOptions
from sluiceway.runtime.messages.clients import Status
from sluiceway.runtime.messages.protocol import decode, encode

__all__ = ["measure"]

JOBS, TASKS, PARALLELISM = 100, 30, 8
RATE = 50.0
INTERVAL_S = 3.0
TOKEN = "a-token-of-the-benchmark"
_NEW_READING_S = 1.2
"""Longer than the age of a reading that the server answers with again."""

_READER = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
connection.request("GET", "/live/job?job=measured", headers={"Authorization": "Bearer " + sys.argv[2]})
answer = connection.getresponse()
assert answer.status == 200, answer.status
while answer.fp.readline():
    print("read", flush=True)
"""

Observed = Callable[[JobHandle, float], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Interval:
    """Records in an interval, by second and by second of processor time of the job's process."""

    per_s: float
    per_cpu_s: float


def measure(plan: Plan) -> Iterator[Row]:
    with_page = "throughput with the page of the job open"
    with_samples = f"throughput while stacks are sampled at {RATE:.0f} Hz"
    titles = (with_page, f"{with_page}, by processor time", with_samples, f"{with_samples}, by processor time")
    overview = f"/jobs/overview of {JOBS} jobs of {TASKS} tasks"
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        for title in titles:
            yield Row(title, "x speed", (), note="the extra web is not installed")
        yield Row(overview, "ms", (), note="the extra web is not installed")
        return
    yield from asyncio.run(_throughput(plan, titles[:2], _page, 0.99, "no web interface"))
    yield from asyncio.run(_throughput(plan, titles[2:], _samples, 0.97, "no samples"))
    yield from _overview(plan, overview)


# ---- throughput -------------------------------------------------------------------------------------------------


def _job() -> sw.Pipeline:
    flow = sw.Pipeline("measured")
    pairs = flow.generate().map(lambda n: (n % 1_000, n)).filter(lambda pair: pair[1] >= 0)
    pairs.key_by(lambda pair: pair[0]).count().sink(DiscardSink())
    return flow


async def _throughput(
    plan: Plan, titles: tuple[str, ...], observed: Observed, aim: float, against: str
) -> list[Row]:
    seconds = 0.2 if plan.quick else INTERVAL_S
    walls, cpus, speeds = [], [], []
    async with await _job().start() as handle:
        await _interval(handle, seconds)
        for _ in range(plan.runs):
            without = [await _interval(handle, seconds)]
            seen = []
            for _ in range(2):
                async with observed(handle, seconds):
                    seen.append(await _interval(handle, seconds))
            without.append(await _interval(handle, seconds))
            walls.append(sum(i.per_s for i in seen) / sum(i.per_s for i in without))
            cpus.append(sum(i.per_cpu_s for i in seen) / sum(i.per_cpu_s for i in without))
            speeds += [i.per_s for i in without]
        handle.cancel()
        await handle.result()
    note = f"{statistics.median(speeds):,.0f} records/s without; intervals of {seconds:g} s"
    return [
        Row(title, "x speed", tuple(values), aim=aim, note=note, against=against)
        for title, values in zip(titles, (walls, cpus), strict=True)
    ]


async def _interval(handle: JobHandle, seconds: float) -> _Interval:
    records, wall, cpu = handle.metrics().records_in, time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    done = handle.metrics().records_in - records
    return _Interval(done / (time.perf_counter() - wall), done / (time.process_time() - cpu))


@asynccontextmanager
async def _page(handle: JobHandle, seconds: float) -> AsyncIterator[None]:
    """Have a page open: its server, and a client in a process of its own, which reads what a page reads."""
    links: list[str] = []
    options = WebOptions(port=0, token=TOKEN)
    with web_interface(handle._job, "measured", options, links.append):
        command = [sys.executable, "-c", _READER, urlsplit(links[0]).netloc, TOKEN]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            if not await asyncio.to_thread(reader.stdout.readline):
                raise RuntimeError("the stream of live figures was not answered")
            draining = asyncio.create_task(asyncio.to_thread(reader.stdout.read))
            try:
                yield
            finally:
                reader.terminate()
                await draining


@asynccontextmanager
async def _samples(handle: JobHandle, seconds: float) -> AsyncIterator[None]:
    """Have samples taken, for as long as an interval and until they are returned."""
    sampling = asyncio.create_task(handle.sample_stacks(seconds, RATE))
    await asyncio.sleep(0)
    yield
    await sampling


# ---- the list of many jobs --------------------------------------------------------------------------------------


class _Crowded(Monitor):
    """Cluster with many jobs, whose status comes as the bytes of a message, as from a job manager."""

    def __init__(self, jobs: int, tasks: int) -> None:
        subtasks = tasks * PARALLELISM
        names = [f"job-{number}" for number in range(jobs)]
        infos = [JobInfo(name, name, "running", 1, 0, 1, 5, 5, "", 0, [], {"running": subtasks}) for name in names]
        told = Status(1, os.getpid(), 1, 1, 800, 0, 8, "shm", infos, [])
        self._short = encode(told)
        figures = {name: _metrics(name, tasks) for name in names}
        self._long = encode(Status(1, os.getpid(), 1, 1, 800, 0, 8, "shm", infos, [], figures))

    def cluster(self, *, figures: bool = False) -> ClusterInfo:
        told = decode(self._long if figures else self._short)
        assert isinstance(told, Status)
        return ClusterInfo(1, 1, 1, told.slots, 0, 8, "shm", told.jobs, [], told.figures)

    def describe(self, job: str) -> JobDescription:
        return JobDescription()

    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        return []

    def sample_stacks(self, job: str, seconds: float, rate: float) -> list[StackSamples]:
        return []

    def sample_keys(self, job: str, vertices: list[int], seconds: float) -> list[KeySample]:
        return []

    def cancel(self, job: str) -> None:
        raise NotImplementedError

    def stop(self, job: str) -> None:
        raise NotImplementedError

    def checkpoint(self, job: str) -> int:
        raise NotImplementedError

    def savepoint(self, job: str, place: str = "", *, stop: bool = False) -> str:
        raise NotImplementedError

    def rescale(
        self, job: str, parallelism: int | None, steps: Mapping[str, int], *, wait: bool = True
    ) -> RescaleInfo:
        raise NotImplementedError


def _metrics(job: str, tasks: int) -> JobMetrics:
    subtasks = tuple(
        SubtaskMetrics(f"task {task}", subtask, "running", records_in=5, records_out=5, vertex_id=task, busy_s=1.0)
        for task in range(tasks)
        for subtask in range(PARALLELISM)
    )
    return JobMetrics(job, "running", 2.0, 5, 5, subtasks)


def _overview(plan: Plan, title: str) -> list[Row]:
    from sluiceway_web._server import UvicornServer

    jobs = plan.size(JOBS, 3)
    server = UvicornServer()
    port = urlsplit(server.open(_Crowded(jobs, plan.size(TASKS, 2)), WebOptions(port=0, token=TOKEN))).port
    thread = threading.Thread(target=server.serve)
    thread.start()
    walls, cpus = [], []
    try:
        for _ in range(plan.runs + 1):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            wall, cpu = time.perf_counter(), time.process_time()
            connection.request("GET", "/jobs/overview", headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            body = answer.read()
            walls.append(1e3 * (time.perf_counter() - wall))
            cpus.append(1e3 * (time.process_time() - cpu))
            connection.close()
            if answer.status != 200 or body.count(b'"jid"') != jobs:
                raise RuntimeError(f"/jobs/overview was answered with {answer.status}: {body[:200]!r}")
            time.sleep(_NEW_READING_S)
    finally:
        server.stop()
        thread.join()
    note = f"parallelism {PARALLELISM}; each a new reading; the first request took {walls[0]:.0f} ms"
    return [
        Row(title, "ms", tuple(walls[1:]), aim=100, note=note),
        Row(f"{title}, processor time", "ms", tuple(cpus[1:]), aim=100, note="of server and client together"),
    ]
