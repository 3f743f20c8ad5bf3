"""Endpoints about the cluster: ``/config``, ``/overview``, ``/taskmanagers``, ``/jobmanager``."""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.infos import ClusterInfo, WorkerInfo
from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._errors import RequestError
from sluiceway_web._shapes import job_state

__all__ = ["routes"]

_VERSION = "2.3.0-sluiceway"
"""Version of Flink whose API this is."""


async def config(request: Request) -> a.WebConfig:
    """Return the settings of the dashboard."""
    changes = not context_of(request).options.read_only
    local = time.localtime()
    return a.WebConfig(
        refresh_interval=2000,
        timezone_name=local.tm_zone,
        timezone_offset=local.tm_gmtoff * 1000,
        flink_version=_VERSION,
        flink_revision="",
        features={
            "web-submit": False,
            "web-cancel": changes,
            "web-rescale": False,
            "web-history": False,
        },
    )


async def overview(request: Request) -> a.Overview:
    """Return the number of workers, slots and jobs."""
    cluster = (await context_of(request).sampler.reading()).cluster
    states = [job_state(job) for job in cluster.jobs]
    ended = ("FINISHED", "CANCELED", "FAILED")
    return a.Overview(
        taskmanagers=len(_workers(cluster)),
        slots_total=cluster.slots,
        slots_available=cluster.free_slots,
        jobs_running=sum(state not in ended for state in states),
        jobs_finished=states.count("FINISHED"),
        jobs_cancelled=states.count("CANCELED"),
        jobs_failed=states.count("FAILED"),
        flink_version=_VERSION,
        flink_commit="",
    )


def _workers(cluster: ClusterInfo) -> list[WorkerInfo]:
    """Return the workers; a job without any runs in its own process, which stands for one."""
    if cluster.workers or cluster.max_workers:
        return cluster.workers
    names = {t.worker or "local" for metrics in cluster.figures.values() for t in metrics.subtasks} or {"local"}
    return [WorkerInfo(name, cluster.pid if name == "local" else 0, 0, 0.0) for name in sorted(names)]


def _task_manager(cluster: ClusterInfo, worker: WorkerInfo) -> a.TaskManager:
    used = sum(
        (t.worker or "local") == worker.name and t.state == "running"
        for metrics in cluster.figures.values()
        for t in metrics.subtasks
    )
    nothing = {
        "cpuCores": 0.0,
        "taskHeapMemory": 0,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {},
    }
    return a.TaskManager(
        id=worker.name,
        path=f"pid {worker.pid}" if worker.pid else worker.name,
        dataPort=-1,
        jmxPort=-1,
        timeSinceLastHeartbeat=int(time.time() * 1000 - worker.silent_s * 1000),
        slotsNumber=worker.slots,
        freeSlots=max(0, worker.slots - used),
        totalResource=nothing,
        freeResource=nothing,
        hardware={"cpuCores": 0, "physicalMemory": 0, "freeMemory": 0, "managedMemory": 0},
        memoryConfiguration=dict.fromkeys(
            (
                "frameworkHeap", "taskHeap", "frameworkOffHeap", "taskOffHeap", "networkMemory", "managedMemory",
                "jvmMetaspace", "jvmOverhead", "totalFlinkMemory", "totalProcessMemory",
            ),
            0,
        ),
        metrics=dict.fromkeys(
            (
                "heapUsed", "heapCommitted", "heapMax", "nonHeapUsed", "nonHeapCommitted", "nonHeapMax",
                "directCount", "directUsed", "directMax", "mappedCount", "mappedUsed", "mappedMax",
                "nettyShuffleMemorySegmentsAvailable", "nettyShuffleMemorySegmentsUsed",
                "nettyShuffleMemorySegmentsTotal", "nettyShuffleMemoryAvailable", "nettyShuffleMemoryUsed",
                "nettyShuffleMemoryTotal",
            ),
            0,
        )
        | {"garbageCollectors": []},
    )  # fmt: skip


async def task_managers(request: Request) -> a.TaskManagers:
    """Return the workers."""
    cluster = (await context_of(request).sampler.reading()).cluster
    return a.TaskManagers([_task_manager(cluster, worker) for worker in _workers(cluster)])


async def task_manager(request: Request) -> a.TaskManager:
    """Return one worker."""
    cluster = (await context_of(request).sampler.reading()).cluster
    wanted = request.path_params["worker"]
    for worker in _workers(cluster):
        if worker.name == wanted:
            return _task_manager(cluster, worker)
    raise RequestError(404, f"There is no worker {wanted}")


async def environment(request: Request) -> dict[str, Any]:
    """Return the interpreter of this server, under the names that the dashboard reads."""
    return {
        "jvm": {
            "version": f"{platform.python_implementation()} {platform.python_version()}",
            "arch": platform.machine(),
            "options": [sys.executable],
        },
        "classpath": [],
    }


async def manager_config(request: Request) -> list[a.ConfigEntry]:
    """Return the facts of the job manager."""
    cluster = (await context_of(request).sampler.reading()).cluster
    facts = {
        "pid": cluster.pid,
        "epoch": cluster.epoch,
        "transport": cluster.transport,
        "max-workers": cluster.max_workers,
        "job-store": cluster.job_store,
    }
    return [a.ConfigEntry(name, str(value)) for name, value in facts.items()]


async def manager_metrics(request: Request) -> list[a.Metric]:
    """Return the metrics of the job manager, with ``get`` their values."""
    cluster = (await context_of(request).sampler.reading()).cluster
    figures = {
        "numRegisteredTaskManagers": len(_workers(cluster)),
        "numRunningJobs": sum(job.status == "running" for job in cluster.jobs),
        "taskSlotsAvailable": cluster.free_slots,
        "taskSlotsTotal": cluster.slots,
    }
    wanted = request.query_params.get("get")
    if wanted is None:
        return [a.Metric(name) for name in figures]
    return [a.Metric(name, str(figures[name])) for name in wanted.split(",") if name in figures]


routes: list[Route] = [
    *get("/config", config),
    *get("/overview", overview),
    *get("/taskmanagers", task_managers),
    *get("/taskmanagers/{worker}", task_manager),
    *get("/jobmanager/environment", environment),
    *get("/jobmanager/config", manager_config),
    *get("/jobmanager/metrics", manager_metrics),
]
