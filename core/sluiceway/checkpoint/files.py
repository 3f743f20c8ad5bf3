"""Files of a checkpoint, and those of state backends among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from sluiceway.checkpoint.metadata import NativeEntry, NativeFileEntry
from sluiceway.checkpoint_storage import CheckpointStorage
from sluiceway.errors import CheckpointError, StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.state import NativeFile, NativeState

__all__ = ["StoredFiles", "join"]

_PART = 1 << 20


def join(directory: str, name: str) -> str:
    """Return a name relative to the directory of a checkpoint in the form that the storage knows."""
    parts = directory.split("/") if directory else []
    for part in name.split("/"):
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/".join(parts)


class StoredFiles(NativeState):
    """Files of a backend in a storage.

    Args:
        storage: storage of the checkpoint.
        directory: directory of the checkpoint.
        entry: entry of the files in the metadata.

    Attributes:
        entries: entries of the files.
    """

    def __init__(self, storage: CheckpointStorage, directory: str, entry: NativeEntry) -> None:
        self._storage = storage
        self._directory = directory
        self.entries = entry.files
        self.format = entry.format
        self.key_groups = KeyGroupRange(entry.start, entry.end)
        self.files = tuple(
            NativeFile(f.name, f.size, f.file.rpartition("/")[2] if f.shared else "") for f in entry.files
        )
        self.properties = entry.properties

    def fetch(self, name: str, path: str) -> None:
        """Copy a file to this machine. Raises CheckpointError if it is missing or damaged; names it."""
        entry = next(entry for entry in self.entries if entry.name == name)
        stored = self._name(entry)
        self._storage.fetch_file(stored, path)
        found = _checksum(path)
        # A local copy may be damaged where the storage is not. Once it is distrusted, the storage itself is read.
        if found != (entry.size, entry.crc32) and self._storage.distrust(stored):
            Path(path).unlink()
            self._storage.fetch_file(stored, path)
            found = _checksum(path)
        self._check(entry, *found)

    def local_path(self, name: str) -> str:
        """Return the path of a file on this machine."""
        raise StateError(f"{name} is in the storage {self._storage.location}, not on this machine")

    def parts(self, entry: NativeFileEntry) -> Iterator[bytes]:
        """Yield the content of a file. Raises CheckpointError if it is missing or damaged; names it."""
        offset, checksum = 0, 0
        while part := self._storage.read(self._name(entry), offset, _PART):
            yield part
            offset += len(part)
            checksum = crc32(part, checksum)
        self._check(entry, offset, checksum)

    def _name(self, entry: NativeFileEntry) -> str:
        return join(self._directory, entry.file)

    def _check(self, entry: NativeFileEntry, size: int, checksum: int) -> None:
        if (size, checksum) != (entry.size, entry.crc32):
            raise CheckpointError(
                f"{self._storage.shown(self._name(entry))} is damaged: {size} bytes with checksum {checksum:08x}, "
                f"{entry.size} bytes with {entry.crc32:08x} were written"
            )


def _checksum(path: str) -> tuple[int, int]:
    """Return size and checksum of a local file."""
    size, checksum = 0, 0
    with open(path, "rb") as file:
        while part := file.read(_PART):
            size += len(part)
            checksum = crc32(part, checksum)
    return size, checksum
