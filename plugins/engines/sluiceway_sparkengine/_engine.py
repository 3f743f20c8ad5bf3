"""The engine: what runs where, and what cannot."""

from __future__ import annotations

from dataclasses import replace

from sluiceway.capabilities import Capabilities
from sluiceway.config import Settings
from sluiceway.engine import Engine, Job, Services
from sluiceway.errors import choose
from sluiceway.graph import SCHEDULERS, restart_strategy, slots_required
from sluiceway.graph.features import is_bounded
from sluiceway.runtime.cluster.job import ClusterJob
from sluiceway.runtime.local import job_graph_of
from sluiceway.runtime.loops import check_checkpoints
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamGraph
from sluiceway_spark import SessionConf, SparkSource, need_spark
from sluiceway_sparkengine._capabilities import batch, hosted, stream
from sluiceway_sparkengine._host import SparkHost
from sluiceway_sparkengine._shared import SharedPlaces

__all__ = ["SparkEngine"]


class SparkEngine(Engine):
    """Runs pipelines as Spark's own jobs; with ``hosted``, workers of ours as tasks of Spark's.

    A pipeline whose sources end becomes a batch job, in which our subtasks run inside Spark's Python workers; any
    other, and one that is to have checkpoints, a query of Structured Streaming.

    Hosted, the job manager is in this process, and all that the engine ``local`` does with worker processes is
    done by the same code: Spark gives the containers, places the workers, and notices when one is lost. There are
    as many workers as ``workers`` says, else as the parallelism. Checkpoints have to be where all executors see
    them.
    """

    def prepare(self, graph: StreamGraph, settings: Settings, services: Services) -> Job:
        """Check the job and what it needs; Spark is started when it runs."""
        if not settings.hosted:
            return self._structured(graph, settings, services)
        need_spark()
        if settings.scheduler not in SCHEDULERS:
            raise choose("scheduling strategy", settings.scheduler, SCHEDULERS)
        restart_strategy(settings.restart)
        job_graph = job_graph_of(graph, services)
        workers = min(settings.workers or settings.parallelism, sum(slots_required(job_graph).values()))
        settings = replace(settings, workers=workers)
        check_checkpoints(job_graph, settings)
        places = SharedPlaces(settings.checkpoints, settings.from_checkpoint)
        spare = 1 if _has_spark_compute(graph) else 0
        host = SparkHost(SessionConf(), workers, places, settings.heartbeat_timeout_ms / 1000, spare)
        return ClusterJob(job_graph, settings, services, host)

    def _structured(self, graph: StreamGraph, settings: Settings, services: Services) -> Job:
        need_spark()
        if _is_batch(settings, bounded=is_bounded(graph)):
            from sluiceway_sparkengine.structured.batchjob import BatchJob

            return BatchJob(graph, settings, services, SessionConf())
        from sluiceway_sparkengine.structured.streamjob import StreamJob

        return StreamJob(graph, settings, services, SessionConf())

    def capabilities(self, settings: Settings, *, bounded: bool) -> Capabilities:
        """As much as Spark leaves to us: with workers of ours nearly all, in its own jobs less."""
        if settings.hosted:
            return hosted(settings)
        return batch(settings) if _is_batch(settings, bounded=bounded) else stream(settings)

    def extract(self, location: str, into: str, services: Services) -> None:
        """Write what Spark keeps of a run in micro-batches as a checkpoint."""
        need_spark()
        from sluiceway_sparkengine.structured.savedstate import extract

        extract(location, into, services, SessionConf())


def _has_spark_compute(graph: StreamGraph) -> bool:
    """Whether a step reads what Spark has to compute meanwhile."""
    return any(isinstance(n.step, SourceStep) and isinstance(n.step.source, SparkSource) for n in graph.nodes)


def _is_batch(settings: Settings, *, bounded: bool) -> bool:
    return bounded and settings.checkpoints is None and settings.from_checkpoint is None
