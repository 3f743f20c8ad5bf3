"""The engine: what runs where, and what cannot."""

from __future__ import annotations

from dataclasses import replace

from sluiceway.capabilities import Capabilities
from sluiceway.config import Settings
from sluiceway.engine import Engine, Job, Services
from sluiceway.errors import NotBuiltYetError, choose
from sluiceway.graph import SCHEDULERS, restart_strategy
from sluiceway.runtime.cluster.job import ClusterJob
from sluiceway.runtime.local import job_graph_of
from sluiceway.runtime.loops import check_checkpoints
from sluiceway.streamgraph import StreamGraph
from sluiceway_spark import SessionConf, need_spark
from sluiceway_sparkengine._capabilities import hosted
from sluiceway_sparkengine._host import SparkHost

__all__ = ["SparkEngine"]


class SparkEngine(Engine):
    """Runs workers of ours as tasks of Spark's, and the job manager in this process.

    All that the engine ``local`` does with worker processes is done here, by the same code: Spark gives the
    containers, places the workers, and notices when one is lost. There are as many workers as ``workers`` says,
    else as the parallelism. Checkpoints have to be where all executors see them.
    """

    def prepare(self, graph: StreamGraph, settings: Settings, services: Services) -> Job:
        """Check the job and what it needs; Spark is started when it runs."""
        need_spark()
        if settings.scheduler not in SCHEDULERS:
            raise choose("scheduling strategy", settings.scheduler, SCHEDULERS)
        restart_strategy(settings.restart)
        workers = settings.workers or settings.parallelism
        settings = replace(settings, workers=workers)
        job_graph = job_graph_of(graph, services)
        check_checkpoints(job_graph, settings)
        return ClusterJob(job_graph, settings, services, SparkHost(SessionConf(), workers))

    def capabilities(self, settings: Settings, *, bounded: bool) -> Capabilities:
        """As much as Spark leaves to our workers."""
        if not settings.hosted:
            raise NotBuiltYetError(
                "engine 'spark' cannot translate pipelines into Spark's own queries yet; it runs workers of ours "
                "on Spark's executors, which is what --hosted says (hosted=True)"
            )
        return hosted(settings)
