"""State backend ``filesystem``: keyed state on the heap, with snapshots in files."""

from __future__ import annotations

from sluiceway.hooks import Offer, hookimpl


@hookimpl
def sluiceway_state_backends() -> list[Offer]:
    """Offer the backend."""

    def load() -> object:
        from sluiceway_filestate._backend import FilesystemStateBackend

        return FilesystemStateBackend

    return [Offer("filesystem", load, "objects on the heap; checkpoints go through files and take no memory")]
