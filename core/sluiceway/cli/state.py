"""``sluiceway state``: what is in checkpoints and savepoints, shown and exported without a job's code."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import click

from sluiceway.cli.checkpoint_source import checkpoint_of
from sluiceway.cli.groups import Group
from sluiceway.cli.manager import manager
from sluiceway.cli.output import say
from sluiceway.cli.tables import print_table
from sluiceway.cli.written_files import writing
from sluiceway.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.savepoint import SavedTable
    from sluiceway.savepoint.lookup import KeyValue
    from sluiceway.savepoint.sizes import StateSize

__all__ = ["state"]

_ATTEMPTS: Final = 5
"""Checkpoints that are tried, each deleted after the next one completed."""

_uid = click.option("--uid", "--operator", "uid", metavar="UID", help="Uid of the step; default: all steps.")
_name = click.option("--state", "name", metavar="NAME", help="Name of the state; default: all states.")


@click.group(cls=Group)
def state() -> None:
    """Read the state in checkpoints and savepoints."""


@state.command("show")
@click.argument("path")
@_uid
@_name
@click.option(
    "--limit", type=click.IntRange(0), default=100, help="Largest number of rows; 0 shows all. Default: 100."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def show_state(path: str, uid: str | None, name: str | None, limit: int, as_json: bool) -> None:
    """Show the state in the checkpoint in the directory or URL PATH.

    Nothing is unpickled that could run code. PATH can also be the directory of a run in micro-batches on Spark,
    whose keyed state is shown.
    """
    from dataclasses import asdict

    from sluiceway.savepoint import StateRows
    from sluiceway.savepoint.json_text import as_json as encoded

    with checkpoint_of(path, manager()) as place:
        found = iter(StateRows(place, uid, name, False, manager()))
        rows = list(islice(found, limit or None))
        more = limit and next(found, None) is not None
    if as_json:
        for row in rows:
            say(encoded(asdict(row) | {"key": row.key, "namespace": row.namespace, "value": row.value}))
    else:
        cells = [
            (
                row.uid,
                row.state,
                "-" if row.key_group is None else encoded(row.key),
                encoded(row.namespace) if row.namespace not in (None, ()) else "-",
                "-" if row.name is None else encoded(row.name),
                encoded(row.value),
            )
            for row in rows
        ]
        print_table(("UID", "STATE", "KEY", "NAMESPACE", "ENTRY", "VALUE"), cells)
    if more:
        say(f"There is more than these {limit} rows: --limit 0 shows all.", err=True)


@state.command("size", short_help="Show how large each keyed state is.")
@click.argument("source", metavar="JOB|PATH")
@click.option(
    "--uid", "--operator", "uid", metavar="UID", help="Uid of the step, of JOB also its name; default: all steps."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per state.")
def state_size(source: str, uid: str | None, as_json: bool) -> None:
    """Show the number of keys and the size of each keyed state, the largest first.

    JOB is the id or name of a job of the cluster, whose last completed checkpoint is read. PATH is the directory
    or URL of a checkpoint or savepoint. Sizes are those of serialized keys and values, without compression.
    """
    from dataclasses import asdict

    from sluiceway.savepoint.json_text import as_json as encoded
    from sluiceway.savepoint.lookup import is_place

    names: dict[str, str] = {}
    if is_place(source):
        sizes = _sizes(source, uid)
    else:
        from sluiceway.cli.jobs import job_for_want_of_place

        with job_for_want_of_place(source) as (client, job):
            names = _step_names(client, job)
            source, sizes = _last_sizes(client, job, uid and _uid_of(names, uid))
        say(f"from {source}", err=True)
    if as_json:
        for size in sizes:
            say(encoded(asdict(size) | {"subtask_sizes": list(size.subtask_sizes.items())}))
        return
    head: tuple[str, ...] = ("UID", "STATE", "KIND", "KEYS", "ENTRIES", "BYTES", "LARGEST KEY", "ITS BYTES")
    cells: list[tuple[str, ...]] = []
    for each in sizes:
        numbers = (f"{number:,}" for number in (each.keys, each.entries, each.size))
        cells.append((each.uid, each.state, each.kind, *numbers, _largest(each), f"{each.largest_size:,}"))
    if names:
        # A uid that the plan has derived means nothing to people.
        head, cells = ("STEP", *head), [(names.get(row[0], "-"), *row) for row in cells]
    print_table(head, cells)


def _sizes(source: str, uid: str | None) -> list[StateSize]:
    from sluiceway.savepoint.sizes import state_sizes

    with checkpoint_of(source, manager()) as place:
        return state_sizes(place, uid=uid, manager=manager())


def _last_sizes(client: ClusterClient, job: str, uid: str | None) -> tuple[str, list[StateSize]]:
    """Measure the last checkpoint of a job, again if a newer one has taken its place meanwhile."""
    for _ in range(_ATTEMPTS):
        place = client.latest_checkpoint(job)
        try:
            return place, _sizes(place, uid)
        except CheckpointError as error:
            problem = error
            # It is still the last one: no newer one explains the error.
            if client.latest_checkpoint(job) == place:
                break
    raise problem


def _step_names(client: ClusterClient, job: str) -> dict[str, str]:
    """Return the names of the steps of a job by their uids."""
    return {step.uid: step.name for vertex in client.describe(job).vertices for step in vertex.steps}


def _uid_of(names: Mapping[str, str], step: str) -> str:
    """Return the uid of the one step that a uid or a name means; ``step`` itself if there is none."""
    named = [uid for uid, name in names.items() if name == step]
    return named[0] if step not in names and len(named) == 1 else step


def _largest(size: StateSize) -> str:
    from sluiceway.savepoint.json_text import as_json as encoded

    return encoded(size.largest_key)[:40] if size.keys else "-"


@state.command("get", short_help="Show the state of one key, in a checkpoint or in a running job.")
@click.argument("source", metavar="JOB|PATH")
@click.option(
    "--uid", "--operator", "uid", metavar="UID", required=True, help="Uid of the step, of JOB also its name."
)
@click.option("--state", "name", metavar="NAME", required=True, help="Name of the state.")
@click.option(
    "--key", metavar="KEY", required=True, help="Key, as JSON or as text: 7, ann, '\"7\"', '[\"a\", 1]'."
)
@click.option("--map-key", metavar="KEY", help="Key of one entry of a map state, given like the key.")
@click.option("--namespace", metavar="JSON", help="Window or other namespace, as JSON; default: all namespaces.")
@click.option("--live", is_flag=True, help="Read from the running task instead of the last checkpoint.")
@click.option("--timeout", metavar="TIME", help="With --live: longest time to wait for the answer. Default: 10s.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per namespace.")
def get_state(
    source: str,
    uid: str,
    name: str,
    key: str,
    map_key: str | None,
    namespace: str | None,
    live: bool,
    timeout: str | None,
    as_json: bool,
) -> None:
    """Show the state of one key.

    JOB is the id or name of a job of the cluster: its last completed checkpoint is read, or with --live the task
    that has the key. PATH is the directory or URL of a checkpoint or savepoint. Nothing is unpickled that could
    run code. Reducing and aggregating state is shown as its value or accumulator, window state by namespace.
    """
    from sluiceway.savepoint.lookup import find_last_state, find_live_state, find_state, is_place

    if timeout is not None and not live:
        raise click.UsageError("--timeout goes with --live")
    if is_place(source):
        if live:
            raise click.UsageError(f"--live takes a job of the cluster, and {source} is a place")
        with checkpoint_of(source, manager()) as place:
            values = find_state(place, uid, name, key, namespace=namespace, map_key=map_key, manager=manager())
    else:
        from sluiceway.cli.jobs import job_for_want_of_place

        with job_for_want_of_place(source) as (client, job):
            uid = _uid_of(_step_names(client, job), uid)
            if live:
                within_s = _seconds(timeout or "10s")
                values = find_live_state(
                    client, job, uid, name, key, namespace=namespace, map_key=map_key, within_s=within_s
                )
            else:
                place, values = find_last_state(
                    client, job, uid, name, key, namespace=namespace, map_key=map_key, manager=manager()
                )
                say(f"from {place}", err=True)
    _show_values(values, as_json=as_json)


def _seconds(text: str) -> float:
    from sluiceway.config.settings import duration_ms

    try:
        return duration_ms(text) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--timeout") from None


def _show_values(values: list[KeyValue], *, as_json: bool) -> None:
    from dataclasses import asdict

    from sluiceway.savepoint.json_text import as_json as encoded

    if as_json:
        for value in values:
            say(encoded(asdict(value) | {"value": _shown(value.value)}))
    elif [value.namespace for value in values] == [()]:
        say(encoded(_shown(values[0].value)))
    else:
        print_table(("NAMESPACE", "VALUE"), [(encoded(v.namespace), encoded(_shown(v.value))) for v in values])


def _shown(value: object) -> object:
    """Convert a map whose keys are not text into pairs, as JSON objects have text keys only."""
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
        return [list(pair) for pair in value.items()]
    return value


@state.command()
@click.argument("path")
@_uid
@_name
@click.option("--to", "to", metavar="FILE", required=True, help="File or directory to write, as described above.")
@click.option(
    "--format", "format_", metavar="FORMAT", help="Format of the files in a directory. Default: parquet."
)
@click.option("--nested", is_flag=True, help="Write one row per key, with a list or a map as one value.")
@click.option("--allow-pickle", is_flag=True, help="Unpickle values of classes, which can run any code.")
def export(
    path: str, uid: str | None, name: str | None, to: str, format_: str | None, nested: bool, allow_pickle: bool
) -> None:
    """Write state in the checkpoint or savepoint PATH to files for other programs.

    --to is a file for one state, ending in .parquet, .csv, .jsonl or .arrow; or a directory, ending in /, that
    gets one file per state, called UID.STATE.FORMAT. Timers are the state "timers".
    """
    from sluiceway.savepoint.reader import SavedState

    with checkpoint_of(path, manager()) as place:
        _export_all(SavedState(place, allow_pickle, manager()).tables(uid, name), to, format_, nested=nested)


def _export_all(tables: list[SavedTable], to: str, format_: str | None, *, nested: bool) -> None:
    from sluiceway.savepoint.export import FORMATS, format_of

    tables = [table.nested for table in tables] if nested else tables
    if to.endswith("/"):
        if format_ is not None and format_ not in FORMATS:
            raise ConfigurationError(f"--format: {format_!r} is none of {', '.join(FORMATS)}")
        for table, file in _files(tables, to, format_ or "parquet"):
            _export(table, file)
        return
    format_of(to)
    if format_ is not None:
        raise ConfigurationError(f"--format goes with a directory: {to} says its format itself")
    if len(tables) != 1:
        found = ", ".join(f"{table.name!r} of {table.uid!r}" for table in tables) or "none"
        raise ConfigurationError(
            f"{to} takes one state, and there is {found}: choose by --operator and --state, or name a directory, "
            "ending in /, for all of them"
        )
    _export(tables[0], to)


def _export(table: SavedTable, file: str) -> None:
    with writing(f"--to {file}"):
        rows = table.write(file)
    say(f"{file}: {rows} rows of state {table.name!r} of operator {table.uid!r}")


def _files(tables: list[SavedTable], directory: str, format_: str) -> list[tuple[SavedTable, str]]:
    import os

    from sluiceway.util.file_names import file_name

    if "://" not in directory:
        with writing(f"--to {directory}"):
            os.makedirs(directory, exist_ok=True)
    taken: set[str] = set()
    found = []
    for table in tables:
        # Different names may become the same, so files that would be are numbered.
        base = name = file_name(f"{table.uid}.{table.name}") or "state"
        number = 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        found.append((table, f"{directory}{name}.{format_}"))
    return found
