"""``sluiceway config show``."""

from __future__ import annotations

import json
from typing import Final

import click

from sluiceway.cli.groups import Group
from sluiceway.cli.options import settings_options
from sluiceway.cli.tables import print_table
from sluiceway.config.settings import OPTIONS, Resolved
from sluiceway.util.redaction import redact_option

__all__ = ["config"]


@click.group(cls=Group)
def config() -> None:
    """Show the options of a run."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@settings_options
def show(resolved: Resolved, as_json: bool) -> None:
    """Show every option with its value and its origin.

    A flag has precedence over an environment variable (such as SLUICEWAY_PARALLELISM), which has precedence over
    sluiceway.toml or [tool.sluiceway] in pyproject.toml, the nearest one from the working directory upwards. Then
    come the defaults.
    """
    values = {n: redact_option(n, getattr(resolved.settings, option.field)) for n, option in OPTIONS.items()}
    if as_json:
        facts = {name: {"value": value, "from": resolved.origins[name]} for name, value in values.items()}
        click.echo(json.dumps({"file": resolved.file and str(resolved.file), "options": facts}, indent=2))
        return
    rows = [(name, _shown(name, value), resolved.origins[name]) for name, value in values.items()]
    print_table(("OPTION", "VALUE", "FROM"), rows)
    click.echo(f"\nConfiguration file: {resolved.file or 'none found'}")


_NONE: Final = {
    "max-parallelism": "from the parallelism",
    "log-level": "from the program",
    "seed": "chosen for each run",
}
"""Meaning of the value None of an option."""


def _shown(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if value is None:
        return _NONE.get(name, "none")
    if OPTIONS[name].field.endswith("_ms"):
        return "till a batch is full" if value == -1 else f"{value} ms"
    return str(value).lower() if isinstance(value, bool) else str(value)
