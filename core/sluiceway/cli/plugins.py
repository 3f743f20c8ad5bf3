"""``sluiceway plugins``."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import packages_distributions
from typing import Any

import click

from sluiceway.cli.app import COMMANDS
from sluiceway.cli.groups import Group
from sluiceway.cli.manager import manager
from sluiceway.cli.output import say
from sluiceway.cli.tables import print_table
from sluiceway.errors import PluginError, choose
from sluiceway.plugins import Offered, Plugin
from sluiceway.plugins.kinds import CLI_COMMAND
from sluiceway.util.install_hints import install_command

__all__ = ["plugins"]


@click.group(cls=Group)
def plugins() -> None:
    """List plugins and what they offer."""


def _state(offered: Offered) -> str:
    if offered.rivals:
        return "offered more than once"
    if missing := offered.absent:
        how = f": {offered.install}" if offered.install else ""
        return f"needs {' and '.join(missing)}{how}"
    return f"broken: {broken}" if (broken := _why_broken(offered)) else "available"


def _why_broken(offered: Offered) -> str:
    """Return why an offer cannot be used although its libraries are installed; empty if it can."""
    if offered.absent or offered.rivals:
        return ""
    if offered.kind is CLI_COMMAND and offered.offer.name in COMMANDS:
        return f"'sluiceway {offered.offer.name}' is a command of Sluiceway's own, which comes first"
    return _broken_library(offered) or _short(_try(offered) or "")


def _broken_library(offered: Offered) -> str:
    """Return which library of an offer is installed and cannot be imported, and why; empty if all can."""
    for module in (*offered.offer.requires, *offered.offer.libraries):
        try:
            import_module(module)
        except Exception as error:  # a library may raise anything, or be built for another Python
            what = _distributions_of(module) or [module.partition(".")[0]]
            return f"{module} cannot be imported ({_short(error)}): {install_command('--force-reinstall', *what)}"
    return ""


def _distributions_of(module: str) -> list[str]:
    """Return the distributions that a module comes from, by their names."""
    return sorted(set(packages_distributions().get(module.partition(".")[0], [])))


def _short(error: object) -> str:
    """Format an error as one line."""
    said = str(error).strip().partition("\n")[0]
    if isinstance(error, Exception):
        return f"{type(error).__name__}: {said}" if said else type(error).__name__
    return said


def _facts(offered: Offered) -> dict[str, Any]:
    broken = _why_broken(offered)
    return {
        "kind": offered.kind.word,
        "name": offered.offer.name,
        "summary": offered.offer.summary,
        "plugin": offered.plugin.name,
        "distribution": offered.plugin.distribution,
        "version": offered.plugin.version,
        "module": offered.plugin.target,
        "available": not (offered.absent or offered.rivals or broken),
        "requires": [*offered.offer.requires, *offered.offer.libraries],
        "missing": offered.absent,
        "broken": broken,
        "install": offered.install,
        "rivals": [rival.name for rival in offered.rivals],
    }


def _plugin_facts(plugin: Plugin) -> dict[str, str]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": plugin.target,
        "state": plugin.state,
    }


@plugins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def list_(as_json: bool) -> None:
    """List everything that plugins offer: kind, name, version, origin, and if it can be used.

    Each offer is loaded with the libraries that it needs. A missing or broken library is shown with the reason
    and the command that installs it.
    """
    found = manager()
    if as_json:
        # What a plugin prints while it is imported is no part of the object.
        with redirect_stdout(sys.stderr):
            facts = {
                "plugins": [_plugin_facts(p) for p in found.plugins],
                "offers": [_facts(o) for o in found.all_offers()],
                "problems": [p.message for p in found.problems],
            }
        say(json.dumps(facts, indent=2))
        return
    offers = found.all_offers()
    rows = [
        (
            o.kind.word,
            o.offer.name,
            o.plugin.version or "-",
            f"{o.plugin.name} ({o.plugin.distribution})",
            _state(o),
        )
        for o in offers
    ]
    print_table(("KIND", "NAME", "VERSION", "PLUGIN", "STATE"), rows)
    offering = {(o.plugin.name, o.plugin.distribution) for o in offers}
    silent = [p for p in found.plugins if (p.name, p.distribution) not in offering]
    if silent:
        say()
        print_table(
            ("PLUGIN", "VERSION", "DISTRIBUTION", "STATE"),
            [(p.name, p.version or "-", p.distribution, _why_silent(p)) for p in silent],
        )


def _why_silent(plugin: Plugin) -> str:
    return "offers nothing" if plugin.state == "loaded" else plugin.state


@plugins.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def show(name: str, as_json: bool) -> None:
    """Show the offer or plugin NAME and load it."""
    found = manager()
    with redirect_stdout(sys.stderr):
        offers = found.all_offers()
    named = [o for o in offers if name in (o.offer.name, o.plugin.name)]
    bare = [p for p in found.plugins if p.name == name and not any(o.plugin == p for o in named)]
    if not named and not bare:
        raise choose("plugin or offer", name, {*(o.offer.name for o in offers), *(p.name for p in found.plugins)})
    if as_json:
        with redirect_stdout(sys.stderr):
            facts = {
                "plugins": [_plugin_facts(p) for p in bare],
                "offers": [{**_facts(o), "error": _try(o)} for o in named],
            }
        say(json.dumps(facts, indent=2))
        return
    for offered in named:
        plugin = offered.plugin
        error = None if not offered.absent and _broken_library(offered) else _try(offered)
        say(f"{offered.kind.word} {offered.offer.name!r}")
        for label, text in (
            ("what it is", offered.offer.summary),
            ("plugin", f"{plugin.name} ({plugin.target})"),
            ("comes from", plugin.origin),
            ("needs", ", ".join((*offered.offer.requires, *offered.offer.libraries))),
            ("state", f"not available: {error}" if error else _state(offered)),
        ):
            if text:
                say(f"  {label + ':':<12}{text}")
    for plugin in bare:
        say(f"plugin {plugin.name!r}")
        say(f"  {'module:':<12}{plugin.target}")
        say(f"  {'comes from:':<12}{plugin.origin}")
        say(f"  {'state:':<12}{_why_silent(plugin)}")


def _try(offered: Offered) -> str | None:
    try:
        manager().check(offered.kind, offered.offer.name)
    except PluginError as error:
        return str(error)
    return None
