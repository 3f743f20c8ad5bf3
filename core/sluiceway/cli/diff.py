"""``sluiceway diff``: what becomes of state when a pipeline changes, told before anything runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sluiceway import exit_codes
from sluiceway.cli.errors import warn
from sluiceway.cli.history import is_place
from sluiceway.cli.manager import manager
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.output import say
from sluiceway.cli.tables import print_table
from sluiceway.cli.target import load_pipeline

if TYPE_CHECKING:
    from sluiceway.runtime.jobmanager.state_compatibility import Comparison

__all__ = ["diff", "show_differences"]


@pipeline_command("diff", "Show the effect of a changed pipeline on its state.")
@click.argument("old")
@click.option(
    "--open",
    "open_functions",
    is_flag=True,
    help="Call open() of the functions to find the state that they register there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def diff(request: Request, old: str, open_functions: bool, as_json: bool) -> None:
    """Show which states of OLD the pipeline in TARGET keeps, adds and loses. Nothing runs.

    OLD is a checkpoint or savepoint, or a directory or URL with several, of which the newest is used; or an
    earlier version of the pipeline, FILE.py or package.module:NAME. If the job would lose state or be refused,
    the reason is shown and the exit code is 1. With --allow-dropped-state lost state is no failure.
    """
    why = show_differences(old, request, open_functions=open_functions, as_json=as_json)
    for reason in why:
        say(reason, err=True)
    if why:
        click.get_current_context().exit(exit_codes.FAILED)


def show_differences(old: str, request: Request, *, open_functions: bool, as_json: bool) -> tuple[str, ...]:
    """Print the differences. Return the reason if the job would be refused or lose state."""
    from sluiceway.runtime.jobmanager.state_compatibility import compare, earlier_job, saved_job
    from sluiceway.runtime.local.engine import job_graph_of

    settings = request.resolved.settings
    services = manager().services()
    if is_place(request.target):
        raise click.UsageError(f"{request.target} is no pipeline: the checkpoint or savepoint comes first")
    earlier = None
    if not is_place(old):
        with load_pipeline(old, request.arguments) as pipeline:
            before = job_graph_of(pipeline.graph(settings), services)
            earlier = earlier_job(before, settings, services, open_functions=open_functions)
    with load_pipeline(request.target, request.arguments) as pipeline:
        graph = job_graph_of(pipeline.graph(settings), services)
        earlier = earlier or saved_job(old, graph, services)
        found = compare(earlier, graph, settings, services, open_functions=open_functions)
    why = found.refused(settings.allow_dropped_state)
    if as_json:
        say(json.dumps(_facts(found, why), indent=2))
        return why
    rows = [row for step in found.steps for row in _rows(step)]
    if rows:
        print_table(("WHAT", "UID", "STEP", "STATE", "TYPE"), rows)
    else:
        say("Neither has state.")
    for uid, problem in found.unasked.items():
        told = problem or "its function says that in open(), which is called with --open"
        warn(f"not all states of step {uid!r} are known: {told}")
    if found.derived:
        names = ", ".join(map(repr, found.derived))
        warn(
            f"{names}: these uids come from the shape of the pipeline and change with it; give the steps .uid(...)"
        )
    return why


def _rows(step: Any) -> list[tuple[str, str, str, str, str]]:
    name = step.step or "-"
    if not step.changes:
        return [(step.what, step.uid, name, "-", "-")]
    return [
        (
            step.what if step.what == "refused" else change.what,
            step.uid,
            name,
            change.name,
            f"{change.old} -> {change.new}"
            if change.old and change.new and change.old != change.new
            else change.new or change.old or "-",
        )
        for change in step.changes
    ]


def _facts(found: Comparison, why: tuple[str, ...]) -> dict[str, Any]:
    return {
        "old": found.location,
        "steps": [
            {
                "uid": s.uid,
                "step": s.step,
                "what": s.what,
                "states": [{"name": c.name, "what": c.what, "old": c.old, "new": c.new} for c in s.changes],
            }
            for s in found.steps
        ],
        "unasked": dict(found.unasked),
        "derived_uids": list(found.derived),
        "records_lost_on": list(found.lost_on),
        "refused": list(why),
    }
