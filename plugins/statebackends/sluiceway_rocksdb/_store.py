"""Store of one subtask: its database, the directory that holds it, and the tables in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from threading import Lock
from typing import Any

from sluiceway.errors import StateError
from sluiceway.state import BackendContext, StateMeta
from sluiceway_rocksdb._database import Database
from sluiceway_rocksdb._local_directories import Place, new_place
from sluiceway_rocksdb._options import RocksDBOptions

__all__ = ["SubtaskStore"]


class SubtaskStore:
    """Database of one subtask and the indices of its tables, without any cache.

    Args:
        context: context of the subtask.
        options: options of all databases.

    Attributes:
        context: context of the subtask.
        operator: uid, for messages.
        key_groups: those that the subtask owns.
        max_parallelism: number of all key groups.
        options: options of all databases.
        adopted: by name, the identity in checkpoint storages of each file that came with a restored snapshot.
        metas: the tables by index.
    """

    def __init__(self, context: BackendContext, options: RocksDBOptions) -> None:
        self.context = context
        self.options = options
        self.operator = context.operator
        self.key_groups = context.key_groups
        self.max_parallelism = context.max_parallelism
        self.adopted: dict[str, str] = {}
        self.metas: list[StateMeta] = []
        self._id = secrets.token_hex(8)
        self._place: Place | None = None
        self._database: Database | None = None
        self._opening = Lock()  # a snapshot may be the first to need the database, in a helper thread
        self._closed = False

    @property
    def place(self) -> Place:
        """Directory of the database, created on disk when the database is opened."""
        if self._place is None:
            self._place = new_place(self.options.directory, "database")
        return self._place

    @property
    def is_open(self) -> bool:
        """True once the database was opened; until then it has no rows unless files were adopted."""
        return self._database is not None

    @property
    def database(self) -> Database:
        """Database, opened on first use. Raises StateError once the store is closed."""
        if self._database is None:
            with self._opening:
                if self._database is None:
                    self.check_open()
                    self._database = Database(self.place.path, self.options)
        return self._database

    def identity(self, name: str) -> str:
        """Return the identity of a database file in checkpoint storages; empty if the file may still change."""
        # A finished table file never changes, and its number is used once in a database. The random id keeps
        # databases of other subtasks and attempts apart.
        return self.adopted.get(name) or (f"{self._id}-{name}" if name.endswith(".sst") else "")

    # -- tables --------------------------------------------------------------------------------------------------

    def indices_of(self, name: str) -> list[int]:
        """Return the indices of a table: none if it is not known, several if it was restored in several forms."""
        return [index for index, meta in enumerate(self.metas) if meta.name == name]

    def register(self, meta: StateMeta) -> int:
        """Return the index of a table, a new one if there is none in that form.

        Raises:
            StateError: there is another table of that name.
        """
        for index in self.indices_of(meta.name):
            known = self.metas[index]
            if known == meta:
                return index
            if not known.is_form_of(meta):
                raise StateError(
                    f"the snapshots of operator {self.operator!r} disagree about state {meta.name!r}: one holds "
                    f"{known}, another {meta}"
                )
        self.metas.append(meta)
        return len(self.metas) - 1

    def register_first(self, metas: Iterable[StateMeta]) -> tuple[int, ...]:
        """Register the tables of a first snapshot under the indices that its files have."""
        self.metas = list(metas)
        return tuple(range(len(self.metas)))

    def foreign(self, state: str, key: Any, group: int) -> StateError:
        """Return the error for a key of a key group that another subtask owns."""
        start, end = self.key_groups
        return StateError(
            f"state {state!r} of operator {self.operator!r} holds key {key!r} of key group {group}, but "
            f"subtask {self.context.subtask} owns the groups {start} to {end - 1}: a key selector must give the "
            "same key for the same record every time"
        )

    # -- end -----------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise StateError once the store is closed."""
        if self._closed:
            raise StateError(f"the state of operator {self.operator!r} is closed")

    def mark_closed(self) -> None:
        """Refuse to open the database from now on."""
        self._closed = True

    def close(self) -> None:
        """Close the database and remove its directory."""
        self._closed = True
        if self._database is not None:
            self._database.close()
        if self._place is not None:
            self._place.remove()
