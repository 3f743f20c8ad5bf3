"""``sluiceway why-slow``, ``why-late`` and ``why-lost``: the diagnosis of a job of the running cluster."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

import click
import msgspec

from sluiceway.cli.jobs import id_of
from sluiceway.cli.output import say

if TYPE_CHECKING:
    from sluiceway.metrics import FailureInfo, JobMetrics
    from sluiceway.monitoring.diagnosis import Diagnosis
    from sluiceway.monitoring.rates import SubtaskRates
    from sluiceway.runtime.cluster.client import ClusterClient

__all__ = ["why_late", "why_lost", "why_slow"]

_SAMPLE_S: Final = 1.0
_SAMPLE_RATE: Final = 100.0

_OVER = click.option(
    "--over",
    type=click.FloatRange(min=0.5, max=60),
    default=2.0,
    show_default=True,
    help="Seconds to measure.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


@click.command("why-slow", short_help="Name the task that limits the throughput of a job.")
@click.argument("job")
@_OVER
@_JSON
def why_slow(job: str, over: float, as_json: bool) -> None:
    """Name the task, the process or the checkpoint that limits the throughput of JOB, an id or a name.

    Of a task it names the function, too, after another second, and of skewed keys the hottest one.
    """
    from sluiceway.monitoring import diagnosis
    from sluiceway.monitoring.stack_samples import hottest_function
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.cluster.client_keys import client_keys

    with ClusterClient() as client:
        job = id_of(client, job)
        metrics, rates = _measure(client, job, over)
        failures = _failures(client, job)
        found = diagnosis.why_slow(client.describe(job), metrics, rates, client.checkpoints(job), failures)
        found = diagnosis.with_key(found, lambda vertex: client_keys(client, job, [vertex], _SAMPLE_S))
        found = diagnosis.with_function(
            found, lambda vertex: hottest_function(client.sample_stacks(job, _SAMPLE_S, _SAMPLE_RATE), vertex)
        )
    _show(found, as_json)


@click.command("why-late", short_help="Name what holds back the event time of a job.")
@click.argument("job")
@_OVER
@_JSON
def why_late(job: str, over: float, as_json: bool) -> None:
    """Name the subtask that holds back the event time of JOB, an id or a name."""
    from sluiceway.monitoring import diagnosis
    from sluiceway.runtime.cluster.client import ClusterClient

    with ClusterClient() as client:
        job = id_of(client, job)
        metrics, rates = _measure(client, job, over)
        found = diagnosis.why_late(client.describe(job), metrics, rates, failures=_failures(client, job))
    _show(found, as_json)


@click.command("why-lost", short_help="Name the steps that drop records of a job, and why.")
@click.argument("job")
@_JSON
def why_lost(job: str, as_json: bool) -> None:
    """Name the steps of JOB, an id or a name, that drop records: late, unreadable, or dead letters."""
    from sluiceway.monitoring import losses
    from sluiceway.runtime.cluster.client import ClusterClient

    with ClusterClient() as client:
        metrics = _figures(client, id_of(client, job))
    _show(losses.why_lost(metrics), as_json)


def _figures(client: ClusterClient, job: str) -> JobMetrics:
    found = client.metrics(job)
    if found is None:
        raise click.UsageError(f"the cluster has no metrics of job {job!r} any more")
    return found


def _failures(client: ClusterClient, job: str) -> list[FailureInfo]:
    return next((info.failures for info in client.status().jobs if info.job == job), [])


def _measure(client: ClusterClient, job: str, over_s: float) -> tuple[JobMetrics, list[SubtaskRates]]:
    """Return the newest reading of a job, and its rates over ``over_s`` seconds."""
    from sluiceway.monitoring.rates import RateMeter

    meter = RateMeter()
    first = _figures(client, job)
    meter.read(job, first)
    if first.running:
        time.sleep(over_s)
    newest = client.metrics(job) or first
    return newest, meter.read(job, newest)


def _show(found: Diagnosis, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"healthy": found.healthy, "findings": msgspec.to_builtins(found.findings)}))
        return
    for finding in found.findings:
        say(finding.text)
