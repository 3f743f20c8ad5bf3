"""Whether an engine has what a job asks for, step by step."""

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
    """What a job asks for that the engine does not have, as errors, or has in another way, as warnings.

    Args:
        graph: the job.
        settings: the options of the run.
        capabilities: what the engine has in a run with these options.
    """
    told = {*capabilities.lacks, *capabilities.otherwise}
    return [finding for use in uses(graph, settings, told) for finding in _about(use, capabilities)]


def refuse_command(flag: str, feature: Feature, capabilities: Capabilities) -> None:
    """See to it that an engine has what a flag of a command asks for.

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
