"""Sluiceway: stateful stream processing for Python.

``import sluiceway as sw``, then ``sw.Pipeline("name")``. Everything that a pipeline needs is here; what a
plugin needs is in the modules :mod:`sluiceway.connector`, :mod:`sluiceway.state` and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from sluiceway import savepoint as savepoint
    from sluiceway import state as state
    from sluiceway import windows as windows
    from sluiceway.api import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
        DataStream,
        DataStreamSink,
        IterativeStream,
        KeyedStream,
        Pipeline,
    )
    from sluiceway.api.asynchronous import AsyncDataStream
    from sluiceway.api.handle import JobHandle
    from sluiceway.api.joins import AsOfJoin, IntervalJoin, IntervalJoined
    from sluiceway.api.lookups import CachedLookup
    from sluiceway.api.results import CloseableIterator
    from sluiceway.api.window_joins import CoGroupedStreams, JoinedStreams, WindowedCoGroup, WindowedJoin
    from sluiceway.api.windowed import AllWindowedStream, WindowedStream
    from sluiceway.config.settings import Settings
    from sluiceway.connector import Sink, Source
    from sluiceway.connector.lib import Collected, HybridSource, SourceSwitch
    from sluiceway.connector.two_phase_commit import IdempotentSink, TwoPhaseCommitSink
    from sluiceway.elements import Batch
    from sluiceway.engine import JobFailure, JobResult, JobStatus
    from sluiceway.errors import (
        CheckpointError,
        CheckpointFailedError,
        ConfigurationError,
        ConnectorError,
        CorruptStreamError,
        DeclaredTypeError,
        FunctionContractError,
        GraphError,
        JobCancelledError,
        MissingExtraError,
        NotBuiltYetError,
        PluginError,
        SerializationError,
        SluicewayError,
        StateError,
        TimestampUnitWarning,
        UnknownNameError,
        UnstableKeyError,
    )
    from sluiceway.eventtime import (
        TimestampAssigner,
        WatermarkGenerator,
        WatermarkOutput,
        WatermarkStrategy,
    )
    from sluiceway.functions import (
        AggregateFunction,
        AllWindowFunction,
        AsyncFunction,
        AsyncRetryStrategy,
        BatchProcessFunction,
        BroadcastProcessFunction,
        BroadcastState,
        CheckpointedFunction,
        CheckpointListener,
        CoFlatMapFunction,
        CoMapFunction,
        CoProcessFunction,
        DeadLetter,
        FilterFunction,
        FlatMapFunction,
        Function,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        KeyedBatchProcessFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        KeySelector,
        MapFunction,
        OutputTag,
        ProcessAllWindowFunction,
        ProcessFunction,
        ProcessWindowFunction,
        ReadOnlyBroadcastState,
        ReduceFunction,
        RuntimeContext,
        TimeDomain,
        TimerService,
        WindowFunction,
    )
    from sluiceway.functions.joins import (
        CoGroupFunction,
        FlatJoinFunction,
        JoinFunction,
        ProcessJoinFunction,
        TaggedUnion,
    )
    from sluiceway.metrics import JobMetrics
    from sluiceway.runtime.logging.task_logs import TaskLogFilter
    from sluiceway.savepoint import StateRows, read_state
    from sluiceway.serializers.schemas import RenamedFrom
    from sluiceway.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from sluiceway.state.ttl import StateTtlConfig

    __version__: str

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowFunction",
    "AllWindowedStream",
    "AsOfJoin",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "Batch",
    "BatchProcessFunction",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CachedLookup",
    "CheckpointError",
    "CheckpointFailedError",
    "CheckpointListener",
    "CheckpointedFunction",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoGroupedStreams",
    "CoMapFunction",
    "CoProcessFunction",
    "Collected",
    "ConfigurationError",
    "ConnectedStreams",
    "ConnectorError",
    "CorruptStreamError",
    "DataStream",
    "DataStreamSink",
    "DeadLetter",
    "DeclaredTypeError",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionContractError",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GraphError",
    "HybridSource",
    "IdempotentSink",
    "IntervalJoin",
    "IntervalJoined",
    "IterativeStream",
    "JobCancelledError",
    "JobFailure",
    "JobHandle",
    "JobMetrics",
    "JobResult",
    "JobStatus",
    "JoinFunction",
    "JoinedStreams",
    "KeySelector",
    "KeyedBatchProcessFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MissingExtraError",
    "NotBuiltYetError",
    "OutputTag",
    "Pipeline",
    "PluginError",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RenamedFrom",
    "RuntimeContext",
    "SerializationError",
    "Settings",
    "Sink",
    "SluicewayError",
    "Source",
    "SourceSwitch",
    "StateError",
    "StateRows",
    "StateTtlConfig",
    "TaggedUnion",
    "TaskLogFilter",
    "TimeDomain",
    "TimerService",
    "TimestampAssigner",
    "TimestampUnitWarning",
    "TwoPhaseCommitSink",
    "UnknownNameError",
    "UnstableKeyError",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WindowFunction",
    "WindowedCoGroup",
    "WindowedJoin",
    "WindowedStream",
    "__version__",
    "read_state",
]

# Looked up when first used: this module is imported before every other one of the package, also by plugins
# and commands that need next to nothing of it.
_HOMES = {
    "sluiceway.api": "BroadcastConnectedStream BroadcastStream ConnectedStreams DataStream DataStreamSink "
    "IterativeStream KeyedStream Pipeline",
    "sluiceway.api.asynchronous": "AsyncDataStream",
    "sluiceway.api.handle": "JobHandle",
    "sluiceway.api.lookups": "CachedLookup",
    "sluiceway.api.results": "CloseableIterator",
    "sluiceway.savepoint": "StateRows read_state",
    "sluiceway.api.joins": "AsOfJoin IntervalJoin IntervalJoined",
    "sluiceway.api.windowed": "AllWindowedStream WindowedStream",
    "sluiceway.api.window_joins": "CoGroupedStreams JoinedStreams WindowedCoGroup WindowedJoin",
    "sluiceway.connector.two_phase_commit": "IdempotentSink TwoPhaseCommitSink",
    "sluiceway.config.settings": "Settings",
    "sluiceway.connector": "Sink Source",
    "sluiceway.connector.lib": "Collected HybridSource SourceSwitch",
    "sluiceway.elements": "Batch",
    "sluiceway.engine": "JobFailure JobResult JobStatus",
    "sluiceway.errors": "CheckpointError CheckpointFailedError ConfigurationError ConnectorError "
    "CorruptStreamError DeclaredTypeError FunctionContractError GraphError JobCancelledError MissingExtraError "
    "NotBuiltYetError PluginError SerializationError SluicewayError StateError TimestampUnitWarning "
    "UnknownNameError UnstableKeyError",
    "sluiceway.eventtime": "TimestampAssigner WatermarkGenerator WatermarkOutput WatermarkStrategy",
    "sluiceway.functions": "DeadLetter AggregateFunction AllWindowFunction AsyncFunction AsyncRetryStrategy "
    "BatchProcessFunction KeyedBatchProcessFunction "
    "CheckpointedFunction CheckpointListener CoFlatMapFunction CoMapFunction CoProcessFunction FilterFunction "
    "FlatJoinFunction FlatMapFunction Function FunctionInitializationContext FunctionSnapshotContext "
    "JoinFunction KeySelector "
    "BroadcastProcessFunction BroadcastState KeyedBroadcastProcessFunction ReadOnlyBroadcastState "
    "KeyedCoProcessFunction KeyedProcessFunction MapFunction OutputTag "
    "ProcessAllWindowFunction ProcessFunction ProcessJoinFunction ProcessWindowFunction "
    "ReduceFunction RuntimeContext TimeDomain TimerService WindowFunction",
    "sluiceway.functions.joins": "CoGroupFunction TaggedUnion",
    "sluiceway.metrics": "JobMetrics",
    "sluiceway.runtime.logging.task_logs": "TaskLogFilter",
    "sluiceway.serializers.schemas": "RenamedFrom",
    "sluiceway.state": "AggregatingState AggregatingStateDescriptor ListState ListStateDescriptor MapState "
    "MapStateDescriptor ReducingState ReducingStateDescriptor ValueState ValueStateDescriptor",
    "sluiceway.state.ttl": "StateTtlConfig",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("sluiceway")
    elif name in ("savepoint", "state", "windows"):
        from importlib import import_module

        value = import_module(f"sluiceway.{name}")
    elif name in _HOME_OF:
        from importlib import import_module

        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        _refuse(name)
    globals()[name] = value
    return value


def _refuse(name: str) -> NoReturn:
    from importlib import import_module

    from sluiceway.util.name_hints import refuse_in_module

    homes = [] if name.startswith("_") else ["sluiceway.windows", "sluiceway.functions"]
    home = next((home for home in homes if name in import_module(home).__all__), None)
    refuse_in_module("sluiceway", name, __all__, home and f"it is in {home}", depth=3)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
