"""State backend ``memory``: keyed state as objects on the heap."""

from __future__ import annotations

from typing import Any

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_state_backends() -> list[Offer]:
    """Offer the backend."""

    def load() -> Any:
        from sluiceway_memory._backend import MemoryStateBackend

        return MemoryStateBackend

    return [Offer("memory", load, "objects on the heap: the fastest; state must fit into memory")]
