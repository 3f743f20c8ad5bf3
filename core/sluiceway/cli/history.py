"""``sluiceway checkpoints history``: how the checkpoints of a job go, or went of runs that have left some."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from sluiceway.cli.errors import warn
from sluiceway.cli.jobs import job_for_want_of_place
from sluiceway.cli.manager import manager
from sluiceway.cli.output import say
from sluiceway.cli.tables import print_table
from sluiceway.errors import CheckpointError

if TYPE_CHECKING:
    from sluiceway.checkpoint import CheckpointMetadata, HistoryEntry
    from sluiceway.checkpoint_storage import CheckpointStorage
    from sluiceway.monitoring.infos import CheckpointInfo

__all__ = ["history", "is_place", "readable_checkpoints", "shown_size", "shown_time"]


@click.command()
@click.argument("job", metavar="JOB | PLACE")
@click.option("--subtasks", is_flag=True, help="Show the subtasks of the newest completed checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def history(job: str, subtasks: bool, as_json: bool) -> None:
    """Show duration and size of the last checkpoints and savepoints of JOB, also of failed ones.

    JOB is a job of the running cluster. With PLACE, a directory or URL, show those of the runs that have
    checkpoints there. Times are those of the slowest subtask: ALIGN, barrier alignment; SYNC, the synchronous
    part of the snapshot; ASYNC, the asynchronous part. IN FLIGHT is the part of SIZE that an unaligned checkpoint
    has overtaken.
    """
    import msgspec

    if is_place(job):
        runs = _of_place(job)
        if as_json:
            facts = [{"run": run, "checkpoints": msgspec.to_builtins(found)} for run, found in runs]
            say(json.dumps(facts, indent=2))
            return
        for number, (run, found) in enumerate(runs):
            say(("\n" if number else "") + run)
            _show(found, subtasks)
        return
    found = _of_job(job)
    if as_json:
        say(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        _show(found, subtasks)


def is_place(name: str) -> bool:
    """Return whether a text names a place of checkpoints: a directory or URL, or a file of metadata."""
    return "://" in name or os.path.isdir(name) or name.endswith("/metadata.json")


def _of_job(job: str) -> list[CheckpointInfo]:
    with job_for_want_of_place(job) as (client, job_id):
        return client.checkpoints(job_id)


def _of_place(place: str) -> list[tuple[str, list[CheckpointInfo]]]:
    """Return by run the records of its checkpoints, earlier ones included. Savepoints are apart."""
    from sluiceway.checkpoint import CHECKPOINT, split_location

    parent, under = split_location(place)
    storage = manager().checkpoint_storage(parent)
    runs: dict[str, list[tuple[str, CheckpointMetadata]]] = {}
    for directory, metadata in readable_checkpoints(storage, under):
        run = directory.rpartition("/")[0] if metadata.kind == CHECKPOINT else directory
        runs.setdefault(run, []).append((directory, metadata))
    if not runs:
        raise CheckpointError(f"there is no complete checkpoint in {storage.shown(under)}")
    told = []
    for run, kept in runs.items():
        kept.sort(key=lambda one: one[1].checkpoint_id)
        known = {m.checkpoint_id: _info(storage.shown(directory), m) for directory, m in kept}
        last = kept[-1][1]
        earlier = (_earlier(entry) for entry in last.history if entry.checkpoint_id not in known)
        infos = sorted([*earlier, *known.values()], key=lambda info: info.checkpoint)
        name = f"{storage.shown(run)} (job {last.job_name!r})"
        told.append((last.completed_ms, name, infos))
    return [(name, infos) for _, name, infos in sorted(told, key=lambda one: one[:2])]


def readable_checkpoints(storage: CheckpointStorage, under: str = "") -> list[tuple[str, CheckpointMetadata]]:
    """Return the checkpoints and savepoints in a directory and below it, and warn of those that cannot be read.

    Raises:
        CheckpointError: none of them can be read.
    """
    from sluiceway.checkpoint import find_checkpoints, load_metadata

    found, damaged = [], []
    for directory in find_checkpoints(storage, under):
        try:
            found.append((directory, load_metadata(storage, directory)))
        except CheckpointError as error:
            damaged.append(error)
    if damaged and not found:
        raise damaged[0]
    for problem in damaged:
        warn(f"{problem}; it is left out")
    return found


def _earlier(entry: HistoryEntry) -> CheckpointInfo:
    from sluiceway.monitoring.infos import CheckpointInfo

    return CheckpointInfo(
        entry.checkpoint_id,
        entry.status,
        entry.triggered_ms,
        entry.duration_ms,
        entry.size,
        entry.reason,
        entry.savepoint,
        [],
        entry.in_flight,
    )


def _info(location: str, metadata: CheckpointMetadata) -> CheckpointInfo:
    from sluiceway.checkpoint import SAVEPOINT
    from sluiceway.monitoring.infos import CheckpointInfo, SubtaskInfo

    subtasks = [
        SubtaskInfo(
            vertex.name,
            s.index,
            s.start_delay_ms,
            s.alignment_ms,
            s.flush_ms,
            s.sync_ms,
            s.async_ms,
            s.size,
            s.in_flight_size,
        )
        for vertex in metadata.vertices
        for s in vertex.subtasks
    ]
    return CheckpointInfo(
        metadata.checkpoint_id,
        "completed",
        metadata.triggered_ms,
        metadata.completed_ms - metadata.triggered_ms,
        metadata.size,
        "",
        location if metadata.kind == SAVEPOINT else "",
        subtasks,
        sum(s.in_flight for s in subtasks),
    )


def _show(found: list[CheckpointInfo], subtasks: bool) -> None:
    rows = [
        (
            str(c.checkpoint),
            "savepoint" if c.savepoint else "checkpoint",
            c.status,
            shown_time(c.triggered_ms),
            "-" if c.duration_ms is None else f"{c.duration_ms} ms",
            *(_slowest(getattr(s, name) for s in c.subtasks) for name in ("alignment_ms", "sync_ms", "async_ms")),
            shown_size(c.size),
            shown_size(c.in_flight),
            c.reason or c.savepoint,
        )
        for c in found
    ]
    heads = ("ID", "KIND", "STATUS", "TRIGGERED", "TOOK", "ALIGN", "SYNC", "ASYNC", "SIZE", "IN FLIGHT", "")
    print_table(heads, rows)
    last = next((c for c in reversed(found) if c.status == "completed"), None)
    if subtasks and last is not None:
        say()
        parts = [
            (
                s.task,
                str(s.subtask + 1),
                f"{s.start_delay_ms} ms",
                f"{s.alignment_ms} ms",
                f"{s.flush_ms} ms",
                f"{s.sync_ms} ms",
                f"{s.async_ms} ms",
                shown_size(s.size),
                shown_size(s.in_flight),
            )
            for s in last.subtasks
        ]
        named = ("TASK", "SUBTASK", "BEGAN AFTER", "ALIGN", "FLUSH", "SYNC", "ASYNC", "SIZE", "IN FLIGHT")
        print_table(named, parts)


def _slowest(times: Iterable[int]) -> str:
    most = max(times, default=None)
    return "-" if most is None else f"{most} ms"


def shown_time(ms: int) -> str:
    """Format a time for people."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_size(size: int) -> str:
    """Format a number of bytes for people."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
