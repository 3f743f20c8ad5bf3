"""Snapshot of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluiceway.operators.list_snapshot import ListSnapshot
from sluiceway.persisted import persisted
from sluiceway.state import KeyedSnapshot

__all__ = ["OperatorSnapshot"]


@persisted("OperatorSnapshot")
@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """State of an operator in a checkpoint.

    Attributes:
        uid: uid of the operator.
        keyed: its keyed state, or None.
        splits: for a source: the splits of its reader, with positions.
        lists: the operator state of its functions.
        broadcast: the broadcast state by name, the same in every subtask; None where there is none.
        pending: received records without results yet, each with its timestamp, to be processed again.
        committables: commits of output that this and earlier checkpoints have made ready.
        subtask: index of the subtask.
        parallelism: the number of subtasks.
        drained: True if the input had ended and all of it was processed.
    """

    uid: str
    keyed: KeyedSnapshot | None = None
    splits: tuple[Any, ...] = ()
    lists: tuple[ListSnapshot, ...] = ()
    broadcast: Mapping[str, Mapping[Any, Any]] | None = None
    pending: tuple[tuple[Any, int | None], ...] = ()
    committables: tuple[Any, ...] = ()
    subtask: int = 0
    parallelism: int = 1
    drained: bool = False
