"""Endpoints about the cluster: ``/config``, ``/overview``, and the configuration of the job manager."""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._processes import workers_of
from sluiceway_web._shapes import job_state

__all__ = ["routes"]

_VERSION = "2.3.0-sluiceway"
"""Version of Flink whose API this is."""


async def config(request: Request) -> a.WebConfig:
    """Return the settings of the dashboard."""
    options = context_of(request).options
    changes = not options.read_only
    local = time.localtime()
    return a.WebConfig(
        refresh_interval=2000,
        timezone_name=local.tm_zone,
        timezone_offset=local.tm_gmtoff * 1000,
        flink_version=_VERSION,
        flink_revision="",
        features={
            "web-submit": options.submit and changes,
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
        taskmanagers=len(workers_of(cluster)),
        slots_total=cluster.slots,
        slots_available=cluster.free_slots,
        jobs_running=sum(state not in ended for state in states),
        jobs_finished=states.count("FINISHED"),
        jobs_cancelled=states.count("CANCELED"),
        jobs_failed=states.count("FAILED"),
        flink_version=_VERSION,
        flink_commit="",
    )


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


routes: list[Route] = [
    *get("/config", config),
    *get("/overview", overview),
    *get("/jobmanager/environment", environment),
    *get("/jobmanager/config", manager_config),
]
