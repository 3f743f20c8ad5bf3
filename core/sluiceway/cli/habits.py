"""Options and commands of Flink's command line: what works in their place here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

__all__ = ["COMMANDS", "hint_for", "refused_option", "translated"]

_SAME: Final = {
    "-s": "--from",
    "--fromSavepoint": "--from",
    "-n": "--allow-dropped-state",
    "--allowNonRestoredState": "--allow-dropped-state",
}
"""Options of ``flink run`` before the target, and ours that mean the same."""

_DETACHED: Final = (
    "sluiceway submit TARGET hands it to the cluster that sluiceway cluster start starts, and returns"
)
_ENTRY: Final = "name the pipeline with the target: FILE.py:NAME or package.module:NAME"
_PLACE: Final = "sluiceway run needs no cluster, and sluiceway submit uses that of this user on this machine"
_FILE: Final = "the target is the file itself: sluiceway run FILE.py"
_FILES: Final = "modules beside the file are found; list other directories in PYTHONPATH"
_SETTING: Final = "settings are options, as --checkpoint-interval 10s, or lines of sluiceway.toml"
_HINTS: Final = {
    "-d": _DETACHED,
    "--detached": _DETACHED,
    "-c": _ENTRY,
    "--class": _ENTRY,
    "-pym": _ENTRY,
    "--pyModule": _ENTRY,
    "-py": _FILE,
    "--python": _FILE,
    "-pyfs": _FILES,
    "--pyFiles": _FILES,
    "-m": _PLACE,
    "--jobmanager": _PLACE,
    "-t": _PLACE,
    "--target": _PLACE,
    "-D": _SETTING,
}

COMMANDS: Final = {
    "info": "explain",
    "plan": "explain",
    "validate": "check",
    "ps": "list",
    "jobs": "list",
    "status": "cluster status",
    "start": "cluster start",
    "kill": "cancel",
    "savepoints": "savepoint",
    "checkpoint": "checkpoints",
    "run-application": "submit",
    "init": "new",
}
"""Commands of other programs, and ours that do that."""


def hint_for(option: str) -> str:
    """Return what to do instead of giving an option of ``flink run``; empty if it is not one."""
    name = option.partition("=")[0]
    if name in _SAME:
        return _SAME[name]
    return _HINTS.get(name, _SETTING if name.startswith("-D") else "")


def translated(ctx: click.Context, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with those options of ``flink run`` replaced that stand before the target.

    What stands behind it is the script's.

    Raises:
        click.UsageError: one of them is for something that works in another way here; says which.
    """
    takes_value = {
        name: not option.is_flag
        for option in ctx.command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }
    made = list(arguments)
    at = 0
    while at < len(made) and made[at].startswith("-") and made[at] not in ("-", "--"):
        name, equals, value = made[at].partition("=")
        if name not in takes_value:
            if name in _SAME and _SAME[name] in takes_value:
                name = _SAME[name]
                made[at] = name + equals + value
            elif hint := hint_for(name):
                raise click.UsageError(f"there is no option {name}: {hint}", ctx)
        elif equals and takes_value[name] and not name.startswith("--"):
            made[at : at + 1] = [name, value]  # -p=2, which click takes for -p "=2"
            equals = ""
        at += 1 if equals or not takes_value.get(name) else 2
    return made


def refused_option(*names: str, hint: str) -> Callable[[Any], Any]:
    """Return a decorator for a command: an option that is not listed, and refused with a hint.

    Args:
        names: of the option.
        hint: what to do instead.
    """

    def refuse(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value:
            raise click.UsageError(f"there is no option {names[-1]}: {hint}", ctx)

    # Eager: it may have a value, which would be one argument too many.
    return click.option(
        *names, "_refused", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=refuse
    )
