"""Live figures of the cluster page: processes, and what runs on them."""

from __future__ import annotations

from typing import Any

import msgspec

from sluiceway.monitoring.infos import ClusterInfo, WorkerInfo
from sluiceway.monitoring.processes import JOB_MANAGER, ProcessReadings
from sluiceway_web._process_figures import LOCAL, figures_of
from sluiceway_web._processes import tasks_on, workers_of
from sluiceway_web._sampler import Sampler
from sluiceway_web._shapes import now_ms

__all__ = ["cluster_page"]


async def cluster_page(sampler: Sampler, wanted: str) -> dict[str, Any]:
    """Return the page of the cluster, or of the processes of one job."""
    cluster = (await sampler.reading()).cluster
    readings = await sampler.processes.readings()
    processes = []
    if cluster.pid:
        manager = WorkerInfo(JOB_MANAGER, cluster.pid, 0, 0.0)
        processes = [_process(sampler, cluster, readings, each) for each in (manager, *_workers(cluster))]
    return {
        "now": now_ms(),
        "processes": processes,
        "problems": cluster.problems,
        "started": cluster.started_ms,
        "slots": cluster.slots,
        "free_slots": cluster.free_slots,
        "max_workers": cluster.max_workers,
        "standbys": [standby.pid for standby in cluster.standbys],
    }


def _workers(cluster: ClusterInfo) -> list[WorkerInfo]:
    """Return the workers, also those of a job that runs by itself; its own process is the job manager's."""
    return [worker for worker in workers_of(cluster) if worker.name != LOCAL]


def _process(
    sampler: Sampler, cluster: ClusterInfo, readings: ProcessReadings, process: WorkerInfo
) -> dict[str, Any]:
    figures = figures_of(readings, process.name)
    past = sampler.processes.history(process.name)
    is_manager = process.name == JOB_MANAGER
    # A job in one process has its tasks there.
    on = process.name if not is_manager or cluster.max_workers or cluster.workers else LOCAL
    return {
        "name": process.name,
        "pid": process.pid or (figures.pid if figures is not None else 0),
        "slots": process.slots,
        "tasks": tasks_on(cluster, on),
        "silent_s": round(process.silent_s, 1) if process.pid and not is_manager else None,
        "figures": None if figures is None else msgspec.to_builtins(figures),
        "cpu": [each.cpu_share for each in past if each.cpu_share is not None],
        "rss": [each.rss for each in past if each.rss is not None],
    }
