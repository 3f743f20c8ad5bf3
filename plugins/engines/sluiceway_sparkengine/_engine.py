"""The engine: what runs where, and what cannot."""

from __future__ import annotations

from dataclasses import replace

from sluiceway.capabilities import Capabilities
from sluiceway.config import Settings
from sluiceway.engine import Engine, Job, Services
from sluiceway.errors import NotBuiltYetError, choose
from sluiceway.graph import SCHEDULERS, restart_strategy, slots_required
from sluiceway.runtime.cluster.job import ClusterJob
from sluiceway.runtime.local import job_graph_of
from sluiceway.runtime.loops import check_checkpoints
from sluiceway.streamgraph import StreamGraph
from sluiceway_spark import SessionConf, need_spark
from sluiceway_sparkengine._capabilities import batch, hosted
from sluiceway_sparkengine._host import SparkHost
from sluiceway_sparkengine._shared import SharedPlaces

__all__ = ["SparkEngine"]


class SparkEngine(Engine):
    """Runs pipelines as Spark's own jobs; with ``hosted``, workers of ours as tasks of Spark's.

    A pipeline whose sources end becomes one batch job, in which our subtasks run inside Spark's Python workers.

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
        host = SparkHost(SessionConf(), workers, places, settings.heartbeat_timeout_ms / 1000)
        return ClusterJob(job_graph, settings, services, host)

    def _structured(self, graph: StreamGraph, settings: Settings, services: Services) -> Job:
        need_spark()
        from sluiceway_sparkengine.structured.batchjob import BatchJob

        return BatchJob(graph, settings, services, SessionConf())

    def capabilities(self, settings: Settings, *, bounded: bool) -> Capabilities:
        """As much as Spark leaves to us: with workers of ours nearly all, in its own jobs less."""
        if settings.hosted:
            return hosted(settings)
        if bounded and settings.checkpoints is None:
            return batch(settings)
        raise NotBuiltYetError(
            "engine 'spark' cannot translate pipelines without an end, or with checkpoints, into Spark's own "
            "queries yet; it runs workers of ours on Spark's executors, which is what --hosted says (hosted=True)"
        )
