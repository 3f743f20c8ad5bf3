"""Base classes of user functions, and their contexts.

Wherever a function object is accepted, a callable is, too. A function object is opened once per subtask
before its first record, and closed exactly once, also after a failure. All calls come from the task's thread,
except those of an :class:`AsyncFunction`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from sluiceway.functions.asynchronous import AsyncFunction, AsyncRetryStrategy
from sluiceway.functions.base import Function, FunctionObject, OutputTag, RuntimeContext
from sluiceway.functions.batches import BatchProcessFunction, KeyedBatchProcessFunction
from sluiceway.functions.broadcast import (
    BroadcastProcessFunction,
    BroadcastState,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastState,
)
from sluiceway.functions.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    OperatorStateStore,
    RawKeyedState,
    RawOperatorState,
)
from sluiceway.functions.co import CoFlatMapFunction, CoMapFunction, CoProcessFunction, KeyedCoProcessFunction
from sluiceway.functions.dead_letters import DEAD_LETTERS, DeadLetter
from sluiceway.functions.joins import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    ProcessJoinFunction,
    TaggedUnion,
)
from sluiceway.functions.process import KeyedProcessFunction, ProcessFunction, TimeDomain, TimerService
from sluiceway.functions.transforms import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
)
from sluiceway.functions.windows import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowContext,
    WindowFunction,
    WindowState,
)

__all__ = [
    "DEAD_LETTERS",
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "BatchProcessFunction",
    "BroadcastProcessFunction",
    "BroadcastState",
    "CheckpointListener",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "DeadLetter",
    "FilterFunction",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionObject",
    "FunctionSnapshotContext",
    "JoinFunction",
    "KeySelector",
    "KeyedBatchProcessFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "MapFunction",
    "OperatorStateStore",
    "OutputTag",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "RawKeyedState",
    "RawOperatorState",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "RuntimeContext",
    "TaggedUnion",
    "TimeDomain",
    "TimerService",
    "WindowContext",
    "WindowFunction",
    "WindowState",
]

if not TYPE_CHECKING:  # a type checker would take it for leave to import anything

    def __getattr__(name: str) -> NoReturn:
        from sluiceway.util.name_hints import refuse_in_module

        refuse_in_module(__name__, name, __all__)
