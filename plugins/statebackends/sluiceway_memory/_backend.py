"""State backend ``memory``."""

from __future__ import annotations

from sluiceway.state import BackendContext, KeyedStateBackend, StateBackend
from sluiceway.state.heap import HeapKeyedBackend

__all__ = ["MemoryStateBackend"]


class MemoryStateBackend(StateBackend):
    """State backend on the heap; objects are serialized only for a snapshot, all of it in memory."""

    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """Return the keyed backend of one subtask."""
        return HeapKeyedBackend(context)
