"""The plugin manager as the command line uses it: problems are told on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluiceway.plugins import PluginManager, Problem

__all__ = ["manager"]


def manager() -> PluginManager:
    """Return the plugin manager of the process."""
    from sluiceway.plugins import default_manager

    found = default_manager()
    found.report = _tell
    return found


def _tell(problem: Problem) -> None:
    from sluiceway.cli.errors import warn

    warn(problem.message)
