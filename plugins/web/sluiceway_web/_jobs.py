"""Endpoints about jobs: lists, details, plan, configuration, exceptions, metrics, diagnosis."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route

from sluiceway.monitoring.diagnosis import diagnose, why_late, why_slow
from sluiceway.monitoring.infos import FailureInfo, JobInfo
from sluiceway.monitoring.losses import why_lost
from sluiceway_web import _answers as a
from sluiceway_web._context import JobRequest, context_of, get, job_request
from sluiceway_web._errors import RequestError
from sluiceway_web._ids import job_id
from sluiceway_web._keys import with_last_key
from sluiceway_web._shapes import aggregated, job_details, job_overview, job_plan, job_state, now_ms

__all__ = ["exceptions_of", "routes"]

_MOST_EXCEPTIONS = 100


async def jobs_overview(request: Request) -> a.JobsOverview:
    """Return all jobs with the number of their tasks by state."""
    reading = await context_of(request).sampler.listing()
    return a.JobsOverview([job_overview(reading, job) for job in reading.cluster.jobs])


async def job_ids(request: Request) -> a.JobIds:
    """Return the ids and states of all jobs."""
    cluster = (await context_of(request).sampler.listing()).cluster
    return a.JobIds([a.JobIdStatus(job_id(cluster.job_store, j.job), job_state(j), j.job) for j in cluster.jobs])


async def details(request: Request) -> a.JobDetails:
    """Return a job with its vertices."""
    asked = await job_request(request)
    return job_details(asked.reading, asked.job, asked.description, asked.metrics)


async def plan(request: Request) -> dict[str, a.JobPlan]:
    """Return the graph of a job."""
    asked = await job_request(request)
    return {"plan": job_plan(asked.reading, asked.job, asked.description)}


async def status(request: Request) -> a.JobStatusAnswer:
    """Return the state of a job."""
    asked = await job_request(request)
    return a.JobStatusAnswer(job_state(asked.job))


async def config(request: Request) -> dict[str, Any]:
    """Return the options of a job."""
    asked = await job_request(request)
    options = {option.name: option.value for option in asked.description.options}
    return {
        "jid": job_id(asked.reading.cluster.job_store, asked.job.job),
        "name": asked.job.name,
        "execution-config": {
            "restart-strategy": options.get("restart", ""),
            "job-parallelism": max((v.parallelism for v in asked.description.vertices), default=-1),
            "object-reuse-mode": options.get("object-reuse") == "True",
            "user-config": options,
        },
    }


async def exceptions(request: Request) -> a.Exceptions:
    """Return the failures of a job, newest first."""
    asked = await job_request(request)
    try:
        most = min(max(int(request.query_params.get("maxExceptions", "20")), 1), _MOST_EXCEPTIONS)
    except ValueError:
        raise RequestError(400, "maxExceptions must be a number") from None
    failures = asked.job.failures[::-1]
    root = asked.job.failure or (failures[0].traceback if failures and asked.job.status == "failed" else None)
    return a.Exceptions(
        root_exception=root,
        timestamp=failures[0].at_ms if failures else None,
        all_exceptions=[],
        truncated=len(failures) > most,
        exception_history=a.ExceptionHistory(exceptions_of(asked.job, most), len(failures) > most),
    )


def exceptions_of(job: JobInfo, most: int) -> list[a.ExceptionEntry]:
    """Return the last failures of a job, newest first."""
    return [_entry(failure) for failure in job.failures[: -most - 1 : -1]]


def _entry(failure: FailureInfo) -> a.ExceptionEntry:
    name = failure.cause.partition("\n")[0].partition(":")[0].strip()
    where = None
    if failure.subtask is not None:
        where = f"{failure.task} ({failure.subtask + 1}) - execution #{failure.attempt}"
    return a.ExceptionEntry(
        # A cause need not begin with the name of a class.
        exceptionName=name if name.isidentifier() else "Exception",
        stacktrace=failure.traceback or failure.cause,
        timestamp=failure.at_ms,
        taskName=where,
        endpoint=failure.worker or None,
        taskManagerId=failure.worker or None,
    )


def _job_metrics(asked: JobRequest) -> dict[str, float]:
    job, metrics = asked.job, asked.metrics
    running = job.status == "running"
    return {
        "uptime": max(0, now_ms() - job.submitted_ms) if running else 0,
        "runningTime": round(metrics.elapsed_s * 1000),
        "numRestarts": job.restarts,
        "fullRestarts": job.restarts,
        "numRecordsIn": metrics.records_in,
        "numRecordsOut": metrics.records_out,
    }


async def job_metrics(request: Request) -> list[a.Metric]:
    """Return the metrics of a job, with ``get`` their values."""
    figures = _job_metrics(await job_request(request))
    wanted = request.query_params.get("get")
    if wanted is None:
        return [a.Metric(name) for name in figures]
    return [a.Metric(name, str(figures[name])) for name in wanted.split(",") if name in figures]


async def jobs_metrics(request: Request) -> list[Any]:
    """Return the metrics of all jobs, with ``get`` aggregated values."""
    context = context_of(request)
    reading = await context.sampler.reading()
    names = ("numRecordsIn", "numRecordsOut", "numRestarts")
    wanted = request.query_params.get("get")
    if wanted is None:
        return [a.Metric(name) for name in names]
    values = {
        "numRecordsIn": [job.records_in for job in reading.cluster.jobs],
        "numRecordsOut": [job.records_out for job in reading.cluster.jobs],
        "numRestarts": [job.restarts for job in reading.cluster.jobs],
    }
    # Without jobs there is nothing to aggregate.
    return [aggregated(name, values[name]) for name in wanted.split(",") if values.get(name)]


async def diagnosis(request: Request) -> a.DiagnosisAnswer:
    """Return what limits the throughput of a job, what holds back its event time, and which records it drops."""
    asked = await job_request(request)
    checkpoints = await context_of(request).sampler.checkpoints(asked.job.job)
    metrics, rates = asked.metrics, asked.rates
    sampler, job, failures = context_of(request).sampler, asked.job.job, asked.job.failures
    every, slow = (
        sampler.functions.name(job, with_last_key(sampler, job, found))
        for found in (
            diagnose(asked.description, metrics, rates, checkpoints, failures),
            why_slow(asked.description, metrics, rates, checkpoints, failures),
        )
    )
    return a.DiagnosisAnswer(
        healthy=every.healthy,
        summary=every.summary,
        slow=msgspec.to_builtins(slow.findings),
        late=msgspec.to_builtins(why_late(asked.description, metrics, rates, failures=failures).findings),
        lost=msgspec.to_builtins(why_lost(metrics).findings),
    )


async def micro_batches(request: Request) -> a.MicroBatches:
    """Return the last micro-batches of a job on an engine that has any."""
    asked = await job_request(request)
    return a.MicroBatches(asked.description.micro_batches, asked.description.engine_url)


routes: list[Route] = [
    *get("/jobs", job_ids),
    *get("/jobs/overview", jobs_overview),
    *get("/jobs/metrics", jobs_metrics),
    *get("/jobs/{job}", details),
    *get("/jobs/{job}/plan", plan),
    *get("/jobs/{job}/status", status),
    *get("/jobs/{job}/config", config),
    *get("/jobs/{job}/exceptions", exceptions),
    *get("/jobs/{job}/metrics", job_metrics),
    *get("/jobs/{job}/diagnosis", diagnosis),
    *get("/jobs/{job}/micro-batches", micro_batches),
]
