"""The state backend ``memory``."""

from __future__ import annotations

from sluiceway.state import BackendContext, KeyedStateBackend, StateBackend
from sluiceway.state.heap import HeapKeyedBackend

__all__ = ["MemoryStateBackend"]


class MemoryStateBackend(StateBackend):
    """Objects on the heap; they are serialized only for a snapshot, all of it in memory."""

    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        """The keyed backend of one subtask."""
        return HeapKeyedBackend(context)
