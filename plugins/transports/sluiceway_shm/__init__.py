"""Transport ``shm``: shared memory between the workers of one machine."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_transports() -> list[Offer]:
    """Offer the transport."""

    def load() -> object:
        from sluiceway_shm._carrier import ShmCarrier

        return ShmCarrier

    return [Offer("shm", load, "between workers of one machine, through shared memory")]
