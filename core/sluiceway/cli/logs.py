"""``sluiceway logs``, and log lines on stderr for the metrics reporter ``log``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from sluiceway.cli.jobs import ENDED, id_among, last_of
from sluiceway.cli.output import say
from sluiceway.config.options import LOG_LEVELS
from sluiceway.errors import ConnectorError

if TYPE_CHECKING:
    from sluiceway.runtime.logging.task_logs import LogLine

__all__ = ["logs", "metrics_on_stderr"]

_LOOK_S: Final = 0.2
_ASK_S: Final = 2.0
"""Seconds between two questions whether a job has ended, whose last line may be missed: files are rotated."""
_RANKS: Final = {name.upper(): rank for rank, name in enumerate(LOG_LEVELS)} | {"STDOUT": 1, "STDERR": 1}
_LAST_WORDS: Final = ("is finished", "is canceled", "failed")


@click.command(short_help="Show the logs of the running cluster.")
@click.argument("name", metavar="[JOB|PROCESS]", required=False)
@click.option("--follow", "-f", is_flag=True, help="Follow the log until Ctrl-C or the end of JOB.")
@click.option(
    "--level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="debug",
    help="Lowest level to show; printed lines count as info.",
)
@click.option("--operator", metavar="NAME", help="Name of the step; default: all steps.")
@click.option(
    "--process", "is_process", is_flag=True, help="Take the name for that of a process, where a job has the same."
)
@click.option("--last", "-n", metavar="N", type=click.IntRange(0), help="Start with the last N lines.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs(
    name: str | None,
    follow: bool,
    level: str,
    operator: str | None,
    is_process: bool,
    last: int | None,
    as_json: bool,
) -> None:
    """Show the logs of the running cluster, or of the last one, with the output of functions.

    The files of job manager and workers are merged by time. With JOB, show what the functions of the job have
    logged on any worker, and the lines of the job manager about it. PROCESS is 'jobmanager' or the name of a
    worker; of a job and a worker with one name, --process shows the worker's.
    """
    from sluiceway.runtime.cluster.client import logs_directory
    from sluiceway.runtime.cluster.log_files import LogFollower
    from sluiceway.runtime.logging.task_logs import as_json as line_as_json
    from sluiceway.runtime.logging.task_logs import as_text

    directory = logs_directory()
    if not directory.is_dir():
        raise ConnectorError("no cluster has logged anything: start one with sluiceway cluster start")
    follower = LogFollower(directory)
    show = line_as_json if as_json else as_text
    lines = follower.read()
    job, process = (None, None) if name is None else _known(name, lines, is_process)
    wanted = _Wanted(job, process, level, operator)
    chosen = [line for line in lines if wanted(line)]
    for line in chosen if last is None else chosen[len(chosen) - min(last, len(chosen)) :]:
        say(show(line))
    if not follow:
        return
    over = _has_ended(job, lines)
    asks_at = 0.0
    with suppress(KeyboardInterrupt):
        while not over:
            time.sleep(_LOOK_S)
            if job is not None and time.monotonic() >= asks_at:
                over = _is_over(job)  # before the last look
                asks_at = time.monotonic() + _ASK_S
            lines = follower.read()
            for line in lines:
                if wanted(line):
                    say(show(line))
            over = over or _has_ended(job, lines)


class _Wanted:
    def __init__(self, job: str | None, process: str | None, level: str, operator: str | None) -> None:
        self._job = job
        self._process = process
        self._rank = _RANKS[level.upper()]
        self._operator = operator

    def __call__(self, line: LogLine) -> bool:
        if self._job not in (None, line.job) or self._process not in (None, line.process):
            return False
        if self._operator is not None and line.operator != self._operator:
            return False
        # Lines with a level that is not known are shown.
        return _RANKS.get(line.level, self._rank) >= self._rank


def _known(name: str, lines: Sequence[LogLine], is_process: bool) -> tuple[str | None, str | None]:
    """Return the id of the job, or else the process, of a name."""
    of_job = not is_process and any(line.job == name for line in lines)
    of_process = any(line.process == name for line in lines)
    if of_job and of_process:
        say(f"{name!r} is a job and a process: this is the log of the job; --process shows the other", err=True)
    if of_job or of_process:
        return (name, None) if of_job else (None, name)
    from sluiceway.runtime.cluster.client import ClusterClient

    try:
        with ClusterClient() as client:
            status = client.status()
    except ConnectorError:
        names = sorted({n for line in lines for n in (line.job, line.process) if n})
    else:
        if not is_process and any(name in (j.job, j.name) for j in status.jobs):
            return id_among(status.jobs, name), None
        names = [*(j.job for j in status.jobs), "jobmanager", *(w.name for w in status.workers)]
    raise click.UsageError(f"nobody called {name!r} has logged anything; there are {last_of(names) or 'none'}")


def _has_ended(job: str | None, lines: Iterable[LogLine]) -> bool:
    """Return whether a job has ended, as the job manager says; its tasks have logged everything by then."""
    return any(
        line.job == job is not None and line.logger == "sluiceway.jobs" and line.message.startswith(_LAST_WORDS)
        for line in lines
    )


def _is_over(job: str) -> bool:
    """Return whether a job has ended, as the cluster says; False if none answers."""
    from sluiceway.runtime.cluster.client import ClusterClient

    with suppress(ConnectorError), ClusterClient() as client:
        # The cluster forgets the oldest of those that have ended.
        return all(each.status in ENDED for each in client.status().jobs if each.job == job)
    return False


@contextmanager
def metrics_on_stderr(reporters: Sequence[str]) -> Iterator[None]:
    """Within this context what the reporter ``log`` logs is seen, if it is among ``reporters``.

    Where the program has a handler for it already, nothing changes.
    """
    if "log" not in reporters:
        yield
        return
    import logging

    logger = logging.getLogger("sluiceway.metrics")
    if logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    level, propagate = logger.level, logger.propagate
    logger.propagate = False  # the run may set up a handler above it
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
