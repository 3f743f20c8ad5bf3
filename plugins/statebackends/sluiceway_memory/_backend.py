"""State backend ``memory``."""

from __future__ import annotations

from sluiceway.state import BackendContext, KeyedStateBackend, StateBackend
from sluiceway.state.heap import HeapKeyedBackend
from sluiceway.util.overriding import override

__all__ = ["MemoryStateBackend"]


class MemoryStateBackend(StateBackend):
    """State backend on the heap; objects are serialized only for a snapshot, all of it in memory."""

    @override
    def create_keyed(self, context: BackendContext) -> KeyedStateBackend:
        return HeapKeyedBackend(context)
