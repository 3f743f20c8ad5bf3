"""The five kinds of keyed state, built once over the tables of any state backend."""

from sluiceway.keyedstate.handles import BulkState
from sluiceway.keyedstate.store import KeyedStateStore

__all__ = ["BulkState", "KeyedStateStore"]
