"""``sluiceway flamegraph``: Python functions in which a job spends its time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TextIO

import click
import msgspec

from sluiceway.cli.jobs import id_of
from sluiceway.errors import choose
from sluiceway.util.visible_text import visible_on

if TYPE_CHECKING:
    from sluiceway.monitoring.infos import JobDescription
    from sluiceway.monitoring.stack_samples import Kind

__all__ = ["flamegraph"]


@click.command(short_help="Draw the functions in which a job spends its time.")
@click.argument("job")
@click.option(
    "-o", "--output", type=click.File("w"), default="-", metavar="FILE", help="File to write. Default: stdout."
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1, max=60), default=5.0, show_default=True, help="Time to sample."
)
@click.option(
    "--rate", type=click.FloatRange(min=1, max=250), default=50.0, show_default=True, help="Samples per second."
)
@click.option(
    "--cpu",
    type=click.Choice(["full", "on", "off"]),
    default="full",
    show_default=True,
    help="Samples to count: all, with the thread on a CPU, or off it.",
)
@click.option("--task", metavar="NAME", help="One task only: its name, or name or uid of one of its steps.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["svg", "folded", "json"]),
    default="svg",
    show_default=True,
    help="svg: a picture. folded: lines for other flame graph tools. json: a tree.",
)
def flamegraph(
    job: str, output: TextIO, seconds: float, rate: float, cpu: str, task: str | None, form: str
) -> None:
    """Sample the Python stacks of JOB, an id or a name, and write a flame graph.

    The wider a bar, the more samples had the function on the stack. Functions of the engine are grey. A task that
    waits for records has no samples.
    """
    from sluiceway.monitoring.flame_svg import flame_svg
    from sluiceway.monitoring.stack_samples import flame_graph, folded
    from sluiceway.runtime.cluster.client import ClusterClient

    kinds: dict[str, Kind] = {"full": "full", "on": "on_cpu", "off": "off_cpu"}
    with ClusterClient() as client:
        job = id_of(client, job)
        vertex = None if task is None else _vertex(client.describe(job), task)
        processes = client.sample_stacks(job, seconds, rate)
    if form == "folded":
        text = "".join(f"{line}\n" for line in folded(processes, kinds[cpu], vertex))
        output.write(visible_on(output, text))
        return
    tree = flame_graph(processes, kinds[cpu], vertex)
    if form == "json":
        output.write(json.dumps(msgspec.to_builtins(tree)) + "\n")
    else:
        where = job if task is None else f"{job}, {task}"
        output.write(flame_svg(tree, f"{where}: {seconds:g} s at {rate:g} Hz, {cpu} CPU"))


def _vertex(description: JobDescription, task: str) -> int:
    for vertex in description.vertices:
        if task in (vertex.name, vertex.uid) or any(task in (step.uid, step.name) for step in vertex.steps):
            return vertex.id
    raise choose("task", task, [vertex.name for vertex in description.vertices])
