"""Cost of the web interface for a running job, and time of its server to list many jobs.

Throughput is that of one endless job in this process. Intervals with a page open, or with samples of the stacks
taken, and intervals without come in pairs, in changing order, and each is compared with its neighbour, so that a
drift of the machine is in both. Beside it there are the processor times of the threads of
the job's process that answer the web server and that take samples, and of the web server: they are small, and
steady where throughput is noisy. They are the least that is lost; hand-overs of the interpreter come on top.
A page is a client that reads the stream of live figures of the page of a job; a browser is not measured. The list
of jobs is asked for over HTTP, of a server over the status of a cluster as it comes from a job manager.
"""

from __future__ import annotations

import asyncio
import http.client
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
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
from sluiceway.util.overriding import override

__all__ = ["measure"]

JOBS, TASKS, PARALLELISM = 100, 30, 8
RATE = 50.0
INTERVAL_S = 2.0
PAIRS = 4
"""Half of the pairs of a run."""
TOKEN = "a-token-of-the-benchmark"
_NEW_READING_S = 1.2
"""Longer than the age of a reading that the server answers with again."""
_END_S = 0.5
"""Time by which samples are taken longer than an interval: their thread has a clock while it is alive."""

_READER = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], timeout=60)
connection.request("GET", "/live/job?job=measured", headers={"Authorization": "Bearer " + sys.argv[2]})
answer = connection.getresponse()
assert answer.status == 200, answer.status
while answer.fp.readline():
    print("read", flush=True)
"""

Observed = Callable[[JobHandle, float], AbstractAsyncContextManager["Watch"]]


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
    seconds = 0.3 if plan.quick else INTERVAL_S
    walls, cpus, speeds = [], [], []
    costs: list[Row] = []
    async with await _job().start() as handle:
        async with observed(handle, seconds) as watch:
            await _interval(handle, seconds)
            for _ in range(plan.runs):
                pairs = [
                    await _pair(handle, watch, seconds, first) for first in (False, True) * plan.size(PAIRS, 1)
                ]
                walls.append(_ratio([(seen.per_s, without.per_s) for seen, without in pairs]))
                cpus.append(_ratio([(seen.per_cpu_s, without.per_cpu_s) for seen, without in pairs]))
                speeds += [without.per_s for _, without in pairs]
            costs = watch.costs()
        handle.cancel()
        await handle.result()
    pairs_of = f"means of {2 * plan.size(PAIRS, 1)} pairs of {seconds:g} s"
    note = f"{statistics.median(speeds):,.0f} records/s without; {pairs_of}"
    rows = [
        Row(title, "x speed", tuple(values), aim=aim, note=note, against=against)
        for title, values in zip(titles, (walls, cpus), strict=True)
    ]
    return rows + costs


async def _pair(handle: JobHandle, watch: Watch, seconds: float, first: bool) -> tuple[_Interval, _Interval]:
    """Return an interval that is observed and one beside it that is not; ``first`` says which comes first."""
    found: dict[bool, _Interval] = {}
    for seen in (first, not first):
        await watch.turn(seen)
        found[seen] = await _interval(handle, seconds)
    await watch.turn(False)
    return found[True], found[False]


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the geometric mean of ratios, without the lowest and the highest quarter.

    Neighbours are compared, so a drift of the machine cancels out; a burst of other work makes an outlier.
    """
    logs = sorted(math.log(seen / without) for seen, without in pairs)
    cut = len(logs) // 4
    return math.exp(statistics.fmean(logs[cut : len(logs) - cut]))


async def _interval(handle: JobHandle, seconds: float) -> _Interval:
    records, wall, cpu = handle.metrics().records_in, time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    done = handle.metrics().records_in - records
    return _Interval(done / (time.perf_counter() - wall), done / (time.process_time() - cpu))


class Watch:
    """Observer of a job that can be turned on and off."""

    async def turn(self, on: bool) -> None:
        raise NotImplementedError

    def costs(self) -> list[Row]:
        """Return the processor time of parts of the observer, in ms per second."""
        raise NotImplementedError


class _PageWatch(Watch):
    """Page that is open: while it is off, the process of its server is stopped by a signal, and so asks nothing.

    Its start would cost more than what it does later.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._on = True
        self._since = time.perf_counter()
        self._began = self._cpu_s()
        self._on_s = 0.0

    @override
    async def turn(self, on: bool) -> None:
        if on != self._on:
            os.kill(self._pid, signal.SIGCONT if on else signal.SIGSTOP)
            now = time.perf_counter()
            self._on_s += now - self._since if self._on else 0.0
            self._on, self._since = on, now

    def _cpu_s(self) -> tuple[float, float]:
        """Return the processor time of the job's thread that answers, and of the web process."""
        server = next(t for t in threading.enumerate() if t.name == "sluiceway-job-server")
        assert server.ident is not None
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        answering = time.clock_gettime(time.pthread_getcpuclockid(server.ident))
        return answering, ticks / os.sysconf("SC_CLK_TCK")

    @override
    def costs(self) -> list[Row]:
        names = {
            "processor time of the job's process for the page of the job": 10.0,
            "processor time of the web process": None,
        }
        return [
            Row(name, "ms/s", (1e3 * (end - began) / self._on_s,), aim=aim, note="while a page is open")
            for (name, aim), began, end in zip(names.items(), self._began, self._cpu_s(), strict=True)
        ]


@asynccontextmanager
async def _page(handle: JobHandle, seconds: float) -> AsyncIterator[Watch]:
    """Have a page open: its server, and a client in a process of its own, which reads what a page reads."""
    links: list[str] = []
    options = WebOptions(port=0, token=TOKEN)
    before = _children()
    with web_interface(handle._job, "measured", options, links.append):
        (pid,) = _children() - before
        command = [sys.executable, "-c", _READER, urlsplit(links[0]).netloc, TOKEN]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            if not await asyncio.to_thread(reader.stdout.readline):
                raise RuntimeError("the stream of live figures was not answered")
            draining = asyncio.create_task(asyncio.to_thread(reader.stdout.read))
            watch = _PageWatch(pid)
            try:
                yield watch
            finally:
                await watch.turn(True)
                reader.terminate()
                await draining


def _children() -> set[int]:
    return set(map(int, Path("/proc/thread-self/children").read_text().split()))


class _SamplesWatch(Watch):
    """Samples of the stacks, taken for as long as an interval and until they are returned."""

    def __init__(self, handle: JobHandle, seconds: float) -> None:
        self._handle = handle
        self._seconds = seconds
        self._sampling: asyncio.Task[list[StackSamples]] | None = None
        self._began = 0.0
        self._on_s = 0.0
        self._cpu_s = 0.0

    @override
    async def turn(self, on: bool) -> None:
        if self._sampling is not None:
            sampling, self._sampling = self._sampling, None
            self._read_clock()
            await sampling
        if on:
            self._sampling = asyncio.create_task(self._handle.sample_stacks(self._seconds + _END_S, RATE))
            self._began = time.perf_counter()
            await asyncio.sleep(0)

    def _read_clock(self) -> None:
        """Add the processor time of the thread that takes samples; it has a clock while it is alive."""
        thread = next((t for t in threading.enumerate() if t.name == "sluiceway-stack-sampler"), None)
        if thread is not None and thread.native_id is not None:
            # MAKE_THREAD_CPUCLOCK of the kernel: unlike pthread_getcpuclockid safe for a thread that has ended.
            with suppress(OSError):
                self._cpu_s += time.clock_gettime(~thread.native_id << 3 | 6)
                self._on_s += time.perf_counter() - self._began

    @override
    def costs(self) -> list[Row]:
        name, note = "processor time of the thread that takes samples", "while samples are taken"
        values = (1e3 * self._cpu_s / self._on_s,) if self._on_s else ()
        return [Row(name, "ms/s", values, aim=30, note=note)]


@asynccontextmanager
async def _samples(handle: JobHandle, seconds: float) -> AsyncIterator[Watch]:
    yield _SamplesWatch(handle, seconds)


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
