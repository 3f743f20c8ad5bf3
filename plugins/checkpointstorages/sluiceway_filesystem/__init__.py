"""Checkpoint storage ``filesystem``: local directories, and any filesystem that fsspec knows."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_checkpoint_storages() -> list[Offer]:
    """Offer the storage."""

    def load() -> object:
        from sluiceway_filesystem._storage import open_storage

        return open_storage

    return [Offer("filesystem", load, "checkpoints in a directory: a path, or a URL that fsspec knows")]
