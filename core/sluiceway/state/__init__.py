"""Contract of state: descriptors, handles, tables and backends of keyed state.

Users meet descriptors and the five kinds of keyed state. A backend knows only *tables*: one per state name,
from (key, namespace) to a value or to a mapping. The kinds are built over tables once, for all backends.

State as data is here by name, too: :func:`read <sluiceway.savepoint.read>`,
:func:`write <sluiceway.savepoint.write>`, :func:`edit <sluiceway.savepoint.edit>`.
"""

from __future__ import annotations

from typing import Any, Final

from sluiceway.state.backends import (
    BackendContext,
    KeyedSnapshot,
    KeyedStateBackend,
    NativeFile,
    NativeState,
    RowsOnDemand,
    StateBackend,
    StateTable,
)
from sluiceway.state.descriptors import (
    VOID_NAMESPACE,
    AggregatingStateDescriptor,
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
    "StateBackend",
    "StateDescriptor",
    "StateMeta",
    "StateTable",
    "TableKind",
    "TableSchema",
    "ValueState",
    "ValueStateDescriptor",
]

_STATE_AS_DATA: Final = (
    "SavedOperator",
    "SavedState",
    "SavedTable",
    "SavepointEditor",
    "SavepointWriter",
    "edit",
    "read",
    "write",
)


def __getattr__(name: str) -> Any:
    if name not in _STATE_AS_DATA:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    # When it is asked for: it is built over all floors, and this module belongs to one of the lowest.
    return getattr(import_module("sluiceway.savepoint"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_STATE_AS_DATA])
