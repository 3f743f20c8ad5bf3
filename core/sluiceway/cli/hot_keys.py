"""``sluiceway hot-keys``: keys with most of the records of the keyed steps of a job."""

from __future__ import annotations

import json

import click
import msgspec

from sluiceway.cli.jobs import id_of
from sluiceway.cli.output import say
from sluiceway.cli.tables import print_table

__all__ = ["hot_keys"]


@click.command("hot-keys", short_help="Show the keys with most records of a job.")
@click.argument("job")
@click.option("--step", metavar="NAME", help="Name or uid of a step. Default: all keyed steps.")
@click.option(
    "--seconds", type=click.FloatRange(min=0.1, max=60), default=5.0, show_default=True, help="Time to count."
)
@click.option(
    "--limit", type=click.IntRange(1, 50), default=10, show_default=True, help="Largest number of keys of a step."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def hot_keys(job: str, step: str | None, seconds: float, limit: int, as_json: bool) -> None:
    """Count the keys of the records that come to the keyed steps of JOB, an id or a name.

    Rare keys are not counted to the end: the number of a key may be too low by the margin that is shown.
    """
    from sluiceway.monitoring.key_samples import step_keys, vertices_of
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.cluster.client_keys import client_keys

    with ClusterClient() as client:
        job = id_of(client, job)
        vertices = vertices_of(client.describe(job), step)
        found = step_keys(client_keys(client, job, vertices, seconds), limit)
    if as_json:
        say(json.dumps(msgspec.to_builtins(found)))
        return
    for each in found:
        margin = f", margin {each.error:,}" if each.error else ""
        subtasks = f"{len(each.subtasks)} subtask{'s' * (len(each.subtasks) != 1)}"
        counted = f"{each.records:,} records in {each.seconds:.3g} s, {subtasks}, skew {each.skew:.0f} %{margin}"
        say(f"{each.step}: {counted}")
        rows = [(k.key, str(k.subtask + 1), f"{k.records:,}", f"{k.share:.1%}") for k in each.keys]
        print_table(("KEY", "SUBTASK", "RECORDS", "SHARE"), rows)
