"""Local recovery: copies of a worker's checkpoint files on its own disk, for restores without the storage."""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import BinaryIO, Final

from sluiceway.checkpoint_storage import CheckpointStorage, StoredFile
from sluiceway.config.settings import Settings
from sluiceway.util.overriding import override
from sluiceway.util.private_files import private_opener

__all__ = ["LocalCopies", "LocalCopyRegistration", "with_local_copies"]


class LocalCopies(CheckpointStorage):
    """Checkpoint storage that reads files of this process from its own disk, as far as they fit there.

    Copies are kept only during a :class:`LocalCopyRegistration`; otherwise this is the plain storage. A copy that
    cannot be written or read is skipped.

    Args:
        storage: where the files are.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self.location = storage.location
        self._storage = storage

    def __reduce__(self) -> tuple[type[LocalCopies], tuple[CheckpointStorage]]:
        return LocalCopies, (self._storage,)

    def write(self, name: str, parts: Iterable[bytes]) -> int:
        """Write to the storage, and a copy here."""
        copies = _kept.get(self.location)
        if copies is None:
            return self._storage.write(name, parts)
        copy = _Copy(copies.new_path())
        try:
            size = self._storage.write(name, copy.passing(parts))
        except BaseException:
            copy.discard()
            raise
        copies.add(name, copy)
        return size

    @override
    def check(self) -> None:
        self._storage.check()

    @override
    def other_writers(self, name: str) -> str | None:
        return self._storage.other_writers(name)

    def create(self, name: str, parts: Iterable[bytes]) -> bool:
        """Write to the storage only."""
        return self._storage.create(name, parts)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read the copy, or else the storage."""
        copies = _kept.get(self.location)
        path = None if copies is None else copies.find(name)
        if path is not None:
            with suppress(OSError), path.open("rb") as file:
                file.seek(offset)
                return file.read(-1 if size is None else size)
        return self._storage.read(name, offset, size)

    @override
    def files(self, directory: str = "") -> Iterator[StoredFile]:
        return self._storage.files(directory)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files in the storage, and their copies."""
        gone = list(names)
        for name in gone:
            self.distrust(name)
        self._storage.delete(gone)

    def delete_directory(self, directory: str) -> None:
        """Delete a directory in the storage, and the copies of its files."""
        for file in self.files(directory):
            self.distrust(file.name)
        self._storage.delete_directory(directory)

    def put_file(self, name: str, path: str) -> int:
        """Write to the storage, and link the file here."""
        size = self._storage.put_file(name, path)
        if (copies := _kept.get(self.location)) is not None:
            copies.add(name, _Copy.of(path, copies.new_path()))
        return size

    def fetch_file(self, name: str, path: str) -> None:
        """Fetch the copy, or else from the storage."""
        copies = _kept.get(self.location)
        copy = None if copies is None else copies.find(name)
        if copy is not None:
            with suppress(OSError):
                _share(copy, path)
                return
        self._storage.fetch_file(name, path)

    def distrust(self, name: str) -> bool:
        """Delete the copy of a file."""
        copies = _kept.get(self.location)
        return copies is not None and copies.drop(name)

    def shown(self, name: str) -> str:
        """Return the name as the storage shows it."""
        return self._storage.shown(name)


def with_local_copies(storage: CheckpointStorage, settings: Settings) -> CheckpointStorage:
    """Return the storage of a job's checkpoints, with local copies if its options enable them."""
    return LocalCopies(storage) if settings.local_recovery_bytes else storage


class LocalCopyRegistration:
    """Registration of local copies of what this process writes to a location, until :meth:`close`.

    Args:
        storage: the job's; None: nothing is written.
        settings: of the job; how many bytes. The ones that were not used for the longest time go first.
        place: directory for them, in which they get one of their own; None: that for temporary files.
    """

    def __init__(self, storage: CheckpointStorage | None, settings: Settings, place: Path | None = None) -> None:
        self._copies: _Copies | None = None
        limit = settings.local_recovery_bytes
        if storage is not None and limit:
            self._location = location = storage.location
            with _lock:
                known = _kept.get(location)
                self._copies = known = _Copies(place) if known is None else known
                known.users += 1
                known.limit = max(known.limit, limit)
                _kept[location] = known

    def close(self) -> None:
        """Delete the copies with the last registration. Harmless twice."""
        copies, self._copies = self._copies, None
        if copies is None:
            return
        with _lock:
            copies.users -= 1
            if not copies.users:
                del _kept[self._location]
                copies.directory.cleanup()


class _Copy:
    """Copy that is being written beside the file in the storage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file: BinaryIO | None = None
        self.failed = False

    @classmethod
    def of(cls, path: str, copy: Path) -> _Copy:
        """Return the copy of an existing file."""
        made = cls(copy)
        try:
            _share(Path(path), copy)
            made.size = copy.stat().st_size
        except OSError:
            made.discard()
        return made

    def passing(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts, and write each to the copy."""
        try:
            self._file = open(self.path, "wb", opener=private_opener)  # noqa: SIM115 - closed at its end
        except OSError:
            self.failed = True
        # A copy that cannot be written is given up; the storage still gets every part.
        for part in parts:
            if self._file is not None and not self.failed:
                try:
                    self.size += self._file.write(part)
                except OSError:
                    self.failed = True
            yield part
        self._close()

    def discard(self) -> None:
        """Delete the copy."""
        self.failed = True
        self._close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self.failed = True


class _Copies:
    """Copies of one location. From any thread."""

    def __init__(self, place: Path | None) -> None:
        self.directory = TemporaryDirectory(
            prefix="sluiceway-copies-", dir=place if place is not None and place.is_dir() else None
        )
        self.users = 0
        self.limit = 0
        self._number = 0
        self._size = 0
        self._by_name: OrderedDict[str, _Copy] = OrderedDict()
        self._lock = Lock()

    def new_path(self) -> Path:
        with self._lock:
            self._number += 1
            return Path(self.directory.name) / str(self._number)

    def add(self, name: str, copy: _Copy) -> None:
        self.drop(name)
        if copy.failed or copy.size > self.limit:
            copy.discard()
            return
        with self._lock:
            self._by_name[name] = copy
            self._size += copy.size
            while self._size > self.limit:
                _, oldest = self._by_name.popitem(last=False)
                self._size -= oldest.size
                oldest.discard()

    def find(self, name: str) -> Path | None:
        with self._lock:
            copy = self._by_name.get(name)
            if copy is None:
                return None
            # The one used longest ago goes first.
            self._by_name.move_to_end(name)
            return copy.path

    def drop(self, name: str) -> bool:
        with self._lock:
            copy = self._by_name.pop(name, None)
            if copy is None:
                return False
            self._size -= copy.size
            copy.discard()
            return True


# By location and not by object: storages are pickled with deployments, and several jobs may write to one place.
_kept: Final[dict[str, _Copies]] = {}
_lock: Final = Lock()


def _share(path: Path, other: str | Path) -> None:
    """Hard-link an immutable file, or copy it from another disk."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
