"""``sluiceway state``: what is in checkpoints and savepoints, shown and exported without a job's code."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

import click

from sluiceway.cli.extracts import checkpoint_of
from sluiceway.cli.groups import Group
from sluiceway.cli.manager import manager
from sluiceway.cli.tables import print_table
from sluiceway.errors import ConfigurationError

if TYPE_CHECKING:
    from sluiceway.api.statedata import SavedTable

__all__ = ["state"]

_uid = click.option("--uid", "--operator", "uid", metavar="UID", help="Only of the step with this uid.")
_name = click.option("--state", "name", metavar="NAME", help="Only the state of this name.")


@click.group(cls=Group)
def state() -> None:
    """Look into the state in checkpoints and savepoints."""


@state.command("show")
@click.argument("path")
@_uid
@_name
@click.option("--limit", type=click.IntRange(0), default=100, help="At most so many rows; 0: all. Default: 100.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
def show_state(path: str, uid: str | None, name: str | None, limit: int, as_json: bool) -> None:
    """Show the state in the checkpoint in the directory or URL PATH. Nothing is unpickled that could run code.

    PATH may be the directory of a run in micro-batches, too, of which the keyed state is shown.
    """
    from dataclasses import asdict

    from sluiceway.api.statedata import StateRows
    from sluiceway.api.statedata.texts import as_json as encoded

    with checkpoint_of(path, manager()) as place:
        found = iter(StateRows(place, uid, name, False, manager()))
        rows = list(islice(found, limit or None))
        more = limit and next(found, None) is not None
    if as_json:
        for row in rows:
            click.echo(encoded(asdict(row) | {"key": row.key, "namespace": row.namespace, "value": row.value}))
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
        click.echo(f"There is more than these {limit} rows: --limit 0 shows all.", err=True)


@state.command()
@click.argument("path")
@_uid
@_name
@click.option("--to", "to", metavar="FILE", required=True, help="Where to: see above.")
@click.option("--format", "format_", metavar="FORMAT", help="Of the files in a directory; default: parquet.")
@click.option("--nested", is_flag=True, help="One row per key: lists and maps as one value each.")
@click.option("--allow-pickle", is_flag=True, help="Unpickle values of classes too, which can run any code.")
def export(
    path: str, uid: str | None, name: str | None, to: str, format_: str | None, nested: bool, allow_pickle: bool
) -> None:
    """Write state in the checkpoint or savepoint PATH into files that other programs read.

    --to names a file that ends in .parquet, .csv, .jsonl or .arrow, for one state; or a directory, ending in /,
    that gets a file for each state, called UID.STATE.FORMAT. Timers are the state "timers".
    """
    from sluiceway.api.statedata.saved import SavedState

    with checkpoint_of(path, manager()) as place:
        _export_all(SavedState(place, allow_pickle, manager()).tables(uid, name), to, format_, nested=nested)


def _export_all(tables: list[SavedTable], to: str, format_: str | None, *, nested: bool) -> None:
    from sluiceway.api.statedata.exporting import FORMATS, format_of

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
    rows = table.write(file)
    click.echo(f"{file}: {rows} rows of state {table.name!r} of operator {table.uid!r}")


def _files(tables: list[SavedTable], directory: str, format_: str) -> list[tuple[SavedTable, str]]:
    import os

    if "://" not in directory:
        os.makedirs(directory, exist_ok=True)
    taken: set[str] = set()
    found = []
    for table in tables:
        base = name = re.sub(r"[^\w.-]+", "-", f"{table.uid}.{table.name}")
        number = 1
        while name in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name)
        found.append((table, f"{directory}{name}.{format_}"))
    return found
