"""Features of an engine that a stream graph and the options of a run need."""

from __future__ import annotations

import io
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from types import NoneType
from typing import Any, Final

import msgspec

from sluiceway.config.settings import OPTIONS, Settings
from sluiceway.connector import Boundedness, DeliveryGuarantee, Sink, Source
from sluiceway.connector.lib import CallbackSink, DeadLetterSink, PrintSink
from sluiceway.connector.lib.callback import fills_container
from sluiceway.connector.lib.process_local import ProcessLocal
from sluiceway.engine.capabilities import Feature
from sluiceway.eventtime import WatermarkStrategy
from sluiceway.functions import DEAD_LETTERS, CheckpointedFunction, CheckpointListener
from sluiceway.functions.state_discovery import visible_descriptors
from sluiceway.functions.timers import handles_timers
from sluiceway.steps import (
    AsOfJoinStep,
    AsyncStep,
    BatchProcessStep,
    BroadcastProcessStep,
    ColumnLookupStep,
    ColumnStep,
    ConnectedStep,
    InspectStep,
    IntervalJoinStep,
    IterationHeadStep,
    KeyedAggregateStep,
    KeyedBatchProcessStep,
    KeyedReduceStep,
    SinkStep,
    SourceStep,
    TagStep,
    TimestampsStep,
    ToRecordsStep,
    WindowStep,
)
from sluiceway.streamgraph import ChainingStrategy, StreamGraph, StreamNode
from sluiceway.util.trial_pickling import trial
from sluiceway.windows import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    PurgingTrigger,
)

__all__ = ["OPTION_FEATURES", "Use", "handles_of", "is_bounded", "uses"]

OPTION_FEATURES: Final[Mapping[str, Feature | None]] = {
    "parallelism": Feature.PARALLELISM,
    "max-parallelism": Feature.PARALLELISM,
    "workers": Feature.WORKERS,
    "engine": None,
    "hosted": Feature.HOSTED,
    "state-backend": Feature.STATE_BACKENDS,
    "transport": Feature.TRANSPORTS,
    "chaining": Feature.CHAINING,
    "object-reuse": None,
    "local-aggregation": Feature.LOCAL_AGGREGATION,
    "scheduler": Feature.SCHEDULERS,
    "buffer-timeout": Feature.BUFFER_TIMEOUT,
    "batch-size": Feature.BATCHING,
    "latency-interval": Feature.LATENCY_MARKERS,
    "auto-watermark-interval": Feature.WATERMARK_INTERVAL,
    "metrics": Feature.METRICS,
    "metrics-interval": Feature.METRICS,
    "restart": Feature.RESTARTS,
    "heartbeat-timeout": Feature.LIVENESS,
    "cancellation-timeout": Feature.LIVENESS,
    "network-buffers": Feature.NETWORK_BUFFERS,
    "log-level": Feature.LOGS,
    "log-format": Feature.LOGS,
    "checkpoint-interval": Feature.CHECKPOINTS,
    "checkpoints": Feature.CHECKPOINTS,
    "from": Feature.BEGINNING_FROM,
    "resume": Feature.BEGINNING_FROM,
    "allow-dropped-state": Feature.DROPPED_STATE,
    "allow-pickles": Feature.BEGINNING_FROM,
    "checkpoint-retained": Feature.CHECKPOINT_TIMING,
    "checkpoint-mode": Feature.AT_LEAST_ONCE,
    "checkpoint-unaligned": Feature.UNALIGNED,
    "checkpoint-aligned-timeout": Feature.UNALIGNED,
    "checkpoint-timeout": Feature.CHECKPOINT_TIMING,
    "checkpoint-min-pause": Feature.CHECKPOINT_TIMING,
    "checkpoint-max-concurrent": Feature.CHECKPOINT_TIMING,
    "checkpoint-tolerated-failures": Feature.CHECKPOINT_TIMING,
    "local-recovery": Feature.CHECKPOINT_TIMING,
    "on-error": Feature.SKIPPING,
    "max-dead-letters": Feature.SKIPPING,
    "dead-letters": Feature.DEAD_LETTERS,
    "seed": Feature.SEEDS,
}
"""Feature that each option requires when it has another value than its default; None: nothing."""

_DEFAULTS: Final = Settings()

_SINKS: Final = (
    Feature.COLLECTING,
    Feature.PROCESS_OBJECTS,
    Feature.PRINTING,
    Feature.DEAD_LETTERS,
    Feature.TWO_PHASE_SINKS,
    Feature.SINKS,
)
"""Features that a sink may require."""

_TRIGGERS_WITHOUT_CLOCK: Final = (
    NoneType,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ContinuousEventTimeTrigger,
)
"""Triggers that set no timers in processing time; of a user's own, that is not known."""

_PARTITIONERS: Final[Mapping[str, Feature]] = {
    "forward": Feature.FORWARD,
    "rebalance": Feature.REBALANCE,
    "rescale": Feature.RESCALE,
    "shuffle": Feature.SHUFFLE,
    "hash": Feature.HASH,
    "broadcast": Feature.BROADCAST,
    "global": Feature.GLOBAL,
    "custom": Feature.CUSTOM_PARTITIONER,
}


class Use(msgspec.Struct, frozen=True):
    """Need for a feature.

    Attributes:
        feature: the feature.
        node: the step that needs it; None: an option does.
        option: name of the option that needs it; empty: a step does.
        value: value of the option.
    """

    feature: Feature
    node: StreamNode | None = None
    option: str = ""
    value: Any = None


def uses(graph: StreamGraph, settings: Settings, among: Container[Feature] = frozenset(Feature)) -> Iterator[Use]:
    """Yield all features that a job needs: each step in order, each feature once, then the options.

    Options count when they are not at their default.

    Args:
        graph: the job.
        settings: the options of the run.
        among: the features of interest. Slow searches are made only for these.
    """
    for node in graph.nodes:
        features = dict.fromkeys(_of_node(graph, node, among))
        if node.buffer_timeout_ms != settings.buffer_timeout_ms:
            features[Feature.BUFFER_TIMEOUT] = None
        yield from (Use(feature, node) for feature in features if feature in among)
    for name, feature in OPTION_FEATURES.items():
        value = getattr(settings, OPTIONS[name].field)
        if feature is not None and feature in among and value != getattr(_DEFAULTS, OPTIONS[name].field):
            yield Use(feature, option=name, value=value)


def is_bounded(graph: StreamGraph) -> bool:
    """Return whether all sources of a job are bounded."""
    sources = [node.step.source for node in graph.nodes if isinstance(node.step, SourceStep)]
    return all(source.boundedness is Boundedness.BOUNDED for source in sources)


def _of_node(graph: StreamGraph, node: StreamNode, among: Container[Feature]) -> Iterator[Feature]:
    step = node.step
    yield from _of_step(step, among)
    ports = [edge.port for edge in graph.in_edges(node.id) if not edge.feedback]
    if len(ports) > len(set(ports)):
        yield Feature.UNION
    for edge in graph.in_edges(node.id):
        yield _PARTITIONERS.get(edge.partitioner.name, Feature.PLUGIN_PARTITIONER)
    for edge in graph.out_edges(node.id):
        if edge.tag is not None:
            yield Feature.DEAD_LETTERS if edge.tag.name == DEAD_LETTERS.name else Feature.SIDE_OUTPUTS
    for function in step.functions:
        if isinstance(function, CheckpointedFunction):
            yield Feature.OPERATOR_STATE
        if isinstance(function, CheckpointListener):
            yield Feature.LISTENERS
        if any(d.ttl is not None and d.ttl.is_enabled for d in visible_descriptors(function)):
            yield Feature.STATE_TTL
        if handles_timers(function):
            yield Feature.TIMERS
    if node.skips_errors:
        yield Feature.SKIPPING
    if node.co_location_group is not None or node.slot_sharing_group != "default":
        yield Feature.PLACEMENT
    if node.chaining is not ChainingStrategy.ALWAYS:
        yield Feature.CHAINING


def _of_step(step: Any, among: Container[Feature]) -> Iterator[Feature]:
    match step:
        case SourceStep():
            bounded = step.source.boundedness is Boundedness.BOUNDED
            yield Feature.BOUNDED_SOURCES if bounded else Feature.UNBOUNDED_SOURCES
            if step.source.needs_program:
                yield Feature.PROGRAM_SOURCES
            if step.source.commits_positions:
                yield Feature.COMMITTED_POSITIONS
            if step.source.uses_events:
                yield Feature.SOURCE_EVENTS
            yield from _of_strategy(step.strategy)
            # A source may hold all its records, and they are looked through.
            if Feature.PROCESS_OBJECTS in among and handles_of(step.source):
                yield Feature.PROCESS_OBJECTS
        case TimestampsStep():
            yield from _of_strategy(step.strategy)
        case SinkStep():
            if step.sink.needs_program:
                yield Feature.PROGRAM_SINKS
            if step.sink.commits_once:
                yield Feature.REPLACING_SINKS
            if any(feature in among for feature in _SINKS):
                yield from _of_sink(step.sink)
        case InspectStep():
            yield Feature.STATELESS
            if fills_container(step.fn):
                yield Feature.PROCESS_OBJECTS
        case TagStep():
            yield Feature.WINDOW_JOINS
        case WindowStep():
            yield from _of_window(step)
        case KeyedReduceStep() | KeyedAggregateStep():
            yield Feature.REDUCTIONS
        case ColumnStep() | ToRecordsStep():
            yield Feature.COLUMNS
        case BatchProcessStep():
            yield Feature.BATCHES
        case KeyedBatchProcessStep():
            yield Feature.BATCHES
            yield Feature.KEYED_FUNCTIONS
        case IntervalJoinStep():
            yield Feature.INTERVAL_JOINS
        case AsOfJoinStep():
            yield Feature.AS_OF_JOINS
        case BroadcastProcessStep():
            yield Feature.BROADCAST_STATE
        case ConnectedStep():
            yield Feature.CONNECTED
            if step.stateful:
                yield Feature.KEYED_FUNCTIONS
        case AsyncStep():
            yield Feature.ASYNC
            if isinstance(step, ColumnLookupStep):
                yield Feature.COLUMNS
        case IterationHeadStep():
            yield Feature.ITERATIONS
        case _:
            yield Feature.KEYED_FUNCTIONS if step.keyed else Feature.STATELESS


def _of_strategy(strategy: WatermarkStrategy[Any] | None) -> Iterator[Feature]:
    if strategy is None:
        return
    yield Feature.WATERMARKS
    if strategy.idleness_ms is not None:
        yield Feature.IDLENESS
    if strategy.alignment is not None:
        yield Feature.ALIGNMENT


def _of_sink(sink: Sink[Any]) -> Iterator[Feature]:
    handles = handles_of(sink)
    if handles:
        yield Feature.COLLECTING if all(h.gathers for h in handles) else Feature.PROCESS_OBJECTS
    elif isinstance(sink, CallbackSink) and sink.fills_container:
        yield Feature.PROCESS_OBJECTS
    elif isinstance(sink, PrintSink):
        yield Feature.PRINTING
    elif isinstance(sink, DeadLetterSink):
        yield Feature.DEAD_LETTERS
    elif sink.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
        yield Feature.TWO_PHASE_SINKS
    else:
        yield Feature.SINKS


def _of_window(step: WindowStep) -> Iterator[Feature]:
    if step.all_windows:
        yield Feature.ALL_WINDOWS
    if step.assigner.event_time:
        yield Feature.EVENT_WINDOWS
    elif isinstance(step.assigner, GlobalWindows):
        yield Feature.GLOBAL_WINDOWS
    else:
        yield Feature.PROCESSING_WINDOWS
    if step.trigger is not None or step.evictor is not None:
        yield Feature.TRIGGERS
    trigger = step.trigger
    while isinstance(trigger, PurgingTrigger):
        trigger = trigger.nested
    if type(trigger) not in _TRIGGERS_WITHOUT_CLOCK:
        yield Feature.TIMERS


# ---- looking into what users give -----------------------------------------------------------------------------


def handles_of(connector: Source[Any] | Sink[Any]) -> list[ProcessLocal]:
    """Return the objects in a source or a sink that return something to the program that runs the job."""
    if isinstance(connector, ProcessLocal):
        return [connector]
    import cloudpickle  # which a job in one process has no need of

    found: list[ProcessLocal] = []

    class Finder(cloudpickle.Pickler):  # type: ignore[misc]
        """Pickler that finds such handles among what is pickled."""

        def persistent_id(self, obj: object) -> int | None:
            if not isinstance(obj, ProcessLocal):
                return None
            found.append(obj)
            return obj.number

    with suppress(Exception), trial():  # whether it can be shipped is somebody else's question
        Finder(io.BytesIO(), protocol=5).dump(connector)
    return found
