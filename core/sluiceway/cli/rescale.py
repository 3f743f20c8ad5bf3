"""``sluiceway rescale``: change the parallelism of a job of the cluster while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sluiceway.cli.jobs import id_of
from sluiceway.cli.output import say

if TYPE_CHECKING:
    from sluiceway.monitoring.infos import JobDescription, RescaleInfo

__all__ = ["rescale"]


@click.command()
@click.argument("job")
@click.option(
    "--parallelism",
    "-p",
    type=click.IntRange(1, 32_768),
    metavar="N",
    help="Parallelism of all steps for which the program sets none.",
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    metavar="NAME=N",
    help="Parallelism of one step, by its name or uid, and of the steps chained to it. May be repeated.",
)
def rescale(job: str, parallelism: int | None, steps: tuple[str, ...]) -> None:
    """Change the parallelism of a job of the running cluster. JOB is its id, or its name if no other job has it.

    The job takes a checkpoint, stops, and continues from it at the new parallelism; it keeps its id and history.
    If the cluster does not have the slots, nothing is stopped. If the job cannot start at the new parallelism, it
    continues at the old one. The parallelism of each chain of steps is printed.
    """
    from sluiceway.runtime.cluster.client import ClusterClient

    wanted = _steps(steps)
    if parallelism is None and not wanted:
        raise click.UsageError("give --parallelism N, or --step NAME=N, or both")
    with ClusterClient() as client:
        job = id_of(client, job)
        info = client.rescale(job, parallelism, wanted)
        _show(info, client.describe(job))
    if info.before == info.after:
        say(f"{job} has that parallelism already", err=True)
    else:
        say(f"{job} was stopped for {info.stopped_ms} ms", err=True)


def _steps(texts: tuple[str, ...]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for text in texts:
        name, equals, count = text.rpartition("=")
        if not equals or not name or not count.isdecimal() or int(count) < 1:
            raise click.BadParameter(f"{text!r} is not NAME=N, such as count=4", param_hint="--step")
        wanted[name] = int(count)
    return wanted


def _show(info: RescaleInfo, description: JobDescription) -> None:
    names = {vertex.uid: vertex.name for vertex in description.vertices}
    for uid, count in info.after.items():
        before = info.before.get(uid, count)
        say(
            f"{names.get(uid, uid)}: {before} -> {count}" if before != count else f"{names.get(uid, uid)}: {count}"
        )
