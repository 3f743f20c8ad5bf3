"""Projects that ``sluiceway new`` writes, and the function that fills one in.

A template is a directory beside this file: a complete, working project about a thing called ``myplugin`` (or
``mypipeline``). Making a project of it copies the files and replaces that word, in file names and in text, in
the spellings that occur: ``myplugin`` (names of plugins and of packages), ``my-plugin`` (names of
distributions) and ``MyPlugin`` (names of classes). There is no template language, so a template can be linted
and tested as it stands.
"""

from __future__ import annotations

import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sluiceway.errors import ConfigurationError, choose

__all__ = ["TEMPLATES", "instantiate"]

TEMPLATES: Final = ("pipeline", "pipeline_kafka", "plugin")
"""Names of the templates: those of their directories. The part before ``_`` is the kind of project."""

_HERE: Final = Path(__file__).parent
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_TAKEN: Final = sys.stdlib_module_names | {"sluiceway", "tests"}
_LEFT_OUT: Final = frozenset({"__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache"})


def instantiate(template: str, name: str, target: Path) -> list[Path]:
    """Write a new project.

    Args:
        template: one of :data:`TEMPLATES`.
        name: what the project is about, in lower case: ``mqtt``, ``click-counts``. A plugin's distribution is
            called ``sluiceway-NAME`` and its package ``sluiceway_NAME``; a pipeline's bear the name alone.
        target: the project's directory: made here, or there already and empty.

    Returns:
        the files written, as paths under ``target``, sorted.

    Raises:
        UnknownNameError: there is no such template.
        ConfigurationError: the name cannot be a package's, or is that of one that exists, or the target has
            something in it. Nothing was written.
    """
    if template not in TEMPLATES:
        raise choose("template", template, TEMPLATES)
    kind = template.partition("_")[0]
    if kind == "plugin":
        name = re.sub(r"^sluiceway[-_]", "", name)
    _check_name(kind, name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigurationError(
            f"{target} is there already and is not an empty directory: give another directory, or move it away"
        )

    def own(text: str) -> str:
        return (
            text.replace(f"my{kind}", name.replace("-", "_"))
            .replace(f"my-{kind}", name.replace("_", "-"))
            .replace(f"My{kind.capitalize()}", "".join(w.capitalize() for w in re.split("[-_]", name)))
        )

    origin = _HERE / template
    written = []
    for path in sorted(origin.rglob("*")):
        relative = path.relative_to(origin)
        if path.is_dir() or _LEFT_OUT.intersection(relative.parts):
            continue
        copy = target / own(str(relative))
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(own(path.read_text(encoding="utf-8")), encoding="utf-8")
        written.append(copy)
    return sorted(written)


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {kind}: take lower-case letters, digits and single '-' or '_', "
            "starting with a letter, as in 'click-counts'"
        )
    if kind == "pipeline" and (keyword.iskeyword(name) or name in _TAKEN):
        taken = "a module of that name exists already"
        raise ConfigurationError(f"{name!r} cannot be the name of a pipeline: {taken}")
    package = f"sluiceway_{name.replace('-', '_')}"
    # Two packages of one name hide each other, and so does the plugin that Sluiceway brings.
    if kind == "plugin" and find_spec(package) is not None:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a plugin: a package {package} is installed already"
        )
