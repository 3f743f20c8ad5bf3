"""Snapshots: layers of dirty objects first, then files that are written beside processing."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from sluiceway.errors import StateError
from sluiceway.keygroups import KeyGroupRange
from sluiceway.serializers import Row, encode_rows
from sluiceway.state import BackendContext, NativeFile, NativeState, StateMeta
from sluiceway.state.changelog.encoding import record_of
from sluiceway.state.changelog.fold import ChangeFold
from sluiceway.state.changelog.format import decode_record, encode_record
from sluiceway.state.changelog.record import ChangeRecord, Dropped
from sluiceway.state.heap import Layer as HeapLayer
from sluiceway_rocksdb._change_files import ChangeFiles, is_of_log
from sluiceway_rocksdb._database import Database, rows_of
from sluiceway_rocksdb._local_directories import new_place
from sluiceway_rocksdb._namespace_cache import MISSING, Layer
from sluiceway_rocksdb._options import RocksDBOptions
from sluiceway_rocksdb._row_values import rows_in
from sluiceway_rocksdb._store import SubtaskStore

__all__ = ["FORMATS", "FORMAT_FILES", "FORMAT_WITH_CHANGES", "SubtaskSnapshot"]

FORMAT_FILES: Final = "rocksdb 1"
"""The files of a database."""
FORMAT_WITH_CHANGES: Final = "rocksdb 3"
"""The files of a database, if there is one, and files with one change record each."""
FORMATS: Final = frozenset({FORMAT_FILES, "rocksdb 2", FORMAT_WITH_CHANGES})
"""Formats that can be restored; "rocksdb 2" has change records of an earlier layout."""

# States of a SubtaskSnapshot. OPEN becomes one of the others once, under its lock. A snapshot that is DONE remains
# so after its release.
OPEN, DONE, FAILED, RELEASED = "open", "done", "failed", "released"


class SubtaskSnapshot:
    """Snapshot of a subtask: first layers of objects, then a database directory or one more change file.

    The files are made by the first that needs them: a helper thread that reads the snapshot, or the task's thread,
    when it has to write to the database. :meth:`finish` does that, in either thread, once.

    Args:
        store: of the subtask.
        measure: called with the number of objects that were encoded, and their bytes.
        layers: objects that the files must hold.
        metas: the tables, by index.
        log: change files to which one more is added; None: the layers are written to the database, of which a
            checkpoint is made (:meth:`.Database.checkpoint`).
        dropped: namespaces that were dropped since the snapshot before, by table.

    Attributes:
        log: where its files are, once it is done and until it is released.
        in_database: whether the layers are in the database, once it is.
    """

    def __init__(
        self,
        store: SubtaskStore,
        measure: Callable[[int, int], None],
        layers: list[Layer],
        metas: tuple[StateMeta, ...],
        log: ChangeFiles | None,
        dropped: list[tuple[int, bytes]],
    ) -> None:
        self.layers = layers
        self.metas = metas
        self.key_groups: KeyGroupRange = store.key_groups
        self.options: RocksDBOptions = store.options
        self.state = OPEN
        self.in_database = log is None
        # Apart from `log`, which is gone with the release: the next snapshot extends the files after that, too.
        self.log = self._next = log
        self._dropped = dropped
        self._identity: Callable[[str], str] = store.identity
        self._operator = store.operator
        self._store: SubtaskStore | None = store
        self._measure = measure
        self._lock = threading.Lock()
        self._files: tuple[NativeFile, ...] = ()
        self._reader: Any = None
        self._changes: ChangeFold | None = None

    def finish(self) -> ChangeFiles:
        """Write the files unless they are written.

        Raises:
            StateError: they cannot be made, or the snapshot was released.
            SerializationError: a value cannot be serialized.
        """
        # Held while files are written: whoever comes second waits for them.
        with self._lock:
            if self.state is OPEN:
                assert self._store is not None
                try:
                    if self.log is None:
                        self._write(self._store)
                    else:
                        self._add_changes(self._store, self.log)
                except BaseException:
                    self.state, self.log = FAILED, None
                    raise
                self._store = None
                self.state = DONE
            if self.log is None:
                raise StateError(
                    f"the snapshot of the state of operator {self._operator!r} was given up or released"
                )
            return self.log

    def _write(self, store: SubtaskStore) -> None:
        # This access may open the database: late, as most often a helper thread waits for that, not the task.
        database = store.database
        for entries, values, _ in self.layers:
            database.write(chain.from_iterable(entries.table.write(entries, values)))
        place = new_place(self.options.directory, "snapshot")
        database.checkpoint(place.path)
        self.log = self._next = ChangeFiles(self.options.directory, place)

    def _add_changes(self, store: SubtaskStore, log: ChangeFiles) -> None:
        for entries, _, gone in self.layers:
            if gone and entries.stored:  # else they would have to be remembered for as long as there are rows
                rows = entries.table.write(entries, dict.fromkeys(gone, MISSING))
                store.database.write(chain.from_iterable(rows))
        if self.layers or self._dropped:
            data = encode_record(self._record(store.context))
            count = len(self._dropped) + sum(len(layer.values) + len(layer.gone) for layer in self.layers)
            log.append(data, count)
            self._measure(count, len(data))
        self._files = log.files

    def _record(self, context: BackendContext) -> ChangeRecord:
        written, removed = [], []
        for entries, values, gone in self.layers:
            table = entries.table
            if values:
                written.append(HeapLayer.of(table.index, table.schema, entries.name, values, table.row_value))
            if gone:
                removed.append((table.index, entries.name, gone))
        dropped = [Dropped(table, namespace) for table, namespace in self._dropped]
        return record_of(context, written, removed, dropped)

    def release(self) -> None:
        """Release the snapshot: nobody reads it any more."""
        with self._lock:
            if self.state is OPEN:
                self.state = RELEASED
            self.log = None  # its directories go with the last one who has it
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def settled(self) -> ChangeFiles | None:
        """Settle the snapshot in the task's thread. Return the change files that the next one may extend."""
        self.layers = []
        log, self._next = self._next, None
        return log if self.state is DONE else None

    def reader(self) -> Any:
        """Return the database of the snapshot, opened for reading; None: there is none."""
        log = self.finish()
        with self._lock:
            if self._reader is None and log.base is not None:
                self._reader = Database.read_only(log.base.path, self.options)
            return self._reader

    def changes(self) -> ChangeFold:
        """Return the folded change files."""
        log = self.finish()
        with self._lock:
            if self._changes is None:
                changes = ChangeFold()
                for file in self._files:
                    changes.add(decode_record(log.read(file.name)))
                self._changes = changes
            return self._changes

    def files(self) -> tuple[NativeFile, ...]:
        """Return all files."""
        log = self.finish()
        if log.base is None:
            return self._files
        path = log.base.path
        base = (
            NativeFile(name, os.stat(os.path.join(path, name)).st_size, self._identity(name))
            for name in sorted(os.listdir(path))
        )
        return (*base, *self._files)


class SnapshotRows(Mapping[int, bytes]):
    """Snapshot as rows by key group, read from its files."""

    def __init__(self, taken: SubtaskSnapshot) -> None:
        self._taken = taken
        self._found: list[int] | None = None

    def __getitem__(self, group: int) -> bytes:
        found = list(self._taken.changes().rows(group, self._before(group)))
        if not found:
            raise KeyError(group)
        return encode_rows(found)

    def _before(self, group: int) -> Iterator[Row]:
        """Yield the rows of the database of the snapshot."""
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
            found = [group for group in every if next(changes.rows(group, self._before(group)), None) is not None]
            self._found = found
        return self._found

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class SnapshotFiles(NativeState):
    """Snapshot as its files."""

    def __init__(self, taken: SubtaskSnapshot) -> None:
        self._taken = taken
        self.key_groups = taken.key_groups
        self.properties: Mapping[str, str] = {}
        self._files: tuple[NativeFile, ...] | None = None

    @property
    def files(self) -> tuple[NativeFile, ...]:  # type: ignore[override]
        """Files, made at their first access."""
        if self._files is None:
            self._files = self._taken.files()
        return self._files

    @property
    def format(self) -> str:  # type: ignore[override]
        """Format of the files, known when they are made."""
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
