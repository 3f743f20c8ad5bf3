"""From a stream graph to a job of an engine."""

from __future__ import annotations

from sluiceway.config import Settings
from sluiceway.engine import Engine, Job, Services
from sluiceway.graph.enginecheck import refuse_what_is_lacking
from sluiceway.graph.features import is_bounded
from sluiceway.streamgraph import StreamGraph

__all__ = ["prepare"]


def prepare(engine: Engine, graph: StreamGraph, settings: Settings, services: Services) -> Job:
    """Make a job of a graph, if the engine has all that it asks for.

    Raises:
        GraphError: the graph asks for something that the engine does not have, or it cannot run there.
        ConfigurationError: an option does.
    """
    refuse_what_is_lacking(graph, settings, engine.capabilities(settings, bounded=is_bounded(graph)))
    return engine.prepare(graph, settings, services)
