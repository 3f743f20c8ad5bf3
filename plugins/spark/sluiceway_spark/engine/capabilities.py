"""Capabilities of the engine for each way of running a job."""

from __future__ import annotations

from typing import Final

from sluiceway.config.settings import Settings
from sluiceway.engine.capabilities import (
    COMMITS_ELSEWHERE,
    MANY_COMMITS,
    ONE_PROCESS,
    Capabilities,
    Feature,
    Unsupported,
)
from sluiceway_spark.session.pyspark_version import MICRO_BATCHES, too_old

__all__ = ["batch", "hosted", "stream"]

_NO_CLUSTER: Final = Unsupported(
    "executors are Spark's and go with the job", "submit programs with spark-submit, or use sluiceway cluster"
)


def hosted(settings: Settings) -> Capabilities:
    """Return the capabilities of hosted workers: all of a cluster but what is for one machine."""
    lacks = {
        Feature.PROCESS_OBJECTS: ONE_PROCESS,
        Feature.PROGRAM_SINKS: COMMITS_ELSEWHERE,
        Feature.STAYING_CLUSTER: _NO_CLUSTER,
    }
    if settings.checkpoint_interval_ms:
        lacks[Feature.REPLACING_SINKS] = MANY_COMMITS
    if settings.transport != "zmq":
        elsewhere = f"{settings.transport!r} is not for workers on several machines"
        if settings.transport == "auto":
            elsewhere = "workers on several machines have one that reaches them"
        lacks[Feature.TRANSPORTS] = Unsupported(elsewhere, "leave transport at 'auto', which is 'zmq' there")
    return Capabilities("engine 'spark' with --hosted", lacks)


_ONE_WAY: Final = "records go through Spark in one direction"
_HOSTED_INSTEAD: Final = "run it with --hosted, or on engine 'local'"
_NO_EVENTS: Final = Unsupported("Spark plans what readers read before they run", _HOSTED_INSTEAD)
_AGAIN: Final = Unsupported("a batch job of Spark's takes none", "leave it out, or run it with --hosted")

_LOGS: Final = (
    "These are the driver's. What steps log and print is where Spark keeps the output of its Python workers."
)


def batch(settings: Settings) -> Capabilities:
    """Run of a bounded pipeline as one batch job of Spark."""
    spark_tries = Unsupported(
        "Spark tries tasks again by itself", "leave restart out, and set spark.task.maxFailures of Spark"
    )
    lacks = {
        Feature.UNBOUNDED_SOURCES: Unsupported("a batch job ends", _HOSTED_INSTEAD),
        Feature.SOURCE_EVENTS: _NO_EVENTS,
        Feature.ITERATIONS: Unsupported(_ONE_WAY, _HOSTED_INSTEAD),
        Feature.PROCESS_OBJECTS: ONE_PROCESS,
        Feature.CHECKPOINTS: _AGAIN,
        Feature.CHECKPOINT_TIMING: _AGAIN,
        Feature.AT_LEAST_ONCE: _AGAIN,
        Feature.UNALIGNED: _AGAIN,
        Feature.SAVEPOINTS: _AGAIN,
        Feature.BEGINNING_FROM: Unsupported(
            "a batch job begins at the beginning", "leave it out, or run it with --hosted"
        ),
        Feature.RESTARTS: spark_tries,
        Feature.WORKERS: Unsupported("Spark has workers of its own", "leave workers out, or run it with --hosted"),
        Feature.TRANSPORTS: Unsupported("records travel by Spark's shuffle", "leave transport out"),
        Feature.NETWORK_BUFFERS: Unsupported("records travel by Spark's shuffle", "leave network-buffers out"),
        Feature.LIVENESS: Unsupported("Spark watches over its executors", "leave the timeout out"),
        Feature.SCHEDULERS: Unsupported("Spark schedules its tasks", "leave scheduler out"),
        Feature.LOCAL_AGGREGATION: Unsupported(
            "records travel by Spark's shuffle, one by one", "leave local-aggregation out, or run it with --hosted"
        ),
        Feature.LATENCY_MARKERS: Unsupported(
            "a stage ends before the next one begins", "leave latency-interval out"
        ),
        Feature.STAYING_CLUSTER: _NO_CLUSTER,
    }
    otherwise = {
        Feature.ALIGNMENT: "Sources are read to their end before anything else, so that none has to wait.",
        Feature.TIMERS: "Those in processing time that still wait at the end of a stage fire then.",
        Feature.PROCESSING_WINDOWS: "A stage takes the time that it takes; what still waits fires at its end.",
        Feature.PLACEMENT: "Spark places its tasks, so that this says nothing.",
        Feature.BUFFER_TIMEOUT: "Records go on when a stage does, so that this says nothing.",
        Feature.LOGS: _LOGS,
    }
    return Capabilities("engine 'spark' in a batch job", lacks, otherwise)


_A_MICRO_BATCH: Final = Unsupported("each micro-batch is a checkpoint", "leave it out, or run it with --hosted")


def stream(settings: Settings) -> Capabilities:
    """Return the capabilities of a query of Structured Streaming, by the PySpark that is installed."""
    lacks = {
        Feature.PROGRAM_SOURCES: Unsupported(
            "micro-batches are planned where there is no session",
            "run it without --checkpoints and --from, as a batch job, or with --hosted",
        ),
        Feature.SOURCE_EVENTS: _NO_EVENTS,
        Feature.ALIGNMENT: Unsupported("a micro-batch reads each source as far as that has come", _HOSTED_INSTEAD),
        Feature.ITERATIONS: Unsupported(_ONE_WAY, _HOSTED_INSTEAD),
        Feature.PROCESS_OBJECTS: ONE_PROCESS,
        Feature.STATE_BACKENDS: Unsupported(
            "Spark keeps the state", "leave state-backend out, or run it with --hosted"
        ),
        Feature.REPLACING_SINKS: MANY_COMMITS,
        Feature.CHECKPOINT_TIMING: _A_MICRO_BATCH,
        Feature.AT_LEAST_ONCE: _A_MICRO_BATCH,
        Feature.UNALIGNED: _A_MICRO_BATCH,
        Feature.WORKERS: Unsupported("Spark has workers of its own", "leave workers out, or run it with --hosted"),
        Feature.TRANSPORTS: Unsupported("records travel by Spark's shuffle", "leave transport out"),
        Feature.NETWORK_BUFFERS: Unsupported("records travel by Spark's shuffle", "leave network-buffers out"),
        Feature.LIVENESS: Unsupported("Spark watches over its executors", "leave the timeout out"),
        Feature.SCHEDULERS: Unsupported("Spark schedules its tasks", "leave scheduler out"),
        Feature.LOCAL_AGGREGATION: Unsupported(
            "records travel by Spark's shuffle, one by one", "leave local-aggregation out, or run it with --hosted"
        ),
        Feature.LATENCY_MARKERS: Unsupported("records wait for their micro-batch", "leave latency-interval out"),
        Feature.STAYING_CLUSTER: _NO_CLUSTER,
    }
    if (older := too_old(MICRO_BATCHES)) is not None:
        # One of these is what makes a job one of micro-batches.
        for feature in (Feature.UNBOUNDED_SOURCES, Feature.CHECKPOINTS, Feature.BEGINNING_FROM):
            lacks[feature] = Unsupported(older, "install a later one, or run it with --hosted")
    otherwise = {
        Feature.COMMITTED_POSITIONS: "Committed when the next micro-batch begins, and at the end.",
        Feature.LISTENERS: "Functions in the chain of a source or a sink hear of none.",
        Feature.SKIPPING: "A limit counts anew in each micro-batch; sources cannot skip what cannot be decoded.",
        Feature.CHECKPOINTS: "Each micro-batch is one; checkpoint-interval is the time from one to the next.",
        Feature.SAVEPOINTS: "To end with alone, and in the place of the run, that of --checkpoints or --from.",
        Feature.BEGINNING_FROM: "Goes on in the directory of an earlier run in micro-batches.",
        Feature.DROPPED_STATE: "State that no function asks for may go; the steps have to stay as they were.",
        Feature.WATERMARKS: "Generators are asked at the end of each micro-batch, not now and then.",
        Feature.TIMERS: "Those in processing time fire with the next micro-batch.",
        Feature.PROCESSING_WINDOWS: "Fire with the next micro-batch.",
        Feature.PLACEMENT: "Spark places its tasks, so that this says nothing.",
        Feature.BUFFER_TIMEOUT: "Records go on when a stage does, so that this says nothing.",
        Feature.LOGS: _LOGS,
    }
    return Capabilities("engine 'spark' in micro-batches", lacks, otherwise)
