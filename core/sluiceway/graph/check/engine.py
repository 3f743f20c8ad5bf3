"""Check of whether an engine supports what a job needs, step by step."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.config.settings import Settings
from sluiceway.engine.capabilities import Capabilities, Feature
from sluiceway.errors import ConfigurationError
from sluiceway.graph.check.features import Use, uses
from sluiceway.graph.findings import Finding, Level
from sluiceway.streamgraph import StreamGraph

__all__ = ["check_engine", "refuse_command"]


def check_engine(graph: StreamGraph, settings: Settings, capabilities: Capabilities) -> list[Finding]:
    """Return as errors what a job needs and the engine lacks, and as warnings what it has in another way.

    Args:
        graph: the job.
        settings: the options of the run.
        capabilities: the engine's capabilities in a run with these options.
    """
    told = {*capabilities.lacks, *capabilities.otherwise}
    return [finding for use in uses(graph, settings, told) for finding in _about(use, capabilities)]


def refuse_command(flag: str, feature: Feature, capabilities: Capabilities) -> None:
    """Check that an engine supports what a flag of a command needs.

    Raises:
        ConfigurationError: it does not.
    """
    lack = capabilities.lacks.get(feature)
    if lack is not None:
        raise ConfigurationError(
            f"{flag}: {capabilities.engine} does not have {feature.text}: {lack.why}; {lack.instead}"
        )


def _about(use: Use, capabilities: Capabilities) -> Iterable[Finding]:
    lack = capabilities.lacks.get(use.feature)
    if lack is not None:
        message = (
            f"{_who(use)}: {capabilities.engine} does not have {use.feature.text}: {lack.why}; {lack.instead}"
        )
        yield _finding(Level.ERROR, "engine-lacks", use, message)
        return
    note = capabilities.otherwise.get(use.feature)
    if note is not None:
        message = f"{_who(use)}: {use.feature.text} on {capabilities.engine}: {note}"
        yield _finding(Level.WARNING, "engine-differs", use, message)


def _who(use: Use) -> str:
    if use.node is None:
        return f"{use.option} is {_shown(use.value)}"
    return f"{use.node.name!r} ({use.node.location})" if use.node.location else repr(use.node.name)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _finding(level: Level, code: str, use: Use, message: str) -> Finding:
    name, location = ("", "") if use.node is None else (use.node.name, use.node.location)
    return Finding(level, code, message, name, location)
