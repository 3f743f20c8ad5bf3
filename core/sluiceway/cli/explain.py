"""``sluiceway explain``."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import click

from sluiceway.cli.options import Request, pipeline_command
from sluiceway.cli.output import say
from sluiceway.cli.target import load_pipeline

__all__ = ["explain"]

_Format: TypeAlias = Literal["text", "mermaid", "json", "html"]


@pipeline_command("explain", "Show the plan of a pipeline.")
@click.option("--format", "form", type=click.Choice(get_args(_Format)), default="text", help="Output format.")
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
def explain(request: Request, form: _Format, as_json: bool) -> None:
    """Show the plan of the pipeline in TARGET: its steps, chains and edges."""
    with load_pipeline(request.target, request.arguments) as pipeline:
        plan = pipeline.explain("json" if as_json else form, **request.keywords)
    say(plan)
