"""``sluiceway new``."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import click

from sluiceway.cli.groups import Group
from sluiceway.cli.output import say
from sluiceway.cli.written_files import writing
from sluiceway.templates import instantiate

__all__ = ["new"]


class _Kinds(Group):
    """Kinds of projects, one of which has to stand before the name."""

    def other_hint(self, name: str) -> str:
        """Return how a project of that name is made, unless a kind is spelled like it."""
        if get_close_matches(name, _TEXTS, n=1):
            return ""
        return "For a project of that name: " + " or ".join(f"sluiceway new {kind} {name}" for kind in _TEXTS)


@click.group(cls=_Kinds)
def new() -> None:
    """Create a project."""


def _directory(template: str, name: str) -> Path:
    if template == "plugin" and not name.startswith(("sluiceway-", "sluiceway_")):
        return Path(f"sluiceway-{name}")
    return Path(name)


def _command(template: str, text: str) -> click.Command:
    @click.argument("name")
    @click.option(
        "--directory",
        "-d",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Directory of the project, new or empty. Default: the name of the project.",
    )
    def begin(name: str, directory: Path | None, kafka: bool = False) -> None:
        target = directory or _directory(template, name)
        with writing(str(target)):
            written = instantiate(f"{template}_kafka" if kafka else template, name, target)
        for path in written:
            say(str(path))
        say(f"\n{target} is ready; {target / 'README.md'} says how to go on.")

    if template == "pipeline":
        begin = click.option("--kafka", is_flag=True, help="Read from and write to Apache Kafka.")(begin)
    return click.command(template, help=text)(begin)


_TEXTS = {
    "pipeline": "Create a project with a pipeline and its test.",
    "plugin": "Create a plugin: a distribution with a source, a sink and conformance tests.",
}

for _template, _text in _TEXTS.items():
    new.add_command(_command(_template, _text))
