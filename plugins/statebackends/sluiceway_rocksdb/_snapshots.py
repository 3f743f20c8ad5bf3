"""Snapshots: the dirty objects of one moment, then files that are made while processing goes on."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from sluiceway.errors import StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.serializers import Row, encode_rows
from sluiceway.state import NativeFile, NativeState, StateMeta
from sluiceway_rocksdb._changes import Changes, encode_changes
from sluiceway_rocksdb._database import Database, rows_of
from sluiceway_rocksdb._entries import MISSING, Layer
from sluiceway_rocksdb._log import Log, is_of_log
from sluiceway_rocksdb._options import RocksDBOptions
from sluiceway_rocksdb._places import new_place
from sluiceway_rocksdb._rows import rows_in

if TYPE_CHECKING:
    from sluiceway_rocksdb._backend import RocksDBKeyedBackend

__all__ = ["FORMATS", "FORMAT_FILES", "FORMAT_WITH_CHANGES", "Taken"]

FORMAT_FILES: Final = "rocksdb 1"
"""The files of a database."""
FORMAT_WITH_CHANGES: Final = "rocksdb 2"
"""Maybe these, and files of changes."""
FORMATS: Final = frozenset({FORMAT_FILES, FORMAT_WITH_CHANGES})

OPEN, DONE, FAILED, RELEASED = "open", "done", "failed", "released"


class Taken:
    """A snapshot: first layers of objects, then files: a directory of the database, or one more file of changes.

    Whoever needs the files first makes them: a helper thread that reads the snapshot, or the task's thread,
    when it has to write to the database.

    Args:
        backend: whose state it is.
        layers: what the files have to have.
        metas: the tables, by index.
        log: to which changes are added; None: all is written to the database, and that made a directory.
        dropped: namespaces that were dropped since the snapshot before, by table.

    Attributes:
        log: where its files are, once it is done and until it is released.
        in_database: whether the layers are in the database, once it is.
    """

    def __init__(
        self,
        backend: RocksDBKeyedBackend,
        layers: list[Layer],
        metas: tuple[StateMeta, ...],
        log: Log | None,
        dropped: list[tuple[int, bytes]],
    ) -> None:
        self.layers = layers
        self.metas = metas
        self.key_groups: KeyGroupRange = backend.key_groups
        self.options: RocksDBOptions = backend.options
        self.state = OPEN
        self.in_database = log is None
        self.log = self._next = log
        self._dropped = dropped
        self._identity: Callable[[str], str] = backend.identity
        self._operator = backend.operator
        self._backend: RocksDBKeyedBackend | None = backend
        self._lock = threading.Lock()
        self._files: tuple[NativeFile, ...] = ()
        self._reader: Any = None
        self._changes: Changes | None = None

    def finish(self) -> Log:
        """Make the files, if they are not there.

        Raises:
            StateError: they cannot be made, or the snapshot was released.
            SerializationError: a value cannot be serialized.
        """
        with self._lock:
            if self.state is OPEN:
                assert self._backend is not None
                try:
                    if self.log is None:
                        self._write(self._backend)
                    else:
                        self._add_changes(self._backend, self.log)
                except BaseException:
                    self.state, self.log = FAILED, None
                    raise
                self._backend = None
                self.state = DONE
            if self.log is None:
                raise StateError(
                    f"the snapshot of the state of operator {self._operator!r} was given up or released"
                )
            return self.log

    def _write(self, backend: RocksDBKeyedBackend) -> None:
        database = backend.database  # maybe opened now, so not in the task's thread
        for entries, values, _ in self.layers:
            database.write(chain.from_iterable(entries.table.write(entries, values)))
        place = new_place(self.options.directory, "snapshot")
        database.checkpoint(place.path)
        self.log = self._next = Log(self.options.directory, place)

    def _add_changes(self, backend: RocksDBKeyedBackend, log: Log) -> None:
        for entries, _, gone in self.layers:
            if gone and entries.stored:  # else they would have to be remembered for as long as there are rows
                rows = entries.table.write(entries, dict.fromkeys(gone, MISSING))
                backend.database.write(chain.from_iterable(rows))
        if self.layers or self._dropped:
            data, count = encode_changes(backend.context, self.layers, self._dropped)
            log.append(data, count)
            backend.measure(count, len(data))
        self._files = log.files

    def release(self) -> None:
        """Nobody will read it any more."""
        with self._lock:
            if self.state is OPEN:
                self.state = RELEASED
            self.log = None  # its directories go with the last one who has it
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def settled(self) -> Log | None:
        """The task's thread has taken notice of what has become of it. Gives what the next one may go on with."""
        self.layers = []
        log, self._next = self._next, None
        return log if self.state is DONE else None

    def reader(self) -> Any:
        """The database in the directory; None: there is none."""
        log = self.finish()
        with self._lock:
            if self._reader is None and log.base is not None:
                self._reader = Database.read_only(log.base.path, self.options)
            return self._reader

    def changes(self) -> Changes:
        """What is in the files of changes."""
        log = self.finish()
        with self._lock:
            if self._changes is None:
                changes = Changes()
                for file in self._files:
                    changes.add(log.read(file.name))
                self._changes = changes
            return self._changes

    def files(self) -> tuple[NativeFile, ...]:
        """All files."""
        log = self.finish()
        if log.base is None:
            return self._files
        path = log.base.path
        base = (
            NativeFile(name, os.stat(os.path.join(path, name)).st_size, self._identity(name))
            for name in sorted(os.listdir(path))
        )
        return (*base, *self._files)


class TakenRows(Mapping[int, bytes]):
    """A snapshot as rows by key group, read from its files."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._found: list[int] | None = None

    def __getitem__(self, group: int) -> bytes:
        found = list(self._taken.changes().over(group, self._before(group)))
        if not found:
            raise KeyError(group)
        return encode_rows(found)

    def _before(self, group: int) -> Iterator[Row]:
        """What the directory has."""
        reader = self._taken.reader()
        if reader is not None and 0 <= group < 1 << 16:
            for place, data in rows_of(reader, group.to_bytes(2)):
                yield from rows_in(place, data, self._taken.metas)

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups())

    def __len__(self) -> int:
        return len(self._groups())

    def _groups(self) -> list[int]:
        if self._found is None:
            changes = self._taken.changes()
            every = range(*self._taken.key_groups)
            found = [group for group in every if next(changes.over(group, self._before(group)), None) is not None]
            self._found = found
        return self._found

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class TakenFiles(NativeState):
    """A snapshot as its files."""

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

    @property
    def format(self) -> str:  # type: ignore[override]
        """It is known when they are made."""
        return FORMAT_WITH_CHANGES if any(is_of_log(file.name) for file in self.files) else FORMAT_FILES

    def fetch(self, name: str, path: str) -> None:
        source = self.local_path(name)
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)

    def local_path(self, name: str) -> str:
        return self._taken.finish().path(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # elsewhere there are no files, only rows
