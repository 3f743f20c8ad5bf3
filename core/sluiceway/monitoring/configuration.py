"""Configuration of a process, as it may be shown: each value with its origin, and credentials hidden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from sluiceway.config.settings import OPTIONS, Resolved
from sluiceway.util.redaction import redact_option

__all__ = ["ConfiguredOption", "ProcessEnvironment", "configured", "shown_variables"]

_OWN: Final = "SLUICEWAY_"


class ConfiguredOption(msgspec.Struct, frozen=True):
    """One option with its value as text. ``origin`` is a flag, a variable, a file, or ``default``."""

    name: str
    value: str
    origin: str


class ProcessEnvironment(msgspec.Struct, frozen=True):
    """Interpreter and environment of a job manager, or of a job in one process.

    Attributes:
        python: implementation and version.
        machine: operating system and architecture.
        executable: path of the interpreter.
        path: directories in which modules are found.
        variables: environment variables of Sluiceway, credentials hidden.
    """

    python: str
    machine: str
    executable: str
    path: list[str]
    variables: dict[str, str]


def configured(resolved: Resolved, names: Iterable[str] = OPTIONS) -> list[ConfiguredOption]:
    """Return options with their values and origins.

    Args:
        resolved: the options.
        names: those to return.
    """
    found = []
    for name in names:
        value = redact_option(name, getattr(resolved.settings, OPTIONS[name].field))
        found.append(ConfiguredOption(name, _text(value, OPTIONS[name].field), resolved.origins[name]))
    return found


def _text(value: object, field: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value} ms" if field.endswith("_ms") else str(value)


def shown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set options of Sluiceway, and no others: those may hold anything."""
    return {
        name: str(redact_option(name, value)) for name, value in sorted(environ.items()) if name.startswith(_OWN)
    }
