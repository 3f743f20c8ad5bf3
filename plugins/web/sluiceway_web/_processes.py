"""Endpoints about processes: ``/taskmanagers`` and ``/jobmanager``."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.infos import ClusterInfo, WorkerInfo
from sluiceway.monitoring.processes import JOB_MANAGER, ProcessFigures, ProcessReadings, ThreadDump
from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._errors import RequestError
from sluiceway_web._process_figures import LOCAL, chosen, figures_of, metrics_of
from sluiceway_web._shapes import aggregated

__all__ = ["process_of", "readings_of", "routes", "tasks_on", "workers_of"]


def workers_of(cluster: ClusterInfo) -> list[WorkerInfo]:
    """Return the workers; a job without any runs in its own process, which stands for one."""
    if cluster.workers or cluster.max_workers:
        return cluster.workers
    names = {t.worker or LOCAL for metrics in cluster.figures.values() for t in metrics.subtasks} or {LOCAL}
    return [WorkerInfo(name, cluster.pid if name == LOCAL else 0, 0, 0.0) for name in sorted(names)]


async def readings_of(request: Request) -> ProcessReadings:
    """Return the figures of all processes. Raises RequestError."""
    return await context_of(request).sampler.processes.readings()


async def process_of(request: Request) -> str:
    """Return the name under which the cluster knows the process of a path. Raises RequestError."""
    wanted: str | None = request.path_params.get("worker")
    if wanted is None:
        return JOB_MANAGER
    cluster = (await context_of(request).sampler.reading()).cluster
    if wanted not in {worker.name for worker in workers_of(cluster)}:
        raise RequestError(404, f"There is no worker {wanted}")
    return JOB_MANAGER if wanted == LOCAL else wanted


def tasks_on(cluster: ClusterInfo, worker: str) -> int:
    """Return the number of subtasks that run on a worker."""
    return sum(
        (t.worker or LOCAL) == worker and t.state == "running"
        for metrics in cluster.figures.values()
        for t in metrics.subtasks
    )


def _task_manager(cluster: ClusterInfo, worker: WorkerInfo, figures: ProcessFigures | None) -> a.TaskManager:
    nothing = {
        "cpuCores": 0.0,
        "taskHeapMemory": 0,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    }
    measured = metrics_of(figures)
    passes = (figures.collections if figures is not None else None) or []
    rss, memory = int(measured.get("process.rss", 0)), (figures.memory or 0) if figures is not None else 0
    # Python has no such heap: the dashboard shows resident memory there.
    heap = {"heapUsed": rss, "heapCommitted": rss, "heapMax": memory}
    return a.TaskManager(
        id=worker.name,
        path=f"pid {worker.pid}" if worker.pid else worker.name,
        dataPort=-1,
        jmxPort=-1,
        timeSinceLastHeartbeat=int(time.time() * 1000 - worker.silent_s * 1000),
        slotsNumber=worker.slots,
        freeSlots=worker.free_slots,
        totalResource=nothing,
        freeResource=nothing,
        hardware={
            "cpuCores": (figures.cpus or 0) if figures is not None else 0,
            "physicalMemory": memory,
            "freeMemory": 0,
            "managedMemory": 0,
        },
        memoryConfiguration=dict.fromkeys(
            (
                "frameworkHeap", "taskHeap", "frameworkOffHeap", "taskOffHeap", "networkMemory", "managedMemory",
                "jvmMetaspace", "jvmOverhead", "totalFlinkMemory", "totalProcessMemory",
            ),
            0,
        ),
        metrics=heap
        | dict.fromkeys(
            (
                "nonHeapUsed", "nonHeapCommitted", "nonHeapMax",
                "directCount", "directUsed", "directMax", "mappedCount", "mappedUsed", "mappedMax",
                "nettyShuffleMemorySegmentsAvailable", "nettyShuffleMemorySegmentsUsed",
                "nettyShuffleMemorySegmentsTotal", "nettyShuffleMemoryAvailable", "nettyShuffleMemoryUsed",
                "nettyShuffleMemoryTotal",
            ),
            0,
        )
        | {
            "garbageCollectors": [
                # Pauses are measured of all generations together.
                {"name": f"Generation{number}", "count": count, "time": 0}
                for number, count in enumerate(passes)
            ]
        },
        process=figures,
    )  # fmt: skip


async def task_managers(request: Request) -> a.TaskManagers:
    """Return the workers, with the figures of their processes."""
    cluster = (await context_of(request).sampler.reading()).cluster
    readings = await readings_of(request)
    return a.TaskManagers([_task_manager(cluster, w, figures_of(readings, w.name)) for w in workers_of(cluster)])


async def task_manager(request: Request) -> a.TaskManager:
    """Return one worker, with the figures of its process."""
    cluster = (await context_of(request).sampler.reading()).cluster
    wanted = request.path_params["worker"]
    for worker in workers_of(cluster):
        if worker.name == wanted:
            return _task_manager(cluster, worker, figures_of(await readings_of(request), wanted))
    raise RequestError(404, f"There is no worker {wanted}")


async def task_manager_metrics(request: Request) -> list[a.Metric]:
    """Return the metrics of a worker's process, with ``get`` their values."""
    process = await process_of(request)
    found = metrics_of(figures_of(await readings_of(request), process))
    return list(chosen(found, request.query_params.get("get")))


async def all_metrics(request: Request) -> list[Any]:
    """Return the metrics of all workers' processes, with ``get`` minimum, maximum, mean and sum."""
    cluster = (await context_of(request).sampler.reading()).cluster
    readings = await readings_of(request)
    each = [metrics_of(figures_of(readings, worker.name)) for worker in workers_of(cluster)]
    names = list(dict.fromkeys(name for found in each for name in found))
    wanted = request.query_params.get("get")
    if wanted is None:
        return [a.Metric(name) for name in names]
    picked = [metric.id for metric in chosen(dict.fromkeys(names, 0.0), wanted)]
    return [aggregated(name, [found[name] for found in each if name in found]) for name in picked]


async def manager_metrics(request: Request) -> list[a.Metric]:
    """Return the metrics of the job manager, with ``get`` their values."""
    cluster = (await context_of(request).sampler.reading()).cluster
    figures: dict[str, float] = {
        "numRegisteredTaskManagers": len(workers_of(cluster)),
        "numRunningJobs": sum(job.running for job in cluster.jobs),
        "taskSlotsAvailable": cluster.free_slots,
        "taskSlotsTotal": cluster.slots,
    }
    figures |= metrics_of(figures_of(await readings_of(request), JOB_MANAGER))
    return list(chosen(figures, request.query_params.get("get")))


async def thread_dump(request: Request) -> a.ThreadDumpAnswer:
    """Return the stacks of all threads of a process."""
    process = await process_of(request)
    sampler = context_of(request).sampler
    dump = await sampler.ask(lambda: sampler.monitor.processes.thread_dump(process))
    return thread_infos(dump)


def thread_infos(dump: ThreadDump) -> a.ThreadDumpAnswer:
    """Return a dump in Flink's shape."""
    threads = []
    for thread in dump.threads:
        lines = [thread.headline, *(f"\tat {frame}" for frame in thread.frames), ""]
        threads.append(a.ThreadInfo(thread.name, "\n".join(lines), thread.task, thread.frames))
    return a.ThreadDumpAnswer(threads, dump.process, dump.pid, dump.at_ms)


routes: list[Route] = [
    *get("/taskmanagers", task_managers),
    *get("/taskmanagers/metrics", all_metrics),
    *get("/taskmanagers/{worker}", task_manager),
    *get("/taskmanagers/{worker}/metrics", task_manager_metrics),
    *get("/taskmanagers/{worker}/thread-dump", thread_dump),
    *get("/jobmanager/metrics", manager_metrics),
    *get("/jobmanager/thread-dump", thread_dump),
]
