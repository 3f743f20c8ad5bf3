"""The engine ``spark``: chooses a batch job, a streaming query or hosted workers."""

from __future__ import annotations

from dataclasses import replace

from sluiceway.config.settings import Settings
from sluiceway.engine import Engine, Job, Services
from sluiceway.engine.capabilities import Capabilities
from sluiceway.errors import choose
from sluiceway.graph import slots_required
from sluiceway.graph.check.features import is_bounded
from sluiceway.graph.check.iterations import check_checkpoints
from sluiceway.runtime.cluster.cluster_job import ClusterJob
from sluiceway.runtime.local.engine import job_graph_of
from sluiceway.scheduler import SCHEDULERS, restart_strategy
from sluiceway.steps import SourceStep
from sluiceway.streamgraph import StreamGraph
from sluiceway_spark.connector.source import SparkSource
from sluiceway_spark.engine.capabilities import batch, hosted, stream
from sluiceway_spark.hosted.shared_storage import SharedPlaces
from sluiceway_spark.hosted.worker_host import SparkHost
from sluiceway_spark.session.configuration import SessionConf, need_spark

__all__ = ["SparkEngine"]


class SparkEngine(Engine):
    """Engine that runs pipelines as Spark jobs or, with ``hosted``, by Sluiceway's workers in Spark's tasks.

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
        host = SparkHost(
            SessionConf(), workers, places, settings.heartbeat_timeout_ms / 1000, spare, graph.job_name
        )
        return ClusterJob(job_graph, settings, services, host)

    def _structured(self, graph: StreamGraph, settings: Settings, services: Services) -> Job:
        need_spark()
        if _is_batch(settings, bounded=is_bounded(graph)):
            from sluiceway_spark.structured.batch_job import BatchJob

            return BatchJob(graph, settings, services, SessionConf())
        from sluiceway_spark.structured.stream_job import StreamJob

        return StreamJob(graph, settings, services, SessionConf())

    def capabilities(self, settings: Settings, *, bounded: bool) -> Capabilities:
        """Return the capabilities of the way in which the job would run."""
        if settings.hosted:
            return hosted(settings)
        return batch(settings) if _is_batch(settings, bounded=bounded) else stream(settings)

    def extract(self, location: str, into: str, services: Services) -> None:
        """Write the keyed state of a run in micro-batches as a checkpoint."""
        need_spark()
        from sluiceway_spark.structured.state.state_export import extract

        extract(location, into, services, SessionConf())


def _has_spark_compute(graph: StreamGraph) -> bool:
    """Return whether a source needs Spark to compute while the job runs."""
    return any(isinstance(n.step, SourceStep) and isinstance(n.step.source, SparkSource) for n in graph.nodes)


def _is_batch(settings: Settings, *, bounded: bool) -> bool:
    return bounded and settings.checkpoints is None and settings.from_checkpoint is None
