"""Snapshots: the dirty objects of one moment, then a checkpoint of the database, made while processing goes on."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from sluiceway.errors import StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.serializers import encode_rows
from sluiceway.state import NativeFile, NativeState, StateMeta
from sluiceway_rocksdb._database import Database, rows_of
from sluiceway_rocksdb._entries import CachedEntries
from sluiceway_rocksdb._options import RocksDBOptions
from sluiceway_rocksdb._places import Place, new_place
from sluiceway_rocksdb._rows import rows_in

if TYPE_CHECKING:
    from sluiceway_rocksdb._backend import RocksDBKeyedBackend

__all__ = ["FORMAT", "Taken"]

FORMAT: Final = "rocksdb 1"

OPEN, DONE, FAILED, RELEASED = "open", "done", "failed", "released"


class Taken:
    """A snapshot: first layers of objects that the database does not have yet, then a directory.

    Whoever needs the directory first makes it: a helper thread that reads the snapshot, or the task's thread,
    when it has to write to the database again.

    Args:
        backend: whose state it is.
        layers: namespaces with what was young in them. Nobody changes these objects any more.
        metas: the tables, by index.
    """

    def __init__(
        self,
        backend: RocksDBKeyedBackend,
        layers: list[tuple[CachedEntries, dict[Any, Any]]],
        metas: tuple[StateMeta, ...],
    ) -> None:
        self.layers = layers
        self.metas = metas
        self.key_groups: KeyGroupRange = backend.key_groups
        self.options: RocksDBOptions = backend.options
        self.state = OPEN
        self._identity: Callable[[str], str] = backend.identity
        self._operator = backend.operator
        self._backend: RocksDBKeyedBackend | None = backend
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._reader: Any = None

    def finish(self) -> str:
        """Make the directory, if it is not there. Returns its path.

        Raises:
            StateError: it cannot be made, or the snapshot was released.
            SerializationError: a value cannot be serialized.
        """
        with self._lock:
            if self.state is OPEN:
                assert self._backend is not None
                try:
                    database = self._backend.database  # maybe opened now, so not in the task's thread
                    for entries, layer in self.layers:
                        database.write(chain.from_iterable(entries.table.write(entries, layer)))
                    place = new_place(self.options.directory, "snapshot")
                    database.checkpoint(place.path)
                except BaseException:
                    self.state = FAILED
                    raise
                self._place = place
                self._backend = None
                self.state = DONE
            if self._place is None:
                raise StateError(
                    f"the snapshot of the state of operator {self._operator!r} was given up or released"
                )
            return self._place.path

    def release(self) -> None:
        """Nobody will read it any more."""
        with self._lock:
            if self.state is OPEN:
                self.state = RELEASED
            place, self._place = self._place, None
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        if place is not None:
            place.remove()

    def settled(self) -> None:
        """The task's thread has taken notice of what has become of it."""
        self.layers = []

    def reader(self) -> Any:
        """The database in the directory."""
        path = self.finish()
        with self._lock:
            if self._reader is None:
                self._reader = Database.read_only(path, self.options)
            return self._reader

    def files(self) -> tuple[NativeFile, ...]:
        """What is in the directory."""
        path = self.finish()
        return tuple(
            NativeFile(name, os.stat(os.path.join(path, name)).st_size, self._identity(name))
            for name in sorted(os.listdir(path))
        )


class TakenRows(Mapping[int, bytes]):
    """A snapshot as rows by key group, read from its directory."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._found: list[int] | None = None

    def __getitem__(self, group: int) -> bytes:
        rows = rows_of(self._taken.reader(), group.to_bytes(2)) if 0 <= group < 1 << 16 else ()
        metas = self._taken.metas
        found = [row for place, data in rows for row in rows_in(place, data, metas)]
        if not found:
            raise KeyError(group)
        return encode_rows(found)

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups())

    def __len__(self) -> int:
        return len(self._groups())

    def _groups(self) -> list[int]:
        if self._found is None:
            reader = self._taken.reader()
            prefixes = [(group, group.to_bytes(2)) for group in range(*self._taken.key_groups)]
            self._found = [group for group, prefix in prefixes if next(rows_of(reader, prefix), None) is not None]
        return self._found

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class TakenFiles(NativeState):
    """A snapshot as the files of its directory."""

    format = FORMAT

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self.key_groups = taken.key_groups
        self.properties: Mapping[str, str] = {}
        self._files: tuple[NativeFile, ...] | None = None

    @property
    def files(self) -> tuple[NativeFile, ...]:  # type: ignore[override]
        """Made when they are asked for."""
        if self._files is None:
            self._files = self._taken.files()
        return self._files

    def fetch(self, name: str, path: str) -> None:
        source = self.local_path(name)
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)

    def local_path(self, name: str) -> str:
        return os.path.join(self._taken.finish(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # elsewhere there are no files, only rows
