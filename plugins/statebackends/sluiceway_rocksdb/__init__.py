"""State backend ``rocksdb``: keyed state on the local disk, larger than memory."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_state_backends() -> list[Offer]:
    """Offer the backend."""

    def load() -> object:
        from sluiceway_rocksdb._backend import RocksDBStateBackend

        return RocksDBStateBackend

    summary = "on the local disk, behind a cache: state larger than memory, incremental checkpoints"
    return [Offer("rocksdb", load, summary, ("rocksdict",), "rocksdb")]
