"""``sluiceway version``."""

from __future__ import annotations

import click

from sluiceway.cli.output import say

__all__ = ["version"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def version(as_json: bool) -> None:
    """Show the version of Sluiceway, Python and the system."""
    import json
    import platform
    from importlib import metadata

    facts = {
        "sluiceway": metadata.version("sluiceway"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if as_json:
        say(json.dumps(facts))
    else:
        say(f"sluiceway {facts['sluiceway']} (Python {facts['python']}, {facts['system']})")
