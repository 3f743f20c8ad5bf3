"""Steps of a pipeline as data, one class per kind, independent of any engine.

The API makes them, the graph carries them, an engine turns them into whatever runs. Functions in them are
what the user gave: plain callables or function objects.
"""

from __future__ import annotations

from sluiceway.steps.asynchronous import AsyncStep
from sluiceway.steps.base import Step
from sluiceway.steps.batches import BatchProcessStep, KeyedBatchProcessStep
from sluiceway.steps.broadcast import BroadcastProcessStep
from sluiceway.steps.co import CoFlatMapStep, CoMapStep, ConnectedStep, CoProcessStep, PerInput
from sluiceway.steps.column_joins import ColumnAsOfJoinStep, ColumnIntervalJoinStep, ColumnJoinStep
from sluiceway.steps.column_lookup import ColumnLookupStep
from sluiceway.steps.column_over import ColumnOverStep
from sluiceway.steps.columns import (
    ColumnDistinctStep,
    ColumnRunningStep,
    ColumnSessionStep,
    ColumnStep,
    ColumnTransformStep,
    ColumnWindowStep,
    ToColumnsStep,
    ToRecordsStep,
)
from sluiceway.steps.ends import IterationHeadStep, SinkStep, SourceStep
from sluiceway.steps.joins import AsOfJoinStep, IntervalJoinStep, TagStep
from sluiceway.steps.keyed import (
    KeyedAggregateStep,
    KeyedBranchStep,
    KeyedCountStep,
    KeyedFilterStep,
    KeyedFlatMapStep,
    KeyedMapStep,
    KeyedProcessStep,
    KeyedReduceStep,
    key_type,
)
from sluiceway.steps.stateless import (
    REST,
    BranchStep,
    FilterStep,
    FlatMapStep,
    InspectStep,
    MapStep,
    ProcessStep,
)
from sluiceway.steps.time import TimestampsStep
from sluiceway.steps.windows import WindowContents, WindowStep, without_timestamps

__all__ = [
    "REST",
    "AsOfJoinStep",
    "AsyncStep",
    "BatchProcessStep",
    "BranchStep",
    "BroadcastProcessStep",
    "CoFlatMapStep",
    "CoMapStep",
    "CoProcessStep",
    "ColumnAsOfJoinStep",
    "ColumnDistinctStep",
    "ColumnIntervalJoinStep",
    "ColumnJoinStep",
    "ColumnLookupStep",
    "ColumnOverStep",
    "ColumnRunningStep",
    "ColumnSessionStep",
    "ColumnStep",
    "ColumnTransformStep",
    "ColumnWindowStep",
    "ConnectedStep",
    "FilterStep",
    "FlatMapStep",
    "InspectStep",
    "IntervalJoinStep",
    "IterationHeadStep",
    "KeyedAggregateStep",
    "KeyedBatchProcessStep",
    "KeyedBranchStep",
    "KeyedCountStep",
    "KeyedFilterStep",
    "KeyedFlatMapStep",
    "KeyedMapStep",
    "KeyedProcessStep",
    "KeyedReduceStep",
    "MapStep",
    "PerInput",
    "ProcessStep",
    "SinkStep",
    "SourceStep",
    "Step",
    "TagStep",
    "TimestampsStep",
    "ToColumnsStep",
    "ToRecordsStep",
    "WindowContents",
    "WindowStep",
    "key_type",
    "without_timestamps",
]
