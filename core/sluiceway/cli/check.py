"""``sluiceway check``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sluiceway import exit_codes
from sluiceway.cli.manager import manager
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.output import say
from sluiceway.cli.target import load_pipeline
from sluiceway.config.settings import Settings
from sluiceway.errors import GraphError

if TYPE_CHECKING:
    from sluiceway.api import Pipeline

__all__ = ["check"]


@pipeline_command("check", "Check a pipeline without running it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def check(request: Request, as_json: bool) -> None:
    """Check the pipeline in TARGET without running it.

    An error is what 'sluiceway run' would refuse. The exit code is 2 if the pipeline has errors, 3 if something
    outside the pipeline cannot be used, such as a plugin or a checkpoint, and 0 if it has at most warnings.
    """
    with load_pipeline(request.target, request.arguments) as pipeline:
        findings = pipeline.check(**request.keywords)
        where = _where(pipeline, request.resolved.settings)
    errors = sum(f.level.value == "error" for f in findings)
    if as_json:
        facts = [
            {"level": f.level.value, "code": f.code, "message": f.message, "step": f.node, "location": f.location}
            for f in findings
        ]
        say(json.dumps(facts, indent=2))
    else:
        for finding in findings:
            say(str(finding))
        say(_verdict(f"pipeline {pipeline.name!r}{where}", errors, len(findings) - errors))
    if errors:
        outside = any(f.code == "unavailable" for f in findings)
        click.get_current_context().exit(exit_codes.OUTSIDE if outside else exit_codes.USAGE)


def _verdict(name: str, errors: int, warnings: int) -> str:
    counted = [f"{n} {word}{'s' * (n != 1)}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return f"{name}: {' and '.join(counted) or 'nothing wrong'}"


def _where(pipeline: Pipeline, settings: Settings) -> str:
    """Return how an engine other than the local one would run the pipeline, if it has several ways."""
    if settings.engine == Settings().engine:
        return ""
    from sluiceway.graph.check.features import is_bounded

    try:
        graph = pipeline._unfinished_graph(settings)
    except GraphError:  # which is among the findings
        return ""
    return f" on {manager().engine(settings.engine).capabilities(settings, bounded=is_bounded(graph)).engine}"
