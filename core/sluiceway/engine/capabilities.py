"""Capabilities that a pipeline or a run may require, and that an engine declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import msgspec

__all__ = [
    "COMMITS_ELSEWHERE",
    "EVERYTHING",
    "MANY_COMMITS",
    "ONE_PROCESS",
    "Capabilities",
    "Feature",
    "Unsupported",
]

_SOURCES: Final = "Sources and event time"
_WAYS: Final = "Ways between steps"
_STEPS: Final = "Steps"
_STATE: Final = "State"
_SINKS: Final = "Sinks and errors"
_SURVIVAL: Final = "Checkpoints and failures"
_OPERATION: Final = "How it runs"


class Feature(Enum):
    """Feature that a pipeline or a run may require.

    Attributes:
        group: heading of its group, for tables.
        text: its name in messages and tables.
    """

    BOUNDED_SOURCES = _SOURCES, "sources that end"
    UNBOUNDED_SOURCES = _SOURCES, "sources without an end"
    PROGRAM_SOURCES = _SOURCES, "sources that are planned in the program itself (SparkSource)"
    COMMITTED_POSITIONS = _SOURCES, "sources that commit positions outside (KafkaSource, group_id)"
    SOURCE_EVENTS = _SOURCES, "sources whose readers and enumerator send each other events (HybridSource)"
    WATERMARKS = _SOURCES, "timestamps and watermarks"
    IDLENESS = _SOURCES, "idle sources (with_idleness)"
    ALIGNMENT = _SOURCES, "sources that wait for one another (with_watermark_alignment)"

    FORWARD = _WAYS, "forward()"
    REBALANCE = _WAYS, "rebalance()"
    RESCALE = _WAYS, "rescale()"
    SHUFFLE = _WAYS, "shuffle()"
    HASH = _WAYS, "key_by()"
    BROADCAST = _WAYS, "broadcast()"
    GLOBAL = _WAYS, "global_()"
    CUSTOM_PARTITIONER = _WAYS, "partition_custom() with a function"
    PLUGIN_PARTITIONER = _WAYS, "partitioners of plugins"

    STATELESS = _STEPS, "map, flat_map, filter, branch, inspect, process"
    BATCHES = _STEPS, "process functions of batches"
    COLUMNS = _STEPS, "streams in columns (TableStream)"
    REDUCTIONS = _STEPS, "running reductions, aggregates and counts"
    KEYED_FUNCTIONS = _STEPS, "functions with state per key"
    TIMERS = _STEPS, "timers, in event time and in processing time"
    EVENT_WINDOWS = _STEPS, "windows in event time, with lateness"
    PROCESSING_WINDOWS = _STEPS, "windows in processing time"
    GLOBAL_WINDOWS = _STEPS, "windows over everything and by count"
    TRIGGERS = _STEPS, "triggers and evictors of one's own"
    ALL_WINDOWS = _STEPS, "windows of streams without keys"
    UNION = _STEPS, "union()"
    WINDOW_JOINS = _STEPS, "joins and co-groups in windows"
    INTERVAL_JOINS = _STEPS, "interval joins"
    AS_OF_JOINS = _STEPS, "as-of joins"
    CONNECTED = _STEPS, "connected streams"
    BROADCAST_STATE = _STEPS, "broadcast state"
    ASYNC = _STEPS, "asynchronous calls"
    SIDE_OUTPUTS = _STEPS, "side outputs"
    ITERATIONS = _STEPS, "feedback loops (iterate)"

    STATE_TTL = _STATE, "state that expires"
    OPERATOR_STATE = _STATE, "state of a subtask (CheckpointedFunction)"
    LISTENERS = _STATE, "functions that hear of checkpoints (CheckpointListener)"
    STATE_BACKENDS = _STATE, "a choice of state backends"
    STATE_AS_DATA = _STATE, "state read, compared and edited (sluiceway state)"

    SINKS = _SINKS, "sinks that write at least once"
    TWO_PHASE_SINKS = _SINKS, "sinks that write exactly once"
    PROGRAM_SINKS = _SINKS, "sinks that commit in the program itself (SparkTableSink)"
    REPLACING_SINKS = _SINKS, "sinks that replace what is there (SparkTableSink, mode='overwrite')"
    COLLECTING = _SINKS, "collect() and execute_and_collect()"
    PROCESS_OBJECTS = _SINKS, "functions that fill a list of the program (for_each, inspect), connectors of tests"
    PRINTING = _SINKS, "print()"
    SKIPPING = _SINKS, "records that are skipped (on_error)"
    DEAD_LETTERS = _SINKS, "dead letters, as a stream and as files"

    CHECKPOINTS = _SURVIVAL, "checkpoints"
    CHECKPOINT_TIMING = _SURVIVAL, "timeouts, pauses, numbers and local copies of checkpoints"
    AT_LEAST_ONCE = _SURVIVAL, "checkpoints for at-least-once"
    UNALIGNED = _SURVIVAL, "unaligned checkpoints"
    SAVEPOINTS = _SURVIVAL, "savepoints"
    BEGINNING_FROM = _SURVIVAL, "beginning with a checkpoint (--from, --resume)"
    DROPPED_STATE = _SURVIVAL, "leaving state behind (--allow-dropped-state)"
    RESTARTS = _SURVIVAL, "restart strategies"

    PARALLELISM = _OPERATION, "parallelism and key groups"
    WORKERS = _OPERATION, "a number of workers"
    TRANSPORTS = _OPERATION, "a choice of transports"
    NETWORK_BUFFERS = _OPERATION, "a number of network buffers"
    LIVENESS = _OPERATION, "timeouts for workers that hang"
    CHAINING = _OPERATION, "steps that share a task or do not"
    LOCAL_AGGREGATION = _OPERATION, "records of windows that are combined before they are sent"
    PLACEMENT = _OPERATION, "slot sharing groups and co-location"
    SCHEDULERS = _OPERATION, "a choice of scheduling strategies"
    BATCHING = _OPERATION, "batch sizes"
    BUFFER_TIMEOUT = _OPERATION, "buffer timeouts"
    WATERMARK_INTERVAL = _OPERATION, "an interval for watermarks"
    LATENCY_MARKERS = _OPERATION, "latency markers"
    METRICS = _OPERATION, "metrics reporters"
    LOGS = _OPERATION, "log levels and formats"
    SEEDS = _OPERATION, "repeatable lots (--seed)"
    STAYING_CLUSTER = _OPERATION, "clusters that stay, with a job store (sluiceway cluster)"
    HOSTED = _OPERATION, "workers on somebody else's executors (--hosted)"

    def __init__(self, group: str, text: str) -> None:
        self.group = group
        self.text = text


class Unsupported(msgspec.Struct, frozen=True):
    """Reason why an engine lacks a feature, and the alternative.

    Attributes:
        why: a clause that follows a colon, in small letters: ``"a micro-batch cannot go round"``.
        instead: what to do, likewise: ``"run it with --hosted"``.
    """

    why: str
    instead: str


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of an engine in a run with certain options.

    It has each feature that is in neither mapping, as documented.

    Attributes:
        engine: its name in messages: ``"engine 'spark'"``.
        lacks: features that it lacks; a job that requires one is refused.
        otherwise: features that work in another way than documented, which a sentence describes: ``"Fire between
            micro-batches."`` A job that requires one runs, and ``sluiceway check`` shows the sentence.
    """

    engine: str
    lacks: Mapping[Feature, Unsupported] = field(default_factory=dict)
    otherwise: Mapping[Feature, str] = field(default_factory=dict)


EVERYTHING: Final = Capabilities("this engine")
"""Capabilities of an engine that has every feature."""

COMMITS_ELSEWHERE: Final = Unsupported(
    "workers commit what they have written, and the session is in the program",
    "run without workers, or on engine 'spark' without --hosted",
)
"""Why :attr:`Feature.PROGRAM_SINKS` are lacking where workers commit."""

MANY_COMMITS: Final = Unsupported(
    "with checkpoints there are many commits, each of which would replace the one before",
    "run it without checkpoints, or append to a table that was emptied before",
)
"""Why :attr:`Feature.REPLACING_SINKS` are lacking where a run has checkpoints."""

ONE_PROCESS: Final = Unsupported(
    "they work inside one process, and others would fill copies",
    "run without workers, or take the records with execute_and_collect()",
)
"""Why :attr:`Feature.PROCESS_OBJECTS` are lacking where other processes do the work."""
