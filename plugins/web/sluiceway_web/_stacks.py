"""Flame graphs: stacks of jobs, sampled for as long as somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, cast

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.stack_samples import FlameNode, Kind, StackSamples, flame_graph
from sluiceway_web import _answers as a
from sluiceway_web._context import get, job_request, vertex_request
from sluiceway_web._errors import RequestError
from sluiceway_web._sampler import Sampler
from sluiceway_web._shapes import now_ms

__all__ = ["StackRecorder", "routes"]

WINDOW_S: Final = 2.0
"""Seconds of one request for samples."""
KEPT: Final = 150
"""Windows that are kept of a job: five minutes."""
_RATE: Final = 50.0
_WATCHED_S: Final = 10.0
_MOST_JOBS: Final = 4
_PATIENCE: Final = 3
"""Failed requests in a row after which clients are told: a job that restarts has no stacks for a moment."""
_PAUSE_S: Final = 0.5
_USUAL_MS: Final = 60_000
_MOST_NODES: Final = 20_000


class _Recording:
    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.windows: deque[list[StackSamples]] = deque(maxlen=KEPT)
        self.problems: list[RequestError] = []
        self.task: asyncio.Task[None] | None = None


class StackRecorder:
    """Recorder of the stacks of jobs whose flame graphs are requested, until ten seconds after the last request.

    In the event loop's thread.

    Args:
        sampler: gives access to the cluster.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._recordings: dict[str, _Recording] = {}

    def samples(self, job: str, since_ms: int, until_ms: int) -> list[StackSamples]:
        """Return the samples of a job in a time, as far as they are there, and have more taken.

        Raises:
            RequestError: the job gives no samples, or too many jobs are sampled.
        """
        recording = self._recordings.get(job)
        if recording is None:
            self._make_room()
            recording = self._recordings[job] = _Recording()
        recording.asked = time.monotonic()
        if recording.task is None or recording.task.done():
            recording.task = asyncio.create_task(self._record(job, recording))
        if len(recording.problems) >= _PATIENCE:
            raise recording.problems[-1]
        return [
            samples
            for window in recording.windows
            for samples in window
            if samples.ended_ms > since_ms and samples.began_ms < until_ms
        ]

    async def close(self) -> None:
        """End all recordings."""
        tasks = [recording.task for recording in self._recordings.values() if recording.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _record(self, job: str, recording: _Recording) -> None:
        monitor = self._sampler.monitor
        while time.monotonic() - recording.asked < _WATCHED_S:
            try:
                window = await self._sampler.ask(lambda: monitor.sample_stacks(job, WINDOW_S, _RATE))
            except RequestError as error:
                recording.problems = [*recording.problems, error][-_PATIENCE:]
                await asyncio.sleep(_PAUSE_S)
            else:
                recording.problems.clear()
                recording.windows.append(window)

    def _make_room(self) -> None:
        if len(self._recordings) < _MOST_JOBS:
            return
        for job, recording in sorted(self._recordings.items(), key=lambda item: item[1].asked):
            if recording.task is None or recording.task.done():
                del self._recordings[job]
                return
        raise RequestError(503, f"Stacks of {_MOST_JOBS} jobs are sampled already: close another flame graph")


def _number(request: Request, name: str, usual: int | None) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return usual
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise RequestError(400, f"{name} is a number, not {text[:50]!r}")
    return int(text)


def _answer(request: Request, job: str, vertex: int | None, subtask: int | None) -> a.FlameGraph:
    asked = request.query_params.get("type", "full").lower()
    if asked not in ("full", "on_cpu", "off_cpu"):
        raise RequestError(400, f"type is full, on_cpu or off_cpu, not {asked[:50]!r}")
    now = now_ms()
    until = _number(request, "to", now) or now
    since = _number(request, "from", until - _USUAL_MS) or 0
    recorder: StackRecorder = request.app.state.stacks
    processes = recorder.samples(job, since, until)
    if not processes:
        return a.FlameGraph()
    tree = flame_graph(processes, cast("Kind", asked), vertex, subtask)
    _prune(tree)
    ended = max(samples.ended_ms for samples in processes)
    return a.FlameGraph(endTimestamp=ended, data=tree, moments=sum(samples.moments for samples in processes))


def _prune(root: FlameNode) -> None:
    """Leave out functions with few samples where there are too many for a page."""
    least = 1
    while _count(root) > _MOST_NODES:
        least *= 2
        nodes = [root]
        while nodes:
            node = nodes.pop()
            node.children = [child for child in node.children if child.value >= least]
            nodes += node.children


def _count(root: FlameNode) -> int:
    number, nodes = 0, [root]
    while nodes:
        number += 1
        nodes += nodes.pop().children
    return number


async def of_job(request: Request) -> a.FlameGraph:
    """Return the functions in which a job spends its time; empty until there are samples."""
    asked = await job_request(request)
    return _answer(request, asked.job.job, None, None)


async def of_vertex(request: Request) -> a.FlameGraph:
    """Return the functions in which a vertex or one subtask spends its time; empty until there are samples."""
    asked = await vertex_request(request)
    subtask = _number(request, "subtaskindex", None)
    if subtask is not None and subtask >= asked.vertex.parallelism:
        raise RequestError(404, f"{asked.vertex.name} has no subtask {subtask}")
    return _answer(request, asked.job.job, asked.vertex.id, subtask)


routes: list[Route] = [
    *get("/jobs/{job}/flamegraph", of_job),
    *get("/jobs/{job}/vertices/{vertex}/flamegraph", of_vertex),
]
