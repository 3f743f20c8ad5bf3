"""Choice of the storage for a location."""

from __future__ import annotations

from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import ConfigurationError

__all__ = ["open_storage"]


def open_storage(location: str) -> CheckpointStorage:
    """Return the storage at a path, or at a URL such as ``file:///var/checkpoints`` or ``memory://checkpoints``.

    Raises:
        ConfigurationError: it is no location, or fsspec does not know such URLs or lacks a package for them.
    """
    if not location or "\0" in location:
        raise ConfigurationError(f"{location!r} is no place for checkpoints: give a directory or a URL")
    scheme, separator, path = location.partition("://")
    if not separator or scheme in ("file", "local"):
        from sluiceway_filesystem._local import LocalStorage

        return LocalStorage(path if separator else location)
    from sluiceway_filesystem._remote import RemoteStorage

    return RemoteStorage(location)
