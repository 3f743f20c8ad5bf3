"""``sluiceway checkpoints``: what is in a place for checkpoints, without a job's code."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from sluiceway.cli.errors import warn
from sluiceway.cli.groups import Group
from sluiceway.cli.history import history, is_place, readable_checkpoints, shown_size, shown_time
from sluiceway.cli.jobs import id_of
from sluiceway.cli.manager import manager
from sluiceway.cli.output import say
from sluiceway.cli.tables import print_table
from sluiceway.errors import CheckpointError, ConfigurationError
from sluiceway.util.overriding import override

if TYPE_CHECKING:
    from sluiceway.checkpoint_storage import CheckpointStorage

__all__ = ["checkpoints"]

_json_flag = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


class _Checkpoints(Group):
    """``checkpoints JOB`` is ``checkpoints history JOB``, but where JOB is nearly the name of a command."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or name in self.commands:
            return super().resolve_command(ctx, args)
        if is_place(name) or not get_close_matches(name, self.commands, n=1, cutoff=0.75):
            return history.name, history, args
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Checkpoints,
    subcommand_metavar="JOB | PLACE | COMMAND [ARGS]...",
    short_help="List, inspect and clean up checkpoints.",
)
def checkpoints() -> None:
    """List, inspect and clean up checkpoints. With JOB or PLACE this is the command history.

    JOB is a job of the running cluster, PLACE a directory or URL with checkpoints.
    """


checkpoints.add_command(history)


@checkpoints.command()
@click.argument("job")
def take(job: str) -> None:
    """Take a checkpoint of JOB now, the id or name of a job of the running cluster, and print its number.

    The job goes on from it after a failure. The command returns when the checkpoint is complete.
    """
    from sluiceway.runtime.cluster.client import ClusterClient

    with ClusterClient() as client:
        say(str(client.checkpoint(id_of(client, job))))


@checkpoints.command("list")
@click.argument("place")
@_json_flag
def list_(place: str, as_json: bool) -> None:
    """List the completed checkpoints in the directory or URL PLACE, by run, oldest first."""
    storage = manager().checkpoint_storage(place)
    found = readable_checkpoints(storage)
    found.sort(key=lambda one: (one[0].rpartition("/")[0], one[1].checkpoint_id))
    if as_json:
        facts = [
            {
                "path": storage.shown(directory) if directory else storage.location,
                "job": m.job_name,
                "checkpoint": m.checkpoint_id,
                "kind": m.kind,
                "triggered_ms": m.triggered_ms,
                "completed_ms": m.completed_ms,
                "size": m.size,
                "written": m.written,
            }
            for directory, m in found
        ]
        say(json.dumps(facts, indent=2))
        return
    if not found:
        say(f"There is no complete checkpoint in {storage.location}.")
        return
    rows = [
        (
            m.job_name,
            str(m.checkpoint_id),
            m.kind,
            shown_time(m.completed_ms),
            f"{m.completed_ms - m.triggered_ms} ms",
            shown_size(m.size),
            shown_size(m.written),
            directory or ".",
        )
        for directory, m in found
    ]
    print_table(("JOB", "CHECKPOINT", "KIND", "COMPLETED", "TOOK", "SIZE", "WRITTEN", "DIRECTORY"), rows)


@checkpoints.command()
@click.argument("path")
@_json_flag
def show(path: str, as_json: bool) -> None:
    """Show the steps, states, types and sizes in the checkpoint in the directory or URL PATH."""
    from sluiceway.checkpoint import load_metadata, split_location

    place, directory = split_location(path)
    storage = manager().checkpoint_storage(place)
    metadata = load_metadata(storage, directory)
    if as_json:
        import msgspec

        say(json.dumps(msgspec.to_builtins(metadata), indent=2))
        return
    took = metadata.completed_ms - metadata.triggered_ms
    say(f"{metadata.kind} {metadata.checkpoint_id} of job {metadata.job_name!r}")
    say(f"  completed: {shown_time(metadata.completed_ms)}, after {took} ms")
    say(f"  size:      {shown_size(metadata.size)}, of which {shown_size(metadata.written)} were written for it")
    for vertex in metadata.vertices:
        say(f"\n{vertex.name}: {vertex.parallelism} of {vertex.max_parallelism}")
        print_table(("UID", "STATE", "KIND", "TYPE", "SERIALIZER", "SUBTASKS"), _states(vertex))
        if any(subtask.in_flight for subtask in vertex.subtasks):
            say()
            print_table(("IN FLIGHT FROM", "TO", "SUBTASK", "WAITED", "BATCHES", "SIZE"), _in_flight(vertex))


@checkpoints.command()
@click.argument("old")
@click.argument("new")
@_json_flag
def diff(old: str, new: str, as_json: bool) -> None:
    """Compare the states of two checkpoints."""
    from sluiceway.checkpoint import load_metadata, split_location

    sides = []
    for path in (old, new):
        place, directory = split_location(path)
        metadata = load_metadata(manager().checkpoint_storage(place), directory)
        rows = [row for vertex in metadata.vertices for row in _states(vertex)]
        # Splits and pending records are no states that a function has declared.
        sides.append({(row[0], row[1]): list(row[2:5]) for row in rows if row[2] not in ("split", "pending")})
    before, after = sides
    changes = []
    for place_ in sorted(before.keys() | after.keys()):
        had, has = before.get(place_), after.get(place_)
        if had != has:
            what = "added" if had is None else "removed" if has is None else "changed"
            changes.append((what, *place_, _described(had), _described(has)))
    if as_json:
        names = ("what", "uid", "state", "old", "new")
        say(json.dumps([dict(zip(names, change, strict=True)) for change in changes], indent=2))
    elif changes:
        print_table(("WHAT", "UID", "STATE", "OLD", "NEW"), changes)
    else:
        say("Both have the same states.")


@checkpoints.command()
@click.argument("path")
def delete(path: str) -> None:
    """Delete the checkpoint in the directory or URL PATH, except files that other checkpoints share.

    Shared files of the newest checkpoint of a run are left to gc: a running job may be about to refer to them.
    """
    from sluiceway.checkpoint import SAVEPOINT, CheckpointDirectory, checkpoint_name, load_metadata, split_location

    place, directory = split_location(path)
    storage = manager().checkpoint_storage(place)
    metadata = load_metadata(storage, directory)
    if metadata.kind == SAVEPOINT:
        raise ConfigurationError(f"{path} is a savepoint: sluiceway savepoint delete deletes it")
    run = CheckpointDirectory(storage)
    if run.directory(metadata.checkpoint_id) != directory:
        raise ConfigurationError(
            f"{path} has checkpoint {metadata.checkpoint_id} and is not called "
            f"{checkpoint_name(metadata.checkpoint_id)}: it was moved by hand, so remove "
            "its directory by hand, too"
        )
    run.discard(metadata.checkpoint_id, shared=metadata.checkpoint_id != max(run.ids()))
    say(f"Deleted {path}: {shown_size(metadata.size)} of state, what others share with it excepted.")


@checkpoints.command()
@click.argument("place")
@click.option("--older-than", default="1h", metavar="TIME", help="Keep files that are younger. Default: 1h.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@_json_flag
def gc(place: str, older_than: str, dry_run: bool, as_json: bool) -> None:
    """Delete files in PLACE that no completed checkpoint refers to, such as those of killed jobs.

    A checkpoint in progress has such files as well. Set --older-than to more than a checkpoint can take.
    """
    from sluiceway.checkpoint import CheckpointDirectory
    from sluiceway.clock import SystemClock
    from sluiceway.config.settings import duration_ms

    try:
        age_ms = duration_ms(older_than)
    except ValueError as error:
        raise ConfigurationError(f"--older-than: {error}") from None
    storage = manager().checkpoint_storage(place)
    _warn_if_empty(storage)
    found = CheckpointDirectory(storage).collect(SystemClock().now_ms(), age_ms, dry_run=dry_run)
    if as_json:
        facts = {
            "deleted": [] if dry_run else [file.name for file in found.files],
            "orphans": [file.name for file in found.files],
            "too_young": [file.name for file in found.kept],
            "size": found.size,
        }
        say(json.dumps(facts, indent=2))
        return
    for file in found.files:
        say(f"{'would delete' if dry_run else 'deleted'} {file.name} ({shown_size(file.size)})")
    kept = f"; {len(found.kept)} more may be of a checkpoint that is under way" if found.kept else ""
    say(f"{len(found.files)} files, {shown_size(found.size)}{kept}.")


@checkpoints.command()
@click.argument("place")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@_json_flag
def prune(place: str, dry_run: bool, as_json: bool) -> None:
    """Delete the checkpoints of all runs in PLACE except the newest run of each job.

    The newest run of a job is the run with its newest completed checkpoint, from which --resume starts.
    Savepoints are not deleted. Checkpoints that cannot be read are kept, with a warning.
    """
    from sluiceway.checkpoint import (
        CHECKPOINT,
        CheckpointDirectory,
        checkpoint_name,
        find_checkpoints,
        load_metadata,
    )

    storage = manager().checkpoint_storage(place)
    _warn_if_empty(storage)
    # By job, and by directory of the run: the number, time of completion and size of each checkpoint.
    runs: dict[str, dict[str, list[tuple[int, int, int]]]] = {}
    for directory in find_checkpoints(storage):
        try:
            metadata = load_metadata(storage, directory)
        except CheckpointError as error:
            warn(f"{error}; it is left as it is")
            continue
        run, _, name = directory.rpartition("/")
        if metadata.kind == CHECKPOINT and name == checkpoint_name(metadata.checkpoint_id):
            found = (metadata.checkpoint_id, metadata.completed_ms, metadata.size)
            runs.setdefault(metadata.job_name, {}).setdefault(run, []).append(found)
    deleted, size = [], 0
    for of_job in runs.values():
        # As `resume` chooses: of each run the last one, whatever the clock said.
        newest = max(of_job, key=lambda run: max(of_job[run])[1])
        for run, of_run in of_job.items():
            if run == newest:
                continue
            for number, _, bytes_ in sorted(of_run):
                deleted.append(CheckpointDirectory(storage, run).directory(number))
                size += bytes_
                if not dry_run:
                    CheckpointDirectory(storage, run).discard(number)
    if as_json:
        say(json.dumps({"deleted": [] if dry_run else deleted, "earlier": deleted, "size": size}, indent=2))
        return
    for directory in deleted:
        say(f"{'would delete' if dry_run else 'deleted'} {directory}")
    say(f"{len(deleted)} checkpoints of earlier runs, with {shown_size(size)} of state.")


def _warn_if_empty(storage: CheckpointStorage) -> None:
    # No error: a service may clean up before the first start of its job, and a bucket has no directories.
    if next(iter(storage.files()), None) is None:
        warn(f"there are no files in {storage.location}: if checkpoints were written, look for them elsewhere")


def _states(vertex: Any) -> list[tuple[str, str, str, str, str, str]]:
    """Return the states of a vertex: uid, name, kind, type, serializer, number of subtasks."""
    found: dict[tuple[str, str, str, str, str], set[int]] = {}
    for subtask in vertex.subtasks:
        for operator in subtask.operators:
            rows: list[tuple[str, str, str, str]] = []
            if operator.keyed is not None:
                for table in operator.keyed.tables:
                    ttl = "" if table.ttl_ms is None else f", for {table.ttl_ms} ms"
                    written = f"{table.serializer} {table.version}"
                    rows.append((table.name, f"{table.kind or table.table}{ttl}", table.type or "-", written))
            for kept in operator.lists:
                kind = "operator list" if kept.mode == "list" else kept.mode
                rows.append((kept.name, kind, kept.type or "-", f"{kept.serializer} {kept.version}"))
            if operator.broadcast is not None:
                rows.append(("broadcast state", "broadcast", "-", "-"))
            if operator.splits is not None:
                rows.append(("splits", "split", "-", "-"))
            if operator.pending is not None:
                rows.append(("pending records", "pending", "-", "-"))
            for row in rows:
                found.setdefault((operator.uid, *row), set()).add(subtask.index)
    return [(*what, str(len(subtasks))) for what, subtasks in found.items()]


def _in_flight(vertex: Any) -> list[tuple[str, ...]]:
    """Return by edge and subtask what an unaligned checkpoint has overtaken."""
    found: dict[tuple[str, ...], list[int]] = {}
    for subtask in vertex.subtasks:
        for part in subtask.in_flight:
            waited = "to be sent" if part.stage == 2 else "to be processed"
            sums = found.setdefault((part.source, part.target, str(subtask.index + 1), waited), [0, 0])
            sums[0] += part.elements.count
            sums[1] += part.elements.size
    return [(*what, str(batches), shown_size(size)) for what, (batches, size) in found.items()]


def _described(state: list[str] | None) -> str:
    return "-" if state is None else ", ".join(part for part in state if part != "-")
