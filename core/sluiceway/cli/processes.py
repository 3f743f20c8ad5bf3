"""Figures of processes as text, and ``sluiceway thread-dump``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec

from sluiceway.cli.output import say
from sluiceway.cli.tables import aligned

if TYPE_CHECKING:
    from sluiceway.monitoring.processes import ProcessFigures, ThreadDump

__all__ = ["PROCESS_HEAD", "process_row", "process_table", "show_size", "thread_dump"]

PROCESS_HEAD: Final = ("cpu", "memory", "threads", "open files", "gc passes", "gc pauses")
_UNKNOWN: Final = "n/a"


def show_size(size: int | None) -> str:
    """Return bytes in MiB."""
    return _UNKNOWN if size is None else f"{size / (1 << 20):,.1f} MiB"


def process_row(figures: ProcessFigures | None) -> list[str]:
    """Return the cells under PROCESS_HEAD. None: the process has not answered."""
    if figures is None:
        return [_UNKNOWN] * len(PROCESS_HEAD)
    files, passes = figures.open_files, figures.collections
    pauses = _UNKNOWN
    if figures.pauses is not None:
        pauses = f"{figures.pauses} of {figures.pause_ms or 0.0:.1f} ms"
    return [
        _UNKNOWN if figures.cpu_share is None else f"{figures.cpu_share:.0%}",
        show_size(figures.rss),
        _UNKNOWN if figures.threads is None else str(figures.threads),
        _UNKNOWN if files is None else f"{files}/{figures.most_open_files or 'any'}",
        _UNKNOWN if passes is None else "/".join(map(str, passes)),
        pauses,
    ]


def process_table(figures: Sequence[ProcessFigures]) -> list[str]:
    """Return the lines of a table of processes."""
    return aligned([["process", *PROCESS_HEAD], *([f.process, *process_row(f)] for f in figures)])


@click.command("thread-dump", short_help="Show the stacks of the threads of a cluster's processes.")
@click.argument("process", metavar="[WORKER|jobmanager]", default="")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, with one object per process.")
def thread_dump(process: str, as_json: bool) -> None:
    """Show the Python stacks of all threads of a worker or of the job manager; without a name, of all processes.

    A worker answers also while a function keeps it busy. Stacks have the innermost function first; under the name
    of the thread that runs the tasks is the one whose step it makes.
    """
    from sluiceway.cli.errors import warn
    from sluiceway.errors import choose
    from sluiceway.monitoring.processes import JOB_MANAGER, ProcessReadings
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.cluster.client_processes import dump_of, dumps_of

    with ClusterClient() as client:
        if process:
            names = [JOB_MANAGER, *(worker.name for worker in client.status().workers)]
            if process not in names:
                raise choose("process", process, names)
            readings = ProcessReadings(dumps=[dump_of(client, process)])
        else:
            readings = dumps_of(client)
    if as_json:
        say(json.dumps(msgspec.to_builtins(readings.dumps)))
    else:
        say("\n\n".join(_text(dump) for dump in readings.dumps))
    for problem in readings.problems:
        warn(problem)


def _text(dump: ThreadDump) -> str:
    at = datetime.fromtimestamp(dump.at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    lines = [f"{dump.process} (process {dump.pid}) at {at}, {len(dump.threads)} threads"]
    for thread in dump.threads:
        lines += ["", thread.headline, *(f"    at {frame}" for frame in thread.frames)]
    return "\n".join(lines)
