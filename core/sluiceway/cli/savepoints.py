"""``sluiceway savepoint``: take savepoints of jobs of the cluster, and see what a pipeline makes of one."""

from __future__ import annotations

from difflib import get_close_matches

import click

from sluiceway.cli.checkpoints import list_ as list_checkpoints
from sluiceway.cli.checkpoints import show as show_checkpoint
from sluiceway.cli.diff import show_differences
from sluiceway.cli.groups import Group
from sluiceway.cli.habits import refused_option
from sluiceway.cli.jobs import id_of
from sluiceway.cli.manager import manager
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.output import say
from sluiceway.errors import ConfigurationError
from sluiceway.util.overriding import override

__all__ = ["savepoint"]


class _Savepoints(Group):
    """``savepoint JOB [PLACE]`` is ``savepoint create JOB [PLACE]``, but where JOB is nearly a command's name."""

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or name in self.commands:
            return super().resolve_command(ctx, args)
        if get_close_matches(name, self.commands, n=1, cutoff=0.75):
            return super().resolve_command(ctx, args)
        return create.name, create, args


@click.group(cls=_Savepoints, subcommand_metavar="JOB | COMMAND [ARGS]...")
@refused_option("--dispose", "-d", hint="to delete a savepoint: sluiceway savepoint delete PATH")
def savepoint() -> None:
    """Take, inspect and delete savepoints. With JOB this is the command create."""


savepoint.add_command(list_checkpoints, "list")
savepoint.add_command(show_checkpoint, "show")
savepoint.add_command(show_checkpoint, "inspect")


@savepoint.command()
@click.argument("job")
@click.argument("place", required=False)
def create(job: str, place: str | None) -> None:
    """Take a savepoint of JOB, the id or name of a job of the running cluster. The job keeps running.

    The savepoint gets a directory of its own in PLACE, a directory or URL. Default: the directory of the job's
    checkpoints. The directory is printed when the savepoint is complete.
    """
    from sluiceway.runtime.cluster.client import ClusterClient
    from sluiceway.runtime.jobmanager.checkpoint_places import savepoint_place

    where = savepoint_place(place, None) if place else ""
    with ClusterClient() as client:
        say(client.savepoint(id_of(client, job), where))


@pipeline_command("diff", "Show what a pipeline would make of the state in a savepoint.")
@click.option(
    "--open",
    "open_functions",
    is_flag=True,
    help="Call open() of the functions to find the state that they register there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def diff(request: Request, open_functions: bool, as_json: bool) -> None:
    """Show which steps of the pipeline in TARGET restore state of the savepoint in --from.

    Checkpoints work as well. Nothing runs. If the job would be refused, the reason is shown and the exit code is
    2.
    """
    place = request.resolved.settings.from_checkpoint
    if place is None:
        raise click.UsageError("--from says which savepoint the pipeline is to be compared with")
    why = show_differences(place, request, open_functions=open_functions, as_json=as_json)
    if why:
        raise ConfigurationError("the job would be refused: " + "; ".join(why))


savepoint.add_command(diff)


@savepoint.command()
@click.argument("path")
def delete(path: str) -> None:
    """Delete the savepoint in the directory or URL PATH."""
    from sluiceway.checkpoint import METADATA, SAVEPOINT, load_metadata, split_location
    from sluiceway.checkpoint.files import join

    place, directory = split_location(path)
    storage = manager().checkpoint_storage(place)
    metadata = load_metadata(storage, directory)
    if metadata.kind != SAVEPOINT:
        raise ConfigurationError(f"{path} is a checkpoint: sluiceway checkpoints delete deletes it")
    # First: what an interrupted deletion leaves is no savepoint without its metadata.
    storage.delete([join(directory, METADATA)])
    # Only its own files: others may be in the directory or below it.
    storage.delete([join(directory, name) for name in sorted(metadata.files()) if not name.startswith("../")])
    say(f"Deleted {path}.")
