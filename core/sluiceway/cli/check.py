"""``sluiceway check``."""

from __future__ import annotations

import json

import click

from sluiceway.cli import exitcodes
from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.target import load_pipeline

__all__ = ["check"]


@pipeline_command("check", "Find what is wrong with a pipeline, before it runs.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
def check(request: Request, as_json: bool) -> None:
    """Find what is wrong with the pipeline in TARGET, before anything runs.

    Exits with 2 if there are errors, with 0 if there are none, or warnings only.
    """
    with load_pipeline(request.target, request.arguments) as pipeline:
        findings = pipeline.check(**request.keywords)
    errors = sum(f.level.value == "error" for f in findings)
    if as_json:
        facts = [
            {"level": f.level.value, "code": f.code, "message": f.message, "step": f.node, "location": f.location}
            for f in findings
        ]
        click.echo(json.dumps(facts, indent=2))
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(_verdict(pipeline.name, errors, len(findings) - errors))
    if errors:
        click.get_current_context().exit(exitcodes.USAGE)


def _verdict(name: str, errors: int, warnings: int) -> str:
    counted = [f"{n} {word}{'s' * (n != 1)}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return f"pipeline {name!r}: {' and '.join(counted) or 'nothing wrong'}"
