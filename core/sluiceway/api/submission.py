"""Checks of a stream graph against an engine, and the job made of it."""

from __future__ import annotations

from sluiceway.config.settings import Settings
from sluiceway.engine import Engine, Job, Services
from sluiceway.errors import CheckpointError, ConnectorError, PluginError, SluicewayError
from sluiceway.graph.check.features import is_bounded
from sluiceway.graph.check.pipeline import refuse
from sluiceway.graph.findings import Finding, Level
from sluiceway.streamgraph import StreamGraph

__all__ = ["find_refusal", "prepare"]


def prepare(engine: Engine, graph: StreamGraph, settings: Settings, services: Services) -> Job:
    """Make a job of a graph, if nothing is wrong with that and the engine has all that it asks for.

    Raises:
        GraphError: a step of the graph is wrong, or asks for something that the engine does not have.
        ConfigurationError: an option does.
    """
    refuse(graph, settings, engine.capabilities(settings, bounded=is_bounded(graph)))
    return engine.prepare(graph, settings, services)


def find_refusal(engine: Engine, graph: StreamGraph, settings: Settings, services: Services) -> list[Finding]:
    """Return what :func:`prepare` would raise, as a finding; an empty list if it makes a job."""
    try:
        prepare(engine, graph, settings, services)
    except (PluginError, ConnectorError, CheckpointError) as error:
        return [Finding(Level.ERROR, "unavailable", str(error))]
    except SluicewayError as error:
        return [Finding(Level.ERROR, "refused", str(error))]
    return []
