"""Endpoints about the cluster: ``/config``, ``/overview``, and the configuration of the job manager."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluiceway.errors import ConnectorError
from sluiceway_web import _answers as a
from sluiceway_web._context import context_of, get
from sluiceway_web._errors import JsonResponse, RequestError
from sluiceway_web._processes import workers_of
from sluiceway_web._replays import replay_feature
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
            "web-rescale": changes,
            "web-history": False,
        },
        replay=replay_feature(options),
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
    """Return the interpreter of the job manager, under the names that the dashboard reads."""
    sampler = context_of(request).sampler
    found = await sampler.ask(sampler.monitor.processes.environment)
    if found is None:
        return {"jvm": {"version": "", "arch": "", "options": []}, "classpath": []}
    return {
        "jvm": {"version": found.python, "arch": found.machine, "options": [found.executable]},
        "classpath": found.path,
        "variables": found.variables,
    }


async def manager_config(request: Request) -> list[a.ConfigEntry]:
    """Return the options that the cluster or the job was started with, and the facts of the job manager."""
    sampler = context_of(request).sampler
    cluster = (await sampler.reading()).cluster
    options = await sampler.ask(sampler.monitor.processes.configuration)
    facts = {"pid": str(cluster.pid), "epoch": str(cluster.epoch), "job-store": cluster.job_store}
    found = {name: a.ConfigEntry(name, value) for name, value in facts.items()}
    for option in options:
        value = option.value or facts.get(option.name, "")
        found[option.name] = a.ConfigEntry(option.name, value, option.origin)
    return list(found.values())


async def shut_down(request: Request) -> Response:
    """Cancel all jobs, and end the cluster. Answered when that has begun."""
    sampler = context_of(request).sampler
    cluster = (await sampler.reading()).cluster
    if not cluster.max_workers:
        raise RequestError(409, "This is no cluster: cancel the job instead")
    ending = asyncio.create_task(asyncio.to_thread(sampler.monitor.processes.shut_down))
    _ending.add(ending)
    ending.add_done_callback(_ended)
    # Jobs whose functions do not return take longer, and the cluster waits for them.
    await asyncio.wait([ending], timeout=_SHUT_DOWN_S)
    if ending.done() and (error := ending.exception()) is not None:
        raise RequestError(503 if isinstance(error, ConnectorError) else 409, str(error))
    return JsonResponse({}, 202)


_SHUT_DOWN_S: Final = 5.0
_ending: Final[set[asyncio.Task[None]]] = set()


def _ended(ending: asyncio.Task[None]) -> None:
    """Forget a request that is over; its client may have been answered already."""
    _ending.discard(ending)
    if not ending.cancelled():
        ending.exception()


routes: list[Route] = [
    *get("/config", config),
    *get("/overview", overview),
    *get("/jobmanager/environment", environment),
    *get("/jobmanager/config", manager_config),
    *(Route(prefix + "/cluster", shut_down, methods=["DELETE"]) for prefix in ("", "/v1")),
]
