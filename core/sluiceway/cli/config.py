"""``sluiceway config show``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from sluiceway.cli.groups import Group
from sluiceway.cli.manager import manager
from sluiceway.cli.options import settings_options
from sluiceway.cli.output import say
from sluiceway.cli.tables import print_table
from sluiceway.config.settings import OPTIONS, Resolved
from sluiceway.errors import ConfigurationError, choose
from sluiceway.util.redaction import redact_option

if TYPE_CHECKING:
    from collections.abc import Callable

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
    come the defaults. Unknown names of plugins and strategies are refused, as in a run.
    """
    _check_names(resolved)
    values = {n: redact_option(n, getattr(resolved.settings, option.field)) for n, option in OPTIONS.items()}
    if as_json:
        facts = {name: {"value": value, "from": resolved.origins[name]} for name, value in values.items()}
        say(json.dumps({"file": resolved.file and str(resolved.file), "options": facts}, indent=2))
        return
    rows = [(name, _shown(name, value), resolved.origins[name]) for name, value in values.items()]
    print_table(("OPTION", "VALUE", "FROM"), rows)
    say(f"\nConfiguration file: {resolved.file or 'none found'}")


def _check_names(resolved: Resolved) -> None:
    """Raise UnknownNameError for a name that nothing has, with where it comes from. Nothing is loaded."""
    from sluiceway.plugins.kinds import ENGINE, METRICS_REPORTER, STATE_BACKEND, TRANSPORT
    from sluiceway.scheduler import restart_strategy

    settings, find = resolved.settings, manager().find
    checks: list[tuple[str, Callable[[], object]]] = [
        ("engine", lambda: find(ENGINE, settings.engine)),
        ("state-backend", lambda: find(STATE_BACKEND, settings.state_backend)),
        ("transport", lambda: settings.transport == "auto" or find(TRANSPORT, settings.transport)),
        ("metrics", lambda: [find(METRICS_REPORTER, name) for name in settings.metrics]),
        ("restart", lambda: restart_strategy(settings.restart)),
        ("scheduler", lambda: _check_scheduler(settings.scheduler)),
    ]
    for option, check in checks:
        try:
            check()
        except ConfigurationError as error:
            raise type(error)(f"{resolved.origins[option]}: {error}") from None


def _check_scheduler(name: str) -> None:
    from sluiceway.scheduler import SCHEDULERS

    if name not in SCHEDULERS:
        raise choose("scheduling strategy", name, SCHEDULERS)


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
