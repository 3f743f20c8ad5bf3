"""Contract of state: descriptors, handles, tables and backends of keyed state.

Users meet descriptors and the five kinds of keyed state. A backend knows only *tables*: one per state name,
from (key, namespace) to a value or to a mapping. The kinds are built over tables once, for all backends.

State as tables, read from checkpoints and written to savepoints, is in :mod:`sluiceway.savepoint`.
"""

from __future__ import annotations

from sluiceway.state.backends import (
    BackendContext,
    IncrementalRows,
    KeyedSnapshot,
    KeyedStateBackend,
    NativeFile,
    NativeState,
    RowsOnDemand,
    SharedRows,
    StateBackend,
    StateTable,
)
from sluiceway.state.descriptors import (
    VOID_NAMESPACE,
    AggregatingStateDescriptor,
    BlockStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from sluiceway.state.handles import AggregatingState, ListState, MapState, ReducingState, ValueState
from sluiceway.state.tables import StateMeta, TableKind, TableSchema

__all__ = [
    "VOID_NAMESPACE",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BackendContext",
    "BlockStateDescriptor",
    "IncrementalRows",
    "KeyedSnapshot",
    "KeyedStateBackend",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "NativeFile",
    "NativeState",
    "ReducingState",
    "ReducingStateDescriptor",
    "RowsOnDemand",
    "SharedRows",
    "StateBackend",
    "StateDescriptor",
    "StateMeta",
    "StateTable",
    "TableKind",
    "TableSchema",
    "ValueState",
    "ValueStateDescriptor",
]
