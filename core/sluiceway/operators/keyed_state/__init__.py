"""Handles of the five kinds of keyed state, over the tables of any state backend."""

from sluiceway.operators.keyed_state.handles import BulkState
from sluiceway.operators.keyed_state.store import KeyedStateStore

__all__ = ["BulkState", "KeyedStateStore"]
