"""``sluiceway cluster start|status|stop``, ``submit``, ``list``, ``cancel``, ``stop``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from sluiceway.cli.cluster_web import check_web, start_web, start_web_ahead, web_link
from sluiceway.cli.errors import warn
from sluiceway.cli.groups import Group
from sluiceway.cli.habits import refused_option
from sluiceway.cli.jobs import ENDED, id_among, id_of
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.output import say
from sluiceway.cli.processes import PROCESS_HEAD, process_row
from sluiceway.cli.resume_hints import resumed
from sluiceway.cli.tables import print_table
from sluiceway.cli.target import load_pipeline
from sluiceway.cli.web_options import options_of, refuse_without_web, submit_option, web_options
from sluiceway.config.settings import duration_ms, resolve
from sluiceway.errors import ConfigurationError
from sluiceway.monitoring.processes import JOB_MANAGER

if TYPE_CHECKING:
    from sluiceway.config.settings import Resolved
    from sluiceway.monitoring.configuration import ConfiguredOption
    from sluiceway.monitoring.infos import FailureInfo
    from sluiceway.monitoring.web_server import WebOptions
    from sluiceway.runtime.cluster.client import ClusterClient

__all__ = ["cancel", "cluster", "list_jobs", "stop_job", "submit"]


_WORKERS: Final = 2
"""Default number of workers of a cluster."""

_STARTED_WITH: Final = "belongs to the start of the cluster: sluiceway cluster start {}"
_OF_THE_CLUSTER: Final = {
    "--workers": _STARTED_WITH.format("--workers N"),
    "--transport": _STARTED_WITH.format("--transport NAME"),
    "--network-buffers": _STARTED_WITH.format("--network-buffers N"),
    "--heartbeat-timeout": _STARTED_WITH.format("--heartbeat-timeout TIME"),
    "--engine": "is for sluiceway run: the cluster runs jobs by itself",
    "--hosted": "is for sluiceway run: the cluster has workers of its own",
    "--log-format": "is for sluiceway run: a cluster logs to files, which sluiceway logs --json shows as JSON",
}
"""Options of a run that ``submit`` does not take, and why."""

_SCHEDULED: Final = "waiting"
_STOP_WITH_SAVEPOINT: Final = "to end a job with a savepoint: sluiceway stop JOB --savepoint PLACE"
_STOP_DRAINS: Final = "without --savepoint, sluiceway stop JOB ends the sources and lets the job finish"


@click.group(cls=Group, short_help="Start, inspect and stop a cluster on this machine.")
def cluster() -> None:
    """Manage a job manager and workers that keep running on this machine and run submitted jobs."""


@cluster.command()
@click.option("--workers", metavar="N", help="Largest number of worker processes. Default: 2.")
@click.option(
    "--slots",
    type=click.IntRange(1, 32_768),
    default=2,
    show_default=True,
    help="Number of task slots per worker.",
)
@click.option(
    "--release-after",
    metavar="TIME",
    default="30s",
    show_default=True,
    help="Stop a worker that was idle for this time; another is started when a job needs it.",
)
@click.option("--transport", metavar="NAME", help="Transport between workers: shm, zmq.")
@click.option("--network-buffers", metavar="N", help="Number of 32 KiB buffers per worker for data that it sends.")
@click.option("--heartbeat-timeout", metavar="TIME", help="Kill a worker that sends no heartbeat for this time.")
@click.option(
    "--log-level",
    metavar="LEVEL",
    help="Lowest level that is logged for jobs without a level of their own. Default: info.",
)
@click.option(
    "--job-store",
    metavar="DIR",
    help="Directory of the job store, from which jobs are recovered. Default: beside the logs.",
)
@click.option(
    "--standby",
    metavar="N",
    type=click.IntRange(0, 8),
    default=0,
    show_default=True,
    help="Number of standby job managers that take over when the leader dies.",
)
@click.option(
    "--foreground",
    is_flag=True,
    help="Run in the foreground and log to stderr, for service managers and containers.",
)
@click.option(
    "--log-format", metavar="FORMAT", help="Format of log lines on stderr with --foreground: text, json."
)
@click.option(
    "--web",
    metavar="[[HOST:]PORT]",
    is_flag=False,
    flag_value="",
    help="Serve the web interface of the cluster, and print its link. It ends with the cluster.",
)
@submit_option
@web_options
def start(
    slots: int,
    release_after: str,
    job_store: str | None,
    standby: int,
    foreground: bool,
    web: str | None,
    **options: Any,
) -> None:
    """Start a cluster in the background. Its workers are started when a job needs them.

    Jobs in the job store that have not ended are recovered from their last checkpoint.

    With --foreground this process is the job manager. On SIGTERM or Ctrl-C it stops its workers, keeps its jobs
    in the job store for the next start, and exits with 0. A second signal ends it at once.

    Options without a flag come from the environment and the configuration file, as for 'sluiceway run'.
    """
    from sluiceway.cli.manager import manager
    from sluiceway.runtime.cluster.client import ClusterClient, logs_directory
    from sluiceway.runtime.cluster.cluster_config import ClusterConfig
    from sluiceway.runtime.cluster.cluster_start import run_cluster, start_cluster

    try:
        idle_s = duration_ms(release_after) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--release-after") from None
    given = {name: value for name, value in options.items() if not name.startswith("web_")}
    shown = _web({name: value for name, value in options.items() if name.startswith("web_")}, web)
    if shown is not None:
        check_web()
    resolved = resolve(given, flag=lambda keyword: "--" + keyword.replace("_", "-"))
    settings = resolved.settings
    workers = settings.workers
    # Of a run the default is no worker process at all.
    if resolved.origins["workers"] == "default":
        workers = _WORKERS
    elif not workers:
        raise ConfigurationError(f"a cluster needs at least one worker, and {resolved.origins['workers']} sets 0")
    transport = "shm" if settings.transport == "auto" else settings.transport
    manager().services().carrier(transport)  # a wrong name is told before anything is started
    some = f"up to {workers} worker{'s' * (workers != 1)} of {slots} slot{'s' * (slots != 1)}, over {transport}"
    used = {"workers": workers, "transport": transport, "log-level": settings.log_level or "info"}
    with_origins = _options(resolved, used, ("slots", "release_after", "job_store", "standby"))
    wanted = ClusterConfig(
        workers,
        slots,
        transport,
        heartbeat_timeout_s=settings.heartbeat_timeout_ms / 1000,
        idle_s=idle_s,
        network_buffers=settings.network_buffers,
        log_level=settings.log_level or "info",
        job_store=os.path.abspath(job_store) if job_store else "",
        standby=standby,
        options=tuple((option.name, option.value, option.origin) for option in with_origins),
    )
    if foreground:
        if standby:
            raise click.UsageError(
                "--standby is for a cluster in the background: with --foreground the service manager starts the "
                "job manager again, and its jobs are recovered"
            )
        if shown is not None:
            say(f"web interface: {start_web_ahead(shown)}", err=True)
        run_cluster(wanted, settings.log_format, some)
    if given["log_format"] is not None:
        raise click.UsageError(
            "--log-format goes with --foreground: in the background a cluster logs to files, which sluiceway logs "
            "shows"
        )
    pid = start_cluster(wanted)
    if standby:
        some += f", and {standby} job manager{'s' * (standby != 1)} standing by"
    say(f"cluster started (process {pid}), with {some}")
    say(f"sluiceway logs shows its logs, which are in {logs_directory()}")
    if shown is not None:
        try:
            say(f"web interface: {start_web(shown)}")
        except ConfigurationError as error:
            error.add_note("the cluster was started without it: sluiceway cluster stop ends it")
            raise
    with ClusterClient() as client:
        told = client.status()
    if told.recovered:
        some = f"{len(told.recovered)} job{'s' * (len(told.recovered) != 1)}"
        say(f"recovered {some} of the job store {told.job_store}: {', '.join(told.recovered)}")
    for problem in told.problems:
        warn(problem)


_OF_A_RUN: Final = ("workers", "transport", "network-buffers", "heartbeat-timeout", "log-level")
"""Options of a run that a cluster is started with."""


def _options(resolved: Resolved, used: Mapping[str, object], own: Sequence[str]) -> list[ConfiguredOption]:
    """Return the options of a start with their origins.

    Args:
        resolved: those that it shares with a run.
        used: values of those whose defaults differ.
        own: parameters of the command that no run has.
    """
    from click.core import ParameterSource

    from sluiceway.monitoring.configuration import ConfiguredOption, configured

    context = click.get_current_context()
    found = [
        msgspec.structs.replace(option, value=str(used.get(option.name, option.value)))
        for option in configured(resolved, _OF_A_RUN)
    ]
    for name in own:
        flag = "--" + name.replace("_", "-")
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        value = context.params[name]
        found.append(ConfiguredOption(flag[2:], "" if value is None else str(value), flag if given else "default"))
    return found


def _web(given: dict[str, Any], web: str | None) -> WebOptions | None:
    """Return the options of the web server; None: none is wanted."""
    if web is None:
        refuse_without_web(given)
        return None
    if web:
        if given["web_address"]:
            raise click.UsageError("--web and --web-address name two addresses: give one")
        given["web_address"] = web
    return options_of(**given)


@cluster.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def status(as_json: bool) -> None:
    """Show the state of the cluster."""
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.cluster.client_processes import figures_of

    with ClusterClient() as client:
        told = client.status()
        processes = {figures.process: figures for figures in figures_of(client).figures}
    if as_json:
        facts = msgspec.to_builtins(msgspec.structs.replace(told, figures=b""))
        say(json.dumps({**facts, "processes": msgspec.to_builtins(list(processes.values()))}))
        return
    running = sum(j.running or j.status == _SCHEDULED for j in told.jobs)
    say(
        f"process {told.pid}, since {_time(told.started_ms)}; {len(told.workers)} of up to {told.max_workers}"
        f" workers, {told.free_slots} of {told.slots} slots free; {running} of {len(told.jobs)} jobs running"
    )
    rows = [[JOB_MANAGER, str(told.pid), ""], *([w.name, str(w.pid), str(w.slots)] for w in told.workers)]
    print_table(
        ["process", "pid", "slots", *PROCESS_HEAD], [[*row, *process_row(processes.get(row[0]))] for row in rows]
    )
    if told.max_standbys:
        pids = ", ".join(str(standby.pid) for standby in told.standbys) or "none yet"
        say(
            f"process {told.pid} leads, with epoch {told.epoch}; standing by, {len(told.standbys)} of "
            f"{told.max_standbys}: {pids}"
        )
    if found := web_link():
        say(f"web interface: {found}")
    for problem in told.problems:
        warn(problem)


@cluster.command()
@click.option(
    "--keep-jobs", is_flag=True, help="Keep the jobs; they are recovered when a cluster is started again."
)
def stop(keep_jobs: bool) -> None:
    """Cancel all jobs and stop the cluster.

    A worker with a task that has not ended after 5 seconds is killed, and a warning names the task.
    """
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.cluster.cluster_start import wait_for_start

    wait_for_start()  # a cluster that comes up a moment later would stay
    with ClusterClient() as client:
        killed = client.shut_down(keep_jobs)
    for worker in killed:
        warn(worker)
    say("cluster stopped")


@pipeline_command("submit", "Submit a pipeline to the running cluster.", refused=_OF_THE_CLUSTER)
def submit(request: Request) -> None:
    """Submit the pipeline in TARGET to the running cluster and return at once.

    TARGET is as for 'sluiceway run', but never a stream. Workers and transport are those that the cluster was
    started with.
    """
    from sluiceway.cli.manager import manager
    from sluiceway.graph.check.features import is_bounded
    from sluiceway.graph.check.pipeline import refuse
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.local.engine import LocalEngine, job_graph_of

    with ClusterClient() as client, load_pipeline(request.target, request.arguments) as pipeline:
        settings = request.resolved.settings
        wanted = pipeline.graph(settings)
        # Jobs of a cluster run on its workers, whatever the option says.
        on_workers = replace(settings, workers=max(1, settings.workers))
        refuse(wanted, on_workers, LocalEngine().capabilities(on_workers, bounded=is_bounded(wanted)))
        graph = job_graph_of(wanted, manager().services())
        if settings.resume:
            _refuse_running(client, graph.job_name)
            settings = resumed(settings, graph.job_name)
        say(client.submit(graph.job_name, graph, settings))


def _refuse_running(client: ClusterClient, job_name: str) -> None:
    """Refuse to resume a job that runs: both would write the same output."""
    for job in client.status().jobs:
        if job.name == job_name and job.status not in ENDED:
            raise ConfigurationError(
                f"{job_name!r} is {job.status} already, as {job.job}: stop it with sluiceway stop {job.job} "
                "--savepoint PLACE before another program resumes it"
            )


@click.command("list", short_help="List the jobs of the running cluster.")
@click.argument("job", required=False)
@click.option("--running", "-r", is_flag=True, help="List running and restarting jobs only.")
@click.option("--scheduled", "-s", is_flag=True, help="List jobs that wait for slots only.")
@click.option(
    "--all", "-a", "every", is_flag=True, help="List all jobs, also those that have ended. This is the default."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def list_jobs(job: str | None, running: bool, scheduled: bool, every: bool, as_json: bool) -> None:
    """List the jobs of the running cluster. With JOB, an id or a name, show its failures as well."""
    from sluiceway.runtime.cluster.client import ClusterClient

    with ClusterClient() as client:
        jobs = client.status().jobs
    if job is not None:
        chosen = id_among(jobs, job)
        jobs = [each for each in jobs if each.job == chosen]
    if (running or scheduled) and not every:
        jobs = [
            each
            for each in jobs
            if (scheduled if each.status == _SCHEDULED else running and each.status not in ENDED)
        ]
    if as_json:
        say(json.dumps(msgspec.to_builtins(jobs)))
        return
    rows = [
        [
            j.job,
            j.status,
            _time(j.submitted_ms),
            str(j.restarts),
            str(j.records_in),
            str(j.records_out),
            j.failure.partition("\n")[0],
        ]
        for j in jobs
    ]
    print_table(["job", "status", "submitted", "restarts", "in", "out", "failure"], rows)
    if job is not None and jobs:
        for failure in jobs[0].failures:
            say(f"\n{_headline(failure)}\n{failure.traceback}")


def _headline(failure: FailureInfo) -> str:
    where = "the job failed"
    if failure.subtask is not None:
        on = f" on {failure.worker}" if failure.worker else ""
        where = f"{failure.task!r}, subtask {failure.subtask + 1}, attempt {failure.attempt}{on}, failed"
    then = "nothing was restarted"
    if failure.delay_ms is not None:
        some = "1 subtask was" if failure.restarted == 1 else f"{failure.restarted} subtasks were"
        then = f"{some} restarted after {failure.delay_ms} ms"
    return f"{_time(failure.at_ms)} {where}; {then}:"


@click.command()
@click.argument("job")
@refused_option("--withSavepoint", "-s", hint=_STOP_WITH_SAVEPOINT)
def cancel(job: str) -> None:
    """Cancel a job of the running cluster. JOB is its id, or its name if no other job has that name."""
    from sluiceway.runtime.cluster.client import ClusterClient

    with ClusterClient() as client:
        job = id_of(client, job)
        client.cancel(job)
    say(f"cancelling {job}", err=True)


@click.command("stop", short_help="Stop a job, with a savepoint or after its sources have ended.")
@click.argument("job")
@click.option(
    "--savepoint",
    "-p",
    metavar="PLACE",
    help="Take a savepoint in the directory or URL PLACE and stop the job with it.",
)
@click.option("--savepointPath", "flink_savepoint", hidden=True)
@refused_option("--drain", "-d", hint=_STOP_DRAINS)
def stop_job(job: str, savepoint: str | None, flink_savepoint: str | None) -> None:
    """Stop a job of the running cluster. JOB is its id, or its name if no other job has that name.

    Without --savepoint its sources end and the job processes the records that they have read. With --savepoint
    the job takes a savepoint, ends, and the directory of the savepoint is printed. If the savepoint fails, the
    job keeps running.
    """
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.jobmanager.checkpoint_places import savepoint_place

    savepoint = savepoint or flink_savepoint
    with ClusterClient() as client:
        job = id_of(client, job)
        if savepoint is not None:
            say(client.savepoint(job, savepoint_place(savepoint, None), stop=True))
            return
        client.stop(job)
    say(f"stopping {job}", err=True)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
