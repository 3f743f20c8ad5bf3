"""``sluiceway savepoint``: take savepoints of jobs of the cluster, and see what a pipeline makes of one."""

from __future__ import annotations

import json

import click

from sluiceway.cli.checkpoints import list_ as list_checkpoints
from sluiceway.cli.checkpoints import show as show_checkpoint
from sluiceway.cli.groups import Group
from sluiceway.cli.manager import manager
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.tables import print_table
from sluiceway.cli.target import load_pipeline
from sluiceway.errors import ConfigurationError

__all__ = ["savepoint"]


@click.group(cls=Group)
def savepoint() -> None:
    """Take savepoints of jobs, look into them, delete them."""


savepoint.add_command(list_checkpoints, "list")
savepoint.add_command(show_checkpoint, "show")


@savepoint.command()
@click.argument("job")
@click.argument("place", required=False)
def create(job: str, place: str | None) -> None:
    """Take a savepoint of JOB, a job of the running cluster, which goes on.

    The savepoint gets a directory of its own in PLACE, a directory or URL; without PLACE, where the checkpoints of
    the job are. Its name is printed when it is complete.
    """
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.savepoints import savepoint_place

    where = savepoint_place(place, None) if place else ""
    with ClusterClient() as client:
        click.echo(client.savepoint(job, where))


@pipeline_command("diff", "Show what a pipeline would make of the state in a savepoint.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON object.")
def diff(request: Request, as_json: bool) -> None:
    """Show which steps of the pipeline in TARGET go on with state of the savepoint in --from, and which do not.

    A checkpoint will do, too. Nothing runs. If the job would be refused, this says why and ends with exit code 2.
    """
    from sluiceway.runtime.local import job_graph_of
    from sluiceway.runtime.restoring import compare

    settings = request.resolved.settings
    if settings.from_checkpoint is None:
        raise click.UsageError("--from says which savepoint the pipeline is to be compared with")
    with load_pipeline(request.target, request.arguments) as pipeline:
        services = manager().services()
        graph = job_graph_of(pipeline.graph(settings), services)
        found = compare(settings.from_checkpoint, graph, services)
    if as_json:
        facts = {
            "savepoint": found.location,
            "steps": [
                {"uid": s.uid, "step": s.step, "what": s.what, "states": list(s.states)} for s in found.steps
            ],
            "refused": list(found.refused(settings.allow_dropped_state)),
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        rows = [(s.what, s.uid, s.step or "-", ", ".join(s.states) or "-") for s in found.steps]
        print_table(("WHAT", "UID", "STEP", "STATE"), rows)
    why = found.refused(settings.allow_dropped_state)
    if why:
        raise ConfigurationError("the job would be refused: " + "; ".join(why))


savepoint.add_command(diff)


@savepoint.command()
@click.argument("path")
def delete(path: str) -> None:
    """Delete the savepoint in the directory or URL PATH."""
    from sluiceway.checkpoints import METADATA, SAVEPOINT, load_metadata, split_location

    place, directory = split_location(path)
    storage = manager().checkpoint_storage(place)
    if load_metadata(storage, directory).kind != SAVEPOINT:
        raise ConfigurationError(f"{path} is a checkpoint: sluiceway checkpoints delete deletes it")
    storage.delete([f"{directory}/{METADATA}"])
    storage.delete([file.name for file in storage.files(directory)])
    click.echo(f"Deleted {path}.")
